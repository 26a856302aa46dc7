"""The page of a watch; see `birl.ope.monitoring`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np

from birl.errors import WriteError
from birl.files import atomic_write
from birl.ope.html_page import Note, Part, Section, Table, json_value, lines, render_page
from birl.ope.monitoring import STABILITY, Watch, as_json

_MARKS: Final[Mapping[str, Literal["good", "info", "doubtful", "bad"]]] = {
    "as_certified": "good",
    "changed": "doubtful",
    "worse": "bad",
    "cannot_tell": "info",
}
SENTENCES: Final = {
    "as_certified": "The new logs agree with what was certified.",
    "changed": "The world or the policy has changed since certification: evaluate the policy on newer logs.",
    "worse": "The policy earns less than was certified: go back to the former one, and look for the cause.",
    "cannot_tell": "There are too few new episodes to tell.",
}
"""What to do, by result."""


def write_watch(folder: str | Path, result: Watch, inputs: Mapping[str, str] | None = None) -> None:
    """Write ``watch.html`` and ``watch.json``.

    Args:
        folder: folder of both files; it is created if it is missing.
        result: results of the checks.
        inputs: descriptions of the inputs by name.

    Raises:
        MissingExtraError: without jinja2.
        WriteError: if the files cannot be written.
    """
    lead: list[Part] = [Note(_MARKS[result.result], SENTENCES[result.result])]
    for each in result.checks:
        lead.append(Note(_MARKS[each.result], f"{each.name}: {each.text}"))
        lead += [Note("info", each.remedy)] if each.remedy else []
    certified = result.certified
    certified_row = [f"certified: {certified.name}", None, certified.lower, certified.upper]
    new_row = [f"new logs: {result.episodes} episodes", result.mean, None, None]
    lead.append(Table(["", "mean return", "from", "to"], [certified_row, new_row]))
    lead += [Table(["input", ""], [[name, text] for name, text in inputs.items()])] if inputs else []
    page = render_page("Watch of a shipped policy", _sections(result), lead)
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"{path} cannot be created ({error.strerror}): give another --out") from error
    data = {**as_json(result), "inputs": dict(inputs or {})}
    text = json.dumps(json_value(data), indent=1, allow_nan=False) + "\n"
    atomic_write(path / "watch.json", text.encode())
    atomic_write(path / "watch.html", page.encode())


def _sections(result: Watch) -> list[Section]:
    sections = []
    if result.decline is not None:
        decline = result.decline
        unit = np.arange(1, len(decline.mean) + 1)
        known = np.isfinite(decline.upper) & np.isfinite(decline.lower) & (unit > len(unit) // 20)  # the first are wide
        curves = {
            "mean": (unit[known], decline.mean[known]),
            "from": (unit[known], decline.lower[known]),
            "to": (unit[known], decline.upper[known]),
            "certified": (unit[known], np.zeros(int(known.sum()))),
        }
        parts: Sequence[Part] = [
            "The mean outcome of all new episodes so far (or clusters of them), minus the lower end of the certified "
            f"interval. The band holds at all times together, with an error of {result.error / 2:.2g} on each side: "
            "outcomes are worse if it lies below 0. Later parts of the new logs are tested in the same way.",
            lines("Outcomes since shipping", curves, x="new episodes", y="above certified"),
        ]
        sections.append(Section("Outcomes", parts))
    if result.columns:
        head = ["column", "stability index", "distance", "p-value", "changed"]
        rows = [[each.name, each.stability, each.distance, each.p_value, each.drifted] for each in result.columns]
        stability = (
            "Observations at the first steps of episodes, before any action. The stability index compares shares of "
            "ten bins: below 0.1 it is small, above 0.25 large. The distance is the largest difference of the "
            "distribution functions."
        )
        rule = (
            "P-values are corrected for the number of columns (Holm). A column has changed if its p-value is below "
            f"{result.error:g} and its stability index above {STABILITY:g}."
        )
        sections.append(Section("Inputs", [stability, rule, Table(head, rows)]))
    return sections
