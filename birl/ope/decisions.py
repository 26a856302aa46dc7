"""From an evaluation to a decision: a verdict, its reasons, its assumptions, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from birl.checks import check
from birl.errors import ConfigError
from birl.ope.estimators import Estimate
from birl.ope.evaluation import Evaluation
from birl.ope.intervals import t_interval, t_quantile, t_tail
from birl.ope.validity_limits import CAPPED, FAMILIES, LIMITS

STATUS: Final = {"ship": 0, "do_not_ship": 3, "more_data": 4, "cannot_tell": 5}
"""Exit status of each verdict."""
STRENGTHS: Final = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Gammas that a report shows."""


@dataclass(frozen=True)
class Verdict:
    """What may be done.

    Attributes:
        verdict: ``"ship"``: the gain is above ``min_gain``; ``"do_not_ship"``: it is not; ``"more_data"``: the logs
            leave both open, few episodes decide it, or the policy does what the logging policy never did;
            ``"cannot_tell"``: the logs cannot carry an answer.
        reasons: why, in words.
        remedies: what would help.
        assumptions: what must be true for it to hold, which the logs cannot show.
        min_gain: the gain that is asked for.
        lower, upper: the interval that decided, ``None`` if there is none.
        confidence: of that interval.
        times: how many times as many episodes would probably decide it; ``None`` if none would, or it is decided.
        flips_at: the Gamma of hidden confounding from which on the verdict would be another; ``None`` if it is above
            20, or not known. See `birl.ope.sensitivity`.
        ranges: for some Gammas the interval of the gain.
    """

    verdict: str
    reasons: tuple[str, ...]
    remedies: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    min_gain: float = 0.0
    lower: float | None = None
    upper: float | None = None
    confidence: float = 0.95
    times: float | None = None
    flips_at: float | None = None
    ranges: tuple[tuple[float, float, float], ...] = ()

    @property
    def status(self) -> int:
        """Exit status: 0, 3, 4 or 5."""
        return STATUS[self.verdict]


def decide(lower: float, upper: float, min_gain: float, drifts: bool = False) -> tuple[str, float | None]:
    """The rule: a verdict of an interval of the gain, and how many times as many episodes would probably decide it.

    ``ship`` if all of the interval is above ``min_gain``, ``do_not_ship`` if all of it is below, or if it is that one
    point; else ``more_data``, which is also all that a gain that moves with time can be. The half-width falls with the
    root of the number of episodes, so that ``(half-width / distance)^2`` times as many would leave out ``min_gain``.

    Args:
        lower, upper: ends of the interval.
        min_gain: the gain that is asked for.
        drifts: whether the gain is another in the last half of the logs than in the first.
    """
    if not lower <= upper:
        raise ConfigError(f"the interval is [{lower}, {upper}]; it must have two ends in order")
    if upper < min_gain or lower == upper == min_gain:
        return ("more_data" if drifts else "do_not_ship"), None
    if lower > min_gain:
        return ("more_data" if drifts else "ship"), None
    half, distance = (upper - lower) / 2, abs((upper + lower) / 2 - min_gain)
    return "more_data", (half / distance) ** 2 if distance > 1e-3 * half else None


def verdict(found: Evaluation, min_gain: float = 0.0, confidence: float | None = None) -> Verdict:
    """The verdict on a policy.

    Args:
        found: of `birl.ope.evaluate`.
        min_gain: the gain over the logs (or the other policy) that is asked for, in units of discounted returns.
        confidence: of the interval that decides; by default that of the evaluation. `verdicts` gives more for several.
    """
    asked = float(check("min_gain", min_gain, float))
    confidence = found.confidence if confidence is None else confidence
    notes = _assumptions(found)
    row = found.gain
    if row is None:
        refused = [one for one in found.findings if one.refused and one.family != "kernel"]
        said, helps = _unique([one.says for one in refused]), _unique([one.remedy for one in refused])
        return Verdict("cannot_tell", said, helps, notes, asked, confidence=confidence)
    interval = t_interval(row.gain, confidence, found.clusters)
    lower, upper = float(interval.lower), float(interval.upper)
    word, times = decide(lower, upper, asked, found.drifts)
    unlogged = next((one for one in found.findings if one.fact == "no_support"), None)
    if unlogged is not None and (lower + upper) / 2 > asked:  # the interval leaves out what was never logged
        word, times = "more_data", None
    tail = next((one for one in found.findings if one.fact == CAPPED.get(word)), None)
    if tail is not None:  # as many times as the tail needs to be safe
        word, times = "more_data", (tail.value / next(each.warn or 1 for each in LIMITS if each.fact == tail.fact)) ** 2
    reasons = [_reason(word, lower, upper, asked, found)]
    remedies = []
    if word == "more_data" and found.drifts:
        first, last = found.drift or (math.nan, math.nan)
        reasons.append(f"the gain moves with time: {first:.4g} in the first half of the logs, {last:.4g} in the last")
        remedies.append("evaluate on logs of one regime, and on newer ones")
    elif word == "more_data" and unlogged is not None and times is None:  # more of the same logs do not help
        remedies.append(unlogged.remedy)
    elif word == "more_data":
        near = "no number of episodes can be said: the estimate lies at the limit itself"
        remedies.append(near if times is None else f"log about {_rounded(max(times, 1.1))} times as many episodes")
        if any(one.refused and one.fact == "ess" for one in found.findings):  # other logs help more than many of these
            remedies.append("or log with a floor under the propensities, or evaluate a policy nearer to the logs")
    if word == "ship":
        remedies.append("ship behind a guarded online test, which also sees what logs cannot")
    doubts = [f"doubtful: {one.message}" for one in found.findings if not one.refused and _about(one.family, found)]
    flips, ranges = _confounding(found, word, lower, upper, asked)
    numbers = (asked, lower, upper, confidence, times, flips, ranges)
    return Verdict(word, (*reasons, *_unique(doubts)), tuple(remedies), notes, *numbers)


def verdicts(found: Mapping[str, Evaluation], min_gain: float = 0.0) -> dict[str, Verdict]:
    """Verdicts on several policies together: the chance that any is shipped wrongly is that of one alone.

    By Holm's procedure (Holm 1979, Scandinavian Journal of Statistics 6): policies are tried in the order of their
    p-values, the first with the error of one divided by their number m, the next by m - 1 and so on; those after the
    first that does not ship are held to its confidence.

    Args:
        found: evaluations by name, of the same logs and confidence.
        min_gain: see `verdict`.
    """
    rows = {name: row for name, one in found.items() if (row := one.gain) is not None}
    chances = [p_value(row.gain, min_gain, found[name].clusters) for name, row in rows.items()]
    (confidence,) = {one.confidence for one in found.values()} or {0.95}
    errors = dict(zip(rows, holm(chances, (1 - confidence) / 2), strict=True))  # of one side each
    sure = {name: 1 - 2 * error for name, error in errors.items()}
    return {name: verdict(one, min_gain, sure.get(name)) for name, one in found.items()}


def p_value(gain: Estimate, at_most: float, clusters: Any = None) -> float:
    """The chance of such a gain, or a greater one, if the true one is ``at_most``: one-sided, by Student's t."""
    interval = t_interval(gain, 0.5, clusters)
    count = gain.terms.size if clusters is None else len(np.unique(clusters))
    error = float(interval.upper - interval.lower) / 2 / t_quantile(0.75, count - 1)
    distance = float(gain.value) - at_most
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    tail = t_tail(abs(distance) / error, count - 1)
    return tail if distance > 0 else 1 - tail


def holm(p_values: Sequence[float], error: float) -> list[float]:
    """The error that each hypothesis is tested with: it is rejected if its p-value is less.

    In the order of p-values ``error / m``, ``error / (m - 1)`` and so on, until one is not rejected; those after it
    have its error, so that they are not either. Any true one is rejected with probability ``error`` at most.

    Args:
        p_values: one for each of m hypotheses, 0 to 1.
        error: above 0, below 1.
    """
    errors, divisor, stopped = [0.0] * len(p_values), len(p_values), False
    for k in sorted(range(len(p_values)), key=lambda k: p_values[k]):
        errors[k] = error / divisor
        stopped = stopped or p_values[k] >= errors[k]
        divisor -= not stopped
    return errors


def _rounded(times: float) -> str:
    """A number as people write it: two digits."""
    if times >= 1e6:
        return "more than a million"
    return f"{times:.2g}" if times < 10 else f"{float(f'{times:.2g}'):,.0f}"


def _unique(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))


def _about(family: str, found: Evaluation) -> bool:
    """Whether a finding is about the estimator that decides."""
    return found.decides in FAMILIES[family]


def _reason(word: str, lower: float, upper: float, asked: float, found: Evaluation) -> str:
    against = "the logs" if found.against == "logs" else found.against
    interval = f"the gain over {against} is from {lower:.4g} to {upper:.4g} by {found.decides}"
    if lower == upper:
        return f"{interval}: in these logs both act alike"
    place = f"above {asked:g}" if lower > asked else f"below {asked:g}" if upper < asked else f"{asked:g} is in between"
    return f"{interval}: {'all of it ' if place[0] in 'ab' else ''}{place}"


def _confounding(
    found: Evaluation, word: str, lower: float, upper: float, asked: float
) -> tuple[float | None, tuple[tuple[float, float, float], ...]]:
    """The Gamma that flips the verdict, and the intervals of some Gammas."""
    if found.confounded is None:
        return None, ()
    shifts = [(strength, *found.confounded.shift(strength)) for strength in STRENGTHS]
    ranges = tuple((strength, lower + down, upper + up) for strength, down, up in shifts)
    return None if word == "more_data" else found.confounded.flips(lower, upper, asked), ranges


def _assumptions(found: Evaluation) -> tuple[str, ...]:
    """What no figure of the logs can show."""
    source = {
        "logged": "the logged propensities are those of the policy that acted",
        "estimated": "the estimated propensities are right: what drove actions is in the observations",
        "given": "the behaviour policy that was given is the one that acted",
    }[found.behaviour]
    steps = f"the first {found.horizon} steps of an episode count, each discounted by {found.gamma:g}"
    unit = "clusters" if found.clusters is not None else "episodes"
    positivity = (
        "positivity: the policy that acted takes every action that the policy takes, with some probability; logged "
        "propensities of all actions would show it"
    )
    return (
        source,
        *(() if found.support_known else (positivity,)),
        "nothing that is not in the observations drove both actions and rewards; the Gamma says how much it would take",
        f"{unit} are independent of each other, and what comes is like what was logged",
        f"the question is the right one: {steps}, and an episode is over where its log ends",
        "the policy changes only its own episodes: not what other users see, nor the world",
    )
