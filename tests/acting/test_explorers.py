"""Explorers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import birl.seeding
from birl.acting.explorers import (
    Boltzmann,
    ConstantEpsilonGreedy,
    ExponentialDecayEpsilonGreedy,
    Greedy,
    LinearDecayEpsilonGreedy,
    NormalNoise,
    OrnsteinUhlenbeckNoise,
)
from birl.errors import ConfigError, CorruptFileError
from birl.types import MASK


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


def test_exponential_decay() -> None:
    explorer = ExponentialDecayEpsilonGreedy(0.8, 0.1, 0.5)
    assert [explorer.compute_epsilon(step) for step in (0, 1, 2, 3, 10**9)] == pytest.approx([0.8, 0.4, 0.2, 0.1, 0.1])
    assert (explorer.sample(algo(GREEDY), X, 1) != 2).mean() == pytest.approx(0.3, abs=0.06)


def test_greedy() -> None:
    assert (Greedy().sample(algo(GREEDY), X, 0) == 2).all()


def test_noise_of_another_size_for_each_quantity() -> None:
    box = spaces.Box(-9, 9, (2,))
    actions = NormalNoise([1.0, 0.0], np.array([0.0, 2.0])).bind(box).sample(algo(np.zeros((1000, 2))), X, 0)
    assert (actions[:, 0] == 1).all() and actions[:, 1].std() == pytest.approx(2, abs=0.2)
    assert vars(NormalNoise(std=[1, 2]))["_std"] == (1.0, 2.0)  # which checkpoints compare
    for explorer in (NormalNoise(std=[1, 2, 3]), OrnsteinUhlenbeckNoise(mean=[0.0])):
        with pytest.raises(ConfigError, match="numbers, but actions have 2 continuous dimensions"):
            explorer.bind(box)


def test_choices_next_to_quantities_stay_greedy() -> None:
    space = spaces.Tuple([spaces.Discrete(5), spaces.Box(-1, 1, (2,))])
    greedy = np.tile(np.array([3, 0, 0], np.float32), (1000, 1))
    for explorer in (NormalNoise(std=0.5), OrnsteinUhlenbeckNoise(sigma=[0.1, 0.5])):
        actions = explorer.bind(space).sample(algo(greedy), X, 0)
        assert (actions[:, 0] == 3).all() and (actions[:, 1:].std(0) > 0.15).all() and np.abs(actions[:, 1:]).max() == 1


# -- Ornstein-Uhlenbeck ------------------------------------------------------------------------------------------------


def noises(explorer: Any, firsts: Any, n: int = 3) -> Any:
    """The noise of each step of ``n`` environments, whose greedy actions are 0."""
    found = []
    for first in firsts:
        explorer.begin(np.broadcast_to(first, n))
        found.append(explorer.sample(algo(np.zeros((n, 2))), X[:n], 0))
    return np.array(found)


def test_the_noise_drifts_as_the_paper_says_and_each_environment_has_its_own() -> None:
    def explorer() -> Any:
        birl.seeding.seed(4)
        return OrnsteinUhlenbeckNoise(0.5, 0.25, 0.1).bind(spaces.Box(-9, 9, (2,), np.float64))

    drawn = explorer()
    found = noises(drawn, [True] + [False] * 9)
    generator = explorer().generator
    x = 0.5 + 0.1 / np.sqrt(2 * 0.25 - 0.25**2) * generator.standard_normal((3, 2))
    for row in found:  # a loop of one's own
        assert np.allclose(row, x, rtol=0, atol=1e-12)
        x = x + 0.25 * (0.5 - x) + 0.1 * generator.standard_normal((3, 2))
    assert not np.allclose(found[:, 0], found[:, 1])


def test_every_episode_begins_with_a_new_noise_and_others_go_on() -> None:
    explorer = OrnsteinUhlenbeckNoise(theta=0.1, sigma=1e-3, start_at_mean=True).bind(spaces.Box(-9, 9, (2,)))
    noises(explorer, [True])
    explorer._state[:] = 5.0
    (found,) = noises(explorer, [[True, False, False]])
    assert np.allclose(found, [[0, 0], [4.5, 4.5], [4.5, 4.5]], atol=0.02)


def test_the_noise_settles_where_it_begins() -> None:
    birl.seeding.seed(0)
    explorer = OrnsteinUhlenbeckNoise(1.0, 0.15, 0.2).bind(spaces.Box(-9, 9, (2,)))
    found = noises(explorer, [True] + [False] * 40, 3000)
    expected = 0.2 / np.sqrt(2 * 0.15 - 0.15**2)
    assert np.allclose(found.std((1, 2)), expected, rtol=0.06) and np.allclose(found.mean((1, 2)), 1, atol=0.03)


def test_the_noise_is_clipped_and_goes_on_from_a_saved_state() -> None:
    space = spaces.Box(-0.1, 0.1, (2,))
    birl.seeding.seed(1)
    first, second = (OrnsteinUhlenbeckNoise(sigma=[0.5, 1.0]).bind(space) for _ in range(2))
    noises(first, [True, False])
    state = first.get_state()
    expected = noises(first, [[False, True, False], False])
    assert np.abs(expected).max() == np.float32(0.1) and np.abs(first._state).max() > 0.2
    second.set_state(state)
    assert np.array_equal(noises(second, [[False, True, False], False]), expected)
    for damage in (
        {"noise": np.zeros((3, 1))},
        {"noise": np.full((3, 2), np.nan)},
        {"noise": np.zeros((3, 2), np.float32)},
        {"fresh": np.zeros(2, bool)},
        {"fresh": np.zeros(3)},
    ):
        with pytest.raises(CorruptFileError):
            second.set_state({**state, **damage})
        assert np.array_equal(second.get_state()["noise"], first.get_state()["noise"])


# -- Boltzmann ---------------------------------------------------------------------------------------------------------


def valued(values: Any) -> Any:
    return SimpleNamespace(action_values=lambda x: np.asarray(values, np.float32))


def test_choices_are_drawn_by_their_values() -> None:
    birl.seeding.seed(0)
    values = np.tile(np.log([1, 2, 5]), (20000, 1))
    for temperature, expected in ((1.0, [1, 2, 5]), (0.5, [1, 4, 25]), (1e9, [1, 1, 1]), (1e-9, [0, 0, 1])):
        drawn = Boltzmann(temperature).bind(spaces.Discrete(3, start=-4)).sample(valued(values), X, 0)
        share = np.bincount(drawn + 4, minlength=3) / len(drawn)
        assert np.allclose(share, np.array(expected) / np.sum(expected), atol=0.015)


def test_choices_that_are_not_allowed_are_never_drawn() -> None:
    values = np.tile([0.0, 9.0, -np.inf, 0.0], (1000, 1))
    drawn = Boltzmann(1e12).bind(spaces.Discrete(4)).sample(valued(values), X, 0)
    assert set(drawn) == {0, 1, 3}


def test_several_choices_are_drawn_each_by_its_own_values() -> None:
    values = np.tile([[0.0, 0.0, 0.0], [5.0, 5.0, -np.inf]], (1000, 1, 1))
    space = spaces.MultiDiscrete([3, 2], start=[1, 7])
    drawn = Boltzmann().bind(space).sample(valued(values), X, 0)
    assert drawn.shape == (1000, 2) and set(drawn[:, 0]) == {1, 2, 3} and set(drawn[:, 1]) == {7, 8}


def test_boltzmann_is_for_choices() -> None:
    with pytest.raises(ConfigError, match="Boltzmann, for discrete actions, but the actions are Box"):
        Boltzmann().bind(spaces.Box(-1, 1, (1,)))


@pytest.mark.parametrize("make", [lambda: ConstantEpsilonGreedy(0.9), lambda: ExponentialDecayEpsilonGreedy(0.9, 0.9)])
def test_random_actions_are_allowed_ones(make: Any) -> None:
    x = {"observation": X, MASK: np.tile(np.array([1, 0, 1, 0], np.int8), (1000, 1))}
    assert set(make().bind(spaces.Discrete(4)).sample(algo(GREEDY), x, 0)) == {0, 2}


def test_noise_is_for_quantities() -> None:
    with pytest.raises(ConfigError, match="NormalNoise, for continuous actions, but the actions are Discrete"):
        NormalNoise().bind(spaces.Discrete(4))


def test_out_of_range() -> None:
    for make in (
        lambda: ConstantEpsilonGreedy(1.5),
        lambda: LinearDecayEpsilonGreedy(-0.1),
        lambda: LinearDecayEpsilonGreedy(duration=0),
        lambda: NormalNoise(std=-1.0),
        lambda: NormalNoise(std=[0.1, -1.0]),
        lambda: NormalNoise(std=[]),
        lambda: NormalNoise(mean=[[1.0]]),
        lambda: ExponentialDecayEpsilonGreedy(0.5, 0.6),
        lambda: ExponentialDecayEpsilonGreedy(decay=0.0),
        lambda: Boltzmann(0.0),
        lambda: OrnsteinUhlenbeckNoise(theta=0.0),
        lambda: OrnsteinUhlenbeckNoise(sigma=-1.0),
    ):
        with pytest.raises(ConfigError, match="must"):
            make()
