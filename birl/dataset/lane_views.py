"""Some lanes of a storage: read in place, and copied to other processes by what has changed."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from birl.dataset.arrays import MemoryPlace
from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.flags import FIRST, HEAD, NO_TRANSITION
from birl.dataset.storage import Storage
from birl.errors import UnsupportedError
from birl.types import Array, Leaf

MOST_BYTES: Final = 2**26
"""Of rows in one of the `Changes`, about."""

_ENDS: Final = ("start", "end", "steps", "offset", "open", "pending")


class Changes(NamedTuple):
    """Rows that were written, or a part of them.

    Attributes:
        capacity: rows of each lane.
        leaves: of the columns, if all rows in use follow and replace what was there; ``None`` if only those changed.
        ends: arrays ``[lanes]`` that say where the lanes begin and end.
        rows: numbers ``[R]`` of the rows.
        flags: theirs, uint8 ``[R]``.
        columns: theirs, ``[R, …]`` by name.
    """

    capacity: int
    leaves: dict[str, Leaf] | None
    ends: dict[str, Array]
    rows: Array
    flags: Array
    columns: dict[str, Array]


class Lanes(Storage):
    """Neighbouring lanes of another storage, read in place; `refresh` brings it up to date.

    Args:
        source: storage in memory, or in files mapped into it.
        first: number of the first of the lanes.
        count: number of lanes.

    Raises:
        UnsupportedError: if the rows lie on a device.
    """

    def __init__(self, source: Storage, first: int, count: int) -> None:
        if not isinstance(source.place, MemoryPlace):
            raise UnsupportedError(
                "the lanes of a buffer on a device cannot be divided: make it without storage=, in memory"
            )
        self._whole, self._first, self.lanes = source, first, count
        self.info, self.limit, self.place, self.whole = source.info, source.limit, source.place, source.whole
        self.observation_names, self.choices = source.observation_names, source.choices
        self.device_draws, self.journal, self.check_overwritten = False, None, None
        self.mirrors, self._cache = weakref.WeakSet(), {}
        self._written: list[Array] = []
        self._unsent: list[Array] | None = None  # numbers of rows; None for all
        self.version = self.generation = -1
        source.mirrors.add(self)
        self.refresh()

    def note_rows(self, rows: Array) -> None:
        """Record that these rows of the source were written."""
        self._written.append(rows)

    def refresh(self) -> None:
        """Look at what has been written to the source."""
        source = self._whole
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
            self.transition_count, self.episode_count = counts(flags)
            self._unsent = None
        elif self._written:
            rows = np.unique(np.concatenate(self._written)) - begin
            rows = rows[(rows >= 0) & (rows < size)]
            self._replace(rows, flags[rows])
            if self._unsent is not None:
                self._unsent.append(rows)
        self._written = []
        self.version, self.generation = source.version, source.generation

    def _replace(self, rows: Array, flags: Array) -> None:
        """Set flags, and count what that changes."""
        (transitions, episodes), before = counts(flags), counts(self.flags[rows])
        self.transition_count += transitions - before[0]
        self.episode_count += episodes - before[1]
        self.flags[rows] = flags

    def changes(self, whole: bool = False) -> Iterator[Changes]:
        """What was written since the last call, in parts; everything with ``whole``, or if rows have moved."""
        self.refresh()
        whole = whole or self._unsent is None
        found = [] if self._unsent is None else self._unsent
        rows = self.rows(*self.live()) if whole else np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
        self._unsent = []
        leaves = dict(self.leaves) if whole else None
        ends = {name: getattr(self, name).copy() for name in _ENDS}
        bytes_each = 1 + sum(column[:1].nbytes for column in self.columns.values())
        count = max(1, MOST_BYTES // bytes_each)
        for begin in range(0, max(len(rows), 1), count):
            part = rows[begin : begin + count]
            columns = {name: np.array(column[part]) for name, column in self.columns.items()}
            yield Changes(self.capacity, leaves if begin == 0 else None, ends, part, self.flags[part], columns)


class Copied(Storage):
    """Lanes of a storage in another process.

    Args:
        info: shapes and dtypes of steps, and the kind of actions.
        lanes: number of lanes.
        limit: of the whole storage.
    """

    def __init__(self, info: DatasetInfo, lanes: int, limit: int | None) -> None:
        super().__init__(info, lanes=lanes)
        self.limit = limit

    def follow(self, changes: Changes) -> None:
        """Take in what has changed."""
        if changes.leaves is not None:
            self.leaves, self.capacity = changes.leaves, changes.capacity
            self.columns = {name: self._allocate(name) for name in self.leaves}
            self._allocate_flags()
            self.transition_count = self.episode_count = 0
            self.generation += 1
        before, after = counts(self.flags[changes.rows]), counts(changes.flags)
        self.transition_count += after[0] - before[0]
        self.episode_count += after[1] - before[1]
        self.set_flags(changes.rows, changes.flags)
        for name, column in changes.columns.items():
            self.place.put(self.columns[name], changes.rows, column)
        for name, value in changes.ends.items():
            setattr(self, name, value)
        self.version += 1


def counts(flags: Any) -> tuple[int, int]:
    """Numbers of the transitions and of the episodes in rows with some flags: every episode has one beginning."""
    return int(np.count_nonzero((flags & NO_TRANSITION) == 0)), int(np.count_nonzero(flags & (FIRST | HEAD)))
