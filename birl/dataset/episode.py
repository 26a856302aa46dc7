"""Episodes, transitions, partial trajectories and their signatures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from birl.checks import check
from birl.dataset.validation import (
    actions_shown,
    as_array,
    as_column,
    as_flags,
    check_finite,
    check_length,
    prepare_actions,
)
from birl.errors import ConfigError, EmptyDataError, ShapeError
from birl.spaces import Actions, actions_told
from birl.spaces.observations import as_observations, observations_in, picked, wider
from birl.types import (
    ActionSpace,
    Array,
    Leaf,
    Observation,
    Shape,
    Tree,
    as_parts,
    parts_like,
    tree_leaves,
    tree_map,
)


def _leaves(dtype: Any, shape: Any) -> Tree:
    if isinstance(shape, Mapping):
        return {str(key): _leaves(dtype[key], shape[key]) for key in shape}
    if all(isinstance(size, int | np.integer) for size in shape):
        return Leaf(tuple(int(size) for size in shape), np.dtype(dtype))
    return tuple(_leaves(*pair) for pair in zip(dtype, shape, strict=True))


@dataclass(frozen=True)
class Signature:
    """Dtypes and shapes of observations, actions or rewards, without the step dimension.

    Attributes:
        dtype: list with one entry for an array, one for each item of a tuple; a dict for dict observations.
        shape: the same for shapes.
    """

    dtype: Any
    shape: Any

    def __post_init__(self) -> None:
        try:
            tree = _leaves(self.dtype, self.shape)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"dtype={self.dtype!r:.80} and shape={self.shape!r:.80} make no signature ({error}): give lists with "
                "one dtype and one shape for each array, such as [np.float32] and [(17,)], or dicts of them"
            ) from error
        if isinstance(tree, tuple) and len(tree) == 1:
            tree = tree[0]
        for name, read in (("dtype", lambda leaf: leaf.dtype), ("shape", lambda leaf: leaf.shape)):
            value = tree_map(read, tree)
            if not isinstance(value, dict):
                value = list(value) if isinstance(tree, tuple) else [value]
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_tree", tree)

    @property
    def tree(self) -> Tree:
        """Tree of `Leaf`."""
        return self.__dict__["_tree"]

    @property
    def tree_shape(self) -> Shape:
        """One shape for an array, else a tuple or dict of shapes."""
        return tree_map(lambda leaf: leaf.shape, self.tree)

    def sample(self) -> Any:
        """Random arrays, uniform in [0, 1) before they are cast to their dtypes, in the form of `shape`."""
        arrays = tree_map(lambda leaf: torch.rand(leaf.shape).numpy().astype(leaf.dtype), self.tree)
        if isinstance(arrays, dict):
            return arrays
        return list(arrays) if isinstance(arrays, tuple) else [arrays]

    @classmethod
    def of(cls, value: Tree, *, skip: int = 0) -> Signature:
        """Signature of a tree of arrays (or of `Leaf`), leaving out the first ``skip`` dimensions."""
        if isinstance(value, tuple) and len(value) < 2:
            raise ShapeError("an observation is a tuple of fewer than two arrays: give the array itself")
        dtype = tree_map(lambda leaf: leaf.dtype, value)
        shape = tree_map(lambda leaf: tuple(leaf.shape[skip:]), value)
        return cls(dtype, shape) if isinstance(value, tuple | dict) else cls([dtype], [shape])

    def as_row(self) -> Signature:
        """The signature of actions or rewards, which are rows of numbers: a scalar counts as ``(1,)``."""
        leaf = self.tree
        if not isinstance(leaf, Leaf) or len(leaf.shape) > 1:
            raise ShapeError(f"actions and rewards have the shape {self.shape}; it must be [(size,)]: flatten them")
        return Signature([leaf.dtype], [leaf.shape or (1,)])


@dataclass(frozen=True)
class DatasetInfo:
    """Signatures, action space and action size of a dataset.

    Attributes:
        observations: what observations are, see `birl.spaces.observations`, in the order of the signature; by
            default numbers.
    """

    observation_signature: Signature
    action_signature: Signature
    reward_signature: Signature
    action_space: ActionSpace
    action_size: Any
    observations: Tree = None

    def __post_init__(self) -> None:
        signature, found = self.observation_signature, self.observations
        # spaces sort the parts of dicts, data need not; files tell them apart by their order
        found = as_observations(signature.tree_shape) if found is None else picked(signature.tree, found)
        object.__setattr__(self, "observations", found)

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[EpisodeBase],
        action_space: ActionSpace | None = None,
        action_size: Any = None,
        observation_space: Any = None,
    ) -> DatasetInfo:
        """Find signatures of episodes, and what their observations and actions are if that is not given."""
        check_episodes(episodes)
        if not episodes:
            raise EmptyDataError("there are no episodes to read: give one or more")
        first = episodes[0]
        actions, what = prepare_actions(first.actions, action_space, action_size)
        if action_size is None and what.discrete:  # all of them may be needed to see every discrete action
            found = (actions_shown(episode.actions, what.kind) for episode in episodes)
            what = functools.reduce(lambda own, other: own.wider(other), found)
        action, reward = Signature.of(actions, skip=1).as_row(), first.reward_signature.as_row()
        observations = as_observations(observation_space) if observation_space is not None else None
        if observations is None:
            finals = (getattr(episode, "final_observation", None) for episode in episodes)
            rows = [episode.observations for episode in episodes]
            rows += [tree_map(lambda x: np.asarray(x)[None], final) for final in finals if final is not None]
            observations = functools.reduce(wider, map(observations_in, rows))
        return cls(first.observation_signature, action, reward, what.kind, what.told, observations)

    @functools.cached_property
    def actions(self) -> Actions:
        """What actions are."""
        return actions_told(self.action_size, self.action_space)


@runtime_checkable
class EpisodeBase(Protocol):
    """The interface of episodes.

    ``truncated`` and ``final_observation`` are read if present; an episode without them that is not terminated
    counts as truncated with an unknown final observation.
    """

    @property
    def observations(self) -> Observation:
        """Observations ``[T, …]``."""

    @property
    def actions(self) -> Array:
        """Actions ``[T, A]`` or ``[T, 1]``."""

    @property
    def rewards(self) -> Array:
        """Rewards ``[T, 1]``."""

    @property
    def terminated(self) -> bool:
        """Whether the environment ended the episode."""

    @property
    def observation_signature(self) -> Signature:
        """Signature of one observation."""

    @property
    def action_signature(self) -> Signature:
        """Signature of one action."""

    @property
    def reward_signature(self) -> Signature:
        """Signature of one reward."""

    def size(self) -> int:
        """Number of steps."""

    def compute_return(self) -> float:
        """Sum of rewards."""

    @property
    def transition_count(self) -> int:
        """Number of steps whose next observation is known."""


def check_episodes(episodes: Any) -> None:
    """Raise `ConfigError` unless ``episodes`` are a sequence of episodes."""
    check("episodes", episodes, Sequence)  # type: ignore[type-abstract]
    for each in episodes:
        if not isinstance(each, Episode):  # others are asked for each attribute
            check("episode", each, EpisodeBase, ": make one with birl.dataset.Episode(…)")  # type: ignore[type-abstract]


def parts_as_tuple(name: str, value: Any, steps: int) -> Any:
    """Turn a list of a tuple observation's parts, d3rlpy's form, into a tuple; leave anything else.

    Parts are arrays with one row for each of the ``steps`` steps; a row more is for the final observation.

    Raises:
        ShapeError: if it could be either.
    """
    if not isinstance(value, list) or len(value) < 2:
        return value
    if not all(isinstance(item, np.ndarray) and item.ndim for item in value):
        return value
    shapes, rows = {item.shape for item in value}, (steps, steps + 1)
    are_parts = all(len(item) in rows for item in value)
    if len(value) not in rows:
        return tuple(value) if are_parts or len(shapes) > 1 else value
    if are_parts and len(shapes) > 1:  # which no one array could hold
        return tuple(value)
    if are_parts and value[0].ndim > 1:
        raise ShapeError(
            f"{name} are a list of {len(value)} arrays of shape {value[0].shape} for {steps} steps, which could be one "
            f"for each step or the parts of tuples: give a tuple of the parts, tuple({name}), or for steps "
            f"np.stack({name})"
        )
    return value


class _Signed:
    """Signatures of one observation, action and reward."""

    _names, _skip = ("observations", "actions", "rewards"), 1  # where they are, after how many dimensions

    @property
    def observation_signature(self) -> Signature:
        """Signature of one observation."""
        return self._signature(0)

    @property
    def action_signature(self) -> Signature:
        """Signature of one action."""
        return self._signature(1)

    @property
    def reward_signature(self) -> Signature:
        """Signature of one reward."""
        return self._signature(2)

    def _signature(self, which: int) -> Signature:
        return Signature.of(getattr(self, self._names[which]), skip=self._skip)


@dataclass
class Episode(_Signed):
    """One episode.

    Attributes:
        observations: tree of arrays ``[T, …]``. ``[T + 1, …]`` may be given: the last row becomes
            ``final_observation``. The parts of a tuple may be given as a list.
        actions: ``[T, A]``, or ``[T, 1]`` integers. ``[T]`` is given a last dimension.
        rewards: ``[T, 1]``. ``[T]`` is given a last dimension.
        terminated: the environment ended the episode: no value after the last step.
        truncated: it was cut (a time limit, the end of a log): bootstrapping goes on. False with ``terminated`` false
            means still running.
        final_observation: tree ``[…]`` observed after the last action, ``None`` if unknown.
        extra: further arrays ``[T, …]`` by name.

    Raises:
        ShapeError: if lengths or dtypes do not fit.
        EmptyDataError: if there is no step.
    """

    observations: Observation
    actions: Array
    rewards: Array
    terminated: bool
    truncated: bool = field(default=False, kw_only=True)
    final_observation: Observation = field(default=None, kw_only=True)
    extra: dict[str, Array] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.rewards = as_column("rewards", self.rewards)
        actions = as_array("actions", self.actions)
        self.actions = actions[:, None] if actions.ndim == 1 else actions
        observations = parts_as_tuple("observations", self.observations, len(self.rewards))
        self.observations = tree_map(lambda leaf: np.atleast_1d(as_array("observations", leaf)), observations)
        self.final_observation = parts_like(self.final_observation, observations)
        self.terminated = _flag("terminated", self.terminated)
        self.truncated = _flag("truncated", self.truncated) and not self.terminated
        steps = len(self.rewards)
        lengths = {len(leaf) for leaf in tree_leaves(self.observations)}
        if self.final_observation is not None:
            self.final_observation = tree_map(lambda leaf: as_array("final_observation", leaf), self.final_observation)
        elif lengths == {steps + 1}:
            self.final_observation = tree_map(lambda leaf: leaf[steps], self.observations)
            self.observations = tree_map(lambda leaf: leaf[:steps], self.observations)
        check_length(actions=self.actions, rewards=self.rewards, observations=self.observations)

    def size(self) -> int:
        """Number of steps."""
        return len(self.rewards)

    def __len__(self) -> int:
        return len(self.rewards)

    def __repr__(self) -> str:
        end = "terminated" if self.terminated else "truncated" if self.truncated else "running"
        shapes = tree_map(np.shape, self.observations)
        return (
            f"<{type(self).__name__}: {self.size()} steps, {end}, return {self.compute_return():.6g}, "
            f"observations {shapes}, actions {self.actions.shape}>"
        )

    def compute_return(self) -> float:
        """Sum of rewards."""
        return float(np.sum(self.rewards))

    @property
    def transition_count(self) -> int:
        """Number of steps whose next observation is known (or not needed, at a terminal)."""
        return self.size() - (0 if self.terminated or self.final_observation is not None else 1)

    def check_finite(self) -> None:
        """Raise `NonFiniteError` if there is NaN or infinity."""
        for name in ("observations", "actions", "rewards", "final_observation"):
            if getattr(self, name) is not None:
                check_finite(name, getattr(self, name))

    def serialize(self) -> dict[str, Any]:
        """The episode as a dict of arrays and flags."""
        return {item.name: getattr(self, item.name) for item in fields(Episode)}

    @classmethod
    def deserialize(cls, serialized: dict[str, Any]) -> Episode:
        """Inverse of `serialize`; ``truncated``, ``final_observation`` and ``extra`` may be missing."""
        given = {item.name: serialized[item.name] for item in fields(Episode) if item.name in serialized}
        return cls(**{"truncated": not serialized["terminated"], **given})


@dataclass(frozen=True)
class Transition(_Signed):
    """One transition, of one or several steps.

    Attributes:
        observation: tree ``[…]``.
        action: ``[A]`` or ``[1]``.
        reward: ``[1]``, the discounted sum over ``interval`` steps.
        next_observation: tree ``[…]``, ``interval`` steps later.
        terminal: 1.0 if the environment ended the episode within these steps, else 0.0.
        interval: number of steps.
        next_action: ``[A]`` or ``[1]``, ``interval`` steps later; zeros after the end of the episode. ``None`` to take
            it from the dataset, where an algorithm asks for it.
        rewards_to_go: ``[L, 1]``, rewards from this step to the end of the episode; ``None`` likewise.
    """

    _names, _skip = ("observation", "action", "reward"), 0
    observation: Observation
    action: Array
    reward: Array
    next_observation: Observation
    terminal: float
    interval: int
    next_action: Array | None = field(default=None, kw_only=True)
    rewards_to_go: Array | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("observation", "next_observation"):
            object.__setattr__(self, name, as_parts(getattr(self, name)))


@dataclass(frozen=True)
class PartialTrajectory(_Signed):
    """A window of one episode, padded with zeros at the front to ``length`` steps.

    Attributes:
        observations: tree ``[L, …]``.
        actions: ``[L, A]`` or ``[L, 1]``.
        rewards: ``[L, 1]``.
        returns_to_go: ``[L, 1]``: sum of rewards from this step, it included, to the end of the episode.
        terminals: ``[L, 1]``.
        timesteps: int ``[L]``: 1 for the first step of an episode; 0 is padding.
        masks: ``[L]``: 0 is padding.
        length: L.
    """

    observations: Observation
    actions: Array
    rewards: Array
    returns_to_go: Array
    terminals: Array
    timesteps: Array
    masks: Array
    length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "observations", as_parts(self.observations))

    def __len__(self) -> int:
        return self.length

    def get_transition_count(self) -> int:
        """Number of real steps with a next observation inside the window, or a terminal."""
        steps = int(self.masks.sum())
        return steps if steps and self.terminals[-1, 0] else steps - 1


def _flag(name: str, value: Any) -> bool:
    return value if isinstance(value, bool) else bool(as_flags(name, [value])[0])


def create_zero_observation(observation: Observation) -> Observation:
    """Zeros like an observation."""
    return _like(observation, np.zeros_like)


def batch_pad_array(array: Array, pad_size: int) -> Array:
    """Put ``pad_size`` rows of zeros before the rows of ``array``, keeping its dtype."""
    array = np.asarray(array)
    return np.concatenate([np.zeros((pad_size, *array.shape[1:]), array.dtype), array])


def batch_pad_observations(observations: Observation, pad_size: int) -> Observation:
    """`batch_pad_array` for every leaf."""
    return _like(observations, lambda leaf: batch_pad_array(leaf, pad_size))


def _like(observation: Observation, function: Callable[[Array], Array]) -> Observation:
    """``function`` of every leaf; a list of arrays, d3rlpy's form of several, for such a list."""
    parts = as_parts(observation)
    made = tree_map(function, parts)
    return made if parts is observation else list(made)


def stack_trees(trees: Iterable[Tree]) -> Tree:
    """Stack trees of arrays leaf by leaf along a new first dimension."""
    first, *rest = trees
    return tree_map(lambda *leaves: np.stack(leaves), first, *rest)
