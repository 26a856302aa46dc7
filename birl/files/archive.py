"""Files that cannot run code: one archive format for models and checkpoints, and atomic writing.

An archive is an uncompressed zip of four members, always in this order:

``manifest.json``
    ``{"format": "birl", "version": 1, "kind": …, "members": {name: {"size": …, "sha256": …}}}``
``config.json``
    settings, plain JSON
``state.json``
    the nested state, each array replaced by a reference such as ``{"$tensor": "nets/actor.weight"}``
``tensors.safetensors``
    the arrays, in the `safetensors <https://huggingface.co/docs/safetensors>`_ layout

Any zip tool opens it, and the ``safetensors`` package reads the last member. The reader here is stricter than
both. It knows the exact bytes that the writer makes for the zip framing and compares them, so an archive has
one valid form and every changed bit is found. It reads forward once, and these are the only ways memory is
allocated:

- JSON text of at most `MAX_JSON_BYTES` with at most `MAX_JSON_VALUES` values, without duplicate keys, NaN or
  deep nesting;
- arrays whose dtype, shape and position were checked against each other, and whose sum was checked against
  the size of the file itself, before the first of them is allocated. Nothing is compressed, so nothing can
  inflate.

Nothing in a file names a Python class, a path or a function. Nothing is ever extracted to disk.

The digests find accidents; they are no signature: whoever writes a whole new file can write valid digests.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import secrets
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor

from birl.errors import ConfigError, CorruptFileError, FileError, ForeignFileError, WriteError
from birl.types import Array, State

Target: TypeAlias = "str | os.PathLike[str] | BinaryIO"
_Buffer: TypeAlias = "bytes | memoryview"

MAX_JSON_BYTES: Final = 16 * 2**20
"""Largest JSON text in an archive. Larger things belong into arrays."""
MAX_JSON_VALUES: Final = 1_000_000
"""Most JSON values in one text: a bound on what parsing it can allocate."""

_FORMAT: Final = "birl"
_VERSION: Final = 1
_MANIFEST: Final = "manifest.json"
_MEMBERS: Final = ("config.json", "state.json", "tensors.safetensors")
_MAX_MANIFEST_BYTES: Final = 4096
_MAX_DEPTH: Final = 64
_MAX_DIMENSIONS: Final = 32
_CHUNK: Final = 2**20
_STALE_SECONDS: Final = 600.0

_DTYPES: Final[dict[str, torch.dtype]] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_DTYPE_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
_NUMPY_DTYPES: Final = frozenset("?bBhHiIlLqQefd")


# --------------------------------------------------------------------------------------- atomic writing


def atomic_write(path: str | os.PathLike[str], write: Callable[[BinaryIO], None]) -> None:
    """Replace the file at ``path`` by what ``write`` writes: wholly, or not at all.

    ``write`` gets a temporary file in the same folder. It is flushed to the disk and renamed over ``path``
    only after ``write`` has returned; on any exception it is removed and ``path`` stays as it was. A process
    that is killed leaves a hidden ``.<name>.<random>.tmp``, which a later write of the same file clears away
    once it is ten minutes old. A symbolic link is followed, permissions are kept, and a device or pipe,
    which a rename would destroy, is written in place.

    Raises:
        WriteError: for every ``OSError``: full disk, no permission, no such folder.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = _existing_mode(target)
        if mode is not None and not stat.S_ISREG(mode):
            with open(target, "wb") as file:
                write(file)
            return
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
        try:
            with open(temporary, "xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                os.chmod(temporary, stat.S_IMODE(mode))
            _remove_stale(target, temporary)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except FileError:
        raise
    except OSError as error:
        raise _write_error(str(path), error) from error
    _sync_folder(target.parent)


def _existing_mode(path: Path) -> int | None:
    """Mode of the file that is to be replaced, ``None`` if there is none."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return mode


def _remove_stale(target: Path, temporary: Path) -> None:
    """Remove what killed processes left: what is older than our own file by the disk's own clock."""
    with contextlib.suppress(OSError):
        now = temporary.stat().st_mtime
        for other in target.parent.iterdir():
            ours = other.name.startswith(f".{target.name}.") and other.name.endswith(".tmp")
            if ours and other != temporary and now - other.stat().st_mtime > _STALE_SECONDS:
                other.unlink()


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system can do that for folders."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    # The new file is complete and in place already, so a file system that cannot do this is no failure.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_error(label: str, error: OSError) -> WriteError:
    advice = {
        errno.ENOSPC: "the disk is full: free some space and try again",
        errno.EDQUOT: "the disk quota is used up: free some space and try again",
        errno.ENOENT: "its folder does not exist: create it first",
        errno.ENOTDIR: "a part of its path is a file: choose another folder",
        errno.EACCES: "no permission: choose another folder or change its permissions",
        errno.EPERM: "no permission: choose another folder or change its permissions",
        errno.EROFS: "the file system is read-only: choose another folder",
        errno.EISDIR: "it is a folder: give the name of a file",
    }.get(error.errno or 0, "nothing was replaced")
    return WriteError(f"cannot write {label}: {error.strerror or error} ({advice})")


# ------------------------------------------------------------------------------------------------- JSON


def _dump_json(value: Any, what: str, indent: int | None = None) -> bytes:
    separators = (",", ":") if indent is None else (",", ": ")
    try:
        data = json.dumps(value, allow_nan=False, indent=indent, separators=separators).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{what} cannot be written to JSON: {error}") from error
    if len(data) > MAX_JSON_BYTES or _count_values(data) > MAX_JSON_VALUES:
        raise ConfigError(
            f"{what} is too large for JSON ({len(data)} bytes, about {_count_values(data)} values; at most "
            f"{MAX_JSON_BYTES} and {MAX_JSON_VALUES}): keep long lists as numpy arrays"
        )
    return data


def _count_values(data: bytes) -> int:
    """Upper bound of the number of values in a JSON text."""
    return 1 + data.count(b",") + data.count(b"[") + data.count(b"{")


def parse_json(data: bytes, label: str) -> Any:
    """Parse strict JSON: UTF-8, no duplicate keys, no NaN or infinity, bounded size, count and nesting.

    Args:
        data: the text.
        label: where it comes from, for messages.

    Raises:
        CorruptFileError: for everything that is not such a text.
    """
    if len(data) > MAX_JSON_BYTES or _count_values(data) > MAX_JSON_VALUES:
        raise CorruptFileError(f"{label}: more JSON than allowed ({len(data)} bytes). {_ADVICE}")

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(f"number out of range: {text:.30}")
        return value

    def constant(text: str) -> NoReturn:
        raise ValueError(f"{text} is not JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a key occurs twice")
        return result

    try:
        text = data.decode("utf-8")
        return json.loads(text, parse_float=number, parse_constant=constant, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{label}: not valid JSON: {error}. {_ADVICE}") from error


# ------------------------------------------------------------------------------------------- the state


def pack(state: State) -> tuple[dict[str, Any], dict[str, Tensor | Array]]:
    """Split a nested state into a JSON tree and its arrays.

    Arrays become ``{"$array": name}``, tensors ``{"$tensor": name}``, numpy scalars ``{"$scalar": name}``,
    tuples ``{"$tuple": […]}`` and non-finite floats ``{"$float": "nan"}``; a key that starts with ``$`` gets
    one more. The arrays are not copied.

    Raises:
        ConfigError: for a leaf that is none of these, a key that is not a string, or more than 64 levels.
    """
    arrays: dict[str, Tensor | Array] = {}

    def store(path: str, value: Tensor | Array) -> str:
        name = path
        while name in arrays or name == "__metadata__":  # two paths can read alike when keys contain slashes
            name += "'"
        arrays[name] = value
        return name

    def walk(value: Any, path: str, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ConfigError(f"the state is nested more than {_MAX_DEPTH} levels deep at {path!r:.200}")
        if isinstance(value, Tensor):
            return {"$tensor": store(path, value)}
        if isinstance(value, np.ndarray):
            return {"$array": store(path, value)}
        if isinstance(value, np.generic):
            return {"$scalar": store(path, np.asarray(value))}
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, list | tuple):
            items = [walk(item, _join(path, str(i)), depth + 1) for i, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        if isinstance(value, dict):
            result = {}
            for key, item in value.items():
                if type(key) is not str:
                    raise ConfigError(f"keys of a state are strings: got {key!r:.100} at {path!r:.200}")
                escaped = "$" + key if key.startswith("$") else key
                result[escaped] = walk(item, _join(path, key), depth + 1)
            return result
        raise ConfigError(
            f"cannot save {type(value).__name__} at {path!r:.200}: a state holds dicts, lists, tuples, "
            "arrays, tensors, int, float, str, bool and None"
        )

    return walk(dict(state), "", 0), arrays


def unpack(tree: Any, arrays: dict[str, Tensor | Array], label: str = "state") -> State:
    """Inverse of `pack`. Arrays are not copied; each of ``arrays`` has to be used exactly once.

    Args:
        tree: what `parse_json` read.
        arrays: arrays or tensors by name; each is turned into the type that was saved.
        label: where it comes from, for messages.

    Raises:
        CorruptFileError: for a tree that `pack` cannot have made.
    """
    unused = dict(arrays)

    def fail(reason: str) -> NoReturn:
        raise CorruptFileError(f"{label}: {reason}. {_ADVICE}")

    def fetch(name: Any, kind: str) -> Any:
        if type(name) is not str or name not in unused:
            fail(f"no array, or none left, for the reference {name!r:.100}")
        value = unused.pop(name)
        if kind == "$tensor":
            return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        try:
            array = value.numpy() if isinstance(value, Tensor) else value
        except TypeError:
            fail(f"array {name!r:.100} has a dtype that numpy does not have")
        if kind == "$scalar" and array.ndim != 0:
            fail(f"scalar {name!r:.100} has shape {array.shape}")
        return array[()] if kind == "$scalar" else array

    def special(key: str, value: Any, depth: int) -> Any:
        if key in ("$tensor", "$array", "$scalar"):
            return fetch(value, key)
        if key == "$float" and value in ("nan", "inf", "-inf"):
            return float(value)
        if key == "$tuple" and type(value) is list:
            return tuple(walk(item, depth + 1) for item in value)
        fail(f"unknown marker {key!r:.50}")

    def walk(value: Any, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            fail(f"nested more than {_MAX_DEPTH} levels deep")
        if isinstance(value, list):
            return [walk(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        marked = [key for key in value if key.startswith("$") and not key.startswith("$$")]
        if marked:
            if len(value) != 1:
                fail(f"marker {marked[0]!r:.50} among other keys")
            return special(marked[0], value[marked[0]], depth)
        return {key.removeprefix("$"): walk(item, depth + 1) for key, item in value.items()}

    state = walk(tree, 0)
    if not isinstance(state, dict):
        fail("the outermost value is not an object")
    if unused:
        fail(f"{len(unused)} arrays belong to nothing, {next(iter(unused))!r:.100} among them")
    return state


def _join(path: str, key: str) -> str:
    return f"{path}/{key}" if path else key


# ------------------------------------------------------------------------------- safetensors, written


def _array_bytes(name: str, value: Tensor | Array) -> tuple[str, list[int], Array]:
    """Dtype name, shape and the bytes (uint8, a view where possible) of an array or tensor."""
    if isinstance(value, np.ndarray):
        if value.dtype.char not in _NUMPY_DTYPES:
            raise ConfigError(f"cannot save {name!r:.200}: dtype {value.dtype}; allowed: bool, ints and floats")
        little_endian = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        dtype = torch.from_numpy(np.empty(0, little_endian.dtype.newbyteorder("="))).dtype
        return _DTYPE_NAMES[dtype], list(value.shape), little_endian.reshape(-1).view(np.uint8)
    if value.layout != torch.strided or value.device.type == "meta" or value.dtype not in _DTYPE_NAMES:
        raise ConfigError(
            f"cannot save {name!r:.200}: a {value.layout} tensor of {value.dtype} on {value.device}; "
            "allowed: dense tensors of bool, ints and floats"
        )
    # as_strided: with one element or none, a contiguous tensor can have any stride, and cannot be reinterpreted.
    flat = value.detach().cpu().resolve_neg().contiguous().as_strided((value.numel(),), (1,))
    return _DTYPE_NAMES[value.dtype], list(value.shape), flat.view(torch.uint8).numpy()


def _encode_tensors(arrays: dict[str, Tensor | Array]) -> list[_Buffer]:
    """The safetensors file as a list of buffers: header first, then the data of each array."""
    encoded = {name: _array_bytes(name, value) for name, value in arrays.items()}
    # Widest items first: every array then lies aligned, which readers that map the file into memory like.
    order = sorted(encoded, key=lambda name: (-_DTYPES[encoded[name][0]].itemsize, name))
    header, position = {}, 0
    for name in order:
        dtype, shape, data = encoded[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + data.nbytes]}
        position += data.nbytes
    text = _dump_json(header, "the list of arrays")
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)) + text, *(encoded[name][2].data for name in order)]


# -------------------------------------------------------------------------------------- zip, the framing
#
# Every size is written in the 64-bit fields, so that small and large archives take the same path.


def _local_header(name: str, size: int, crc: int) -> bytes:
    extra = struct.pack("<HHQQ", 1, 16, size, size)
    fields = (b"PK\3\4", 45, 0, 0, 0, 0x21, crc, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra))
    return struct.pack("<4sHHHHHLLLHH", *fields) + name.encode() + extra


def _local_header_size(name: str) -> int:
    return len(_local_header(name, 0, 0))


def _directory(members: list[tuple[str, int, int]]) -> bytes:
    """Central directory and end records for ``members``: (name, size, crc)."""
    directory, position = b"", 0
    for name, size, crc in members:
        extra = struct.pack("<HHQQQ", 1, 24, size, size, position)
        sizes = (crc, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra), 0, 0, 0, 0, 0xFFFFFFFF)
        fields = struct.pack("<4sHHHHHHLLLHHHHHLL", b"PK\1\2", 45, 45, 0, 0, 0, 0x21, *sizes)
        directory += fields + name.encode() + extra
        position += _local_header_size(name) + size
    count, end = len(members), position + len(directory)
    large = struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), position)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
    small = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return directory + large + locator + small


def _directory_size(names: list[str]) -> int:
    return len(_directory([(name, 0, 0) for name in names]))


# ---------------------------------------------------------------------------------------------- writing


def save_archive(path: Target, kind: str, config: dict[str, Any], state: State) -> None:
    """Write an archive. A file at ``path`` is replaced atomically; the same input gives the same bytes.

    Args:
        path: a path, or a binary file object to write to at its position.
        kind: what the archive is, such as ``"model"``; `load_archive` asks for it.
        config: settings: JSON values, nested.
        state: nested dict of arrays, tensors and JSON values (see `pack`).

    Raises:
        ConfigError: for a value that cannot be saved.
        WriteError: if the file cannot be written.
    """
    settings, in_config = pack(config)
    if in_config:
        raise ConfigError(f"a config holds no arrays: {next(iter(in_config))!r:.200} is one")
    tree, arrays = pack(state)
    contents: dict[str, list[_Buffer]] = {
        "config.json": [_dump_json(settings, "the config", indent=2)],
        "state.json": [_dump_json(tree, "the state")],
        "tensors.safetensors": _encode_tensors(arrays),
    }
    digests = {name: _Digest(buffers) for name, buffers in contents.items()}
    members = {name: {"size": digest.size, "sha256": digest.sha256} for name, digest in digests.items()}
    manifest = {"format": _FORMAT, "version": _VERSION, "kind": kind, "members": members}
    contents = {_MANIFEST: [_dump_json(manifest, "the manifest", indent=2)], **contents}
    digests[_MANIFEST] = _Digest(contents[_MANIFEST])

    def write(file: BinaryIO) -> None:
        for name, buffers in contents.items():
            _write_all(file, _local_header(name, digests[name].size, digests[name].crc))
            for buffer in buffers:
                _write_all(file, buffer)
        _write_all(file, _directory([(name, digests[name].size, digests[name].crc) for name in contents]))

    if isinstance(path, str | os.PathLike):
        atomic_write(path, write)
        return
    try:
        write(path)
    except OSError as error:
        raise _write_error(repr(path), error) from error


def _write_all(file: BinaryIO, buffer: _Buffer) -> None:
    """Write all of ``buffer``: an unbuffered file may take less than it is given."""
    view = memoryview(buffer)
    while len(view):
        written = file.write(view[: 64 * _CHUNK])
        view = view[64 * _CHUNK if written is None else written :]


class _Digest:
    """Size, CRC-32 and SHA-256 of a member."""

    def __init__(self, buffers: list[_Buffer] | None = None) -> None:
        self.size, self.crc, self._sha256 = 0, 0, hashlib.sha256()
        for buffer in buffers or ():
            self.update(buffer)

    def update(self, buffer: _Buffer) -> None:
        view = memoryview(buffer)
        for start in range(0, len(view), _CHUNK):  # both digests while a chunk is in the cache
            chunk = view[start : start + _CHUNK]
            self.crc = zlib.crc32(chunk, self.crc)
            self._sha256.update(chunk)
        self.size += len(view)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


# ---------------------------------------------------------------------------------------------- reading

_ADVICE: Final = "The file is damaged or incomplete: use another copy or an earlier checkpoint"


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
    with _open(path) as (file, label):
        archive = _Archive(file, label, kind)
        config = unpack(archive.read_json("config.json"), {}, label)
        tree = archive.read_json("state.json")
        arrays = archive.read_tensors("tensors.safetensors")
        archive.finish()
        return config, unpack(tree, arrays, label)


def load_config(path: Target, kind: str) -> dict[str, Any]:
    """Read the config of an archive and leave the rest, however large, unread (and unchecked).

    Raises:
        CorruptFileError, ForeignFileError, FileError: as `load_archive` does.
    """
    with _open(path) as (file, label):
        return unpack(_Archive(file, label, kind).read_json("config.json"), {}, label)


@contextlib.contextmanager
def _open(path: Target) -> Iterator[tuple[BinaryIO, str]]:
    try:
        if isinstance(path, str | os.PathLike):
            with open(path, "rb") as file:
                yield file, os.fspath(path)
        else:
            yield path, str(getattr(path, "name", type(path).__name__))
    except FileError:
        raise
    except io.UnsupportedOperation as error:
        raise FileError(f"cannot read {path!r}: {error} (give a path, or a file that can seek)") from error
    except OSError as error:
        raise FileError(f"cannot read {path!s}: {error.strerror or error}") from error


class _Archive:
    """Forward reader. Every method reads one member and compares its framing with what the writer makes."""

    def __init__(self, file: BinaryIO, label: str, kind: str) -> None:
        self._file, self._label = file, label
        start = file.tell()
        self._size = file.seek(0, os.SEEK_END) - start
        file.seek(start)
        self._position = 0
        self._read: list[tuple[str, int, int]] = []
        self._members = self._read_manifest(kind)

    def _fail(self, reason: str) -> NoReturn:
        raise CorruptFileError(f"{self._label}: {reason}. {_ADVICE}")

    def _take(self, count: int) -> bytes:
        """The next ``count`` bytes. Only ever called with a count that was compared with the file's size."""
        pieces, missing = [], count
        while missing:
            piece = self._file.read(min(missing, _CHUNK))
            if not piece:
                self._fail(f"it ends after {self._position + count - missing} bytes")
            pieces.append(piece)
            missing -= len(piece)
        self._position += count
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_manifest(self, kind: str) -> dict[str, Any]:
        prefix = _local_header(_MANIFEST, 0, 0)
        head = self._take(min(len(prefix), self._size))
        name_at = slice(30, 30 + len(_MANIFEST))
        if head[:4] != prefix[:4] or head[name_at] != prefix[name_at]:
            if prefix.startswith(head):
                self._fail(f"it ends after {len(head)} bytes")
            raise ForeignFileError(f"{self._label}: {_describe(head)}, not a file that birl wrote")
        if len(head) < len(prefix):
            self._fail(f"it ends after {len(head)} bytes")
        size = int(struct.unpack_from("<Q", head, len(prefix) - 8)[0])
        if size > _MAX_MANIFEST_BYTES or size > self._size - self._position:
            self._fail(f"a manifest of {size} bytes is announced in a file of {self._size}")
        data = self._take(size)
        self._check_framing(_MANIFEST, head, _Digest([data]))
        manifest = parse_json(data, self._label)
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            raise ForeignFileError(f"{self._label}: not a file that birl wrote")
        version = manifest.get("version")
        if type(version) is not int or version < 1:
            self._fail(f"unknown version {version!r:.50}")
        if version > _VERSION:
            raise ForeignFileError(
                f"{self._label}: in version {version} of the format, this birl reads up to {_VERSION}: update birl"
            )
        if manifest.get("kind") != kind:
            found = manifest.get("kind")
            raise ForeignFileError(f"{self._label}: holds a {found!r:.50}, expected a {kind!r}")
        return self._check_members(manifest.get("members"))

    def _check_members(self, members: Any) -> dict[str, Any]:
        """The sizes in the manifest have to add up to the file's: nothing is believed before that."""
        if not isinstance(members, dict) or tuple(members) != _MEMBERS:
            self._fail("the manifest does not list the members")
        total = self._position + _directory_size([_MANIFEST, *_MEMBERS])
        for name, member in members.items():
            if not isinstance(member, dict) or set(member) != {"size", "sha256"}:
                self._fail(f"the manifest does not describe {name}")
            if not _is_size(member["size"]):
                self._fail(f"the manifest gives {name} a size of {member['size']!r:.50}")
            total += _local_header_size(name) + member["size"]
        if total != self._size:
            self._fail(f"it has {self._size} bytes of {total}")
        return members

    def _check_framing(self, name: str, header: bytes, digest: _Digest) -> None:
        if header != _local_header(name, digest.size, digest.crc):
            self._fail(f"{name} is damaged")
        self._read.append((name, digest.size, digest.crc))

    def _check_member(self, name: str, header: bytes, digest: _Digest) -> None:
        if digest.sha256 != self._members[name]["sha256"]:
            self._fail(f"the content of {name} does not match its digest")
        self._check_framing(name, header, digest)

    def read_json(self, name: str) -> Any:
        """Read a member of JSON text."""
        size = self._members[name]["size"]
        if size > MAX_JSON_BYTES:
            self._fail(f"{name} has {size} bytes, at most {MAX_JSON_BYTES} are allowed")
        header = self._take(_local_header_size(name))
        data = self._take(size)
        self._check_member(name, header, _Digest([data]))
        return parse_json(data, f"{self._label}: {name}")

    def read_tensors(self, name: str) -> dict[str, Tensor | Array]:
        """Read the arrays, each straight into its own memory."""
        header = self._take(_local_header_size(name))
        left = self._members[name]["size"]
        digest = _Digest()
        if left < 8:
            self._fail(f"{name} has {left} bytes")
        start = self._take(8)
        text_size = int(struct.unpack("<Q", start)[0])
        if text_size > min(left - 8, MAX_JSON_BYTES):
            self._fail(f"{name} announces a header of {text_size} bytes, and has {left - 8}")
        text = self._take(text_size)
        digest.update(start + text)
        entries = self._check_entries(parse_json(text, f"{self._label}: {name}"), left - 8 - text_size)
        arrays: dict[str, Tensor | Array] = {}
        for key, (dtype, shape, size) in entries.items():
            raw = np.empty(size, np.uint8)
            for at in range(0, size, _CHUNK):
                piece = self._take(min(_CHUNK, size - at))
                raw[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
                digest.update(piece)
            # A bool that is neither 0 nor 1 is undefined behaviour in the code that uses it.
            if dtype is torch.bool and size and raw.max() > 1:
                self._fail(f"array {key!r:.100} is not bool")
            arrays[key] = torch.from_numpy(raw).as_strided((size,), (1,)).view(dtype).reshape(shape)
        self._check_member(name, header, digest)
        return arrays

    def _check_entries(self, header: Any, data_size: int) -> dict[str, tuple[torch.dtype, list[int], int]]:
        """Dtype, shape and bytes of every array, in the order they lie, without gap or overlap."""
        if not isinstance(header, dict):
            self._fail("the list of arrays is not an object")
        entries, position = {}, 0
        for key, entry in header.items():
            if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
                self._fail(f"array {key!r:.100} is not described")
            name, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
            if type(name) is not str or name not in _DTYPES:
                self._fail(f"array {key!r:.100} has the unknown dtype {name!r:.50}")
            if type(shape) is not list or len(shape) > _MAX_DIMENSIONS or not all(map(_is_size, shape)):
                self._fail(f"array {key!r:.100} has the impossible shape {shape!r:.100}")
            size = math.prod(shape) * _DTYPES[name].itemsize
            # Sizes beside a zero count as well: strides are computed from them.
            if math.prod(max(extent, 1) for extent in shape) >= 2**60:
                self._fail(f"array {key!r:.100} has the impossible shape {shape!r:.100}")
            if type(offsets) is not list or not all(map(_is_size, offsets)):
                self._fail(f"array {key!r:.100} has the impossible offsets {offsets!r:.100}")
            if offsets != [position, position + size]:
                self._fail(f"array {key!r:.100} of {size} bytes at {position} has offsets {offsets!r:.100}")
            position += size
            entries[key] = (_DTYPES[name], shape, size)
        if position != data_size:
            self._fail(f"the arrays need {position} bytes, the file has {data_size} for them")
        return entries

    def finish(self) -> None:
        """Compare the zip directory at the end."""
        if self._take(self._size - self._position) != _directory(self._read):
            self._fail("the directory at its end is damaged")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _describe(head: bytes) -> str:
    """What a foreign file seems to be, from its first bytes."""
    if not head:
        return "an empty file"
    if head.startswith(b"\x89HDF"):
        return "an HDF5 file (a dataset is loaded with ReplayBuffer.load)"
    if head.startswith(b"\x80"):
        return "a Python pickle (it could run code and is never loaded)"
    if head.startswith(b"PK\3\4"):
        return "a zip of another program (those of d3rlpy and torch hold pickles and are never loaded)"
    return "a file of another program, or damaged at its beginning"
