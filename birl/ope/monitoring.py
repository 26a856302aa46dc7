"""Watch of a shipped policy: do inputs, actions and outcomes of new logs still agree with what was certified?

Three checks of the new logs, in the order in which a change spreads:

- **Inputs**: the observations at the first steps of episodes, before any action, are compared with those of the
  episodes that certified the policy, column by column.
- **Actions**: the logged actions and propensities are compared with the probabilities of the policy.
- **Outcomes**: the returns are compared with the certified value, or with the former policy where it still acts.

The tests of inputs and actions have their error level at each look. The test of outcomes keeps it over all looks
together, so new logs may be read every day.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from birl.checks import check
from birl.dataset.episodes import episode_table
from birl.dataset.log_record import check_same_columns
from birl.dataset.replay_buffer import ReplayBuffer
from birl.errors import ConfigError, CorruptFileError, DataError, FileError
from birl.files import parse_json
from birl.ope.audit.scan import LogStatistics, scan
from birl.ope.confidence_sequences import min_arm_units, mixture_threshold, running_difference
from birl.ope.estimators import Estimate
from birl.ope.intervals import t_interval
from birl.spaces import Discrete
from birl.types import Array, Tree, tree_map

WATCH_STATUS: Final = {"as_certified": 0, "worse": 3, "changed": 4, "cannot_tell": 5}
"""Exit status of each result of a watch."""
MIN_EPISODES: Final = 30
"""Fewest new episodes (or clusters) for any check."""
STABILITY: Final = 0.1
"""Population stability index from which a change of inputs matters: 0.1 to 0.25 is moderate, above it is large."""
_TUNED: Final = 500.0
"""Number of units near which the sequences of outcomes are tightest."""
_FIRST, _GROWTH = 100, 1.2
"""First possible time of a change in units, and the ratio of one to the next."""
_COMPARED: Final = 1000
"""Number of new episodes in which logged propensities are compared with those of the policy."""
_SAME: Final = 0.01
"""Propensities differ if they differ by more than this share."""


class ActionProbabilities(Protocol):
    """A policy with probabilities of discrete actions."""

    def action_probability(self, x: Tree) -> Array:
        """Return the probabilities of all actions, ``[B, A]``."""


@dataclass(frozen=True)
class CertifiedValue:
    """What new logs are compared with.

    Attributes:
        name: whose value it is.
        lower, upper: ends of its interval.
        gamma: discount.
        horizon: number of steps of an episode that count; ``None`` for all.
        min_gain: required gain of the verdict; ``None`` if there was none.
    """

    name: str
    lower: float
    upper: float
    gamma: float
    horizon: int | None = None
    min_gain: float | None = None


@dataclass(frozen=True)
class ColumnDrift:
    """The change of a column of the observations.

    Attributes:
        name: name of the column.
        stability: population stability index.
        distance: distance of Kolmogorov and Smirnov, the largest difference of the distribution functions, 0 to 1.
        p_value: p-value of no change, with Holm's correction for the number of columns.
        drifted: whether the column has changed by more than chance, and by more than `STABILITY`.
    """

    name: str
    stability: float
    distance: float
    p_value: float
    drifted: bool


@dataclass(frozen=True)
class WatchCheck:
    """The result of a check.

    Attributes:
        name: ``"inputs"``, ``"actions"`` or ``"outcomes"``.
        result: ``"as_certified"``, ``"changed"``, ``"worse"`` (outcomes only) or ``"cannot_tell"``.
        text: what was found, as a sentence.
        remedy: what to do; empty if nothing.
    """

    name: str
    result: str
    text: str
    remedy: str = ""


@dataclass(frozen=True, eq=False)
class Decline:
    """The running outcome of new logs, and whether it has fallen below a reference.

    Attributes:
        mean, lower, upper: running mean of all outcomes so far relative to the reference, and its confidence sequence,
            ``[n]``.
        since: index of the unit from which on outcomes are below the reference; ``None`` if they are not.
        found: number of units after which this was known; ``None`` if it is not.
    """

    mean: Array
    lower: Array
    upper: Array
    since: int | None = None
    found: int | None = None


@dataclass(frozen=True, eq=False)
class Watch:
    """Results of all checks.

    Attributes:
        certified: what new logs are compared with.
        episodes, steps: size of the new logs.
        mean: mean return of the shipped policy in the new logs.
        error: error level of each check.
        checks: results of the checks.
        columns: changes of the columns of observations, the largest first.
        decline: running outcomes; ``None`` with too few episodes.
    """

    certified: CertifiedValue
    episodes: int
    steps: int
    mean: float
    error: float
    checks: tuple[WatchCheck, ...]
    columns: tuple[ColumnDrift, ...] = ()
    decline: Decline | None = field(default=None, repr=False)

    @property
    def result(self) -> str:
        """The gravest result: ``"worse"``, ``"changed"``, ``"as_certified"``; ``"cannot_tell"`` without any other."""
        results = {each.result for each in self.checks}
        return next(each for each in ("worse", "changed", "as_certified", "cannot_tell") if each in results)

    @property
    def status(self) -> int:
        """Exit status: 0, 3, 4 or 5."""
        return WATCH_STATUS[self.result]


def watch(
    new: ReplayBuffer,
    certified: ReplayBuffer,
    value: CertifiedValue | None = None,
    *,
    gamma: float = 0.99,
    policy: ActionProbabilities | None = None,
    baseline: int | None = None,
    error: float = 0.01,
    names: Sequence[str] | None = None,
    seed: int = 0,
) -> Watch:
    """Compare new logs of a shipped policy with what was certified.

    Args:
        new: the new logs, imported with the same schema. Without times, they must be in order.
        certified: the episodes that certified the policy.
        value: the certified value, from `read_certified`. By default what the certified logs earned: the shipped policy
            must not earn less.
        gamma: discount, if there is no ``value``.
        policy: the shipped policy, whose probabilities of discrete actions are compared with those logged.
        baseline: index of the logger that is the former policy, if it still acts in some episodes of the new logs. The
            gain over it is then watched, which does not depend on the season.
        error: error level of each check: for inputs and actions at each look, for outcomes over all looks together.
        names: names of the columns of observations.
        seed: random seed of samples.

    Raises:
        ConfigError: if the logs have other columns, or no such logger.
        DataError: if the new logs contain certified episodes.
    """
    check("error", error, float, above=0, below=0.5)
    check_same_columns(new.logs, certified.logs, "the new data", "the certified data")
    value = _logged_value(certified, gamma) if value is None else value
    before, after = (scan(data, gamma=value.gamma, names=names, seed=seed) for data in (certified, new))
    if list(before.names) != list(after.names):
        raise ConfigError(
            f"the new logs have {len(after.names)} columns of observations and the certified ones {len(before.names)}; "
            "they must be the same: import the new logs with the schema of the certified ones"
        )
    _check_new(before, after)
    returns = _returns(new, value.gamma, value.horizon)
    shipped = np.ones(len(returns), bool)
    if baseline is not None:
        if "logger" not in after.episodes or not (old := after.episodes["logger"] == baseline).any():
            raise ConfigError(
                f"no new episode has the logger {baseline}, which baseline names; it must be the former policy, where "
                "it still acts: name the column of loggers in the schema, or leave baseline out"
            )
        shipped = ~old
    if _units(after, shipped) < MIN_EPISODES:
        text = f"there are {_units(after, shipped)} new episodes or clusters; a check needs {MIN_EPISODES}"
        checks = [WatchCheck(name, "cannot_tell", text, "log more") for name in ("inputs", "actions", "outcomes")]
        mean = float(returns[shipped].mean()) if shipped.any() else math.nan
        return Watch(value, len(returns), after.counts["steps"], mean, error, tuple(checks))
    columns = _columns(before, after, error)
    spread = _units_of(before, _returns(certified, value.gamma, value.horizon)).std()
    outcomes, decline = _outcomes(after, returns, shipped, value, error, float(spread))
    checks = [_inputs(columns, error), _actions(new, after, policy, error, seed), outcomes]
    return Watch(
        certified=value,
        episodes=len(returns),
        steps=after.counts["steps"],
        mean=float(returns[shipped].mean()),
        error=error,
        checks=tuple(checks),
        columns=columns,
        decline=decline,
    )


def _check_new(before: LogStatistics, after: LogStatistics) -> None:
    """Raise `DataError` if new episodes are among the certified ones; episodes that repeat by chance tell nothing."""
    unique = []
    for each in (before, after):
        digest, count = np.unique(each.episodes["digest"], return_counts=True)
        unique.append(digest[count == 1])
    repeated = int(np.isin(unique[1], unique[0]).sum())
    if len(unique[1]) >= MIN_EPISODES and repeated > 0.05 * len(unique[1]):
        raise DataError(
            f"{repeated} of {len(after.episodes['digest'])} new episodes are among the certified ones; new logs must "
            "be from after shipping: give only logs of the shipped policy"
        )


def read_certified(path: str | Path, policy: str | None = None) -> CertifiedValue:
    """Read the certified value of a policy from the report of ``birl ope report --out``.

    Args:
        path: the folder, or its ``report.json``.
        policy: name of the policy, if the report has several.

    Raises:
        FileError: if there is no report, or it is damaged.
        ConfigError: if it has no such policy, or no estimate of it.
    """
    file = Path(path) / "report.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileError(f"there is no report {file}: give the folder that birl ope report --out wrote")
    data = parse_json(file.read_bytes(), str(file))
    try:
        found = {str(each["policy"]): each for each in data["policies"]}  # type: ignore[index, call-overload]
        if policy is None and len(found) == 1:
            policy = next(iter(found))
        if policy not in found:
            which = "has several policies" if policy is None else f"has no policy {policy!r:.60}"
            raise ConfigError(f"{file} {which}: name one of {', '.join(found)}")
        row = found[policy]
        decides = row["decides"]
        if decides is None:
            raise ConfigError(f"{file}: the logs could not tell the value of {policy}: nothing was certified")
        lower, upper = row["estimates"][decides]["interval"]
        horizon, least = int(row["horizon"]), row.get("min_gain")
        return CertifiedValue(
            policy, float(lower), float(upper), float(row["gamma"]), horizon, None if least is None else float(least)
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise CorruptFileError(
            f"{file} is no report of a verdict ({type(error).__name__}: {error!s:.80}): make it again with "
            "birl ope report"
        ) from error


# -- inputs ------------------------------------------------------------------------------------------------------------


def population_stability(before: Array, after: Array, bins: int = 10) -> float:
    """Return the population stability index of two samples, ``sum (p - q) log(p / q)`` over bins.

    Bins are quantiles of the first sample, or its values if there are few. Half a row is added to each bin, so that
    empty ones do not make it infinite. Below 0.1 the samples are similar, above 0.25 very different.

    Args:
        before, after: samples, ``[n]`` and ``[m]``.
        bins: number of bins, 2 or more.
    """
    check("bins", bins, int, low=2, error=DataError)
    values = np.unique(before)
    edges = values[1:] if len(values) <= bins else np.unique(np.quantile(before, np.linspace(0, 1, bins + 1)[1:-1]))
    shares = []
    for sample in (before, after):
        count = np.bincount(np.searchsorted(edges, sample, side="right"), minlength=len(edges) + 1) + 0.5
        shares.append(count / count.sum())
    return float(((shares[0] - shares[1]) * np.log(shares[0] / shares[1])).sum())


def kolmogorov_smirnov(before: Array, after: Array) -> tuple[float, float]:
    """Return the largest difference of two distribution functions, and the p-value of none.

    The p-value is asymptotic, with the correction of Stephens 1970 (Journal of the Royal Statistical Society B 32). For
    values with ties it is too large, so the error level holds for them, too.

    Args:
        before, after: samples of independent values, ``[n]`` and ``[m]``.
    """
    both = np.concatenate([before, after])
    parts = [np.searchsorted(np.sort(sample), both, side="right") / len(sample) for sample in (before, after)]
    distance = float(np.abs(parts[0] - parts[1]).max())
    root = math.sqrt(len(before) * len(after) / len(both))
    at = (root + 0.12 + 0.11 / root) * distance
    if at < 0.2:  # the series converges slowly, and the p-value is 1
        return distance, 1.0
    terms = [2 * (-1) ** (k - 1) * math.exp(-2 * (k * at) ** 2) for k in range(1, 101)]
    return distance, min(max(math.fsum(terms), 0.0), 1.0)


def _columns(before: LogStatistics, after: LogStatistics, error: float) -> tuple[ColumnDrift, ...]:
    """Compare the columns of observations at the first steps of episodes, one of each cluster."""
    samples = []
    for each in (before, after):
        rows = np.flatnonzero(each.sample.step == 0)
        if "cluster" in each.sample.extra:
            clusters = each.sample.extra["cluster"].reshape(len(each.sample.step), -1)[rows, 0]
            rows = rows[np.unique(clusters, return_index=True)[1]]
        samples.append(each.sample.observation[rows].astype(np.float64))
    pairs = list(zip(*(sample.T for sample in samples), strict=True))
    tests = [kolmogorov_smirnov(*pair) for pair in pairs]
    p_values = adjusted_p_values([p for _, p in tests])
    found = []
    for name, pair, (distance, _), p in zip(before.names, pairs, tests, p_values, strict=True):
        stability = population_stability(*pair)
        found.append(ColumnDrift(name, stability, distance, p, p < error and stability > STABILITY))
    return tuple(sorted(found, key=lambda each: -each.stability))


def adjusted_p_values(p_values: Sequence[float]) -> list[float]:
    """Return p-values that are below an error level if Holm's procedure rejects at it (Holm 1979)."""
    adjusted, least = [1.0] * len(p_values), 0.0
    for place, k in enumerate(sorted(range(len(p_values)), key=lambda k: p_values[k])):
        least = max(least, min(1.0, (len(p_values) - place) * p_values[k]))
        adjusted[k] = least
    return adjusted


def _inputs(columns: Sequence[ColumnDrift], error: float) -> WatchCheck:
    drifted = [each for each in columns if each.drifted]
    if not drifted:
        largest = f"; the largest stability index is {columns[0].stability:.2g}" if columns else ""
        return WatchCheck("inputs", "as_certified", f"no column of {len(columns)} has changed{largest}")
    shown = ", ".join(f"{each.name} (index {each.stability:.2g})" for each in drifted[:5])
    more = f" and {len(drifted) - 5} more" if len(drifted) > 5 else ""
    text = f"{len(drifted)} of {len(columns)} columns have changed since certification: {shown}{more}"
    remedy = "find out why, whether an error of the encoding or other users; then certify the policy on newer logs"
    return WatchCheck("inputs", "changed", text, remedy)


# -- actions -----------------------------------------------------------------------------------------------------------


def _actions(
    new: ReplayBuffer, after: LogStatistics, policy: ActionProbabilities | None, error: float, seed: int
) -> WatchCheck:
    """Compare logged actions with logged propensities, and these with the policy's."""
    if not isinstance(after.actions, Discrete):
        return WatchCheck("actions", "cannot_tell", "actions are not one discrete action, so they are not compared")
    every = after.sample.extra.get("propensities")
    action = after.sample.action[:, 0]
    if policy is not None:
        action, every, differ = _of_policy(new, policy, after.actions, seed)
        if differ is not None and differ > 0.001:
            text = f"in {differ:.1%} of the steps the logged propensity is not the policy's probability of the action"
            remedy = "find out which policy acts: another version, other inputs at serving, or rules after the policy"
            return WatchCheck("actions", "changed", text, remedy)
    if every is None:
        text = "the logs have no propensities of all actions, and no policy is given, so actions are not compared"
        return WatchCheck("actions", "cannot_tell", text, "give the policy, or log propensities of all actions")
    taken = action[:, None] == np.arange(after.actions.size)
    surplus = (taken - every).sum(0)
    deviation = np.sqrt((every * (1 - every)).sum(0))
    z = np.abs(surplus) / np.maximum(deviation, 1e-3)
    p_values = adjusted_p_values([math.erfc(each / math.sqrt(2)) for each in z])
    if min(p_values) < error:
        worst = int(np.argmin(p_values))
        text = (
            f"action {worst + after.actions.start} was taken in {taken[:, worst].mean():.1%} of the steps, but its "
            f"probabilities say {every[:, worst].mean():.1%}"
        )
        remedy = "find out which policy acts, and where its choices are changed after it"
        return WatchCheck("actions", "changed", text, remedy)
    return WatchCheck(
        "actions", "as_certified", f"actions are as often taken as their probabilities say ({len(taken)} steps)"
    )


def _of_policy(
    new: ReplayBuffer, policy: ActionProbabilities, actions: Discrete, seed: int
) -> tuple[Array, Array, float | None]:
    """Return actions and the policy's probabilities in some new episodes, and how often logged propensities differ."""
    episodes = new.episodes
    index = np.random.default_rng(seed).permutation(len(episodes))[:_COMPARED]
    chosen = [episodes[k] for k in np.sort(index)]
    first, *rest = [each.observations for each in chosen]
    observations = tree_map(lambda *leaves: np.concatenate(leaves), first, *rest)
    taken = np.concatenate([each.actions for each in chosen]).reshape(-1).astype(np.int64) - actions.start
    every = np.asarray(policy.action_probability(observations), np.float64)
    if every.shape != (len(taken), actions.size):
        raise DataError(
            f"action_probability of the policy returned the shape {every.shape}; it must be "
            f"{(len(taken), actions.size)}: give the policy that was certified"
        )
    if not all(each.extra is not None and "log_propensity" in each.extra for each in chosen):
        return taken, every, None
    logged = np.exp(np.concatenate([np.reshape((each.extra or {})["log_propensity"], -1) for each in chosen]))
    differ = np.abs(logged - every[np.arange(len(taken)), taken]) > _SAME * np.maximum(logged, 0.01)
    return taken, every, float(differ.mean())


# -- outcomes ----------------------------------------------------------------------------------------------------------


def find_decline(outcome: Array, reference: float, error: float = 0.01, least_std: float = 0.0) -> Decline:
    """Return whether outcomes have fallen below a reference at some time, valid however often new logs are read.

    Confidence sequences of the mean (`birl.ope.confidence_sequences`) start at fixed times: with the first unit, with
    unit 100, and then each 20 % later than the one before. The k-th has the error level ``error / (k (k + 1))``, so
    with probability ``1 - error`` none ever lies below the reference without cause. A change is found by the sequence
    that starts soon after it, which outcomes before it do not dilute (Shekhar and Ramdas 2023, arXiv:2309.09111, start
    one at each time).

    Outcomes that are mostly 0, such as clicks, have a small standard deviation as long as few are not 0. The sequence
    would then be too narrow on the upper side, so the standard deviation is at least ``least_std``.

    Args:
        outcome: outcome of each independent unit in the order of time, ``[n]``.
        reference: the mean that outcomes should have at least.
        error: probability of ever finding a decline if there is none, one-sided; asymptotic.
        least_std: standard deviation of outcomes in other logs, such as those that certified the policy.
    """
    check("error", error, float, above=0, below=0.5)
    x = np.asarray(outcome, np.float64) - reference
    n, since, found = len(x), None, None
    mean, half = _sequence(x, error / 2, least_std)
    for number, start in enumerate(_starts(n)):
        mean_k, half_k = (
            (mean, half) if start == 0 else _sequence(x[start:], error / (number + 1) / (number + 2), least_std)
        )
        below = mean_k + half_k < 0
        if below.any() and (found is None or start + int(below.argmax()) + 1 < found):
            since, found = start, start + int(below.argmax()) + 1
    return Decline(mean, mean - half, mean + half, since, found)


def _starts(n: int) -> list[int]:
    """Return the fixed times at which sequences start, below n."""
    starts, at = [0], float(_FIRST)
    while at < n:
        starts.append(int(at))
        at *= _GROWTH
    return starts


def _sequence(x: Array, error: float, least_std: float) -> tuple[Array, Array]:
    """Return running means, and half-widths of a confidence sequence; infinite as long as there are too few units."""
    n = np.arange(1, len(x) + 1)
    mean = np.cumsum(x) / n
    centered = x - x.mean()
    first, second = np.cumsum(centered) / n, np.cumsum(centered**2) / n
    variance = np.maximum(second - first**2, least_std**2)
    spread = float(centered.std())
    skewness = float((centered**3).mean()) / spread**3 if spread > 0 else 0.0
    known = (n >= min_arm_units(min(skewness, 0.0))) & (variance > 0)  # a long upper tail makes low means rarer
    return mean, np.where(known, mixture_threshold(n / _TUNED, error) * np.sqrt(variance / n), np.inf)


def _outcomes(
    after: LogStatistics, returns: Array, shipped: Array, value: CertifiedValue, error: float, least_std: float
) -> tuple[WatchCheck, Decline]:
    """Compare outcomes of the shipped policy with the certified value, or with those of the former policy."""
    order = (
        np.argsort(after.episodes["begins"], kind="stable") if "begins" in after.episodes else np.arange(len(returns))
    )
    clusters = after.episodes.get("cluster")
    chosen = order[shipped[order]]
    units = _unit_sums(returns[chosen] - value.lower, None if clusters is None else clusters[chosen])
    decline = find_decline(units, 0.0, error, least_std)
    mean, promised = float(returns[shipped].mean()), f"{value.lower:.4g} to {value.upper:.4g}"
    if not shipped.all():
        found = _against_former(
            returns[order], shipped[order], None if clusters is None else clusters[order], value, error
        )
        if found is not None:
            return found, decline
    if decline.since is not None:
        when = "" if decline.since == 0 else f" since unit {decline.since + 1} of {len(units)}"
        text = f"worse than certified{when}: {mean:.4g} on average, and {value.name} promised {promised}"
        remedy = "go back to the former policy, and look for the cause; then evaluate it on newer logs"
        return WatchCheck("outcomes", "worse", text, remedy), decline
    text = f"{mean:.4g} on average, and {value.name} promised {promised}: no decline is found"
    return WatchCheck("outcomes", "as_certified", text), decline


def _against_former(
    returns: Array, shipped: Array, clusters: Array | None, value: CertifiedValue, error: float
) -> WatchCheck | None:
    """Return the check of the gain over the former policy, where both act; ``None`` if one has too few episodes."""
    if clusters is not None:  # one unit for each cluster and policy
        keys, index = np.unique(np.stack([clusters, shipped]), axis=1, return_inverse=True)
        index = index.reshape(-1)
        returns = np.bincount(index, returns) / np.bincount(index)
        shipped = keys[1] == 1
    difference = running_difference(shipped, returns)
    lower, upper = (float(ends[-1]) for ends in difference.bounds(error, _TUNED))
    if not np.isfinite([lower, upper]).all():
        return None
    least = 0.0 if value.min_gain is None else value.min_gain
    text = (
        f"the gain over the former policy, which still acts, is between {lower:.4g} and {upper:.4g}; required {least:g}"
    )
    if upper < least:
        return WatchCheck("outcomes", "worse", text, "go back to the former policy, and look for the cause")
    return WatchCheck("outcomes", "as_certified", text)


def _unit_sums(x: Array, clusters: Array | None) -> Array:
    """Return sums over clusters, in the order of their first episodes."""
    if clusters is None:
        return x
    _, first, index = np.unique(clusters, return_index=True, return_inverse=True)
    return np.bincount(index.reshape(-1), x)[np.argsort(first)]


def _units_of(logs: LogStatistics, returns: Array) -> Array:
    """Return the deviations of returns from their mean, summed over clusters."""
    return _unit_sums(returns - returns.mean(), logs.episodes.get("cluster"))


def _units(after: LogStatistics, shipped: Array) -> int:
    clusters = after.episodes.get("cluster")
    return int(shipped.sum()) if clusters is None else len(np.unique(clusters[shipped]))


def _returns(data: ReplayBuffer, gamma: float, horizon: int | None) -> Array:
    """Return ``sum_t gamma^t r_t`` over the first steps of each episode, ``[E]``."""
    storage = data.storage
    table = episode_table(storage)
    lane, start, length = (column[table.length > 0] for column in table)
    length = length if horizon is None else np.minimum(length, horizon)
    episode = np.repeat(np.arange(len(length)), length)
    step = np.arange(len(episode)) - np.repeat(length.cumsum() - length, length)
    rows = storage.place.indices(storage.rows(lane[episode], start[episode] + step))
    reward = np.asarray(storage.place.host(storage.take("reward", rows))).reshape(len(episode), -1)[:, 0]
    return np.bincount(episode, reward * np.power(gamma, step, dtype=np.float64), len(length))


def _logged_value(certified: ReplayBuffer, gamma: float) -> CertifiedValue:
    """Return what the certified logs earned."""
    returns = _returns(certified, check("gamma", gamma, float, low=0, high=1), None)
    found = scan(certified, gamma=gamma).episodes
    interval = t_interval(Estimate(returns), 0.95, found.get("cluster"))
    return CertifiedValue("the certified logs", float(interval.lower), float(interval.upper), gamma)


def as_json(result: Watch) -> dict[str, object]:
    """Return the results as JSON values."""
    certified: Mapping[str, object] = vars(result.certified)
    return {
        "result": result.result,
        "status": result.status,
        "episodes": result.episodes,
        "steps": result.steps,
        "mean": result.mean if math.isfinite(result.mean) else None,
        "error": result.error,
        "certified": dict(certified),
        "checks": [dict(vars(each)) for each in result.checks],
        "columns": [dict(vars(each)) for each in result.columns],
    }
