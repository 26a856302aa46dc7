"""Columns of tables as arrays: from Arrow, from anything with ``__arrow_c_stream__``, and from dicts of arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from birl.errors import ConfigError, DataError, EmptyDataError, ShapeError, did_you_mean, require
from birl.types import Array

ROWS_AT_ONCE: Final = 65536
BYTES_AT_ONCE: Final = 2**26
_MAX_COLUMNS: Final = 10_000
_MAX_WIDTH: Final = 100_000

Where = Callable[[int], str]
"""Names a row, by its number among those at hand, in messages."""


@dataclass(frozen=True)
class Column:
    """Some rows of a column.

    Attributes:
        values: ``[n]``, or ``[n, k]`` of lists: numbers, bools or datetime64; of text the index of its label.
        missing: bool ``[n]``: null, NaN or no date; the value is then without meaning.
        labels: the different texts; ``None`` if it is no text.
        open: whether all are missing and nothing says if these would be numbers or lists, or how long the lists.
    """

    values: Array
    missing: Array
    labels: tuple[Any, ...] | None = None
    open: bool = False

    def distinct(self) -> tuple[list[Any], Array]:
        """The different values (or rows of missing ones), and the index ``[n]`` of each row's among them."""
        if self.labels is not None:
            return list(self.labels), self.values
        values, index = np.unique(self.values, return_inverse=True)
        return values.tolist(), index.reshape(-1)

    @property
    def kind(self) -> str:
        """In a word."""
        if self.labels is not None:
            return "text"
        return {"M": "dates", "b": "true/false", "f": "numbers"}.get(self.values.dtype.kind, "whole numbers")


def rows_at_once(width: float) -> int:
    """How many rows of ``width`` bytes are worked on at once: one at least."""
    return max(1, min(ROWS_AT_ONCE, int(BYTES_AT_ONCE / max(width, 1))))


def tables_of(source: Any, columns: tuple[str, ...]) -> Iterator[dict[str, Column]]:
    """Some rows at a time of what is given to `birl.dataset.from_table`.

    Args:
        source: a dict of arrays, or an object with ``__arrow_c_stream__``.
        columns: names of those that are wanted.

    Raises:
        ConfigError: if it is something else.
        DataError, ShapeError: if a column is not there, or cannot be read.
        MissingExtraError: for a table of Arrow without pyarrow.
    """
    if isinstance(source, Mapping):
        check_columns(columns, tuple(map(str, source)), "the table")
        arrays = {name: source[name] for name in columns}
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ShapeError(f"the lengths of columns differ: {lengths!s:.200}: give every column one row per step")
        step = rows_at_once(sum(np.asarray(array[:1]).nbytes for array in arrays.values()))
        for begin in range(0, max(lengths.values(), default=0), step):
            rows, where = slice(begin, begin + step), rows_of("the table", begin)
            yield {name: column_of_array(array[rows], name, where) for name, array in arrays.items()}
        return
    if not hasattr(source, "__arrow_c_stream__"):
        raise ConfigError(
            f"table is a {type(source).__name__}; it must be a dict of arrays, or have __arrow_c_stream__, as tables "
            "of pyarrow, pandas (2.2 or later), polars and duckdb do"
        )
    arrow = require("pyarrow", "logs")

    def batches() -> Iterator[Any]:
        for batch in arrow.RecordBatchReader.from_stream(source):
            check_columns(columns, tuple(batch.schema.names), "the table")
            part = batch.select(list(columns))
            try:
                check_buffers(part)
            except arrow.ArrowException as error:
                raise DataError(
                    f"the table is damaged ({error!s:.200}): read or make it again; table.validate(full=True) checks it"
                ) from error
            yield part

    yield from batches_of(batches(), columns, "the table")


def check_buffers(batch: Any) -> None:
    """Raise Arrow's error unless the buffers of a record batch hold what its types promise.

    Arrow itself does not look at offsets, indices and views when it opens data: where these point elsewhere, reading
    the values reads other memory, or ends the process. Dates and times are checked as the whole numbers that they are:
    Arrow's check refuses times of 24:00, and dates in milliseconds that have a time of day, both of which are written.
    """
    types = (arrow := require("pyarrow", "logs")).types
    batch.validate()
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        whole = types.is_time(column.type) or types.is_date64(column.type)
        try:
            (column.view(f"int{column.type.bit_width}") if whole else column).validate(full=True)
        except arrow.ArrowException as error:
            raise arrow.ArrowInvalid(f"column {name!r:.60}: {error}") from error


def batches_of(batches: Any, columns: tuple[str, ...], origin: str) -> Iterator[dict[str, Column]]:
    """The columns of Arrow's record batches, `rows_at_once`."""
    seen = 0
    for batch in batches:
        check_columns(columns, tuple(batch.schema.names), origin)
        step = rows_at_once(sum(batch.column(name).nbytes for name in columns) / max(batch.num_rows, 1))
        for begin in range(0, batch.num_rows, step):
            part, where = batch.slice(begin, step), rows_of(origin, seen + begin)
            yield {name: column_of_arrow(part.column(name), name, where) for name in columns}
        seen += batch.num_rows


def rows_of(origin: str, begin: int) -> Where:
    """Names rows of a file or table, those at hand from ``begin`` on; the first one is 1."""
    return lambda row: f"row {begin + row + 1} of {origin}"


def check_count(columns: int, parts: int, origin: str) -> None:
    """Raise `DataError` if there are more columns than are read, where each counts up to so many times."""
    if columns > parts * _MAX_COLUMNS:
        raise DataError(f"{origin} has {columns} columns, at most {_MAX_COLUMNS} are read: select those that matter")


def check_columns(wanted: tuple[str, ...], there: tuple[str, ...], origin: str) -> None:
    """Raise `DataError` unless each of the wanted columns is there once."""
    check_count(len(there), 1, origin)
    for name in wanted:
        if name not in there:
            hint = did_you_mean(name, there) or f"; there are: {', '.join(map(repr, there[:20]))}"
            raise DataError(f"{origin} has no column {name!r:.60}, which the schema names{hint}")
        if there.count(name) > 1:
            raise DataError(
                f"{origin} has {there.count(name)} columns {name!r:.60}, which the schema names: rename all but one"
            )


def column_of_array(given: Any, name: str, where: Where) -> Column:
    """A column that is an array ``[n]`` or ``[n, k]``, a list, or a masked array."""
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise _ragged(given, name, where) from error
    if array.ndim not in (1, 2):
        raise ShapeError(f"column {name!r:.60} has the shape {array.shape}; it must be (N,) or (N, K)")
    _check_width(array.shape[1:], name)
    if array.dtype.kind == "U" and isinstance(given, list):  # numpy has made text of numbers beside text
        return column_of_array(np.array(given, object), name, where)
    missing = np.ma.getmaskarray(given) if isinstance(given, np.ma.MaskedArray) else np.zeros(array.shape, bool)
    if array.dtype.kind == "O":
        absent = [each is None or (isinstance(each, float) and each != each) for each in array.ravel()]
        missing = missing | np.reshape(absent, array.shape)
        _check_one_kind(array, missing, name, where)
        try:
            there = np.array(array[~missing].tolist())
        except ValueError as error:
            raise _ragged(given, name, where) from error
        if there.dtype.kind == "O":
            row = _row_of(array, int(np.argmin(missing)))
            raise ShapeError(
                f"{where(row)}, column {name!r:.60}: the value is {array[row]!r:.60}, an object: make it a number or "
                "text"
            )
        if not there.size and array.ndim == 1:
            return Column(np.zeros(len(array)), missing, open=True)
        _check_width(there.shape[1:], name)
        array = np.zeros((*array.shape, *there.shape[1:]), there.dtype)
        array[~missing] = there
        missing = missing.reshape(*missing.shape, *[1] * (array.ndim - missing.ndim))
    if array.dtype.kind in "US":
        labels, index = np.unique(array, return_inverse=True)
        words = labels.astype("U") if array.dtype.kind == "U" else np.char.decode(labels, "utf-8", "replace")
        return Column(index.reshape(array.shape), _any(missing), tuple(words.tolist()))
    if array.dtype.kind not in "biufM":
        raise ShapeError(f"column {name!r:.60} has the dtype {array.dtype}: make it numbers, text or dates")
    if array.dtype.kind == "M":
        exact = array.astype("datetime64[ns]")
        wrong = (exact.astype(array.dtype) != array) & ~np.isnat(array)
        if wrong.any():
            row = _row_of(array, int(np.argmax(wrong)))
            raise DataError(
                f"{where(row)}, column {name!r:.60}: the date is {array[row]!s:.40}, outside 1678 to 2261: clip or "
                "repair it"
            )
        array = exact
        missing = missing | np.isnat(array)
    if array.dtype.kind == "f":
        missing = missing | np.isnan(array)
    return Column(array, _any(missing))


def _row_of(array: Array, place: int) -> int:
    """The row of the number at a place of the flattened array."""
    return place // max(1, array[:1].size)


def _ragged(given: Any, name: str, where: Where) -> ShapeError:
    """Names the first row that is not as long as the first one."""
    lengths = [len(each) if hasattr(each, "__len__") and not isinstance(each, str) else None for each in given]
    row = next((row for row, length in enumerate(lengths) if length != lengths[0]), 0)
    return ShapeError(
        f"{where(row)}, column {name!r:.60}: the value is {given[row]!r:.60}, but {given[0]!r:.60} in {where(0)}: the "
        "column is ragged; give all rows the same length"
    )


def _check_one_kind(array: Array, missing: Array, name: str, where: Where) -> None:
    """Raise `DataError` if text stands beside numbers: numpy would make text of both."""
    first: int | None = None
    values = array.ravel()
    for place in np.flatnonzero(~missing.ravel()).tolist():
        first = place if first is None else first
        if isinstance(values[place], str | bytes) != isinstance(values[first], str | bytes):
            row, other = _row_of(array, place), _row_of(array, first)
            raise DataError(
                f"{where(row)}, column {name!r:.60}: the value is {values[place]!r:.60}, but {values[first]!r:.60} in "
                f"{where(other)}: make all of them numbers, or all text"
            )


def _any(missing: Array) -> Array:
    """Whether any number of each row is missing."""
    return np.asarray(missing.reshape(len(missing), -1).any(1)) if missing.size else np.zeros(len(missing), bool)


def column_of_arrow(array: Any, name: str, where: Where) -> Column:
    """A column that is an Arrow array."""
    arrow = require("pyarrow", "logs")
    types, kind = arrow.types, array.type
    if isinstance(kind, arrow.BaseExtensionType):
        array, kind = array.storage, array.storage.type
    if types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    missing = np.asarray(array.is_null())
    try:
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            return _lists(array, missing, name, where)
        if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
            coded = array.cast(arrow.large_string()).dictionary_encode()
            codes = coded.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            return Column(codes, missing, tuple(coded.dictionary.to_pylist()) or ("",))
        if types.is_timestamp(kind) or types.is_date(kind):
            stamps = array.cast(arrow.timestamp("ns", getattr(kind, "tz", None))).cast(arrow.int64()).fill_null(0)
            return Column(stamps.to_numpy(zero_copy_only=False).view("datetime64[ns]"), missing)
        if types.is_null(kind):
            return Column(np.zeros(len(array)), missing, open=True)
        if types.is_decimal(kind):
            array = array.cast(arrow.float64())
        elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            row = _first(~missing)
            raise ShapeError(
                f"{where(row)}, column {name!r:.60}: the value is {_said(array, row)}, {kind!s:.60}: make it numbers, "
                "text, dates or lists of numbers"
            )
        fill = False if types.is_boolean(kind) else 0
        values = array.fill_null(fill).to_numpy(zero_copy_only=False) if array.null_count else _numpy(array)
    except arrow.ArrowException as error:
        if len(array) > 1:  # which row is it?
            for row in range(len(array)):
                column_of_arrow(array.slice(row, 1), name, lambda _, row=row: where(row))  # type: ignore[misc]
        raise DataError(
            f"{where(0)}, column {name!r:.60}: the value {_said(array, 0)} of type {kind!s:.60} cannot be read: "
            f"{error!s:.200}"
        ) from error
    return Column(values, missing | np.isnan(values) if values.dtype.kind == "f" else missing)


def _first(chosen: Array) -> int:
    return int(np.argmax(chosen)) if len(chosen) else 0


def _said(array: Any, row: int) -> str:
    """The value of a row as text; some have none, as dates beyond what Python knows."""
    try:
        return f"{array[row].as_py()!r:.60}"
    except (ValueError, OverflowError, IndexError):
        return "beyond what can be shown"


def _numpy(array: Any) -> Array:
    return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _lists(array: Any, missing: Array, name: str, where: Where) -> Column:
    """Lists of one length as ``[n, k]``."""
    offsets = np.asarray(array.value_lengths().fill_null(0)) if len(array) else np.zeros(0, np.int64)
    lengths, first = np.unique(offsets[~missing]), _first(~missing)
    if len(lengths) > 1:
        row = _first(~missing & (offsets != offsets[first]))
        raise ShapeError(
            f"{where(row)}, column {name!r:.60}: a list of {offsets[row]} numbers, but of {offsets[first]} in "
            f"{where(first)}; all must have one length"
        )
    told = [*lengths.tolist(), getattr(array.type, "list_size", None)]  # a type may tell it where all are missing
    if told[0] is None:
        return Column(np.zeros((len(array), 0)), missing, open=True)
    width = int(told[0])
    _check_width((width,), name)
    if width > _MAX_WIDTH:
        raise ShapeError(f"column {name!r:.60} holds lists of {width} numbers; at most {_MAX_WIDTH} are possible")
    rows = np.flatnonzero(~missing)
    inner = column_of_arrow(array.drop_null().flatten(), name, lambda place: where(int(rows[place // width])))
    if inner.labels is not None or inner.values.ndim > 1 or inner.values.dtype.kind not in "biuf":
        raise ShapeError(
            f"{where(first)}, column {name!r:.60}: the value is {_said(array, first)}, a list of {inner.kind}; it must "
            "be a list of numbers"
        )
    values = np.zeros((len(array), width), inner.values.dtype)
    values[~missing] = inner.values.reshape(-1, width)
    gone = missing.copy()
    gone[~missing] |= inner.missing.reshape(-1, width).any(1)
    return Column(values, gone)


def _check_width(shape: tuple[int, ...], name: str) -> None:
    if 0 in shape:
        raise ShapeError(f"column {name!r:.60} holds lists of 0 numbers, at least 1 is needed: leave it out")


def check_rows(rows: int, origin: str) -> None:
    """Raise `EmptyDataError` if there is no row."""
    if not rows:
        raise EmptyDataError(f"{origin} has 0 rows, at least 1 is needed: check how it was written, and the name")
