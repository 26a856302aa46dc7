"""Trajectory slicers, which cut the window of an episode that ends with a given step."""

from __future__ import annotations

from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np

from birl.checks import named_arguments
from birl.dataset.episode import (
    EpisodeBase,
    PartialTrajectory,
    batch_pad_array,
    batch_pad_observations,
    stack_trees,
)
from birl.dataset.episodes import timesteps_and_returns
from birl.dataset.minibatch import TrajectoryMiniBatch
from birl.dataset.storage import Storage
from birl.dataset.transitions import (
    BasicTransitionPicker,
    FrameStackTransitionPicker,
    extra_columns,
    has_batch_methods,
)
from birl.types import ArrayOrTensor, Observation, Tree, tree_map


@runtime_checkable
class TrajectorySlicerProtocol(Protocol):
    """Trajectory slicer, which cuts a window out of an episode."""

    def __call__(self, episode: EpisodeBase, end_index: int, size: int) -> PartialTrajectory:
        """Return the ``size`` steps up to and including ``end_index``, padded with zeros at the front."""


class BatchSlicer(TrajectorySlicerProtocol, Protocol):
    """A trajectory slicer that makes whole minibatches."""

    def batch(self, storage: Storage, rows: ArrayOrTensor, length: int) -> TrajectoryMiniBatch:
        """Return windows of ``length`` steps that end with ``rows`` ``[B]`` of a storage."""


def is_batch_slicer(slicer: object) -> TypeGuard[BatchSlicer]:
    """Return whether a trajectory slicer makes whole minibatches. See `has_batch_methods`."""
    cls: type = type(slicer)
    return has_batch_methods(cls, ("batch",))


class BasicTrajectorySlicer(TrajectorySlicerProtocol):
    """Windows of the stored steps."""

    _picker = BasicTransitionPicker()

    def __call__(self, episode: EpisodeBase, end_index: int, size: int) -> PartialTrajectory:
        end, start = end_index + 1, max(end_index + 1 - size, 0)
        pad = size - (end - start)
        terminals = np.zeros((size, 1), np.float32)
        terminals[-1] = float(episode.terminated and end == episode.size())
        to_go = np.cumsum(np.asarray(episode.rewards, np.float64)[::-1], axis=0)[::-1][start:end]
        return PartialTrajectory(
            observations=batch_pad_observations(self._observations(episode, start, end), pad),
            actions=batch_pad_array(episode.actions[start:end], pad),
            rewards=batch_pad_array(episode.rewards[start:end], pad),
            returns_to_go=batch_pad_array(to_go.astype(np.float32), pad),
            terminals=terminals,
            timesteps=batch_pad_array(np.arange(start, end) + 1, pad),
            masks=batch_pad_array(np.ones(end - start, np.float32), pad),
            length=size,
        )

    def _observations(self, episode: EpisodeBase, start: int, end: int) -> Observation:
        return tree_map(lambda leaf: leaf[start:end], episode.observations)

    def batch(self, storage: Storage, rows: ArrayOrTensor, length: int) -> TrajectoryMiniBatch:
        """Return windows of ``length`` steps that end with ``rows`` ``[B]`` of a storage."""
        place = storage.place
        window, alive = storage.behind(rows, length)
        if isinstance(self._picker, FrameStackTransitionPicker):
            alive = alive & self._picker.complete(storage, window)
        padding = ~alive
        timesteps, to_go = timesteps_and_returns(storage)

        def without_padding(values: Tree) -> Tree:
            return place.zero_where(values, padding)

        return TrajectoryMiniBatch(
            tree_map(without_padding, self._picker.observe(storage, window)),
            without_padding(place.to_action(storage.take("action", window))),
            without_padding(place.to_float(storage.take("reward", window))),
            terminals=without_padding(storage.terminals(window)),
            extra=tree_map(without_padding, extra_columns(storage, window)),
            masks=place.to_float(alive),
            returns_to_go=without_padding(place.take(to_go, window)[..., None]),
            timesteps=without_padding(place.take(timesteps, window)),
            length=length,
        )


class FrameStackTrajectorySlicer(BasicTrajectorySlicer):
    """Windows whose observations are stacks of the last ``n_frames`` frames. See `FrameStackTransitionPicker`.

    Args:
        n_frames, padding_type: see `FrameStackTransitionPicker`.
    """

    @named_arguments
    def __init__(self, n_frames: int, padding_type: str = "zero") -> None:
        self._picker = FrameStackTransitionPicker(n_frames, padding_type)
        self.n_frames, self.complete = n_frames, self._picker.complete

    def _observations(self, episode: EpisodeBase, start: int, end: int) -> Observation:
        return stack_trees(self._picker._observe(episode, index) for index in range(start, end))
