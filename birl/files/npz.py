"""Reading of ``.npz`` files: zip files of arrays, which may be damaged or hostile. Nothing is unpickled."""

from __future__ import annotations

import contextlib
import io
import math
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, Final, cast

import numpy as np

from birl.errors import CorruptFileError, FileError, ForeignFileError
from birl.files.reading import PACKED, MemoryBudget, PathOrFile, corrupt_file_error, open_binary
from birl.types import Array

_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MAX_MEMBERS: Final = 10_000
_MAX_HEADER: Final = 10_000
_READERS: Final = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_CHUNK: Final = 2**20


def npz_names(path: PathOrFile) -> list[str]:
    """Return the names of the arrays of a file.

    Raises:
        ForeignFileError, CorruptFileError: if it is not a usable ``.npz`` file.
    """
    with _opened(path) as (archive, _, label):
        return list(_members(archive, label))


def read_npz(path: PathOrFile) -> dict[str, Array]:
    """Read all arrays of numbers, and leave out arrays of text.

    The size of each array is known before memory is allocated for it; see `birl.files.reading`.

    Raises:
        ForeignFileError: if it is not an ``.npz`` file.
        CorruptFileError: if it is damaged, holds pickled objects, or would take too much memory.
    """
    with _opened(path) as (archive, budget, label):
        found = {name: _read(archive, member, name, budget, label) for name, member in _members(archive, label).items()}
    return {name: array for name, array in found.items() if array is not None}


@contextlib.contextmanager
def _opened(path: PathOrFile) -> Iterator[tuple[zipfile.ZipFile, MemoryBudget, str]]:
    with open_binary(path) as (stream, label):
        size = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        if stream.read(4) != b"PK\3\4":
            raise ForeignFileError(f"{label} is not an .npz file: give one that numpy.savez wrote")
        stream.seek(0)
        try:
            with zipfile.ZipFile(stream) as archive:
                yield archive, MemoryBudget(label, size, PACKED), label
        except FileError:
            raise
        except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
            raise corrupt_file_error(label, f"it cannot be read as a zip file: {error!s:.200}") from error
        except (OverflowError, KeyError, TypeError, SyntaxError, MemoryError, UnicodeError) as error:
            raise corrupt_file_error(label, f"its headers are not valid: {error!s:.200}") from error


def _members(archive: zipfile.ZipFile, label: str) -> dict[str, zipfile.ZipInfo]:
    """Return the members of the file by the names of their arrays."""
    members = archive.infolist()
    if len(members) > _MAX_MEMBERS:
        raise CorruptFileError(f"{label} has {len(members)} arrays; at most {_MAX_MEMBERS} are read: split it")
    found: dict[str, zipfile.ZipInfo] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if not member.filename.endswith(".npy"):
            raise ForeignFileError(f"{label} holds {member.filename!r:.80}, no .npy array: give an .npz file of arrays")
        if name in found:
            raise corrupt_file_error(label, f"it has two arrays {name!r:.80}")
        if member.compress_type not in _METHODS or member.flag_bits & 1:
            raise CorruptFileError(
                f"{label}: {name!r:.80} is encrypted, or compressed with another method than deflate"
            )
        found[name] = member
    return found


def _read(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, budget: MemoryBudget, label: str
) -> Array | None:
    """Read an array of numbers; return ``None`` for an array of text."""
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read = _READERS.get(version)
        if read is None:
            raise corrupt_file_error(label, f"{name!r:.80} has the unknown version {version} of the .npy format")
        shape, by_columns, dtype = read(stream, _MAX_HEADER)
        if dtype.hasobject:
            raise CorruptFileError(
                f"{label}: {name!r:.80} holds Python objects, which are pickled and could run code, so they are never "
                "loaded: save it as an array of numbers"
            )
        if dtype.kind in "USM" or dtype.kind == "m":
            return None
        if dtype.kind not in "biuf":
            raise CorruptFileError(f"{label}: {name!r:.80} holds {dtype!s:.60}, not numbers: save it as numbers")
        nbytes = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or nbytes > member.file_size:
            raise corrupt_file_error(label, f"{name!r:.80} has the shape {shape!s:.60}, but {member.file_size} bytes")
        budget.spend(nbytes, name)
        array: np.ndarray[Any, Any] = np.empty(math.prod(shape), dtype)
        if _read_into(stream, memoryview(cast(Any, array.view(np.uint8)))) != nbytes:
            raise corrupt_file_error(label, f"{name!r:.80} ends too early")
    native = array.astype(dtype.newbyteorder("="), copy=False)
    return native.reshape(shape, order="F" if by_columns else "C")


def _read_into(stream: Any, target: memoryview) -> int:
    """Read into memory, a chunk at a time, and return the number of bytes."""
    done = 0
    while done < len(target):
        count = stream.readinto(target[done : done + _CHUNK])
        if not count:
            break
        done += count
    return done
