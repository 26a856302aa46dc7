"""Views of some lanes of a storage, and copies of them in other processes that receive only changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from birl.dataset.arrays import MemoryPlace
from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.flags import FIRST, HEAD, NO_TRANSITION
from birl.dataset.storage import Storage, StorageView
from birl.errors import UnsupportedError
from birl.types import Array, ArraySpec

MOST_BYTES: Final = 2**26
"""Approximate maximum size of the rows in one `Changes`."""

_ENDS: Final = ("start", "end", "steps", "offset", "open", "pending")


class Changes(NamedTuple):
    """Rows that were written, or a part of them.

    Attributes:
        capacity: rows of each lane.
        leaves: shapes and dtypes of the columns, if all rows in use follow and replace the previous contents; ``None``
            if only some rows have changed.
        ends: arrays ``[lanes]``: where the lanes start and end.
        rows: row numbers ``[R]``.
        flags: flags of the rows, uint8 ``[R]``.
        columns: columns of the rows, ``[R, …]`` by name.
        fine: see `Storage`.
    """

    capacity: int
    leaves: dict[str, ArraySpec] | None
    ends: dict[str, Array]
    rows: Array
    flags: Array
    columns: dict[str, Array]
    fine: frozenset[str]


class LaneView(StorageView):
    """Consecutive lanes of another storage, read in place. `refresh` brings the view up to date.

    Args:
        source: storage in memory or in memory-mapped files.
        first: number of the first lane.
        count: number of lanes.

    Raises:
        UnsupportedError: if the rows are on a device.
    """

    def __init__(self, source: Storage, first: int, count: int) -> None:
        if not isinstance(source.place, MemoryPlace):
            raise UnsupportedError(
                "the lanes of a buffer on a device cannot be divided: make it without storage=, in memory"
            )
        super().__init__(source, source.place)
        self._first, self.lanes, self.device_draws = first, count, False
        self.info, self.limit, self.whole = source.info, source.limit, source.whole
        self.observation_names, self.choices = source.observation_names, source.choices
        self._unsent: list[Array] | None = None  # row numbers; None for all rows
        self.refresh()

    def refresh(self) -> None:
        """Apply the writes to the source since the last call."""
        source = self._parent
        self.fine = source.fine
        if self.version == source.version and self.generation == source.generation:
            return
        for name in _ENDS:
            setattr(self, name, getattr(source, name)[self._first : self._first + self.lanes])
        begin, size = self._first * source.capacity, self.lanes * source.capacity
        flags = source.flags[begin : begin + size]
        if self.generation != source.generation:
            self.capacity, self.leaves = source.capacity, source.leaves
            self.columns = {name: column[begin : begin + size] for name, column in source.columns.items()}
            self.flags = self.device_flags = flags.copy()
            self.transition_count, self.episode_count = count_rows(flags)
            self._unsent = None
        elif self.written:
            rows = np.unique(np.concatenate(self.written)) - begin
            rows = rows[(rows >= 0) & (rows < size)]
            count_change(self, rows, flags[rows])
            self.flags[rows] = flags[rows]
            if self._unsent is not None:
                self._unsent.append(rows)
        self.written = []
        self.version, self.generation = source.version, source.generation

    def changes(self, whole: bool = False) -> Iterator[Changes]:
        """Yield the rows written since the last call, in parts; all rows if ``whole``, or if rows have new numbers."""
        self.refresh()
        whole = whole or self._unsent is None
        unsent = [] if self._unsent is None else self._unsent
        rows = self.rows(*self.live()) if whole else np.unique(np.concatenate([np.zeros(0, np.int64), *unsent]))
        self._unsent = []
        leaves = dict(self.leaves) if whole else None
        ends = {name: getattr(self, name).copy() for name in _ENDS}
        bytes_each = 1 + sum(column[:1].nbytes for column in self.columns.values())
        count = max(1, MOST_BYTES // bytes_each)
        for begin in range(0, max(len(rows), 1), count):
            part = rows[begin : begin + count]
            columns = {name: np.array(column[part]) for name, column in self.columns.items()}
            self._parent.check_rows()
            yield Changes(
                self.capacity, leaves if begin == 0 else None, ends, part, self.flags[part], columns, self.fine
            )


class LaneCopy(Storage):
    """A copy of lanes of a storage in another process.

    Args:
        info: shapes and dtypes of steps, and the kind of actions.
        lanes: number of lanes.
        limit: limit of the original storage.
    """

    def __init__(self, info: DatasetInfo, lanes: int, limit: int | None) -> None:
        super().__init__(info, lanes=lanes)
        self.limit = limit

    def apply(self, changes: Changes) -> None:
        """Apply changes of the original lanes."""
        if changes.leaves is not None:
            self.leaves, self.capacity = changes.leaves, changes.capacity
            self.columns = {name: self._allocate(name) for name in self.leaves}
            self._allocate_flags()
            self.transition_count = self.episode_count = 0
            self.generation += 1
        self.fine = changes.fine
        count_change(self, changes.rows, changes.flags)
        self.set_flags(changes.rows, changes.flags)
        for name, column in changes.columns.items():
            self.place.put(self.columns[name], changes.rows, column)
        for name, value in changes.ends.items():
            setattr(self, name, value)
        self.version += 1


def count_change(storage: Storage, rows: Array, flags: Array) -> None:
    """Update the numbers of transitions and episodes of a storage whose ``rows`` are about to get other flags."""
    before, after = count_rows(storage.flags[rows]), count_rows(flags)
    storage.transition_count += after[0] - before[0]
    storage.episode_count += after[1] - before[1]


def count_rows(flags: Array) -> tuple[int, int]:
    """Return the numbers of transitions and episodes in rows with these flags; each episode has one first row."""
    return int(np.count_nonzero((flags & NO_TRANSITION) == 0)), int(np.count_nonzero(flags & (FIRST | HEAD)))
