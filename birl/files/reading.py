"""Reading of files that may be damaged or hostile, within limits of memory.

A small file can request a lot of memory. These limits apply to all files:

- The arrays of a file may take 64 MiB plus `PACKED` times the size of a file that may be compressed, or `PLAIN` times
  the size of any other file. Their size is known before memory is allocated. The environment variable
  ``BIRL_FILE_MEMORY``, a number of GiB, allows more.
- JSON texts, pickles and everything else that becomes Python objects have at most `MAX_JSON_BYTES` bytes and
  `MAX_VALUES` values.
- Networks that a file describes have at most `MAX_NETWORK_ARRAYS` parameters, and not many more than the file has.
  They are counted on the meta device, before memory is allocated.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from birl.errors import ConfigError, CorruptFileError, FileError, ForeignFileError

PathOrFile: TypeAlias = "str | os.PathLike[str] | BinaryIO"

MAX_JSON_BYTES: Final = 16 * 2**20
"""Largest JSON text in a file. Larger data belong in arrays."""
MAX_VALUES: Final = 1_000_000
"""Largest number of values in one text. It bounds the memory and time of parsing."""
MAX_NETWORK_ARRAYS: Final = 10_000
"""Largest number of parameters (arrays, not numbers) of the networks that a file describes."""
PACKED: Final = 100
"""Real data rarely shrink more than 50 times; zeros shrink 1000 times."""
PLAIN: Final = 4
"""Every number is stored once, but a file can be smaller than its shared parts together."""
_ALWAYS_ALLOWED: Final = 64 * 2**20
_VARIABLE: Final = "BIRL_FILE_MEMORY"


class MemoryBudget:
    """The memory that the arrays of one file may take.

    Args:
        label: name of the file, for messages.
        size: its number of bytes.
        ratio: `PACKED` or `PLAIN`.

    Attributes:
        size: number of bytes of the file.
        left: bytes that may still be spent.

    Raises:
        ConfigError: if ``BIRL_FILE_MEMORY`` is not a positive number.
    """

    def __init__(self, label: str, size: int, ratio: int) -> None:
        self._label, self.size = label, size
        self._total = self.left = max(_ALWAYS_ALLOWED + ratio * size, _limit_of_user())

    def spend(self, nbytes: int, what: str) -> None:
        """Subtract ``nbytes``, which are about to be allocated for ``what``, from the budget.

        Raises:
            CorruptFileError: if the file would take more memory than allowed.
        """
        if nbytes > self.left:
            needed = self._total - self.left + nbytes
            raise CorruptFileError(
                f"{self._label}: with {what:.80} it takes {_to_gib(needed)} GiB of memory, but a file of {self.size} "
                f"bytes may take {_to_gib(self._total)} GiB: use another copy, or, if you know why it is so small, set "
                f"the environment variable {_VARIABLE} to at least that number of GiB"
            )
        self.left -= nbytes


def _to_gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.3g}"


def _limit_of_user() -> int:
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return 0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < math.inf:
        raise ConfigError(f"the environment variable {_VARIABLE} is {text!r:.40}; it must be a number of GiB > 0")
    return int(value * 2**30)


def corrupt_file_error(label: str, reason: str) -> CorruptFileError:
    """Return the error for a damaged file."""
    return CorruptFileError(
        f"{label}: {reason}. The file is damaged or incomplete: use another copy or an earlier checkpoint"
    )


def foreign_file_error(label: str, head: bytes) -> ForeignFileError:
    """Return the error for a file of another program, which its first bytes reveal."""
    if head.startswith(b"\x89HDF"):
        found = "an HDF5 file (load a dataset with ReplayBuffer.load)"
    elif head.startswith(b"\x80"):
        found = "a Python pickle (it could run code and is never loaded)"
    elif head.startswith(b"PK\3\4"):
        found = "a zip file of another program (those of d3rlpy and torch hold pickles and are never loaded)"
    else:
        found = "a file of another program, or damaged at its beginning"
    return ForeignFileError(f"{label}: {found}, not a file that birl wrote")


@contextlib.contextmanager
def open_binary(path: PathOrFile) -> Iterator[tuple[BinaryIO, str]]:
    """Open a path, or use an open file; yield the file and its name for messages.

    Raises:
        ConfigError: if ``path`` is not a path or file.
        FileError: if the file cannot be read, on entry or in the block, or is a pipe.
    """
    readable = hasattr(path, "read") and hasattr(path, "seek") and not isinstance(path, io.TextIOBase)
    if not isinstance(path, str | os.PathLike) and not readable:
        raise ConfigError(f"{path!r:.80} is not a file: give a path, or a file opened with open(path, 'rb')")
    if isinstance(path, str | os.PathLike) and "\0" in os.fsdecode(path):
        raise FileError(f"cannot read {str(path)!r:.80}: a path has no null character (check the path)")
    try:
        if isinstance(path, str | os.PathLike):
            if stat.S_ISFIFO(os.stat(path).st_mode):  # opening it would wait for a writer
                raise FileError(f"cannot read {path!s}: it is a pipe, which cannot seek (give a file)")
            with open(path, "rb") as file:
                yield file, os.fspath(path)
        else:
            yield path, str(getattr(path, "name", type(path).__name__))
    except FileError:
        raise
    except IsADirectoryError as error:
        models = [*Path(str(path)).glob("*.d3")] or [*Path(str(path)).glob("*/*.d3")]
        newest = f", such as {max(models, key=os.path.getmtime)}, its newest model" if models else ""
        raise FileError(f"cannot read {path!s}: it is a folder; give a file in it{newest}") from error
    except io.UnsupportedOperation as error:
        raise FileError(f"cannot read {path!r}: {error} (give a path, or a file that can seek)") from error
    except OSError as error:
        raise FileError(f"cannot read {path!s}: {error.strerror or error} (check the path)") from error


def bytes_left(file: BinaryIO) -> int:
    """Return the number of bytes between the position and the end."""
    position = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(position)
    return end - position


def read_exactly(file: BinaryIO, count: int, label: str) -> bytes:
    """Read exactly ``count`` bytes, after a check that the file has them.

    Raises:
        CorruptFileError: if the file has fewer bytes.
    """
    if not 0 <= count <= bytes_left(file):
        raise corrupt_file_error(label, f"it ends after {file.seek(0, os.SEEK_END)} bytes")
    pieces, missing = [], count
    while missing:
        piece = file.read(missing)  # an unbuffered file may return less than requested
        if not piece:
            raise corrupt_file_error(label, f"it ends after {file.tell()} bytes")
        pieces.append(piece)
        missing -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
