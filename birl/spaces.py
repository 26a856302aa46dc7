"""Observation and action spaces of environments, and shapes as users and files specify them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Env, Space, spaces
from gymnasium.vector import VectorEnv

from birl.errors import ActionError, ConfigError, EnvironmentMismatchError, ShapeError
from birl.types import FLOAT32_MAX, ActionSpace, Array, Leaf, Shape, Spec, Tree, shape_map

_ROUNDING = 1e-5
"""How far beyond a bound an action may lie, relative to the bound (or to 1)."""


def as_shape(shape: Any) -> Shape:
    """A shape given as lists or tuples, in its canonical form.

    Raises:
        ConfigError: if it is not a shape.
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
    """A batch of two random observations of a shape."""
    return shape_map(lambda leaf: torch.rand(2, *leaf, device=device), shape)


def describe_spec(spec: Spec) -> str:
    """A spec in words."""
    kind = "discrete actions" if spec.discrete_action else "action dimensions"
    return f"observations {spec.observation_shape} and {spec.action_size} {kind}"


def number_of_environments(env: Any) -> int:
    """``1`` for a plain environment, ``num_envs`` for a vector environment.

    Raises:
        EnvironmentMismatchError: if ``env`` is neither.
    """
    if isinstance(env, VectorEnv):
        return int(env.num_envs)
    if isinstance(env, Env):
        return 1
    raise EnvironmentMismatchError(
        f"an object of type {type(env).__module__}.{type(env).__qualname__} is not an environment: give a "
        "gymnasium.Env or a gymnasium.vector.VectorEnv (old gym environments need a wrapper such as shimmy)"
    )


def single_spaces(env: Any) -> tuple[Space[Any], Space[Any]]:
    """Observation and action space of one environment, also of a vector environment.

    Raises:
        EnvironmentMismatchError: if ``env`` has no spaces.
    """
    prefix = "single_" if hasattr(env, "single_action_space") else ""
    try:
        return getattr(env, f"{prefix}observation_space"), getattr(env, f"{prefix}action_space")
    except AttributeError as error:
        number_of_environments(env)
        raise EnvironmentMismatchError(
            f"an environment of type {type(env).__module__}.{type(env).__qualname__} has no spaces ({error}): set its "
            "observation_space and action_space"
        ) from error


def environment_spec(env: Any) -> Spec:
    """The shapes that networks for ``env`` (an environment or vector environment) are built for.

    Raises:
        EnvironmentMismatchError: for spaces that no algorithm supports.
    """
    number_of_environments(env)
    observation_space, action_space = single_spaces(env)
    shape = _over_leaves(_network_shape, observation_space)
    if isinstance(action_space, spaces.Discrete):
        if action_space.start != 0:
            raise EnvironmentMismatchError(
                f"the action space {action_space} starts at {action_space.start}; actions must be counted from 0: "
                "wrap the environment in gymnasium.wrappers.TransformAction"
            )
        return Spec(shape, int(action_space.n), True)
    if isinstance(action_space, spaces.Box) and action_space.dtype.kind != "f":
        raise EnvironmentMismatchError(
            f"the action space {action_space} holds {action_space.dtype}; continuous actions must be floating-point "
            "numbers: wrap the environment in gymnasium.wrappers.TransformAction, with a float32 Box"
        )
    if isinstance(action_space, spaces.Box) and len(action_space.shape) == 1:
        return Spec(shape, int(action_space.shape[0]), False)
    raise EnvironmentMismatchError(
        f"the action space is {action_space}; it must be Discrete(n) or a one-dimensional Box: "
        "wrap the environment in gymnasium.wrappers.TransformAction"
    )


def _over_leaves(function: Callable[[Any], Any], space: Any) -> Tree:
    """Apply ``function`` to each space in nested Tuple and Dict spaces."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, tuple | list):
        return tuple(_over_leaves(function, part) for part in parts)
    if parts is not None:
        return {str(name): _over_leaves(function, part) for name, part in parts.items()}
    return function(space)


def _network_shape(space: Any) -> tuple[int, ...]:
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete) and len(space.shape) > 0:
        return tuple(int(size) for size in space.shape)
    raise EnvironmentMismatchError(
        f"the observation space is {space}; it must be a Box, MultiBinary or MultiDiscrete space "
        "with at least one dimension, or a Tuple or Dict of them: wrap the environment, for instance in "
        "gymnasium.wrappers.FlattenObservation"
    )


def zero_observation(space: Any) -> Tree:
    """A zero observation of a Box, Discrete, MultiDiscrete, MultiBinary, Tuple or Dict space."""
    return _over_leaves(_zeros, space)


def _zeros(space: Any) -> Array:
    if getattr(space, "shape", None) is None or getattr(space, "dtype", None) is None:
        raise ShapeError(f"observations of {space} have no fixed shape: use Box, Discrete, Tuple or Dict spaces")
    return np.zeros(space.shape, space.dtype)


def action_leaf(space: Any) -> tuple[Leaf, ActionSpace, int]:
    """How actions of a Box or Discrete space (of any library) are stored, their kind and size.

    Raises:
        ActionError: for other spaces.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        if getattr(space, "start", 0) != 0:
            raise ActionError(f"action space {space} begins at {space.start}: wrap it so that actions count from 0")
        return Leaf((1,), np.dtype(np.int64)), ActionSpace.DISCRETE, int(space.n)
    if kind == "Box" and len(space.shape) == 1:
        dtype = np.dtype(space.dtype) if space.dtype.kind == "f" else np.dtype(np.float32)
        return Leaf(tuple(space.shape), dtype), ActionSpace.CONTINUOUS, int(space.shape[0])
    raise ActionError(f"action space {space} cannot be stored; it must be Discrete or a Box of shape (A,): wrap it")


def all_finite(array: Array) -> bool:
    """Whether a float array holds no NaN, no infinity and nothing beyond the range of float32."""
    # A number that is not finite leaves no finite sum of squares; only a large sum needs a closer look.
    return bool(np.vdot(array, array) < FLOAT32_MAX) or bool((np.abs(array) <= FLOAT32_MAX).all())


def sample_actions(space: Space[Any], n: int, generator: np.random.Generator) -> Array:
    """Uniformly random actions of one environment's action space (standard normal where it has no bounds).

    Args:
        space: Discrete or one-dimensional Box.
        n: number of actions.
        generator: source of randomness.

    Returns:
        int64 ``[n]`` or float32 ``[n, action_size]``.
    """
    if isinstance(space, spaces.Discrete):
        return space.start + generator.integers(space.n, size=n)
    assert isinstance(space, spaces.Box)
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    low, high = np.where(bounded, space.low, 0.0), np.where(bounded, space.high, 0.0)
    uniform = generator.uniform(low, high, size=(n, *space.shape))
    normal = np.clip(generator.standard_normal((n, *space.shape)), space.low, space.high)
    return np.where(bounded, uniform, normal).astype(np.float32)


def check_actions(space: Space[Any], action: Any) -> None:
    """Check that actions lie in an environment's space, up to rounding.

    Args:
        space: action space of one environment.
        action: ``[n]`` or ``[n, action_size]``.

    Raises:
        ActionError: naming the first action that is NaN or outside of the space.
    """
    values = np.asarray(action)
    if isinstance(space, spaces.Discrete):
        inside = (values >= space.start) & (values < space.start + space.n)
        allowed, remedy = f"integers from {space.start} to {space.start + space.n - 1}", "use a fitting explorer"
    elif isinstance(space, spaces.Box):
        low, high = space.low, space.high
        if (values >= low).all() and (values <= high).all() and all_finite(values):
            return  # the usual case
        inside = (values >= low - _ROUNDING * np.maximum(np.abs(low), 1.0)) & np.isfinite(values)
        inside &= values <= high + _ROUNDING * np.maximum(np.abs(high), 1.0)
        if inside.all():
            return
        allowed = f"finite numbers from {low.tolist()!s:.100} to {high.tolist()!s:.100}"
        remedy = "set action_scaler=birl.preprocessing.MinMaxActionScaler(), or use a fitting explorer"
    else:
        return
    if not inside.all():
        index = int(np.flatnonzero(~inside.reshape(len(values), -1).all(1))[0])
        raise ActionError(
            f"the action {values[index].tolist()!s:.100} for environment {index} is not in its action space; allowed "
            f"are {allowed}: {remedy}"
        )
