"""Noisy networks act: with noise where they sample, a draw for each step, and without it everywhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run.fakes import signal_at

import birl
from birl import algos
from birl.acting.actor import NetworkActor
from birl.algos import ConstantEpsilonGreedy, LinearDecayEpsilonGreedy, NormalNoise
from birl.cli.online import exploration
from birl.cli.train_options import TrainOptions
from birl.dataset import (
    MultiStepTransitionPicker,
    PrioritizedSampler,
    create_fifo_replay_buffer,
    create_infinite_replay_buffer,
)
from birl.errors import ConfigError, UnsupportedError
from birl.logging import NoopAdapterFactory
from birl.models import C51QFunctionFactory, MeanQFunctionFactory, VectorEncoderFactory
from birl.models.noisy import noise_of
from birl.preprocessing import MinMaxActionScaler

SMALL, NOISY = VectorEncoderFactory([16]), VectorEncoderFactory([16], noisy=2.0)
HEAD = C51QFunctionFactory(n_atoms=11, v_min=0.0, v_max=50.0, dueling=[16], noisy=True)
X = np.linspace(-1, 1, 400, dtype=np.float32).reshape(100, 4)


def dqn(config: Any = algos.DQNConfig, **fields: Any) -> Any:
    birl.seed(0)
    algorithm = config(**{"encoder_factory": NOISY, "q_func_factory": HEAD, "batch_size": 8, **fields}).create()
    algorithm.create_impl((4,), 2)
    return algorithm


@pytest.mark.parametrize(
    "fields",
    [{}, {"q_func_factory": MeanQFunctionFactory()}, {"encoder_factory": SMALL},
     {"encoder_factory": SMALL, "q_func_factory": MeanQFunctionFactory(noisy=True)}],
    ids=["all", "encoder", "streams", "linear head"],
)  # fmt: skip
def test_samples_have_noise_and_greedy_actions_none(fields: Any) -> None:
    algorithm = dqn(**fields)
    assert np.array_equal(algorithm.predict(X), algorithm.predict(X))
    samples = [algorithm.sample_action(X) for _ in range(8)]
    assert any(not np.array_equal(samples[0], each) for each in samples[1:])
    with torch.no_grad():
        for noise in noise_of(algorithm.nets):
            noise.weight.zero_()
            noise.bias.zero_()
    assert np.array_equal(algorithm.sample_action(X), algorithm.predict(X)), "the mean of the weights is what is left"


def test_one_noise_for_a_step_and_another_for_the_next() -> None:
    """Environments in the same state act alike, in every step."""
    algorithm = dqn()
    actor = NetworkActor(algorithm.learner.policy, greedy=False, n=20)
    rows = np.repeat(X[50:51], 20, 0)
    chosen = [actor(rows, np.zeros(20, bool), np.zeros(20, np.float32)) for _ in range(30)]
    assert all((each == each[0]).all() for each in chosen)
    assert len({int(each[0]) for each in chosen}) == 2


def test_noise_of_actors_moves_actions_that_are_quantities() -> None:
    birl.seed(0)
    algorithm = algos.DDPGConfig(actor_encoder_factory=NOISY).create()
    algorithm.create_impl((4,), 2)
    assert np.array_equal(algorithm.predict(X), algorithm.predict(X))
    assert np.abs(algorithm.sample_action(X) - algorithm.sample_action(X)).mean() > 1e-3


def test_acting_leaves_learning_noisy_and_the_other_way_round() -> None:
    """The engine's noise is the same whether or not there were actions between two updates."""
    results = []
    for acts in (False, True):
        algorithm = dqn(algos.DoubleDQNConfig, target_update_interval=2)
        generator = torch.Generator().manual_seed(1)
        for step in range(4):
            x = torch.randn(2, 8, 4, generator=generator)
            batch = birl.types.Batch(
                x[0], torch.arange(8) % 2, x[0, :, 0], x[1], torch.full((8,), 0.9), torch.ones(8)
            )  # fmt: skip
            if acts:
                algorithm.predict(X)
                algorithm.sample_action(X)
            torch.manual_seed(step)
            algorithm.update(batch)
            assert not any(noise.greedy for noise in noise_of(algorithm.nets))
        results.append({name: tensor.clone() for name, tensor in algorithm.nets.state_dict().items()})
    assert all(torch.equal(tensor, results[1][name]) for name, tensor in results[0].items())
    assert {name.split(".")[0] for name in results[0] if "noise" in name} == {"critic", "critic_target"}


@pytest.mark.parametrize("explorer", [LinearDecayEpsilonGreedy(), ConstantEpsilonGreedy(0.1)])
def test_noise_and_epsilon_are_refused(explorer: Any) -> None:
    says = "changes greedy actions, but this DQN has noisy layers, .*: leave explorer out, or noisy"
    quiet: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    for use in (
        lambda algorithm, env: algorithm.fit_online(env, explorer=explorer, n_steps=10, **quiet),
        lambda algorithm, env: algorithm.collect(env, explorer=explorer, n_steps=10, show_progress=False),
        lambda algorithm, env: algorithm.agent(explorer=explorer, env=env),
    ):
        with pytest.raises(ConfigError, match=says):
            use(dqn(), birl.envs.make_env("CartPole-v1"))


def test_a_noisy_critic_goes_with_noise_on_actions() -> None:
    """Only the network that acts explores."""
    birl.seed(0)
    config = algos.DDPGConfig(
        critic_encoder_factory=NOISY, actor_encoder_factory=SMALL, action_scaler=MinMaxActionScaler()
    )
    env = birl.envs.make_env("Pendulum-v1")
    assert config.create().collect(env, explorer=NormalNoise(), n_steps=5, show_progress=False) is not None


def test_rollouts_of_noisy_policies_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="noise in the layers of PPO.s policy cannot .* leave noisy out"):
        algos.PPOConfig(actor_encoder_factory=NOISY).create().create_impl((4,), 2, discrete_action=True)


def test_the_command_line_gives_noisy_networks_no_explorer() -> None:
    env = birl.envs.make_env("CartPole-v1")
    config = algos.DQNConfig(encoder_factory=SMALL, q_func_factory=MeanQFunctionFactory(noisy=True))
    options, note = exploration(config.create(), env, 1000, TrainOptions())
    assert options["explorer"] is None and "100 random actions, then actions of noisy networks" in note
    with pytest.raises(ConfigError, match="--epsilon-start: not for DQN, whose noisy networks explore: leave it out"):
        exploration(config.create(), env, 1000, TrainOptions(epsilon_start=0.5))


def rainbow(folder: Path, stop: int | None) -> Any:
    """A run, of which a signal may stop the first process."""

    birl.seed(0)
    env = birl.envs.make_env("CartPole-v1")
    picker, sampler = MultiStepTransitionPicker(3, 0.99), PrioritizedSampler()
    buffer = create_fifo_replay_buffer(100, env=env, transition_picker=picker, sampler=sampler)
    algorithm: Any = algos.DoubleDQNConfig(
        encoder_factory=NOISY, q_func_factory=HEAD, batch_size=8, target_update_interval=10
    ).create()
    options: Any = {"n_steps": 60, "n_steps_per_epoch": 20, "random_steps": 10, "update_start_step": 10, "seed": 3}
    try:
        algorithm.fit_online(env, buffer, logger_adapter=NoopAdapterFactory(), show_progress=False,
                             checkpoint=folder, callback=signal_at(stop), **options)  # fmt: skip
    except SystemExit:
        return None
    tensors = [tensor.numpy().copy() for tensor in algorithm.nets.state_dict().values()]
    return [*tensors, *(each.actions for each in buffer.episodes), np.array(algorithm.grad_step)]


def test_rainbow_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Dueling, noisy, categorical, double, prioritised, three steps: stopped, and gone on with."""
    expected = rainbow(tmp_path / "straight", None)
    assert rainbow(tmp_path / "stopped", 33) is None
    resumed = rainbow(tmp_path / "stopped", None)
    assert expected[-1] > 40 and all(map(np.array_equal, expected, resumed))


def test_noise_is_in_files(tmp_path: Path) -> None:
    algorithm = dqn()
    with torch.no_grad():
        for noise in noise_of(algorithm.nets):
            noise.weight.uniform_()
    algorithm.save(tmp_path / "noisy.d3")
    again: Any = birl.load_learnable(tmp_path / "noisy.d3")
    assert again.config == algorithm.config
    mine, theirs = algorithm.nets.state_dict(), again.nets.state_dict()
    assert sum("noise" in name for name in mine) == 2 * 2 * 5
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
    torch.manual_seed(3)
    sampled = algorithm.sample_action(X)
    torch.manual_seed(3)
    assert np.array_equal(sampled, again.sample_action(X))


def test_collected_steps_are_explored() -> None:
    """Without an explorer a noisy network does not repeat itself, and asked to be deterministic it does."""
    env = birl.envs.make_env("CartPole-v1")
    algorithm = dqn()
    buffer = create_infinite_replay_buffer(env=env)
    assert algorithm.collect(env, buffer, n_steps=60, show_progress=False) is not None
    actions = np.concatenate([episode.actions.ravel() for episode in buffer.episodes])
    greedy = np.concatenate([algorithm.predict(episode.observations) for episode in buffer.episodes])
    assert 0 < (actions != greedy).mean() < 1
