"""From measurements to ratios, files and a plot."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.rows import OFFLINE_MEAN, Row

__all__ = [
    "Comparison",
    "Measurement",
    "Side",
    "compare",
    "geometric_mean",
    "markdown",
    "offline_means",
    "plot",
    "spread",
    "unequal_sizes",
    "write_csv",
]

NAMES = {"floor": "matmul floor", "sb3": "SB3", "jax": "JAX", "birl": "memory"}


@dataclass(frozen=True)
class Measurement:
    """One side's answer in one round.

    Attributes:
        row, side, round: which.
        value: seconds for one unit on the clock, or the figure of a row of kind ``"value"``.
        processor: processor seconds for one unit, over all threads, which other processes hardly change.
        units: so many were done.
    """

    row: str
    side: str
    round: int
    value: float
    processor: float = 0.0
    units: float = 1.0


@dataclass
class Side:
    """Facts about one side of one row, in addition to its measurements.

    Attributes:
        row, side: which.
        start: seconds for imports, data and networks.
        first: seconds of the first step: where something is compiled, that is in here.
        warm_up: seconds of the whole warm-up, the first step included.
        facts: as the job reported them.
        error: why there are no measurements, or empty.
    """

    row: str
    side: str
    start: float = 0.0
    first: float = 0.0
    warm_up: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Comparison:
    """One side of birl compared with one peer.

    Attributes:
        row, side, peer: which; ``peer`` is empty for a figure of its own.
        kind, asked: as in `Row`.
        low, median, high: quartiles over the rounds, each of which compares what was measured in the same one.
        processor: median in processor time; ``None`` where it is not known.
    """

    row: str
    side: str
    peer: str
    kind: str
    asked: float | None
    low: float
    median: float
    high: float
    processor: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the median is what was asked for."""
        if self.asked is None:
            return None
        return self.median >= self.asked if self.kind == "ratio" else self.median <= self.asked


# --------------------------------------------------------------------------------------------------------------- maths


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean of positive numbers."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def compare(rows: Iterable[Row], measurements: Iterable[Measurement]) -> list[Comparison]:
    """Every side of birl compared with every peer of its row, where both were measured.

    Values are compared round by round, since what else the machine did then hit both.
    """
    found: dict[tuple[str, str], dict[int, Measurement]] = defaultdict(dict)
    for measurement in measurements:
        found[measurement.row, measurement.side][measurement.round] = measurement
    result = []
    for row in rows:
        for side in row.ours:
            own = found.get((row.name, side), {})
            for peer in row.peers or [""]:
                theirs = found.get((row.name, peer), {}) if peer else own
                rounds = sorted(own.keys() & theirs.keys())
                if not rounds or (row.kind == "ratio" and not peer):
                    continue
                processor = None
                if row.kind == "value":
                    values = [own[i].value for i in rounds]
                elif row.kind == "difference":
                    values = [own[i].value - theirs[i].value for i in rounds]
                else:
                    values = [theirs[i].value / own[i].value for i in rounds]
                    if all(own[i].processor and theirs[i].processor for i in rounds):
                        processor = statistics.median(theirs[i].processor / own[i].processor for i in rounds)
                asked = _of_birl(side, row.asked) if side in (row.held or row.ours) else None
                result.append(Comparison(row.name, side, peer, row.kind, asked, *spread(values), processor))
    return result


def _of_birl(side: str, asked: float | None) -> float | None:
    """What is asked of a side: nothing of its products alone, nor of a peer in a row of figures."""
    return asked if side.startswith("birl") else None


def offline_means(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """For each side of birl, the geometric mean of the medians of all offline rows."""
    medians: dict[str, list[float]] = defaultdict(list)
    for one in comparisons:
        if one.row.startswith("offline/"):
            medians[one.side].append(one.median)
    means = {side: geometric_mean(values) for side, values in medians.items()}
    return [
        Comparison("offline, geometric mean", side, "d3rlpy", "ratio", _of_birl(side, OFFLINE_MEAN), mean, mean, mean)
        for side, mean in means.items()
    ]


def unequal_sizes(sides: Iterable[Side]) -> list[str]:
    """Where the sides of a row do not do the same work: other batch sizes, or parameters beyond 1 in 1000 apart."""
    facts: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for side in sides:
        for name in ("parameters", "batch_size"):
            if name in side.facts:
                facts[side.row, name][side.side] = side.facts[name]
    return [
        f"{row}: {name} {', '.join(f'{number} ({side})' for side, number in found.items())}"
        for (row, name), found in facts.items()
        if max(found.values()) > 1.001 * min(found.values())
    ]


# --------------------------------------------------------------------------------------------------------------- files


def write_csv(path: Path, measurements: Iterable[Measurement]) -> None:
    """Every measurement, one line each."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "side", "round", "value", "processor seconds", "units"])
        for one in measurements:
            numbers = (f"{one.value:.6g}", f"{one.processor:.6g}", f"{one.units:.6g}")
            writer.writerow([one.row, one.side, one.round, *numbers])


def _seconds(value: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in rows)


def _result(comparison: Comparison, value: float) -> str:
    return {"ratio": f"{value:.3g}x", "difference": f"{value:.3g} s", "value": f"{value:.4g}"}[comparison.kind]


def _asked(comparison: Comparison) -> list[str]:
    if comparison.asked is None:
        return ["", ""]
    words = "at least" if comparison.kind == "ratio" else "at most"
    return [f"{words} {_result(comparison, comparison.asked)}", "yes" if comparison.met else "no"]


def markdown(
    rows: Sequence[Row],
    measurements: Sequence[Measurement],
    sides: Sequence[Side],
    machine: dict[str, Any],
    versions: dict[str, Any],
) -> str:
    """The tables: what was asked for, all comparisons, all times, and where they were measured.

    Args:
        rows: rows in the order to show.
        measurements, sides: what was found.
        machine: facts about the hardware and the run, by name.
        versions: versions by package, by interpreter.
    """
    comparisons = compare(rows, measurements)
    parts = ["# Measurements\n\nMade by `make bench`; [how to read them](../README.md).\n"]
    parts.append(_table(["machine and run", ""], [[name, str(value)] for name, value in machine.items()]))
    lines = [[name, ", ".join(f"{key} {value}" for key, value in found.items())] for name, found in versions.items()]
    parts.append("\n" + _table(["interpreter of", "versions"], lines))

    reach = [*offline_means(comparisons)]
    for mean in offline_means(comparisons):
        offline = [one for one in comparisons if one.row.startswith("offline/") and one.side == mean.side]
        lowest = min(offline, key=lambda one: one.median)
        reach.append(replace(lowest, row=f"offline, the lowest: {lowest.row.partition('/')[2]}"))
    reach += [one for one in comparisons if one.asked is not None and not one.row.startswith("offline/")]
    lines = [
        [one.row, one.side, NAMES.get(one.peer, one.peer), _result(one, one.median), *_asked(one)] for one in reach
    ]
    parts.append("\n## Asked for\n")
    parts.append(_table(["work", "side", "against", "median", "asked", "met"], lines))

    unequal = unequal_sizes(sides)
    words = "equal on all sides that tell them" if not unequal else f"**not equal** in {'; '.join(unequal)}"
    parts.append(f"\nNumbers of parameters and batch sizes are {words}.")

    parts.append("\n## All comparisons\n\nRatios are the peer's time over birl's: above 1 birl is the faster.\n")
    lines = []
    for one in comparisons:
        quartiles = f"{_result(one, one.low)} to {_result(one, one.high)}"
        processor = "" if one.processor is None else f"{one.processor:.3g}x"
        against = NAMES.get(one.peer, one.peer)
        lines.append([one.row, one.side, against, _result(one, one.median), quartiles, processor, *_asked(one)])
    head = ["work", "side", "against", "median", "quartiles", "median, processor time", "asked", "met"]
    parts.append(_table(head, lines))

    parts.append("\n## All times\n\nFor one unit, without start-up, the first step (with compilation) and warm-up.\n")
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one_measurement in measurements:
        values[one_measurement.row, one_measurement.side].append(one_measurement.value)
    known = {(side.row, side.side): side for side in sides}
    lines = []
    for row in rows:
        for name in row.sides:
            side = known.get((row.name, name))
            if side is not None:
                lines.append(_times(row, side, values[row.name, name]))
    head = ["work", "side", "median", "quartiles", "units per second", "start-up", "first step", "warm-up", "facts"]
    parts.append(_table(head, lines))
    parts.append("\n## Units\n\n" + _table(["work", "one unit"], [[row.name, row.unit] for row in rows]))
    return "\n".join(parts) + "\n"


def _times(row: Row, side: Side, values: Sequence[float]) -> list[str]:
    facts = ", ".join(f"{key} {value}" for key, value in side.facts.items())
    if side.error or not values:
        return [row.name, side.side, f"**failed**: {side.error}", *[""] * 5, facts]
    low, median, high = spread(values)
    if row.kind == "value":
        figures = [f"{median:.4g}", f"{low:.4g} to {high:.4g}", ""]
        return [row.name, side.side, *figures, _seconds(side.start), "", "", facts]
    times = [_seconds(side.start), _seconds(side.first), _seconds(side.warm_up)]
    quartiles = f"{_seconds(low)} to {_seconds(high)}"
    return [row.name, side.side, _seconds(median), quartiles, f"{1 / median:.4g}", *times, facts]


MARKERS = {"birl": ("o", "#1f6fb4"), "birl-compiled": ("s", "#d9772b"), "birl-tensors": ("^", "#3a923a")}


def plot(path: Path, comparisons: Iterable[Comparison], title: str) -> None:
    """The ratios with their quartiles and what was asked for, as an image.

    Args:
        path: image file.
        comparisons: those of kind ``"ratio"`` are shown.
        title: such as the hardware.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    comparisons = list(comparisons)
    ratios = offline_means(comparisons) + [one for one in comparisons if one.kind == "ratio"]
    places = {key: index for index, key in enumerate(dict.fromkeys((one.row, one.peer) for one in ratios))}
    figure, axes = pyplot.subplots(figsize=(9, 1.6 + 0.34 * len(places)), layout="constrained")
    sides = dict.fromkeys(one.side for one in ratios)
    for index, side in enumerate(sides):
        marker, colour = MARKERS.get(side, ("D", "#7a5195"))
        ones = [one for one in ratios if one.side == side]
        heights = [places[one.row, one.peer] + 0.16 * (index - (len(sides) - 1) / 2) for one in ones]
        centres = [one.median for one in ones]
        below, above = [one.median - one.low for one in ones], [one.high - one.median for one in ones]
        axes.errorbar(centres, heights, xerr=[below, above], fmt=marker, color=colour, ms=5, lw=1.2, label=side)
    asked = {(one.row, one.peer): one.asked for one in ratios if one.asked is not None}
    if asked:
        heights = [places[key] for key in asked]
        axes.plot(list(asked.values()), heights, "|", color="#c02020", ms=17, mew=2, label="asked")
    axes.axvline(1, color="black", lw=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_yticks(list(places.values()), [f"{row} / {NAMES.get(peer, peer)}" for row, peer in places], fontsize=8)
    axes.set_ylim(len(places) - 0.4, -0.6)
    axes.grid(alpha=0.3)
    axes.set_xlabel("time of the peer over time of birl: right is better")
    axes.set_title(title, fontsize=9)
    if ratios:
        figure.legend(loc="outside lower center", ncols=len(sides) + 1, fontsize=8, frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
