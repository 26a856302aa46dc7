"""``birl ope plan`` and ``birl ope read``: a guarded online test, before it starts and while it runs.

They need no PyTorch, unlike the other commands of ``birl ope``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from birl.cli.common import between, note, print_line, print_table
from birl.cli.datasets import load_dataset
from birl.dataset.logs.columns import Column, row_labels, split_batches
from birl.dataset.logs.files import resolve_sources
from birl.errors import ConfigError, DataError, EmptyDataError
from birl.ope.online_test import (
    RULES,
    OnlineTestPlan,
    OnlineTestResult,
    OpenEnded,
    OutcomeSpread,
    episodes_to_log,
    outcome_spread,
    plan_online_test,
    read_online_test,
)
from birl.ope.online_test_page import write_online_test
from birl.types import Array

_GAIN: Final = re.compile(r"([0-9.eE+-]+)\s*(%?)")
_NAMES: Final = {"gain": "the gain", "no_gain": "no gain", "loss": "a loss of the same size"}

Confidence = Annotated[
    float, typer.Option(min=0.5, max=0.9999, help="Confidence of two-sided intervals, at all times together.")
]
MinGain = Annotated[float, typer.Option(help="Required gain of the policy.")]


def plan(
    gain: Annotated[str, typer.Option(metavar="X|X%", help="Gain to detect, or its share of today's mean, as 3%.")],
    dataset: Annotated[
        Path | None, typer.Option(metavar="DIR|FILE", help="Episodes whose returns are like the test's outcomes.")
    ] = None,
    std: Annotated[
        float | None, typer.Option(callback=between(above=0), help="Standard deviation of outcomes.")
    ] = None,
    mean: Annotated[float | None, typer.Option(help="Mean outcome today, for a gain in %.")] = None,
    rate: Annotated[
        float | None,
        typer.Option(callback=between(above=0, below=1), help="Outcomes are 0 or 1: share of 1 today."),
    ] = None,
    min_gain: MinGain = 0.0,
    share: Annotated[
        float, typer.Option(callback=between(above=0, below=1), help="Share of units with the new policy.")
    ] = 0.5,
    confidence: Confidence = 0.95,
    power: Annotated[
        float, typer.Option(callback=between(above=0.5, below=1), help="Probability of detecting the gain.")
    ] = 0.8,
    rule: Annotated[
        str, typer.Option(metavar="|".join(RULES), help="When it may be read: at any time, or at a few looks.")
    ] = "anytime",
    looks: Annotated[int, typer.Option(min=1, max=50, help="Number of looks of the other rules.")] = 5,
    units_per_day: Annotated[
        float | None, typer.Option(callback=between(above=0), help="Units of both arms per day, for the duration.")
    ] = None,
    effective_share: Annotated[
        float | None,
        typer.Option(
            callback=between(above=0),
            help="Also say how many episodes to log instead: effective episodes of the policy, divided by all.",
        ),
    ] = None,
    gamma: Annotated[float, typer.Option(min=0, max=1, help="Discount factor of the returns of --dataset.")] = 0.99,
    horizon: Annotated[
        int | None, typer.Option(min=1, help="Number of steps of an episode that count; by default all.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the plan there, for birl ope read.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan a guarded online test: how many units, how long, and when to stop.

    Outcomes are described by --dataset, --std or --rate. Exit status: 0; 1 after an error.
    """
    spread = _spread(dataset, std, rate, gamma, horizon)
    mean = spread.mean if mean is None else mean
    wanted = _parse_gain(gain, mean)
    made = plan_online_test(
        wanted,
        spread.std,
        min_gain=min_gain,
        std_new=None if rate is None else _std_of_rate(rate, wanted),
        skewness=spread.skewness,
        share=share,
        error=(1 - confidence) / 2,
        power=power,
        rule=rule,
        looks=looks,
        units_per_day=units_per_day,
    )
    log = None
    if effective_share is not None:
        needed = episodes_to_log(wanted - min_gain, spread.std, effective_share, error=made.error, power=power)
        log = math.ceil(needed)
    if out is not None:
        made.save(out)
    if as_json:
        print(json.dumps({**made.as_dict(), "mean": mean or None, "skewness": spread.skewness, "episodes_to_log": log}))
        return
    _print_plan(made, log)
    if out is not None:
        note(f"{out}: the plan, for birl ope read --plan")


def _spread(
    dataset: Path | None, std: float | None, rate: float | None, gamma: float, horizon: int | None
) -> OutcomeSpread:
    """Return how outcomes vary; an unknown mean is 0."""
    if sum(given is not None for given in (dataset, std, rate)) != 1:
        raise ConfigError("give one of --dataset, --std and --rate, which say how much outcomes vary")
    if dataset is not None:
        return _returns_spread(dataset, gamma, horizon)
    if rate is not None:
        return OutcomeSpread(rate, _std_of_rate(rate, 0.0), (1 - 2 * rate) / _std_of_rate(rate, 0.0))
    assert std is not None
    return OutcomeSpread(0.0, std, 0.0)


def _std_of_rate(rate: float, gain: float) -> float:
    """Return the standard deviation of outcomes of 0 and 1 whose share of 1 is a rate with a gain."""
    new = rate + gain
    if not 0 < new < 1:
        raise ConfigError(f"--rate {rate:g} with a gain of {gain:g} is {new:g}; it must be between 0 and 1")
    return math.sqrt(new * (1 - new))


def _print_plan(plan: OnlineTestPlan, log: int | None) -> None:
    for text in plan.sentences:
        print_line(text)
    if plan.looks:
        head = ["LOOK", "UNITS", "SHIP IF Z ABOVE", "STOP FOR HARM IF Z BELOW"]
        rows = zip(plan.looks, plan.upper, plan.lower, strict=True)
        print_table(
            [head, *([str(k), f"{n:,}", f"{up:.3f}", f"{down:.3f}"] for k, (n, up, down) in enumerate(rows, 1))], True
        )
    stops = ", ".join(f"{plan.expected_units[key]:,.0f} at {name}" for key, name in _NAMES.items())
    print_line(
        f"on average it stops after {stops}; read once, at its end, it would need {plan.units_read_once:,} units"
    )
    if log is not None:
        print_line(f"instead, birl ope report would need about {log:,} logged episodes")


def _parse_gain(text: str, mean: float | None) -> float:
    """Return a gain that is given as a number, or in percent of today's mean."""
    found = _GAIN.fullmatch(text.strip())
    try:
        value = float(found[1]) if found else math.nan
    except ValueError:
        value = math.nan
    if found is None or not math.isfinite(value):
        raise ConfigError(
            f"--gain is {text!r:.40}; it must be a number such as 0.2, or a share of today's mean such as 3%"
        )
    if not found[2]:
        return value
    if not mean:
        raise ConfigError(f"--gain {text} is a share of today's mean, which is unknown or 0: give --mean, or a number")
    return value / 100 * abs(mean)


def _returns_spread(path: Path, gamma: float, horizon: int | None) -> OutcomeSpread:
    """Return how discounted returns of episodes vary."""
    episodes = [episode for episode in load_dataset(str(path)).episodes if len(episode.rewards)]
    if len(episodes) < 2:
        raise EmptyDataError(f"{path} has {len(episodes)} episodes; a plan needs 2 or more: log more, or give --std")
    rewards = [np.asarray(episode.rewards, np.float64).reshape(-1)[:horizon] for episode in episodes]
    discount = gamma ** np.arange(max(map(len, rewards)))
    returns = np.array([discount[: len(each)] @ each for each in rewards])
    clusters = [np.ravel((episode.extra or {}).get("cluster", np.nan))[0] for episode in episodes]
    known = all(cluster == cluster for cluster in clusters)  # not NaN
    found = outcome_spread(returns, np.array(clusters) if known else None)
    if not found.std:
        raise DataError(f"all returns of {path} are {returns[0]:.6g}, so nothing says how much they vary: give --std")
    return found


def read(
    logs: Annotated[
        list[str],
        typer.Argument(metavar="LOG…", help="Files .parquet, .csv, .tsv, .jsonl or .arrow, or patterns in quotes."),
    ],
    arm: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the arm of a unit.")],
    policy: Annotated[str, typer.Option(metavar="LABEL", help="Label of the new policy in this column.")],
    outcome: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the outcome of a unit.")],
    time: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column to order units by; by default the order of rows.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column that names units, each of which has one row.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plan of the test, as birl ope plan --out writes it.")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(callback=between(above=0, below=1), help="Without --plan: planned share of the new policy (0.5)."),
    ] = None,
    gain: Annotated[
        float | None, typer.Option(help="Without --plan: stop for futility if the interval is below this gain.")
    ] = None,
    min_gain: Annotated[float | None, typer.Option(help="Without --plan: required gain of the policy (0).")] = None,
    confidence: Annotated[
        float | None, typer.Option(min=0.5, max=0.9999, help="Without --plan: confidence at all times together (0.95).")
    ] = None,
    low: Annotated[
        float | None, typer.Option(help="Smallest possible outcome, for an interval without large samples.")
    ] = None,
    high: Annotated[float | None, typer.Option(help="Largest possible outcome.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page about it (.html) there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read the log of a running online test: continue, ship, or stop. Reading every day keeps the error level.

    Exit status: 0 ship, 3 stop for harm, 4 continue, 7 stop for futility; 1 after an error, such as a share of the
    policy that is not the planned one or that changes during the test.
    """
    options = {"share": share, "gain": gain, "min_gain": min_gain, "confidence": confidence}
    given = {name: value for name, value in options.items() if value is not None}
    if plan is not None and given:
        raise ConfigError(f"--{next(iter(given)).replace('_', '-')} is a part of the plan, {plan}: give one of them")
    error = (1 - given.pop("confidence", 0.95)) / 2
    planned = OpenEnded(**given, error=error) if plan is None else OnlineTestPlan.load(plan)
    table = _read_table(logs, arm, outcome, time, unit)
    treated, other = _arms(table, policy)
    found = read_online_test(treated, table.outcome, planned, low=low, high=high, label=table.label)
    if out is not None:
        write_online_test(out, found, planned, (policy, other))
    if as_json:
        print(json.dumps({"policy": policy, "other": other, **found.as_dict()}))
    else:
        _print_result(found, policy, other)
    raise typer.Exit(found.status)


def _print_result(found: OnlineTestResult, policy: str, other: str) -> None:
    counts = found.treated, found.units - found.treated
    rows = zip((policy, other), counts, found.means, strict=True)
    print_table([["ARM", "UNITS", "MEAN"], *([name, f"{count:,}", f"{mean:.4g}"] for name, count, mean in rows)])
    print_line(f"{policy}: {found.decision}")
    for text in found.reasons:
        print_line(f"  {text}")


@dataclass(frozen=True)
class _Table:
    """Rows of the log of a test in the order of time.

    Attributes:
        arm: labels of arms, ``[n]``.
        outcome: outcomes, ``[n]``.
        time: times, ``[n]``; ``None`` for the order of rows.
        row: place of each row in the files, ``[n]``.
        origins: first place and name of each file.
    """

    arm: Array
    outcome: Array
    time: Array | None
    row: Array
    origins: tuple[tuple[int, str], ...]

    def label(self, index: int) -> str:
        """Return the name of a row, with its time."""
        place = _place(int(self.row[index]), self.origins)
        if self.time is None:
            return place
        time = self.time[index]
        return f"{place} ({np.datetime_as_string(time, unit='s') if time.dtype.kind == 'M' else time})"


def _place(row: int, origins: Sequence[tuple[int, str]]) -> str:
    begin, origin = max(each for each in origins if each[0] <= row)
    return row_labels(origin, 0)(row - begin)


def _read_table(logs: Sequence[str], arm: str, outcome: str, time: str | None, unit: str | None) -> _Table:
    """Read the columns of a test's log."""
    names = tuple(dict.fromkeys(name for name in (arm, outcome, time, unit) if name is not None))
    if len(names) < 2 + (time is not None) + (unit is not None):
        raise ConfigError("--arm, --outcome, --time and --unit name a column twice; give each its own column")
    parts: dict[str, list[Array]] = {name: [] for name in names}
    origins, rows = list[tuple[int, str]](), 0
    for source in resolve_sources(logs):
        origins.append((rows, str(source)))
        texts = (arm, *([] if unit is None else [unit]))
        batches = source.read(names, (outcome,), texts)
        for chunk in _chunks(split_batches(batches, names, str(source))):
            for name, column in chunk.items():
                values = _values(column, name, rows, origins, name == outcome)
                if parts[name] and (values.dtype.kind in "MU") != (parts[name][0].dtype.kind in "MU"):
                    raise DataError(
                        f"{_place(rows, origins)}, column {name!r:.60} holds {column.kind}, unlike earlier rows: give "
                        "a column one type in all files"
                    )
                parts[name].append(values)
            rows += len(chunk[arm].values)
    if not rows:
        raise EmptyDataError(
            f"{', '.join(map(str, logs))} has no rows; a test needs one row for each unit: give its log"
        )
    columns = {name: np.concatenate(values) for name, values in parts.items()}
    when = None if time is None else columns[time]
    if when is not None and when.dtype.kind in "US":
        raise DataError(
            f"column {time!r} holds text, such as {str(when[0])!r:.40}; times must be dates or numbers: convert it"
        )
    if unit is not None:
        _check_units(columns[unit], columns[arm], unit, origins)
    order = np.arange(rows) if when is None else np.argsort(when, kind="stable")
    numbers = columns[outcome].astype(np.float64)
    return _Table(columns[arm][order], numbers[order], None if when is None else when[order], order, tuple(origins))


def _chunks(chunks: Iterator[dict[str, Column]]) -> Iterator[dict[str, Column]]:
    """Iterate over chunks; messages about columns name no schema, because there is none."""
    try:
        yield from chunks
    except DataError as error:
        text = str(error).replace(", which the schema names", "").replace(" and set missing in the schema", "")
        raise type(error)(text) from error


def _values(column: Column, name: str, begin: int, origins: Sequence[tuple[int, str]], number: bool) -> Array:
    """Return the values of a column, texts as texts.

    Raises:
        DataError: if a value is missing, or one of a column of numbers is none.
    """
    if column.missing.any():
        where = _place(begin + int(column.missing.argmax()), origins)
        helps = "leave out units of both arms that came after a time after which outcomes are not complete"
        raise DataError(
            f"{where}, column {name!r:.60}: the value is missing; every unit needs one: "
            f"{helps if number else 'repair it'}"
        )
    if column.values.ndim > 1 or (number and (column.labels is not None or column.values.dtype.kind == "M")):
        where = _place(begin, origins)
        raise DataError(f"{where}, column {name!r:.60} holds {column.kind}; it must hold numbers: give another column")
    return column.values if column.labels is None else np.array(column.labels)[column.values]


def _check_units(units: Array, arms: Array, name: str, origins: Sequence[tuple[int, str]]) -> None:
    """Raise `DataError` if a unit has several rows."""
    order = np.argsort(units, kind="stable")
    same = np.flatnonzero(units[order][1:] == units[order][:-1])
    if not len(same):
        return
    first, second = (int(order[same[0] + k]) for k in (0, 1))
    helps = "add up the outcomes of a unit, so that it has one row"
    if arms[first] != arms[second]:
        helps = (
            f"it is in the arms {arms[first]!s:.30} and {arms[second]!s:.30}: leave out such units, and find out why"
        )
    raise DataError(
        f"{_place(second, origins)}, column {name!r:.60}: {units[second]!s:.40} is also in {_place(first, origins)}; "
        f"a unit must have one row: {helps}"
    )


def _arms(table: _Table, policy: str) -> tuple[Array, str]:
    """Return which units have the new policy, and the label of the other arm."""
    labels, index = np.unique(table.arm, return_inverse=True)
    names = [str(label) for label in labels.tolist()]
    if policy not in names or len(names) != 2:
        shown = ", ".join(map(repr, names[:10]))
        raise DataError(
            f"the arms are {shown:.200}; they must be {policy!r} and one other: give one of the labels as --policy, "
            "and read two arms at a time"
        )
    return index == names.index(policy), names[1 - names.index(policy)]
