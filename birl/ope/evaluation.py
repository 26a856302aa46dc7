"""Evaluation of a policy on logs: what it would earn, how certain that is, and what the logs cannot answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from birl.checks import check
from birl.dataset.base import ReplayBufferBase
from birl.dataset.log_record import LogRecord
from birl.errors import ConfigError, DataError
from birl.ope.change_points import GainOverTime, gain_over_time
from birl.ope.constraints import Constraint, check_outcome, check_percent, read_constraints
from birl.ope.episode_arrays import LoggedEpisodes, PolicyView, check_columns, read_episodes
from birl.ope.episode_columns import as_dataset
from birl.ope.estimators import ESTIMATORS, Estimate, direct_method, on_policy
from birl.ope.evaluated_policies import EvaluatedPolicy
from birl.ope.importance_weights import Trajectories
from birl.ope.intervals import Interval, t_interval
from birl.ope.learned_rows import HeldOutRows
from birl.ope.lower_tail import LowerTail, TailGain, read_tails, tail_gain
from birl.ope.model_agreement import ModelChecks, check_model
from birl.ope.segments import MIN_EPISODES, check_names, read_segments
from birl.ope.sensitivity import Confounded
from birl.ope.support_bounds import GainBounds, RewardRange, gain_bounds
from birl.ope.unseen_losses import BOUNDS, BoundedGain, UnseenLosses, bounded_gain, unseen_losses
from birl.ope.validity_limits import (
    FAMILIES,
    Finding,
    allowed,
    check_limits,
    model_facts,
    reward_facts,
    tail_facts,
    weight_facts,
)
from birl.types import Array

DECIDERS: Final = ("doubly_robust", "weighted_per_decision", "per_decision")
"""Estimators that may decide: the first one that is not refused decides, whatever its value."""
MODELS: Final = ("direct_method", "double_reinforcement_learning")
"""Estimators without products of ratios: if they agree, an online test may be worth it."""
_ROBUST: Final = ("doubly_robust", "weighted_doubly_robust")
_MODEL: Final = ("q", "v")
_INPUTS: Final = {
    "on_policy": (),
    "direct_method": _MODEL,
    "double_reinforcement_learning": (*_MODEL, "z"),
    **dict.fromkeys(_ROBUST, ("log_ratio", *_MODEL)),
}
"""Optional columns that estimators need; those that are missing here need ratios."""
_PAIRED: Final = (*_ROBUST, "double_reinforcement_learning")
"""Estimators with a model, whose gain over the logs uses the same model for the logs."""


@dataclass(frozen=True, eq=False)
class Row:
    """The result of one estimator.

    Attributes:
        value: the estimate.
        interval: interval of the estimate; ``None`` for an estimate by a model alone, because the spread of its terms
            (one for each episode) does not include the model's error.
        gain: paired gain over the logs or the other policy, with one term for each episode.
        gain_interval: interval of the gain.
        refused: reason why the estimate is refused; empty if it is not.
    """

    value: float
    interval: Interval | None
    gain: Estimate
    gain_interval: Interval | None
    refused: str = ""


@dataclass(frozen=True, eq=False)
class Segment:
    """The evaluation of one segment.

    Attributes:
        name: ``"channel = app"``.
        episodes: number of its episodes.
        evaluation: its evaluation; ``None`` if it has fewer than 30 episodes or clusters.
    """

    name: str
    episodes: int
    evaluation: Evaluation | None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The evaluation of a policy on logs.

    Attributes:
        name: name of the policy.
        against: ``"logs"``, or the name of the policy that it is compared with.
        gamma, horizon: the value is the mean of ``sum_t gamma^t r_t`` over the first ``horizon`` steps of episodes.
        confidence: confidence of the two-sided intervals.
        behaviour: source of the propensities: ``"logged"``, ``"estimated"`` or ``"given"``.
        steps: number of logged steps.
        logs: what the logs earned, with its interval.
        rows: results by estimator.
        decides: the estimator that decides; ``None`` if all candidates are refused.
        facts: figures that are compared with limits.
        findings: facts beyond a limit, with the families of estimators that are refused or doubtful.
        over_time: the gain over the time of the logs, and where it changes; ``None`` without times or without an
            estimator that decides.
        weights: effective episodes and mean weight at each step, ``[T]``; empty without propensities.
        confounded: sensitivity to hidden confounding; ``None`` without propensities.
        clusters: cluster of each episode, ``[n]``; ``None`` if unknown.
        differs: share of the logged steps in which the policy acts differently from the logging policy; ``None``
            without propensities.
        action_probabilities: the policy's probabilities of all actions at some of the steps, ``[k, A]``; ``None`` if
            actions are not one discrete action.
        support_known: whether the propensity of every action is known, so that ``facts["no_support"]`` misses no action
            that the logging policy never takes.
        constraints: evaluations by the outcomes of constraints, as gains that must be at least `Constraint.min_gain`.
        unit: what an episode is: ``"episode"``, ``"decision"`` if only one step counts, or ``"slate"``.
        assumptions: assumptions of the estimator that decides, as sentences, besides those of every evaluation.
        bounds: bounds of the gain where the logs do not support all actions; ``None`` if they support them, or if no
            estimator decides.
        segments: evaluations of segments.
        tails: lower tails of returns, against the baseline.
        segment_loss: largest loss of a segment that a policy that ships may cause; ``None`` if only losses that are
            certain count.
        model_checks: checks of the models, if they are all that remains: no estimator decides, but
            `birl.ope.direct_method` and `birl.ope.double_reinforcement_learning` are not refused.
        unseen: what the logs show of the losses of the policy; ``None`` without propensities.
        bounded: the gain for bounds that hold for any tails; ``None`` without propensities or a range of rewards, or
            if another policy is the baseline.
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
    over_time: GainOverTime | None = None
    weights: Mapping[str, Array] = field(default_factory=dict)
    confounded: Confounded | None = None
    clusters: Array | None = None
    differs: float | None = None
    action_probabilities: Array | None = None
    support_known: bool = False
    constraints: Mapping[Constraint, Evaluation] = field(default_factory=dict)
    unit: str = "episode"
    assumptions: tuple[str, ...] = ()
    bounds: GainBounds | None = None
    segments: tuple[Segment, ...] = ()
    tails: tuple[TailGain, ...] = ()
    segment_loss: float | None = None
    model_checks: ModelChecks | None = None
    unseen: UnseenLosses | None = None
    bounded: BoundedGain | None = None

    @property
    def gain(self) -> Row | None:
        """The row of the estimator that decides."""
        return None if self.decides is None else self.rows[self.decides]

    def gain_range(self, confidence: float | None = None, bound: str = "t") -> tuple[float, float] | None:
        """Return the lower and the upper end of the gain; ``None`` if no estimator decides.

        They are the ends of the interval of the estimator that decides. Where the logs do not support all actions and
        the range of rewards is known, the interval covers all returns that these actions may have; see `bounds`.

        Args:
            confidence: confidence of the interval; by default that of the evaluation.
            bound: ``"t"`` for Student's t; ``"betting"`` or ``"bernstein"`` for bounds that hold for any tails, if the
                range of rewards is known. They are wider.

        Raises:
            ConfigError: if the bound cannot be computed.
        """
        check("bound", bound, str, choices=("t", *BOUNDS))
        if self.gain is None:
            return None
        confidence = self.confidence if confidence is None else confidence
        if bound != "t":
            if self.bounded is None:
                raise ConfigError(
                    f"bound is {bound!r}, which needs propensities of one discrete action, the lowest and the highest "
                    "reward (reward_range=, --reward-range), and the logs as the baseline: give them, or bound='t'"
                )
            return self.bounded.interval(bound, confidence, self.clusters)
        interval = t_interval(self.gain.gain, confidence, self.clusters)
        low, high = (None, None) if self.bounds is None else self.bounds.interval(confidence, self.clusters)
        return float(interval.lower) if low is None else low, float(interval.upper) if high is None else high

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return int(self.logs.gain.terms.size)


def evaluate(
    policy: EvaluatedPolicy,
    dataset: ReplayBufferBase,
    *,
    gamma: float = 0.99,
    horizon: int | None = None,
    against: str | EvaluatedPolicy = "logs",
    behaviour: str | EvaluatedPolicy = "logged",
    confidence: float = 0.95,
    seen: bool = False,
    name: str = "policy",
    against_name: str = "other policy",
    seed: int = 0,
    constraints: Sequence[str | Constraint] = (),
    reward_range: tuple[float | None, float | None] | None = None,
    segments: Sequence[str] = (),
    segment_loss: float | None = None,
    tails: Sequence[LowerTail] = (),
) -> Evaluation:
    """Estimate from logs what a policy earns, and its gain over the logs or over another policy.

    A policy is evaluated as `predict` and exports act: an algorithm by its greedy policy, a stochastic policy such as
    `birl.ope.EpsilonGreedy` by its samples. Estimators with a model use a linear model, which never values an episode
    that it was fitted on. There is no model for large observations, for several discrete actions, and for
    continuous actions of a user's own policies; estimators with weights decide then.

    Args:
        policy: an algorithm, a policy of `birl.ope`, or any object with ``action_probability(x, action=None)``, which
            returns the probabilities of all actions for ``None``. For one discrete action, ``predict(x)`` is enough. A
            discrete decision transformer is evaluated with a target return:
            ``algo.as_stateful_wrapper(target_return)``. Its probabilities depend on the logged steps before, so only
            estimators with weights evaluate it.
        dataset: dataset with ``episodes``. Extra columns: ``log_propensity`` of the logged actions, ``propensities``
            ``[A]`` of all actions, ``cluster`` of dependent episodes, ``time``, ``censored``, which marks episodes that
            were still running when the log ended, and ``reward_pending``, which marks steps whose reward was not final
            then; episodes from the first of these on are left out. `birl.dataset.from_table` writes these columns.
        gamma: discount, 0 to 1.
        horizon: number of steps of an episode that count; by default all.
        against: ``"logs"``, or another policy.
        behaviour: ``"logged"`` propensities; ``"estimated"``, for one discrete action; or the policy that acted. The
            calibration of the last two is checked.
        confidence: confidence of the two-sided intervals, between 0 and 1.
        seen: whether the policy learned from these episodes; then every estimate is refused. A policy that learned from
            imported logs is checked by the digests of their rows.
        name, against_name: names of the policies in reports.
        seed: random seed of the partition of episodes for cross-fitting.
        constraints: limits of further outcomes that a policy that ships must keep, such as ``"complaints <= +1%"``;
            see `birl.ope.Constraint`.
        reward_range: lowest and highest reward of a step that are possible, ``None`` where unknown. It bounds what
            actions earn that the logs do not support. By default the bounds in the schema of imported logs.
        segments: columns by which gains are divided: of the observation at the first step, or extra columns that are
            constant within episodes.
        segment_loss: largest loss per episode of a segment, 0 or more, that a policy that ships may cause. Without it,
            a segment stops a policy only if its loss is certain.
        tails: figures of the lower tail of returns, such as ``LowerTail("cvar", 0.1, min_gain=-0.5)``: the worst tenth
            of the episodes may earn at most 0.5 less than under the baseline.

    Raises:
        ConfigError, DataError, UnsupportedError: if there is nothing to evaluate: no episodes, a policy without
            probabilities or a recurrent one. Logs that cannot give an answer are not an error: see
            `Evaluation.findings`.
    """
    check("confidence", confidence, float, above=0, below=1)
    dataset = as_dataset(dataset)
    check_columns({name: policy, against_name: against}, dataset)
    seen = seen or bool(HeldOutRows(dataset).seen_by({name: policy, against_name: against}))
    if isinstance(against, str) and against != "logs":
        raise ConfigError(f"against is {against!r:.60}; it must be 'logs' or a policy")
    check("segment_loss", segment_loss, float, low=0, optional=True)
    limits = read_constraints(constraints)
    outcomes = {each.column for each in limits}
    extra = outcomes | set(check_names(segments))
    logs = read_episodes(dataset, gamma, horizon, behaviour, seed, extra, reward_range)
    logs = _with_outcomes(logs, limits, sorted(dataset.episodes[0].extra or {}) if limits else ())
    versus = None if isinstance(against, str) else (against_name, logs.view(against))
    parts = read_segments(segments, logs, dataset.dataset_info.columns, getattr(dataset, "logs", None), outcomes)
    view = logs.view(policy)
    found = evaluate_view(name, logs, view, versus, confidence, seen)
    return replace(
        found,
        constraints=_constrained(found, limits, logs, view, versus, seen, getattr(dataset, "logs", None)),
        segments=_by_segment(found, parts, logs, view, versus, seen),
        segment_loss=segment_loss,
        tails=_tails(found, read_tails(tails), view, versus, logs.cluster, seed),
    )


def _with_outcomes(logs: LoggedEpisodes, limits: Sequence[Constraint], available: Sequence[str]) -> LoggedEpisodes:
    """Return logs with the outcomes of constraints, in the directions in which more is better."""
    outcomes = {}
    for each in limits:
        reward = logs.pad(check_outcome(each.column, logs.extra, available, f"the constraint '{each}'"))
        check_percent(each, float((reward * logs.gamma ** np.arange(reward.shape[1])).sum(1).mean()))
        outcomes[str(each)] = each.sign * reward
    return replace(logs, outcomes=outcomes)


def _constrained(
    found: Evaluation,
    limits: Sequence[Constraint],
    logs: LoggedEpisodes,
    view: PolicyView,
    versus: tuple[str, PolicyView] | None,
    seen: bool,
    record: LogRecord | None,
) -> dict[Constraint, Evaluation]:
    """Evaluate a policy by the outcome of each constraint."""
    columns = {} if record is None else {each.column: each for each in record.schema.outcome}
    evaluations = {}
    for each in limits:
        key, column = str(each), columns.get(each.column)
        ends = (None, None) if column is None else (column.lower, column.upper)
        outcome = replace(logs, reward=logs.outcomes[key], reward_range=RewardRange(*each.orient(*ends)))
        other = None if versus is None else (versus[0], versus[1].outcomes[key])
        evaluations[each] = evaluate_view(
            key, outcome, view.outcomes[key], other, found.confidence, seen, each.baseline_share
        )
    return evaluations


def _tails(
    found: Evaluation,
    tails: Sequence[LowerTail],
    view: PolicyView,
    versus: tuple[str, PolicyView] | None,
    clusters: Array | None,
    seed: int,
) -> tuple[TailGain, ...]:
    """Compare the lower tails of returns; weights of whole episodes must be reliable, and all actions supported."""
    if view.trajectories.log_ratio is None:
        return ()
    wrong = [each for each in found.findings if each.fact == "no_support"]
    wrong += [each for each in found.findings if each.refused and each.family in ("weights", "data")]
    other = None if versus is None else versus[1].trajectories
    try:
        return tuple(
            tail_gain(each, view.trajectories, other, clusters, wrong[0].text if wrong else "", seed) for each in tails
        )
    except DataError:  # all weights are 0, and no estimator with weights decides
        return ()


def _by_segment(
    found: Evaluation,
    parts: Mapping[str, Array],
    logs: LoggedEpisodes,
    view: PolicyView,
    versus: tuple[str, PolicyView] | None,
    seen: bool,
) -> tuple[Segment, ...]:
    """Evaluate a policy in each segment; ``parts`` are the indices of its episodes by name."""
    # No observations are copied: ratios and values are known.
    light = replace(logs, observations=np.zeros((len(logs.action), 0)), x=None, extra={}, outcomes={})
    segments = []
    for name, episodes in parts.items():
        units = len(episodes) if logs.cluster is None else len(np.unique(logs.cluster[episodes]))
        if units < MIN_EPISODES:
            segments.append(Segment(name, len(episodes), None))
            continue
        inside = light.subset(episodes)
        facts = {**logs.facts, "episodes": float(len(episodes))} | (
            {"clusters": float(units)} if logs.cluster is not None else {}
        )
        other = None if versus is None else (versus[0], versus[1].subset(episodes))
        evaluation = evaluate_view(
            name, replace(inside, facts=facts), view.subset(episodes), other, found.confidence, seen
        )
        segments.append(Segment(name, len(episodes), evaluation))
    return tuple(segments)


def evaluate_view(
    name: str,
    logs: LoggedEpisodes,
    view: PolicyView,
    versus: tuple[str, PolicyView] | None,
    confidence: float,
    seen: bool,
    baseline_share: float = 1.0,
) -> Evaluation:
    """Evaluate a policy whose ratios and values are known; see `evaluate`.

    Args:
        name: name of the policy.
        logs: logged episodes.
        view: ratios and values of the policy.
        versus: name and view of the policy that it is compared with; ``None`` for the logs.
        confidence: confidence of the intervals.
        seen: whether the policy learned from these episodes.
        baseline_share: share of the baseline that gains subtract from the value of the policy.
    """
    estimates, failures = _estimates(view.trajectories)
    baseline = _baseline(view, estimates) if versus is None else _estimates(versus[1].trajectories)[0]
    facts = _facts(logs, view, estimates, seen)
    findings = _limits(logs, facts)
    usable = set(allowed(findings))
    if versus is not None:
        other_findings = _limits(logs, _facts(logs, versus[1], baseline, False))
        usable &= set(allowed(other_findings))
        known = {(finding.family, finding.message) for finding in findings}
        findings += tuple(
            replace(finding, text=f"{versus[0]}: {finding.text}")
            for finding in other_findings
            if (finding.family, finding.message) not in known
        )
    rows = {}
    for key, estimate in estimates.items():
        if key not in baseline:
            continue
        if key == "direct_method" and (logs.densities or not view.markov):  # no check of its support, or no such values
            continue
        gain, refused = estimate - Estimate(baseline_share * baseline[key].terms), ""
        if key not in usable:
            family = next(family for family, names in FAMILIES.items() if key in names)
            refused = next(finding.message for finding in findings if finding.refused and finding.family == family)
        model_only = key == "direct_method"
        interval = None if model_only else t_interval(estimate, confidence, logs.cluster)
        gain_interval = None if model_only else t_interval(gain, confidence, logs.cluster)
        rows[key] = Row(float(estimate.value), interval, gain, gain_interval, refused)
    findings += tuple(Finding("weights", True, "estimator", np.nan, f"{key}: {why}") for key, why in failures.items())
    decides = next((key for key in DECIDERS if key in rows and not rows[key].refused), None)
    if decides is not None:
        tails = tail_facts(rows[decides].gain, logs.cluster)
        facts |= tails
        findings += check_limits(tails)
    earned = on_policy(view.trajectories)
    over_time = _over_time(decides or MODELS[1], estimates, baseline, baseline_share, logs)
    weights: dict[str, Array] = {}
    if view.diagnostics is not None:
        weights = {"ess": view.diagnostics.ess_by_step, "mean_weight": view.diagnostics.mean_weight}
    other = None if versus is None or not baseline_share else versus[1].trajectories
    return Evaluation(
        name=name,
        against="logs" if versus is None else versus[0],
        gamma=logs.gamma,
        horizon=logs.mask.shape[1],
        confidence=confidence,
        behaviour=logs.behaviour,
        steps=int(logs.mask.sum()),
        logs=Row(float(earned.value), t_interval(earned, confidence, logs.cluster), earned, None),
        rows=rows,
        decides=decides,
        facts=facts,
        findings=findings,
        over_time=None if decides is None else over_time,
        weights=weights,
        confounded=None if decides is None else _confounded(logs, view, other),
        clusters=logs.cluster,
        differs=view.differs,
        action_probabilities=view.action_probabilities,
        support_known=logs.support_known,
        unit="episode" if logs.mask.shape[1] > 1 else "decision",
        bounds=_bounds(logs, view, versus, baseline, decides, baseline_share),
        model_checks=None if decides is not None else _check_models(rows, view, versus, logs, over_time),
        unseen=_unseen(logs, view),
        bounded=None if versus is not None or baseline_share != 1 else _bounded(logs, view),
    )


def _bounds(
    logs: LoggedEpisodes,
    view: PolicyView,
    versus: tuple[str, PolicyView] | None,
    baseline: Mapping[str, Estimate],
    decides: str | None,
    baseline_share: float,
) -> GainBounds | None:
    """Return the bounds of the gain where the logs do not support all actions."""
    if decides is None or view.trajectories.log_ratio is None:
        return None
    robust = decides == "doubly_robust"
    earned = baseline[decides if robust else "per_decision"]
    other = None if versus is None else (versus[1].trajectories, versus[1].support)
    return gain_bounds(
        view.trajectories,
        view.support,
        earned,
        logs.reward_range,
        robust=robust,
        versus=other,
        baseline_share=baseline_share,
    )


def _confounded(logs: LoggedEpisodes, view: PolicyView, other: Trajectories | None) -> Confounded | None:
    if logs.log_propensity is None:
        return None
    propensity = logs.pad(np.exp(logs.log_propensity)) + ~logs.mask  # no action is taken after the end
    propensity = np.where(logs.mask, 0.0, 1.0) if logs.densities else propensity
    return Confounded(view.trajectories, propensity, other)


def _unseen(logs: LoggedEpisodes, view: PolicyView) -> UnseenLosses | None:
    if view.diagnostics is None:
        return None
    count = np.inf if logs.cluster is None else len(np.unique(logs.cluster))
    lowest = None
    if logs.reward_range.lower is not None:
        lowest = float(logs.reward_range.returns(logs.gamma, logs.mask.shape[1])[0][0])
    return unseen_losses(view.trajectories, float(min(view.diagnostics.ess, count)), lowest)


def _bounded(logs: LoggedEpisodes, view: PolicyView) -> BoundedGain | None:
    lower, upper = logs.reward_range.lower, logs.reward_range.upper
    if view.diagnostics is None or logs.densities or lower is None or upper is None:
        return None
    try:
        return bounded_gain(view.trajectories, lower, upper)
    except DataError:  # a weight overflows
        return None


def _estimates(trajectories: Trajectories) -> tuple[dict[str, Estimate], dict[str, str]]:
    """Estimate with all estimators whose inputs are known; also return the messages of those that failed."""
    estimates: dict[str, Estimate] = {}
    failures: dict[str, str] = {}
    for key, estimator in ESTIMATORS.items():
        inputs = _INPUTS.get(key, ("log_ratio",))
        if key == "on_policy" or any(getattr(trajectories, name) is None for name in inputs):
            continue
        try:
            estimates[key] = estimator(trajectories)
        except DataError as error:  # all weights are 0, or a weight overflows
            failures[key] = str(error)
    return estimates, failures


def _baseline(view: PolicyView, estimates: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Return what the logs earned, for each estimator in the form in which common noise cancels in the gain."""
    if view.trajectories.log_ratio is not None and not view.trajectories.log_ratio.any():
        return dict(estimates)  # the policy equals the logging policy at all logged actions: the gain is 0
    plain = on_policy(view.trajectories)
    robust = plain if view.v_logging is None else on_policy(view.trajectories, view.v_logging)
    return {key: robust if key in _PAIRED else plain for key in estimates}


def _over_time(
    name: str,
    estimates: Mapping[str, Estimate],
    baseline: Mapping[str, Estimate],
    baseline_share: float,
    logs: LoggedEpisodes,
) -> GainOverTime | None:
    """Return the gain by an estimator over time; ``None`` if it is unknown."""
    if name not in estimates or name not in baseline:
        return None
    earned = Estimate(baseline_share * baseline[name].terms)
    return gain_over_time(estimates[name], earned, logs.time, logs.cluster, logs.dates)


def _check_models(
    rows: Mapping[str, Row],
    view: PolicyView,
    versus: tuple[str, PolicyView] | None,
    logs: LoggedEpisodes,
    over_time: GainOverTime | None,
) -> ModelChecks | None:
    """Check the models of the policies, if the estimates by models alone are not refused."""
    if any(name not in rows or rows[name].refused for name in MODELS):
        return None
    checks = []
    for each in (view,) if versus is None else (view, versus[1]):
        if each.diagnostics is None or each.trajectories.q is None:
            return None
        checks.append(check_model(each.trajectories, each.diagnostics.ess_by_step, logs.cluster))
    first, *other = checks
    return ModelChecks(
        min(found.carried for found in checks),
        any(found.early_error for found in checks),
        any(found.memory for found in checks),
        min(found.window for found in checks),
        first.windowed - other[0].windowed if other else first.windowed,
        first.first_order - other[0].first_order if other else first.first_order,
        over_time,
    )


def _facts(
    logs: LoggedEpisodes, view: PolicyView, estimates: Mapping[str, Estimate], seen: bool
) -> dict[str, float | None]:
    facts = {**logs.facts, **view.facts, "seen": 1.0 if seen else None}
    if "double_reinforcement_learning" in estimates:
        facts |= reward_facts(estimates["double_reinforcement_learning"], view.trajectories)
    if view.diagnostics is None:
        return facts
    facts |= weight_facts(view.diagnostics)
    if "doubly_robust" in estimates:
        ess = facts["ess"]
        assert ess is not None
        facts |= model_facts(estimates["doubly_robust"], direct_method(view.trajectories), ess)
    return facts


def _limits(logs: LoggedEpisodes, facts: Mapping[str, float | None]) -> tuple[Finding, ...]:
    """Compare facts with limits. Without a check of the support of actions, robust estimators need reliable weights."""
    findings = tuple(
        replace(each, text=f"{each.text} ({logs.where[each.fact]})") if each.fact in logs.where else each
        for each in check_limits(facts)
    )
    if not logs.densities:
        return findings
    known = {(finding.family, finding.fact) for finding in findings if finding.refused}
    weights = [each for each in findings if each.family == "weights" and each.refused]
    return findings + tuple(replace(each, family="robust") for each in weights if ("robust", each.fact) not in known)
