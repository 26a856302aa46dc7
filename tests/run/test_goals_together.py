"""Hindsight with several learners and with shards: goals are sampled from the step's own episode."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import birl
from birl.algos import DQNConfig
from birl.dataset import HindsightSampler, PrioritizedSampler, Sampler, Uniform
from run.workers.test_collector_group import run, same
from run.workers.test_replay_shards import Batches
from run.workers.transports import run_inline

STEPS = 8
PLACE = spaces.Box(0, 1e6, (1,), np.float32)


class Stairs(gymnasium.Env[Any, Any]):
    """The observation grows by one in each step, from a multiple of 100 that identifies the episode."""

    observation_space = spaces.Dict({"achieved_goal": PLACE, "desired_goal": PLACE})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._here = self._first = 100 * int(self.np_random.integers(1, 10_000))
        return self._observed(), {}

    def _observed(self) -> dict[str, Any]:
        return {"achieved_goal": np.float32([self._here]), "desired_goal": np.float32([self._first + 99])}

    def step(self, action: Any) -> Any:
        self._here += 1
        return self._observed(), -1.0, False, self._here - self._first == STEPS, {}


def reward(achieved: Any, desired: Any, info: Any) -> Any:
    return (achieved == desired)[..., 0] - 1.0


def dqn(**fields: Any) -> Any:
    return DQNConfig(batch_size=16, **fields).create()


def ran(cluster: birl.Cluster | None, inner: Sampler) -> Any:
    stored = {"sampler": HindsightSampler(reward, k=3, sampler=inner), "limit": 90}
    return run(cluster, dqn, n_steps=120, env=Stairs(), stored=lambda: stored)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers run in this process."""
    run_inline(monkeypatch)


def check_goals(batch: Any) -> float:
    """Check rewards, and that goals are later states of the same episodes. Return the share of new goals."""
    at, goal = (batch.observation[name][:, 0].long() for name in ("achieved_goal", "desired_goal"))
    following = batch.next_observation["achieved_goal"][:, 0].long()
    assert torch.equal(following, at + 1)
    assert torch.equal(batch.next_observation["desired_goal"][:, 0].long(), goal)
    own = goal == at // 100 * 100 + 99
    assert torch.equal(goal // 100, at // 100) and bool((own | ((goal > at) & (goal % 100 <= STEPS))).all())
    assert torch.equal(batch.reward.reshape(-1), (following == goal).float() - 1)
    return float((~own).float().mean())


@pytest.mark.parametrize("sampler", [Uniform, PrioritizedSampler])
@pytest.mark.parametrize("part", ["learners", "shards"])
def test_goals_are_later_states_of_the_same_episode(part: str, sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch).all
    cluster = birl.Cluster(collectors=4, fragment=3, order="turns", **{part: 2})
    ran(cluster, sampler())
    assert len(batches) > 20
    assert 0.6 < np.mean([check_goals(batch) for batch in batches]) < 0.85  # 3 of 4
    seen = {int(place) // 100 for batch in batches for place in batch.observation["achieved_goal"][:, 0]}
    assert len(seen) >= 12  # episodes of all collectors


@pytest.mark.parametrize("sampler", [Uniform, PrioritizedSampler])
def test_one_shard_samples_what_the_plain_loop_samples(sampler: Any) -> None:
    one = birl.Cluster(1, 1, 1, "together", shards=1, ahead=False)
    assert same(ran(one, sampler()), ran(None, sampler()))
