"""Records of the logs that a dataset was imported from, or that a model was trained on.

An import creates the record. The dataset passes it to the learner, which saves it with the model (ADR 0047). A saved
policy therefore specifies the columns that it reads, their order and encoding, and the episodes that are not held out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from birl.dataset.log_schema import LogSchema, ObservationColumn
from birl.dataset.row_sketch import RowSketch
from birl.errors import ConfigError, CorruptFileError, FileError
from birl.files import parse_json

IMPORT: Final = "import.json"
SCHEMA: Final = "schema.toml"
ROWS: Final = "row_digests"


class Origin(NamedTuple):
    """The import, and possibly the split, that episodes come from.

    Attributes:
        digest: digest of the record of the import or of the part.
        whole: digest of the record that was split; empty for unsplit episodes.
        split: digest of the settings of the split; empty for unsplit episodes.
    """

    digest: str
    whole: str = ""
    split: str = ""

    def shares(self, other: Origin) -> bool:
        """Return whether the two may have common episodes.

        This holds for equal origins, for a whole and its part, and for parts of different splits of one whole.
        """
        if self.digest in (other.digest, other.whole) or self.whole == other.digest:
            return True
        return bool(self.whole) and self.whole == other.whole and self.split != other.split


@dataclass(frozen=True)
class LogRecord:
    """Schema, feature names and origins of imported logs.

    Attributes:
        schema: the meaning of the columns.
        numbers: the name of each element of an observation.
        origins: the origins of the episodes; empty for a table in memory.
        dates: whether times are dates, in seconds since 1970.
        rows: digests of the rows; ``None`` if they are unknown, as in files of earlier versions.
    """

    schema: LogSchema
    numbers: tuple[str, ...]
    origins: tuple[Origin, ...] = ()
    dates: bool = False
    rows: RowSketch | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the record in JSON form; see `from_json`."""
        rows = {} if self.rows is None else {ROWS: self.rows.to_json()}
        origins = [list(origin) for origin in self.origins]
        return {"schema": self.schema.text(), "numbers": list(self.numbers), "origins": origins, **rows}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LogRecord:
        """Make a record from the result of `to_json`."""
        origins = tuple(Origin(*map(str, each)) for each in data["origins"])
        rows = RowSketch.from_json(data[ROWS]) if ROWS in data else None
        return cls(LogSchema.parse(data["schema"]), tuple(map(str, data["numbers"])), origins, rows=rows)

    def shares(self, other: LogRecord) -> bool:
        """Return whether the two may have common episodes."""
        return any(origin.shares(each) for origin in self.origins for each in other.origins)

    def observation(self) -> list[dict[str, Any]]:
        """Return the encoding of the columns of an observation, in order, in JSON form.

        Each column has ``column``, ``size`` (its number of elements in the observation) and ``missing`` (``error``,
        ``drop``, ``fill`` or ``forward``, or ``unknown`` for categories that encode it so). Categories also have
        ``values`` and ``unknown``. Other columns have ``length`` (of their lists, or ``null``), ``fill`` and
        ``indicator``.
        """
        found, begin = [], 0
        for each in self.schema.observation:
            described = self._describe_column(each, begin)
            begin += described["size"]
            found.append(described)
        return found

    def _describe_column(self, each: ObservationColumn, begin: int) -> dict[str, Any]:
        if each.values:
            size = len(each.values) + each.unknown
            missing = "unknown" if each.unknown else each.missing
            described = {"values": list(each.values), "unknown": each.unknown}
            return {"column": each.column, "size": size, "missing": missing, **described}
        length = 0
        while self.numbers[begin + length : begin + length + 1] == (f"{each.column}[{length}]",):
            length += 1
        described = {"length": length or None, "fill": each.fill, "indicator": each.indicator}
        return {"column": each.column, "size": max(length, 1) + each.indicator, "missing": each.missing, **described}

    def action(self) -> dict[str, Any]:
        """Return the columns of actions and, for discrete actions, the value of each index, in JSON form."""
        action = self.schema.action
        if action.discrete:
            return {"column": action.column, "values": list(action.values) or list(range(action.count))}
        return {"columns": list(action.names)}


def load_record(folder: Path) -> LogRecord | None:
    """Load the record of a folder of episodes; ``None`` if no import wrote it.

    Raises:
        CorruptFileError: if it is damaged.
    """
    try:
        record, text, digest = read_import_files(folder)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileError):
            raise
        raise CorruptFileError(f"{folder}: the record of the import cannot be read ({error}): import again") from error
    if not text:
        return None
    try:
        part, numbers = record.get("part"), tuple(map(str, record["observation"]))
        origin = Origin(digest) if part is None else Origin(digest, part["of"], split_digest(part))
        rows = RowSketch.from_json(record[ROWS]) if ROWS in record else None
        return LogRecord(LogSchema.parse(text), numbers, (origin,), record.get("time") == "dates", rows)
    except (AttributeError, KeyError, TypeError, ValueError, ConfigError) as error:
        raise CorruptFileError(
            f"{folder / IMPORT} is no record of an import ({type(error).__name__}: {error!s:.100}): import again"
        ) from error


def read_import_files(folder: Path) -> tuple[dict[str, Any], str, str]:
    """Read the files of an import: return its record, the text of its schema, and the digest of its record.

    The schema is empty if the episodes are in the format of another program, and not from a table.
    """
    data, file = (folder / IMPORT).read_bytes(), folder / SCHEMA
    record = parse_json(data, str(folder / IMPORT))
    text = "" if isinstance(record, dict) and "format" in record else file.read_text(encoding="utf-8")
    return record, text, sha256_digest(data)


def sha256_digest(data: bytes) -> str:
    """Compute the SHA-256 digest of an ``import.json``, given its bytes."""
    return hashlib.sha256(data).hexdigest()


def split_digest(part: Mapping[str, Any]) -> str:
    """Compute the digest of the settings of a split from the record of one of its parts."""
    settings = {name: part[name] for name in ("by", "seed", "shares")}
    return sha256_digest(json.dumps(settings, sort_keys=True).encode())


def check_same_columns(one: LogRecord | None, other: LogRecord | None, who: str, what: str) -> None:
    """Raise `ConfigError` if both records are known and encode observations or actions differently.

    Args:
        one: record of ``who``.
        other: record of ``what``.
        who, what: names for the message.
    """
    if one is None or other is None:
        return
    for name, first, second in (
        ("observations", one.observation(), other.observation()),
        ("actions", one.action(), other.action()),
    ):
        if first != second:
            raise ConfigError(
                f"{who} has logs whose {name} are encoded as {_format_json(first)}, but {what} encodes them as "
                f"{_format_json(second)}: import the logs with the schema of the model, or train a new one"
            )


def merge_records(one: LogRecord | None, other: LogRecord | None, who: str, what: str) -> LogRecord | None:
    """Merge the records of two datasets or models; raises as `check_same_columns` does."""
    check_same_columns(one, other, who, what)
    if one is None or other is None:
        return other if one is None else one
    rows = None if one.rows is None or other.rows is None else one.rows.merge(other.rows)
    return replace(one, origins=tuple(dict.fromkeys((*one.origins, *other.origins))), rows=rows)


def _format_json(described: object) -> str:
    """Format as JSON text of at most about 300 characters, for messages."""
    text = json.dumps(described, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"
