"""Functions of a batch, compiled by ``torch.compile``."""

from __future__ import annotations

import importlib.util
import itertools
import os
import types
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from shutil import which
from typing import Any, NamedTuple

import torch
from torch import Tensor

from birl.errors import CompileError
from birl.types import Batch

BACKEND = "inductor"
"""Of torch.compile. Tests on machines without a C++ compiler take another, which traces but does not compile."""

INDUCTOR: dict[str, Any] = {"fallback_random": True, "size_asserts": False}
"""Its settings."""

_serial = itertools.count()


class Graphs:
    """Compiled functions of a batch, one for each kind of batch and each number of threads."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, _Compiled] = {}

    def __deepcopy__(self, memo: Any) -> Graphs:
        return Graphs()  # what is compiled belongs to the networks it was compiled for

    def __call__(self, what: Hashable, make: Callable[[], Callable[..., Any]], batch: Batch, *args: Any) -> Any:
        """Call the function that ``make`` gives for ``what``, compiled."""
        return self._of(what, make, batch.signature)(batch, *args)

    def update(
        self,
        what: Hashable,
        make: Callable[[], Callable[..., dict[str, Tensor]]],
        batch: Batch,
        scalars: Tensor,
        moments: Mapping[str, Sequence[Sequence[Tensor]]],
        kept: Callable[[], Sequence[Tensor]],
    ) -> dict[str, Tensor]:
        """As `__call__`, of a function ``(batch, scalars, moments)`` that returns tensors by name.

        After the first call the compiled program is called directly (see `_Direct`) if what else it reads and writes
        is among the tensors of ``kept``.
        """
        leaves, signature = batch.flat()
        return self._of(what, make, signature).update([*leaves, scalars], (batch, scalars, moments), kept)

    def refresh(self) -> None:
        """Tensors that compiled functions keep may have been replaced: look them up anew."""
        for graph in self._graphs.values():
            graph.forget()

    def _of(self, what: Hashable, make: Callable[[], Callable[..., Any]], signature: Hashable) -> _Compiled:
        key = (what, signature, torch.get_num_threads())
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = _Compiled(make())
        return graph


class _Compiled:
    """``function`` as one compiled graph.

    Guards, which would look at every network attribute before every call, are left out: callers see to it that a
    function is only called with what it was compiled for. Random numbers are torch's own, so that seeds and
    checkpoints mean the same as without compilation.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        own: Any = _own_code(function)
        guards: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        self._shell: Any = torch.compile(own, fullgraph=True, backend=self._backend, options=guards)
        self._made = False
        self._look = False
        self._last: _Call | None = None
        self.forget()

    def forget(self) -> None:
        """Tensors that the function keeps may have been replaced."""
        self._direct: _Direct | None = None
        self._looked = False

    def __call__(self, *args: Any) -> Any:
        if self._made:
            return self._shell(*args)
        try:
            with warnings.catch_warnings(), torch._dynamo.config.patch(trace_autograd_ops=True):
                warnings.simplefilter("ignore")  # of the compiler, about its own code
                result = self._shell(*args)
        except Exception as error:
            raise CompileError(_why(error)) from error
        self._made = True
        return result

    def _backend(self, graph: torch.fx.GraphModule, examples: list[Tensor], **_: Any) -> Callable[..., Any]:
        """Compile what was traced, so that its next call can be looked at."""
        # On the CPU it is then not Python that calls one kernel after the other; a GPU's programs are recorded anyway.
        wrapped = all(example.device.type == "cpu" for example in examples if isinstance(example, Tensor))
        settings = {"config_patches": INDUCTOR | {"cpp_wrapper": wrapped}} if BACKEND == "inductor" else {}
        compile_: Any = torch._dynamo.lookup_backend(BACKEND)
        program = compile_(graph, examples, **settings)

        def call(*inputs: Any) -> Any:
            outputs = program(*inputs)
            if self._look:
                self._last = _Call(program, inputs, outputs)
            return outputs

        return call

    def update(
        self, own: Sequence[Tensor], args: Sequence[Any], kept: Callable[[], Sequence[Tensor]]
    ) -> dict[str, Tensor]:
        """See `Graphs.update`; ``own`` are the tensors of ``args`` that change from call to call."""
        if self._direct is not None:
            return self._direct(own)
        self._look = not self._looked
        result: dict[str, Tensor] = self(*args)
        if self._last is not None:
            self._direct = self._last.direct(own, kept(), result)
            self._look, self._looked, self._last = False, True, None
        return result


class _Call(NamedTuple):
    """A call of a compiled program by its shell."""

    program: Callable[..., Sequence[Any]]
    inputs: Sequence[Any]
    outputs: Sequence[Any]

    def direct(self, own: Sequence[Tensor], kept: Sequence[Tensor], result: dict[str, Tensor]) -> _Direct | None:
        """The same without the shell; ``None`` if it reads something that is neither ``own`` nor ``kept``."""
        place, fixed = {id(tensor): index for index, tensor in enumerate(own)}, {id(tensor) for tensor in kept}
        output = {id(tensor): index for index, tensor in enumerate(self.outputs)}
        known = all(id(tensor) in place or id(tensor) in fixed for tensor in self.inputs)
        returned = all(id(tensor) in output for tensor in result.values())
        if not known or not returned:
            return None
        moving = [(index, place[id(tensor)]) for index, tensor in enumerate(self.inputs) if id(tensor) in place]
        names = [(name, output[id(tensor)]) for name, tensor in result.items()]
        return _Direct(self.program, list(self.inputs), moving, names)


class _Direct:
    """A compiled program, called without the shell that torch.compile puts around it.

    The shell looks up every parameter by its path through the networks in every call, and puts the result together by
    running the rest of the function. For small networks that is a tenth of an update.

    Args:
        program: takes its inputs one by one and returns a sequence of outputs.
        inputs: of one call.
        moving: which inputs change from call to call, each with its place among the tensors of a call.
        names: of the outputs that are returned, with their places.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        inputs: list[Any],
        moving: Sequence[tuple[int, int]],
        names: Sequence[tuple[str, int]],
    ) -> None:
        self._program, self._inputs, self._moving, self._names = program, inputs, moving, names
        for index, _ in moving:
            inputs[index] = None  # the batch's memory is not kept

    def __call__(self, own: Sequence[Tensor]) -> dict[str, Tensor]:
        inputs = self._inputs.copy()
        for index, place in self._moving:
            inputs[index] = own[place]
        outputs = self._program(*inputs)
        return {name: outputs[index] for name, index in self._names}


def has_compiler(device: torch.device) -> bool:
    """Whether ``torch.compile`` finds what it needs for ``device``: a C++ compiler, or Triton."""
    if device.type == "cpu":
        return any(which(os.environ.get("CXX", name)) for name in ("g++", "clang++", "c++"))
    return importlib.util.find_spec("triton") is not None


def check_compiler(device: torch.device) -> None:
    """Raise unless `has_compiler`.

    Raises:
        CompileError: naming what is missing.
    """
    if not has_compiler(device):
        what = "a C++ compiler (g++ or clang++)" if device.type == "cpu" else "the package triton"
        raise CompileError(f"compile_graph=True needs {what} on this machine: install it, or leave compile_graph out")


def _why(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if "error:" in line.lower()), lines[0] if lines else type(error).__name__)
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "torchinductor_<user> in the folder of temporary files")
    return (
        f"the update cannot be compiled ({said:.300}). Leave compile_graph out, or set it to 'auto', which goes on "
        f"without. If it could be compiled before, the compiler's cache may be damaged: delete {folder}"
    )


def _own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of ``function`` with a code object of its own.

    torch.compile keeps its results by code object, and without guards the first result would serve every engine.
    """
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_serial)}")
    return types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
