"""Estimators of the value of a policy, as pure functions of logged episodes.

Each returns an `Estimate` with one term for every episode: the estimate is the mean of the terms, and intervals are
computed from their spread (`birl.ope.intervals`). The term of a ratio estimate is the estimate plus the leave-one-out
influence of the episode; terms normalised in advance would ignore the variance of the divisor.

After the end of an episode ``r_t``, ``Q`` and ``V`` are 0, and ``w_t`` keeps its value (`birl.ope.importance_weights`).
If the policy is the logging policy, every ``w_t`` is 1 and estimators of one kind agree exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from birl.errors import DataError, ShapeError
from birl.ope.importance_weights import Trajectories
from birl.types import Array


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimate with one term for each episode.

    Attributes:
        terms: ``[..., n]``; their mean is the estimate.
    """

    terms: Array

    @property
    def value(self) -> Array:
        """The estimate, ``[...]``."""
        return np.asarray(self.terms.mean(-1))

    def __sub__(self, other: Estimate) -> Estimate:
        """Return the paired difference, the gain over ``other``; common noise does not widen its interval.

        Raises:
            ShapeError: if the numbers of episodes differ.
        """
        if self.terms.shape != other.terms.shape:
            raise ShapeError(
                f"terms have the shapes {self.terms.shape} and {other.terms.shape}; both must be of the same episodes"
            )
        return Estimate(self.terms - other.terms)


def on_policy(episodes: Trajectories, v: Array | None = None) -> Estimate:
    """Return what the logs earned: the mean of ``sum_t gamma^t r_t``.

    If ``v`` is given, the mean of ``Q(s_t, .)`` under the **logging** policy, the result is the mean of
    ``sum_t gamma^t (r_t - q_t + v_t)``, which has less variance. With this baseline, the gain by `doubly_robust` is
    exactly 0 for the logging policy.
    """
    reward = episodes.reward
    if v is not None:
        reward = reward - require_column("q", episodes.q) + np.where(episodes.mask, v, 0.0)
    return Estimate((episodes.discount * reward).sum(-1))


def direct_method(episodes: Trajectories) -> Estimate:
    """Return the mean of ``V(s_0)`` by fitted Q evaluation (Le et al. 2019, arXiv:1903.08738, algorithm 3).

    Its terms vary with the first states, but not with the error of the model, so they give no valid interval. Fit the
    model to resampled episodes instead (`birl.ope.bootstrap_interval`).
    """
    return Estimate(require_column("v", episodes.v)[..., 0])


def importance_sampling(episodes: Trajectories, lowest: float = 0.0) -> Estimate:
    """Return the mean of ``w_T G`` with the return ``G = sum_t gamma^t r_t`` (Precup et al. 2000).

    Args:
        episodes: logged episodes.
        lowest: the smallest possible reward. If it is below 0, the smallest return is subtracted before weighting and
            added afterwards, so that missing weight makes the estimate too low, never too high.

    Raises:
        DataError: if a reward is less than ``lowest``.
    """
    least = _least(episodes, lowest)
    returns = (episodes.discount * (episodes.reward - least)).sum(-1)
    return Estimate(episodes.weight[..., -1] * returns + least * episodes.discount.sum())


def weighted_importance_sampling(episodes: Trajectories) -> Estimate:
    """Return ``sum w_T G / sum w_T`` (Precup et al. 2000).

    It is biased, but always between the smallest and the largest return.
    """
    return Estimate(
        ratio_terms((episodes.discount * episodes.reward).sum(-1), episodes.relative_weight[..., -1], axis=-1)
    )


def per_decision(episodes: Trajectories, lowest: float = 0.0) -> Estimate:
    """Return the mean of ``sum_t gamma^t w_t r_t`` (Precup et al. 2000).

    Each reward is weighted by the ratios of the steps that led to it.

    Args:
        episodes: logged episodes.
        lowest: see `importance_sampling`.
    """
    least = _least(episodes, lowest)
    return Estimate((episodes.discount * (episodes.weight * (episodes.reward - least) + least)).sum(-1))


def weighted_per_decision(episodes: Trajectories) -> Estimate:
    """Return ``sum_t gamma^t (sum_i w_t r_t) / (sum_i w_t)`` (Precup et al. 2000).

    The divisor includes **all** n episodes. If it included only the episodes that reached step t, the estimate would
    keep the episode lengths of the logs: with a reward of 1 in each step, every policy would have the value of the
    logs.
    """
    return Estimate((episodes.discount * ratio_terms(episodes.reward, episodes.relative_weight, axis=-2)).sum(-1))


def doubly_robust(episodes: Trajectories) -> Estimate:
    """Return the mean of ``v_0``, with ``v_t = V(s_t) + rho_t (r_t + gamma v_{t+1} - Q(s_t, a_t))``.

    Jiang and Li 2016, arXiv:1511.03722; equal to ``sum_t gamma^t [w_t (r_t - Q) + w_{t-1} V]``. No episode may be
    valued by a model that was fitted on it: use `folds`. With ratios from `switch_ratios`, `shrink_ratios` or
    `clip_ratios`, the estimate is biased: see `bias_bound`.
    """
    weight = episodes.weight
    q, v = require_column("q", episodes.q), require_column("v", episodes.v)
    return Estimate((episodes.discount * (weight * (episodes.reward - q) + weight_before(weight) * v)).sum(-1))


def weighted_doubly_robust(episodes: Trajectories) -> Estimate:
    """Return ``sum_t gamma^t [u_t (r_t - Q) + u_{t-1} V]`` with ``u = w / sum_i w``.

    Thomas and Brunskill 2016, arXiv:1604.00923, section 5.
    """
    weight = episodes.relative_weight
    error, v = episodes.reward - require_column("q", episodes.q), require_column("v", episodes.v)
    terms = ratio_terms(error, weight, axis=-2) + ratio_terms(v, weight_before(weight), axis=-2)
    return Estimate((episodes.discount * terms).sum(-1))


def double_reinforcement_learning(episodes: Trajectories) -> Estimate:
    """Return ``V(s_0) + sum_t gamma^t z_t (r_t + gamma V(s_{t+1}) - Q(s_t, a_t))`` with ratios z of visits.

    Kallus and Uehara 2020, arXiv:1908.08526: doubly robust without products of ratios. It is consistent if the ratios
    or the model are; fit both on other episodes. It never decides, but gives a second opinion: see
    `birl.ope.marginalized_ratios`.
    """
    v, z = require_column("v", episodes.v), require_column("z", episodes.z)
    return Estimate(v[..., 0] + (episodes.discount * z * _bellman_error(episodes)).sum(-1))


ESTIMATORS: dict[str, Callable[[Trajectories], Estimate]] = {
    "on_policy": on_policy,
    "direct_method": direct_method,
    "importance_sampling": importance_sampling,
    "weighted_importance_sampling": weighted_importance_sampling,
    "per_decision": per_decision,
    "weighted_per_decision": weighted_per_decision,
    "doubly_robust": doubly_robust,
    "weighted_doubly_robust": weighted_doubly_robust,
    "double_reinforcement_learning": double_reinforcement_learning,
}


def bias_bound(episodes: Trajectories, changed: Array) -> Array:
    """Return an upper bound on the bias of `doubly_robust` with changed ratios ``w'``.

    The bound is the mean of ``sum_t gamma^t |w_t - w'_t| |r_t + gamma V(s_{t+1}) - Q(s_t, a_t)|``, because the estimate
    is the mean of ``V(s_0) + sum_t gamma^t w_t (r_t + gamma V(s_{t+1}) - Q(s_t, a_t))``. The bound is itself an
    estimate and has the spread of the unchanged weights.

    Args:
        episodes: logged episodes with the true ratios.
        changed: the clipped, switched or shrunk log-ratios, ``[..., n, T]``.
    """
    error = _bellman_error(episodes)
    other = Trajectories(episodes.reward, episodes.mask, episodes.gamma, changed).weight
    return np.asarray((episodes.discount * np.abs(episodes.weight - other) * np.abs(error)).sum(-1).mean(-1))


def _bellman_error(episodes: Trajectories) -> Array:
    """Return ``r_t + gamma V(s_{t+1}) - Q(s_t, a_t)``, ``[..., n, T]``."""
    q, v = require_column("q", episodes.q), require_column("v", episodes.v)
    return episodes.reward + episodes.gamma * np.concatenate([v[..., 1:], np.zeros_like(v[..., :1])], -1) - q


def folds(groups: Array, count: int, seed: int = 0) -> Array:
    """Return the part of every episode, ``[n]`` from 0 to ``count - 1``; episodes of a group are in the same part.

    Args:
        groups: the group of each episode, ``[n]``: ``range(n)``, or clusters.
        count: number of parts, 2 or more; the model for the episodes of a part is fitted on all other parts.
        seed: random seed of the permutation of groups.

    Raises:
        DataError: if there are fewer groups than parts.
    """
    names, index = np.unique(np.asarray(groups), return_inverse=True)
    if not 2 <= count <= len(names):
        raise DataError(f"count is {count}; it must be 2 to {len(names)}, the number of groups")
    return np.asarray(np.random.default_rng(seed).permutation(len(names))[index] % count)


def cluster_sums(terms: Array, clusters: Array) -> Array:
    """Return the sum of the terms of each cluster, ``[..., C]``, in the order of the clusters' names.

    Args:
        terms: terms of episodes, ``[..., n]``.
        clusters: the cluster of each episode, ``[n]``.

    Raises:
        ShapeError: if there is not one cluster for each episode.
    """
    names, index = np.unique(np.asarray(clusters), return_inverse=True)
    if index.shape != terms.shape[-1:]:
        raise ShapeError(
            f"clusters has the shape {np.shape(clusters)}; it must be [{terms.shape[-1]}], one for each episode"
        )
    order = np.argsort(index, kind="stable")  # sums of consecutive terms: no matrix of episodes by clusters
    starts = np.searchsorted(index[order], np.arange(len(names)))
    return np.asarray(np.add.reduceat(terms[..., order], starts, axis=-1))


def ratio_terms(value: Array, weight: Array, axis: int) -> Array:
    """Return terms of ``mu = sum w value / sum w`` for weights with mean 1; the mean of the terms is ``mu``.

    A term is ``mu`` plus the leave-one-out influence ``w (value - mu) (n - 1) / (n - w)``. The code adds its first
    order ``w (value - mu)``, which underestimates the influence of large weights, and the rest.
    """
    n = weight.shape[axis]
    mean = (weight * value).mean(axis, keepdims=True)
    rest = weight * (value - mean) * (weight - 1) / np.maximum(n - weight, 1e-9)
    return np.asarray(weight * value + (1 - weight) * mean + rest - rest.mean(axis, keepdims=True))


def weight_before(weight: Array) -> Array:
    """Return ``w_{t-1}``, 1 at the first step."""
    return np.concatenate([np.ones_like(weight[..., :1]), weight[..., :-1]], -1)


def _least(episodes: Trajectories, lowest: float) -> float:
    """Return the smallest possible reward, at most 0: rewards after the end of an episode are 0."""
    seen = episodes.reward[episodes.mask].min() if lowest else 0.0
    if lowest and seen < lowest - 1e-6 * max(1.0, abs(lowest)):  # stored rewards are float32
        raise DataError(f"a reward is {seen}, but lowest is {lowest}; it must be the smallest possible reward")
    return float(min(lowest, seen, 0.0))


def require_column(name: str, value: Array | None) -> Array:
    """Return a column that an estimator needs.

    Raises:
        DataError: if it is missing.
    """
    if value is None:
        raise DataError(f"the episodes have no {name}, which this estimator needs: give it to Trajectories")
    return value
