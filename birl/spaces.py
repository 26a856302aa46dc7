"""Action spaces, and what networks are built for. Observations are told by `birl.observations`.

A kind of actions is a value that answers for its actions: how data store them, what networks read and put out, how they
are drawn and checked. `Actions` lists the kinds, and `actions_of` reads them from environments. A third kind needs its
class here and heads in `birl.models`. If one ``size`` does not describe it, the places that store one (the arguments of
`create_impl`, `DatasetInfo`, files) must store more.

An action has three forms: data store it as ``leaf``; policies give it, and environments take it, in ``shape``; networks
have ``size`` outputs for it, and read as many numbers of one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import torch
from gymnasium import Env, Space, spaces
from gymnasium.vector import VectorEnv
from torch import Tensor

from birl.errors import ActionError, EnvironmentMismatchError, ShapeError
from birl.observations import as_observations, chosen, leaf_spaces, observations_of, picked, reads, shapes_of
from birl.types import FLOAT32_MAX, MASK, ActionSpace, Array, Leaf, Shape, Tree, tree_map, without_mask

_ROUNDING: Final = 1e-5
"""How far beyond a bound an action may lie, relative to the bound (or to 1)."""

_NO_BOUND: Final = 1e30
"""Bounds from here on are as good as none."""

MOST_CHANNELS: Final = 4
"""Channels of an image, if they come last. A longer last axis is a side of the image."""

_MOST_ACTIONS: Final = 1_000_000
"""Sizes above this are not inferred: a network needs an output for each action, so such numbers are likely ids."""


def all_finite(array: Array) -> bool:
    """Whether a float array holds no NaN, no infinity and nothing beyond the range of float32."""
    # A number that is not finite leaves no finite sum of squares; only a large sum needs a closer look.
    return bool(np.vdot(array, array) < FLOAT32_MAX) or bool((np.abs(array) <= FLOAT32_MAX).all())


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


def _first(rows: Array) -> int | None:
    """Index of the first of ``rows`` ``[n, …]`` that is not true throughout."""
    return None if rows.all() else int(np.flatnonzero(~rows.reshape(len(rows), -1).all(1))[0])


@dataclass(frozen=True)
class Continuous:
    """Vectors of ``size`` numbers: quantities, which can be scaled and clipped.

    Only an environment knows bounds, and networks do not depend on them: values with other bounds are equal.
    """

    size: int
    low: Any = field(default=np.float32(-np.inf), compare=False)
    high: Any = field(default=np.float32(np.inf), compare=False)

    kind: ClassVar = ActionSpace.CONTINUOUS
    discrete: ClassVar = False

    def __str__(self) -> str:
        return f"{self.size} action dimension{'s' * (self.size > 1)}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an action as policies give it."""
        return (self.size,)

    @property
    def leaf(self) -> Leaf:
        """Shape and dtype of a stored action."""
        return Leaf(self.shape, self.low.dtype)

    @property
    def bounds(self) -> tuple[Array, Array] | None:
        """Least and greatest action, if all dimensions have bounds."""
        bounded = (np.abs(self.low) < _NO_BOUND).all() and (np.abs(self.high) < _NO_BOUND).all()
        return (self.low, self.high) if bounded else None

    def takes(self, other: Actions) -> bool:
        """Whether networks for these actions can learn from data with ``other`` actions."""
        return self == other

    @staticmethod
    def stored(logged: Array) -> Array:
        """Logged actions ``[N, A]`` as they are stored: floats, in their own precision."""
        return logged if logged.dtype.kind == "f" else logged.astype(np.float32)

    @staticmethod
    def size_in(logged: Array) -> int:
        """Number of dimensions of logged actions."""
        return int(logged.shape[1]) if logged.ndim > 1 else 1

    def from_stored(self, stored: Tensor) -> Tensor:
        """Stored actions ``[..., *leaf.shape]`` as policies give them: ``[..., *shape]``."""
        return stored.to(torch.float32)

    def as_input(self, action: Tensor) -> Tensor:
        """Actions ``[..., *shape]`` as networks read them: ``[..., size]``."""
        return action

    def greedy(self, output: Any) -> Any:
        """The action ``[..., *shape]`` that a network's output ``[..., size]`` stands for."""
        return output

    def sample(self, n: int, generator: np.random.Generator, allowed: Array | None = None) -> Array:
        """Uniformly random actions ``[n, size]``; standard normal where there are no bounds."""
        bounded = np.isfinite(self.low) & np.isfinite(self.high)
        low, high = np.where(bounded, self.low, 0.0), np.where(bounded, self.high, 0.0)
        uniform = generator.uniform(low, high, size=(n, self.size))
        normal = np.clip(generator.standard_normal((n, self.size)), self.low, self.high)
        return np.where(bounded, uniform, normal).astype(np.float32)

    def clip(self, action: Array) -> Array:
        """Actions within the bounds."""
        return np.clip(action, self.low, self.high)

    def outside(self, action: Array) -> int | None:
        """Index of the first action that is not finite, or beyond the bounds by more than rounding."""
        if (action >= self.low).all() and (action <= self.high).all() and all_finite(action):
            return None  # the usual case
        inside = (action >= self.low - _ROUNDING * np.maximum(np.abs(self.low), 1.0)) & np.isfinite(action)
        return _first(inside & (action <= self.high + _ROUNDING * np.maximum(np.abs(self.high), 1.0)))

    @property
    def allowed(self) -> str:
        """The actions that are not `outside`, in words."""
        return f"finite numbers from {self.low.tolist()!s:.100} to {self.high.tolist()!s:.100}"


@dataclass(frozen=True)
class Discrete:
    """Integers from 0 to ``size - 1``: choices. See `Continuous` for the answers that both give."""

    size: int

    kind: ClassVar = ActionSpace.DISCRETE
    discrete: ClassVar = True
    shape: ClassVar[tuple[int, ...]] = ()
    leaf: ClassVar = Leaf((1,), np.dtype(np.int64))
    bounds: ClassVar = None

    def __str__(self) -> str:
        return f"{self.size} discrete action{'s' * (self.size > 1)}"

    def takes(self, other: Actions) -> bool:
        """Whether ``other`` has no further choices: data need not show all of them."""
        return isinstance(other, Discrete) and other.size <= self.size

    @staticmethod
    def stored(logged: Array) -> Array:
        """Whole numbers ``[N, 1]`` as integers.

        Raises:
            ActionError: for more than one number per step, and for numbers that are not whole.
        """
        if logged.shape[1] != 1:
            raise ActionError(
                f"the shape of discrete actions is {logged.shape}; it must be (N,) or (N, 1): give one number per step"
            )
        if logged.dtype.kind == "f" and not np.array_equal(logged, np.floor(logged)):
            wrong = logged[logged != np.floor(logged)][0]
            raise ActionError(f"action_space is DISCRETE but there is an action {wrong}: whole numbers are allowed")
        return logged if logged.dtype.kind in "iu" else logged.astype(np.int64)

    @staticmethod
    def size_in(logged: Array) -> int:
        """The largest logged action plus one.

        Raises:
            ActionError: if that were more actions than can be meant.
        """
        size = max(0, int(logged.max(initial=0))) + 1
        if size > _MOST_ACTIONS:
            raise ActionError(
                f"the largest discrete action is {size - 1}, but only {len(np.unique(logged))} values occur: renumber "
                f"the actions from 0 (np.unique(actions, return_inverse=True)[1]), or give action_size={size}"
            )
        return size

    def from_stored(self, stored: Tensor) -> Tensor:
        """int64 ``[...]`` from integers ``[..., 1]``."""
        return stored.select(-1, 0).to(torch.int64)

    def as_input(self, action: Tensor) -> Tensor:
        """One-hot vectors."""
        # one_hot() would look at the values on the host
        return (action.unsqueeze(-1) == torch.arange(self.size, device=action.device)).float()

    def greedy(self, output: Any) -> Any:
        """The choice with the largest output, the first of several."""
        return output.argmax(-1)

    def sample(self, n: int, generator: np.random.Generator, allowed: Array | None = None) -> Array:
        """Uniformly random int64 ``[n]``, of those that are ``allowed`` ``[n, size]``."""
        if allowed is None:
            return generator.integers(self.size, size=n)
        return np.where(allowed, generator.random((n, self.size)), -1.0).argmax(-1)

    def clip(self, action: Array) -> Array:
        """The choices themselves."""
        return action

    def outside(self, action: Array) -> int | None:
        """Index of the first number that is no choice."""
        return _first((action >= 0) & (action < self.size))

    @property
    def allowed(self) -> str:
        """The choices, in words."""
        return f"integers from 0 to {self.size - 1}"


Actions: TypeAlias = Continuous | Discrete

KINDS: Final[Mapping[ActionSpace, type[Actions]]] = {each.kind: each for each in (Continuous, Discrete)}
"""The kinds of actions by their names in arguments and files."""


@dataclass(frozen=True)
class Spec:
    """The observations and actions that networks are built for.

    Attributes:
        observations: a leaf of `birl.observations`, or a tuple or dict of them; given as `as_observations` takes them,
            for example as the shape ``(17,)``.
        actions: what actions are.
    """

    observations: Tree
    actions: Actions

    def __post_init__(self) -> None:
        object.__setattr__(self, "observations", as_observations(self.observations))
        mask = self.data_shape[MASK] if self.masked else (self.actions.size,)
        if mask != (self.actions.size,):
            raise ShapeError(
                f"the mask of actions, {MASK!r} of the observations, has shape {mask}; it must have "
                f"{(self.actions.size,)}, a number for each action"
            )
        if self.encoder_shape == {}:
            raise ShapeError(f"the observations hold nothing but {MASK!r}: give something to choose actions by")

    @functools.cached_property
    def masked(self) -> bool:
        """Whether observations say which actions are allowed; see `birl.types.MASK`."""
        return self.actions.discrete and isinstance(self.observations, dict) and MASK in self.observations

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
    if not actions.discrete and np.dtype(action_space.dtype).kind != "f":
        raise EnvironmentMismatchError(
            f"the action space {action_space} holds {action_space.dtype}; continuous actions must be floating-point "
            "numbers: wrap the environment in gymnasium.wrappers.TransformAction, with a float32 Box"
        )
    return Spec(observations, actions)


def actions_of(space: Any) -> Actions:
    """The actions of an environment's action space (of any library), with its bounds.

    Raises:
        ActionError: for spaces other than Discrete(n) and Box of shape (A,).
    """
    kinds = {each.__name__ for each in type(space).__mro__}
    if "Discrete" in kinds:
        if getattr(space, "start", 0) != 0:
            raise ActionError(
                f"the action space {space} starts at {space.start}; actions must be counted from 0: wrap the "
                "environment in gymnasium.wrappers.TransformAction"
            )
        return Discrete(int(space.n))
    if "Box" in kinds and len(space.shape) == 1:
        dtype = space.dtype if space.dtype.kind == "f" else np.float32
        return Continuous(int(space.shape[0]), np.asarray(space.low, dtype), np.asarray(space.high, dtype))
    raise ActionError(
        f"the action space is {space}; it must be Discrete(n) or a one-dimensional Box: wrap the environment in "
        "gymnasium.wrappers.TransformAction"
    )


def sample_actions(space: Space[Any], n: int, generator: np.random.Generator) -> Array:
    """Uniformly random actions of one environment's action space (standard normal where it has no bounds).

    Args:
        space: Discrete or one-dimensional Box.
        n: number of actions.
        generator: source of randomness.

    Returns:
        int64 ``[n]`` or float32 ``[n, action_size]``.
    """
    return actions_of(space).sample(n, generator)


def allowed_actions(actions: Actions, observation: Tree) -> Array | None:
    """Bool ``[n, A]``: the discrete actions that observations ``[n, …]`` allow; ``None`` if they have no mask.

    Raises:
        EnvironmentMismatchError: if an observation allows none.
    """
    if not (actions.discrete and isinstance(observation, dict) and MASK in observation):
        return None
    allowed: Array = np.asarray(observation[MASK]) != 0
    some: Array = np.asarray(allowed.any(-1))
    index = _first(some)
    if index is not None:
        raise EnvironmentMismatchError(
            f"environment {index} allows no action: its {MASK!r} is {observation[MASK][index].tolist()!s:.80}, but the "
            "episode goes on; a mask must have at least one 1 unless the episode has ended"
        )
    return allowed


def check_actions(actions: Actions, given: Any, allowed: Array | None = None) -> None:
    """Check that actions lie in an environment's space, up to rounding.

    Args:
        actions: what the environment takes.
        given: ``[n, *actions.shape]``.
        allowed: bool ``[n, A]``, of discrete actions; ``None`` if all are.

    Raises:
        ActionError: naming the first action that is NaN, outside of the space or not allowed.
    """
    values = np.asarray(given)
    index = actions.outside(values)
    if index is not None:
        scaler = "" if actions.discrete else "set action_scaler=birl.preprocessing.MinMaxActionScaler(), or "
        raise ActionError(
            f"the action {values[index].tolist()!s:.100} for environment {index} is not in its action space; allowed "
            f"are {actions.allowed}: {scaler}use an explorer whose actions are allowed"
        )
    if allowed is not None:
        index = _first(np.take_along_axis(allowed, values.reshape(-1, 1), 1)[:, 0])
        if index is not None:
            raise ActionError(
                f"the action {values[index]} for environment {index} is masked; allowed are "
                f"{np.flatnonzero(allowed[index]).tolist()!s:.80}: use an explorer that reads the mask of actions, "
                f"observation[{MASK!r}]"
            )
