"""Import of log files: all formats give the same episodes, and a failed import leaves nothing behind."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from birl.dataset import LogSchema, ReplayBuffer, from_table
from birl.dataset.logs import columns as log_columns
from birl.dataset.logs import files as log_files
from birl.dataset.logs.files import import_files
from birl.dataset.logs.proposal import propose
from birl.dataset.logs.splits import split
from birl.errors import (
    BirlError,
    ConfigError,
    CorruptFileError,
    DataError,
    EmptyDataError,
    FileError,
    ForeignFileError,
    WriteError,
)
from birl.run.fingerprint import digest

SCHEMA = LogSchema.parse(
    """
episode = "trip"
time = "at"
terminated = "done"
unmarked = "truncated"
cluster = "user"
[[observation]]
column = "speed"
missing = "drop"
[[observation]]
column = "sky"
values = ["sun", "rain"]
unknown = true
[action]
column = "act"
kind = "discrete"
size = 3
[reward]
column = "reward"
lower = -10
[propensity]
column = "prob"
kind = "probability"
"""
)


def table(trips: int = 200, length: int = 5, seed: int = 0) -> pyarrow.Table:
    """Shuffled rows; two trips have a missing speed."""
    rng, count = np.random.default_rng(seed), trips * length
    at = np.tile(np.arange(length), trips)
    speed = [None if i in (7, 33) else float(round(s, 3)) for i, s in enumerate(rng.normal(size=count))]
    columns = {
        "trip": [f"t{t}" for t in np.repeat(np.arange(trips), length)],
        "at": at + np.repeat(np.arange(trips), length) * 10,
        "done": (at == length - 1).astype(np.int64),
        "user": np.repeat(np.arange(trips) // 2, length),
        "speed": speed,
        "sky": [("sun", "rain", None)[k] for k in rng.integers(3, size=count)],
        "act": rng.integers(3, size=count),
        "reward": rng.normal(size=count).round(3),
        "prob": rng.uniform(0.1, 1, count).round(3),
    }
    return pyarrow.table(columns).take(rng.permutation(count))


def write(rows: pyarrow.Table, file: Path) -> Path:
    if file.suffix == ".parquet":
        pyarrow.parquet.write_table(rows, file, row_group_size=300)
    elif file.suffix == ".arrow":
        with pyarrow.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=100)
    elif file.suffix == ".ipc":
        with pyarrow.ipc.new_stream(file, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=100)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    elif file.suffix == ".gz":
        with gzip.open(file, "wb") as opened:
            pyarrow.csv.write_csv(rows, opened)
    else:
        options = pyarrow.csv.WriteOptions(delimiter="\t" if file.suffix == ".tsv" else ",")
        pyarrow.csv.write_csv(rows, file, options)
    return file


NAMES = ["log.parquet", "log.arrow", "log.ipc", "log.jsonl", "log.csv", "log.csv.gz", "log.tsv"]


@pytest.mark.parametrize("name", NAMES)
def test_all_formats_give_the_same_episodes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "_BLOCK", 4096)
    monkeypatch.setattr(log_columns, "MAX_CHUNK_ROWS", 64)
    rows = table()
    wanted = from_table(rows, SCHEMA)
    found = import_files([write(rows, tmp_path / name)], SCHEMA, tmp_path / "data")
    data = ReplayBuffer.open(tmp_path / "data")
    assert digest([data.storage]) == digest([wanted.storage])
    assert sorted(os.listdir(tmp_path)) == ["data", name]
    assert found == json.loads((tmp_path / "data" / "import.json").read_text())
    assert LogSchema.load(tmp_path / "data" / "schema.toml") == SCHEMA
    assert (found["rows_in"], found["rows_out"], found["episodes"], found["terminated"]) == (1000, 990, 198, 198)
    assert found["dropped"] == {"observation 'speed' is missing": {"episodes": 2, "rows": 10}}
    assert found["observation"] == ["speed", "sky = sun", "sky = rain", "sky is unknown"]
    assert found["files"][0]["rows"] == 1000 and len(found["files"][0]["sha256"]) == 64
    assert found["extra"] == ["log_propensity", "cluster", "time"]


def test_several_files_are_one_log(tmp_path: Path) -> None:
    rows = table()
    for index in range(2):
        write(rows.slice(500 * index, 500), tmp_path / f"log{index}.parquet")
    found = import_files([tmp_path / "log*.parquet"], SCHEMA, tmp_path / "data")
    assert [file["rows"] for file in found["files"]] == [500, 500]
    assert digest([ReplayBuffer.open(tmp_path / "data").storage]) == digest([from_table(rows, SCHEMA).storage])
    bad = rows.set_column(7, "reward", pyarrow.array([0.0] * 700 + [-11.0] + [0.0] * 299))
    write(bad.slice(500), tmp_path / "log1.parquet")
    with pytest.raises(DataError, match=r"row 201 of .*log1\.parquet, column 'reward': the reward is -11"):
        import_files([tmp_path / "log*.parquet"], SCHEMA, tmp_path / "other")
    assert sorted(os.listdir(tmp_path)) == ["data", "log0.parquet", "log1.parquet"]


def modify(file: Path, change: Any) -> Path:
    file.write_bytes(change(file.read_bytes()))
    return file


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("log.parquet", lambda data: data[:-100], CorruptFileError, "cannot be read as parquet"),
        ("log.parquet", lambda data: b"", CorruptFileError, "is empty"),
        ("log.parquet", lambda data: data[:4] + b"\xff" * 400 + data[404:], CorruptFileError, "read as parquet"),
        ("log.arrow", lambda data: data[: len(data) // 2], CorruptFileError, "cannot be read as arrow"),
        ("log.csv", lambda data: b"", CorruptFileError, "is empty"),
        ("log.csv", lambda data: data.splitlines()[0] + b"\n", EmptyDataError, "has 0 rows"),
        ("log.csv", lambda data: data + b"1,2\n", CorruptFileError, "Expected 9 columns, got 2"),
        ("log.csv", lambda data: data.replace(b"trip", b"tour", 1), DataError, "no column 'trip'"),
        ("log.csv", lambda data: data.decode().encode("utf-16"), CorruptFileError, "is not UTF-8 text"),
        ("log.csv", lambda data: data.replace(b"speed", b"sp\xe9ed", 1), CorruptFileError, "is not UTF-8 text"),
        ("log.jsonl", lambda data: data + b"{", CorruptFileError, "cannot be read as json"),
        (
            "log.jsonl",
            lambda data: b"[" + b",".join(data.splitlines()) + b"]",
            CorruptFileError,
            "holds one array: write one object per line",
        ),
        ("log.jsonl", lambda data: b"\n", CorruptFileError, "cannot be read as json"),
    ],
)
def test_damaged_files_leave_nothing_behind(name: str, change: Any, error: type, message: str, tmp_path: Path) -> None:
    file = modify(write(table(), tmp_path / name), change)
    with pytest.raises(error, match=message) as caught:
        import_files([file], SCHEMA, tmp_path / "data")
    assert type(caught.value) is error
    assert name in str(caught.value)
    assert os.listdir(tmp_path) == [name]
    if "no column" not in message:
        with pytest.raises(BirlError):
            propose([file])


def overwrite(file: Path, at: bytes, by: int, value: int) -> None:
    """Overwrite the four bytes that start ``by`` bytes after the first occurrence of ``at``."""
    data = bytearray(file.read_bytes())
    place = data.index(at) + by
    data[place : place + 4] = (value % 2**32).to_bytes(4, "little")
    file.write_bytes(data)


def numbers(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)


@pytest.mark.parametrize("value", [10**6, 2**31 - 10, -(10**5), 3])
@pytest.mark.parametrize("name", ["log.arrow", "log.ipc"])
def test_arrow_offsets_are_validated_before_text_is_read(name: str, value: int, tmp_path: Path) -> None:
    """Otherwise the process crashes, or foreign memory is read as names of episodes."""
    rows = table().set_column(0, "trip", pyarrow.array([f"t{row // 5:04d}" for row in range(1000)]))
    file = write(rows, tmp_path / name)
    overwrite(file, numbers(0, 5, 10, 15, 20), 80, value)
    for read in (lambda: import_files([file], SCHEMA, tmp_path / "data"), lambda: propose([file])):
        with pytest.raises(
            CorruptFileError, match=rf"{name} cannot be read as arrow \(.*trip.*\): it is damaged.*again"
        ):
            read()
    rows = pyarrow.ipc.open_file(file).read_all() if name == "log.arrow" else pyarrow.ipc.open_stream(file).read_all()
    with pytest.raises(DataError, match=r"the table is damaged \(.*trip.*\): read or make it again"):
        from_table(rows, SCHEMA)
    assert os.listdir(tmp_path) == [name]


def test_arrow_indices_are_validated_before_they_are_read(tmp_path: Path) -> None:
    codes = pyarrow.array([1, 0, 1, 2] * 10, pyarrow.int32())
    words = pyarrow.DictionaryArray.from_arrays(codes, ["rain", "sun", "snow"])
    views = pyarrow.array([f"a text of some length {row}" for row in range(40)], pyarrow.string_view())
    lists = pyarrow.array([[row, row] for row in range(40)], pyarrow.list_(pyarrow.int64()))
    for index, (column, at, by) in enumerate(
        [(words, numbers(1, 0, 1, 2), 8), (views, b"\x17\0\0\0a te", 8), (lists, numbers(0, 2, 4, 6), 12)]
    ):
        file = write(pyarrow.table({"x": column}), tmp_path / f"{index}.arrow")
        assert "x" in propose([file]).text
        overwrite(file, at, by, 10**9)
        with pytest.raises(CorruptFileError, match=f"{index}.arrow cannot be read as arrow .*'x'.*10+"):
            propose([file])


@pytest.mark.parametrize("name", ["log.parquet", "log.arrow"])
def test_invalid_utf8_is_reported_as_damage(name: str, tmp_path: Path) -> None:
    file = write(pyarrow.table({"x": ["sun", "rain"] * 20}), tmp_path / name)
    file.write_bytes(file.read_bytes().replace(b"rain", b"r\xffin"))
    with pytest.raises(CorruptFileError, match=f"{name} cannot be read as .*'x'.*UTF8.*: it is damaged"):
        propose([file])


def test_unusual_times_are_accepted(tmp_path: Path) -> None:
    """24:00, and a date in milliseconds with a time of day."""
    day, noon = pyarrow.array([86_400, None], pyarrow.int32()), pyarrow.array([129_600_000, None], pyarrow.int64())
    rows = {"day": day.view(pyarrow.time32("s")), "at": noon.view(pyarrow.date64()), "x": [1.0, 2.0]}
    assert "x" in propose([write(pyarrow.table(rows), tmp_path / "log.arrow")]).text


def test_inconsistent_parquet_footers_are_reported(tmp_path: Path) -> None:
    """Accessing the sizes of a column with an invalid histogram crashes Arrow."""
    file = tmp_path / "log.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"x": [1.0, None] * 20}), file)
    data = bytearray(file.read_bytes())
    place = data.index(b"schema\x15\x02\0") + len(b"schema\x15\x02\0")
    assert data[place : place + 4] == b"\x15\x0a\x25\x02"  # a float64, optional
    data[place + 3] = 0  # required
    file.write_bytes(data)
    command = [sys.executable, "-c", f"from birl.dataset.logs.proposal import propose\npropose([{str(file)!r}])"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "log.parquet cannot be read as parquet (Definition level" in done.stderr


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
def test_text_among_numbers_names_its_row(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "_BLOCK", 4096)
    rows = table()
    text = ["0.5"] * 1000
    text[876] = "n/k"
    file = write(rows.set_column(7, "reward", pyarrow.array(text)), tmp_path / name)
    with pytest.raises(DataError, match=rf"row 877 of .*{name}, column 'reward': 'n/k' is no double"):
        import_files([file], SCHEMA, tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [("reward", "n/k", "string"), ("reward", [1.5], "array"), ("x", {"y": 1}, "object"), ("end", 1, "number")],
)
def test_errors_of_mixed_json_types_name_the_row(name: str, value: Any, kind: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": 1, "x": 0.5, "a": 0, "reward": 1.5, "end": k == 9} for k in range(10)]
    rows[0][name], rows[7][name] = None, value
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "log.jsonl").write_text("\n" + lines)  # empty lines are skipped
    message = (
        rf"row 8 of .*log\.jsonl, column '{name}': .* has the type {kind}, others in this column .*: give a column"
    )
    with pytest.raises(DataError, match=message) as caught:
        propose([tmp_path / "log.jsonl"])
    assert json.dumps(value) in str(caught.value)


def test_unusable_files_and_folders_are_rejected(tmp_path: Path) -> None:
    file = write(table(), tmp_path / "log.csv")
    with pytest.raises(FileError, match="there is no file '.*no.*csv': give files, or patterns in quotes"):
        import_files([tmp_path / "no*.csv"], SCHEMA, tmp_path / "data")
    with pytest.raises(ForeignFileError, match="unknown format; log files are .parquet"):
        import_files([Path(__file__)], SCHEMA, tmp_path / "data")
    with pytest.raises(FileError, match="is a folder: name the files in it"):
        import_files([tmp_path], SCHEMA, tmp_path / "data")
    with pytest.raises(ConfigError, match="is named twice"):
        import_files([file, tmp_path / "*.csv"], SCHEMA, tmp_path / "data")
    file.write_text(file.read_text().replace(",", ";"))
    for use in (lambda: import_files([file], SCHEMA, tmp_path / "data"), lambda: propose([file])):
        with pytest.raises(DataError, match=r"has ';' between the names of its columns, and not ','.*delim=';'"):
            use()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(WriteError, match="full exists already: give another folder"):
        import_files([file], SCHEMA, tmp_path / "full")
    assert os.listdir(tmp_path / "full") == ["file"]


# -- splits ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    import_files([write(table(), tmp_path / "log.parquet")], SCHEMA, tmp_path / "data")
    return tmp_path / "data"


def members(folder: Path, name: str) -> set[float]:
    return {float((episode.extra or {})[name][0]) for episode in ReplayBuffer.open(folder).episodes}


@pytest.mark.parametrize("by", ["cluster", "time"])
def test_splits_are_disjoint_and_complete(by: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_columns, "MAX_CHUNK_ROWS", 64)
    shares = {"train": 0.5, "select": 0.3, "certify": 0.2} if by == "time" else {"train": 0.6, "certify": 0.4}
    found = split(data, by, shares, out=tmp_path / "parts", seed=3)
    whole = {(e.extra or {})["time"][0]: e for e in ReplayBuffer.open(data).episodes}
    seen: set[float] = set()
    clusters = []
    for name, share in shares.items():
        part = ReplayBuffer.open(tmp_path / "parts" / name)
        assert abs(len(part.episodes) / len(whole) - share) < 0.02
        for episode in part.episodes:
            extra = episode.extra or {}
            own = whole[extra["time"][0]]
            assert extra["time"][0] not in seen
            seen.add(extra["time"][0])
            np.testing.assert_array_equal(episode.observations, own.observations)
            np.testing.assert_array_equal(episode.actions, own.actions)
            assert episode.terminated == own.terminated
            for key, values in (own.extra or {}).items():
                np.testing.assert_array_equal(extra[key], values)
        clusters.append(members(tmp_path / "parts" / name, "cluster"))
        notes = json.loads((tmp_path / "parts" / name / "import.json").read_text())
        digest = hashlib.sha256((data / "import.json").read_bytes()).hexdigest()
        assert notes["part"] == {"name": name, "of": digest, "by": by, "seed": 3, "shares": shares, **found[name]}
    assert seen == whole.keys()
    assert (not set.intersection(*clusters)) or by == "time"
    if by == "time":
        assert max(members(tmp_path / "parts" / "train", "time")) < min(members(tmp_path / "parts" / "select", "time"))
    else:
        again = split(data, by, shares, out=tmp_path / "again", seed=3)
        assert again == found
        assert members(tmp_path / "again" / "train", "cluster") == clusters[0]
        split(data, by, shares, out=tmp_path / "other", seed=4)
        assert members(tmp_path / "other" / "train", "cluster") != clusters[0]


def test_invalid_splits_are_rejected(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the episodes belong to clusters.*split by cluster \\(--by cluster\\)"):
        split(data, "episode", {"train": 0.6, "certify": 0.4})
    with pytest.raises(DataError, match="'certify' would have 20 of 100 clusters.*at least 0.3, or log at least 150"):
        split(data, "cluster", {"train": 0.8, "certify": 0.2})
    with pytest.raises(ConfigError, match="sum to 1.1; it must be at most 1"):
        split(data, "cluster", {"train": 0.8, "certify": 0.3})
    with pytest.raises(ConfigError, match="its name must be a word"):
        split(data, "cluster", {"../train": 0.5})
    with pytest.raises(ConfigError, match="by is 'user'; it must be one of 'episode', 'cluster', 'time': to keep"):
        split(data, "user", {"train": 0.5})
    split(data, "time", {"train": 0.5})
    with pytest.raises(WriteError, match="train exists already"):
        split(data, "time", {"train": 0.5})
    with pytest.raises(DataError, match="is a part of a split itself"):
        split(data / "train", "time", {"train": 0.5})
    with pytest.raises(ForeignFileError, match="has no import.json: give a folder that `birl data import` wrote"):
        split(tmp_path, "time", {"train": 0.5})


def test_splits_without_clusters_are_random(tmp_path: Path) -> None:
    text = SCHEMA.text().replace('cluster = "user"\n', "").replace('time = "at"\n', "")
    rows = table().sort_by("at")
    import_files([write(rows, tmp_path / "log.parquet")], LogSchema.parse(text), tmp_path / "data")
    found = split(tmp_path / "data", "episode", {"train": 0.6, "select": 0.2, "certify": 0.2})
    assert [part["episodes"] for part in found.values()] == [119, 39, 40]
    for way, message in (("cluster", "have no clusters"), ("time", "have no times")):
        with pytest.raises(DataError, match=message):
            split(tmp_path / "data", way, {"train": 0.5})


# -- proposals ---------------------------------------------------------------------------------------------------------


def test_a_proposal_can_be_imported(tmp_path: Path) -> None:
    rows = table().append_column("note", pyarrow.array([f"n{i}" for i in range(1000)]))
    rows = rows.append_column("deep", pyarrow.array([{"x": 1}] * 1000)).append_column("same", pyarrow.array([1] * 1000))
    file = write(rows, tmp_path / "log.parquet")
    text = propose([file]).text
    assert 'column = "speed"   # numbers, from -' in text
    for name, why in (("note", "too many"), ("deep", "not numeric"), ("same", "always the same")):
        assert any(line.startswith(f'# not used: "{name}"') and why in line for line in text.splitlines())
    text = text.replace('# missing = "forward"', 'missing = "forward"').replace("# fill", "fill")
    own = LogSchema.parse(text)
    assert (own.episode, own.time, own.terminated, own.cluster) == ("trip", "at", "done", "user")
    assert own.action.size == 3 and own.propensity is not None and own.propensity.kind == "probability"
    assert import_files([file], own, tmp_path / "data")["rows_out"] == 1000


def test_candidates_for_roles_are_not_proposed_as_observations(tmp_path: Path) -> None:
    """Without known names, contents suggest candidates; possible ends and actions are not proposed as observations."""
    names = {"trip": "who", "done": "over", "act": "did", "reward": "cash"}
    rows = table().rename_columns([names.get(name, name) for name in table().column_names])
    text = propose([write(rows, tmp_path / "log.parquet")]).text
    lines = text.splitlines()
    for role, name in {"episode": "who", "terminated": "over", "column": "did"}.items():
        assert any(line.startswith(f'# {role} = "{name}"   # it may be: ') for line in lines), (role, text)
    assert any(line.startswith('# column = "cash"   # it may be: numbers') for line in lines)
    assert lines[2] == "# no column is named like the episode or the action: name it below."
    assert lines[3].startswith("# no column is named like the reward, so it may be among the observations")
    place = next(row for row, line in enumerate(lines) if line.startswith('column = "cash"'))
    assert lines[place - 2] == "# if cash is the reward, remove it here and name it in [reward]"
    assert '# kind = …   # needed: "discrete", with values = […] or size = …, or "continuous"' in lines
    named = "# Write the name of the reward's column here, and remove it above: it is not an observation."
    assert lines.index(named) > lines.index("[reward]")
    assert "# over may be the end or the action; it is an observation only if it was known before" in lines
    assert "# did may be the action; it is an observation only if it was known before" in lines
    assert not [line for line in lines if line.startswith(('column = "over"', 'column = "did"'))]
    with pytest.raises(ConfigError, match="action has no kind.*reward has no column.*the schema has no episode"):
        LogSchema.parse(text)  # one error lists all missing fields


@pytest.mark.parametrize("paid", [[0, 1, 3, 0], [False, True, True, False], [0.5, 1.5, 2.5, 3.5]])
def test_integer_columns_are_reward_candidates(paid: list[Any], tmp_path: Path) -> None:
    rows = pyarrow.table({"episode": [1, 1, 2, 2], "action": [0, 1, 0, 1], "clicks": paid, "same": [1.0] * 4})
    text = propose([write(rows, tmp_path / "log.parquet")]).text
    assert '# column = "clicks"   # it may be: ' in text and '# column = "same"' not in text
    assert text.splitlines()[2].startswith("# no column is named like the reward")
    assert propose([tmp_path / "log.parquet"]).missing == ("reward",)
    named = propose([write(rows.rename_columns(["episode", "action", "reward", "same"]), tmp_path / "b.parquet")]).text
    assert "no column is named like the reward" not in named and "if same is the reward" not in named


def test_probabilities_are_propensity_candidates(tmp_path: Path) -> None:
    rows = {"episode": [1, 1, 2], "action": [0, 1, 0], "reward": [1.0, 2.5, 3.0], "chance": [0.3, 0.7, 1.0]}
    lines = propose([write(pyarrow.table(rows), tmp_path / "log.parquet")]).text.splitlines()
    assert any(line.startswith('# column = "chance"   # it may be: numbers, from 0.3 to 1') for line in lines)
    place = lines.index(
        "# if chance is the probability of the logged action, remove it here and name it in [propensity]"
    )
    assert lines[place + 1] == "[[observation]]" and "# [propensity]" in lines
    for name in ("p_action", "pi_b", "propensity_score"):
        named = pyarrow.table(rows).rename_columns(["episode", "action", "reward", name])
        text = propose([write(named, tmp_path / f"{name}.parquet")]).text
        assert f'[propensity]\ncolumn = "{name}"' in text and "[[observation]]" not in text
    rows["chance"] = [0.3, 0.7, 1.5]
    assert "propensity]" not in propose([write(pyarrow.table(rows), tmp_path / "other.parquet")]).text


@pytest.mark.parametrize("role", ["reward", "terminated", "propensity"])
def test_effects_of_actions_cannot_be_observations(role: str) -> None:
    text = (
        'episode = "e"\nterminated = "end"\n[[observation]]\ncolumn = "NAME"\n[action]\ncolumn = "a"\n'
        'kind = "discrete"\nsize = 2\n[reward]\ncolumn = "r"\n[propensity]\ncolumn = "p"\nkind = "probability"'
    )
    name = {"reward": "r", "terminated": "end", "propensity": "p"}[role]
    with pytest.raises(ConfigError, match=f"{role}: the column '{name}' is also an observation or action"):
        LogSchema.parse(text.replace("NAME", name))
    LogSchema.parse(text.replace("NAME", "x"))


def test_dates_are_time_candidates(tmp_path: Path) -> None:
    days = pyarrow.array(np.arange(1000), pyarrow.timestamp("s"))
    rows = table().drop_columns(["at"]).append_column("created", days)
    lines = propose([write(rows, tmp_path / "log.parquet")]).text.splitlines()
    assert any(line.startswith('# time = "created"   # it may be: dates') for line in lines)
    assert not any("not used" in line and "created" in line for line in lines)
    assert "# Without a time, the rows of an episode must be in order in the log." in lines
    both = rows.append_column("time", days)
    lines = propose([write(both, tmp_path / "both.parquet")]).text.splitlines()
    assert '# known_at = "created"   # or, if it is the time at which the reward is final' in lines  # and no guess
    assert not any(line.startswith("known_at") for line in lines) and any(line.startswith("# delay") for line in lines)


def test_ambiguous_roles_are_not_assigned(tmp_path: Path) -> None:
    rows = table().append_column("rewards", pyarrow.array([1.0] * 1000))
    rows = rows.append_column("<script>\n", pyarrow.array(range(1000)))
    text = propose([write(rows, tmp_path / "log.parquet")]).text
    assert '# 2 columns could be the reward; choose one:\n# column = "reward"' in text
    assert '# column = "rewards"' in text
    with pytest.raises(ConfigError, match="reward has no column"):
        LogSchema.parse(text)
    assert 'column = "<script>\\n"' in text
    many = pyarrow.table({f"c{i}": [1] for i in range(2001)})
    with pytest.raises(DataError, match="has 2001 columns, a schema is proposed for at most 2000"):
        propose([write(many, tmp_path / "many.parquet")])


def test_the_schema_determines_which_csv_columns_are_text(tmp_path: Path) -> None:
    """The ids 007 and 7 differ, and a postal code is a category."""
    rows = [f"{name},{t},{'02134' if t else '10001'},0,1.5,{t}" for name in ("007", "7") for t in (0, 1)]
    (tmp_path / "log.csv").write_text("\n".join(["id,t,code,a,r,end", *rows, ""]), encoding="utf-8")
    text = """
episode = "id"
time = "t"
terminated = "end"
[[observation]]
column = "code"
values = ["02134", "10001"]
unknown = true
[action]
column = "a"
kind = "discrete"
size = 2
[reward]
column = "r"
"""
    import_files([tmp_path / "log.csv"], LogSchema.parse(text), tmp_path / "data")
    found = ReplayBuffer.open(tmp_path / "data").episodes
    assert [episode.observations.tolist() for episode in found] == [[[0, 1, 0], [1, 0, 0]]] * 2
    table = {"id": [1, 1], "t": [0, 1], "code": [2134, 10001], "a": [0, 0], "r": [1.0, 1.0], "end": [0, 1]}
    with pytest.raises(DataError, match="column 'code': the observation is 2134, whole numbers, but values are text"):
        from_table(table, LogSchema.parse(text))


PLAIN = """
episode = "id"
terminated = "end"
[[observation]]
column = "x"
missing = "fill"
fill = -1
[action]
column = "a"
kind = "continuous"
[reward]
column = "r"
"""


@pytest.mark.parametrize("block", [200, 2**23])
def test_lists_and_booleans_in_text_files(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON and CSV hold lists and booleans as Parquet does; the first rows may be integers or missing."""
    monkeypatch.setattr(log_files, "_BLOCK", block)
    rows = [
        {"id": i // 4, "end": i % 4 == 3, "x": None if i < 8 else [i, i + 0.5], "a": [1, -i / 2], "r": i > 20}
        for i in range(40)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_files([tmp_path / "log.jsonl"], LogSchema.parse(PLAIN), tmp_path / "data")
    found = ReplayBuffer.open(tmp_path / "data").episodes
    assert np.concatenate([each.observations for each in found]).tolist() == [row["x"] or [-1, -1] for row in rows]
    assert np.concatenate([each.actions for each in found]).tolist() == [row["a"] for row in rows]
    assert np.concatenate([each.rewards for each in found])[:, 0].tolist() == [row["r"] for row in rows]
    assert "x[0]" in json.loads((tmp_path / "data" / "import.json").read_text())["observation"]
    proposed = propose([tmp_path / "log.jsonl"]).text
    assert 'column = "x"   # lists of 2 numbers, from 8 to 39.5, 8 missing' in proposed

    labels = ["false", "true"]
    lines = [f"{i // 4},{labels[i % 4 == 3]},{'' if i < 8 else labels[i > 20]},{-i / 2},{i}" for i in range(40)]
    (tmp_path / "log.csv").write_text("\n".join(["id,end,x,a,r", *lines, ""]), encoding="utf-8")
    import_files([tmp_path / "log.csv"], LogSchema.parse(PLAIN), tmp_path / "more")
    found = ReplayBuffer.open(tmp_path / "more").episodes
    wanted = [-1] * 8 + [i > 20 for i in range(8, 40)]
    assert np.concatenate([each.observations for each in found])[:, 0].tolist() == wanted


def test_wide_parquet_rows_are_read_in_smaller_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_columns, "MAX_CHUNK_BYTES", 40_000)
    table = pyarrow.table({"id": range(100), "x": [[0.0] * 1000] * 100, "a": range(100)})
    pyarrow.parquet.write_table(table, tmp_path / "wide.parquet")
    sizes = [batch.num_rows for batch in log_files.record_batches(tmp_path / "wide.parquet", ("id", "x"))]
    assert sum(sizes) == 100 and max(sizes) <= 5
    narrow = [batch.num_rows for batch in log_files.record_batches(tmp_path / "wide.parquet", ("id", "a"))]
    assert narrow == [100]


def test_one_file_under_two_names_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(table(), tmp_path / "log.csv")
    monkeypatch.chdir(tmp_path)
    os.symlink("log.csv", "link.csv")
    os.link("log.csv", "other.csv")
    for names in (["log.csv", file], ["link.csv", "log.csv"], ["*.csv"], ["other.csv", "./link.csv"]):
        with pytest.raises(ConfigError, match=r"is named twice, as .*\.csv, too: its rows would count twice"):
            import_files(names, SCHEMA, tmp_path / "data")


def test_proposals_for_infinite_and_negative_numbers(tmp_path: Path) -> None:
    rows = pyarrow.table({"id": [1, 1], "x": [1.0, np.inf], "r": [-np.inf, 2.0], "action": [np.inf, np.inf]})
    text = propose([write(rows, tmp_path / "log.parquet")]).text
    assert "# its name; numbers, 0 different, 2 infinite, which is an error" in text
    assert '"r"   # its name; numbers, from 2 to 2, 1 different, 1 infinite' in text
    rows = pyarrow.table({"id": [1, 1, 1], "action": [1, -1, 0]})
    assert "values = [-1, 0, 1]   # all logged actions" in propose([write(rows, tmp_path / "more.parquet")]).text


def test_too_many_columns_of_parquet_are_rejected_before_the_footer_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow takes 7 seconds and 630 MB for 200,000."""
    for count in (1, 13, 14, 15, 127, 128, 300):
        rows = pyarrow.table([pyarrow.array([1.0])] * count, names=[f"c{k}" for k in range(count)])
        pyarrow.parquet.write_table(rows, tmp_path / "wide.parquet")
        assert log_files._count_parquet_columns(tmp_path / "wide.parquet") == count
    pyarrow.parquet.write_table(pyarrow.table({"x": [[1.0]], "a": [1]}), tmp_path / "lists.parquet")
    assert (
        log_files._count_parquet_columns(tmp_path / "lists.parquet") == 4
    )  # the list, its repeated group, its element, and a
    monkeypatch.setattr(log_columns, "_MAX_COLUMNS", 20)
    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", lambda *_, **__: pytest.fail("the footer was read"))
    file = tmp_path / "wide.parquet"
    for ask in (lambda: propose([file]), lambda: import_files([file], SCHEMA, tmp_path / "out")):
        with pytest.raises(DataError, match=r"wide\.parquet has 300 columns, at most 20 are read: select those"):
            ask()
    for damaged in (b"x", b"PAR1", file.read_bytes()[-8:], bytes(40) + b"\xff\xff\xff\xffPAR1"):
        (tmp_path / "damaged.parquet").write_bytes(damaged)
        assert log_files._count_parquet_columns(tmp_path / "damaged.parquet") == 0  # Arrow reports the error


@pytest.mark.parametrize("form", [pyarrow.ipc.new_file, pyarrow.ipc.new_stream])
def test_too_many_columns_of_arrow_are_rejected_before_rows_are_read(
    form: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch may hold the whole file."""
    wide = pyarrow.table({f"c{k}": [1] for k in range(21)})
    with form(str(tmp_path / "wide.arrow"), wide.schema) as file:
        file.write_table(wide)
    monkeypatch.setattr(log_columns, "_MAX_COLUMNS", 20)
    with pytest.raises(DataError, match=r"wide\.arrow has 21 columns, at most 20 are read: select those"):
        next(log_files.record_batches(tmp_path / "wide.arrow", None))


@pytest.mark.parametrize("name", ["wide.csv", "wide.tsv", "wide.jsonl"])
def test_too_many_columns_of_text_files_are_rejected_before_they_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow takes minutes and gigabytes for a million."""
    monkeypatch.setattr(log_files, "_infer_arrow_schema", lambda *_: pytest.fail("the file was read"))
    names = [f"c{k}" for k in range(10_001)]
    mark = "\t" if name.endswith("tsv") else ","
    lines = json.dumps(dict.fromkeys(names, 1)) if name.endswith("jsonl") else f"{mark.join(names)}\n{mark.join(names)}"
    (tmp_path / name).write_text(lines + "\n")
    for ask in (lambda: propose([tmp_path / name]), lambda: import_files([tmp_path / name], SCHEMA, tmp_path / "out")):
        with pytest.raises(DataError, match=f"{name} has 10001 columns, at most 10000 are read: select those"):
            ask()


@pytest.mark.parametrize("kind", ["string_view", "large_string", "string"])
def test_dictionaries_of_texts_are_read(kind: str) -> None:
    """polars writes categories as dictionaries of views."""
    words = pyarrow.array(["left", "right"], getattr(pyarrow, kind)())
    actions = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0, 1, 1], pyarrow.uint32()), words)
    table = pyarrow.table({"ep": [0, 0, 0], "t": [0, 1, 2], "x": [0.5, 1.5, 2.5], "a": actions, "r": [1.0, 2.0, 3.0]})
    schema = LogSchema.parse(
        'episode = "ep"\ntime = "t"\nunmarked = "truncated"\n[[observation]]\ncolumn = "x"\n[reward]\ncolumn = "r"\n'
        '[action]\ncolumn = "a"\nkind = "discrete"\nvalues = ["left", "right"]\n'
    )
    (episode,) = from_table(table, schema).episodes
    assert episode.actions[:, 0].tolist() == [0, 1, 1]


def test_a_wrong_value_below_a_damaged_header_is_reported(tmp_path: Path) -> None:
    """Python's reader and Arrow disagree about a quote, so the column has no name."""
    lines = ['trip","at,x', *(f"t{row},{row},1" for row in range(30)), "t,a,1.5"]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(BirlError):
        propose([str(tmp_path / "log.csv")])
    assert log_files._find_csv_value(tmp_path / "log.csv", 7, "1.5") == ("", "column 8")


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_json_lines_that_end_a_process_are_typed_errors(name: str, tmp_path: Path) -> None:
    """Arrow recurses into nested lines, and does not expect ``null`` in the first one."""
    write = gzip.open if name.endswith(".gz") else open
    rows = [b'{"user": %d, "reward": 0.5}' % k for k in range(50)]
    deep = b'{"user": ' * 60_000 + b"1" + b"}" * 60_000
    for lines, says in (
        ([*rows, deep], "60000 nested brackets, at most 100 are allowed"),
        ([b'{"user": ' + b"[" * 60_000, *rows], "nested brackets, at most 100 are allowed"),
        ([b"null", *rows], "a line 'null': write one object per line"),
        ([*rows, b"  null"], "a line 'null': write one object per line"),
    ):
        with write(tmp_path / name, "wb") as stream:
            stream.write(b"\n".join(lines))
        with pytest.raises(CorruptFileError, match=says):
            list(log_files.LogFile(tmp_path / name).read(None))
    with write(tmp_path / name, "wb") as stream:  # brackets in texts
        stream.write(b"\n".join(row[:-1] + b', "note": "%s \\" {", "x": null}' % (b"[" * 200) for row in rows))
    (table,) = log_files.LogFile(tmp_path / name).read(None)
    assert table.num_rows == 50


def test_a_schema_of_actions_with_huge_numbers_is_proposed_in_little_memory(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("episode,action,reward,x,done\n0,0,1,1.5,false\n0,1,1,2.5,false\n0,5000000000,1,2.5,true\n")
    tracemalloc.start()
    text = propose([file]).text
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "values = [0, 1, 5000000000]" in text and most < 2**26


def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "import.json").write_text("{}")
    move = os.replace

    def fails(source: Any, target: Any) -> None:
        if Path(source).name == "data" and Path(source).parent != tmp_path:
            raise OSError(28, "No space left on device")
        move(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(WriteError), log_files.new_folder(folder, fresh=True) as new:
        new.mkdir()
    assert (folder / "import.json").read_text() == "{}"
