"""Export of policies as TorchScript, ONNX and torch.export files. Every file is compared with its policy."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from birl.acting.built_policy import BuiltPolicy
from birl.errors import BirlError, ConfigError, UnsupportedError, require
from birl.files import atomic_write
from birl.models import is_recurrent
from birl.types import Inputs, Tree, tree_leaves, tree_map

_OPSET: Final = 18
_BATCH_SIZES: Final = (1, 37)
_TRACED_BATCH: Final = 3  # torch.export makes a batch size of 1 a constant
_EPISODE: Final = 8  # number of steps in the comparison of a recurrent policy
_TOLERANCE: Final = 1e-4

# Function that runs the reloaded policy on the leaves of an observation and its states. A single output is no tuple.
_Runner: TypeAlias = Callable[..., Any]


def export_policy(
    policy: nn.Module,
    example: Tree,
    path: str | os.PathLike[str],
    input_names: Sequence[str] | None = None,
    single: Sequence[torch.dtype] | None = None,
    states: Mapping[str, int] | None = None,
    outputs: Sequence[str] = ("output_0",),
) -> None:
    """Write a policy in the format that the suffix of ``path`` names.

    ==========  ==========================  =====================================================
    suffix      format                      used as
    ==========  ==========================  =====================================================
    ``.pt``     TorchScript                 ``torch.jit.load(path)(x)``
    ``.onnx``   ONNX, opset 18              ``session.run(None, {"input_0": x})``, ``"output_0"``
    ``.pt2``    torch.export                ``torch.export.load(path).module()(x)``
    ==========  ==========================  =====================================================

    A tuple or dict of observations becomes several inputs, in order: ``(x0, x1)``, ``input_0``, ``input_1``.
    Any batch size is possible. The export is loaded again and compared with ``policy`` on batches of 1 and 37
    random observations. It is written, atomically, only if they agree: floats to 1e-4, and all integer actions except
    one, which may be a tie.

    The states of a recurrent policy are inputs after the observations and outputs after the action. ONNX names them
    ``state_<name>`` and ``next_state_<name>``. Each is float32 ``[B, size]``, and zero at the start of an episode. The
    entry ``states`` of the file's metadata (ONNX: ``custom_metadata_map``; the others: extra files) is JSON with the
    names and sizes of these inputs, in order. Such an export is compared over several steps, with its own states.

    Args:
        policy: deterministic module that maps observations ``[B, …]`` to actions, one tensor ``[B, …]``. With
            ``states`` it also takes a dict of states, and returns the actions and the new states.
        example: observations as a tree of tensors ``[B, …]`` with the dtypes of the export's inputs.
        path: file to write.
        input_names: names of the leaves of ``example`` in ONNX, instead of ``input_0``, ``input_1``, ….
        single: dtypes of the leaves of an observation. If given, observation and action of the export have no batch
            dimension.
        states: sizes of a recurrent policy's states, by name. Exports with states take batches.
        outputs: names of the policy's outputs in ONNX.

    Raises:
        ConfigError: for another suffix.
        UnsupportedError: if the policy cannot be expressed in this format, or its export behaves differently.
        MissingExtraError: for ``.onnx`` without the extra ``onnx``.
        WriteError: if the file cannot be written.
    """
    suffix = Path(path).suffix.lower() if isinstance(path, str | os.PathLike) else ""
    if suffix not in _FORMATS:
        raise ConfigError(
            f"the suffix {suffix!r} of {str(path)!r:.200} is not one of a known format: use .pt (TorchScript), "
            ".onnx (ONNX) or .pt2 (torch.export)"
        )
    flat = _Flat(policy, example, input_names, states or {}, outputs)
    with _exporting(policy):
        leaves = _observations(example, _TRACED_BATCH)
        leaves += flat.initial_states(leaves[0])
        try:
            if single:
                data, run = _FORMATS[suffix](_Single(flat, leaves), _rows(leaves, single)[0])
                runner = _over_rows(run, single)
            else:
                data, runner = _FORMATS[suffix](flat, leaves)
        except BirlError:
            raise
        except Exception as error:  # torch raises dozens of types here
            raise UnsupportedError(f"this policy cannot be exported as {suffix}: {error}") from error
        _check_export(flat, runner, example, suffix)

    atomic_write(path, data)


class _Flat(nn.Module):
    """The policy with one argument for each leaf of the observation tree and for each state.

    Attributes:
        inputs, outputs: names of the inputs and outputs.
        metadata: metadata of the file.
    """

    batched = True

    def __init__(
        self,
        policy: nn.Module,
        example: Tree,
        names: Sequence[str] | None,
        states: Mapping[str, int],
        outputs: Sequence[str],
    ) -> None:
        super().__init__()
        self.policy, self._states = policy, states
        taken = {f"state_{name}": size for name, size in states.items()}
        self.inputs = [*(names or [f"input_{index}" for index, _ in enumerate(tree_leaves(example))]), *taken]
        self.outputs = [*outputs, *(f"next_{name}" for name in taken)]
        self.metadata = {"states": json.dumps(taken)} if taken else {}
        self._structure = tree_map(lambda _: None, example)

    def initial_states(self, leaf: Tensor) -> tuple[Tensor, ...]:
        """Return the initial states for a batch of observations with this leaf."""
        return tuple(torch.zeros(len(leaf), size, device=leaf.device) for size in self._states.values())

    def forward(self, *leaves: Tensor) -> Tensor | tuple[Tensor, ...]:
        rest = iter(leaves)
        observation = tree_map(lambda _: next(rest), self._structure)
        if not self._states:
            return self.policy(observation)
        action, after = self.policy(observation, dict(zip(self._states, rest, strict=True)))
        return action, *(after[name] for name in self._states)


class _Single(nn.Module):
    """A flat policy for one observation, without batch dimensions."""

    batched = False

    def __init__(self, flat: _Flat, leaves: Sequence[Tensor]) -> None:
        super().__init__()
        self.flat, self.inputs, self.outputs, self.metadata = flat, flat.inputs, flat.outputs, flat.metadata
        self._dtypes = [leaf.dtype for leaf in leaves]

    def forward(self, *leaves: Tensor) -> Tensor:
        rows = (leaf.to(dtype).unsqueeze(0) for leaf, dtype in zip(leaves, self._dtypes, strict=True))
        return self.flat(*rows).squeeze(0)  # type: ignore[no-any-return]


def _over_rows(run: _Runner, dtypes: Sequence[torch.dtype]) -> _Runner:
    """Return a runner that applies an export for single observations to each row of a batch."""

    def runner(*leaves: Tensor) -> Tensor:
        return torch.stack([run(*row) for row in _rows(leaves, dtypes)])

    return runner


_Module: TypeAlias = _Flat | _Single


def _rows(leaves: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[list[Tensor]]:
    """Return the rows of a batch, in the dtypes of a single observation."""
    columns = (leaf.to(dtype).unbind() for leaf, dtype in zip(leaves, dtypes, strict=True))
    return list(map(list, zip(*columns, strict=True)))


@contextlib.contextmanager
def _exporting(policy: nn.Module) -> Iterator[None]:
    """Set evaluation mode, without gradients and ``requires_grad``, and restore everything on exit.

    The exporters' warnings are silenced. TorchScript is deprecated in torch but still deployed. Its tracer warns about
    code that *might* not generalise to other inputs, which the comparison afterwards checks.
    """
    modes = [(module, module.training) for module in policy.modules()]
    learned = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    policy.eval().requires_grad_(False)
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for module, mode in modes:
            module.training = mode
        for parameter in learned:
            parameter.requires_grad_(True)


def _observations(example: Tree, size: int, step: int = 0) -> list[Tensor]:
    """Return ``size`` random observations: normal floats, uniform bytes, and integers sampled from the example."""
    generator = torch.Generator().manual_seed(size + 1000 * step)

    def draw(leaf: Tensor) -> Tensor:
        shape = (size, *leaf.shape[1:])
        if leaf.is_floating_point():
            value = torch.randn(shape, generator=generator).to(leaf.dtype)
        elif leaf.dtype == torch.uint8:
            value = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        else:
            value = leaf.cpu()[torch.randint(0, len(leaf), (size,), generator=generator)]
        return value.to(leaf.device)

    return [draw(leaf) for leaf in tree_leaves(example)]


def _check_export(flat: _Flat, runner: _Runner, example: Tree, suffix: str) -> None:
    """Raise `UnsupportedError` if an export and its policy give different actions."""
    different = 0
    for size in _BATCH_SIZES:
        ours = theirs = flat.initial_states(_observations(example, size)[0])
        for step in range(_EPISODE if ours else 1):
            leaves = _observations(example, size, step)
            right = _outputs(flat(*leaves, *ours))
            try:
                given = _outputs(runner(*leaves, *theirs))
            except Exception as error:
                raise UnsupportedError(
                    f"the {suffix} export of this policy fails on a batch of {size}: {error}; nothing was written"
                ) from error
            kinds = [[(each.dtype, tuple(each.shape)) for each in outputs] for outputs in (given, right)]
            if kinds[0] != kinds[1]:
                texts = (" and ".join(f"{dtype} {shape}" for dtype, shape in each) for each in kinds)
                raise UnsupportedError(
                    f"the {suffix} export of this policy gives {next(texts)} for a batch of {size}, the policy "
                    f"{next(texts)}; nothing was written"
                )
            different += sum(map(_differences, given, right))
            ours, theirs = right[1:], given[1:]
    if different > 1:
        raise UnsupportedError(
            f"the {suffix} export of this policy gives other actions than the policy itself; nothing was "
            "written. Random numbers and branches that depend on values cannot be exported"
        )


def _outputs(given: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (given,) if isinstance(given, Tensor) else tuple(given)


def _differences(given: Tensor, right: Tensor) -> int:
    """Return how many numbers differ. Floats count twice, because a single different integer may be a tie."""
    given, right = given.cpu(), right.cpu()
    if right.is_floating_point():
        far = ~torch.isclose(given, right, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
        return 2 * int(far.sum())
    return int((given != right).sum())


# Exporters record the source file and line of every operation. The three functions below remove these records, so that
# a file does not disclose paths of the machine that wrote it.


def _torchscript(flat: _Module, leaves: list[Tensor]) -> tuple[bytes, _Runner]:
    traced, file = io.BytesIO(), io.BytesIO()
    script = torch.jit.trace(flat, tuple(leaves), check_trace=False)
    torch.jit.save(script, traced, _extra_files=flat.metadata)
    with zipfile.ZipFile(traced) as source, zipfile.ZipFile(file, "w") as target:
        for entry in source.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                target.writestr(zipfile.ZipInfo(entry.filename), source.read(entry))
    file.seek(0)
    return file.getvalue(), torch.jit.load(file)  # type: ignore[no-untyped-call]


def _torch_export(flat: _Module, leaves: list[Tensor]) -> tuple[bytes, _Runner]:
    program = torch.export.export(flat, tuple(leaves), dynamic_shapes=_dynamic_shapes(flat, leaves))
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)
    file = io.BytesIO()
    torch.export.save(program, file, extra_files=flat.metadata)
    file.seek(0)
    return file.getvalue(), torch.export.load(file).module()


def _onnx(flat: _Module, leaves: list[Tensor]) -> tuple[bytes, _Runner]:
    for module in ("onnx", "onnxscript"):
        require(module, "onnx")
    runtime = require("onnxruntime", "onnx")
    program = torch.onnx.export(
        flat,
        tuple(leaves),
        dynamo=True,
        opset_version=_OPSET,
        input_names=flat.inputs,
        output_names=flat.outputs,
        dynamic_shapes=_dynamic_shapes(flat, leaves),
        verbose=False,
    )
    assert program is not None
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()
    program.model.metadata_props.update(flat.metadata)
    data = program.model_proto.SerializeToString()
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(*given: Tensor) -> Tensor | list[Tensor]:
        feed = {name: leaf.cpu().numpy() for name, leaf in zip(flat.inputs, given, strict=True)}
        outputs = [torch.from_numpy(np.asarray(array)) for array in session.run(flat.outputs, feed)]
        return outputs[0] if len(outputs) == 1 else outputs

    return data, run


def _dynamic_shapes(flat: _Module, leaves: list[Tensor]) -> tuple[tuple[dict[int, torch.export.Dim], ...]] | None:
    """Return a dynamic first dimension that all leaves share (the arguments of ``*leaves`` are one tuple)."""
    if not flat.batched:
        return None
    batch = torch.export.Dim("batch", min=1)
    return (tuple({0: batch} for _ in leaves),)


_FORMATS: Final[dict[str, Callable[[_Module, list[Tensor]], tuple[bytes, _Runner]]]] = {
    ".pt": _torchscript,
    ".onnx": _onnx,
    ".pt2": _torch_export,
}


class PolicyModule(nn.Module):
    """The exported module: the greedy policy with its scalers, from raw observations to environment actions."""

    def __init__(self, policy: BuiltPolicy) -> None:
        super().__init__()
        self.nets, self._policy = policy.nets, policy

    def states(self, example: Tree) -> dict[str, int]:
        """Return the sizes of the states that greedy actions depend on, by network; ``example`` as in `forward`."""
        if not is_recurrent(self.nets):
            return {}
        with torch.no_grad():
            return {name: state.shape[-1] for name, state in self(example, {})[1].items()}

    def forward(
        self, observation: Tree, state: Mapping[str, Tensor] | None = None
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return actions ``[B, A]``, or int64 ``[B]``, for observations ``[B, …]``.

        If ``state`` is given, ``[B, size]`` by network (zeros for missing ones), return actions and new states.
        """
        policy, after = self._policy, dict[str, Tensor]()
        inputs = Inputs(policy.units.as_input(observation), state, state_out=None if state is None else after)
        action = policy.environment_tensor(policy.policy.greedy(policy.nets, inputs))
        return action if state is None else (action, after)
