"""Wrappers that turn observations into network inputs: channels first, stacked frames, joined goals."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from birl.checks import check
from birl.errors import ConfigError, EnvironmentMismatchError
from birl.spaces import actions_of
from birl.spaces.observations import check_mask
from birl.spaces.specs import is_channels_last
from birl.types import MASK, Array, Tree, tree_leaves, tree_map


def is_channel_last(space: Any) -> bool:
    """Whether a space holds images of bytes, without channels ``[H, W]`` or with channels last ``[H, W, C]``."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return False
    return len(space.shape) == 2 or is_channels_last(space.shape)


def with_channel_first(images: Array, dimensions: int) -> Array:
    """Images ``[…, H, W, C]`` as ``[…, C, H, W]``, or ``[…, H, W]`` as ``[…, 1, H, W]``.

    Args:
        images: one or more images.
        dimensions: of one of them: 2 or 3.
    """
    return images[..., None, :, :] if dimensions == 2 else np.moveaxis(images, -1, -3)


def wrappable(env: Any, wrapper: Any) -> Any:
    """``env``, if a wrapper of Gymnasium can be put around it.

    Raises:
        EnvironmentMismatchError: if it is something else; the message says what is needed.
    """
    if isinstance(env, gymnasium.Env):
        return env
    raise EnvironmentMismatchError(
        f"{type(wrapper).__name__} wraps a gymnasium.Env, not an object of type "
        f"{type(env).__module__}.{type(env).__qualname__}: make the environment with gymnasium.make, and wrap it "
        "before it is joined with others in a vector environment"
    )


class ChannelFirst(gymnasium.ObservationWrapper[Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Images ``[H, W, C]`` or ``[H, W]`` as ``[C, H, W]``, which encoders take.

    Args:
        env: environment whose observations are such images, or tuples or dicts with some. In these, arrays with three
            dimensions and channels last are taken for images, and others are left as they are.

    Raises:
        EnvironmentMismatchError: if there is no such image.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(wrappable(env, self))
        space: Any = env.observation_space
        self._dimensions = _image_dimensions(space)
        if isinstance(space, spaces.Box) and len(space.shape) in (2, 3):
            first = len(space.shape) == 3 and is_channels_last((*space.shape[1:], space.shape[0]))
            self._dimensions = 0 if first else len(space.shape)
        if not any(tree_leaves(self._dimensions)):
            raise EnvironmentMismatchError(
                f"ChannelFirst is for images [H, W, C] or [H, W], the observation space is {space}: leave it out"
            )
        self.observation_space = _channel_first_space(space, self._dimensions)

    def observation(self, observation: Any) -> Any:
        """The image, channels first."""
        return tree_map(_channel_first, self._dimensions, observation)


def _image_dimensions(space: Any) -> Tree:
    """For each array 3 if it is an image with its channels last, else 0."""
    if isinstance(space, spaces.Dict):
        return {name: _image_dimensions(part) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_image_dimensions, space))
    return 3 if isinstance(space, spaces.Box) and is_channels_last(space.shape) else 0


def _channel_first(dimensions: int, array: Any) -> Any:
    return with_channel_first(np.asarray(array), dimensions) if dimensions else array


def _channel_first_space(space: Any, dimensions: Tree) -> Any:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _channel_first_space(part, dimensions[name]) for name, part in space.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(map(_channel_first_space, space, dimensions))
    if not dimensions:
        return space
    low, high = (with_channel_first(bound, dimensions) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype.type)


class ActionMask(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Observations with the mask of actions from ``info["action_mask"]``, which algorithms then honour.

    They become ``{"observation": …, "action_mask": …}``, or get this leaf if they are dicts. Put it around other
    wrappers of observations.

    Args:
        env: environment with discrete actions, or such parts, whose ``info`` has ``action_mask`` ``[A]``: 1 for each
            action that is allowed, else 0. Of several choices, the options of each, one after the other.

    Raises:
        EnvironmentMismatchError: if no part of actions is discrete, observations have such a part already, or one comes
            without a mask that fits.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(wrappable(env, self))
        self._size, space = sum(actions_of(env.action_space).options), env.observation_space
        if not self._size:
            raise EnvironmentMismatchError(f"ActionMask is for discrete actions, but these are {env.action_space}")
        self._joins = isinstance(space, spaces.Dict)
        parts = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
        if MASK in parts:
            raise EnvironmentMismatchError(
                f"the observations have a part {MASK!r} already, which needs no wrapper: leave ActionMask out"
            )
        self.observation_space = spaces.Dict({**parts, MASK: spaces.MultiBinary(self._size)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(observation, info, ended=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Make a step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info, bool(terminated)), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: dict[str, Any], ended: bool) -> dict[str, Any]:
        mask = np.asarray(info.get(MASK, np.ones(self._size) if ended else ()))
        if mask.shape != (self._size,):
            given = f"one of shape {mask.shape}" if MASK in info else "none"
            raise EnvironmentMismatchError(
                f"info[{MASK!r}] must have shape ({self._size},), a number for each action, at every step; the "
                f"environment gave {given}"
            )
        check_mask({MASK: mask}, EnvironmentMismatchError, f"info[{MASK!r}]")
        parts = observation if self._joins else {"observation": observation}
        return {**parts, MASK: mask.astype(np.int8)}


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """The last ``num_stack`` observations, oldest first, joined on their first axis; zeros before an episode begins.

    Frames ``[C, H, W]`` (or vectors) become ``[num_stack * C, H, W]``, as `birl.dataset.FrameStackTransitionPicker`
    stacks them; frames ``[H, W]`` become ``[num_stack, H, W]``.

    Args:
        env: environment.
        num_stack: number of frames, at least 1.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], num_stack: int) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, num_stack=num_stack)
        super().__init__(wrappable(env, self))
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise ConfigError(
                f"the observation space of FrameStack is {space}; it must be a Box, one array: join the parts before, "
                "stack them in the environment, or remember by a recurrent encoder instead"
            )
        if is_channels_last(space.shape):
            raise EnvironmentMismatchError(
                f"FrameStack joins frames on their first axis, but the observation space {space} has channels last: "
                "wrap the environment in ChannelFirst first"
            )
        check("num_stack of FrameStack", num_stack, int, low=1)
        self._add_axis = len(space.shape) == 2
        self._frames: deque[Array] = deque(maxlen=num_stack)
        low, high = (self._join([bound] * num_stack) for bound in (space.low, space.high))
        # Zeros stand for what was before the episode.
        zero = np.zeros((), space.dtype)
        self.observation_space = spaces.Box(np.minimum(low, zero), np.maximum(high, zero), dtype=space.dtype.type)

    def _join(self, frames: Any) -> Array:
        return np.stack(frames) if self._add_axis else np.concatenate(frames)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        count = self._frames.maxlen or 1
        self._frames.extend([np.zeros_like(observation)] * (count - 1))
        self._frames.append(np.array(observation))
        return self._join(self._frames), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Make a step."""
        observation, *rest = self.env.step(action)
        self._frames.append(np.array(observation))
        return self._join(self._frames), *rest  # type: ignore[return-value]


class GoalConcatWrapper(gymnasium.ObservationWrapper[Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Observation and goal of a goal-conditioned environment as one vector, or as a tuple.

    Args:
        env: environment with a Dict observation space.
        observation_key: name of the observation.
        goal_key: name of the goal. A dict of vectors is joined in the order of its sorted names.
        tuple_observation: give ``(observation, goal)`` instead of one vector.

    Raises:
        EnvironmentMismatchError: if there is no such observation and goal.
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
        super().__init__(wrappable(env, self))
        self._keys, self._tuple = (observation_key, goal_key), tuple_observation
        space = env.observation_space
        if not isinstance(space, spaces.Dict) or not {observation_key, goal_key} <= set(space.spaces):
            raise EnvironmentMismatchError(
                f"the observation space {space} has no {observation_key!r} and {goal_key!r}: name those it has with "
                "observation_key= and goal_key="
            )
        boxes = [_box(space[key]) for key in self._keys]
        self.observation_space = spaces.Tuple(boxes) if tuple_observation else _joined(boxes)

    def observation(self, observation: Any) -> Any:
        """Observation and goal, which may have leading dimensions."""
        return with_goal(observation, *self._keys, self._tuple)


def with_goal(given: Any, observation_key: str, goal_key: str, as_tuple: bool) -> Any:
    """Observation and goal of a dict as one vector or as a tuple, as `GoalConcatWrapper` gives them."""
    first, goal = flat_goal(given[observation_key]), flat_goal(given[goal_key])
    return (first, goal) if as_tuple else np.concatenate([first, goal.astype(first.dtype)], axis=-1)


def flat_goal(goal: Any) -> Array:
    """A vector, or a dict of vectors joined in the order of their sorted names."""
    if isinstance(goal, dict):
        return np.concatenate([flat_goal(goal[key]) for key in sorted(goal)], axis=-1)
    return np.asarray(goal)


def _box(space: Any) -> spaces.Box:
    """The space of the results of `flat_goal`."""
    if isinstance(space, spaces.Dict):
        return _joined([_box(space[key]) for key in sorted(space.spaces)])
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise EnvironmentMismatchError(f"observations and goals must be vectors, one of them is {space}: flatten it")
    return space


def _joined(boxes: list[spaces.Box]) -> spaces.Box:
    low, high = np.concatenate([box.low for box in boxes]), np.concatenate([box.high for box in boxes])
    return spaces.Box(low, high, dtype=boxes[0].dtype.type)
