"""Parameters and losses equal the references' after several updates."""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden.table import CASES

TOLERANCE = 1e-6


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden(case: Any) -> None:
    report = case.run()
    print(f"\n{case.name:28s} largest difference {report.largest:.1e} ({report.worst})")
    assert report.largest <= TOLERANCE, f"{report.worst} differs by {report.largest:.2e}"
    still = [name for name, distance in report.moved.items() if distance < 1e-4]
    assert not still, f"nothing is shown about parameters that never moved: {still}"
    assert report.metrics, "no loss was compared"
