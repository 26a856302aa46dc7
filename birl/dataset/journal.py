"""The journal of a folder of steps, written after every write, so that a kill loses only the write in progress."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

import numpy as np

from birl.files.atomic import convert_to_write_error
from birl.types import Array

NAME: Final = "journal.bin"
LANE_ARRAYS: Final = {"start": np.int64, "end": np.int64, "offset": np.int64, "open": np.bool_, "pending": np.bool_}
"""Dtypes of the arrays of a storage with an element for each lane, by name."""
MAX_SEQUENCE: Final = 2**62
"""Upper bound of the numbers of writes."""
_RESTART: Final = 2**32
"""Number of writes between two restarts, so that the number of a write says how often the rows were replaced."""
_HEAD: Final = 4  # numbers before the lanes' numbers: sequence, capacity, and two numbers of the boot
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class Record(NamedTuple):
    """The contents of a folder after a write.

    Attributes:
        sequence: number of the write.
        state: where the lanes start and end, their newest flags, and the capacity.
        trusted: whether the rows are certainly there, because they were written since the machine started. After a
            power cut, rows that were not flushed may be lost.
    """

    sequence: int
    state: dict[str, Any]
    trusted: bool


class LaneState(Protocol):
    """The part of a storage that a journal records; see `birl.dataset.storage.Storage`."""

    capacity: int

    def tail(self) -> Array: ...


S = TypeVar("S", bound=LaneState)


class Journal(Generic[S]):
    """The journal of the process that writes to a folder.

    It has two records with checksums, and a write replaces the older one, so a kill leaves the newer one intact.

    Args:
        folder: the folder.
        lanes: number of lanes.
        sequence: number of the newest write so far.
        on_new_column: called with the storage after a column was added.
    """

    def __init__(self, folder: Path, lanes: int, sequence: int, on_new_column: Callable[[S], None]) -> None:
        path, shape = folder / NAME, (2, _size(lanes))
        exists = path.is_file() and path.stat().st_size == 8 * shape[0] * shape[1]
        with convert_to_write_error(path):
            if not exists:
                path.unlink(missing_ok=True)
            self._records = np.memmap(path, np.int64, "r+" if exists else "w+", shape=shape)
        self.sequence, self.on_new_column, self._boot = sequence, on_new_column, _boot()

    def write(self, storage: S, tail: Array | None = None) -> None:
        """Record the state of ``storage``, or its state once the last rows have the flags ``tail`` ``[lanes, 2]``."""
        self.sequence += 1
        record = self._records[self.sequence % 2]
        record[:_HEAD] = self.sequence, storage.capacity, *self._boot
        lanes = [getattr(storage, name) for name in LANE_ARRAYS]
        record[_HEAD:-1] = np.concatenate([*lanes, (storage.tail() if tail is None else tail).ravel()])
        record[-1] = zlib.crc32(record[:-1].data)

    def restart(self, storage: S, tail: Array | None = None) -> None:
        """Record the state of ``storage`` before rows that readers may know are replaced. For ``tail`` see `write`."""
        after = (self.sequence // _RESTART + 1) * _RESTART
        self.sequence = after + (after - self.sequence) % 2  # the older of the two records is replaced, as by any write
        self.write(storage, tail)

    def flush(self) -> None:
        """Write the journal to disk."""
        self._records.flush()


def read_journal(folder: Path, lanes: int) -> Record | None:
    """Return the newest intact record of a folder; ``None`` if there is none."""
    path, size = folder / NAME, 16 * _size(lanes)
    for _ in range(100):  # a writer may replace both records while they are read
        if not path.is_file() or path.stat().st_size != size:
            return None
        records = np.frombuffer(path.read_bytes(), np.int64).reshape(2, -1)
        intact = [each for each in records if 0 < each[0] < MAX_SEQUENCE and zlib.crc32(each[:-1].data) == each[-1]]
        if intact:
            return _parse_record(max(intact, key=lambda record: int(record[0])), lanes)
    return None


def map_sequences(folder: Path, lanes: int) -> memoryview | None:
    """Return the numbers of the writes in the two records ``[2]``, as they change; ``None`` without a journal."""
    path, size = folder / NAME, _size(lanes)
    if not path.is_file() or path.stat().st_size != 16 * size:
        return None
    return np.memmap(path, np.int64, "r", shape=2 * size).data[::size]


def restarts(sequence: int) -> int:
    """Return how often rows that readers may know had been replaced at the write with this number."""
    return sequence // _RESTART


def _parse_record(record: Array, lanes: int) -> Record:
    *arrays, first, second = record[_HEAD:-1].reshape(-1, lanes)
    state: dict[str, Any] = {
        name: array.astype(dtype) for (name, dtype), array in zip(LANE_ARRAYS.items(), arrays, strict=True)
    }
    state |= {"capacity": int(record[1]), "tail": np.stack([first, second]).reshape(lanes, 2)}
    return Record(int(record[0]), state, (int(record[2]), int(record[3])) == _boot())


def _size(lanes: int) -> int:
    return _HEAD + (len(LANE_ARRAYS) + 2) * lanes + 1


def _boot() -> tuple[int, int]:
    """Return an id of the machine's current boot; zeros if the system has none."""
    try:
        value = UUID(_BOOT.read_text(encoding="ascii").strip()).int
    except (OSError, ValueError):
        return 0, 0
    return value >> 65, value % 2**63
