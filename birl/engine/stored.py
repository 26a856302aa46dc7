"""Compiled updates kept on disk, so that the next process that needs one loads it instead of compiling.

A compiled update is machine code, so it lies in a folder that only its user can write, never in a file that users hand
on. It is found by a `digest` of all that it depends on. Whatever is damaged is compiled again.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from birl._version import __version__
from birl.files import atomic_write

_ENTRY: Final = "inductor_entry_cpp"
"""Name of the function in the libraries that inductor builds."""

_SEEN_BY_COMPILERS: Final = ("TORCHINDUCTOR_", "TORCH_COMPILE", "ATEN_", "CXX", "CPATH", "CPLUS", "MKL_", "ONEDNN_")
"""How names of environment variables begin that change compiled code."""

Program = Callable[[list[Tensor]], Sequence[Any]]


@dataclass(frozen=True)
class Wiring:
    """Which tensors a program takes and gives.

    Attributes:
        inputs: for each, whether it is one of the tensors that stay where they are, and its number among them or among
            those that change from call to call.
        outputs: number of each result, by name.
        moved: numbers of the tensors that stay whose values the program changes.
    """

    inputs: Sequence[tuple[bool, int]]
    outputs: Mapping[str, int]
    moved: Sequence[int]


def folder() -> Path | None:
    """The folder of compiled updates: ``BIRL_CACHE_DIR``, or ``birl`` in the user's cache directory.

    ``None``, with a warning, if it cannot be made or others can write there: what lies there is executed.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    path = Path(os.environ.get("BIRL_CACHE_DIR") or Path(base if os.path.isabs(base) else "~/.cache", "birl"))
    try:
        path = path.expanduser().absolute()
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = path.stat()
    except (OSError, RuntimeError) as error:
        reason = f"cannot be used ({error})"
    else:
        if not hasattr(os, "getuid") or (about.st_uid == os.getuid() and not about.st_mode & 0o022):
            return path
        reason = "belongs to another user" if about.st_uid != os.getuid() else "can be written by other users"
    warnings.warn(
        f"compiled updates are not kept: {path} {reason}. Name a folder of your own by BIRL_CACHE_DIR", RuntimeWarning,
        stacklevel=2,
    )
    return None


@contextmanager
def compilers_folder() -> Iterator[None]:
    """Let inductor keep its own files in `folder` too, unless ``TORCHINDUCTOR_CACHE_DIR`` says where."""
    place = folder()
    if place is None or "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        yield
        return
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place / "inductor")
    try:
        yield
    finally:
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]


def surroundings() -> tuple[Any, ...]:
    """What compiled code depends on beside the update itself: versions, processor and settings."""
    compiler: Any = sys.modules.get("torch._inductor.config")  # as long as nobody imports it, all is as it comes
    settings = {} if compiler is None else compiler.save_config_portable()
    return (
        __version__,
        torch.__version__,
        torch.version.git_version,
        sys.version,
        _processor(),
        {name: value for name, value in sorted(os.environ.items()) if _matters(name)},
        {name: value for name, value in settings.items() if value != compiler._config[name].default},
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.backends.mkldnn.enabled,
    )


def _matters(variable: str) -> bool:
    return variable.startswith(_SEEN_BY_COMPILERS) and variable != "TORCHINDUCTOR_CACHE_DIR"


@cache
def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    told = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU implementer", "CPU part")
    own = [line for line in lines if line.partition(":")[0].strip() in told]
    return "\n".join([sys.platform, platform.machine(), *own])


def load(path: Path) -> tuple[Program, Wiring] | None:
    """The program stored at ``path`` (without suffix); ``None`` if there is none, or something else."""
    try:
        said, _, text = path.with_suffix(".json").read_bytes().partition(b"\n")
        if said != _sha256(text):
            return None
        about = json.loads(text)
        library = path.with_suffix(".so")
        if about.pop("library") != _sha256(library.read_bytes()).decode():
            return None
        return native(library, path.name), Wiring(**about)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError):
        return None


def save(path: Path, library: Path, wiring: Wiring) -> None:
    """Store a program, unless it cannot be written."""
    try:
        content = library.read_bytes()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write(path.with_suffix(".so"), content)
        text = json.dumps({**asdict(wiring), "library": _sha256(content).decode()}).encode()
        atomic_write(path.with_suffix(".json"), _sha256(text) + b"\n" + text)
    except OSError as error:
        warnings.warn(f"a compiled update is not kept: {error}", RuntimeWarning, stacklevel=2)


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def library_of(compiled: Any) -> Path | None:
    """The library that holds a graph compiled by inductor with its C++ wrapper; ``None`` if there is more to it."""
    entry = getattr(compiled.current_callable, "__globals__", {}).get("inductor_entry")
    file = getattr(getattr(entry, "__self__", None), "__file__", None)
    whole = getattr(entry, "__name__", "") == _ENTRY and not compiled.constants
    return Path(file) if whole and file else None


def native(library: Path, name: str) -> Program:
    """The function in a library, called as inductor calls it."""
    guards: Any = torch._C._dynamo.guards
    os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(guards._torchinductor_pyobject_tensor_data_ptr)
    loader = importlib.machinery.ExtensionFileLoader(f"birl_{name}.{_ENTRY}", str(library))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    entry = getattr(module, _ENTRY)
    handles, tensors = (
        torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors,
        torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs,
    )

    def program(inputs: list[Tensor]) -> Sequence[Any]:
        with torch.no_grad():
            outputs: Sequence[Any] = tensors(entry(handles(inputs)))
        return outputs

    return program
