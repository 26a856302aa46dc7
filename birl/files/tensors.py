"""Arrays and tensors as `safetensors <https://huggingface.co/docs/safetensors>`_."""

from __future__ import annotations

import math
import os
from typing import Any, Final

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from birl.errors import ConfigError
from birl.files.reading import corrupt
from birl.types import Array

DTYPES: Final = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
_NUMPY_DTYPES: Final = "?bBhHiIlLqQefd"
_MAX_DIMENSIONS: Final = 32  # of numpy 1
_MAX_ELEMENTS: Final = 2**60


def array_bytes(name: str, value: Tensor | Array) -> tuple[torch.dtype, tuple[int, ...], memoryview]:
    """Dtype, shape and bytes of an array or tensor; the bytes are a view where that is possible.

    Raises:
        ConfigError: if it cannot be saved.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.char not in _NUMPY_DTYPES:
            raise ConfigError(f"cannot save {name!r:.200}: dtype {value.dtype}; allowed: bool, ints and floats")
        dtype = torch.from_numpy(np.empty(0, value.dtype.newbyteorder("="))).dtype
        little_endian = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        return dtype, value.shape, little_endian.reshape(-1).view(np.uint8).data
    if value.layout != torch.strided or value.device.type == "meta" or value.dtype not in DTYPES:
        raise ConfigError(
            f"cannot save {name!r:.200}: a {value.layout} tensor of {value.dtype} on {value.device}; "
            "allowed: dense tensors of bool, ints and floats"
        )
    # as_strided: with one element or none, a contiguous tensor can have any stride, and cannot be reinterpreted.
    flat = value.detach().cpu().resolve_neg().contiguous().as_strided((value.numel(),), (1,))
    return value.dtype, tuple(value.shape), flat.view(torch.uint8).numpy().data


def load_tensors(source: str | os.PathLike[str] | bytes, header: Any, label: str) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file, each into its own memory.

    The library compares every size with the length of the file before it allocates anything.

    Args:
        source: path or content of the file.
        header: its parsed header.
        label: its name for messages.

    Raises:
        CorruptFileError: if it is not a safetensors file, or holds arrays that `array_bytes` does not write.
    """
    if not isinstance(header, dict):
        raise corrupt(label, "its list of arrays is no object")
    for name, entry in header.items():
        if not _is_entry(entry):
            raise corrupt(label, f"array {name!r:.100} is described as {entry!r:.200}")
    try:
        if isinstance(source, bytes):
            tensors = safetensors.torch.load(source)
        else:  # pread: a mapped file that shrinks while it is read would kill the process
            with safetensors.safe_open(source, framework="pt", backend="pread") as file:
                tensors = file.get_tensors()
    except safetensors.SafetensorError as error:
        raise corrupt(label, str(error)) from error
    for name, tensor in tensors.items():
        # A bool that is neither 0 nor 1 is undefined behaviour in the code that uses it.
        if tensor.dtype is torch.bool and tensor.numel() and tensor.view(torch.uint8).max() > 1:
            raise corrupt(label, f"array {name!r:.100} is not bool")
    return tensors


def _is_entry(entry: Any) -> bool:
    """Whether torch and numpy can represent the array; the library checks its size."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": list(), **rest}:
            # Extents next to a zero count, too: strides are computed from them.
            extents = [max(extent, 1) for extent in shape if type(extent) is int]
            few = len(extents) == len(shape) <= _MAX_DIMENSIONS
            return not rest and dtype in DTYPES.values() and few and math.prod(extents) < _MAX_ELEMENTS
    return False
