"""Entries of an environment's info as columns of a buffer, and in ``compute_reward``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import birl
from birl.algos import ConstantEpsilonGreedy, DQNConfig, IMPALAConfig
from birl.dataset import HindsightSampler, ReplayBuffer, create_fifo_replay_buffer
from birl.errors import ConfigError, EnvironmentMismatchError, MissingColumnWarning, ResumeError, UnsupportedError
from birl.logging import NoopAdapterFactory

POINT = spaces.Box(-100, 100, (1,), np.float32)
QUIET: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


class Goal(gymnasium.Env[Any, Any]):
    """Counts steps. The reward depends on the cost of the action, which is in the info."""

    observation_space: Any = spaces.Dict({"observation": POINT, "achieved_goal": POINT, "desired_goal": POINT})
    action_space: Any = spaces.Discrete(2)
    lacks_cost_after = 10**9

    def seen(self) -> Any:
        at = np.array([self.t], np.float32)
        return {"observation": at, "achieved_goal": at, "desired_goal": np.array([5], np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        info = {"cost": 0.125 * int(action), "held": bool(self.t % 2), "place": [self.t, int(action)]}
        seen = self.seen()
        reward = float(self.compute_reward(seen["achieved_goal"], seen["desired_goal"], info))
        if self.t > self.lacks_cost_after:
            del info["cost"]
        return seen, reward, False, self.t >= 8, info

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -(np.abs(achieved - desired)[..., 0] > 0.5).astype(np.float32) - info["cost"]


def buffer_of(env: Any, **options: Any) -> Any:
    options = {"info_keys": ("cost", "held", "place"), **options}
    return create_fifo_replay_buffer(200, env=env, sampler=HindsightSampler(Goal().compute_reward), **options)


def train(env: Any, buffer: Any, n_steps: int = 60, **options: Any) -> Any:
    algo = DQNConfig(batch_size=16).create()
    algo.fit_online(env, buffer, ConstantEpsilonGreedy(1.0), n_steps=n_steps, **QUIET, **options)
    return algo


def vector(mode: Any) -> Any:
    return SyncVectorEnv([Goal, Goal, Goal], autoreset_mode=mode)


@pytest.mark.parametrize("make", [Goal, *(lambda mode=mode: vector(mode) for mode in AutoresetMode)])
def test_entries_are_stored_with_their_steps_and_reach_compute_reward(make: Any) -> None:
    env = make()
    buffer = buffer_of(env)
    train(env, buffer)
    for episode in buffer.episodes:
        actions, after = episode.actions[:, 0], np.arange(episode.size()) + 1
        np.testing.assert_array_equal(episode.extra["cost"], 0.125 * actions)
        np.testing.assert_array_equal(episode.extra["held"], after % 2 == 1)
        np.testing.assert_array_equal(episode.extra["place"], np.stack([after, actions], 1))
        assert [episode.extra[name].dtype for name in ("cost", "held", "place")] == [float, bool, float]
    batch = buffer.sample_transition_batch(200)
    goals, following = batch.observations["desired_goal"], batch.next_observations["achieved_goal"]
    assert len(np.unique(goals)) > 3
    expected = -(np.abs(goals - following) > 0.5).astype(np.float32) - 0.125 * batch.actions
    np.testing.assert_array_equal(batch.rewards, expected)


def test_a_missing_entry_is_named_with_its_step() -> None:
    env: Any = Goal()
    env.lacks_cost_after = 3
    with pytest.raises(
        EnvironmentMismatchError, match=r"environment 0 has no 'cost' in step 3, but \['held', 'place'\]"
    ):
        train(env, buffer_of(env))
    with pytest.raises(ConfigError, match=r"reads info\['cost'\], but stored steps have only \['held'\]: make the buf"):
        train(Goal(), buffer_of(env, info_keys=["held"]))
    with pytest.raises(ConfigError, match=r"stored steps have no info: make the buffer with info_keys=\('cost',\)"):
        train(Goal(), buffer_of(env, info_keys=()))


@pytest.mark.parametrize("value", ["open", None, pytest.param(object(), id="object"), [[1], [1, 2]]], ids=str)
def test_entries_that_are_no_numbers_are_refused(value: Any) -> None:
    class Words(Goal):
        def step(self, action: Any) -> Any:
            *others, info = super().step(action)
            return *others, {**info, "held": value}

    with pytest.raises(EnvironmentMismatchError, match="'held'.* in step 0"):
        train(Words(), buffer_of(Words()))


@pytest.mark.parametrize("keys", ["cost", 3, (1,)], ids=str)
def test_names_are_checked(keys: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"info_keys is {keys!r}; it must list names")):
        buffer_of(Goal(), info_keys=keys)


def test_a_run_with_entries_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    def run(n_steps: int, folder: str) -> Any:
        birl.seed(1)
        env = Goal()
        buffer = buffer_of(env)
        train(env, buffer, n_steps, n_steps_per_epoch=20, checkpoint=tmp_path / folder)
        return buffer

    run(40, "cut")
    resumed, whole = run(60, "cut"), run(60, "whole")
    for first, second in zip(resumed.episodes, whole.episodes, strict=True):
        np.testing.assert_array_equal(first.extra["place"], second.extra["place"])
    assert (resumed.sample_transition_batch(50).rewards == whole.sample_transition_batch(50).rewards).all()


def test_entries_are_kept_in_folders(tmp_path: Path) -> None:
    buffer = buffer_of(Goal(), storage=tmp_path / "data")
    train(Goal(), buffer, 20)
    buffer.close()
    sampler = HindsightSampler(Goal().compute_reward)
    again = ReplayBuffer.open(tmp_path / "data", sampler=sampler, info_keys=("cost", "held", "place"))
    train(Goal(), again, 20)
    assert all((episode.extra["place"][:, 0] > 0).all() for episode in again.episodes) and again.step_count == 40


def test_steps_without_a_column_of_the_buffer_are_warned_of_once(tmp_path: Path) -> None:
    buffer = buffer_of(Goal(), storage=tmp_path / "data")
    train(Goal(), buffer, 20)
    buffer.close()
    again = ReplayBuffer.open(tmp_path / "data")
    with pytest.warns(MissingColumnWarning, match=r"extra columns cost, held, place.*hold 0.*info_keys") as caught:
        train(Goal(), again, 20)
    assert len(caught) == 1
    assert (again.episodes[-1].extra["place"] == 0).all()


def test_entries_that_stored_steps_lack_are_warned_of(tmp_path: Path) -> None:
    buffer = buffer_of(Goal(), storage=tmp_path / "data", info_keys=("cost",))
    train(Goal(), buffer, 20)
    buffer.close()
    again = ReplayBuffer.open(tmp_path / "data", info_keys=("cost", "held"))
    with pytest.warns(MissingColumnWarning, match=r"info_keys has held, but the buffer has steps without"):
        train(Goal(), again, 20)


def test_a_run_is_resumed_with_the_same_entries_only(tmp_path: Path) -> None:
    train(Goal(), buffer_of(Goal(), info_keys=("cost",)), 20, n_steps_per_epoch=10, checkpoint=tmp_path / "run")
    with pytest.raises(ResumeError, match="info_keys was"):
        train(Goal(), buffer_of(Goal()), 40, n_steps_per_epoch=10, checkpoint=tmp_path / "run")


def test_a_function_for_one_goal_at_a_time_is_named() -> None:
    def of_one(achieved: Any, desired: Any, infos: Any) -> Any:
        return np.array([-info["cost"] for info in infos])

    buffer = create_fifo_replay_buffer(200, env=Goal(), sampler=HindsightSampler(of_one), info_keys=("cost",))
    with pytest.raises(ConfigError, match=r"compute_reward raised TypeError.*goals of \d+ steps.*one dict of arrays"):
        train(Goal(), buffer)


def test_rollouts_refuse_entries() -> None:
    buffer = create_fifo_replay_buffer(200, env=Goal(), info_keys=("cost",))
    with pytest.raises(UnsupportedError, match=r"info_keys=\('cost',.*rollouts hold no info; make the buffer without"):
        IMPALAConfig(rollout_length=8, batch_size=1).create().fit_online(Goal(), buffer, n_steps=16, **QUIET)


def test_the_loop_of_a_user_passes_the_info() -> None:
    env: Any = Goal()
    buffer = buffer_of(env)
    algo = DQNConfig(batch_size=8).create()
    algo.build_with_env(env)
    agent = algo.agent(buffer=buffer, env=env)
    observation, _ = env.reset(seed=1)
    for _ in range(20):
        action = agent.act(observation)
        observation, reward, terminated, truncated, info = env.step(action)
        agent.observe(observation, reward, terminated, truncated, info=info)
        if truncated:
            observation, _ = env.reset()
    assert buffer.episodes[0].extra["place"][:, 0].tolist() == list(range(1, 9))
    action = agent.act(observation)
    observation, reward, terminated, truncated, _ = env.step(action)
    with pytest.raises(EnvironmentMismatchError, match=r"has no 'cost' in step 20, but \[\]"):
        agent.observe(observation, reward, terminated, truncated)


def test_clusters_refuse_entries() -> None:
    with pytest.raises(UnsupportedError, match="cannot be combined with cluster=…: collectors send no info"):
        train(lambda _: Goal(), buffer_of(Goal(), lanes=2), cluster=birl.Cluster(collectors=2, transport="inline"))
