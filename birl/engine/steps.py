"""The steps of an update (gradient steps and target updates), and the interface `Update` that they call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from birl.errors import ConfigError
from birl.types import Batch, Loss

LossFunction = Callable[[Any, Batch, Any], Loss]  # (networks, batch, config)
Gradients = dict[str, Tensor]  # by name of the parameters that learn


@dataclass(frozen=True)
class When:
    """The updates in which a step is performed. Numbers are ints or the names of config fields.

    Attributes:
        every: the step is performed in every ``every``-th update.
        after: only after this many updates.
        until: only in the first ``until`` updates; ``None`` for no end.
        given: ``(field, value)``: only configurations whose ``field`` equals ``value`` have the step; ``None`` if all
            have it.
    """

    every: int | str = 1
    after: int | str = 0
    until: int | str | None = None
    given: tuple[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, value, minimum in (("every", self.every, 1), ("after", self.after, 0), ("until", self.until or 0, 0)):
            if not isinstance(value, str) and (type(value) is not int or value < minimum):
                raise ConfigError(f"{name} is {value!r}; it must be an int >= {minimum} or the name of a config field")

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the config fields."""
        names = (self.every, self.after, self.until, self.given and self.given[0])
        return tuple(name for name in names if isinstance(name, str))

    def holds(self, config: object) -> bool:
        """Return whether the step belongs to this configuration."""
        return self.given is None or bool(getattr(config, self.given[0]) == self.given[1])

    def is_due(self, update: int, config: object) -> bool:
        """Return whether the step is performed in the update number ``update``, counted from 1."""
        return (
            _number(self.after, config) < update
            and (self.until is None or update <= _number(self.until, config))
            and update % _number(self.every, config) == 0
        )


def _number(value: int | str, config: object) -> int:
    return int(getattr(config, value)) if isinstance(value, str) else value


class Update(Protocol):
    """The interface that the steps of an update call. The implementations are eager, compiled, or for many seeds."""

    @property
    def nets(self) -> Any:
        """The networks."""

    @property
    def config(self) -> Any:
        """The algorithm's configuration."""

    def gradients(self, loss: LossFunction, of: tuple[str, ...], batch: Batch) -> tuple[Gradients, Loss]:
        """Return a loss's gradients by parameter name, for the networks named ``of``, and the detached loss."""

    def reduce(self, gradients: Gradients) -> Gradients:
        """Combine gradients with those of other processes, if there are any."""

    def apply(self, name: str, gradients: Gradients) -> None:
        """Update the parameters of the step ``name`` with its optimiser."""

    def assign(self, parameters: Mapping[str, Tensor]) -> None:
        """Set parameters by name, without an optimiser."""

    def report(self, metrics: Mapping[str, Tensor], priority: Tensor | None = None) -> None:
        """Log scalars, and report the priorities ``[...]`` of the batch's elements if the loss has any."""


class UpdateResult(NamedTuple):
    """The metrics and priorities that the steps of an update report.

    Attributes:
        metrics: scalars by name.
        priority: priorities ``[...]`` of the batch's elements; ``None`` if they are not used, or no loss has any.
        gradient_statistics: statistics ``[n, 4]`` of the gradients of each gradient step, by its name, if they are
            watched.
    """

    metrics: dict[str, Tensor]
    priority: Tensor | None
    gradient_statistics: dict[str, Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in order."""
        priority = [] if self.priority is None else [self.priority]
        return [*self.metrics.values(), *priority, *self.gradient_statistics.values()]

    def map(self, function: Callable[[Tensor], Tensor]) -> UpdateResult:
        """Apply ``function`` to every tensor."""
        return UpdateResult(
            {name: function(value) for name, value in self.metrics.items()},
            None if self.priority is None else function(self.priority),
            {name: function(value) for name, value in self.gradient_statistics.items()},
        )


class Step(Protocol):
    """One step of an update. Algorithms may define their own.

    The config fields that it names are checked when the algorithm's class is defined, and its networks when the
    algorithm is built.
    """

    @property
    def name(self) -> str:
        """Identifies the step in optimisers, metrics and errors."""

    @property
    def when(self) -> When:
        """The updates in which it is performed."""

    @property
    def eager_only(self) -> str:
        """Reason why it cannot be compiled or be part of an update of many seeds; empty if it can."""

    @property
    def networks(self) -> tuple[str, ...]:
        """Names of the networks that it needs."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the config fields that it needs, in addition to those of `when`."""

    def __call__(self, on: Update, batch: Batch) -> Batch:
        """Perform the step. Returns the batch for the following steps, with the tensors that this step shares."""


@dataclass(frozen=True)
class Training:
    """A step that minimises a loss. Subclasses define how parameters change.

    Attributes:
        name: identifies the step in optimisers, metrics and errors.
        loss: pure function ``(networks, batch, config) -> Loss``.
        of: names of the trained networks; by default the one called ``name``.
        metric: name under which the loss is logged; by default ``<name>_loss``.
        when: the updates in which it is performed.
        splits: whether the gradient of a minibatch is the mean of the gradients of its parts. It is not if the loss
            contains a statistic of the whole minibatch, such as TD3+BC's mean ``|Q|``, which differs between processes.
    """

    name: str
    loss: LossFunction
    of: tuple[str, ...] = ()
    metric: str = dataclasses.field(default="", kw_only=True)
    when: When = dataclasses.field(default=When(), kw_only=True)
    splits: bool = dataclasses.field(default=True, kw_only=True)

    eager_only = ""

    @property
    def networks(self) -> tuple[str, ...]:
        """Names of the trained networks."""
        return self.of or (self.name,)

    @property
    def logged(self) -> str:
        """Name under which the loss is logged."""
        return self.metric or f"{self.name}_loss"

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the config fields that set the size of a parameter change."""
        raise NotImplementedError

    def __call__(self, on: Update, batch: Batch) -> Batch:
        """Change the parameters, and report the loss."""
        raise NotImplementedError


@dataclass(frozen=True)
class Gradient(Training):
    """One gradient step: a loss, and the networks that it trains.

    Attributes:
        name, loss, of, metric, when, splits: see `Training`.
        optimizer: prefix of the config fields from which the optimiser is made, ``<optimizer>_learning_rate`` and
            ``<optimizer>_optim_factory``. The default is ``name``; if it is empty, the fields are ``learning_rate`` and
            ``optim_factory``.
        rate_metric: name under which the learning rate is logged; empty if it is not.
    """

    optimizer: str | None = None
    rate_metric: str = dataclasses.field(default="", kw_only=True)

    @property
    def fields(self) -> tuple[str, str]:
        """Names of the config fields with the learning rate and the optimiser's factory."""
        name = self.name if self.optimizer is None else self.optimizer
        prefix = f"{name}_" if name else ""
        return f"{prefix}learning_rate", f"{prefix}optim_factory"

    def __call__(self, on: Update, batch: Batch) -> Batch:
        """Take the gradient step, and report the loss."""
        gradients, loss = on.gradients(self.loss, self.networks, batch)
        on.apply(self.name, on.reduce(gradients))
        on.report({self.logged: loss.value, **loss.metrics}, priority=loss.compute_priority())
        return loss.shared_with(batch)


@dataclass(frozen=True)
class TargetUpdate:
    """The update of a target network from its source network. Buffers are copied; subclasses update the parameters.

    Attributes:
        source: name of the source network.
        target: name of the target network, which is also the name of the step.
        when: the updates in which it is performed.
    """

    source: str
    target: str
    when: When = When()

    eager_only = ""

    @property
    def name(self) -> str:
        """The target's name."""
        return self.target

    @property
    def networks(self) -> tuple[str, str]:
        """Names of both networks."""
        return self.source, self.target

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the config fields that `update_parameters` reads."""
        return ()

    def update_parameters(self, target: list[Tensor], source: list[Tensor], config: object) -> None:
        """Update the target's parameters in place."""
        raise NotImplementedError

    @torch.no_grad()
    def __call__(self, on: Update, batch: Batch) -> Batch:
        """Update the target's parameters, and copy the buffers."""
        source, target = on.nets.get_submodule(self.source), on.nets.get_submodule(self.target)
        self.update_parameters(list(target.parameters()), list(source.parameters()), on.config)
        for old, new in zip(target.buffers(), source.buffers(), strict=True):
            old.copy_(new)
        return batch


@dataclass(frozen=True)
class Polyak(TargetUpdate):
    """``target <- (1 - tau) * target + tau * source`` (Lillicrap et al. 2015, arXiv:1509.02971, algorithm 1).

    Attributes:
        tau: name of the config field with the weight of the source.
    """

    tau: str = "tau"

    @property
    def fields(self) -> tuple[str, ...]:
        """Name of the field with ``tau``."""
        return (self.tau,)

    def update_parameters(self, target: list[Tensor], source: list[Tensor], config: object) -> None:
        """Update the target's parameters in place."""
        tau = getattr(config, self.tau)
        if tau == 1:
            torch._foreach_copy_(target, source)
            return
        if not (torch.compiler.is_compiling() and target[0].is_cuda):
            torch._foreach_lerp_(target, source, tau)
            return
        for old, new in zip(target, source, strict=True):  # the compiler fuses each with the update of its source
            old.lerp_(new, tau)


@dataclass(frozen=True)
class HardCopy(TargetUpdate):
    """``target <- source`` at intervals (Mnih et al. 2015, doi:10.1038/nature14236)."""

    when: When = When(every="target_update_interval")

    def update_parameters(self, target: list[Tensor], source: list[Tensor], config: object) -> None:
        """Copy the source's parameters."""
        torch._foreach_copy_(target, source)


def check_steps(steps: Sequence[Step], config_class: type) -> None:
    """Check the names in steps when an algorithm is defined.

    Raises:
        ConfigError: if two steps have one name, or a step names a field that ``config_class`` does not have.
    """
    known = [field.name for field in dataclasses.fields(config_class)]
    names: dict[str, When] = {}
    for step in steps:
        if isinstance(step, Training) and not callable(step.loss):
            raise ConfigError(f"the loss of step {step.name!r} is {step.loss!r:.80}; it must be a function")
        if not isinstance(step.networks, tuple):
            raise ConfigError(f"the networks of step {step.name!r} are {step.networks!r:.80}; they must be in a tuple")
        for name in (step.when.every, step.when.after, step.when.until):
            default = getattr(config_class, name, 1) if isinstance(name, str) else 1
            if isinstance(default, float | str):
                raise ConfigError(
                    f"the step {step.name!r} counts updates by {config_class.__name__}.{name}, which is {default!r}; "
                    "it must be an int"
                )
        for name in (*step.when.fields, *step.fields):
            if name not in known and not hasattr(config_class, name):
                raise ConfigError(
                    f"the step {step.name!r} needs the field {name!r}, which {config_class.__name__} does not have; "
                    f"its fields are {', '.join(sorted(known))}"
                )
        if step.name in names and not _exclude(step.when, names[step.name]):
            raise ConfigError(
                f"two steps are called {step.name!r}; every step of an update must have its own name. A target update "
                "has the name of its target: HardCopy(source, target)"
            )
        names[step.name] = step.when


def check_networks(steps: Sequence[Step], nets: nn.Module) -> None:
    """Check that all networks named by steps exist, and that the networks that steps train have parameters.

    Raises:
        ConfigError: with the names of the step, the network and the networks that exist.
    """
    known = dict(nets.named_children())
    for step in steps:
        for name in step.networks:
            same = [other for other, module in known.items() if module is getattr(nets, name, None)]
            if same and name not in known:
                raise ConfigError(
                    f"{type(nets).__name__}.{name} is the same network as {same[0]}, which would be its own target: "
                    f"make it deepcopy(self.{same[0]})"
                )
            if name not in known:
                raise ConfigError(no_network(f"the step {step.name!r}", name, type(nets), known))
        if isinstance(step, Training) and not any(True for name in step.networks for _ in known[name].parameters()):
            raise ConfigError(f"the step {step.name!r} trains {', '.join(step.networks)}, which has no parameters")


def no_network(part: str, name: str, nets: type, known: Iterable[str]) -> str:
    """Return the message for a missing network."""
    return f"{part} needs the network {name!r}, which {nets.__name__} does not have; it has {', '.join(sorted(known))}"


def check_loss(function: LossFunction, found: object) -> Loss:
    """Return what a loss function returned, after checking it.

    Raises:
        ConfigError: if it is not a `Loss`, or its value is not a scalar with a gradient.
    """
    name = getattr(function, "__name__", "") or repr(function)  # torch.compile cannot trace `repr`
    if not isinstance(found, Loss):
        raise ConfigError(
            f"the loss {name} returned {type(found).__name__}; it must return a Loss: Loss(value, metrics), with the "
            "mean over the batch as value: weighted_mean(…, batch.weight)"
        )
    if not isinstance(found.value, Tensor) or found.value.dim():
        given = list(found.value.shape) if isinstance(found.value, Tensor) else found.value
        raise ConfigError(
            f"the value of the loss {name} is {given}; it must be a scalar tensor: weighted_mean(…, batch.weight)"
        )
    wrong = [name for name, metric in found.metrics.items() if not isinstance(metric, Tensor)]
    if wrong:
        raise ConfigError(
            f"the metric {wrong[0]!r} of the loss {name} is {found.metrics[wrong[0]]!r:.40}; it must be a scalar "
            "tensor: leave out float(…) and .item(), which wait for the device"
        )
    return found


def parameter_gradients(
    function: LossFunction, value: Tensor, learning: Mapping[str, Tensor], *, retain_graph: bool = False
) -> Gradients:
    """Return the gradients of a loss.

    A parameter that the loss does not depend on has none, for example because an encoder detaches what its pre-trained
    layers return.

    Args:
        function: the loss function, for messages.
        value: the loss.
        learning: the parameters that learn, by name; see `TrainState.learning`.
        retain_graph: whether further gradients of the same loss follow.

    Raises:
        ConfigError: if the loss depends on no parameter of a network.
    """
    if not learning:
        return {}
    if not value.requires_grad:
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(f"the loss {name} has no gradient: it depends on no parameter, or is under torch.no_grad()")
    found = torch.autograd.grad(value, list(learning.values()), retain_graph=retain_graph, allow_unused=True)
    gradients = {name: gradient for name, gradient in zip(learning, found, strict=True) if gradient is not None}
    if len(gradients) == len(learning):
        return gradients
    networks = {each.partition(".")[0] for each in gradients}
    unused = [each for each in learning if each.partition(".")[0] not in networks]
    if unused:
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(
            f"the loss {name} does not depend on {', '.join(unused[:3])}, which its step trains: give the step's `of` "
            "only networks that the loss uses, or use them"
        )
    return gradients


def _exclude(one: When, other: When) -> bool:
    (name, value), (other_name, other_value) = one.given or (None, None), other.given or (None, None)
    return name == other_name and bool(value != other_value)
