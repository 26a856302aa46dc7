"""Explorers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import birl.seeding
from birl.acting.explorers import ConstantEpsilonGreedy, LinearDecayEpsilonGreedy, NormalNoise
from birl.errors import ConfigError


def algo(action: Any, size: int = 4, scaler: Any = None) -> Any:
    return SimpleNamespace(predict=lambda x: np.asarray(action), action_size=size, action_scaler=scaler)


X = np.zeros((1000, 2), np.float32)
GREEDY = np.full(1000, 2)


def test_constant_epsilon() -> None:
    assert (ConstantEpsilonGreedy(0.0).sample(algo(GREEDY), X, 0) == 2).all()
    actions = ConstantEpsilonGreedy(0.4).sample(algo(GREEDY), X, 10**9)
    assert set(actions) == {0, 1, 2, 3}
    assert actions.dtype == np.int64
    assert (actions != 2).mean() == pytest.approx(0.4 * 3 / 4, abs=0.06)


def test_linear_decay() -> None:
    explorer = LinearDecayEpsilonGreedy(1.0, 0.2, 100)
    assert [explorer.compute_epsilon(step) for step in (0, 50, 100, 10**6)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert (explorer.sample(algo(GREEDY), X, 0) != 2).mean() == pytest.approx(0.75, abs=0.06)
    assert (explorer.sample(algo(GREEDY), X, 100) != 2).mean() == pytest.approx(0.15, abs=0.06)


def test_normal_noise_stays_within_the_environments_bounds() -> None:
    greedy = np.zeros((1000, 2), np.float32)
    space = spaces.Box(np.array([-2.0, -0.1], np.float32), np.array([2.0, 0.1], np.float32))
    actions = NormalNoise(0.0, 0.5).bind(space).sample(algo(greedy), X, 0)
    assert actions.dtype == np.float32
    assert all(space.contains(action) for action in actions)
    assert actions[:, 0].std() == pytest.approx(0.5, abs=0.05)
    assert (np.abs(actions[:, 1]) == np.float32(0.1)).mean() > 0.5


def test_normal_noise_outside_of_a_loop() -> None:
    greedy = np.zeros((1000, 1), np.float32)
    assert np.abs(NormalNoise(0.0, 9.0).sample(algo(greedy), X, 0)).max() == 1.0
    scaler = SimpleNamespace(minimum=np.array([-3.0]), maximum=np.array([5.0]))
    actions = NormalNoise(1.0, 99.0).sample(algo(greedy, scaler=scaler), X, 0)
    assert (actions.min(), actions.max()) == (-3.0, 5.0)


@pytest.mark.parametrize("make", [lambda: ConstantEpsilonGreedy(0.5), lambda: NormalNoise()])
def test_state_and_seed(make: Any) -> None:
    def draw(explorer: Any) -> Any:
        return explorer.sample(algo(np.zeros((1000, 1)) if isinstance(explorer, NormalNoise) else GREEDY), X, 0)

    birl.seeding.seed(1)
    first = make()
    state = first.get_state()
    expected = draw(first)
    second = make()
    assert not np.array_equal(draw(second), expected)
    second.set_state(state)
    assert np.array_equal(draw(second), expected)
    birl.seeding.seed(1)
    assert np.array_equal(draw(make()), expected)


def test_noise_is_for_quantities() -> None:
    with pytest.raises(ConfigError, match="NormalNoise, for quantities, but the actions are Discrete"):
        NormalNoise().bind(spaces.Discrete(4))


def test_out_of_range() -> None:
    for make in (
        lambda: ConstantEpsilonGreedy(1.5),
        lambda: LinearDecayEpsilonGreedy(-0.1),
        lambda: LinearDecayEpsilonGreedy(duration=0),
        lambda: NormalNoise(std=-1.0),
    ):
        with pytest.raises(ConfigError, match="must"):
            make()
