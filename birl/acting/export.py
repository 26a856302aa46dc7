"""Policies as files for other programs: TorchScript, ONNX and torch.export, each verified when it is written."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from birl.acting.built import BuiltPolicy
from birl.errors import BirlError, ConfigError, UnsupportedError, require
from birl.files import atomic_write
from birl.types import Inputs, Tree, tree_leaves, tree_map

_OPSET: Final = 18
_BATCH_SIZES: Final = (1, 37)
_TRACED_BATCH: Final = 3  # torch.export takes a batch of 1 for a constant
_TOLERANCE: Final = 1e-4

# Runs the reloaded policy on the leaves of an observation.
_Runner: TypeAlias = Callable[..., Tensor]


def export_policy(
    policy: nn.Module,
    example: Tree,
    path: str | os.PathLike[str],
    input_names: Sequence[str] | None = None,
    single: Sequence[torch.dtype] | None = None,
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
    The batch size is free. The export is loaded again and compared with ``policy`` on batches of 1 and 37
    random observations. It is written, atomically, only if it agrees (to 1e-4; integer actions in all cases but one,
    which may be a tie).

    Args:
        policy: module that maps observations ``[B, …]`` to actions, one tensor ``[B, …]``, deterministically.
        example: one observation as a tree of tensors ``[B, …]`` with the dtypes that the export will take.
        path: where to write.
        input_names: names of the leaves of ``example`` in ONNX, instead of ``input_0``, ``input_1``, ….
        single: if given, the export takes one observation without batch dimension, whose leaves have these dtypes, and
            gives one action without it.

    Raises:
        ConfigError: for another suffix.
        UnsupportedError: if the policy cannot be expressed in this format, or its export behaves differently.
        MissingExtraError: for ``.onnx`` without the extra ``onnx``.
        WriteError: if the file cannot be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise ConfigError(
            f"cannot tell a format from the suffix {suffix!r} of {os.fspath(path)!r}: use .pt (TorchScript), "
            ".onnx (ONNX) or .pt2 (torch.export)"
        )
    flat = _Flat(policy, example, input_names)
    with _exporting(policy):
        leaves = _observations(example, _TRACED_BATCH)
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
        _check(flat, runner, example, suffix)

    atomic_write(path, data)


class _Flat(nn.Module):
    """The policy with one argument for each leaf of the observation tree."""

    batched = True

    def __init__(self, policy: nn.Module, example: Tree, names: Sequence[str] | None) -> None:
        super().__init__()
        self.policy = policy
        self.names = names or [f"input_{index}" for index, _ in enumerate(tree_leaves(example))]
        self._structure = tree_map(lambda _: None, example)

    def forward(self, *leaves: Tensor) -> Tensor:
        rest = iter(leaves)
        return self.policy(tree_map(lambda _: next(rest), self._structure))  # type: ignore[no-any-return]


class _Single(nn.Module):
    """A flat policy for one observation and without batch dimensions."""

    batched = False

    def __init__(self, flat: _Flat, leaves: Sequence[Tensor]) -> None:
        super().__init__()
        self.flat, self.names = flat, flat.names
        self._dtypes = [leaf.dtype for leaf in leaves]

    def forward(self, *leaves: Tensor) -> Tensor:
        rows = (leaf.to(dtype).unsqueeze(0) for leaf, dtype in zip(leaves, self._dtypes, strict=True))
        return self.flat(*rows).squeeze(0)  # type: ignore[no-any-return]


def _over_rows(run: _Runner, dtypes: Sequence[torch.dtype]) -> _Runner:
    """Runs an export for single observations on batches."""

    def runner(*leaves: Tensor) -> Tensor:
        return torch.stack([run(*row) for row in _rows(leaves, dtypes)])

    return runner


_Module: TypeAlias = _Flat | _Single


def _rows(leaves: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[list[Tensor]]:
    """The rows of a batch, in the dtypes of a single observation."""
    columns = (leaf.to(dtype).unbind() for leaf, dtype in zip(leaves, dtypes, strict=True))
    return list(map(list, zip(*columns, strict=True)))


@contextlib.contextmanager
def _exporting(policy: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, and no ``requires_grad`` in the file. Restores everything on exit.

    The exporters' own warnings are silenced: TorchScript is deprecated in torch but still deployed. Its tracer warns
    about code that *might* not generalise to other inputs; the comparison afterwards checks exactly that.
    """
    modes = [(module, module.training) for module in policy.modules()]
    learned = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    policy.eval().requires_grad_(False)
    logger.setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        for module, mode in modes:
            module.training = mode
        for parameter in learned:
            parameter.requires_grad_(True)


def _observations(example: Tree, size: int) -> list[Tensor]:
    """``size`` random observations: normal floats, any bytes, and integers drawn from the example."""
    generator = torch.Generator().manual_seed(size)

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


def _check(flat: nn.Module, runner: _Runner, example: Tree, suffix: str) -> None:
    different = 0
    for size in _BATCH_SIZES:
        leaves = _observations(example, size)
        expected = flat(*leaves).cpu()
        try:
            action = runner(*leaves).cpu()
        except Exception as error:
            raise UnsupportedError(
                f"the {suffix} export of this policy fails on a batch of {size}: {error}; nothing was written"
            ) from error
        if action.shape != expected.shape or action.dtype != expected.dtype:
            raise UnsupportedError(
                f"the {suffix} export of this policy gives {action.dtype} {tuple(action.shape)} for a batch "
                f"of {size}, the policy {expected.dtype} {tuple(expected.shape)}; nothing was written"
            )
        if expected.is_floating_point():
            far = ~torch.isclose(action, expected, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
            different += 2 * int(far.sum())
        else:
            different += int((action != expected).sum())
    if different > 1:
        raise UnsupportedError(
            f"the {suffix} export of this policy gives other actions than the policy itself; nothing was "
            "written. Random numbers and branches that depend on values cannot be exported"
        )


# The exporters record the source file and line of every operation. The three functions below remove them, so that a
# file does not disclose paths of the machine that exported it.


def _torchscript(flat: _Module, leaves: list[Tensor]) -> tuple[bytes, _Runner]:
    traced, file = io.BytesIO(), io.BytesIO()
    torch.jit.save(torch.jit.trace(flat, tuple(leaves), check_trace=False), traced)  # type: ignore[no-untyped-call]
    with zipfile.ZipFile(traced) as source, zipfile.ZipFile(file, "w") as target:
        for entry in source.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                target.writestr(zipfile.ZipInfo(entry.filename), source.read(entry))
    file.seek(0)
    return file.getvalue(), torch.jit.load(file)  # type: ignore[no-untyped-call]


def _torch_export(flat: _Module, leaves: list[Tensor]) -> tuple[bytes, _Runner]:
    program = torch.export.export(flat, tuple(leaves), dynamic_shapes=_dynamic(flat, leaves))
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)
    file = io.BytesIO()
    torch.export.save(program, file)
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
        input_names=list(flat.names),
        output_names=["output_0"],
        dynamic_shapes=_dynamic(flat, leaves),
        verbose=False,
    )
    assert program is not None
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()
    data = program.model_proto.SerializeToString()
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(*observations: Tensor) -> Tensor:
        feed = {name: leaf.cpu().numpy() for name, leaf in zip(flat.names, observations, strict=True)}
        return torch.from_numpy(np.asarray(session.run(["output_0"], feed)[0]))

    return data, run


def _dynamic(flat: _Module, leaves: list[Tensor]) -> Any:
    """A dynamic first dimension shared by all leaves (the arguments of ``*leaves`` are one tuple)."""
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

    def forward(self, observation: Tree) -> Tensor:
        """Actions ``[B, A]``, or int64 ``[B]``, for observations ``[B, …]``."""
        policy, scaler = self._policy, self._policy.units.observation_scaler
        x = scaler.transform(observation) if scaler is not None else tree_map(lambda leaf: leaf.float(), observation)
        return policy.environment_tensor(policy.policy.greedy(policy.nets, Inputs(x)))
