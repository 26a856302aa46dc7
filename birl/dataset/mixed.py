"""Two replay buffers drawn from as one."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import torch

from birl.dataset.base import ReplayBufferBase
from birl.dataset.buffers import BufferProtocol
from birl.dataset.episode import DatasetInfo, Episode, EpisodeBase, Observation, PartialTrajectory, Transition
from birl.dataset.mini_batch import SequenceMiniBatch, TailMiniBatch, TrajectoryMiniBatch, TransitionMiniBatch
from birl.dataset.pickers import TransitionPickerProtocol
from birl.dataset.replay_buffer import ReplayBuffer
from birl.dataset.return_to_go import DiscountedReturns
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.errors import ConfigError, ShapeError
from birl.seeding import new_generator
from birl.types import Array, Shape, State


class MixedReplayBuffer(ReplayBufferBase):
    """Draws a fixed share of each minibatch from a second buffer. New steps go to the first.

    While one of them holds no transition yet, the other gives whole minibatches.

    Args:
        primary_replay_buffer: receives what is appended.
        secondary_replay_buffer: for instance a logged dataset.
        secondary_mix_ratio: share of the second buffer, in [0, 1], rounded to whole elements of a minibatch.

    Raises:
        ShapeError: if observations or actions differ.
        ConfigError: if the ratio is out of range, or targets of several steps are made in different ways.
    """

    def __init__(
        self,
        primary_replay_buffer: ReplayBuffer,
        secondary_replay_buffer: ReplayBuffer,
        secondary_mix_ratio: float,
    ) -> None:
        if not 0.0 <= secondary_mix_ratio <= 1.0:
            raise ConfigError(f"secondary_mix_ratio={secondary_mix_ratio}, allowed are numbers from 0 to 1")
        for buffer in (primary_replay_buffer, secondary_replay_buffer):
            if not isinstance(buffer, ReplayBuffer):
                raise ConfigError(f"{type(buffer).__name__} cannot be mixed, allowed are ReplayBuffer and MDPDataset")
        targets = [_targets(primary_replay_buffer), _targets(secondary_replay_buffer)]
        if targets[0] != targets[1]:
            raise ConfigError(
                "the buffers' transition pickers make targets of {} steps with gamma={}, and of {} with gamma={}: give "
                "both the same transition_picker".format(*targets[0], *targets[1])
            )
        first, second = primary_replay_buffer.dataset_info, secondary_replay_buffer.dataset_info
        shapes = (primary_replay_buffer.observation_shape, first.action_signature.shape, first.action_space)
        others = (secondary_replay_buffer.observation_shape, second.action_signature.shape, second.action_space)
        if shapes != others:
            raise ShapeError(
                f"the buffers hold different data, {shapes} and {others}: observations and actions must agree"
            )
        self._primary, self._secondary, self._ratio = (
            primary_replay_buffer,
            secondary_replay_buffer,
            float(secondary_mix_ratio),
        )
        self._generator = new_generator()

    @property
    def primary_replay_buffer(self) -> ReplayBuffer:
        """The buffer that receives new steps."""
        return self._primary

    @property
    def secondary_replay_buffer(self) -> ReplayBuffer:
        """The buffer that is only read."""
        return self._secondary

    @property
    def secondary_mix_ratio(self) -> float:
        """Share of the second buffer."""
        return self._ratio

    def with_parts(self, primary: ReplayBuffer, secondary: ReplayBuffer) -> MixedReplayBuffer:
        """The same mixture, with the same generator, of other buffers."""
        mixed = copy.copy(self)
        mixed._primary, mixed._secondary = primary, secondary
        return mixed

    def placed_for(self, device: torch.device, *, growing: bool = False) -> ReplayBufferBase:
        """As `ReplayBuffer.placed_for`, of both buffers alike; only the first one is ever ``growing``."""
        from birl.dataset.mirror import place_together

        placed = place_together([(self._primary, growing), (self._secondary, False)], device)
        return self if placed is None else self.with_parts(*placed)

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(
        self,
        observation: Observation,
        action: Any,
        reward: Any,
        *,
        extra: Mapping[str, Any] | None = None,
        lane: int = 0,
    ) -> None:
        """Add one step to the first buffer."""
        self._primary.append(observation, action, reward, extra=extra, lane=lane)

    def append_batch(self, *args: Any, **options: Any) -> None:
        """Add steps of parallel environments to the first buffer. See `ReplayBuffer.append_batch`."""
        self._primary.append_batch(*args, **options)

    def append_episode(self, episode: EpisodeBase) -> None:
        """Add an episode to the first buffer."""
        self._primary.append_episode(episode)

    def clip_episode(
        self, terminated: bool, *, truncated: bool | None = None, final_observation: Observation = None, lane: int = 0
    ) -> None:
        """End the running episode of the first buffer."""
        self._primary.clip_episode(terminated, truncated=truncated, final_observation=final_observation, lane=lane)

    # -- sampling --------------------------------------------------------------------------------------------------

    def _split(self, batch_size: int, *args: Any, method: str) -> Any:
        """Draw both parts and join them; a part of size zero is left out."""
        second = round(batch_size * self._share())
        parts = [
            getattr(buffer, method)(count, *args)
            for buffer, count in ((self._primary, batch_size - second), (self._secondary, second))
            if count
        ]
        return parts[0] if len(parts) == 1 else parts[0].concatenate(parts[1])

    def _share(self) -> float:
        """Share of the second buffer, as far as there is something to draw."""
        if not 0.0 < self._ratio < 1.0 or (self._primary.transition_count and self._secondary.transition_count):
            return self._ratio
        return 0.0 if self._primary.transition_count else 1.0

    def _either(self) -> ReplayBuffer:
        return self._secondary if self._generator.random() < self._share() else self._primary

    def sample_transition(self) -> Transition:
        """Draw one transition, from the second buffer with probability ``secondary_mix_ratio``."""
        return self._either().sample_transition()

    def sample_transition_batch(
        self, batch_size: int, next_actions: bool = False, returns: DiscountedReturns | None = None
    ) -> TransitionMiniBatch:
        """Draw transitions from both."""
        batch: TransitionMiniBatch = self._split(batch_size, next_actions, returns, method="sample_transition_batch")
        return batch

    def sample_trajectory(self, length: int) -> PartialTrajectory:
        """Draw one window, from the second buffer with probability ``secondary_mix_ratio``."""
        return self._either().sample_trajectory(length)

    def sample_trajectory_batch(self, batch_size: int, length: int) -> TrajectoryMiniBatch:
        """Draw windows from both."""
        batch: TrajectoryMiniBatch = self._split(batch_size, length, method="sample_trajectory_batch")
        return batch

    def sample_sequence_batch(
        self,
        batch_size: int,
        length: int,
        burn_in: int = 0,
        next_actions: bool = False,
        returns: DiscountedReturns | None = None,
    ) -> SequenceMiniBatch:
        """Draw sequences from both. Start states are kept if both buffers have them."""
        batch: SequenceMiniBatch = self._split(
            batch_size, length, burn_in, next_actions, returns, method="sample_sequence_batch"
        )
        return batch

    def sample_tail_batch(self, batch_size: int) -> TailMiniBatch:
        """Draw transitions from both, with the rest of their episodes."""
        batch: TailMiniBatch = self._split(batch_size, method="sample_tail_batch")
        return batch

    # -- what is there ---------------------------------------------------------------------------------------------

    @property
    def episodes(self) -> Sequence[Episode]:
        """Episodes of the first, then of the second buffer."""
        return [*self._primary.episodes, *self._secondary.episodes]

    def size(self) -> int:
        """Number of episodes in both."""
        return self._primary.size() + self._secondary.size()

    @property
    def transition_count(self) -> int:
        """Number of transitions in both."""
        return self._primary.transition_count + self._secondary.transition_count

    @property
    def step_count(self) -> int:
        """Number of steps in both."""
        return self._primary.step_count + self._secondary.step_count

    @property
    def dataset_info(self) -> DatasetInfo:
        """That of the first buffer, with the larger number of actions."""
        first, size = self._primary.dataset_info, self._secondary.dataset_info.action_size
        parts = (first.observation_signature, first.action_signature, first.reward_signature, first.action_space)
        return DatasetInfo(*parts, max(first.action_size, size))

    def action_bounds(self) -> tuple[Array, Array]:
        """Least and greatest actions ``[A]`` of all steps in both."""
        (low, high), (lower, higher) = self._primary.action_bounds(), self._secondary.action_bounds()
        return np.minimum(low, lower), np.maximum(high, higher)

    @property
    def observation_shape(self) -> Shape:
        """Shape (or tree of shapes) of sampled observations."""
        return self._primary.observation_shape

    @property
    def transition_picker(self) -> TransitionPickerProtocol:
        """That of the first buffer."""
        return self._primary.transition_picker

    @property
    def trajectory_slicer(self) -> TrajectorySlicerProtocol:
        """That of the first buffer."""
        return self._primary.trajectory_slicer

    @property
    def buffer(self) -> BufferProtocol:
        """That of the first buffer."""
        return self._primary.buffer

    def dump(self, f: BinaryIO | str | os.PathLike[str]) -> None:
        """Write the episodes of both."""
        from birl.dataset.hdf5 import dump

        dump(self.episodes, f, self.dataset_info)

    def get_state(self, *, contents: bool = True) -> State:
        """States of both. The second buffer is only read: its contents are not part of it."""
        return {
            "generator": self._generator.bit_generator.state,
            "primary": self._primary.get_state(contents=contents),
            "secondary": self._secondary.get_state(contents=False),
        }

    def set_state(self, state: State) -> None:
        """Go back to a state."""
        self._generator.bit_generator.state = state["generator"]
        self._primary.set_state(state["primary"])
        self._secondary.set_state(state["secondary"])


def _targets(buffer: ReplayBuffer) -> tuple[int, float | None]:
    """Number of steps in a target, and the discount if there are several."""
    n_steps = getattr(buffer.transition_picker, "n_steps", 1)
    return n_steps, getattr(buffer.transition_picker, "gamma", None) if n_steps > 1 else None
