"""Mirrors of a storage for a training device: copies on the device, or readers that use pinned memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from birl.dataset import arrays
from birl.dataset.arrays import AnyPlace, MemoryPlace, PinnedPlace, TorchPlace
from birl.dataset.storage import Storage, StorageView

DEVICE_MEMORY_SHARE: Final = 0.5
"""Maximum share of a device's free memory for the copy of a dataset. The rest is for networks and batches."""

_MIRRORED: Final = (
    *("info", "lanes", "limit", "capacity", "leaves", "observation_names", "fine", "flags"),
    *("start", "end", "steps", "offset", "open", "pending", "transition_count", "episode_count", "version"),
    "generation",
)


class Mirror(StorageView):
    """A read-only mirror of another storage. `refresh` copies the rows that were written since the last call.

    Args:
        source: the mirrored storage.
        place: a `TorchPlace` for a copy on its device; with another place, the source's own arrays are read.
        growing: whether the source is written to between minibatches. If not, rows are drawn on the device.
    """

    def __init__(self, source: Storage, place: AnyPlace, *, growing: bool) -> None:
        super().__init__(source, place)
        self.device_draws = place.device is not None and not growing
        self.columns = {}
        self.refresh()

    @property
    def source(self) -> Storage:
        """The mirrored storage."""
        return self._parent

    def refresh(self) -> None:
        """Copy the rows that were written to the source since the last call."""
        source = self._parent
        if not isinstance(self.place, TorchPlace):
            source.refresh()
        moved = self.generation != source.generation
        if self.version == source.version and not moved:
            return
        for name in _MIRRORED:
            setattr(self, name, getattr(source, name))
        if not isinstance(self.place, TorchPlace):
            self.columns, self.device_flags = source.columns, source.flags
            self.check_overwritten = source.check_overwritten
        elif moved:
            self.columns = {}  # frees the old copies before new ones are made
            self.columns = {name: self.place.send(column) for name, column in source.columns.items()}
            self.device_flags = self.place.send(source.flags)
            source.check_rows()
        elif self.written:
            rows = np.unique(np.concatenate(self.written))
            index = self.place.indices(rows)
            for name, column in source.columns.items():
                self.columns[name][index] = self.place.send(column[rows])
            self.device_flags[index] = self.place.send(source.flags[rows])
        self.written = []


def place_near(storages: Sequence[tuple[Storage, bool]], device: torch.device) -> AnyPlace | None:
    """Return the place for mirrors of all storages near ``device``; ``None`` to read the storages themselves.

    Args:
        storages: storages, each with whether it grows between minibatches.
        device: the training device.
    """
    if not all(isinstance(storage.place, MemoryPlace) for storage, _ in storages):
        return None
    # The final size is known for data in memory that do not grow without a limit.
    if all(type(each.place) is MemoryPlace and not (growing and each.limit is None) for each, growing in storages):
        needed = sum(storage.full_nbytes for storage, _ in storages)
        if needed <= DEVICE_MEMORY_SHARE * arrays.free_device_memory(device):
            return TorchPlace(device)
    return PinnedPlace() if device.type == "cuda" else None
