"""Logs read with SQL: duckdb runs a query over files or over a database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from birl.dataset.logs.columns import RecordBatch, check_buffers
from birl.errors import ConfigError, DataError, FileError, require

_ROWS: Final = 16384  # rows per batch, which may be wide
_SETTINGS: Final = {"autoinstall_known_extensions": "false"}  # nothing is downloaded
_TABLES_ONLY: Final = {**_SETTINGS, "enable_external_access": "false"}
"""Settings for a database. Its views and macros may be foreign, and could read any file of this user."""


@dataclass(frozen=True)
class Query:
    """The result of an SQL query as a source of rows (see `birl.dataset.logs.files.Source`).

    Attributes:
        sql: the query, one ``select`` statement, such as ``"select * from 'logs/*.parquet' where day >= 7"``.
        database: path of a duckdb database with the tables, opened read-only. Its views and the query read no files.
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
            ConfigError: if the query is invalid, does anything but select rows, or reads files with a database.
            FileError: if a file or the database cannot be read.
            DataError: if the query fails at a row.
            MissingExtraError: if duckdb or pyarrow is not installed.
        """
        duckdb, arrow = require("duckdb", "sql"), require("pyarrow", "logs")
        try:
            settings = _SETTINGS if self.database is None else _TABLES_ONLY
            opened = duckdb.connect(self.database or ":memory:", self.database is not None, settings)
        except duckdb.Error as error:
            raise FileError(
                f"{self.database} cannot be read as a duckdb database: {_format_error(error)}: check the path"
            ) from error
        label = f"{self.sql!r:.200}"
        with opened as connection:
            try:
                self._check_selects(connection.extract_statements(self.sql), duckdb.StatementType.SELECT)
                result = connection.sql(self.sql)
            except duckdb.PermissionException as error:
                raise self._reads_files(label, error) from error
            except duckdb.IOException as error:
                raise FileError(
                    f"{label} cannot read its data: {_format_error(error)}: check the paths in it"
                ) from error
            except duckdb.Error as error:
                raise ConfigError(
                    f"duckdb cannot answer {label}: {_format_error(error)}: correct it, or its data"
                ) from error
            has_arrow_reader = hasattr(result, "to_arrow_reader")
            rows = 0
            try:
                for batch in result.to_arrow_reader(_ROWS) if has_arrow_reader else result.fetch_arrow_reader(_ROWS):
                    check_buffers(batch)
                    yield batch
                    rows += batch.num_rows
            except duckdb.PermissionException as error:
                raise self._reads_files(label, error) from error
            except (duckdb.Error, arrow.ArrowException, OSError) as error:
                where = f"a row after row {rows} of its result" if rows else "a row"
                raise DataError(f"{label} fails at {where}: {_format_error(error)}: leave such rows out") from error

    def _check_selects(self, statements: Sequence[Any], select: object) -> None:
        """Raise `ConfigError` unless the query is one statement that selects rows: others can write files."""
        if len(statements) != 1 or statements[0].type != select:
            kinds = ", ".join(str(each.type).rpartition(".")[2].lower() for each in statements) or "nothing"
            raise ConfigError(
                f"{self.sql!r:.200} gives no rows alone (it is: {kinds:.100}); it must be one select statement: write "
                "a query such as select … from …"
            )

    def _reads_files(self, label: str, error: Exception) -> ConfigError:
        return ConfigError(
            f"{label}, or a view of {self.database}, reads a file ({_format_error(error)}); with a database, only its "
            "tables are read: import the file's rows into a table, or query files without a database"
        )


def _format_error(error: Exception) -> str:
    return f"{' '.join(str(error).split()):.300}"
