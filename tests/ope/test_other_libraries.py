"""Mistakes of other libraries, compared with birl's formulas on worlds with known answers: ``docs/peers-ope.md``."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import ope_peers, survival
from birl.ope import Trajectories, doubly_robust, log_ratios, per_decision, weighted_per_decision
from tests.ope import planted


def test_estimates_of_survival() -> None:
    """birl's are near the truth; divisors of survivors, fresh actions and weights that end with the episode are not."""
    found = {name: off for name, _, off, _ in survival.survival_table()}
    for name, off in found.items():
        assert abs(off) < 0.4 if name.startswith(("truth", "birl")) else abs(off) > 0.5, (name, off)
    assert len(found) == 10
    logs = found["the logs earned"]
    assert found["weights over survivors (RLlib, old stack: WIS)"] == pytest.approx(logs)  # of every policy


def test_the_ratio_is_of_the_logged_action_and_a_product() -> None:
    """Of a new action it says nothing of what was logged: with it every policy has the value of the logs."""
    action, of = survival.survival(4000, 3)
    ratio = survival.TARGET[action] / survival.LOGGED[action]
    weight = np.where(of.mask, np.cumprod(np.where(of.mask, ratio, 1), 1), 0)
    assert float(per_decision(of).value) == pytest.approx((weight * of.reward).sum(1).mean())
    discounted = Trajectories(of.reward, of.mask, 0.5, of.log_ratio)
    plain = (weight * of.reward * 0.5 ** np.arange(survival.HORIZON)).sum(1).mean()
    assert float(per_decision(discounted).value) == pytest.approx(plain)
    drawn = np.random.default_rng(0).permuted(action, axis=0)  # as probable, but not those that were logged
    other = Trajectories(
        of.reward, of.mask, 1.0, log_ratios(np.log(survival.TARGET)[drawn], np.log(survival.LOGGED)[drawn], of.mask)
    )
    for estimator in (per_decision, weighted_per_decision):
        assert abs(float(estimator(of).value) - survival.truth()) < 0.6
        assert abs(float(estimator(other).value) - survival.truth()) > 1


def test_intervals_of_others_hold_the_truth_too_seldom() -> None:
    found = dict(survival.coverage_table(200))
    one_sided, own, model, refits = found.values()
    assert one_sided < own and model < 0.4 and refits > 0.8
    rng = np.random.default_rng(1)
    terms = rng.normal(size=(4000, 30))
    half = 1.6991 * terms.std(-1, ddof=1) / np.sqrt(30)  # 95 % of t with 29 degrees of freedom, one-sided
    assert planted.too_few(int((np.abs(terms.mean(-1)) < half).sum()), 4000, 0.93)


def test_widths() -> None:
    turned, own, resampled, ratio, mass, kernel = dict(survival.width_table()).values()
    assert turned == pytest.approx(10_000 * own, rel=1e-3) and own == pytest.approx(0.0272, abs=1e-4)
    assert resampled > 0.1 and ratio < 1e-12
    assert mass > 1.2 and kernel == pytest.approx(1, abs=1e-6)


def test_the_recursion_of_doubly_robust_is_its_sum() -> None:
    world = planted.world(2, 5, ends=0.2)
    policies = planted.policies(4, 0.4)
    logs = planted.log(world, policies[0], 3, ope_peers.EPISODES, 0)
    of = ope_peers.with_model(logs, world, policies, 2, blind=False)
    np.testing.assert_allclose(ope_peers.recursion(of), doubly_robust(of).terms, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ope_peers.WORLDS)
def test_the_same_logs_by_all_formulas(name: str) -> None:
    """Coverage and width as in the table of ``docs/peers-ope.md``: birl's within their level, the faulty ones not."""
    rows = {formula: rest for formula, *rest in ope_peers.table(name, 300)}
    for formula, (error, coverage, width) in rows.items():
        if formula.startswith("birl"):
            assert 0.925 < coverage < 0.98 and error < width, formula
    assert rows["SCOPE-RL: IPS per decision, t interval of one side"][1] < 0.93
    assert rows["SCOPE-RL: FQE, bootstrap of values of first states"][1] < 0.75
    assert rows["SCOPE-RL: IPS per decision, Hoeffding with its fraction inverted"][2] > 50
    robust = rows["birl: `doubly_robust`"]
    bootstrap = rows["OBP, SCOPE-RL: DR, model from the same episodes, bootstrap"]
    assert bootstrap[1] < robust[1] and robust[2] < 1.1 * rows["birl: `per_decision`"][2]
