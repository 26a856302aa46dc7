"""Ratios of what states and actions are visited, instead of products of ratios: a second opinion without propensities.

``z_t(s, a)`` is how much more probable it is that the policy is at ``(s, a)`` in its step t than that the logs are.
Products of ratios grow with every step; these do not, and nothing need be known of how actions were chosen. They need
observations that are the whole state, and features that express the ratios. No figure of the logs shows whether they
do, so this never decides (DOPE, Fu et al. 2021, arXiv:2103.16596, where such estimators trail).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from birl.ope.linear_models import StepFeatures
from birl.types import Array

_RIDGE: Final = 1e-4


def marginal_ratios(of: StepFeatures, target: Array, part: Array) -> Array:
    """``z_t(s_t, a_t)`` of logged steps, linear in features and cross-fitted, ``[N]``.

    Minimax weight learning (Uehara, Huang and Jiang 2020, arXiv:1910.12809) with the same features for weights and for
    the functions that test them, step by step: the ``z_t`` for which, for each feature f,
    ``sum_i z_t f(s_t, a_t) = sum_i z_{t-1} 1[goes on] sum_a pi(a|s_t) f(s_t, a)`` and ``z_{-1} = 1``. One ridge
    regression for each step and action, forwards. On one-hot states that is the ratio of visits (Xie, Ma and Wang 2019,
    arXiv:1906.03393).

    Args:
        of: logged steps.
        target: the policy's probabilities ``[N, A]``.
        part: the part of each step's episode, ``[N]``; ratios of a step are found without its part.
    """
    found = np.zeros(len(of.x))
    for own in np.unique(part):
        seen, ratio = part != own, np.ones(len(of.x))
        for t in range(int(of.step.max()) + 1):
            now = np.flatnonzero(of.step == t)
            before = np.zeros(len(of.x))
            before[now] = ratio[now - 1] if t else 1.0  # the row before a step is the step before it
            for a in range(target.shape[1]):
                taken = now[of.action[now] == a]
                weight = _weights(of.x, now[seen[now]], taken[seen[taken]], before * target[:, a])
                ratio[taken] = of.x[taken] @ weight
        found[~seen] = ratio[~seen]
    return found


def _weights(x: Array, here: Array, taken: Array, mass: Array) -> Array:
    """Coefficients ``[D]`` whose weights on the rows ``taken`` balance the ``mass`` of all rows ``here``."""
    gram = x[taken].T @ x[taken] + _RIDGE * (len(taken) + 1) * np.eye(x.shape[1])
    return np.asarray(np.linalg.solve(gram, x[here].T @ mass[here]))
