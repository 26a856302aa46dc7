"""Pages of HTML: values escaped, sizes bounded, XML that parses, and figures whose shapes lie where they should."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from birl.errors import DataError, MissingExtraError
from birl.ope import html_page as page
from birl.ope.html_page import Figure, Note, Section, Table, bars, intervals, lines, render_page

HOSTILE = "<script>alert('x')</script>\"&\x00\ud800{{ 7 * 7 }}"


def parsed(text: str) -> ElementTree.Element:
    assert text.startswith("<!DOCTYPE html>")
    return ElementTree.fromstring(text)


def test_every_value_is_escaped() -> None:
    figures: list[Figure] = [
        bars(HOSTILE, [HOSTILE], [1.0], x=HOSTILE, y=HOSTILE),
        lines(HOSTILE, {HOSTILE: ([0, 1], [1, 2]), "b": ([0], [0])}, x=HOSTILE, y=HOSTILE),
        intervals(HOSTILE, [(HOSTILE, 0.0, 1.0, 2.0)], zero=0.5, x=HOSTILE),
    ]
    parts = [HOSTILE, Table([HOSTILE], [[HOSTILE], [1.5]]), Note("bad", HOSTILE), *figures]
    text = render_page(HOSTILE, [Section(HOSTILE, parts)], lead=[HOSTILE])
    tree = parsed(text)
    assert not [node for node in tree.iter() if node.tag == "script"]
    assert "<script" not in text and "\x00" not in text and "49" not in tree.findtext("body/h1", "")
    assert tree.findtext("body/h1") == HOSTILE.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    assert len(list(tree.iter("svg"))) == 3 and "http" not in text and " src=" not in text
    assert {node.get("href", "")[0] for node in tree.iter("a")} == {"#"}
    text.encode()


def test_pages_stay_small() -> None:
    huge = "&" * 100_000
    rows = [[huge, *map(float, range(8))]] * 10_000
    parts = [Table([huge, *"abcdefgh"], rows), bars(huge, [huge] * 10_000, [1.0] * 10_000), huge]
    text = render_page(huge, [Section(huge, parts)] * 4)
    assert len(text.encode()) < 750_000 and "and 9940 more" in text
    with pytest.raises(DataError, match="the limit is 1000000: show fewer rows"):
        render_page(huge, [Section(huge, parts)] * 12)


def test_words() -> None:
    cells = [1234567, 0.123456, None, math.nan, math.inf, True, "a", np.float64(2.0)]
    assert [page.format_value(cell) for cell in cells] == ["1,234,567", "0.1235", "–", "–", "inf", "yes", "a", "2"]
    assert page.format_value("a" * 301) == "a" * 300 + "…"
    assert [page.format_value(each) for each in (12345.6, -1234567.0, 9999.4, 1e300, 0.00001)] == [
        "12,350", "-1,235,000", "9999", "1e+300", "1e-05",
    ]  # fmt: skip
    assert page.printable("a\x1b[31m\u202eb" * 200) == "a\ufffd[31m\ufffdb" * 200  # not cut


def shapes(figure: Figure, element: str, kind: str) -> list[dict[str, object]]:
    return [
        dict(attributes)
        for name, attributes, _ in figure.shapes
        if name == element and kind in str(attributes.get("class"))
    ]


def test_bars_are_as_high_as_their_values() -> None:
    found = shapes(bars("b", ["x", "y", "z"], [0, 1, 2]), "rect", "bar")
    low, middle, high = (float(str(one["height"])) for one in found)
    assert low == 0 and high == pytest.approx(2 * middle, abs=0.2) and high > 100
    assert not shapes(bars("none", [], []), "rect", "bar")
    assert len(shapes(bars("zeros", ["a"] * 100, [0.0] * 100), "rect", "bar")) == page.MAX_BARS


def test_lines_leave_out_what_is_not_finite_and_thin_out() -> None:
    x = np.arange(1000.0)
    (one,) = shapes(lines("l", {"a": (x, np.where(x == 500, np.nan, x))}), "polyline", "line")
    points = np.array([list(map(float, point.split(","))) for point in str(one["points"]).split()])
    assert 100 < len(points) <= page.MAX_POINTS and (np.diff(points[:, 0]) > 0).all()
    assert (np.diff(points[:, 1]) < 0).all()  # up, on a screen
    assert not str(shapes(lines("l", {"a": ([1.0], [math.inf])}), "polyline", "line")[0]["points"])


def test_intervals() -> None:
    figure = intervals("i", [("a", 0.0, 1.0, 2.0), ("b", 1.0, 1.5, math.inf)], zero=1.0)
    (whisker,), (circle,) = shapes(figure, "line", "whisker"), shapes(figure, "circle", "bar")
    ends = [float(str(whisker[name])) for name in ("x1", "x2")]
    assert float(str(circle["cx"])) == pytest.approx(sum(ends) / 2, abs=0.1)
    (mark,) = shapes(figure, "line", "mark")
    assert float(str(mark["x1"])) == pytest.approx(sum(ends) / 2, abs=0.1)
    intervals("none", [])


def test_figures_are_legible() -> None:
    """Whole steps have no halves between them, names are whole or end as paths differ, no whisker ends in the edge."""
    drawn = lines("l", {"a": (range(3), [0.0, 1e5, 2e5])})
    texts = [text for _, attributes, text in drawn.shapes if attributes["class"] == "tick"]
    assert {"0", "1", "2", "50,000", "200,000"} <= {*texts} and "0.5" not in texts and "2e+05" not in texts
    drawn = lines("l", {"a": (range(3), [1.0, 0.0, 2.0])}, ticks=["2026-01", "2026-02", "2026-03"])
    words = {text: attributes for _, attributes, text in drawn.shapes if text.startswith("2026")}
    assert len(words) == 3
    assert words["2026-01"]["text-anchor"] == "middle" and words["2026-03"]["text-anchor"] == "end"
    many = lines("l", {"a": (range(100), range(100))}, ticks=[f"day {k}" for k in range(100)])
    assert 5 < sum(text.startswith("day") for _, _, text in many.shapes) < 20
    long = "runs/" + "x" * 40 + "/model_1000.d3"
    figure = intervals("i", [("double_reinforcement_learning", 0.0, 1.0, 2.0), (long, 0.0, 1.0, 2.0)])
    visible = [text for _, attributes, text in figure.shapes if attributes.get("text-anchor") == "end"]
    assert visible == ["double_reinforcement_learning", f"…{long[-33:]}"]
    (one, _) = shapes(figure, "line", "whisker")
    (axis,) = shapes(figure, "line", "axis")
    assert float(str(axis["x1"])) + 5 < float(str(one["x1"])) < float(str(one["x2"])) < float(str(axis["x2"])) - 5


def test_heads_stand_over_their_numbers() -> None:
    text = render_page("t", [Section("s", [Table(["name", "value"], [["a", 1.0], ["b", None]]), Table(["empty"], [])])])
    assert [(node.text, node.get("class")) for node in parsed(text).iter("th")] == [
        ("name", None), ("value", "number"), ("empty", None),
    ]  # fmt: skip


@pytest.mark.parametrize("ends", [(0.0, 0.0), (1e300, 1e300), (-1e-300, 1e-300), (-5.0, 1e12), (3.0, 3.0 + 1e-12)])
def test_any_finite_range_can_be_drawn(ends: tuple[float, float]) -> None:
    figure = lines("l", {"a": ([0.0, 1.0], ends)})
    parsed(render_page("t", [Section("s", [figure])]))
    assert len(figure.shapes) < 60


def test_without_jinja2_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    page._template.cache_clear()
    try:
        with pytest.raises(MissingExtraError, match=r"birl\[logs\]"):
            render_page("t", [])
    finally:
        page._template.cache_clear()
