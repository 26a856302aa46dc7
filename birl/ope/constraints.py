"""Constraints on further outcomes: "revenue up, complaints not up by more than 1 %".

A constraint is a gain, too: with the rewards replaced by the outcome, or by its negative if less is better, the policy
must earn at least a share of the baseline, or a change from it. It is estimated with the weights, the estimators and
the checks of the gain.

A policy may ship only if its gain *and* all constraints hold. Each is tested at the full level, without a correction:
if one of them does not hold, shipping takes a wrong conclusion about this one (intersection-union test, Berger 1982,
Technometrics 24:295-300).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from birl.checks import check
from birl.dataset.log_schema import RESERVED
from birl.errors import ConfigError, DataError, ShapeError, did_you_mean
from birl.types import Array

_FORM: Final = re.compile(
    r"\s*(?P<column>.+?)\s*(?P<side><=|>=)\s*(?P<sign>[+-]?)\s*(?P<number>[^\s%+-]\S*?)\s*(?P<percent>%?)\s*"
)
_EXAMPLES: Final = (
    "'complaints <= +1%' (at most 1 % more than the baseline), 'margin >= -0.5' (at most 0.5 less) or 'cost <= 3' "
    "(at most 3, whatever the baseline)"
)


@dataclass(frozen=True)
class Constraint:
    """A limit of an outcome of the policy, ``complaints <= +1%``.

    The outcome of an episode is the discounted sum of the column over its steps, as a return is of rewards.

    Attributes:
        column: the outcome: an extra column of the data with one number for each step.
        at_most: whether less is better: the limit is an upper one.
        kind: ``"percent"``: a change in percent of the baseline; ``"change"``: a change from it in units of the column;
            ``"level"``: a value, whatever the baseline.
        limit: the number.
    """

    column: str
    at_most: bool
    kind: str
    limit: float

    def __post_init__(self) -> None:
        check("constraint: column", self.column, str)
        check("constraint: kind", self.kind, str, choices=("percent", "change", "level"))
        check(f"the limit of {self.column!r:.60}", self.limit, float)
        if self.kind == "percent" and self.limit <= -100:
            raise ConfigError(
                f"the limit of {self.column!r:.60} is {self.limit:+g} %; it must be above -100 %: nothing would be left"
            )

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """Read a constraint: a column, ``<=`` or ``>=``, and a number.

        A sign makes the number a change against the baseline: ``complaints <= +0.02``, or ``complaints <= +1%`` of
        it. Without a sign it is a value: ``cost <= 3``.

        Raises:
            ConfigError: if it has another form.
        """
        found = _FORM.fullmatch(check("constraint", text, str))
        try:
            number = float(found["number"]) if found else np.nan
        except ValueError:
            number = np.nan
        if found is None or not np.isfinite(number):
            raise ConfigError(
                f"the constraint is {text!r:.100}; it must be a column, <= or >=, and a number: {_EXAMPLES}"
            )
        if found["percent"] and not found["sign"]:
            raise ConfigError(
                f"the constraint {text!r:.100} has a percentage without a sign; a change needs one: write "
                f"{found['side']} +{found['number']}% or {found['side']} -{found['number']}%"
            )
        kind = "percent" if found["percent"] else "change" if found["sign"] else "level"
        return cls(found["column"], found["side"] == "<=", kind, -number if found["sign"] == "-" else number)

    def __str__(self) -> str:
        sign = "" if self.kind == "level" else "+"
        return f"{self.column} {'<=' if self.at_most else '>='} {self.limit:{sign}g}{'%' * (self.kind == 'percent')}"

    @property
    def sign(self) -> float:
        """What turns the outcome into one of which more is better: 1 or -1."""
        return -1.0 if self.at_most else 1.0

    def orient(self, lower: float | None, upper: float | None) -> tuple[float | None, float | None]:
        """Return the ends of a range of the outcome as those of the outcome times `sign`."""
        if not self.at_most:
            return lower, upper
        return None if upper is None else -upper, None if lower is None else -lower

    @property
    def baseline_share(self) -> float:
        """The share of the baseline that is subtracted."""
        return {"percent": 1 + self.limit / 100, "change": 1.0, "level": 0.0}[self.kind]

    @property
    def min_gain(self) -> float:
        """The required difference to that share, in the direction in which more is better."""
        return 0.0 if self.kind == "percent" else self.sign * self.limit


def read_constraints(constraints: Sequence[str | Constraint]) -> tuple[Constraint, ...]:
    """Return constraints from texts.

    Raises:
        ConfigError: if one is no constraint, or is given twice.
    """
    if isinstance(constraints, str) or not isinstance(constraints, Sequence):
        raise ConfigError(f"constraints is {constraints!r:.80}; it must be a list of texts such as {_EXAMPLES}")
    found = tuple(each if isinstance(each, Constraint) else Constraint.parse(each) for each in constraints)
    for index, each in enumerate(found):
        if each in found[:index]:
            raise ConfigError(f"the constraint '{each}' is given twice: leave one out")
    return found


def check_outcome(name: str, known: Mapping[str, Array], available: Sequence[str], why: str) -> Array:
    """Return the column of an outcome, float64 ``[N]``.

    Args:
        name: name of the column.
        known: extra columns ``[N, …]`` by name.
        available: names of all extra columns of the data.
        why: what asks for it, for messages.

    Raises:
        ConfigError: if the data have no such column, or it has another role.
        ShapeError: if a step has several numbers.
    """
    others = sorted(set(available) - RESERVED)
    if name in RESERVED or name not in known:
        what = "has another role" if name in known else "is no outcome of the data"
        names = f"the data have {', '.join(others)}" if others else "they have none"
        raise ConfigError(
            f"{why}: {name!r:.60} {what}{did_you_mean(name, others)}; an outcome is a column that the import keeps "
            f"({names}): name it in the schema ([[outcome]] column = {name!r:.60}) and import again, or give it in "
            "extra= of the dataset"
        )
    column = np.asarray(known[name])
    if column.size != len(column) or column.dtype.kind not in "biuf":
        raise ShapeError(
            f"{why}: {name!r:.60} has the shape {column.shape} and the dtype {column.dtype}; an outcome is one number "
            "for each step: give one column for each number"
        )
    return column.reshape(-1).astype(np.float64)


def check_percent(constraint: Constraint, mean: float) -> None:
    """Raise `DataError` if a change in percent has no meaning, because the baseline is not above 0.

    Args:
        constraint: the constraint.
        mean: mean outcome of the logged episodes.
    """
    if constraint.kind == "percent" and mean <= 0:
        unit = "<=" if constraint.at_most else ">="
        raise DataError(
            f"the constraint '{constraint}' is in percent, but the logs have {mean:.4g} {constraint.column} an "
            f"episode; a percentage needs a mean above 0: give a change in units, such as '{constraint.column} {unit} "
            f"{'+' if constraint.at_most else '-'}0.01'"
        )
