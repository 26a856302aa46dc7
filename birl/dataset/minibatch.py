"""Minibatches: what algorithms learn from. Arrays are numpy, or tensors for data on a torch device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import torch

from birl.dataset.episode import PartialTrajectory, Transition, stack_trees
from birl.errors import UnsupportedError
from birl.types import Shape, Tree, tree_map


def _shape(tree: Tree) -> Shape:
    return tree_map(lambda leaf: tuple(leaf.shape), tree)


def as_network_dtype(tree: Tree) -> Tree:
    """Float32, except bytes, which stay bytes."""
    return tree_map(lambda leaf: leaf if leaf.dtype == np.uint8 else leaf.astype(np.float32, copy=False), tree)


def as_action_dtype(actions: Any) -> Any:
    """Integers as int64, other numbers as float32."""
    return actions.astype(np.int64 if actions.dtype.kind in "iu" else np.float32, copy=False)


def _join(axis: int, *leaves: Any) -> Any:
    if isinstance(leaves[0], torch.Tensor):
        return torch.cat([torch.as_tensor(leaf, device=leaves[0].device) for leaf in leaves], axis)
    return np.concatenate([leaf.cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], axis)


class _MiniBatch:
    """Shapes, and joining along the batch dimension."""

    _axis = 0
    observations: Tree
    actions: Any
    rewards: Any

    @property
    def observation_shape(self) -> Shape:
        """Shapes of the observations, batch dimension included."""
        return _shape(self.observations)

    @property
    def action_shape(self) -> Shape:
        """Shape of the actions, batch dimension included."""
        return _shape(self.actions)

    @property
    def reward_shape(self) -> Shape:
        """Shape of the rewards, batch dimension included."""
        return _shape(self.rewards)

    def concatenate(self, *others: Self) -> Self:
        """One minibatch of this one's elements followed by those of others."""
        joined: dict[str, Any] = {}
        for item in fields(self):  # type: ignore[arg-type]
            values = [getattr(batch, item.name) for batch in (self, *others)]
            if isinstance(values[0], int):
                joined[item.name] = values[0]
            elif item.name in ("extra", "start_states"):
                shared = [key for key in values[0] if all(key in value for value in values)]
                axis = 0 if item.name == "start_states" else self._axis
                joined[item.name] = {key: _join(axis, *(value[key] for value in values)) for key in shared}
            else:
                joined[item.name] = tree_map(lambda *leaves: _join(self._axis, *leaves), *values)
        return type(self)(**joined)


@dataclass(frozen=True)
class TransitionMiniBatch(_MiniBatch):
    """Transitions.

    Attributes:
        observations: tree ``[B, …]``: float32, or uint8 as stored.
        actions: float32 ``[B, A]``, or int64 ``[B, 1]``.
        rewards: float32 ``[B, 1]``: discounted sums over ``intervals`` steps.
        next_observations: tree ``[B, …]``, ``intervals`` steps later.
        terminals: float32 ``[B, 1]``: 1 where the environment ended the episode. A time limit is 0.
        intervals: float32 ``[B, 1]``: number of steps.
        weights: float32 ``[B, 1]``: importance weights.
        extra: extra columns ``[B, …]`` by name, start states excluded; ``next_action`` and ``next_action_known`` for
            algorithms that ask for them.
    """

    observations: Tree
    actions: Any
    rewards: Any
    next_observations: Tree
    terminals: Any
    intervals: Any
    weights: Any
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def next_actions(self) -> Any:
        """``next_action`` of ``extra``.

        Raises:
            UnsupportedError: if the minibatch was drawn without them.
        """
        if "next_action" not in self.extra:
            raise UnsupportedError(
                "this minibatch was drawn without next actions: draw it with "
                "sample_transition_batch(batch_size, next_actions=True)"
            )
        return self.extra["next_action"]

    @classmethod
    def from_transitions(cls, transitions: Sequence[Transition]) -> TransitionMiniBatch:
        """Stack single transitions."""
        count = len(transitions)
        return cls(
            as_network_dtype(stack_trees(t.observation for t in transitions)),
            as_action_dtype(np.stack([np.atleast_1d(t.action) for t in transitions])),
            np.array([np.reshape(t.reward, 1) for t in transitions], np.float32),
            as_network_dtype(stack_trees(t.next_observation for t in transitions)),
            np.array([[t.terminal] for t in transitions], np.float32),
            np.array([[t.interval] for t in transitions], np.float32),
            np.ones((count, 1), np.float32),
        )


@dataclass(frozen=True)
class TrajectoryMiniBatch(_MiniBatch):
    """Windows of episodes, padded with zeros at the front.

    Attributes:
        observations: tree ``[B, L, …]``: float32, or uint8 as stored.
        actions: float32 ``[B, L, A]``, or int64 ``[B, L, 1]``.
        rewards: float32 ``[B, L, 1]``.
        returns_to_go: float32 ``[B, L, 1]``: sum of rewards from this step, it included, to the end of the episode
            (Chen et al. 2021, arXiv:2106.01345). Differs from d3rlpy's documentation, which leaves it out.
        terminals: float32 ``[B, L, 1]``.
        timesteps: int64 ``[B, L]``: 1 for the first step of an episode, 0 is padding.
        masks: float32 ``[B, L]``: 0 is padding.
        length: L.
    """

    observations: Tree
    actions: Any
    rewards: Any
    returns_to_go: Any
    terminals: Any
    timesteps: Any
    masks: Any
    length: int

    @classmethod
    def from_partial_trajectories(cls, trajectories: Sequence[PartialTrajectory]) -> TrajectoryMiniBatch:
        """Stack single windows of one length."""
        return cls(
            as_network_dtype(stack_trees(t.observations for t in trajectories)),
            as_action_dtype(np.stack([t.actions for t in trajectories])),
            np.stack([t.rewards for t in trajectories]).astype(np.float32),
            np.stack([t.returns_to_go for t in trajectories]).astype(np.float32),
            np.stack([t.terminals for t in trajectories]).astype(np.float32),
            np.stack([t.timesteps for t in trajectories]).astype(np.int64),
            np.stack([t.masks for t in trajectories]).astype(np.float32),
            trajectories[0].length,
        )


@dataclass(frozen=True)
class SequenceMiniBatch(_MiniBatch):
    """Sequences for recurrent networks, time first.

    Attributes:
        observations: tree ``[T, B, …]``, T = ``burn_in`` + length.
        actions: float32 ``[T, B, A]``, or int64 ``[T, B, 1]``.
        rewards: float32 ``[T, B, 1]``, of single steps.
        next_observations: tree ``[T, B, …]``.
        terminals: float32 ``[T, B, 1]``.
        masks: float32 ``[T, B]``: 0 is padding, or a step whose next observation is not known. Burn-in counts as real.
        is_first: bool ``[T, B]``: an episode begins here: the state is reset before this step.
        start_states: ``[B, size]`` by network name: the stored state before the first row.
        burn_in: the first ``burn_in`` rows only warm up the state.
        extra: other extra columns ``[T, B, …]`` by name.
    """

    _axis = 1
    observations: Tree
    actions: Any
    rewards: Any
    next_observations: Tree
    terminals: Any
    masks: Any
    is_first: Any
    start_states: dict[str, Any]
    burn_in: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TailMiniBatch(_MiniBatch):
    """Steps ``[B]`` with the tails of their episodes, for returns that look ahead to the end.

    A tail is the steps of an episode from the first one drawn on, in order, and a closing row: the observation after
    the last step whose next observation is known. Steps drawn from one episode share its tail. The tails follow one
    another, ``[R]`` rows in all. A row costs a few numbers; its observation is read from the dataset when it is asked
    for, so that no more of them need be held than are looked at together.

    Attributes:
        observations: tree ``[B, …]``: float32, or uint8 as stored.
        actions: float32 ``[B, A]``, or int64 ``[B, 1]``.
        rewards: float32 ``[R, 1]``, of single steps. Of no meaning in closing rows.
        terminals: float32 ``[R, 1]``: 1 where the environment ended the episode. A time limit is 0.
        steps: float32 ``[R, 1]``: 1 for steps, 0 for closing rows.
        index: int64 ``[B]``: the rows of the steps that were drawn.
        longest: number of steps in the longest tail.
        read: ``read(begin, end)`` gives the observations of these rows, a tree ``[end - begin, …]``.
    """

    observations: Tree
    actions: Any
    rewards: Any
    terminals: Any
    steps: Any
    index: Any
    longest: int
    read: Callable[[int, int], Tree]

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

        def joined(name: str) -> Tree:
            return tree_map(lambda *leaves: _join(0, *leaves), *(getattr(part, name) for part in parts))

        return replace(
            self,
            **{name: joined(name) for name in ("observations", "actions", "rewards", "terminals", "steps")},
            index=_join(0, *(part.index + first for part, first, _ in places)),
            longest=max(part.longest for part in parts),
            read=read,
        )
