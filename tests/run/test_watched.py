"""What runs log to be watched: values of actions, explained variance, learning rates, speed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl.losses import explained_variance, shares
from birl.optimizers import AdamFactory, CosineAnnealingLRFactory
from birl.testing.contract.subject import Subject
from run.test_offline import data

QUIET: Any = {"logger_adapter": birl.logging.NoopAdapterFactory(), "show_progress": False}


def test_the_mean_value_of_sampled_actions_is_logged() -> None:
    dqn = birl.algos.DQNConfig(batch_size=8, learning_rate=1e-30).create()
    dataset = data()
    dqn.build_with_dataset(dataset)
    batch = dqn.sample_minibatch(dataset)
    expected = dqn.predict_value(batch.observations, batch.actions[:, 0]).mean()
    assert float(dqn.update(batch)["q_value"]) == pytest.approx(float(expected), abs=1e-5)


def test_agents_know_it() -> None:
    env = birl.envs.make_env("CartPole-v1")
    agent = birl.algos.DQNConfig(batch_size=4).create().agent(env=env, update_start_step=5)
    observation, _ = env.reset(seed=0)
    lengths, length = [], 0
    for _ in range(60):
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        agent.observe(observation, reward, terminated, truncated)
        length += 1
        if terminated or truncated:
            lengths.append(length)
            observation, length = env.reset()[0], 0
    found = agent.metrics()
    assert np.isfinite(found["q_value"]) and found["episode_length"] == pytest.approx(np.mean(lengths))


def test_explained_variance() -> None:
    returns, weight = torch.tensor([1.0, 2.0, 3.0, 100.0]), torch.tensor([1.0, 1.0, 1.0, 0.0])

    def of(*values: float) -> float:
        return float(explained_variance(torch.tensor([*values, 0.0]), returns, shares(weight)))

    assert of(1, 2, 3) == 1 and of(11, 12, 13) == pytest.approx(1)  # a constant error has no variance
    assert of(2, 2, 2) == pytest.approx(0) and of(3, 2, 1) == pytest.approx(-3) and of(90, -90, 90) == -10
    constant = torch.ones(3)
    assert float(explained_variance(constant, constant, shares(constant))) == 1
    assert np.isfinite(float(explained_variance(returns[:3] * 1e18, constant, shares(constant))))


@pytest.mark.parametrize("config", [birl.algos.PPOConfig, birl.algos.A2CConfig])
def test_runs_on_rollouts_log_it(config: Any) -> None:
    seen: list[float] = []

    def after(algo: Any, epoch: int, step: int, run: birl.run.Run) -> None:
        seen.append(run.metrics["explained_variance"])

    algorithm = config(rollout_length=16, batch_size=8).create()
    algorithm.fit_online("CartPole-v1", n_steps=64, n_steps_per_epoch=32, epoch_callback=after, **QUIET)
    assert len(seen) == 2 and all(-10 <= value <= 1 for value in seen)


@pytest.mark.parametrize("config", [birl.algos.PPOConfig, birl.algos.A2CConfig, birl.algos.A3CConfig])
def test_it_is_that_of_the_whole_rollout(config: Any) -> None:
    subject = Subject(config(gamma=0.9, gae_lambda=0.5, batch_size=8))
    algorithm = subject.build()
    (rollout,) = subject.inputs(algorithm, 1)
    batch = algorithm.learner.batch(rollout)
    returns, advantage = batch.extra["return"].numpy(), batch.extra["advantage"].numpy()
    expected = pytest.approx(1 - advantage.var() / returns.var(), rel=1e-4)
    if config is not birl.algos.PPOConfig:  # PPO makes many updates of a rollout
        (computed,) = algorithm.compute_gradients(rollout).values()
        assert float(computed.loss.metrics["explained_variance"]) == expected
    metrics = algorithm.update(rollout)
    assert float(metrics["explained_variance"]) == expected and metrics["explained_variance"].shape == ()


def test_learning_rates_that_follow_a_schedule() -> None:
    optim = AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(10))
    config = birl.algos.DQNConfig(batch_size=8, learning_rate=0.5, optim_factory=optim)
    (_, metrics), (_, last) = config.create().fit(data(), 10, n_steps_per_epoch=5, **QUIET)
    assert metrics["learning_rate"] == pytest.approx(0.25) and last["learning_rate"] == pytest.approx(0, abs=1e-8)
    assert "learning_rate" not in birl.algos.DQNConfig(batch_size=8).create().fit(data(), 2, **QUIET)[0][1]
    sac = birl.algos.DiscreteSACConfig(batch_size=8, actor_optim_factory=optim)
    names = {name for name in sac.create().fit(data(), 2, **QUIET)[0][1] if "rate" in name}
    assert names == {"actor_learning_rate"}
