"""Priorities flow back: from the losses of every algorithm, in every kind of update and loop, to the sampler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl.algorithm.experience import Transitions
from birl.algorithm.multi_seed import fit_many
from birl.algos import DQNConfig, IQLConfig, SACConfig
from birl.dataset import (
    InfiniteBuffer,
    MixedReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    create_fifo_replay_buffer,
)
from birl.envs import make_env
from birl.errors import ResumeError, UnsupportedError
from birl.logging import NoopAdapterFactory
from birl.models import C51QFunctionFactory, GRUEncoderFactory, QRQFunctionFactory, VectorEncoderFactory
from birl.models.value_distributions import MeanReturns
from birl.run.fingerprint import buffer_settings
from birl.testing import build_algorithm, random_dataset
from tests.algorithms import CONTRACT_RUNS, Run, tiers

SMALL = VectorEncoderFactory([8])
IMITATION = {"BC", "DiscreteBC"}


def data(**options: Any) -> Any:
    options = {"action_size": 3, "discrete_action": True, **options}
    return random_dataset(sampler=PrioritizedSampler(1.0, 1.0), **options)


def dqn(**fields: Any) -> Any:
    fields = {"encoder_factory": SMALL, "batch_size": 8, "learning_rate": 0.01, **fields}
    return build_algorithm(DQNConfig(**fields), action_size=3)


def priorities(dataset: Any, rows: Any) -> Any:
    (source,) = dataset.reader.sources
    return source.sampler._tree.values(rows)


TRANSITIONS = [run for run in CONTRACT_RUNS if isinstance(run.config.algorithm.learns_from, Transitions)]


@pytest.mark.parametrize("run", tiers(TRANSITIONS))
def test_every_algorithm_hands_priorities_back(run: Run) -> None:
    dataset = data(action_size=run.action_size, discrete_action=run.discrete)
    algorithm = build_algorithm(run.config, action_size=run.action_size, discrete_action=run.discrete)
    drawn = algorithm.sample_minibatch(dataset)
    ((_, rows),) = drawn.rows
    before = priorities(dataset, rows.index)
    if type(algorithm).__name__ in IMITATION:
        with pytest.raises(
            UnsupportedError, match="which has no TD errors, cannot be combined with a prioritised sampler"
        ):
            algorithm.update(drawn)
        updates, draws = algorithm.grad_step, dataset.reader.get_state()["sampler"]["draws"]
        with pytest.raises(
            UnsupportedError, match="which has no TD errors, cannot be combined with a prioritised sampler"
        ):
            algorithm.fit(dataset, n_steps=1, n_steps_per_epoch=1, show_progress=False)  # refused before it draws
        assert (algorithm.grad_step, dataset.reader.get_state()["sampler"]["draws"]) == (updates, draws)
        with pytest.raises(
            UnsupportedError, match="which has no TD errors, cannot be combined with a prioritised sampler"
        ):
            fit_many(run.config, dataset, 1, [0], logger_adapter=NoopAdapterFactory(), show_progress=False)
        return
    algorithm.learner.check_sampler(dataset)
    if "PLAS" in run.name:
        algorithm.update(drawn)  # imitates before its critics learn
        assert (priorities(dataset, rows.index) == before).all()
        algorithm.learner.engine.grad_step = algorithm.config.warmup_steps
    algorithm.update(drawn)
    after = priorities(dataset, rows.index)
    assert (after != before).all() and (after > 0).all()


def test_priorities_are_td_errors_and_of_distributions_losses() -> None:
    for head in (None, QRQFunctionFactory(n_quantiles=5), C51QFunctionFactory(n_atoms=7)):
        dataset = data()
        algorithm = dqn() if head is None else dqn(q_func_factory=head)
        drawn = algorithm.sample_minibatch(dataset)
        batch = algorithm.learner.batch(drawn)
        with torch.no_grad():
            nets = algorithm.learner.nets
            prediction = nets.critic(batch.inputs, batch.action)
            following = nets.critic_target(batch.next_inputs)
            target = following.gather(following.best()).min().backup(batch.reward, batch.discount)
            if head is None:  # the Huber loss is clipped, the priority is not
                values, following = prediction.values[0], following.values[0].max(-1).values
                expected = (values - batch.reward - batch.discount * following).abs()
            else:
                expected = prediction.td_loss(target, 1.0)[0]
        algorithm.update(drawn)
        newest = dict(zip(drawn.rows[0][1].index.tolist(), expected.tolist(), strict=True))
        rows = np.array([*newest])
        np.testing.assert_allclose(priorities(dataset, rows), np.array([*newest.values()]) + 1e-6, rtol=1e-4)


def test_a_sequence_has_a_share_of_its_largest_error() -> None:
    dataset = data()
    algorithm = dqn(encoder_factory=GRUEncoderFactory(4, [4]), sequence_length=3, burn_in=1, learning_rate=0.0)
    drawn = algorithm.sample_minibatch(dataset)
    batch = algorithm.learner.batch(drawn)
    with torch.no_grad():
        nets = algorithm.learner.nets
        following = nets.critic_target(batch.next_inputs).values[0].max(-1).values
        error = (nets.critic(batch.inputs, batch.action).values[0] - batch.reward - batch.discount * following).abs()
    algorithm.update(drawn)
    error, real = error.numpy(), batch.weight.numpy() > 0
    for number, row in enumerate(drawn.rows[0][1].index):
        own = error[:, number][real[:, number]]
        expected = 0.9 * own.max() + 0.1 * own.mean() + 1e-6
        assert priorities(dataset, np.array([row]))[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("config", [DQNConfig, SACConfig, IQLConfig], ids=lambda config: config.__name__)
def test_compiled_updates_and_many_seeds_hand_back_what_eager_ones_do(config: Any) -> None:
    discrete = config is DQNConfig
    fields = {name: SMALL for name in config.__dataclass_fields__ if name.endswith("encoder_factory")}
    states = []
    for compiled in (False, True):
        dataset = data(action_size=3, discrete_action=discrete)
        algorithm = build_algorithm(config(batch_size=8, compile_graph=compiled, **fields), action_size=3)
        for _ in range(4):
            algorithm.update(algorithm.sample_minibatch(dataset))
        states.append(dataset.reader.get_state()["sampler"]["priority"])
    np.testing.assert_allclose(*states, rtol=1e-3)


def test_each_of_many_seeds_has_its_own_priorities() -> None:
    config = DQNConfig(encoder_factory=SMALL, batch_size=8, learning_rate=0.01)
    options: Any = {"n_steps": 30, "logger_adapter": NoopAdapterFactory(), "show_progress": False}
    together = birl.fit_many(config, data(), seeds=(1, 5), **options)
    for seed, one in zip((1, 5), together, strict=True):
        birl.seed(seed)
        dataset, alone = data(), config.create()
        birl.seed(seed)
        dataset = ReplayBuffer(InfiniteBuffer(), episodes=dataset.episodes, sampler=PrioritizedSampler(1.0, 1.0))
        alone = config.create()
        alone.fit(dataset, **options)
        for name, value in alone.learner.nets.state_dict().items():
            torch.testing.assert_close(one.learner.nets.state_dict()[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("online", [False, True])
def test_a_resumed_run_ends_as_one_without_a_break(tmp_path: Path, online: bool) -> None:
    def run(n_steps: int, folder: str) -> Any:
        birl.seed(3)
        options: Any = {
            "n_steps_per_epoch": 20,
            "logger_adapter": NoopAdapterFactory(),
            "show_progress": False,
            "checkpoint": tmp_path / folder,
        }
        sampler = PrioritizedSampler(0.6, 0.4, beta_steps=50)
        algorithm = DQNConfig(encoder_factory=SMALL, batch_size=8, learning_rate=0.01).create()
        if online:
            env = make_env("CartPole-v1")
            buffer = create_fifo_replay_buffer(40, env=env, sampler=sampler)
            algorithm.fit_online(env, buffer, n_steps=n_steps, seed=2, **options)
            return algorithm, buffer
        dataset = random_dataset(action_size=3, discrete_action=True, sampler=sampler)
        algorithm.fit(dataset, n_steps=n_steps, **options)
        return algorithm, dataset

    whole, all_data = run(80, "whole")
    run(40, "parts")
    parts, part_data = run(80, "parts")
    for name, value in whole.learner.nets.state_dict().items():
        assert torch.equal(parts.learner.nets.state_dict()[name], value), name
    own, other = (each.reader.get_state()["sampler"] for each in (all_data, part_data))
    for name, value in own.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_a_run_does_not_go_on_with_another_sampler(tmp_path: Path) -> None:
    def run(sampler: Any, n_steps: int = 2) -> None:
        dataset = random_dataset(action_size=3, discrete_action=True, sampler=sampler)
        options: Any = {"n_steps_per_epoch": 1, "logger_adapter": NoopAdapterFactory(), "show_progress": False}
        dqn().fit(dataset, n_steps=n_steps, checkpoint=tmp_path / "run", **options)

    run(PrioritizedSampler(0.6))
    lines = {None: "sampler was 'PrioritizedSampler', now not given", 0.5: "sampler.alpha was 0.6, now 0.5"}
    for alpha, line in lines.items():
        with pytest.raises(ResumeError, match=f"{line}[.] Use"):
            run(None if alpha is None else PrioritizedSampler(alpha))
    run(PrioritizedSampler(0.6), 3)
    env = make_env("CartPole-v1")
    settings = buffer_settings(create_fifo_replay_buffer(9, env=env, sampler=PrioritizedSampler()), digested=True)
    given = {"alpha": 0.6, "beta": 0.4, "beta_steps": 200_000, "epsilon": 1e-6, "normalize_over": "minibatch"}
    given |= {"variant": "proportional", "uniform_ratio": 0.0}
    assert settings["sampler"] == [{"type": "PrioritizedSampler", **given}]
    assert "sampler" not in buffer_settings(create_fifo_replay_buffer(9, env=env), digested=True)


def test_mixtures_take_priorities_in_either_part() -> None:
    for second in (PrioritizedSampler(), None):
        samplers = PrioritizedSampler(), second
        parts = [random_dataset(action_size=3, discrete_action=True, sampler=sampler) for sampler in samplers]
        algorithm = dqn()
        mixed = MixedReplayBuffer(parts[0], parts[1], 0.5)
        for _ in range(5):
            algorithm.update(algorithm.sample_minibatch(mixed))
        after = parts[0].reader.get_state()["sampler"]
        assert after["draws"] == 5 and len(np.unique(after["priority"])) > 3


def test_uniform_updates_report_and_compute_no_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeanReturns, "error", lambda *_: pytest.fail("computed"))
    algorithm = dqn()
    dataset = random_dataset(action_size=3, discrete_action=True)
    algorithm.update(algorithm.sample_minibatch(dataset))
    assert algorithm.learner.engine.priority is None and not algorithm.learner.engine.prioritised
    with pytest.raises(pytest.fail.Exception, match="computed"):
        algorithm.update(algorithm.sample_minibatch(data()))
