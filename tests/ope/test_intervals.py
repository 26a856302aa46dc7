"""Intervals: their quantiles and equations, what they must not do, and mistakes that other libraries make.

That they hold the truth as often as they say is in test_planted_truth.py.
"""

from __future__ import annotations

import math
from statistics import NormalDist, stdev

import numpy as np
import pytest

from birl.errors import DataError, EmptyDataError, ShapeError
from birl.ope import (
    Estimate,
    betting_bound,
    bootstrap_interval,
    hcope_bound,
    hoeffding_interval,
    t_interval,
    t_quantile,
)

P = (1e-6, 0.01, 0.3, 0.6, 0.9, 0.975, 0.995, 0.99999)


def test_quantiles_in_closed_form() -> None:
    for p in P:
        np.testing.assert_allclose(t_quantile(p, 1), math.tan(math.pi * (p - 0.5)), rtol=1e-10)
        np.testing.assert_allclose(t_quantile(p, 2), (2 * p - 1) / math.sqrt(2 * p * (1 - p)), rtol=1e-10)
        a = 4 * p * (1 - p)
        q = math.cos(math.acos(math.sqrt(a)) / 3) / math.sqrt(a)
        np.testing.assert_allclose(t_quantile(p, 4), math.copysign(2 * math.sqrt(q - 1), p - 0.5), rtol=1e-10)
        np.testing.assert_allclose(t_quantile(p, 1e9), NormalDist().inv_cdf(p), rtol=1e-7)
        assert t_quantile(1 - 2**-6, 7.5) == -t_quantile(2**-6, 7.5)
    assert t_quantile(0.5, 3) == 0


@pytest.mark.parametrize("freedom", [3, 5, 11.5, 29, 199, 1999])
def test_the_density_up_to_a_quantile_has_its_probability(freedom: float) -> None:
    node, weight = np.polynomial.legendre.leggauss(200)
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    for p in (0.6, 0.9, 0.975, 0.9995):
        end = t_quantile(p, freedom)
        x = end / 2 * (node + 1)
        inside = (weight * constant * (1 + x * x / freedom) ** (-(freedom + 1) / 2)).sum() * end / 2
        assert inside == pytest.approx(p - 0.5, abs=1e-12)


def test_a_printed_table_of_quantiles() -> None:
    table = {5: 2.5706, 10: 2.2281, 30: 2.0423, 120: 1.9799}
    assert {freedom: round(t_quantile(0.975, freedom), 4) for freedom in table} == table
    with pytest.raises(DataError, match="p is 1.0; it must be a float > 0 and < 1"):
        t_quantile(1.0, 3)


def test_the_t_interval_is_two_sided() -> None:
    """A one-sided quantile for two sides would cover 90 % where 95 % are said."""
    terms = np.random.default_rng(0).normal(size=25)
    found = t_interval(Estimate(terms))
    half = 2.063898561628021 * stdev(terms.tolist()) / 5  # 97.5 % of t with 24 degrees of freedom
    np.testing.assert_allclose([found.lower, found.upper], [terms.mean() - half, terms.mean() + half], rtol=1e-9)
    assert found.holds(terms.mean()) and not found.holds(found.upper + 1e-9)
    many = t_interval(Estimate(np.stack([terms, terms + 1])))
    np.testing.assert_allclose(many.lower, [found.lower, found.lower + 1])


def test_clusters() -> None:
    rng = np.random.default_rng(0)
    user = rng.permutation(np.repeat(np.arange(12), 5))
    terms = rng.normal(size=12)[user] + 0.1 * rng.normal(size=60)
    found = t_interval(Estimate(terms), clusters=user)
    means = np.array([terms[user == name].mean() for name in range(12)])
    half = t_quantile(0.975, 11) * means.std(ddof=1) / math.sqrt(12)  # equal clusters: t over their means
    np.testing.assert_allclose(found.upper - found.lower, 2 * half)
    naive = t_interval(Estimate(terms))
    assert found.upper - found.lower > 1.8 * (naive.upper - naive.lower)
    each = t_interval(Estimate(terms), clusters=np.arange(60))
    np.testing.assert_allclose([each.lower, each.upper], [naive.lower, naive.upper])
    with pytest.raises(EmptyDataError, match="there is 1 cluster; an interval needs 2"):
        t_interval(Estimate(terms), clusters=user * 0)
    with pytest.raises(ShapeError, match=r"clusters has the shape \(3,\); it must be \[60\], one for each episode"):
        t_interval(Estimate(terms), clusters=user[:3])


def test_hoeffding_is_as_wide_as_its_range_and_episodes_say() -> None:
    """Not n times as wide, with a range that is known, and with its lower end below the upper one for costs."""
    terms = Estimate(np.tile([-1.0, 1.0], 5000))
    found = hoeffding_interval(terms, -1, 1)
    assert round(float(found.upper), 4) == 0.0272 and found.lower == -found.upper
    costs = hoeffding_interval(Estimate(np.full(100, -3.0)), -4, 0)
    assert costs.lower < -3 < costs.upper
    with pytest.raises(DataError, match="terms are from -1.0 to 1.0, but low is 0 and high 1"):
        hoeffding_interval(terms, 0, 1)


def test_betting_is_its_equation() -> None:
    """The bound is where the mean wealth of the bets is 1 / delta; below it, it is more."""
    terms = np.random.default_rng(0).exponential(size=60)
    bound = float(betting_bound(Estimate(terms), 0.9))
    shares = (0.003, 0.006, 0.012, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)

    def wealth(m: float) -> float:
        return sum(math.prod(1 + c / m * (y - m) for y in terms.tolist()) for c in shares) / len(shares)

    assert wealth(bound) == pytest.approx(10, rel=1e-6) and wealth(0.9 * bound) > 10 > wealth(1.1 * bound)
    assert bound < terms.mean() and float(betting_bound(Estimate(terms[::-1]), 0.9)) == pytest.approx(bound)
    shifted = betting_bound(Estimate(np.stack([terms, terms]) - 5), 0.9, lowest=-5)
    np.testing.assert_allclose(shifted, bound - 5)
    assert betting_bound(Estimate(np.zeros(9))) == 0
    with pytest.raises(DataError, match=r"a term is -5.0, but lowest is 0.0; it must be the smallest possible"):
        betting_bound(Estimate(np.array([-5.0, 1])))


def test_hcope_is_its_theorem() -> None:
    """Theorem 1 with its double sum, at the threshold that the first twentieth chose."""
    terms = np.random.default_rng(0).exponential(size=100)
    bound = float(hcope_bound(Estimate(terms), 0.9))
    rest, n, log = terms[5:].tolist(), 95, math.log(2 / 0.1)

    def theorem(c: float) -> float:
        y = [min(x, c) for x in rest]
        pairs = sum((a / c - b / c) ** 2 for a in y for b in y)
        spread = math.sqrt(log / (n - 1) * pairs)
        return c / n * (sum(y) / c - 7 * n * log / (3 * (n - 1)) - spread)

    cuts = [terms[:5].max() * 2.0**k for k in range(-6, 5)]
    assert min(abs(max(theorem(c), 0) - bound) for c in cuts) < 1e-12 and 0 < bound < terms.mean()
    assert hcope_bound(Estimate(terms - 3), 0.9, lowest=-3) == pytest.approx(bound - 3)
    with pytest.raises(EmptyDataError, match="there are 20 episodes; this bound needs 40 or more"):
        hcope_bound(Estimate(terms[:20]))
    with pytest.raises(DataError, match="it must be the smallest possible"):
        hcope_bound(Estimate(-terms))


def test_bootstrap() -> None:
    refits = np.random.default_rng(0).normal(3, 2, (4, 50))
    found = bootstrap_interval(np.full(4, 3.0), refits)
    np.testing.assert_allclose(found.upper - 3, t_quantile(0.975, 49) * refits.std(1, ddof=1))
    with pytest.raises(EmptyDataError, match="there are 5 replicates; the interval needs 20 or more"):
        bootstrap_interval(3, refits[0, :5])
    with pytest.raises(DataError, match="confidence is 95; it must be a float > 0 and < 1"):
        t_interval(Estimate(refits[0]), 95)
