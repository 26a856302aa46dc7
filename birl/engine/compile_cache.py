"""Compiled updates on disk, which the next process loads instead of compiling.

A compiled update is machine code, so it is stored in a folder that only its user can write, never in a file that users
share. Its key is the `digest` of everything that it depends on. A damaged file is compiled again.

Why torch's own caches do not suffice: a hit in the FX graph cache and the AOT autograd cache (and so
``torch.compiler.save_cache_artifacts``) still traces the update with Dynamo. Measured with SAC on a busy machine with
2 cores (torch 2.13): the first update of a process takes 8 s with torch's caches, and 0.1 s when it is loaded here.
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
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from birl._version import __version__
from birl.files import atomic_write

if TYPE_CHECKING:
    from torch._inductor.output_code import CompiledFxGraph

PROGRAMS: Final = "programs"
_INDUCTOR: Final = "inductor"
_VARIABLE: Final = "TORCHINDUCTOR_CACHE_DIR"

_ENTRY: Final = "inductor_entry_cpp"
"""Name of the function in the libraries that inductor builds."""

_COMPILER_VARIABLES: Final = ("TORCHINDUCTOR_", "TORCH_COMPILE", "ATEN_", "CXX", "CPATH", "CPLUS", "MKL_", "ONEDNN_")
"""Prefixes of environment variables that change compiled code."""

Program = Callable[[list[Tensor]], Sequence[Any]]


@dataclass(frozen=True)
class Wiring:
    """The input and output tensors of a program.

    Attributes:
        inputs: for each input, whether it is one of the fixed tensors, and its index among these or among the tensors
            that change from call to call.
        metrics: indices of the outputs that are metrics, by name.
        priority: index of the output with the priorities; ``None`` if there are no priorities.
        gradient_statistics: indices of the outputs with gradient statistics, by name of the step.
        changed: indices of the fixed tensors that the program changes in place.
    """

    inputs: Sequence[tuple[bool, int]]
    metrics: Mapping[str, int]
    priority: int | None
    gradient_statistics: Mapping[str, int]
    changed: Sequence[int]


def folder() -> Path | None:
    """Return the folder of compiled updates: ``BIRL_CACHE_DIR``, or ``birl`` in the user's cache directory.

    Return ``None``, with a warning, if it cannot be made or others can write there: its files are executed.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    named = os.environ.get("BIRL_CACHE_DIR", "").strip()
    path = Path(named or Path(base if os.path.isabs(base) else "~/.cache", "birl"))
    try:
        path = path.expanduser().absolute()
        for part in (path, path / PROGRAMS, path / _INDUCTOR):
            part.mkdir(parents=True, exist_ok=True, mode=0o700)
            _check_owner(part)
    except (OSError, RuntimeError) as error:
        warnings.warn(
            f"compiled updates are not stored: {path} cannot be used ({error}). Delete it, or set BIRL_CACHE_DIR to "
            "a folder of your own",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return path


def _check_owner(*paths: Path) -> None:
    """Raise an `OSError` if other users can change these files, which are executed."""
    for path in paths:
        about = path.stat()
        if about.st_uid != getattr(os, "getuid", lambda: about.st_uid)():  # noqa: B023
            raise PermissionError(f"{path} belongs to another user")
        if os.name == "posix" and about.st_mode & 0o022:
            raise PermissionError(f"{path} can be written by other users")


@contextmanager
def inductor_folder() -> Iterator[None]:
    """Let inductor store its own files in `folder`, too, unless ``TORCHINDUCTOR_CACHE_DIR`` names another folder.

    Torch sets this variable when its compiler is imported, to a folder for temporary files, which other users may have
    created.
    """
    root, before = folder(), os.environ.get(_VARIABLE)
    if before is not None:
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        before = None if before == default_cache_dir() else before
    if root is None or before is not None:
        yield
        return
    os.environ[_VARIABLE] = str(root / _INDUCTOR)
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)


def compile_environment() -> tuple[Any, ...]:
    """Return the versions, processor and settings that compiled code depends on in addition to the update."""
    compiler: Any = sys.modules.get("torch._inductor.config")  # not imported: all settings have their defaults
    settings = {} if compiler is None else compiler.save_config_portable()
    return (
        __version__,
        torch.__version__,
        torch.version.git_version,
        sys.version,
        _processor(),
        {name: value for name, value in sorted(os.environ.items()) if _affects_compiler(name)},
        {name: value for name, value in settings.items() if value != compiler._config[name].default},
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.backends.mkldnn.enabled,
    )


def _affects_compiler(variable: str) -> bool:
    return variable.startswith(_COMPILER_VARIABLES) and variable != _VARIABLE


@cache
def _processor() -> str:
    """Return a description of the processor, without serial numbers or clock rates."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    fields = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU implementer", "CPU part")
    own = [line for line in lines if line.partition(":")[0].strip() in fields]
    return "\n".join([sys.platform, platform.machine(), *own])


def load(path: Path) -> tuple[Program, Wiring] | None:
    """Load the program stored at ``path`` (without suffix). Return ``None`` if it does not exist or is damaged."""
    library, wiring = path.with_suffix(".so"), path.with_suffix(".json")
    try:
        _check_owner(path.parent, library, wiring)
        checksum, _, text = wiring.read_bytes().partition(b"\n")
        if checksum != _sha256(text):
            return None
        about = json.loads(text)
        if (about.pop("key"), about.pop("library")) != (_key(path), _sha256(library.read_bytes()).decode()):
            return None
        return load_library(library, path.name), Wiring(**about)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, RecursionError):
        return None


def save(path: Path, library: Path, wiring: Wiring) -> None:
    """Store a program. Warn if it cannot be written."""
    try:
        content = library.read_bytes()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = {**asdict(wiring), "key": _key(path), "library": _sha256(content).decode()}
        text = json.dumps(about).encode()
        for suffix, data in ((".so", content), (".json", _sha256(text) + b"\n" + text)):
            atomic_write(path.with_suffix(suffix), data)
            path.with_suffix(suffix).chmod(0o600)
    except OSError as error:
        warnings.warn(f"a compiled update is not stored: {error}", RuntimeWarning, stacklevel=2)


def _key(path: Path) -> str:
    """Return the key of a program, which detects a file that was copied to another key."""
    return f"{path.parent.name}/{path.name}"


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def library_path(compiled: CompiledFxGraph) -> Path | None:
    """Return the library of a graph compiled with inductor's C++ wrapper; ``None`` if the library does not suffice."""
    entry = getattr(compiled.current_callable, "__globals__", {}).get("inductor_entry")
    file = getattr(getattr(entry, "__self__", None), "__file__", None)
    whole = getattr(entry, "__name__", "") == _ENTRY and not compiled.constants
    return Path(file) if whole and file else None


def load_library(library: Path, name: str) -> Program:
    """Return the function in a library, called as inductor calls it."""
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
