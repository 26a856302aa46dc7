"""Collection of whole episodes."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import birl
from birl.algos import DQNConfig
from birl.errors import ConfigError
from birl.metrics import evaluate


def pole(n: int, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * n, autoreset_mode=mode)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(("n", "episodes"), [(3, 5), (3, 2)])
def test_the_first_episodes_that_start_are_collected(mode: AutoresetMode, n: int, episodes: int) -> None:
    """Episodes that end first tend to be short. The stored ones are the episodes of `evaluate`."""
    birl.seed(0)
    algorithm = DQNConfig(encoder_factory=[4]).create()
    algorithm.build_with_env(pole(1))
    buffer = algorithm.collect(pole(n, mode), deterministic=True, n_episodes=episodes, seed=7, show_progress=False)
    returns = [episode.compute_return() for episode in buffer.episodes]
    assert sorted(returns) == sorted(evaluate(algorithm, pole(n, mode), episodes, seed=7))
    assert all(episode.terminated for episode in buffer.episodes)
    assert buffer.transition_count == sum(returns)
    assert all(np.abs(episode.observations[0]).max() <= 0.05 for episode in buffer.episodes)  # where CartPole begins


def test_a_number_of_episodes_is_one_or_more() -> None:
    with pytest.raises(ConfigError, match="n_episodes is 0"):
        DQNConfig().create().collect("CartPole-v1", n_episodes=0)
