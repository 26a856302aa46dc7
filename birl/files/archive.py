"""Models and checkpoints: one safetensors file that cannot run code.

The metadata of the file are text:

``sha256``
    digest of the rest of the header
``format``, ``version``, ``kind``
    ``"birl"``, ``"2"``, and the kind of archive, such as ``"model"``
``config``, ``state``
    JSON: the settings, and the nested state, in which a reference replaces each array (see `pack`)
``data``
    SHA-256 of the arrays, in file order

Any changed bit is detected, and any program that reads `safetensors <https://huggingface.co/docs/safetensors>`_ can
read the arrays. Loading allocates memory only for a header of at most `MAX_JSON_BYTES` with at most `MAX_VALUES`
values, and for arrays whose sizes add up to the length of the file, which the safetensors library checks. A file never
names a Python class, a path or a function.

The digests detect accidents. They are not a signature: the author of a new file can write valid digests.

This module writes the file itself, because the library replaces a file without flushing it to the disk, and needs a
second copy of all data to write to a file object.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

import numpy as np
import safetensors
import torch

from birl.errors import ConfigError, ForeignFileError
from birl.files.atomic import write_binary
from birl.files.reading import (
    MAX_JSON_BYTES,
    PathOrFile,
    bytes_left,
    corrupt_file_error,
    foreign_file_error,
    open_binary,
    read_exactly,
)
from birl.files.state_tree import pack, unpack
from birl.files.strict_json import dump_json, parse_json
from birl.types import Array, State

if TYPE_CHECKING:
    from torch import Tensor

ReadArrays: TypeAlias = "Callable[[], dict[str, Tensor]]"

DTYPES: Final = {  # by name, as torch may not be imported yet
    "torch.bool": "BOOL",
    "torch.uint8": "U8",
    "torch.int8": "I8",
    "torch.uint16": "U16",
    "torch.int16": "I16",
    "torch.uint32": "U32",
    "torch.int32": "I32",
    "torch.uint64": "U64",
    "torch.int64": "I64",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float32": "F32",
    "torch.float64": "F64",
}
_NUMPY_DTYPES: Final = "?bBhHiIlLqQefd"
_MAX_DIMENSIONS: Final = 32  # of numpy 1
_MAX_ELEMENTS: Final = 2**60

_VERSION: Final = "2"
_START: Final = b'{"__metadata__":{"sha256":"'
_DIGEST_END: Final = 8 + len(_START) + 64  # the digest covers the rest of the header
_READERS: Final = {
    "model": "birl.load_learnable(path)",
    "parameters": "load_model(path) of an algorithm with the same networks",
    "policy": "birl.ope.load_policy(path)",
    "checkpoint": "fit(…, checkpoint=its folder)",
}
"""The call that reads each kind of archive."""

_METADATA: Final = {"sha256", "format", "version", "kind", "config", "state", "data"}


def save_archive(path: PathOrFile, kind: str, config: dict[str, Any], state: State) -> None:
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
    settings, config_arrays = pack(config)
    if config_arrays:
        raise ConfigError(
            f"the config value {next(iter(config_arrays))!r:.200} is an array; allowed are JSON values: give a list"
        )
    tree, arrays = pack(state)
    encoded = [(name, *array_bytes(name, value)) for name, value in arrays.items()]
    for name, dtype, shape, data in encoded:  # the checks of loading
        _check_shape(name, shape)
        if dtype is torch.bool and len(data) and np.frombuffer(data, np.uint8).max() > 1:
            raise ConfigError(f"cannot save {name!r:.200}: its bytes are not those of bool, 0 and 1: convert it again")
    # Arrays with the widest items come first, which aligns every array for readers that map the file into memory.
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
        header[name] = {"dtype": DTYPES[str(dtype)], "shape": shape, "data_offsets": [position, position + data.nbytes]}
        position += data.nbytes
    text = dump_json(header, "the state").encode("utf-8")
    if len(text) + 16 > MAX_JSON_BYTES:  # with its length and padding
        raise ConfigError(f"the state has {len(text)} bytes without its arrays: keep long lists as numpy arrays")
    covered = text[_DIGEST_END - 8 :] + b" " * (-len(text) % 8)
    start = struct.pack("<Q", _DIGEST_END - 8 + len(covered)) + _START + _sha256([covered]).encode("ascii")

    def write(file: BinaryIO) -> None:
        for buffer in (start, covered, *content):
            view = memoryview(buffer)
            while len(view):  # an unbuffered file may write a part only
                view = view[file.write(view) or len(view) :]

    write_binary(path, write)


def load_archive(path: PathOrFile, kind: str) -> tuple[dict[str, Any], State]:
    """Read an archive that `save_archive` wrote.

    Arrays are read as numpy arrays or CPU tensors, as they were saved, with their dtypes.

    Args:
        path: a path, or a binary file object that can seek; it is read from its position to its end.
        kind: the kind of archive that is expected.

    Returns:
        config and state.

    Raises:
        CorruptFileError: if the file is truncated or any bit of it is wrong.
        ForeignFileError: if it is not a birl file, is of another kind, or comes from a newer birl.
        FileError: if there is no such file or it cannot be read.
    """
    return _load(path, kind, with_state=True)


def load_config(path: PathOrFile, kind: str) -> dict[str, Any]:
    """Read the config of an archive without reading (or checking) the arrays.

    Raises:
        CorruptFileError, ForeignFileError, FileError: as `load_archive` does.
    """
    return _load(path, kind, with_state=False)[0]


def _load(path: PathOrFile, kind: str, *, with_state: bool) -> tuple[dict[str, Any], State]:
    with open_binary(path) as (file, label):
        found, config, tree, read_arrays = _read(path, file, label)
        if found != kind:
            reader = _READERS.get(found)
            advice = f"; {reader} reads it" if reader else ""
            raise ForeignFileError(f"{label}: holds a {found!r:.50}, expected a {kind!r}{advice}")
        settings = unpack(config, {}, label)
        return settings, unpack(tree, read_arrays(), label) if with_state else {}


def _read(path: PathOrFile, file: BinaryIO, label: str) -> tuple[str, Any, Any, ReadArrays]:
    """Read the kind, the config and the state; also return a function that reads the arrays."""
    start = file.tell()
    header = _read_header(file, label)
    metadata = header.pop("__metadata__")
    config, tree = (parse_json(metadata[key].encode("utf-8", "surrogatepass"), label) for key in ("config", "state"))

    def read_arrays() -> dict[str, Tensor]:
        file.seek(start)
        source = path if isinstance(path, str | os.PathLike) else read_exactly(file, bytes_left(file), label)
        tensors = load_tensors(source, header, label)
        if _sha256(array_bytes(name, tensors[name])[2] for name in header if name in tensors) != metadata["data"]:
            raise corrupt_file_error(label, "the content of the arrays does not match its digest")
        return tensors

    return metadata["kind"], config, tree, read_arrays


def _read_header(file: BinaryIO, label: str) -> dict[str, Any]:
    """Read the header of a file: its metadata, and an entry for each array."""
    head = read_exactly(file, min(_DIGEST_END, bytes_left(file)), label)
    start = head[8 : 8 + len(_START)]
    if head and not (start and _START.startswith(start)):
        raise foreign_file_error(label, head)
    if len(head) < _DIGEST_END:
        raise corrupt_file_error(label, f"it ends after {len(head)} bytes")
    size = struct.unpack_from("<Q", head)[0] + 8
    if size > MAX_JSON_BYTES:
        raise corrupt_file_error(label, f"it announces a header of {size} bytes, at most {MAX_JSON_BYTES} are allowed")
    covered = read_exactly(file, size - _DIGEST_END, label)
    if _sha256([covered]).encode("ascii") != head[-64:]:
        raise corrupt_file_error(label, "its header does not match its digest")
    header = parse_json(head[8:] + covered, label)
    metadata = header["__metadata__"]
    if set(metadata) != _METADATA or not all(isinstance(value, str) for value in metadata.values()):
        raise corrupt_file_error(
            label, f"its metadata are {sorted(metadata)!r:.200}; they must be {sorted(_METADATA)}, all texts"
        )
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


def array_bytes(name: str, value: Tensor | Array) -> tuple[torch.dtype, tuple[int, ...], memoryview]:
    """Return dtype, shape and bytes of an array or tensor; the bytes are a view where possible.

    Raises:
        ConfigError: if it cannot be saved.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.char not in _NUMPY_DTYPES:
            raise ConfigError(f"cannot save {name!r:.200}: dtype {value.dtype}; allowed: bool, ints and floats")
        dtype = torch.from_numpy(np.empty(0, value.dtype.newbyteorder("="))).dtype
        little_endian = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        return dtype, value.shape, little_endian.reshape(-1).view(np.uint8).data
    if value.layout != torch.strided or value.device.type == "meta" or str(value.dtype) not in DTYPES:
        raise ConfigError(
            f"cannot save {name!r:.200}: a {value.layout} tensor of {value.dtype} on {value.device}; "
            "allowed: dense tensors of bool, ints and floats"
        )
    # as_strided: with one element or none, a contiguous tensor can have any stride, and cannot be reinterpreted.
    flat = value.detach().cpu().resolve_neg().contiguous().as_strided((value.numel(),), (1,))
    return value.dtype, tuple(value.shape), flat.view(torch.uint8).numpy().data


def load_tensors(source: str | os.PathLike[str] | bytes, header: object, label: str) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file, each into its own memory.

    The library compares every size with the length of the file before it allocates anything.

    Args:
        source: path or content of the file.
        header: its parsed header.
        label: its name for messages.

    Raises:
        CorruptFileError: if it is not a safetensors file, or has arrays that `array_bytes` does not write.
    """
    if not isinstance(header, dict):
        raise corrupt_file_error(label, "its list of arrays is not an object")
    for name, entry in header.items():
        if not _is_entry(entry):
            raise corrupt_file_error(label, f"array {name!r:.100} is described as {entry!r:.200}")
    try:
        if isinstance(source, bytes):
            from safetensors.torch import load  # imports torch

            tensors = load(source)
        else:  # pread: a mapped file that shrinks while it is read would kill the process
            with safetensors.safe_open(source, framework="pt", backend="pread") as file:
                tensors = file.get_tensors()
    except safetensors.SafetensorError as error:
        raise corrupt_file_error(label, str(error)) from error
    for name, tensor in tensors.items():
        # A bool other than 0 and 1 causes undefined behaviour.
        if tensor.dtype is torch.bool and tensor.numel() and tensor.view(torch.uint8).max() > 1:
            raise corrupt_file_error(label, f"array {name!r:.100} is not bool")
    return tensors


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    """Raise `ConfigError` for a shape that `_is_entry` rejects."""
    if not _fits(shape):
        raise ConfigError(
            f"cannot save {name!r:.200}: its shape is {shape!s:.100}; at most {_MAX_DIMENSIONS} dimensions and "
            f"{_MAX_ELEMENTS} elements, counting 1 for 0, are allowed: reshape it"
        )


def _fits(shape: Sequence[int]) -> bool:
    """Return whether torch and numpy can represent a shape. Strides depend on sizes next to a 0, so 0 counts as 1."""
    return len(shape) <= _MAX_DIMENSIONS and math.prod(max(extent, 1) for extent in shape) < _MAX_ELEMENTS


def _is_entry(entry: object) -> bool:
    """Return whether torch and numpy can represent the array; the library checks its size."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": list(), **rest}:
            whole = all(type(extent) is int for extent in shape)
            return not rest and dtype in DTYPES.values() and whole and _fits(shape)
    return False
