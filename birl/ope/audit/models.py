"""Small models of logged steps, cross-fitted by episode: what is said of a step comes from a model without it.

Linear in the observation, products of its numbers if there are few, and random features of it (Rahimi and Recht 2008,
NeurIPS), so that a fit is a few products of matrices. They tell what a step depends on; they are no policies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from birl.ope.estimators import folds
from birl.types import Array

_WIDEST: Final = 64
_BENT: Final = 64
_SQUARED: Final = 12
_ROUNDS: Final = 80
_MOST_POINTS: Final = 2000


def prepared(x: Array, train: Array, seed: int = 0) -> Array:
    """Features ``[N, F]`` of ``x`` ``[N, D]``, in units of the rows ``train``; wide ones are projected at random."""
    rng = np.random.default_rng(seed)
    mean, std = x[train].mean(0, dtype=np.float64), x[train].std(0, dtype=np.float64)
    z = np.clip((x - mean) / np.where(std > 1e-9, std, 1.0), -5, 5)
    if z.shape[1] > _WIDEST:
        z = z @ rng.normal(size=(z.shape[1], _WIDEST)) / np.sqrt(z.shape[1])
    directions = rng.normal(size=(z.shape[1], _BENT)) * 1.5 / np.sqrt(max(z.shape[1], 1))
    a, b = np.triu_indices(z.shape[1] if z.shape[1] <= _SQUARED else 0)
    bent = np.tanh(z @ directions + rng.normal(size=_BENT))
    return np.concatenate([np.ones((len(z), 1)), z, z[:, a] * z[:, b], bent], 1)


def cross_fitted(
    x: Array, y: Array, groups: Array, fit: Callable[[Array, Array, Array, Array], Array], seed: int = 0
) -> Array:
    """Predictions of two models, each for the half of the groups that it has not seen.

    Args:
        x: ``[N, D]``.
        y: what is predicted, ``[N, …]``.
        groups: the episode or cluster of each row, ``[N]``; at least two different ones.
        fit: from features and targets of the one half, features of the other, and a row of ``y`` shaped like all, the
            predictions: `ridge` or `softmax`.
        seed: of halves and random features.
    """
    names, of = np.unique(groups, return_inverse=True)
    half = folds(names, 2, seed)[of]
    found: Array | None = None
    for part in (0, 1):
        train, test = np.flatnonzero(half != part), np.flatnonzero(half == part)
        features = prepared(x, train, seed)
        told = fit(features[train], y[train], features[test], y)
        if found is None:
            found = np.zeros((len(x), *told.shape[1:]))
        found[test] = told
    assert found is not None
    return found


def ridge(x: Array, y: Array, test: Array, _: Array) -> Array:
    """Least squares with a small penalty: predictions ``[n, K]`` of ``y`` ``[N, K]``."""
    gram = x.T @ x + np.diag(np.append(1e-6, np.ones(x.shape[1] - 1)))
    return np.asarray(test @ np.linalg.solve(gram, x.T @ y))


def softmax(x: Array, y: Array, test: Array, every: Array) -> Array:
    """Logistic regression: probabilities ``[n, A]`` of ``y`` ``[N]``, whole numbers below A, the most of all plus one.

    By steps with the bound of the second derivative (Böhning 1992), with momentum.
    """
    count = int(every.max()) + 1
    share = (np.bincount(y, minlength=count) + 0.5) / (len(y) + 0.5 * count)
    weights = np.zeros((x.shape[1], count))
    weights[0] = np.log(share)
    inverse = np.linalg.inv(0.5 * x.T @ x + np.eye(x.shape[1]))
    hit = np.zeros((len(y), count))
    hit[np.arange(len(y)), y] = 1
    ahead, prior = weights, weights.copy()
    for k in range(_ROUNDS):
        slope = x.T @ (hit - probabilities(x @ ahead)) - (ahead - prior)
        new = ahead + inverse @ slope
        weights, ahead = new, new + k / (k + 3) * (new - weights)
    return probabilities(test @ weights)


def probabilities(scores: Array) -> Array:
    """Softmax of the last axis."""
    up = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(up / up.sum(-1, keepdims=True))


def auc(score: Array, label: Array) -> float:
    """Probability that a row with the label 1 has a higher score than one with 0; ties count half."""
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = (counts.cumsum() - (counts - 1) / 2)[inverse]
    ones = int(label.sum())
    return float((rank[label == 1].sum() - ones * (ones + 1) / 2) / (ones * (len(label) - ones)))


def determined(x: Array, y: Array, bins: int = 32) -> Array:
    """Share of the variance of ``y`` that each column of ``x`` ``[N, D]`` alone explains, ``[D]``.

    The greater one of a line's and of means within bins, the latter adjusted for the number of bins. 0 for constants.
    Of several ``y``, ``[N, K]``, that of the one that is explained best.
    """
    n = len(x)
    apart = np.asarray(y, np.float64).reshape(n, -1)
    apart = apart - apart.mean(0) if n else apart
    apart = apart / np.maximum(np.abs(apart).max(0, initial=0), 1e-300)
    apart = apart[:, (apart**2).sum(0) > 0]
    found = np.zeros(x.shape[1])
    if n < 20 or not apart.shape[1]:
        return found
    total, shares = (apart**2).mean(0), np.linspace(0, 1, min(bins, n // 10) + 1)[1:-1]
    for k, column in enumerate(np.asarray(x, np.float64).T):
        own = column - column.mean()
        if (largest := np.abs(own).max()) <= 1e-9 * np.abs(column).max():
            continue
        own = own / largest
        line = (own @ apart / n) ** 2 / ((own**2).mean() * total)
        edges = np.unique(np.sort(own)[(shares * (n - 1)).astype(int)])
        place = np.searchsorted(edges, own, side="right")
        size = np.bincount(place)
        between = np.stack([np.bincount(place, one) ** 2 / np.maximum(size, 1) for one in apart.T]).sum(1) / n
        inside = np.maximum(1 - between / total, 0)
        found[k] = max(line.max(), (1 - inside * (n - 1) / max(n - int((size > 0).sum()), 1)).max())
    return np.clip(found, 0, 1)


def nearest(x: Array, others: Array, own: Array, theirs: Array) -> Array:
    """Distance of each row to the nearest of ``others`` with another label, per root of the number of columns."""
    square = (x**2).sum(1)[:, None] + (others**2).sum(1) - 2 * x @ others.T
    square = np.where(own[:, None] == theirs, np.inf, square)
    return np.asarray(np.sqrt(np.maximum(square.min(1), 0) / max(x.shape[1], 1)))


def some(count: int, seed: int = 0, most: int = _MOST_POINTS) -> Array:
    """At most ``most`` of ``count`` places, in order."""
    return np.sort(np.random.default_rng(seed).permutation(count)[:most])
