"""Checks of the rows of a log, and the encoding of each column according to its role in the schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, TypeAlias

import numpy as np

from birl.dataset.log_schema import LogSchema, ObservationColumn, PropensityColumn, RewardColumn, SegmentColumn
from birl.dataset.logs.columns import Column, RowLabel
from birl.dataset.resolution import Resolution, warn_of_lost_columns
from birl.errors import ActionError, DataError, NonFiniteError, ShapeError
from birl.spaces.conversion import number_names
from birl.types import FLOAT32_MAX, Array

_SUM_TOLERANCE: Final = 1e-3  # of the sum of the probabilities of all actions
_DATE_TEXT: Final = re.compile(r"\s*\d{4}-\d\d-\d\d(?:[T ][\d:.,]+)?\s*(Z|UTC|[+-]\d\d(?::?\d\d)?)?\s*", re.IGNORECASE)
_ONE_ZONE: Final = "write all times in one zone, such as with pandas.to_datetime(…, utc=True)"
_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True)
class Cells:
    """The cells of one column in a chunk of rows, with the checks of their values.

    Attributes:
        role: the column's role, for messages.
        name: the column's name.
        column: the values.
        where: returns the label of row i for messages.
    """

    role: str
    name: str
    column: Column
    where: RowLabel

    def format(self, row: int) -> str:
        """Return the value of a row as text."""
        column, value = self.column, self.column.values[row]
        if column.missing[row]:
            return "missing"
        if column.labels is not None:
            return f"{column.labels[int(value)]!r:.60}" if np.ndim(value) == 0 else "a list of text"
        return str(value)[:28] if column.kind == "dates" else f"{np.asarray(value).tolist()!s:.80}"

    def error(self, row: int, text: str, kind: type[DataError] = DataError) -> DataError:
        """Return the error for a row: its label, the column, the value, and ``text``."""
        return kind(f"{self.where(row)}, column {self.name!r:.60}: the {self.role} is {self.format(row)}{text}")

    def check(self, wrong: Array, advice: str, kind: type[DataError] | None = None) -> None:
        """Raise an error for the first row where ``wrong`` ``[n]`` is true; `NonFiniteError` for NaN and infinity."""
        if wrong.any():
            row = int(np.argmax(wrong))
            finite = np.isfinite(self.column.values[row]).all()
            raise self.error(row, f"; {advice}", kind or (DataError if finite else NonFiniteError))

    def check_present(self, advice: str) -> None:
        """Raise `NonFiniteError` if a value is missing."""
        self.check(self.column.missing, advice, NonFiniteError)

    def check_single(self, advice: str) -> None:
        """Raise `ShapeError` if the values are lists."""
        if self.column.values.ndim > 1:
            raise self.error(int(np.argmin(self.column.missing)), f", a list; {advice}", ShapeError)

    def numbers(self, advice: str) -> Array:
        """Return the values of a numeric column. Raises `DataError` for other columns."""
        column = self.column
        if column.missing.all() and not (column.labels is None and column.values.ndim == 2):
            return np.zeros(len(column.missing))  # a column of nulls has no type of its own
        if column.labels is not None or column.values.dtype.kind not in "biuf":
            row = int(np.argmin(column.missing))
            if column.labels is not None and column.values.ndim == 1:  # name the text that is no number
                is_text = np.array([not _is_number(label) for label in column.labels], bool)
                wrong = is_text[column.values] & ~column.missing
                row = int(np.argmax(wrong)) if wrong.any() else row
            raise self.error(row, f", {column.kind}; it must be numbers: {advice}")
        return column.values

    def indices(self, values: tuple[str | int | bool, ...], unknown: bool = False) -> Array:
        """Return the index of each value in ``values``: ``len(values)`` for others if ``unknown``, -1 if missing."""
        column = self.column
        self.check_single("give one category in each row")
        is_text = isinstance(values[0], str)
        known = {value: index for index, value in enumerate(values)}
        given, index = column.distinct()
        other = len(values) if unknown else -2
        same_kind = is_text == (column.labels is not None)
        codes = [known.get(value, other) if same_kind else other for value in given]
        found = np.array(codes, np.int64)[index] if codes else np.full(len(index), -1)
        found = np.where(column.missing, len(values) if unknown else -1, found)
        if unknown and not same_kind and not column.missing.all():
            raise self.error(
                int(np.argmin(column.missing)),
                f", {column.kind}, but values are {'text' if is_text else 'no text'}: all would be unknown; write "
                "values like those of the column",
            )
        hint = "add it to values" + (", or give unknown = true" if self.role in ("observation", "segment") else "")
        kind = ActionError if self.role == "action" else DataError
        self.check(found == -2, f"it must be one of {list(values)!s:.200}: {hint}", kind)
        return found


CellsOf: TypeAlias = Callable[[str, str], Cells]
"""Returns the cells of a chunk, given the role and the name of their column."""


class LabelEncoder:
    """Integer codes of the values of a column, in order of first appearance."""

    def __init__(self) -> None:
        self.codes: dict[str | float | bool, int] = {}

    def encode(self, column: Column) -> Array:
        """Return the code of each row's value; -1 if it is missing."""
        values, index = column.distinct()
        rows = np.flatnonzero(~column.missing)[::-1]
        first = np.full(len(values), len(index))
        first[index[rows]] = rows
        codes = np.full(len(values), -1)
        for position in np.argsort(first, kind="stable")[: np.count_nonzero(first < len(index))].tolist():
            codes[position] = self.codes.setdefault(values[position], len(self.codes))
        return np.where(column.missing, -1, codes[index] if len(codes) else -1)


class RowEncoder:
    """Encoder of the rows of a log, in chunks.

    Args:
        schema: the roles of columns.

    Attributes:
        observation_names, action_names: the name of each element of an observation and of an action; empty before the
            first chunk.
        drop_rules: why episodes are dropped. Value ``i + 1`` in the column ``drop`` stands for rule ``i``.
        loggers, clusters: the codes of loggers and clusters.
        kind_of_time: ``"dates"`` or ``"numbers"``; empty without times, and before the first chunk.
    """

    def __init__(self, schema: LogSchema) -> None:
        self.schema = schema
        self.observation_names: list[str] = []
        self.action_names: list[str] = []
        parts: list[tuple[str, ObservationColumn | RewardColumn | PropensityColumn]] = []
        parts += [("observation", each) for each in schema.observation]
        parts += [("reward", schema.reward), *(("outcome", each) for each in schema.outcome)]
        parts += [("propensity", schema.propensity)] if schema.propensity else []
        self.drop_rules = [f"{role} {part.column!r} is missing" for role, part in parts if part.missing == "drop"]
        self.loggers, self.clusters, self._episodes = LabelEncoder(), LabelEncoder(), LabelEncoder()
        self._count = 0  # of encoded rows
        self.kind_of_time = ""
        self._zoned: dict[str, bool] = {}
        self._kinds_of_ids: dict[str, bool] = {}
        self._action_width = 0
        self._widths: dict[str, tuple[int, ...]] = {}
        self._resolutions: dict[str, tuple[Resolution, int]] = {}

    def learn_widths(self, columns: Mapping[str, Column]) -> bool:
        """Record the width of each observation column; return whether all widths are known by now.

        Rows whose values are all missing may precede the rows that reveal the width. Encode them afterwards.
        """
        numbers = [each.column for each in self.schema.observation if not each.values]
        for name in numbers:
            if not columns[name].untyped:
                self._widths.setdefault(name, columns[name].values.shape[1:])
        return len(self._widths) == len(numbers)

    def encode(self, columns: Mapping[str, Column], where: RowLabel) -> dict[str, Array]:
        """Encode a chunk of rows as arrays ``[n, …]``.

        Args:
            columns: the columns of the chunk.
            where: returns the label of row i for messages.

        Returns:
            ``episode``, ``observation``, ``action``, ``reward``, ``terminated``, ``truncated`` and ``drop`` (0: kept);
            ``time`` and ``mask`` if the schema names them; ``final``, the times at which rewards and outcomes are
            final, if they have delays; ``extra.<name>`` for each extra column.
        """
        schema = self.schema

        def cells(role: str, name: str) -> Cells:
            return Cells(role, name, columns[name], where)

        count = len(next(iter(columns.values())).missing)
        rows: dict[str, Array] = {"episode": np.arange(self._count, self._count + count)}
        if schema.episode_column is not None:
            rows["episode"] = self._encode_ids(cells("episode", schema.episode_column), self._episodes)
        self._count += count
        self._drop = np.zeros(count, np.int16)
        if schema.time is not None:
            rows["time"] = self._encode_time(cells("time", schema.time))
        rows["observation"] = self._encode_observation(cells, where)
        rows["action"] = self._encode_action(cells, where)
        rows["reward"] = self._encode_reward(schema.reward, cells("reward", schema.reward.column))
        for mark in ("terminated", "truncated"):
            name = getattr(schema, mark)
            rows[mark] = np.zeros(count, bool) if name is None else _encode_mark(cells(f"mark {mark!r}", name))
        if schema.action.mask is not None:
            rows["mask"] = self._encode_mask(cells("action mask", schema.action.mask), rows["action"])
        if schema.propensity is not None:
            given = cells("propensity", schema.propensity.column)
            rows |= self._encode_propensity(schema.propensity, given, rows["action"])
        if schema.delays:
            rows["final"] = self._encode_final(cells, self.seconds(rows["time"]))
        for each in schema.outcome:
            rows[f"extra.{each.column}"] = self._encode_reward(each, cells("outcome", each.column))[:, 0]
        for part in schema.segment:
            rows[f"extra.{part.column}"] = _encode_segment(part, cells("segment", part.column))
        if schema.logger is not None:
            rows["extra.logger"] = self._encode_ids(cells("logger", schema.logger), self.loggers)
        if schema.cluster is not None:
            rows["extra.cluster"] = self._encode_ids(cells("cluster", schema.cluster), self.clusters)
        rows["drop"] = self._drop
        return rows

    def _encode_ids(self, cells: Cells, labels: LabelEncoder) -> Array:
        cells.check_single("give it one value in each row")
        cells.check_present(f"give every row its {cells.role}, or drop such rows first")
        is_text = cells.column.labels is not None
        if self._kinds_of_ids.setdefault(cells.name, is_text) != is_text:
            advice = "which it was not before: equal ids would differ; write them alike in all files"
            raise cells.error(0, f", {cells.column.kind}, {advice}")
        return labels.encode(cells.column)

    def _encode_time(self, cells: Cells) -> Array:
        cells.check_present("give every row its time")
        return self._encode_times(cells)

    def _encode_final(self, cells: CellsOf, times: Array) -> Array:
        """Return when the reward and all outcomes of each row are final, float64; infinity if unknown."""
        final = times
        for each in (self.schema.reward, *self.schema.outcome):
            if each.delay is not None:
                final = np.maximum(final, times + each.delay)
            if each.known_at is None:
                continue
            part = cells(f"time at which the {each.role} is known", each.known_at)
            if part.column.missing.all():
                return np.full(len(times), np.inf)
            known = np.where(part.column.missing, np.inf, self.seconds(self._encode_times(part)))
            part.check(known < times, "it is before the time of its step: repair it, or name another column")
            final = np.maximum(final, known)
        return final

    def _encode_times(self, cells: Cells) -> Array:
        """Encode numbers or dates; values of missing ones have no meaning."""
        column, rows = cells.column, np.flatnonzero(~cells.column.missing)
        first = int(rows[0]) if len(rows) else 0
        if column.labels is not None or column.values.ndim > 1 or column.kind == "true/false":
            if column.labels is not None and column.values.ndim == 1:
                _check_one_zone(cells)
            advice = "it must be numbers or dates: convert it, such as with pandas.to_datetime or a cast to timestamp"
            raise cells.error(first, f", {column.kind}; {advice}")
        kind = "dates" if column.kind == "dates" else "numbers"
        if self.kind_of_time not in ("", kind):
            raise cells.error(first, f"; times are {kind} here, and {self.kind_of_time} before: give them one type")
        self.kind_of_time = kind
        if kind == "dates":
            if self._zoned.setdefault(kind, column.zoned) != column.zoned:
                here, before = ("a", "no") if column.zoned else ("no", "a")
                raise cells.error(first, f", with {here} time zone; earlier times have {before} time zone: {_ONE_ZONE}")
            return column.values.view(np.int64)
        cells.check(~np.isfinite(column.values) & ~column.missing, "a time must be a finite number")
        return column.values.astype(np.float64 if column.values.dtype.kind == "f" else np.int64)

    def seconds(self, times: Array) -> Array:
        """Return times as float64; dates as seconds since 1970."""
        return times / _NANOSECONDS if self.kind_of_time == "dates" else times.astype(np.float64)

    def parse_time(self, value: float | str, name: str = "censored_after") -> float:
        """Convert the field ``name`` of the schema to the unit of `seconds`; a date without a time zone is UTC."""
        if self.kind_of_time == "dates":
            try:
                when = datetime.fromisoformat(str(value))
            except ValueError as error:
                raise DataError(
                    f"{name} is {value!r:.60}, but times are dates: write it like 2026-01-31T12:00:00"
                ) from error
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, str):
            raise DataError(f"{name} is {value!r:.60}, but times are numbers: give a number")
        return float(value)

    def _handle_missing(self, cells: Cells, rule: str, advice: str) -> None:
        """Mark the episodes of missing values as dropped, or raise an error, as ``rule`` says."""
        if rule == "drop":
            number = 1 + self.drop_rules.index(f"{cells.role} {cells.name!r} is missing")
            self._drop[cells.column.missing & (self._drop == 0)] = number
        elif rule == "error":
            cells.check_present(advice)

    # -- observations ----------------------------------------------------------------------------------------------

    def _encode_observation(self, cells: CellsOf, where: RowLabel) -> Array:
        pieces, names = [], []
        for each in self.schema.observation:
            encode = _one_hot if each.values else self._encode_numbers
            piece, piece_names = encode(each, part := cells("observation", each.column))
            if each.values and not each.unknown:
                self._handle_missing(part, each.missing, "say unknown = true, or missing = 'drop', or repair it")
            pieces.append(piece)
            names += piece_names
        if self.observation_names and names != self.observation_names:
            new = min({*names} ^ {*self.observation_names})
            raise ShapeError(
                f"{where(0)}: an observation has {len(names)} numbers, earlier ones have {len(self.observation_names)} "
                f"({new!r:.80}): give all lists of a column the same length"
            )
        self.observation_names = names
        return np.concatenate(pieces, 1)

    def _encode_numbers(self, each: ObservationColumn, cells: Cells) -> tuple[Array, list[str]]:
        name, column = each.column, cells.column
        if column.untyped:
            if name not in self._widths and column.values.ndim > 1:
                raise cells.error(0, "; all lists are missing, so their length is unknown: leave it out", ShapeError)
            column = replace(column, values=np.zeros((len(column.missing), *self._widths.get(name, ()))))
            cells = replace(cells, column=column)
        values, missing = cells.numbers("list its categories in values = […]"), column.missing
        advice = "say what it is, missing = 'drop', 'fill' or 'forward', or repair it"
        self._handle_missing(cells, each.missing, advice)
        found = _to_float32(values[:, None] if values.ndim == 1 else values)
        self._add_resolution(name, values.reshape(len(values), -1)[~missing])
        found[missing] = np.nan if each.missing == "forward" else np.float32(each.fill or 0)
        limits = f"it must be a number from {-FLOAT32_MAX:.3g} to {FLOAT32_MAX:.3g}: scale or repair it"
        cells.check(~np.isfinite(found).all(1) & ~missing, limits, NonFiniteError)
        names = number_names(name, column.values)
        if each.indicator:
            return np.concatenate([found, missing[:, None].astype(np.float32)], 1), [*names, f"{name} is missing"]
        return found, names

    def _add_resolution(self, name: str, values: Array) -> None:
        with np.errstate(invalid="ignore", over="ignore"):  # numbers that are not finite are refused
            self._resolutions.setdefault(name, (Resolution(), values.shape[1]))[0].add(values)

    def warn_of_lost_resolution(self) -> None:
        """Warn of columns of observations whose resolution float32 loses."""
        found: list[str] = []
        for name, (resolution, width) in self._resolutions.items():
            names = [f"column {name!r}"] if width == 1 else [f"column {name!r}[{index}]" for index in range(width)]
            found += resolution.lost(names)
        warn_of_lost_columns(found, "where the table is made")

    # -- actions and rewards ---------------------------------------------------------------------------------------

    def _encode_action(self, cells: CellsOf, where: RowLabel) -> Array:
        action = self.schema.action
        parts = [cells("action", name) for name in action.names]
        for part in parts:
            part.check_present("an action cannot be guessed: drop it first")
        self.action_names = list(action.names)
        if action.values:
            return parts[0].indices(action.values)[:, None]
        if action.discrete:
            values = parts[0].numbers("list them in values = […] instead of size")
            parts[0].check_single("a discrete action is one value")
            parts[0].check(
                ~((values >= 0) & (values < action.count) & (values == np.floor(values))),
                f"it must be a whole number from 0 to {action.count - 1}: correct size, or list the actions in "
                "values = […]",
                ActionError,
            )
            return values.astype(np.int64)[:, None]
        pieces, self.action_names = [], []
        for part in parts:
            values = part.numbers("say kind = 'discrete' and list values = […]")
            self.action_names += number_names(part.name, values)
            pieces.append(_to_float32(values.reshape(len(values), -1)))
            part.check(np.asarray(~np.isfinite(pieces[-1]).all(1)), "it must be a finite number: repair it")
        found = np.concatenate(pieces, 1)
        if self._action_width not in (0, found.shape[1]):
            raise ShapeError(
                f"{where(0)}: an action has {found.shape[1]} numbers, earlier ones have {self._action_width}: "
                "give all actions the same length"
            )
        self._action_width = found.shape[1]
        return found

    def _encode_reward(self, reward: RewardColumn, cells: Cells) -> Array:
        missing = cells.column.missing
        values = cells.numbers("read the column as numbers")
        cells.check_single("it must be one number")
        self._handle_missing(cells, reward.missing, "say missing = 'drop' or 'fill', or repair it")
        values = np.where(missing, reward.fill or 0.0, values)
        found = _to_float32(values)
        cells.check(~np.isfinite(found), "it must be a finite number: repair it")
        for end, bound in (("lower", reward.lower), ("upper", reward.upper)):
            if bound is not None:
                outside = values < bound if end == "lower" else values > bound
                cells.check(outside & ~missing, f"{end} is {bound}: repair the row, or correct {end}")
        return found[:, None]

    def _encode_mask(self, cells: Cells, action: Array) -> Array:
        values, count = cells.column.values, self.schema.action.count
        cells.check_present("give every row its mask")
        if values.shape[1:] != (count,):
            raise cells.error(0, f"; it must be a list of {count} zeros and ones, one for each action", ShapeError)
        cells.check(((values != 0) & (values != 1)).any(1), "it must be zeros and ones")
        cells.check(~(values != 0).any(1), "it must allow at least one action")
        forbidden = np.take_along_axis(values, action, 1)[:, 0] == 0
        if forbidden.any():
            row = int(np.argmax(forbidden))
            label = (self.schema.action.values or range(count))[int(action[row, 0])]
            advice = "repair the row, or log the mask that applied"
            raise cells.error(row, f"; it does not allow the logged action {label}: {advice}", ActionError)
        return values.astype(np.uint8)

    def _encode_propensity(self, part: PropensityColumn, cells: Cells, action: Array) -> dict[str, Array]:
        """Return the log probability of the logged action; for a vector also the probabilities of all actions."""
        kind, count, present = part.kind, self.schema.action.count, ~cells.column.missing
        self._handle_missing(cells, part.missing, "say missing = 'drop', or repair it")
        if cells.column.untyped and kind == "vector":
            cells = replace(cells, column=replace(cells.column, values=np.zeros((len(present), count))))
        values = np.asarray(cells.numbers("read the column as numbers"), np.float64)

        def check_values(wrong: Array, advice: str) -> None:
            cells.check(wrong & present, advice)

        if (values.ndim == 2) != (kind == "vector"):
            advice = "'vector' is for lists with the probability of every action, the others are for one number"
            raise cells.error(0, f", but kind is {kind!r}: {advice}", ShapeError)
        if kind in ("log", "log_density"):
            check_values(~np.isfinite(values), "it must be a finite number")
            if kind == "log":
                advice = "a logarithm of a probability is at most 0: give kind = 'probability' if it is none"
                check_values(values > 0, advice)
            return {"extra.log_propensity": np.where(present, values, 0.0)}
        found: dict[str, Array] = {}
        if kind == "vector":
            if values.shape[1] != count:
                raise cells.error(
                    0, f": {values.shape[1]} probabilities for {count} actions: give each one", ShapeError
                )
            check_values(~np.all((values >= 0) & (values <= 1), axis=1), "probabilities must be from 0 to 1")
            not_one = abs(values.sum(1) - 1) > _SUM_TOLERANCE
            check_values(not_one, "its sum must be 1: give the probabilities of all actions")
            found["extra.propensities"] = np.where(present[:, None], values, 1 / count)
            values = np.take_along_axis(values, action, 1)[:, 0]
            check_values(values == 0, "it says that the logged action was impossible: check the order of the actions")
        else:
            positive = (values > 0) & np.isfinite(values)
            check_values(~positive, "it must be above 0: an action that was logged was possible")
        if kind == "probability":
            of_density = "a density, of continuous actions, needs kind = 'density'"
            remedy = "divide percentages by 100" if self.schema.action.discrete else of_density
            check_values(values > 1, f"a probability is at most 1: {remedy}")
        return {"extra.log_propensity": np.log(np.where(present, values, 1.0)), **found}


def _check_one_zone(cells: Cells) -> None:
    """Raise `DataError` for the first text whose time zone is another than that of the first one."""
    column = cells.column
    matches = [_DATE_TEXT.fullmatch(label) for label in column.labels or ()]
    zones = np.array(["no date" if each is None else each[1] or "" for each in matches])[column.values]
    rows = np.flatnonzero(~column.missing & (zones != "no date"))
    other = rows[zones[rows] != zones[rows[0]]] if len(rows) else rows
    if len(other):
        here, first = (f"the time zone {zone}" if zone else "no time zone" for zone in zones[[other[0], rows[0]]])
        raise cells.error(int(other[0]), f", with {here}; {cells.where(int(rows[0]))} has {first}: {_ONE_ZONE}")


def _encode_segment(each: SegmentColumn, cells: Cells) -> Array:
    advice = "say unknown = true in its categories, or repair it"
    if each.values:
        if not each.unknown:
            cells.check_present(advice)
        return cells.indices(each.values, each.unknown)
    cells.check_present(advice)
    cells.check_single("it must be one number")
    values = cells.numbers("list its categories in values = […]").astype(np.float64)
    cells.check(~np.isfinite(values), "it must be a finite number: repair it")
    return values


def _one_hot(each: ObservationColumn, cells: Cells) -> tuple[Array, list[str]]:
    index = cells.indices(each.values, each.unknown)
    names = [f"{each.column} = {value}" for value in each.values] + [f"{each.column} is unknown"] * each.unknown
    hot = np.zeros((len(index), len(names)), np.float32)
    hot[np.arange(len(index)), np.maximum(index, 0)] = 1  # episodes with missing values are dropped
    return hot, names


def _encode_mark(cells: Cells) -> Array:
    """Return the marks of the ends of episodes as booleans."""
    cells.check_present("it must be 0 or 1")
    values = cells.numbers("mark ends with 1 and all else with 0")
    cells.check_single("it must be 0 or 1")
    cells.check((values != 0) & (values != 1), "it must be 0 or 1")
    return values.astype(bool)


def _to_float32(values: Array) -> Array:
    """Convert numbers to float32; numbers beyond its range become infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values).astype(np.float32)


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True
