"""Minibatches of transitions, sequences, trajectories and tails: numpy arrays, or tensors for data on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Never, Protocol, Self, cast

import numpy as np
import numpy.typing as npt
import torch

from birl.dataset.arrays import HOST
from birl.dataset.discounted_returns import DiscountedReturns
from birl.dataset.episode import PartialTrajectory, Transition, stack_trees
from birl.errors import NonFiniteError, ShapeError, UnsupportedError
from birl.spaces import first_not_finite
from birl.spaces.conversion import to_array
from birl.types import Array, ArrayOrTensor, Shape, Tree, tree_leaves, tree_map

if TYPE_CHECKING:
    from torch import Tensor


def _concatenate(axis: int, *leaves: ArrayOrTensor | None) -> ArrayOrTensor | None:
    """Concatenate arrays, as tensors if the first one is a tensor; ``None`` if it is ``None``."""
    first = leaves[0]
    if first is None:
        return None
    if isinstance(first, torch.Tensor):
        return torch.cat([torch.as_tensor(leaf, device=first.device) for leaf in leaves], axis)
    arrays = [leaf.cpu().numpy() if isinstance(leaf, torch.Tensor) else np.asarray(leaf) for leaf in leaves]
    return np.concatenate(arrays, axis)


def _picked(name: str, values: Sequence[object]) -> Array:
    """Return one of the values of each transition as an array ``[B, …]``."""
    name = f"the {name} of transitions"
    array = np.stack([to_array(f"{name}[{index}]", value) for index, value in enumerate(values)])
    if (index := first_not_finite(array)) is not None:
        raise NonFiniteError(
            f"{name}[{index}] is {array[index].tolist()!s:.80}; it must be finite in float32: correct the transition "
            "picker that returned it"
        )
    return array


def _picked_observations(name: str, transitions: Sequence[Transition]) -> Tree:
    trees = [getattr(each, name) for each in transitions]
    columns = zip(*map(tree_leaves, trees), strict=True)
    stacked = iter([HOST.to_network(_picked(name, leaves)) for leaves in columns])
    return tree_map(lambda _: next(stacked), trees[0])


def _ones_like(like: ArrayOrTensor) -> ArrayOrTensor:
    """Return float32 ones; a numpy array of them is read-only."""
    if isinstance(like, torch.Tensor):
        return torch.ones_like(like)
    ones = np.ones(like.shape, np.float32)
    ones.flags.writeable = False
    return ones


def _optional_field(transitions: Sequence[Transition], name: str) -> list[Array]:
    """Return an optional field of all transitions; empty if any of them lacks it."""
    values = [getattr(each, name) for each in transitions]
    return [] if any(value is None for value in values) else values


class Rows(NamedTuple):
    """Rows of a storage that a sampler chose.

    Attributes:
        index: row numbers ``[B]``.
        weight: float32 importance weights ``[B, 1]``; ``None`` if all are 1 and priorities are not used.
        generation: the numbers ``[B]`` of the steps in the rows (see `Storage.numbers`), which the reader adds if there
            are weights.
        goal: numpy row numbers ``[B]`` of the states that replace the steps' goals, -1 to keep a goal; ``None`` unless
            the sampler is a `birl.dataset.HindsightSampler`.
        augmented: random numbers ``[B, 2, k]`` for the observations and the next observations, which the reader adds
            for an augmentation.
        scale: factor that makes weights of several samplers comparable.
    """

    index: Any
    weight: Any = None
    generation: Any = None
    goal: Any = None
    augmented: Any = None
    scale: float = 1.0


class PriorityUpdater(Protocol):
    """Receiver of the priorities of rows that it chose: a source of a `Reader`, or replay in other processes."""

    def update(self, rows: Rows, priority: Array) -> None:
        """Set the priorities ``[B]`` of ``rows``."""


@dataclass(frozen=True)
class MiniBatch:
    """Unscaled steps: transitions ``[B, …]``, sequences ``[T, B, …]`` or trajectories ``[B, L, …]``.

    Attributes:
        observations: tree ``[..., *shape]``: float32, or uint8 as stored; float64 where float32 loses their resolution
            (see `birl.errors.ResolutionWarning`), so that a scaler can subtract an offset first.
        actions: float32 ``[..., A]``, or int64 ``[..., 1]``.
        rewards: float32 ``[..., 1]``: discounted sums over ``intervals`` steps.
        next_observations: tree like ``observations``, ``intervals`` steps later.
        terminals: float32 ``[..., 1]``: 1 where the environment ended the episode, 0 at a time limit.
        intervals: float32 ``[..., 1]``: number of steps; ``None`` if all are 1.
        weights: float32 ``[..., 1]``: importance weights; ``None`` if all are 1.
        extra: extra columns of the data, without start states, which losses do not read; and computed columns
            (`birl.dataset.transitions.Columns`).
        masks: float32 without the last dimension: 0 for padding and steps with an unknown next observation; ``None`` if
            all are 1.
        is_first: bool without the last dimension: an episode starts with this step, so recurrent states are reset.
        start_states: ``[B, size]`` by network name: the stored recurrent states before the first step.
        burn_in: number of first steps that only warm up the recurrent states.
        rows: the parts of the minibatch, in order, with the samplers that `update_priorities` notifies; ``None`` if
            priorities are not used.
        transitions: the transitions that were stacked; ``None`` if the minibatch was gathered from arrays.
        augmentation: changes the observations on the training device; ``None`` for no augmentation.
        augmented: random numbers ``[..., 2, k]`` of the augmentation.
    """

    _axis = 0  # of the batch
    observations: Tree
    actions: Any
    rewards: Any
    next_observations: Tree = None
    terminals: Any = None
    intervals: Any = None
    weights: Any = None
    extra: dict[str, Any] = field(default_factory=dict)
    masks: Any = None
    is_first: Any = None
    start_states: dict[str, Any] = field(default_factory=dict)
    burn_in: int = 0
    rows: Sequence[tuple[PriorityUpdater, Rows]] | None = None
    transitions: Sequence[Transition] | None = None
    augmentation: Any = None
    augmented: Any = None

    def __len__(self) -> int:
        return int(self.actions.shape[self._axis])

    @property
    def observation_shape(self) -> Shape:
        """Shapes of the observations without the first dimension."""
        return tree_map(lambda leaf: tuple(leaf.shape[1:]), self.observations)

    @property
    def action_shape(self) -> Shape:
        """Shape of the actions without the first dimension."""
        return tuple(self.actions.shape[1:])

    @property
    def reward_shape(self) -> Shape:
        """Shape of the rewards without the first dimension."""
        return tuple(self.rewards.shape[1:])

    def _arrays(self) -> Iterator[str]:
        """Yield the names of the fields that hold arrays, or trees of arrays."""
        others = ("rows", "read", "transitions", "augmentation")
        return (name for name, value in vars(self).items() if name not in others and not isinstance(value, int))

    def map(self, function: Callable[[Any], ArrayOrTensor]) -> Self:
        """Apply ``function`` to every array. The result has no ``rows``, as ``function`` may select elements."""
        values = {name: getattr(self, name) for name in self._arrays()}
        mapped = {name: tree_map(function, value) for name, value in values.items() if value is not None}
        return replace(self, rows=None, **mapped)

    def replace(self, **fields: object) -> Self:
        """Return a copy with other values in some fields, like `dataclasses.replace` but ten times as fast."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), **fields)
        return other

    def with_augmentation(self, augmentation: Callable[[Tree, Tensor], Tree], numbers: Array) -> Self:
        """Return a copy that ``augmentation`` changes on the training device, with random ``numbers`` ``[B, 2, k]``."""
        if self._axis == 1:  # all steps of a sequence are changed alike
            numbers = np.repeat(numbers[None, :, :1], 2, axis=2)
        return replace(self, augmentation=augmentation, augmented=numbers)

    def __getattr__(self, name: str) -> Never:
        renamed = f"MiniBatch.{name} is MiniBatch.update_priorities now" if name == "hand_back" else None
        raise AttributeError(renamed or f"{type(self).__name__!r} object has no attribute {name!r}")

    def update_priorities(self, priority: Tensor | npt.ArrayLike) -> None:
        """Set the priorities ``[B]`` of the elements in the samplers that chose them.

        Steps that have been overwritten are skipped. Does nothing if the elements were chosen uniformly.

        Raises:
            ShapeError: unless there is one number for each element.
            NonFiniteError: if one is negative or not finite. Samplers of earlier parts may have been updated by then.
        """
        if self.rows is None:
            return
        values = to_array("priority", priority)
        begin, count = 0, sum(len(rows.index) for _, rows in self.rows)
        if values.shape != (count,) or values.dtype.kind not in "biuf":
            raise ShapeError(
                f"priorities are {values.dtype} of shape {values.shape}; they must be numbers of shape ({count},), one "
                "for each element of the minibatch"
            )
        for source, rows in self.rows:
            end = begin + len(rows.index)
            source.update(rows, values[begin:end])
            begin = end

    def filled(self) -> Self:
        """Return a copy with arrays of ones for intervals and weights that are ``None``."""
        ones = _ones_like(self.rewards)
        intervals = ones if self.intervals is None else self.intervals
        return self.replace(intervals=intervals, weights=ones if self.weights is None else self.weights)

    def concatenate(self, *others: Self) -> Self:
        """Return one minibatch of the elements of this one and of ``others``, in order."""
        batches = (self, *others)
        fields: dict[str, Any] = {}
        if len({batch.intervals is None for batch in batches} | {batch.weights is None for batch in batches}) > 1:
            batches = tuple(batch.filled() for batch in batches)
        for name in self._arrays():
            values = [getattr(batch, name) for batch in batches]
            if name in ("extra", "start_states"):
                shared = [key for key in values[0] if all(key in value for value in values)]
                axis = 0 if name == "start_states" else self._axis
                fields[name] = {key: _concatenate(axis, *(value[key] for value in values)) for key in shared}
            else:
                fields[name] = tree_map(lambda *leaves: _concatenate(self._axis, *leaves), *values)
        return replace(self, rows=None, transitions=None, **fields)


@dataclass(frozen=True)
class TransitionMiniBatch(MiniBatch):
    """Transitions ``[B, …]``."""

    @property
    def next_actions(self) -> ArrayOrTensor:
        """The column ``next_action`` of ``extra``.

        Raises:
            UnsupportedError: if the minibatch was sampled without it.
        """
        if "next_action" not in self.extra:
            raise UnsupportedError(
                "this minibatch has no next actions: sample it with sample_transition_batch(batch_size, "
                "next_actions=True), or give all transitions a next_action"
            )
        return cast(ArrayOrTensor, self.extra["next_action"])

    def discounted_returns(self, returns: DiscountedReturns) -> dict[str, Array]:
        """Compute the column ``discounted_return`` ``[B, 1]`` from ``rewards_to_go``; empty unless all have them."""
        rewards = _optional_field(self.transitions or (), "rewards_to_go")
        return {"discounted_return": returns.sums(rewards)} if rewards else {}

    @classmethod
    def from_transitions(cls, transitions: Sequence[Transition]) -> TransitionMiniBatch:
        """Stack single transitions.

        If all have a ``next_action``, ``extra`` has it too; it counts as known except in terminal transitions.

        Raises:
            ShapeError, DataError, NonFiniteError: for values that a user's picker may return, but datasets refuse.
        """
        terminals = _picked("terminal", [t.terminal for t in transitions]).astype(np.float32).reshape(-1, 1)
        actions, following = _optional_field(transitions, "next_action"), {}
        if actions:
            stacked = HOST.to_action(np.stack([np.atleast_1d(action) for action in actions]))
            following = {"next_action": stacked, "next_action_known": 1 - terminals}
        return cls(
            _picked_observations("observation", transitions),
            HOST.to_action(_picked("action", [np.atleast_1d(t.action) for t in transitions])),
            _picked("reward", [t.reward for t in transitions]).astype(np.float32).reshape(-1, 1),
            _picked_observations("next_observation", transitions),
            terminals,
            _picked("interval", [t.interval for t in transitions]).astype(np.float32).reshape(-1, 1),
            extra=following,
            transitions=transitions,
        )


@dataclass(frozen=True)
class SequenceMiniBatch(MiniBatch):
    """Sequences ``[T, B, …]`` of steps for recurrent networks, T = ``burn_in`` + length.

    Burn-in steps have mask 1 unless they are padding.
    """

    _axis = 1


@dataclass(frozen=True)
class TrajectoryMiniBatch(MiniBatch):
    """Windows ``[B, L, …]`` of episodes, padded with zeros at the front. There are no next observations.

    Attributes:
        returns_to_go: float32 ``[B, L, 1]``: undiscounted sum of rewards from this step, inclusive, to the end of the
            episode (Chen et al. 2021, arXiv:2106.01345). Differs from d3rlpy's documentation, which excludes this step.
        timesteps: int64 ``[B, L]``: 1 for the first step of an episode, 0 is padding.
        length: L.
    """

    returns_to_go: Any = None
    timesteps: Any = None
    length: int = 0

    @classmethod
    def from_partial_trajectories(cls, trajectories: Sequence[PartialTrajectory]) -> TrajectoryMiniBatch:
        """Stack single windows of the same length."""

        def stack(name: str, dtype: type[np.generic] = np.float32) -> Array:
            return np.stack([getattr(trajectory, name) for trajectory in trajectories]).astype(dtype)

        return cls(
            tree_map(HOST.to_network, stack_trees(trajectory.observations for trajectory in trajectories)),
            HOST.to_action(np.stack([trajectory.actions for trajectory in trajectories])),
            stack("rewards"),
            terminals=stack("terminals"),
            masks=stack("masks"),
            returns_to_go=stack("returns_to_go"),
            timesteps=stack("timesteps", np.int64),
            length=trajectories[0].length,
        )


@dataclass(frozen=True)
class TailMiniBatch(MiniBatch):
    """Steps ``[B]`` with the tails of their episodes, for returns up to the end of an episode.

    A tail consists of the steps of an episode, in order, from the first sampled one on, and of a closing row: the
    observation after the last step with a known next observation. Sampled steps of the same episode share its tail. The
    concatenated tails have ``[R]`` rows. Their observations are read from the dataset on request, so that only those in
    use need memory.

    ``observations`` and ``actions`` belong to the sampled steps, ``rewards`` and ``terminals`` to the rows of the
    tails; rewards are undefined in closing rows.

    Attributes:
        steps: float32 ``[R, 1]``: 1 for steps, 0 for closing rows.
        index: int64 ``[B]``: rows of the sampled steps.
        longest: number of steps in the longest tail.
        read: ``read(begin, end)`` returns the observations of these rows, a tree ``[end - begin, …]``.
    """

    steps: Any = None
    index: Any = None
    longest: int = 0
    read: Callable[[int, int], Tree] = field(kw_only=True)

    def concatenate(self, *others: Self) -> Self:
        """Return one minibatch of the steps of this one and of ``others``, in order."""
        parts = (self, *others)
        begins = np.cumsum([0, *(len(part.rewards) for part in parts)]).tolist()
        places = list(zip(parts, begins[:-1], begins[1:], strict=True))

        def read(begin: int, end: int) -> Tree:
            pieces = [
                part.read(max(begin, first) - first, min(end, last) - first)
                for part, first, last in places
                if begin < last and first < end
            ]
            return tree_map(lambda *leaves: _concatenate(0, *leaves), *pieces)

        index = _concatenate(0, *(part.index + first for part, first, _ in places))
        longest = max(part.longest for part in parts)
        return replace(super().concatenate(*others), index=index, longest=longest, read=read)
