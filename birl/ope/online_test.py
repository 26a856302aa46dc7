"""A guarded online test of a policy: its plan, and a reader that keeps the error level however often it is read.

A share of the traffic is given to the new policy, at random, and one outcome of each unit (a user, a visit, an episode)
is recorded. `plan_online_test` says how many units a required gain needs, and when to stop. `read_online_test` reads
the log of the test as it grows: continue, ship, stop for harm, or stop for futility.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Final

import numpy as np

from birl.checks import check
from birl.errors import (
    ConfigError,
    CorruptFileError,
    DataError,
    EmptyDataError,
    FileError,
    ForeignFileError,
    NonFiniteError,
    ShapeError,
)
from birl.files import atomic_write, parse_json
from birl.ope.confidence_sequences import (
    allocation_change,
    bounded_difference,
    min_arm_units,
    mixture_threshold,
    running_difference,
)
from birl.ope.estimators import cluster_sums
from birl.ope.group_sequential import (
    SPENDING,
    check_fractions,
    crossing_probabilities,
    required_drift,
    spending_bounds,
)
from birl.types import Array

RULES: Final = ("anytime", *SPENDING)
"""Stopping rules: a confidence sequence, which may be read at any time, or group-sequential bounds at a few looks."""
READ_STATUS: Final = {"ship": 0, "stop_for_harm": 3, "continue": 4, "stop_for_futility": 7}
"""Exit status of each decision of `birl ope read`."""
_DAILY: Final = 100
"""Number of looks by which the power of the rule ``"anytime"`` is computed."""
_TUNED: Final = 10_000
"""Number of units near which confidence sequences of a test without a plan are tightest."""
_KIND: Final = "birl plan of an online test"


def sample_size(
    gain: float,
    std: float,
    *,
    std_new: float | None = None,
    share: float = 0.5,
    error: float = 0.025,
    power: float = 0.8,
) -> float:
    """Return the number of units of both arms that a test needs which is read once, at its end.

    ``(z_error + z_power)^2 (std_new^2 / share + std^2 / (1 - share)) / gain^2`` with normal quantiles z.

    Args:
        gain: gain to detect, above 0.
        std: standard deviation of the outcomes of today's policy, above 0.
        std_new: that of the new policy; by default the same.
        share: share of units with the new policy, above 0 and below 1.
        error: one-sided probability of a false detection, above 0 and below 0.5.
        power: probability of detecting the gain, between ``error`` and 1.
    """
    check("gain", gain, float, above=0)
    check("error", error, float, above=0, below=0.5)
    check("power", power, float, above=error, below=1)
    drift = NormalDist().inv_cdf(1 - error) + NormalDist().inv_cdf(power)
    return (drift * _unit_error(std, std_new, share) / gain) ** 2


def effective_share(target: Array, logging: Array, steps: int = 1) -> float:
    """Return the share of episodes that weights of a policy leave effective, before anything is logged.

    ``1 / E[sum_a pi(a|x)^2 / b(a|x)]^T``, as if the observations of T steps were independent; see `episodes_to_log`.

    Args:
        target, logging: probabilities of all actions by the policy and by the logging policy at some observations, such
            as those of an earlier log, ``[n, A]`` or ``[A]``.
        steps: number of steps of an episode, T.

    Raises:
        DataError: if the policy takes an action that the logging policy never takes.
    """
    check("steps", steps, int, low=1)
    pi, b = np.atleast_2d(np.asarray(target, np.float64)), np.atleast_2d(np.asarray(logging, np.float64))
    if pi.shape != b.shape:
        raise ShapeError(
            f"target has the shape {pi.shape} and logging {b.shape}; both must be [n, A]: give all actions"
        )
    if ((b <= 0) & (pi > 0)).any():
        row, action = (int(k) for k in np.argwhere((b <= 0) & (pi > 0))[0])
        raise DataError(
            f"the policy takes action {action} with the probability {pi[row, action]:.3g} in row {row}, where the "
            "logging policy never takes it; it must take every action of the policy: log with a minimum propensity"
        )
    second = (pi**2 / np.where(pi > 0, b, 1.0)).sum(-1).mean()
    return float(second**-steps)


def episodes_to_log(
    gain: float, std: float, effective_share: float, *, error: float = 0.025, power: float = 0.8
) -> float:
    """Return about how many episodes to log so that their weights show a gain of a policy, before anything is logged.

    Weights of importance sampling leave a share of the episodes effective, ``1 / E[w^2]``. The estimate needs as many
    effective episodes as a mean of returns would need; `doubly_robust` needs fewer.

    Args:
        gain: gain over the logs to detect, above 0.
        std: standard deviation of the returns, above 0.
        effective_share: effective episodes of the policy, divided by the number of episodes, above 0 and at most 1:
            from the function of this name, or from a report on a small log.
        error, power: see `sample_size`.
    """
    check("gain", gain, float, above=0)
    check("std", std, float, above=0)
    check("effective_share", effective_share, float, above=0, high=1)
    check("error", error, float, above=0, below=0.5)
    check("power", power, float, above=error, below=1)
    drift = NormalDist().inv_cdf(1 - error) + NormalDist().inv_cdf(power)
    return (drift * std / gain) ** 2 / effective_share


@dataclass(frozen=True)
class OutcomeSpread:
    """How outcomes of units vary.

    Attributes:
        mean: their mean.
        std: their standard deviation; with clusters that of independent units with the same standard error of the mean.
        skewness: their skewness.
    """

    mean: float
    std: float
    skewness: float


def outcome_spread(outcome: Array, clusters: Array | None = None) -> OutcomeSpread:
    """Return how outcomes vary, for `plan_online_test`.

    Args:
        outcome: outcome of each unit, such as the returns of logged episodes, ``[n]``, two or more.
        clusters: the cluster of each unit, ``[n]``.
    """
    centered = outcome - outcome.mean()
    sums = centered if clusters is None else cluster_sums(centered, clusters)
    variance = float((centered**2).mean())
    skewness = float((centered**3).mean()) / variance**1.5 if variance > 0 else 0.0
    return OutcomeSpread(float(outcome.mean()), math.sqrt(float((sums**2).sum()) / (len(outcome) - 1)), skewness)


@dataclass(frozen=True)
class OnlineTestPlan:
    """The plan of a guarded online test; see `plan_online_test`.

    Attributes:
        gain: gain that the test detects with ``power``.
        min_gain: required gain; the policy ships if the gain is certainly above it.
        std, std_new: standard deviations of the outcomes of today's and of the new policy.
        share: share of units with the new policy.
        error: one-sided probability of shipping a policy whose gain is not above ``min_gain``.
        harm_error: one-sided probability of stopping a policy for harm that does none.
        power: probability of shipping a policy with this ``gain``.
        rule: one of `RULES`.
        units: planned number of units of both arms; then the test ends.
        looks: numbers of units at which it is read, ``[K]``; empty for ``"anytime"``.
        upper: at each look, how many standard errors the difference must be above ``min_gain`` to ship, ``[K]``.
        lower: at each look, how many standard errors the difference must be below 0 to stop for harm, ``[K]``.
        units_read_once: number of units that a test needs which is read once, at its end.
        expected_units: mean number of units at the end of the test, by true gain.
        days: duration of the whole test; ``None`` if the units per day are unknown.
    """

    gain: float
    min_gain: float
    std: float
    std_new: float
    share: float
    error: float
    harm_error: float
    power: float
    rule: str
    units: int
    looks: tuple[int, ...] = ()
    upper: tuple[float, ...] = ()
    lower: tuple[float, ...] = ()
    units_read_once: int = 0
    expected_units: Mapping[str, float] = field(default_factory=dict)
    days: float | None = None

    def as_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return dataclasses.asdict(self)

    @property
    def difference_error(self) -> float:
        """Standard error of the difference of means, times the root of the number of units."""
        return _unit_error(self.std, self.std_new, self.share)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The plan in words."""
        days = "" if self.days is None else f" ({math.ceil(self.days):,} days)"
        read = "read it as often as you like: its interval holds at all times"
        if self.rule != "anytime":
            read = f"read it after {', '.join(f'{n:,}' for n in self.looks)} units, and at no other time"
        return (
            f"give {100 * self.share:.3g} % of the traffic to the policy, at random, until there are {self.units:,} "
            f"units in both arms{days}: a gain of {self.gain:.3g} is shown with a probability of {self.power:.3g}",
            f"{read} (birl ope read)",
            f"ship if the whole interval is above {self.min_gain:g}, stop for harm if a loss is certain, and stop for "
            f"futility if the interval is below {self.gain:.3g} or all units are used",
        )

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, for `load` and ``birl ope read --plan``.

        Raises:
            WriteError: if the file cannot be written.
        """
        text = json.dumps({"kind": _KIND, **self.as_dict()}, indent=1, allow_nan=False)
        atomic_write(Path(path), (text + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> OnlineTestPlan:
        """Read a plan that `save` or ``birl ope plan --out`` wrote.

        Raises:
            FileError: if there is no such file, or it is no plan.
        """
        path = Path(path)
        if not path.is_file():
            raise FileError(f"there is no {path}: give a file that birl ope plan --out wrote")
        data = parse_json(path.read_bytes(), str(path))
        if not isinstance(data, dict) or data.pop("kind", None) != _KIND:
            raise ForeignFileError(f"{path} is no plan of an online test: give a file that birl ope plan --out wrote")
        try:
            lists = {name: tuple(data[name]) for name in ("looks", "upper", "lower")}
            plan = cls(**{**data, **lists})
            _check_plan(plan)
        except (TypeError, KeyError, ConfigError) as error:
            raise CorruptFileError(f"{path} is damaged ({error!s:.200}): write it again with birl ope plan") from error
        return plan


def _check_plan(plan: OnlineTestPlan) -> None:
    check("rule", plan.rule, str, choices=RULES)
    check("gain", plan.gain, float, above=plan.min_gain)
    check("share", plan.share, float, above=0, below=1)
    check("error", plan.error, float, above=0, below=0.5)
    check("harm_error", plan.harm_error, float, above=0, below=0.5)
    check("units", plan.units, int, low=1)
    if plan.rule != "anytime":
        check_fractions([n / plan.units for n in plan.looks])
    if not len(plan.looks) == len(plan.upper) == len(plan.lower):
        raise ConfigError(
            f"there are {len(plan.looks)} looks, {len(plan.upper)} upper and {len(plan.lower)} lower bounds; their "
            "numbers must be equal"
        )


def plan_online_test(
    gain: float,
    std: float,
    *,
    min_gain: float = 0.0,
    std_new: float | None = None,
    skewness: float = 0.0,
    share: float = 0.5,
    error: float = 0.025,
    power: float = 0.8,
    harm_error: float = 0.05,
    rule: str = "anytime",
    looks: int = 5,
    units_per_day: float | None = None,
) -> OnlineTestPlan:
    """Plan a guarded online test of a policy.

    Args:
        gain: gain in the mean outcome of a unit that the test must detect, above ``min_gain``.
        std: standard deviation of the outcomes of today's policy, such as that of the returns of logged episodes.
        min_gain: required gain.
        std_new: standard deviation of the outcomes of the new policy; by default the same.
        skewness: skewness of the outcomes; if it is large, the test needs more units before its interval is trusted.
        share: share of units with the new policy, above 0 and below 1. The number of units is smallest at 0.5; a
            smaller share risks less.
        error: one-sided probability of shipping a policy whose gain is not above ``min_gain``.
        power: probability of shipping a policy with this ``gain``.
        harm_error: one-sided probability of stopping a policy for harm that does none. A larger value protects users
            earlier; it does not change ``error``.
        rule: ``"anytime"``, a confidence sequence that may be read at any time; or bounds at a few equally spaced
            looks, ``"obrien_fleming"`` or ``"pocock"``, which need fewer units.
        looks: number of looks of the group-sequential rules.
        units_per_day: units of both arms that come in a day, for the duration.

    Returns:
        The plan.
    """
    check("min_gain", min_gain, float)
    check("gain", gain, float, above=min_gain)
    check("harm_error", harm_error, float, above=0, below=0.5)
    check("rule", rule, str, choices=RULES)
    check("looks", looks, int, low=1, high=50)
    check("skewness", skewness, float)
    check("units_per_day", units_per_day, float, above=0, optional=True)
    once = sample_size(gain - min_gain, std, std_new=std_new, share=share, error=error, power=power)
    spread = _unit_error(std, std_new, share)
    t = np.arange(1, 1 + (_DAILY if rule == "anytime" else looks)) / (_DAILY if rule == "anytime" else looks)
    if rule == "anytime":
        upper, harm = mixture_threshold(t, error), mixture_threshold(t, harm_error)
    else:
        upper, harm = spending_bounds(t, error, rule), spending_bounds(t, harm_error, "pocock")
    drift = required_drift(t, upper, power)
    fewest = float(min_arm_units(skewness)) / min(share, 1 - share)
    units = math.ceil(max((drift * spread / (gain - min_gain)) ** 2, fewest))
    root = np.sqrt(t * units) / spread  # standard errors for a difference of 1
    lower = np.maximum(-harm - (min_gain - min(0.0, min_gain)) * root, (gain - min_gain) * root - upper)
    drifts = [(true - min_gain) * math.sqrt(units) / spread for true in (gain, min_gain, min_gain - gain)]
    up, down = crossing_probabilities(t, upper, np.minimum(lower, upper - 1e-9), np.clip(drifts, -12, 12))
    ends = (up + down) @ t + (1 - up.sum(-1) - down.sum(-1))
    at_looks = rule != "anytime"
    return OnlineTestPlan(
        gain=float(gain),
        min_gain=float(min_gain),
        std=float(std),
        std_new=float(std if std_new is None else std_new),
        share=float(share),
        error=float(error),
        harm_error=float(harm_error),
        power=float(power),
        rule=rule,
        units=units,
        looks=tuple(math.ceil(x * units - 1e-9) for x in t.tolist()) if at_looks else (),
        upper=tuple(upper.tolist()) if at_looks else (),
        lower=tuple((-harm).tolist()) if at_looks else (),
        units_read_once=math.ceil(once),
        expected_units=dict(zip(("gain", "no_gain", "loss"), (ends * units).round().tolist(), strict=True)),
        days=None if units_per_day is None else units / float(units_per_day),
    )


def _unit_error(std: float, std_new: float | None, share: float) -> float:
    check("std", std, float, above=0)
    check("std_new", std_new, float, above=0, optional=True)
    check("share", share, float, above=0, below=1)
    return math.sqrt((std if std_new is None else std_new) ** 2 / share + std**2 / (1 - share))


@dataclass(frozen=True, eq=False)
class OnlineTestResult:
    """What the log of an online test says so far; see `read_online_test`.

    Attributes:
        decision: ``"continue"``, ``"ship"``, ``"stop_for_harm"`` or ``"stop_for_futility"``.
        reasons: reasons of the decision, as sentences.
        units, treated: number of units of both arms, and of those with the new policy.
        means: mean outcome with the new policy, and with today's.
        gain: difference of the means now, or at the last planned look.
        lower, upper: ends of the interval of the gain now: of a confidence sequence, or at the last planned look.
            Infinite as long as there are too few units.
        confidence: confidence of the interval, at all times together.
        decided_at: number of units after which the decision was reached; ``None`` if the test continues.
        next_look: number of units at the next planned look; ``None`` if there is none.
        path: the interval as the test grew, at up to 200 times, ``[k, 4]``: units, gain, lower and upper end.
    """

    decision: str
    reasons: tuple[str, ...]
    units: int
    treated: int
    means: tuple[float, float]
    gain: float
    lower: float
    upper: float
    confidence: float
    decided_at: int | None
    next_look: int | None
    path: Array

    @property
    def status(self) -> int:
        """Exit status: 0, 3, 4 or 7."""
        return READ_STATUS[self.decision]

    def as_dict(self) -> dict[str, object]:
        """Return JSON values; infinite numbers are ``None``."""
        data = dataclasses.asdict(self) | {"status": self.status}
        data["path"] = [[x if math.isfinite(x) else None for x in row] for row in self.path.tolist()]
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in data.items()
        }


@dataclass(frozen=True)
class OpenEnded:
    """A test that was not planned: it has no number of units, and ends when its interval decides.

    Attributes:
        share: share of units with the new policy, above 0 and below 1.
        min_gain: required gain.
        gain: gain that would be worth having: the test stops for futility if the interval is below it; ``None`` never.
        error, harm_error: see `OnlineTestPlan`.
    """

    share: float = 0.5
    min_gain: float = 0.0
    gain: float | None = None
    error: float = 0.025
    harm_error: float = 0.05

    def __post_init__(self) -> None:
        check("share", self.share, float, above=0, below=1)
        check("min_gain", self.min_gain, float)
        check("gain", self.gain, float, above=self.min_gain, optional=True)
        check("error", self.error, float, above=0, below=0.5)
        check("harm_error", self.harm_error, float, above=0, below=0.5)


def read_online_test(
    treated: Array,
    outcome: Array,
    plan: OnlineTestPlan | OpenEnded | None = None,
    *,
    low: float | None = None,
    high: float | None = None,
    label: Callable[[int], str] | None = None,
) -> OnlineTestResult:
    """Read the log of an online test as it grows.

    The decision is the first one that the rule of the plan reached, in the order in which units came; reading later, or
    more often, does not change it. If policies have no gain above ``min_gain``, the share of tests that ever ship is at
    most ``error``.

    Args:
        treated: whether each unit had the new policy, bool ``[n]``, in the order in which units came.
        outcome: outcome of each unit, ``[n]``.
        plan: plan of the test; by default `OpenEnded`.
        low, high: smallest and largest possible outcome. With both, the interval holds for any distribution in this
            range and for few units, but is wider: see `birl.ope.confidence_sequences.bounded_difference`.
        label: returns the name of the row of a unit, for messages.

    Raises:
        DataError: if the share of treated units changed during the test, or is not the planned one.
        NonFiniteError: if an outcome is NaN or infinite.
        EmptyDataError: if an arm has no unit.
    """
    plan = OpenEnded() if plan is None else plan
    name = (lambda row: f"unit {row + 1}") if label is None else label
    treated, outcome = np.asarray(treated, bool), np.asarray(outcome, np.float64)
    running = running_difference(treated, outcome)
    _check_units(treated, outcome, plan.share, name)
    if (low is None) != (high is None):
        raise ConfigError(f"low is {low} and high is {high}; give both ends of the range of outcomes, or neither")
    looks: tuple[int, ...] = plan.looks if isinstance(plan, OnlineTestPlan) else ()
    if looks and low is not None:
        raise ConfigError(
            "low and high are for tests that are read at any time, and this plan has a few looks: plan it "
            "with the rule 'anytime'"
        )
    last = plan.units if isinstance(plan, OnlineTestPlan) else None
    n = len(outcome)
    if isinstance(plan, OnlineTestPlan) and looks:
        now = np.array([look for look in looks if look <= n], np.int64) - 1
        bound, harm = np.array(plan.upper)[: len(now)], np.array(plan.lower)[: len(now)]
        value, error = running.value[now], running.error[now]
        lower, upper = value - bound * error, value + bound * error
        harmful = value - harm * error < min(0.0, plan.min_gain)
    else:
        now = np.arange(n)
        value, tuned = running.value[now], float(_TUNED if last is None else last)
        if low is not None and high is not None:
            lower, upper = (end[now] for end in bounded_difference(treated, outcome, plan.share, low, high, plan.error))
            _, least = bounded_difference(treated, outcome, plan.share, low, high, plan.harm_error)
        else:
            lower, upper = (end[now] for end in running.bounds(plan.error, tuned))
            _, least = running.bounds(plan.harm_error, tuned)
        harmful = least[now] < min(0.0, plan.min_gain)
    futile = np.zeros(len(now), bool) if plan.gain is None else upper < plan.gain
    if last is not None:
        futile |= now + 1 >= last
    stops = {"ship": lower > plan.min_gain, "stop_for_harm": harmful, "stop_for_futility": futile}
    first = {decision: int(stop.argmax()) for decision, stop in stops.items() if stop.any()}
    decision = min(first, key=first.__getitem__, default="continue")
    at = first.get(decision)
    ends = (float(lower[-1]), float(upper[-1])) if len(now) and np.isfinite(lower[-1]) else (-math.inf, math.inf)
    thin = np.unique(np.linspace(0, len(now) - 1, min(len(now), 200)).astype(np.int64)) if len(now) else now
    result = OnlineTestResult(
        decision=decision,
        reasons=(),
        units=n,
        treated=int(treated.sum()),
        means=(float(outcome[treated].mean()), float(outcome[~treated].mean())),
        gain=float(value[-1] if len(now) else running.value[-1]),
        lower=ends[0],
        upper=ends[1],
        confidence=1 - 2 * plan.error,
        decided_at=None if at is None else int(now[at]) + 1,
        next_look=next((look for look in looks if look > n), None) if decision == "continue" else None,
        path=np.stack([now[thin] + 1.0, value[thin], lower[thin], upper[thin]], -1),
    )
    at_end = at is not None and last is not None and now[at] + 1 >= last
    return dataclasses.replace(result, reasons=_reasons(result, plan, at_end))


def _check_units(treated: Array, outcome: Array, share: float, name: Callable[[int], str]) -> None:
    """Raise an error unless outcomes are numbers and the allocation is the planned one."""
    if not np.isfinite(outcome).all():
        row = int((~np.isfinite(outcome)).argmax())
        raise NonFiniteError(
            f"{name(row)}: the outcome is {outcome[row]}; it must be a finite number: leave out units of both arms "
            "that came after a time after which outcomes are not complete"
        )
    for arm, count in (("new policy", int(treated.sum())), ("other policy", int((~treated).sum()))):
        if not count:
            raise EmptyDataError(
                f"no unit of the test has the {arm}; both arms need units: check the labels of the arms"
            )
    change = allocation_change(treated, share)
    if change is None:
        return
    where = "in all units" if change.first == 0 else f"from {name(change.first)} on"
    raise DataError(
        f"the share of units with the new policy is {change.share:.3g} {where}, but {share:.3g} is planned; the share "
        "must not change during a test, because the arms then differ in more than the policy: find the cause (a "
        "filter, a failure in one arm, lost rows, a change of traffic), and read only units of one share, or start the "
        "test again"
    )


def _reasons(result: OnlineTestResult, plan: OnlineTestPlan | OpenEnded, at_end: bool) -> tuple[str, ...]:
    """Return the reasons of a decision as sentences."""
    known = math.isfinite(result.lower)
    interval = f"the gain is between {result.lower:.4g} and {result.upper:.4g}"
    if not known:
        interval = "there are too few units, or too few different outcomes, for an interval of the gain"
    after = f"after {result.decided_at:,} units" if result.decided_at is not None else ""
    texts = {
        "ship": f"{after}, the whole interval was above {plan.min_gain:g}",
        "stop_for_harm": f"{after}, a loss was certain: the gain was below {min(0.0, plan.min_gain):g}",
        "stop_for_futility": f"{after}, the test has reached its planned size without a decision"
        if at_end
        else f"{after}, the gain was below the {plan.gain or 0:.4g} that it was planned for",
        "continue": "the test has not decided yet",
    }
    reasons = [interval, texts[result.decision]]
    now_above, now_below = known and result.lower > plan.min_gain, known and result.upper < plan.min_gain
    if (result.decision == "ship" and now_below) or (result.decision == "stop_for_harm" and now_above):
        reasons.append("units that came later contradict the decision: the gain changes over time")
    if result.next_look is not None:
        reasons.append(f"the next look is at {result.next_look:,} units")
    elif result.decision == "continue" and isinstance(plan, OnlineTestPlan):
        reasons.append(f"{plan.units - result.units:,} units are left")
    return tuple(reasons)
