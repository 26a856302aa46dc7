"""Parameters and losses equal the references' after several updates."""

from __future__ import annotations

from typing import Any

import pytest

from tests.algorithms import WHOLE
from tests.golden.table import CASES

TOLERANCE = 1e-6


def _tiers() -> list[Any]:
    """The default tier has the first case of each algorithm, and all cases of those that stand for the others."""
    started: set[str] = set()
    found = []
    for case in CASES:
        algorithm = case.name.split()[0]
        slow = algorithm in started and algorithm not in WHOLE
        started.add(algorithm)
        found.append(pytest.param(case, marks=[pytest.mark.slow] if slow else [], id=case.name))
    return found


@pytest.mark.parametrize("case", _tiers())
def test_golden(case: Any) -> None:
    report = case.run()
    print(f"\n{case.name:28s} largest difference {report.largest:.1e} ({report.worst})")
    assert report.largest <= TOLERANCE, f"{report.worst} differs by {report.largest:.2e}"
    still = [name for name, distance in report.moved.items() if distance < 1e-4]
    assert not still, f"nothing is shown about parameters that never moved: {still}"
    assert report.metrics, "no loss was compared"
