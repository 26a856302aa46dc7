"""Which cases of a test the default run has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Parameters for pytest: all cases, of which only those in ``quick`` are in the default run."""
    quick, cases = list(quick), list(cases)
    unknown = [each for each in quick if each not in cases]
    assert not unknown, f"no case is {unknown}"
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=[] if each in quick else [pytest.mark.slow])
        for each in cases
    ]
