"""Import of SQL queries: they give the same episodes as files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from birl.dataset import LogSchema, ReplayBuffer, from_table
from birl.dataset.logs import query as log_query
from birl.dataset.logs.files import import_files
from birl.dataset.logs.proposal import propose
from birl.dataset.logs.query import Query
from birl.errors import ConfigError, DataError, FileError, MissingExtraError
from birl.run.fingerprint import digest

SCHEMA = LogSchema.parse(
    """
episode = "trip"
time = "step"
terminated = "done"
[[observation]]
column = "speed"
[[observation]]
column = "pair"
[action]
column = "act"
kind = "discrete"
values = ["go", "stay"]
[reward]
column = "reward"
"""
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pyarrow.Table:
    """100 trips of 5 steps, in a file of the working directory and in a database."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = pyarrow.table(
        {
            "trip": [f"t{i // 5}" for i in range(500)],
            "step": [i % 5 for i in range(500)],
            "done": [i % 5 == 4 for i in range(500)],
            "speed": rng.normal(size=500).astype(np.float32),
            "pair": [[float(i), -float(i)] for i in range(500)],
            "act": [("go", "stay")[k] for k in rng.integers(2, size=500)],
            "reward": rng.random(500).astype(np.float32),
        }
    )
    pyarrow.parquet.write_table(rows, "log.parquet")
    with duckdb.connect("log.duckdb") as database:
        database.execute("create table steps as select * from 'log.parquet'")
    return rows


@pytest.mark.parametrize("database", [None, "log.duckdb"])
def test_queries_give_the_same_episodes(
    database: str | None, table: pyarrow.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_query, "_ROWS", 64)
    sql = f"select * from {'steps' if database else repr('log.parquet')} order by trip, step"
    found = import_files([Query(sql, database)], SCHEMA, "data")
    wanted = from_table(table.sort_by([("trip", "ascending"), ("step", "ascending")]), SCHEMA)
    assert digest([ReplayBuffer.open("data").storage]) == digest([wanted.storage])
    source = {"sql": sql, "database": database, "rows": 500} if database else {"sql": sql, "rows": 500}
    assert found["files"] == [source]
    first = Query(sql.replace("order", "where step < 2 order"), database)
    part = import_files([first], LogSchema.parse('unmarked = "truncated"\n' + SCHEMA.text()), "part")
    assert (part["rows_in"], part["episodes"], part["terminated"]) == (200, 100, 0)


def test_sql_types_are_converted_to_numbers(table: pyarrow.Table) -> None:
    """Decimals, sums and dates; also as a duckdb relation, without a file."""
    sql = """
        select trip, cast(done as integer) as done, date '2026-01-01' + cast(step as integer) as step, act,
            sum(step) over () as speed, [step, 0.5] as pair, 1.25 as reward from 'log.parquet'
    """
    import_files([Query(sql)], SCHEMA, "data")
    episodes = ReplayBuffer.open("data").episodes
    assert episodes[0].observations[:2].tolist() == [[1000, 0, 0.5], [1000, 1, 0.5]]
    assert episodes[0].rewards[0] == 1.25
    assert np.diff((episodes[0].extra or {})["time"]).tolist() == [86400] * 4
    with duckdb.connect() as connection:
        same = from_table(connection.sql(sql), SCHEMA)
    assert digest([same.storage]) == digest([ReplayBuffer.open("data").storage])


def test_a_schema_is_proposed_for_a_query(table: pyarrow.Table) -> None:
    text = propose([Query("select * from 'log.parquet'")]).text
    assert text.startswith("# Proposed for 500 rows of the query.")
    assert 'episode = "trip"   # its name; text, 100 different' in text


@pytest.mark.parametrize(
    ("sql", "error", "message"),
    [
        ("selec 1", ConfigError, "duckdb cannot answer 'selec 1': .*syntax error.*: correct it"),
        ("select * from nowhere", ConfigError, "Table with name nowhere does not exist"),
        ("", ConfigError, r"'' gives no rows alone \(it is: nothing\); it must be one select statement: write a query"),
        ("copy (select 42) to 'written.csv'", ConfigError, r"it is: copy\)"),
        ("select 1 as a; copy (select 42) to 'written.csv'", ConfigError, r"it is: select, copy\)"),
        ("attach 'log.duckdb' as it", ConfigError, r"it is: attach\)"),
        ("select * from 'no.parquet'", FileError, "cannot read its data: .*no.parquet"),
        ("select * from 'bad.parquet'", ConfigError, "No magic bytes.*: correct it, or its data"),
        ("select 1 as a", DataError, "the query has no column 'trip'"),
        ("select * from 'log.parquet' where step > 9", DataError, "the query has 0 rows"),
        ("select * replace (case when trip = 't9' then error('bad') else trip end as trip) from 'log.parquet'",
         DataError, "fails at a row: .*bad.*: leave such rows out"),
        ("select * replace (-reward as reward) from 'log.parquet' order by all", DataError, "row 1 of the query"),
    ],
)  # fmt: skip
def test_errors_of_queries(sql: str, error: type, message: str, table: pyarrow.Table) -> None:
    Path("bad.parquet").write_bytes(Path("log.parquet").read_bytes()[:-50])
    files = sorted(os.listdir())
    bounded = LogSchema.parse(SCHEMA.text() + "lower = 0.0\n")
    with pytest.raises(error, match=message):
        import_files([Query(sql)], bounded, "data")
    assert sorted(os.listdir()) == files


def test_late_errors_of_queries_name_the_last_row() -> None:
    query = Query("select if(i < 900000, i, error('bad')) as x from range(1000000) numbers(i)")
    read = 0
    with pytest.raises(DataError, match=r"fails at a row after row \d+ of its result: .*bad") as caught:
        for batch in query.read(None):
            read += batch.num_rows
    assert f"after row {read} of" in str(caught.value) and 0 < read <= 900_000


def test_unreadable_databases_are_reported(table: pyarrow.Table) -> None:
    for name in ("nowhere.duckdb", "log.parquet"):
        with pytest.raises(FileError, match=name):
            import_files([Query("select 1 as a", name)], SCHEMA, "data")
    with pytest.raises(ConfigError, match=r"it is: drop\)"):
        import_files([Query("drop table steps", "log.duckdb")], SCHEMA, "data")


def test_a_database_reads_no_files(table: pyarrow.Table) -> None:
    """Its views and macros may come from elsewhere."""
    Path("secret.txt").write_text("secret")
    with duckdb.connect("log.duckdb") as database:
        database.execute("create view spy as select content as trip from read_text('secret.txt')")
        database.execute("create macro spying() as table select * from read_csv('secret.txt')")
        database.execute("create view fine as select trip from steps")
    assert sum(batch.num_rows for batch in Query("select * from fine", "log.duckdb").read(None)) == 500
    for sql in ("select * from spy", "select * from spying()", "select * from 'log.parquet'"):
        with pytest.raises(
            ConfigError, match="reads a file .*only its tables are read: import the file's rows"
        ) as found:
            list(Query(sql, "log.duckdb").read(None))
        assert "secret'" not in str(found.value)
    assert sum(batch.num_rows for batch in Query("select * from 'log.parquet'").read(None)) == 500


def test_the_error_without_duckdb_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match=r"'duckdb' is needed here.*birl\[sql\]"):
        propose([Query("select 1")])
