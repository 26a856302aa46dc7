"""Environments that are given by name, and objects that are not environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from birl.algos import DQNConfig, LinearDecayEpsilonGreedy, PPOConfig
from birl.dataset import FIFOBuffer
from birl.errors import ConfigError, EnvironmentMismatchError
from birl.metrics import EnvironmentEvaluator, evaluate
from run.test_offline import quiet


@pytest.mark.parametrize("config", [DQNConfig(batch_size=8), PPOConfig(rollout_length=16)])
def test_environments_by_name(config: Any) -> None:
    algorithm, seen = config.create(), []
    algorithm.fit_online(
        "CartPole-v1",
        n_steps=32,
        eval_env="CartPole-v1",
        eval_n_trials=1,
        callback=lambda algo, epoch, step: seen.append(step),
        **quiet(),
    )
    assert (algorithm.observation_shape, algorithm.action_size, len(seen)) == ((4,), 2, 32)
    assert EnvironmentEvaluator("CartPole-v1", 1)(algorithm) > 0
    assert len(evaluate(algorithm, "CartPole-v1", 2)) == 2
    assert algorithm.collect("CartPole-v1", n_steps=10, show_progress=False).transition_count == 10


def test_an_environment_of_ones_own_by_name() -> None:
    algorithm = DQNConfig(batch_size=8).create()
    algorithm.fit_online("run.fakes:Drift", n_steps=16, **quiet())
    assert algorithm.action_size == 3


@pytest.mark.parametrize("wrong", [3, None, [], gymnasium.Env, "nothing"])
@pytest.mark.parametrize("config", [DQNConfig(), PPOConfig()])
def test_objects_that_are_no_environments(config: Any, wrong: Any) -> None:
    algorithm, kinds = config.create(), (EnvironmentMismatchError, ConfigError)
    with pytest.raises(kinds, match="environment"):
        algorithm.fit_online(wrong, n_steps=10, **quiet())
    with pytest.raises(kinds, match="environment"):
        algorithm.collect(wrong, n_steps=10)
    with pytest.raises(kinds, match="environment"):
        EnvironmentEvaluator(wrong)
    if wrong is not None:
        with pytest.raises(kinds, match="environment"):
            algorithm.fit_online("CartPole-v1", n_steps=10, eval_env=wrong, **quiet())
    assert not algorithm.built


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"n_steps": "3"}, "n_steps"),
        ({"n_steps": None}, "n_steps"),
        ({"n_steps": 10, "seed": "1"}, "seed"),
        ({"n_steps": 10, "seed": -1}, "seed"),
        ({"n_steps": 10, "explorer": 3}, "explorer"),
        ({"n_steps": 10, "explorer": LinearDecayEpsilonGreedy}, "explorer"),
        ({"n_steps": 10, "buffer": 3}, "buffer"),
        ({"n_steps": 10, "buffer": FIFOBuffer(100)}, "buffer"),
        ({"n_steps": 10, "logger_adapter": "tb"}, "logger_adapter"),
        ({"n_steps": 10, "callback": 3}, "callback"),
        ({"n_steps": 10, "epoch_callback": 3}, "callback"),
    ],
)
def test_arguments_are_checked_before_networks_are_built(options: Any, name: str) -> None:
    algorithm = DQNConfig().create()
    with pytest.raises(ConfigError, match=f"{name} is"):
        algorithm.fit_online("CartPole-v1", **{**quiet(), **options})
    assert not algorithm.built
