"""Arguments out of range are refused in one form of words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from birl.checks import Allowed, check
from birl.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("given", "kind", "limits", "words"),
    [
        (0, int, {"low": 1}, "n is 0; it must be an int >= 1"),
        (True, int, {"low": 1}, "n is True; it must be an int >= 1"),
        (1.0, int, {}, "n is 1.0; it must be an int"),
        (-1, int, {"low": 0, "high": 2**32 - 1}, "n is -1; it must be an int >= 0 and <= 4294967295"),
        (np.int64(0), int, {"above": 0}, "n is np.int64(0); it must be an int > 0"),
        (1, float, {"low": 0, "below": 1}, "n is 1; it must be a float >= 0 and < 1"),
        (False, float, {}, "n is False; it must be a float"),
        ("1", float, {"optional": True}, "n is '1'; it must be a float or None"),
        (math.nan, float, {"above": 0}, "n is nan; it must be a finite float > 0"),
        (math.inf, float, {}, "n is inf; it must be a finite float"),
        (10**309, float, {}, f"n is {10**79}; it must be a float"),
        (-math.inf, float, {}, "n is -inf; it must be a finite float"),
        (1, bool, {}, "n is 1; it must be a bool"),
        ("on", bool, {"choices": ("auto",)}, "n is 'on'; it must be a bool or 'auto'"),
        ("c", str, {"choices": ("a", "b")}, "n is 'c'; it must be one of 'a', 'b'"),
        (3, str, {"choices": ("a",), "optional": True}, "n is 3; it must be one of 'a' or None"),
        (None, list, {}, "n is None; it must be a list"),
        ("x" * 99, OSError, {}, f"n is '{'x' * 79}; it must be an OSError"),
    ],
)
def test_refused(given: Any, kind: type, limits: Any, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        check("n", given, kind, **limits)
    assert str(error.value) == words
    assert not Allowed(kind, **limits).accepts(given)


@pytest.mark.parametrize(
    ("given", "kind", "limits"),
    [
        (1, int, {"low": 1, "high": 1}),
        (10**400, int, {"low": 1}),
        (1, float, {"above": 0, "high": 1}),
        (0.5, float, {"above": 0, "below": 1}),
        (None, float, {"optional": True, "low": 0}),
        (False, bool, {}),
        ("auto", bool, {"choices": ("auto",)}),
        ("b", str, {"choices": ("a", "b")}),
        ([], list, {}),
    ],
)
def test_taken(given: Any, kind: type, limits: Any) -> None:
    assert check("n", given, kind, **limits) is given


def test_numbers_of_numpy_become_pythons() -> None:
    for given, kind in ((np.int64(3), int), (np.float32(0.5), float), (np.bool_(True), bool), (np.uint8(3), float)):
        found: Any = check("n", given, kind)
        assert found == given and type(found) in (bool, int, float)


def test_advice_and_kind_of_error() -> None:
    with pytest.raises(DataError, match="^n is 0; it must be an int >= 1: give more$"):
        check("n", 0, int, ": give more", error=DataError, low=1)
