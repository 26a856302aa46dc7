"""Episodes, transitions, partial trajectories and their signatures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from birl.checks import check
from birl.dataset.validation import (
    as_column,
    as_flags,
    check_finite,
    check_length,
)
from birl.errors import ConfigError, ShapeError
from birl.spaces import Actions
from birl.spaces.conversion import Columns, column_names, to_array
from birl.spaces.observations import columns_of, order_actions, order_tables
from birl.types import (
    Array,
    ArraySpec,
    Observation,
    Shape,
    Tree,
    as_parts,
    parts_like,
    tree_leaves,
    tree_map,
)


def _signature_tree(dtype: Any, shape: Any) -> Tree:
    if isinstance(shape, Mapping):
        return {str(key): _signature_tree(dtype[key], shape[key]) for key in shape}
    if all(isinstance(size, int | np.integer) for size in shape):
        return ArraySpec(tuple(int(size) for size in shape), np.dtype(dtype))
    return tuple(_signature_tree(*pair) for pair in zip(dtype, shape, strict=True))


@dataclass(frozen=True)
class Signature:
    """Dtypes and shapes of observations, actions or rewards, without the step dimension.

    Attributes:
        dtype: list of one dtype for an array, or of one for each item of a tuple; a dict for dict observations.
        shape: shapes in the same form.
    """

    dtype: Any
    shape: Any

    def __post_init__(self) -> None:
        try:
            tree = _signature_tree(self.dtype, self.shape)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"dtype={self.dtype!r:.80} and shape={self.shape!r:.80} are no signature ({error}): give lists with "
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
        """Shapes and dtypes as a tree of `ArraySpec`."""
        return self.__dict__["_tree"]

    @property
    def tree_shape(self) -> Shape:
        """The shape of an array, else a tuple or dict of shapes."""
        return tree_map(lambda leaf: leaf.shape, self.tree)

    def sample(self) -> list[Array] | dict[str, Tree]:
        """Return random arrays, uniform in [0, 1) before the cast to their dtypes, in the form of `shape`."""
        arrays = tree_map(lambda leaf: torch.rand(leaf.shape).numpy().astype(leaf.dtype), self.tree)
        if isinstance(arrays, dict):
            return arrays
        return list(arrays) if isinstance(arrays, tuple) else [arrays]

    @classmethod
    def of(cls, value: Tree, *, skip: int = 0) -> Signature:
        """Return the signature of a tree of arrays (or of `ArraySpec`) without the first ``skip`` dimensions."""
        if isinstance(value, tuple) and len(value) < 2:
            raise ShapeError("an observation is a tuple of fewer than two arrays: give the array itself")
        dtype = tree_map(lambda leaf: leaf.dtype, value)
        shape = tree_map(lambda leaf: tuple(leaf.shape[skip:]), value)
        return cls(dtype, shape) if isinstance(value, tuple | dict) else cls([dtype], [shape])

    def as_row(self) -> Signature:
        """Return the signature of actions or rewards as rows of numbers: a scalar has the shape ``(1,)``."""
        leaf = self.tree
        if not isinstance(leaf, ArraySpec) or len(leaf.shape) > 1:
            raise ShapeError(f"actions and rewards have the shape {self.shape}; it must be [(size,)]: flatten them")
        return Signature([leaf.dtype], [leaf.shape or (1,)])


@runtime_checkable
class EpisodeBase(Protocol):
    """The interface of episodes.

    The attributes ``truncated`` and ``final_observation`` are optional. An episode without them that is not terminated
    counts as truncated, with an unknown final observation.
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
        """Return the sum of rewards."""

    @property
    def transition_count(self) -> int:
        """Number of steps whose next observation is known."""


def check_episodes(episodes: Sequence[EpisodeBase]) -> None:
    """Raise `ConfigError` unless ``episodes`` is a sequence of episodes."""
    check("episodes", episodes, Sequence)  # type: ignore[type-abstract]
    for each in episodes:
        if not isinstance(each, Episode):  # the check of a protocol reads every attribute
            check("episode", each, EpisodeBase, ": make one with birl.dataset.Episode(…)")  # type: ignore[type-abstract]


def parts_as_tuple(name: str, value: Tree, steps: int) -> Tree:
    """Convert a list of the parts of tuple observations, d3rlpy's form, to a tuple; return anything else unchanged.

    Parts are arrays with one row for each of the ``steps`` steps, and perhaps one for the final observation.

    Raises:
        ShapeError: if the list is ambiguous: its items could be the parts of a tuple or single steps.
    """
    if not isinstance(value, list) or len(value) < 2:
        return value
    if not all(isinstance(item, np.ndarray) and item.ndim for item in value):
        return value
    shapes, rows = {item.shape for item in value}, (steps, steps + 1)
    are_parts = all(len(item) in rows for item in value)
    if len(value) not in rows:
        return tuple(value) if are_parts or len(shapes) > 1 else value
    if are_parts and len(shapes) > 1:  # no single array could hold them
        return tuple(value)
    if are_parts and value[0].ndim > 1:
        raise ShapeError(
            f"{name} are a list of {len(value)} arrays of shape {value[0].shape} for {steps} steps, which could be one "
            f"array for each step or the parts of tuples: give a tuple of the parts, tuple({name}), or for steps "
            f"np.stack({name})"
        )
    return value


class _WithSignatures:
    """Base class with the signatures of one observation, action and reward."""

    _names, _skip = ("observations", "actions", "rewards"), 1  # attributes, and their leading dimensions

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


@dataclass(frozen=True)
class Spaces:
    """The specs of a dataset's steps.

    Attributes:
        observations: spec of the observations; see `birl.spaces.observations`.
        actions: spec of the actions.
    """

    observations: Tree
    actions: Actions


_OF_DATASETS: Final = ("spaces", "columns")
"""Fields of `Episode` that files store once for all episodes."""


@dataclass
class Episode(_WithSignatures):
    """One episode.

    Attributes:
        observations: tree of arrays ``[T, …]``. With ``[T + 1, …]`` the last row becomes ``final_observation``. The
            parts of a tuple may be given as a list.
        actions: ``[T, A]``, or integers ``[T, 1]``. ``[T]`` becomes ``[T, 1]``.
        rewards: ``[T, 1]``. ``[T]`` becomes ``[T, 1]``.
        terminated: whether the environment ended the episode, so that there is no value after the last step.
        truncated: whether the episode was cut, by a time limit or the end of a log, so that targets bootstrap. If both
            are false, the episode is still running.
        final_observation: tree ``[…]`` observed after the last action, ``None`` if unknown.
        extra: extra arrays ``[T, …]`` by name.
        spaces: specs of observations and actions of the dataset that the episode is part of; ``None`` to infer them
            from its arrays.
        columns: names of the numbers in observations and actions, such as those of the dataset that the episode is
            part of; ``None`` for those of tables among ``observations`` and ``actions``.

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
    spaces: Spaces | None = field(default=None, kw_only=True, repr=False, compare=False)
    columns: Columns | None = field(default=None, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.rewards = as_column("rewards", self.rewards)
        if not isinstance(self.columns, Mapping | None):
            check("columns", self.columns, Mapping, optional=True)  # type: ignore[type-abstract]
        names, given = self.columns or {}, self.actions
        actions = to_array("actions", order_actions("actions", given, names))
        self.actions = actions[:, None] if actions.ndim == 1 else actions
        observations = parts_as_tuple("observations", self.observations, len(self.rewards))
        ordered = order_tables("observations", observations, names)
        self.observations = tree_map(lambda leaf: np.atleast_1d(to_array("observations", leaf)), ordered)
        self.final_observation = parts_like(self.final_observation, observations)
        if self.columns is None:
            self.columns = columns_of(observations, column_names(given))
        self.final_observation = order_tables("final_observation", self.final_observation, self.columns, row=True)
        self.terminated = _as_flag("terminated", self.terminated)
        self.truncated = _as_flag("truncated", self.truncated) and not self.terminated
        steps = len(self.rewards)
        lengths = {len(leaf) for leaf in tree_leaves(self.observations)}
        if self.final_observation is not None:
            self.final_observation = tree_map(lambda leaf: to_array("final_observation", leaf), self.final_observation)
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
        """Return the sum of rewards."""
        return float(np.sum(self.rewards))

    @property
    def transition_count(self) -> int:
        """Number of steps with a known next observation, terminal steps included."""
        return self.size() - (0 if self.terminated or self.final_observation is not None else 1)

    def check_finite(self) -> None:
        """Raise `NonFiniteError` if there is NaN or infinity."""
        for name in ("observations", "actions", "rewards", "final_observation"):
            if getattr(self, name) is not None:
                check_finite(name, getattr(self, name))

    def serialize(self) -> dict[str, Any]:
        """Return the episode as a dict of arrays and flags."""
        return {item.name: getattr(self, item.name) for item in fields(Episode) if item.name not in _OF_DATASETS}

    @classmethod
    def deserialize(cls, serialized: dict[str, Any]) -> Episode:
        """Make an episode from the result of `serialize`. Fields that d3rlpy lacks are optional."""
        given = {item.name: serialized[item.name] for item in fields(Episode) if item.name in serialized}
        return cls(**{"truncated": not serialized["terminated"], **given})


@dataclass(frozen=True)
class Transition(_WithSignatures):
    """One transition, of one or several steps.

    Attributes:
        observation: tree ``[…]``.
        action: ``[A]`` or ``[1]``.
        reward: ``[1]``, discounted sum over ``interval`` steps.
        next_observation: tree ``[…]``, ``interval`` steps later.
        terminal: 1.0 if the environment ended the episode within these steps, else 0.0.
        interval: number of steps.
        next_action: ``[A]`` or ``[1]``, ``interval`` steps later; zeros after the end of the episode. If ``None``,
            algorithms that need it read it from the dataset.
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
class PartialTrajectory(_WithSignatures):
    """A window of one episode, padded with zeros at the front to ``length`` steps.

    Attributes:
        observations: tree ``[L, …]``.
        actions: ``[L, A]`` or ``[L, 1]``.
        rewards: ``[L, 1]``.
        returns_to_go: ``[L, 1]``: undiscounted sum of rewards from this step, inclusive, to the end of the episode.
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
        """Return the number of steps, without padding, that are terminal or have a next observation in the window."""
        steps = int(self.masks.sum())
        return steps if steps and self.terminals[-1, 0] else steps - 1


def _as_flag(name: str, value: object) -> bool:
    return value if isinstance(value, bool) else bool(as_flags(name, cast(npt.ArrayLike, [value]))[0])


def create_zero_observation(observation: Observation) -> Observation:
    """Return zeros in the form of an observation."""
    return _map_parts(observation, np.zeros_like)


def batch_pad_array(array: Array, pad_size: int) -> Array:
    """Prepend ``pad_size`` rows of zeros to ``array``, in its dtype."""
    array = np.asarray(array)
    return np.concatenate([np.zeros((pad_size, *array.shape[1:]), array.dtype), array])


def batch_pad_observations(observations: Observation, pad_size: int) -> Observation:
    """Apply `batch_pad_array` to every leaf."""
    return _map_parts(observations, lambda leaf: batch_pad_array(leaf, pad_size))


def _map_parts(observation: Observation, function: Callable[[Array], Array]) -> Observation:
    """Apply ``function`` to every leaf. A list of arrays, d3rlpy's form of a tuple, stays a list."""
    parts = as_parts(observation)
    mapped = tree_map(function, parts)
    return mapped if parts is observation else list(mapped)


def stack_trees(trees: Iterable[Tree]) -> Tree:
    """Stack trees of arrays leaf by leaf along a new first dimension."""
    first, *rest = trees
    return tree_map(lambda *leaves: np.stack(leaves), first, *rest)
