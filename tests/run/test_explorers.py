"""Explorers in loops: episodes, values, memory, masks, and exact resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import birl
from birl.acting.explorers import (
    Boltzmann,
    Explorer,
    ExponentialDecayEpsilonGreedy,
    Greedy,
    NormalNoise,
    OrnsteinUhlenbeckNoise,
)
from birl.algos import DDPGConfig, DiscreteSACConfig, DQNConfig, SACConfig
from birl.dataset import create_fifo_replay_buffer
from birl.errors import UnsupportedError
from birl.logging import NoopAdapterFactory
from birl.models import C51QFunctionFactory, LSTMEncoderFactory, QRQFunctionFactory, VectorEncoderFactory
from birl.run.data_collection import collect
from run.fakes import Drift, FakeLearner

SMALL = VectorEncoderFactory([8])
QUIET: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False, "n_steps_per_epoch": 30}


class Spaces(gymnasium.Env[Any, Any]):
    """Episodes of five steps, with any actions."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, action_space: Any, masked: bool = False) -> None:
        self.action_space, self._masked = action_space, masked

    def _answer(self) -> Any:
        self.steps += 1
        mask = np.array([1, 0, 1], np.int8) if self.steps % 2 else np.array([0, 1, 1], np.int8)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {"action_mask": mask} if self._masked else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = -1
        return self._answer()

    def step(self, action: Any) -> Any:
        if self._masked:
            assert action in ((1, 2) if self.steps % 2 == 0 else (0, 2))
        observation, info = self._answer()
        return observation, 1.0, False, self.steps == 5, info


class Listening(Explorer):
    """Records the episode starts that it receives."""

    def __init__(self) -> None:
        self.starts: list[Any] = []

    def begin(self, is_first: Any) -> None:
        self.starts.append(is_first.copy())

    def sample(self, algo: Any, x: Any, step: int) -> Any:
        return algo.predict(x)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_explorers_know_where_episodes_begin(mode: AutoresetMode) -> None:
    explorer, env = Listening(), SyncVectorEnv([lambda: Drift(limit=4, end=0.0)] * 2, autoreset_mode=mode)
    collect(FakeLearner(), env, explorer=explorer, n_steps=20, show_progress=False)
    starts = np.array(explorer.starts)
    wanted = [0, 5] if mode is AutoresetMode.NEXT_STEP else [0, 4, 8]  # in between is a step that only resets
    assert np.flatnonzero(starts[:10].all(1)).tolist() == wanted and (starts.all(1) == starts.any(1)).all()


def resumed(make: Any, env: Any, explorer: Any, path: Path, **options: Any) -> tuple[Any, Any]:
    """The networks after an uninterrupted run, and after one that was stopped in the middle of an episode."""
    found = []
    for name, ends in (("one", [60]), ("two", [33, 60])):
        for end in ends:
            birl.seed(1)
            algorithm = make().create()
            run: Any = {**QUIET, "checkpoint": path / name, "n_steps": end, "seed": 2, **options}
            algorithm.fit_online(env(), explorer=explorer(), update_start_step=10, **run)
        found.append([x.detach().numpy() for x in algorithm.nets.parameters()])
    return tuple(found)  # type: ignore[return-value]


def dqn() -> DQNConfig:
    return DQNConfig(batch_size=4, encoder_factory=SMALL)


BOX, PARTS = gymnasium.spaces.Box(-2, 2, (2,)), gymnasium.spaces.MultiDiscrete([3, 2])
SCALER = birl.preprocessing.MinMaxActionScaler()


@pytest.mark.parametrize(
    ("make", "space", "explorer"),
    [
        (lambda: DDPGConfig(batch_size=4, action_scaler=SCALER), BOX, lambda: OrnsteinUhlenbeckNoise(sigma=[0.1, 0.5])),
        (lambda: DDPGConfig(batch_size=4, action_scaler=SCALER), BOX, lambda: NormalNoise(std=[0.1, 0.5])),
        (dqn, gymnasium.spaces.Discrete(3), Boltzmann),
        (dqn, PARTS, lambda: ExponentialDecayEpsilonGreedy(decay=0.9)),
        (dqn, PARTS, Boltzmann),
    ],
    ids=["OU", "normal", "Boltzmann", "exponential", "several choices"],
)
def test_runs_go_on_bit_for_bit(make: Any, space: Any, explorer: Any, tmp_path: Path) -> None:
    def env() -> Any:
        return SyncVectorEnv([lambda: Spaces(space)] * 2)

    one, two = resumed(make, env, explorer, tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_noise_that_is_not_resumed_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The previous test can fail."""
    monkeypatch.setattr(OrnsteinUhlenbeckNoise, "get_state", Explorer.get_state)
    monkeypatch.setattr(OrnsteinUhlenbeckNoise, "set_state", Explorer.set_state)
    one, two = resumed(
        lambda: DDPGConfig(batch_size=4, action_scaler=SCALER),
        lambda: Spaces(BOX),
        OrnsteinUhlenbeckNoise,
        tmp_path,
    )
    assert not all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("explorer", [Boltzmann(5.0), ExponentialDecayEpsilonGreedy(), Greedy()])
@pytest.mark.parametrize("n", [1, 2])
def test_masks_are_honoured(explorer: Explorer, n: int) -> None:
    def env() -> Any:
        return birl.envs.ActionMask(Spaces(gymnasium.spaces.Discrete(3), masked=True))

    envs = env() if n == 1 else SyncVectorEnv([env] * n)
    algorithm = DQNConfig(encoder_factory=SMALL, batch_size=4).create()
    buffer = create_fifo_replay_buffer(100, env=envs)
    algorithm.fit_online(envs, buffer, explorer, n_steps=60, **QUIET)  # the environment checks its actions
    actions = np.concatenate([episode.actions[:, 0] for episode in buffer.episodes])
    assert set(actions) <= {0, 1, 2} and (isinstance(explorer, Greedy) or len(set(actions)) == 3)


@pytest.mark.parametrize("head", [None, QRQFunctionFactory(n_quantiles=4), C51QFunctionFactory(n_atoms=5)])
def test_values_of_all_actions(head: Any) -> None:
    options = {} if head is None else {"q_func_factory": head}
    algorithm = DQNConfig(encoder_factory=SMALL, n_critics=2, **options).create()
    algorithm.create_impl((3,), 4)
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    values = algorithm.action_values(x)
    assert values.shape == (6, 4) and np.array_equal(values.argmax(-1), algorithm.predict(x))
    one = np.stack([algorithm.predict_value(x, np.full(6, action)) for action in range(4)], -1)
    assert np.allclose(values, one, atol=1e-6)
    assert np.allclose(algorithm.action_values(x[:1]), values[:1], atol=1e-6)  # the fast form


def test_values_of_options_that_are_not_there() -> None:
    algorithm = DQNConfig(encoder_factory=SMALL).create()
    algorithm.create_impl((3,), PARTS)
    x = np.ones((5, 3), np.float32)
    values = algorithm.action_values(x)
    assert values.shape == (5, 2, 3) and (values[:, 1, 2] == -np.inf).all() and np.isfinite(values[:, 0]).all()
    assert np.array_equal(values.argmax(-1), algorithm.predict(x))


def test_values_of_recurrent_networks_remember() -> None:
    """In a loop, Boltzmann gets values that depend on the episode so far, not those of a first step."""

    class Reading(Boltzmann):
        def sample(self, algo: Any, x: Any, step: int) -> Any:
            seen.append((x, algo.action_values(x), algo.predict(x)))
            return super().sample(algo, x, step)

    seen: list[Any] = []
    algorithm = DQNConfig(encoder_factory=LSTMEncoderFactory(hidden_size=8)).create()
    algorithm.collect(Spaces(gymnasium.spaces.Discrete(3)), explorer=Reading(), n_steps=5, show_progress=False)
    actor = algorithm.actor(greedy=True)
    for step, (x, values, greedy) in enumerate(seen):
        assert np.array_equal(actor(x, np.array([step == 0]), np.zeros(1)), greedy)
        assert np.array_equal(values.argmax(-1), greedy)
    assert np.array_equal(seen[0][1], algorithm.action_values(seen[0][0]))
    assert not np.allclose(seen[4][1], algorithm.action_values(seen[4][0]), atol=1e-6)


def test_algorithms_without_values_say_so() -> None:
    sac = DiscreteSACConfig().create()
    sac.create_impl((3,), 3)
    with pytest.raises(UnsupportedError, match="DiscreteSAC does not select actions by the values of all actions"):
        sac.action_values(np.zeros((1, 3), np.float32))
    with pytest.raises(UnsupportedError, match="another explorer than Boltzmann"):
        sac.fit_online(Spaces(gymnasium.spaces.Discrete(3)), explorer=Boltzmann(), n_steps=99, **QUIET)


def test_greedy_makes_random_policies_greedy() -> None:
    sac = SACConfig(action_scaler=SCALER).create()
    env = Spaces(BOX)
    buffer = sac.collect(env, explorer=Greedy(), n_steps=7, show_progress=False)
    episode = buffer.episodes[0]
    assert np.allclose(episode.actions, sac.predict(episode.observations), atol=1e-6)


@pytest.mark.parametrize("explorer", [Boltzmann, lambda: ExponentialDecayEpsilonGreedy(decay=0.9)])
def test_agents_explore(explorer: Any) -> None:
    def make() -> Any:
        birl.seed(3)
        return DQNConfig(batch_size=4, encoder_factory=SMALL).create()

    env = Spaces(gymnasium.spaces.Discrete(3))
    one = make()
    one.build_with_env(env)
    agent = one.agent(explorer=explorer(), env=env, seed=5)
    observation, _ = env.reset(seed=0)
    for _ in range(30):
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        agent.observe(observation, reward, terminated, truncated)
        if truncated:
            observation, _ = env.reset()
    actions = [episode.actions for episode in agent._parts["buffer"].episodes]  # type: ignore[attr-defined]
    assert len(np.unique(np.concatenate(actions))) == 3 and one.grad_step == 27
