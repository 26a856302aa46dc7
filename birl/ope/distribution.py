"""The distribution of a policy's returns, for safety constraints on quantiles and tails.

The weighted distribution is ``F(x) = sum_i w_T 1[G <= x] / sum_i w_T`` of returns ``G = sum_t gamma^t r_t`` (Chandak et
al. 2021, arXiv:2104.12820). It uses the weights of whole episodes, so it needs more effective episodes than a mean.
"""

from __future__ import annotations

import numpy as np

from birl.checks import check
from birl.errors import DataError
from birl.ope.estimators import Estimate, ratio_terms
from birl.ope.importance_weights import Trajectories
from birl.ope.intervals import Interval, t_interval
from birl.types import Array


def return_quantile(episodes: Trajectories, p: float, confidence: float = 0.95) -> tuple[Array, Interval]:
    """Return the quantile of returns that a share ``p`` of the policy's episodes do not exceed, and its interval.

    The ends of the interval are quantiles at the ends of the interval of ``F`` (Woodruff 1952, "Confidence intervals
    for medians and other position measures").

    Args:
        episodes: logged episodes with ratios.
        p: the share, above 0 and below 1.
        confidence: confidence of the interval.
    """
    check("p", p, float, above=0, below=1, error=DataError)
    returns, weight = _returns(episodes)
    value = _quantile(returns, weight, np.asarray(p))
    below = Estimate(ratio_terms((returns <= value[..., None]).astype(np.float64), weight, axis=-1))
    share = t_interval(below, confidence)
    half = (share.upper - share.lower) / 2
    lower, upper = (_quantile(returns, weight, np.clip(p + side * half, 0, 1)) for side in (-1, 1))
    return value, Interval(lower, upper, confidence)


def conditional_value_at_risk(episodes: Trajectories, share: float) -> Estimate:
    """Return the mean return of the worst ``share`` of the policy's episodes (arXiv:2104.08977).

    ``q - sum w (q - G)_+ / (share sum w)`` with the quantile q; with a share of 1 it is `weighted_importance_sampling`.

    Args:
        episodes: logged episodes with ratios.
        share: share of the episodes, above 0 and at most 1.
    """
    check("share", share, float, above=0, high=1, error=DataError)
    returns, weight = _returns(episodes)
    q = _quantile(returns, weight, np.asarray(share))[..., None]
    return Estimate(ratio_terms(q - np.maximum(q - returns, 0) / share, weight, axis=-1))


def _returns(episodes: Trajectories) -> tuple[Array, Array]:
    return (episodes.discount * episodes.reward).sum(-1), episodes.relative_weight[..., -1]


def _quantile(returns: Array, weight: Array, p: Array) -> Array:
    """Return the smallest return at which the weighted distribution reaches ``p``."""
    order = returns.argsort(-1)
    total = np.take_along_axis(weight, order, -1).cumsum(-1)
    reached = total >= p[..., None] * total[..., -1:] * (1 - 1e-12)
    return np.take_along_axis(np.take_along_axis(returns, order, -1), reached.argmax(-1)[..., None], -1)[..., 0]
