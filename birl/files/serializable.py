"""Config values that are written to JSON as ``{"type": ..., "params": {...}}`` and read back.

A factory or scaler is a dataclass that derives from a *kind* such as `EncoderFactory` and gives its name in files as a
class keyword: ``class MyFactory(EncoderFactory, type="mine")``. Defining the class is enough; it needs no registration,
and a file cannot cause an import.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any, ClassVar, Self

import numpy as np

from birl.errors import ConfigError, argument_here, did_you_mean
from birl.habits import named_hint
from birl.types import JSONValue


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

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Refuse arguments that ``__init__`` does not take.

        Raises:
            ConfigError: naming the most similar field, or a missing one.
        """
        try:
            if args or kwargs:  # `copy` passes no arguments
                _signature(cls.__init__).bind(cls, *args, **kwargs)
        except TypeError as error:
            known = list(_signature(cls.__init__).parameters)[1:]
            unknown = next((name for name in kwargs if name not in known), None)
            found = f": {error}."
            if unknown is not None:
                found = f" has no field {unknown!r}{argument_here(unknown, known) or '.'}"
            raise ConfigError(f"{cls.__name__}{found} Fields: {', '.join(known)}") from None
        return super().__new__(cls)

    @classmethod
    def from_shorthand(cls, value: object) -> object:
        """Return the object for its name (with defaults) or JSON form; return any other value unchanged.

        Raises:
            ConfigError: if no class has this name, or the parameters do not fit.
        """
        given = {"type": value} if isinstance(value, str) else value
        if not isinstance(given, dict):
            return value
        return cls.deserialize({"params": {}, **{key: item for key, item in given.items() if key != "kind"}})

    @classmethod
    def register(cls, known: type[Serializable]) -> None:
        """Check the class, which its definition has registered already. For compatibility with d3rlpy.

        Raises:
            ConfigError: if ``known`` is not a class of this kind with a name.
        """
        if not (isinstance(known, type) and issubclass(known, cls) and known.get_type()):
            raise ConfigError(f"{known!r} must be a class derived from {cls._kind} whose get_type returns a name")

    @classmethod
    def get_type(cls) -> str:
        """Return the name of this class in files; empty for abstract classes."""
        return cls._type

    def get_params(self) -> dict[str, Any]:
        """Return the dataclass fields that recreate this object; empty for other classes."""
        if not dataclasses.is_dataclass(self):
            return {}
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}

    def convert_numpy_numbers(self) -> None:
        """Convert numpy numbers in the dataclass's fields, also in lists, to Python's. For ``__post_init__``."""
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, item.name, to_python(getattr(self, item.name)))

    def serialize(self) -> dict[str, Any]:
        """Return the JSON form: ``{"type": name, "params": {...}}``.

        Raises:
            ConfigError: if a value has no JSON form, or the parameters would not recreate the object.
        """
        params = self.get_params()
        if type(self).get_params is Serializable.get_params:
            _check_init(type(self), params)
        return {"type": self.get_type(), "params": encode(params)}

    def serialize_to_dict(self) -> dict[str, Any]:
        """Call `serialize`, under d3rlpy's name."""
        return self.serialize()

    @classmethod
    def deserialize_from_dict(cls, data: dict[str, Any]) -> Self:
        """Call `deserialize`, under d3rlpy's name."""
        return cls.deserialize(data)

    @classmethod
    def named(cls, name: str) -> type[Self]:
        """Return the class of this kind with this name in files.

        Raises:
            ConfigError: if the name is not known.
        """
        if not isinstance(name, str) or name not in cls._known:
            hint = named_hint(cls._kind, str(name)) or did_you_mean(str(name), cls._known) or "."
            raise ConfigError(
                f"no {cls._kind} is called {name!r}{hint} Known: "
                f"{', '.join(sorted(cls._known))}. If it is your own class, import the module that defines it first."
            )
        return cls._known[name]  # type: ignore[return-value]

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """Build the object from its JSON form.

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


def _check_init(cls: type[Serializable], fields: Collection[str]) -> None:
    """Raise `ConfigError` if dataclass fields are not the arguments of ``__init__``, which then would be lost."""
    if cls.__init__ is object.__init__:
        return
    parameters = list(_signature(cls.__init__).parameters.values())[1:]
    variable = [each.name for each in parameters if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    named = [each.name for each in parameters if each.name not in variable]
    lost = [name for name in named if name not in fields] or ([] if fields else variable)
    refused = [] if variable else [name for name in fields if name not in named]
    if lost or refused:
        what = (
            f"takes {', '.join(lost)}, which its files" if lost else f"does not take {', '.join(refused)}, its fields"
        )
        what += " would not contain" if lost else ""
        raise ConfigError(
            f"{cls.__name__}.__init__ {what}, so that it could not be loaded: make the class a dataclass with these "
            "fields and without an own __init__, or give it get_params, which returns the arguments of __init__ by name"
        )


@functools.cache
def _signature(init: Callable[..., None]) -> inspect.Signature:
    return inspect.signature(init)


def kind_of(owner: type, name: str) -> type[Serializable] | None:
    """Return the kind of factory or scaler of the field ``name`` of a class, or ``None``."""
    hint = typing.get_type_hints(owner).get(name)
    for option in (hint, *typing.get_args(hint)):
        if isinstance(option, type) and issubclass(option, Serializable):
            return option
    return None


def to_python(value: object) -> object:
    """Return ``value`` with its numpy numbers, also in lists, converted to Python's."""
    if isinstance(value, np.generic):
        return value.tolist()
    if type(value) is tuple:
        return tuple(map(to_python, value))
    return list(map(to_python, value)) if type(value) is list else value


def encode(value: object) -> JSONValue:
    """Return the JSON form of a config value: nested `Serializable`, arrays, enums, tuples, dicts and plain scalars.

    Raises:
        ConfigError: for a value without a JSON form.
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


def decode(value: object) -> Any:
    """Rebuild a value that `encode` wrote, except that tuples and arrays become lists."""
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
