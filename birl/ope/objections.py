"""Objections to the verdict of an interval: what the interval ignores.

An interval of the gain is as good as the logs. Each function in `OBJECTIONS` looks at one way in which logs mislead,
and returns an `Objection` if it may change the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from birl.ope.evaluation import Evaluation
from birl.ope.validity_limits import CAPPED, LIMITS, Finding


@dataclass(frozen=True)
class Decision:
    """The verdict of an interval of the gain.

    Attributes:
        verdict: ``"ship"``, ``"do_not_ship"`` or ``"more_data"``.
        lower, upper: ends of the interval.
        min_gain: required gain.
        confidence: confidence of the interval.
    """

    verdict: str
    lower: float
    upper: float
    min_gain: float
    confidence: float


@dataclass(frozen=True)
class Objection:
    """What changes the verdict of an interval.

    Attributes:
        verdict: what the verdict becomes, if no other objection is graver; see `GRAVITY`.
        reason: why, as a sentence; empty if a finding of the evaluation, which is reported as a doubt, says it.
        remedies: what would help, as sentences.
        times: factor by which the number of episodes must grow until the objection probably disappears; ``None`` if
            more of the same logs do not help.
    """

    verdict: str
    reason: str = ""
    remedies: tuple[str, ...] = ()
    times: float | None = None


GRAVITY: Final = ("more_data", "cannot_tell", "do_not_ship")
"""Verdicts of objections, the gravest last."""

Objecting: TypeAlias = Callable[[Evaluation, Decision], Objection | None]


def drift(evaluation: Evaluation, decision: Decision) -> Objection | None:
    """Object if the gain differs between the first and the last half of the logs."""
    if not evaluation.drifts:
        return None
    first, last = evaluation.drift or (math.nan, math.nan)
    reason = f"the gain drifts: {first:.4g} in the first half of the logs, {last:.4g} in the last"
    return Objection("more_data", reason, ("evaluate on newer logs, collected under constant conditions",))


def missing_support(evaluation: Evaluation, decision: Decision) -> Objection | None:
    """Object to a verdict that depends on what actions earn that were never logged."""
    bounds, finding = evaluation.bounds, first_finding(evaluation, "no_support")
    if bounds is None or finding is None:
        return None
    where = "; ".join(bounds.regions)
    if bounds.known:
        if decision.verdict != "more_data":
            return None
        return Objection(
            "more_data",
            where,
            (finding.remedy,),
            bounds.times(decision.min_gain, decision.confidence, evaluation.clusters),
        )
    if (decision.lower + decision.upper) / 2 <= decision.min_gain:
        return None
    least = bounds.turning_return(decision.min_gain, decision.confidence, evaluation.clusters)
    stake = (
        f"the gain exceeds {decision.min_gain:g} only if an episode earns at least {least:.4g} from such an action on, "
        "on average"
        if least is not None
        else "nothing bounds what such actions earn"
    )
    declare = "or declare the lowest and the highest reward that are possible (reward_range=, --reward-range)"
    return Objection("more_data", "; ".join(filter(None, (where, stake))), (finding.remedy, declare))


def heavy_tail(evaluation: Evaluation, decision: Decision) -> Objection | None:
    """Object if few episodes decide, at the end of the interval that the verdict depends on."""
    finding = first_finding(evaluation, CAPPED.get(decision.verdict))
    if finding is None:
        return None
    safe = next(limit.warn or 1 for limit in LIMITS if limit.fact == finding.fact)
    return Objection("more_data", times=(finding.value / safe) ** 2)  # so many episodes that the tail becomes safe


def leaked_reward(evaluation: Evaluation, decision: Decision) -> Objection | None:
    """Object to gains in one-step logs whose observations contain the reward, which the action hardly changes then."""
    finding = first_finding(evaluation, "leak_reward")
    if finding is None or decision.verdict != "ship" or evaluation.horizon > 1:
        return None
    return Objection("more_data", remedies=(finding.remedy,))


OBJECTIONS: Final[tuple[Objecting, ...]] = (drift, missing_support, heavy_tail, leaked_reward)
"""All objections; the remedies of the first one with remedies come first."""


def first_finding(evaluation: Evaluation, fact: str | None) -> Finding | None:
    """Return the first finding about a fact."""
    return next((finding for finding in evaluation.findings if finding.fact == fact), None)
