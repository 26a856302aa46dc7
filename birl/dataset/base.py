"""What algorithms and loops use of a dataset, whatever it is made of."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from birl.dataset.episode import DatasetInfo, Episode, EpisodeBase, Observation
from birl.dataset.mini_batch import SequenceMiniBatch, TailMiniBatch, TrajectoryMiniBatch, TransitionMiniBatch
from birl.dataset.pickers import TransitionPickerProtocol
from birl.dataset.return_to_go import DiscountedReturns
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.errors import UnsupportedError
from birl.types import Array, Shape, State

if TYPE_CHECKING:
    from birl.dataset.transitions import Window


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

    def all_transitions(self) -> Iterator[Window]:
        """Every transition once, in the order of the episodes, many at a time.

        Raises:
            EmptyDataError: if there is none.
        """
        from birl.dataset.transitions import Transitions  # which makes a ReplayBuffer of other datasets

        return iter(Transitions(self))

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

    def placed_for(self, device: torch.device, *, growing: bool = False) -> ReplayBufferBase:
        """What to draw from when training on ``device``. See `ReplayBuffer.placed_for`."""
        return self

    @abstractmethod
    def get_state(self, *, contents: bool = True) -> State:
        """State of the random generator and, with ``contents``, all that is stored."""

    @abstractmethod
    def set_state(self, state: State) -> None:
        """Go back to a state."""
