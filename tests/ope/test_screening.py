"""Screening of many candidates, and mean ranks over several splits of few episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from birl.errors import ConfigError
from birl.ope import Choice, choose, mean_ranks, rank, ranking, screening
from birl.ope.episode_arrays import read_episodes
from birl.ope.model_selection import ranks
from birl.ope.screening import screening_values
from tests.ope.test_decisions import WORLD, FixedPolicy, Noisy, improved, logs, quantities

STEPS = np.linspace(-2.0, 2.0, 12).tolist()


def test_screening_values_are_near_the_true_values(monkeypatch: pytest.MonkeyPatch) -> None:
    policies = {f"{step:.1f}": FixedPolicy(improved(step)) for step in STEPS}
    truth = [WORLD.truth(improved(step)) for step in STEPS]
    data = read_episodes(logs(300), 0.95, None)
    values = list(screening_values(policies, data).values())
    assert max(abs(a - b) for a, b in zip(values, truth, strict=True)) < 0.4  # from 4.4 to 5.8
    assert np.corrcoef(ranks(values), ranks(truth))[0, 1] > 0.95
    monkeypatch.setattr(screening, "MAX_EPISODES", 200)
    few = list(screening_values(policies, data).values())
    assert few != values and np.corrcoef(ranks(few), ranks(truth))[0, 1] > 0.9


def test_policies_far_from_the_data_come_last() -> None:
    data = logs(100)
    for episode in data.episodes:
        assert episode.extra is not None
    one = np.zeros((5, 3))
    one[:, 2] = 1.0
    held = read_episodes(data, 0.95, None)
    assert held.propensities is not None
    held.propensities[:, 2] = 0.0
    assert screening_values({"far": FixedPolicy(one)}, held) == {"far": -np.inf}


def test_continuous_actions_are_screened_by_weights() -> None:
    values = screening_values({"near": Noisy(0.0), "far": Noisy(1.0)}, read_episodes(quantities(200), 0.95, None))
    assert np.isfinite(list(values.values())).all()
    nothing = read_episodes(quantities(20), 0.95, None)
    object.__setattr__(nothing, "log_propensity", None)
    assert screening_values({"near": Noisy(0.0)}, nothing) == {"near": -np.inf}


def test_rank_evaluates_only_policies_that_pass_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[str] = []
    evaluate_view = ranking.evaluate_view
    monkeypatch.setattr(
        ranking, "evaluate_view", lambda name, *rest: evaluated.append(name) or evaluate_view(name, *rest)
    )
    confidences: list[float] = []
    compare = ranking._compare
    monkeypatch.setattr(
        ranking,
        "_compare",
        lambda one, two, confidence: confidences.append(confidence) or compare(one, two, confidence),
    )
    policies: dict[str, Any] = {f"{step:.1f}": FixedPolicy(improved(step)) for step in STEPS}
    data = logs(150)
    ranked = rank(policies, data, gamma=0.95, keep=4, seen={"2.0"})
    assert sorted(evaluated) == sorted(ranked.evaluations) and len(evaluated) == 4
    assert {*ranked.set_aside} == {*policies} - {*evaluated} and "2.0" in ranked.set_aside
    assert {"1.6", "1.3"} <= {*evaluated} and list(ranked.set_aside)[-1] == "2.0"  # seen policies come last
    assert {*confidences[:6]} == {1 - 0.05 / 66}  # all pairs share the error, not only those that passed the screen
    assert not rank({name: policies[name] for name in evaluated}, data, gamma=0.95).set_aside
    with pytest.raises(ConfigError, match="keep is 0"):
        rank(policies, data, keep=0)


def test_choose_evaluates_only_runs_that_pass_the_screen() -> None:
    runs = {f"run {step:.1f}": {f"{step:.1f} {k}": FixedPolicy(improved(step)) for k in range(2)} for step in STEPS}
    choices = choose(runs, logs(150), gamma=0.95, keep=3, seen={"2.0 0", "2.0 1"})
    assert len(choices) == 3 and {"run 1.6", "run 1.3"} <= {*choices} and "run 2.0" not in choices
    assert max(max(one.ranks) for one in choices.values()) <= 6  # among the models that were evaluated


def choice(rank: float) -> Choice:
    return Choice({"model": None}, np.array([rank]), "model" if np.isfinite(rank) else None)  # type: ignore[dict-item]


def test_mean_ranks_by_hand() -> None:
    splits = [{"a": choice(1.0), "b": choice(2.5), "c": choice(np.inf)}, {"b": choice(1.0), "a": choice(4.0)}]
    assert mean_ranks(splits) == {"a": 1.5, "b": 1.5, "c": 3.0}
    with pytest.raises(ConfigError, match="there are no splits"):
        mean_ranks([])


def test_five_splits_choose_better_than_one() -> None:
    """With few episodes the error of an estimate is as large as the differences between settings."""
    truth, rng = np.linspace(0, 1, 6), np.random.default_rng(0)
    one = five = 0.0
    for _ in range(400):
        splits = [
            {str(k): choice(float(r)) for k, r in enumerate(ranks(truth + rng.normal(0, 0.5, 6)))} for _ in range(5)
        ]
        one += truth[int(next(iter(mean_ranks(splits[:1]))))] / 400
        five += truth[int(next(iter(mean_ranks(splits))))] / 400
    assert five > one + 0.1
