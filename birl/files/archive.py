"""Models and checkpoints: one safetensors file that cannot run code.

Everything but the arrays is text in the metadata of the file:

``sha256``
    digest of the rest of the header
``format``, ``version``, ``kind``
    ``"birl"``, ``"2"``, and the kind of archive, such as ``"model"``
``config``, ``state``
    JSON: the settings, and the nested state with a reference in place of each array (see `pack`)
``data``
    SHA-256 of the arrays, in the order in which they lie

Any changed bit is detected, and any program that reads `safetensors <https://huggingface.co/docs/safetensors>`_ can
read the arrays. Loading allocates memory for two things only: for a header of at most `MAX_JSON_BYTES` with at most
`MAX_VALUES` values, and for arrays whose sizes add up to the length of the file, which the safetensors library
checks. Nothing in a file names a Python class, a path or a function.

The digests detect accidents. They are not a signature: whoever writes a new file can write valid digests.

This module writes the file itself: the library would replace it without flushing it to the disk, and needs a second
copy of all data to write to a file object.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Final, TypeAlias

from torch import Tensor

from birl.errors import ConfigError, ForeignFileError
from birl.files.atomic import atomic_write, write_error
from birl.files.budget import MAX_JSON_BYTES
from birl.files.reading import Target, bytes_left, corrupt, foreign, open_binary, take
from birl.files.state_tree import pack, unpack
from birl.files.strict_json import dump_json, parse_json
from birl.files.tensors import DTYPES, array_bytes, load_tensors
from birl.types import State

ReadArrays: TypeAlias = Callable[[], dict[str, Tensor]]

_VERSION: Final = "2"
_START: Final = b'{"__metadata__":{"sha256":"'
_COVERED: Final = 8 + len(_START) + 64  # start of the part of the header that the digest covers
_READERS: Final = {
    "model": "birl.load_learnable(path)",
    "parameters": "load_model(path) of an algorithm with the same networks",
    "policy": "birl.ope.load_policy(path)",
    "checkpoint": "fit(…, checkpoint=its folder)",
}
"""How users read each kind of archive."""

_METADATA: Final = {"sha256", "format", "version", "kind", "config", "state", "data"}


def save_archive(path: Target, kind: str, config: dict[str, Any], state: State) -> None:
    """Write an archive. A file at ``path`` is replaced atomically; the same input gives the same bytes.

    Args:
        path: a path, or a binary file object to write to at its position.
        kind: the kind of archive, such as ``"model"``; `load_archive` checks it.
        config: settings: JSON values, nested.
        state: nested dict of arrays, tensors and JSON values (see `pack`).

    Raises:
        ConfigError: for a value that cannot be saved.
        WriteError: if the file cannot be written.
    """
    if not isinstance(path, str | os.PathLike) and not hasattr(path, "write"):
        raise ConfigError(f"{path!r:.80} is no file: give a path, or a file opened with open(path, 'wb')")
    settings, in_config = pack(config)
    if in_config:
        raise ConfigError(f"a config holds no arrays: {next(iter(in_config))!r:.200} is one")
    tree, arrays = pack(state)
    encoded = [(name, *array_bytes(name, value)) for name, value in arrays.items()]
    # Widest items first: every array is then aligned, for readers that map the file into memory.
    encoded.sort(key=lambda entry: (-entry[1].itemsize, entry[0]))
    content: list[bytes | memoryview] = [data for *_, data in encoded]
    header: dict[str, Any] = {
        "__metadata__": {
            "sha256": "0" * 64,
            "format": "birl",
            "version": _VERSION,
            "kind": kind,
            "config": dump_json(settings, "the config"),
            "state": dump_json(tree, "the state"),
            "data": _sha256(content),
        }
    }
    position = 0
    for name, dtype, shape, data in encoded:
        header[name] = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": [position, position + data.nbytes]}
        position += data.nbytes
    text = dump_json(header, "the state").encode("utf-8")
    covered = text[_COVERED - 8 :] + b" " * (-len(text) % 8)
    start = struct.pack("<Q", _COVERED - 8 + len(covered)) + _START + _sha256([covered]).encode("ascii")

    def write(file: BinaryIO) -> None:
        for buffer in (start, covered, *content):
            view = memoryview(buffer)
            while len(view):  # an unbuffered file may write less than it is given
                view = view[file.write(view) or len(view) :]

    if isinstance(path, str | os.PathLike):
        atomic_write(path, write)
        return
    try:
        write(path)
    except OSError as error:
        raise write_error(repr(path), error) from error


def load_archive(path: Target, kind: str) -> tuple[dict[str, Any], State]:
    """Read an archive that `save_archive` wrote.

    Arrays come back as numpy arrays or CPU tensors, as they were saved, with their dtypes.

    Args:
        path: a path, or a binary file object that can seek; it is read from its position to its end.
        kind: the kind it was saved as.

    Returns:
        config and state.

    Raises:
        CorruptFileError: if the file is truncated or any bit of it is wrong.
        ForeignFileError: if it is no birl file, of another kind, or from a newer birl.
        FileError: if there is no such file or it cannot be read.
    """
    return _load(path, kind, with_state=True)


def load_config(path: Target, kind: str) -> dict[str, Any]:
    """Read the config of an archive without reading (or checking) the arrays.

    Raises:
        CorruptFileError, ForeignFileError, FileError: as `load_archive` does.
    """
    return _load(path, kind, with_state=False)[0]


def _load(path: Target, kind: str, *, with_state: bool) -> tuple[dict[str, Any], State]:
    with open_binary(path) as (file, label):
        found, config, tree, read_arrays = _read(path, file, label)
        if found != kind:
            reader = _READERS.get(found)
            advice = f"; {reader} reads it" if reader else ""
            raise ForeignFileError(f"{label}: holds a {found!r:.50}, expected a {kind!r}{advice}")
        settings = unpack(config, {}, label)
        return settings, unpack(tree, read_arrays(), label) if with_state else {}


def _read(path: Target, file: BinaryIO, label: str) -> tuple[str, Any, Any, ReadArrays]:
    """Kind, config, state, and a function that reads the arrays."""
    start = file.tell()
    header = _read_header(file, label)
    metadata = header.pop("__metadata__")
    config, tree = (parse_json(metadata[key].encode("utf-8", "surrogatepass"), label) for key in ("config", "state"))

    def read_arrays() -> dict[str, Tensor]:
        file.seek(start)
        source = path if isinstance(path, str | os.PathLike) else take(file, bytes_left(file), label)
        tensors = load_tensors(source, header, label)
        if _sha256(array_bytes(name, tensors[name])[2] for name in header if name in tensors) != metadata["data"]:
            raise corrupt(label, "the content of the arrays does not match its digest")
        return tensors

    return metadata["kind"], config, tree, read_arrays


def _read_header(file: BinaryIO, label: str) -> dict[str, Any]:
    """Read the header of birl's safetensors file: its metadata, and an entry for each array."""
    head = take(file, min(_COVERED, bytes_left(file)), label)
    start = head[8 : 8 + len(_START)]
    if head and not (start and _START.startswith(start)):
        raise foreign(label, head)
    if len(head) < _COVERED:
        raise corrupt(label, f"it ends after {len(head)} bytes")
    size = struct.unpack_from("<Q", head)[0] + 8
    if size > MAX_JSON_BYTES:
        raise corrupt(label, f"it announces a header of {size} bytes, at most {MAX_JSON_BYTES} are allowed")
    covered = take(file, size - _COVERED, label)
    if _sha256([covered]).encode("ascii") != head[-64:]:
        raise corrupt(label, "its header does not match its digest")
    header = parse_json(head[8:] + covered, label)
    metadata = header["__metadata__"]
    if set(metadata) != _METADATA or not all(isinstance(value, str) for value in metadata.values()):
        raise corrupt(label, f"its metadata are {sorted(metadata)!r:.200}; they must be {sorted(_METADATA)}, all texts")
    if metadata["format"] != "birl":
        raise ForeignFileError(f"{label}: not a file that birl wrote")
    if metadata["version"] != _VERSION:
        raise ForeignFileError(
            f"{label}: its format is version {metadata['version']!r:.20}; it must be {_VERSION!r}: update birl"
        )
    return header


def _sha256(buffers: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for buffer in buffers:
        digest.update(buffer)
    return digest.hexdigest()
