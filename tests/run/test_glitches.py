"""One observation so large that squared gradients overflow: the run reports it, and saved files can be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import birl
from birl.algos import DQNConfig, IQLConfig
from birl.dataset import MDPDataset
from birl.errors import NonFiniteError
from birl.logging import FileAdapterFactory, NoopAdapterFactory
from birl.models import VectorEncoderFactory
from birl.ope import EpsilonGreedy, load_policy
from birl.optimizers import AdamFactory
from birl.run.checkpoint import checkpoint_path

SMALL = VectorEncoderFactory([8])


class Glitch(gymnasium.Env[Any, Any]):
    """Observation number ``at`` is 1e30."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, 0

    def _observation(self) -> Any:
        self.seen += 1
        numbers = self.np_random.normal(size=3).astype(np.float32)
        return np.full(3, 1e30, np.float32) if self.seen == self.at else numbers

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._observation(), 1.0, self.steps >= 10, False, {}


def dqn(**options: Any) -> Any:
    birl.seed(0)
    return DQNConfig(batch_size=8, encoder_factory=SMALL, compile_graph=False, **options).create()


def train(algorithm: Any, env: Any, folder: Path, n_steps: int = 300) -> None:
    algorithm.fit_online(
        env, n_steps=n_steps, n_steps_per_epoch=100, update_start_step=20, seed=0, checkpoint=folder,
        show_progress=False, logger_adapter=FileAdapterFactory(folder), experiment_name="r",
        with_timestamp=False,
    )  # fmt: skip


def test_a_run_ends_soon_after_and_keeps_what_was_saved_before(tmp_path: Path) -> None:
    algorithm = dqn()
    with pytest.raises(NonFiniteError) as found:
        train(algorithm, Glitch(at=180), tmp_path)
    said = str(found.value)
    assert said.startswith("between update 81 and update 180 the moment 'exp_avg_sq' of the parameter 'critic.encoder")
    assert "(step: critic)" in said and "huge observations" in said and "clip_grad_norm" in said
    assert [path.name for path in (tmp_path / "r").glob("*.d3")] == ["model_100.d3"]
    birl.load_learnable(tmp_path / "r" / "model_100.d3")
    good = checkpoint_path(tmp_path).read_bytes()
    train(dqn(), Glitch(at=-1), tmp_path, n_steps=200)  # goes on from step 100, without the glitch
    assert checkpoint_path(tmp_path).read_bytes() != good
    assert birl.load_learnable(tmp_path / "r" / "model_200.d3").grad_step == 180


def test_the_advice_helps(tmp_path: Path) -> None:
    train(dqn(optim_factory=AdamFactory(clip_grad_norm=1.0)), Glitch(at=180), tmp_path)
    assert birl.load_learnable(tmp_path / "r" / "model_300.d3").grad_step == 280


def test_what_cannot_be_loaded_is_not_saved(tmp_path: Path) -> None:
    """An algorithm outside a loop does not check moments in its updates; a policy without moments is saved."""
    algorithm = dqn()
    algorithm.create_impl((3,), 2)
    optimizer = algorithm.engine.optimizers["critic"]
    data = MDPDataset(np.ones((20, 3), np.float32), np.arange(20) % 2, np.ones(20), np.arange(20) == 19)
    algorithm.update(data.sample_transition_batch(8))
    algorithm.save(tmp_path / "good.d3")
    good = (tmp_path / "good.d3").read_bytes()
    next(iter(optimizer.state.values()))["exp_avg_sq"][0] = torch.inf
    for save in (algorithm.save, algorithm.save_model):
        with pytest.raises(NonFiniteError, match="^the moment .* cannot be loaded"):
            save(tmp_path / "good.d3")
    assert (tmp_path / "good.d3").read_bytes() == good
    EpsilonGreedy(algorithm, 0.1).save(tmp_path / "policy.d3")
    load_policy(tmp_path / "policy.d3")


def test_agents_say_so_too() -> None:
    env = Glitch(at=60)
    algorithm = dqn()
    agent = algorithm.agent(env=env, update_start_step=20)
    observation, _ = env.reset(seed=0)
    with pytest.raises(NonFiniteError, match="between update 1 and update 80 the moment"):
        for _ in range(101):
            observation, *rest, _ = env.step(agent.act(observation))
            agent.observe(observation, *rest)
            if rest[1]:
                observation, _ = env.reset()
    assert agent.step == 100
    with pytest.raises(NonFiniteError):
        agent.metrics()


def test_many_seeds_name_the_one() -> None:
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(200, 3)).astype(np.float32) * 2.0**60
    ends = np.arange(200) % 20 == 19
    data = MDPDataset(observations, rng.uniform(-1, 1, (200, 2)), rng.normal(size=200), 0 * ends, ends)
    names = ("actor_encoder_factory", "critic_encoder_factory", "value_encoder_factory")
    config = IQLConfig(batch_size=16, **dict.fromkeys(names, SMALL))
    with pytest.raises(NonFiniteError, match="^seed_3: between update 1 and update 15 the moment"):
        quiet: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
        birl.fit_many(config, data, 30, (3, 5), n_steps_per_epoch=15, **quiet)
