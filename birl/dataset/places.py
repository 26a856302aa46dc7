"""Where the columns of a storage lie: memory, a folder of memory-mapped files, or a torch device.

A place knows how to make, write and read arrays. Everything above works on either kind through these few
operations, so pickers and slicers are written once.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from birl.errors import ConfigError, WriteError
from birl.types import Array

__all__ = ["FolderPlace", "MemoryPlace", "Place", "TorchPlace", "make_place"]

_DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")


class MemoryPlace:
    """Numpy arrays. Memory is taken from the system when rows are first written."""

    device: torch.device | None = None

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """New array of zeros."""
        return np.zeros(shape, dtype)

    def put(self, array: Any, rows: Array, values: Array | int) -> None:
        """``array[rows] = values``."""
        array[rows] = values

    def take(self, array: Any, rows: Any) -> Any:
        """``array[rows]`` for integers ``rows`` of any shape."""
        return array.take(rows, axis=0)

    def host(self, array: Any) -> Array:
        """The array as numpy; shares memory where it can."""
        return array  # type: ignore[no-any-return]

    def indices(self, rows: Array) -> Any:
        """Row numbers where gathers read them."""
        return rows

    def arange(self, start: int, stop: int) -> Any:
        """Integers from ``start`` up to and without ``stop``."""
        return np.arange(start, stop)

    def to_float(self, array: Any) -> Any:
        """Convert to float32."""
        return array.astype(np.float32, copy=False)

    def to_network(self, array: Any) -> Any:
        """As networks take it: float32, except bytes, which stay bytes until they are on the training device."""
        return array if array.dtype in (np.float32, np.uint8) else array.astype(np.float32)

    def to_action(self, array: Any) -> Any:
        """Integers as int64, the rest as float32."""
        return array.astype(np.int64 if array.dtype.kind in "iu" else np.float32, copy=False)

    def ones(self, count: int) -> Any:
        """Float32 ones ``[count, 1]``."""
        return np.ones((count, 1), np.float32)

    def blank(self, array: Any, dead: Any) -> Any:
        """Set the elements (leading dimensions) where ``dead`` is true to zero, in place."""
        array[dead] = 0
        return array

    def where(self, condition: Any, first: Any, second: Any) -> Any:
        """Elementwise choice."""
        return np.where(condition, first, second)


class FolderPlace(MemoryPlace):
    """Memory-mapped ``.npy`` files in a folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.files: dict[str, Path] = {}
        self._maps: dict[str, np.memmap[Any, Any]] = {}

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """New file of zeros; takes space on disk only where it is written."""
        path = self.folder / f"{name}.{shape[0]}.npy"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            mapped = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        except OSError as error:
            raise WriteError(f"{path} could not be made ({error}): free some space or choose another folder") from error
        self.files[name], self._maps[name] = path, mapped
        return np.asarray(mapped)  # a plain view: np.memmap itself is slow to index

    def attach(self, name: str, path: Path, mapped: np.memmap[Any, Any]) -> Any:
        """Use an existing file."""
        self.files[name], self._maps[name] = path, mapped
        return np.asarray(mapped)

    def flush(self) -> None:
        """Write what is still in memory to disk."""
        for mapped in self._maps.values():
            mapped.flush()

    def remove_others(self) -> None:
        """Delete column files that are no longer in use (left by growth)."""
        used = {path.name for path in self.files.values()}
        for path in self.folder.glob("column_*.npy"):
            if path.name not in used:
                path.unlink(missing_ok=True)


class TorchPlace:
    """Tensors on a device. Indices are drawn and gathers run there."""

    def __init__(self, device: torch.device) -> None:
        self.device: torch.device | None = device

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """New tensor of zeros."""
        like = torch.from_numpy(np.zeros(0, dtype))
        return torch.zeros(shape, dtype=like.dtype, device=self.device)

    def put(self, array: Any, rows: Array, values: Array | int) -> None:
        """``array[rows] = values``, from host memory."""
        if isinstance(values, int):
            array[self.indices(rows)] = values
        else:
            values = np.require(values, requirements=["C", "W"])
            array[self.indices(rows)] = torch.from_numpy(values).to(self.device, array.dtype)

    def take(self, array: Any, rows: Any) -> Any:
        """``array[rows]`` for integers ``rows`` of any shape."""
        if not isinstance(rows, torch.Tensor):
            rows = self.indices(np.asarray(rows))
        return array[rows]

    def host(self, array: Any) -> Array:
        """The tensor as a numpy array."""
        return array.cpu().numpy()  # type: ignore[no-any-return]

    def indices(self, rows: Array) -> Any:
        """Row numbers where gathers read them."""
        return torch.as_tensor(rows, device=self.device)

    def arange(self, start: int, stop: int) -> Any:
        """Integers from ``start`` up to and without ``stop``."""
        return torch.arange(start, stop, device=self.device)

    def to_float(self, array: Any) -> Any:
        """Convert to float32."""
        return array.to(torch.float32)

    def to_network(self, array: Any) -> Any:
        """As networks take it: float32, except bytes, which stay bytes."""
        return array if array.dtype == torch.uint8 else array.to(torch.float32)

    def to_action(self, array: Any) -> Any:
        """Integers as int64, the rest as float32."""
        return array.to(torch.float32 if array.is_floating_point() else torch.int64)

    def ones(self, count: int) -> Any:
        """Float32 ones ``[count, 1]``."""
        return torch.ones(count, 1, device=self.device)

    def blank(self, array: Any, dead: Any) -> Any:
        """Set the elements (leading dimensions) where ``dead`` is true to zero, in place."""
        return array.masked_fill_(dead.reshape(dead.shape + (1,) * (array.dim() - dead.dim())), 0)

    def where(self, condition: Any, first: Any, second: Any) -> Any:
        """Elementwise choice."""
        return torch.where(condition, first, second)


Place: TypeAlias = MemoryPlace | TorchPlace


def make_place(storage: str | os.PathLike[str] | torch.device) -> Place:
    """The place that ``storage=`` names.

    Args:
        storage: ``"memory"``, a torch device such as ``"cuda:0"``, or the path of a folder.

    Raises:
        ConfigError: if a device is not there.
    """
    if isinstance(storage, str) and storage == "memory":
        return MemoryPlace()
    if isinstance(storage, torch.device) or (isinstance(storage, str) and _DEVICE.fullmatch(storage)):
        try:
            return TorchPlace(torch.empty(0, device=storage).device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(
                f"storage={str(storage)!r} is not available here ({str(error).splitlines()[0]}): use 'memory', the "
                "path of a folder, or a device that torch lists"
            ) from error
    if isinstance(storage, str | os.PathLike) and os.fspath(storage):
        return FolderPlace(storage)
    raise ConfigError(
        f"storage={storage!r}, allowed are 'memory', the path of a folder and a torch device: use one of them"
    )
