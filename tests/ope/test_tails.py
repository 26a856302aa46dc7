"""Few episodes that decide: what the tail's figure says, what it leaves of verdicts, and what it cannot see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ope.test_decisions import FixedPolicy, improved, logs
from ope.test_planted_truth import PLANS, seen

from birl.dataset import Episode, create_infinite_replay_buffer
from birl.ope import (
    CAPPED,
    Estimate,
    check_limits,
    doubly_robust,
    evaluate,
    on_policy,
    t_interval,
    tail_facts,
    tail_weight,
    verdict,
)
from birl.types import ActionSpace

POLICY = FixedPolicy(np.array([[0.3, 0.7]]))


def test_tails_by_hand() -> None:
    for k in (1, 4, 25):  # k equal terms far out among many
        terms = np.zeros(10_000)
        terms[:k] = 5.0
        assert tail_weight(terms) == pytest.approx(1 / np.sqrt(k), abs=0.02)
        assert tail_weight(-terms) == -tail_weight(terms)
    terms = np.random.default_rng(0).exponential(size=300)
    plain = sum((x - terms.mean()) ** 3 for x in terms) / 300 / terms.std() ** 3 / np.sqrt(300)
    assert tail_weight(terms) == pytest.approx(plain)
    users = np.repeat(np.arange(30), 10)
    sums = np.array([sum(x - terms.mean() for x in terms[users == user]) for user in range(30)])
    plain = sum(x**3 for x in sums) / 30 / np.sqrt(sum(x**2 for x in sums) / 30) ** 3 / np.sqrt(30)
    assert tail_weight(terms, users) == pytest.approx(plain)
    assert tail_weight(np.full(50, 3.3)) == 0.0


def test_facts_have_a_side() -> None:
    terms = np.append(np.zeros(99), -50.0)
    facts = tail_facts(Estimate(terms))
    assert (facts["left_tail"] or 0) > 0.9 and facts["right_tail"] == 0
    (finding,) = {one.message for one in check_limits(facts)}
    assert "few episodes with large losses decide (tail weight 0.9" in finding and "log more episodes" in finding
    assert not any(one.refused for one in check_limits(facts))


def bandit(n: int, seed: int, pay: Callable[[np.random.Generator, Any], Any]) -> Any:
    """Logs at random of two actions, of which the second pays by ``pay``."""
    rng = np.random.default_rng(seed)
    action = rng.integers(0, 2, n)
    reward = np.where(action == 1, pay(rng, n), rng.normal(size=n) * 0.1)
    episodes = [
        Episode(
            np.ones((1, 1), np.float32),
            np.array([[a]]),
            np.array([[r]], np.float32),
            True,
            extra={"log_propensity": np.log([0.5]), "propensities": np.array([[0.5, 0.5]])},
        )
        for a, r in zip(action, reward, strict=True)
    ]
    return create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=2)


def test_a_verdict_of_few_episodes_is_no_ship() -> None:
    """The losses are there, but too few for the interval."""
    clean = bandit(400, 1, lambda rng, n: 1 + 0.1 * rng.normal(size=n))
    assert verdict(evaluate(POLICY, clean)).verdict == "ship"
    loss = 15.0
    data = bandit(400, 1, lambda rng, n: 1 + 0.1 * rng.normal(size=n) - loss * (np.arange(n) < 5))
    found = evaluate(POLICY, data)
    capped = verdict(found)
    gain = found.gain
    assert gain is not None and float(t_interval(gain.gain).lower) > 0  # the interval alone would ship
    assert capped.verdict == "more_data" and capped.times is not None and capped.times > 1
    assert any("few episodes with large losses decide" in text for text in capped.reasons)
    great = bandit(400, 1, lambda rng, n: -1 + 0.1 * rng.normal(size=n) + loss * (np.arange(n) < 5))
    worse = verdict(evaluate(POLICY, great))
    assert worse.verdict == "more_data" and any("large gains decide" in text for text in worse.reasons)
    up = verdict(evaluate(POLICY, bandit(400, 1, lambda rng, n: 1 + loss * (np.arange(n) < 5))))
    assert up.verdict == "ship"  # a tail of gains makes the lower end too low, not too high


@pytest.mark.parametrize("name", ["near", "costs", "middle"])
def test_clean_worlds_are_not_touched(name: str) -> None:
    of = seen(PLANS[name], 100, 0)
    gains = (doubly_robust(of) - on_policy(of)).terms
    assert np.mean([(tail_facts(Estimate(each))["left_tail"] or 0) > 0.25 for each in gains]) <= 0.02
    assert verdict(evaluate(FixedPolicy(improved(1.0)), logs(400), gamma=0.95)).verdict == "ship"


def wrong_ships(draw: Callable[[np.random.Generator, Any], Any], n: int) -> tuple[float, float]:
    """Of 1,000 gains whose truth is 0: how many the interval alone ships, and how many the limit leaves."""
    terms = draw(np.random.default_rng(0), (1000, n))
    alone = t_interval(Estimate(terms)).lower > 0
    doubts = [{one.fact for one in check_limits(tail_facts(Estimate(each)))} for each in terms[alone]]
    return float(alone.mean()), sum(CAPPED["ship"] not in each for each in doubts) / 1000


def test_wrong_ships_become_fewer() -> None:
    """Losses that are skewed, and 20 in one of 20 episodes; what no episode holds is not seen."""
    clean = wrong_ships(lambda rng, shape: rng.normal(size=shape), 200)
    assert clean[0] == clean[1] < 0.04
    skewed = wrong_ships(lambda rng, shape: np.exp(1.125) - np.exp(1.5 * rng.normal(size=shape)), 100)
    seldom = wrong_ships(lambda rng, shape: 1 + 0.1 * rng.normal(size=shape) - 20.0 * (rng.random(shape) < 0.05), 100)
    assert skewed[0] > 0.1 and skewed[1] < 0.3 * skewed[0], skewed
    assert seldom[0] > 0.08 and seldom[1] <= 0.95**100 + 0.01, seldom  # none of 100 has a loss
    gains = wrong_ships(lambda rng, shape: np.exp(1.5 * rng.normal(size=shape)) - np.exp(1.125), 100)
    assert gains[0] == gains[1] < 0.025  # a tail of gains is no danger
