"""A digest of everything that a compiled update depends on: values, networks without the numbers in them, and code.

Two processes get the same digest only if tracing the update gives the same program in both.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, type(...), torch.dtype, torch.device, torch.Size)
_LIBRARIES: Final = frozenset(sys.stdlib_module_names) | {"torch", "numpy"}
"""Packages whose versions are part of the key, so that names are enough to identify their classes and functions."""


class OpaqueError(Exception):
    """An object whose effect on an update is unknown."""


def digest(*values: object) -> str:
    """Return the digest of values: hexadecimal, the same in every process.

    Tensors are described by shape, memory layout and sharing, not by their numbers. Functions and classes are described
    by their code, their constants and the globals that they name, recursively.

    Raises:
        OpaqueError: if something cannot be described, such as an object of a C extension.
    """
    found = _Digest()
    try:
        found.add(values)
    except RecursionError as error:
        raise OpaqueError("nested too deeply") from error
    return found.hash.hexdigest()


class _Digest:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # keeps the objects, so that no id is reused

    def add(self, value: object) -> None:
        if isinstance(value, _PLAIN):
            self._write(type(value).__name__, repr(value))
        elif isinstance(value, tuple | list):
            self._write(type(value).__name__, len(value))
            self._all(value)
        elif isinstance(value, Mapping):
            self._write(type(value).__name__, len(value))
            self._all(part for item in value.items() for part in item)
        elif isinstance(value, set | frozenset):
            self._all((type(value).__name__, *sorted(value, key=repr)))
        elif isinstance(value, np.ndarray | np.generic):
            self._write(value.dtype.str, value.shape, value.tobytes())
        elif isinstance(value, CodeType):
            self._write(value.co_code, value.co_names, value.co_varnames, value.co_freevars, value.co_flags)
            self._all(value.co_consts)
        elif id(value) in self._seen:
            self._write("again", self._seen[id(value)])
        else:
            self._seen[id(value)] = len(self._seen)
            self._alive.append(value)
            self._add_object(value)

    def _add_object(self, value: object) -> None:
        if isinstance(value, Tensor):
            kept = (value.shape, value.stride(), value.storage_offset(), value.dtype, value.device)
            self._write("tensor", type(value).__name__, *kept, value.requires_grad)
        elif isinstance(value, functools.partial):
            self._all(("partial", value.func, value.args, value.keywords))
        elif isinstance(value, MethodType):
            self._all(("method", value.__self__, value.__func__))
        elif isinstance(value, staticmethod | classmethod):
            self._all((type(value).__name__, value.__func__))
        elif isinstance(value, property):
            self._all(("property", value.fget))
        elif isinstance(value, functools.cached_property):
            self._all(("property", value.func))
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, BuiltinFunctionType | ModuleType):
            self._write("named", value.__name__)
        elif isinstance(value, Enum):
            self._write(type(value).__qualname__, value.name)
        elif hasattr(value, "__dict__"):
            self._all((type(value), vars(value)))
        else:
            raise OpaqueError(f"{type(value).__module__}.{type(value).__qualname__}")

    def _add_function(self, function: FunctionType) -> None:
        self._write("function", function.__module__, function.__qualname__)
        if _in_library(function):
            return
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        self._all((function.__code__, function.__defaults__, function.__kwdefaults__, cells))
        names = sorted(_names(function.__code__))
        for name in names:
            if name in function.__globals__:
                value = function.__globals__[name]
                self._write(name)
                try:
                    self.add(value)
                except OpaqueError as opaque:  # such a value cannot be part of a traced update
                    self._write(str(opaque))
                if isinstance(value, ModuleType) and not _in_library(value):
                    self._all(vars(value)[each] for each in names if each in vars(value))

    def _add_class(self, cls: type) -> None:
        self._write("class", cls.__module__, cls.__qualname__)
        if _in_library(cls):
            return
        self._all(cls.__bases__)
        for name, value in vars(cls).items():
            described = (*_PLAIN, tuple, FunctionType, staticmethod, classmethod, property, functools.cached_property)
            if isinstance(value, described) and name not in ("__doc__", "__module__"):
                self._write(name)
                self.add(value)

    def _all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)

    def _write(self, *parts: object) -> None:
        text = "\0".join(map(repr, parts)).encode()
        self.hash.update(len(text).to_bytes(8, "little") + text)


def _in_library(value: object) -> bool:
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(module).partition(".")[0] in _LIBRARIES


def _names(code: CodeType) -> set[str]:
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)
