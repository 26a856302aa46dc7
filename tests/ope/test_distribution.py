"""Quantiles and the worst share of returns: by hand, and on worlds whose distribution is known."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from birl.errors import DataError
from birl.ope import Trajectories, conditional_value_at_risk, return_quantile, t_interval, weighted_importance_sampling
from tests.ope import planted


def test_by_hand() -> None:
    """Returns 3, 1, 2 with weights 1, 2, 1: a half of the weight is at 1."""
    of = Trajectories(np.array([[3.0], [1.0], [2.0]]), np.ones((3, 1), bool), 1.0, np.log([[1.0], [2.0], [1.0]]))
    assert [float(return_quantile(of, p)[0]) for p in (0.4, 0.5, 0.6, 0.75, 0.8)] == [1, 1, 2, 2, 3]
    assert conditional_value_at_risk(of, 0.5).value == pytest.approx(1)
    assert conditional_value_at_risk(of, 0.75).value == pytest.approx((2 * 1 + 2) / 3)
    np.testing.assert_allclose(conditional_value_at_risk(of, 1).terms, weighted_importance_sampling(of).terms)
    with pytest.raises(DataError, match="share is 0; it must be a float > 0 and <= 1"):
        conditional_value_at_risk(of, 0)
    with pytest.raises(DataError, match="p is 1; it must be a float > 0 and < 1"):
        return_quantile(of, 1)


def test_they_cover() -> None:
    """Normal returns, with the mean 0 when logged and 0.5 under the policy: their ratio is known."""
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(2000, 300, 1))
    of = Trajectories(reward, reward < np.inf, 1.0, 0.5 * reward - 0.125)
    normal = NormalDist(0.5)
    for p in (0.2, 0.5):
        _, interval = return_quantile(of, p)
        assert planted.covers(interval.holds(normal.inv_cdf(p))), p
    worst = 0.5 - NormalDist().pdf(normal.inv_cdf(0.2) - 0.5) / 0.2
    interval = t_interval(conditional_value_at_risk(of, 0.2))
    assert planted.covers(interval.holds(worst), low=0.92)
    assert not planted.covers(interval.holds(worst + 0.2), low=0.92)
