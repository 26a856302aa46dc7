"""From Gymnasium spaces to what networks are built for."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Env, Space, spaces
from gymnasium.vector import VectorEnv

from birl.errors import ActionError, EnvironmentMismatchError
from birl.types import FLOAT32_MAX, Array, Shape, Spec

_ROUNDING = 1e-5
"""How far beyond a bound an action may lie, relative to the bound (or to 1)."""


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
    """Observation and action space of one environment, also for a vector environment.

    Raises:
        EnvironmentMismatchError: if ``env`` is no environment, or has no spaces.
    """
    prefix = "single_" if number_of_environments(env) and isinstance(env, VectorEnv) else ""
    try:
        return getattr(env, f"{prefix}observation_space"), getattr(env, f"{prefix}action_space")
    except AttributeError as error:
        raise EnvironmentMismatchError(
            f"an environment of type {type(env).__module__}.{type(env).__qualname__} has no spaces ({error}): set its "
            "observation_space and action_space"
        ) from error


def environment_spec(env: Any) -> Spec:
    """What networks for ``env`` (an environment or vector environment) are built for.

    Raises:
        EnvironmentMismatchError: for spaces that no algorithm here can handle.
    """
    observation_space, action_space = single_spaces(env)
    shape = _shape(observation_space)
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
        f"the action space {action_space} is not supported; allowed are Discrete(n) and one-dimensional Box spaces: "
        "wrap the environment in gymnasium.wrappers.TransformAction"
    )


def _shape(space: Space[Any]) -> Shape:
    if isinstance(space, spaces.Dict):
        return {name: _shape(part) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_shape(part) for part in space)
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete) and len(space.shape) > 0:
        return tuple(int(size) for size in space.shape)
    raise EnvironmentMismatchError(
        f"the observation space {space} is not supported; allowed are Box, MultiBinary and MultiDiscrete spaces "
        "with at least one dimension, and Tuple and Dict of them: wrap the environment, for instance in "
        "gymnasium.wrappers.FlattenObservation"
    )


def all_finite(array: Array) -> bool:
    """Whether a float array holds neither NaN nor infinity, nor what would be infinite in float32."""
    # Where one number is not finite, the sum of squares is not; a large sum is looked into.
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
    """Check that an environment can be given these actions; rounding beyond a bound is allowed.

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
