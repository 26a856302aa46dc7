"""Config values that can be written to JSON as ``{"type": ..., "params": {...}}`` and read back.

A factory or scaler is a dataclass that derives from a *kind* such as `EncoderFactory` and gives its name in files as a
class keyword: ``class MyFactory(EncoderFactory, type="mine")``. Defining the class is enough: there is no registry to
fill, and no file can cause an import.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, Self

import numpy as np

from birl.errors import ConfigError, did_you_mean


class Serializable:
    """Base of objects that are written to JSON by name.

    A direct subclass is a *kind* (a namespace of names); every concrete class below it adds a name.
    """

    _known: ClassVar[dict[str, type[Serializable]]]
    _kind: ClassVar[str]
    _type: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Take the class keyword ``type``. A class written for d3rlpy overrides `get_type` instead."""
        cls._type = kwargs.pop("type", cls._type)
        super().__init_subclass__(**kwargs)
        if Serializable in cls.__bases__:
            cls._known, cls._kind = {}, cls.__name__
        elif cls.get_type():
            cls._known[cls.get_type()] = cls

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse arguments that ``__init__`` does not take.

        Raises:
            ConfigError: naming the nearest field, or one that is missing.
        """
        try:
            if args or kwargs:  # copies are made without
                _signature(cls.__init__).bind(cls, *args, **kwargs)
        except TypeError as error:
            known = list(_signature(cls.__init__).parameters)[1:]
            unknown = next((name for name in kwargs if name not in known), None)
            found = f": {error}."
            if unknown is not None:
                found = f" has no field {unknown!r}{did_you_mean(unknown, known) or '.'}"
            raise ConfigError(f"{cls.__name__}{found} Fields: {', '.join(known)}") from None
        return super().__new__(cls)

    @classmethod
    def from_short(cls, value: Any) -> Any:
        """The object of this kind for its name (with defaults) or JSON form; any other value as it is.

        Raises:
            ConfigError: if there is no such object.
        """
        given = {"type": value} if isinstance(value, str) else value
        if not isinstance(given, dict):
            return value
        return cls.deserialize({"params": {}, **{key: item for key, item in given.items() if key != "kind"}})

    @classmethod
    def register(cls, known: type[Serializable]) -> None:
        """Kept for d3rlpy code; classes are known by name as soon as they are defined.

        Raises:
            ConfigError: if ``known`` is not a class of this kind with a name.
        """
        if not (isinstance(known, type) and issubclass(known, cls) and known.get_type()):
            raise ConfigError(f"{known!r} must be a class derived from {cls._kind} whose get_type returns a name")

    @classmethod
    def get_type(cls) -> str:
        """Name of this class in files; empty for abstract classes."""
        return cls._type

    def get_params(self) -> dict[str, Any]:
        """The dataclass fields that recreate this object; empty for other classes."""
        if not dataclasses.is_dataclass(self):
            return {}
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}

    def convert_numpy_numbers(self) -> None:
        """For ``__post_init__``: convert numpy numbers in the dataclass's fields, also in lists, to Python's."""
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, item.name, as_python(getattr(self, item.name)))

    def serialize(self) -> dict[str, Any]:
        """JSON form: ``{"type": name, "params": {...}}``."""
        return {"type": self.get_type(), "params": encode(self.get_params())}

    def serialize_to_dict(self) -> dict[str, Any]:
        """d3rlpy's name of `serialize`."""
        return self.serialize()

    @classmethod
    def deserialize_from_dict(cls, data: dict[str, Any]) -> Self:
        """d3rlpy's name of `deserialize`."""
        return cls.deserialize(data)

    @classmethod
    def named(cls, name: str) -> type[Self]:
        """The class of this kind with this name in files.

        Raises:
            ConfigError: if the name is not known.
        """
        if not isinstance(name, str) or name not in cls._known:
            raise ConfigError(
                f"no {cls._kind} is called {name!r}{did_you_mean(str(name), cls._known) or '.'} Known: "
                f"{', '.join(sorted(cls._known))}. If it is one of yours, import the module that defines it first."
            )
        return cls._known[name]  # type: ignore[return-value]

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """Build the object that `serialize` described.

        Raises:
            ConfigError: if the name is not known or the parameters do not fit.
        """
        if not isinstance(data, dict) or set(data) != {"type", "params"}:
            raise ConfigError(f"expected {{'type': …, 'params': …}} for {cls._kind}, got {data!r:.200}")
        known = cls.named(data["type"])
        try:
            return known(**decode(data["params"]))
        except TypeError as error:
            raise ConfigError(f"{known.__name__} cannot be built from {data['params']!r:.200}: {error}") from error


@functools.cache
def _signature(init: Callable[..., None]) -> inspect.Signature:
    return inspect.signature(init)


def kind_of(owner: type, name: str) -> type[Serializable] | None:
    """The kind of factory or scaler that the field ``name`` of a class holds, if it holds one."""
    hint = typing.get_type_hints(owner).get(name)
    for option in (hint, *typing.get_args(hint)):
        if isinstance(option, type) and issubclass(option, Serializable):
            return option
    return None


def as_python(value: Any) -> Any:
    """``value``, with numpy numbers, also in lists, as Python's."""
    if isinstance(value, np.generic):
        return value.tolist()
    return type(value)(map(as_python, value)) if type(value) in (list, tuple) else value


def encode(value: Any) -> Any:
    """JSON form of a config value: nested `Serializable`, arrays, enums, tuples, dicts and plain scalars.

    Raises:
        ConfigError: for a value that has no JSON form.
    """
    if isinstance(value, Serializable):
        return {"kind": value._kind, **value.serialize()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(f"{value!r:.100} of type {type(value).__name__} cannot be written to JSON")


def decode(value: Any) -> Any:
    """Inverse of `encode`, except that tuples and arrays come back as lists."""
    if isinstance(value, dict):
        if "kind" in value and "type" in value:
            kind = {each.__name__: each for each in Serializable.__subclasses__()}.get(value["kind"])
            if kind is None:
                raise ConfigError(f"unknown kind {value['kind']!r}: the file needs a newer birl or is damaged")
            return kind.deserialize({"type": value["type"], "params": value.get("params", {})})
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return value
