"""What GAIL adds to PPO: demonstrations beside rollouts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import birl
from birl.algos import GAILConfig, PPOConfig
from birl.dataset import MDPDataset
from birl.errors import BirlError, ConfigError, DataError, ShapeError, UnsupportedError
from birl.logging import NoopAdapterFactory
from birl.models import GRUEncoderFactory
from birl.preprocessing import MinMaxActionScaler
from birl.run.protocols import Rollout
from birl.testing import ChainEnv, collect_dataset

SMALL: Any = {
    "actor_encoder_factory": [4],
    "value_encoder_factory": [4],
    "discriminator_encoder_factory": [4],
    "rollout_length": 16,
    "batch_size": 8,
    "n_epochs": 1,
}
QUIET: Any = {"show_progress": False, "logger_adapter": NoopAdapterFactory()}


def shown(discrete: bool = True) -> Any:
    env = ChainEnv(discrete)
    return collect_dataset(env, 30, policy=env.best_action, skill=1.0)


def test_the_discriminator_sees_actions_as_the_environment_was_given_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bounds there are none of the expert's: a Gaussian would be found out by how far it goes."""
    from birl.algorithm.learner import Learner

    birl.seed(0)
    seen: list[Rollout] = []
    monkeypatch.setattr(Learner, "learn", lambda self, drawn: seen.append(drawn) or {})
    env = gymnasium.make("Pendulum-v1")
    anyone = birl.algos.RandomPolicyConfig(action_scaler=MinMaxActionScaler()).create()
    expert = anyone.collect(env, n_steps=20, show_progress=False)
    algorithm = GAILConfig(**SMALL).create()
    algorithm.fit_online(env, n_steps=16, demonstrations=expert, **QUIET)
    batch = algorithm.learner.batch(seen[0])
    taken, own = batch.extra["taken_action"], batch.action
    assert float(own.abs().max()) > 1 and float(taken.abs().max()) == pytest.approx(1)  # in the policy's units
    assert torch.allclose(taken, own.clamp(-1, 1), atol=1e-6)
    assert batch.extra["expert_action"].shape == taken.shape
    assert float(batch.extra["expert_action"].abs().max()) <= 1


class HalfBounded(ChainEnv):
    """Two quantities, of which one has bounds: the policy's range is not that of the environment."""

    def __init__(self) -> None:
        super().__init__(discrete=False)
        top = np.array([0.1, np.inf], np.float32)
        self.action_space = gymnasium.spaces.Box(-top, top)  # type: ignore[assignment]


def test_quantities_without_bounds_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from birl.algorithm.learner import Learner

    birl.seed(0)
    seen: list[Rollout] = []
    monkeypatch.setattr(Learner, "learn", lambda self, drawn: seen.append(drawn) or {})
    zeros = np.zeros(20, np.float32)
    expert = MDPDataset(np.zeros((20, 8), np.float32), np.zeros((20, 2), np.float32), zeros, np.arange(20) % 5 == 4)
    algorithm = GAILConfig(**SMALL).create()
    algorithm.fit_online(HalfBounded(), n_steps=16, demonstrations=expert, **QUIET)
    batch = algorithm.learner.batch(seen[0])
    taken, own = batch.extra["taken_action"], batch.action
    assert float(own[..., 0].abs().max()) > 0.1 and float(own[..., 1].abs().max()) > 1
    assert torch.allclose(taken[..., 0], own[..., 0].clamp(-0.1, 0.1)) and torch.equal(taken[..., 1], own[..., 1])


@pytest.mark.parametrize("reward", ["gail", "airl"])
def test_a_run_that_is_resumed_draws_the_same_demonstrations(reward: str, tmp_path: Path) -> None:
    found = []
    for lengths in ((96,), (48, 96)):
        birl.seed(1)
        data, folder = shown(), tmp_path / str(len(lengths))
        for n_steps in lengths:
            algorithm = GAILConfig(**SMALL, reward=reward).create()
            env = gymnasium.wrappers.TimeLimit(ChainEnv(), 20)
            algorithm.fit_online(
                env, n_steps=n_steps, n_steps_per_epoch=48, demonstrations=data, checkpoint=folder, seed=3, **QUIET
            )
            data = shown()  # the sampler begins anew, but for the checkpoint
        found.append({name: value.clone() for name, value in algorithm.nets.state_dict().items()})
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_other_demonstrations_are_another_run(tmp_path: Path) -> None:
    options: Any = {"n_steps_per_epoch": 16, "checkpoint": tmp_path, "seed": 3, **QUIET}
    GAILConfig(**SMALL).create().fit_online(ChainEnv(), n_steps=16, demonstrations=shown(), **options)
    other = collect_dataset(ChainEnv(), 40)
    with pytest.raises(BirlError, match="demonstrations"):
        GAILConfig(**SMALL).create().fit_online(ChainEnv(), n_steps=32, demonstrations=other, **options)


def test_an_agent_learns_from_demonstrations_too() -> None:
    algorithm, env = GAILConfig(**SMALL).create(), ChainEnv()
    agent = algorithm.agent(env=env, demonstrations=shown())
    own = list(algorithm.nets.discriminator.parameters())
    before = [parameter.detach().clone() for parameter in own]
    observation, _ = env.reset(seed=0)
    for _ in range(16):
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        agent.observe(observation, reward, terminated, truncated)
        if terminated or truncated:
            observation, _ = env.reset()
    assert not all(torch.equal(old, new) for old, new in zip(before, own, strict=True))


@pytest.mark.parametrize(
    ("config", "given", "error", "says"),
    [
        (GAILConfig(**SMALL), None, ConfigError, "none were given: give demonstrations=dataset"),
        (GAILConfig(**SMALL), "expert.h5", ConfigError, "got 'expert.h5'.*ReplayBuffer.load"),
        (GAILConfig(**SMALL), shown(discrete=False), ShapeError, "the dataset has .* 1 action dimension, but"),
        (PPOConfig(), shown(), ConfigError, "PPO has no use for demonstrations"),
        (birl.algos.DQNConfig(), shown(), ConfigError, "DQN has no use for demonstrations"),
    ],
    ids=["none", "a name", "other actions", "PPO", "DQN"],
)
def test_demonstrations_are_for_those_who_imitate(config: Any, given: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        config.create().fit_online(ChainEnv(), n_steps=16, demonstrations=given, **QUIET)


def test_rollouts_alone_are_refused() -> None:
    algorithm = GAILConfig(**SMALL).create()
    algorithm.build_with_env(ChainEnv())
    zeros, no = np.zeros((2, 1), np.float32), np.zeros((2, 1), bool)
    x = np.zeros((2, 1, 8), np.float32)
    rollout = Rollout(x, np.zeros((2, 1), np.int64), zeros, x, no, no, no, ~no, {})
    with pytest.raises(DataError, match="demonstrations beside them, which this one does not have"):
        algorithm.update(rollout)
    algorithm.update(replace(rollout, expert=shown().sample_transition_batch(2)))


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"discriminator_encoder_factory": GRUEncoderFactory()}, ConfigError, "single steps are judged"),
        ({"actor_encoder_factory": GRUEncoderFactory(), "reward": "airl"}, UnsupportedError, 'use reward="gail"'),
        ({"reward": "wgan"}, ConfigError, "wgan"),
    ],
    ids=["recurrent discriminator", "recurrent airl", "unknown reward"],
)
def test_what_cannot_imitate(fields: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        GAILConfig(**{**SMALL, **fields}).create().build_with_env(ChainEnv())
