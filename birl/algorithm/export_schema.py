"""The JSON schema of an exported policy: what a program without birl must know to serve it.

::

    {
      "format": "birl policy schema", "version": 1, "birl": "0.1.0",
      "model": {"file": "policy.onnx", "sha256": "…"},
      "policy": {"type": "EpsilonGreedy", "epsilon": 0.1, "of": "DiscreteCQL", "draws": true},
      "inputs": [
        {"name": "input_0", "dtype": "float32", "shape": [null, 5], "role": "observation",
         "frames": 1,
         "columns": [
           {"column": "speed", "size": 2, "missing": "forward", "length": null, "fill": 0.0, "indicator": true},
           {"column": "weather", "size": 3, "missing": "unknown", "values": ["sun", "rain"], "unknown": true}
         ]},
        {"name": "noise", "dtype": "float32", "shape": [null, 1], "role": "noise"}
      ],
      "outputs": [
        {"name": "output_0", "dtype": "int64", "shape": [null], "role": "action"},
        {"name": "log_probability", "dtype": "float32", "shape": [null], "role": "log_probability"}
      ],
      "action": {"kind": "discrete", "size": 3, "column": "lane", "values": ["left", "keep", "right"]},
      "logs": {"schema_sha256": "…", "origins": ["…"]}
    }
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from birl._version import __version__
from birl.dataset.log_record import LogRecord
from birl.errors import ConfigError, require
from birl.files import atomic_write
from birl.spaces.specs import Spec
from birl.types import MASK, Tree

FORMAT: Final = "birl policy schema"
VERSION: Final = 1
_DTYPES: Final = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(double)": "float64"}
_PLAIN: Final = {"size": 1, "missing": "error", "length": None, "fill": None, "indicator": False}
_OUTPUTS: Final = {"output_0": "action", "log_probability": "log_probability"}


def schema_path(file: Path) -> Path:
    """Return the path of an export's schema: ``policy.schema.json`` next to ``policy.onnx``."""
    return file.with_suffix(".schema.json")


def write_schema(file: Path, spec: Spec, policy: Mapping[str, Any], logs: LogRecord | None) -> Path:
    """Write the schema of an export next to it.

    Args:
        file: the ONNX file.
        spec: observations and actions of the policy.
        policy: what it does, in JSON form.
        logs: whose columns it reads; ``None`` if there were none: columns then have numbers.

    Returns:
        Where it lies.

    Raises:
        ConfigError: if the policy's observations or actions are not those of the logs.
        WriteError: if it cannot be written.
    """
    schema = schema_of(file, spec, policy, logs)
    atomic_write(schema_path(file), (json.dumps(schema, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return schema_path(file)


def schema_of(file: Path, spec: Spec, policy: Mapping[str, Any], logs: LogRecord | None) -> dict[str, Any]:
    """The schema in JSON form; see `write_schema`."""
    data = file.read_bytes()
    session = require("onnxruntime", "onnx").InferenceSession(data, providers=["CPUExecutionProvider"])
    leaves = dict(enumerate(_leaves(spec.observations, "")))
    inputs = []
    for each in session.get_inputs():
        kind, _, index = each.name.rpartition("_")
        role = "state" if each.name.startswith("state_") else each.name
        own: dict[str, Any] = {}
        if kind in ("input", "observation"):
            path, leaf = leaves[int(index)]
            masked = spec.masked and path == MASK
            role = "action_mask" if masked else "observation"
            own = _mask(path, leaf.shape[0], logs) if masked else _columns(path, tuple(leaf.shape), logs)
        inputs.append({**_tensor(each), "role": role, **own})
    outputs = [{**_tensor(each), "role": _OUTPUTS.get(each.name, "state")} for each in session.get_outputs()]
    made: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "birl": __version__,
        "model": {"file": file.name, "sha256": hashlib.sha256(data).hexdigest()},
        "policy": dict(policy),
        "inputs": inputs,
        "outputs": outputs,
        "action": _action(spec, logs),
    }
    if logs is not None:
        text = hashlib.sha256(logs.schema.text().encode()).hexdigest()
        made["logs"] = {"schema_sha256": text, "origins": [each.own for each in logs.origins]}
    return made


class _TensorInfo(Protocol):
    """What onnxruntime says about an input or output; dimensions of any size have a name."""

    name: str
    type: str
    shape: Sequence[int | str]


def _tensor(each: _TensorInfo) -> dict[str, Any]:
    """Name, dtype and shape of an input or output; ``None`` for a dimension of any size."""
    shape = [size if isinstance(size, int) else None for size in each.shape]
    return {"name": each.name, "dtype": _DTYPES.get(each.type, each.type), "shape": shape}


def _leaves(tree: Tree, path: str) -> Iterator[tuple[str, Any]]:
    """Names and leaves of an observation, in the order of the inputs."""
    if isinstance(tree, dict | tuple):
        parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, part in parts:
            yield from _leaves(part, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree


def _mask(path: str, size: int, logs: LogRecord | None) -> dict[str, Any]:
    """The column of a mask: a list of zeros and ones."""
    column = path if logs is None or logs.schema.action.mask is None else logs.schema.action.mask
    return {"columns": [{**_PLAIN, "column": column, "size": size, "length": size}]}


def _columns(path: str, shape: tuple[int, ...], logs: LogRecord | None) -> dict[str, Any]:
    """How a part of observations is made: of which columns (``None`` of what is no row of numbers, such as an image).

    With ``frames`` above 1 it is so many rows, oldest first, with zeros before the first one of an episode.
    """
    if logs is not None:
        frames, rest = divmod(shape[0], len(logs.numbers)) if len(shape) == 1 else (0, 0)
        if frames < 1 or rest:
            raise ConfigError(
                f"the policy reads observations of shape {shape}, but these logs make {len(logs.numbers)} numbers of "
                f"a row ({', '.join(logs.numbers)!s:.200}): give the logs that it learned from"
            )
        return {"frames": frames, "columns": logs.observation()}
    if len(shape) > 1:
        return {"frames": 1, "columns": None}
    names = [path or "0"] if shape == () else [f"{path}.{index}" if path else str(index) for index in range(*shape)]
    return {"frames": 1, "columns": [{"column": name, **_PLAIN} for name in names]}


def _action(spec: Spec, logs: LogRecord | None) -> dict[str, Any]:
    actions = spec.actions
    made = {"kind": str(actions.kind.name).lower(), "size": actions.size_argument}
    if logs is None:
        return made
    action = logs.action()
    if actions.discrete != ("values" in action) or (
        "values" in action and len(action["values"]) != actions.size_argument
    ):
        raise ConfigError(f"the policy has {actions}, but the logs {action!s:.200}: give those that it learned from")
    return {**made, **action}
