"""A page about a running online test: the decision, the arms, and the interval of the gain as the test grew."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import numpy as np

from birl.files import atomic_write
from birl.ope.html_page import Note, Part, Section, Table, lines, render_page
from birl.ope.online_test import OnlineTestPlan, OnlineTestResult, OpenEnded

_MARKS: Final[dict[str, Literal["good", "doubtful", "bad"]]] = {
    "ship": "good",
    "continue": "doubtful",
    "stop_for_harm": "bad",
    "stop_for_futility": "bad",
}
_WIDEST: Final = 5.0
"""Intervals that are wider than the last one by this factor are left out of the figure."""


def write_online_test(
    path: str | Path,
    result: OnlineTestResult,
    plan: OnlineTestPlan | OpenEnded,
    arms: tuple[str, str] = ("new policy", "today's policy"),
) -> None:
    """Write a page about a test.

    Args:
        path: HTML file.
        result: result of `birl.ope.read_online_test`.
        plan: its plan.
        arms: names of the arms, first that of the new policy.

    Raises:
        MissingExtraError: without jinja2.
        WriteError: if the file cannot be written.
    """
    mark = _MARKS[result.decision]
    lead: list[Part] = [Note(mark, f"{arms[0]}: {result.decision.replace('_', ' ')}")]
    lead += [Note("info", text) for text in result.reasons]
    counts = result.treated, result.units - result.treated
    rows = [[name, count, mean] for name, count, mean in zip(arms, counts, result.means, strict=True)]
    parts: list[Part] = [Table(["arm", "units", "mean outcome"], rows)]
    units, gain, lower, upper = result.path.T
    shown = np.isfinite(upper - lower)
    if shown.any():
        shown &= upper - lower <= _WIDEST * (upper - lower)[shown][-1]
        series = {"gain": gain, "from": lower, "to": upper, "required": np.full(len(units), plan.min_gain)}
        caption = f"Gain with its {100 * result.confidence:.4g} % interval, which holds at all times together"
        points = {name: (units[shown], values[shown]) for name, values in series.items()}
        parts.append(lines(caption, points, x="units of both arms", y="gain"))
    if isinstance(plan, OnlineTestPlan):
        parts.append(Table(["Plan of the test"], [[text] for text in plan.sentences]))
    page = render_page("Online test", [Section("Evidence", parts)], lead)
    atomic_write(Path(path), page.encode())
