"""One call from logs and a policy to what it would earn there, how sure that is, and what the logs cannot carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from birl.checks import check
from birl.errors import DataError
from birl.ope.diagnostics import diagnose
from birl.ope.episode_arrays import Logged, View, check_columns, read
from birl.ope.estimators import (
    ESTIMATORS,
    Estimate,
    direct_method,
    on_policy,
)
from birl.ope.importance_weights import Trajectories
from birl.ope.intervals import Interval, t_interval
from birl.ope.sensitivity import Confounded
from birl.ope.validity_limits import (
    FAMILIES,
    Finding,
    allowed,
    judge,
    model_facts,
    reward_facts,
    tail_facts,
    weight_facts,
)
from birl.types import Array

DECIDERS: Final = ("doubly_robust", "weighted_per_decision", "per_decision")
"""Which estimator decides: the first that is not refused, whatever it says."""
_ROBUST: Final = ("doubly_robust", "weighted_doubly_robust")
_DRIFT: Final = 0.99
_MODEL: Final = ("q", "v")
_NEEDS: Final = {
    "on_policy": (),
    "direct_method": _MODEL,
    "double_reinforcement_learning": (*_MODEL, "z"),
    **dict.fromkeys(_ROBUST, ("log_ratio", *_MODEL)),
}
"""What estimators need of logs; those that are not here need ratios."""
_PAIRED: Final = (*_ROBUST, "double_reinforcement_learning")
"""Estimators with a model, to whose gain over the logs the same model belongs."""


@dataclass(frozen=True, eq=False)
class Row:
    """What one estimator says.

    Attributes:
        value: the estimate.
        interval: of the estimate; ``None`` of a model alone, whose terms know nothing of its error.
        gain: the paired gain over the logs or the other policy, as terms.
        gain_interval: its interval.
        refused: why it must not be trusted; empty if it may.
    """

    value: float
    interval: Interval | None
    gain: Estimate
    gain_interval: Interval | None
    refused: str = ""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A policy, evaluated on logs.

    Attributes:
        name: of the policy.
        against: ``"logs"``, or the name of the policy that it is compared with.
        gamma, horizon: the question: the mean of ``sum_t gamma^t r_t`` over the first ``horizon`` steps of episodes.
        confidence: of the intervals, two-sided.
        behaviour: where propensities come from: ``"logged"``, ``"estimated"`` or ``"given"``.
        steps: number of logged steps.
        logs: what the logs earned, with its interval.
        rows: by estimator.
        decides: the estimator that decides; ``None`` if all that could are refused.
        facts: figures that the limits are compared with.
        findings: what is refused and what is doubtful.
        drift: gains in the first and the last half in time; ``None`` if times are not known or no estimator decides.
        drifts: whether the 99 % interval of their difference leaves out 0.
        weights: effective episodes and mean weight at each step, ``[T]``; empty without propensities.
        confounded: what hidden confounding could do; ``None`` without propensities.
        differs: in what share of the logged steps the policy does something else than the one that logged; ``None``
            without propensities.
        chances: its probabilities of all choices at some of the steps, ``[k, A]``; ``None`` of quantities.
        support_known: whether the logger's probability of every action is known, so that ``facts["no_support"]`` misses
            no action that the logger never takes.
    """

    name: str
    against: str
    gamma: float
    horizon: int
    confidence: float
    behaviour: str
    steps: int
    logs: Row
    rows: Mapping[str, Row]
    decides: str | None
    facts: Mapping[str, float | None]
    findings: tuple[Finding, ...]
    drift: tuple[float, float] | None
    drifts: bool
    weights: Mapping[str, Array] = field(default_factory=dict)
    confounded: Confounded | None = None
    clusters: Array | None = None
    differs: float | None = None
    chances: Array | None = None
    support_known: bool = False

    @property
    def gain(self) -> Row | None:
        """The row that decides."""
        return None if self.decides is None else self.rows[self.decides]

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return int(self.logs.gain.terms.size)


def evaluate(
    policy: Any,
    dataset: Any,
    *,
    gamma: float = 0.99,
    horizon: int | None = None,
    against: Any = "logs",
    behaviour: Any = "logged",
    confidence: float = 0.95,
    seen: bool = False,
    name: str = "policy",
    against_name: str = "other policy",
    seed: int = 0,
) -> Evaluation:
    """Estimate from logs what a policy earns, and how much more than the logs did or another policy would.

    What is evaluated is what `predict` does and what is exported: a greedy policy of an algorithm, or what a policy
    that draws draws (`birl.ope.EpsilonGreedy` and its kind). The model of estimators that need one is linear, fitted on
    other episodes than those that it values; of quantities and of large observations there is none, and weights decide.

    Args:
        policy: an algorithm, a policy of `birl.ope`, or any object with ``action_probability(x, action=None)``, which
            gives the probabilities of all actions for ``None``.
        dataset: with ``episodes``. The extra ``log_propensity`` holds how probable logged actions were,
            ``propensities`` ``[A]`` how probable all were, ``cluster`` whose episodes are alike, ``time`` when, and
            ``censored`` whether the log ended first: `birl.dataset.from_table` writes these.
        gamma: discount of a step, 0 to 1.
        horizon: steps of an episode that count; by default all.
        against: ``"logs"``, or another policy.
        behaviour: ``"logged"`` propensities; ``"estimated"``, of one choice; or the policy that acted. The last two are
            checked by their calibration.
        confidence: of two-sided intervals, 0 to 1.
        seen: whether the policy has learned from these episodes, which refuses every answer.
        name, against_name: of the policies, for people.
        seed: of the parts that models are fitted on.

    Raises:
        ConfigError, DataError, UnsupportedError: if there is nothing to evaluate: no episodes, a policy without
            probabilities or with a memory. Logs that cannot carry an answer are no error: see `Evaluation.findings`.
    """
    check("confidence", confidence, float, above=0, below=1)
    check_columns({name: policy, against_name: against}, dataset)
    logs = read(dataset, gamma, horizon, behaviour, seed)
    how = behaviour if isinstance(behaviour, str) else "given"
    versus = None if isinstance(against, str) and against == "logs" else (against_name, logs.seen_from(against))
    return judged(name, logs, logs.seen_from(policy), versus, how, confidence, seen)


def judged(
    name: str, logs: Logged, view: View, versus: tuple[str, View] | None, behaviour: str, confidence: float, seen: bool
) -> Evaluation:
    """The evaluation of a policy from which the logs were seen."""
    estimates, broken = _estimates(view.of)
    others = _baseline(logs, view, estimates) if versus is None else _estimates(versus[1].of)[0]
    facts = _facts(logs, view, estimates, seen)
    findings = judge(facts)
    usable = set(allowed(findings))
    if versus is not None:
        beside = judge(_facts(logs, versus[1], others, False))
        usable &= set(allowed(beside))
        told = {(one.family, one.message) for one in findings}
        findings += tuple(
            replace(one, says=f"{versus[0]}: {one.says}") for one in beside if (one.family, one.message) not in told
        )
    rows = {}
    for key, estimate in estimates.items():
        if key not in others:
            continue
        gain, refused = estimate - others[key], ""
        if key not in usable:
            family = next(family for family, names in FAMILIES.items() if key in names)
            refused = next(one.message for one in findings if one.refused and one.family == family)
        alone = key == "direct_method"
        whole = None if alone else t_interval(estimate, confidence, logs.cluster)
        sure = None if alone else t_interval(gain, confidence, logs.cluster)
        rows[key] = Row(float(estimate.value), whole, gain, sure, refused)
    findings += tuple(Finding("weights", True, "estimator", np.nan, f"{key}: {why}") for key, why in broken.items())
    decides = next((key for key in DECIDERS if key in rows and not rows[key].refused), None)
    if decides is not None:
        tails = tail_facts(rows[decides].gain, logs.cluster)
        facts |= tails
        findings += judge(tails)
    earned = on_policy(view.of)
    own = Row(float(earned.value), t_interval(earned, confidence, logs.cluster), earned, None)
    drift, drifts = _drift(logs, None if decides is None else rows[decides].gain)
    weights: dict[str, Array] = {}
    confounded = None
    if view.of.log_ratio is not None and logs.log_propensity is not None:
        figures = diagnose(view.of)
        weights = {"ess": figures.ess_by_step, "mean_weight": figures.mean_weight}
        if decides is not None:
            chance = logs.pad(np.exp(logs.log_propensity)) + ~logs.mask  # nothing is chosen after an end
            chance = np.where(logs.mask, 0.0, 1.0) if logs.densities else chance
            confounded = Confounded(view.of, chance, None if versus is None else versus[1].of)
    return Evaluation(
        name=name,
        against="logs" if versus is None else versus[0],
        gamma=logs.gamma,
        horizon=logs.mask.shape[1],
        confidence=confidence,
        behaviour=behaviour,
        steps=int(logs.mask.sum()),
        logs=own,
        rows=rows,
        decides=decides,
        facts=facts,
        findings=findings,
        drift=drift,
        drifts=drifts,
        weights=weights,
        confounded=confounded,
        clusters=logs.cluster,
        differs=view.differs,
        chances=view.chances,
        support_known=logs.support_known,
    )


def _estimates(of: Trajectories) -> tuple[dict[str, Estimate], dict[str, str]]:
    """Estimates by all estimators that have what they need, and why others of these failed."""
    found: dict[str, Estimate] = {}
    broken: dict[str, str] = {}
    for key, estimator in ESTIMATORS.items():
        if key == "on_policy" or any(getattr(of, name) is None for name in _NEEDS.get(key, ("log_ratio",))):
            continue
        try:
            found[key] = estimator(of)
        except DataError as error:  # weights that are all 0, or beyond what a float holds
            broken[key] = str(error)
    return found, broken


def _baseline(logs: Logged, view: View, estimates: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """What the logs earned, for each estimator with what it has in common with them."""
    if view.of.log_ratio is not None and not view.of.log_ratio.any():
        return dict(estimates)  # as far as the logs tell, it is the policy that acted: the gain is exactly 0
    plain = on_policy(view.of)
    robust = plain if view.v_logged is None else on_policy(view.of, view.v_logged)
    return {key: robust if key in _PAIRED else plain for key in estimates}


def _facts(logs: Logged, view: View, estimates: Mapping[str, Estimate], seen: bool) -> dict[str, float | None]:
    facts = {**logs.facts, **view.facts, "seen": 1.0 if seen else None}
    if "double_reinforcement_learning" in estimates:
        facts |= reward_facts(estimates["double_reinforcement_learning"], view.of)
    if view.of.log_ratio is None:
        return facts
    facts |= weight_facts(diagnose(view.of))
    if "doubly_robust" in estimates:
        ess = facts["ess"]
        assert ess is not None
        facts |= model_facts(estimates["doubly_robust"], direct_method(view.of), ess)
    return facts


def _drift(logs: Logged, gain: Estimate | None) -> tuple[tuple[float, float] | None, bool]:
    """The gain in the halves in time, and whether they differ for more than chance."""
    if gain is None or logs.time is None or len(np.unique(logs.time)) < 2:
        return None, False
    late = np.argsort(np.argsort(logs.time, kind="stable")) >= len(logs.time) // 2
    if min(late.sum(), (~late).sum()) < 2:
        return None, False
    share = np.where(late, 1 / late.mean(), -1 / (~late).mean())  # the mean of share * terms is the difference
    means = float(gain.terms[~late].mean()), float(gain.terms[late].mean())
    apart = np.where(late, means[1], means[0])
    centred = Estimate(share * (gain.terms - apart) + means[1] - means[0])
    return means, not bool(t_interval(centred, _DRIFT, logs.cluster).holds(0.0))
