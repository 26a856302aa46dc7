"""Wrappers of observations for networks: channels first, masks of actions, stacked frames, concatenated goals."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeGuard, cast

import gymnasium
import numpy as np
from gymnasium import Space, spaces

from birl.checks import check, named_arguments
from birl.errors import ConfigError, EnvironmentMismatchError
from birl.spaces import actions_from_space
from birl.spaces.observations import check_action_mask
from birl.spaces.specs import is_channels_last
from birl.types import MASK, Array, Tree, tree_leaves, tree_map

Action: TypeAlias = Any  # of the type of the wrapped environment


def is_channel_last(space: object) -> TypeGuard[spaces.Box]:
    """Return whether a space has uint8 images, without channels ``[H, W]`` or with channels last ``[H, W, C]``."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return False
    return len(space.shape) == 2 or is_channels_last(space.shape)


def to_channel_first(images: Array, dimensions: int) -> Array:
    """Convert images ``[…, H, W, C]`` to ``[…, C, H, W]``, or ``[…, H, W]`` to ``[…, 1, H, W]``.

    Args:
        images: one or more images.
        dimensions: number of dimensions of one image, 2 or 3.
    """
    return images[..., None, :, :] if dimensions == 2 else np.moveaxis(images, -1, -3)


def check_wrappable(env: object, wrapper: object) -> gymnasium.Env[Any, Any]:
    """Return ``env`` if a wrapper of Gymnasium can wrap it.

    Raises:
        EnvironmentMismatchError: if it is not a ``gymnasium.Env``.
    """
    if isinstance(env, gymnasium.Env):
        return env
    raise EnvironmentMismatchError(
        f"{type(wrapper).__name__} wraps a gymnasium.Env, not an object of type "
        f"{type(env).__module__}.{type(env).__qualname__}: create the environment with gymnasium.make, and wrap "
        "it before you put it into a vector environment"
    )


class ChannelFirst(gymnasium.ObservationWrapper[Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Wrapper that converts images ``[H, W, C]`` or ``[H, W]`` to ``[C, H, W]``, which encoders require.

    Args:
        env: environment whose observations are such images, or tuples or dicts that contain some. There, only arrays
            with three dimensions and channels last count as images.

    Raises:
        EnvironmentMismatchError: if there is no such image.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(check_wrappable(env, self))
        space = env.observation_space
        self._dimensions = _image_dimensions(space)
        if isinstance(space, spaces.Box) and len(space.shape) in (2, 3):
            first = len(space.shape) == 3 and is_channels_last((*space.shape[1:], space.shape[0]))
            self._dimensions = 0 if first else len(space.shape)
        if not any(tree_leaves(self._dimensions)):
            raise EnvironmentMismatchError(
                f"the observation space of ChannelFirst is {space}; it must have images [H, W, C] or [H, W]: "
                "leave it out"
            )
        self.observation_space = _channel_first_space(space, self._dimensions)

    def observation(self, observation: Tree) -> Tree:
        """Convert the images."""
        return tree_map(_channel_first, self._dimensions, observation)


def _image_dimensions(space: object) -> Tree:
    """Return 3 for each image with channels last, 0 for any other array."""
    if isinstance(space, spaces.Dict):
        return {name: _image_dimensions(part) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_image_dimensions, space))
    return 3 if isinstance(space, spaces.Box) and is_channels_last(space.shape) else 0


def _channel_first(dimensions: int, array: Array) -> Array:
    return to_channel_first(np.asarray(array), dimensions) if dimensions else array


def _channel_first_space(space: Space[Any], dimensions: Tree) -> Space[Any]:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _channel_first_space(part, dimensions[name]) for name, part in space.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(map(_channel_first_space, space, dimensions))
    if not dimensions or not isinstance(space, spaces.Box):
        return space
    low, high = (to_channel_first(bound, dimensions) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype.type)


def find_mask_method(env: object) -> Callable[[], object] | None:
    """Return the method ``action_masks`` of an environment or of one that it wraps; ``None`` if there is none."""
    while env is not None:
        own = getattr(env, "__dict__", {})
        if callable(own.get("action_masks", getattr(type(env), "action_masks", None))):
            return cast(Callable[[], object], getattr(env, "action_masks"))  # noqa: B009  not every class has one
        env = own.get("env")
    return None


class ActionMask(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Wrapper that adds the environment's mask of actions to observations, where algorithms read it.

    The mask is ``info["action_mask"]``, or the result of the environment's method ``action_masks()``, as in
    Stable-Baselines3's contrib package. Environments whose observations are dicts with a part ``action_mask``, as in
    PettingZoo, need no wrapper.

    Observations become ``{"observation": …, "action_mask": …}``; dict observations get the part ``action_mask``. This
    must be the outermost wrapper of observations.

    Args:
        env: environment with discrete actions or discrete parts of actions. Its mask ``[A]`` has 1 for each allowed
            action, else 0. The masks of several choices are concatenated.

    Raises:
        EnvironmentMismatchError: if no part of the actions is discrete, observations already have a mask, or there is
            no valid mask.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(check_wrappable(env, self))
        self._size, space = sum(actions_from_space(env.action_space).options), env.observation_space
        if not self._size:
            raise EnvironmentMismatchError(
                f"the action space of ActionMask is {env.action_space}; it must have a discrete part: leave "
                "ActionMask out"
            )
        self._method, self._is_dict = find_mask_method(env), isinstance(space, spaces.Dict)
        parts = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
        if MASK in parts:
            raise EnvironmentMismatchError(f"the observations already have a part {MASK!r}: leave ActionMask out")
        self.observation_space = spaces.Dict({**parts, MASK: spaces.MultiBinary(self._size)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._add_mask(observation, info, terminated=False), info

    def step(self, action: Action) -> tuple[Tree, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._add_mask(observation, info, bool(terminated)), reward, terminated, truncated, info

    def _add_mask(self, observation: Tree, info: dict[str, Any], terminated: bool) -> dict[str, Any]:
        name = f"info[{MASK!r}]" if MASK in info or self._method is None else "action_masks()"
        given: Any = info.get(MASK)
        if given is None and not terminated:
            given = () if self._method is None else self._method()
        mask = np.ones(self._size) if given is None else np.asarray(given)
        mask = mask.reshape(-1) if mask.size == self._size else mask
        if mask.shape != (self._size,):
            described = "none" if mask.shape == (0,) else f"one of shape {mask.shape}"
            raise EnvironmentMismatchError(
                f"{name} must have shape ({self._size},), a number for each action, at every step; the environment "
                f"returned {described}: correct it"
            )
        check_action_mask({MASK: mask}, EnvironmentMismatchError, name)
        parts = observation if self._is_dict else {"observation": observation}
        return {**parts, MASK: mask.astype(np.int8)}


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Wrapper that stacks the last ``num_stack`` observations on their first axis, oldest first.

    Frames ``[C, H, W]`` (or vectors) become ``[num_stack * C, H, W]``, as with
    `birl.dataset.FrameStackTransitionPicker`; frames ``[H, W]`` become ``[num_stack, H, W]``.

    Args:
        env: environment.
        num_stack: number of frames, at least 1.
        padding_type: what fills the stack at the start of an episode: ``"zero"``, as in
            `birl.dataset.FrameStackTransitionPicker`, or ``"reset"``, the first frame, as in OpenAI's baselines and
            ``gymnasium.wrappers.FrameStackObservation``.
    """

    @named_arguments
    def __init__(self, env: gymnasium.Env[Any, Any], num_stack: int, padding_type: str = "zero") -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, num_stack=num_stack, padding_type=padding_type)
        super().__init__(check_wrappable(env, self))
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise ConfigError(
                f"the observation space of FrameStack is {space}; it must be a Box: concatenate the parts first, "
                "stack them in the environment, or use a recurrent encoder instead"
            )
        if is_channels_last(space.shape):
            raise EnvironmentMismatchError(
                f"the observation space of FrameStack is {space}; it must have channels first: wrap the environment in "
                "ChannelFirst first"
            )
        check("num_stack of FrameStack", num_stack, int, low=1)
        self.padding_type = check("padding_type", padding_type, str, choices=("zero", "reset"))
        self._repeats = padding_type == "reset"
        self._add_axis = len(space.shape) == 2
        self._frames: deque[Array] = deque(maxlen=num_stack)
        low, high = (self._stack([bound] * num_stack) for bound in (space.low, space.high))
        if not self._repeats:
            low, high = np.minimum(low, 0).astype(low.dtype), np.maximum(high, 0).astype(high.dtype)
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)

    def _stack(self, frames: Sequence[Array] | deque[Array]) -> Array:
        return np.stack(frames) if self._add_axis else np.concatenate(frames)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        count = self._frames.maxlen or 1
        first = np.array(observation)
        self._frames.extend([first if self._repeats else np.zeros_like(first)] * (count - 1))
        self._frames.append(first)
        return self._stack(self._frames), info

    def step(self, action: Action) -> tuple[Tree, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        observation, *rest = self.env.step(action)
        self._frames.append(np.array(observation))
        return self._stack(self._frames), *rest  # type: ignore[return-value]


class GoalConcatWrapper(gymnasium.ObservationWrapper[Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Wrapper that concatenates observation and goal of a goal-conditioned environment, or returns them as a tuple.

    Args:
        env: environment with a Dict observation space.
        observation_key: name of the observation.
        goal_key: name of the goal. A dict of vectors is concatenated in the order of its sorted names.
        tuple_observation: return ``(observation, goal)`` instead of one vector.

    Raises:
        EnvironmentMismatchError: if the observation or the goal is missing.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        observation_key: str = "observation",
        goal_key: str = "desired_goal",
        tuple_observation: bool = False,
    ) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(
            self, observation_key=observation_key, goal_key=goal_key, tuple_observation=tuple_observation
        )
        super().__init__(check_wrappable(env, self))
        self._keys, self._tuple = (observation_key, goal_key), tuple_observation
        space = env.observation_space
        if not isinstance(space, spaces.Dict) or not {observation_key, goal_key} <= set(space.spaces):
            raise EnvironmentMismatchError(
                f"the observation space {space} must have {observation_key!r} and {goal_key!r}: give their names as "
                "observation_key= and goal_key="
            )
        boxes = [_flatten_goal_space(space[key]) for key in self._keys]
        self.observation_space = spaces.Tuple(boxes) if tuple_observation else _concatenate(boxes)

    def observation(self, observation: dict[str, Tree]) -> Tree:
        """Concatenate observation and goal, which may have leading dimensions."""
        return concatenate_goal(observation, *self._keys, self._tuple)


def concatenate_goal(given: dict[str, Tree], observation_key: str, goal_key: str, as_tuple: bool) -> Tree:
    """Concatenate observation and goal of a dict, or return them as a tuple, as `GoalConcatWrapper` does."""
    first, goal = flatten_goal(given[observation_key]), flatten_goal(given[goal_key])
    return (first, goal) if as_tuple else np.concatenate([first, goal.astype(first.dtype)], axis=-1)


def flatten_goal(goal: Tree) -> Array:
    """Return a vector, or concatenate a dict of vectors in the order of their sorted names."""
    if isinstance(goal, dict):
        return np.concatenate([flatten_goal(goal[key]) for key in sorted(goal)], axis=-1)
    return np.asarray(goal)


def _flatten_goal_space(space: Space[Any]) -> spaces.Box:
    """Return the space of the results of `flatten_goal`."""
    if isinstance(space, spaces.Dict):
        return _concatenate([_flatten_goal_space(space[key]) for key in sorted(space.spaces)])
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise EnvironmentMismatchError(
            f"the space of an observation or goal is {space}; it must be a vector: flatten it"
        )
    return space


def _concatenate(boxes: list[spaces.Box]) -> spaces.Box:
    low, high = np.concatenate([box.low for box in boxes]), np.concatenate([box.high for box in boxes])
    return spaces.Box(low, high, dtype=boxes[0].dtype.type)
