"""The interface of datasets for algorithms and loops."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any, BinaryIO

import numpy as np
import torch

from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.discounted_returns import DiscountedReturns
from birl.dataset.episode import Episode, EpisodeBase, PartialTrajectory, Transition
from birl.dataset.episodes import EpisodeList, action_bounds
from birl.dataset.hdf5 import dump
from birl.dataset.log_record import LogRecord, joined
from birl.dataset.minibatch import SequenceMiniBatch, TailMiniBatch, TrajectoryMiniBatch, TransitionMiniBatch
from birl.dataset.reader import Reader
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import Columns, TransitionPickerProtocol
from birl.dataset.views import M, SequenceView, TailView, TrajectoryView, TransitionView, View
from birl.types import Array, Observation, Shape, State


class ReplayBufferBase(ABC):
    """The interface of datasets for algorithms and loops.

    Attributes:
        reader: draws minibatches and walks over all transitions.
    """

    reader: Reader

    @abstractmethod
    def append(
        self,
        observation: Observation,
        action: Any,
        reward: Any,
        *,
        extra: Mapping[str, Any] | None = None,
        lane: int = 0,
    ) -> None:
        """Add one step."""

    @abstractmethod
    def append_episode(self, episode: EpisodeBase) -> None:
        """Add a whole episode."""

    @abstractmethod
    def clip_episode(
        self, terminated: bool, *, truncated: bool | None = None, final_observation: Observation = None, lane: int = 0
    ) -> None:
        """End the running episode."""

    # -- sampling --------------------------------------------------------------------------------------------------

    def sample(self, view: View[M], count: int) -> M:
        """Sample a minibatch of ``count`` elements."""
        return self.reader.sample(view, count)

    def sample_transition(self) -> Transition:
        """Draw one transition."""
        return self.reader.sample_one(TransitionView())  # type: ignore[no-any-return]

    def sample_transition_batch(
        self, batch_size: int, next_actions: bool = True, returns: DiscountedReturns | None = None
    ) -> TransitionMiniBatch:
        """Draw transitions, uniformly and independently unless the dataset has another sampler.

        Args:
            batch_size: number of transitions.
            next_actions: whether ``extra`` also has ``next_action`` ``[B, A]`` and float32 ``next_action_known``
                ``[B, 1]``: the action taken where the transition leads. Behind the last step of an episode both are 0.
            returns: adds ``discounted_return`` ``[B, 1]`` to ``extra``: discounted rewards up to the episode's end.

        Raises:
            EmptyDataError: if there is none.
        """
        batch: TransitionMiniBatch = self.sample(TransitionView(Columns(next_actions, returns)), batch_size)
        return batch.filled()

    def sample_trajectory(self, length: int) -> PartialTrajectory:
        """Draw one window."""
        return self.reader.sample_one(TrajectoryView(length))  # type: ignore[no-any-return]

    def sample_trajectory_batch(self, batch_size: int, length: int) -> TrajectoryMiniBatch:
        """Draw windows of ``length`` steps, padded at the front.

        The last step is drawn uniformly, unless the dataset has another sampler.
        """
        return self.sample(TrajectoryView(length), batch_size)

    def sample_sequence_batch(
        self,
        batch_size: int,
        length: int,
        burn_in: int = 0,
        next_actions: bool = False,
        returns: DiscountedReturns | None = None,
    ) -> SequenceMiniBatch:
        """Draw sequences of ``burn_in + length`` steps.

        Step ``burn_in`` is a transition, drawn uniformly unless the dataset has another sampler. Observations are
        those of the transition picker; rewards are of single steps.

        Raises:
            EmptyDataError: if there is no transition.
            UnsupportedError: if the picker's targets span several steps.
        """
        view = SequenceView(length, burn_in, Columns(next_actions, returns))
        return self.sample(view, batch_size)

    def sample_tail_batch(self, batch_size: int) -> TailMiniBatch:
        """Draw transitions with the rest of their episodes.

        They are drawn uniformly and independently, unless the dataset has another sampler. The minibatch can be read
        until the next write.

        Raises:
            EmptyDataError: if there is no transition.
            UnsupportedError: if the picker's targets span several steps.
        """
        return self.sample(TailView(), batch_size)

    def all_transitions(self) -> Iterator[TransitionMiniBatch]:
        """Every transition once, in the order of the episodes, many at a time.

        Raises:
            EmptyDataError: if there is none.
        """
        return self.reader.all_transitions()

    @property
    def episodes(self) -> Sequence[Episode]:
        """All episodes, running ones included; made when they are asked for."""
        first, *others = (EpisodeList(storage) for storage in self.reader.storages)
        return sum(others, first)

    def size(self) -> int:
        """Number of episodes, running ones included."""
        return sum(storage.episode_count for storage in self.reader.storages)

    @property
    def transition_count(self) -> int:
        """Number of steps that can be drawn: the next observation is known, or not needed, at a termination."""
        return self.reader.transition_count

    @property
    def step_count(self) -> int:
        """Number of steps."""
        return sum(int(storage.steps.sum()) for storage in self.reader.storages)

    @property
    def logs(self) -> LogRecord | None:
        """The logs that it was made of, if all of it was."""
        found = [storage.logs for storage in self.reader.storages]
        return None if None in found else reduce(partial(joined, who="one part", what="another part"), found)

    @property
    @abstractmethod
    def dataset_info(self) -> DatasetInfo:
        """Signatures of what is stored, action space and size."""

    def action_bounds(self) -> tuple[Array, Array]:
        """Least and greatest actions ``[A]`` of all steps; found once after a write. Infinite without steps."""
        low, high = zip(*map(action_bounds, self.reader.storages), strict=True)
        return reduce(np.minimum, low), reduce(np.maximum, high)

    @property
    @abstractmethod
    def observation_shape(self) -> Shape:
        """Shape (or tree of shapes) of sampled observations, stacked frames included."""

    @property
    def transition_picker(self) -> TransitionPickerProtocol:
        """Makes transitions of steps."""
        return self.reader.sources[0].picker

    @property
    def trajectory_slicer(self) -> TrajectorySlicerProtocol:
        """Makes windows of steps."""
        return self.reader.sources[0].slicer

    def placed_for(self, device: torch.device, *, growing: bool = False) -> Reader:
        """The reader to draw from when training on ``device``; the buffer itself is left as it is.

        On an accelerator it reads a mirror of the steps, which follows what is appended to the buffer:

        - copied to the device, each column in its own dtype, if the data lie in memory and (at the buffer's limit)
          take no more than `birl.dataset.device_mirror.DEVICE_MEMORY_SHARE` of the device's free memory. Gathers then
          run there, and so do the draws, with a generator of the device's own, seeded by the buffer's and part of the
          reader's state. Rows of a ``growing`` buffer are drawn on the host, and rows written are sent before the next
          draw.
        - else, for CUDA, gathered into pinned memory. So it is for data in folders, and for growing buffers without
          limit.

        On the CPU, for data on a device already and with pickers or slicers that work one by one it is `reader`.

        Args:
            device: the training device.
            growing: whether steps are appended between draws.
        """
        return self.reader.near(device, growing=growing)

    def dump(self, f: BinaryIO | str | os.PathLike[str]) -> None:
        """Write all episodes in the HDF5 layout of d3rlpy 2, with what that leaves out added.

        Args:
            f: path, or a file opened with ``"w+b"``. A path is replaced only when all is written.
        """
        dump(self.episodes, f, self.dataset_info)

    @abstractmethod
    def get_state(self, *, contents: bool = True) -> State:
        """State of the random generator and, with ``contents``, all stored steps."""

    @abstractmethod
    def set_state(self, state: State) -> None:
        """Go back to a state."""
