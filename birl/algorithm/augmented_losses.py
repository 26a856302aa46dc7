"""Terms added to losses: the networks and steps of an algorithm with the add-ons of its configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from birl.config import AlgorithmConfig
from birl.engine import Gradient, Step
from birl.engine.steps import LossFunction
from birl.errors import ConfigError
from birl.models.loss_addon import LossAddOn, addon_names
from birl.spaces.specs import Spec
from birl.types import Batch, Loss

_follow: ContextVar[bool] = ContextVar("skip_addon_parameters", default=False)


def make_networks(
    make: Callable[[Spec, Any], nn.Module], acting: str, spec: Spec, config: AlgorithmConfig
) -> nn.Module:
    """Make the networks of an algorithm, with those of its add-ons as further children.

    Args:
        make: makes the algorithm's networks, given ``(spec, config)``.
        acting: name of the network that acts.
        spec: observations and actions of the networks.
        config: the algorithm's configuration.

    Raises:
        ConfigError: if an add-on cannot be added to the algorithm.
    """
    nets, addons = make(spec, config), config.loss_addons or ()
    for name, addon in zip(addon_names(addons), addons, strict=True):
        if name in nets._modules:
            raise ConfigError(f"{type(nets).__name__} has a network called {name!r}, like the add-on: rename it")
        nets.add_module(name, addon.network(nets.get_submodule(acting), spec, config))
    return nets


def fill_networks(nets: nn.Module, config: AlgorithmConfig) -> None:
    """Load the parameters of add-ons, unless a model file supplies them; see `skip_addon_parameters`."""
    addons = () if _follow.get() else config.loss_addons or ()
    for name, addon in zip(addon_names(addons), addons, strict=True):
        addon.fill(nets.get_submodule(name))


@contextlib.contextmanager
def skip_addon_parameters() -> Iterator[None]:
    """Skip the parameters of add-ons in networks that are made inside, because a model file supplies them."""
    token = _follow.set(True)
    try:
        yield
    finally:
        _follow.reset(token)


def with_addons(steps: tuple[Step, ...], acting: str, config: AlgorithmConfig) -> tuple[Step, ...]:
    """Return the steps of a configuration with the terms of its add-ons.

    Raises:
        ConfigError: if an add-on names a step that does not exist or is not a gradient step.
    """
    addons = config.loss_addons or ()
    if not addons:
        return steps
    own = [step for step in steps if step.when.holds(config)]
    phases = [_phase(addon, own, acting, config) for addon in addons]
    names, changed = addon_names(addons), []
    for step in own:
        added = tuple((index, name) for index, name in enumerate(names) if phases[index] == step.name)
        if added and isinstance(step, Gradient):
            trained = tuple(name for index, name in added if addons[index].trains)
            step = replace(step, loss=WithAddOns(step.loss, acting, added), of=(*step.networks, *trained))
        changed.append(step)
    return tuple(changed)


def _phase(addon: LossAddOn, steps: list[Step], acting: str, config: AlgorithmConfig) -> str:
    """Return the name of the step to whose loss the term is added."""
    kind, known = type(addon).__name__, [step for step in steps if isinstance(step, Gradient)]
    name = next((step.name for step in known if acting in step.networks), None) if addon.phase is None else addon.phase
    if name not in [step.name for step in known]:
        algorithm = type(config).__name__.removesuffix("Config")
        given = f"the network that acts, {acting!r}, has no gradient step" if name is None else f"phase is {name!r}"
        raise ConfigError(
            f"{kind} cannot be added to a loss of {algorithm}: {given}. Its gradient steps are "
            f"{', '.join(repr(step.name) for step in known) or 'none'}"
        )
    return name  # type: ignore[return-value]


@dataclass(frozen=True)
class WithAddOns:
    """The loss of a step with the terms of the configuration's add-ons.

    Attributes:
        loss: the loss of the step itself.
        acting: name of the network that acts.
        added: index and name of each add-on.
    """

    loss: LossFunction
    acting: str
    added: tuple[tuple[int, str], ...]

    @property
    def __name__(self) -> str:
        return str(getattr(self.loss, "__name__", "loss"))

    def __call__(self, nets: nn.Module, batch: Batch, config: AlgorithmConfig) -> Loss:
        found = self.loss(nets, batch, config)
        value, metrics = found.value, dict(found.metrics)
        acting, addons = nets.get_submodule(self.acting), config.loss_addons or ()
        for index, name in self.added:
            addon = addons[index]
            term = addon.term(nets.get_submodule(name), acting, batch)
            value, metrics[f"{name}_loss"] = value + addon.weight * term, term.detach()
        return replace(found, value=value, metrics=metrics)
