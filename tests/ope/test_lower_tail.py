"""The lower tail of returns as a gate: by hand, and in worlds whose tails are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.dataset import Episode, create_infinite_replay_buffer
from birl.errors import ConfigError
from birl.ope import (
    LowerTail,
    Trajectories,
    conditional_value_at_risk,
    evaluate,
    return_quantile,
    tail_gain,
    verdict,
    verdicts,
)
from birl.ope.decision_page import as_json, write_report
from birl.types import ActionSpace
from tests.ope.planted import covers, too_few

CHANCE = np.array([0.4, 0.6])
"""The policy's probabilities of two actions that were logged at random."""


def bandit(rng: np.random.Generator, n: int, world: str) -> Trajectories:
    """The second action earns more on average, and spreads more."""
    action = rng.integers(0, 2, n)
    noise = rng.normal(size=n) if world == "normal" else 1 - np.exp(0.6 * rng.normal(size=n))
    reward = 1.0 * action + noise * (1 + 0.5 * action)
    return Trajectories(reward[:, None], np.ones((n, 1), bool), 1.0, np.log(CHANCE[action] / 0.5)[:, None])


def truth(tail: LowerTail, world: str) -> float:
    """The difference of the tails, from a very large sample."""
    of = bandit(np.random.default_rng(1), 500_000, world)
    order = of.reward[:, 0].argsort()
    returns, weight = of.reward[order, 0], np.exp(of.log_ratio[order, 0])  # type: ignore[index]
    return tail.of(returns, weight) - tail.of(returns, np.ones(len(returns)))


def plain(tail: LowerTail, returns: np.ndarray, weight: np.ndarray) -> float:
    """By the definition: repeat each return by its integer weight, sort, and average the worst."""
    repeated = np.sort(np.repeat(returns, weight.astype(int)))
    share = tail.share * len(repeated)
    whole = int(np.floor(share))
    if tail.kind == "quantile":
        return float(repeated[int(np.ceil(share)) - 1])
    return float((repeated[:whole].sum() + (share - whole) * repeated[min(whole, len(repeated) - 1)]) / share)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.33, 0.5])
@pytest.mark.parametrize("kind", ["cvar", "quantile"])
def test_figures_by_hand(kind: str, share: float) -> None:
    rng, tail = np.random.default_rng(0), LowerTail(kind, share)
    for n in (7, 60, 201):
        returns, weight = np.sort(rng.normal(size=n)), rng.integers(0, 4, n) + (np.arange(n) == 0)
        assert tail.of(returns, weight.astype(float)) == pytest.approx(plain(tail, returns, weight))
        assert tail.of(returns, np.ones(n)) == pytest.approx(plain(tail, returns, np.ones(n)))
    of = bandit(rng, 500, "normal")
    found = tail_gain(tail, of)
    known = conditional_value_at_risk(of, share).value if kind == "cvar" else return_quantile(of, share)[0]
    assert found.policy == pytest.approx(float(known))
    assert found.value == pytest.approx(found.policy - found.baseline)


def test_clusters_and_the_same_policy() -> None:
    of = bandit(np.random.default_rng(0), 1000, "normal")
    tail = LowerTail("cvar", 0.2)
    same = tail_gain(tail, of, of)
    assert same.value == 0 and not same.replicates.any()
    twice = Trajectories(*(np.repeat(each, 2, 0) for each in (of.reward, of.mask)), 1.0, np.repeat(of.log_ratio, 2, 0))  # type: ignore[arg-type]
    alone, together = tail_gain(tail, of), tail_gain(tail, twice, clusters=np.repeat(np.arange(1000), 2))
    assert together.value == pytest.approx(alone.value)
    assert together.replicates.std() == pytest.approx(alone.replicates.std(), rel=0.2)
    assert tail_gain(tail, twice).replicates.std() < 0.85 * together.replicates.std()
    few = tail_gain(LowerTail("cvar", 0.01), of)
    assert "effective episodes; it needs 50" in few.refused and few.times is not None and few.times > 4
    assert few.p_value() == 1


def errors(tail: LowerTail, world: str, n: int, repetitions: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whether intervals cover the truth, whether halved ones do, and whether their lower ends are above it."""
    expected, rows = truth(tail, world), []
    for seed in range(repetitions):
        found = tail_gain(tail, bandit(np.random.default_rng(100 + seed), n, world), seed=seed)
        interval = found.interval(0.95)
        half = (interval.upper - interval.lower) / 2
        off = abs(found.value - expected)
        rows.append((off <= half, off <= half / 2, interval.lower > expected))
    covered, halved, above = np.array(rows).T
    return covered, halved, above


def check(repetitions: int) -> dict[str, tuple[float, float, float]]:
    figures = {}
    for kind, share, n, world in (("cvar", 0.1, 1200, "normal"), ("quantile", 0.1, 1200, "skewed")):
        covered, halved, above = errors(LowerTail(kind, share), world, n, repetitions)
        figures[kind] = (float(covered.mean()), float(halved.mean()), float(above.mean()))
        high = 0.98 if kind == "cvar" else 0.999  # the bootstrap of quantiles is conservative
        assert covers(covered, 0.93, high), figures
        assert not covers(halved, 0.93, high) or (kind == "quantile" and repetitions < 500), figures
        assert not too_few(repetitions - int(above.sum()), repetitions, 0.97), figures
    return figures


def test_intervals_of_tails_cover_them() -> None:
    check(40)


@pytest.mark.slow
def test_intervals_of_tails_cover_them_whole() -> None:
    check(1000)


class Two:
    def __init__(self, chance: Any = CHANCE) -> None:
        self.chance = np.asarray(chance)

    def action_probability(self, x: Any, action: Any = None) -> Any:
        every = np.tile(self.chance, (len(x), 1))
        return every if action is None else every[np.arange(len(x)), np.reshape(action, -1)]


def logged(n: int, spread: float, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    action = rng.integers(0, 2, n)
    reward = 1.0 * action + rng.normal(size=n) * (1 + spread * action)
    extra = {"log_propensity": np.log([0.5]), "propensities": np.full((1, 2), 0.5)}
    episodes = [
        Episode(rng.normal(size=(1, 1)).astype(np.float32), np.array([[a]]), np.array([[r]]), True, extra=extra)
        for a, r in zip(action, reward, strict=True)
    ]
    return create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=2)


def test_what_tails_do_to_verdicts(tmp_path: Path) -> None:
    calm, wild = logged(2500, 0.0), logged(2500, 3.0)
    policy = Two([0.1, 0.9])
    reported, gated = [LowerTail("cvar", 0.1)], [LowerTail("cvar", 0.1, min_gain=0.0)]
    assert verdict(evaluate(policy, calm, tails=gated)).verdict == "ship"
    assert verdict(evaluate(policy, wild, tails=reported)).verdict == "ship"
    found = evaluate(policy, wild, tails=[*gated, LowerTail("quantile", 0.05, min_gain=-9.0)])
    stopped = verdict(found)
    assert stopped.verdict == "do_not_ship"
    assert any("the mean return of the worst 10 % of episodes is -" in text for text in stopped.reasons)
    assert any("the 5 % quantile of returns" in text and "must be -9 or more" in text for text in stopped.reasons)
    near = LowerTail("cvar", 0.1, min_gain=found.tails[0].value - 0.02)
    unsure = verdict(evaluate(policy, wild, tails=[near]))
    assert unsure.verdict == "more_data" and unsure.times is not None and unsure.times > 1
    few = verdict(evaluate(policy, logged(300, 0.0), tails=gated))
    assert few.verdict == "more_data" and any("it needs 50" in text for text in few.reasons)
    both = verdicts({"a": evaluate(policy, wild, tails=gated), "b": evaluate(policy, calm, tails=gated)})
    assert both["a"].verdict == "do_not_ship" and both["b"].verdict == "ship"
    assert both["b"].confidence == pytest.approx(0.975)
    data = json.loads(json.dumps(as_json(found, stopped)))["lower_tails"]
    assert data[0]["kind"] == "cvar" and data[0]["interval"][1] < 0 and data[1]["min_gain"] == -9.0
    pytest.importorskip("jinja2")
    write_report(tmp_path, {"policy": found}, {"policy": stopped})
    assert "The worst episodes" in (tmp_path / "report.html").read_text()


def test_bad_tails() -> None:
    with pytest.raises(ConfigError, match="kind is 'median'"):
        LowerTail("median", 0.1)
    with pytest.raises(ConfigError, match="the share of cvar is 1.5"):
        LowerTail("cvar", 1.5)
    with pytest.raises(ConfigError, match=r"it must be a list such as \[LowerTail"):
        evaluate(Two(), logged(100, 0.0), tails=0.1)  # type: ignore[arg-type]
    unknown = logged(200, 0.0)
    found = verdict(evaluate(Two([0.0, 1.0]), unknown, tails=[LowerTail("cvar", 0.5, min_gain=-5.0)]))
    assert found.verdict in ("ship", "more_data")


def wrong_ships(repetitions: int, n: int = 1500) -> float:
    """How often a policy ships whose tail is exactly at the limit."""
    chance, tail = np.array([0.2, 0.8]), LowerTail("cvar", 0.1)
    rng = np.random.default_rng(5)
    action = rng.integers(0, 2, 500_000)
    returns = 1.0 * action + rng.normal(size=len(action)) * (1 + action)
    order = returns.argsort()
    weight = chance[action[order]] / 0.5
    limit = tail.of(returns[order], weight) - tail.of(returns[order], np.ones(len(action)))
    gate = [LowerTail("cvar", 0.1, min_gain=limit)]
    said = [
        verdict(evaluate(Two(chance), logged(n, 1.0, 100 + seed), tails=gate)).verdict for seed in range(repetitions)
    ]
    return float(np.mean([each == "ship" for each in said]))


def test_wrong_ships_past_a_worse_tail_are_rare() -> None:
    wrong = wrong_ships(3)
    assert not too_few(round(3 * (1 - wrong)), 3, 0.975), wrong


@pytest.mark.slow
def test_wrong_ships_past_a_worse_tail_are_rare_whole() -> None:
    wrong = wrong_ships(1000)
    assert not too_few(round(1000 * (1 - wrong)), 1000, 0.975), wrong
