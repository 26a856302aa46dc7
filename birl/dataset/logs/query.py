"""Logs read with SQL: duckdb runs a query over files or over a database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from birl.dataset.logs.columns import RecordBatch, check_buffers
from birl.errors import ConfigError, DataError, FileError, require

_ROWS: Final = 16384  # rows per batch, which may be wide
_SETTINGS: Final = {"autoinstall_known_extensions": "false"}  # nothing is downloaded


@dataclass(frozen=True)
class Query:
    """The result of an SQL query as a source of rows (see `birl.dataset.logs.files.Source`).

    Attributes:
        sql: the query, such as ``"select * from 'logs/*.parquet' where day >= 7"``.
        database: path of a duckdb database with the tables, opened read-only.
    """

    sql: str
    database: str | None = None

    def __str__(self) -> str:
        return "the query"

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        return {"sql": self.sql} | ({"database": self.database} if self.database else {})

    def read(
        self, columns: tuple[str, ...] | None, numbers: tuple[str, ...] = (), texts: tuple[str, ...] = ()
    ) -> Iterator[RecordBatch]:
        """Iterate over record batches of the result. SQL determines the types of the columns.

        Raises:
            ConfigError: if the query is invalid or returns no table.
            FileError: if a file or the database cannot be read.
            DataError: if the query fails at a row.
            MissingExtraError: if duckdb or pyarrow is not installed.
        """
        duckdb, arrow = require("duckdb", "sql"), require("pyarrow", "logs")
        try:
            opened = duckdb.connect(self.database or ":memory:", self.database is not None, _SETTINGS)
        except duckdb.Error as error:
            raise FileError(
                f"{self.database} cannot be read as a duckdb database: {_format_error(error)}: check the path"
            ) from error
        label = f"{self.sql!r:.200}"
        with opened as connection:
            try:
                result = connection.sql(self.sql)
            except duckdb.IOException as error:
                raise FileError(
                    f"{label} cannot read its data: {_format_error(error)}: check the paths in it"
                ) from error
            except duckdb.Error as error:
                raise ConfigError(
                    f"duckdb cannot answer {label}: {_format_error(error)}: correct it, or its data"
                ) from error
            if result is None:
                raise ConfigError(f"{label} gives no rows: write a query such as select … from …")
            has_arrow_reader = hasattr(result, "to_arrow_reader")
            rows = 0
            try:
                for batch in result.to_arrow_reader(_ROWS) if has_arrow_reader else result.fetch_arrow_reader(_ROWS):
                    check_buffers(batch)
                    yield batch
                    rows += batch.num_rows
            except (duckdb.Error, arrow.ArrowException, OSError) as error:
                where = f"a row after row {rows} of its result" if rows else "a row"
                raise DataError(f"{label} fails at {where}: {_format_error(error)}: leave such rows out") from error


def _format_error(error: Exception) -> str:
    return f"{' '.join(str(error).split()):.300}"
