"""The whole update as one compiled program: losses, gradients, optimisers and target networks.

Nothing in it goes back to Python: one call a step. There is a program for each shape of batch and for each set of
steps that are due together (two for an actor that moves in every second update).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from birl.engine.compiler import Graphs
from birl.engine.cuda_graphs import Recorder, Recording
from birl.engine.gradient_statistics import WATCHED, statistics
from birl.engine.steps import LossFunction, Step
from birl.engine.trained import Gradients, Trained, clip
from birl.engine.update import Eager, differentiate, make
from birl.errors import CompileError
from birl.losses.loss import Loss
from birl.optimizers.steps import Rule, moments_of, rule_of
from birl.types import Batch

RUNS_BEFORE_RECORDING = 3

Due = Sequence[Step]
Moments = Mapping[str, Sequence[Sequence[Tensor]]]  # of each parameter of each gradient step


class Program(Eager):
    """Compiled updates of networks, all of whose optimisers have a `Rule`. Single gradients are eager.

    Args:
        trained: the networks and optimisers that move.
        record: on devices that can, updates are recorded after some runs, and replayed. ``None`` for none.
    """

    compiled, reduces = True, False

    def __init__(self, trained: Trained, record: Recorder | None) -> None:
        super().__init__(trained)
        self._graphs, self._record = Graphs(), record
        self._device = next(trained.nets.parameters()).device
        self._refresh()

    def _refresh(self) -> None:
        """Look up the optimisers' moments anew, after they were replaced or loaded."""
        self._version = self._trained.version
        self._optimizer_steps = {name: _OptimizerStep(self._trained, name) for name in self._trained.optimizers}
        self._recordings = _Recordings()
        self._graphs.refresh()

    def _refresh_if_replaced(self) -> None:
        if self._version != self._trained.version:
            self._refresh()

    @property
    def records(self) -> bool:  # type: ignore[override]
        """Whether updates are recorded on this device."""
        return self._record is not None

    def update(self, batch: Batch, due: Due) -> dict[str, Tensor]:
        """See `Eager.update`."""
        self._refresh_if_replaced()
        scalars = self._step_scalars([due])
        key = self._key(due)
        recording = self._recorded(key, lambda own, own_scalars: self._run(own, own_scalars, due), batch, scalars, [])
        metrics = self._run(batch, scalars, due) if recording is None else recording(batch, scalars)
        self._recordings.single.add(key)
        self._count([due])
        return metrics

    def update_many(
        self, draw: Callable[[], Batch], dues: Sequence[Due], generators: Sequence[torch.Generator]
    ) -> dict[str, Tensor] | None:
        """See `Eager.update_many`.

        One by one with a schedule, which tells the scalars of one step at a time; and until each kind of update has
        been made by itself, for what cannot be compiled must fail before anything has changed.
        """
        self._refresh_if_replaced()
        scheduled = any(schedule is not None for schedule in self._trained.schedulers.values())
        if scheduled or any(self._key(due) not in self._recordings.single for due in dues):
            return None

        def updates(_: Batch | None, scalars: Tensor) -> dict[str, Tensor]:
            collected: dict[str, list[Tensor]] = {}
            for due, own in zip(dues, scalars.split(sizes), strict=True):
                for name, value in self._run(draw(), own, due).items():
                    collected.setdefault(name, []).append(value.float())
            return {name: torch.stack(values) for name, values in collected.items()}

        scalars = self._step_scalars(dues)
        sizes = [sum(step.size for step in self._moved(due).values()) for due in dues]
        key = tuple(self._key(due) for due in dues)
        recording = self._recorded(key, updates, None, scalars, generators)
        metrics = updates(None, scalars) if recording is None else recording(None, scalars)
        self._count(dues)
        return metrics

    def _moved(self, due: Due) -> dict[str, _OptimizerStep]:
        return {step.name: self._optimizer_steps[step.name] for step in due if step.name in self._optimizer_steps}

    def _recorded(
        self,
        key: Hashable,
        updates: Callable[[Batch | None, Tensor], dict[str, Tensor]],
        batch: Batch | None,
        scalars: Tensor,
        generators: Sequence[torch.Generator],
    ) -> Recording | None:
        """The recording of such updates with such batches, made as soon as all of it was compiled and has run."""
        if self._record is None:
            return None
        kept, key = self._recordings, (key, None if batch is None else batch.signature)
        runs = kept.runs[key] = kept.runs.get(key, 0) + 1
        if runs > RUNS_BEFORE_RECORDING and key not in kept.made:
            kept.made[key] = Recording(updates, batch, scalars, generators, self._record)
        return kept.made.get(key)

    def _step_scalars(self, dues: Sequence[Due]) -> Tensor:
        """What the coming optimiser steps read beside gradients and moments, in the order of the steps."""
        ahead: dict[str, int] = {}
        scalars: list[float] = []
        for due in dues:
            for name, step in self._moved(due).items():
                ahead[name] = ahead.get(name, 0) + 1
                scalars += step.scalars(ahead[name])
        return torch.tensor(scalars).to(self._device, non_blocking=True)

    def _count(self, dues: Sequence[Due]) -> None:
        for due in dues:
            for name in self._moved(due):
                self._trained.count(name)

    def _run(self, batch: Batch | None, scalars: Tensor, due: Due) -> dict[str, Tensor]:
        assert batch is not None
        moments = {name: step.moments() for name, step in self._moved(due).items()}

        def kept() -> list[Tensor]:
            own = [each for step in moments.values() for few in step for each in few]
            return [*self.nets.parameters(), *self.nets.buffers(), *own]

        return self._graphs.update(self._key(due), lambda: self._function(due), batch, scalars, moments, kept)

    def _key(self, due: Due) -> Hashable:
        """What tells one compiled update from another, beside its batch."""
        names = tuple(step.name for step in due)
        rules = tuple(step.rules for step in self._moved(due).values())
        return names, rules, self.nets.training, self._trained.watch is not None

    def _function(self, due: Due) -> Callable[[Batch, Tensor, Moments], dict[str, Tensor]]:
        trained, steps, begins, begin = self._trained, self._moved(due), {}, 0
        for name, step in steps.items():
            begins[name], begin = begin, begin + step.size

        def update(batch: Batch, scalars: Tensor, moments: Moments) -> dict[str, Tensor]:
            metrics: dict[str, Tensor] = {}
            make(due, _Traced(trained, steps, moments, scalars, begins, metrics), batch)
            return metrics

        return update


class _Traced:
    """An update while its program is traced."""

    def __init__(
        self,
        trained: Trained,
        steps: Mapping[str, _OptimizerStep],
        moments: Moments,
        scalars: Tensor,
        begins: Mapping[str, int],
        metrics: dict[str, Tensor],
    ) -> None:
        self.nets, self.config = trained.nets, trained.config
        self._trained, self._steps, self._moments = trained, steps, moments
        self._scalars, self._begins, self._metrics = scalars, begins, metrics

    def gradients(self, loss: LossFunction, of: tuple[str, ...], batch: Batch) -> tuple[Gradients, Loss]:
        return differentiate(loss, self.nets, batch, self.config, self._trained.parameters_of(of))

    def reduce(self, gradients: Gradients) -> Gradients:
        return gradients

    def apply(self, name: str, gradients: Gradients) -> None:
        if self._trained.watch is not None:
            self._metrics[WATCHED + name] = statistics(gradients.values())
        with torch.no_grad():
            self._steps[name](list(gradients.values()), self._moments[name], self._scalars[self._begins[name] :])

    def report(self, metrics: Mapping[str, Tensor]) -> None:
        self._metrics.update(metrics)


class _Recordings:
    """How often each kind of update was run, the recordings that were made of it, and the single updates made."""

    def __init__(self) -> None:
        self.single: set[Hashable] = set()
        self.runs: dict[Hashable, int] = {}
        self.made: dict[Hashable, Recording] = {}

    def __deepcopy__(self, memo: Any) -> _Recordings:
        return _Recordings()


class _OptimizerStep:
    """One step of an optimiser, with the clipping before it, as a function of tensors."""

    def __init__(self, trained: Trained, name: str) -> None:
        self._trained, self._name, self._optimizer = trained, name, trained.optimizers[name]
        self._parameters = list(trained.parameters[name].values())
        groups = self._optimizer.param_groups
        group_of = {parameter: index for index, group in enumerate(groups) for parameter in group["params"]}
        self._groups = [group_of[parameter] for parameter in self._parameters]
        self.rules = self._read_rules()
        self._moments: list[list[Tensor]] | None = None

    def _read_rules(self) -> tuple[Rule, ...]:
        rules = [rule_of(self._optimizer, group) for group in self._optimizer.param_groups]
        if None in rules:
            raise CompileError(f"the changed optimiser of the step {self._name!r} has no compiled form")
        return tuple(rule for rule in rules if rule is not None)

    @property
    def size(self) -> int:
        """How many scalars one step has."""
        return len(self.scalars(1))

    def moments(self) -> list[list[Tensor]]:
        """The optimiser's moments of each parameter; made when the first step is, as the optimiser itself would."""
        if self._moments is None:
            self._moments = [
                moments_of(self._optimizer, parameter, self.rules[group])
                for parameter, group in zip(self._parameters, self._groups, strict=True)
            ]
        return self._moments

    def scalars(self, ahead: int) -> list[float]:
        """The scalars of the coming step (``ahead`` 1) or a later one, group by group."""
        self.rules = self._read_rules()  # a user may have changed the optimiser's groups
        step = self._trained.step_counts[self._name] + ahead
        groups = zip(self.rules, self._optimizer.param_groups, strict=True)
        return [number for rule, group in groups for number in rule.numbers(group, step)]

    def __call__(self, gradients: list[Tensor], moments: Sequence[Sequence[Tensor]], scalars: Tensor) -> None:
        """Move the parameters; ``scalars`` begin with this step's."""
        limit = self._trained.clip_norms[self._name]
        if limit is not None:
            gradients = clip(gradients, limit)
        own, begin = [], 0
        for rule, group in zip(self.rules, self._optimizer.param_groups, strict=True):
            count = len(rule.numbers(group, 1))
            own.append([scalars[begin + index] for index in range(count)])
            begin += count
        for parameter, gradient, kept, group in zip(self._parameters, gradients, moments, self._groups, strict=True):
            self.rules[group](parameter, gradient, kept, own[group])


def supports(trained: Trained) -> bool:
    """Whether all steps and optimisers can be part of a program."""
    return not any(step.on_host for step in trained.steps) and all(
        rule_of(optimizer, group) is not None
        for optimizer in trained.optimizers.values()
        for group in optimizer.param_groups
    )
