"""Time limits that count as terminations."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

import birl
from birl.envs import TruncationAsTermination


def test_a_time_limit_ends_the_task() -> None:
    env = TruncationAsTermination(gymnasium.make("Pendulum-v1", max_episode_steps=3))
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (True, False)]
    assert env.spec is not None and "TruncationAsTermination" in str(env.spec.additional_wrappers)


@pytest.mark.filterwarnings("ignore::birl.errors.ShortRunWarning")
def test_the_buffer_holds_terminations() -> None:
    for wrapper, terminated in ((TruncationAsTermination, 1.0), (None, 0.0)):
        env = birl.envs.make_env("Pendulum-v1", wrapper=wrapper, max_episode_steps=5)
        buffer = birl.dataset.create_fifo_replay_buffer(20, env=env)
        sac = birl.algos.SACConfig(batch_size=8, action_scaler=birl.preprocessing.MinMaxActionScaler()).create()
        options: dict[str, Any] = {"logger_adapter": birl.logging.NoopAdapterFactory(), "show_progress": False}
        sac.fit_online(env, buffer, n_steps=10, random_steps=10, update_start_step=100, **options)
        assert [float(episode.terminated) for episode in buffer.episodes] == [terminated, terminated]
