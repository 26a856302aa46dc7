"""Two stages for many candidates, and several splits for few episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from birl.errors import ConfigError
from birl.ope import Choice, choose, mean_ranks, rank, ranking, screening
from birl.ope.episode_arrays import read
from birl.ope.model_selection import ranks
from birl.ope.screening import screened
from tests.ope.test_decisions import WORLD, Noisy, Told, improved, logs, quantities

STEPS = np.linspace(-2.0, 2.0, 12).tolist()


def test_a_screen_values_policies_as_they_are_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    policies = {f"{step:.1f}": Told(improved(step)) for step in STEPS}
    truth = [WORLD.truth(improved(step)) for step in STEPS]
    data = read(logs(300), 0.95, None)
    found = list(screened(policies, data).values())
    assert max(abs(a - b) for a, b in zip(found, truth, strict=True)) < 0.4  # from 4.4 to 5.8
    assert np.corrcoef(ranks(found), ranks(truth))[0, 1] > 0.95
    monkeypatch.setattr(screening, "READ", 200)
    few = list(screened(policies, data).values())
    assert few != found and np.corrcoef(ranks(few), ranks(truth))[0, 1] > 0.9


def test_what_is_far_from_the_data_comes_last() -> None:
    data = logs(100)
    for episode in data.episodes:
        assert episode.extra is not None
    one = np.zeros((5, 3))
    one[:, 2] = 1.0
    held = read(data, 0.95, None)
    assert held.propensities is not None
    held.propensities[:, 2] = 0.0
    assert screened({"far": Told(one)}, held) == {"far": -np.inf}


def test_quantities_are_screened_by_weights() -> None:
    found = screened({"near": Noisy(0.0), "far": Noisy(1.0)}, read(quantities(200), 0.95, None))
    assert np.isfinite(list(found.values())).all()
    nothing = read(quantities(20), 0.95, None)
    object.__setattr__(nothing, "log_propensity", None)
    assert screened({"near": Noisy(0.0)}, nothing) == {"near": -np.inf}


def test_of_many_policies_some_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[str] = []
    judged = ranking.judged
    monkeypatch.setattr(ranking, "judged", lambda name, *rest: evaluated.append(name) or judged(name, *rest))
    sure: list[float] = []
    apart = ranking._apart
    monkeypatch.setattr(ranking, "_apart", lambda one, other, one_of: sure.append(one_of) or apart(one, other, one_of))
    policies: dict[str, Any] = {f"{step:.1f}": Told(improved(step)) for step in STEPS}
    data = logs(150)
    found = rank(policies, data, gamma=0.95, keep=4, seen={"2.0"})
    assert sorted(evaluated) == sorted(found.evaluations) and len(evaluated) == 4
    assert {*found.set_aside} == {*policies} - {*evaluated} and "2.0" in found.set_aside
    assert {"1.6", "1.3"} <= {*evaluated} and list(found.set_aside)[-1] == "2.0"  # what was seen is no candidate
    assert {*sure[:6]} == {1 - 0.05 / 66}  # all pairs that were given share the error, not those that are left
    assert not rank({name: policies[name] for name in evaluated}, data, gamma=0.95).set_aside
    with pytest.raises(ConfigError, match="keep is 0"):
        rank(policies, data, keep=0)


def test_of_many_runs_some_are_evaluated() -> None:
    runs = {f"run {step:.1f}": {f"{step:.1f} {k}": Told(improved(step)) for k in range(2)} for step in STEPS}
    found = choose(runs, logs(150), gamma=0.95, keep=3, seen={"2.0 0", "2.0 1"})
    assert len(found) == 3 and {"run 1.6", "run 1.3"} <= {*found} and "run 2.0" not in found
    assert max(max(one.ranks) for one in found.values()) <= 6  # among the models that were evaluated


def choice(rank: float) -> Choice:
    return Choice({"model": None}, np.array([rank]), "model" if np.isfinite(rank) else None)  # type: ignore[dict-item]


def test_mean_ranks_by_hand() -> None:
    splits = [{"a": choice(1.0), "b": choice(2.5), "c": choice(np.inf)}, {"b": choice(1.0), "a": choice(4.0)}]
    assert mean_ranks(splits) == {"a": 1.5, "b": 1.5, "c": 3.0}
    with pytest.raises(ConfigError, match="there are no splits"):
        mean_ranks([])


def test_five_splits_choose_better_than_one() -> None:
    """Of few episodes the error of each estimate is as large as what is between settings."""
    truth, rng = np.linspace(0, 1, 6), np.random.default_rng(0)
    one = five = 0.0
    for _ in range(400):
        splits = [
            {str(k): choice(float(r)) for k, r in enumerate(ranks(truth + rng.normal(0, 0.5, 6)))} for _ in range(5)
        ]
        one += truth[int(next(iter(mean_ranks(splits[:1]))))] / 400
        five += truth[int(next(iter(mean_ranks(splits))))] / 400
    assert five > one + 0.1
