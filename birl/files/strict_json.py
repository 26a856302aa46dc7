"""Strict JSON, with limits on the memory and time of parsing."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from birl.errors import ConfigError
from birl.files.reading import MAX_JSON_BYTES, MAX_VALUES, corrupt_file_error


def dump_json(value: object, name: str) -> str:
    """Write strict JSON that `parse_json` reads.

    Args:
        value: JSON values.
        name: name of the value, for messages.

    Raises:
        ConfigError: if the value cannot be written, or `parse_json` would reject it.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode("utf-8"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} cannot be written to JSON: {error}") from error
    if size > MAX_JSON_BYTES or _count_values(text) > MAX_VALUES:
        raise ConfigError(
            f"{name} is too large for JSON ({size} bytes, about {_count_values(text)} values; at most "
            f"{MAX_JSON_BYTES} and {MAX_VALUES}): keep long lists as numpy arrays"
        )
    return text


def _count_values(text: str) -> int:
    """Return an upper bound of the number of values in a JSON text."""
    return 1 + sum(text.count(sign) for sign in ",[{")


def parse_json(data: bytes, label: str) -> Any:
    """Parse strict JSON: UTF-8, no duplicate keys, no NaN or infinity, bounded size, count and nesting.

    Args:
        data: the text.
        label: the source, for messages.

    Raises:
        CorruptFileError: for any other text.
    """

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(f"number out of range: {text:.30}")
        return value

    def constant(text: str) -> NoReturn:
        raise ValueError(f"{text} is not JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a key occurs twice")
        return result

    try:
        if len(data) > MAX_JSON_BYTES or _count_values(text := data.decode("utf-8")) > MAX_VALUES:
            raise ValueError(f"more than allowed ({len(data)} bytes)")
        return json.loads(text, parse_float=number, parse_constant=constant, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise corrupt_file_error(label, f"not valid JSON: {error}") from error
