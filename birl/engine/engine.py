"""Runs an algorithm's phases: gradients, optimiser steps, target updates."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from birl.engine.compiled import Program, supports
from birl.engine.compiler import Graphs, check_compiler, has_compiler
from birl.engine.cuda_graphs import record_cuda_graph
from birl.engine.gradient_statistics import WATCHED, statistics
from birl.engine.memory import keep_freed_memory
from birl.engine.phase import Due, Phase, due_at
from birl.engine.targets import TargetUpdate
from birl.errors import CompileError, CorruptFileError, NonFiniteError
from birl.losses.loss import Loss
from birl.models import is_recurrent
from birl.models.matmul import fast_products
from birl.optimizers.saved_state import check_optimizer, refuse_nonfinite
from birl.types import Batch, Inputs, State

Gradients = dict[str, Tensor]


class Engine:
    """Networks, optimisers and the update that moves them.

    Args:
        nets: module whose children are the networks, by name.
        phases: the gradient steps of one update, in order.
        targets: the target updates after them.
        config: the algorithm's configuration.

    Attributes:
        grad_step: number of updates so far.
        reduce: applied to each phase's gradients before the optimiser sees them; the identity by default. Distributed
            training puts its all-reduce here.
        watch: if it is not ``None``, it is called after every update, for each phase, with the phase's name, the names
            of its parameters and `birl.engine.gradient_statistics.statistics` of their gradients (before clipping):
            ``[n, 4]``, or ``[k, n, 4]`` after ``k`` updates at once.
    """

    def __init__(
        self, nets: nn.Module, phases: Sequence[Phase], targets: Sequence[TargetUpdate], config: Any
    ) -> None:
        self.nets, self.phases, self.targets, self.config = nets, tuple(phases), tuple(targets), config
        self.grad_step = 0
        self.reduce: Callable[[Gradients], Gradients] = _identity
        self.watch: Callable[[str, Sequence[str], Tensor], None] | None = None
        for target in self.targets:
            nets.get_submodule(target.target).requires_grad_(False)
        for name, network in nets.named_children():
            network.state_key = name  # type: ignore[assignment]
        self.recurrent = tuple(name for name, network in nets.named_children() if is_recurrent(network))
        self.parameters = {phase.name: self._parameters(phase) for phase in self.phases}
        self._program: Program | None = None
        self._graphs: Graphs | None = None
        self._compile_required = True
        self.reset_optimizers()

    def _parameters(self, phase: Phase) -> dict[str, Tensor]:
        return {
            f"{module}.{name}": parameter
            for module in phase.trained
            for name, parameter in self.nets.get_submodule(module).named_parameters()
        }

    def reset_optimizers(self) -> None:
        """Make all optimisers and schedules anew."""
        self.optimizers: dict[str, Any] = {}
        self.schedulers: dict[str, Any] = {}
        for phase in self.phases:
            factory, rate = phase.setting(self.config, "optim_factory"), phase.setting(self.config, "learning_rate")
            optimizer = factory.create(list(self.parameters[phase.name].items()), rate)
            self.optimizers[phase.name] = optimizer
            self.schedulers[phase.name] = factory.create_scheduler(optimizer)
        self.steps = dict.fromkeys(self.optimizers, 0)
        if self._program is not None:
            self._program.refresh()

    @property
    def compiled(self) -> bool:
        """Whether updates are compiled."""
        return self._graphs is not None or self._program is not None

    @property
    def records(self) -> bool:
        """Whether updates are recorded and replayed, so that several can be made in one call."""
        return self._program is not None and self._program.records and self.reduce is _identity

    def compile(self, required: bool = True) -> None:
        """Compile updates from now on. The first update of each kind, which compiles, takes up to a minute.

        The whole update is one program if every optimiser has a form for that (`birl.optimizers.steps`) and gradients
        are not reduced between processes. Otherwise losses and gradients are compiled, phase by phase.

        Args:
            required: whether to raise where compiling is not possible, instead of going on without it.

        Raises:
            CompileError: if there is no compiler, now; if the compiler does not take a module, in the first update.
        """
        if self.compiled:
            return
        device = next(self.nets.parameters()).device
        if not required and not has_compiler(device):
            return
        check_compiler(device)
        self._compile_required = required
        if supports(self) and self.reduce is _identity:
            self._program = Program(self, record_cuda_graph if device.type == "cuda" else None)
        else:
            self._graphs = Graphs()

    def compute_gradients(self, phase: Phase, batch: Batch) -> tuple[Gradients, Loss]:
        """Gradients of a phase's loss by parameter name, and the loss. Nothing is changed."""
        parameters = self.parameters[phase.name]
        function = _differentiate(phase, self.nets, self.config, list(parameters.values()))
        if self._graphs is None:
            gradients, loss = function(batch)
        else:
            gradients, loss = self._graphs((phase, self.nets.training), lambda: function, batch)
        return dict(zip(parameters, gradients, strict=True)), loss

    def apply_gradients(self, phase: Phase, gradients: Mapping[str, Tensor]) -> None:
        """Clip, step the phase's optimiser and its learning-rate schedule."""
        if self._program is not None:
            self._program.store_counts()
        parameters = self.parameters[phase.name]
        for name, parameter in parameters.items():
            gradient = gradients[name]
            if gradient.stride() != parameter.stride():  # fused optimisers read both in the order of memory
                gradient = torch.empty_like(parameter).copy_(gradient)
            parameter.grad = gradient
        limit = phase.setting(self.config, "optim_factory").clip_grad_norm
        if limit is not None:
            nn.utils.clip_grad_norm_(list(parameters.values()), limit)
        self.optimizers[phase.name].step()
        self.steps[phase.name] += 1
        for parameter in parameters.values():
            parameter.grad = None
        if self.schedulers[phase.name] is not None:
            self.schedulers[phase.name].step()

    def update(self, batch: Batch, only: Sequence[str] | None = None) -> dict[str, Tensor]:
        """One update: every phase that is due, then every target update that is due.

        Args:
            batch: on the device.
            only: names of the phases and of the target networks that the update is confined to.

        Returns:
            The losses and their metrics, as scalars on the device: reading one waits for the device.
        """
        keep_freed_memory()
        self.grad_step += 1
        due = self._due(self.grad_step)
        if only is not None:
            due = Due(
                tuple(phase for phase in due.phases if phase.name in only),
                tuple(target for target in due.targets if target.target in only),
            )
        self._look_at_reduce()
        try:
            with fast_products():
                return self._without_watched(self._update(batch, due))
        except CompileError as error:  # comes before anything has changed
            if self._compile_required:
                raise
            warnings.warn(f"training goes on without compiling: {error}", RuntimeWarning, stacklevel=3)
            if self._program is not None:
                self._program.store_counts()
            for name, optimizer in self.optimizers.items():
                if self.steps[name] == 0:  # moments of a step that was not made
                    optimizer.state.clear()
            self._program = self._graphs = None
            with fast_products():
                return self._without_watched(self._update(batch, due))

    def update_many(
        self, draw: Callable[[], Batch], count: int, generators: Sequence[torch.Generator] = ()
    ) -> dict[str, Tensor]:
        """``count`` updates with batches from ``draw``, as one recording where the device can replay one.

        Args:
            draw: makes a batch on the device without waiting for it.
            count: number of updates.
            generators: the device's generators that ``draw`` uses, besides its default one.

        Returns:
            Losses and metrics ``[k]`` of the ``k`` updates that had them.
        """
        dues = [self._due(self.grad_step + ahead) for ahead in range(1, count + 1)]
        self._look_at_reduce()
        if self._program is not None and self._program.can_make(dues):
            with fast_products():
                metrics = self._without_watched(self._program.update_many(draw, dues, generators))
            self.grad_step += count
            return metrics
        collected: dict[str, list[Tensor]] = {}
        for _ in range(count):
            for name, value in self.update(draw()).items():
                collected.setdefault(name, []).append(value)
        return {name: torch.stack(values) for name, values in collected.items()}

    @property
    def coming(self) -> Due:
        """What is due in the next update."""
        return self._due(self.grad_step + 1)

    def _due(self, step: int) -> Due:
        return due_at(step, self.phases, self.targets, self.config)

    def _look_at_reduce(self) -> None:
        """Give the program up once there is a ``reduce``: its place, before the optimisers, is inside the program."""
        if self._program is not None and self.reduce is not _identity:
            self._program.store_counts()
            self._program, self._graphs = None, Graphs()

    def _without_watched(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        """Hand the gradients' statistics to who watches them, and return the other metrics."""
        if self.watch is not None:
            for phase in self.phases:
                found = metrics.pop(WATCHED + phase.name, None)
                if found is not None:
                    self.watch(phase.name, list(self.parameters[phase.name]), found)
        return metrics

    def _update(self, batch: Batch, due: Due) -> dict[str, Tensor]:
        if self._program is not None:
            return self._program.update(batch, due)
        metrics: dict[str, Tensor] = {}
        for phase in due.phases:
            gradients, loss = self.compute_gradients(phase, batch)
            gradients = self.reduce(gradients)
            if self.watch is not None:
                metrics[WATCHED + phase.name] = statistics(gradients.values())
            self.apply_gradients(phase, gradients)
            metrics[phase.logged] = loss.value
            metrics.update(loss.metrics)
            batch = loss.carried_on(batch)
        for target in due.targets:
            target.apply(self.nets, self.config)
        return metrics

    @torch.no_grad()
    def burn_in(self, batch: Batch, steps: int) -> Batch:
        """Warm up recurrent states on the first ``steps`` steps of a sequence batch, and cut those steps off.

        Each recurrent network, target networks included, starts from the stored state and gets a state of its own
        (Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", section 3).
        """
        if steps == 0 or not self.recurrent:
            return batch
        states: dict[str, Tensor] = {}
        head = batch.map(lambda x: x[:steps])
        for name in self.recurrent:
            inputs = Inputs(head.observation, batch.state, head.is_first, state_out=states)
            self.nets.get_submodule(name).encode(inputs)  # type: ignore[operator]
        return replace(batch.map(lambda x: x[steps:]), state=states)

    # -- state -----------------------------------------------------------------------------------------------------

    def check_finite(self) -> None:
        """Raise if a parameter is NaN or infinite.

        Raises:
            NonFiniteError: naming the parameter and the phase that trains it.
        """
        for name, tensor in self.nets.named_parameters():
            if not bool(torch.isfinite(tensor).all()):
                phases = [phase.name for phase in self.phases if name in self.parameters[phase.name]]
                raise NonFiniteError(
                    f"after {self.grad_step} updates the parameter {name!r} (phase: {', '.join(phases) or 'target'}) "
                    "is NaN or infinite: lower its learning rate, clip its gradient (optim_factory=AdamFactory("
                    "clip_grad_norm=1.0)) or scale rewards and observations"
                )

    def get_state(self) -> State:
        """A copy of everything that an update reads or writes."""
        if self._program is not None:
            self._program.store_counts()
        return {
            "grad_step": self.grad_step,
            "nets": {name: tensor.detach().clone() for name, tensor in self.nets.state_dict().items()},
            "optimizers": {name: _copied(optimizer.state_dict()) for name, optimizer in self.optimizers.items()},
            "schedulers": {name: _scheduler_state(each) for name, each in self.schedulers.items() if each is not None},
        }

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`.

        Raises:
            CorruptFileError: if the state does not fit the networks.
        """
        if not isinstance(state["grad_step"], int) or state["grad_step"] < 0:
            raise CorruptFileError(f"grad_step is {state['grad_step']!r}; it must be an int >= 0")
        self._check_networks(state["nets"])
        refuse_nonfinite("parameter", state["nets"])
        for name, optimizer in self.optimizers.items():
            check_optimizer(name, optimizer, state["optimizers"][name])
        self.nets.load_state_dict(dict(state["nets"]))
        for name in self.optimizers:
            self._load_optimizer(name, state["optimizers"][name])
        for name, scheduler in self.schedulers.items():
            if scheduler is not None:
                scheduler.load_state_dict({**scheduler.state_dict(), **state["schedulers"][name]})
        self.grad_step = int(state["grad_step"])
        if self._program is not None:
            self._program.refresh()

    def _load_optimizer(self, name: str, state: State) -> None:
        optimizer = self.optimizers[name]
        saved = _copied(state)  # load_state_dict would share the tensors
        optimizer.load_state_dict(
            {
                "state": {int(key): value for key, value in saved["state"].items()},
                "param_groups": [saved["param_groups"][key] for key in sorted(saved["param_groups"], key=int)],
            }
        )
        counts = [int(each["step"]) for each in optimizer.state.values() if "step" in each]
        self.steps[name] = max(counts, default=1 if optimizer.state else 0)

    def copy_optimizer(self, name: str, source: Engine) -> None:
        """Copy the state of a phase's optimiser from another engine, whose parameters have the same shapes."""
        if source._program is not None:
            source._program.store_counts()
        self._load_optimizer(name, _copied(source.optimizers[name].state_dict()))
        if self._program is not None:
            self._program.refresh()

    def load_networks(self, tensors: Mapping[str, Tensor]) -> None:
        """Load parameters and buffers by name; shapes and names must match exactly.

        Raises:
            CorruptFileError: naming what is missing, unexpected or of another shape.
        """
        self._check_networks(tensors)
        self.nets.load_state_dict(dict(tensors))

    def _check_networks(self, tensors: Mapping[str, Tensor]) -> None:
        own = self.nets.state_dict()
        missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
        if missing or extra:
            raise CorruptFileError(
                f"the saved parameters do not belong to these networks: missing {missing[:3]}, unexpected {extra[:3]}. "
                "Build the algorithm with the configuration and shapes it was saved with."
            )
        for name, tensor in tensors.items():
            if tensor.shape != own[name].shape:
                raise CorruptFileError(
                    f"parameter {name!r} was saved with shape {tuple(tensor.shape)} but has shape "
                    f"{tuple(own[name].shape)} here: use the observation shape and action size it was saved with"
                )


def _identity(gradients: Gradients) -> Gradients:
    return gradients


def _differentiate(
    phase: Phase, nets: nn.Module, config: Any, parameters: list[Tensor]
) -> Callable[[Batch], tuple[list[Tensor], Loss]]:
    def function(batch: Batch) -> tuple[list[Tensor], Loss]:
        loss = phase.loss(nets, batch, config)
        return list(torch.autograd.grad(loss.value, parameters)), loss.detached()

    return function


def _copied(value: Any) -> Any:
    """A copy of a state dict, with string keys only and lists of dicts as dicts."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {str(key): _copied(item) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {str(index): _copied(item) for index, item in enumerate(value)}
    return list(value) if isinstance(value, tuple) else value


def _scheduler_state(scheduler: Any) -> State:
    return {
        key: value
        for key, value in scheduler.state_dict().items()
        if isinstance(value, int | float | list) and not (isinstance(value, list) and any(v is None for v in value))
    }
