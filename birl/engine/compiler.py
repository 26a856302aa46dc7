"""Functions of a batch, compiled by ``torch.compile``."""

from __future__ import annotations

import importlib.util
import itertools
import os
import types
import warnings
from collections.abc import Callable, Hashable, Sequence
from shutil import which
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from birl.errors import CompileError

BACKEND = "inductor"
"""Backend of torch.compile. Tests on machines without a C++ compiler use one that traces but does not compile."""

INDUCTOR: dict[str, Any] = {"fallback_random": True, "size_asserts": False}
"""Options of the backend."""

_serial = itertools.count()

Value = TypeVar("Value")


class Uncopied(dict[Hashable, Value]):
    """A dict of values that belong to one set of networks; its deep copy is empty."""

    def __deepcopy__(self, memo: Any) -> Self:
        return type(self)()


class Graphs(Uncopied["_Compiled"]):
    """Compiled functions of a batch, one for each kind of batch and each number of threads."""

    def of(self, key: Hashable, make: Callable[[], Callable[..., Any]], signature: Hashable) -> _Compiled:
        """The function that ``make`` gives for ``key``, compiled for batches of this signature."""
        key = (key, signature, torch.get_num_threads())
        if key not in self:
            self[key] = _Compiled(make())
        return self[key]

    def refresh(self) -> None:
        """Tensors that compiled functions keep may have been replaced: look them up anew."""
        for graph in self.values():
            graph.forget()


class _Compiled:
    """``function`` as one compiled graph.

    Guards, which would check every network attribute before every call, are left out: callers ensure that a
    function is only called with arguments that it was compiled for. Random numbers are torch's own, so that seeds and
    checkpoints mean the same as without compilation.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        own: Any = _own_code(function)
        guards: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        self._shell: Any = torch.compile(own, fullgraph=True, backend=self._backend, options=guards)
        self._made = False
        self.forget()

    def forget(self) -> None:
        """Tensors that the function keeps may have been replaced."""
        self._direct: Callable[[Sequence[Tensor]], dict[str, Tensor]] | None = None
        self._looked = False
        self._calls: list[tuple[Any, Any, Any]] | None = None  # the shell's calls of the program, while recorded

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
        """Compile the traced graph and record its next call."""
        # On the CPU this keeps Python from launching the kernels one by one; programs on GPUs are recorded anyway.
        wrapped = all(example.device.type == "cpu" for example in examples if isinstance(example, Tensor))
        settings = {"config_patches": INDUCTOR | {"cpp_wrapper": wrapped}} if BACKEND == "inductor" else {}
        compile_: Any = torch._dynamo.lookup_backend(BACKEND)
        program = compile_(graph, examples, **settings)

        def call(*inputs: Any) -> Any:
            outputs = program(*inputs)
            if self._calls is not None:
                self._calls.append((program, inputs, outputs))
            return outputs

        return call

    def update(
        self, own: Sequence[Tensor], args: Sequence[Any], kept: Callable[[], Sequence[Tensor]]
    ) -> dict[str, Tensor]:
        """Call a function that returns tensors by name.

        After the first call the compiled program is called directly, if everything else that it reads and writes is
        among the tensors of ``kept``.

        Args:
            own: the tensors of ``args``, which change from call to call.
            args: of the function.
            kept: gives the tensors that stay where they are.
        """
        if self._direct is not None:
            return self._direct(own)
        self._calls = None if self._looked else []
        result: dict[str, Tensor] = self(*args)
        if self._calls:
            self._direct = _without_shell(*self._calls[0], own, kept(), result)
            self._looked, self._calls = True, None
        return result


def _without_shell(
    program: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    own: Sequence[Tensor],
    kept: Sequence[Tensor],
    result: dict[str, Tensor],
) -> Callable[[Sequence[Tensor]], dict[str, Tensor]] | None:
    """A compiled program, called without the shell that torch.compile puts around it.

    The shell looks up every parameter by its path through the networks in every call, and puts the result together by
    running the rest of the function. For small networks that is a tenth of an update.

    Args:
        program: takes its inputs one by one and returns a sequence of outputs.
        inputs: of one call.
        outputs: of that call.
        own: the tensors that change from call to call.
        kept: the tensors that do not.
        result: what the shell made of ``outputs``.

    Returns:
        A function of tensors in the place of ``own``; ``None`` if the program reads something else.
    """
    place, fixed = {id(tensor): index for index, tensor in enumerate(own)}, {id(tensor) for tensor in kept}
    output = {id(tensor): index for index, tensor in enumerate(outputs)}
    known = all(id(tensor) in place or id(tensor) in fixed for tensor in inputs)
    if not known or not all(id(tensor) in output for tensor in result.values()):
        return None
    moving = [(index, place[id(tensor)]) for index, tensor in enumerate(inputs) if id(tensor) in place]
    names = [(name, output[id(tensor)]) for name, tensor in result.items()]
    fixed_inputs = [None if id(tensor) in place else tensor for tensor in inputs]  # the batch's memory is not kept

    def call(own: Sequence[Tensor]) -> dict[str, Tensor]:
        inputs = fixed_inputs.copy()
        for index, place in moving:
            inputs[index] = own[place]
        outputs = program(*inputs)
        return {name: outputs[index] for name, index in names}

    return call


def has_compiler(device: torch.device) -> bool:
    """Whether ``torch.compile`` finds a compiler for ``device``: a C++ compiler, or Triton."""
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
        f"the update cannot be compiled ({said:.300}). compile_graph='auto' (the default) goes on without compiling, "
        f"False does not try. If it could be compiled before, the compiler's cache may be damaged: delete {folder}"
    )


def _own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of ``function`` with its own code object.

    torch.compile keeps its results by code object, and without guards the first result would serve every engine.
    """
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_serial)}")
    return types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
