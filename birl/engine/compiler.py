"""Functions of a batch, compiled by ``torch.compile``."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import types
import warnings
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from birl.engine import compile_cache as stored
from birl.engine.compile_cache import Program, Wiring, inductor_folder
from birl.engine.steps import UpdateResult
from birl.errors import CompileError

BACKEND = "inductor"
"""Backend of torch.compile. Tests on machines without a C++ compiler use one that traces but does not compile."""

INDUCTOR: dict[str, Any] = {"fallback_random": True, "size_asserts": False}
"""Options of the backend."""

ON_GPU: dict[str, Any] = {"deterministic": True}
"""Further options for GPUs: no timing of orders of summation, which would make runs round differently."""

_TORN = re.compile(r"(/[^:\n]+\.so): (?:file too short|invalid ELF header|.*past end of file|cannot read file)")
"""The system's message about a truncated library."""

_serial = itertools.count()

Value = TypeVar("Value")


class Uncopied(dict[Hashable, Value]):
    """A dict of values that belong to one set of networks; its deep copy is empty."""

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return type(self)()


class Graphs(Uncopied["_Compiled"]):
    """Compiled functions of a batch, one for each kind of batch and each number of threads."""

    def of(
        self,
        key: Hashable,
        make: Callable[[], Callable[..., Any]],
        signature: Hashable,
        place: Callable[..., Path | None] | None = None,
    ) -> _Compiled:
        """Return the function that ``make`` makes for ``key``, compiled for batches of this signature.

        Args:
            key: identifies the function.
            make: makes the function.
            signature: signature of the batch.
            place: returns the path at which the program for a key is stored on disk; ``None`` to store nothing.
        """
        key = (key, signature, torch.get_num_threads())
        if key not in self:
            self[key] = _Compiled(make(), None if place is None else place(key))
        return self[key]

    def refresh(self) -> None:
        """Make compiled functions look up their tensors again, which may have been replaced."""
        for graph in self.values():
            graph.forget()


class _Call(NamedTuple):
    """A call of a program, recorded during the first run."""

    program: Program
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    library: Path | None


class _Compiled:
    """A function as one compiled graph.

    Guards, which would check every network attribute before every call, are left out: callers ensure that a
    function is only called with arguments that it was compiled for. Random numbers come from torch's own generators, so
    seeds and checkpoints mean the same as without compilation.

    Args:
        function: function of a batch and further arguments.
        place: path at which its program is stored on disk; ``None`` to store nothing.
    """

    def __init__(self, function: Callable[..., Any], place: Path | None = None) -> None:
        self._function, self._place = function, place
        self._shell: Any = None
        self._bare: tuple[Program, Wiring] | None = None if place is None else stored.load(place)
        self._checked = self._bare is not None
        self._calls: list[_Call] | None = None  # calls of programs, recorded during the first run
        self.forget()

    def forget(self) -> None:
        """Look up the function's tensors again in the next call: they may have been replaced."""
        self._direct: Callable[[Sequence[Tensor]], UpdateResult] | None = None

    def __call__(self, *args: object) -> Any:
        if self._shell is not None:
            return self._shell(*args)
        with inductor_folder(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler warns about its own code
            while True:
                function: Any = _own_code(self._function)
                guards: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
                try:
                    shell: Any = torch.compile(function, fullgraph=True, backend=self._backend, options=guards)
                    with torch._dynamo.config.patch(trace_autograd_ops=True):
                        result = shell(*args)
                    break
                except Exception as error:
                    if not _remove_torn_library(error):
                        raise CompileError(_why(error)) from error
        self._shell = shell
        return result

    def _backend(self, graph: torch.fx.GraphModule, examples: list[Tensor], **_: object) -> Callable[..., Any]:
        """Compile the traced graph and record its next call."""
        # On the CPU this keeps Python from launching the kernels one by one; programs on GPUs are recorded anyway.
        wrapped = all(example.device.type == "cpu" for example in examples if isinstance(example, Tensor))
        settings: dict[str, Any] = {}
        if BACKEND == "inductor":
            known = torch._inductor.config  # older versions lack some
            further = {name: value for name, value in ON_GPU.items() if not wrapped and hasattr(known, name)}
            options = INDUCTOR | {"cpp_wrapper": wrapped} | further
            settings = {"config_patches": options, "inner_compile": self._inner_compile}
        compile_: Any = torch._dynamo.lookup_backend(BACKEND)
        # A hit in the cache of the autograd layer would leave out `_inner_compile`.
        with torch._functorch.config.patch(enable_autograd_cache=False):
            program = compile_(graph, examples, **settings)

        def call(*inputs: Any) -> Sequence[Tensor]:
            outputs = program(*inputs)
            if self._calls is not None:
                self._calls.append(_Call(lambda inputs: program(*inputs), inputs, outputs, None))
            return outputs

        return call

    def _inner_compile(self, *args: Any, **options: Any) -> Any:
        """Compile the graph that torch's autograd layer makes, and record the next call of the result, too."""
        from torch._inductor.compile_fx import compile_fx_inner

        compiled: Any = compile_fx_inner(*args, **options)
        library, run = stored.library_path(compiled), compiled.current_callable
        if library is not None:
            program = stored.load_library(library, library.name.partition(".")[0])

            def call(inputs: list[Any]) -> Sequence[Tensor]:
                if self._calls is None:
                    return run(inputs)
                arguments = list(inputs)
                outputs = run(inputs)
                self._calls.append(_Call(program, arguments, outputs, library))
                return outputs

            compiled.current_callable = call
        return compiled

    def update(
        self, changing: Sequence[Tensor], args: Sequence[Any], kept: Callable[[], Sequence[Tensor]]
    ) -> UpdateResult:
        """Call a function that returns the result of an update.

        After the first call the compiled program is called directly, if all other tensors that it reads and writes are
        among those of ``kept``.

        Args:
            changing: the tensors of ``args``, which differ from call to call.
            args: arguments of the function.
            kept: returns the tensors whose memory stays the same.
        """
        if self._direct is not None:
            return self._direct(changing)
        if self._bare is not None:
            self._direct = _bound(*self._bare, kept())
            return self._direct(changing)
        if self._checked:
            result: UpdateResult = self(*args)
            return result
        tensors, self._calls = kept(), []
        before = [tensor._version for tensor in tensors]
        result = self(*args)
        changed = [index for index, tensor in enumerate(tensors) if tensor._version != before[index]]
        self._check_wiring(changing, tensors, changed, result)
        self._checked, self._calls = True, None
        if self._bare is not None:
            self._direct = _bound(*self._bare, tensors)
        return result

    def _check_wiring(
        self, changing: Sequence[Tensor], kept: Sequence[Tensor], changed: Sequence[int], result: UpdateResult
    ) -> None:
        """Check whether the program can be called without the shell, and store it if it can."""
        inner = [call for call in self._calls or () if call.library is not None]
        for call in (*inner, *(call for call in self._calls or () if call.library is None)):
            whole = call.library is None or (len(inner) == 1 and len(call.outputs) == len(result.tensors))
            wiring = _wiring(call.inputs, call.outputs, changing, kept, changed if call.library else (), result)
            if whole and wiring is not None:
                self._bare = call.program, wiring
                if call.library is not None and self._place is not None:
                    stored.save(self._place, call.library, wiring)
                return


def _wiring(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    changing: Sequence[Tensor],
    kept: Sequence[Tensor],
    changed: Sequence[int],
    result: UpdateResult,
) -> Wiring | None:
    """Return how to call a program without the shell that torch.compile puts around it.

    The shell looks up every parameter by its path through the networks in every call, and runs the rest of the function
    to make the result. For small networks that takes a tenth of an update.

    Args:
        inputs: inputs of one call.
        outputs: outputs of the same call.
        changing: the tensors that differ from call to call.
        kept: the tensors whose memory stays the same.
        changed: indices of the tensors of ``kept`` that the program changed.
        result: the result that the shell made from ``outputs``.

    Returns:
        ``None`` if the program reads other tensors, or the shell computed a part of the result.
    """
    place = {id(tensor): (True, index) for index, tensor in enumerate(kept)}
    place |= {id(tensor): (False, index) for index, tensor in enumerate(changing)}
    output = {id(tensor): index for index, tensor in enumerate(outputs)}
    if not all(id(tensor) in place for tensor in inputs) or not all(id(each) in output for each in result.tensors):
        return None
    metrics, statistics = (
        {name: output[id(tensor)] for name, tensor in part.items()}
        for part in (result.metrics, result.gradient_statistics)
    )
    priority = None if result.priority is None else output[id(result.priority)]
    return Wiring([place[id(tensor)] for tensor in inputs], metrics, priority, statistics, changed)


def _bound(program: Program, wiring: Wiring, kept: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], UpdateResult]:
    """Bind a program to the tensors that stay in place. Returns a function of the tensors that differ."""
    moving = [(index, number) for index, (stays, number) in enumerate(wiring.inputs) if not stays]
    fixed = [kept[number] if stays else None for stays, number in wiring.inputs]  # the batch's memory is not kept
    metrics, priority = list(wiring.metrics.items()), wiring.priority
    statistics, changed = list(wiring.gradient_statistics.items()), [kept[number] for number in wiring.changed]

    def call(changing: Sequence[Tensor]) -> UpdateResult:
        inputs: Any = fixed.copy()
        for index, number in moving:
            inputs[index] = changing[number]
        outputs = program(inputs)
        if changed:
            torch.autograd.graph.increment_version(changed)
        return UpdateResult(
            {name: outputs[index] for name, index in metrics},
            None if priority is None else outputs[priority],
            {name: outputs[index] for name, index in statistics},
        )

    return call


def has_compiler(device: torch.device) -> bool:
    """Return whether ``torch.compile`` finds a compiler for ``device``: a C++ compiler, or Triton."""
    if device.type == "cpu":
        return any(which(os.environ.get("CXX", name)) for name in ("g++", "clang++", "c++"))
    return importlib.util.find_spec("triton") is not None


def check_compiler(device: torch.device) -> None:
    """Check that there is a compiler for ``device``.

    Raises:
        CompileError: with the name of the missing compiler.
    """
    if not has_compiler(device):
        what = "a C++ compiler (g++ or clang++)" if device.type == "cpu" else "the package triton"
        raise CompileError(f"compile_graph=True needs {what} on this machine: install it, or leave compile_graph out")


def _remove_torn_library(error: Exception) -> bool:
    """Remove the compiled library that an error names, if a killed process left it truncated.

    The compiler writes libraries in place and does not check existing ones.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    found = _TORN.search(str(error))
    path = Path(found[1]) if found else None
    if path is None or not path.is_relative_to(cache_dir()) or not path.is_file():
        return False
    path.unlink()
    return True


def _why(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if "error:" in line.lower()), lines[0] if lines else type(error).__name__)
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "torchinductor_<user> in the folder of temporary files")
    return (
        f"the update cannot be compiled ({said:.300}). compile_graph='auto' (the default) goes on without compiling, "
        f"False does not try. If it could be compiled before, the compiler's cache may be damaged: delete {folder}"
    )


def _own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of ``function`` with its own code object.

    torch.compile keeps its results by code object, and without guards the first result would serve every engine.
    """
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_serial)}")
    return types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
