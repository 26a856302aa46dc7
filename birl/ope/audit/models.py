"""Cross-fitted predictions of logged steps, and measures of dependence.

The models are linear in `birl.ope.linear_models.random_features`, so a fit is a few matrix products. They show what a
step depends on; they are not policies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from birl.ope.estimators import folds
from birl.ope.linear_models import logistic_regression, random_features, ridge_solver, softmax
from birl.types import Array

Fit: TypeAlias = "Callable[[Array, Array, Array], Array]"
"""Function of training features, training targets and test features that returns predictions."""
_MAX_ROWS: Final = 2000


def cross_fit(x: Array, y: Array, groups: Array, fit: Fit, seed: int = 0) -> Array:
    """Return predictions of two models, each for the half of the groups that it was not fitted on.

    Args:
        x: ``[N, D]``.
        y: targets ``[N, K]``.
        groups: the episode or cluster of each row, ``[N]``; at least two different ones.
        fit: `ridge_predictions` or `class_probabilities`.
        seed: random seed of the halves and the random features.
    """
    names, index = np.unique(groups, return_inverse=True)
    half = folds(names, 2, seed)[index]
    predicted = np.zeros((len(x), y.shape[1]))
    for part in (0, 1):
        train, test = np.flatnonzero(half != part), np.flatnonzero(half == part)
        features = random_features(x, train, seed)
        predicted[test] = fit(features[train], y[train], features[test])
    return predicted


def ridge_predictions(x: Array, y: Array, test: Array) -> Array:
    """Fit least squares with a penalty of 1 on ``y`` ``[N, K]``; return predictions ``[n, K]``."""
    penalty = np.append(1e-6, np.ones(x.shape[1] - 1))[None]
    return np.asarray(test @ ridge_solver(x, np.ones((1, len(x))), penalty)(y.T).T)


def class_probabilities(x: Array, y: Array, test: Array) -> Array:
    """Fit a logistic regression on one-hot ``y`` ``[N, A]``; return probabilities ``[n, A]``."""
    return softmax(test @ logistic_regression(x, y))


def one_hot(labels: Array, n_classes: int | None = None) -> Array:
    """Return whole numbers ``[N]`` as one-hot rows ``[N, A]``; by default A is the largest plus one."""
    return np.asarray(labels[:, None] == np.arange(labels.max() + 1 if n_classes is None else n_classes), np.float64)


def auc(score: Array, label: Array) -> float:
    """Return the probability that a row of label 1 has a higher score than one of label 0; ties count half."""
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = (counts.cumsum() - (counts - 1) / 2)[inverse]
    ones = int(label.sum())
    return float((rank[label == 1].sum() - ones * (ones + 1) / 2) / (ones * (len(label) - ones)))


def explained_variance(x: Array, y: Array, bins: int = 32) -> Array:
    """Return the share of the variance of ``y`` that each column of ``x`` ``[N, D]`` alone explains, ``[D]``.

    It is the maximum over a straight line and means within bins, whose share is adjusted for the number of bins, and
    over the columns of several targets ``y`` ``[N, K]``. Constant columns explain 0.
    """
    n = len(x)
    centered = np.asarray(y, np.float64).reshape(n, -1)
    centered = centered - centered.mean(0) if n else centered
    centered = centered / np.maximum(np.abs(centered).max(0, initial=0), 1e-300)
    centered = centered[:, (centered**2).sum(0) > 0]
    explained = np.zeros(x.shape[1])
    if n < 20 or not centered.shape[1]:
        return explained
    total, shares = (centered**2).mean(0), np.linspace(0, 1, min(bins, n // 10) + 1)[1:-1]
    for k, column in enumerate(np.asarray(x, np.float64).T):
        values = column - column.mean()
        if (largest := np.abs(values).max()) <= 1e-9 * np.abs(column).max():
            continue
        values = values / largest
        line = (values @ centered / n) ** 2 / ((values**2).mean() * total)
        edges = np.unique(np.sort(values)[(shares * (n - 1)).astype(int)])
        index = np.searchsorted(edges, values, side="right")
        size = np.bincount(index)
        between = np.stack([np.bincount(index, y) ** 2 / np.maximum(size, 1) for y in centered.T]).sum(1) / n
        within = np.maximum(1 - between / total, 0)
        explained[k] = max(line.max(), (1 - within * (n - 1) / max(n - int((size > 0).sum()), 1)).max())
    return np.clip(explained, 0, 1)


def nearest_distance(x: Array, others: Array, label: Array, other_labels: Array) -> Array:
    """Return each row's distance to the nearest of ``others`` with another label, over the root of the dimension."""
    square = (x**2).sum(1)[:, None] + (others**2).sum(1) - 2 * x @ others.T
    square = np.where(label[:, None] == other_labels, np.inf, square)
    return np.asarray(np.sqrt(np.maximum(square.min(1), 0) / max(x.shape[1], 1)))


def sample_rows(count: int, seed: int = 0, limit: int = _MAX_ROWS) -> Array:
    """Return at most ``limit`` random indices below ``count``, in ascending order."""
    return np.sort(np.random.default_rng(seed).permutation(count)[:limit])
