"""A replay buffer that samples from two others."""

from __future__ import annotations

from dataclasses import replace

from birl.checks import check
from birl.dataset.base import ReplayBufferBase
from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.reader import Reader
from birl.dataset.replay_buffer import ReplayBuffer
from birl.dataset.sampling import Generators
from birl.errors import ConfigError, ShapeError
from birl.spaces.observations import merge_columns, widen_observations
from birl.types import Shape, State


class MixedReplayBuffer(ReplayBufferBase):
    """A replay buffer that samples a fixed share of each minibatch from a second one. New steps go to the first one.

    While one of them has no transition yet, minibatches come from the other one alone.

    Args:
        primary_replay_buffer: buffer that new steps are appended to.
        secondary_replay_buffer: another buffer, such as a logged dataset.
        secondary_mix_ratio: share of the second buffer, in [0, 1], rounded to whole elements of a minibatch.

    Attributes:
        buffer: the retention of the first buffer.

    Raises:
        ShapeError: if observations or actions differ.
        ConfigError: if the ratio is out of range, or the buffers compute n-step targets differently.
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
        sources = [*primary_replay_buffer.reader.sources, *secondary_replay_buffer.reader.sources]
        augmentations = [source.augmentation for source in sources]
        if augmentations[0] != augmentations[1]:
            raise ConfigError(
                f"the buffers' augmentations are {augmentations[0]} and {augmentations[1]}: give both the same one"
            )
        first, second = primary_replay_buffer.dataset_info, secondary_replay_buffer.dataset_info
        shapes = (primary_replay_buffer.observation_shape, first.action_signature.shape, first.action_space)
        others = (secondary_replay_buffer.observation_shape, second.action_signature.shape, second.action_space)
        if shapes != others:
            raise ShapeError(
                f"the buffers hold different data, {shapes} and {others}: observations and actions must agree"
            )
        merge_columns(first.columns, second.columns, "the first buffer", "the second one")
        self.primary_replay_buffer, self.secondary_replay_buffer = primary_replay_buffer, secondary_replay_buffer
        self.buffer, self.target = primary_replay_buffer.buffer, primary_replay_buffer.target
        self.reader = Reader(sources, ratio, Generators())

    @property
    def secondary_mix_ratio(self) -> float:
        """Share of the second buffer."""
        return self.reader.ratio

    @property
    def dataset_info(self) -> DatasetInfo:
        """The info of the first buffer, with the options of observations and actions of both."""
        first, second = self.primary_replay_buffer.dataset_info, self.secondary_replay_buffer.dataset_info
        size, observations = (
            first.actions.widen(second.actions).size_argument,
            widen_observations(first.observations, second.observations),
        )
        return replace(first, action_size=size, observations=observations, columns={**first.columns, **second.columns})

    @property
    def observation_shape(self) -> Shape:
        """Shape (or tree of shapes) of sampled observations."""
        return self.primary_replay_buffer.observation_shape

    def get_state(self, *, contents: bool = True) -> State:
        """Return the states of both. The second buffer is only read, so its contents are not included."""
        return {**self.reader.get_state(), "primary": self.primary_replay_buffer.get_state(contents=contents)}

    def set_state(self, state: State) -> None:
        """Restore a state."""
        self.primary_replay_buffer.set_state(state["primary"])
        self.reader.set_state(state)


def _targets(buffer: ReplayBuffer) -> tuple[int, float | None]:
    """Return the number of steps in a target, and the discount factor if there are several."""
    n_steps = getattr(buffer.transition_picker, "n_steps", 1)
    return n_steps, getattr(buffer.transition_picker, "gamma", None) if n_steps > 1 else None
