"""Bounds of gains where logs do not support all actions: against dynamic programming, and in worlds of known truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.dataset import Episode, create_infinite_replay_buffer
from birl.errors import ConfigError, DataError
from birl.ope import Trajectories, evaluate, rank, verdict
from birl.ope.decision_page import write_report
from birl.ope.estimators import on_policy
from birl.ope.support_bounds import RewardRange, Support, describe_region, gain_bounds
from birl.types import ActionSpace
from tests.ope import planted
from tests.ope.planted import treat

Array = np.ndarray
HORIZON, GAMMA, LOW, HIGH = 4, 0.9, -1.5, 2.5


def chain(n: int, seed: int, ends: float) -> tuple[Array, Array, Array, Array, Array]:
    """Logs of three states, two actions: state 2 is never left by action 1, which the logger never takes there.

    Returns states, actions, rewards and masks ``[n, T]``, and the logging policy ``[S, A]``.
    """
    rng = np.random.default_rng(seed)
    logger = np.array([[0.5, 0.5], [0.7, 0.3], [1.0, 0.0]])
    state = np.zeros(n, int)
    alive = np.ones(n, bool)
    rows = []
    for _ in range(HORIZON):
        action = (rng.random(n) > logger[state, 0]).astype(int)
        reward = np.where(alive, 0.4 * state + 0.3 * action + rng.uniform(-1, 1, n), 0.0)
        rows.append((state, action, reward, alive))
        state = np.minimum((state + 1 + action * (rng.random(n) < 0.5)) % 3, 2)
        alive = alive & (rng.random(n) > ends)
    states, actions, rewards, masks = (np.stack(column, 1) for column in zip(*rows, strict=True))
    return states, actions, rewards, masks, logger


def exact(policy: Array, rest: Array, ends: float) -> float:
    """Value by going backwards, with ``rest[t]`` after an unsupported action at step t."""
    value = np.zeros(3)
    for t in reversed(range(HORIZON)):
        new = np.zeros(3)
        for s in range(3):
            for a in range(2):
                if s == 2 and a == 1:
                    new[s] += policy[s, a] * rest[t]
                    continue
                after = [min((s + 1 + a * moved) % 3, 2) for moved in (0, 1)]
                follows = 0.5 * value[after[0]] + 0.5 * value[after[1]]
                new[s] += policy[s, a] * (0.4 * s + 0.3 * a + GAMMA * (1 - ends) * follows)
        value = new
    return float(value[0])


def bounds_of(n: int, seed: int, ends: float, policy: Array, *, model: bool) -> Any:
    state, action, reward, mask, logger = chain(n, seed, ends)
    with np.errstate(divide="ignore"):
        ratio = np.where(mask, np.log(policy[state, action] / logger[state, action]), 0.0)
    lost = np.where(mask & (state == 2), policy[2, 1], 0.0)
    q = v = supported_v = None
    if model:  # any function will do, as long as v is its mean
        table = np.array([[0.3, -0.2], [1.0, 0.4], [0.7, 9.0]])
        q, v = table[state, action], (policy * table).sum(1)[state]
        supported_v = np.where(mask, (policy * np.where([[1, 1], [1, 1], [1, 0]], table, 0)).sum(1)[state], 0)
    steps = Trajectories(reward, mask, GAMMA, ratio, q, v)
    return gain_bounds(
        steps, Support(lost, supported_v), on_policy(steps) - on_policy(steps), RewardRange(LOW, HIGH), robust=model
    )


@pytest.mark.parametrize("model", [False, True], ids=["weights", "model"])
@pytest.mark.parametrize("ends", [0.0, 0.3])
def test_ends_are_those_of_dynamic_programming(ends: float, model: bool) -> None:
    policy = np.array([[0.3, 0.7], [0.6, 0.4], [0.55, 0.45]])
    found = bounds_of(60_000, 0, ends, policy, model=model)
    for end, reward in zip(found.ends, (LOW, HIGH), strict=True):
        rest = np.array([reward * sum(GAMMA**k for k in range(HORIZON - t)) for t in range(HORIZON)])
        error = end.terms.std() / np.sqrt(len(end.terms))
        assert abs(float(end.value) - exact(policy, rest, ends)) < 4 * error
        assert error < 0.02


@pytest.mark.parametrize("model", [False, True], ids=["weights", "model"])
def test_intervals_cover_the_worst_that_may_be_true(model: bool) -> None:
    """If unsupported actions earn the least, the lower end has the coverage of one side; half as wide, it has not."""
    policy = np.array([[0.3, 0.7], [0.6, 0.4], [0.55, 0.45]])
    rest = np.array([LOW * sum(GAMMA**k for k in range(HORIZON - t)) for t in range(HORIZON)])
    truth, hits, halves = exact(policy, rest, 0.2), [], []
    for seed in range(400):
        found = bounds_of(150, seed, 0.2, policy, model=model)
        lower, middle = found.interval(0.95)[0], float(found.ends[0].value)
        hits.append(lower <= truth)
        halves.append((lower + middle) / 2 <= truth)
    assert planted.covers(np.array(hits), 0.95, 0.99) and not planted.covers(np.array(halves), 0.95, 0.99)


def test_returns_of_all_lengths_count() -> None:
    """An episode may end after any step: the least of positive rewards is one of them, that of negative ones all."""
    low, high = RewardRange(1.0, 2.0).returns(0.5, 3)
    np.testing.assert_allclose(low, [1.0, 1.0, 1.0])
    np.testing.assert_allclose(high, [3.5, 3.0, 2.0])
    low, high = RewardRange(-2.0, None).returns(0.5, 3)
    np.testing.assert_allclose(low, [-3.5, -3.0, -2.0])
    assert np.isinf(high).all()


def test_bad_ranges() -> None:
    with pytest.raises(ConfigError, match="give the lower end first"):
        RewardRange(2.0, 1.0)
    with pytest.raises(ConfigError, match="it must be a finite number"):
        RewardRange(float("nan"), 1.0)
    with pytest.raises(DataError, match=r"the reward of step 0 in episode \d+ is .*, outside reward_range"):
        evaluate(treat(0.9), clinic(0, 0.1, 5.0)[0], gamma=1.0, reward_range=(0.0, 1.0))


def test_regions() -> None:
    rng = np.random.default_rng(0)
    table = np.stack([rng.normal(size=500), rng.integers(20, 80, 500).astype(float), np.ones(500)], 1)
    names = ["weight", "age", "bias"]
    assert describe_region(table[:, 1] < 31, table, names) == "where age < 30.5"
    assert describe_region(table[:, 0] > 1, table, names) is not None
    assert describe_region(np.zeros(500, bool), table, names) is None
    assert describe_region(rng.random(500) < 0.5, table, names) is None  # no column shows it
    assert describe_region(np.ones(500, bool), table, names) == "anywhere"


def clinic(seed: int, share: float, stakes: float, n: int = 500, vectors: bool = False) -> tuple[Any, float]:
    """Logs of a clinic that never treats a share of its patients, and the gain of treating 90 %.

    Treatment is worth 0.5 to others and costs ``stakes`` to these. Rewards are from ``-stakes - 1`` to 1.5.
    """
    rng = np.random.default_rng(seed)
    x = rng.random((n, 2)).astype(np.float32)
    barred = x[:, 0] < share
    chance = np.where(barred, 0.0, 0.5)
    a = (rng.random(n) < chance).astype(int)
    r = 0.5 * a + rng.uniform(-1, 1, n)
    b = np.where(a == 1, chance, 1 - chance)
    both = np.stack([1 - chance, chance], -1)
    episodes = []
    for i in range(n):
        extra = {"log_propensity": np.log(b[i : i + 1])} | ({"propensities": both[i : i + 1]} if vectors else {})
        episodes.append(Episode(x[i : i + 1], a[i : i + 1, None], r[i : i + 1, None], True, extra=extra))
    gain = (1 - share) * 0.4 * 0.5 - share * 0.9 * stakes
    return create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=2), gain


def wrong_ships(share: float, stakes: float, seeds: range, declared: bool, vectors: bool) -> tuple[int, int]:
    """Return the number of ships, and of those at a gain of 0 or less."""
    ships = wrong = 0
    for seed in seeds:
        logs, gain = clinic(seed, share, stakes, vectors=vectors)
        limits = (-stakes - 1.0, 1.5) if declared else None
        said = verdict(evaluate(treat(0.9), logs, gamma=1.0, reward_range=limits))
        ships += said.verdict == "ship"
        wrong += said.verdict == "ship" and gain <= 0
        if declared and said.lower is not None:
            assert said.verdict != "do_not_ship" or gain <= 0
    return ships, wrong


@pytest.mark.parametrize("vectors", [False, True])
def test_no_wrong_ship(vectors: bool) -> None:
    for share, stakes in ((0.05, 50.0), (0.15, 2.0)):
        for declared in (False, True):
            assert wrong_ships(share, stakes, range(3), declared, vectors) == (0, 0)
    ships, _ = wrong_ships(0.02, 1.0, range(3), True, vectors)  # little is at stake
    assert ships == 3


@pytest.mark.slow
@pytest.mark.parametrize("declared", [False, True], ids=["no range", "declared range"])
@pytest.mark.parametrize("stakes", [1.0, 5.0, 20.0, 50.0])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.15])
def test_no_wrong_ship_in_500_logs(share: float, stakes: float, declared: bool) -> None:
    _, wrong = wrong_ships(share, stakes, range(500), declared, vectors=False)
    assert wrong == 0


def test_reports_know_the_range_and_where_support_is_missing(tmp_path: Path) -> None:
    logs, _ = clinic(0, 0.1, 20.0)
    for limits in (None, (-21.0, 1.5)):
        found = evaluate(treat(0.9), logs, gamma=1.0, reward_range=limits, name="treat")
        write_report(tmp_path, {"treat": found}, {"treat": verdict(found)})
        data = json.loads((tmp_path / "report.json").read_text())["policies"][0]["support"]
        (region,) = data["regions"]
        assert region.startswith("the logs never take action 1 where x[0] < 0.1")
        assert (data["lowest_gain"] is None) == (limits is None)
        page = (tmp_path / "report.html").read_text()
        assert region.replace("<", "&lt;") in page
    ranked = rank({"treat": treat(0.9), "less": treat(0.6)}, logs, gamma=1.0, reward_range=(-21.0, 1.5))
    assert list(ranked.evaluations) == ["less", "treat"]  # by the lower ends, which unsupported actions widen


def test_there_are_no_bounds_where_all_is_supported() -> None:
    policy = np.array([[0.3, 0.7], [0.6, 0.4], [1.0, 0.0]])
    assert bounds_of(500, 0, 0.0, policy, model=False) is None
