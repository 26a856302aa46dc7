"""Losses that no log shows, bounds that hold for any tails, and a floor on hidden confounding, in planted worlds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from birl.dataset import Episode, create_infinite_replay_buffer
from birl.errors import ConfigError, DataError
from birl.ope import Trajectories, evaluate, verdict, verdicts
from birl.ope.unseen_losses import bounded_gain, unseen_share
from birl.types import ActionSpace
from tests.ope import planted
from tests.ope.planted import treat

Array = np.ndarray


def one_step(x: Array, a: Array, r: Array, propensity: float | None = 0.5) -> Any:
    extra = {} if propensity is None else {"log_propensity": np.full(1, np.log(propensity))}
    episodes = [
        Episode(x[i : i + 1].astype(np.float32), a[i : i + 1, None], r[i : i + 1, None], True, extra=extra)
        for i in range(len(x))
    ]
    return create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=2)


def rare_loss(seed: int, n: int = 500) -> Any:
    """Treatment is worth 0.8, but loses 250 in 0.4 % of the cases: the gain of treating more is negative."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 2, n)
    r = a * (0.8 - 250 * (rng.random(n) < 0.004)) + 0.3 * rng.uniform(-1, 1, n)
    return one_step(rng.normal(size=(n, 2)), a, r)


def test_no_ship_where_a_possible_loss_is_rarer_than_the_logs_can_show() -> None:
    naive = 0
    for seed in (0, 1, 2, 10, 11, 19):  # without a loss in four of these logs
        logs = rare_loss(seed)
        found = evaluate(treat(0.95), logs, gamma=1.0)
        alone = verdict(found)
        if alone.verdict == "ship":
            naive += 1
            share, at = alone.unseen_loss or (0.0, 0.0)
            assert 0.01 < share < 0.02 and -250 < at < -5  # the page names a loss that would turn it
            assert any(text.startswith("rare losses: up to 1 in ") for text in alone.turns)
        ranged = evaluate(treat(0.95), logs, gamma=1.0, reward_range=(-250.3, 1.1))
        for said in (verdict(ranged), verdict(found, worst_case=-250.0)):
            assert said.verdict != "ship" and not said.turns
            if alone.verdict == "ship":
                assert said.verdict == "more_data" and said.times is not None and said.times > 5
                assert any("without a trace in the logs" in text for text in said.reasons)
        for bound in ("betting", "bernstein"):
            assert verdict(ranged, bound=bound).verdict != "ship"
    assert naive == 4


@pytest.mark.slow
def test_no_wrong_ship_in_500_logs() -> None:
    wrong = 0
    for seed in range(500):
        ranged = evaluate(treat(0.95), rare_loss(seed), gamma=1.0, reward_range=(-250.3, 1.1))
        wrong += verdict(ranged).verdict == "ship"
    assert wrong == 0


def test_a_range_that_the_logs_fill_hardly_matters() -> None:
    """Rewards are 0 or 1, as declared: no outcome is missing, and all verdicts stay."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        a = rng.integers(0, 2, 1000)
        logs = one_step(rng.normal(size=(1000, 2)), a, (rng.random(1000) < 0.3 + 0.3 * a).astype(np.float64))
        plain = evaluate(treat(0.9), logs, gamma=1.0)
        ranged = evaluate(treat(0.9), logs, gamma=1.0, reward_range=(0.0, 1.0))
        assert verdict(plain).verdict == verdict(ranged).verdict
        for bound in ("betting", "bernstein"):
            lower, upper = ranged.gain_range(0.95, bound) or (0.0, 0.0)
            middle = plain.gain_range() or (0.0, 0.0)
            assert upper - lower > middle[1] - middle[0]  # the price of holding for any tails
            assert lower < 0.12 < upper
    assert verdict(ranged, bound="betting").verdict == "ship"


def test_the_share_is_the_exact_one() -> None:
    """The probability of no such outcome in n episodes is the error level."""
    for n in (1, 30, 1000):
        share = unseen_share(n, 0.975)
        assert (1 - share) ** n == pytest.approx(0.025)
    assert unseen_share(1000, 0.95) == pytest.approx(3e-3, rel=0.01)  # the rule of three
    assert unseen_share(0, 0.95) == 1.0


@pytest.mark.parametrize("ends", [0.0, 0.25])
@pytest.mark.parametrize("bound", ["betting", "bernstein"])
def test_bounds_hold_for_episodes_of_any_length(ends: float, bound: str) -> None:
    """The mean of the terms is the gain, and the bounds are beyond it in at least 97.5 % of the logs."""
    world = planted.world(3, 3, ends=ends, shift=-1.0, noise=0.0)
    logger, policy = planted.policies(4, 0.5)
    low, high = float(world.reward.min()), float(world.reward.max())
    truth = world.truth(policy) - world.truth(logger)
    logs = planted.log(world, logger, 60, 150, 0)
    ratio = np.log(policy / logger)[np.minimum(logs.state, 4), logs.action]
    hits, means = [], []
    for k in range(60):
        found = bounded_gain(Trajectories(logs.reward[k], logs.mask[k], world.gamma, ratio[k]), low, high)
        lower, upper = found.interval(bound, 0.95)
        assert found.above.min() >= found.least - 1e-9 and found.below.min() >= found.least - 1e-9
        hits.append(lower <= truth <= upper)
        means.append([found.above.mean(), -found.below.mean()])
    assert all(hits)
    error = np.std(means, 0) / np.sqrt(60)
    assert (np.abs(np.mean(means, 0) - truth) < 4 * error).all()


def test_clusters_count_as_a_whole() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 2, 200)
    steps = Trajectories(
        0.3 * a[:, None] + 0.7 * rng.random((200, 1)), np.ones((200, 1), bool), 1.0, np.log([0.2, 1.8])[a][:, None]
    )
    alone = bounded_gain(steps, 0.0, 1.0)
    twice = bounded_gain(
        Trajectories(*(np.repeat(x, 2, 0) for x in (steps.reward, steps.mask)), 1.0, np.repeat(steps.log_ratio, 2, 0)),
        0,
        1,
    )
    assert twice.interval("betting", 0.95, np.repeat(np.arange(200), 2)) == pytest.approx(
        alone.interval("betting", 0.95)
    )


def test_bad_input() -> None:
    logs = rare_loss(0)
    found = evaluate(treat(0.95), logs, gamma=1.0)
    with pytest.raises(DataError, match=r"worst_case is 5, but the logs have an episode of the policy with the return"):
        verdict(found, worst_case=5.0)
    with pytest.raises(
        ConfigError, match="which needs propensities of one discrete action, the lowest and the highest"
    ):
        verdict(found, bound="betting")
    with pytest.raises(ConfigError, match="bound"):
        verdict(found, bound="gauss")
    with pytest.raises(ConfigError, match="min_strength"):
        verdict(found, min_strength=0.5)
    other = evaluate(treat(0.95), logs, gamma=1.0, against=treat(0.6), reward_range=(-251.0, 2.0))
    with pytest.raises(ConfigError, match="the logs as the baseline"):
        verdicts({"treat": other}, bound="betting")


def confounded(seed: int, strength: float, effect: float, n: int = 1000) -> Any:
    """Logs without propensities. A hidden cause raises the reward by 2 and the odds of treatment by ``strength``."""
    rng = np.random.default_rng(seed)
    hidden = rng.random(n) < 0.5
    away = (strength - 1) / (strength + 1) / 2
    a = (rng.random(n) < np.where(hidden, 0.5 + away, 0.5 - away)).astype(int)
    return one_step(rng.normal(size=(n, 2)), a, effect * a + 2.0 * hidden + rng.normal(size=n), None)


def ships(strength: float, effect: float, seeds: range, **required: Any) -> int:
    said = []
    for seed in seeds:
        found = evaluate(treat(0.9), confounded(seed, strength, effect), gamma=1.0, behaviour="estimated")
        said.append(verdict(found, **required))
    low = [
        each
        for each in said
        if any("the propensities are estimated, and hidden confounding" in text for text in each.reasons)
    ]
    assert all(each.verdict == "more_data" and each.remedies for each in low)
    return sum(each.verdict == "ship" for each in said)


def test_estimated_propensities_ship_only_above_a_floor() -> None:
    assert ships(1.4, 0.0, range(4), min_strength=1.0) >= 3  # the hidden cause looks like an effect
    assert ships(1.4, 0.0, range(4)) == 0
    assert ships(1.0, 1.5, range(2)) == 2  # an effect that no such cause explains
    assert ships(1.0, 1.5, range(1), min_strength=20.0) == 0


@pytest.mark.slow
def test_the_floor_holds_in_1000_logs() -> None:
    wrong = ships(1.5, 0.0, range(1000))
    assert not planted.too_few(1000 - wrong, 1000, 0.975)
