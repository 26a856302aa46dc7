"""Places where the columns of a storage lie: memory, a folder of memory-mapped files, or a torch device.

A place allocates, writes and reads arrays. Pickers and slicers use only these operations, so the same code works in
every place.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, cast

import numpy as np
import torch
from numpy.lib.format import open_memmap

from birl.errors import ConfigError
from birl.files.atomic import convert_to_write_error, reserve_space
from birl.files.locks import FolderLock
from birl.types import Array, ArrayOrTensor

if TYPE_CHECKING:
    from torch import Tensor

_FLOAT32, _UINT8 = (
    np.dtype(np.float32),
    np.dtype(np.uint8),
)  # dtypes compare several times faster than types
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")

A = TypeVar("A", bound=ArrayOrTensor)


class Place(ABC, Generic[A]):
    """Base class of places, which allocate, write and read arrays of one kind: numpy arrays or tensors."""

    device: torch.device | None = None

    def __init__(self) -> None:
        self._cache: dict[Hashable, A] = {}

    @abstractmethod
    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> A:
        """Return a new array of zeros."""

    def all_or_nothing(self) -> AbstractContextManager[None]:
        """Return a context that forgets the arrays that were allocated in it if it fails, as on a full disk."""
        return contextlib.nullcontext()

    @abstractmethod
    def put(self, array: A, rows: Array, values: Array | int) -> None:
        """Set ``array[rows] = values`` from host memory."""

    @abstractmethod
    def take(self, array: A, rows: A) -> A:
        """Return ``array[rows]`` for integers ``rows`` of any shape."""

    @abstractmethod
    def host(self, array: A) -> Array:
        """Return the array as numpy; it shares memory where possible."""

    @abstractmethod
    def indices(self, rows: Array) -> A:
        """Return an array of the host, such as row numbers, as this place's kind of array."""

    @abstractmethod
    def concatenate(self, parts: Sequence[A], axis: int = 0) -> A:
        """Concatenate arrays."""

    @abstractmethod
    def to_float(self, array: A) -> A:
        """Convert to float32."""

    @abstractmethod
    def to_float64(self, array: A) -> A:
        """Convert to float64."""

    @abstractmethod
    def to_int64(self, array: A) -> A:
        """Convert to int64."""

    @abstractmethod
    def to_network(self, array: A) -> A:
        """Convert to the dtype of network inputs: float32, or uint8, which stays uint8 up to the training device."""

    @abstractmethod
    def to_action(self, array: A) -> A:
        """Convert integers to int64 and everything else to float32."""

    @abstractmethod
    def zero_where(self, array: A, mask: A) -> A:
        """Set the elements (leading dimensions) where ``mask`` is true to zero, in place."""

    def none_up_to(self, found: A) -> A:
        """Return for bools ``[..., L]`` whether none is true up to and including each position."""
        return cast(A, found.cumsum(-1) == 0)

    def none_after(self, found: A) -> A:
        """Return for bools ``[..., L]`` whether none is true after each position."""
        counts = found.cumsum(-1)
        return cast(A, counts == counts[..., -1:])

    def cached(self, key: Hashable, make: Callable[[], A]) -> A:
        """Return the result of ``make``, computed once for each key. It must not be written to."""
        value = self._cache.get(key)
        if value is None:
            value = self._cache[key] = make()
        return value

    def arange(self, start: int, stop: int) -> A:
        """Return the integers from ``start`` up to, but not including, ``stop``."""
        return self.cached(("arange", start, stop), lambda: self.indices(np.arange(start, stop)))


class MemoryPlace(Place[Array]):
    """Numpy arrays. The system assigns memory when rows are first written."""

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.zeros(shape, dtype)

    def put(self, array: Array, rows: Array, values: Array | int) -> None:
        array[rows] = values

    def take(self, array: Array, rows: Array) -> Array:
        return array.take(rows, axis=0)

    def host(self, array: Array) -> Array:
        return array

    def indices(self, rows: Array) -> Array:
        return rows

    def concatenate(self, parts: Sequence[Array], axis: int = 0) -> Array:
        return np.concatenate(parts, axis)

    def to_float(self, array: Array) -> Array:
        return array if array.dtype == _FLOAT32 else array.astype(_FLOAT32)

    def to_float64(self, array: Array) -> Array:
        return array.astype(np.float64, copy=False)

    def to_int64(self, array: Array) -> Array:
        return array.astype(np.int64)

    def to_network(self, array: Array) -> Array:
        return array if array.dtype == _FLOAT32 or array.dtype == _UINT8 else array.astype(_FLOAT32)

    def to_action(self, array: Array) -> Array:
        if array.dtype == _FLOAT32:
            return array
        return array.astype(np.int64 if array.dtype.kind in "iu" else _FLOAT32, copy=False)

    def zero_where(self, array: Array, mask: Array) -> Array:
        array[mask] = 0
        return array


class FolderPlace(MemoryPlace):
    """Memory-mapped ``.npy`` files in a folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.lock: FolderLock | None = None  # held while this process writes
        self.sequence = 0  # number of the newest write that this process has read or made
        self._maps: dict[str, np.memmap[Any, Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which does not have the lock."""
        return {**vars(self), "lock": None}

    def _map(self, name: str, mapped: np.memmap[Any, Any]) -> Array:
        self._maps[name] = mapped
        return np.asarray(mapped)  # a plain view: np.memmap itself is slow to index

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Create a file of zeros and reserve its space: on a full disk, a write to a mapped file kills the process."""
        path = self.folder / f"{name}.{shape[0]}.npy"
        with convert_to_write_error(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # a killed writer left it, and other processes may map it: do not truncate it
            mapped = self._map(name, open_memmap(path, mode="w+", dtype=dtype, shape=shape))
            reserve_space(path)
            return mapped

    def open_array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], *, writing: bool = False) -> Array:
        """Map the existing file of an array. Unless ``writing``, changes stay in memory.

        Raises:
            ValueError, OSError: if there is no such file.
        """
        path = self.folder / f"{name}.{shape[0]}.npy"
        if path.is_symlink() or path.is_fifo():  # the target of a link would be written to, and a pipe would block
            raise ValueError(f"{path.name} is a link or pipe, no file of this folder")
        mapped = open_memmap(path, mode="c")  # "c" refuses a file that is too short; "r+" would extend it
        mapped = open_memmap(path, mode="r+") if writing else mapped
        if mapped.shape != shape or mapped.dtype != dtype:
            raise ValueError(f"{path.name} has shape {mapped.shape} and dtype {mapped.dtype}")
        return self._map(name, mapped)

    @contextlib.contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        before = dict(self._maps)
        try:
            yield
        except BaseException:
            for name, mapped in self._maps.items():
                if before.get(name) is not mapped:
                    (self.folder / f"{name}.{len(mapped)}.npy").unlink(missing_ok=True)
            self._maps = before
            raise

    def flush(self) -> None:
        """Write pending changes to disk."""
        for mapped in self._maps.values():
            mapped.flush()

    def release_pages(self) -> None:
        """Call `release_pages` for all files."""
        for mapped in self._maps.values():
            release_pages(mapped)

    def remove_unused(self) -> None:
        """Delete the column files that are no longer in use because the storage has grown."""
        used = {f"{name}.{len(mapped)}.npy" for name, mapped in self._maps.items()}
        for path in self.folder.glob("column_*.npy"):
            if path.name not in used:
                path.unlink(missing_ok=True)


def ranges(begin: Array, end: Array) -> tuple[Array, Array]:
    """Return the concatenated ranges of integers from ``begin`` ``[k]`` up to, but not including, ``end`` ``[k]``.

    Returns:
        For each integer the index of its range, and the integer. An ``end`` before its ``begin`` gives an empty range.
    """
    counts = np.maximum(end - begin, 0)
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) + np.repeat(begin - np.cumsum(counts) + counts, counts)


def release_pages(mapped: Array) -> None:
    """Remove the pages of a memory-mapped array from this process's memory.

    No data are lost: the system writes changed pages to the file and reads pages again when they are accessed. Arrays
    that are not memory-mapped do not change, nor does anything on systems without ``madvise``.
    """
    pages = getattr(mapped, "base", None)
    if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


class PinnedPlace(MemoryPlace):
    """Numpy arrays whose rows are gathered into pinned memory, so that copies to the device can be asynchronous.

    Each gathered array is a block of torch's pinned allocator, which knows when the block can be reused.
    """

    def take(self, array: Array, rows: Array) -> Array:
        if array.ndim == 1:  # flags stay on the host
            return array.take(rows, axis=0)
        out = self.empty((*rows.shape, *array.shape[1:]), array.dtype)
        # With mode="raise" numpy would first gather into its own memory. Sampled rows are always in bounds.
        return array.take(rows, axis=0, out=out, mode="clip")

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a new uninitialised pinned array, which is a view of a tensor."""
        like = torch.from_numpy(np.empty(0, dtype))
        return torch.empty(shape, dtype=like.dtype, pin_memory=True).numpy()


class TorchPlace(Place["Tensor"]):
    """Tensors on a device, where row numbers are drawn and rows are gathered."""

    device: torch.device

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        like = torch.from_numpy(np.zeros(0, dtype))
        return torch.zeros(shape, dtype=like.dtype, device=self.device)

    def put(self, array: Tensor, rows: Array, values: Array | int) -> None:
        if isinstance(values, int):
            array[self.indices(rows)] = values
        else:
            array[self.indices(rows)] = self.send(values).to(array.dtype)

    def send(self, values: Array) -> Tensor:
        """Return a copy of ``values`` on the device, without waiting for it."""
        tensor = torch.from_numpy(np.require(values, requirements=["C", "W"]))
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()  # from pageable memory the copy would wait for all work before it
        return torch.empty_like(tensor, device=self.device).copy_(tensor, non_blocking=True)

    def take(self, array: Tensor, rows: Tensor | Array) -> Tensor:
        if not isinstance(rows, torch.Tensor):
            rows = self.indices(np.asarray(rows))
        if array.device.type == "cpu":  # numpy is several times faster, on bytes ten times
            return torch.from_numpy(array.numpy().take(rows.numpy(), axis=0))
        if rows.dim() == 1:
            return array.index_select(0, rows)
        return array.index_select(0, rows.reshape(-1)).reshape(*rows.shape, *array.shape[1:])

    def host(self, array: Tensor) -> Array:
        return array.cpu().numpy()

    def indices(self, rows: Array) -> Tensor:
        return torch.from_numpy(rows) if self.device.type == "cpu" else self.send(rows)

    def concatenate(self, parts: Sequence[Tensor], axis: int = 0) -> Tensor:
        return torch.cat(list(parts), axis)

    def to_float(self, array: Tensor) -> Tensor:
        return array if array.dtype == torch.float32 else array.to(torch.float32)

    def to_float64(self, array: Tensor) -> Tensor:
        return array.to(torch.float64)

    def to_int64(self, array: Tensor) -> Tensor:
        return array.to(torch.int64)

    def to_network(self, array: Tensor) -> Tensor:
        return array if array.dtype == torch.uint8 else self.to_float(array)

    def to_action(self, array: Tensor) -> Tensor:
        return array.to(torch.float32 if array.is_floating_point() else torch.int64)

    def zero_where(self, array: Tensor, mask: Tensor) -> Tensor:
        if array.device.type == "cpu":
            array.numpy()[mask.numpy()] = 0  # the mask is sparse; torch would pass over all bytes
            return array
        # Indexing with a mask would wait for the device, because the host does not know the number of elements.
        return array.masked_fill_(mask.reshape(mask.shape + (1,) * (array.dim() - mask.dim())), 0)


AnyPlace: TypeAlias = "Place[Any]"
HOST: Final = MemoryPlace()


def free_device_memory(device: torch.device) -> int:
    """Return the free memory of a device in bytes; 0 if unknown."""
    if device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    # Memory that torch has reserved but does not use is free for new tensors, too.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def make_place(storage: str | os.PathLike[str] | torch.device) -> AnyPlace:
    """Make the place that the argument ``storage=`` names.

    Args:
        storage: ``"memory"``, a torch device such as ``"cuda:0"``, or the path of a folder.

    Raises:
        ConfigError: if a device is not available.
    """
    if isinstance(storage, str) and storage == "memory":
        return MemoryPlace()
    if isinstance(storage, str | os.PathLike) and not _is_device(storage):
        if os.fspath(storage):
            return FolderPlace(storage)
    elif isinstance(storage, str | torch.device):
        try:
            return TorchPlace(torch.empty(0, device=storage).device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(
                f"storage={str(storage)!r} is not available here ({str(error).splitlines()[0]}): use 'memory', the "
                "path of a folder, or a device that torch lists"
            ) from error
    raise ConfigError(
        f"storage is {storage!r}; it must be 'memory', the path of a folder or a torch device: give one of them"
    )


def _is_device(storage: object) -> bool:
    return isinstance(storage, str) and _DEVICE.fullmatch(storage) is not None
