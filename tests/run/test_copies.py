"""Environments, explorers, experts and networks may write into the arrays that they get, which are copies."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

import birl
from birl.acting.explorers import Explorer
from birl.algos import DecisionTransformerConfig, DQNConfig, PPOConfig, SACConfig
from birl.dataset import (
    BasicWriterPreprocess,
    create_fifo_replay_buffer,
    create_infinite_replay_buffer,
)
from birl.envs import Stepper
from birl.logging import NoopAdapterFactory
from birl.models import VectorEncoderFactory

SMALL = VectorEncoderFactory([8])
QUIET: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
BOX = spaces.Box(-1, 1, (2,), np.float32)


class Halving(gymnasium.Env[Any, Any]):
    """Rewards the first number of an action, and then halves all of them in place."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, action_space: Any = BOX) -> None:
        self.action_space = action_space

    def _observation(self) -> Any:
        self.steps += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = -1
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        part = action["a"] if isinstance(action, dict) else action
        reward = float(part.flat[0])
        part *= 0.5
        return self._observation(), reward, False, self.steps >= 6, {}


def space(kind: str, bound: float = 1.0) -> Any:
    box = spaces.Box(-bound, bound, (2, 2) if kind == "matrix" else (2,), np.float32)
    return spaces.Dict({"a": box, "b": spaces.Discrete(2)}) if kind == "dict" else box


def environment(kind: str, space: Any) -> Any:
    if kind == "plain":
        return Halving(space)
    return SyncVectorEnv([lambda: Halving(space)] * 2, autoreset_mode=AutoresetMode(kind))


def same(buffer: Any) -> bool:
    """Whether each stored action is the one that was rewarded."""
    pairs = [(e.actions.reshape(len(e.actions), -1)[:, 0], e.rewards.ravel()) for e in buffer.episodes]
    return len(pairs) > 2 and all(np.array_equal(*pair) for pair in pairs)


KINDS = ["plain", *(mode.value for mode in AutoresetMode)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("actions", "scaler"), [("vector", None), ("vector", "min_max"), ("matrix", None)])
def test_stored_actions_are_those_that_environments_were_given(kind: str, actions: str, scaler: Any) -> None:
    birl.seed(0)
    env = environment(kind, space(actions, 1.0 if scaler is None else 2.0))
    small: Any = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL}
    sac = SACConfig(batch_size=8, action_scaler=scaler, **small).create()
    assert same(sac.collect(env, n_steps=60, show_progress=False))
    buffer = create_fifo_replay_buffer(1000, env=env)
    sac.fit_online(env, buffer, n_steps=60, random_steps=20, update_interval=10, n_steps_per_epoch=60, **QUIET)
    assert same(buffer)


@pytest.mark.parametrize("kind", ["plain", "SameStep"])
def test_rollouts_hold_the_actions_that_were_sampled(kind: str) -> None:
    birl.seed(0)
    small: Any = {"actor_encoder_factory": SMALL, "value_encoder_factory": SMALL}
    ppo, seen = PPOConfig(rollout_length=30, batch_size=30, n_epochs=1, **small).create(), []
    env = environment(kind, space("dict"))
    ppo.build_with_env(env)
    learn = ppo.learner.update
    ppo.learner.update = lambda drawn: (seen.append(drawn), learn(drawn))[1]
    ppo.fit_online(env, n_steps=60, n_steps_per_epoch=60, **QUIET)
    assert seen
    for rollout in seen:
        taken = np.where(rollout.valid, np.clip(rollout.action[..., 0], -1, 1), rollout.reward)
        np.testing.assert_array_equal(taken, rollout.reward)


def test_an_environment_that_writes_into_actions_is_brought_back() -> None:
    generator = np.random.default_rng(0)
    stepper = Stepper(Halving(), np.random.default_rng(1))
    for _ in range(4):
        stepper.step(generator.uniform(-2, 2, (1, 2)))
    state, other = stepper.get_state(), Stepper(Halving(), np.random.default_rng(2))
    other.set_state(state)
    assert not other.lost and np.array_equal(other.get_state()["actions"], state["actions"])


class Overwriting(Explorer):
    """Writes into all arguments."""

    needs_values = True

    def begin(self, is_first: Any) -> None:
        is_first[:] = True

    def sample(self, algo: Any, x: Any, step: int) -> Any:
        for _ in range(2):
            values, greedy = algo.action_values(x), algo.predict(x)
            assert values.min() > -50 and greedy.max() < 50
            values -= 100
            greedy += 100
        x += 100
        return np.zeros(len(greedy), np.int64)


class Counting(gymnasium.Env[Any, Any]):
    """Observations and rewards are the number of the step."""

    observation_space, action_space = spaces.Box(-200, 200, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.full(1, self.steps, np.float32), float(self.steps), False, self.steps == 7, {}


def counted(buffer: Any) -> bool:
    return all(np.array_equal(e.observations.ravel() + 1, e.rewards.ravel()) and len(e) == 7 for e in buffer.episodes)


def test_explorers_get_copies() -> None:
    dqn = DQNConfig(encoder_factory=SMALL, batch_size=8).create()
    assert counted(dqn.collect(Counting(), explorer=Overwriting(), n_steps=21, show_progress=False))


def test_experts_get_copies() -> None:
    def expert(x: Any) -> Any:
        x += 100
        return np.zeros(len(x), np.int64)

    dqn = DQNConfig(encoder_factory=SMALL).create()
    assert counted(dqn.collect(Counting(), expert=expert, n_steps=21, show_progress=False))


class _Shifting(nn.Module):
    """Writes into observations, as ``x.div_(255)`` does."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(shape[0], 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x.add_(100) / 200)


class Shifting(birl.models.EncoderFactory):
    def create(self, observation_shape: Any) -> Any:
        return _Shifting(observation_shape)

    @staticmethod
    def get_type() -> str:
        return "shifting of test_copies"


def test_encoders_get_copies() -> None:
    dqn = DQNConfig(encoder_factory=Shifting()).create()
    assert counted(dqn.collect(Counting(), n_steps=21, show_progress=False))
    x = np.ones((3, 1), np.float32)
    dqn.predict(x)
    dqn.predict_value(x, np.zeros(3, np.int64))
    assert (x == 1).all()


def test_contexts_of_sequence_models_are_not_handed_out() -> None:
    config = DecisionTransformerConfig(encoder_factory=Shifting(), context_size=4, num_layers=1, num_heads=1)
    model = config.create()
    model.create_impl((1,), 1)
    actor = model.as_stateful_wrapper(1.0)
    for step in range(3):
        actor.predict(np.full(1, step, np.float32), 0.0)
    context = actor._actor.get_state()["observation"]
    assert context.ravel().tolist() == [0, 0, 1, 2]


class Writing(BasicWriterPreprocess):
    """Changes steps in place before they are stored."""

    def process_observation(self, observation: Any) -> Any:
        observation += 100
        return observation

    def process_action(self, action: Any) -> Any:
        action *= 2
        return action


def test_what_preprocessors_write_is_stored_and_not_acted_on() -> None:
    env, seen = Counting(), []
    buffer = create_infinite_replay_buffer(env=env, writer_preprocessor=Writing())

    class Looking(Explorer):
        def sample(self, algo: Any, x: Any, step: int) -> Any:
            seen.append(x[0, 0])
            return np.zeros(1, np.int64)

    DQNConfig(encoder_factory=SMALL).create().collect(env, buffer, Looking(), n_steps=14, show_progress=False)
    assert seen == [0, 1, 2, 3, 4, 5, 6] * 2
    assert buffer.episodes[0].observations.ravel().tolist() == [100, 101, 102, 103, 104, 105, 106]
