"""Check the rows of a log and encode each column according to its role in the schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from birl.dataset.log_schema import Cut, LogSchema, ObservationColumn, PropensityColumn, RewardColumn
from birl.dataset.logs.columns import Column, RowLabel
from birl.errors import ActionError, DataError, NonFiniteError, ShapeError
from birl.types import FLOAT32_MAX, Array

_SUM_TOLERANCE: Final = 1e-3  # of the sum of the probabilities of all actions
_NANOSECONDS: Final = 1_000_000_000


class LabelEncoder:
    """Integer codes of the values of a column, in order of first appearance."""

    def __init__(self) -> None:
        self.codes: dict[str | float | bool, int] = {}

    def encode(self, column: Column) -> Array:
        """The code of each row's value; -1 if it is missing."""
        values, index = column.distinct()
        rows = np.flatnonzero(~column.missing)[::-1]
        first = np.full(len(values), len(index))
        first[index[rows]] = rows
        codes = np.full(len(values), -1)
        for position in np.argsort(first, kind="stable")[: np.count_nonzero(first < len(index))].tolist():
            codes[position] = self.codes.setdefault(values[position], len(self.codes))
        return np.where(column.missing, -1, codes[index] if len(codes) else -1)


class RowEncoder:
    """Encodes the rows of a log in chunks.

    Args:
        schema: the roles of columns.

    Attributes:
        observation_names: the name of each element of an observation; empty before the first chunk.
        drop_rules: why episodes are dropped. Value ``i + 1`` in the column ``drop`` stands for rule ``i``.
        loggers, clusters: the codes of loggers and clusters.
    """

    def __init__(self, schema: LogSchema) -> None:
        self.schema = schema
        self.observation_names: list[str] = []
        self.drop_rules = [f"{role} {name!r} is missing" for role, name in self._drop_conditions()]
        self.loggers = LabelEncoder()
        self._episodes, self.clusters = LabelEncoder(), LabelEncoder()
        self._kind_of_time = ""
        self._kinds_of_ids: dict[str, bool] = {}
        self._action_width = 0
        self._widths: dict[str, tuple[int, ...]] = {}

    def _drop_conditions(self) -> list[tuple[str, str]]:
        """Roles and names of the columns whose missing values drop an episode."""
        parts: list[tuple[str, ObservationColumn | RewardColumn | PropensityColumn | None]] = [
            ("observation", each) for each in self.schema.observation
        ]
        parts += [("reward", self.schema.reward), ("propensity", self.schema.propensity)]
        return [(role, part.column) for role, part in parts if part is not None and part.missing == "drop"]

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
            ``time`` and ``mask`` if the schema names them; ``extra.<name>`` for each extra column.
        """
        schema = self.schema
        key = schema.episode.by if isinstance(schema.episode, Cut) else schema.episode
        rows: dict[str, Array] = {"episode": self._encode_ids("episode", key, self._episodes, columns, where)}
        count = len(rows["episode"])
        self._drop = np.zeros(count, np.int16)
        if schema.time is not None:
            rows["time"] = self._encode_time(columns[schema.time], where)
        rows["observation"] = self._encode_observation(columns, where)
        rows["action"] = self._encode_action(columns, where)
        rows["reward"] = self._encode_reward(schema.reward, columns[schema.reward.column], where)
        for name in ("terminated", "truncated"):
            column = getattr(schema, name)
            rows[name] = (
                np.zeros(count, bool) if column is None else _boolean_values(name, column, columns[column], where)
            )
        if schema.action.mask is not None:
            rows["mask"] = self._encode_mask(schema.action.mask, columns[schema.action.mask], rows["action"], where)
        if schema.propensity is not None:
            rows |= self._encode_propensity(schema.propensity, columns[schema.propensity.column], rows["action"], where)
        if schema.logger is not None:
            rows["extra.logger"] = self._encode_ids("logger", schema.logger, self.loggers, columns, where)
        if schema.cluster is not None:
            rows["extra.cluster"] = self._encode_ids("cluster", schema.cluster, self.clusters, columns, where)
        rows["drop"] = self._drop
        return rows

    def _encode_ids(
        self, role: str, name: str, labels: LabelEncoder, columns: Mapping[str, Column], where: RowLabel
    ) -> Array:
        column = columns[name]
        if column.values.ndim > 1:
            row = int(np.argmin(column.missing))
            raise ShapeError(
                f"{where(row)}, column {name!r:.60}: the {role} is {_format(column, row)}, a list; give it one value "
                "in each row"
            )
        _check_not_missing(role, name, column, where, f"give every row its {role}, or drop such rows first")
        text = column.labels is not None
        if self._kinds_of_ids.setdefault(name, text) != text:
            raise DataError(
                f"{where(0)}, column {name!r:.60}: the {role} is {_format(column, 0)}, {column.kind}, which it was not "
                "before: equal ids would differ; write them alike in all files"
            )
        return labels.encode(column)

    def _encode_time(self, column: Column, where: RowLabel) -> Array:
        name = str(self.schema.time)
        _check_not_missing("time", name, column, where, "give every row its time")
        if column.labels is not None or column.values.ndim > 1 or column.kind == "true/false":
            raise DataError(
                f"{where(0)}, column {name!r:.60}: the time is {_format(column, 0)}, {column.kind}; it must be numbers "
                "or dates: convert it, such as with pandas.to_datetime or a cast to timestamp"
            )
        kind = "dates" if column.kind == "dates" else "numbers"
        if self._kind_of_time not in ("", kind):
            raise DataError(f"{where(0)}, column {name!r:.60}: the times are {kind}, those before {self._kind_of_time}")
        self._kind_of_time = kind
        if kind == "dates":
            return column.values.view(np.int64)
        _check_values("time", name, column, ~np.isfinite(column.values), where, "a time must be a finite number")
        return column.values.astype(np.float64 if column.values.dtype.kind == "f" else np.int64)

    def seconds(self, times: Array) -> Array:
        """Times as float64; dates as seconds since 1970."""
        return times / _NANOSECONDS if self._kind_of_time == "dates" else times.astype(np.float64)

    def parse_time(self, value: float | str) -> float:
        """Convert a time of the schema to the unit of `seconds`."""
        if self._kind_of_time == "dates":
            try:
                when = datetime.fromisoformat(str(value))
            except ValueError as error:
                raise DataError(
                    f"censored_after is {value!r:.60}, but times are dates: write it like 2026-01-31T12:00:00"
                ) from error
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, str):
            raise DataError(f"censored_after is {value!r:.60}, but times are numbers: give a number")
        return float(value)

    # -- observations ----------------------------------------------------------------------------------------------

    def _encode_observation(self, columns: Mapping[str, Column], where: RowLabel) -> Array:
        pieces, names = [], []
        for each in self.schema.observation:
            piece, own = self._encode_numbers(each, columns[each.column], where)
            pieces.append(piece)
            names += own
        if self.observation_names and names != self.observation_names:
            new = min({*names} ^ {*self.observation_names})
            raise ShapeError(
                f"{where(0)}: an observation has {len(names)} numbers, earlier ones have {len(self.observation_names)} "
                f"({new!r:.80}): give all lists of a column the same length"
            )
        self.observation_names = names
        return np.concatenate(pieces, 1)

    def _encode_numbers(self, each: ObservationColumn, column: Column, where: RowLabel) -> tuple[Array, list[str]]:
        name = each.column
        if each.values:
            return self._encode_category(each, column, where)
        if column.untyped:
            if name not in self._widths and column.values.ndim > 1:
                raise ShapeError(
                    f"{where(0)}, column {name!r:.60}: all lists are missing, so their length is unknown: "
                    "leave the column out"
                )
            column = replace(column, values=np.zeros((len(column.missing), *self._widths.get(name, ()))))
        values = _numeric_values("observation", name, column, where, "list its categories in values = […]")
        values = values[:, None] if values.ndim == 1 else values
        missing = column.missing
        advice = "say what it is, missing = 'drop', 'fill' or 'forward', or repair it"
        if each.missing == "error":
            _check_not_missing("observation", name, column, where, advice)
        elif each.missing == "drop":
            self._mark_dropped("observation", name, missing)
        with np.errstate(over="ignore", invalid="ignore"):
            found = values.astype(np.float32)
        found[missing] = np.nan if each.missing == "forward" else np.float32(each.fill or 0)
        wrong = ~np.isfinite(found).all(1) & ~missing
        if wrong.any():
            row = int(np.argmax(wrong))
            raise NonFiniteError(
                f"{where(row)}, column {name!r:.60}: the observation is {_format(column, row)}; it must be a number "
                f"from {-FLOAT32_MAX:.3g} to {FLOAT32_MAX:.3g}: scale or repair it"
            )
        names = [name] if column.values.ndim == 1 else [f"{name}[{index}]" for index in range(found.shape[1])]
        if each.indicator:
            return np.concatenate([found, missing[:, None].astype(np.float32)], 1), [*names, f"{name} is missing"]
        return found, names

    def _encode_category(self, each: ObservationColumn, column: Column, where: RowLabel) -> tuple[Array, list[str]]:
        index = _category_indices("observation", each.column, each.values, column, where, each.unknown)
        if each.missing == "drop" and not each.unknown:
            self._mark_dropped("observation", each.column, column.missing)
        elif not each.unknown:
            advice = "say unknown = true, or missing = 'drop', or repair it"
            _check_not_missing("observation", each.column, column, where, advice)
        names = [f"{each.column} = {value}" for value in each.values] + [f"{each.column} is unknown"] * each.unknown
        hot = np.zeros((len(index), len(names)), np.float32)
        hot[np.arange(len(index)), np.maximum(index, 0)] = 1  # episodes with missing values are dropped
        return hot, names

    def _mark_dropped(self, role: str, name: str, missing: Array) -> None:
        rule = 1 + self.drop_rules.index(f"{role} {name!r} is missing")
        self._drop[missing & (self._drop == 0)] = rule

    # -- actions and rewards ---------------------------------------------------------------------------------------

    def _encode_action(self, columns: Mapping[str, Column], where: RowLabel) -> Array:
        action = self.schema.action
        for name in action.names:
            _check_not_missing("action", name, columns[name], where, "an action cannot be guessed: drop it first")
        if action.discrete:
            name, column = action.names[0], columns[action.names[0]]
            if action.values:
                return _category_indices("action", name, action.values, column, where)[:, None]
            return _discrete_actions(name, column, action.count, where)[:, None]
        pieces = []
        for name in action.names:
            values = _numeric_values(
                "action", name, columns[name], where, "say kind = 'discrete' and list values = […]"
            )
            _check_values(
                "action", name, columns[name], ~_is_finite(values), where, "it must be a finite number: repair it"
            )
            pieces.append(values.reshape(len(values), -1).astype(np.float32))
        found = np.concatenate(pieces, 1)
        if self._action_width not in (0, found.shape[1]):
            raise ShapeError(
                f"{where(0)}: an action has {found.shape[1]} numbers, earlier ones have {self._action_width}: "
                "give all actions the same length"
            )
        self._action_width = found.shape[1]
        return found

    def _encode_reward(self, reward: RewardColumn, column: Column, where: RowLabel) -> Array:
        name = reward.column
        values = _numeric_values("reward", name, column, where, "read the column as numbers")
        if values.ndim > 1:
            raise ShapeError(f"{where(0)}, column {name!r:.60}: the reward is a list; it must be one number")
        if reward.missing == "drop":
            self._mark_dropped("reward", name, column.missing)
        elif reward.missing == "error":
            _check_not_missing("reward", name, column, where, "say missing = 'drop' or 'fill', or repair it")
        values = np.where(column.missing, reward.fill or 0.0, values)
        _check_values("reward", name, column, ~_is_finite(values), where, "it must be a finite number: repair it")
        outside = {"lower": values < _default(reward.lower, -np.inf), "upper": values > _default(reward.upper, np.inf)}
        for end, wrong in outside.items():
            advice = f"{end} is {getattr(reward, end)}: repair the row, or correct {end}"
            _check_values("reward", name, column, wrong & ~column.missing, where, advice)
        return values.astype(np.float32)[:, None]

    def _encode_mask(self, name: str, column: Column, action: Array, where: RowLabel) -> Array:
        count = self.schema.action.count
        _check_not_missing("action mask", name, column, where, "give every row its mask")
        if column.values.ndim != 2 or column.values.shape[1] != count:
            raise ShapeError(
                f"{where(0)}, column {name!r:.60}: the action mask is {_format(column, 0)}; it must be a list of "
                f"{count} zeros and ones, one for each action"
            )
        values = column.values
        _check_values(
            "action mask", name, column, ((values != 0) & (values != 1)).any(1), where, "it must be zeros and ones"
        )
        _check_values("action mask", name, column, ~(values != 0).any(1), where, "it must allow at least one action")
        taken = np.take_along_axis(values, action, 1)[:, 0]
        if (taken == 0).any():
            row = int(np.argmax(taken == 0))
            raise ActionError(
                f"{where(row)}, column {name!r:.60}: the action {_action_label(self.schema, action[row, 0])} was "
                f"taken, but the mask {_format(column, row)} does not allow it: "
                "repair the row, or log the mask that applied"
            )
        return values.astype(np.uint8)

    def _encode_propensity(
        self, part: PropensityColumn, column: Column, action: Array, where: RowLabel
    ) -> dict[str, Array]:
        """The log probability of the logged action; for a vector also the probabilities of all actions."""
        name, kind = part.column, part.kind
        if part.missing == "drop":
            self._mark_dropped("propensity", name, column.missing)
        else:
            _check_not_missing("propensity", name, column, where, "say missing = 'drop', or repair it")
        if column.untyped and kind == "vector":
            column = replace(column, values=np.zeros((len(column.missing), self.schema.action.count)))
        values = np.asarray(
            _numeric_values("propensity", name, column, where, "read the column as numbers"), np.float64
        )
        if (values.ndim == 2) != (kind == "vector"):
            raise ShapeError(
                f"{where(0)}, column {name!r:.60}: the propensity is {_format(column, 0)}, but kind is {kind!r}: "
                "'vector' is for lists with the probability of every action, the others are for one number"
            )
        present = ~column.missing

        def check_values(wrong: Array, advice: str) -> None:
            _check_values("propensity", name, column, wrong & present, where, advice)

        if kind == "vector":
            count = self.schema.action.count
            if values.shape[1] != count:
                raise ShapeError(
                    f"{where(0)}, column {name!r:.60}: {values.shape[1]} probabilities for {count} actions: give "
                    "one for each action"
                )
            check_values(~np.all((values >= 0) & (values <= 1), axis=1), "probabilities must be from 0 to 1")
            check_values(
                abs(values.sum(1) - 1) > _SUM_TOLERANCE, "its sum must be 1: give the probabilities of all actions"
            )
            vector, values = values, np.take_along_axis(values, action, 1)[:, 0]
            check_values(values == 0, "it says that the logged action was impossible: check the order of the actions")
            vector = np.where(present[:, None], vector, 1 / count)
            return {"extra.log_propensity": _log_where(values, present), "extra.propensities": vector}
        if kind in ("log", "log_density"):
            check_values(~np.isfinite(values), "it must be a finite number")
            if kind == "log":
                check_values(
                    values > 0, "a logarithm of a probability is at most 0: give kind = 'probability' if it is none"
                )
            return {"extra.log_propensity": np.where(present, values, 0.0)}
        check_values(
            ~((values > 0) & np.isfinite(values)), "it must be above 0: an action that was logged was possible"
        )
        if kind == "probability":
            advice = "a probability is at most 1: " + (
                "divide percentages by 100"
                if self.schema.action.discrete
                else "a density, of continuous actions, needs kind = 'density'"
            )
            check_values(values > 1, advice)
        return {"extra.log_propensity": _log_where(values, present)}


def _log_where(values: Array, present: Array) -> Array:
    return np.log(np.where(present, values, 1.0))


def _default(value: float | None, other: float) -> float:
    return other if value is None else value


def _is_finite(values: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = np.asarray(values).astype(np.float32)
    return np.asarray(np.isfinite(narrow.reshape(len(narrow), -1)).all(1))


def _format(column: Column, row: int) -> str:
    """The value of a row as text."""
    if column.missing[row]:
        return "missing"
    value = column.values[row]
    if column.labels is not None:
        return f"{column.labels[int(value)]!r:.60}" if np.ndim(value) == 0 else "a list of text"
    return str(value)[:28] if column.kind == "dates" else f"{np.asarray(value).tolist()!s:.80}"


def _action_label(schema: LogSchema, number: float) -> str | int | bool:
    return schema.action.values[int(number)] if schema.action.values else int(number)


def _check_values(role: str, name: str, column: Column, wrong: Array, where: RowLabel, advice: str) -> None:
    """Raise `DataError` for the first invalid row."""
    if wrong.any():
        row = int(np.argmax(wrong))
        error = DataError if np.isfinite(column.values[row]).all() else NonFiniteError
        raise error(f"{where(row)}, column {name!r:.60}: the {role} is {_format(column, row)}; {advice}")


def _check_not_missing(role: str, name: str, column: Column, where: RowLabel, advice: str) -> None:
    if column.missing.any():
        row = int(np.argmax(column.missing))
        raise NonFiniteError(f"{where(row)}, column {name!r:.60}: the {role} is missing; {advice}")


def _numeric_values(role: str, name: str, column: Column, where: RowLabel, advice: str) -> Array:
    """The values of a numeric column. Raises `DataError` for other columns."""
    if column.missing.all() and not (column.labels is None and column.values.ndim == 2):
        return np.zeros(len(column.missing))  # a column of nulls has no type of its own
    if column.labels is not None or column.values.dtype.kind not in "biuf":
        row = int(np.argmin(column.missing))
        if column.labels is not None and column.values.ndim == 1:  # name the text that is no number
            wrong = np.array([not _is_number(label) for label in column.labels], bool)[column.values] & ~column.missing
            row = int(np.argmax(wrong)) if wrong.any() else row
        raise DataError(
            f"{where(row)}, column {name!r:.60}: the {role} is {_format(column, row)}, {column.kind}; it must be "
            f"numbers: {advice}"
        )
    return column.values


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def _category_indices(
    role: str, name: str, values: tuple[str | int | bool, ...], column: Column, where: RowLabel, unknown: bool = False
) -> Array:
    """The index of each row's value in ``values``: ``len(values)`` for others if ``unknown``, -1 if it is missing."""
    if column.values.ndim > 1:
        raise ShapeError(f"{where(0)}, column {name!r:.60}: the {role} is a list; give one category in each row")
    text = isinstance(values[0], str)
    known = {value: index for index, value in enumerate(values)}
    given, index = column.distinct()
    other = len(values) if unknown else -2
    same_kind = text == (column.labels is not None)
    own = [known.get(value, other) if same_kind else other for value in given]
    found = np.where(column.missing, len(values) if unknown else -1, np.array(own, np.int64)[index] if own else -1)
    if unknown and not same_kind and not column.missing.all():
        row = int(np.argmin(column.missing))
        raise DataError(
            f"{where(row)}, column {name!r:.60}: the {role} is {_format(column, row)}, {column.kind}, but values are "
            f"{'text' if text else 'no text'}: all would be unknown; write values like those of the column"
        )
    if (found == -2).any():
        row = int(np.argmax(found == -2))
        hint = "add it to values" + (", or give unknown = true" if role == "observation" else "")
        raise (ActionError if role == "action" else DataError)(
            f"{where(row)}, column {name!r:.60}: the {role} is {_format(column, row)}; it must be one of "
            f"{list(values)!s:.200}: {hint}"
        )
    return found


def _discrete_actions(name: str, column: Column, count: int, where: RowLabel) -> Array:
    """Check and return actions that are integers from 0 to ``count - 1``."""
    values = _numeric_values("action", name, column, where, "list them in values = […] instead of size")
    if values.ndim > 1:
        raise ShapeError(f"{where(0)}, column {name!r:.60}: the action is a list; a discrete action is one value")
    wrong = ~((values >= 0) & (values < count) & (values == np.floor(values)))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ActionError(
            f"{where(row)}, column {name!r:.60}: the action is {_format(column, row)}; it must be a whole number from "
            f"0 to {count - 1}: correct size, or list the actions in values = […]"
        )
    return values.astype(np.int64)


def _boolean_values(mark: str, name: str, column: Column, where: RowLabel) -> Array:
    role = f"mark {mark!r}"
    _check_not_missing(role, name, column, where, "it must be 0 or 1")
    values = _numeric_values(role, name, column, where, "mark ends with 1 and all else with 0")
    if values.ndim > 1:
        raise ShapeError(f"{where(0)}, column {name!r:.60}: {role} is a list; it must be 0 or 1")
    _check_values(role, name, column, (values != 0) & (values != 1), where, "it must be 0 or 1")
    return values.astype(bool)
