"""Ranks of policies and their ranges."""

from __future__ import annotations

import numpy as np
import pytest

from birl.errors import ConfigError
from birl.ope import rank
from tests.ope.test_decisions import LOGGER, POLICY, WORLD, FixedPolicy, improved, logs


def test_ranks() -> None:
    tables = {"bad": improved(-2.0), "best": improved(3.0), "twin": improved(2.9), "logger": LOGGER}
    ranking = rank({name: FixedPolicy(table) for name, table in tables.items()}, logs(400), gamma=0.95)
    order = list(ranking.evaluations)
    assert set(order[:2]) == {"best", "twin"} and order[-1] == "bad"
    assert ranking.ranges["logger"] == (3, 3) and ranking.ranges["bad"] == (4, 4)
    best = min(ranking.ranges["best"], ranking.ranges["twin"])
    assert best[0] == 1 and {low for low, _ in ranking.ranges.values()} <= {1, 2, 3, 4}


def test_rankings_have_distances_from_the_logs_and_between_policies() -> None:
    """Total variation distances, averaged over the logged states."""
    tables = {"near": improved(0.5), "far": improved(2.0), "logger": LOGGER}
    data = logs(400)
    ranking = rank({name: FixedPolicy(table) for name, table in tables.items()}, data, gamma=0.95)
    states = np.concatenate([each.observations for each in data.episodes]).argmax(-1)
    share = np.bincount(states, minlength=5) / len(states)

    def distance(one: np.ndarray, other: np.ndarray) -> float:
        return float(share @ np.abs(one - other).sum(-1) / 2)

    for name, table in tables.items():
        differs = ranking.evaluations[name].differs
        assert differs is not None and abs(differs - distance(table, LOGGER)) < 0.02
        for other, its in tables.items():
            assert abs(ranking.differences[name][other] - distance(table, its)) < 0.02
    assert ranking.evaluations["logger"].differs == 0 and ranking.differences["far"]["far"] == 0
    assert distance(tables["far"], LOGGER) > 0.2
    bare = rank({"near": FixedPolicy(improved(0.5))}, logs(60, what="nothing"), gamma=0.95)
    assert bare.evaluations["near"].differs is None


def test_ranges_hold_the_true_ranks() -> None:
    tables = {str(distance): improved(distance) for distance in (-0.4, 0.0, 0.1, 0.6)}
    truth = sorted(tables, key=lambda name: -WORLD.truth(tables[name]))
    policies = {name: FixedPolicy(table) for name, table in tables.items()}
    wrong = narrow = 0
    for seed in range(20):
        ranges = rank(policies, logs(120, seed), gamma=0.95).ranges
        wrong += not all(low <= truth.index(name) + 1 <= high for name, (low, high) in ranges.items())
        narrow += sum(high - low < 3 for low, high in ranges.values())
    assert wrong <= 3 and narrow > 20


def test_equal_policies_share_all_ranks() -> None:
    ranking = rank({"a": FixedPolicy(POLICY), "b": FixedPolicy(POLICY)}, logs(100), gamma=0.95)
    assert set(ranking.ranges.values()) == {(1, 2)}
    assert ranking.advice.startswith(
        "No policy stands out: the differences between the 2 policies are not significant."
    )


def test_advice() -> None:
    data = logs(400)
    one = rank({"best": FixedPolicy(improved(2.0)), "bad": FixedPolicy(improved(-2.0))}, data, gamma=0.95)
    assert one.advice == "best is the best of those with valid estimates: certify it."
    poor = rank({"poor": FixedPolicy(improved(-1.0)), "bad": FixedPolicy(improved(-3.0))}, data, gamma=0.95)
    only = "Only poor has a valid estimate. None of these is significantly better than the logs."
    assert poor.evaluations["bad"].decides is None and poor.advice == only
    none = rank({"a": FixedPolicy(POLICY)}, logs(12), gamma=0.95)
    assert none.advice.startswith("These logs cannot rank any of the policies") and none.ranges == {"a": (1, 1)}
    seen = rank({"a": FixedPolicy(POLICY), "b": FixedPolicy(LOGGER)}, data, gamma=0.95, seen={"a"})
    assert list(seen.evaluations) == ["b", "a"] and seen.evaluations["a"].decides is None
    assert seen.ranges["a"] == (1, 2)
    with pytest.raises(ConfigError, match="no policies"):
        rank({}, data)
