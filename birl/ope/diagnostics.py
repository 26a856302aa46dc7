"""Diagnostics of importance weights, propensities and support, which show whether an estimate may be trusted.

All are functions of arrays. `diagnose` computes all diagnostics of weights. The limits are in
`birl.ope.validity_limits`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from birl.checks import check
from birl.errors import DataError, ShapeError
from birl.ope.estimators import cluster_sums, weight_before
from birl.ope.importance_weights import Trajectories
from birl.types import Array

MIN_TAIL = 5  # the smallest number of weights to estimate a tail from


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """Diagnostics of the weights. ``[...]`` stands for the dimensions of repetitions, if any.

    Attributes:
        ess: effective sample size ``(sum w)^2 / sum w^2`` of whole episodes, ``[...]``.
        ess_by_step: the same at each step, ``[..., T]``.
        share: share of the largest weight in the sum of all weights.
        heaviest: share of the ten largest weights in this sum.
        pareto_k: shape of the tail of the weights; above 0.5 their variance is infinite, above 0.7 estimates are not
            reliable (Vehtari et al. 2015, arXiv:1507.02646). Minus infinity if weights are equal.
        mean_weight: mean of ``w_t``, ``[..., T]``: 1 in expectation, if propensities and support are right.
        mean_error: largest distance of these means from 1 in standard errors, over steps with enough effective
            episodes.
        kappa: factor by which the discounted second moment of the weights grows in a step. If it is 1 or more, the
            variance without a horizon is infinite, and more data do not help.
    """

    ess: Array
    ess_by_step: Array
    share: Array
    heaviest: Array
    pareto_k: Array
    mean_weight: Array
    mean_error: Array
    kappa: Array

    def low_step(self, limit: float = 20) -> Array:
        """Return the first step with fewer than ``limit`` effective episodes; T if there is none."""
        low = self.ess_by_step < limit
        return np.where(low.any(-1), low.argmax(-1), low.shape[-1])


def diagnose(episodes: Trajectories, lost: Array | None = None) -> Diagnostics:
    """Return the diagnostics of the weights of logged episodes.

    Args:
        episodes: logged episodes with ratios.
        lost: probability of an action without support at each step, ``[..., n, T]``, which the weights lack: the mean
            weight includes it.
    """
    relative = episodes.log_weight - _safe(episodes.log_weight.max(-2, keepdims=True))
    w = np.exp(relative)
    total, square, largest = w.sum(-2), (w**2).sum(-2), np.sort(w[..., -1], -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        ess = np.where(total > 0, total**2 / square, 0.0)
        last = np.where(total[..., -1] > 0, total[..., -1], 1.0)
        share = np.where(total[..., -1] > 0, largest[..., -1] / last, 1.0)
        heaviest = np.where(total[..., -1] > 0, largest[..., -10:].sum(-1) / last, 1.0)
    mean, error = _mean_weight(episodes, ess, lost)
    return Diagnostics(
        ess[..., -1], ess, share, heaviest, pareto_k(episodes.log_weight[..., -1]), mean, error, kappa(episodes)
    )


def pareto_k(log_weight: Array) -> Array:
    """Return the shape of the generalised Pareto distribution of the largest weights (Vehtari et al. 2015).

    arXiv:1507.02646. The tail consists of the ``min(n / 5, 3 sqrt(n))`` largest weights. The fit follows Zhang and
    Stephens 2009, with a prior at 0.5 that counts as ten weights.

    Args:
        log_weight: ``[..., n]``.

    Returns:
        k, ``[...]``: minus infinity if all weights of the tail are equal, infinity if there are too few, or all are 0.
    """
    n = log_weight.shape[-1]
    size = int(np.ceil(min(0.2 * n, 3 * np.sqrt(n))))
    if size < MIN_TAIL or n <= size:
        return np.full(log_weight.shape[:-1], np.inf)
    ordered = np.sort(log_weight, -1)
    ordered = np.exp(ordered - _safe(ordered[..., -1:]))
    for row in ordered.reshape(-1, n):  # a view
        if (np.diff(row[-size - 1 :]) == 0).any():
            row[:] = _interpolate_ties(row)
    x = ordered[..., -size:] - ordered[..., -size - 1 : -size]  # beyond the threshold, ascending
    flat = ~(x[..., -1] > 1e-12)
    x = np.where(flat[..., None], 1.0, np.maximum(x, 1e-300))
    grid = 30 + int(np.sqrt(size))
    quartile = np.maximum(x[..., int(size / 4 + 0.5) - 1], 1e-12 * x[..., -1])
    part = 1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    theta = 1 / x[..., -1:] + part / (3 * quartile[..., None])
    slope = np.stack([np.log1p(-theta[..., j, None] * x).mean(-1) for j in range(grid)], -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        likelihood = size * (np.log(-theta / slope) - slope - 1)
    likelihood = np.where(np.isnan(likelihood), -np.inf, likelihood)
    weight = np.exp(likelihood - likelihood.max(-1, keepdims=True))
    best = (weight * theta).sum(-1) / weight.sum(-1)
    k = np.log1p(-best[..., None] * x).mean(-1)
    none = np.where(np.isneginf(log_weight.max(-1)), np.inf, -np.inf)  # all weights are 0, or the tail's are equal
    return np.where(flat, none, (size * k + 10 * 0.5) / (size + 10))


def _interpolate_ties(ordered: Array) -> Array:
    """Spread equal weights evenly between their neighbours, because a tail of steps has no Pareto shape."""
    value, count = np.unique(ordered, return_counts=True)
    ends = np.concatenate([value[:1], (value[1:] + value[:-1]) / 2, value[-1:]])
    return np.asarray(np.interp(np.arange(len(ordered)) + 0.5, np.concatenate([[0], count.cumsum()]), ends))


def kappa(episodes: Trajectories) -> Array:
    """Return ``gamma^2`` times the ``w^2``-weighted mean of ``rho^2 1[continues]`` over all steps, ``[...]``."""
    log_weight = episodes.log_weight
    scaled = np.exp(2 * (log_weight - _safe(log_weight.max((-1, -2), keepdims=True))))
    first = np.exp(-2 * _safe(log_weight.max((-1, -2))))[..., None, None] * np.ones_like(scaled[..., :1])
    before = np.concatenate([first, scaled[..., :-1]], -1)
    continues = np.concatenate([episodes.mask[..., 1:], np.zeros_like(episodes.mask[..., :1])], -1)
    seen = (before * episodes.mask).sum((-1, -2))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(seen > 0, episodes.gamma**2 * (scaled * continues).sum((-1, -2)) / seen, 0.0)


def tail_weight(terms: Array, clusters: Array | None = None) -> float:
    """Return the skewness of terms divided by the root of their number, from -1 to 1.

    It measures the asymmetry of a t interval: to first order, the errors of the interval's ends are proportional to it
    (Johnson 1978, Journal of the American Statistical Association 73). k equal outliers among many terms give
    ``1 / sqrt(k)``. By Cochran's rule, the number of terms should be 25 times the squared skewness, which is a value of
    0.2. The value is 0 if all terms are equal. It cannot show events that were never logged.

    Args:
        terms: terms of an estimate, ``[n]``.
        clusters: the cluster of each episode, ``[n]``; terms of a cluster are summed.
    """
    centered = terms - terms.mean()
    centered = centered if clusters is None else cluster_sums(centered, clusters)
    variance = (centered**2).mean()
    if variance <= 1e-24 * max(1.0, float((terms**2).mean())):
        return 0.0
    return float((centered**3).mean() / variance**1.5 / np.sqrt(centered.size))


def unsupported_mass(target: Array, supported: Array, mask: Array) -> Array:
    """Return the share of the policy's probability on actions that the logs do not contain near the state, ``[...]``.

    Args:
        target: ``pi(a|s_t)`` of all actions, ``[..., n, T, A]``.
        supported: whether an action was taken near the state or had a sufficient propensity, in the shape of
            ``target``.
        mask: which steps exist, ``[..., n, T]``.
    """
    target, supported, mask = np.asarray(target, np.float64), np.asarray(supported, bool), np.asarray(mask, bool)
    if target.shape != supported.shape or target.shape[:-1] != mask.shape:
        shapes = f"target has the shape {target.shape}, supported {supported.shape}, mask {mask.shape}"
        raise ShapeError(f"{shapes}; they must be [..., n, T, A], the same, and [..., n, T]")
    lost = (target * ~supported).sum(-1)
    return np.asarray((lost * mask).sum((-1, -2)) / mask.sum((-1, -2)))


def calibration_error(probability: Array, taken: Array, bins: int = 10) -> float:
    """Return the expected calibration error of estimated propensities.

    It is the sum of ``|number taken - sum of probabilities|`` over the bins, divided by 2 N: from 0 to 1.

    Args:
        probability: probabilities of all actions in each step, ``[N, A]``, by a model that was not fitted on the step.
        taken: logged actions, ``[N]``.
        bins: number of equal bins from 0 to 1.

    Raises:
        DataError: if the probabilities of a step do not sum to 1.
    """
    check("bins", bins, int, low=1, error=DataError)
    probability, taken = np.asarray(probability, np.float64), np.asarray(taken)
    off = np.abs(probability.sum(-1) - 1) > 1e-4
    if off.any():
        step = int(off.argmax())
        raise DataError(f"the probabilities of step {step} sum to {probability[step].sum():.6g}; they must sum to 1")
    hit = (taken[:, None] == np.arange(probability.shape[-1])).ravel().astype(np.float64)
    predicted = probability.ravel()
    index = np.minimum((predicted * bins).astype(int), bins - 1)
    error = np.bincount(index, hit - predicted, bins)
    return float(np.abs(error).sum() / (2 * len(taken)))


def _mean_weight(episodes: Trajectories, ess: Array, lost: Array | None) -> tuple[Array, Array]:
    """Return the mean of ``w_t``, and its largest distance from 1 in standard errors over reliable steps."""
    log_weight = np.minimum(episodes.log_weight, 300.0)  # larger squares overflow; the mean is far from 1 anyway
    w, n = np.exp(log_weight), log_weight.shape[-2]
    if lost is not None:
        w = w + (weight_before(w) * lost).cumsum(-1)
    mean = w.mean(-2)
    spread = np.maximum(w.std(-2, ddof=1) if n > 1 else np.inf, 1e-9) / np.sqrt(n)
    known = (ess >= np.minimum(50, 0.5 * n)) | (mean > 1)  # skewness puts the mean of few effective weights below 1
    return mean, np.where(known, np.abs(mean - 1) / spread, 0.0).max(-1)


def _safe(log: Array) -> Array:
    """Replace minus infinity by 0, so that differences are defined."""
    return np.where(np.isneginf(log), 0.0, log)
