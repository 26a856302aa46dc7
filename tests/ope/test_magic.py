"""MAGIC against plain loops, and its choice between model and weights."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from birl.ope import Trajectories, direct_method, magic, padded, t_quantile, weighted_doubly_robust
from birl.ope.magic import simplex_minimum

GAMMA = 0.9


def episodes(n: int, seed: int, off: float = 0.0) -> Trajectories:
    """A model that is right in the mean but for ``off``, on 1 to 4 steps."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, n)
    reward, mask = padded([rng.normal(1, 1, size) for size in sizes])
    ratio, _ = padded([rng.normal(-0.5, 1, size) for size in sizes])
    value = (1 - GAMMA ** mask[:, ::-1].cumsum(1)[:, ::-1]) / (1 - GAMMA)  # of a mean of 1 in each step that is left
    return Trajectories(reward, mask, GAMMA, ratio, value + off, value + off)


def plain_steps(of: Trajectories) -> list[float]:
    """``g_j`` with sums over episodes, j from -1."""
    assert of.log_ratio is not None and of.q is not None and of.v is not None
    n, horizon = of.mask.shape
    out = []
    for j in range(-1, horizon):
        total = 0.0
        for t in range(j + 2):
            now, before = ([math.exp(of.log_ratio[i, : max(s + 1, 0)].sum()) for i in range(n)] for s in (t, t - 1))
            for i in range(n):
                if t < horizon and of.mask[i, t]:
                    total += GAMMA**t * before[i] / sum(before) * of.v[i, t]
                    if t <= j:
                        total += GAMMA**t * now[i] / sum(now) * (of.reward[i, t] - of.q[i, t])
        out.append(total)
    return out


def test_it_is_the_best_blend_of_its_steps() -> None:
    of = episodes(30, 0, off=0.3)
    g, n, k = np.array(plain_steps(of)), 30, 5
    assert g[-1] == np.float64(g[-1]) and abs(g[-1] - weighted_doubly_robust(of).value) < 1e-12
    assert abs(g[0] - direct_method(of).value) < 1e-12
    each = np.array(
        [
            plain_steps(
                Trajectories(
                    *(x[np.arange(n) != i] for x in (of.reward, of.mask)),
                    GAMMA,
                    *(x[np.arange(n) != i] for x in (of.log_ratio, of.q, of.v) if x is not None),
                )
            )
            for i in range(n)
        ]
    )  # leaving out one episode
    omega = np.cov(each, rowvar=False) * (n - 1) ** 2 / n
    half = t_quantile(0.75, n - 1) * math.sqrt(omega[-1, -1])
    bias = np.array([math.copysign(max(abs(value - g[-1]) - half, 0), g[-1] - value) for value in g])
    square = omega + np.outer(bias, bias)
    rng = np.random.default_rng(0)
    tried = rng.dirichlet(np.full(k, 0.3), 20_000)
    best = tried[((tried @ square) * tried).sum(1).argmin()]
    x = simplex_minimum(square)
    assert x @ square @ x <= best @ square @ best + 1e-12
    np.testing.assert_allclose(magic(of).value, x @ g, rtol=1e-8)


def test_the_nearest_point_of_a_simplex() -> None:
    np.testing.assert_allclose(simplex_minimum(np.diag([1.0, 2.0, 4.0])), np.array([4, 2, 1]) / 7, atol=1e-9)
    np.testing.assert_allclose(simplex_minimum(np.array([[1.0, 2.0], [2.0, 5.0]])), [1, 0], atol=1e-9)
    assert simplex_minimum(np.zeros((3, 3))).sum() == 1
    rng = np.random.default_rng(0)
    for size in (2, 7, 30):
        half = rng.normal(size=(size, 5))
        square = half @ half.T
        x = simplex_minimum(square)
        slope = square @ x
        assert x.min() >= 0 and abs(x.sum() - 1) < 1e-9
        assert slope.min() >= x @ slope - 1e-6 * np.trace(square)  # no direction goes down


def test_it_trusts_a_model_that_agrees_and_leaves_one_that_does_not() -> None:
    right, wrong = episodes(400, 1), episodes(400, 1, off=5.0)
    assert abs(magic(right).value - direct_method(right).value) < 0.1
    assert abs(magic(wrong).value - weighted_doubly_robust(wrong).value) < 0.3
    assert abs(direct_method(wrong).value - weighted_doubly_robust(wrong).value) > 3
    assert magic(right).terms.std() < weighted_doubly_robust(right).terms.std()
    assert right.log_ratio is not None
    same = replace(right, log_ratio=right.log_ratio * 0)
    assert np.isfinite(magic(same).value)
