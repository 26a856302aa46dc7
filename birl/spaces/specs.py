"""What networks are built for, and what environments tell of it.

Actions are told by `birl.spaces`, observations by `birl.spaces.observations`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gymnasium import Env, Space, spaces
from gymnasium.vector import VectorEnv

from birl.errors import ActionError, EnvironmentMismatchError, ShapeError
from birl.spaces.composite_actions import Actions
from birl.spaces.environment_actions import actions_of
from birl.spaces.observations import (
    Numbers,
    as_observations,
    chosen,
    leaf_spaces,
    observations_of,
    picked,
    reads,
    shapes_of,
)
from birl.types import MASK, ActionSpace, Shape, Tree, tree_map, without_mask

MOST_CHANNELS: Final = 4
"""Channels of an image, if they come last. A longer last axis is a side of the image."""

_OF_ENVIRONMENTS: Final = ("reset", "step", "observation_space", "action_space", "unwrapped")

_OF_GYM: Final = {
    "Box": ("low", "high", "shape", "dtype"),
    "Discrete": ("n", "start"),
    "MultiBinary": ("n",),
    "MultiDiscrete": ("nvec", "dtype"),
    "Tuple": (),
    "Dict": (),
}
"""Spaces of gym that are converted, and what they are made of."""


@dataclass(frozen=True)
class Spec:
    """The observations and actions that networks are built for.

    Attributes:
        observations: a leaf of `birl.spaces.observations`, or a tuple or dict of them; given as `as_observations`
            takes them, for example as the shape ``(17,)``.
        actions: what actions are.
    """

    observations: Tree
    actions: Actions

    def __post_init__(self) -> None:
        object.__setattr__(self, "observations", as_observations(self.observations))
        options = (sum(self.actions.options),)
        mask = self.data_shape[MASK] if self.masked else options
        if mask != options:
            each = "action" if self.actions.kind is ActionSpace.DISCRETE else "option of each choice"
            raise ShapeError(
                f"the mask of actions, {MASK!r} of the observations, has shape {mask}; it must have {options}, a "
                f"number for each {each}"
            )
        if self.masked:  # also where a space calls its zeros and ones choices
            object.__setattr__(self, "observations", {**self.observations, MASK: Numbers(mask)})
        if self.encoder_shape == {}:
            raise ShapeError(f"the observations hold nothing but {MASK!r}: give something to choose actions by")

    @functools.cached_property
    def masked(self) -> bool:
        """Whether observations say which actions are allowed; see `birl.types.MASK`."""
        return bool(self.actions.options) and isinstance(self.observations, dict) and MASK in self.observations

    @functools.cached_property
    def encoder_shape(self) -> Shape:
        """Shape of what encoders see of an observation: all but the mask of actions."""
        return self.encoded(self.observation_shape)

    def encoded(self, observation: Tree) -> Tree:
        """What encoders see of an observation."""
        return without_mask(observation) if self.masked else observation

    def __str__(self) -> str:
        return f"observations {self.observations} and {self.actions}"

    @functools.cached_property
    def observation_shape(self) -> Shape:
        """What networks read: a shape such as ``(17,)`` or ``(4, 84, 84)``, or a tuple or dict of shapes."""
        return tree_map(lambda leaf: leaf.input_shape, self.observations)

    @functools.cached_property
    def data_shape(self) -> Shape:
        """What data and environments have: as `observation_shape`, but for choices, which networks read one-hot."""
        return shapes_of(self.observations)

    def takes(self, other: Spec) -> bool:
        """Whether networks for this spec can learn from data of the ``other``."""
        return reads(self.observations, other.observations) and self.actions.takes(other.actions)


def is_channels_last(shape: tuple[int, ...]) -> bool:
    """Whether a shape is that of an image ``(height, width, channels)``.

    Images have at most 4 channels and longer sides. A square one may have more, such as those of stacked frames: at
    most half as many as pixels on a side.
    """
    if len(shape) != 3:
        return False
    height, width, channels = shape
    few = channels <= MOST_CHANNELS or (height == width and 2 * channels <= width)
    return few and min(height, width) > MOST_CHANNELS


def number_of_environments(env: Any) -> int:
    """``1`` for a plain environment (also of the old library gym), ``num_envs`` for a vector environment.

    Raises:
        EnvironmentMismatchError: if ``env`` is neither.
    """
    if isinstance(env, VectorEnv):
        return int(env.num_envs)
    if isinstance(env, Env):
        return 1
    if isinstance(env, str):
        raise EnvironmentMismatchError(f"the text {env!r:.80} is not an environment: birl.envs.make_env(…) makes one")
    kind, old = f"{type(env).__module__}.{type(env).__qualname__}", all(hasattr(env, name) for name in _OF_ENVIRONMENTS)
    if inspect.isclass(env) or not old or hasattr(env, "num_envs"):
        raise EnvironmentMismatchError(
            f"an object of type {kind} is not an environment: give a gymnasium.Env or a gymnasium.vector.VectorEnv"
        )
    _warn_of_old(kind)
    return 1


@functools.cache  # once for each kind
def _warn_of_old(kind: str) -> None:
    warnings.warn(
        f"{kind} is no gymnasium.Env: it is used as an environment of gym 0.26, and its spaces are converted. gym is "
        "no longer maintained: make the environment with gymnasium instead",
        stacklevel=3,
    )


def single_spaces(env: Any) -> tuple[Space[Any], Space[Any]]:
    """Observation and action space of one environment, also of a vector environment.

    Raises:
        EnvironmentMismatchError: if ``env`` has no spaces.
    """
    prefix = "single_" if hasattr(env, "single_action_space") else ""
    try:
        return converted(getattr(env, f"{prefix}observation_space")), converted(getattr(env, f"{prefix}action_space"))
    except AttributeError as error:
        number_of_environments(env)
        raise EnvironmentMismatchError(
            f"an environment of type {type(env).__module__}.{type(env).__qualname__} has no spaces ({error}): set its "
            "observation_space and action_space"
        ) from error


def converted(space: Any) -> Any:
    """A space of the old library gym as one of Gymnasium; any other as it is."""
    kind = type(space).__name__
    if isinstance(space, Space) or kind not in _OF_GYM:
        return space
    if kind == "Dict":
        return spaces.Dict({name: converted(part) for name, part in space.spaces.items()})
    if kind == "Tuple":
        return spaces.Tuple(map(converted, space.spaces))
    options = {name: getattr(space, name) for name in _OF_GYM[kind] if hasattr(space, name)}
    return getattr(spaces, kind)(**options)


def environment_spec(env: Any, keys: Sequence[str] | None = None, own: Tree = None) -> Spec:
    """What networks for ``env`` (an environment or vector environment) are built for.

    Args:
        env: environment or vector environment.
        keys: names of the parts of observations that are read; all if ``None``.
        own: observations that networks were built for; further parts are not looked at.

    Raises:
        EnvironmentMismatchError: for spaces that no algorithm supports.
        ConfigError: if ``keys`` names what is no part of the observations.
    """
    number_of_environments(env)
    observation_space, action_space = single_spaces(env)
    leaves = leaf_spaces(observation_space)
    with contextlib.suppress(ShapeError):  # that they do not fit is told by who compares
        leaves = picked(own, leaves)
    observations = observations_of(chosen(leaves, None if own is not None else keys))
    try:
        actions = actions_of(action_space)
    except ActionError as error:
        raise EnvironmentMismatchError(str(error)) from error
    return Spec(observations, actions)
