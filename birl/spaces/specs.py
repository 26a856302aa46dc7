"""Specs of networks, and their construction from environments."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from gymnasium import Env, Space, spaces
from gymnasium.vector import VectorEnv

from birl.errors import ActionError, EnvironmentMismatchError, ShapeError
from birl.spaces.action_spaces import actions_from_space
from birl.spaces.actions import Actions
from birl.spaces.conversion import Columns
from birl.spaces.observations import (
    Numbers,
    accepts_observations,
    check_names,
    fitting_columns,
    leaf_spaces,
    match_parts,
    observations_from_spaces,
    parse_observations,
    part_names,
    select_parts,
    shapes_of,
)
from birl.types import MASK, ActionSpace, Shape, Tree, tree_map, without_mask

MOST_CHANNELS: Final = 4
"""Largest number of channels in the last axis of an image. A longer last axis is a side of the image."""

_GYM_ATTRIBUTES: Final = ("reset", "step", "observation_space", "action_space", "unwrapped")

_GYM_SPACES: Final = {
    "Box": ("low", "high", "shape", "dtype"),
    "Discrete": ("n", "start"),
    "MultiBinary": ("n",),
    "MultiDiscrete": ("nvec", "dtype"),
    "Tuple": (),
    "Dict": (),
}
"""Supported spaces of gym, and the arguments of each."""


@dataclass(frozen=True)
class Spec:
    """Observations and actions of networks.

    Attributes:
        observations: a leaf of observations, or a tuple or dict of them. Any argument of `parse_observations` works,
            for example the shape ``(17,)``.
        actions: the actions.
    """

    observations: Tree
    actions: Actions

    def __post_init__(self) -> None:
        object.__setattr__(self, "observations", parse_observations(self.observations))
        check_names(part_names(self.observations) or ())
        options = (sum(self.actions.options),)
        mask = self.data_shape[MASK] if self.masked else options
        if mask != options:
            each = "action" if self.actions.kind is ActionSpace.DISCRETE else "option of each choice"
            raise ShapeError(
                f"the mask of actions, {MASK!r} of the observations, has shape {mask}; it must have {options}: give a "
                f"number for each {each}"
            )
        if self.masked:  # even if the space of the mask has choices
            object.__setattr__(self, "observations", {**self.observations, MASK: Numbers(mask)})
        if self.encoder_shape == {}:
            raise ShapeError(f"the observations have no part but {MASK!r}; policies need others: add a part")

    @functools.cached_property
    def masked(self) -> bool:
        """Whether observations have a mask of actions; see `birl.types.MASK`."""
        return bool(self.actions.options) and isinstance(self.observations, dict) and MASK in self.observations

    @functools.cached_property
    def encoder_shape(self) -> Shape:
        """Shape of the inputs of encoders: the observation without the mask of actions."""
        return self.encoder_observation(self.observation_shape)

    def encoder_observation(self, observation: Tree) -> Tree:
        """Return the inputs of encoders: an observation without the mask of actions."""
        return without_mask(observation) if self.masked else observation

    def __str__(self) -> str:
        return f"observations {self.observations} and {self.actions}"

    @functools.cached_property
    def observation_shape(self) -> Shape:
        """Shape of the inputs of networks, such as ``(17,)`` or ``(4, 84, 84)``, or a tuple or dict of shapes."""
        return tree_map(lambda leaf: leaf.input_shape, self.observations)

    @functools.cached_property
    def data_shape(self) -> Shape:
        """Shape in data and environments. Choices differ from `observation_shape`, where they are one-hot."""
        return shapes_of(self.observations)

    def fitting_columns(self, columns: Columns) -> Columns:
        """Return the names of the arrays that have one number for each name."""
        return fitting_columns(columns, self.observations, self.actions.storage_spec.shape)

    def accepts(self, other: Spec) -> bool:
        """Return whether networks for this spec can learn from data of the ``other``."""
        return accepts_observations(self.observations, other.observations) and self.actions.accepts(other.actions)


def is_channels_last(shape: tuple[int, ...]) -> bool:
    """Return whether a shape is that of an image ``(height, width, channels)``.

    Images have at most 4 channels and longer sides, or more channels, for stacked frames: at most half the number of
    pixels of the shorter side.
    """
    if len(shape) != 3:
        return False
    height, width, channels = shape
    shorter = min(height, width)
    return shorter > MOST_CHANNELS and (channels <= MOST_CHANNELS or 2 * channels <= shorter)


def number_of_environments(env: object) -> int:
    """Return 1 for a single environment (of Gymnasium or gym), ``num_envs`` for a vector environment.

    Raises:
        EnvironmentMismatchError: if ``env`` is neither.
    """
    if isinstance(env, VectorEnv):
        _check_distinct(env)
        return int(env.num_envs)
    if isinstance(env, Env):
        return 1
    if isinstance(env, str):
        raise EnvironmentMismatchError(
            f"the text {env!r:.80} is not an environment: make one with birl.envs.make_env(…)"
        )
    kind, gym = f"{type(env).__module__}.{type(env).__qualname__}", all(hasattr(env, name) for name in _GYM_ATTRIBUTES)
    if inspect.isclass(env) or not gym or hasattr(env, "num_envs"):
        raise EnvironmentMismatchError(_no_environment(env, kind))
    _warn_of_gym(kind)
    return 1


def _check_distinct(env: VectorEnv[Any, Any, Any]) -> None:
    """Raise `EnvironmentMismatchError` if one object is several of the environments, whose steps would interleave."""
    found = getattr(env, "envs", None)
    envs = [each.unwrapped for each in found if isinstance(each, Env)] if isinstance(found, list | tuple) else []
    if len({id(each) for each in envs}) < len(envs):
        first = next(k for k, each in enumerate(envs) if any(each is other for other in envs[:k]))
        raise EnvironmentMismatchError(
            f"environment {first} of the vector environment is the same object as an earlier one, so that their steps "
            "would interleave: give functions that create a new environment in each call, such as "
            "lambda: gymnasium.make(name)"
        )


def _no_environment(env: object, kind: str) -> str:
    """Return a message about an object that is no environment."""
    if inspect.isclass(env):
        return f"the class {env.__name__} is not an environment: make one, {env.__name__}()"
    if isinstance(env, list | tuple):
        return (
            f"a {type(env).__name__} of {len(env)} objects is not an environment: several environments are one vector "
            "environment, gymnasium.vector.SyncVectorEnv([make, make, …]) of functions that make one, or "
            "birl.envs.make_env(name, num_envs)"
        )
    if inspect.isroutine(env):
        return f"the function {env.__name__} is not an environment: give the environment that it makes"
    if hasattr(env, "predict"):
        return (
            f"a {type(env).__name__}, which is not an environment, is in its place: the algorithm comes first, as "
            "in birl.metrics.evaluate(algo, env)"
        )
    if hasattr(env, "transition_count"):
        return f"a dataset ({type(env).__name__}) is not an environment: call fit(dataset) to learn from it"
    return f"an object of type {kind} is not an environment: give a gymnasium.Env or a gymnasium.vector.VectorEnv"


@functools.cache  # once for each class
def _warn_of_gym(kind: str) -> None:
    warnings.warn(
        f"{kind} is not a gymnasium.Env: it is used as an environment of gym 0.26, and its spaces are converted. gym "
        "is no longer maintained: create the environment with gymnasium instead",
        stacklevel=3,
    )


def single_spaces(env: object) -> tuple[Space[Any], Space[Any]]:
    """Return observation and action space of one environment of ``env``.

    Raises:
        EnvironmentMismatchError: if ``env`` has no spaces.
    """
    if inspect.isclass(env):
        number_of_environments(env)
    names = [f"{'single_' * hasattr(env, 'single_action_space')}{each}_space" for each in ("observation", "action")]
    try:
        observations, actions = (convert_space(getattr(env, name)) for name in names)
        for name, space in zip(names, (observations, actions), strict=True):
            _check_space(name, space)
        return observations, actions
    except AttributeError as error:
        number_of_environments(env)
        raise EnvironmentMismatchError(
            f"an environment of type {type(env).__module__}.{type(env).__qualname__} has no spaces ({error}): set its "
            "observation_space and action_space"
        ) from error


def _check_space(name: str, space: object) -> None:
    """Raise `EnvironmentMismatchError` for a number or shape instead of a space."""
    if isinstance(space, int | list | tuple | dict | str | None):
        box, discrete = f"gymnasium.spaces.Box(-1.0, 1.0, {space!r:.40})", f"gymnasium.spaces.Discrete({space!r:.40})"
        example = f", such as {discrete if isinstance(space, int) else box}" if isinstance(space, int | tuple) else ""
        raise EnvironmentMismatchError(
            f"{name} of the environment is {space!r:.80}; it must be a space of gymnasium.spaces{example}: correct the "
            "environment"
        )


def convert_space(space: object) -> Space[Any]:
    """Convert a space of gym to Gymnasium's; return any other space unchanged."""
    kind, own = type(space).__name__, cast(Space[Any], space)
    if isinstance(space, Space) or kind not in _GYM_SPACES:
        return own
    parts: Any = getattr(space, "spaces", None)
    if kind == "Dict":
        return spaces.Dict({name: convert_space(part) for name, part in parts.items()})
    if kind == "Tuple":
        return spaces.Tuple(map(convert_space, parts))
    options = {name: getattr(space, name) for name in _GYM_SPACES[kind] if hasattr(space, name)}
    converted: Space[Any] = getattr(spaces, kind)(**options)
    return converted


def environment_spec(env: object, keys: Sequence[str] | None = None, own: Tree = None) -> Spec:
    """Return the spec of networks for an environment.

    Args:
        env: environment or vector environment.
        keys: names of the parts of observations that networks read; all if ``None``.
        own: observations of existing networks; further parts are ignored.

    Raises:
        EnvironmentMismatchError: if no algorithm supports the spaces.
        ConfigError: if a key is not a part of the observations.
    """
    number_of_environments(env)
    observation_space, action_space = single_spaces(env)
    leaves = leaf_spaces(observation_space)
    with contextlib.suppress(ShapeError):  # the caller reports the mismatch
        leaves = match_parts(own, leaves)
    observations = observations_from_spaces(select_parts(leaves, None if own is not None else keys))
    try:
        actions = actions_from_space(action_space)
    except ActionError as error:
        raise EnvironmentMismatchError(str(error)) from error
    return Spec(observations, actions)
