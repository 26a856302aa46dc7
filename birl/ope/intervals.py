"""Confidence intervals and lower bounds of estimates.

`t_interval` is for all estimates except those of the direct method, over episodes or clusters. `bootstrap_interval` is
for fitted Q evaluation. `betting_bound` is a lower bound that holds for any tails of the weights. `hcope_bound` and
`hoeffding_interval` are classical references and wider.

Quantiles and tails of Student's t are computed here, because SciPy is not a dependency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from birl.checks import check
from birl.errors import DataError, EmptyDataError
from birl.ope.estimators import Estimate, cluster_sums
from birl.types import Array


@dataclass(frozen=True, eq=False)
class Interval:
    """A confidence interval.

    Attributes:
        lower, upper: ends of the interval, ``[...]``.
        confidence: share of such intervals that cover the truth, 0 to 1.
    """

    lower: Array
    upper: Array
    confidence: float

    def holds(self, value: float | Array) -> Array:
        """Return whether the interval contains ``value``."""
        return np.asarray((self.lower <= value) & (value <= self.upper))


def t_interval(estimate: Estimate, confidence: float = 0.95, clusters: Array | None = None) -> Interval:
    """Return Student's t interval over episodes, or over clusters: ``value -+ t s``.

    With C clusters ``s^2 = C / (C - 1) sum_c (sum_{i in c} (x_i - value))^2 / n^2``, which is the usual variance of a
    mean if each episode is a cluster. Episodes of one user, machine or day are dependent; an interval that ignores this
    is too narrow.

    Args:
        estimate: terms ``[..., n]``.
        confidence: two-sided confidence: 0.95 leaves out 2.5 % on each side.
        clusters: the cluster of each episode, ``[n]``.

    Raises:
        EmptyDataError: if there are fewer than 2 episodes or clusters.
    """
    _check_confidence(confidence)
    n, value = estimate.terms.shape[-1], estimate.value
    centered = estimate.terms - value[..., None]
    centered = centered if clusters is None else cluster_sums(centered, clusters)
    count = centered.shape[-1]
    if count < 2:
        kind = "episode" if clusters is None else "cluster"
        raise EmptyDataError(f"there is {count} {kind}; an interval needs 2 or more: log more")
    half = t_quantile(0.5 + confidence / 2, count - 1) * np.sqrt((centered**2).sum(-1) * count / (count - 1)) / n
    return Interval(value - half, value + half, confidence)


def bootstrap_interval(value: float | Array, replicates: Array, confidence: float = 0.95) -> Interval:
    """Return an interval of fitted Q evaluation: ``value -+ t s`` with the standard deviation s of the replicates.

    Replicates are fitted on resampled **episodes** (Hao et al. 2021, arXiv:2102.03607). Resampling first states with a
    fixed model covers the truth far too seldom.

    Args:
        value: the estimate from all episodes, ``[...]``.
        replicates: estimates of models that were each fitted on n episodes drawn with replacement, ``[..., B]``.
        confidence: two-sided confidence, between 0 and 1.
    """
    _check_confidence(confidence)
    value, replicates = np.asarray(value, np.float64), np.asarray(replicates, np.float64)
    if replicates.shape[-1] < 20:
        raise EmptyDataError(f"there are {replicates.shape[-1]} replicates; the interval needs 20 or more")
    half = t_quantile(0.5 + confidence / 2, replicates.shape[-1] - 1) * replicates.std(-1, ddof=1)
    return Interval(value - half, value + half, confidence)


def hoeffding_interval(estimate: Estimate, low: float, high: float, confidence: float = 0.95) -> Interval:
    """Return ``value -+ (high - low) sqrt(log(2 / delta) / (2 n))``, for terms of a **known** range (Hoeffding 1963).

    Args:
        estimate: independent terms.
        low, high: smallest and largest possible term, not the observed ones.
        confidence: ``1 - delta``.

    Raises:
        DataError: if a term is out of the range.
    """
    _check_confidence(confidence)
    terms = estimate.terms
    if not low <= terms.min() <= terms.max() <= high:
        raise DataError(
            f"terms are from {terms.min()} to {terms.max()}, but low is {low} and high {high}; they must be the "
            "smallest and the largest possible term"
        )
    half = (high - low) * math.sqrt(math.log(2 / (1 - confidence)) / (2 * terms.shape[-1]))
    return Interval(estimate.value - half, estimate.value + half, confidence)


def betting_bound(estimate: Estimate, confidence: float = 0.975, lowest: float = 0.0) -> Array:
    """Return a lower bound on the mean that holds for any weights, by betting.

    ``inf {m: mean over c of prod_i (1 + c (Y_i / m - 1)) < 1 / delta}`` with ``Y = term - lowest >= 0`` and bets
    ``lam = c / m``, c between 0 and 1: for any ``m`` that is not below the mean of Y, the wealth is a supermartingale
    and rarely large (Waudby-Smith and Ramdas 2020, arXiv:2010.09686; Karampatziakis et al. 2021,
    arXiv:2102.09540). Weights need no bound, only terms need a minimum. The order of episodes does not matter.

    Args:
        estimate: independent terms, ``[..., n]``, from `importance_sampling` or `per_decision`. The terms of ratios of
            sums are not independent.
        confidence: one-sided confidence, ``1 - delta``.
        lowest: smallest possible term. If these estimators had the argument ``lowest``, it is
            ``lowest * sum_t gamma^t``.

    Returns:
        The bound, ``[...]``.

    Raises:
        DataError: if a term is less than ``lowest``.
    """
    _check_confidence(confidence)
    above = _above(estimate, lowest)
    share = np.array([0.003, 0.006, 0.012, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95])
    limit = -math.log(1 - confidence) + math.log(len(share))

    def wealth(m: Array) -> Array:
        ratio = above / np.maximum(m, np.finfo(np.float64).tiny)[..., None] - 1
        return np.asarray(np.logaddexp.reduce([np.log1p(c * ratio).sum(-1) for c in share], axis=0))

    low, high = np.zeros(above.shape[:-1]), above.mean(-1)
    for _ in range(45):  # wealth decreases with m, and is at most 1 at the mean of the terms
        middle = (low + high) / 2
        exceeds = wealth(middle) >= limit
        low, high = np.where(exceeds, middle, low), np.where(exceeds, high, middle)
    return np.asarray(low + lowest)


def hcope_bound(estimate: Estimate, confidence: float = 0.975, lowest: float = 0.0) -> Array:
    """Return a classical lower bound (Thomas et al. 2015, "High confidence off-policy evaluation", AAAI, theorem 1).

    Terms are clipped at c and bounded by the empirical Bernstein inequality (Maurer and Pontil 2009, arXiv:0907.3740,
    theorem 4). The first twentieth of the episodes is only used to choose c, so the order of episodes must be random.

    Args:
        estimate: independent terms, ``[..., n]``; see `betting_bound`.
        confidence: one-sided confidence.
        lowest: smallest possible term.

    Raises:
        DataError: if a term is less than ``lowest``.
        EmptyDataError: if there are fewer than 40 episodes.
    """
    _check_confidence(confidence)
    above = _above(estimate, lowest)
    n = above.shape[-1]
    if n < 40:
        raise EmptyDataError(f"there are {n} episodes; this bound needs 40 or more")
    first = max(n // 20, 2)
    pilot, rest = above[..., :first], above[..., first:]
    cuts = np.maximum(pilot.max(-1), np.finfo(np.float64).tiny)[..., None] * 2.0 ** np.arange(-6, 5)
    predicted = np.stack([_bernstein(pilot, cut, n - first, confidence) for cut in np.moveaxis(cuts, -1, 0)], -1)
    cut = np.take_along_axis(cuts, predicted.argmax(-1)[..., None], -1)[..., 0]
    return np.maximum(_bernstein(rest, cut, n - first, confidence), 0) + lowest


def _above(estimate: Estimate, lowest: float) -> Array:
    """Subtract the lower limit from terms, with a tolerance for rounding."""
    above = estimate.terms - lowest
    if above.min() < -1e-6 * max(1.0, abs(lowest)):
        raise DataError(f"a term is {estimate.terms.min()}, but lowest is {lowest}; it must be the smallest possible")
    return np.maximum(above, 0.0)


def _bernstein(terms: Array, cut: Array, n: int, confidence: float) -> Array:
    """Return the bound for n terms from their mean and variance."""
    terms = np.minimum(terms, cut[..., None])
    log = math.log(2 / (1 - confidence))
    width = np.sqrt(2 * log * terms.var(-1, ddof=1) / n)
    return np.asarray(terms.mean(-1) - 7 * cut * log / (3 * (n - 1)) - width)


@lru_cache(maxsize=256)
def t_quantile(p: float, freedom: float) -> float:
    """Return the quantile ``p`` of Student's t with ``freedom`` degrees of freedom, to a relative error of 1e-10.

    Newton's method with bisection on the incomplete beta function.
    """
    check("p", p, float, above=0, below=1, error=DataError)
    check("freedom", freedom, float, above=0, error=DataError)
    if p == 0.5:
        return 0.0
    if freedom > 1e4:  # the beta function loses digits: Abramowitz and Stegun 26.7.5
        z = NormalDist().inv_cdf(p)
        terms = (z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96)
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return sum(term / freedom**k for k, term in enumerate((*terms, third)))
    tail, sign = (1 - p, 1.0) if p > 0.5 else (p, -1.0)
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > tail:
        low, high = high, 2 * high
    x = min(max(NormalDist().inv_cdf(1 - tail), low), high) if tail < 0.5 else low
    constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    for _ in range(200):
        beyond = t_tail(x, freedom) - tail
        low, high = (x, high) if beyond > 0 else (low, x)
        density = math.exp(constant - (freedom + 1) / 2 * math.log1p(x * x / freedom))
        step = x + beyond / density if density > 0 else math.inf
        new = step if low < step < high else (low + high) / 2
        if abs(new - x) <= 1e-14 * abs(new):
            return sign * new
        x = new
    return sign * x


def t_tail(x: float, freedom: float) -> float:
    """Return P(t > x) for x >= 0: half the incomplete beta function at ``freedom / (freedom + x^2)``."""
    a, b, at = freedom / 2, 0.5, freedom / (freedom + x * x)
    if at == 1.0:
        return 0.5
    rest = x * x / (freedom + x * x)
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(at) + b * math.log(rest)
    if at < (a + 1) / (a + b + 2):
        return 0.5 * math.exp(log) * _beta_fraction(a, b, at) / a
    return 0.5 - 0.5 * math.exp(log) * _beta_fraction(b, a, rest) / b


def t_p_value(distance: float, error: float, freedom: float) -> float:
    """Return the probability of an estimate at least this far above the truth, by Student's t.

    Args:
        distance: estimate minus supposed truth.
        error: standard error of the estimate; 0 if it has none.
        freedom: degrees of freedom, above 0.
    """
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    tail = t_tail(abs(distance) / error, freedom)
    return tail if distance > 0 else 1 - tail


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function (DLMF 8.17.22) by Lentz's method."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 10_000):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + step * d)
            c = 1 + step / c
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _check_confidence(value: float) -> None:
    check("confidence", value, float, above=0, below=1, error=DataError)
