"""What GAIL adds to on-policy learners: demonstrations with rollouts."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from types import new_class
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import birl
from birl.algorithm import Algorithm
from birl.algorithm import config as config_class
from birl.algos import ACER, ICML2015TRPO, REINFORCE, VMPO, A2CGAILConfig, GAILConfig, PPOConfig, TRPOGAILConfig
from birl.algos.gail import DISCRIMINATOR_STEPS, ImitationFields, WithDiscriminator, imitating
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


def wide() -> MDPDataset:
    """Steps of another environment."""
    return MDPDataset(np.zeros((6, 3), np.float32), np.arange(6) % 2, np.zeros(6, np.float32), np.arange(6) == 5)


def test_a_few_demonstrations_are_enough_for_long_rollouts() -> None:
    """NNablaRL draws them without replacement, and needs as many as a rollout has steps."""
    rows, ones, zeros = np.eye(8, dtype=np.float32)[:3], np.ones(3, np.int64), np.zeros(3, np.float32)
    few = MDPDataset(rows, ones, zeros, np.arange(3) == 2, action_size=2)
    algorithm = GAILConfig(**SMALL).create()
    algorithm.fit_online(ChainEnv(), n_steps=32, demonstrations=few, **QUIET)
    assert algorithm.grad_step == 2 * (2 + 2)  # passes of both over rollouts of 16 steps, by 8


def test_the_discriminator_sees_actions_as_the_environment_was_given_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bounds there are none of the expert's: a Gaussian would be found out by how far it goes."""
    from birl.algorithm.learner import Learner

    birl.seed(0)
    seen: list[Rollout] = []
    monkeypatch.setattr(Learner, "update", lambda self, drawn: seen.append(drawn) or {})
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
    monkeypatch.setattr(Learner, "update", lambda self, drawn: seen.append(drawn) or {})
    zeros = np.zeros(20, np.float32)
    expert = MDPDataset(np.zeros((20, 8), np.float32), np.zeros((20, 2), np.float32), zeros, np.arange(20) % 5 == 4)
    algorithm = GAILConfig(**SMALL).create()
    algorithm.fit_online(HalfBounded(), n_steps=16, demonstrations=expert, **QUIET)
    batch = algorithm.learner.batch(seen[0])
    taken, own = batch.extra["taken_action"], batch.action
    assert float(own[..., 0].abs().max()) > 0.1 and float(own[..., 1].abs().max()) > 1
    assert torch.allclose(taken[..., 0], own[..., 0].clamp(-0.1, 0.1)) and torch.equal(taken[..., 1], own[..., 1])


def test_demonstrations_beyond_the_bounds_are_refused() -> None:
    rows, ends = np.zeros((20, 8), np.float32), np.arange(20) % 5 == 4
    for reach, refused in (([0.1, 9.0], False), ([0.2, 0.0], True)):
        actions = np.tile(np.array(reach, np.float32), (20, 1))
        expert = MDPDataset(rows, actions, np.zeros(20, np.float32), ends)
        says = "actions reach from 0.2 to 0.2 in dimension 0, beyond the environment's bounds .-0.1, 0.1."
        with pytest.raises(DataError, match=says) if refused else contextlib.nullcontext():
            GAILConfig(**SMALL).create().fit_online(HalfBounded(), n_steps=16, demonstrations=expert, **QUIET)


def judged_batches(config: Any, env: Any, n_steps: int) -> list[tuple[Any, Any]]:
    """The batches of the discriminator, with the parameters' update left out."""
    algorithm = config.create()
    algorithm.build_with_env(env)
    seen: list[Any] = []
    algorithm.engine.update = lambda batch, only=None: seen.append((batch, only)) or {}
    algorithm.fit_online(env, n_steps=n_steps, demonstrations=shown(), seed=3, **QUIET)
    return [(algorithm, batch) for batch, only in seen if only == ("discriminator",)]


def test_resets_of_vector_environments_are_not_judged() -> None:
    """In NEXT_STEP, rows where an environment only resets are no steps."""
    make = [lambda n=n: gymnasium.wrappers.TimeLimit(ChainEnv(), n) for n in (3, 5)]  # which do not end together
    env = SyncVectorEnv(make, autoreset_mode=AutoresetMode.NEXT_STEP)
    seen = judged_batches(GAILConfig(**SMALL), env, 64)
    assert sum(len(batch.weight) for _, batch in seen) == 64
    assert all(bool((batch.weight == 1).all()) for _, batch in seen)
    for _, batch in seen:
        assert len(batch.extra["expert_action"]) == len(batch.extra["taken_action"]) == len(batch.weight)


def test_padding_of_sequences_is_not_judged() -> None:
    from birl.algos.gail import discriminator_loss

    memory = GRUEncoderFactory(4, [4])
    recurrent = {"actor_encoder_factory": memory, "value_encoder_factory": memory, "sequence_length": 5}
    seen = judged_batches(GAILConfig(**{**SMALL, **recurrent}), ChainEnv(), 16)
    assert sum(int(batch.weight.sum()) for _, batch in seen) == 16  # four sequences of five, padded by four
    assert sum(batch.weight.numel() for _, batch in seen) == 20
    for algorithm, batch in seen:
        spoiled = batch.map(torch.clone)
        padding = spoiled.weight == 0
        for name in ("expert_observation", "expert_action", "taken_action"):
            spoiled.extra[name][padding] = 1
        spoiled.observation[padding] = 50.0
        plain, other = (discriminator_loss(algorithm.nets, each, algorithm.config) for each in (batch, spoiled))
        assert torch.equal(plain.value, other.value) and plain.metrics == other.metrics


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
            data = shown()  # the sampler begins again, but for the checkpoint
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
        (GAILConfig(**SMALL), wide(), ShapeError, "the dataset has observations .3.*, but"),
        (PPOConfig(), shown(), ConfigError, "PPO does not use demonstrations"),
        (birl.algos.DQNConfig(), shown(), ConfigError, "DQN does not use demonstrations"),
    ],
    ids=["none", "a name", "other actions", "other observations", "PPO", "DQN"],
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
    with pytest.raises(DataError, match="with demonstrations, which this one does not have"):
        algorithm.update(rollout)
    algorithm.update(replace(rollout, expert=shown().sample_transition_batch(2)))


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"discriminator_encoder_factory": GRUEncoderFactory()}, ConfigError, "the discriminator reads single steps"),
        ({"actor_encoder_factory": GRUEncoderFactory(), "reward": "airl"}, UnsupportedError, 'use reward="gail"'),
        ({"reward": "wgan"}, ConfigError, "wgan"),
        ({"shaping": True}, ConfigError, 'shaping=True was given with reward="gail".*use reward="airl"'),
    ],
    ids=["recurrent discriminator", "recurrent airl", "unknown reward", "shaping without airl"],
)
def test_what_cannot_imitate(fields: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        GAILConfig(**{**SMALL, **fields}).create().build_with_env(ChainEnv())


def imitator(learner: Any) -> Any:
    """The configuration of GAIL with a learner, made as docs/imitation.md says."""
    name = f"{learner.__name__}GAIL"
    own = config_class(type(f"{name}Config", (ImitationFields, learner.config_class), {"__module__": __name__}))
    nets = type(f"{name}Nets", (WithDiscriminator, learner.networks), {"__module__": __name__})
    parts = {
        "__module__": __name__,
        "actions": learner.actions,
        "learns_from": imitating(learner.learns_from),
        "acts": learner.acts,
        "steps": (*DISCRIMINATOR_STEPS, *learner.steps),
    }
    new_class(name, (Algorithm[own, nets],), {}, lambda space: space.update(parts))  # type: ignore[valid-type]
    return own


class Generous(ChainEnv):
    """A chain with rewards of its own."""

    def step(self, action: Any) -> Any:
        """A step with another reward."""
        observation, reward, *rest = super().step(action)
        return observation, 5.0 - reward, *rest


LEARNERS = [TRPOGAILConfig, A2CGAILConfig, *map(imitator, (REINFORCE, VMPO, ICML2015TRPO))]


@pytest.mark.parametrize("reward", ["gail", "airl"])
@pytest.mark.parametrize("config", LEARNERS, ids=lambda config: config.__name__)
def test_any_learner_from_rollouts_imitates_and_looks_at_no_reward(config: Any, reward: str) -> None:
    fields = {**SMALL, "reward": reward, "n_discriminator_epochs": 2, "n_episodes": 2}
    known = {name: value for name, value in fields.items() if hasattr(config(), name)}
    found = []
    for env in (ChainEnv(), Generous()):
        birl.seed(1)
        algorithm = config(**known).create()
        algorithm.build_with_env(env)
        before = {name: value.clone() for name, value in algorithm.nets.state_dict().items()}
        limited = gymnasium.wrappers.TimeLimit(env, 12)
        algorithm.fit_online(limited, n_steps=64, demonstrations=shown(), seed=3, **QUIET)
        found.append(algorithm.nets.state_dict())
    for network in ("actor", "discriminator"):
        assert any(name.startswith(network) and not torch.equal(x, before[name]) for name, x in found[0].items())
    assert all(torch.equal(x, found[1][name]) for name, x in found[0].items())


def test_what_learns_from_stored_rewards_does_not_imitate() -> None:
    with pytest.raises(ConfigError, match="imitation was requested with Replays, .*use a learner from rollouts alone"):
        imitating(ACER.learns_from)


def test_the_shaping_term_has_no_value_after_a_termination() -> None:
    """AIRL's ``f = g + gamma h(s') - h(s)``, and an episode that is over has no state."""
    from birl.algos.gail import logit

    algorithm = GAILConfig(**SMALL, reward="airl", shaping=True, gamma=0.5).create()
    algorithm.build_with_env(ChainEnv())
    nets, config = algorithm.nets, algorithm.config
    for network, constant in ((nets.discriminator, 3.0), (nets.shaping, 2.0)):
        for parameter in network.parameters():
            torch.nn.init.zeros_(parameter)
        torch.nn.init.constant_(network.linear.bias, constant)
    zeros, no = np.zeros((2, 1), np.float32), np.zeros((2, 1), bool)
    x, ends = np.zeros((2, 1, 8), np.float32), np.array([[True], [False]])
    rollout = Rollout(x, np.zeros((2, 1), np.int64), zeros, x, ends, no, no, ~no, {})
    batch = algorithm.learner.batch(replace(rollout, expert=shown().sample_transition_batch(2)))
    judged = logit(nets, batch, "agent", config) + batch.extra["agent_log_prob"]
    assert judged.flatten().tolist() == pytest.approx([3.0 - 2.0, 3.0 + 0.5 * 2.0 - 2.0], abs=1e-5)


def test_demonstrations_of_several_steps_are_refused_where_the_next_state_counts() -> None:
    algorithm = GAILConfig(**SMALL, reward="airl", shaping=True).create()
    far = birl.dataset.ReplayBuffer(
        birl.dataset.InfiniteBuffer(),
        episodes=shown().episodes,
        transition_picker=birl.dataset.MultiStepTransitionPicker(3, 0.99),
    )
    with pytest.raises(
        ConfigError, match="demonstrations have transitions of 3 steps.*shaping=True.*leave out their transition_picker"
    ):
        algorithm.fit_online(ChainEnv(), n_steps=64, demonstrations=far, **QUIET)
