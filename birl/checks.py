"""One vocabulary of argument checks."""

from __future__ import annotations

import math
from typing import Any

from birl.errors import ConfigError


def is_int(value: object, low: int = 1) -> bool:
    """Whether ``value`` is an int >= ``low``. A bool is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def check_int(name: str, value: object, low: int = 1) -> None:
    """Require an int >= ``low``.

    Raises:
        ConfigError: naming ``name``.
    """
    if not is_int(value, low):
        raise ConfigError(f"{name} is {value!r:.80}; it must be an int >= {low}")


def check_float(
    name: str, value: Any, *, positive: bool = False, below: float = math.inf, optional: bool = False
) -> None:
    """Require a finite number >= 0 (> 0 if ``positive``) and < ``below``, or ``None`` if ``optional``.

    Raises:
        ConfigError: naming ``name``.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if (optional and value is None) or (number and 0 <= value < below and not (positive and value == 0)):
        return
    limit = " and finite" if below == math.inf else f" and < {below:g}"
    none = ", or None" if optional else ""
    raise ConfigError(f"{name} is {value!r:.80}; it must be a float {'>' if positive else '>='} 0{limit}{none}")


def check_bool(name: str, value: object) -> None:
    """Require ``True`` or ``False``.

    Raises:
        ConfigError: naming ``name``.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r:.80}; it must be True or False")
