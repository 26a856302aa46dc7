"""What a folder of steps holds, noted after every write so that a kill at any moment loses only the write under way."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np

from birl.errors import WriteError
from birl.types import Array

NAME: Final = "journal.bin"
LANE_ARRAYS: Final = ("start", "end", "offset", "open", "pending")
MOST: Final = 2**62
"""Numbers of writes are below."""
_HEAD: Final = 4  # numbers before those of the lanes: sequence, capacity, and the two of the boot
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class Record(NamedTuple):
    """What was stored after a write.

    Attributes:
        sequence: number of the write.
        state: where the lanes begin and end, their newest flags, and the capacity.
        trusted: whether the rows are there: written since the machine was started. What is in memory when it
            stops without notice may be lost, but for what was flushed.
    """

    sequence: int
    state: dict[str, Any]
    trusted: bool


class Journal:
    """The notes of the one writer of a folder.

    There are two records, each with a checksum; a write replaces the older one. So a kill leaves the newer one.

    Args:
        folder: where it lies.
        lanes: number of lanes.
        sequence: number of the newest write so far.
        grown: called when the columns have become others.
    """

    def __init__(self, folder: Path, lanes: int, sequence: int, grown: Callable[[Any], None]) -> None:
        path, shape = folder / NAME, (2, _size(lanes))
        there = path.is_file() and path.stat().st_size == 8 * shape[0] * shape[1]
        try:
            if not there:
                path.unlink(missing_ok=True)
            self._records = np.memmap(path, np.int64, "r+" if there else "w+", shape=shape)
        except OSError as error:
            raise WriteError(f"{path} could not be made ({error}): free some space or choose another folder") from error
        self.sequence, self.on_new_column, self._boot = sequence, grown, _boot()

    def write(self, storage: Any, tail: Array | None = None) -> None:
        """Note what is stored now, or will be once the last rows have the flags ``tail`` ``[lanes, 2]``."""
        self.sequence += 1
        record = self._records[self.sequence % 2]
        record[:_HEAD] = self.sequence, storage.capacity, *self._boot
        lanes = [getattr(storage, name) for name in LANE_ARRAYS]
        record[_HEAD:-1] = np.concatenate([*lanes, (storage.tail() if tail is None else tail).ravel()])
        record[-1] = zlib.crc32(record[:-1].data)

    def flush(self) -> None:
        """Write it to disk."""
        self._records.flush()


def read_journal(folder: Path, lanes: int) -> Record | None:
    """The newest record of a folder; ``None`` if there is none, or none that is whole."""
    path, size = folder / NAME, 16 * _size(lanes)
    for _ in range(100):  # a writer may replace both while they are read
        if not path.is_file() or path.stat().st_size != size:
            return None
        records = np.frombuffer(path.read_bytes(), np.int64).reshape(2, -1)
        whole = [each for each in records if 0 < each[0] < MOST and zlib.crc32(each[:-1].data) == each[-1]]
        if whole:
            return _record(max(whole, key=lambda record: int(record[0])), lanes)
    return None


def _record(record: Array, lanes: int) -> Record:
    *arrays, first, second = record[_HEAD:-1].reshape(-1, lanes)
    state: dict[str, Any] = {
        name: array.astype(np.bool_ if name in ("open", "pending") else np.int64)
        for name, array in zip(LANE_ARRAYS, arrays, strict=True)
    }
    state |= {"capacity": int(record[1]), "tail": np.stack([first, second]).reshape(lanes, 2)}
    return Record(int(record[0]), state, (int(record[2]), int(record[3])) == _boot())


def _size(lanes: int) -> int:
    return _HEAD + (len(LANE_ARRAYS) + 2) * lanes + 1


def _boot() -> tuple[int, int]:
    """Names the time since the machine was started; zeros where the system does not tell."""
    try:
        value = UUID(_BOOT.read_text(encoding="ascii").strip()).int
    except (OSError, ValueError):
        return 0, 0
    return value >> 65, value % 2**63
