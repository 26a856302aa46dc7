"""Minibatches. Arrays are numpy, or tensors for data on a torch device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Never, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from birl.dataset.arrays import HOST
from birl.dataset.discounted_returns import DiscountedReturns
from birl.dataset.episode import PartialTrajectory, Transition, stack_trees
from birl.dataset.validation import as_array
from birl.errors import ShapeError, UnsupportedError
from birl.types import Array, Shape, Tree, tree_map


def _join(axis: int, *leaves: Any) -> Any:
    if leaves[0] is None:
        return None
    if isinstance(leaves[0], torch.Tensor):
        return torch.cat([torch.as_tensor(leaf, device=leaves[0].device) for leaf in leaves], axis)
    return np.concatenate([leaf.cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], axis)


def _ones(like: Any) -> Any:
    """Float32 ones; an array of them cannot be written to."""
    if isinstance(like, torch.Tensor):
        return torch.ones_like(like)
    ones = np.ones(like.shape, np.float32)
    ones.flags.writeable = False
    return ones


def _told(transitions: Sequence[Transition], name: str) -> list[Array]:
    """What all transitions have in a field that may be ``None``; empty if one has not."""
    values = [getattr(each, name) for each in transitions]
    return [] if any(value is None for value in values) else values


class Rows(NamedTuple):
    """Rows of a storage that a sampler chose.

    Attributes:
        index: row numbers ``[B]``.
        weight: float32 importance weights ``[B, 1]``; ``None`` if all are 1 and priorities are not used.
        generation: the numbers ``[B]`` of the steps in the rows (see `Storage.numbers`), which the reader adds if there
            are weights.
        goal: row numbers ``[B]``, numpy, of the states that replace the steps' goals, -1 to keep a goal; ``None``
            except for a `birl.dataset.HindsightSampler`.
        augmented: random numbers ``[B, 2, k]`` for the observations and the next observations, which the reader adds
            for an augmentation.
        scale: factor that makes weights comparable with those of other samplers.
    """

    index: Any
    weight: Any = None
    generation: Any = None
    goal: Any = None
    augmented: Any = None
    scale: float = 1.0


class PriorityUpdater(Protocol):
    """Takes the priorities of rows that it chose: the source of a `birl.dataset.reader.Reader`, or replay elsewhere."""

    def update(self, rows: Rows, priority: Array) -> None:
        """Set the priorities ``[B]`` of ``rows``."""


@dataclass(frozen=True)
class MiniBatch:
    """Steps in the units of the data: transitions ``[B, …]``, sequences ``[T, B, …]`` or trajectories ``[B, L, …]``.

    Attributes:
        observations: tree ``[..., *shape]``: float32, or uint8 as stored.
        actions: float32 ``[..., A]``, or int64 ``[..., 1]``.
        rewards: float32 ``[..., 1]``: discounted sums over ``intervals`` steps.
        next_observations: tree like ``observations``, ``intervals`` steps later.
        terminals: float32 ``[..., 1]``: 1 where the environment ended the episode. A time limit is 0.
        intervals: float32 ``[..., 1]``: number of steps; ``None`` if all are 1.
        weights: float32 ``[..., 1]``: importance weights; ``None`` if all are 1.
        extra: extra columns by name, start states excluded, which losses do not see; ``next_action`` and
            ``next_action_known`` for algorithms that ask for them.
        masks: float32 without the last dimension: 0 is padding, or a step whose next observation is not known; ``None``
            if there is none.
        is_first: bool, likewise: an episode begins here, the state is reset before this step.
        start_states: ``[B, size]`` by network name: the stored state before the first step.
        burn_in: the first ``burn_in`` steps only warm up the state.
        rows: the sources and rows of the elements in turn, for `hand_back`; ``None`` where priorities are not used.
        transitions: what the minibatch was stacked from; ``None`` if it was gathered at once.
        augmentation: changes the observations once they are on the training device; ``None`` for nothing.
        augmented: random numbers ``[..., 2, k]`` for that.
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
        """Names of the fields that hold arrays, or trees of arrays."""
        others = ("rows", "read", "transitions", "augmentation")
        return (name for name, value in vars(self).items() if name not in others and not isinstance(value, int))

    def map(self, function: Callable[[Any], Any]) -> Self:
        """Apply ``function`` to every array. The result has no ``rows``, as its elements may be others."""
        values = {name: getattr(self, name) for name in self._arrays()}
        mapped = {name: tree_map(function, value) for name, value in values.items() if value is not None}
        return replace(self, rows=None, **mapped)

    def replace(self, **fields: Any) -> Self:
        """The same minibatch with other values in some fields: `dataclasses.replace`, ten times as fast."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), **fields)
        return other

    def to_augment(self, augmentation: Any, numbers: Array) -> Self:
        """The same minibatch, which an augmentation changes on the training device, with ``numbers`` ``[B, 2, k]``."""
        if self._axis == 1:  # a sequence is changed as a whole
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
            NonFiniteError: if one is negative or not finite; those of other samplers may be taken by then.
        """
        if self.rows is None:
            return
        values = as_array("priority", priority.detach().cpu() if isinstance(priority, Tensor) else priority)
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
        """The same minibatch with arrays of ones for the intervals and weights that are ``None``."""
        ones = _ones(self.rewards)
        intervals = ones if self.intervals is None else self.intervals
        return self.replace(intervals=intervals, weights=ones if self.weights is None else self.weights)

    def concatenate(self, *others: Self) -> Self:
        """One minibatch of this one's elements followed by those of others."""
        batches = (self, *others)
        joined: dict[str, Any] = {}
        if len({batch.intervals is None for batch in batches} | {batch.weights is None for batch in batches}) > 1:
            batches = tuple(batch.filled() for batch in batches)
        for name in self._arrays():
            values = [getattr(batch, name) for batch in batches]
            if name in ("extra", "start_states"):
                shared = [key for key in values[0] if all(key in value for value in values)]
                axis = 0 if name == "start_states" else self._axis
                joined[name] = {key: _join(axis, *(value[key] for value in values)) for key in shared}
            else:
                joined[name] = tree_map(lambda *leaves: _join(self._axis, *leaves), *values)
        return replace(self, rows=None, transitions=None, **joined)


@dataclass(frozen=True)
class TransitionMiniBatch(MiniBatch):
    """Transitions ``[B, …]``."""

    @property
    def next_actions(self) -> Any:
        """``next_action`` of ``extra``.

        Raises:
            UnsupportedError: if the minibatch was drawn without them.
        """
        if "next_action" not in self.extra:
            raise UnsupportedError(
                "this minibatch has no next actions: draw it with sample_transition_batch(batch_size, "
                "next_actions=True), or give all transitions a next_action"
            )
        return self.extra["next_action"]

    def discounted_returns(self, returns: DiscountedReturns) -> dict[str, Array]:
        """``discounted_return`` ``[B, 1]`` of the transitions' ``rewards_to_go``; empty unless all have them."""
        rewards = _told(self.transitions or (), "rewards_to_go")
        return {"discounted_return": returns.sums(rewards)} if rewards else {}

    @classmethod
    def from_transitions(cls, transitions: Sequence[Transition]) -> TransitionMiniBatch:
        """Stack single transitions.

        If all have a ``next_action``, ``extra`` has it too; it counts as known, but for that of terminal transitions.
        """
        terminals = np.array([[t.terminal] for t in transitions], np.float32)
        actions, following = _told(transitions, "next_action"), {}
        if actions:
            stacked = HOST.to_action(np.stack([np.atleast_1d(action) for action in actions]))
            following = {"next_action": stacked, "next_action_known": 1 - terminals}
        return cls(
            tree_map(HOST.to_network, stack_trees(t.observation for t in transitions)),
            HOST.to_action(np.stack([np.atleast_1d(t.action) for t in transitions])),
            np.array([np.reshape(t.reward, 1) for t in transitions], np.float32),
            tree_map(HOST.to_network, stack_trees(t.next_observation for t in transitions)),
            terminals,
            np.array([[t.interval] for t in transitions], np.float32),
            extra=following,
            transitions=transitions,
        )


@dataclass(frozen=True)
class SequenceMiniBatch(MiniBatch):
    """Sequences ``[T, B, …]`` of single steps for recurrent networks, T = ``burn_in`` + length.

    Burn-in steps have mask 1, unless they are padding.
    """

    _axis = 1


@dataclass(frozen=True)
class TrajectoryMiniBatch(MiniBatch):
    """Windows ``[B, L, …]`` of episodes, padded with zeros at the front. There are no next observations.

    Attributes:
        returns_to_go: float32 ``[B, L, 1]``: sum of rewards from this step, it included, to the end of the episode
            (Chen et al. 2021, arXiv:2106.01345). Differs from d3rlpy's documentation, which leaves it out.
        timesteps: int64 ``[B, L]``: 1 for the first step of an episode, 0 is padding.
        length: L.
    """

    returns_to_go: Any = None
    timesteps: Any = None
    length: int = 0

    @classmethod
    def from_partial_trajectories(cls, trajectories: Sequence[PartialTrajectory]) -> TrajectoryMiniBatch:
        """Stack single windows of one length."""

        def stack(name: str, dtype: Any = np.float32) -> Any:
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
    """Steps ``[B]`` with the tails of their episodes, for returns that look ahead to the end.

    A tail is the steps of an episode from the first one drawn on, in order, and a closing row: the observation after
    the last step whose next observation is known. Steps drawn from one episode share its tail. The tails follow one
    another, ``[R]`` rows in all. A row costs a few numbers; its observation is read from the dataset on
    request, so that only those in use need memory.

    Observations and actions are those of the steps, rewards and terminals those of the rows; rewards are undefined in
    closing rows.

    Attributes:
        steps: float32 ``[R, 1]``: 1 for steps, 0 for closing rows.
        index: int64 ``[B]``: the rows of the steps that were drawn.
        longest: number of steps in the longest tail.
        read: ``read(begin, end)`` gives the observations of these rows, a tree ``[end - begin, …]``.
    """

    steps: Any = None
    index: Any = None
    longest: int = 0
    read: Callable[[int, int], Tree] = field(kw_only=True)

    def concatenate(self, *others: Self) -> Self:
        """One minibatch of this one's steps followed by those of others."""
        parts = (self, *others)
        begins = np.cumsum([0, *(len(part.rewards) for part in parts)]).tolist()
        places = list(zip(parts, begins[:-1], begins[1:], strict=True))

        def read(begin: int, end: int) -> Tree:
            pieces = [
                part.read(max(begin, first) - first, min(end, last) - first)
                for part, first, last in places
                if begin < last and first < end
            ]
            return tree_map(lambda *leaves: _join(0, *leaves), *pieces)

        index = _join(0, *(part.index + first for part, first, _ in places))
        longest = max(part.longest for part in parts)
        return replace(super().concatenate(*others), index=index, longest=longest, read=read)
