"""The JSON schema of an exported policy, which tells a program without birl how to serve it.

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
from birl.spaces.conversion import Columns
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


def write_schema(
    file: Path, spec: Spec, policy: Mapping[str, Any], logs: LogRecord | None, names: Columns | None = None
) -> Path:
    """Write the schema of an export next to it.

    Args:
        file: the ONNX file.
        spec: observations and actions of the policy.
        policy: description of the policy in JSON form.
        logs: record of the logs whose columns the policy reads.
        names: names of the columns, by array, of policies that did not learn from logs. Other columns of observations
            are numbered.

    Returns:
        Path of the schema.

    Raises:
        ConfigError: if the policy's observations or actions are not those of the logs.
        WriteError: if it cannot be written.
    """
    schema = schema_of(file, spec, policy, logs, names or {})
    atomic_write(schema_path(file), (json.dumps(schema, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return schema_path(file)


def schema_of(
    file: Path, spec: Spec, policy: Mapping[str, Any], logs: LogRecord | None, names: Columns
) -> dict[str, Any]:
    """Return the schema in JSON form; see `write_schema`."""
    data = file.read_bytes()
    session = require("onnxruntime", "onnx").InferenceSession(data, providers=["CPUExecutionProvider"])
    leaves = dict(enumerate(_leaves(spec.observations, "")))
    inputs = []
    for tensor in session.get_inputs():
        kind, _, index = tensor.name.rpartition("_")
        role = "state" if tensor.name.startswith("state_") else tensor.name
        columns: dict[str, Any] = {}
        if kind in ("input", "observation"):
            path, leaf = leaves[int(index)]
            masked = spec.masked and path == MASK
            role = "action_mask" if masked else "observation"
            shape, known = tuple(leaf.shape), names.get(f"observation.{path}" if path else "observation")
            columns = _mask(path, shape[0], logs) if masked else _columns(path, shape, logs, known)
        inputs.append({**_tensor(tensor), "role": role, **columns})
    outputs = [{**_tensor(tensor), "role": _OUTPUTS.get(tensor.name, "state")} for tensor in session.get_outputs()]
    schema: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "birl": __version__,
        "model": {"file": file.name, "sha256": hashlib.sha256(data).hexdigest()},
        "policy": dict(policy),
        "inputs": inputs,
        "outputs": outputs,
        "action": _action(spec, logs, names.get("action", ())),
    }
    if logs is not None:
        text = hashlib.sha256(logs.schema.text().encode()).hexdigest()
        schema["logs"] = {"schema_sha256": text, "origins": [origin.digest for origin in logs.origins]}
    return schema


class _TensorInfo(Protocol):
    """Onnxruntime's description of an input or output; dimensions of any size have a name instead of a number."""

    name: str
    type: str
    shape: Sequence[int | str]


def _tensor(tensor: _TensorInfo) -> dict[str, Any]:
    """Return name, dtype and shape of an input or output; a dimension of any size is ``None``."""
    shape = [size if isinstance(size, int) else None for size in tensor.shape]
    return {"name": tensor.name, "dtype": _DTYPES.get(tensor.type, tensor.type), "shape": shape}


def _leaves(tree: Tree, path: str) -> Iterator[tuple[str, Any]]:
    """Yield names and leaves of an observation, in the order of the inputs."""
    if isinstance(tree, dict | tuple):
        parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, part in parts:
            yield from _leaves(part, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree


def _mask(path: str, size: int, logs: LogRecord | None) -> dict[str, Any]:
    """Describe the column of a mask: a list of zeros and ones."""
    column = path if logs is None or logs.schema.action.mask is None else logs.schema.action.mask
    return {"columns": [{**_PLAIN, "column": column, "size": size, "length": size}]}


def _columns(path: str, shape: tuple[int, ...], logs: LogRecord | None, names: Sequence[str] | None) -> dict[str, Any]:
    """Describe the columns that make a part of an observation; ``None`` for other parts than vectors, such as images.

    If ``frames`` is above 1, the part consists of that many rows, the oldest first, with zeros before the first row of
    an episode.
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
    if names is None:
        names = [path or "0"] if shape == () else [f"{path}.{index}" if path else str(index) for index in range(*shape)]
    return {"frames": 1, "columns": [{"column": name, **_PLAIN} for name in names]}


def _action(spec: Spec, logs: LogRecord | None, names: Sequence[str]) -> dict[str, Any]:
    actions = spec.actions
    description = {"kind": str(actions.kind.name).lower(), "size": actions.size_argument}
    if logs is None:
        return {**description, "columns": list(names)} if names else description
    action = logs.action()
    if actions.discrete != ("values" in action) or (
        "values" in action and len(action["values"]) != actions.size_argument
    ):
        raise ConfigError(f"the policy has {actions}, but the logs {action!s:.200}: give those that it learned from")
    return {**description, **action}
