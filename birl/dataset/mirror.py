"""A replay buffer as a training device sees it: its rows copied there, or gathered into pinned memory.

The buffer that the user made stays where it is and receives what is written. The loops draw from what
`ReplayBuffer.placed_for` returns, which follows it.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

import numpy as np
import torch

from birl.dataset import arrays as places
from birl.dataset.arrays import MemoryPlace, PinnedPlace, TorchPlace
from birl.dataset.folders import get_generator_state, set_generator_state
from birl.dataset.pickers import is_vectorised
from birl.dataset.replay_buffer import ReplayBuffer
from birl.dataset.sampling import device_generator
from birl.dataset.storage import Storage
from birl.types import Array, State

DEVICE_MEMORY_SHARE: Final = 0.5
"""Share of a device's free memory that the copy of a dataset may take. The rest is for networks and batches."""

_MANY: Final = 4096  # writes that are remembered one by one
_FOLLOWED: Final = (
    *("lanes", "limit", "capacity", "leaves", "observation_names", "flags"),
    *("start", "end", "steps", "offset", "open", "pending", "transition_count", "episode_count", "version"),
    "generation",
)


class Follower(Storage):
    """The rows of another storage as a place has them. Only read; `refresh` brings it up to date.

    Args:
        source: the storage that is followed.
        place: `TorchPlace` for a copy on its device, else the source's own arrays are read.
        growing: whether the source is written to between draws. If not, rows are drawn on the device.
    """

    def __init__(self, source: Storage, place: MemoryPlace | TorchPlace, *, growing: bool) -> None:
        self._source, self.place = source, place
        self.device_draws = place.device is not None and not growing
        self.torch_generator = None
        self._cache, self._generation = {}, -1
        self.followers = []
        self.written: list[Array] = []
        self.columns, self.version = {}, -1
        source.followers.append(weakref.ref(self, source.followers.remove))
        self.refresh()

    def note(self, rows: Array) -> None:
        """These rows of the source have been written."""
        self.written.append(rows)
        if len(self.written) > _MANY:
            self.written = [np.unique(np.concatenate(self.written))]

    def refresh(self) -> None:
        """Take over what has been written to the source."""
        source = self._source
        if self.version == source.version and self._generation == source.generation:
            return
        for name in _FOLLOWED:
            setattr(self, name, getattr(source, name))
        if not isinstance(self.place, TorchPlace):
            self.columns, self.device_flags = source.columns, source.flags
        elif self._generation != source.generation:
            self.columns = {}  # the old copies are given back before new ones are made
            self.columns = {name: self.place.send(column) for name, column in source.columns.items()}
            self.device_flags = self.place.send(source.flags)
        elif self.written:
            rows = np.unique(np.concatenate(self.written))
            index = self.place.indices(rows)
            for name, column in source.columns.items():
                self.columns[name][index] = self.place.send(column[rows])
            self.device_flags[index] = self.place.send(source.flags[rows])
        self.written, self._generation = [], source.generation


class PlacedReplayBuffer(ReplayBuffer):
    """A replay buffer whose batches come from a `Follower` of its rows. All else is that of the buffer itself.

    Args:
        source: the buffer. Steps that are appended here go there.
        place: where batches come from.
        growing: see `Follower`.
    """

    def __init__(self, source: ReplayBuffer, place: MemoryPlace | TorchPlace, *, growing: bool = False) -> None:
        self.__dict__.update(source.__dict__)  # the same parts, storage and generator
        self._source = source
        self._reader = self._follower = Follower(source.storage, place, growing=growing)

    @property
    def device_generator(self) -> torch.Generator | None:
        """What batches are drawn with if they are made on the device altogether, else ``None``."""
        follower = self._follower
        return device_generator(follower, self._generator) if follower.device_draws else None

    def _rows(self, count: int, part: Any, *, any_step: bool = False) -> Any:
        follower = self._follower
        follower.refresh()
        if follower.device_draws:
            return self._rows_of(follower, count, part, any_step)
        return follower.place.indices(self._rows_of(self._storage, count, part, any_step))

    # -- writing and state: the buffer's own -----------------------------------------------------------------------

    def append(self, *args: Any, **options: Any) -> None:
        """See `ReplayBuffer.append`."""
        self._source.append(*args, **options)

    def append_batch(self, *args: Any, **options: Any) -> None:
        """See `ReplayBuffer.append_batch`."""
        self._source.append_batch(*args, **options)

    def append_episode(self, *args: Any, **options: Any) -> None:
        """See `ReplayBuffer.append_episode`."""
        self._source.append_episode(*args, **options)

    def clip_episode(self, *args: Any, **options: Any) -> None:
        """See `ReplayBuffer.clip_episode`."""
        self._source.clip_episode(*args, **options)

    def flush(self) -> None:
        """See `ReplayBuffer.flush`."""
        self._source.flush()

    def get_state(self, *, contents: bool = True) -> State:
        """State of the buffer and of the device's generator."""
        return {**self._source.get_state(contents=contents), **get_generator_state(self._follower)}

    def set_state(self, state: State) -> None:
        """See `ReplayBuffer.set_state`. On another kind of device the draws begin anew."""
        rest = dict(state)
        rest.pop("torch_generator", None)
        self._source.set_state(rest)
        self._size = self._source._size
        set_generator_state(self._follower, state)


def place_together(buffers: list[tuple[ReplayBuffer, bool]], device: torch.device) -> list[PlacedReplayBuffer] | None:
    """All of the buffers, each with whether it grows, in the same kind of place; ``None`` to leave them.

    See `ReplayBuffer.placed_for`.
    """
    if not all(_batches(buffer) for buffer, _ in buffers):
        return None
    if all(_sized(buffer, growing) for buffer, growing in buffers):
        needed = sum(buffer.storage.full_nbytes for buffer, _ in buffers)
        if needed <= DEVICE_MEMORY_SHARE * places.free_device_memory(device):
            return [PlacedReplayBuffer(buffer, TorchPlace(device), growing=growing) for buffer, growing in buffers]
    if device.type == "cuda":
        return [PlacedReplayBuffer(buffer, PinnedPlace(), growing=True) for buffer, _ in buffers]
    return None


def _batches(buffer: ReplayBuffer) -> bool:
    """Whether batches are gathered from numpy arrays: not one by one, nor on a device already."""
    vectorised = is_vectorised(buffer.transition_picker) and is_vectorised(buffer.trajectory_slicer, ("batch",))
    return vectorised and isinstance(buffer.storage.place, MemoryPlace)


def _sized(buffer: ReplayBuffer, growing: bool) -> bool:
    """Whether it lies in memory and its size is known beforehand."""
    return type(buffer.storage.place) is MemoryPlace and not (growing and buffer.storage.limit is None)
