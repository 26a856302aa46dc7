"""Objections to the verdict of an interval: what the interval ignores.

An interval of the gain is as good as the logs. Each function in `OBJECTIONS` looks at one way in which logs mislead,
and returns an `Objection` if it may change the verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from birl.ope.evaluation import Evaluation
from birl.ope.lower_tail import TailGain
from birl.ope.validity_limits import CAPPED, LIMITS, Finding


@dataclass(frozen=True)
class Decision:
    """The verdict of an interval of the gain.

    Attributes:
        verdict: ``"ship"``, ``"do_not_ship"`` or ``"more_data"``.
        lower, upper: ends of the interval.
        min_gain: required gain.
        confidence: confidence of the interval.
        worst_case: lowest return of an episode that the user thinks possible; ``None`` if unknown.
        min_strength: strength Gamma of hidden confounding that must not change ``ship``.
        flips_at: smallest Gamma that may change the verdict; ``None`` if it is large, or unknown.
        bound: bound that gave the interval; see `Evaluation.gain_range`.
    """

    verdict: str
    lower: float
    upper: float
    min_gain: float
    confidence: float
    worst_case: float | None = None
    min_strength: float = 1.0
    flips_at: float | None = None
    bound: str = "t"


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


def verdict_of_interval(lower: float, upper: float, min_gain: float) -> str:
    """Return ``"ship"`` if an interval is above ``min_gain``, ``"do_not_ship"`` if it is below, else ``"more_data"``.

    An interval whose ends both equal ``min_gain`` counts as below it.
    """
    if upper < min_gain or lower == upper == min_gain:
        return "do_not_ship"
    return "ship" if lower > min_gain else "more_data"


def changed_gain(evaluation: Evaluation, decision: Decision) -> Objection | None:
    """Object if the gain changed in the time of the logs, or if the newest episodes contradict the verdict.

    If a change is found, which in logs without one happens with a probability of 1 %, no policy ships, even if the
    episodes after it have a gain: models were fitted to all episodes, and where they are wrong after the change, few
    episodes decide, and the interval of the newest is too narrow. ``do_not_ship`` stands if the newest episodes say so,
    too. Without a change, the newest tenth must not lead to the opposite verdict. If all episodes have the same gain
    and the verdict is right, it does so with a probability of at most half the error level (2.5 %). So a right verdict
    on a constant gain is objected to in at most 3.5 % of cases, and in about 1 % if the gain is clearly above or below
    ``min_gain``.
    """
    over_time = evaluation.over_time
    if over_time is None:
        return None
    interval = over_time.newest(decision.confidence)
    ends = None if interval is None else (float(interval.lower), float(interval.upper))
    newest = None if ends is None else verdict_of_interval(*ends, decision.min_gain)
    between = "" if ends is None else f" (between {ends[0]:.4g} and {ends[1]:.4g})"
    (before, after), since = over_time.means(over_time.gain), over_time.when(over_time.since)
    if over_time.change is None:
        if newest is None or {decision.verdict, newest} != {"ship", "do_not_ship"}:
            return None
        count = len(over_time.time) - over_time.first
        reason = f"the newest {count} episodes, since {since}, say the opposite: a gain of {after:.4g}{between}"
        return Objection("more_data", reason, (f"log more, and decide by the episodes since {since}",))
    if decision.verdict == newest == "do_not_ship":
        return None
    at = over_time.when(over_time.change.time)
    reason = f"the gain changes at about {at}: {before:.4g} before {since}, {after:.4g} since then{between}"
    reason += _cause(evaluation)
    return Objection("more_data", reason, (f"log more, and decide by the episodes since {since}",))


def _cause(evaluation: Evaluation) -> str:
    """Return which of the two values of a gain changed, as the end of a sentence."""
    over_time = evaluation.over_time
    if over_time is None or evaluation.against != "logs":
        return ""
    if not over_time.differs(over_time.baseline) or over_time.differs(over_time.policy):
        return ""
    before, after = over_time.means(over_time.baseline)
    return (
        f"; what the logs earn changes ({before:.4g} before, {after:.4g} since then), the value of the policy hardly: "
        "another logging policy may have started to act"
    )


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


def unseen_loss(evaluation: Evaluation, decision: Decision) -> Objection | None:
    """Object to ``ship`` if losses that are possible, but rarer than the logs can show, would turn it."""
    losses = evaluation.unseen
    if losses is None or (worst := losses.worst(decision.worst_case)) is None:
        return None
    margin = decision.lower - decision.min_gain
    if decision.verdict != "ship" or decision.bound != "t" or margin <= 0:
        return None  # other bounds include such losses
    share = losses.share(decision.confidence)
    cost = share * (losses.lowest - worst)
    if cost < margin:
        return None
    reason = (
        f"an episode may return {worst:.4g}, but the lowest logged return is {losses.lowest:.4g}: up to {share:.2g} of "
        "the policy's episodes may return so little without a trace in the logs, and "
        f"{margin / (losses.lowest - worst):.2g} of them would turn the verdict"
    )
    remedy = "or show that so low a return is impossible (worst_case=, --worst-case, or the range of rewards)"
    return Objection(
        "more_data", reason, (f"log about {cost / margin:.2g} times as many episodes", remedy), cost / margin
    )


def hidden_causes(evaluation: Evaluation, decision: Decision) -> Objection | None:
    """Object to ``ship`` if weak hidden confounding would turn it."""
    flips_at = decision.flips_at
    if decision.verdict != "ship" or flips_at is None or flips_at >= decision.min_strength:
        return None
    why = "the propensities are estimated, and " if evaluation.behaviour == "estimated" else ""
    reason = (
        f"{why}hidden confounding with a Gamma of {flips_at:.3g} may turn the verdict; a Gamma of "
        f"{decision.min_strength:g} must not"
    )
    remedies = ("log the propensities of the policy that acts", "or require less, if nothing hidden drove the actions")
    return Objection("more_data", reason, (remedies[0], f"{remedies[1]} (min_strength=, --min-strength)"))


def lower_tails(evaluation: Evaluation, decision: Decision) -> Objection | None:
    """Object if the worst episodes of the policy may earn less than required; see `birl.ope.LowerTail`."""
    if decision.verdict == "do_not_ship":
        return None
    found = [each for tail in evaluation.tails if (each := _lower_tail(tail, decision)) is not None]
    return max(found, key=lambda each: GRAVITY.index(each.verdict), default=None)


def _lower_tail(found: TailGain, decision: Decision) -> Objection | None:
    least = found.tail.min_gain
    if least is None:
        return None
    if found.refused:
        return Objection("more_data", found.text(decision.confidence), ("log more episodes",), found.times)
    interval = found.interval(decision.confidence)
    lower, upper, distance = float(interval.lower), float(interval.upper), found.value - least
    if upper < least:
        return Objection("do_not_ship", remedies=("learn a policy whose worst episodes earn more",))
    if lower >= least:
        return None
    times = ((upper - lower) / 2 / distance) ** 2 if distance > 0 else None
    return Objection("more_data", remedies=("log more episodes",), times=times)


OBJECTIONS: Final[tuple[Objecting, ...]] = (
    changed_gain,
    missing_support,
    heavy_tail,
    leaked_reward,
    unseen_loss,
    hidden_causes,
    lower_tails,
)
"""All objections; the remedies of the first one with remedies come first."""


def first_finding(evaluation: Evaluation, fact: str | None) -> Finding | None:
    """Return the first finding about a fact."""
    return next((finding for finding in evaluation.findings if finding.fact == fact), None)
