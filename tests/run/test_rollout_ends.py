"""Rollouts that end with episodes, and evaluations with sampled actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import birl
from birl.metrics import EnvironmentEvaluator, evaluate
from birl.models import VectorEncoderFactory
from birl.run.on_policy import on_policy_fitter

QUIET: dict[str, Any] = {"logger_adapter": birl.logging.NoopAdapterFactory(), "show_progress": False}


class Fixed(gymnasium.Env[Any, Any]):
    """Episodes of 4 steps that terminate, and of 3 that are truncated, in turns; the reward is the action."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.step_number, self.episode = 0, self.episode + 1
        return np.zeros(2, "f4"), {}

    def step(self, action: Any) -> Any:
        self.step_number += 1
        terminated = bool(self.episode % 2 and self.step_number == 4)
        truncated = bool(self.episode % 2 == 0 and self.step_number == 3)
        return np.zeros(2, "f4"), float(action), terminated, truncated, {}


def lengths(name: str, n_steps: int, env: Any = None, **options: Any) -> list[int]:
    """Return the lengths of the rollouts of a run."""
    encoder: Any = {"actor_encoder_factory": VectorEncoderFactory([4])}
    config: Any = getattr(birl.algos, f"{name}Config")(**encoder, **options)
    algo, seen = config.create(), []
    prepare = algo.learns_from.read

    def read(learner: Any, rollout: Any) -> Any:
        seen.append(len(rollout.valid))
        return prepare(learner, rollout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(algo.learns_from), "read", lambda self, learner, rollout: read(learner, rollout))
        algo.fit_online(env or Fixed(), n_steps=n_steps, **QUIET)
    return seen


def test_rollouts_of_a3c_end_with_episodes() -> None:
    assert lengths("A3C", 16, rollout_length=100) == [4, 3, 4, 3, 2]
    assert lengths("A3C", 14, rollout_length=3) == [3, 1, 3, 3, 1, 3]
    assert lengths("A3C", 14, rollout_length=5, end_with_episode=False) == [5, 5, 4]
    assert lengths("A2C", 14, rollout_length=5) == [5, 5, 4]
    two = gymnasium.vector.SyncVectorEnv([Fixed, Fixed])
    assert lengths("A3C", 20, two, rollout_length=5)[0] == 5


def test_workers_end_their_rollouts_with_episodes() -> None:
    algo = birl.algos.A3CConfig(rollout_length=1000).create()
    algo.fit_online("CartPole-v1", n_steps=200, workers=1, seed=1, **QUIET)
    assert 4 <= algo.grad_step <= 25


def test_evaluations_may_sample() -> None:
    birl.seed(3)
    algo = birl.algos.PPOConfig(actor_encoder_factory=VectorEncoderFactory([4])).create()
    env = Fixed()
    algo.build_with_env(env)
    greedy = evaluate(algo, env, 6, seed=1)
    assert set(greedy) <= {0.0, 3.0, 4.0}
    before = birl.seeding.random_state()["torch"]
    sampled = evaluate(algo, Fixed(), 40, seed=1, sample=True)
    assert (birl.seeding.random_state()["torch"] == before).all()
    assert set(sampled) - {0.0, 3.0, 4.0} and sampled == evaluate(algo, Fixed(), 40, seed=1, sample=True)
    assert EnvironmentEvaluator(Fixed(), 40, seed=1, sample=True)(algo) == np.mean(sampled)
    with pytest.raises(birl.errors.ConfigError, match="leave one out"):
        evaluate(algo, env, sample=True, actor=algo.actor(greedy=True))


def test_a_run_evaluates_by_samples() -> None:
    scores = []
    for sample in (False, True):
        birl.seed(3)
        algo = birl.algos.A2CConfig(actor_encoder_factory=VectorEncoderFactory([4]), learning_rate=0.0).create()
        options: dict[str, Any] = {"eval_env": Fixed(), "eval_n_trials": 20, "eval_sample": sample, **QUIET}
        (epoch,) = on_policy_fitter(algo, Fixed(), 20, n_steps_per_epoch=20, **options)
        scores.append(epoch[1]["evaluation"])
    assert scores[0] in (0.0, 3.5) and scores[1] not in (0.0, 3.5)
