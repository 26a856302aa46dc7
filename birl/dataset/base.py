"""What algorithms and loops use of a dataset, whatever it is made of."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from birl.dataset.episode import DatasetInfo, Episode, EpisodeBase, Observation
from birl.dataset.minibatch import SequenceMiniBatch, TailMiniBatch, TrajectoryMiniBatch, TransitionMiniBatch
from birl.dataset.reader import Draws, Reader, StorageReader
from birl.dataset.return_to_go import DiscountedReturns
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import TransitionPickerProtocol
from birl.dataset.views import TrajectoryView, TransitionView, View
from birl.errors import UnsupportedError
from birl.types import Array, Shape, State


class ReplayBufferBase(metaclass=ABCMeta):
    """What algorithms and loops use of a dataset."""

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

    @abstractmethod
    def sample_transition_batch(
        self, batch_size: int, next_actions: bool = False, returns: DiscountedReturns | None = None
    ) -> TransitionMiniBatch:
        """Draw transitions, uniformly and independently.

        Args:
            batch_size: number of transitions.
            next_actions: whether ``extra`` also has ``next_action`` ``[B, A]`` and float32 ``next_action_known``
                ``[B, 1]``: what was done where the transition leads. Behind the last step of an episode both are 0.
            returns: makes ``return_to_go`` ``[B, 1]`` of ``extra``: discounted rewards up to the end of the episode.
        """

    @abstractmethod
    def sample_trajectory_batch(self, batch_size: int, length: int) -> TrajectoryMiniBatch:
        """Draw windows of ``length`` steps that end with a uniformly drawn step."""

    @abstractmethod
    def sample_sequence_batch(
        self,
        batch_size: int,
        length: int,
        burn_in: int = 0,
        next_actions: bool = False,
        returns: DiscountedReturns | None = None,
    ) -> SequenceMiniBatch:
        """Draw sequences of ``burn_in + length`` steps whose first trained step is a uniformly drawn transition.

        For ``next_actions`` and ``returns`` see `sample_transition_batch`.
        """

    def sample_tail_batch(self, batch_size: int) -> TailMiniBatch:
        """Draw transitions as `sample_transition_batch` does, with the rest of their episodes.

        Raises:
            UnsupportedError: for datasets that do not tell what follows a step.
        """
        raise UnsupportedError(
            f"a {type(self).__name__} does not tell what follows the steps that are drawn: use a ReplayBuffer or a "
            "MixedReplayBuffer"
        )

    def draw(self, view: View, count: int) -> Any:
        """Draw a minibatch of ``count`` elements: one of the kinds that the methods above draw."""
        return view.sample(self, count)

    @property
    def reader(self) -> Reader:
        """A reader of the present steps; unless a class says more, of a copy of all episodes."""
        info = self.dataset_info
        return StorageReader.of_episodes(self.episodes, self.transition_picker, info.action_space, info.action_size)

    def all_transitions(self) -> Iterator[TransitionMiniBatch]:
        """Every transition once, in the order of the episodes, many at a time.

        Raises:
            EmptyDataError: if there is none.
        """
        return self.reader.all_transitions()

    @property
    @abstractmethod
    def episodes(self) -> Sequence[Episode]:
        """All episodes, running ones included."""

    @abstractmethod
    def size(self) -> int:
        """Number of episodes."""

    @property
    @abstractmethod
    def transition_count(self) -> int:
        """Number of steps whose next observation is known: those that can be drawn."""

    @property
    @abstractmethod
    def step_count(self) -> int:
        """Number of steps."""

    @property
    @abstractmethod
    def dataset_info(self) -> DatasetInfo:
        """Signatures of what is stored, action space and size."""

    def action_bounds(self) -> tuple[Array, Array]:
        """Least and greatest actions ``[A]`` of all steps."""
        actions = [np.asarray(episode.actions) for episode in self.episodes]
        return np.min([item.min(axis=0) for item in actions], 0), np.max([item.max(axis=0) for item in actions], 0)

    @property
    @abstractmethod
    def observation_shape(self) -> Shape:
        """Shape (or tree of shapes) of sampled observations, stacked frames included."""

    @property
    @abstractmethod
    def transition_picker(self) -> TransitionPickerProtocol:
        """Makes transitions of steps."""

    @property
    @abstractmethod
    def trajectory_slicer(self) -> TrajectorySlicerProtocol:
        """Makes windows of steps."""

    def placed_for(self, device: torch.device, *, growing: bool = False) -> Any:
        """What to draw from when training on ``device``; this dataset itself unless a class says more."""
        return self

    @abstractmethod
    def get_state(self, *, contents: bool = True) -> State:
        """State of the random generator and, with ``contents``, all that is stored."""

    @abstractmethod
    def set_state(self, state: State) -> None:
        """Go back to a state."""


class ReadBuffer(Draws, ReplayBufferBase):
    """A replay buffer whose minibatches come from a reader."""

    @property
    @abstractmethod
    def reader(self) -> Reader:
        """The way out of the buffer."""

    def draw(self, view: View, count: int) -> Any:
        """Draw a minibatch of ``count`` elements."""
        return self.reader.draw(view, count)

    def draw_one(self, view: TransitionView | TrajectoryView) -> Any:
        """Draw one transition or window through the per-item protocol."""
        return self.reader.draw_one(view)

    def placed_for(self, device: torch.device, *, growing: bool = False) -> Reader:
        """The reader to draw from when training on ``device``; the buffer itself is left as it is.

        On an accelerator it reads a mirror of the steps, which follows what is appended to the buffer:

        - copied to the device, each column in its own dtype, if the data lie in memory and (at the buffer's limit)
          take no more than `birl.dataset.mirror.DEVICE_MEMORY_SHARE` of the device's free memory. Gathers then run
          there, and so do the draws, with a generator of the device's own, seeded by the buffer's and part of the
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

    @property
    def transition_count(self) -> int:
        """Number of steps whose next observation is known: those that can be drawn."""
        return self.reader.transition_count

    @property
    def transition_picker(self) -> TransitionPickerProtocol:
        """Makes transitions of steps."""
        return self.reader.picker

    @property
    def trajectory_slicer(self) -> TrajectorySlicerProtocol:
        """Makes windows of steps."""
        return self.reader.slicer
