"""``birl ope slates``: a verdict on a slate policy from a table with one row for each position."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from birl.cli.common import note, print_line, print_table
from birl.dataset.logs.files import resolve_sources
from birl.errors import ConfigError, require
from birl.ope.html_page import plain_text
from birl.ope.slate_tables import SLATE_COLUMNS, slates_from_table


def slates(
    logs: Annotated[
        list[str],
        typer.Argument(metavar="LOGS…", help="Files .parquet, .csv, .tsv, .jsonl or .arrow, or patterns in quotes."),
    ],
    users: Annotated[
        str,
        typer.Option(metavar="none|cascade|item_position|additive", help="What is assumed of how users read slates."),
    ] = "none",
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=NAME", help=f"A column's role, if its name does not say it: {', '.join(SLATE_COLUMNS)}."
        ),
    ] = None,
    items: Annotated[
        int | None,
        typer.Option(min=2, help="For additive: number of items, if the logs rank them uniformly at random."),
    ] = None,
    min_gain: Annotated[float, typer.Option(help="Required gain, in rewards of a slate.")] = 0.0,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Confidence of two-sided intervals.")] = 0.95,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the report (.html and .json) there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Decide whether a policy of slates or rankings may ship. The table has the probabilities under both policies.

    Exit status: 0 ship, 4 more data, 3 do not ship, 5 cannot tell; 1 after an error.
    """
    from birl import ope  # verdicts import PyTorch
    from birl.ope.decision_page import as_json as json_of
    from birl.ope.decision_page import write_report

    roles = _roles(column or ())
    arrow = require("pyarrow", "logs")
    batches = [batch for source in resolve_sources(logs) for batch in source.read(None)]
    found = slates_from_table(arrow.Table.from_batches(batches), roles)
    name = plain_text(logs[0])
    result = ope.evaluate_slates(found, users, items=items, confidence=confidence, name=name)
    verdict = ope.verdict(result, min_gain)
    if out is not None:
        write_report(out, {name: result}, {name: verdict}, inputs={"slates": ", ".join(logs)})
    if as_json:
        print(json.dumps(json_of(result, verdict)))
        raise typer.Exit(verdict.status)
    print_line(f"{name}: {verdict.verdict}")
    for text in (*verdict.reasons, *verdict.remedies):
        print_line(f"  {plain_text(text)}")
    rows = [["ESTIMATOR", "GAIN", "FROM", "TO", ""]]
    for key, row in result.rows.items():
        ends = [row.gain.value, *((row.gain_interval.lower, row.gain_interval.upper) if row.gain_interval else ())]
        mark = "decides" if key == result.decides else "refused" if row.refused else ""
        rows.append([key, *(f"{float(end):.4g}" for end in ends), mark])
    print_table(rows)
    if out is not None:
        note(f"{out / 'report.html'}: the evidence, and the assumptions that logs cannot check")
    raise typer.Exit(verdict.status)


def _roles(given: Sequence[str]) -> dict[str, str]:
    """Parse ``role=name``."""
    roles: dict[str, str] = {}
    for each in given:
        role, equals, name = each.partition("=")
        if not equals or not name:
            raise ConfigError(f"--column {each!r:.60} is not ROLE=NAME: give one such as item=article")
        roles[role] = name
    return roles
