"""The model that minimises the variance of doubly robust estimates (MRDR)."""

from __future__ import annotations

from typing import Final

import numpy as np

from birl.ope.linear_models import StepFeatures
from birl.types import Array

_RIDGE: Final = 1e-3


def more_robust_q(steps: StepFeatures, target: Array, rho: Array, part: Array) -> tuple[Array, Array]:
    """Return the linear ``Q`` that minimises the variance of `birl.ope.doubly_robust`, cross-fitted (MRDR).

    Farajtabar, Chow and Ghavamzadeh 2018, arXiv:1802.03493. Let ``R`` be the return from a step, weighted by the later
    ratios. A step adds ``gamma^2t w_{t-1}^2 Var(V + rho (R - Q) | s_t)`` to the variance. The conditional mean given
    the state does not depend on Q, so the minimum is the least-squares fit of ``rho R`` on ``rho Q_{a_t} - V``. Fitted
    Q evaluation is better if the model class contains the values; this model is better if it does not.

    Differs from the paper: least squares with the same minimum and the state's value as a further regressor, which
    reduces noise; and one regression for each step of an episode, because values depend on the number of remaining
    steps.

    Args:
        steps: logged steps.
        target: the policy's probabilities ``[N, A]``.
        rho: ratios of the logged actions, ``[N]``.
        part: the part of each step's episode, ``[N]``; the model of all other parts values a step.

    Returns:
        ``Q(s_t, a_t)`` and ``V(s_t)``, ``[N]``, for `birl.ope.Trajectories`.
    """
    (size, count), width = target.shape, steps.x.shape[1]
    taken = (steps.action[:, None] == np.arange(count)).astype(np.float64)
    to_go, weight = _weighted_returns(steps, rho)
    q, v = np.zeros(size), np.zeros(size)
    for t in range(int(steps.step.max()) + 1):
        now = np.flatnonzero(steps.step == t)
        share = rho[now, None] * taken[now] - target[now]  # [n, A]; its product with Q is rho Q_a - V
        x = steps.x[now]
        design = np.concatenate([(share[:, :, None] * x[:, None]).reshape(len(now), count * width), x], 1)
        for name in np.unique(part[now]):
            test = part[now] == name
            train = weight[now] ** 2 * ~test
            gram = design.T @ (train[:, None] * design)
            ridge = _RIDGE * max(np.trace(gram) / len(gram), np.finfo(np.float64).tiny)
            moment = design.T @ (train * rho[now] * to_go[now])
            beta = np.linalg.solve(gram + ridge * np.eye(len(gram)), moment)[: count * width].reshape(count, width)
            values, rows = x[test] @ beta.T, now[test]
            q[rows], v[rows] = (taken[rows] * values).sum(-1), (target[rows] * values).sum(-1)
    return q, v


def _weighted_returns(steps: StepFeatures, rho: Array) -> tuple[Array, Array]:
    """Return ``R_t = r_t + gamma rho_{t+1} R_{t+1}`` and ``w_{t-1}`` of every step, ``[N]``."""
    to_go, before = np.array(steps.reward, np.float64), np.ones(len(rho))
    for t in range(int(steps.step.max()), 0, -1):
        rows = np.flatnonzero(steps.step == t)
        to_go[rows - 1] += steps.gamma * rho[rows] * to_go[rows]
    for t in range(1, int(steps.step.max()) + 1):
        rows = np.flatnonzero(steps.step == t)
        before[rows] = before[rows - 1] * rho[rows - 1]
    return to_go, before
