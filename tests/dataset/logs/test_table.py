"""Import of tables: the encoding of each column, and the error for each invalid one."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import tomllib
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from birl.dataset import LogSchema, ReplayBuffer, from_table
from birl.dataset.log_schema import to_toml
from birl.dataset.logs import columns as log_columns
from birl.dataset.logs import table as tables
from birl.dataset.logs.files import import_files
from birl.dataset.storage import Storage
from birl.errors import (
    ActionError,
    ConfigError,
    DataError,
    EmptyDataError,
    FileError,
    MissingExtraError,
    NonFiniteError,
    ShapeError,
)

SCHEMA = """
episode = "trip"
time = "at"
terminated = "done"
unmarked = "truncated"
unit_of_time = 2.0
logger = "who"
cluster = "user"
[[observation]]
column = "x"
missing = "forward"
fill = -1.0
indicator = true
[[observation]]
column = "sky"
values = ["sun", "rain"]
unknown = true
[[observation]]
column = "pair"
[action]
column = "a"
kind = "discrete"
values = ["stay", "go"]
mask = "may"
[reward]
column = "r"
lower = 0.0
[propensity]
column = "p"
kind = "vector"
"""
PLAIN = """
episode = "trip"
terminated = "done"
unmarked = "truncated"
[[observation]]
column = "x"
[action]
column = "a"
kind = "discrete"
size = 2
[reward]
column = "r"
"""


def log(count: int = 60, seed: int = 0) -> dict[str, list[Any]]:
    """Shuffled rows of seven trips."""
    rng = np.random.default_rng(seed)
    trip, rows = rng.integers(7, size=count), range(count)
    at = rng.permutation(count)
    last = {t: max(at[i] for i in rows if trip[i] == t) for t in set(trip.tolist())}
    go = [rng.random() for _ in rows]
    return {
        "trip": [f"t{t}" for t in trip],
        "at": [float(t) for t in at],
        "done": [bool(at[i] == last[trip[i]] and trip[i] % 2) for i in rows],
        "who": [f"v{t % 3}" for t in trip],
        "user": [int(t // 2) for t in trip],
        "x": [None if rng.random() < 0.4 else float(i) for i in rows],
        "sky": [("sun", "rain", "hail", None)[rng.integers(4)] for _ in rows],
        "pair": [[float(i), float(-i)] for i in rows],
        "a": [("stay", "go")[rng.integers(2)] for _ in rows],
        "may": [[1, 1] for _ in rows],
        "r": [float(rng.random()) for _ in rows],
        "p": [[1 - each, each] for each in go],
    }


def expected(given: dict[str, list[Any]]) -> list[dict[str, list[Any]]]:
    """The episodes of `SCHEMA`, computed row by row in plain Python."""
    rows = [dict(zip(given, values, strict=True)) for values in zip(*given.values(), strict=True)]
    names = {name: list(dict.fromkeys(row[name] for row in rows)) for name in ("trip", "who", "user")}
    episodes = []
    for trip in names["trip"]:
        own, last = sorted((row for row in rows if row["trip"] == trip), key=lambda row: row["at"]), -1.0
        steps: dict[str, list[Any]] = {name: [] for name in ("observation", "action", "reward", "extra", "gap")}
        for index, row in enumerate(own):
            last = last if row["x"] is None else row["x"]
            sky = [row["sky"] == "sun", row["sky"] == "rain", row["sky"] not in ("sun", "rain")]
            steps["observation"].append([last, row["x"] is None, *sky, *row["pair"]])
            steps["action"].append([int(row["a"] == "go")])
            steps["reward"].append([row["r"]])
            labels = [names[name].index(row[name]) for name in ("who", "user")]
            steps["extra"].append([math.log(row["p"][row["a"] == "go"]), *labels, row["at"]])
            steps["gap"].append((own[index + 1]["at"] - row["at"]) / 2 if index + 1 < len(own) else 1.0)
        episodes.append({**steps, "terminated": own[-1]["done"]})
    return episodes


def same(found: ReplayBuffer, wanted: list[dict[str, Any]]) -> None:
    assert len(found.episodes) == len(wanted)
    for episode, own in zip(found.episodes, wanted, strict=True):
        np.testing.assert_array_equal(episode.observations["observation"], np.array(own["observation"], np.float32))
        assert episode.observations["action_mask"].all()
        np.testing.assert_array_equal(episode.actions, own["action"])
        np.testing.assert_array_equal(episode.rewards, np.array(own["reward"], np.float32))
        assert (episode.terminated, episode.truncated) == (own["terminated"], not own["terminated"])
        extra = episode.extra or {}
        columns = [extra[name] for name in ("log_propensity", "logger", "cluster", "time")]
        np.testing.assert_allclose(np.stack(columns, 1), own["extra"], rtol=1e-15)
        np.testing.assert_array_equal(extra["time_gap"], own["gap"])
        taken = extra["propensities"][range(len(episode)), episode.actions[:, 0]]
        np.testing.assert_allclose(np.exp(extra["log_propensity"]), taken)


@pytest.mark.parametrize("kind", ["lists", "arrow", "stream", "folder", "small chunks"])
def test_episodes_match_a_plain_loop(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = log()
    table = pyarrow.table(given)
    if kind == "small chunks":
        monkeypatch.setattr(log_columns, "MAX_CHUNK_ROWS", 7)
    source = {"lists": given, "stream": table.to_reader(max_chunksize=11)}.get(kind, table)
    found = from_table(source, LogSchema.parse(SCHEMA), storage=tmp_path / "data" if kind == "folder" else "memory")
    same(found, expected(given))
    if kind == "folder":
        same(ReplayBuffer.open(tmp_path / "data"), expected(given))
        assert os.listdir(tmp_path) == ["data"]  # temporary files are removed


def plain(**columns: Any) -> dict[str, Any]:
    given = {"trip": [1, 1, 2, 2], "done": [0, 1, 0, 0], "x": [0.0, 1.0, 2.0, 3.0], "a": [0, 1, 1, 0]}
    return {**given, "r": [1.0, 2.0, 3.0, 4.0], **columns}


LINES = {
    "action": 'kind = "discrete"\nsize = 2',
    "x": 'column = "x"',
    "r": 'column = "r"',
    "unmarked": 'unmarked = "truncated"',
    "episode": 'episode = "trip"',
}


def schema(more: str = "", tables: str = "", **changes: str) -> LogSchema:
    """`PLAIN` with some lines replaced, and lines added before and after it."""
    text = PLAIN
    for name, line in changes.items():
        text = text.replace(LINES[name], line)
    return LogSchema.parse(f"{more}\n{text}\n{tables}")


MASKED = {"action": 'kind = "discrete"\nsize = 2\nmask = "m"'}
PROPENSITY = '[propensity]\ncolumn = "p"\nkind = "{}"'


@pytest.mark.parametrize(
    ("columns", "options", "error", "message"),
    [
        ({"r": ["1", "2", "x", "3"]}, {},
         DataError, "row 3 of the table, column 'r': the reward is 'x', text; it must be n"),
        ({"r": [1, 2, None, 3]}, {},
         NonFiniteError, "row 3 of the table, column 'r': the reward is missing; say missing"),
        ({"r": [1, 2, np.inf, 3]}, {},
         NonFiniteError, "row 3 .*column 'r': the reward is inf; it must be a finite number"),
        ({"r": [1, 2, -1, 3]}, {"r": 'column = "r"\nlower = 0'},
         DataError, "row 3 .*the reward is -1; lower is 0: repair"),
        ({"x": [1, 2, 3, None]}, {},
         NonFiniteError, "row 4 of the table, column 'x': the observation is missing; say what"),
        ({"x": [1, 2, 3, 1e39]}, {},
         NonFiniteError, "row 4 .*column 'x': the observation is 1e.39; it must be a number"),
        ({"x": list("abcd")}, {}, DataError, "row 1 .*column 'x': the observation is 'a', text.*list its categories"),
        ({"x": list("abcd")}, {"x": 'column = "x"\nvalues = ["a", "b"]'},
         DataError, "row 3 .*is 'c'; it must be one of.*unknown"),
        ({"x": [[1, 2], [1, 2], [1], [2]]}, {}, ShapeError, r"row 3 .*column 'x': the value is \[1\], .*is ragged"),
        ({"trip": [[1, 2]] * 4}, {}, ShapeError, r"row 1 .*column 'trip': the episode is \[1, 2\], a list; give it"),
        ({"x": [0, 1]}, {}, ShapeError, "lengths of columns differ"),
        ({"a": [0, 1, 2, 0]}, {},
         ActionError, "row 3 .*column 'a': the action is 2; it must be a whole number from 0 to 1"),
        ({"a": [0, 1, 0.5, 0]}, {}, ActionError, "row 3 .*column 'a': the action is 0.5"),
        ({"a": ["go", "no", "up", "go"]}, {"action": 'kind = "discrete"\nvalues = ["go", "no"]'},
         ActionError, "row 3 .*'up'.*add it"),
        ({"a": [0, None, 0, 0]}, {},
         NonFiniteError, "row 2 .*column 'a': the action is missing; an action cannot be guessed"),
        ({"m": [[1, 1], [1, 0], [1, 1], [1, 1]]}, MASKED,
         ActionError, r"row 2 .*the action mask is \[1, 0\]; it does not allow the logged action 1"),
        ({"m": [[1, 1], [0, 0], [1, 1], [1, 1]]}, MASKED, DataError, "row 2 .*must allow at least one"),
        ({"m": [[1], [0], [1], [1]]}, MASKED, ShapeError, "must be a list of 2 zeros and ones"),
        ({"done": [0, 2, 0, 0]}, {}, DataError, "row 2 .*column 'done': the mark 'terminated' is 2; it must be 0 or 1"),
        ({"done": [1, 0, 0, 0]}, {},
         DataError, "row 2 of the table comes after row 1 of the table, where its episode is terminated"),
        ({}, {"unmarked": ""}, DataError, "row 4 of the table is the last one of its episode and has no mark, as 1 do"),
        ({"trip": [1, 1, None, 2]}, {}, NonFiniteError, "row 3 .*column 'trip': the episode is missing"),
        ({"at": [1, 2, 5, 5]}, {"more": 'time = "at"'},
         DataError, "row 4 of the table is of the same episode and time as row 3"),
        ({"at": [1, 2, 5, 4]}, {"more": 'time = "at"\norder = "given"'},
         DataError, "row 4 .*time goes back after row 3"),
        ({"at": ["1", "2", "3", "4"]}, {"more": 'time = "at"'},
         DataError, "the time is '1', text; it must be numbers or dates"),
        ({"p": [0.5, 1.5, 1, 1]}, {"tables": PROPENSITY.format("probability")},
         DataError, "row 2 .*the propensity is 1.5; .*at most 1: divide percentages by 100"),
        ({"p": [0.5, 0.5, 0, 1]}, {"tables": PROPENSITY.format("probability")},
         DataError, "row 3 .*is 0.0; it must be above 0"),
        ({"p": [-1, -2, 0.5, 0]}, {"tables": PROPENSITY.format("log")},
         DataError, "row 3 .*is 0.5; a logarithm of a probability is at"),
        ({"p": [-1, -2, None, 0]}, {"tables": PROPENSITY.format("log")},
         NonFiniteError, "row 3 .*the propensity is missing"),
        ({"p": [[0.5, 0.5], [0.5, 0.6], [1, 0], [1, 0]]}, {"tables": PROPENSITY.format("vector")},
         DataError, "row 2 .*its sum must be 1"),
        ({"p": [[0.5, 0.5], [0.5, 0.5], [1, 0], [1, 0]]}, {"tables": PROPENSITY.format("vector")},
         DataError, "row 3 .*says that the logged action was imp"),
        ({"p": [0.5, 0.5, 0, 1]}, {"tables": PROPENSITY.format("vector")},
         ShapeError, "the propensity is 0.5, but kind is 'vector'"),
        ({}, {"x": 'column = "speed"'},
         DataError, "the table has no column 'speed', which the schema names.*it has: 'trip'"),
    ],
)  # fmt: skip
def test_errors_of_invalid_rows_name_row_column_and_remedy(
    columns: Any, options: Any, error: type, message: str
) -> None:
    given, own = plain(**columns), schema(**options)
    with pytest.raises(error, match=message) as caught:
        from_table(given, own)
    assert type(caught.value) is error
    if "ragged" in message or "lengths" in message:  # an Arrow table cannot hold such columns
        return
    with pytest.raises(error, match=message):
        from_table(pyarrow.table({name: pyarrow.array(values) for name, values in given.items()}), own)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([1.0, None, "n/k", 2], DataError, "row 3 .*'r': the value is 'n/k', but 1.0 in row 1 of the table: make all"),
        ([None, {}, 2.0, 1.0], ShapeError, "row 2 .*'r': the value is {}, an object: make it a number or text"),
        ([[1, 2], [1, "n/k"], [1, 2], [1, 2]], DataError, "row 2 .*'r': the value is 'n/k', but 1 in row 1"),
        (np.array(["2020-01-01", "NaT", "3020-01-01", "NaT"], "M8[s]"), DataError, "row 3 .*is 3020-01-01.*1678 to"),
    ],
)
@pytest.mark.parametrize("kind", [list, lambda values: np.array(values, object)])
def test_errors_of_mixed_types_name_the_row(given: Any, error: type, message: str, kind: Any) -> None:
    """numpy converts a list of text and numbers to text."""
    with pytest.raises(error, match=message):
        from_table(plain(r=given if isinstance(given, np.ndarray) else kind(given)), schema())


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([None, [1.0, 2], [1.0], [1.0, 2]], ShapeError, "row 3 .*'x': the list has 1 numbers, but 2 in row 2 of the t"),
        ([None, ["a"], ["b"], ["c"]], ShapeError, r"row 2 .*'x': the value is \['a'\], a list of text; it must be"),
        ([None, None, {"z": 1}, {"z": 2}], ShapeError, "row 3 .*'x': the value is {'z': 1}, struct<z: int64>: make"),
        ([None, [[b"a"]], [[b"a"]], [[b"a"]]], ShapeError, r"row 2 .*'x': the value is b'a', binary"),
        (pyarrow.array([1, 2, 10**11, 4], pyarrow.timestamp("s")), DataError, "row 3 .*'x': the value .*out of bounds"),
    ],
)
def test_errors_of_unsupported_arrow_values_name_the_row(given: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        from_table(pyarrow.table({name: pyarrow.array(own) for name, own in plain(x=given).items()}), schema())


def test_dropped_rows_are_counted_by_rule() -> None:
    given = plain(trip=[1, 1, 2, 2, 3, 3], done=[0, 1] * 3, x=[0.0, None, 2, 3, 4, 5], a=[0] * 6)
    given |= {"r": [1, 2, 3, 4, 5, None], "at": [0, 1, 2, 3, 2, 3]}
    lines = {name: f'column = "{name}"\nmissing = "drop"' for name in ("x", "r")}
    own = schema(more='time = "at"\nduplicates = "first"', **lines)
    importer = tables.Importer(own)
    with importer:
        importer.add(log_columns.read_columns(given, own.columns), "it")
        found = importer.finish()
    assert [episode.rewards[:, 0].tolist() for episode in found.episodes] == [[3, 4]]
    gone = {"episodes": 1, "rows": 2}
    counts = {"observation 'x' is missing": gone, "reward 'r' is missing": gone}
    assert importer.counts["dropped"] == counts
    assert (importer.counts["rows_in"], importer.counts["rows_out"], importer.counts["duplicates"]) == (6, 2, 0)
    twice = from_table(plain(at=[0, 0, 1, 2], done=[0, 0, 0, 0]), schema(more='time = "at"\nduplicates = "first"'))
    assert [episode.rewards[:, 0].tolist() for episode in twice.episodes] == [[1], [3, 4]]
    with pytest.raises(EmptyDataError, match="no episode is left of 4 rows .*'x' is missing: 2"):
        from_table(plain(x=[None] * 4), schema(x='column = "x"\nmissing = "drop"'))


def test_episodes_without_ids_are_cut_at_gaps() -> None:
    start = np.datetime64("2026-01-01T00:00:00", "ms")
    at = start + np.array([0, 60, 4000, 4010, 5], "timedelta64[s]")
    given = plain(trip=["u", "u", "u", "u", "v"], at=at, done=[0] * 5, x=np.arange(5.0), a=[0] * 5, r=np.arange(5.0))
    own = schema(more='time = "at"\nunit_of_time = 30.0', episode='episode = { by = "trip", gap = 1800 }')
    for source in (given, pyarrow.table({name: pyarrow.array(values) for name, values in given.items()})):
        found = from_table(source, own)
        assert [episode.rewards[:, 0].tolist() for episode in found.episodes] == [[0, 1], [2, 3], [4]]
        extra = [episode.extra or {} for episode in found.episodes]
        assert [each["time_gap"].tolist() for each in extra] == [[2, 1], [pytest.approx(1 / 3), 1], [1]]
        assert extra[0]["time"].tolist() == [1767225600, 1767225660]
    with pytest.raises(ConfigError, match="episode = { by, gap } needs times"):
        schema(episode='episode = { by = "trip", gap = 1800 }')


def test_ends_and_censoring() -> None:
    given = plain(trip=[1, 1, 2, 2, 3], done=[0, 1, 0, 0, 0], at=[0, 9, 1, 8, 2], a=[0] * 5, r=[0.0] * 5)
    given["x"] = np.arange(5.0)
    own = schema(more='time = "at"\ncensored_after = 8', unmarked='unmarked = "terminated"')
    found = from_table(given, own).episodes
    assert [(episode.terminated, (episode.extra or {})["censored"].tolist()) for episode in found] == [
        (True, [0, 0]), (False, [1, 1]), (True, [0])
    ]  # fmt: skip
    cut = from_table(plain(cut=[0, 0, 0, 1]), schema(more='truncated = "cut"', unmarked="")).episodes
    assert [(episode.terminated, episode.truncated) for episode in cut] == [(True, False), (False, True)]
    dates = plain(at=np.array(["2026-01-01", "2026-01-02", "2026-01-01", "2026-01-03"], "datetime64[D]"))
    late = from_table(dates, schema(more='time = "at"\ncensored_after = 2026-01-03')).episodes
    assert [(episode.extra or {})["censored"].max() for episode in late] == [0, 1]


def test_continuous_actions() -> None:
    given = plain(a=[0.5, 1.5, -1.0, 0.0], b=[1, 2, 3, 4], p=[0.1, 5.0, 2.0, 1.0])
    own = schema(action='kind = "continuous"', tables=PROPENSITY.format("density"))
    own = dataclasses.replace(own, action=dataclasses.replace(own.action, column=None, columns=("a", "b")))
    found = from_table(given, own)
    np.testing.assert_array_equal(found.episodes[0].actions, [[0.5, 1], [1.5, 2]])
    assert found.dataset_info.action_size == 2
    np.testing.assert_allclose((found.episodes[0].extra or {})["log_propensity"], np.log([0.1, 5]))
    with pytest.raises(ConfigError, match="'probability', but actions are continuous: give one of density, log_d"):
        schema(action='kind = "continuous"', tables=PROPENSITY.format("probability"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("episode = 'a'\nepisode = 'b'", "this is not valid TOML"),
        (".".join(["a"] * 20_000) + " = 1", "a name of more than 64 parts"),  # Python's parser takes quadratic time
        ("a = { " + " . ".join(["b", "'c'"] * 10_000) + " = 1 }", "a name of more than 64 parts"),
        ("a = " + "9" * 5000, "this is not valid TOML"),
        (PLAIN.replace("size", "sise"), "action has no field 'sise'; did you mean 'size'"),
        (PLAIN.replace('[reward]\ncolumn = "r"', ""), "the schema has no reward"),
        (PLAIN.replace("size = 2", ""), "discrete actions need size"),
        (
            PLAIN.replace('terminated = "done"\nunmarked = "truncated"', ""),
            "the schema does not define where the task ends",
        ),
        (PLAIN.replace("[[observation]]", "[observation]"), r"write \[\[observation\]\]"),
        (PLAIN.replace('column = "x"', 'column = "x"\nmissing = "fill"'), "missing is 'fill', fill is None"),
        (
            PLAIN.replace('column = "x"', 'column = "x"\nmissing = "fill"\nfill = 1e39'),
            "fill is 1e.39; it must be",
        ),
        (PLAIN.replace('column = "x"', 'column = "x"\nvalues = ["a", 1]'), "they must be all text"),
        (PLAIN.replace('column = "x"', 'column = "a"'), "action: the column 'a' is named twice"),
        (PLAIN.replace('episode = "trip"', "episode = 3"), "episode is 3; it must be a str"),
        (PLAIN.replace('episode = "trip"', 'episode = "trip"\ntime = 3'), "time is 3; it must be a str"),
        (PLAIN.replace('unmarked = "truncated"', 'unmarked = "over"'), "unmarked is 'over'; it must be one of"),
        (PLAIN.replace('episode = "trip"', ""), "no episode: give episode = …, or one_step = true"),
        (PLAIN.replace('episode = "trip"', "one_step = false"), "give episode = .*, or one_step = true"),
        (PLAIN.replace('episode = "trip"', 'episode = "trip"\none_step = true'), "define episodes in two ways"),
        (PLAIN.replace('episode = "trip"', "one_step = true"), "terminated is for longer episodes"),
    ],
)
def test_invalid_schemas_are_rejected(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"schema\.toml: .*{message}"):
        LogSchema.load(tmp_path / "schema.toml")


def test_rows_of_one_step_logs_are_episodes() -> None:
    text = PLAIN.replace('episode = "trip"', "one_step = true")
    text = text.replace('terminated = "done"\nunmarked = "truncated"', "")
    each_row = LogSchema.parse(text)
    assert LogSchema.parse(each_row.text()) == each_row and each_row.unmarked == "terminated"
    n = 70_000  # more than a chunk
    found = from_table({"x": np.arange(n), "a": np.arange(n) % 2, "r": np.arange(n) % 3}, each_row)
    assert found.size() == n and found.transition_count == n
    last = found.episodes[n - 1]
    assert last.terminated and last.observations.tolist() == [[n - 1]] and last.actions.tolist() == [[1]]


def test_names_in_schemas_have_no_control_characters() -> None:
    name = "a\x1b[31m\x7f\x9b\u202e\U000e0001\nb"
    text = to_toml(name)
    assert text.isprintable() and tomllib.loads(f"a = {text}")["a"] == name
    many = "\n".join(f'a{number} = "{".".join(["x"] * 60)}"' for number in range(2000)) + "\n"
    with pytest.raises(ConfigError, match="the schema has no field"):
        LogSchema.parse(many)


def test_schemas_round_trip_through_toml(tmp_path: Path) -> None:
    first = LogSchema.parse(SCHEMA)
    names = dataclasses.replace(first, logger='a "b" \\ \n\x7f\U0001f600', episode=LogSchema.parse(PLAIN).episode)
    for each in (first, names, schema(more='time = "at"', episode='episode = { by = "trip", gap = 1800 }')):
        assert LogSchema.parse(each.text()) == each
    with pytest.raises(FileError, match=r"nowhere.toml cannot be read"):
        LogSchema.load(tmp_path / "nowhere.toml")


def test_other_types_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    own = LogSchema.parse(PLAIN)
    number: Any = 3
    with pytest.raises(ConfigError, match="table is a int; it must be a dict of arrays, or have __arrow_c_stream__"):
        from_table(number, own)
    with pytest.raises(ConfigError, match="schema is 'x'; it must be a LogSchema"):
        from_table(plain(), "x")  # type: ignore[arg-type]
    with pytest.raises(EmptyDataError, match="the table has 0 rows"):
        from_table({name: [] for name in plain()}, own)
    with pytest.raises(DataError, match="has 2 columns 'x', which the schema names: rename all but one"):
        twice = pyarrow.table([[1], [1], [1], [0], [1.0], [1.0]], names=["trip", "done", "x", "a", "r", "x"])
        from_table(twice, own)
    nested = pyarrow.table({**plain(), "x": [{"y": 1}] * 4})
    with pytest.raises(ShapeError, match="row 1 of the table, column 'x': the value is {'y': 1}, struct"):
        from_table(nested, own)
    table = pyarrow.table(plain())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"'pyarrow' is needed here.*birl\[logs\]"):
        from_table(table, own)
    assert len(from_table(plain(), own).episodes) == 2  # arrays need no pyarrow


def lists(*values: Any) -> Any:
    return pyarrow.array(values, pyarrow.list_(pyarrow.float64()))


FILLED = {"x": 'column = "x"\nmissing = "fill"\nfill = -1.0'}


@pytest.mark.parametrize("first", [lists(None, None), pyarrow.nulls(2), None])
def test_missing_lists_take_the_width_of_other_rows(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    values = lists([1.0, 2.0], None)
    monkeypatch.setattr(log_columns, "MAX_CHUNK_ROWS", 2)
    if first is None:  # a dict
        pairs = np.array([None, None, (1.0, 2.0), None, None, None], object)
        given: Any = plain(trip=[1, 1, 2, 2, 3, 3], done=[0, 1] * 3, x=pairs, a=[0] * 6, r=[0.0] * 6)
        sources = [given]
    else:
        parts = [plain(trip=[number] * 2, done=[0, 1], x=x, a=[0, 0], r=[0.0, 0.0])
                 for number, x in ((1, first), (2, values), (3, first))]  # fmt: skip
        sources = [pyarrow.table(part) for part in parts]
    own = schema(**FILLED)
    importer = tables.Importer(own)
    with importer:
        for source in sources:
            importer.add(log_columns.read_columns(source, own.columns), "it")
        found = importer.finish()
    assert [episode.observations.tolist() for episode in found.episodes] == [
        [[-1, -1]] * 2, [[1, 2], [-1, -1]], [[-1, -1]] * 2
    ]  # fmt: skip


def test_columns_of_nulls() -> None:
    """Nulls are missing numbers. The length of lists is unknown if all are missing."""
    own = schema(**FILLED)
    none = plain(x=[None] * 4)
    for table in (none, pyarrow.table(none), pyarrow.table({**none, "x": pyarrow.nulls(4, pyarrow.float64())})):
        assert from_table(table, own).episodes[0].observations.tolist() == [[-1], [-1]]
    fixed = pyarrow.nulls(4, pyarrow.list_(pyarrow.float32(), 3))
    assert from_table(pyarrow.table({**none, "x": fixed}), own).episodes[0].observations.tolist() == [[-1] * 3] * 2
    with pytest.raises(
        ShapeError, match="row 1 of the table, column 'x': the observation is missing; all lists are missing"
    ):
        from_table(pyarrow.table({**none, "x": lists(*[None] * 4)}), own)
    dropped = schema(tables=PROPENSITY.format("vector") + '\nmissing = "drop"')
    given = plain(trip=[1, 1, 2, 2], done=[0, 1, 0, 1])
    for nulls in (lists(None, None), pyarrow.nulls(2)):
        whole, gone = pyarrow.table(given).slice(0, 2), pyarrow.table(given).slice(2)
        importer = tables.Importer(dropped)
        with importer:
            for part, p in ((whole, lists([0.5, 0.5], [0.5, 0.5])), (gone, nulls)):
                importer.add(log_columns.read_columns(part.append_column("p", p), dropped.columns), "it")
            assert len(importer.finish().episodes) == 1


@pytest.mark.parametrize("empty", [lists([], [], [], []), np.zeros((4, 0)), [[]] * 4])
def test_empty_lists_are_rejected(empty: Any) -> None:
    given = plain(x=empty)
    with pytest.raises(ShapeError, match="column 'x' holds lists of 0 numbers, at least 1 is needed: leave it out"):
        from_table(pyarrow.table(given) if isinstance(empty, pyarrow.Array) else given, schema())


def test_chunks_of_wide_rows_are_smaller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(log_columns, "MAX_CHUNK_BYTES", 40_000)
    wide = np.arange(80_000.0).reshape(80, 1000)
    given = {"trip": np.repeat(np.arange(8), 10), "done": np.zeros(80), "x": wide, "a": [0] * 80, "r": [0.0] * 80}
    for table in (given, pyarrow.table({**given, "x": list(wide)})):
        sizes = [len(part["x"].missing) for part in log_columns.read_columns(table, LogSchema.parse(PLAIN).columns)]
        assert sum(sizes) == 80 and max(sizes) * 8000 <= 40_000
        assert len(from_table(table, LogSchema.parse(PLAIN), storage=tmp_path / type(table).__name__).episodes) == 8


def test_marks_of_removed_duplicates_are_kept() -> None:
    own = schema(more='time = "at"\nduplicates = "first"\ntruncated = "cut"')
    rows = {"trip": [1, 1, 1, 2, 2, 2], "at": [0, 1, 1, 0, 1, 1], "a": [0] * 6, "r": np.arange(6.0), "x": [0.0] * 6}
    found = from_table({**rows, "done": [0, 0, 1, 0, 0, 0], "cut": [0, 0, 0, 0, 0, 1]}, own).episodes
    assert [(each.terminated, each.rewards[:, 0].tolist()) for each in found] == [(True, [0, 1]), (False, [3, 4])]
    later = {**rows, "at": [0, 1, 1, 2, 0, 1], "trip": [1, 1, 1, 1, 2, 2], "done": [0] * 6, "cut": [0, 0, 1, 0, 0, 0]}
    with pytest.raises(DataError, match="row 4 of the table comes after row 2 of the table, where .* is truncated"):
        from_table(later, own)


def test_counts_exclude_dropped_episodes() -> None:
    """A dropped episode is neither unmarked nor censored, and every row is counted once."""
    given = plain(trip=[1, 1, 1, 2, 2, 3], at=[0, 9, 9, 1, 9, 2], done=[0, 0, 0, 0, 0, 1], a=[0] * 6, r=[0.0] * 6)
    given |= {"x": [0.0, None, None, 1.0, 2.0, 3.0], "who": [7, 7, 7, 8, 8, 9]}
    own = schema(more='time = "at"\nduplicates = "first"\ncensored_after = 8\ncluster = "who"', unmarked="",
                 x='column = "x"\nmissing = "drop"')  # fmt: skip
    importer = tables.Importer(own)
    with importer:
        importer.add(log_columns.read_columns(given, own.columns), "it")
        found = importer.finish()
    counts = importer.counts
    assert [(episode.terminated, (episode.extra or {})["censored"].max()) for episode in found.episodes] == [
        (False, 1), (True, 0)
    ]  # fmt: skip
    assert (counts["unmarked"], counts["censored"], counts["clusters"]) == (1, 1, 2)
    gone = sum(each["rows"] for each in counts["dropped"].values())
    assert (counts["rows_in"], counts["rows_out"], counts["duplicates"], gone) == (6, 3, 1, 2)
    with pytest.raises(DataError, match="row 5 of the table is the last one .* no mark, as 1 do"):  # 9 < 10
        from_table(given, dataclasses.replace(own, censored_after=10))


def test_resident_memory_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of temporary files and of the result are released, so resident memory stays bounded."""

    def resident_file_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")

    monkeypatch.setattr(log_columns, "MAX_CHUNK_BYTES", 2**20)
    peaks, extend = [0], Storage.extend

    def watched(*args: Any, **options: Any) -> Any:
        result = extend(*args, **options)
        peaks.append(resident_file_bytes())
        return result

    monkeypatch.setattr(Storage, "extend", watched)
    rows, length = 16_000, 40
    wide = np.arange(rows * 250, dtype=np.float32).reshape(rows, 250)  # 16 MB, in one file and then in another
    given = {"trip": np.arange(rows) // length, "done": np.zeros(rows), "x": wide, "a": [0] * rows, "r": [0.0] * rows}
    before = resident_file_bytes()
    found = from_table(given, LogSchema.parse(PLAIN), storage=tmp_path / "data")
    assert max(peaks) - before < 6 * 2**20
    again = ReplayBuffer.open(tmp_path / "data").episodes
    for episodes in (found.episodes, again):
        np.testing.assert_array_equal(np.concatenate([each.observations for each in episodes]), wide)


BERLIN, NAIVE = "2026-03-01T12:00:00+01:00", "2026-03-01T12:00:00"


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ([BERLIN, BERLIN.replace("01T", "02T"), NAIVE, NAIVE],
         "row 3 of the table, column 'at': the time is '2026-03-01T12:00:00', with no time zone; row 1 of the table "
         r"has the time zone \+01:00: write all times in one zone, such as with pandas.to_datetime"),
        ([NAIVE, "2026-03-02", "2026-03-03 10:00Z", NAIVE], "row 3 .*with the time zone Z; row 1 .* has no time zone"),
        ([BERLIN, BERLIN, "2026-07-01T12:00:00+02:00", BERLIN], r"row 3 .*zone \+02:00; row 1 .*zone \+01:00"),
        ([datetime(2026, 3, 1), datetime(2026, 3, 2, tzinfo=UTC)] * 2,
         r"row 2 .*the time is 2026-03-02 00:00:00\+00:00, but 2026-03-01 00:00:00 in row 1 .*one has a time zone"),
        ([NAIVE, "2026-03-02", "soon", NAIVE], "the time is '2026-03-01T12:00:00', text; it must be numbers or dates"),
    ],
)  # fmt: skip
def test_times_have_one_zone(times: list[Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        from_table(plain(at=times), schema(more='time = "at"'))


def test_times_of_all_files_have_one_zone(tmp_path: Path) -> None:
    """Files with dates of different zones are instants; one without a zone among them is ambiguous."""
    hours = np.arange(4) * 3600
    files = []
    for number, zone in enumerate(["UTC", "Europe/Berlin", None]):
        rows = {**plain(), "trip": [10 * number + each for each in plain()["trip"]]}
        kept = pyarrow.table({**rows, "at": pyarrow.array(hours, pyarrow.timestamp("s", zone))})
        files.append(tmp_path / f"{number}.parquet")
        pyarrow.parquet.write_table(kept, files[-1])
    given = schema(more='time = "at"')
    record = import_files(files[:2], given, tmp_path / "data")
    assert record["time"] == "dates" and record["rows_out"] == 8
    with pytest.raises(DataError, match="row 1 of .*2.parquet, column 'at': .*, with no time zone; earlier times have"):
        import_files(files, given, tmp_path / "other")


def test_times_of_python_are_dates() -> None:
    zone, given = timezone(timedelta(hours=2)), schema(more='time = "at"')
    begin = float(np.datetime64("2026-07-01", "s").astype(int))
    for times in (
        [datetime(2026, 7, 1, hour, tzinfo=zone) for hour in range(2, 6)],
        [datetime(2026, 7, 1, hour) for hour in range(4)],
    ):
        found = from_table(plain(at=times), given)
        assert [each.extra["time"].tolist() for each in found.episodes] == [
            [begin + 3600 * hour for hour in hours] for hours in ((0, 1), (2, 3))
        ]
        assert found.logs is not None and found.logs.dates
