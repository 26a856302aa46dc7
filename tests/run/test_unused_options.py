"""Options that have no effect with the others are refused, or a warning names them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import birl
from birl.algos import DQNConfig, PPOConfig
from birl.dataset import PrioritizedSampler
from birl.errors import ConfigError, ShortRunWarning, UnusedOptionWarning
from run.test_offline import data

QUIET: Any = {"logger_adapter": birl.logging.NoopAdapterFactory(), "show_progress": False}


class Idle(birl.run.Hook):
    def __call__(self, algo: Any, epoch: int, step: int) -> None:
        pass


def dqn(**fields: Any) -> Any:
    return DQNConfig(batch_size=4, **fields).create()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_n_trials": 3}, "eval_n_trials=3 cannot be used without eval_env="),
        ({"eval_n_steps": 3}, "eval_n_steps cannot be used without eval_env="),
        ({"eval_env": "CartPole-v1", "eval_n_trials": 3, "eval_n_steps": 9}, "eval_n_trials=3 and eval_n_steps=9 both"),
    ],
)
def test_evaluations_that_are_not_made(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dqn().fit_online("CartPole-v1", n_steps=4, **options, **QUIET)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ahead": False}, "Cluster.ahead is False, but only shards sample ahead: give shards=, too, or leave ahead"),
        ({"patience": 5.0}, "Cluster.patience is 5.0, but only Ray waits"),
        ({"max_lag": 3, "order": "turns"}, "only order='arrival' drops fragments"),
    ],
)
def test_fields_of_clusters(fields: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        birl.Cluster(**fields)
    birl.Cluster(shards=1, ahead=False)
    birl.Cluster(patience=300.0, ahead=True)


def test_logging_steps_of_epochs() -> None:
    with pytest.warns(UnusedOptionWarning, match="logging_steps=2 has no effect.*give logging_strategy="):
        dqn().fit(data(), 4, logging_steps=2, **QUIET)
    dqn().fit(data(), 4, logging_steps=2, logging_strategy=birl.LoggingStrategy.STEPS, **QUIET)


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({}, {"logging_steps": 5, "logging_strategy": birl.LoggingStrategy.STEPS}, "logging_steps=5 is more than n_st"),
        ({}, {"callback": [Idle(4), Idle(5)]}, "hook Idle is never called, because every=5 is more than n_steps=4"),
        ({"reset_interval": 5}, {}, "reset_interval=5 has no effect, because this run makes 4 updates"),
        ({}, {"go_on": True}, "go_on=True has no effect without checkpoint="),
    ],
)
def test_intervals_longer_than_the_run(fields: Any, options: Any, message: str) -> None:
    with pytest.warns(UnusedOptionWarning, match=message) as found:
        dqn(**fields).fit(data(), 4, **options, **QUIET)
    assert [each.filename for each in found] == [__file__]


@pytest.mark.filterwarnings("error::birl.errors.UnusedOptionWarning")
def test_intervals_that_the_run_reaches(tmp_path: Path) -> None:
    options: Any = {"logging_steps": 4, "logging_strategy": birl.LoggingStrategy.STEPS, "callback": Idle(4), **QUIET}
    algorithm = dqn(reset_interval=4)
    algorithm.fit(data(), 4, go_on=True, checkpoint=tmp_path, **options)
    algorithm = dqn(reset_interval=7)
    with pytest.warns(UnusedOptionWarning, match="reset_interval=7"):
        algorithm.fit(data(), 4, **QUIET)
    algorithm.fit(data(), 4, **options)  # its last updates are number 5 to 8


def test_intervals_longer_than_a_run_in_an_environment() -> None:
    with pytest.warns(UnusedOptionWarning) as found:
        dqn(reset_interval=9).fit_online("CartPole-v1", n_steps=8, callback=Idle(9), **QUIET)
    assert {str(each.message)[:16] for each in found} == {"the hook Idle is", "reset_interval=9"}


def test_explorers_win_over_greedy_actions() -> None:
    explorer, env = birl.algos.ConstantEpsilonGreedy(0.5), birl.envs.make_env("CartPole-v1")
    with pytest.warns(UnusedOptionWarning, match="deterministic=True has no effect, because the ConstantEpsilonGreedy"):
        dqn().collect(env, explorer=explorer, deterministic=True, n_steps=5, show_progress=False)
    with pytest.warns(UnusedOptionWarning, match="deterministic=True has no effect"):
        dqn().agent(explorer=explorer, deterministic=True, env=env)


def test_lengths_and_updates_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="n_steps=5 and n_episodes=2 both set the length of the collection"):
        dqn().collect("CartPole-v1", n_steps=5, n_episodes=2)
    with pytest.raises(ConfigError, match="n_updates, update_start_step cannot be used with update_interval=None"):
        dqn().agent(env=birl.envs.make_env("CartPole-v1"), update_interval=None, n_updates=3, update_start_step=4)


@pytest.mark.parametrize("fields", [{"burn_in": 2}, {"sequence_length": 7}, {"burn_in": 2, "sequence_length": 7}])
def test_settings_of_sequences_without_a_memory(fields: Any) -> None:
    dqn(**fields, encoder_factory="gru").create_impl((2,), 3)
    dqn(burn_in=0, sequence_length=20).create_impl((2,), 3)
    with pytest.warns(UnusedOptionWarning, match="has no effect, because no network of this DQN has a memory") as found:
        dqn(**fields).create_impl((2,), 3)
    assert found[0].filename == __file__


@pytest.mark.parametrize("fields", [{"beta": 0.5}, {"beta_steps": 100}])
def test_weights_of_uniform_samples(fields: Any) -> None:
    PrioritizedSampler(alpha=0)
    PrioritizedSampler(alpha=0.1, **fields)
    with pytest.warns(UnusedOptionWarning, match="have no effect with alpha=0") as found:
        PrioritizedSampler(alpha=0, **fields)
    assert found[0].filename == __file__


def test_rollouts_that_are_cut_short(caplog: pytest.LogCaptureFixture) -> None:
    def train(n_steps: int, **fields: Any) -> str:
        caplog.clear()
        PPOConfig(n_epochs=1, **fields).create().fit_online("CartPole-v1", n_steps=n_steps, **QUIET)
        return caplog.text

    assert "n_steps=16 is less than a rollout of 32 steps" in train(16, rollout_length=32, batch_size=8)
    assert "batch_size=64 is more than a rollout of 8 steps" in train(16, rollout_length=8, batch_size=64)
    assert train(16, rollout_length=8, batch_size=8) == ""


def test_a_run_that_learns_nothing() -> None:
    with pytest.warns(ShortRunWarning, match="nothing will be learned in n_steps=3"):
        dqn().fit_online("CartPole-v1", n_steps=3, **QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dqn().fit_online("CartPole-v1", n_steps=8, **QUIET)


def test_the_last_step_may_be_the_first_update() -> None:
    algorithm = dqn()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        algorithm.fit_online("CartPole-v1", n_steps=20, update_start_step=19, **QUIET)
    assert algorithm.grad_step == 1


def test_an_explorer_that_never_acts() -> None:
    explorer = birl.algos.ConstantEpsilonGreedy(0.5)
    with pytest.warns(UnusedOptionWarning, match="explorer has no effect, .* random_steps=20 covers all n_steps=20"):
        dqn().fit_online("CartPole-v1", explorer=explorer, n_steps=20, random_steps=20, **QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dqn().fit_online("CartPole-v1", explorer=explorer, n_steps=20, random_steps=19, **QUIET)


def test_a_policy_without_noise_and_without_an_explorer_is_named(caplog: pytest.LogCaptureFixture) -> None:
    options: Any = {"n_steps": 8, **QUIET}
    dqn().fit_online("CartPole-v1", **options)
    assert "DQN selects greedy actions only" in caplog.text and "LinearDecayEpsilonGreedy()" in caplog.text
    td3 = birl.algos.TD3Config(batch_size=4, action_scaler=birl.preprocessing.MinMaxActionScaler()).create()
    td3.fit_online("Pendulum-v1", **options)
    assert "TD3 selects greedy actions only" in caplog.text and "NormalNoise()" in caplog.text
    caplog.clear()
    dqn().fit_online("CartPole-v1", explorer=birl.algos.Greedy(), **options)
    dqn(encoder_factory=birl.models.VectorEncoderFactory([4], noisy=True)).fit_online("CartPole-v1", **options)
    birl.algos.DiscreteSACConfig(batch_size=4).create().fit_online("CartPole-v1", **options)
    assert "greedy actions only" not in caplog.text


def test_target_networks_that_are_never_updated_are_named(caplog: pytest.LogCaptureFixture) -> None:
    algorithm = dqn(target_update_interval=1500, compile_graph=False)
    algorithm.build_with_dataset(data())
    learner = algorithm.learner
    for count in (1000, 1500):  # a trial, and the first update of the target
        learner.start_run(data(), count)
    assert not caplog.text
    learner.start_run(data(), 1499)
    assert "DQN never updates its target networks in this run" in caplog.text
    assert "target_update_interval=1500 exceeds its 1499 updates" in caplog.text
