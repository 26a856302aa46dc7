"""Observation and action spaces: shapes as users and files give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from birl.errors import ConfigError
from birl.types import Shape, Spec, Tree, shape_map


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
    return shape_map(lambda leaf: torch.rand(2, *leaf, device=device), shape)


def describe_spec(spec: Spec) -> str:
    """A spec in words."""
    kind = "discrete actions" if spec.discrete_action else "action dimensions"
    return f"observations {spec.observation_shape} and {spec.action_size} {kind}"
