"""The whole update as one compiled program: losses, gradients, optimisers and target networks.

Nothing in it goes back to Python: one call a step. There is a program for each shape of batch and for each set of
phases and targets that are due together (two for an actor that moves in every second update).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from birl.engine.compiler import Graphs
from birl.engine.cuda_graphs import Recorder, Recording
from birl.engine.gradient_statistics import WATCHED, statistics
from birl.engine.phase import Due, Phase
from birl.errors import CompileError
from birl.optimizers.steps import Rule, moments_of, rule_of
from birl.types import Batch

if TYPE_CHECKING:
    from birl.engine.engine import Engine

RUNS_BEFORE_RECORDING = 3

class Program:
    """Compiled updates of one engine, all of whose optimisers have a `Rule`.

    Args:
        engine: whose networks and optimisers move.
        record: on devices that can, updates are recorded after some runs, and replayed. ``None`` for none.
    """

    def __init__(self, engine: Engine, record: Recorder | None) -> None:
        self._engine, self._graphs, self._record = engine, Graphs(), record
        self.refresh()

    def refresh(self) -> None:
        """Look up the optimisers' moments anew, after they were replaced or loaded."""
        self._steps = {phase.name: _OptimizerStep(self._engine, phase) for phase in self._engine.phases}
        self._device = next(self._engine.nets.parameters()).device
        self._recordings = _Recordings()
        self._graphs.refresh()

    def update(self, batch: Batch, due: Due) -> dict[str, Tensor]:
        """One update with the phases and targets that are due; returns the metrics."""
        numbers = torch.tensor(self._numbers([due])).to(self._device, non_blocking=True)
        what = self._what(due)
        recording = self._recorded(what, lambda own, own_numbers: self._run(own, own_numbers, due), batch, numbers, [])
        metrics = self._run(batch, numbers, due) if recording is None else recording(batch, numbers)
        self._recordings.single.add(what)
        self._count([due])
        return metrics

    def update_many(
        self, draw: Callable[[], Batch], dues: Sequence[Due], generators: Sequence[torch.Generator]
    ) -> dict[str, Tensor]:
        """An update for each of ``dues``, with batches from ``draw``; returns metrics ``[k]`` of each name's updates.

        Args:
            draw: makes a batch, on the device and without waiting for it.
            dues: what is due in each update.
            generators: generators that ``draw`` uses.
        """

        def updates(_: Batch | None, numbers: Tensor) -> dict[str, Tensor]:
            collected: dict[str, list[Tensor]] = {}
            for due, own in zip(dues, numbers.split(sizes), strict=True):
                for name, value in self._run(draw(), own, due).items():
                    collected.setdefault(name, []).append(value.float())
            return {name: torch.stack(values) for name, values in collected.items()}

        sizes = [sum(self._steps[phase.name].size for phase in due.phases) for due in dues]
        numbers = torch.tensor(self._numbers(dues)).to(self._device, non_blocking=True)
        what = tuple(self._what(due) for due in dues)
        recording = self._recorded(what, updates, None, numbers, generators)
        metrics = updates(None, numbers) if recording is None else recording(None, numbers)
        self._count(dues)
        return metrics

    def _recorded(
        self,
        what: Hashable,
        updates: Callable[[Batch | None, Tensor], dict[str, Tensor]],
        batch: Batch | None,
        numbers: Tensor,
        generators: Sequence[torch.Generator],
    ) -> Recording | None:
        """The recording of ``what`` for such batches, made as soon as everything in it was compiled and has run."""
        if self._record is None:
            return None
        kept, key = self._recordings, (what, None if batch is None else batch.signature)
        runs = kept.runs[key] = kept.runs.get(key, 0) + 1
        if runs > RUNS_BEFORE_RECORDING and key not in kept.made:
            kept.made[key] = Recording(updates, batch, numbers, generators, self._record)
        return kept.made.get(key)

    def _numbers(self, dues: Sequence[Due]) -> list[float]:
        """The numbers of the coming optimiser steps, in the order of the steps. Changes nothing."""
        made: dict[str, int] = {}
        numbers: list[float] = []
        for due in dues:
            for phase in due.phases:
                made[phase.name] = made.get(phase.name, 0) + 1
                numbers += self._steps[phase.name].numbers(made[phase.name])
        return numbers

    def _count(self, dues: Sequence[Due]) -> None:
        for due in dues:
            for phase in due.phases:
                self._steps[phase.name].count()

    def _run(self, batch: Batch | None, numbers: Tensor, due: Due) -> dict[str, Tensor]:
        assert batch is not None
        steps = [self._steps[phase.name] for phase in due.phases]
        moments = [step.moments() for step in steps]

        def kept() -> list[Tensor]:
            nets = self._engine.nets
            return [*nets.parameters(), *nets.buffers(), *(each for own in moments for few in own for each in few)]

        return self._graphs.update(
            self._what(due), lambda: self._function(due, steps), batch, numbers, moments, kept
        )

    def _what(self, due: Due) -> Hashable:
        """What tells one compiled update from another, beside its batch."""
        rules = tuple(self._steps[phase.name].rules for phase in due.phases)
        return due, rules, self._engine.nets.training, self._engine.watch is not None

    @property
    def records(self) -> bool:
        """Whether updates are recorded on this device."""
        return self._record is not None

    def can_make(self, dues: Sequence[Due]) -> bool:
        """Whether `update_many` can make these.

        Not with a schedule, which tells the numbers of one step at a time; and not before each kind of update has been
        made by itself, for what cannot be compiled must fail before anything has changed.
        """
        scheduled = any(schedule is not None for schedule in self._engine.schedulers.values())
        return not scheduled and all(self._what(due) in self._recordings.single for due in dues)

    def store_counts(self) -> None:
        """Write the numbers of steps where the optimisers keep them: needed only when they are read or step again."""
        for step in self._steps.values():
            step.store_count()

    def _function(self, due: Due, steps: Sequence[_OptimizerStep]) -> Callable[..., dict[str, Tensor]]:
        nets, config, watched = self._engine.nets, self._engine.config, self._engine.watch is not None

        def update(batch: Batch, numbers: Tensor, moments: Sequence[Sequence[Sequence[Tensor]]]) -> dict[str, Tensor]:
            metrics: dict[str, Tensor] = {}
            begin = 0
            for phase, step, own in zip(due.phases, steps, moments, strict=True):
                loss = phase.loss(nets, batch, config)
                gradients = torch.autograd.grad(loss.value, step.parameters)
                loss = loss.detached()
                if watched:
                    metrics[WATCHED + phase.name] = statistics(gradients)
                with torch.no_grad():
                    begin = step(gradients, own, numbers, begin)
                metrics[phase.logged] = loss.value
                metrics.update(loss.metrics)
                batch = loss.carried_on(batch)
            with torch.no_grad():
                for target in due.targets:
                    target.apply(nets, config)
            return metrics

        return update


class _Recordings:
    """How often each kind of update was run, the recordings that were made of it, and the single updates made."""

    def __init__(self) -> None:
        self.single: set[Hashable] = set()
        self.runs: dict[Hashable, int] = {}
        self.made: dict[Hashable, Recording] = {}

    def __deepcopy__(self, memo: Any) -> _Recordings:
        return _Recordings()


class _OptimizerStep:
    """What an optimiser's ``step`` does, with the clipping before it, as a function of tensors."""

    def __init__(self, engine: Engine, phase: Phase) -> None:
        self._engine, self._phase, optimizer = engine, phase, engine.optimizers[phase.name]
        self._optimizer = optimizer
        self._clip = phase.setting(engine.config, "optim_factory").clip_grad_norm
        self.parameters = list(engine.parameters[phase.name].values())
        group_of = {p: index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self._groups = [group_of[parameter] for parameter in self.parameters]
        self.rules = self._read_rules()
        self._moments: list[list[Tensor]] | None = None

    def _read_rules(self) -> tuple[Rule, ...]:
        rules = [rule_of(self._optimizer, group) for group in self._optimizer.param_groups]
        if None in rules:
            raise CompileError(f"the changed optimiser of the phase {self._phase.name!r} has no compiled form")
        return tuple(rule for rule in rules if rule is not None)

    @property
    def size(self) -> int:
        """How many numbers one step has."""
        return len(self.numbers(1))

    def moments(self) -> list[list[Tensor]]:
        """The optimiser's moments of each parameter; made when the first step is, as the optimiser itself would."""
        if self._moments is None:
            self._moments = [
                moments_of(self._optimizer, parameter, self.rules[group])
                for parameter, group in zip(self.parameters, self._groups, strict=True)
            ]
        return self._moments

    def numbers(self, ahead: int) -> list[float]:
        """The numbers of the coming step (``ahead`` 1) or a later one, group by group."""
        self.rules = self._read_rules()  # a user may have changed the optimiser's groups
        step = self._engine.steps[self._phase.name] + ahead
        groups = zip(self.rules, self._optimizer.param_groups, strict=True)
        return [number for rule, group in groups for number in rule.numbers(group, step)]

    def count(self) -> None:
        """The step was made: count it, and move the schedule on."""
        self._engine.steps[self._phase.name] += 1
        schedule = self._engine.schedulers[self._phase.name]
        if schedule is not None:
            self._optimizer._opt_called = True  # type: ignore[attr-defined]  # or the schedule warns that none was made
            schedule.step()

    def store_count(self) -> None:
        """Write the number of steps where the optimiser keeps it."""
        for parameter in self.parameters if self._moments is not None else ():
            state = self._optimizer.state[parameter]
            if "step" in state:
                state["step"].fill_(self._engine.steps[self._phase.name])

    def __call__(
        self, gradients: Sequence[Tensor], moments: Sequence[Sequence[Tensor]], numbers: Tensor, begin: int
    ) -> int:
        """Move the parameters; ``numbers[begin:]`` begin with this step's. Returns where the next step's begin."""
        if self._clip is not None:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
            scale = (self._clip / (norm + 1e-6)).clamp(max=1.0)
            gradients = [gradient * scale for gradient in gradients]
        own = []
        for rule, group in zip(self.rules, self._optimizer.param_groups, strict=True):
            count = len(rule.numbers(group, 1))
            own.append([numbers[begin + index] for index in range(count)])
            begin += count
        for parameter, gradient, kept, group in zip(self.parameters, gradients, moments, self._groups, strict=True):
            self.rules[group](parameter, gradient, kept, own[group])
        return begin


def supports(engine: Engine) -> bool:
    """Whether every optimiser of ``engine`` can be part of a program."""
    return all(
        rule_of(optimizer, group) is not None
        for optimizer in engine.optimizers.values()
        for group in optimizer.param_groups
    )
