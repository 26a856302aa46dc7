"""Copying networks and optimisers between algorithms."""

from __future__ import annotations

from typing import Any, Final

from torch import nn

from birl.config import AlgorithmConfig
from birl.errors import ConfigError, ShapeError, UnsupportedError

_SCALES: Final = {"actor": ("observation_scaler",), "critic": ("observation_scaler", "reward_scaler")}
"""The scalers whose units a network knows."""


def copy_networks(algorithm: Any, source: Any, names: tuple[str, str], what: str) -> None:
    """Copy a network, and its target if there is one, from another algorithm.

    The statistics of running scalers come with it, since it was learned in their units.

    Args:
        algorithm: the algorithm to copy to.
        source: the algorithm to copy from.
        names: names of the network and of its target. Without a target in ``source``, the network itself is copied.
        what: the network in words, for messages.
    """
    _check_source(source)
    own, theirs = dict(algorithm.nets.named_children()), dict(source.nets.named_children())
    for side, networks in ((algorithm, own), (source, theirs)):
        if names[0] not in networks:
            raise UnsupportedError(f"{type(side).__name__} has no {what} to copy")
    for name in names:
        if name in own:
            found = theirs[name if name in theirs else names[0]]
            _load(own[name], found, type(source).__name__, type(algorithm).__name__, what)
    for name in _SCALES[names[0]]:
        scaler, other = algorithm.learner.running.get(name), source.learner.running.get(name)
        if scaler is not None and type(scaler) is type(other):
            state, theirs = scaler.get_state(), other.get_state()
            # limits, and what belongs to environments, stay its own
            scaler.set_state({**state, "statistics": theirs["statistics"]} if "statistics" in state else theirs)


def _check_source(source: Any) -> None:
    if not isinstance(getattr(source, "config", None), AlgorithmConfig):
        raise ConfigError(f"algo is {source!r:.80}; it must be an algorithm with networks (load_learnable reads one)")


def _load(network: nn.Module, source: nn.Module, origin: str, name: str, what: str) -> None:
    try:
        network.load_state_dict(source.state_dict())
    except RuntimeError as error:
        raise ShapeError(
            f"the {what} of {origin} does not fit {name}: both need the same encoder, head, number of critics and "
            f"shapes. ({str(error).splitlines()[-1].strip()})"
        ) from error


def copy_optimizer(algorithm: Any, source: Any, step: str) -> None:
    """Copy the state of a step's optimiser from another algorithm."""
    _check_source(source)
    own, theirs = algorithm.engine.optimizers.get(step), source.engine.optimizers.get(step)
    if own is None or theirs is None:
        raise UnsupportedError(f"{type(algorithm if own is None else source).__name__} has no optimiser for its {step}")
    shapes = [[p.shape for group in side.param_groups for p in group["params"]] for side in (own, theirs)]
    if shapes[0] != shapes[1]:
        raise ShapeError(f"the {step} optimiser of {type(source).__name__} does not fit {type(algorithm).__name__}")
    algorithm.engine.copy_optimizer(step, source.engine)
