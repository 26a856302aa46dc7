"""Devices and shapes, in the forms in which users and files give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from birl.errors import ConfigError
from birl.types import Shape, Spec, Tree, is_shape

__all__ = [
    "as_shape",
    "describe_spec",
    "example_observation",
    "resolve_device",
]


def resolve_device(device: bool | int | str | None) -> torch.device:
    """``False``/``None``: CPU; ``True``: first GPU; int: that GPU; str: a torch device, index optional."""
    if device is None or device is False:
        return torch.device("cpu")
    if device is True:
        device = 0
    try:
        resolved = torch.device(f"cuda:{device}" if isinstance(device, int) else device)
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(
            f"device {device!r} cannot be used: {str(error).splitlines()[0]}. {_usable_devices()}"
        ) from None
    return resolved


def _usable_devices() -> str:
    count = torch.cuda.device_count()
    usable = ["'cpu' (or False)"]
    usable += [f"a GPU's number below {count}, True or 'cuda' (GPU 0), 'cuda:0' and so on"] if count else []
    usable += ["'mps'"] if torch.backends.mps.is_available() else []
    return f"Devices that can be used here: {'; '.join(usable)}{'' if count else ' (this PyTorch finds no GPU)'}"


def as_shape(shape: Any) -> Shape:
    """A shape given as lists or tuples, in the one form used inside.

    Raises:
        ConfigError: if it is no shape.
    """
    if isinstance(shape, str | bytes) or not isinstance(shape, Mapping | Iterable):
        raise ConfigError(f"{shape!r:.100} is no shape: give a tuple of ints such as (17,), or a tuple or dict of them")
    if isinstance(shape, Mapping):
        return {key: as_shape(value) for key, value in shape.items()}
    items = tuple(shape)
    if any(isinstance(item, int | np.integer) and item < 1 for item in items):
        raise ConfigError(f"the shape {items} has a size below 1")
    if all(isinstance(item, int | np.integer) for item in items):
        return tuple(int(item) for item in items)
    return tuple(as_shape(item) for item in items)


def example_observation(shape: Shape, device: torch.device) -> Tree:
    """Two random observations of a shape."""
    if is_shape(shape):
        return torch.rand(2, *shape, device=device)
    if isinstance(shape, dict):
        return {key: example_observation(value, device) for key, value in shape.items()}
    return tuple(example_observation(value, device) for value in shape)


def describe_spec(spec: Spec) -> str:
    """A spec in words."""
    kind = "discrete actions" if spec.discrete_action else "action dimensions"
    return f"observations {spec.observation_shape} and {spec.action_size} {kind}"
