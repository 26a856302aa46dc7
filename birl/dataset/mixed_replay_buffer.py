"""Two replay buffers drawn from as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from birl.checks import check
from birl.dataset.base import ReplayBufferBase
from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.reader import Reader
from birl.dataset.replay_buffer import ReplayBuffer
from birl.dataset.sampling import Generators
from birl.errors import ConfigError, ShapeError
from birl.spaces.observations import wider
from birl.types import Shape, State


class MixedReplayBuffer(ReplayBufferBase):
    """Draws a fixed share of each minibatch from a second buffer. New steps go to the first.

    While one of them holds no transition yet, the other gives whole minibatches.

    Args:
        primary_replay_buffer: receives what is appended.
        secondary_replay_buffer: for instance a logged dataset.
        secondary_mix_ratio: share of the second buffer, in [0, 1], rounded to whole elements of a minibatch.

    Attributes:
        buffer: that of the first buffer.

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
        ratio = float(check("secondary_mix_ratio", secondary_mix_ratio, float, low=0, high=1))
        for buffer in (primary_replay_buffer, secondary_replay_buffer):
            if not isinstance(buffer, ReplayBuffer):
                raise ConfigError(f"a {type(buffer).__name__} cannot be mixed; it must be a ReplayBuffer or MDPDataset")
        targets = [_targets(primary_replay_buffer), _targets(secondary_replay_buffer)]
        if targets[0] != targets[1]:
            raise ConfigError(
                "the buffers' transition pickers make targets of {} steps with gamma={}, and of {} with gamma={}: give "
                "both the same transition_picker".format(*targets[0], *targets[1])
            )
        changes = [each.reader.sources[0].augmentation for each in (primary_replay_buffer, secondary_replay_buffer)]
        if changes[0] != changes[1]:
            raise ConfigError(f"the buffers' augmentations are {changes[0]} and {changes[1]}: give both the same one")
        first, second = primary_replay_buffer.dataset_info, secondary_replay_buffer.dataset_info
        shapes = (primary_replay_buffer.observation_shape, first.action_signature.shape, first.action_space)
        others = (secondary_replay_buffer.observation_shape, second.action_signature.shape, second.action_space)
        if shapes != others:
            raise ShapeError(
                f"the buffers hold different data, {shapes} and {others}: observations and actions must agree"
            )
        self.primary_replay_buffer, self.secondary_replay_buffer = primary_replay_buffer, secondary_replay_buffer
        self.buffer = primary_replay_buffer.buffer
        sources = [*primary_replay_buffer.reader.sources, *secondary_replay_buffer.reader.sources]
        self.reader = Reader(sources, ratio, Generators())

    @property
    def secondary_mix_ratio(self) -> float:
        """Share of the second buffer."""
        return self.reader.ratio

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(self, *args: Any, **options: Any) -> None:
        """Add one step to the first buffer. See `ReplayBuffer.append`."""
        self.primary_replay_buffer.append(*args, **options)

    def append_batch(self, *args: Any, **options: Any) -> None:
        """Add steps of parallel environments to the first buffer. See `ReplayBuffer.append_batch`."""
        self.primary_replay_buffer.append_batch(*args, **options)

    def append_episode(self, *args: Any, **options: Any) -> None:
        """Add an episode to the first buffer. See `ReplayBuffer.append_episode`."""
        self.primary_replay_buffer.append_episode(*args, **options)

    def clip_episode(self, *args: Any, **options: Any) -> None:
        """End the running episode of the first buffer. See `ReplayBuffer.clip_episode`."""
        self.primary_replay_buffer.clip_episode(*args, **options)

    # -- what is there ---------------------------------------------------------------------------------------------

    @property
    def dataset_info(self) -> DatasetInfo:
        """That of the first buffer, with the choices of both among observations, and the larger number of actions."""
        first, second = self.primary_replay_buffer.dataset_info, self.secondary_replay_buffer.dataset_info
        size, observations = first.actions.wider(second.actions).told, wider(first.observations, second.observations)
        return replace(first, action_size=size, observations=observations)

    @property
    def observation_shape(self) -> Shape:
        """Shape (or tree of shapes) of sampled observations."""
        return self.primary_replay_buffer.observation_shape

    def get_state(self, *, contents: bool = True) -> State:
        """States of both. The second buffer is only read: its contents are not part of it."""
        return {**self.reader.get_state(), "primary": self.primary_replay_buffer.get_state(contents=contents)}

    def set_state(self, state: State) -> None:
        """Go back to a state."""
        self.primary_replay_buffer.set_state(state["primary"])
        self.reader.set_state(state)


def _targets(buffer: ReplayBuffer) -> tuple[int, float | None]:
    """Number of steps in a target, and the discount if there are several."""
    n_steps = getattr(buffer.transition_picker, "n_steps", 1)
    return n_steps, getattr(buffer.transition_picker, "gamma", None) if n_steps > 1 else None
