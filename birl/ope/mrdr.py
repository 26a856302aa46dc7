"""A model made for doubly robust estimates: the one with which they vary least."""

from __future__ import annotations

from typing import Final

import numpy as np

from birl.ope.linear_models import StepFeatures
from birl.types import Array

_RIDGE: Final = 1e-3


def more_robust_q(of: StepFeatures, target: Array, rho: Array, part: Array) -> tuple[Array, Array]:
    """The linear ``Q`` that minimises the variance of `birl.ope.doubly_robust`, cross-fitted (MRDR).

    Farajtabar, Chow and Ghavamzadeh 2018, arXiv:1802.03493. With the return ``R`` from a step on, weighted by the
    ratios after it, a step adds ``gamma^2t w_{t-1}^2 Var(V + rho (R - Q) | s_t)`` to the variance. The mean of that
    given the state does not depend on Q, so it is least squares of ``rho R`` on ``rho Q_{a_t} - V``. A model of values
    as they are is best where it can be right; this one where it cannot.

    Differs from the paper: least squares of the same minimum, with the state's value as a further regressor that takes
    away noise; and one regression for each step of an episode, since values depend on the steps to go.

    Args:
        of: logged steps.
        target: the policy's probabilities ``[N, A]``.
        rho: ratios of the logged actions, ``[N]``.
        part: the part of each step's episode, ``[N]``; a step is valued by the model of all other parts.

    Returns:
        ``Q(s_t, a_t)`` and ``V(s_t)``, ``[N]``, for `birl.ope.Trajectories`.
    """
    (size, count), width = target.shape, of.x.shape[1]
    taken = (of.action[:, None] == np.arange(count)).astype(np.float64)
    to_go, weight = _weighted_returns(of, rho)
    q, v = np.zeros(size), np.zeros(size)
    for t in range(int(of.step.max()) + 1):
        now = np.flatnonzero(of.step == t)
        share = rho[now, None] * taken[now] - target[now]  # [n, A]: rho Q_a - V is its product with Q
        x = of.x[now]
        design = np.concatenate([(share[:, :, None] * x[:, None]).reshape(len(now), count * width), x], 1)
        for own in np.unique(part[now]):
            new = part[now] == own
            seen = weight[now] ** 2 * ~new
            gram = design.T @ (seen[:, None] * design)
            ridge = _RIDGE * max(np.trace(gram) / len(gram), np.finfo(np.float64).tiny)
            pull = design.T @ (seen * rho[now] * to_go[now])
            beta = np.linalg.solve(gram + ridge * np.eye(len(gram)), pull)[: count * width].reshape(count, width)
            values = x[new] @ beta.T
            q[now[new]], v[now[new]] = (taken[now[new]] * values).sum(-1), (target[now[new]] * values).sum(-1)
    return q, v


def _weighted_returns(of: StepFeatures, rho: Array) -> tuple[Array, Array]:
    """``R_t = r_t + gamma rho_{t+1} R_{t+1}`` and ``w_{t-1}`` of every step, ``[N]``."""
    to_go, before = np.array(of.reward, np.float64), np.ones(len(rho))
    for t in range(int(of.step.max()), 0, -1):
        rows = np.flatnonzero(of.step == t)
        to_go[rows - 1] += of.gamma * rho[rows] * to_go[rows]
    for t in range(1, int(of.step.max()) + 1):
        rows = np.flatnonzero(of.step == t)
        before[rows] = before[rows - 1] * rho[rows - 1]
    return to_go, before
