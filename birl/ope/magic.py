"""MAGIC: how many steps to weigh before the model takes over, chosen by the data."""

from __future__ import annotations

import numpy as np

from birl.ope.estimators import Estimate, given, ratio_terms, weight_before
from birl.ope.importance_weights import Trajectories
from birl.ope.intervals import t_interval
from birl.types import Array


def magic(of: Trajectories) -> Estimate:
    """The blend of j-step estimates with the least estimated mean squared error.

    Thomas and Brunskill 2016, arXiv:1604.00923, sections 7 and 8: ``g_j`` is weighted doubly robust for the steps up to
    j and the model's value from then on, from j = -1 (the model alone) to the last (`weighted_doubly_robust`). Weights
    ``x`` on the simplex minimise ``x' (Omega + b b') x`` with the covariance ``Omega`` of the ``g_j`` and, for their
    biases ``b``, their distances from the 50 % interval of the last one.

    An interval of its terms is that of a blend which may be biased.

    Differs from the paper: the interval is Student's t, not a percentile bootstrap; ``Omega`` is of terms that leave
    out an episode.
    """
    steps = _partial(of)  # [..., n, J]
    n, value = steps.shape[-2], steps.mean(-2)
    apart = steps - value[..., None, :]
    omega = np.swapaxes(apart, -1, -2) @ apart / (n * (n - 1))
    last = t_interval(Estimate(steps[..., -1]), 0.5)
    bias = np.maximum(last.lower[..., None] - value, 0) - np.maximum(value - last.upper[..., None], 0)
    error = omega + bias[..., :, None] * bias[..., None, :]
    blend = np.empty(value.shape)
    for index in np.ndindex(value.shape[:-1]):
        blend[index] = simplex_minimum(error[index])
    return Estimate((steps * blend[..., None, :]).sum(-1))


def _partial(of: Trajectories) -> Array:
    """Terms of ``g_j``, j = -1 to T - 1, ``[..., n, T + 1]``."""
    weight, v = of.relative_weight, given("v", of.v)
    values = of.discount * ratio_terms(v, weight_before(weight), axis=-2)
    errors = of.discount * ratio_terms(of.reward - given("q", of.q), weight, axis=-2)
    none = np.zeros_like(values[..., :1])
    values, errors = values.cumsum(-1), errors.cumsum(-1)
    return np.concatenate([values, values[..., -1:]], -1) + np.concatenate([none, errors], -1)


def simplex_minimum(square: Array) -> Array:
    """The x >= 0 with sum 1 that minimises ``x' square x``, of a positive semi-definite matrix ``[J, J]``.

    Wolfe's method of the nearest point (1976, Mathematical Programming 11): points join one by one, and those with
    negative shares leave.
    """
    size = len(square)
    scale = max(float(np.trace(square)), np.finfo(np.float64).tiny)
    square = square / scale + 1e-12 * np.eye(size)
    x = np.zeros(size)
    x[square.diagonal().argmin()] = 1.0
    for _ in range(20 * size):
        slope = square @ x
        best = int(slope.argmin())
        if slope[best] >= x @ slope - 1e-12 or x[best] > 0:
            break
        active = np.append(np.flatnonzero(x), best)
        while True:
            y = np.linalg.solve(square[np.ix_(active, active)], np.ones(len(active)))
            y /= y.sum()
            if (y > 0).all():
                break
            now, low = x[active], y <= 0
            reach = float((now[low] / (now[low] - y[low])).min())
            moved = now + reach * (y - now)
            x[:] = 0
            x[active] = np.where(moved > 1e-14, moved, 0)
            active = active[moved > 1e-14]
        x[:] = 0
        x[active] = y
    return x
