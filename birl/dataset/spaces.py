"""What an environment's spaces say about data. Read by their attributes, so that no environment library is imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from birl.dataset.episode import Leaf, Observation
from birl.errors import ActionError, ShapeError
from birl.types import ActionSpace


def count_lanes(env: Any) -> int:
    """Number of parallel environments; 1 for a plain environment."""
    return int(env.num_envs) if hasattr(env, "single_action_space") else 1


def single_spaces(env: Any) -> tuple[Any, Any]:
    """Observation and action space of one environment, also of a vector environment."""
    if hasattr(env, "single_action_space"):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def observation_of(space: Any) -> Observation:
    """A zero observation of a Box, Discrete, MultiDiscrete, MultiBinary, Tuple or Dict space."""
    inner = getattr(space, "spaces", None)
    if isinstance(inner, tuple | list):
        return tuple(observation_of(item) for item in inner)
    if inner is not None:
        return {str(key): observation_of(item) for key, item in inner.items()}
    if getattr(space, "shape", None) is None or getattr(space, "dtype", None) is None:
        raise ShapeError(f"observations of {space} have no fixed shape: use Box, Discrete, Tuple or Dict spaces")
    return np.zeros(space.shape, space.dtype)


def action_leaf(space: Any) -> tuple[Leaf, ActionSpace, int]:
    """How actions of a Box or Discrete space are stored, their kind and size.

    Raises:
        ActionError: for other spaces.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        if int(getattr(space, "start", 0)) != 0:
            raise ActionError(f"action space {space} begins at {space.start}: wrap it so that actions count from 0")
        return Leaf((1,), np.dtype(np.int64)), ActionSpace.DISCRETE, int(space.n)
    if kind == "Box" and len(space.shape) == 1:
        dtype = np.dtype(space.dtype)
        return (
            Leaf(tuple(space.shape), dtype if dtype.kind == "f" else np.dtype(np.float32)),
            ActionSpace.CONTINUOUS,
            int(space.shape[0]),
        )
    raise ActionError(f"action space {space} cannot be stored, allowed are Discrete and Box of shape (A,): wrap it")
