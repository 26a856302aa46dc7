"""Learns in seconds: a chain that untrained policies and a learning rate of 0 fail, and a memory task.

The default tier has one seed of the algorithms that stand for the others, whose probes show there that they learn; the
slow tier has three seeds of all. ``pytest -s`` prints the first step at which the chain was solved.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from birl import algos
from birl.errors import UnusedOptionWarning
from birl.models import GRUEncoderFactory, VectorEncoderFactory
from birl.seeding import seed as seed_everything
from birl.testing import ChainEnv, MemoryEnv, average_return, collect_dataset, train
from birl.testing.contract.subject import keeping_still
from tests.algorithms import CHAIN_RUNS, Run, tiers
from tests.tiers import slow_but

ENCODER = VectorEncoderFactory(hidden_units=[32])
MEMORY = GRUEncoderFactory(hidden_size=16, hidden_units=[16], activation="tanh")
RUNS = tiers(CHAIN_RUNS)


def learn(run: Run, seed: int, n_steps: int, config: Any = None) -> tuple[float, float, int | None]:
    """Return of the greedy policy before and after training, and the first step at which the chain was solved."""
    seed_everything(seed)
    env = ChainEnv(run.discrete)
    # Two steps to spare: a policy that walks at random, as one with a memory may, must not arrive by chance.
    arena = ChainEnv(run.discrete, max_steps=env.n_states + 1)
    algorithm = (config or run.config).create()
    dataset, every = None, 1024
    experience = algorithm.learns_from
    if not experience.on_policy or experience.needs_demonstrations:
        dataset = collect_dataset(env, 3000, seed, policy=env.best_action, skill=run.variant.skill)
    if experience.on_policy:
        algorithm.build_with_env(env)
    else:
        every = 50
        algorithm.build_with_dataset(dataset)
    before, solved = average_return(algorithm, arena), []
    while before == 1.0 and algorithm.learns_from.on_policy:  # nearly uniform policies may go right everywhere
        algorithm = (config or run.config).create()
        algorithm.build_with_env(env)
        before = average_return(algorithm, arena)

    def watch(algorithm: Any, epoch: int, step: int) -> None:
        if step % every == 0 and not solved and average_return(algorithm, arena) == 1.0:
            solved.append(step)

    train(algorithm, env, n_steps, dataset, watch)
    return before, average_return(algorithm, arena), solved[0] if solved else None


@pytest.mark.parametrize("seed", slow_but([0], [0, 1, 2]))
@pytest.mark.parametrize("run", RUNS)
def test_chain(run: Run, seed: int) -> None:
    begin = time.process_time()
    before, after, solved = learn(run, seed, run.variant.n_steps)
    seconds = time.process_time() - begin
    steps = f"{after:.0f} after {run.variant.n_steps} steps, solved at {solved}"
    print(f"\n{run.name:22s} seed {seed}: {steps}, {seconds:.1f} s")
    assert before < 1.0, "an untrained policy solves the chain: this shows nothing"
    assert after == 1.0


@pytest.mark.parametrize("run", RUNS)
def test_chain_is_not_solved_with_learning_rate_zero(run: Run) -> None:
    n_steps = 1024 if run.config.algorithm.learns_from.on_policy else 100
    _, after, solved = learn(run, 0, n_steps, replace(run.config, **keeping_still(run.config)))
    assert after < 1.0 and solved is None


def _remember(config: Any, n_steps: int, seed: int) -> float:
    seed_everything(seed)
    env, algorithm = MemoryEnv(), config.create()
    dataset = None if algorithm.learns_from.on_policy else collect_dataset(env, 2000, seed)
    train(algorithm, env, n_steps, dataset)
    return average_return(algorithm, MemoryEnv(), 20)


def _recurrent_dqn(encoder: Any, learning_rate: float = 1e-2) -> Any:
    return algos.DQNConfig(
        encoder_factory=encoder,
        batch_size=128,
        learning_rate=learning_rate,
        gamma=0.9,
        target_update_interval=25,
        sequence_length=11,
    )


@pytest.mark.slow
def test_recurrent_dqn_remembers_ten_steps() -> None:
    assert _remember(_recurrent_dqn(MEMORY), 500, 1) == 1.0


def test_dqn_without_memory_cannot() -> None:
    with pytest.warns(UnusedOptionWarning, match="sequence_length=11"):
        assert _remember(_recurrent_dqn(ENCODER), 300, 1) < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2])
def test_recurrent_dqn_remembers_from_other_seeds(seed: int) -> None:
    assert _remember(_recurrent_dqn(MEMORY), 800, seed) == 1.0


@pytest.mark.slow
def test_recurrent_ppo_remembers_ten_steps() -> None:
    config = algos.PPOConfig(
        actor_encoder_factory=MEMORY,
        value_encoder_factory=MEMORY,
        gamma=0.9,
        learning_rate=5e-3,
        rollout_length=256,
        batch_size=256,
        n_epochs=6,
        entropy_coefficient=0.01,
    )
    assert _remember(config, 24576, 0) == 1.0
