"""Logs by SQL: the rows of a query, which duckdb answers from files or from a database of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from birl.dataset.logs.columns import check_buffers
from birl.errors import ConfigError, DataError, FileError, require

_ROWS: Final = 16384  # of a batch, which may be wide
_SETTINGS: Final = {"autoinstall_known_extensions": "false"}  # nothing is downloaded


@dataclass(frozen=True)
class Query:
    """A source of rows, as `birl.dataset.logs.files.LogFile`.

    Attributes:
        sql: what is asked, such as ``"select * from 'logs/*.parquet' where day >= 7"``.
        database: path of a file of duckdb with the tables; it is not written to.
    """

    sql: str
    database: str | None = None

    def __str__(self) -> str:
        return "the query"

    def describe(self) -> dict[str, Any]:
        """What an import notes."""
        return {"sql": self.sql} | ({"database": self.database} if self.database else {})

    def read(
        self, columns: tuple[str, ...] | None, numbers: tuple[str, ...] = (), texts: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Record batches of the result. The types of its columns are those that SQL gives them.

        Raises:
            ConfigError: if it is no query that gives rows.
            FileError: if a file or the database cannot be read.
            DataError: if it fails at some row.
            MissingExtraError: without duckdb or pyarrow.
        """
        duckdb, arrow = require("duckdb", "sql"), require("pyarrow", "logs")
        try:
            opened = duckdb.connect(self.database or ":memory:", self.database is not None, _SETTINGS)
        except duckdb.Error as error:
            raise FileError(
                f"{self.database} cannot be read as a database of duckdb: {_format_error(error)}"
            ) from error
        label = f"{self.sql!r:.200}"
        with opened as connection:
            try:
                result = connection.sql(self.sql)
            except duckdb.IOException as error:
                raise FileError(f"{label} cannot read its data: {_format_error(error)}") from error
            except duckdb.Error as error:
                raise ConfigError(
                    f"duckdb cannot answer {label}: {_format_error(error)}: correct it, or its data"
                ) from error
            if result is None:
                raise ConfigError(f"{label} gives no rows: write a query, select … from …")
            new = hasattr(result, "to_arrow_reader")
            rows = 0
            try:
                for batch in result.to_arrow_reader(_ROWS) if new else result.fetch_arrow_reader(_ROWS):
                    check_buffers(batch)
                    yield batch
                    rows += batch.num_rows
            except (duckdb.Error, arrow.ArrowException, OSError) as error:
                where = f"a row after row {rows} of its result" if rows else "a row"
                raise DataError(f"{label} fails at {where}: {_format_error(error)}: leave such rows out") from error


def _format_error(error: Exception) -> str:
    return f"{' '.join(str(error).split()):.300}"
