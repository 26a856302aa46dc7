"""Ratios of visited states and actions instead of products of ratios: a second opinion without propensities.

``z_t(s, a)`` is the probability that the policy visits ``(s, a)`` in step t, divided by that of the logs. Unlike
products of ratios, these ratios do not grow with every step and need no propensities. They need Markov observations,
and features that can express the ratios. Logs cannot show whether these conditions hold, so the estimate never decides
(such estimators trail in DOPE, Fu et al. 2021, arXiv:2103.16596).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from birl.ope.linear_models import StepFeatures
from birl.types import Array

_RIDGE: Final = 1e-4


def marginal_ratios(steps: StepFeatures, target: Array, part: Array) -> Array:
    """Return ``z_t(s_t, a_t)`` of logged steps, linear in features and cross-fitted, ``[N]``.

    Minimax weight learning (Uehara, Huang and Jiang 2020, arXiv:1910.12809) with the same features for weights and for
    test functions, step by step: for each feature f, ``z_t`` satisfies
    ``sum_i z_t f(s_t, a_t) = sum_i z_{t-1} 1[continues] sum_a pi(a|s_t) f(s_t, a)``, with ``z_{-1} = 1``. This is one
    ridge regression for each step and action, forwards in time. For one-hot states, ``z_t`` is the ratio of visit
    frequencies (Xie, Ma and Wang 2019, arXiv:1906.03393).

    Args:
        steps: logged steps.
        target: the policy's probabilities ``[N, A]``.
        part: the part of each step's episode, ``[N]``; the ratios of a step are fitted on the other parts.
    """
    ratios = np.zeros(len(steps.x))
    for name in np.unique(part):
        train, ratio = part != name, np.ones(len(steps.x))
        for t in range(int(steps.step.max()) + 1):
            now = np.flatnonzero(steps.step == t)
            before = np.zeros(len(steps.x))
            before[now] = ratio[now - 1] if t else 1.0  # the previous row is the previous step
            for a in range(target.shape[1]):
                taken = now[steps.action[now] == a]
                weight = _balancing_weights(steps.x, now[train[now]], taken[train[taken]], before * target[:, a])
                ratio[taken] = steps.x[taken] @ weight
        ratios[~train] = ratio[~train]
    return ratios


def _balancing_weights(x: Array, here: Array, taken: Array, mass: Array) -> Array:
    """Return coefficients ``[D]`` whose weights on the rows ``taken`` balance the ``mass`` of all rows ``here``."""
    gram = x[taken].T @ x[taken] + _RIDGE * (len(taken) + 1) * np.eye(x.shape[1])
    return np.asarray(np.linalg.solve(gram, x[here].T @ mass[here]))
