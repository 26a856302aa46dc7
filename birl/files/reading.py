"""Reading files that may be damaged or hostile."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO, TypeAlias

from birl.errors import ConfigError, CorruptFileError, FileError, ForeignFileError

Target: TypeAlias = "str | os.PathLike[str] | BinaryIO"


def corrupt(label: str, reason: str) -> CorruptFileError:
    """The error for a damaged file."""
    return CorruptFileError(
        f"{label}: {reason}. The file is damaged or incomplete: use another copy or an earlier checkpoint"
    )


def foreign(label: str, head: bytes) -> ForeignFileError:
    """The error for a file of another program, recognised by its first bytes."""
    if head.startswith(b"\x89HDF"):
        found = "an HDF5 file (a dataset is loaded with ReplayBuffer.load)"
    elif head.startswith(b"\x80"):
        found = "a Python pickle (it could run code and is never loaded)"
    elif head.startswith(b"PK\3\4"):
        found = "a zip of another program (those of d3rlpy and torch hold pickles and are never loaded)"
    else:
        found = "a file of another program, or damaged at its beginning"
    return ForeignFileError(f"{label}: {found}, not a file that birl wrote")


@contextlib.contextmanager
def open_binary(path: Target) -> Iterator[tuple[BinaryIO, str]]:
    """The open file of a path, or a file object unchanged, and its name for messages.

    Raises:
        ConfigError: if it is neither.
        FileError: if it cannot be read, on entry or in the block, or is a pipe.
    """
    if not isinstance(path, str | os.PathLike) and not (hasattr(path, "read") and hasattr(path, "seek")):
        raise ConfigError(f"{path!r:.80} is no file: give a path, or a file opened with open(path, 'rb')")
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
    except io.UnsupportedOperation as error:
        raise FileError(f"cannot read {path!r}: {error} (give a path, or a file that can seek)") from error
    except OSError as error:
        raise FileError(f"cannot read {path!s}: {error.strerror or error} (check the path)") from error


def bytes_left(file: BinaryIO) -> int:
    """Number of bytes between the position and the end."""
    position = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(position)
    return end - position


def take(file: BinaryIO, count: int, label: str) -> bytes:
    """Read exactly ``count`` bytes; checks that the file has them before it allocates anything.

    Raises:
        CorruptFileError: if the file ends before.
    """
    if not 0 <= count <= bytes_left(file):
        raise corrupt(label, f"it ends after {file.seek(0, os.SEEK_END)} bytes")
    pieces, missing = [], count
    while missing:
        piece = file.read(missing)  # an unbuffered file may return less than was asked for
        if not piece:
            raise corrupt(label, f"it ends after {file.tell()} bytes")
        pieces.append(piece)
        missing -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
