"""Import of log files (Parquet, CSV, JSON lines and Arrow), in chunks, into a folder of episodes.

Other sources of rows, such as `birl.dataset.logs.query.Query`, implement the protocol `Source`.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import gzip
import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from birl._version import __version__
from birl.dataset.log_record import IMPORT, ROWS, SCHEMA
from birl.dataset.log_schema import LogSchema
from birl.dataset.logs.columns import (
    ArrowSchema,
    ArrowType,
    Column,
    ParquetFile,
    RecordBatch,
    check_buffers,
    check_column_count,
    check_columns,
    chunk_rows,
    split_batches,
)
from birl.dataset.logs.table import Importer
from birl.dataset.replay_buffer import ReplayBuffer
from birl.errors import (
    BirlError,
    ConfigError,
    CorruptFileError,
    DataError,
    FileError,
    ForeignFileError,
    WriteError,
    require,
)
from birl.files import atomic_write
from birl.files.atomic import convert_to_write_error
from birl.files.strict_json import dump_json

_BLOCK: Final = 2**23  # bytes of text that are parsed at a time
_MAX_NESTING: Final = 100
_OWN_FILES: Final = (
    *(SCHEMA, IMPORT, "storage.json", "sampler.safetensors", "journal.bin", "column_*.npy", ".storage.lock"),
    *("report.html", "report.json"),
)
"""Files of the folder of an import, of its parts, and of reports on them."""
_NULL_LINE: Final = re.compile(rb"(?:\A|\n)[ \t\r]*null\b")
_JSON_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BUFFER: Final = 2**20  # bytes of each column that are read at a time; without it Arrow reads whole row groups
FORMATS: Final = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".ndjson": "json",
    ".json": "json", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
_TYPE_CHANGED: Final = re.compile(r"Column\(/(.*?)\) changed from (\w+) to (\w+)")
_JSON_TYPES: Final = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
_FOOTER: Final = re.compile(rb"\x15[\x80-\xff]*[\x00-\x7f]\x19(?:([\x0c-\xec])|\xfc([\x80-\xff]*[\x00-\x7f]))")
_CONVERSION: Final = re.compile(r"In CSV column #(\d+): .*?conversion error to (\S+): invalid value '(.*)'", re.DOTALL)


class Source(Protocol):
    """A source of rows. Messages name it by its ``str()``."""

    def read(
        self, columns: tuple[str, ...] | None, numbers: tuple[str, ...] = (), texts: tuple[str, ...] = ()
    ) -> Iterator[RecordBatch]:
        """Iterate over record batches with at least these columns.

        Args:
            columns: names of the columns; ``None`` for all.
            numbers: names of numeric columns, for sources without types.
            texts: names of text columns, whose values may look like numbers.

        Raises:
            BirlError: if the source cannot be read.
        """

    def describe(self) -> dict[str, Any]:
        """Return the description of the source in an import record, in JSON form."""


Logs: TypeAlias = Iterable[str | os.PathLike[str] | Source]


def import_files(logs: Logs, schema: LogSchema, out: str | os.PathLike[str], *, fresh: bool = False) -> dict[str, Any]:
    """Read files into a new folder of episodes, for `ReplayBuffer.open`.

    Memory is needed for one chunk of rows, and for three numbers per row. The folder appears when the import is
    complete.

    Args:
        logs: files, patterns such as ``"logs/*.parquet"``, or other sources.
        schema: the meaning of the columns.
        out: path of the folder.
        fresh: whether a folder of an earlier import, with its parts, is replaced.

    Returns:
        The contents of ``import.json``: the files with their digests, the name of each element of an observation, the
        actions and loggers in order, and the numbers of rows read, kept and dropped by each rule.

    Raises:
        DataError, ShapeError, NonFiniteError, ActionError: for invalid rows. The message names row, file, column and
            remedy.
        FileError: if a file is missing, damaged or of an unsupported format, or the folder exists already.
        MissingExtraError: if pyarrow is not installed.
    """
    with new_folder(out, fresh=fresh) as folder:
        sources = resolve_sources(logs)
        with Importer(schema, folder) as importer:
            for source in sources:
                importer.add(_read_columns(source, schema), str(source))
            buffer = importer.finish()
        record = _import_record(importer, sources, buffer)
        buffer.close()
        del buffer
        write_import_record(folder, record, schema.text())
    return record


@contextlib.contextmanager
def new_folder(out: str | os.PathLike[str], *, fresh: bool = False) -> Iterator[Path]:
    """Yield the path of a folder to make. At the end of the block it is renamed to ``out``.

    Args:
        out: path of the folder.
        fresh: whether it replaces a folder of episodes; see `check_replaceable`.

    Raises:
        WriteError: if there are files at ``out`` that it does not replace, or its folder cannot be written.
    """
    folder = Path(out).absolute()
    there = folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    if there and fresh:
        check_replaceable(Path(out))
    elif there:
        remedy = ", or replace it with fresh=True" if (folder / IMPORT).is_file() else ", or remove it first"
        raise WriteError(f"{out} exists already: give another folder{remedy}")
    with convert_to_write_error(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as work:
        yield Path(work) / "data"
        with convert_to_write_error(folder):
            if there:
                os.replace(folder, Path(work) / "old")  # is removed with the temporary folder
            try:
                os.replace(Path(work) / "data", folder)
            except OSError:
                if there:
                    os.replace(Path(work) / "old", folder)
                raise


def check_replaceable(folder: Path) -> None:
    """Raise `WriteError` unless a folder is of an import or a split, and holds only this, its reports and its parts."""
    if not (folder / IMPORT).is_file():
        raise WriteError(f"{folder} is not the folder of an import or a split: give another folder, or remove it first")
    for entry in folder.iterdir():
        if entry.is_dir():
            check_replaceable(entry)
        elif entry.name == "queries.json":
            raise WriteError(
                f"{entry} would be removed with {folder}: it records the questions that these episodes have answered, "
                "for which reports correct their confidence. Give another folder, or move it and start a new record"
            )
        elif not any(map(entry.match, _OWN_FILES)):
            raise WriteError(
                f"{entry} would be removed with {folder}, and no import or split has written it: move it, or give "
                "another folder"
            )


def write_import_record(folder: Path, record: dict[str, Any], schema: str) -> None:
    """Write an import record and its schema, unless it is empty, into a folder of episodes."""
    atomic_write(folder / IMPORT, dump_json(record, IMPORT).encode())
    if schema:
        atomic_write(folder / SCHEMA, schema.encode())


def _import_record(importer: Importer, sources: list[Source], buffer: ReplayBuffer) -> dict[str, Any]:
    schema, encoder = importer.schema, importer.encoder
    action = schema.action
    rows = importer.count_rows()
    return {
        "version": 1,
        "birl": __version__,
        "files": [{**source.describe(), "rows": count} for source, count in zip(sources, rows, strict=True)],
        "schema_sha256": hashlib.sha256(schema.text().encode()).hexdigest(),
        **importer.counts,
        "transitions": buffer.transition_count,
        "observation": encoder.observation_names,
        "actions": list(action.values) or action.size if action.discrete else list(action.names),
        "reward": {"lower": schema.reward.lower, "upper": schema.reward.upper},
        "loggers": list(encoder.loggers.codes),
        "time": encoder.kind_of_time,
        "extra": [name.removeprefix("extra.") for name in buffer.storage.extra_names],
        **({ROWS: logs.rows.to_json()} if (logs := buffer.storage.logs) and logs.rows else {}),
    }


def resolve_sources(logs: Logs) -> list[Source]:
    """Expand patterns to files, sorted within each pattern; other sources are returned unchanged.

    Raises:
        FileError: if a pattern matches no file.
        ForeignFileError: if a file has an unsupported format.
        ConfigError: if a file is named twice.
    """
    found: list[Path] = []
    others: list[Source] = []
    for given in logs:
        if not isinstance(given, str | os.PathLike):
            others.append(given)
            continue
        pattern = os.fspath(given)
        files = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        if not files:
            raise FileError(f"there is no file {pattern!r}: give files, or patterns in quotes such as 'logs/*.parquet'")
        found += map(Path, files)
    for file in found:
        if file.is_dir():
            raise FileError(f"{file} is a folder: name the files in it, such as '{file}/*.parquet'")
        _file_format(file)
    seen: dict[tuple[int, int], Path] = {}
    for file in found:
        describe = file.stat()
        first = seen.setdefault((describe.st_dev, describe.st_ino), file)
        if first is not file:
            also = "" if first == file else f", as {first}, too"
            raise ConfigError(f"{file} is named twice{also}: its rows would count twice; name it once")
    return [*map(LogFile, found), *others]


@dataclass(frozen=True)
class LogFile:
    """A file as a source of rows."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        with open(self.path, "rb") as stream:
            return {"file": str(self.path), "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}

    def read(
        self, columns: tuple[str, ...] | None, numbers: tuple[str, ...] = (), texts: tuple[str, ...] = ()
    ) -> Iterator[RecordBatch]:
        """See `Source.read`.

        Raises:
            FileError: if the file is damaged.
            DataError: if a column is missing, or a value does not have the type of its column.
        """
        with _convert_arrow_errors(self.path):
            yield from record_batches(self.path, columns, numbers, texts)
        require(
            "pyarrow", "logs"
        ).default_memory_pool().release_unused()  # otherwise the pool keeps the memory of a row group


def table_format(file: Path) -> str | None:
    """Return the format of a table by the suffix of its file; ``None`` if it is unknown."""
    suffixes = [suffix for suffix in file.suffixes if suffix != ".gz"]
    kind = FORMATS.get(suffixes[-1].lower()) if suffixes else None
    return None if file.suffix == ".gz" and kind not in ("csv", "json") else kind


def _file_format(file: Path) -> str:
    kind = table_format(file)
    if kind is None:
        known = ", ".join(FORMATS)
        raise ForeignFileError(f"{file} has an unknown format; log files are {known}: convert it to Parquet")
    return kind


def _read_columns(source: Source, schema: LogSchema) -> Iterator[dict[str, Column]]:
    """Iterate over chunks of the columns of a source that a schema names."""
    numbers = [each.column for each in schema.observation if not each.values] + [schema.reward.column]
    numbers += [] if schema.action.discrete else schema.action.names
    numbers += [schema.propensity.column] if schema.propensity else []
    texts = [each.column for each in schema.observation if each.values and isinstance(each.values[0], str)]
    if schema.action.column and schema.action.values and isinstance(schema.action.values[0], str):
        texts.append(schema.action.column)
    ids = (schema.episode_column, schema.logger, schema.cluster)
    texts += [name for name in ids if name is not None]  # as text, 007 and 7 differ
    batches = source.read(schema.columns, tuple(numbers), tuple(texts))
    return split_batches(batches, schema.columns, str(source))


def record_batches(
    file: Path, columns: tuple[str, ...] | None, numbers: tuple[str, ...] = (), texts: tuple[str, ...] = ()
) -> Iterator[RecordBatch]:
    """Iterate over the record batches of a file, with all columns or (except for JSON) only these.

    Each batch is validated before it is used. Damaged batches raise Arrow's error.
    """
    arrow = require("pyarrow", "logs")
    kind = _file_format(file)
    if kind == "parquet":
        check_column_count(_count_parquet_columns(file), 10, str(file))
        with require("pyarrow.parquet", "logs").ParquetFile(file, buffer_size=_BUFFER) as parquet:
            names = tuple(parquet.schema_arrow.names)
            check_columns(columns or (), names, str(file))
            rows = chunk_rows(_parquet_row_bytes(parquet, columns or names))
            for batch in parquet.iter_batches(rows, columns=None if columns is None else list(columns)):
                check_buffers(batch)
                yield batch
    elif kind == "arrow":
        with arrow.memory_map(str(file)) as source:
            try:
                reader = arrow.ipc.open_file(source)
                batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
            except arrow.ArrowInvalid:
                source.seek(0)
                batches = reader = arrow.ipc.open_stream(source)
            check_columns(columns or (), tuple(reader.schema.names), str(file))
            for batch in batches:
                part = batch if columns is None else batch.select(list(columns))
                check_buffers(part)
                yield part
    elif kind == "csv":
        text = require("pyarrow.csv", "logs")
        names, types = _infer_types(file, columns, numbers)
        check_columns(columns or (), names, str(file))
        types |= {name: arrow.string() for name in texts}
        convert = text.ConvertOptions(
            include_columns=None if columns is None else list(columns), column_types=types, strings_can_be_null=True
        )
        read, parse = text.ReadOptions(block_size=_BLOCK), text.ParseOptions(delimiter=_delimiter(file))
        with text.open_csv(file, read_options=read, parse_options=parse, convert_options=convert) as reader:
            yield from reader
    else:
        lines = require("pyarrow.json", "logs")
        _, types = _infer_types(file, columns, numbers)
        for block in _text_blocks(file):
            _refuse_crashes(file, block)
        parse = lines.ParseOptions(explicit_schema=arrow.schema(list(types.items())) if types else None)
        with lines.open_json(file, read_options=lines.ReadOptions(block_size=_BLOCK), parse_options=parse) as reader:
            for batch in reader:
                check_buffers(batch)  # Arrow does not check that texts are UTF-8
                yield batch


def _count_parquet_columns(file: Path) -> int:
    """Count the columns of a file and their nested parts from the first bytes of its footer; 0 if they are invalid.

    Arrow takes 7 seconds and 630 MB to read the footer of 200,000 columns. The footer, in Thrift's compact protocol,
    starts with a version and the list of all columns. This function reads only the length of that list.
    """
    with open(file, "rb") as stream:
        stream.seek(max(file.stat().st_size - 8, 0))
        end = stream.read()
        stream.seek(max(file.stat().st_size - 8 - int.from_bytes(end[:4], "little"), 0))
        head = stream.read(16)
    match = _FOOTER.match(head)
    if match is None or end[4:] != b"PAR1":
        return 0
    if match[2]:  # a varint: seven bits per byte, lowest first
        return sum((byte & 127) << 7 * index for index, byte in enumerate(match[2])) - 1
    return (match[1][0] >> 4) - 1  # without the root


def _parquet_row_bytes(parquet: ParquetFile, columns: tuple[str, ...]) -> float:
    """Estimate the bytes that a row of these columns takes in memory, in the row group with the largest rows.

    One row of each group is read first, because Arrow then raises an error if the metadata of a column is invalid.
    Accessing invalid metadata directly crashes the process.
    """
    wanted, describe, widest = set(columns), parquet.metadata, 0.0
    paths = [parquet.schema.column(index).path.split(".") for index in range(describe.num_columns)]  # "x.list.element"
    parts = [
        index
        for index, names in enumerate(paths)
        if any(".".join(names[: count + 1]) in wanted for count in range(len(names)))
    ]
    for number in range(describe.num_row_groups):
        next(parquet.iter_batches(1, row_groups=[number], columns=list(columns)), None)
        group = describe.row_group(number)
        chunks = [group.column(index) for index in parts]
        size = sum(max(8 * chunk.num_values, chunk.total_uncompressed_size) for chunk in chunks)
        widest = max(widest, size / max(group.num_rows, 1))
    return widest


def _infer_types(
    file: Path, columns: tuple[str, ...] | None, numbers: tuple[str, ...]
) -> tuple[tuple[str, ...], dict[str, ArrowType]]:
    """Infer names and types of the columns of a text file, reading until each column has a value.

    Arrow infers types from the first block alone, where a column may be empty or hold integers only. Columns in
    ``numbers`` therefore become floats, and lists of numbers become lists of floats.
    """
    arrow = require("pyarrow", "logs")
    names: tuple[str, ...] = ()
    found: dict[str, ArrowType] = {}
    for index, lines in enumerate(_text_blocks(file)):
        if not index:
            head = lines.split(b"\n", 1)[0]
            _check_delimiter(file, head)
            check_columns((), ("",) * _count_text_columns(file, head), str(file))
        try:
            seen = _infer_arrow_schema(file, lines)
        except arrow.ArrowException:
            if not index:
                raise
            break  # reading the whole file reports the invalid line
        names = names or tuple(seen.names)
        found |= {name: kind for name, kind in zip(seen.names, seen.types, strict=True) if _is_untyped(found.get(name))}
        if not any(_is_untyped(found.get(name)) for name in (names if columns is None else columns)):
            break
    types = {name: _float_type(kind) if name in numbers else kind for name, kind in found.items()}
    return names, {name: kind for name, kind in types.items() if not _is_untyped(kind)}


def _check_delimiter(file: Path, line: bytes) -> None:
    """Raise `DataError` if the header has another delimiter than the suffix of the file implies."""
    delimiter = _delimiter(file)
    others = [sign for sign in (";", "\t", "|", ",") if sign.encode() in line]
    if _file_format(file) == "csv" and others and delimiter.encode() not in line:
        raise DataError(
            f"{file} has {others[0]!r} between the names of its columns, and not {delimiter!r}: write it with "
            f"{delimiter!r}, or read it with --sql \"select * from read_csv('{file}', delim='{others[0]}')\""
        )


def _count_text_columns(file: Path, line: bytes) -> int:
    """Estimate the number of columns of a text file from its first line; Arrow takes minutes for a million columns."""
    if _file_format(file) == "csv":
        return line.count(_delimiter(file).encode()) + 1
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return 0  # reading the whole file reports the error
    return len(found) if isinstance(found, dict) else 0


def _text_blocks(file: Path) -> Iterator[bytes]:
    """Iterate over blocks of lines of a plain or compressed text file; the header of a CSV file precedes each block."""
    rest, first = b"", b""
    with require("pyarrow", "logs").input_stream(str(file)) as stream:
        while block := stream.read(_BLOCK):
            lines, _, rest = (rest + block).rpartition(b"\n")
            if lines.strip():
                yield first + lines + b"\n"
                if _file_format(file) == "csv" and not first:
                    first = lines.split(b"\n", 1)[0] + b"\n"
    if rest.strip():
        yield first + rest


def _refuse_crashes(file: Path, lines: bytes) -> None:
    """Raise `CorruptFileError` for JSON lines at which Arrow ends the process: ``null`` first, or nested too deeply.

    Texts may contain brackets, so that only lines without their texts count.
    """
    if _NULL_LINE.search(lines):
        raise CorruptFileError(f"{file} has a line 'null': write one object per line, or leave the line out")
    if _depth(lines) <= _MAX_NESTING:
        return
    for line in lines.split(b"\n"):
        if _depth(line) > _MAX_NESTING and (depth := _depth(_JSON_TEXT.sub(b"", line))) > _MAX_NESTING:
            raise CorruptFileError(
                f"{file} has a line with {depth} nested brackets, at most {_MAX_NESTING} are allowed ({line[:60]!r}): "
                "write one object with numbers, texts and short lists per line"
            )


def _depth(text: bytes) -> int:
    """Return the largest number of brackets that are open at the same time, counted from the lowest one."""
    letters = np.frombuffer(text, np.uint8)
    opening, closing = (letters == ord("[")) | (letters == ord("{")), (letters == ord("]")) | (letters == ord("}"))
    depth = np.cumsum(opening.astype(np.int32) - closing)
    return int(depth.max(initial=0) - depth.min(initial=0))


def _infer_arrow_schema(file: Path, lines: bytes) -> ArrowSchema:
    """Return the schema that Arrow infers from a block of lines."""
    data, kind = io.BytesIO(lines), _file_format(file)
    if kind == "json":
        _refuse_crashes(file, lines)
        text = require("pyarrow.json", "logs")
        return text.read_json(data, text.ReadOptions(block_size=len(lines))).schema
    text = require("pyarrow.csv", "logs")
    parse, convert = text.ParseOptions(delimiter=_delimiter(file)), text.ConvertOptions(strings_can_be_null=True)
    return text.read_csv(data, text.ReadOptions(block_size=len(lines)), parse, convert).schema


def _is_untyped(kind: ArrowType | None) -> bool:
    """Return whether a type is unknown: missing, null or a list of nulls."""
    types = require("pyarrow", "logs").types
    return kind is None or types.is_null(kind) or (types.is_list(kind) and types.is_null(kind.value_type))


def _float_type(kind: ArrowType) -> ArrowType:
    """Return the float type for an inferred type of numbers or lists of numbers; booleans do not change."""
    arrow = require("pyarrow", "logs")
    if arrow.types.is_list(kind):
        return arrow.list_(_float_type(kind.value_type))
    return kind if arrow.types.is_boolean(kind) else arrow.float64()


def _delimiter(file: Path) -> str:
    return "\t" if ".tsv" in file.suffixes else ","


@contextlib.contextmanager
def _convert_arrow_errors(file: Path) -> Iterator[None]:
    """Raise birl's errors in place of Arrow's errors about a file."""
    if file.stat().st_size == 0:
        raise CorruptFileError(f"{file} is empty (0 bytes): write it again")
    arrow = require("pyarrow", "logs")
    try:
        yield
    except BirlError:
        raise
    except UnicodeDecodeError as error:
        raise CorruptFileError(
            f"{file} is not UTF-8 text ({error.reason} 0x{error.object[error.start]:02x}): save it in UTF-8"
        ) from error
    except (arrow.ArrowException, OSError) as error:
        text, what = " ".join(str(error).split()), _file_format(file)
        if what == "csv" and (match := _CONVERSION.search(str(error))):
            number, wanted, value = int(match[1]), match[2], match[3]
            row, name = _find_csv_value(file, number, value)
            raise DataError(
                f"{row}{file}, column {name!r:.60}: {value!r:.60} is no {wanted}, unlike earlier values: "
                "repair it, or leave it empty and set missing in the schema"
            ) from error
        if what == "json" and (match := _TYPE_CHANGED.search(text)):
            row, value = _find_value_of_type(file, match[1], match[3])
            raise DataError(
                f"{row}{file}, column {match[1]!r:.60}: {value:.60} has the type {match[3]}, others in this "
                f"column have the type {match[2]}: give a column one type in all lines"
            ) from error
        if what == "json" and next(_text_blocks(file), b"").lstrip().startswith(b"["):
            raise CorruptFileError(f"{file} holds one array: write one object per line (.jsonl)") from error
        raise CorruptFileError(
            f"{file} cannot be read as {what} ({text:.200}): it is damaged, truncated or in another format: "
            "write it again"
        ) from error


def _find_value_of_type(file: Path, name: str, kind: str) -> tuple[str, str]:
    """Find the first JSON line whose value in a column has a type; return its row as text, and the value."""
    row = 0
    for lines in _text_blocks(file):
        for line in filter(str.strip, lines.decode("utf-8", "replace").splitlines()):
            row += 1
            try:
                value = json.loads(line).get(name)
            except (ValueError, RecursionError, AttributeError):
                break
            if _JSON_TYPES.get(type(value)) == kind:
                return f"row {row} of ", json.dumps(value)
    return "", "a value"  # nested in a list or structure


def _find_csv_value(file: Path, number: int, value: str) -> tuple[str, str]:
    """Find the row of a CSV file with a value in a column; return it as text, and the name of the column."""
    opener, name = gzip.open if file.suffix == ".gz" else open, f"column {number + 1}"
    with (
        contextlib.suppress(csv.Error),  # Python and Arrow disagree about some quotes
        opener(file, "rt", encoding="utf-8", errors="replace", newline="") as stream,
    ):
        rows = csv.reader(stream, delimiter=_delimiter(file))
        name = (next(rows)[number:] or [name])[0]
        for index, row in enumerate(rows):
            if len(row) > number and row[number] == value:
                return f"row {index + 1} of ", name
    return "", name
