"""One update for several engines of the same configuration, with stacked parameters, moments and gradients.

Everything that differs between seeds (parameters, minibatches, random numbers) has a first dimension ``[S]``. A loss
and its gradients are traced once, as one graph, which runs for all seeds at once.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import vmap

from birl.engine.compiled import Due, Program, supports
from birl.engine.compiler import has_compiler
from birl.engine.cuda_graphs import Recorder, record_cuda_graph
from birl.engine.engine import Engine
from birl.engine.memory import keep_freed_memory
from birl.engine.stacked_loss import StackedLoss
from birl.engine.steps import (
    Gradients,
    HardCopy,
    LossFunction,
    Polyak,
    Step,
    TargetUpdate,
    Training,
    Update,
    UpdateResult,
)
from birl.engine.train_state import TrainState, clip
from birl.engine.update import Eager, LossModule
from birl.engine.update import stacked as stack_metrics
from birl.errors import CompileError, ConfigError
from birl.incompatible import check_compatible
from birl.optimizers.steps import ELEMENTWISE
from birl.types import Batch, Loss, State

_NOISE: Final = "noise of a stacked loss "
"""Prefix of the names of random numbers in a batch."""

_SHARED = ("step", "mu_product")
"""Entries of an optimiser's state that are the same for all seeds."""


class StackedEngine(Eager):
    """Updates engines of the same configuration and shapes together.

    The engines' parameters, buffers and moments become views of the stacked ones, so they are always up to date.
    `publish` updates their counters and schedules. `release` gives each engine its own tensors again.

    Args:
        engines: ``S`` engines of the same configuration and shapes, after the same number of updates.
        generators: a torch generator on the training device for each engine, from which its losses draw.

    Attributes:
        nets: the stacked networks: every parameter and every saved buffer is ``[S, …]``.
        priority: priorities ``[S, …]`` of the minibatches' elements. See `Engine`.

    Raises:
        ConfigError: if the engines differ.
        UnsupportedError: if they cannot be stacked; the message says what to do instead.
    """

    def __init__(self, engines: Sequence[Engine], generators: Sequence[torch.Generator]) -> None:
        _check_same_configuration(engines, generators)
        self._engines, self._generators = tuple(engines), tuple(generators)
        first = self._engines[0]
        nets = copy.deepcopy(first.nets)
        # Optimisers are made for one engine, because factories look at names and dimensions; its tensors grow later.
        super().__init__(TrainState(nets, [self._stackable(step) for step in first.steps], first.config))
        self._trained.clip = vmap(clip, (0, None))
        self._trained.frozen = _frozen(first)
        self.priority: Tensor | None = None
        self._losses: dict[Hashable, StackedLoss] = {}
        self._known: dict[Hashable, tuple[StackedLoss, ...]] = {}  # by kind of update
        self._program: _StackedProgram | None = None
        self._stack()
        self.restack_optimizers()

    def record(self) -> None:
        """Compile whole updates from now on and record them, if the device can replay recordings.

        On other devices only losses are compiled, if the configuration asks for it.
        """
        device = next(iter(self.saved.values())).device
        if device.type == "cuda" and has_compiler(device) and supports(self._trained):
            known = (Training, Polyak, HardCopy)
            if all(isinstance(step, known) for step in self._trained.steps):
                self._program = _StackedProgram(self, self._trained, record_cuda_graph)

    @property
    def records(self) -> bool:
        """Whether updates are recorded and replayed, so that several can be made in one call."""
        return self._program is not None

    def _stackable(self, step: Step) -> Step:
        """Return the step, or one that updates each engine, for custom target updates, which may not be elementwise."""
        if not isinstance(step, TargetUpdate) or type(step) in (Polyak, HardCopy):
            return step
        each = tuple(Eager(engine) for engine in self._engines)
        return _SeparateTargetUpdate(step.source, step.target, step.when, step=step, updates=each)

    @torch.no_grad()
    def _stack(self) -> None:
        """Replace all saved tensors by views of stacked ones."""
        self.nets.requires_grad_(False)  # gradients come from the graph
        self.saved = _saved(self.nets)
        parts = [_saved(engine.nets) for engine in self._engines]
        for name, tensor in self.saved.items():
            tensor.data = torch.stack([tensors[name].detach() for tensors in parts])
            for tensors, part in zip(parts, tensor.data, strict=True):
                tensors[name].data = part

    def restack_optimizers(self) -> None:
        """Copy counters, moments and schedules from the engines, which no longer use their own."""
        _transfer(self._engines[0], self._trained, _stack_states([_states(engine) for engine in self._engines]))
        self._trained.version += 1

    # -- learning --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def update(self, batch: Batch, due: Sequence[Step] | None = None) -> UpdateResult:
        """Update every engine once.

        Args:
            batch: a minibatch for each engine: every tensor is ``[S, …]``.
            due: the steps; by default those that are due.

        Returns:
            Losses and metrics ``[S]`` and priorities ``[S, …]``, on the device.
        """
        keep_freed_memory()
        self._trained.grad_step += 1
        due = self._trained.due() if due is None else due
        if self._program is None:
            result = super().update(batch, due)
        else:
            before = [each.get_state() for each in self._generators] if self._program.is_new(due) else []
            try:
                result = self._program.update(batch, due)
            except CompileError as error:  # raised before anything has changed but the generators
                if self.config.compile_graph is True:
                    raise
                warnings.warn(f"training goes on without compiling: {error}", RuntimeWarning, stacklevel=3)
                self._program = None
                for generator, state in zip(self._generators, before, strict=True):
                    generator.set_state(state)
                result = super().update(batch, due)
        self._trained.check_priority(result.priority)
        self.priority = result.priority
        return result

    def update_many(
        self, draw: Callable[[], Batch], count: int, generators: Sequence[torch.Generator] = ()
    ) -> dict[str, Tensor]:
        """Update every engine ``count`` times, by replaying one recording if the device can.

        Args:
            draw, count, generators: see `Engine.update_many`; the minibatches are those of `update`.

        Returns:
            Losses and metrics ``[k, S]``, for the ``k`` updates that had them.
        """
        if self._program is not None:
            dues = [self._trained.due(ahead) for ahead in range(1, count + 1)]
            result = self._program.update_many(draw, dues, (*generators, *self._generators))
            if result is not None:
                self._trained.grad_step += count
                return result.metrics
        return stack_metrics(self.update(draw()).metrics for _ in range(count))

    def losses(self, batch: Batch, due: Sequence[Step]) -> tuple[StackedLoss, ...]:
        """Return the losses of an update, in order."""
        kind = tuple(step.name for step in due), self.prioritised, batch.signature
        if kind not in self._known:
            trial = _LossCollector(self, self._trained)
            trial.update(batch, due)
            self._known[kind] = tuple(trial.losses)
        return self._known[kind]

    def noise(self, losses: Sequence[StackedLoss]) -> dict[str, Tensor]:
        """Draw the random numbers of losses, by name, as each engine would draw them alone."""
        drawn = [number for loss in losses for number in loss.draw(self._generators)]
        return {f"{_NOISE}{index}": number for index, number in enumerate(drawn)}

    @property
    def prioritised(self) -> bool:
        """See `Engine`."""
        return self._trained.prioritised

    @prioritised.setter
    def prioritised(self, value: bool) -> None:
        self._trained.prioritised = value

    def gradients(self, loss: LossFunction, of: tuple[str, ...], batch: Batch) -> tuple[Gradients, Loss]:
        """See `Update.gradients`; everything is ``[S, …]``."""
        stacked_loss = self.loss(loss, of, batch)
        return stacked_loss(self.saved, batch, stacked_loss.draw(self._generators))

    def loss(self, loss: LossFunction, of: tuple[str, ...], batch: Batch) -> StackedLoss:
        """Return a loss for all seeds, for batches with the signature of this one."""
        key = (loss, of, batch.signature, self.prioritised)
        if key not in self._losses:
            self._losses[key] = StackedLoss(
                LossModule(loss, self.nets, self.config),
                self.saved,
                list(self._trained.learning(of)),
                batch,
                prioritised=self.prioritised,
                compiled=self.config.compile_graph is True and not self.records,
            )
        return self._losses[key]

    # -- the engines -----------------------------------------------------------------------------------------------

    def check_finite(self) -> None:
        """See `TrainState.check_finite`. All seeds are checked together, so the error does not name the seed."""
        self._trained.check_finite()

    def publish(self) -> None:
        """Update the engines' counters, moments and schedules, as before an engine is saved or returned."""
        self._trained.store_counts()
        for number, engine in enumerate(self._engines):
            _transfer(self._trained, engine, _state_of(_states(self._trained), number))

    def release(self) -> None:
        """Call `publish` and give each engine its own tensors, so that it can be trained alone."""
        self.publish()
        for engine in self._engines:
            state = engine.get_state()
            for name, tensor in _saved(engine.nets).items():
                tensor.data = state["nets"][name]
            engine.set_state(state)  # gives it its own moments


@dataclass(frozen=True)
class _SeparateTargetUpdate(TargetUpdate):
    """A target update that each engine makes separately."""

    step: TargetUpdate = field(kw_only=True)
    updates: tuple[Eager, ...] = field(kw_only=True)

    def __call__(self, on: Update, batch: Batch) -> Batch:
        for update in self.updates:
            self.step(update, batch)
        return batch


class _StackedProgram(Program):
    """Compiles whole updates of a stacked engine. The batch holds the random numbers of the losses."""

    def __init__(self, stacked: StackedEngine, trained: TrainState, record: Recorder) -> None:
        super().__init__(trained, record)
        self._stacked = stacked
        self._sequence: tuple[StackedLoss, ...] = ()

    @property
    def shelf(self) -> None:
        """``None``: these programs are not stored on disk."""

    def _prepared(self, batch: Batch, due: Due) -> Batch:
        self._sequence = self._stacked.losses(batch, due)
        return replace(batch, extra={**batch.extra, **self._stacked.noise(self._sequence)})

    def _losses(self, apply_gradients: Callable[[str, Gradients], None]) -> Eager:
        return _PreparedLosses(self._trained, apply_gradients, self._stacked.saved, self._sequence)


class _LossCollector(Eager):
    """Collects the losses of an update, without drawing random numbers or changing parameters."""

    def __init__(self, stacked: StackedEngine, trained: TrainState) -> None:
        super().__init__(trained, lambda name, gradients: None)
        self._stacked = stacked
        self._saved = {name: tensor.detach().clone() for name, tensor in stacked.saved.items()}
        self.losses: list[StackedLoss] = []

    def update(self, batch: Batch, due: Sequence[Step]) -> UpdateResult:
        """See `Eager`."""
        return super().update(batch, [step for step in due if isinstance(step, Training)])

    def gradients(self, loss: LossFunction, of: tuple[str, ...], batch: Batch) -> tuple[Gradients, Loss]:
        """See `Update.gradients`."""
        self.losses.append(self._stacked.loss(loss, of, batch))
        return self.losses[-1](self._saved, batch, self.losses[-1].blanks())

    def assign(self, parameters: Mapping[str, Tensor]) -> None:
        """Do nothing."""


class _PreparedLosses(Eager):
    """Makes an update with given losses, in order, and with the random numbers in the batch."""

    def __init__(
        self,
        trained: TrainState,
        apply_gradients: Callable[[str, Gradients], None],
        saved: Mapping[str, Tensor],
        sequence: Sequence[StackedLoss],
    ) -> None:
        super().__init__(trained, apply_gradients)
        self._saved, self._sequence = saved, sequence
        self._next = self._used = 0

    def gradients(self, loss: LossFunction, of: tuple[str, ...], batch: Batch) -> tuple[Gradients, Loss]:
        """See `Update.gradients`."""
        stacked_loss = self._sequence[self._next]
        noise = [batch.extra[f"{_NOISE}{self._used + index}"] for index in range(stacked_loss.draws)]
        self._next += 1
        self._used += stacked_loss.draws
        rest = {name: value for name, value in batch.extra.items() if not name.startswith(_NOISE)}
        return stacked_loss(self._saved, replace(batch, extra=rest), noise)


# -- tensors -----------------------------------------------------------------------------------------------------------


def _saved(nets: nn.Module) -> dict[str, Tensor]:
    """Return parameters and saved buffers by name. Other buffers are constants and the same for all seeds."""
    names = nets.state_dict().keys()
    return {name: tensor for name, tensor in (*nets.named_parameters(), *nets.named_buffers()) if name in names}


def _frozen(engine: Engine) -> frozenset[str]:
    """Return the names of the parameters that do not learn, targets included."""
    return frozenset(name for name, parameter in engine.nets.named_parameters() if not parameter.requires_grad)


def _states(trained: TrainState) -> State:
    return {name: optimizer.state_dict() for name, optimizer in trained.optimizers.items()}


def _transfer(source: TrainState, target: TrainState, states: State) -> None:
    """Copy counters and schedules to ``target``, and load ``states`` into its optimisers."""
    target.grad_step, target.step_counts = source.grad_step, dict(source.step_counts)
    for name, optimizer in target.optimizers.items():
        optimizer.load_state_dict(states[name])
        if target.schedulers[name] is not None:
            target.schedulers[name].load_state_dict(source.schedulers[name].state_dict())


def _stack_states(states: Sequence[Any], key: object = None) -> Any:
    """Stack the states of the engines' optimisers."""
    first = states[0]
    if isinstance(first, dict):
        return {key: _stack_states([state[key] for state in states], key) for key in first}
    if isinstance(first, Tensor):
        return first.clone() if key in _SHARED else torch.stack(list(states))
    return first


def _state_of(state: object, number: int, key: object = None) -> Any:
    """Return the state of one engine, as views of a stacked state."""
    if isinstance(state, dict):
        return {key: _state_of(value, number, key) for key, value in state.items()}
    return state[number] if isinstance(state, Tensor) and key not in _SHARED else state


def _check_same_configuration(engines: Sequence[Engine], generators: Sequence[torch.Generator]) -> None:
    if not engines or len(engines) != len(generators):
        raise ConfigError(f"{len(engines)} engines with {len(generators)} generators; at least one of each is needed")
    first = engines[0]
    shapes = {name: tensor.shape for name, tensor in _saved(first.nets).items()}
    for engine in engines[1:]:
        if (
            {name: tensor.shape for name, tensor in _saved(engine.nets).items()} != shapes
            or engine.steps != first.steps
            or _frozen(engine) != _frozen(first)
            or engine.grad_step != first.grad_step
        ):
            raise ConfigError(
                "engines of different configurations, shapes, frozen parameters or numbers of updates cannot be stacked"
            )
    check_stackable(first)


def check_stackable(engine: Engine) -> None:
    """Raise `UnsupportedError` if engines of this kind cannot be stacked. Some losses fail only when traced."""
    used = {"fit_many": "fit_many"}
    if engine.recurrent:
        used["recurrent network"] = f"a recurrent network ({', '.join(engine.recurrent)})"
    for name, optimizer in engine.optimizers.items():
        if type(optimizer) not in ELEMENTWISE:
            used["joint optimiser"] = f"the optimiser {type(optimizer).__name__} of the step {name!r}"
    for step in engine.steps:
        if step.eager_only:
            used["unstackable step"] = f"the step {step.name!r} ({step.eager_only})"
    check_compatible(used)
