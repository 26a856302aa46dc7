"""MAGIC: the data determine how many steps are weighted before the model takes over."""

from __future__ import annotations

import numpy as np

from birl.ope.estimators import Estimate, ratio_terms, require_column, weight_before
from birl.ope.importance_weights import Trajectories
from birl.ope.intervals import t_interval
from birl.types import Array


def magic(episodes: Trajectories) -> Estimate:
    """Blend j-step estimates so that the estimated mean squared error is minimal.

    Thomas and Brunskill 2016, arXiv:1604.00923, sections 7 and 8: ``g_j`` is weighted doubly robust for the steps up to
    j and uses the model's value afterwards, from j = -1 (the model alone) to the last (`weighted_doubly_robust`).
    Weights ``x`` on the simplex minimise ``x' (Omega + b b') x``. ``Omega`` is the covariance of the ``g_j``; their
    biases ``b`` are estimated by the distances from the 50 % interval of the last one.

    The blend may be biased, and the interval of its terms ignores that.

    Differs from the paper: the interval is Student's t, not a percentile bootstrap; ``Omega`` uses leave-one-out terms.
    """
    steps = _partial(episodes)  # [..., n, J]
    n, value = steps.shape[-2], steps.mean(-2)
    centered = steps - value[..., None, :]
    omega = np.swapaxes(centered, -1, -2) @ centered / (n * (n - 1))
    last = t_interval(Estimate(steps[..., -1]), 0.5)
    bias = np.maximum(last.lower[..., None] - value, 0) - np.maximum(value - last.upper[..., None], 0)
    error = omega + bias[..., :, None] * bias[..., None, :]
    blend = np.empty(value.shape)
    for index in np.ndindex(value.shape[:-1]):
        blend[index] = simplex_minimum(error[index])
    return Estimate((steps * blend[..., None, :]).sum(-1))


def _partial(episodes: Trajectories) -> Array:
    """Return terms of ``g_j``, j = -1 to T - 1, ``[..., n, T + 1]``."""
    weight, v = episodes.relative_weight, require_column("v", episodes.v)
    values = episodes.discount * ratio_terms(v, weight_before(weight), axis=-2)
    errors = episodes.discount * ratio_terms(episodes.reward - require_column("q", episodes.q), weight, axis=-2)
    none = np.zeros_like(values[..., :1])
    values, errors = values.cumsum(-1), errors.cumsum(-1)
    return np.concatenate([values, values[..., -1:]], -1) + np.concatenate([none, errors], -1)


def simplex_minimum(square: Array) -> Array:
    """Return the x >= 0 with sum 1 that minimises ``x' square x``, for a positive semi-definite matrix ``[J, J]``.

    Wolfe's minimum-norm-point algorithm (1976, Mathematical Programming 11): points are added one by one, and those
    with negative shares are removed.
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
