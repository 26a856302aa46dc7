"""Networks with their optimisers: the state that updates change and files store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from birl.engine.steps import Gradient, Gradients, Step, TargetUpdate, Training, check_networks
from birl.errors import ConfigError, CorruptFileError, NonFiniteError
from birl.incompatible import check_compatible, prioritised_without_errors
from birl.optimizers import OptimizerFactory
from birl.optimizers.saved_state import check_optimizer, first_nonfinite, moments_in, refuse_nonfinite
from birl.optimizers.schedules import advance
from birl.optimizers.steps import step_by_kernel
from birl.types import State


class EngineConfig(Protocol):
    """The part of a configuration that an engine reads. Steps read the fields that they name."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def compile_graph(self) -> bool | str: ...

    def optimizer(self, learning_rate: str, optim_factory: str) -> tuple[float, OptimizerFactory]:
        """Return the learning rate and the factory of an optimiser, from the fields of these names."""


class TrainState:
    """Networks, their optimisers and schedules, and the counters of their steps.

    Args:
        nets: module whose children are the networks, by name.
        steps: the steps of one update, in order; those that do not belong to ``config`` are left out.
        config: the algorithm's configuration.

    Attributes:
        steps: the steps of one update, in order.
        trainings: the steps that minimise a loss.
        gradient_steps: the steps that have an optimiser.
        targets: the steps that update target networks.
        parameters: the parameters by name, for each step that minimises a loss. Those that do not learn, because
            ``requires_grad_(False)`` was called on them or the loss does not depend on them, are among them.
        optimizers, schedulers: optimiser and learning-rate schedule (``None`` for a constant rate) of each gradient
            step. They are created on first use: processes that only act need none, and torch loads its compiler for
            them (2 s, 70 MB).
        clip_norms: largest gradient norm of each gradient step; ``None`` if its gradients are not clipped.
        step_counts: number of optimiser steps of each gradient step.
        grad_step: number of updates so far.
        version: a counter that changes whenever optimisers or their states are replaced.
        reduce: applied to each step's gradients before its optimiser, if it is not ``None``. Distributed training
            sets its all-reduce here.
        watch: if it is not ``None``, it is called after every update, for each gradient step, with the step's name, the
            names of its parameters and `birl.engine.update.gradient_statistics` of their gradients (before
            clipping): ``[n, 4]``, or ``[k, n, 4]`` after ``k`` updates at once.
        prioritised: whether updates report `Loss.priority`.
        frozen: names of the parameters that do not learn; if it is ``None``, ``requires_grad`` of each parameter says
            whether it learns, which can be changed between two updates.
        clip: scales gradients down to a largest joint norm.

    Raises:
        ConfigError: if a step names a network that does not exist.
    """

    def __init__(self, nets: nn.Module, steps: Sequence[Step], config: EngineConfig) -> None:
        self.nets, self.config = nets, config
        self.steps = tuple(step for step in steps if step.when.holds(config))
        check_networks(self.steps, nets)
        self.trainings = tuple(step for step in self.steps if isinstance(step, Training))
        self.gradient_steps = tuple(step for step in self.steps if isinstance(step, Gradient))
        self.targets = tuple(step for step in self.steps if isinstance(step, TargetUpdate))
        for target in self.targets:
            nets.get_submodule(target.target).requires_grad_(False)
        self.grad_step = self.version = 0
        self._finite_at = 0  # number of updates at the last check that all numbers are finite
        self.reduce: Callable[[Gradients], Gradients] | None = None
        self.watch: Callable[[str, Sequence[str], Tensor], None] | None = None
        self.prioritised = False
        self.frozen: frozenset[str] | None = None
        self.clip = clip
        self._parameters: dict[tuple[str, ...], dict[str, Tensor]] = {}
        self.parameters = {step.name: self.parameters_of(step.networks) for step in self.trainings}
        self.reset_optimizers()

    def parameters_of(self, networks: tuple[str, ...]) -> dict[str, Tensor]:
        """Return the parameters of some networks, by name."""
        if networks not in self._parameters:
            self._parameters[networks] = {
                f"{network}.{name}": parameter
                for network in networks
                for name, parameter in self.nets.get_submodule(network).named_parameters()
            }
        return self._parameters[networks]

    def learning(self, networks: tuple[str, ...]) -> dict[str, Tensor]:
        """Return those of `parameters_of` that learn: on the others, ``requires_grad_(False)`` was called."""
        parameters, frozen = self.parameters_of(networks), self.frozen
        if frozen is None:
            return {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        return {name: parameter for name, parameter in parameters.items() if name not in frozen}

    def due(self, ahead: int = 0) -> tuple[Step, ...]:
        """Return the steps of the current update, or of the update ``ahead`` updates later."""
        update = self.grad_step + ahead
        return tuple(step for step in self.steps if step.when.is_due(update, self.config))

    def check_priority(self, priority: Tensor | None) -> None:
        """Raise `UnsupportedError` if priorities are used, all steps were made, and no loss has reported priorities."""
        if priority is None and self.prioritised and all(self.step_counts.values()):
            name = type(self.config).__name__.removesuffix("Config")
            check_compatible(prioritised_without_errors(name))

    # -- optimisers ------------------------------------------------------------------------------------------------

    def reset_optimizers(self) -> None:
        """Replace all optimisers and schedules by new ones."""
        self._made: tuple[dict[str, Any], dict[str, Any]] | None = None
        made_from = {step.name: self.config.optimizer(*step.fields)[1] for step in self.gradient_steps}
        self.clip_norms = {name: factory.clip_grad_norm for name, factory in made_from.items()}
        self.step_counts = dict.fromkeys((step.name for step in self.gradient_steps), 0)
        self._counts_stored = True
        self.version += 1

    @property
    def optimizers(self) -> dict[str, Any]:
        """The optimiser of each gradient step."""
        return self._create_optimizers()[0]

    @property
    def schedulers(self) -> dict[str, Any]:
        """The learning-rate schedule of each gradient step; ``None`` for a constant rate."""
        return self._create_optimizers()[1]

    def _create_optimizers(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return optimisers and schedules, which the first call creates."""
        if self._made is None:
            optimizers: dict[str, Any] = {}
            schedulers: dict[str, Any] = {}
            for step in self.gradient_steps:
                rate, factory = self.config.optimizer(*step.fields)
                optimizers[step.name] = optimizer = factory.create(self._named(step), rate)
                schedulers[step.name] = factory.create_scheduler(optimizer)
            self._made = optimizers, schedulers
        return self._made

    def _named(self, step: Gradient) -> list[tuple[str, nn.Parameter]]:
        return cast(list[tuple[str, nn.Parameter]], list(self.parameters[step.name].items()))

    def retune(self, config: EngineConfig) -> None:
        """Continue with another configuration of the same networks and steps. Moments and counters are kept.

        A schedule continues as if it had started with the new configuration.

        Raises:
            ConfigError: if a new optimiser cannot continue from the moments of the old one. Nothing has changed then.
        """
        self.store_counts()
        made = {}
        for step in self.gradient_steps:
            rate, factory = config.optimizer(*step.fields)
            if (rate, factory) != self.config.optimizer(*step.fields):
                optimizer = factory.create(self._named(step), rate)
                schedule = factory.create_scheduler(optimizer)
                _take_over(step.name, optimizer, self.optimizers[step.name])
                if schedule is not None:
                    old = self.schedulers[step.name]
                    advance(schedule, optimizer, self.step_counts[step.name] if old is None else old.last_epoch)
                made[step.name] = optimizer, schedule, factory.clip_grad_norm
        for name, (optimizer, schedule, limit) in made.items():
            self.optimizers[name], self.schedulers[name], self.clip_norms[name] = optimizer, schedule, limit
        self.config = config
        self.version += bool(made)

    def apply(self, name: str, gradients: Mapping[str, Tensor]) -> None:
        """Clip the gradients of a step, and advance its optimiser and learning-rate schedule."""
        self.store_counts()
        limit = self.clip_norms[name]
        parameters = [self.parameters[name][key] for key in gradients]
        ordered = []
        for parameter, gradient in zip(parameters, gradients.values(), strict=True):
            if gradient.stride() != parameter.stride():  # fused optimisers read both in the order of memory
                gradient = torch.empty_like(parameter).copy_(gradient)
            ordered.append(gradient)
        if limit is not None and ordered:
            ordered = self.clip(ordered, limit)
        if ordered and not step_by_kernel(self.optimizers[name], parameters, ordered):
            for parameter, gradient in zip(parameters, ordered, strict=True):
                parameter.grad = gradient
            self.optimizers[name].step()  # of the parameters that have a gradient
            for parameter in parameters:
                parameter.grad = None
        self.step_counts[name] += 1
        if self.schedulers[name] is not None:
            self.schedulers[name].step()

    def count(self, name: str) -> None:
        """Count an optimiser step that a compiled program made, and advance the schedule."""
        self.step_counts[name] += 1
        self._counts_stored = False
        if self.schedulers[name] is not None:
            self.optimizers[name]._opt_called = True  # otherwise the schedule warns that no step was made
            self.schedulers[name].step()

    def store_counts(self) -> None:
        """Write the step counts into the optimisers' states.

        Call it before the states are read or an optimiser steps.
        """
        if not self._counts_stored:
            for name, optimizer in self.optimizers.items():
                for state in optimizer.state.values():
                    if "step" in state:
                        state["step"].fill_(self.step_counts[name])
            self._counts_stored = True

    def reset_moments(self) -> None:
        """Set the moments and step counts of all optimisers to 0, in place. Schedules continue."""
        for optimizer in self.optimizers.values():
            for state in optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()
        self.step_counts = dict.fromkeys(self.step_counts, 0)
        self._counts_stored = True

    @torch.no_grad()
    def reset_networks(self, fresh: nn.Module, share: float | None) -> None:
        """Reset all parameters that learn (Schwarzer et al. 2023, arXiv:2305.19452, section 3).

        Encoders are shrunk and perturbed: ``share * old + (1 - share) * fresh``. All other parameters, running
        statistics of layers and moments are replaced; schedules continue. Target networks become copies. (The paper
        also resets the dense layer after the convolutions, which belongs to the encoder here, and restarts its
        schedules of n-step returns and of the discount.)

        Args:
            fresh: new networks of the same kind.
            share: weight of the old parameters of encoders; 0.5 if ``None``.
        """
        share = 0.5 if share is None else share
        names = {
            id(tensor): name for step in self.trainings for name, tensor in self.learning(step.networks).items()
        }  # no duplicates
        for name in names.values():
            parameter, new = self.nets.get_parameter(name), fresh.get_parameter(name)
            kept = share if name.partition(".")[2].startswith("encoder.") else 0.0
            parameter.copy_(kept * parameter + (1 - kept) * new)
        learned = {name.partition(".")[0] for name in names.values()}
        for name, buffer in self.nets.named_buffers():
            if name.partition(".")[0] in learned:
                buffer.copy_(fresh.get_buffer(name))
        for step in self.targets:
            source, target = (self.nets.get_submodule(each) for each in (step.source, step.target))
            target.load_state_dict(source.state_dict())
        self.reset_moments()

    def copy_optimizer(self, name: str, source: TrainState) -> None:
        """Copy the state of a step's optimiser from another one, whose parameters have the same shapes."""
        source.store_counts()
        self._load_optimizer(name, source.optimizers[name].state_dict())

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
        self.step_counts[name] = max(counts, default=1 if optimizer.state else 0)
        self.version += 1

    # -- state -----------------------------------------------------------------------------------------------------

    def check_finite(self, *, moments: bool = True) -> None:
        """Raise if a number of the networks or, with ``moments``, of the optimisers is NaN or infinite.

        Such a state cannot be loaded (see `set_state`), so it must not be saved.

        Raises:
            NonFiniteError: with the names of the parameter and of the step that trains it.
        """
        name = first_nonfinite(self.nets.state_dict())
        if name is not None:
            steps = [step for step, parameters in self.parameters.items() if name in parameters]
            raise NonFiniteError(
                f"after {self.grad_step} updates the parameter {name!r} (step: {', '.join(steps) or 'target'}) "
                "is NaN or infinite: lower its learning rate, clip its gradient (optim_factory=AdamFactory("
                "clip_grad_norm=1.0)) or scale rewards and observations"
            )
        if moments:
            self._check_moments()
            self._finite_at = self.grad_step

    def _check_moments(self) -> None:
        moments = {
            (step, name, moment): tensor
            for step, optimizer in ({} if self._made is None else self.optimizers).items()
            for name, parameter in self.parameters[step].items()
            for moment, tensor in moments_in(optimizer.state.get(parameter, {})).items()
        }
        where = first_nonfinite(moments)
        if where is not None:
            step, name, moment = where
            since = f"between update {self._finite_at + 1} and update {self.grad_step} "
            raise NonFiniteError(
                f"{since if self._finite_at < self.grad_step else ''}the moment {moment!r} of the parameter {name!r} "
                f"(step: {step}) became NaN or infinite, from a gradient too large to be squared. It must be finite: "
                "otherwise the parameter is never updated again, and the model cannot be loaded. Look for huge "
                "observations or rewards and clip or scale them, or clip gradients (optim_factory=AdamFactory("
                "clip_grad_norm=1.0)), and continue from an earlier model or checkpoint"
            )

    def get_state(self) -> State:
        """Return a copy of everything that an update reads or writes."""
        self.store_counts()
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
        self.grad_step = self._finite_at = int(state["grad_step"])

    def load_networks(self, tensors: Mapping[str, Tensor]) -> None:
        """Load parameters and buffers by name; shapes and names must match exactly.

        Raises:
            CorruptFileError: with the names that are missing or unexpected, or that have another shape.
        """
        self._check_networks(tensors)
        self.nets.load_state_dict(dict(tensors))

    def _check_networks(self, tensors: Mapping[str, Tensor]) -> None:
        current = self.nets.state_dict()
        missing, extra = sorted(current.keys() - tensors.keys()), sorted(tensors.keys() - current.keys())
        if missing or extra:
            raise CorruptFileError(
                f"the saved parameters do not belong to these networks: missing {missing[:3]}, unexpected {extra[:3]}. "
                "Build the algorithm with the configuration and shapes it was saved with."
            )
        for name, tensor in tensors.items():
            if tensor.shape != current[name].shape:
                raise CorruptFileError(
                    f"parameter {name!r} was saved with shape {tuple(tensor.shape)} but has shape "
                    f"{tuple(current[name].shape)} here: use the shapes and configuration it was saved with"
                )


def clip(gradients: Sequence[Tensor], limit: float) -> list[Tensor]:
    """Scale gradients so that their joint norm is at most ``limit``."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    return [gradient * scale for gradient in gradients]


def _take_over(name: str, optimizer: Optimizer, old: Optimizer) -> None:
    """Load the moments of an optimiser into a new one of the same parameters."""
    groups, state = optimizer.state_dict()["param_groups"], old.state_dict()["state"]
    try:
        if type(optimizer) is not type(old):
            raise CorruptFileError(f"it would become a {type(optimizer).__name__}")
        check_optimizer(name, optimizer, _copied({"state": state, "param_groups": groups}))
    except CorruptFileError as error:
        raise ConfigError(
            f"the {type(old).__name__} of the step {name!r} has moments from which its new settings cannot continue: "
            f"{str(error).partition(': ')[2].partition('. Build')[0] or error}. Give one of the same kind, or make "
            "another algorithm"
        ) from error
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _copied(value: object) -> Any:
    """Return a copy of a state dict, with string keys only and lists of dicts as dicts."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {str(key): _copied(item) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {str(index): _copied(item) for index, item in enumerate(value)}
    return list(value) if isinstance(value, tuple) else value


def _scheduler_state(scheduler: LRScheduler) -> State:
    return {
        key: value
        for key, value in scheduler.state_dict().items()
        if isinstance(value, int | float | list) and not (isinstance(value, list) and any(v is None for v in value))
    }
