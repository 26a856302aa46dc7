"""Checks of arguments, with one form of error messages."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, cast

import numpy as np

from birl.errors import ArgumentError, BirlError, ConfigError, argument_here
from birl.habits import value_hint

P = ParamSpec("P")
T = TypeVar("T")
_KINDS: dict[type, tuple[type[float] | type[np.integer[Any]] | type[np.floating[Any]] | type[np.bool_], ...]] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (int, float, np.integer, np.floating),
}


class Limits(TypedDict, total=False):
    """Limits of the values of an argument.

    Attributes:
        low, high: inclusive ends of the range.
        above, below: exclusive ends of the range.
        choices: the allowed strings; if the type is not ``str``, they are allowed in addition to its values.
    """

    low: float
    high: float
    above: float
    below: float
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Allowed:
    """The allowed values of an argument, within `Limits`. Its text is such as ``"an int >= 1"``.

    Attributes:
        kind: the type: ``int`` (includes numpy's), ``float`` (every finite number), or another class.
        optional: whether ``None`` is allowed.
    """

    kind: type
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: tuple[str, ...] = ()
    optional: bool = False

    def __str__(self) -> str:
        name, choices = getattr(self.kind, "__name__", str(self.kind)), ", ".join(map(repr, self.choices))
        if self.kind is str and choices:
            return f"one of {choices}" + (" or None" if self.optional else "")
        ends = {">=": self.low, ">": self.above, "<=": self.high, "<": self.below}
        limits = " and ".join(f"{sign} {end:.12g}" for sign, end in ends.items() if math.isfinite(end))
        text = f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name} {limits}".rstrip()
        return text + (f" or {choices}" if choices else "") + (" or None" if self.optional else "")

    def accepts(self, value: object) -> bool:
        """Return whether ``value`` is allowed."""
        if value is None:
            return self.optional
        if isinstance(value, str) and self.choices:
            return value in self.choices
        if self.kind not in (int, float):
            kind = _KINDS.get(self.kind, self.kind)
            return isinstance(value, kind) and (not isinstance(value, type) or kind in (object, type))
        if isinstance(value, bool) or not isinstance(value, _KINDS[self.kind]):
            return False
        if self.kind is float and isinstance(value, int) and abs(value) > sys.float_info.max:
            return False
        return bool(self.low <= value <= self.high and self.above < value < self.below)  # excludes NaN and infinity

    def check(self, name: str, value: object, hint: str = "", error: type[BirlError] = ConfigError) -> object:
        """Return an allowed value, with numpy numbers as Python's. See the function `check`."""
        if not self.accepts(value):
            infinite = isinstance(value, float) and not math.isfinite(value)
            allowed = str(self).replace("a float", "a finite float") if infinite else str(self)
            if isinstance(value, type) and self.kind not in (*_KINDS, str):
                hint = f": give an object, {value.__name__}(…){hint}"
            raise error(f"{name} is {value!r:.80}; it must be {allowed}{hint}")
        return value.tolist() if isinstance(value, np.generic) else value


def check(
    name: str,
    value: object,
    kind: type[T],
    hint: str = "",
    *,
    optional: bool = False,
    error: type[BirlError] = ConfigError,
    **limits: Unpack[Limits],
) -> T:
    """Return an allowed value, with numpy numbers as Python's; raise for any other value.

    Args:
        name: name of the argument.
        value: its value.
        kind: its type. ``int`` includes numpy's integers, ``float`` every finite number.
        hint: advice at the end of the message.
        optional: whether ``None`` is allowed. The type of the result omits it.
        error: class of the error.
        **limits: limits of the values.

    Raises:
        ConfigError: ``"n_steps is 0; it must be an int >= 1"``, or an ``error`` with this message.
    """
    return cast(T, Allowed(kind, optional=optional, **limits).check(name, value, hint, error))


def named_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function whose calls with unknown or missing arguments raise `ArgumentError`, with similar names."""

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if isinstance(error, BirlError) or error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # it is from inside the function
            found = _wrong_arguments(function, args, kwargs)
            if found is None:
                raise
            raise found from error

    return checked


def _wrong_arguments(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> ArgumentError | None:
    """Return the error of a call, or ``None`` if its arguments fit."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
        return None
    except TypeError as error:
        text = str(error)
    name = function.__qualname__.removesuffix(".__init__")
    if "self" in signature.parameters and not function.__qualname__.endswith(".__init__"):
        if not args or not hasattr(args[0], function.__name__):
            return ArgumentError(
                f"{name} is called on a class: make an object first, and call {function.__name__} on it"
            )
        name = f"{type(args[0]).__name__}.{function.__name__}"  # a method is often that of a base class
    known = [each for each in signature.parameters if each not in ("self", "cls")]
    single = [each for each in known if signature.parameters[each].kind not in (2, 4)]  # neither *args nor **kwargs
    unknown = [each for each in kwargs if each not in single]
    missing = [
        each
        for each in single[max(len(args) - ("self" in signature.parameters), 0) :]
        if signature.parameters[each].default is inspect.Parameter.empty and each not in kwargs
    ]
    variadic = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    if missing and unknown:
        near = argument_here(unknown[0], single) or f": did you mean {missing[0]!r}?"
        text = f"got no argument {missing[0]!r}, and has none called {unknown[0]!r}{near}"
    elif missing:
        environment = value_hint(args[1]) if function.__name__ == "fit" and len(args) > 1 else ""
        text = f"got no argument {missing[0]!r}: give it{environment}."
    elif unknown and not variadic:
        text = f"has no argument {unknown[0]!r}{argument_here(unknown[0], single) or '.'}"
    else:
        text = f"cannot be called like this: {text}."
    return ArgumentError(f"{name} {text} Its arguments: {', '.join(known) or 'none'}")
