"""The whole update as one compiled program: losses, gradients, optimisers and target networks.

An update is one call, which never returns to Python. Each shape of batch and each set of steps that are due together
has its own program: an actor that is updated in every second update makes two.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from birl.engine import compile_cache as stored
from birl.engine.cache_keys import OpaqueError, digest
from birl.engine.compiler import Graphs, Uncopied
from birl.engine.cuda_graphs import Generators, Recorder, Recording, Updates, drawn_ahead
from birl.engine.steps import Gradients, Step, UpdateResult
from birl.engine.train_state import TrainState
from birl.engine.update import Eager, stacked
from birl.errors import CompileError
from birl.models.matmul import fast_products
from birl.optimizers.steps import Rule, moments_of, rule_of
from birl.types import Batch

RUNS_BEFORE_RECORDING = 3

Due = Sequence[Step]
Moments = Mapping[str, Sequence[Sequence[Tensor]]]  # by gradient step, then by parameter


class Program(Eager):
    """Whole updates as programs, for networks whose optimisers all have a `Rule`. `gradients` by itself is eager.

    Args:
        trained: the networks and optimisers that it updates.
        record: records updates after some runs, to be replayed; ``None`` for devices that cannot.
    """

    compiled = True

    def __init__(self, trained: TrainState, record: Recorder | None = None) -> None:
        super().__init__(trained)
        self._graphs, self._record = Graphs(), record
        self._parameters = list(trained.nets.parameters())
        self._device = self._parameters[0].device
        self._refresh()

    @property
    def records(self) -> bool:
        """Whether updates are recorded and replayed, so that several can be made in one call."""
        return self._record is not None

    def _refresh(self) -> None:
        """Look up the optimisers' moments again after they were replaced or loaded."""
        self._version = self._trained.version
        self._learning = self._find_learning()
        self._optimizer_steps = {name: _OptimizerStep(self._trained, name) for name in self._trained.optimizers}
        self._single: Uncopied[bool] = Uncopied()  # kinds of updates that were already made one by one
        self._runs: Uncopied[int] = Uncopied()
        self._recordings: Uncopied[Recording] = Uncopied()
        self._graphs.refresh()

    def _find_learning(self) -> tuple[bool, ...]:
        """Return for each parameter whether it learns, which users can change."""
        return tuple([parameter.requires_grad for parameter in self._parameters])

    def _is_outdated(self) -> bool:
        """Return whether optimisers were replaced or loaded, or other parameters learn."""
        return self._version != self._trained.version or self._learning != self._find_learning()

    def update(self, batch: Batch, due: Due) -> UpdateResult:
        if self._is_outdated():
            self._refresh()
        batch, scalars = self._prepared(batch, due), self._step_scalars([due])
        key = self._key(due)
        result = self._made(key, lambda inputs, numbers: self._run(inputs, numbers, due), batch, scalars)
        self._single[key] = True
        self._count([due])
        return result

    def update_many(
        self, draw: Callable[[], Batch], dues: Sequence[Due], generators: Generators
    ) -> UpdateResult | None:
        """See `Engine.update_many`. Return ``None`` if these updates must be made one by one.

        They must with a schedule, which gives the scalars of one step at a time, and until each kind of update has run
        once, because compiling must not fail after something has changed.
        """
        scheduled = any(schedule is not None for schedule in self._trained.schedulers.values())
        if scheduled or self._is_outdated() or any(map(self.is_new, dues)):
            return None

        def updates(_: Batch | None, scalars: Tensor) -> UpdateResult:
            batches = drawn_ahead([partial(self._drawn, draw, due) for due in dues], self._device)
            parts = zip(batches, scalars.split(sizes), dues, strict=True)
            results = [self._run(batch, step_scalars, due) for batch, step_scalars, due in parts]
            statistics = stacked(result.gradient_statistics for result in results)
            return UpdateResult(stacked(result.metrics for result in results), None, statistics)

        scalars = self._step_scalars(dues)
        sizes = [sum(step.size for step in self._optimized(due).values()) for due in dues]
        result = self._made(tuple(self._key(due) for due in dues), updates, None, scalars, generators)
        self._count(dues)
        return result

    def is_new(self, due: Due) -> bool:
        """Return whether the next update of this kind compiles."""
        return self._key(due) not in self._single

    def _drawn(self, draw: Callable[[], Batch], due: Due) -> Batch:
        return self._prepared(draw(), due)

    def _prepared(self, batch: Batch, due: Due) -> Batch:
        """Return the batch in the form that the update takes."""
        return batch

    def _losses(self, apply_gradients: Callable[[str, Gradients], None]) -> Eager:
        """Return the object that performs the steps while the update is traced."""
        return Eager(self._trained, apply_gradients)

    def _made(
        self, key: Hashable, updates: Updates, batch: Batch | None, scalars: Tensor, generators: Generators = ()
    ) -> UpdateResult:
        """Make updates. After `RUNS_BEFORE_RECORDING` runs, record them once and replay the recording from then on."""
        if self._record is not None:
            key = (key, None if batch is None else batch.signature)
            runs = self._runs[key] = self._runs.get(key, 0) + 1
            if runs > RUNS_BEFORE_RECORDING and key not in self._recordings:
                self._recordings[key] = Recording(updates, batch, scalars, generators, self._record)
            updates = self._recordings.get(key, updates)
        return updates(batch, scalars)

    def _optimized(self, due: Due) -> dict[str, _OptimizerStep]:
        return {step.name: self._optimizer_steps[step.name] for step in due if step.name in self._optimizer_steps}

    def _step_scalars(self, dues: Sequence[Due]) -> Tensor:
        """Return the scalars of the next optimiser steps, in the order of the steps."""
        ahead: dict[str, int] = {}
        scalars: list[float] = []
        for due in dues:
            for name, step in self._optimized(due).items():
                ahead[name] = ahead.get(name, 0) + 1
                scalars += step.scalars(ahead[name])
        return torch.tensor(scalars).to(self._device, non_blocking=True)

    def _count(self, dues: Sequence[Due]) -> None:
        for due in dues:
            for name in self._optimized(due):
                self._trained.count(name)

    def _run(self, batch: Batch | None, scalars: Tensor, due: Due) -> UpdateResult:
        assert batch is not None
        moments = {name: step.moments() for name, step in self._optimized(due).items()}

        def kept() -> list[Tensor]:
            flat = [each for step in moments.values() for few in step for each in few]
            return [*self.nets.parameters(), *self.nets.buffers(), *flat]

        leaves, signature = batch.flat()
        graph = self._graphs.of(self._key(due), lambda: self._function(due), signature, self._place)
        return graph.update([*leaves, scalars], (batch, scalars, moments), kept)

    def _key(self, due: Due) -> Hashable:
        """Return the key of a compiled update, without its batch."""
        names = tuple(step.name for step in due)
        rules = tuple(step.rules for step in self._optimized(due).values())
        flags = self.nets.training, self._trained.watch is not None, self._trained.prioritised
        return names, rules, self._learning, *flags

    @property
    def shelf(self) -> Path | None:
        """The folder on disk for the programs of these networks and settings; ``None`` if they cannot be stored."""
        folder = stored.folder()
        if folder is None or self._device.type != "cpu":
            return None
        trained, code = self._trained, (Program._function, _OptimizerStep, Eager, TrainState)
        config = {name: value for name, value in vars(trained.config).items() if name != "compile_graph"}
        try:
            groups = {name: list(step.groups.values()) for name, step in self._optimizer_steps.items()}
            values = (type(trained.config), config, trained.nets, trained.steps, trained.clip_norms, groups)
            with fast_products():  # as in updates
                return folder / stored.PROGRAMS / digest(stored.compile_environment(), code, values)
        except OpaqueError:
            return None

    def _place(self, key: Hashable) -> Path | None:
        """Return the path of the program for a key; ``None`` if it is not stored."""
        shelf = self.shelf
        return None if shelf is None else shelf / digest(key)

    def _function(self, due: Due) -> Callable[[Batch, Tensor, Moments], UpdateResult]:
        steps = self._optimized(due)
        sizes = [step.size for step in steps.values()]

        def update(batch: Batch, scalars: Tensor, moments: Moments) -> UpdateResult:
            scalars_of = dict(zip(steps, scalars.split(sizes), strict=True))

            def apply_gradients(name: str, gradients: Gradients) -> None:
                with torch.no_grad():
                    steps[name](gradients, moments[name], scalars_of[name])

            return self._losses(apply_gradients).update(batch, due)

        return update


class _OptimizerStep:
    """One step of an optimiser, with the clipping before it, as a function of tensors."""

    def __init__(self, trained: TrainState, name: str) -> None:
        self._trained, self._name, self._optimizer = trained, name, trained.optimizers[name]
        (networks,) = (step.networks for step in trained.gradient_steps if step.name == name)
        self._parameters = trained.learning(networks)
        groups = self._optimizer.param_groups
        group_of = {parameter: index for index, group in enumerate(groups) for parameter in group["params"]}
        self.groups = {key: group_of[parameter] for key, parameter in self._parameters.items()}
        self.rules = self._read_rules()
        self._moments: list[list[Tensor]] | None = None

    def _read_rules(self) -> tuple[Rule, ...]:
        rules = [rule_of(self._optimizer, group) for group in self._optimizer.param_groups]
        if None in rules:
            raise CompileError(f"the changed optimiser of the step {self._name!r} has no compiled form")
        return tuple(rule for rule in rules if rule is not None)

    @property
    def size(self) -> int:
        """Number of scalars in one step."""
        return len(self.scalars(1))

    def moments(self) -> list[list[Tensor]]:
        """Return the moments of each parameter, created on the first step, as the optimiser itself does."""
        if self._moments is None:
            self._moments = [
                moments_of(self._optimizer, parameter, self.rules[self.groups[key]])
                for key, parameter in self._parameters.items()
            ]
        return self._moments

    def scalars(self, ahead: int) -> list[float]:
        """Return the scalars of the next step (``ahead`` is 1) or a later one, group by group."""
        self.rules = self._read_rules()  # a user may have changed the optimiser's groups
        step = self._trained.step_counts[self._name] + ahead
        groups = zip(self.rules, self._optimizer.param_groups, strict=True)
        return [number for rule, group in groups for number in rule.step_scalars(group, step)]

    def __call__(self, gradients: Gradients, moments: Sequence[Sequence[Tensor]], scalars: Tensor) -> None:
        """Update the parameters that have a gradient."""
        limit = self._trained.clip_norms[self._name]
        if limit is not None and gradients:
            gradients = dict(zip(gradients, self._trained.clip(list(gradients.values()), limit), strict=True))
        groups = zip(self.rules, self._optimizer.param_groups, strict=True)
        group_scalars = [
            each.unbind() for each in scalars.split([len(rule.step_scalars(group, 1)) for rule, group in groups])
        ]
        for (key, parameter), kept in zip(self._parameters.items(), moments, strict=True):
            if key in gradients:
                group = self.groups[key]
                self.rules[group](parameter, gradients[key], kept, group_scalars[group])


def supports(trained: TrainState) -> bool:
    """Return whether all steps and optimisers can be part of a program."""
    return not any(step.eager_only for step in trained.steps) and all(
        rule_of(optimizer, group) is not None
        for optimizer in trained.optimizers.values()
        for group in optimizer.param_groups
    )
