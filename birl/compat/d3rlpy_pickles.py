"""Reading of d3rlpy's models. This is the only module that reads pickles, with unpicklers that accept such files only.

A ``.d3`` file of d3rlpy 2 is a pickled dict: the configuration as JSON, and the bytes of a torch file, which is a zip
file of a pickle and of raw numbers. Unpickling usually calls every function that a pickle names. Here the outer pickle
may not name any. The inner pickle may name only a dict class and the types of tensors, which functions of this module
replace. All other names are refused before anything is called.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import reprlib
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Final, NamedTuple

import torch
from torch import Tensor

from birl.errors import CorruptFileError, ForeignFileError, UnsupportedError
from birl.files.reading import PLAIN, MemoryBudget

_MOST_OPERATIONS: Final = 200_000  # a tensor takes about 25
_MOST_DIMENSIONS: Final = 32
_OPERATIONS: Final = b"".join(
    getattr(pickle, name)
    for name in (
        *("PROTO", "FRAME", "STOP", "MARK", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BINPERSID"),
        *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "BINFLOAT"),  # no large integers: keys collide
        *("BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS"),
        *("EMPTY_DICT", "SETITEM", "SETITEMS", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    )
)

_STORAGES: Final = {
    "BFloat16Storage": torch.bfloat16,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
}


class _Operations(dict[int, Callable[..., None]]):
    """The operations that such files use. Each look-up counts as one operation."""

    left = _MOST_OPERATIONS

    def __getitem__(self, code: int) -> Callable[..., None]:
        self.left -= 1
        if self.left < 0 or code not in self:
            raise ValueError(f"operation {chr(code)!r} after {_MOST_OPERATIONS - 1 - self.left} others is not allowed")
        return super().__getitem__(code)


class _Unpickler(pickle._Unpickler):  # the one in C allocates its memo for the largest number in the file
    """Unpickler that refuses every class, function and storage."""

    stack: list[Any]

    def __init__(self, file: BinaryIO, name: object) -> None:
        super().__init__(file)
        self.name = name
        known = pickle._Unpickler.dispatch
        self.dispatch = _Operations({code: known[code] for code in _OPERATIONS})  # type: ignore[misc]
        self.dispatch[pickle.BUILD[0]] = type(self)._ignore_attributes

    def _ignore_attributes(self) -> None:
        """Drop the attributes of torch's dicts of tensors; refuse attributes of other objects."""
        self.stack.pop()
        if type(self.stack[-1]) is not OrderedDict:
            raise ValueError(f"attributes for {type(self.stack[-1]).__name__}")

    def find_class(self, module: str, name: str) -> object:
        raise ForeignFileError(
            f"{self.name} names {module:.100}.{name:.100}, which no model of d3rlpy needs. It was refused, and no code "
            "has run: do not open the file with d3rlpy or torch.load either, unless you trust its source"
        )

    def persistent_load(self, key: object) -> object:
        raise ForeignFileError(f"{self.name} refers to {reprlib.repr(key)}, which no model of d3rlpy does")


def read_outer(data: bytes, fname: object) -> dict[str, Any]:
    """Read the pickled dict with ``torch``, ``config`` and ``version``.

    See `birl.compat.d3rlpy_models.read_d3rlpy` for errors.
    """
    if data[:1] != b"\x80":
        raise ForeignFileError(f"{fname} is not a model that d3rlpy 2 saved: give a .d3 file that its save(…) wrote")
    content = _Unpickler(io.BytesIO(data), fname).load()
    kinds = {"torch": bytes, "config": str, "version": str}
    if not isinstance(content, dict) or any(not isinstance(content.get(key), kind) for key, kind in kinds.items()):
        raise ForeignFileError(f"{fname} is not a model that d3rlpy 2 saved: it lacks torch, config or version")
    return content


class _Storage(NamedTuple):
    dtype: torch.dtype
    data: bytes


class _TorchUnpickler(_Unpickler):
    """Unpickler of dicts and tensors. Each storage is read once, and no tensor may be larger than its storage."""

    def __init__(self, archive: zipfile.ZipFile, folder: str, name: object, budget: MemoryBudget) -> None:
        program = _member(archive, f"{folder}/data.pkl", budget)
        super().__init__(io.BytesIO(program), name)
        self._archive, self._folder, self._budget = archive, folder, budget
        self._read: dict[str, bytes] = {}

    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("collections", "OrderedDict"):
            return _new_dict
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        return super().find_class(module, name)

    def persistent_load(self, key: object) -> object:
        match key:
            case ("storage", torch.dtype() as dtype, str(number), str(), int(count)) if re.fullmatch(r"\d+", number):
                if number not in self._read:
                    self._read[number] = _member(self._archive, f"{self._folder}/data/{number}", self._budget)
                data = self._read[number]
            case _:
                return super().persistent_load(key)
        if len(data) != count * dtype.itemsize:
            raise CorruptFileError(f"{self.name}: a tensor has {len(data)} bytes, expected are {count} of {dtype}")
        return _Storage(dtype, data)

    def _tensor(self, storage: _Storage, offset: int, size: Sequence[int], stride: Sequence[int], *_: object) -> Tensor:
        """Return a new tensor, in place of torch's function."""
        numbers = (offset, *size, *stride)
        if len(size) > _MOST_DIMENSIONS or any(type(number) is not int or number < 0 for number in numbers):
            raise CorruptFileError(f"{self.name}: a tensor has the shape {reprlib.repr(size)}, which it cannot have")
        available, count = len(storage.data) // storage.dtype.itemsize, math.prod(size)
        last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        if count > available or (count and last >= available):
            raise CorruptFileError(f"{self.name}: a tensor of shape {size} does not fit into its {available} numbers")
        if not count:
            return torch.empty(size, dtype=storage.dtype)
        self._budget.spend(count * storage.dtype.itemsize, f"a tensor of shape {size}")
        with warnings.catch_warnings():  # the bytes are read-only, and nothing writes to them
            warnings.simplefilter("ignore", UserWarning)
            flat = torch.frombuffer(storage.data, dtype=storage.dtype)
        return flat.as_strided(size, stride, offset).clone()


def _new_dict() -> OrderedDict[str, Any]:
    return OrderedDict()


def _member(archive: zipfile.ZipFile, name: str, budget: MemoryBudget) -> bytes:
    member = archive.getinfo(name)
    if member.compress_type != zipfile.ZIP_STORED:  # torch does not compress, so no member may expand
        raise CorruptFileError(f"the member {name} is compressed, which torch never does")
    budget.spend(max(member.file_size, member.compress_size), f"the member {name}")
    return archive.read(name)


def read_torch(data: bytes, fname: object) -> dict[str, Any]:
    """Read the tensors of each module by name, from the bytes of a torch file."""
    budget = MemoryBudget(str(fname), len(data), PLAIN)
    budget.spend(1024 * data.count(b"PK\1\2"), "its list of members")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        folder = next(name.removesuffix("/data.pkl") for name in names if name.endswith("/data.pkl"))
        if f"{folder}/byteorder" in names and _member(archive, f"{folder}/byteorder", budget) != b"little":
            raise UnsupportedError(f"{fname} was written on a big-endian machine: save it again on another one")
        content = _TorchUnpickler(archive, folder, fname, budget).load()
    if not isinstance(content, dict):
        raise ForeignFileError(f"{fname} holds {type(content).__name__} instead of networks: give a .d3 file of d3rlpy")
    return content
