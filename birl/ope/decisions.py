"""Verdicts on evaluated policies, with their reasons, their assumptions and what would change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from birl.checks import check
from birl.errors import ConfigError
from birl.ope.constraints import Constraint
from birl.ope.estimators import Estimate
from birl.ope.evaluation import MODELS, Evaluation
from birl.ope.intervals import t_interval, t_p_value, t_quantile
from birl.ope.model_agreement import ModelGain, model_gain
from birl.ope.objections import GRAVITY, OBJECTIONS, Decision, Objection, first_finding, verdict_of_interval
from birl.ope.online_test import OnlineTestPlan, outcome_spread, plan_online_test
from birl.ope.segments import MIN_EPISODES
from birl.ope.validity_limits import members
from birl.types import Array

STATUS: Final = {"ship": 0, "do_not_ship": 3, "more_data": 4, "cannot_tell": 5, "test_online": 6}
"""Exit status of each verdict."""
_WEIGHTED: Final = ("weights", "robust", "data")
_TOO_LONG: Final = ("ess", "pareto_k", "share", "kappa", "ess_where_model_differs", "estimator")
"""Facts for which weights are refused although the logs have no fault."""
_TEST_SHARE: Final = 0.1
"""Share of the traffic in the plan of a test of a policy that only models know."""
_MIN_STRENGTH: Final = {"logged": 1.0, "given": 1.0, "estimated": 1.5}
"""Default of ``min_strength`` by the source of the propensities."""
GAMMAS: Final = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Strengths of hidden confounding in reports."""


@dataclass(frozen=True)
class Verdict:
    """A verdict on a policy.

    Attributes:
        verdict: ``"ship"``: the gain is above ``min_gain``; ``"do_not_ship"``: it is not; ``"more_data"``: the logs
            leave both open, few episodes decide, the gain changes over time, or the policy takes actions that the
            logging policy never takes;
            ``"cannot_tell"``: the logs cannot give an answer; ``"test_online"``: weights cannot give one over so many
            steps, but models agree on a gain above ``min_gain``, so a guarded online test is worth it.
        reasons: reasons of the verdict, as sentences.
        remedies: steps that would help to decide.
        assumptions: assumptions that logs cannot check.
        min_gain: required gain.
        lower, upper: ends of the interval that decided; ``None`` if there is none.
        confidence: confidence of that interval.
        times: factor by which the number of episodes must probably grow for a decision; ``None`` if there is a decision
            already, or if no number would suffice.
        flips_at: smallest Gamma of hidden confounding that may change the verdict; ``None`` if it is above 20, or
            unknown. See `birl.ope.sensitivity`.
        ranges: Gamma, and lower and upper end of the gain under it, for several Gammas.
        constraints: verdicts on the constraints: ``"ship"`` if one holds, ``"do_not_ship"`` if it is violated.
        segments: verdicts on segments by their names, with simultaneous intervals: ``"ship"`` if a segment gains, or
            loses less than allowed, ``"do_not_ship"`` if it loses more.
        plan: plan of the online test; ``None`` for other verdicts.
        unseen_loss: for ``ship``: the share of the policy's episodes that may have outcomes that no log shows, and the
            return that they must have on average to turn the verdict; ``None`` if it is unknown.
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
    constraints: Mapping[Constraint, Verdict] = field(default_factory=dict)
    segments: Mapping[str, Verdict] = field(default_factory=dict)
    plan: OnlineTestPlan | None = None
    unseen_loss: tuple[float, float] | None = None

    @property
    def turns(self) -> tuple[str, ...]:
        """What may turn the verdict without a trace in the logs, as sentences."""
        found = []
        if self.unseen_loss is not None:
            share, at = self.unseen_loss
            found.append(
                f"rare losses: up to 1 in {1 / share:.2g} of the policy's episodes may have outcomes that no log "
                f"shows; a mean return of {at:.4g} in these would turn the verdict"
            )
        if self.flips_at is not None:
            found.append(
                f"hidden causes: something outside the observations that drove actions and rewards, with a Gamma of "
                f"{self.flips_at:.3g} or more (a factor of the odds of an action), may change the verdict"
            )
        return tuple(found)

    @property
    def label(self) -> str:
        """The verdict in words."""
        return self.verdict.replace("_", " ")

    @property
    def status(self) -> int:
        """Exit status: 0, 3, 4, 5 or 6."""
        return STATUS[self.verdict]


def decide(lower: float, upper: float, min_gain: float) -> tuple[str, float | None]:
    """Return the verdict for an interval of the gain, and how many times as many episodes would probably decide.

    The verdict is ``ship`` if the whole interval is above ``min_gain``, and ``do_not_ship`` if the whole interval is
    below it or both ends equal it. Otherwise it is ``more_data``. The half-width of the interval shrinks with the root
    of the number of episodes. So with ``(half-width / distance)^2`` times as many episodes the interval would probably
    exclude ``min_gain``, where ``distance`` is that from ``min_gain`` to the middle of the interval.

    Args:
        lower, upper: ends of the interval.
        min_gain: required gain.
    """
    if not lower <= upper:
        raise ConfigError(f"the interval is [{lower}, {upper}]; it must have two ends, the lower one first")
    if (label := verdict_of_interval(lower, upper, min_gain)) != "more_data":
        return label, None
    half, distance = (upper - lower) / 2, abs((upper + lower) / 2 - min_gain)
    return "more_data", (half / distance) ** 2 if distance > 1e-3 * half else None


def verdict(
    evaluation: Evaluation,
    min_gain: float = 0.0,
    confidence: float | None = None,
    *,
    worst_case: float | None = None,
    min_strength: float | None = None,
    bound: str = "t",
) -> Verdict:
    """Return the verdict on a policy.

    Args:
        evaluation: result of `birl.ope.evaluate`.
        min_gain: required gain over the logs (or the other policy), in units of discounted returns.
        confidence: confidence of the interval that decides; by default that of the evaluation. For several policies,
            `verdicts` passes a higher confidence.
        worst_case: lowest discounted return of an episode that is possible; by default that of the range of rewards.
            If so low a return may befall enough of the policy's episodes to turn ``ship`` without a trace in the logs,
            the verdict is ``more_data``.
        min_strength: strength Gamma of hidden confounding, 1 or more, that must not turn ``ship``; by default 1.5 for
            estimated propensities and 1 for others.
        bound: see `Evaluation.gain_range`.

    Raises:
        ConfigError, DataError: if an argument is out of range, or ``worst_case`` above a logged return.
    """
    min_gain = float(check("min_gain", min_gain, float))
    check("worst_case", worst_case, float, optional=True)
    check("min_strength", min_strength, float, low=1, optional=True)
    confidence = evaluation.confidence if confidence is None else confidence
    found = _by_weights(evaluation, min_gain, confidence, worst_case=worst_case, min_strength=min_strength, bound=bound)
    worth = _online_test(evaluation, min_gain, confidence) if found.verdict == "cannot_tell" else None
    return found if worth is None else worth


def _by_weights(
    evaluation: Evaluation,
    min_gain: float,
    confidence: float,
    *,
    worst_case: float | None = None,
    min_strength: float | None = None,
    bound: str = "t",
) -> Verdict:
    """Return the verdict by the estimator that decides, or that none does."""
    assumptions = _assumptions(evaluation)
    ends = evaluation.gain_range(confidence, bound)
    if ends is None:
        refusals = [finding for finding in evaluation.findings if finding.refused and finding.family != "kernel"]
        why, helps = _unique([finding.text for finding in refusals]), _unique([finding.remedy for finding in refusals])
        return Verdict("cannot_tell", why, helps, assumptions, min_gain, confidence=confidence)
    lower, upper = ends
    label, times = decide(lower, upper, min_gain)
    strength = _MIN_STRENGTH[evaluation.behaviour] if min_strength is None else min_strength
    flips_at, ranges = _confounding(evaluation, label, lower, upper, min_gain)
    decision = Decision(label, lower, upper, min_gain, confidence, worst_case, strength, flips_at, bound)
    objections = [found for each in OBJECTIONS if (found := each(evaluation, decision)) is not None]
    constraints = {each: _constraint_verdict(evaluation, each, confidence, strength) for each in evaluation.constraints}
    segments = _segment_verdicts(evaluation, confidence)
    objections += [] if label == "do_not_ship" else _unmet(constraints) + _lost(evaluation, segments)
    if objections:
        widened = evaluation.bounds is not None  # then this objection knows how many episodes are needed
        needed = [each.times for each in objections] + [times] * (label == "more_data" and not widened)
        times = None if None in needed else max(each for each in needed if each is not None)
        label = max((each.verdict for each in objections), key=GRAVITY.index)
    reasons = [_interval_reason(lower, upper, min_gain, evaluation, bound), *(each.reason for each in objections)]
    reasons += [constraint_text(each, found) for each, found in constraints.items()]
    reasons += [each.text(confidence) for each in evaluation.tails]
    remedies = [remedy for each in objections for remedy in each.remedies]
    if label == "more_data" and not remedies:
        unknown = "the number of episodes that would decide is unknown: the estimate is too close to the limit"
        remedies.append(unknown if times is None else f"log about {_rounded(max(times, 1.1))} times as many episodes")
        if any(finding.refused and finding.fact == "ess" for finding in evaluation.findings):  # other logs help more
            remedies.append("or log with a minimum propensity, or evaluate a policy nearer to the logs")
    if label == "ship":
        remedies.append("ship behind a guarded online test, which also shows what logs cannot")
    doubts = [
        f"doubtful: {finding.message}"
        for finding in evaluation.findings
        if not finding.refused and evaluation.decides in members(finding.family)
    ]
    doubts += _possible_losses(evaluation, segments)
    flips_at = None if label == "more_data" else flips_at
    if label == "ship":  # it changes if the gain or a constraint does
        known = [flips_at, *(each.flips_at for each in constraints.values())]
        flips_at = min((at for at in known if at is not None), default=None)
    return Verdict(
        verdict=label,
        reasons=_unique([*reasons, *doubts]),
        remedies=_unique(remedies),
        assumptions=assumptions,
        min_gain=min_gain,
        lower=lower,
        upper=upper,
        confidence=confidence,
        times=times,
        flips_at=flips_at,
        ranges=ranges,
        constraints=constraints,
        segments=segments,
        unseen_loss=_unseen_loss(evaluation, label, lower - min_gain, confidence) if bound == "t" else None,
    )


def _unseen_loss(evaluation: Evaluation, label: str, margin: float, confidence: float) -> tuple[float, float] | None:
    """Return the share of episodes whose outcomes no log may show, and the return at which they turn ``ship``."""
    losses = evaluation.unseen
    if label != "ship" or losses is None:
        return None
    return losses.share(confidence), losses.lowest - losses.turning_loss(margin, confidence)


CONSTRAINT_STATES: Final = {
    "ship": "holds",
    "do_not_ship": "is violated",
    "more_data": "is open",
    "cannot_tell": "cannot be checked",
}
"""Verdicts on constraints in words."""


def constraint_text(constraint: Constraint, found: Verdict) -> str:
    """Return what is known of a constraint as a sentence."""
    text = f"the constraint '{constraint}' {CONSTRAINT_STATES[found.verdict]}"
    if found.lower is None or found.upper is None:
        return f"{text}: {'; '.join(found.reasons)}"
    low, high = found.lower - found.min_gain, found.upper - found.min_gain
    interval = f"the distance to the limit is between {low:.4g} and {high:.4g} (negative: beyond it)"
    turned = found.verdict != decide(low, high, 0.0)[0]
    why = "".join(f"; {reason}" for reason in found.reasons[1:]) if turned else ""
    return f"{text}: {interval}{why}"


def _constraint_verdict(
    evaluation: Evaluation, constraint: Constraint, confidence: float, min_strength: float
) -> Verdict:
    """Return the verdict on a constraint. A limit is inside; an outcome that never varied shows nothing."""
    outcome = evaluation.constraints[constraint]
    found = _by_weights(outcome, constraint.min_gain, confidence, min_strength=min_strength)
    if evaluation.differs == 0 and found.lower == found.upper == found.min_gain:
        return replace(found, verdict="ship", remedies=())  # the policy that acted, at a limit of no change
    if outcome.logs.gain.terms.std() > 0 or found.lower is None or evaluation.differs == 0:
        return found
    reason = f"{constraint.column} is the same in all episodes, so the logs cannot show what changes it"
    return replace(found, verdict="more_data", reasons=(found.reasons[0], reason), remedies=(), times=None)


def _unmet(constraints: Mapping[Constraint, Verdict]) -> list[Objection]:
    """Return objections to a gain whose constraints are not known to hold."""
    return [
        Objection(found.verdict, remedies=_remedies_of(each, found), times=found.times)
        for each, found in constraints.items()
        if found.verdict != "ship"
    ]


def _remedies_of(constraint: Constraint, found: Verdict) -> tuple[str, ...]:
    if found.verdict == "do_not_ship":
        return (f"learn a policy that keeps '{constraint}'",)
    return tuple(f"for '{constraint}': {text}" for text in found.remedies)


def _segment_verdicts(evaluation: Evaluation, confidence: float) -> dict[str, Verdict]:
    """Return verdicts on segments: whether each loses less than allowed, with one confidence for all (Bonferroni)."""
    parts = {each.name: each.evaluation for each in evaluation.segments}
    count = sum(each is not None and each.gain is not None for each in parts.values())
    corrected = 1 - (1 - confidence) / max(count, 1)
    allowed = -(evaluation.segment_loss or 0.0)
    found = {}
    for name, part in parts.items():
        if part is None:
            small = f"{name} has fewer than {MIN_EPISODES} episodes or clusters"
            found[name] = Verdict("cannot_tell", (small,), min_gain=allowed, confidence=corrected)
            continue
        said = _by_weights(part, allowed, corrected)
        alike = said.lower == said.upper == 0  # it acts as the baseline there
        found[name] = replace(said, verdict="ship", remedies=()) if alike else said
    return found


def _lost(evaluation: Evaluation, segments: Mapping[str, Verdict]) -> list[Objection]:
    """Return objections to a gain that some segments pay for: certain losses, and with a limit also possible ones."""
    objections, loss = [], evaluation.segment_loss
    for name, found in segments.items():
        said = _gain_text(found)
        if found.verdict == "do_not_ship":
            beyond = "the gain is negative" if not loss else f"the loss is above {loss:g}"
            remedy = f"keep the baseline's actions where {name}, and evaluate that policy"
            objections.append(Objection("do_not_ship", f"{beyond} where {name}: {said}", (remedy,)))
        elif found.verdict != "ship" and loss is not None:
            reason = f"a loss above {loss:g} is not excluded where {name}: {said}"
            remedies = tuple(f"where {name}: {text}" for text in found.remedies)
            objections.append(Objection("more_data", reason, remedies, found.times))
    return objections


def _possible_losses(evaluation: Evaluation, segments: Mapping[str, Verdict]) -> list[str]:
    """Return doubts about segments whose estimated gain is negative, if their losses have no limit."""
    if evaluation.segment_loss is not None:
        return []
    unsure = {name: found for name, found in segments.items() if found.verdict == "more_data"}
    return [
        f"doubtful: a loss is not excluded where {name}: {_gain_text(found)}"
        for name, found in unsure.items()
        if found.lower is not None and found.upper is not None and found.lower + found.upper < 0
    ]


def _gain_text(found: Verdict) -> str:
    if found.lower is None or found.upper is None:
        return "; ".join(found.reasons)
    return f"its gain is between {found.lower:.4g} and {found.upper:.4g}"


def _agreed_gain(evaluation: Evaluation, min_gain: float, confidence: float) -> ModelGain | None:
    """Return the gain on which models agree if it is above ``min_gain`` and logs do not speak against it."""
    checks = evaluation.model_checks
    refusals = [finding for finding in evaluation.findings if finding.refused and finding.family in _WEIGHTED]
    if checks is None or checks.faults or any(finding.fact not in _TOO_LONG for finding in refusals):
        return None
    linear, marginal = (evaluation.rows[name].gain for name in MODELS)
    gain = model_gain(linear, marginal, checks, confidence, evaluation.clusters)
    decision = Decision("ship", gain.lower, gain.upper, min_gain, confidence)
    gates = bool(evaluation.segments) and evaluation.segment_loss is not None
    gates |= any(each.tail.min_gain is not None for each in evaluation.tails)
    if gates or first_finding(evaluation, "no_support") is not None:
        return None  # nothing bounds what such actions earn, or what segments and the worst episodes lose
    decided = replace(evaluation, decides=MODELS[1], over_time=checks.over_time)  # as if this estimator decided
    if gain.lower <= min_gain or any(each(decided, decision) is not None for each in OBJECTIONS):
        return None
    return gain


def _online_test(evaluation: Evaluation, min_gain: float, confidence: float) -> Verdict | None:
    """Return the verdict ``test_online`` if models agree on a gain that weights cannot show, otherwise ``None``."""
    gain = _agreed_gain(evaluation, min_gain, confidence)
    spread = outcome_spread(evaluation.logs.gain.terms, evaluation.clusters)
    agreed = (_agreed_gain(found, each.min_gain, confidence) for each, found in evaluation.constraints.items())
    if gain is None or None in agreed or not spread.std:
        return None
    detected = max(
        gain.lower, (min_gain + min(gain.linear, gain.marginal)) / 2
    )  # half of the gain, if it is that large
    plan = plan_online_test(
        detected,
        spread.std,
        min_gain=min_gain,
        skewness=spread.skewness,
        share=_TEST_SHARE,
        error=(1 - confidence) / 2,
    )
    agree = (
        f"models agree on a gain between {gain.lower:.4g} and {gain.upper:.4g} ({gain.linear:.4g} by {MODELS[0]}, "
        f"{gain.marginal:.4g} by {MODELS[1]}), but weights cannot confirm it over {evaluation.horizon} steps"
    )
    refusals = [finding for finding in evaluation.findings if finding.refused and finding.family in _WEIGHTED]
    unit = f"the outcome of a unit is the return of an episode, discounted by {evaluation.gamma:g} per step, as here"
    state = "the models are right: observations hold the whole state, and values are nearly linear in their features"
    return Verdict(
        verdict="test_online",
        reasons=_unique([agree, *(finding.text for finding in refusals)]),
        remedies=_unique([*plan.sentences, unit, *(finding.remedy for finding in refusals)]),
        assumptions=(state, *_assumptions(evaluation)),
        min_gain=min_gain,
        lower=gain.lower,
        upper=gain.upper,
        confidence=confidence,
        plan=plan,
    )


def verdicts(
    evaluations: Mapping[str, Evaluation],
    min_gain: float = 0.0,
    *,
    worst_case: float | None = None,
    min_strength: float | None = None,
    bound: str = "t",
) -> dict[str, Verdict]:
    """Return verdicts on several policies, with one bound on the probability of shipping any of them wrongly.

    Holm's procedure (Holm 1979, Scandinavian Journal of Statistics 6) tests m policies in the order of their p-values:
    the first at the error level of one policy divided by m, the second at this level divided by m - 1, and so on. All
    policies after the first that does not ship have the same confidence as that policy.

    Args:
        evaluations: evaluations by name, from the same logs and with the same confidence.
        min_gain, worst_case, min_strength, bound: see `verdict`.
    """
    p_values = {name: p for name, each in evaluations.items() if (p := _largest_p_value(each, min_gain)) is not None}
    (confidence,) = {evaluation.confidence for evaluation in evaluations.values()} or {0.95}
    errors = dict(zip(p_values, holm([*p_values.values()], (1 - confidence) / 2), strict=True))  # one-sided
    confidences = dict.fromkeys(
        evaluations, 1 - (1 - confidence) / max(len(evaluations), 1)
    )  # for those that models value
    confidences |= {name: 1 - 2 * error for name, error in errors.items()}
    return {
        name: verdict(
            evaluation,
            min_gain,
            confidences.get(name),
            worst_case=worst_case,
            min_strength=min_strength,
            bound=bound,
        )
        for name, evaluation in evaluations.items()
    }


def _largest_p_value(evaluation: Evaluation, min_gain: float) -> float | None:
    """Return the p-value of the gain, or of a constraint if that is larger: a policy ships if all are small."""
    if evaluation.gain is None:
        return None
    found = [p_value(evaluation.gain.gain, min_gain, evaluation.clusters)]
    for constraint, outcome in evaluation.constraints.items():
        row = outcome.gain
        found.append(1.0 if row is None else p_value(row.gain, constraint.min_gain, outcome.clusters))
    found += [each.p_value() for each in evaluation.tails if each.tail.min_gain is not None]
    if (loss := evaluation.segment_loss) is not None:
        parts = [each.evaluation for each in evaluation.segments]
        known = [(part, part.gain.gain) for part in parts if part is not None and part.gain is not None]
        found += [min(1.0, len(known) * p_value(gain, -loss, part.clusters)) for part, gain in known]
    return max(found)


def p_value(gain: Estimate, min_gain: float, clusters: Array | None = None) -> float:
    """Return the probability of such a gain, or a greater one, if the true gain is ``min_gain`` (Student's t)."""
    interval = t_interval(gain, 0.5, clusters)
    count = gain.terms.size if clusters is None else len(np.unique(clusters))
    error = float(interval.upper - interval.lower) / 2 / t_quantile(0.75, count - 1)
    return t_p_value(float(gain.value) - min_gain, error, count - 1)


def holm(p_values: Sequence[float], error: float) -> list[float]:
    """Return the error level of each of m hypotheses, which is rejected if its p-value is smaller than its level.

    In the order of p-values, levels are ``error / m``, ``error / (m - 1)`` and so on, up to the first hypothesis that
    is not rejected. All later hypotheses have the same level as that one, and are not rejected either. The probability
    of rejecting any true hypothesis is at most ``error``.

    Args:
        p_values: a p-value for each hypothesis, 0 to 1.
        error: error level for all hypotheses together, above 0 and below 1.
    """
    errors, divisor, stopped = [0.0] * len(p_values), len(p_values), False
    for k in sorted(range(len(p_values)), key=lambda k: p_values[k]):
        errors[k] = error / divisor
        stopped = stopped or p_values[k] >= errors[k]
        divisor -= not stopped
    return errors


def _rounded(times: float) -> str:
    """Format a factor with two digits."""
    if times >= 1e6:
        return "more than a million"
    return f"{times:.2g}" if times < 10 else f"{float(f'{times:.2g}'):,.0f}"


def _unique(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))


def _interval_reason(lower: float, upper: float, min_gain: float, evaluation: Evaluation, bound: str) -> str:
    baseline = "the logs" if evaluation.against == "logs" else evaluation.against
    by = evaluation.decides if bound == "t" else f"{bound} bound, per_decision"
    interval = f"the gain over {baseline} is between {lower:.4g} and {upper:.4g} ({by})"
    if evaluation.bounds is not None and bound == "t":
        known = ", whatever the actions earn that the logs do not support"
        interval += known if evaluation.bounds.known else ", without what actions earn that the logs do not support"
    if lower == upper:
        return f"{interval}: in these logs both act alike"
    if lower > min_gain:
        return f"{interval}: the whole interval is above {min_gain:g}"
    if upper < min_gain:
        return f"{interval}: the whole interval is below {min_gain:g}"
    return f"{interval}: the interval contains {min_gain:g}"


def _confounding(
    evaluation: Evaluation, label: str, lower: float, upper: float, min_gain: float
) -> tuple[float | None, tuple[tuple[float, float, float], ...]]:
    """Return the Gamma that changes the verdict, and the intervals under several Gammas."""
    if evaluation.confounded is None:
        return None, ()
    shifts = [(gamma, *evaluation.confounded.shift(gamma)) for gamma in GAMMAS]
    ranges = tuple((gamma, lower + down, upper + up) for gamma, down, up in shifts)
    return None if label == "more_data" else evaluation.confounded.flips(lower, upper, min_gain), ranges


def _assumptions(evaluation: Evaluation) -> tuple[str, ...]:
    """Return assumptions that logs cannot check."""
    source = {
        "logged": "the logged propensities are those of the policy that acted",
        "estimated": "the estimated propensities are right: observations contain everything that influenced actions",
        "given": "the given behaviour policy is the one that acted",
    }[evaluation.behaviour]
    unit = evaluation.unit
    value = {
        "decision": "the mean reward of a decision",
        "slate": "the mean sum of the rewards of a slate",
        "episode": f"the first {evaluation.horizon} steps of an episode count, with a discount of "
        f"{evaluation.gamma:g} per step, and episodes end where their logs end",
    }[unit]
    units = "clusters" if evaluation.clusters is not None else f"{unit}s"
    positivity = (
        "positivity: the policy that acted also takes every action of this policy with some probability; logged "
        "propensities of all actions would show it"
    )
    constant = ""
    if (over_time := evaluation.over_time) is not None and over_time.change is None and over_time.unseen > 0:
        count, since = len(over_time.time) - over_time.first, over_time.when(over_time.since)
        constant = (
            f"; in the newest {count} episodes, since {since}, a change of the gain by less than about "
            f"{over_time.unseen:.3g} would probably not show"
        )
    return (
        source,
        *evaluation.assumptions,
        *(() if evaluation.support_known else (positivity,)),
        "nothing outside the observations influenced both actions and rewards; Gamma measures how strong such an "
        "influence must be to change the verdict",
        f"{units} are independent of each other, and future {unit}s are distributed as the logged ones{constant}",
        f"the value is what you want to maximise: {value}",
        f"the policy affects only its own {unit}s, not other users or the rest of the world",
    )
