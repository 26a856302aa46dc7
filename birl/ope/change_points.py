"""Changes of a gain over the time of the logs, and the gain of the newest episodes by themselves.

A verdict is about the future, and the mean over the logs hides an effect that turned lately. `find_change` looks for a
change of the mean at every time of the logs; `GainOverTime` has what reports and verdicts say about it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from birl.checks import check
from birl.errors import DataError, ShapeError
from birl.ope.estimators import Estimate
from birl.ope.intervals import Interval, t_interval
from birl.text import format_time
from birl.types import Array

ERROR: Final = 0.01
"""Probability of finding a change in logs without one."""
NEWEST: Final = 0.1
"""Share of the newest episodes that are also evaluated by themselves."""
MIN_NEWEST: Final = 30
"""Smallest number of episodes, and of clusters, that are evaluated by themselves."""
_PERMUTATIONS: Final = 499
_MIN_PART: Final = 20
"""Smallest number of units before and after a change."""
_MAX_UNITS: Final = 2000
_MAX_GROUPS: Final = 1000
_MANY: Final = 20_000
"""Largest number of episodes with clusters that keep their exact order."""
_MAX_SPLITS: Final = 64
_MAX_ACTIONS: Final = 5
_CRITICAL: Final = 3.6
"""About the 99 % quantile of the largest statistic (Andrews 1993, Econometrica 61:821-856, table I, trimmed by 5 %)."""
_POWER: Final = 0.84
"""Standard normal quantile of a power of 80 %."""
_LATER: Final = 10.59
"""99 % quantile of how far squared statistics at the true time are below the largest (Hansen 2000, Econometrica
68:575-603, table I)."""
_CAUSE: Final = 0.99
"""Confidence of the intervals that tell whether the policy's value or the logs' return changed."""


class Change(NamedTuple):
    """A change of a mean over time.

    Attributes:
        time: time of the first episode after it, the most likely one.
        latest: the latest time in a 99 % confidence set: from there on, all episodes are probably after the change.
    """

    time: float
    latest: float


def find_change(
    estimate: Estimate, time: Array, clusters: Array | None = None, *, error: float = ERROR, seed: int = 0
) -> Change | None:
    """Return the time from which on the mean of the terms differs, or ``None`` if no change is found.

    With the terms in the order of time, the statistic of a split after the first k is their CUSUM divided by its
    standard error: the difference between the means of both parts, divided by ``sqrt(s_1^2 / k + s_2^2 / (n - k))``
    with the variance of each part. So another variance alone, as after a change of the logging policy, is no change.
    The largest statistic over all splits is compared with those of random permutations of the terms (Antoch and Hušková
    2001, Statistics and Probability Letters 53:37-46), which keep their skewness. If terms are independent and equally
    distributed, the error rate is exact. It is approximate if their variance changes or clusters overlap in time: of
    simulated logs of 200 or 400 log-normal terms whose scale triples in the last third, 8 or 4 % instead of 1 % seemed
    to change; of normal terms 1 %.

    Terms of one cluster in a row are one unit of the permutations. Squares are those of the sums over clusters.

    Args:
        estimate: terms, ``[n]``.
        time: time of each episode, ``[n]``.
        clusters: cluster of each episode, ``[n]``; ``None`` if all are independent.
        error: probability of finding a change if there is none.
        seed: seed of the permutations.

    Returns:
        The time of the first episode after the change with the largest statistic. Fewer than 20 episodes (or runs of
        clusters), or 5 % of them, before or after a change are too few to find it.

    Raises:
        ShapeError: if the lengths differ.
        DataError: if a time is not finite.
    """
    check("error", error, float, above=0, below=1, error=DataError)
    terms, time = np.asarray(estimate.terms, np.float64), np.asarray(time, np.float64)
    if terms.ndim != 1 or time.shape != terms.shape:
        raise ShapeError(
            f"time has the shape {time.shape}, terms {terms.shape}; both must be [n], one for each episode"
        )
    if not np.isfinite(time).all():
        index = int(np.argmin(np.isfinite(time)))
        raise DataError(f"time of episode {index} is {time[index]}; it must be finite: repair the time column")
    order = np.argsort(time, kind="stable")
    time, residual = time[order], terms - terms.mean()
    if np.abs(residual).max(initial=0) <= 1e-9 * np.abs(terms).max(initial=0):
        return None
    order, first, owner = _units(order, clusters)
    unit = np.add.reduceat(residual[order], first)
    new_time = np.flatnonzero(np.append(False, time[first[1:]] > time[first[1:] - 1]))
    least = max(_MIN_PART, len(unit) // 20)
    splits = new_time[(new_time >= least) & (new_time <= len(unit) - least)]
    if not len(splits):
        return None
    tested = splits if owner is None else splits[np.unique(np.linspace(0, len(splits) - 1, _MAX_SPLITS).astype(int))]
    statistic = _statistics(unit[None], owner, tested)[0]
    if not _exceeds(float(statistic.max()), unit, owner, tested, error, np.random.default_rng(seed)):
        return None
    likely = tested[statistic**2 >= statistic.max() ** 2 - _LATER]
    return Change(float(time[first[tested[int(statistic.argmax())]]]), float(time[first[likely[-1]]]))


def count_changing_actions(
    probability: Array, taken: Array, sizes: Array, time: Array, clusters: Array | None = None
) -> int:
    """Return how many actions were taken more or less often than probabilities say, from some time on.

    The `ERROR` is that of all actions together; the `_MAX_ACTIONS` most frequent ones are tested.

    Args:
        probability: probabilities of all actions, ``[N, A]``, one episode after the other.
        taken: actions, ``[N]``, counted from 0.
        sizes: number of steps of each episode, ``[n]``.
        time, clusters: time and cluster of each episode, ``[n]``.
    """
    counts = np.bincount(taken, minlength=probability.shape[1])
    tested = np.argsort(-counts, kind="stable")[: min(_MAX_ACTIONS, np.count_nonzero(counts))]
    first, found = np.cumsum(sizes) - sizes, 0
    for action in tested:
        excess = np.add.reduceat((taken == action) - probability[:, action], first)
        found += find_change(Estimate(excess), time, clusters, error=ERROR / len(tested)) is not None
    return found


def _units(order: Array, clusters: Array | None) -> tuple[Array, Array, Array | None]:
    """Return the order of episodes, the place of the first one of each unit, and the group of each unit.

    Without clusters, units are episodes (or equally long runs of many episodes), and the groups are ``None``. With
    clusters, units are runs of episodes of one group. Each group is a cluster, or several: successive ones, or random
    ones if clusters overlap in time. Many episodes of a 64th of the time are ordered by their groups, so that there are
    few units.
    """
    n = len(order)
    if clusters is None:
        return order, np.unique(np.linspace(0, n, min(n, _MAX_UNITS), endpoint=False).astype(np.int64)), None
    _, index = np.unique(np.asarray(clusters)[order], return_inverse=True)
    count, runs = int(index.max()) + 1, 1 + np.count_nonzero(np.diff(index))
    rank = np.random.default_rng(0).permutation(count)
    if runs < 1.5 * count:  # most clusters are episodes in a row
        rank[np.argsort(np.bincount(index, np.arange(n)) / np.bincount(index), kind="stable")] = np.arange(count)
    groups = _MAX_GROUPS if n <= _MANY else _MAX_GROUPS // 5
    group = (rank * min(count, groups) // count)[index]
    if n > _MANY:
        inside = np.lexsort((group, np.arange(n) * _MAX_SPLITS // n))
        order, group = order[inside], group[inside]
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    owner = group[first]
    return order, first, None if len(np.unique(owner)) == len(owner) else owner


def _statistics(unit: Array, owner: Array | None, splits: Array) -> Array:
    """Return the statistic of each split, ``[B, K]``.

    Args:
        unit: sums of the deviations of each unit, ``[B, U]``.
        owner: group of each unit, ``[U]`` or ``[B, U]``; ``None`` if each is one.
        splits: numbers of units before each split, ``[K]``.
    """
    count = unit.shape[1]
    share = splits / count
    early = unit.cumsum(1)[:, splits - 1]  # the sum of all is 0
    means = early / splits, -early / (count - splits)
    if owner is None:
        squares = (unit**2).cumsum(1)
        before, after = squares[:, splits - 1], squares[:, -1:] - squares[:, splits - 1]
        variance = (1 - share) ** 2 * (before - splits * means[0] ** 2)
        variance += share**2 * (after - (count - splits) * means[1] ** 2)
    else:
        groups, segment = int(owner.max()) + 1, np.searchsorted(splits, np.arange(count), side="right")
        cell = ((np.arange(len(unit))[:, None] * groups + owner) * (len(splits) + 1) + segment).ravel()
        shape = len(unit), groups, len(splits) + 1
        sums, sizes = (
            np.bincount(cell, weights, math.prod(shape)).reshape(shape).cumsum(2) for weights in (unit.ravel(), None)
        )
        before, after = sums[..., :-1], sums[..., -1:] - sums[..., :-1]
        before = before - sizes[..., :-1] * means[0][:, None]
        after = after - (sizes[..., -1:] - sizes[..., :-1]) * means[1][:, None]
        variance = (((1 - share) * before - share * after) ** 2).sum(1)
    return np.asarray(np.abs(early) / np.sqrt(np.maximum(variance, 1e-300)))


def _exceeds(
    largest: float, unit: Array, owner: Array | None, splits: Array, error: float, rng: np.random.Generator
) -> bool:
    """Return whether at most a share ``error`` of permutations has such a large statistic; stop when it is clear."""
    allowed, done, as_large = math.floor(error * (_PERMUTATIONS + 1) + 1e-9) - 1, 0, 0
    size = 100 if owner is None else 10
    while done < _PERMUTATIONS and as_large <= allowed:
        count = min(size, _PERMUTATIONS - done)
        order = rng.permuted(np.broadcast_to(np.arange(len(unit)), (count, len(unit))), axis=1)
        drawn = _statistics(unit[order], None if owner is None else owner[order], splits).max(1)
        as_large += int((drawn >= largest * (1 - 1e-12)).sum())
        done += count
    return as_large <= allowed


@dataclass(frozen=True, eq=False)
class GainOverTime:
    """The gain of a policy over the time of the logs. All arrays are in the order of time.

    Attributes:
        gain: paired gain, ``[n]``.
        policy: terms of the policy's value, ``[n]``.
        baseline: terms of what it is compared with, ``[n]``: what the logs earned, or the other policy's value.
        time: time of the first step of each episode, ``[n]``, not decreasing.
        clusters: cluster of each episode, ``[n]``; ``None`` if unknown.
        change: the change of the gain; ``None`` if none is found. See `find_change`.
        dates: whether times are seconds since 1970.
        baseline_change: the change of the baseline, which need not be one of the gain; ``None`` if none is found.
    """

    gain: Estimate
    policy: Estimate
    baseline: Estimate
    time: Array
    clusters: Array | None
    change: Change | None
    dates: bool = False
    baseline_change: Change | None = None

    @property
    def since(self) -> float:
        """Time of the first of the newest episodes: those after the change, or the newest tenth, but 30 or more."""
        if self.change is not None:
            return self.change.latest
        n = len(self.time)
        return float(self.time[max(0, n - max(MIN_NEWEST, math.ceil(NEWEST * n)))])

    @property
    def first(self) -> int:
        """Index of the first of the newest episodes."""
        return int(np.searchsorted(self.time, self.since))

    def newest(self, confidence: float) -> Interval | None:
        """Return the interval of the gain in the newest episodes; ``None`` for fewer than 30 episodes or clusters.

        Args:
            confidence: two-sided confidence.
        """
        part = slice(self.first, None)
        groups = None if self.clusters is None else self.clusters[part]
        if min(len(self.time) - self.first, MIN_NEWEST if groups is None else len(np.unique(groups))) < MIN_NEWEST:
            return None
        return t_interval(Estimate(self.gain.terms[part]), confidence, groups)

    def means(self, of: Estimate, since: float | None = None) -> tuple[float, float]:
        """Return the means of terms before a time, by default that of the newest episodes, and from then on."""
        first = int(np.searchsorted(self.time, self.since if since is None else since))
        return float(of.terms[:first].mean()), float(of.terms[first:].mean())

    def differs(self, of: Estimate) -> bool:
        """Return whether the 99 % interval of the difference between the newest episodes and the others excludes 0."""
        late = np.arange(len(self.time)) >= self.first
        before, after = self.means(of)
        share = np.where(late, 1 / late.mean(), -1 / (~late).mean())
        centered = Estimate(share * (of.terms - np.where(late, after, before)) + after - before)
        return not bool(t_interval(centered, _CAUSE, self.clusters).holds(0.0))

    @property
    def unseen(self) -> float:
        """Change of the gain in the newest episodes that would be found with a probability of about 80 %."""
        n, late = len(self.time), len(self.time) - self.first
        groups = self.clusters
        interval = t_interval(self.gain, 0.6827, groups)
        error = float(interval.upper - interval.lower) / 2 * math.sqrt(n)
        return (_CRITICAL + _POWER) * error * math.sqrt(1 / late + 1 / max(n - late, 1))

    def when(self, time: float) -> str:
        """Return a time as text: a date in UTC, or a number."""
        return format_time(time, self.dates)

    def parts(self, confidence: float, count: int = 10) -> list[tuple[str, float, float, float]]:
        """Return the begin, lower end, value and upper end of the gain in consecutive parts of the logs.

        Args:
            confidence: two-sided confidence.
            count: number of parts with equally many episodes; fewer if a part had fewer than 30.
        """
        found = []
        ends = np.linspace(0, len(self.time), max(1, min(count, len(self.time) // MIN_NEWEST)) + 1).astype(int)
        for begin, end in itertools.pairwise(ends):
            groups = None if self.clusters is None else self.clusters[begin:end]
            if groups is not None and len(np.unique(groups)) < 2:
                continue
            part = Estimate(self.gain.terms[begin:end])
            interval = t_interval(part, confidence, groups)
            label = self.when(float(self.time[begin]))
            found.append((label, float(interval.lower), float(part.value), float(interval.upper)))
        return found


def gain_over_time(
    policy: Estimate, baseline: Estimate, time: Array | None, clusters: Array | None = None, dates: bool = False
) -> GainOverTime | None:
    """Return the gain over time; ``None`` without different times.

    Args:
        policy: terms of the policy's value, ``[n]``.
        baseline: terms of what it is compared with, ``[n]``.
        time: time of the first step of each episode, ``[n]``.
        clusters: cluster of each episode, ``[n]``.
        dates: whether times are seconds since 1970.
    """
    if time is None or len(time) < 2 or (time == time[0]).all():
        return None
    order, terms = np.argsort(time, kind="stable"), (policy - baseline).terms
    rounding = 1e-12 * np.abs(policy.terms).max()  # of episodes in which the policy acts as the logs
    gain = Estimate(np.where(np.abs(terms) <= rounding, 0.0, terms))
    groups = None if clusters is None else clusters[order]
    change = find_change(gain, time, clusters)
    return GainOverTime(
        gain=Estimate(gain.terms[order]),
        policy=Estimate(policy.terms[order]),
        baseline=Estimate(baseline.terms[order]),
        time=np.asarray(time[order], np.float64),
        clusters=groups,
        change=change,
        dates=dates,
        baseline_change=find_change(baseline, time, clusters),
    )
