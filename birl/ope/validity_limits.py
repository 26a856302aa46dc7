"""The table of limits that decides which estimates are refused and which are doubtful.

A *fact* is a number about the data, the weights or a model. `check_limits` compares facts with the table and returns,
for each family of estimators, what is refused, what is doubtful and what would help. If every family is refused, the
answer is "cannot tell". Unknown facts are not checked.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np

from birl.errors import ConfigError, did_you_mean
from birl.ope.diagnostics import Diagnostics, tail_weight
from birl.ope.estimators import Estimate
from birl.ope.importance_weights import Trajectories
from birl.ope.intervals import t_interval
from birl.types import Array

FAMILIES = {
    "weights": ("importance_sampling", "weighted_importance_sampling", "per_decision", "weighted_per_decision"),
    "robust": ("doubly_robust", "weighted_doubly_robust", "magic"),
    "model": ("direct_method",),
    "kernel": ("kernel",),
    "marginal": ("double_reinforcement_learning",),
    "data": (),  # faults of the logs that concern every use
}


@dataclass(frozen=True)
class Limit:
    """A row of the table.

    Attributes:
        fact: name of the fact.
        families: families of estimators that the limit applies to.
        meaning: meaning of the number, with ``{}`` in its place.
        remedy: advice that would help.
        warn, refuse: values beyond which an estimate is doubtful and refused; ``None`` for never.
        too_low: whether small numbers, not large ones, are bad.
        infinite: what takes the place of ``meaning`` if the number is infinite; empty for nothing else.
    """

    fact: str
    families: tuple[str, ...]
    meaning: str
    remedy: str
    warn: float | None = None
    refuse: float | None = None
    too_low: bool = False
    infinite: str = ""

    @property
    def labels(self) -> tuple[str, str, str]:
        """The meaning, and the ranges that are doubtful and refused, as texts."""
        side = "below" if self.too_low else "above"
        doubtful, refused = ("–" if end is None else f"{side} {end:g}" for end in (self.warn, self.refuse))
        return self.meaning.format("…"), doubtful, refused

    def exceeded(self, value: float, limit: float | None) -> bool:
        """Return whether ``value`` is on the wrong side of ``limit``. NaN always is."""
        if limit is None:
            return False
        return math.isnan(value) or (value < limit if self.too_low else value > limit)


@dataclass(frozen=True)
class Finding:
    """A fact that exceeds a limit.

    Attributes:
        family: family of estimators.
        refused: whether their estimates are refused, or only doubtful.
        fact, value: name and value of the fact.
        text: meaning of the number, and the limit.
        remedy: advice that would help; empty if there is none.
    """

    family: str
    refused: bool
    fact: str
    value: float
    text: str
    remedy: str = ""

    @property
    def message(self) -> str:
        """The text and the remedy in one line."""
        return f"{self.text}: {self.remedy}" if self.remedy else self.text

    def as_dict(self) -> dict[str, str | bool | float | None]:
        """Return JSON values; a value that is not finite is ``None``."""
        value = self.value if math.isfinite(self.value) else None
        base: dict[str, str | bool | float | None] = {"family": self.family, "refused": self.refused, "fact": self.fact}
        return base | {"value": value, "message": self.message}


def _read_limits() -> tuple[Limit, ...]:
    """Read ``limits.toml``, whose head describes it."""
    table = tomllib.loads(resources.files("birl.ope").joinpath("limits.toml").read_text(encoding="utf-8"))
    for row in table["limit"]:
        row["families"] = tuple(name for key in row["families"] for name in table["groups"].get(key, [key]))
        row["remedy"] = row["remedy"].format(**table["remedies"])
    return tuple(Limit(**row) for row in table["limit"])


LIMITS = _read_limits()
CAPPED = {"ship": "left_tail", "do_not_ship": "right_tail"}
"""Tails that turn a verdict into ``more_data``, because they lie beyond the end of the interval that decided."""
FACTS = tuple(dict.fromkeys(limit.fact for limit in LIMITS))


def check_limits(facts: Mapping[str, float | None]) -> tuple[Finding, ...]:
    """Return the facts that exceed a limit, refusals first.

    Args:
        facts: numbers by the names in `FACTS`; unknown ones are ``None`` or left out.

    Raises:
        ConfigError: if a name is unknown.
    """
    if unknown := [name for name in facts if name not in FACTS]:
        hint = did_you_mean(unknown[0], FACTS)
        raise ConfigError(f"{unknown[0]!r} is no fact; the facts are {', '.join(FACTS)}{hint}")
    findings = []
    for limit in LIMITS:
        if (value := facts.get(limit.fact)) is None:
            continue
        refused = limit.exceeded(value, limit.refuse)
        if refused or limit.exceeded(value, limit.warn):
            end = limit.refuse if refused else limit.warn
            side = "at least" if limit.too_low else "at most"
            number = f"{value:.3g}"
            if number == "1" and limit.meaning.startswith("{} of the"):
                number = "all" if value == 1 else "nearly all"
            text = f"{limit.meaning.format(number)}; {side} {end:g} is {'allowed' if refused else 'safe'}"
            text = limit.infinite if limit.infinite and math.isinf(value) else text
            findings += [
                Finding(family, refused, limit.fact, float(value), text, limit.remedy) for family in limit.families
            ]
    return tuple(sorted(findings, key=lambda each: not each.refused))


def allowed(findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """Return the names of the estimators that no finding refuses; if there are none, the data cannot tell."""
    refused = {finding.family for finding in findings if finding.refused}
    return tuple(name for family, names in FAMILIES.items() if family not in refused for name in names)


def members(family: str) -> tuple[str, ...]:
    """Return the estimators of a family. An estimator with weights of its own, as those of slates, is one by itself."""
    return FAMILIES.get(family, (family,))


def model_facts(robust: Estimate, model: Estimate, ess: float) -> dict[str, float | None]:
    """Return facts of a model with and without weights: whether the 99 % interval of their difference excludes 0.

    Args:
        robust: result of `doubly_robust`.
        model: result of `direct_method` for the same episodes.
        ess: effective sample size of the weights.
    """
    difference = robust - model
    rounding = 1e-3 * float(robust.terms.std()) + 1e-6 * abs(float(robust.value))  # for a model without noise
    differs = not t_interval(difference, 0.99).holds(0.0) and abs(float(difference.value)) > rounding
    return {"model_differs": float(differs), "ess_where_model_differs": ess if differs else None}


def reward_facts(marginal: Estimate, episodes: Trajectories) -> dict[str, float | None]:
    """Return how far an estimate lies beyond the values that the logged rewards allow any policy.

    Args:
        marginal: result of `double_reinforcement_learning`.
        episodes: its episodes.
    """
    value, steps = float(marginal.value), episodes.discount.sum()
    reward = episodes.reward[episodes.mask]
    low, high = steps * min(reward.min(), 0.0), steps * max(reward.max(), 0.0)
    end = float(high if value > 0 else low)
    return {"beyond_rewards": value / end if end else math.inf if value else 0.0}


def tail_facts(gain: Estimate, clusters: Array | None = None) -> dict[str, float | None]:
    """Return facts of the tails of the gain that decides; see `tail_weight`."""
    tail = tail_weight(gain.terms, clusters)
    return {"left_tail": max(-tail, 0.0), "right_tail": max(tail, 0.0)}


def weight_facts(diagnostics: Diagnostics) -> dict[str, float | None]:
    """Return the facts of the diagnostics of one set of episodes."""
    names = ("ess", "share", "pareto_k", "mean_error", "kappa")
    if np.ndim(diagnostics.ess):
        raise ConfigError(
            f"the diagnostics are of {np.shape(diagnostics.ess)} repetitions; they must be of one: check each alone"
        )
    return {name: float(getattr(diagnostics, name)) for name in names}
