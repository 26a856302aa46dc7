"""Nested states as a JSON tree plus named arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from birl.errors import ConfigError
from birl.files.reading import corrupt_file_error
from birl.types import Array, JSONValue, State

if TYPE_CHECKING:
    from torch import Tensor

_MAX_DEPTH: Final = 64


def pack(state: Mapping[str, object]) -> tuple[dict[str, JSONValue], dict[str, Tensor | Array]]:
    """Split a nested state into a JSON tree and its arrays.

    Arrays become ``{"$array": name}``, tensors ``{"$tensor": name}``, numpy scalars ``{"$scalar": name}``,
    tuples ``{"$tuple": […]}`` and non-finite floats ``{"$float": "nan"}``; keys that start with ``$`` get a second
    one. The arrays are not copied.

    Raises:
        ConfigError: for any other leaf, a key that is not a string, or more than 64 levels.
    """
    arrays: dict[str, Tensor | Array] = {}
    return _pack_dict(state, "", 0, arrays), arrays


def _pack(value: object, path: str, depth: int, arrays: dict[str, Tensor | Array]) -> JSONValue:
    if depth > _MAX_DEPTH:
        raise ConfigError(f"the state is nested more than {_MAX_DEPTH} levels deep at {path!r:.200}")
    if isinstance(value, torch.Tensor):
        return {"$tensor": _store(value, path, arrays)}
    if isinstance(value, np.ndarray):
        return {"$array": _store(value, path, arrays)}
    if isinstance(value, np.generic):
        return {"$scalar": _store(np.asarray(value), path, arrays)}
    if value is None or (isinstance(value, bool | int | str) and type(value) in (bool, int, str)):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, list | tuple):
        prefix = f"{path}/" if path else ""
        items = [_pack(item, f"{prefix}{index}", depth + 1, arrays) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, dict):
        return _pack_dict(value, path, depth, arrays)
    raise ConfigError(
        f"cannot save {type(value).__name__} at {path!r:.200}: a state holds dicts, lists, tuples, "
        "arrays, tensors, int, float, str, bool and None"
    )


def _pack_dict(
    state: Mapping[str, object], path: str, depth: int, arrays: dict[str, Tensor | Array]
) -> dict[str, JSONValue]:
    prefix = f"{path}/" if path else ""
    result = {}
    for key, item in state.items():
        if type(key) is not str:
            raise ConfigError(f"the key {key!r:.100} at {path!r:.200} of a state is not a string: give strings")
        result["$" + key if key.startswith("$") else key] = _pack(item, prefix + key, depth + 1, arrays)
    return result


def _store(array: Tensor | Array, name: str, arrays: dict[str, Tensor | Array]) -> str:
    while name in arrays or name == "__metadata__":  # keys with slashes can give equal paths
        name += "'"
    arrays[name] = array
    return name


def unpack(tree: object, tensors: dict[str, Tensor], label: str = "state") -> State:
    """Rebuild a state that `pack` split. Arrays share the memory of ``tensors``; each must be used exactly once.

    Args:
        tree: the parsed JSON.
        tensors: tensors by name; each is converted to the type that was saved.
        label: the source, for messages.

    Raises:
        CorruptFileError: for a tree that `pack` never makes.
    """
    unused = dict(tensors)
    state = _unpack(tree, 0, unused, label)
    if not isinstance(state, dict):
        raise corrupt_file_error(label, "the outermost value is not an object")
    if unused:
        raise corrupt_file_error(label, f"{len(unused)} arrays are not referenced, such as {next(iter(unused))!r:.100}")
    return state


def _unpack(value: object, depth: int, unused: dict[str, Tensor], label: str) -> object:
    if depth > _MAX_DEPTH:
        raise corrupt_file_error(label, f"nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, list):
        return [_unpack(item, depth + 1, unused, label) for item in value]
    if not isinstance(value, dict):
        return value
    if not any(key.startswith("$") and not key.startswith("$$") for key in value):
        return {key.removeprefix("$"): _unpack(item, depth + 1, unused, label) for key, item in value.items()}
    match value:
        case {"$tensor": str(name), **rest} if not rest and name in unused:
            return unused.pop(name)
        case {"$array": str(name), **rest} if not rest and name in unused:
            return _as_array(unused.pop(name), name, label)
        case {"$scalar": str(name), **rest} if not rest and name in unused:
            array = _as_array(unused.pop(name), name, label)
            if array.ndim == 0:
                return array[()]
        case {"$float": "nan" | "inf" | "-inf" as text, **rest} if not rest:
            return float(text)
        case {"$tuple": list(items), **rest} if not rest:
            return tuple(_unpack(item, depth + 1, unused, label) for item in items)
    raise corrupt_file_error(
        label, f"{value!r:.100} is not a value, or refers to an array that is missing or used twice"
    )


def _as_array(tensor: Tensor, name: str, label: str) -> Array:
    try:
        return tensor.numpy()
    except TypeError:
        raise corrupt_file_error(label, f"array {name!r:.100} has a dtype that numpy lacks") from None
