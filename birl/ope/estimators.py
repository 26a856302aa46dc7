"""Estimators of what a policy earns, as pure functions of logged episodes.

Each returns an `Estimate`: one term for every episode, whose mean is the estimate and from whose spread every interval
is made (`birl.ope.intervals`). Where the estimate is a ratio, a term is the estimate plus the episode's influence on
it, by leaving it out; terms that were normalised before would leave out the spread of the divisor.

``r_t``, ``Q`` and ``V`` are 0 after an episode's end, and ``w_t`` keeps its value (`birl.ope.importance_weights`). With
equal policies every ``w_t`` is 1, and estimators of one kind agree exactly.
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
    """An estimate, as one term for each episode.

    Attributes:
        terms: ``[..., n]``; their mean is the estimate.
    """

    terms: Array

    @property
    def value(self) -> Array:
        """The estimate, ``[...]``."""
        return np.asarray(self.terms.mean(-1))

    def __sub__(self, other: Estimate) -> Estimate:
        """The paired difference, the gain over ``other``: what both have in common does not widen its interval.

        Raises:
            ShapeError: if they are of different episodes.
        """
        if self.terms.shape != other.terms.shape:
            raise ShapeError(f"terms have the shapes {self.terms.shape} and {other.terms.shape}: not the same episodes")
        return Estimate(self.terms - other.terms)


def on_policy(of: Trajectories, v: Array | None = None) -> Estimate:
    """What the logs earned: the mean of ``sum_t gamma^t r_t``.

    With ``v``, the mean of ``Q(s_t, .)`` under the policy that **logged**, and a ``q``, the mean of
    ``sum_t gamma^t (r_t - q_t + v_t)``: the same with less variance, and the baseline of a gain by `doubly_robust`
    that is exactly 0 for equal policies.
    """
    reward = of.reward if v is None else of.reward - given("q", of.q) + np.where(of.mask, v, 0.0)
    return Estimate((of.discount * reward).sum(-1))


def direct_method(of: Trajectories) -> Estimate:
    """The model alone: the mean of ``V(s_0)``, of fitted Q evaluation (Le et al. 2019, arXiv:1903.08738, algorithm 3).

    The spread of its terms is that of first states, not of the model: no interval may be made of them. Fit the model
    anew on resampled episodes (`birl.ope.refit_interval`).
    """
    return Estimate(given("v", of.v)[..., 0])


def importance_sampling(of: Trajectories, lowest: float = 0.0) -> Estimate:
    """The mean of ``w_T G`` with the return ``G = sum_t gamma^t r_t`` (Precup et al. 2000).

    Args:
        of: logged episodes.
        lowest: the least reward that a step can have. If below 0, the least return is taken off before weighting and
            added after it: weights that are missed then make the estimate too low, never too high.

    Raises:
        DataError: if a reward is less.
    """
    least = _least(of, lowest)
    returns = (of.discount * (of.reward - least)).sum(-1)
    return Estimate(of.weight[..., -1] * returns + least * of.discount.sum())


def weighted_importance_sampling(of: Trajectories) -> Estimate:
    """``sum w_T G / sum w_T`` (Precup et al. 2000): biased, between the least and the greatest return."""
    return Estimate(ratio_terms((of.discount * of.reward).sum(-1), of.relative_weight[..., -1], axis=-1))


def per_decision(of: Trajectories, lowest: float = 0.0) -> Estimate:
    """The mean of ``sum_t gamma^t w_t r_t`` (Precup et al. 2000): a reward has the weight of the steps that led to it.

    Args:
        of: logged episodes.
        lowest: see `importance_sampling`.
    """
    least = _least(of, lowest)
    return Estimate((of.discount * (of.weight * (of.reward - least) + least)).sum(-1))


def weighted_per_decision(of: Trajectories) -> Estimate:
    """``sum_t gamma^t (sum_i w_t r_t) / (sum_i w_t)`` (Precup et al. 2000), with **all** n episodes in the divisor.

    Divided by those that have reached step t, survival would stay that of the logs: where each step pays 1, every
    policy would get the value of the logs.
    """
    return Estimate((of.discount * ratio_terms(of.reward, of.relative_weight, axis=-2)).sum(-1))


def doubly_robust(of: Trajectories) -> Estimate:
    """``v_t = V(s_t) + rho_t (r_t + gamma v_{t+1} - Q(s_t, a_t))``, the mean of ``v_0``.

    Jiang and Li 2016, arXiv:1511.03722. Summed up: ``sum_t gamma^t [w_t (r_t - Q) + w_{t-1} V]``. The model must
    not have seen the episode: fit it on other `folds`. With ratios of `switch_ratios`, `shrink_ratios` or
    `clip_ratios` it is biased: see `bias_bound`.
    """
    weight = of.weight
    q, v = given("q", of.q), given("v", of.v)
    return Estimate((of.discount * (weight * (of.reward - q) + weight_before(weight) * v)).sum(-1))


def weighted_doubly_robust(of: Trajectories) -> Estimate:
    """``sum_t gamma^t [u_t (r_t - Q) + u_{t-1} V]`` with ``u = w / sum_i w``.

    Thomas and Brunskill 2016, arXiv:1604.00923, section 5.
    """
    weight = of.relative_weight
    error, v = of.reward - given("q", of.q), given("v", of.v)
    terms = ratio_terms(error, weight, axis=-2) + ratio_terms(v, weight_before(weight), axis=-2)
    return Estimate((of.discount * terms).sum(-1))


def double_reinforcement_learning(of: Trajectories) -> Estimate:
    """``V(s_0) + sum_t gamma^t z_t (r_t + gamma V(s_{t+1}) - Q(s_t, a_t))`` with ratios z of visits.

    Kallus and Uehara 2020, arXiv:1908.08526: doubly robust without products of ratios. It is right if the ratios or the
    model are; both must not have seen the episode. A second opinion, which never decides: see
    `birl.ope.marginalized_ratios`.
    """
    q, v, z = given("q", of.q), given("v", of.v), given("z", of.z)
    after = np.concatenate([v[..., 1:], np.zeros_like(v[..., :1])], -1)
    return Estimate(v[..., 0] + (of.discount * z * (of.reward + of.gamma * after - q)).sum(-1))


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


def bias_bound(of: Trajectories, changed: Array) -> Array:
    """How far other ratios can move `doubly_robust`.

    The mean of ``sum_t gamma^t |w_t - w'_t| |r_t + gamma V(s_{t+1}) - Q(s_t, a_t)|``. The estimate is ``V(s_0)
    + sum_t gamma^t w_t (r_t + gamma V(s_{t+1}) - Q(s_t, a_t))``, so this bounds the difference of the two. It is
    itself an estimate, with the unchanged weights and their spread.

    Args:
        of: logged episodes with the true ratios.
        changed: the clipped, switched or shrunk log-ratios, ``[..., n, T]``.
    """
    v = given("v", of.v)
    after = np.concatenate([v[..., 1:], np.zeros_like(v[..., :1])], -1)
    error = of.reward + of.gamma * after - given("q", of.q)
    other = Trajectories(of.reward, of.mask, of.gamma, changed).weight
    return np.asarray((of.discount * np.abs(of.weight - other) * np.abs(error)).sum(-1).mean(-1))


def folds(groups: Array, count: int, seed: int = 0) -> Array:
    """Which part every episode is in, ``[n]`` from 0 to ``count - 1``; a group, as a user's episodes, is in one alone.

    Args:
        groups: the group of each episode, ``[n]``: ``range(n)``, or clusters.
        count: number of parts, 2 or more: the model for the episodes of a part is fitted on all others.
        seed: of the permutation of groups.

    Raises:
        DataError: if there are fewer groups than parts.
    """
    names, of = np.unique(np.asarray(groups), return_inverse=True)
    if not 2 <= count <= len(names):
        raise DataError(f"count is {count}; it must be 2 to {len(names)}, the number of groups")
    return np.asarray(np.random.default_rng(seed).permutation(len(names))[of] % count)


def ratio_terms(value: Array, weight: Array, axis: int) -> Array:
    """Terms of ``mu = sum w value / sum w``, for weights whose mean is 1; their mean is ``mu``.

    ``mu`` plus what the estimate would lose without the episode, ``w (value - mu) (n - 1) / (n - w)``. To first order
    that is ``w (value - mu)``, which takes heavy episodes for lighter than they are: written as that and the rest.
    """
    n = weight.shape[axis]
    mean = (weight * value).mean(axis, keepdims=True)
    rest = weight * (value - mean) * (weight - 1) / np.maximum(n - weight, 1e-9)
    return np.asarray(weight * value + (1 - weight) * mean + rest - rest.mean(axis, keepdims=True))


def weight_before(weight: Array) -> Array:
    """``w_{t-1}``, 1 at the first step."""
    return np.concatenate([np.ones_like(weight[..., :1]), weight[..., :-1]], -1)


def _least(of: Trajectories, lowest: float) -> float:
    """The reward to take off: that of steps after an episode's end, 0, counts too."""
    seen = of.reward[of.mask].min() if lowest else 0.0
    if lowest and seen < lowest - 1e-6 * max(1.0, abs(lowest)):  # stored rewards are float32
        raise DataError(f"a reward is {seen}, and lowest is {lowest}; it must be the least possible")
    return float(min(lowest, seen, 0.0))


def given(name: str, value: Array | None) -> Array:
    """A column that an estimator needs.

    Raises:
        DataError: if it is not there.
    """
    if value is None:
        raise DataError(f"this estimator needs a model: give {name}")
    return value
