"""What a dataset remembers of the logs that it was made of, and a model of those that it learned from.

A record goes from an import to the dataset, from there to what learns, and into its files (ADR 0047). So a saved policy
says which columns it reads, in which order and how they become numbers, and by which episodes it must not be judged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from birl.dataset.log_schema import LogSchema, ObservationColumn
from birl.errors import ConfigError, CorruptFileError
from birl.files import parse_json

IMPORT: Final = "import.json"
SCHEMA: Final = "schema.toml"


class Origin(NamedTuple):
    """Where episodes come from.

    Attributes:
        own: digest of what the import, or the split, noted of them.
        whole: digest of what was split; empty if they are no part.
        split: digest of how it was split; empty as well.
    """

    own: str
    whole: str = ""
    split: str = ""

    def shares(self, other: Origin) -> bool:
        """Whether there may be episodes that are in both.

        The same, a whole and its part, or parts of different splits of one whole.
        """
        if self.own in (other.own, other.whole) or self.whole == other.own:
            return True
        return bool(self.whole) and self.whole == other.whole and self.split != other.split


@dataclass(frozen=True)
class LogRecord:
    """Logs that became episodes.

    Attributes:
        schema: what their columns mean.
        numbers: what each number of an observation is.
        origins: where the episodes come from; empty for a table in memory.
    """

    schema: LogSchema
    numbers: tuple[str, ...]
    origins: tuple[Origin, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The record in JSON form; see `from_json`."""
        return {"schema": self.schema.text(), "numbers": list(self.numbers), "origins": [list(x) for x in self.origins]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LogRecord:
        """Inverse of `to_json`."""
        origins = tuple(Origin(*map(str, each)) for each in data["origins"])
        return cls(LogSchema.parse(data["schema"]), tuple(map(str, data["numbers"])), origins)

    def shares(self, other: LogRecord) -> bool:
        """Whether there may be episodes that are in both."""
        return any(own.shares(each) for own in self.origins for each in other.origins)

    def observation(self) -> list[dict[str, Any]]:
        """How columns become numbers, in the order of the observation, in JSON form.

        Each has ``column``, ``size`` (how many numbers it becomes) and ``missing`` (``error``, ``drop``, ``fill``,
        ``forward``, or ``unknown`` of categories that count it so). Besides, categories have ``values`` and
        ``unknown``, others ``length`` (of a list in the column, or ``null``), ``fill`` and ``indicator``.
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
        """The columns of actions and, of choices, what their numbers mean, in JSON form."""
        action = self.schema.action
        if action.discrete:
            return {"column": action.column, "values": list(action.values) or list(range(action.count))}
        return {"columns": list(action.names)}


def load_record(folder: Path) -> LogRecord | None:
    """The record of a folder of episodes; ``None`` if no import wrote it.

    Raises:
        CorruptFileError: if it is damaged.
    """
    file = folder / IMPORT
    try:
        data = file.read_bytes()
        text = (folder / SCHEMA).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptFileError(f"{folder}: what the import noted cannot be read ({error}): import again") from error
    notes = parse_json(data, str(file))
    try:
        part, numbers = notes.get("part"), tuple(map(str, notes["observation"]))
        origin = (
            Origin(sha256_digest(data)) if part is None else Origin(sha256_digest(data), part["of"], split_digest(part))
        )
        return LogRecord(LogSchema.parse(text), numbers, (origin,))
    except (AttributeError, KeyError, TypeError, ConfigError) as error:
        raise CorruptFileError(
            f"{file} is not what an import writes ({type(error).__name__}: {error!s:.100}): import the logs again"
        ) from error


def sha256_digest(data: bytes) -> str:
    """Digest of the bytes of an ``import.json``."""
    return hashlib.sha256(data).hexdigest()


def split_digest(part: Mapping[str, Any]) -> str:
    """Digest of how a whole was split, of what its part notes."""
    how = {name: part[name] for name in ("by", "seed", "shares")}
    return sha256_digest(json.dumps(how, sort_keys=True).encode())


def check_same_columns(one: LogRecord | None, other: LogRecord | None, who: str, what: str) -> None:
    """Raise `ConfigError` if both are known, and observations or actions are made of columns in another way.

    Args:
        one: of ``who``.
        other: of ``what``.
        who, what: names for the message.
    """
    if one is None or other is None:
        return
    for name, own, given in (
        ("observations", one.observation(), other.observation()),
        ("actions", one.action(), other.action()),
    ):
        if own != given:
            raise ConfigError(
                f"{who} has logs in which {name} are made of {_format_json(own)}, but {what} makes them of "
                f"{_format_json(given)}: import the logs by the schema of the model, or train a new one"
            )


def merge_records(one: LogRecord | None, other: LogRecord | None, who: str, what: str) -> LogRecord | None:
    """The record of what has learned from both; raises as `check_same_columns`."""
    check_same_columns(one, other, who, what)
    if one is None or other is None:
        return other if one is None else one
    return replace(one, origins=tuple(dict.fromkeys((*one.origins, *other.origins))))


def _format_json(described: Any) -> str:
    text = json.dumps(described, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"
