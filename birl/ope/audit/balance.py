"""Check whether actions depend on observations only as the logged propensities say."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from birl.types import Array

CHANCE: Final = 1e-4
"""Probability with which any column of right logs is found."""
_MAX_ACTIONS: Final = 10


def unexplained_correlation(x: Array, taken: Array, propensities: Array, groups: Array) -> Array:
    """Return the correlation of each column with the action that propensities do not explain, ``[D]``.

    ``sum_i (1[a_i = k] - b_i(k)) g(x_i)`` has the mean 0 for any function g of what was known before the action, if b
    is the probability of action k. Otherwise propensities are wrong, as those of another row, or the column was written
    after the action. Functions are the column and its square; k is any of the most frequent actions. The result is the
    largest correlation if its score statistic is improbable (Bonferroni), otherwise 0. The variance is the larger of
    that of groups, whose actions may be dependent, and that of independent actions.

    Args:
        x: observations ``[N, D]``.
        taken: actions ``[N]``, counted from 0.
        propensities: logged probabilities of all actions, ``[N, A]``.
        groups: the cluster or episode of each row, ``[N]``.
    """
    found = np.zeros(x.shape[1])
    order = np.argsort(groups, kind="stable")
    begins = np.flatnonzero(np.append(True, np.diff(groups[order]) != 0))
    actions = np.argsort(-np.bincount(taken, minlength=propensities.shape[1]), kind="stable")[:_MAX_ACTIONS]
    p = propensities[order][:, actions].astype(np.float64)
    residual, variance = (taken[order, None] == actions) - p, p * (1 - p)
    limit = 2 * math.log(2 * len(actions) * 2 * max(x.shape[1], 1) / CHANCE)
    size = np.maximum((residual**2).sum(0), 1e-300)
    for k, column in enumerate(x.T):
        values = column[order].astype(np.float64)
        values -= values.mean()
        for g in (values, values**2 - (values**2).mean()):
            if (largest := np.abs(g).max(initial=0)) <= 1e-9:
                continue
            g /= largest
            terms = residual * g[:, None]
            score = terms.sum(0)
            clustered = (np.add.reduceat(terms, begins) ** 2).sum(0)
            spread = np.maximum(np.maximum(clustered, (variance * g[:, None] ** 2).sum(0)), 1e-300)
            correlation = np.where(score**2 > limit * spread, np.abs(score) / np.sqrt(size * (g**2).sum()), 0.0)
            found[k] = max(found[k], float(correlation.max(initial=0)))
    return np.minimum(found, 1.0)
