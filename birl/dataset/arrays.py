"""Where the columns of a storage lie: memory, a folder of memory-mapped files, or a torch device.

A place makes, writes and reads arrays. Pickers and slicers use only these few operations, so they are written once for
all places.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.lib.format import open_memmap

from birl.errors import ConfigError, WriteError
from birl.files.locks import FolderLock
from birl.types import Array

_FLOAT, _BYTE = np.dtype(np.float32), np.dtype(np.uint8)  # several times faster to compare with than the types
_CPU = torch.device("cpu")
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")


class _Place:
    """Base of places: small constant arrays, made once and never written to."""

    device: torch.device | None = None

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}

    def indices(self, rows: Array) -> Any:
        """Row numbers where gathers read them."""
        return rows

    def none_up_to(self, found: Any) -> Any:
        """For bools ``[..., L]`` whether none is true up to and with each."""
        return found.cumsum(-1) == 0

    def none_after(self, found: Any) -> Any:
        """For bools ``[..., L]`` whether none is true after each."""
        counts = found.cumsum(-1)
        return counts == counts[..., -1:]

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """The result of ``make``, computed once for each key: small constants of pickers."""
        value = self._kept.get(key)
        if value is None:
            value = self._kept[key] = make()
        return value

    def steps(self, start: int, stop: int) -> Any:
        """Integers from ``start`` up to, but not including, ``stop``."""
        return self.kept(("steps", start, stop), lambda: self.indices(np.arange(start, stop)))


class MemoryPlace(_Place):
    """Numpy arrays. Memory is taken from the system when rows are first written."""

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

    def join(self, parts: Sequence[Any], axis: int = 0) -> Any:
        """Concatenate."""
        return np.concatenate(parts, axis)

    def to_float(self, array: Any) -> Any:
        """Convert to float32."""
        return array if array.dtype == _FLOAT else array.astype(_FLOAT)

    def to_whole(self, array: Any) -> Any:
        """Convert to int64."""
        return array.astype(np.int64)

    def to_network(self, array: Any) -> Any:
        """As networks take it: float32, except bytes, which stay bytes until they are on the training device."""
        return array if array.dtype == _FLOAT or array.dtype == _BYTE else array.astype(_FLOAT)

    def to_action(self, array: Any) -> Any:
        """Integers as int64, the rest as float32."""
        if array.dtype == _FLOAT:
            return array
        return array.astype(np.int64 if array.dtype.kind in "iu" else _FLOAT, copy=False)

    def blank(self, array: Any, dead: Any) -> Any:
        """Set the elements (leading dimensions) where ``dead`` is true to zero, in place."""
        array[dead] = 0
        return array


class FolderPlace(MemoryPlace):
    """Memory-mapped ``.npy`` files in a folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.lock: FolderLock | None = None  # while it is written to
        self.sequence = 0  # number of the newest write that is known here
        self._maps: dict[str, np.memmap[Any, Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A copy holds no lock."""
        return {**vars(self), "lock": None}

    def _map(self, name: str, mapped: np.memmap[Any, Any]) -> Any:
        self._maps[name] = mapped
        return np.asarray(mapped)  # a plain view: np.memmap itself is slow to index

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """New file of zeros; takes space on disk only where it is written."""
        path = self.folder / f"{name}.{shape[0]}.npy"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # a killed writer's: others may read it, so it is not made shorter
            return self._map(name, open_memmap(path, mode="w+", dtype=dtype, shape=shape))
        except OSError as error:
            raise WriteError(f"{path} could not be made ({error}): free some space or choose another folder") from error

    def attach(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], *, writing: bool = False) -> Any:
        """The existing file of such an array; what is written to it stays in memory unless ``writing``.

        Raises ``ValueError`` or ``OSError`` if there is none.
        """
        path = self.folder / f"{name}.{shape[0]}.npy"
        if path.is_symlink() or path.is_fifo():  # a link's file would be written to, and a pipe waited for
            raise ValueError(f"{path.name} is a link or pipe, no file of this folder")
        mapped = open_memmap(path, mode="c")  # "r+" would make a short file longer: this one refuses it
        mapped = open_memmap(path, mode="r+") if writing else mapped
        if mapped.shape != shape or mapped.dtype != dtype:
            raise ValueError(f"{path.name} has shape {mapped.shape} and dtype {mapped.dtype}")
        return self._map(name, mapped)

    def flush(self) -> None:
        """Write pending changes to disk."""
        for mapped in self._maps.values():
            mapped.flush()

    def give_back(self) -> None:
        """See `give_back`, of all files."""
        for mapped in self._maps.values():
            give_back(mapped)

    def remove_others(self) -> None:
        """Delete column files that are no longer in use (left by growth)."""
        used = {f"{name}.{len(mapped)}.npy" for name, mapped in self._maps.items()}
        for path in self.folder.glob("column_*.npy"):
            if path.name not in used:
                path.unlink(missing_ok=True)


def give_back(mapped: Any) -> None:
    """Take what was read of a mapped file, or written to it, out of this process's memory.

    Nothing is lost: the system holds it, writes it to the file, and gives it again when it is asked for. Arrays that
    are no mapped files stay as they are, and so does everything where the system knows no such advice.
    """
    pages = getattr(mapped, "base", None)
    if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


class PinnedPlace(MemoryPlace):
    """Numpy arrays whose rows are gathered into pinned memory, so that copies to the device can be asynchronous.

    Each gathered array starts its own block of torch's pinned allocator, which thereby knows when the block is free.
    """

    def take(self, array: Any, rows: Any) -> Any:
        """``array[rows]`` for integers ``rows`` of any shape."""
        if array.ndim == 1:  # flags stay on the host
            return array.take(rows, axis=0)
        out = self.empty((*rows.shape, *array.shape[1:]), array.dtype)
        # Not "raise", for which numpy first gathers into its own memory. Drawn rows always exist.
        return array.take(rows, axis=0, out=out, mode="clip")

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """New uninitialised pinned array. It keeps the tensor alive that it is a view of."""
        like = torch.from_numpy(np.empty(0, dtype))
        return torch.empty(shape, dtype=like.dtype, pin_memory=True).numpy()


class TorchPlace(_Place):
    """Tensors on a device. Indices are drawn and gathers run there."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """New tensor of zeros."""
        like = torch.from_numpy(np.zeros(0, dtype))
        return torch.zeros(shape, dtype=like.dtype, device=self.device)

    def put(self, array: Any, rows: Array, values: Array | int) -> None:
        """``array[rows] = values``, from host memory."""
        if isinstance(values, int):
            array[self.indices(rows)] = values
        else:
            array[self.indices(rows)] = self.send(values).to(array.dtype)

    def send(self, values: Array) -> Any:
        """A copy of ``values`` on the device, without waiting for it."""
        tensor = torch.from_numpy(np.require(values, requirements=["C", "W"]))
        if self.device is not None and self.device.type == "cuda":
            tensor = tensor.pin_memory()  # from pageable memory the copy would wait for all work before it
        return torch.empty_like(tensor, device=self.device).copy_(tensor, non_blocking=True)

    def take(self, array: Any, rows: Any) -> Any:
        """``array[rows]`` for integers ``rows`` of any shape."""
        if not isinstance(rows, torch.Tensor):
            rows = self.indices(np.asarray(rows))
        if array.device.type == "cpu":  # numpy is several times faster, on bytes ten times
            return torch.from_numpy(array.numpy().take(rows.numpy(), axis=0))
        if rows.dim() == 1:
            return array.index_select(0, rows)
        return array.index_select(0, rows.reshape(-1)).reshape(*rows.shape, *array.shape[1:])

    def host(self, array: Any) -> Array:
        """The tensor as a numpy array."""
        return array.cpu().numpy()  # type: ignore[no-any-return]

    def indices(self, rows: Array) -> Any:
        """Row numbers where gathers read them."""
        return torch.from_numpy(rows) if self.device == _CPU else self.send(rows)

    def join(self, parts: Sequence[Any], axis: int = 0) -> Any:
        """Concatenate."""
        return torch.cat(list(parts), axis)

    def to_float(self, array: Any) -> Any:
        """Convert to float32."""
        return array if array.dtype == torch.float32 else array.to(torch.float32)

    def to_whole(self, array: Any) -> Any:
        """Convert to int64."""
        return array.to(torch.int64)

    def to_network(self, array: Any) -> Any:
        """As networks take it: float32, except bytes, which stay bytes."""
        return array if array.dtype == torch.uint8 else self.to_float(array)

    def to_action(self, array: Any) -> Any:
        """Integers as int64, the rest as float32."""
        return array.to(torch.float32 if array.is_floating_point() else torch.int64)

    def blank(self, array: Any, dead: Any) -> Any:
        """Set the elements (leading dimensions) where ``dead`` is true to zero, in place."""
        if array.device.type == "cpu":
            array.numpy()[dead.numpy()] = 0  # few are dead; torch would pass over all bytes
            return array
        # This would wait for a device, because the number of dead elements is not known here.
        return array.masked_fill_(dead.reshape(dead.shape + (1,) * (array.dim() - dead.dim())), 0)


Place: TypeAlias = MemoryPlace | TorchPlace
HOST: Final = MemoryPlace()


def free_device_memory(device: torch.device) -> int:
    """Free memory of a device in bytes; 0 if unknown."""
    if device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    # Memory that torch has reserved but does not use is free for new tensors, too.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


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
        f"storage is {storage!r}; it must be 'memory', the path of a folder or a torch device: give one of them"
    )
