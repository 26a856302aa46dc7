"""Two replay buffers drawn from as one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import torch

from birl.checks import check
from birl.dataset.base import ReplayBufferBase
from birl.dataset.buffers import BufferProtocol
from birl.dataset.episode import DatasetInfo, Episode
from birl.dataset.hdf5 import dump
from birl.dataset.minibatch import TransitionMiniBatch
from birl.dataset.mirror import place_near
from birl.dataset.reader import Reader, StorageReader
from birl.dataset.replay_buffer import ReplayBuffer
from birl.dataset.sampling import Generators
from birl.dataset.views import TrajectoryView, TransitionView, View
from birl.errors import ConfigError, ShapeError
from birl.types import Array, Shape, State


class MixedReader(Reader):
    """Draws a fixed share of each minibatch from a second reader.

    While one of them has no transition yet, the other gives whole minibatches.

    Args:
        primary: first reader.
        secondary: second reader.
        ratio: share of the second one, in [0, 1], rounded to whole elements of a minibatch.
        generators: choose a reader for single elements; new ones if ``None``.
    """

    def __init__(
        self, primary: StorageReader, secondary: StorageReader, ratio: float, generators: Generators | None = None
    ) -> None:
        self.primary, self.secondary, self.ratio = primary, secondary, ratio
        self.picker, self.slicer = primary.picker, primary.slicer
        self.generators = generators or Generators()

    def renewed(self) -> MixedReader:
        return MixedReader(self.primary.renewed(), self.secondary.renewed(), self.ratio)

    def near(self, device: torch.device, *, growing: bool = False) -> MixedReader:
        """See `Reader.near`. Both are placed alike; only the first one is ever ``growing``."""
        first, second = self.primary, self.secondary
        place = place_near([(first.storage, growing), (second.storage, False)], device)
        if place is None or not (first.vectorised and second.vectorised):
            return self
        first, second = first.mirrored(place, growing=growing), second.mirrored(place)
        return MixedReader(first, second, self.ratio, self.generators)

    def draw(self, view: View, count: int, beside: Sequence[MixedReader] = ()) -> Any:
        """See `Reader.draw`. A part without elements is left out."""
        parts = [part for reader in (self, *beside) for part in reader._parts(view, count)]
        return parts[0] if len(parts) == 1 else parts[0].concatenate(*parts[1:])

    def _parts(self, view: View, count: int) -> list[Any]:
        second = round(count * self._share())
        shares = ((self.primary, count - second), (self.secondary, second))
        return [reader.draw(view, number) for reader, number in shares if number]

    def draw_one(self, view: TransitionView | TrajectoryView) -> Any:
        """Draw one element, from the second reader with the probability of its share."""
        second = self.generators.host.random() < self._share()
        return (self.secondary if second else self.primary).draw_one(view)

    def _share(self) -> float:
        """Share of the second reader: 0 or 1 while one of the two has nothing to draw."""
        if not 0.0 < self.ratio < 1.0 or (self.primary.transition_count and self.secondary.transition_count):
            return self.ratio
        return 0.0 if self.primary.transition_count else 1.0

    @property
    def transition_count(self) -> int:
        """Number of transitions in both."""
        return self.primary.transition_count + self.secondary.transition_count

    def walk(self, initial: bool = False, first_episode: int = 0) -> Iterator[TransitionMiniBatch]:
        yield from self.primary.walk(initial, first_episode)
        yield from self.secondary.walk(initial, first_episode + self.primary.storage.source.episode_count)

    def episode_returns(self) -> Array:
        """Undiscounted return ``[E]`` of every episode of the first, then of the second reader."""
        return np.concatenate([self.primary.episode_returns(), self.secondary.episode_returns()])

    def get_state(self, *, contents: bool = False) -> State:
        """States of both, and of the generator that chooses one."""
        parts = {"primary": self.primary.get_state(), "secondary": self.secondary.get_state()}
        return {**self.generators.get_state(), **parts}

    def set_state(self, state: State) -> None:
        self.generators.set_state(state, None)
        self.primary.set_state(state["primary"])
        self.secondary.set_state(state["secondary"])


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
        first, second = primary_replay_buffer.dataset_info, secondary_replay_buffer.dataset_info
        shapes = (primary_replay_buffer.observation_shape, first.action_signature.shape, first.action_space)
        others = (secondary_replay_buffer.observation_shape, second.action_signature.shape, second.action_space)
        if shapes != others:
            raise ShapeError(
                f"the buffers hold different data, {shapes} and {others}: observations and actions must agree"
            )
        self._primary, self._secondary = primary_replay_buffer, secondary_replay_buffer
        self._reader = MixedReader(self._primary.reader, self._secondary.reader, ratio)

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
        return self._reader.ratio

    @property
    def reader(self) -> MixedReader:
        """The reader of both buffers."""
        return self._reader

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(self, *args: Any, **options: Any) -> None:
        """Add one step to the first buffer. See `ReplayBuffer.append`."""
        self._primary.append(*args, **options)

    def append_batch(self, *args: Any, **options: Any) -> None:
        """Add steps of parallel environments to the first buffer. See `ReplayBuffer.append_batch`."""
        self._primary.append_batch(*args, **options)

    def append_episode(self, *args: Any, **options: Any) -> None:
        """Add an episode to the first buffer. See `ReplayBuffer.append_episode`."""
        self._primary.append_episode(*args, **options)

    def clip_episode(self, *args: Any, **options: Any) -> None:
        """End the running episode of the first buffer. See `ReplayBuffer.clip_episode`."""
        self._primary.clip_episode(*args, **options)

    # -- what is there ---------------------------------------------------------------------------------------------

    @property
    def episodes(self) -> Sequence[Episode]:
        """Episodes of the first, then of the second buffer."""
        return [*self._primary.episodes, *self._secondary.episodes]

    def size(self) -> int:
        """Number of episodes in both."""
        return self._primary.size() + self._secondary.size()

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
    def buffer(self) -> BufferProtocol:
        """That of the first buffer."""
        return self._primary.buffer

    def dump(self, f: BinaryIO | str | os.PathLike[str]) -> None:
        """Write the episodes of both."""
        dump(self.episodes, f, self.dataset_info)

    def get_state(self, *, contents: bool = True) -> State:
        """States of both. The second buffer is only read: its contents are not part of it."""
        return {**self._reader.get_state(), "primary": self._primary.get_state(contents=contents)}

    def set_state(self, state: State) -> None:
        """Go back to a state."""
        self._primary.set_state(state["primary"])
        self._reader.set_state(state)


def _targets(buffer: ReplayBuffer) -> tuple[int, float | None]:
    """Number of steps in a target, and the discount if there are several."""
    n_steps = getattr(buffer.transition_picker, "n_steps", 1)
    return n_steps, getattr(buffer.transition_picker, "gamma", None) if n_steps > 1 else None
