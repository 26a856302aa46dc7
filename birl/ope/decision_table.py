"""Policies as decision tables: the first rule whose conditions hold gives the action, or the probabilities of actions.

A table of text (CSV) has a column for each condition, and the action in the column ``action``, or probabilities in
columns ``p(wait)``, ``p(remind)``, …:

::

    value,channel,action
    > 40,app,remind
    [10..40],"app, web",wait
    ,,discount

TOML and JSON have a list of rules:

::

    [[rule]]
    when = { value = "> 40", channel = ["app", "web"] }
    probabilities = { wait = 0.2, remind = 0.8 }

    [[rule]]
    action = "wait"
"""

from __future__ import annotations

import csv
import io
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from birl.checks import check
from birl.errors import BirlError, ConfigError, DataError, FileError, did_you_mean
from birl.files import parse_json
from birl.ope.named_columns import NamedColumn, ObservationColumns
from birl.types import Array, Tree

SUFFIXES: Final = (".csv", ".toml", ".json")
"""Suffixes of files of decision tables."""
_ACTION: Final = "action"
_PROBABILITY: Final = re.compile(r"p\((.+)\)")
_COMPARISON: Final = re.compile(r"(<=|>=|!=|<|>|=)\s*(.+)")
_RANGE: Final = re.compile(r"([\[(])\s*(\S+?)\s*\.\.\s*(\S+?)\s*([\])])")
_ANY: Final = ("", "*", "-")
_MISSING: Final = "missing"
_MAX_BYTES: Final = 2**22
_FORMS: Final = (
    "'> 40' (also <, <=, >=, =, !=), '[10..40)' (square brackets include the end), a value, several values 'app, web', "
    "'missing', or nothing for any value"
)


@dataclass(frozen=True)
class Condition:
    """A condition on one column.

    Attributes:
        column: name of the column.
        kind: ``"in"`` or ``"not in"`` some values, in the ``"range"``, or ``"missing"``.
        values: the values, as texts.
        low, high: ends of the range.
        includes: whether the range includes its low and its high end.
    """

    column: str
    kind: str
    values: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    includes: tuple[bool, bool] = (False, False)

    @classmethod
    def parse(cls, column: str, value: object, where: str) -> Condition | None:
        """Read a condition; ``None`` for one that always holds.

        Args:
            column: name of the column.
            value: a text, a number, or a list of values.
            where: the place of the condition, for messages.

        Raises:
            ConfigError: if it has another form.
        """
        if isinstance(value, list | tuple):
            return cls(column, "in", tuple(as_text(each) for each in value))
        text = as_text(value).strip()
        if text in _ANY:
            return None
        if text == _MISSING:
            return cls(column, "missing")
        try:
            if found := _RANGE.fullmatch(text):
                ends, includes = (float(found[2]), float(found[3])), (found[1] == "[", found[4] == "]")
                if not ends[0] <= ends[1]:
                    raise ValueError("its ends are in the wrong order")
                return cls(column, "range", (), *ends, includes)
            if (found := _COMPARISON.fullmatch(text)) is None:
                return cls(column, "in", tuple(each.strip() for each in text.split(",")))
            sign, operand = found[1], found[2].strip()
            if sign in ("=", "!="):
                return cls(
                    column, "in" if sign == "=" else "not in", tuple(each.strip() for each in operand.split(","))
                )
            number = float(operand)
            if math.isnan(number):
                raise ValueError("NaN is no number")
        except ValueError as error:
            raise ConfigError(
                f"{where}: the condition on {column!r:.60} is {text!r:.60} ({error}); it must be one of {_FORMS}"
            ) from error
        inside = (sign == ">=", sign == "<=")
        return (
            cls(column, "range", (), number, math.inf, inside)
            if sign[0] == ">"
            else cls(column, "range", (), -math.inf, number, inside)
        )

    def holds(self, column: NamedColumn, where: str) -> Array:
        """Return for which rows the condition holds, bool ``[N]``.

        Raises:
            ConfigError: if the values of the condition are none of the column.
        """
        missing = np.isnan(column.values)
        if self.kind == "missing":
            return missing
        if self.kind == "range":
            if column.labels:
                raise ConfigError(
                    f"{where}: the condition on {self.column!r:.60} compares numbers, but the column has categories, "
                    f"{', '.join(column.labels)!s:.200}: list those for which the rule is"
                )
            values, low, high = (
                np.float32(each) for each in (column.values, self.low, self.high)
            )  # as data are stored
            above = (values >= low) if self.includes[0] or self.low == -math.inf else (values > low)
            below = (values <= high) if self.includes[1] or self.high == math.inf else (values < high)
            return np.asarray(above & below & ~missing)
        wanted = [self._index(text, column, where) for text in self.values]
        inside = np.isin(np.float32(column.values), np.array(wanted, np.float32))
        return np.asarray((inside if self.kind == "in" else ~inside) & ~missing)

    def _index(self, text: str, column: NamedColumn, where: str) -> float:
        if column.labels:
            if text not in column.labels:
                raise ConfigError(
                    f"{where}: {self.column!r:.60} has no category {text!r:.60}{did_you_mean(text, column.labels)}; "
                    f"they are {', '.join(column.labels)!s:.200}: give one of them"
                )
            return float(column.labels.index(text))
        try:
            return float(text)
        except ValueError:
            raise ConfigError(
                f"{where}: the condition on {self.column!r:.60} is {text!r:.60}, but the column has numbers; it must "
                f"be one of {_FORMS}"
            ) from None


@dataclass(frozen=True)
class Rule:
    """A rule: what a policy does where all conditions hold.

    Attributes:
        conditions: the conditions.
        actions: probabilities by action, as texts.
        where: the place of the rule, for messages.
    """

    conditions: tuple[Condition, ...]
    actions: Mapping[str, float]
    where: str


@dataclass(frozen=True)
class DecisionTable:
    """A policy of rules, of which the first one whose conditions hold applies.

    Rules name columns of the log and actions as the log does, so a table fits any data with these columns.
    `birl.ope.evaluate` reads it directly; `birl.ope.as_policy` makes a policy with ``action_probability`` of it.

    Attributes:
        rules: the rules in order.
        name: name of the table, for messages.
    """

    rules: tuple[Rule, ...]
    name: str = "the table"

    @classmethod
    def load(cls, path: str | Path) -> DecisionTable:
        """Read a file: CSV, TOML or JSON, by its suffix.

        Raises:
            FileError: if it cannot be read.
            ConfigError: if it is no decision table; the message names the row or the rule.
        """
        path = Path(path)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise FileError(f"{path} cannot be read ({error.strerror}): give a .csv, .toml or .json file") from error
        if path.suffix not in SUFFIXES or len(data) > _MAX_BYTES:
            raise ConfigError(
                f"{path} has the suffix {path.suffix!r} and {len(data)} bytes; a decision table is a .csv, .toml or "
                ".json file of at most 4 MiB: give one"
            )
        try:
            text = data.decode("utf-8-sig")
            if path.suffix == ".csv":
                return cls(_read_csv(text, str(path)), str(path))
            parsed = tomllib.loads(text) if path.suffix == ".toml" else parse_json(data, str(path))
        except (ValueError, RecursionError) as error:
            if isinstance(error, BirlError):
                raise
            raise ConfigError(f"{path} is not valid {path.suffix[1:].upper()} ({error!s:.200}): correct it") from error
        return cls(_read_rules(parsed, str(path)), str(path))

    def probabilities(self, reader: ObservationColumns, x: Tree, actions: Sequence[str]) -> Array:
        """Return the probabilities of all actions, ``[N, A]``.

        Args:
            reader: reader of the columns.
            x: observations, a tree of arrays ``[N, …]``.
            actions: names of the actions in order.

        Raises:
            ConfigError: if a rule names a column, category or action that the data do not have.
            DataError: if no rule applies to an observation.
        """
        columns = {
            each.column: reader.read(each.column, x, rule.where) for rule in self.rules for each in rule.conditions
        }
        rows = len(next(iter(columns.values())).values) if columns else reader.count(x)
        found, open_ = np.zeros((rows, len(actions))), np.ones(rows, bool)
        for rule in self.rules:
            chance = np.zeros(len(actions))
            for action, probability in rule.actions.items():
                chance[action_index(action, actions, rule.where)] += probability
            holds = open_.copy()
            for each in rule.conditions:
                holds &= each.holds(columns[each.column], rule.where)
            found[holds] = chance
            open_ &= ~holds
        if open_.any():
            row = int(open_.argmax())
            values = ", ".join(f"{name} = {_value(column, row)}" for name, column in columns.items())
            raise DataError(
                f"no rule of {self.name} applies to observation {row} ({values!s:.200}); one must: add a last rule "
                "without conditions"
            )
        return found


def action_index(action: object, actions: Sequence[str], where: str) -> int:
    """Return the index of an action by its name.

    Raises:
        ConfigError: if there is no such action.
    """
    text = as_text(action)
    if text not in actions:
        raise ConfigError(
            f"{where}: there is no action {text!r:.60}{did_you_mean(text, actions)}; the actions of the data are "
            f"{', '.join(actions)!s:.200}: give one of them"
        )
    return list(actions).index(text)


def _value(column: NamedColumn, row: int) -> str:
    value = column.values[row]
    if np.isnan(value):
        return _MISSING
    return column.labels[int(value)] if column.labels else f"{value:.6g}"


def as_text(value: object) -> str:
    """Return a value as the text by which it is compared: 2.0 and 2 are the same."""
    if isinstance(value, np.generic):
        value = value.tolist()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _read_csv(text: str, name: str) -> tuple[Rule, ...]:
    rows = list(csv.reader(io.StringIO(text), skipinitialspace=True))
    if len(rows) < 2:
        raise ConfigError(f"{name} has {len(rows)} rows; it needs a row of names and one or more rules: add them")
    head = [each.strip() for each in rows[0]]
    if doubled := [each for each in head if head.count(each) > 1 or not each]:
        raise ConfigError(f"{name}: the name {doubled[0]!r:.60} is empty or given twice: give each column its own name")
    chances = {index: found[1] for index, each in enumerate(head) if (found := _PROBABILITY.fullmatch(each))}
    if (_ACTION in head) == bool(chances):
        raise ConfigError(
            f"{name} has the columns {', '.join(head)!s:.200}; it needs the column 'action', or columns 'p(wait)' with "
            "the probability of each action, not both: add them"
        )
    rules = []
    for number, row in enumerate(rows[1:], 2):
        where = f"{name}, row {number}"
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(head):
            raise ConfigError(f"{where} has {len(row)} cells; it must have {len(head)}: quote cells with commas")
        cells = dict(zip(head, row, strict=True))
        actions: object = {action: row[index].strip() or 0 for index, action in chances.items()}
        if not chances:
            actions = {cells[_ACTION].strip(): 1.0}
        outputs = {_ACTION, *(head[index] for index in chances)}
        rules.append(_rule({key: cell for key, cell in cells.items() if key not in outputs}, actions, where))
    return tuple(rules)


def _read_rules(data: object, name: str) -> tuple[Rule, ...]:
    rules = data.get("rule") if isinstance(data, Mapping) and set(data) == {"rule"} else data
    if not isinstance(rules, list) or not rules:
        raise ConfigError(f"{name} has no list of rules; it must be [[rule]] … in TOML, or a list in JSON: write them")
    found = []
    for number, each in enumerate(rules, 1):
        where = f"{name}, rule {number}"
        rule = check(where, each, Mapping, ": write a table of name = value")  # type: ignore[type-abstract]
        if unknown := set(rule) - {"when", "action", "probabilities"}:
            raise ConfigError(f"{where} has {min(unknown)!r:.60}; a rule has when, action and probabilities")
        if ("action" in rule) == ("probabilities" in rule):
            raise ConfigError(f"{where} needs action = …, or probabilities = {{ … }}, not both: give one")
        actions = rule["probabilities"] if "probabilities" in rule else {as_text(rule["action"]): 1.0}
        when = check(f"{where}: when", rule.get("when", {}), Mapping)  # type: ignore[type-abstract]
        found.append(_rule(when, actions, where))
    return tuple(found)


def _rule(when: Mapping[str, object], actions: object, where: str) -> Rule:
    given = check(f"{where}: probabilities", actions, Mapping)  # type: ignore[type-abstract]
    conditions = (Condition.parse(str(column), value, where) for column, value in when.items())
    chances: dict[str, float] = {}
    for action, value in given.items():
        try:
            chances[str(action)] = float(value)
        except (TypeError, ValueError):
            chances[str(action)] = math.nan
        if not 0 <= chances[str(action)] <= 1:
            raise ConfigError(f"{where}: the probability of {action!r:.60} is {value!r:.40}; it must be from 0 to 1")
    if abs(sum(chances.values()) - 1) > 1e-6:
        raise ConfigError(f"{where}: the probabilities sum to {sum(chances.values()):.6g}; the sum must be 1")
    return Rule(tuple(each for each in conditions if each is not None), chances, where)
