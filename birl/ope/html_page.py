"""Self-contained HTML pages of text, tables and figures: no scripts, no other files, every value escaped.

Values come from logs and are not trusted: jinja2 escapes all text, also in figures, and characters that XML does not
allow are replaced. Long texts and tables are cut, and the page says so, so that every page stays small. The layout is
in ``templates/page.html`` and ``templates/page.css``.

    render_page("Report", [Section("Returns", ["Returns of episodes.", bars("Returns", ["0", "1"], [3, 5])])])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, cast

from birl.errors import DataError, require
from birl.text import printable
from birl.types import Array

MAX_ROWS: Final = 60
MAX_BARS: Final = 60
MAX_POINTS: Final = 200
MAX_TEXT: Final = 300
MAX_BYTES: Final = 1_000_000
"""Size limit of a page."""

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 220, 64, 44, 12
_MAX_NAME: Final = 34  # characters of a name next to an interval


@dataclass(frozen=True)
class Table:
    """A table. Numbers have four digits and are right-aligned; the page shows the first 60 rows.

    Attributes:
        head: names of the columns.
        rows: cells: text, numbers, or ``None`` for unknown values.
        title: heading of the table, if any.
        folded: whether the table is collapsed under its title.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    folded: bool = False

    @property
    def cells(self) -> list[list[tuple[str, bool]]]:
        """Visible rows: the text of each cell, and whether it is a number."""
        return [[(format_value(cell), not isinstance(cell, str)) for cell in row] for row in self.rows[:MAX_ROWS]]

    @property
    def headers(self) -> list[tuple[str, bool]]:
        """Names of the columns, and whether the column has numbers."""
        return [
            (name, any(not isinstance(row[index], str) for row in self.rows[:MAX_ROWS] if index < len(row)))
            for index, name in enumerate(self.head)
        ]

    @property
    def hidden_rows(self) -> int:
        """Number of rows that the page leaves out."""
        return max(0, len(self.rows) - MAX_ROWS)


@dataclass(frozen=True)
class Note:
    """A sentence with a mark before it.

    Attributes:
        mark: ``"good"``, ``"info"``, ``"doubtful"`` or ``"bad"``.
        text: the sentence.
    """

    mark: Literal["good", "info", "doubtful", "bad"]
    text: str


class Shape(NamedTuple):
    """An SVG element of a figure.

    Attributes:
        element: its tag.
        attributes: its attributes.
        text: its text, or the tooltip of an element without text.
    """

    element: str
    attributes: Mapping[str, object]
    text: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure; `bars`, `lines` and `intervals` make them.

    Attributes:
        caption: caption of the figure.
        shapes: its SVG elements.
        height: its height; the width is 640.
    """

    caption: str
    shapes: tuple[Shape, ...]
    height: int = _HEIGHT


Part: TypeAlias = str | Table | Note | Figure
"""A paragraph, a table, a note or a figure."""


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
        title: its heading.
        parts: its paragraphs, tables, notes and figures.
    """

    title: str
    parts: Sequence[Part]


def render_page(title: str, sections: Sequence[Section], lead: Sequence[Part] = ()) -> str:
    """Render a page as HTML that is also valid XML.

    Args:
        title: title and first heading.
        sections: sections, which a list at the top links to.
        lead: parts before the first section.

    Raises:
        DataError: if the page has more than a million bytes.
        MissingExtraError: without jinja2.
    """
    page = _template().render(title=title, sections=sections, lead=lead, kind=lambda part: type(part).__name__)
    if (size := len(page.encode())) > MAX_BYTES:
        raise DataError(f"the page has {size} bytes; the limit is {MAX_BYTES}: show fewer rows, or shorten long names")
    return page


def format_value(value: object) -> str:
    """Format a table cell: four digits, a dash for unknown values, long texts cut."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        text = f"{value:.4g}"
        return f"{float(text):,.0f}" if "e+" in text and abs(value) < 1e15 else text
    return plain_text(str(value))


def plain_text(text: str) -> str:
    """Replace unprintable characters, and cut long texts."""
    text = printable(text[: MAX_TEXT + 1])
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"


def json_value(value: object) -> object:
    """Convert to JSON values, with ``None`` for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


# -- figures -----------------------------------------------------------------------------------------------------------


def bars(caption: str, labels: Sequence[str], values: Sequence[float] | Array, *, x: str = "", y: str = "") -> Figure:
    """Draw a bar chart of the first 60 values.

    Args:
        caption: caption of the figure.
        labels: one for each bar; overlapping ones are left out.
        values: finite numbers >= 0.
        x, y: names of the axes.
    """
    heights = [float(value) for value in values][:MAX_BARS]
    axes = _Axes(0, max(len(heights), 1), 0, max([*heights, 1e-300]))
    shapes = axes.shapes(x, y, ticks_x=False)
    shapes += _tick_labels(labels[: len(heights)], [axes.at(index + 0.5, 0) for index in range(len(heights))])
    for index, (label, height) in enumerate(zip(labels, heights, strict=False)):
        left, top = axes.at(index + 0.08, height)
        right, bottom = axes.at(index + 0.92, 0)
        box = {"class": "bar", "x": _n(left), "y": _n(top), "width": _n(right - left), "height": _n(bottom - top)}
        shapes.append(Shape("rect", box, f"{label[:60]}: {format_value(height)}"))
    return Figure(caption, tuple(shapes))


def lines(
    caption: str,
    series: Mapping[str, tuple[Iterable[float], Iterable[float]]],
    *,
    x: str = "",
    y: str = "",
    ticks: Sequence[str] = (),
    from_zero: bool = False,
) -> Figure:
    """Draw up to 6 curves of at most 200 points each.

    Args:
        caption: caption of the figure.
        series: x ``[n]`` and y ``[n]`` of the points by name; points that are not finite are left out.
        x, y: names of the axes; tick labels of x are whole numbers if all x are.
        ticks: labels of x = 0, 1, 2 … instead of numbers; overlapping ones are left out.
        from_zero: whether y starts at 0, if no point is lower.
    """
    curves = {name: _points(*points) for name, points in list(series.items())[:6]}
    all_points = [point for points in curves.values() for point in points] or [(0.0, 0.0)]
    xs, ys = [a for a, _ in all_points], [b for _, b in all_points] + [0.0] * from_zero
    axes = _Axes(min(xs), max(xs), min(ys), max(ys))
    shapes = axes.shapes(x, y, ticks_x=not ticks, whole_x=all(a == int(a) for a in xs))
    shapes += _tick_labels(ticks, [axes.at(index, min(ys)) for index in range(len(ticks))])
    for index, (name, points) in enumerate(curves.items()):
        path = " ".join(f"{_n(a)},{_n(b)}" for a, b in (axes.at(*point) for point in points))
        shapes.append(Shape("polyline", {"class": f"line s{index}", "points": path}, name[:60]))
        if len(curves) > 1:
            at = {"class": f"name s{index}", "x": _LEFT + 8 + 96 * index, "y": _TOP + 6}
            shapes.append(Shape("text", at, name[:14]))
    return Figure(caption, tuple(shapes))


def intervals(
    caption: str, rows: Sequence[tuple[str, float, float, float]], *, zero: float | None = None, x: str = ""
) -> Figure:
    """Draw up to 60 points with error bars, one below the other.

    Args:
        caption: caption of the figure.
        rows: name, lower end, value and upper end of each; rows that are not finite are left out. The figure shows the
            end of a long name, because paths of models differ there.
        zero: position of a vertical line.
        x: name of the axis.
    """
    finite = [row for row in rows if all(math.isfinite(end) for end in row[1:])][:MAX_BARS]
    ends = [end for row in finite for end in row[1:]] + ([] if zero is None else [zero])
    height = _TOP + _BOTTOM + 22 * max(len(finite), 1)
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    names = [name if len(name) <= _MAX_NAME else f"…{name[1 - _MAX_NAME :]}" for name, *_ in finite]
    left = 24 + 7 * max(map(len, names), default=0)
    margin = high / 40 - low / 40  # so that no error bar touches the edge
    axes = _Axes(low - margin, high + margin, 0, max(len(finite), 1), left=left, height=height)
    shapes = axes.shapes(x, "", ticks_y=False)
    if zero is not None:
        (at, top), (_, bottom) = axes.at(zero, max(len(finite), 1)), axes.at(zero, 0)
        shapes.append(Shape("line", {"class": "mark", "x1": _n(at), "x2": _n(at), "y1": top, "y2": bottom}))
    for index, (name, low, value, high) in enumerate(finite):
        begin, level = axes.at(low, len(finite) - index - 0.5)
        end, middle = axes.at(high, 0)[0], axes.at(value, 0)[0]
        whisker = {"class": "whisker", "x1": _n(begin), "x2": _n(end), "y1": _n(level), "y2": _n(level)}
        label = f"{format_value(float(value))} [{format_value(float(low))}, {format_value(float(high))}]"
        shapes.append(Shape("line", whisker, f"{name[:60]}: {label}"))
        shapes.append(Shape("circle", {"class": "bar", "cx": _n(middle), "cy": _n(level), "r": 4}))
        at_left = {"class": "tick", "x": left - 8, "y": _n(level + 4), "text-anchor": "end"}
        shapes.append(Shape("text", at_left, names[index]))
    return Figure(caption, tuple(shapes), height)


def _tick_labels(labels: Sequence[str], positions: Sequence[tuple[float, float]]) -> list[Shape]:
    """Draw the labels below an axis, without those that would overlap."""
    step = max(1, math.ceil(max(map(len, labels), default=1) * 7 * len(labels) / (_WIDTH - _LEFT)))
    shapes = []
    for text, (x, y) in list(zip(labels, positions, strict=True))[::step]:
        clipped = x + 3.5 * len(text[:40]) > _WIDTH  # the label crosses the right edge
        at = {"x": _n(_WIDTH - 2 if clipped else x), "y": _n(y + 14), "text-anchor": "end" if clipped else "middle"}
        shapes.append(Shape("text", {"class": "tick", **at}, text[:40]))
    return shapes


class _Axes:
    """Axes of a figure, which map values to positions."""

    def __init__(
        self, left_x: float, right_x: float, low_y: float, high_y: float, *, left: int = _LEFT, height: int = _HEIGHT
    ) -> None:
        self._x, self._y = _widened(left_x, right_x), _widened(low_y, high_y)
        self._left, self._height = left, height

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a point."""
        (x0, x1), (y0, y1) = self._x, self._y
        width, height = _WIDTH - self._left - 16, self._height - _TOP - _BOTTOM
        return self._left + width * ((x - x0) / (x1 - x0)), _TOP + height * (1 - (y - y0) / (y1 - y0))

    def shapes(
        self, x: str, y: str, *, ticks_x: bool = True, ticks_y: bool = True, whole_x: bool = False
    ) -> list[Shape]:
        """Draw the axes with their names and tick labels."""
        bottom, right = self._height - _BOTTOM, _WIDTH - 16
        axis = {"class": "axis", "x1": self._left, "x2": right, "y1": bottom, "y2": bottom}
        middle = {"class": "tick", "x": (self._left + right) / 2, "y": self._height - 8, "text-anchor": "middle"}
        shapes = [Shape("line", axis), Shape("text", middle, x[:80])]
        for value in _ticks(*self._x, min_step=whole_x) if ticks_x else ():
            at = {"class": "tick", "x": _n(self.at(value, 0)[0]), "y": bottom + 14, "text-anchor": "middle"}
            shapes.append(Shape("text", at, format_value(value)))
        for value in _ticks(*self._y) if ticks_y else ():
            level = self.at(self._x[0], value)[1]
            grid = {"class": "grid", "x1": self._left, "x2": right, "y1": _n(level), "y2": _n(level)}
            at = {"class": "tick", "x": self._left - 6, "y": _n(level + 4), "text-anchor": "end"}
            shapes += [Shape("line", grid), Shape("text", at, format_value(value))]
        rotated = {"class": "tick", "transform": f"translate(12 {(bottom + _TOP) / 2}) rotate(-90)"}
        shapes.append(Shape("text", {**rotated, "text-anchor": "middle"}, y[:40]))
        return shapes


def _points(x: Iterable[float], y: Iterable[float]) -> list[tuple[float, float]]:
    points = [(float(a), float(b)) for a, b in zip(x, y, strict=True)]
    points = [(a, b) for a, b in points if math.isfinite(a) and math.isfinite(b)]
    return points[:: max(1, math.ceil(len(points) / MAX_POINTS))]


def _widened(low: float, high: float) -> tuple[float, float]:
    """Widen the range if its length is too small to divide by."""
    if high - low > 1e-9 * max(abs(low), abs(high), 1e-290):
        return low, high
    return low - max(abs(low), 1.0) / 2, high + max(abs(high), 1.0) / 2


def _ticks(low: float, high: float, min_step: float = 0) -> list[float]:
    """Return about four round numbers from ``low`` to ``high`` with steps of at least ``min_step``."""
    size = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = max(min((size * part for part in (1, 2, 5, 10)), key=lambda one: abs((high - low) / one - 4)), min_step)
    digits = 12 - math.floor(math.log10(step))
    return [round(step * k, digits) for k in range(math.ceil(low / step), int(high // step) + 1)]


def _n(value: float) -> str:
    return f"{value:.1f}"


# -- the page ----------------------------------------------------------------------------------------------------------


class _Template(Protocol):
    """The part of jinja2's template that is used."""

    def render(self, **values: object) -> str:
        """Return the text with the values filled in."""


@cache
def _template() -> _Template:
    jinja2 = require("jinja2", "logs")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return cast(_Template, environment.get_template("page.html"))


def _finalize(value: object) -> object:
    """Apply `plain_text` to text that is not escaped yet."""
    return plain_text(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
