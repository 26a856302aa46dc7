"""Selection of models and runs by averaged ranks, and values that turn down."""

from __future__ import annotations

import numpy as np
import pytest

from birl.errors import ConfigError
from birl.ope import choose, turns_down
from birl.ope.model_selection import average_neighbours, ranks
from tests.ope.test_decisions import FixedPolicy, improved, logs


def test_ranks_by_hand() -> None:
    assert ranks([3.0, 1.0, 2.0]).tolist() == [1.0, 3.0, 2.0]
    assert ranks([1.0, 5.0, 1.0, -np.inf, -np.inf]).tolist() == [2.5, 1.0, 2.5, 4.5, 4.5]


def test_neighbours_by_hand() -> None:
    assert average_neighbours([1.0, 4.0, 1.0, 7.0]).tolist() == [2.0, 2.0, 4.0, 5.0]
    assert average_neighbours([1.0, 4.0], 0).tolist() == [1.0, 4.0]
    assert average_neighbours([1.0, 4.0], 3).tolist() == pytest.approx([16 / 7, 19 / 7])
    assert average_neighbours([5.0]).tolist() == [5.0]


def test_neighbours_choose_better_than_the_best_of_many_estimates() -> None:
    """A run that rises and falls, with estimates whose errors are as large as the differences between its models."""
    truth = np.sin(np.linspace(0, np.pi, 15))
    rng, alone, shared = np.random.default_rng(0), 0.0, 0.0
    for _ in range(2000):
        place = ranks(truth + rng.normal(0, 0.5, truth.shape))
        alone += truth[place.argmin()] / 2000
        shared += truth[average_neighbours(place).argmin()] / 2000
    assert shared > alone + 0.02


def test_models_of_runs() -> None:
    runs = {
        "rising": {f"rising {k}": FixedPolicy(improved(step)) for k, step in enumerate((-2.0, 0.5, 2.0, 3.0))},
        "lucky": {f"lucky {k}": FixedPolicy(improved(step)) for k, step in enumerate((-2.0, 3.0, -2.0))},
    }
    data = logs(400)
    choices = choose(runs, data, gamma=0.95)
    assert list(choices) == ["rising", "lucky"]
    assert choices["rising"].name == "rising 3" and list(choices["rising"].evaluations) == list(runs["rising"])
    assert choices["lucky"].name == "lucky 1" and choices["lucky"].rank > choices["rising"].rank
    alone = choose(runs, data, gamma=0.95, neighbours=0)  # models that act alike share their ranks
    assert alone["rising"].ranks.tolist() == [6.0, 4.0, 3.0, 1.5] and alone["lucky"].ranks.tolist() == [6.0, 1.5, 6.0]


def test_refused_models_are_not_chosen() -> None:
    runs = {"a": {"a": FixedPolicy(improved(0.0))}, "b": {"b": FixedPolicy(improved(1.0))}}
    choices = choose(runs, logs(400), gamma=0.95, seen={"b"})
    assert choices["a"].name == "a" and choices["b"].name is None and list(choices) == ["a", "b"]


def test_bad_input() -> None:
    one = FixedPolicy(improved(0.0))
    with pytest.raises(ConfigError, match="a run without policies"):
        choose({"a": {"a": one}, "b": {}}, logs(50))
    with pytest.raises(ConfigError, match="two runs have a policy of the same name"):
        choose({"a": {"x": one}, "b": {"x": one}}, logs(50))
    with pytest.raises(ConfigError, match="neighbours is -1"):
        choose({"a": {"x": one}}, logs(50), neighbours=-1)


def test_values_that_turn_down() -> None:
    assert turns_down([1.0, 2.0, 3.0, 2.9, 2.0, 1.0]) == 2
    assert turns_down([1.0, 2.0, 1.5, 3.0, 3.5, 4.0]) is None  # one low value has no effect
    assert turns_down([5.0, 4.0, 3.0, 2.0, 1.0]) == 0
    assert turns_down([1.0, 0.0, -1.0]) is None  # too few
