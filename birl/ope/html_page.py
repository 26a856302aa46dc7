"""A page of HTML in one file, of text, tables and figures: no scripts, nothing from elsewhere, every value escaped.

What stands on a page comes from logs, so it is not trusted: all text goes through jinja2's escaping, in figures, too,
and signs that no XML may hold are replaced. Long texts and tables are cut, and say so: whatever the data, a page stays
small.

    render_page("Report", [Section("Returns", ["How they lie.", bars("Returns", ["0", "1"], [3, 5])])])
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from birl.errors import DataError, require
from birl.types import Array

MOST_ROWS: Final = 60
MOST_BARS: Final = 60
MOST_POINTS: Final = 200
LONGEST: Final = 300
LARGEST: Final = 1_000_000
"""Bytes that a page may have."""

_UNWRITABLE: Final = re.compile(  # controls, and signs that turn the direction of text around
    "[^\x20-\x7e\xa0-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 220, 64, 44, 12
_NAME: Final = 34  # signs that a name beside an interval may have


@dataclass(frozen=True)
class Table:
    """Rows of cells. Numbers are written with four digits, and stand on the right; of many rows the first are shown.

    Attributes:
        head: names of the columns.
        rows: cells: text, numbers, or ``None`` for what is not known.
        title: what stands above it, if anything.
        folded: whether the reader opens it, by its title.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    folded: bool = False

    @property
    def shown(self) -> list[list[tuple[str, bool]]]:
        """The rows that are shown: for each cell its text, and whether it is a number."""
        return [[(word(cell), not isinstance(cell, str)) for cell in row] for row in self.rows[:MOST_ROWS]]

    @property
    def heads(self) -> list[tuple[str, bool]]:
        """The names of the columns, and whether numbers stand below."""
        return [
            (name, any(not isinstance(row[place], str) for row in self.rows[:MOST_ROWS] if place < len(row)))
            for place, name in enumerate(self.head)
        ]

    @property
    def left_out(self) -> int:
        """How many rows are not shown."""
        return max(0, len(self.rows) - MOST_ROWS)


@dataclass(frozen=True)
class Note:
    """A sentence with a mark before it.

    Attributes:
        mark: ``"good"``, ``"info"``, ``"doubtful"`` or ``"bad"``.
        text: the sentence.
    """

    mark: Literal["good", "info", "doubtful", "bad"]
    text: str


@dataclass(frozen=True)
class Figure:
    """A drawing; made by `bars`, `lines` and `intervals`.

    Attributes:
        caption: what it shows.
        shapes: element, attributes and text of each thing that is drawn.
        height: its height beside a width of 640.
    """

    caption: str
    shapes: tuple[tuple[str, Mapping[str, object], str], ...]
    height: int = _HEIGHT


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: its heading.
        parts: paragraphs, as text, and tables, notes and figures.
    """

    title: str
    parts: Sequence[str | Table | Note | Figure]


def render_page(title: str, sections: Sequence[Section], lead: Sequence[str | Table | Note | Figure] = ()) -> str:
    """A page of HTML that is XML, too.

    Args:
        title: its title and first heading.
        sections: its parts, which the page lists at its top.
        lead: what stands before them.

    Raises:
        DataError: if the page has more than a million bytes.
        MissingExtraError: without jinja2.
    """
    page = str(_template().render(title=title, sections=sections, lead=lead, kind=lambda part: type(part).__name__))
    if (size := len(page.encode())) > LARGEST:
        raise DataError(f"the page has {size} bytes; at most {LARGEST} are written: show fewer rows, or cut long names")
    return page


def word(value: object) -> str:
    """A value as text for people: four digits, a dash for what is not known, long texts cut."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        text = f"{value:.4g}"
        return f"{float(text):,.0f}" if "e+" in text and abs(value) < 1e15 else text
    return plain(str(value))


def plain(text: str) -> str:
    """Text without signs that cannot be written, cut if it is long."""
    text = printable(text[: LONGEST + 1])
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def printable(text: str) -> str:
    """Text without signs that change a terminal, or turn the direction of what stands around them."""
    return _UNWRITABLE.sub("\ufffd", text)


# -- figures -----------------------------------------------------------------------------------------------------------


def bars(caption: str, labels: Sequence[str], values: Sequence[float] | Array, *, x: str = "", y: str = "") -> Figure:
    """Bars from 0 up, the first 60 of them.

    Args:
        caption: what they show.
        labels: one for each bar; some are left out where they would overlap.
        values: finite numbers >= 0.
        x, y: names of the axes.
    """
    heights = [float(value) for value in values][:MOST_BARS]
    frame = _Frame(0, max(len(heights), 1), 0, max([*heights, 1e-300]))
    shapes = frame.axes(x, y, ticks_x=False)
    shapes += _words_below(labels[: len(heights)], [frame.at(index + 0.5, 0) for index in range(len(heights))])
    for index, (label, height) in enumerate(zip(labels, heights, strict=False)):
        begin, top = frame.at(index + 0.08, height)
        end, bottom = frame.at(index + 0.92, 0)
        told = {"class": "bar", "x": _n(begin), "y": _n(top), "width": _n(end - begin), "height": _n(bottom - top)}
        shapes.append(("rect", told, f"{label[:60]}: {word(height)}"))
    return Figure(caption, tuple(shapes))


def lines(
    caption: str,
    series: Mapping[str, tuple[Any, Any]],
    *,
    x: str = "",
    y: str = "",
    ticks: Sequence[str] = (),
    from_zero: bool = False,
) -> Figure:
    """Curves, each of at most 200 points.

    Args:
        caption: what they show.
        series: by name the points' x ``[n]`` and y ``[n]``; those that are not finite are left out. At most 6.
        x, y: names of the axes; numbers below the first are whole if all x are.
        ticks: words below x of 0, 1, 2 … instead of numbers; some are left out where they would overlap.
        from_zero: whether y begins at 0, if no point is lower.
    """
    curves = {name: _points(*points) for name, points in list(series.items())[:6]}
    every = [point for points in curves.values() for point in points] or [(0.0, 0.0)]
    xs, ys = [a for a, _ in every], [b for _, b in every] + [0.0] * from_zero
    frame = _Frame(min(xs), max(xs), min(ys), max(ys))
    shapes = frame.axes(x, y, ticks_x=not ticks, whole_x=all(a == int(a) for a in xs))
    shapes += _words_below(ticks, [frame.at(place, min(ys)) for place in range(len(ticks))])
    for index, (name, points) in enumerate(curves.items()):
        path = " ".join(f"{_n(a)},{_n(b)}" for a, b in (frame.at(*point) for point in points))
        shapes.append(("polyline", {"class": f"line s{index}", "points": path}, name[:60]))
        if len(curves) > 1:
            place = {"class": f"name s{index}", "x": _LEFT + 8 + 96 * index, "y": _TOP + 6}
            shapes.append(("text", place, name[:14]))
    return Figure(caption, tuple(shapes))


def intervals(
    caption: str, rows: Sequence[tuple[str, float, float, float]], *, zero: float | None = None, x: str = ""
) -> Figure:
    """Points with whiskers, one below the other, the first 60 of them.

    Args:
        caption: what they show.
        rows: name, lower end, value and upper end of each; rows with an end that is not finite are left out. Of a
            long name the end is shown, by which the paths of models differ.
        zero: where a vertical line stands.
        x: name of the axis.
    """
    kept = [row for row in rows if all(math.isfinite(end) for end in row[1:])][:MOST_BARS]
    ends = [end for row in kept for end in row[1:]] + ([] if zero is None else [zero])
    height = _TOP + _BOTTOM + 22 * max(len(kept), 1)
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    names = [name if len(name) <= _NAME else f"…{name[1 - _NAME :]}" for name, *_ in kept]
    left = 24 + 7 * max(map(len, names), default=0)
    room = high / 40 - low / 40  # so that no whisker ends in the edge
    frame = _Frame(low - room, high + room, 0, max(len(kept), 1), left=left, height=height)
    shapes = frame.axes(x, "", ticks_y=False)
    if zero is not None:
        (place, top), (_, bottom) = frame.at(zero, max(len(kept), 1)), frame.at(zero, 0)
        shapes.append(("line", {"class": "mark", "x1": _n(place), "x2": _n(place), "y1": top, "y2": bottom}, ""))
    for index, (name, low, value, high) in enumerate(kept):
        begin, level = frame.at(low, len(kept) - index - 0.5)
        end, middle = frame.at(high, 0)[0], frame.at(value, 0)[0]
        told = {"class": "whisker", "x1": _n(begin), "x2": _n(end), "y1": _n(level), "y2": _n(level)}
        shapes.append(("line", told, f"{name[:60]}: {word(float(value))} [{word(float(low))}, {word(float(high))}]"))
        shapes.append(("circle", {"class": "bar", "cx": _n(middle), "cy": _n(level), "r": 4}, ""))
        beside = {"class": "tick", "x": left - 8, "y": _n(level + 4), "text-anchor": "end"}
        shapes.append(("text", beside, names[index]))
    return Figure(caption, tuple(shapes), height)


def _words_below(
    words: Sequence[str], places: Sequence[tuple[float, float]]
) -> list[tuple[str, Mapping[str, object], str]]:
    """Words below an axis, as many as do not overlap."""
    step = max(1, math.ceil(max(map(len, words), default=1) * 7 * len(words) / (_WIDTH - _LEFT)))
    shapes: list[tuple[str, Mapping[str, object], str]] = []
    for text, (x, y) in list(zip(words, places, strict=True))[::step]:
        wide = x + 3.5 * len(text[:40]) > _WIDTH  # the right edge would cut it
        told = {"x": _n(_WIDTH - 2 if wide else x), "y": _n(y + 14), "text-anchor": "end" if wide else "middle"}
        shapes.append(("text", {"class": "tick", **told}, text[:40]))
    return shapes


class _Frame:
    """Where values lie in a drawing."""

    def __init__(
        self, left_x: float, right_x: float, low_y: float, high_y: float, *, left: int = _LEFT, height: int = _HEIGHT
    ) -> None:
        self._x, self._y = _apart(left_x, right_x), _apart(low_y, high_y)
        self._left, self._height = left, height

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The place of a point."""
        (x0, x1), (y0, y1) = self._x, self._y
        wide, high = _WIDTH - self._left - 16, self._height - _TOP - _BOTTOM
        return self._left + wide * ((x - x0) / (x1 - x0)), _TOP + high * (1 - (y - y0) / (y1 - y0))

    def axes(
        self, x: str, y: str, *, ticks_x: bool = True, ticks_y: bool = True, whole_x: bool = False
    ) -> list[tuple[str, Mapping[str, object], str]]:
        """Axes with their names and some numbers."""
        bottom, right = self._height - _BOTTOM, _WIDTH - 16
        shapes: list[tuple[str, Mapping[str, object], str]] = [
            ("line", {"class": "axis", "x1": self._left, "x2": right, "y1": bottom, "y2": bottom}, "")
        ]
        middle = {"class": "tick", "x": (self._left + right) / 2, "y": self._height - 8, "text-anchor": "middle"}
        shapes.append(("text", middle, x[:80]))
        for value in _ticks(*self._x, least=whole_x) if ticks_x else ():
            place = {"class": "tick", "x": _n(self.at(value, 0)[0]), "y": bottom + 14, "text-anchor": "middle"}
            shapes.append(("text", place, word(value)))
        for value in _ticks(*self._y) if ticks_y else ():
            level = self.at(self._x[0], value)[1]
            told = {"class": "grid", "x1": self._left, "x2": right, "y1": _n(level), "y2": _n(level)}
            shapes.append(("line", told, ""))
            place = {"class": "tick", "x": self._left - 6, "y": _n(level + 4), "text-anchor": "end"}
            shapes.append(("text", place, word(value)))
        turned = {"class": "tick", "transform": f"translate(12 {(bottom + _TOP) / 2}) rotate(-90)"}
        shapes.append(("text", {**turned, "text-anchor": "middle"}, y[:40]))
        return shapes


def _points(x: Iterable[Any], y: Iterable[Any]) -> list[tuple[float, float]]:
    points = [(float(a), float(b)) for a, b in zip(x, y, strict=True)]
    points = [(a, b) for a, b in points if math.isfinite(a) and math.isfinite(b)]
    return points[:: max(1, math.ceil(len(points) / MOST_POINTS))]


def _apart(low: float, high: float) -> tuple[float, float]:
    """Two ends that differ enough to divide by their distance."""
    if high - low > 1e-9 * max(abs(low), abs(high), 1e-290):
        return low, high
    return low - max(abs(low), 1.0) / 2, high + max(abs(high), 1.0) / 2


def _ticks(low: float, high: float, least: float = 0) -> list[float]:
    """Some round numbers from ``low`` to ``high``, ``least`` apart or more."""
    size = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = max(min((size * part for part in (1, 2, 5, 10)), key=lambda one: abs((high - low) / one - 4)), least)
    digits = 12 - math.floor(math.log10(step))
    return [round(step * k, digits) for k in range(math.ceil(low / step), int(high // step) + 1)]


def _n(value: float) -> str:
    return f"{value:.1f}"


# -- the page ----------------------------------------------------------------------------------------------------------


@cache
def _template() -> Any:
    jinja2 = require("jinja2", "logs")
    strict = jinja2.StrictUndefined
    made = jinja2.Environment(autoescape=True, undefined=strict, finalize=_plain, trim_blocks=True, lstrip_blocks=True)
    return made.from_string(_PAGE)


def _plain(value: object) -> object:
    """`plain` text, unless it is escaped already."""
    return plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


_STYLE: Final = """
:root { --ink: #1c2024; --soft: #5b6470; --line: #d8dde3; --back: #fff; --fill: #3467b0; --good: #1a7f4b;
  --bad: #b3261e; --doubt: #946000; --s1: #c2571a; --s2: #2a8a6a; --s3: #8a4bb0; --s4: #a33363; --s5: #5b6470; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #a3adb8; --line: #3a424b; --back: #15181c;
  --fill: #7fa8e6; --good: #67c795; --bad: #ff8a80; --doubt: #e3b341; --s1: #f0a36b; --s2: #77d0b0; --s3: #c9a0e6;
  --s4: #ee8fb4; --s5: #a3adb8; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 46rem;
  margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-top: 1px solid var(--line);
  padding-top: 1rem; }
h3 { font-size: .95rem; margin: 1rem 0 .2rem; } summary { color: var(--soft); cursor: pointer; }
nav ul { columns: 2; padding-left: 1.2rem; } a { color: var(--fill); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .6rem 0; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: break-word; max-width: 26rem; }
.number { text-align: right; } td.number { font-variant-numeric: tabular-nums; }
th { color: var(--soft); vertical-align: bottom; } td { white-space: nowrap; }
.text { white-space: normal; min-width: 9rem; max-width: 30rem; }
.many .text { min-width: 6rem; max-width: 14rem; } .many td, .many th { padding-right: .6rem; }
.note { margin: .5rem 0; padding: .35rem .8rem; border-left: 4px solid var(--soft); }
.note b { margin-right: .4rem; } .good { border-color: var(--good); } .good b { color: var(--good); }
.bad { border-color: var(--bad); } .bad b { color: var(--bad); } .doubtful { border-color: var(--doubt); }
.doubtful b { color: var(--doubt); }
figure { margin: 1rem 0; } figcaption, .more { color: var(--soft); font-size: .85rem; }
svg { width: 100%; min-width: 30rem; height: auto; }
.bar { fill: var(--fill); } .axis, .whisker { stroke: var(--soft); } .grid { stroke: var(--line); }
.mark { stroke: var(--bad); stroke-dasharray: 4 3; } .whisker { stroke-width: 2; }
.tick { font-size: 11px; fill: var(--soft); } .name { font-size: 11px; } .line { fill: none; stroke-width: 2; }
.line.s0 { stroke: var(--fill); } .name.s0 { fill: var(--fill); } .line.s1 { stroke: var(--s1); }
.name.s1 { fill: var(--s1); } .line.s2 { stroke: var(--s2); } .name.s2 { fill: var(--s2); }
.line.s3 { stroke: var(--s3); } .name.s3 { fill: var(--s3); } .line.s4 { stroke: var(--s4); }
.name.s4 { fill: var(--s4); } .line.s5 { stroke: var(--s5); } .name.s5 { fill: var(--s5); }
"""

_PAGE: Final = (
    """<!DOCTYPE html>
{% macro show(part) %}
{% if kind(part) == "Table" %}
{% if part.folded %}<details><summary>{{ part.title }}</summary>{% endif %}
{% if part.title and not part.folded %}<h3>{{ part.title }}</h3>{% endif %}
<div class="scroll"><table{% if part.heads | length > 6 %} class="many"{% endif %}><thead><tr>\
{% for name, number in part.heads %}<th{% if number %} class="number"{% endif %}>{{ name }}</th>{% endfor %}\
</tr></thead><tbody>
{% for row in part.shown %}
<tr>{% for text, number in row %}\
<td{% if number %} class="number"{% elif text | length > 30 or ", " in text %} class="text"{% endif %}>{{ text }}\
</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% if part.left_out %}<p class="more">and {{ part.left_out }} more</p>{% endif %}
{% if part.folded %}</details>{% endif %}
{% elif kind(part) == "Note" %}
<p class="note {{ part.mark }}"><b>{{ {"good": "✓", "info": "i", "doubtful": "?", "bad": "✗"}[part.mark] }}</b>\
{{ part.text }}</p>
{% elif kind(part) == "Figure" %}
<figure><div class="scroll"><svg viewBox="0 0 640 {{ part.height }}" role="img"><title>{{ part.caption }}</title>
{% for element, attributes, text in part.shapes %}
<{{ element }}{{ attributes | xmlattr }}>{% if element == "text" %}{{ text }}{% elif text %}<title>{{ text }}</title>\
{% endif %}</{{ element }}>
{% endfor %}
</svg></div><figcaption>{{ part.caption }}</figcaption></figure>
{% else %}
<p>{{ part }}</p>
{% endif %}
{% endmacro %}
<html lang="en"><head><meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{{ title }}</title><style>"""
    + _STYLE
    + """</style></head><body>
<h1>{{ title }}</h1>
{% for part in lead %}{{ show(part) }}{% endfor %}
<nav><ul>
{% for section in sections %}
<li><a href="#part-{{ loop.index }}">{{ section.title }}</a></li>
{% endfor %}
</ul></nav>
{% for section in sections %}
<h2 id="part-{{ loop.index }}">{{ section.title }}</h2>
{% for part in section.parts %}{{ show(part) }}{% endfor %}
{% endfor %}
</body></html>
"""
)
