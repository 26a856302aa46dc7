"""Columns of tables as arrays: from Arrow data, objects with ``__arrow_c_stream__`` and dicts of arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import torch

from birl.errors import ConfigError, DataError, EmptyDataError, ShapeError, did_you_mean, require
from birl.spaces.conversion import is_missing, to_array
from birl.types import Array

MAX_CHUNK_ROWS: Final = 65536
MAX_CHUNK_BYTES: Final = 2**26
_MAX_COLUMNS: Final = 10_000
_MAX_WIDTH: Final = 100_000

RowLabel: TypeAlias = Callable[[int], str]
"""Names a row of a chunk in messages, given its index in the chunk."""

# pyarrow has no type stubs. These aliases only say which of its classes is meant.
ArrowArray: TypeAlias = Any
ArrowSchema: TypeAlias = Any
ArrowTable: TypeAlias = Any
ArrowType: TypeAlias = Any
ParquetFile: TypeAlias = Any
RecordBatch: TypeAlias = Any


class ArrowStream(Protocol):
    """A table that other libraries can read, such as one of pyarrow, pandas, polars or duckdb."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> object:
        """Export the rows as a PyCapsule."""


TableLike: TypeAlias = "Mapping[str, Any] | ArrowStream"
"""A dict of arrays, or a table with ``__arrow_c_stream__``."""


@dataclass(frozen=True)
class Column:
    """A chunk of rows of one column.

    Attributes:
        values: ``[n]``, or ``[n, k]`` for lists: numbers, bools or datetime64. Text is stored as indices into
            ``labels``.
        missing: bool ``[n]``: True for null, NaN and NaT. The value of such a row has no meaning.
        labels: the distinct texts of a text column, else ``None``.
        untyped: whether all values are missing and their type, or the length of the lists, is unknown.
        zoned: whether dates have a time zone; they are in UTC then.
    """

    values: Array
    missing: Array
    labels: tuple[str, ...] | None = None
    untyped: bool = False
    zoned: bool = False

    def distinct(self) -> tuple[list[Any], Array]:
        """Return the distinct values, also of missing rows, and the index ``[n]`` of each row's value in them."""
        if self.labels is not None:
            return list(self.labels), self.values
        values, index = np.unique(self.values, return_inverse=True)
        return values.tolist(), index.reshape(-1)

    @property
    def kind(self) -> str:
        """The kind of values, for messages."""
        if self.labels is not None:
            return "text"
        return {"M": "dates", "b": "true/false", "f": "numbers"}.get(self.values.dtype.kind, "whole numbers")


def chunk_rows(width: float) -> int:
    """Return the number of rows of ``width`` bytes to process at a time, at least 1."""
    return max(1, min(MAX_CHUNK_ROWS, int(MAX_CHUNK_BYTES / max(width, 1))))


def read_columns(source: TableLike, columns: tuple[str, ...]) -> Iterator[dict[str, Column]]:
    """Iterate over chunks of the columns of a table (see `birl.dataset.from_table`).

    Args:
        source: a dict of arrays, or an object with ``__arrow_c_stream__``.
        columns: names of the columns to read.

    Raises:
        ConfigError: if ``source`` has another type.
        DataError, ShapeError: if a column is missing or cannot be read.
        MissingExtraError: if pyarrow is needed and not installed.
    """
    if isinstance(source, Mapping):
        check_columns(columns, tuple(map(str, source)), "the table")
        arrays = {name: source[name] for name in columns}
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ShapeError(f"the lengths of columns differ: {lengths!s:.200}: give every column one row per step")
        step = chunk_rows(sum(np.asarray(array[:1]).nbytes for array in arrays.values()))
        for begin in range(0, max(lengths.values(), default=0), step):
            rows, where = slice(begin, begin + step), row_labels("the table", begin)
            yield {name: column_from_array(array[rows], name, where) for name, array in arrays.items()}
        return
    if not hasattr(source, "__arrow_c_stream__"):
        raise ConfigError(
            f"table is a {type(source).__name__}; it must be a dict of arrays, or have __arrow_c_stream__, as tables "
            "of pyarrow, pandas (2.2 or later), polars and duckdb do"
        )
    arrow = require("pyarrow", "logs")

    def batches() -> Iterator[RecordBatch]:
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

    yield from split_batches(batches(), columns, "the table")


def check_buffers(batch: RecordBatch) -> None:
    """Raise Arrow's error if the buffers of a record batch are invalid for their types.

    Arrow does not validate offsets, indices and views when it opens data. If they are out of range, reading the values
    reads foreign memory or crashes the process. Dates and times are validated as integers, because Arrow's own check
    rejects times of 24:00 and millisecond dates with a time of day, which some writers produce.
    """
    types = (arrow := require("pyarrow", "logs")).types
    batch.validate()
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        is_integer = types.is_time(column.type) or types.is_date64(column.type)
        try:
            (column.view(f"int{column.type.bit_width}") if is_integer else column).validate(full=True)
        except arrow.ArrowException as error:
            raise arrow.ArrowInvalid(f"column {name!r:.60}: {error}") from error


def split_batches(batches: Iterable[RecordBatch], columns: tuple[str, ...], origin: str) -> Iterator[dict[str, Column]]:
    """Iterate over the columns of record batches in chunks of `chunk_rows` rows."""
    seen = 0
    for batch in batches:
        check_columns(columns, tuple(batch.schema.names), origin)
        step = chunk_rows(sum(_nbytes(batch.column(name)) for name in columns) / max(batch.num_rows, 1))
        for begin in range(0, batch.num_rows, step):
            part, where = batch.slice(begin, step), row_labels(origin, seen + begin)
            yield {name: column_from_arrow(part.column(name), name, where) for name in columns}
        seen += batch.num_rows


def _nbytes(column: ArrowArray) -> int:
    """Return the bytes of an array; of text views, which old versions of PyArrow do not measure, with shared ones."""
    try:
        return int(column.nbytes)
    except require("pyarrow", "logs").ArrowTypeError:
        return int(column.get_total_buffer_size())


def row_labels(origin: str, begin: int) -> RowLabel:
    """Return labels for the rows of a chunk that starts at row ``begin`` of a file or table; labels count from 1."""
    return lambda row: f"row {begin + row + 1} of {origin}"


def check_column_count(columns: int, parts: int, origin: str) -> None:
    """Raise `DataError` for too many columns, if each of them may be counted up to ``parts`` times."""
    if columns > parts * _MAX_COLUMNS:
        raise DataError(f"{origin} has {columns} columns, at most {_MAX_COLUMNS} are read: select those that matter")


def check_columns(wanted: tuple[str, ...], names: tuple[str, ...], origin: str) -> None:
    """Raise `DataError` unless each wanted column exists exactly once."""
    check_column_count(len(names), 1, origin)
    for name in wanted:
        if name not in names:
            hint = did_you_mean(name, names) or f"; it has: {', '.join(map(repr, names[:20]))}"
            raise DataError(f"{origin} has no column {name!r:.60}, which the schema names{hint}")
        if names.count(name) > 1:
            raise DataError(
                f"{origin} has {names.count(name)} columns {name!r:.60}, which the schema names: rename all but one"
            )


def column_from_array(given: Array | Sequence[object], name: str, where: RowLabel) -> Column:
    """Convert an array ``[n]`` or ``[n, k]``, a masked array or a list."""
    try:
        if not isinstance(given, np.ndarray) and isinstance(given, torch.Tensor):
            array = to_array(f"column {name!r:.60}", given)
        else:
            array = np.asarray(given)
    except ValueError as error:
        raise _ragged_error(given, name, where) from error
    if array.ndim not in (1, 2):
        raise ShapeError(f"column {name!r:.60} has the shape {array.shape}; it must be (N,) or (N, K)")
    _check_width(array.shape[1:], name)
    if array.dtype.kind == "U" and isinstance(given, list):  # numpy converts numbers that are mixed with text to text
        return column_from_array(np.array(given, object), name, where)
    missing = np.ma.getmaskarray(given) if isinstance(given, np.ma.MaskedArray) else np.zeros(array.shape, bool)
    if array.dtype.kind == "O":
        is_none = [is_missing(each) for each in array.ravel()]
        missing = missing | np.reshape(is_none, array.shape)
        _check_text_or_numbers(array, missing, name, where)
        if (dates := _dates_from_objects(array, missing, name, where)) is not None:
            return dates
        try:
            present = np.array(array[~missing].tolist())
        except ValueError as error:
            raise _ragged_error(given, name, where) from error
        if present.dtype.kind == "O":
            row = _row_index(array, int(np.argmin(missing)))
            raise ShapeError(
                f"{where(row)}, column {name!r:.60}: the value is {array[row]!r:.60}, an object: make it a number or "
                "text"
            )
        if not present.size and array.ndim == 1:
            return Column(np.zeros(len(array)), missing, untyped=True)
        _check_width(present.shape[1:], name)
        array = np.zeros((*array.shape, *present.shape[1:]), present.dtype)
        array[~missing] = present
        missing = missing.reshape(*missing.shape, *[1] * (array.ndim - missing.ndim))
    if array.dtype.kind in "US":
        labels, index = np.unique(array, return_inverse=True)
        texts = labels.astype("U") if array.dtype.kind == "U" else np.char.decode(labels, "utf-8", "replace")
        return Column(index.reshape(array.shape), _any_missing(missing), tuple(texts.tolist()))
    if array.dtype.kind not in "biufM":
        raise ShapeError(f"column {name!r:.60} has the dtype {array.dtype}: make it numbers, text or dates")
    if array.dtype.kind == "M":
        exact = array.astype("datetime64[ns]")
        wrong = (exact.astype(array.dtype) != array) & ~np.isnat(array)
        if wrong.any():
            row = _row_index(array, int(np.argmax(wrong)))
            raise DataError(
                f"{where(row)}, column {name!r:.60}: the date is {array[row]!s:.40}, outside 1678 to 2261: clip or "
                "repair it"
            )
        array = exact
        missing = missing | np.isnat(array)
    if array.dtype.kind == "f":
        missing = missing | np.isnan(array)
    return Column(array, _any_missing(missing))


def _row_index(array: Array, position: int) -> int:
    """Return the row of an index into the flattened array."""
    return position // max(1, array[:1].size)


def _ragged_error(given: Array | Sequence[Any], name: str, where: RowLabel) -> ShapeError:
    """Return the error for the first row whose length differs from the length of row 0."""
    lengths = [len(each) if hasattr(each, "__len__") and not isinstance(each, str) else None for each in given]
    row = next((row for row, length in enumerate(lengths) if length != lengths[0]), 0)
    return ShapeError(
        f"{where(row)}, column {name!r:.60}: the value is {given[row]!r:.60}, but {given[0]!r:.60} in {where(0)}: the "
        "column is ragged; give all rows the same length"
    )


def _check_text_or_numbers(array: Array, missing: Array, name: str, where: RowLabel) -> None:
    """Raise `DataError` if text and numbers are mixed, because numpy would convert all of them to text."""
    first: int | None = None
    values = array.ravel()
    for position in np.flatnonzero(~missing.ravel()).tolist():
        first = position if first is None else first
        if isinstance(values[position], str | bytes) != isinstance(values[first], str | bytes):
            row, other = _row_index(array, position), _row_index(array, first)
            raise DataError(
                f"{where(row)}, column {name!r:.60}: the value is {values[position]!r:.60}, but {values[first]!r:.60} "
                f"in {where(other)}: make all of them numbers, or all text"
            )


def _dates_from_objects(array: Array, missing: Array, name: str, where: RowLabel) -> Column | None:
    """Return the column of Python's dates and times; ``None`` if there are others. Those with a zone become UTC."""
    rows = np.flatnonzero(~missing) if array.ndim == 1 else np.zeros(0, np.int64)
    if not len(rows) or not all(isinstance(array[row], datetime) for row in rows):
        return None
    zoned = np.array([array[row].tzinfo is not None for row in rows])
    if (zoned != zoned[0]).any():
        row, first = int(rows[np.argmax(zoned != zoned[0])]), int(rows[0])
        raise DataError(
            f"{where(row)}, column {name!r:.60}: the time is {array[row]!s:.40}, but {array[first]!s:.40} in "
            f"{where(first)}: one has a time zone and the other none; write all times in one zone"
        )
    values = np.zeros(len(array), "datetime64[us]")
    values[rows] = [array[row].astimezone(UTC).replace(tzinfo=None) if zoned[0] else array[row] for row in rows]
    return replace(column_from_array(values, name, where), missing=missing, zoned=bool(zoned[0]))


def _any_missing(missing: Array) -> Array:
    """Return whether each row has a missing number."""
    return np.asarray(missing.reshape(len(missing), -1).any(1)) if missing.size else np.zeros(len(missing), bool)


def column_from_arrow(array: ArrowArray, name: str, where: RowLabel) -> Column:
    """Convert an Arrow array."""
    arrow = require("pyarrow", "logs")
    types, kind = arrow.types, array.type
    if isinstance(kind, arrow.BaseExtensionType):
        array, kind = array.storage, array.storage.type
    if types.is_dictionary(kind):
        if types.is_string_view(kind.value_type):  # as of polars; Arrow cannot decode views
            array = arrow.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(arrow.large_string()))
        array, kind = array.dictionary_decode(), array.type.value_type
    missing = np.asarray(array.is_null())
    try:
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            return _column_from_lists(array, missing, name, where)
        if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
            coded = array.cast(arrow.large_string()).dictionary_encode()
            codes = coded.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            return Column(codes, missing, tuple(coded.dictionary.to_pylist()) or ("",))
        if types.is_timestamp(kind) or types.is_date(kind):
            stamps = array.cast(arrow.timestamp("ns", getattr(kind, "tz", None))).cast(arrow.int64()).fill_null(0)
            zoned = getattr(kind, "tz", None) is not None
            return Column(stamps.to_numpy(zero_copy_only=False).view("datetime64[ns]"), missing, zoned=zoned)
        if types.is_null(kind):
            return Column(np.zeros(len(array)), missing, untyped=True)
        if types.is_decimal(kind):
            array = array.cast(arrow.float64())
        elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            row = _first_true(~missing)
            raise ShapeError(
                f"{where(row)}, column {name!r:.60}: the value is {_format(array, row)}, {kind!s:.60}: "
                "make it numbers, text, dates or lists of numbers"
            )
        fill = False if types.is_boolean(kind) else 0
        values = (array.fill_null(fill) if array.null_count else array).to_numpy(zero_copy_only=False)
    except arrow.ArrowException as error:
        if len(array) > 1:  # find the row
            for row in range(len(array)):
                column_from_arrow(array.slice(row, 1), name, lambda _, row=row: where(row))  # type: ignore[misc]
        raise DataError(
            f"{where(0)}, column {name!r:.60}: the value {_format(array, 0)} of type {kind!s:.60} cannot be read: "
            f"{error!s:.200}"
        ) from error
    return Column(values, missing | np.isnan(values) if values.dtype.kind == "f" else missing)


def _first_true(chosen: Array) -> int:
    return int(np.argmax(chosen)) if len(chosen) else 0


def _format(array: ArrowArray, row: int) -> str:
    """Return the value of a row as text, if it has one: Python cannot represent some dates."""
    try:
        return f"{array[row].as_py()!r:.60}"
    except (ValueError, OverflowError, IndexError):
        return "not representable"


def _column_from_lists(array: ArrowArray, missing: Array, name: str, where: RowLabel) -> Column:
    """Convert lists of equal length to ``[n, k]``."""
    offsets = np.asarray(array.value_lengths().fill_null(0)) if len(array) else np.zeros(0, np.int64)
    lengths, first = np.unique(offsets[~missing]), _first_true(~missing)
    if len(lengths) > 1:
        row = _first_true(~missing & (offsets != offsets[first]))
        raise ShapeError(
            f"{where(row)}, column {name!r:.60}: the list has {offsets[row]} numbers, but {offsets[first]} "
            f"in {where(first)}: give all lists the same length"
        )
    if not len(lengths) and not hasattr(array.type, "list_size"):
        return Column(np.zeros((len(array), 0)), missing, untyped=True)
    width = int(lengths[0] if len(lengths) else array.type.list_size)  # fixed-size types have a width
    _check_width((width,), name)
    if width > _MAX_WIDTH:
        raise ShapeError(
            f"column {name!r:.60} holds lists of {width} numbers; at most {_MAX_WIDTH} are read: "
            "select those that matter"
        )
    rows = np.flatnonzero(~missing)
    inner = column_from_arrow(array.drop_null().flatten(), name, lambda i: where(int(rows[i // width])))
    if inner.labels is not None or inner.values.ndim > 1 or inner.values.dtype.kind not in "biuf":
        raise ShapeError(
            f"{where(first)}, column {name!r:.60}: the value is {_format(array, first)}, a list of {inner.kind}; it "
            "must be a list of numbers"
        )
    values = np.zeros((len(array), width), inner.values.dtype)
    values[~missing] = inner.values.reshape(-1, width)
    incomplete = missing.copy()
    incomplete[~missing] |= inner.missing.reshape(-1, width).any(1)
    return Column(values, incomplete)


def _check_width(shape: tuple[int, ...], name: str) -> None:
    if 0 in shape:
        raise ShapeError(f"column {name!r:.60} holds lists of 0 numbers, at least 1 is needed: leave it out")


def check_not_empty(rows: int, origin: str) -> None:
    """Raise `EmptyDataError` if there are no rows."""
    if not rows:
        raise EmptyDataError(f"{origin} has 0 rows, at least 1 is needed: check its name and how it was written")
