"""Learns in seconds: a chain that untrained policies and a learning rate of 0 fail, and a memory task.

One seed by default, two more in the slow tier. ``pytest -s`` prints the first step at which the chain was solved.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from birl import algos
from birl.models import (
    C51QFunctionFactory,
    GRUEncoderFactory,
    IQNQFunctionFactory,
    MeanQFunctionFactory,
    QRQFunctionFactory,
    VectorEncoderFactory,
)
from birl.seeding import seed as seed_everything
from birl.testing import ChainEnv, MemoryEnv, average_return, collect_dataset, train

ENCODER = VectorEncoderFactory(hidden_units=[32])
MEMORY = GRUEncoderFactory(hidden_size=16, hidden_units=[16], activation="tanh")
VALUE = {
    "encoder_factory": ENCODER,
    "batch_size": 128,
    "learning_rate": 2e-3,
    "gamma": 0.9,
    "target_update_interval": 25,
}
ACTOR: dict[str, Any] = {
    "actor_encoder_factory": ENCODER,
    "critic_encoder_factory": ENCODER,
    "batch_size": 64,
    "actor_learning_rate": 3e-3,
    "critic_learning_rate": 1e-2,
    "gamma": 0.9,
}
SOFT = {"temp_learning_rate": 1e-4, "initial_temperature": 0.02}
CLONING: dict[str, Any] = {"encoder_factory": ENCODER, "batch_size": 64, "learning_rate": 1e-2}
ON_POLICY: dict[str, Any] = {
    "actor_encoder_factory": ENCODER,
    "value_encoder_factory": ENCODER,
    "gamma": 0.9,
    "learning_rate": 4e-3,
    "rollout_length": 256,
    "batch_size": 64,
    "n_epochs": 6,
    "entropy_coefficient": 0.01,
}
HEADS = {
    "mean": MeanQFunctionFactory(),
    "qr": QRQFunctionFactory(n_quantiles=8),
    "iqn": IQNQFunctionFactory(n_quantiles=8, n_greedy_quantiles=8, embed_size=16),
    "c51": C51QFunctionFactory(n_atoms=21, v_min=-0.5, v_max=1.5),
}
TD3_MEAN = {**ACTOR, "actor_learning_rate": 1e-3, "critic_learning_rate": 3e-3, "tau": 0.05}
TD3_OTHERS = {**ACTOR, "actor_learning_rate": 5e-4, "tau": 0.1}


@dataclass(frozen=True)
class Row:
    name: str
    config: Any
    discrete: bool
    n_steps: int
    skill: float = 0.0  # share of good actions in the data: imitation needs something to imitate


ROWS = (
    *(Row(f"DQN {n}", algos.DQNConfig(**VALUE, q_func_factory=head), True, 600) for n, head in HEADS.items()),
    *(
        Row(f"DoubleDQN {n}", algos.DoubleDQNConfig(**VALUE, q_func_factory=head), True, 600)
        for n, head in HEADS.items()
    ),
    Row("DiscreteCQL", algos.DiscreteCQLConfig(**VALUE, alpha=0.05), True, 600),
    Row(
        "DiscreteSAC",
        algos.DiscreteSACConfig(
            **{**ACTOR, "critic_learning_rate": 2e-3, "batch_size": 128}, **SOFT, target_update_interval=20
        ),
        True,
        500,
    ),
    Row("DiscreteBC", algos.DiscreteBCConfig(**CLONING, beta=0.01), True, 100, skill=0.6),
    Row("PPO discrete", algos.PPOConfig(**ON_POLICY), True, 4096),
    Row("TD3 mean", algos.TD3Config(**TD3_MEAN), False, 800),
    *(
        Row(f"TD3 {n}", algos.TD3Config(**TD3_OTHERS, q_func_factory=head), False, 800)
        for n, head in HEADS.items()
        if n != "mean"
    ),
    *(
        Row(f"SAC {n}", algos.SACConfig(**ACTOR, **SOFT, tau=0.1, q_func_factory=head), False, 400)
        for n, head in HEADS.items()
    ),
    Row(
        "CQL",
        algos.CQLConfig(**ACTOR, **SOFT, tau=0.1, conservative_weight=0.1, alpha_threshold=0.5, n_action_samples=4),
        False,
        300,
    ),
    Row(
        "IQL",
        algos.IQLConfig(**ACTOR, value_encoder_factory=ENCODER, tau=0.1, weight_temp=30.0, expectile=0.9),
        False,
        400,
    ),
    Row("BC", algos.BCConfig(**CLONING), False, 300, skill=0.6),
    Row("BC stochastic", algos.BCConfig(**CLONING, policy_type="stochastic"), False, 400, skill=0.6),
    Row("PPO continuous", algos.PPOConfig(**ON_POLICY), False, 4096),
    Row(
        "DecisionTransformer",
        algos.DecisionTransformerConfig(
            **CLONING,
            context_size=3,
            max_timestep=60,
            num_layers=1,
            attn_dropout=0.0,
            resid_dropout=0.0,
            embed_dropout=0.0,
            warmup_steps=5,
        ),
        False,
        100,
        skill=0.6,
    ),
)


def learn(row: Row, seed: int, n_steps: int, config: Any = None) -> tuple[float, float, int | None]:
    """Return of the greedy policy before and after training, and the first step at which the chain was solved."""
    seed_everything(seed)
    env = ChainEnv(row.discrete)
    # Two steps to spare: a policy that walks at random, as one with a memory may, must not arrive by chance.
    arena = ChainEnv(row.discrete, max_steps=env.n_states + 1)
    algorithm = (config or row.config).create()
    dataset, every = None, 1024
    if algorithm.data == "rollout":
        algorithm.build_with_env(env)
    else:
        dataset, every = collect_dataset(env, 3000, seed, policy=env.best_action, skill=row.skill), 50
        algorithm.build_with_dataset(dataset)
    before, solved = average_return(algorithm, arena), []

    def watch(algorithm: Any, epoch: int, step: int) -> None:
        if step % every == 0 and not solved and average_return(algorithm, arena) == 1.0:
            solved.append(step)

    train(algorithm, env, n_steps, dataset, watch)
    return before, average_return(algorithm, arena), solved[0] if solved else None


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_chain(row: Row, seed: int) -> None:
    begin = time.process_time()
    before, after, solved = learn(row, seed, row.n_steps)
    seconds = time.process_time() - begin
    print(f"\n{row.name:22s} seed {seed}: {after:.0f} after {row.n_steps} steps, solved at {solved}, {seconds:.1f} s")
    assert before < 1.0, "an untrained policy solves the chain: this shows nothing"
    assert after == 1.0


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_chain_is_not_solved_with_learning_rate_zero(row: Row) -> None:
    rates = {item.name: 0.0 for item in fields(row.config) if item.name.endswith("learning_rate")}
    _, after, solved = learn(
        row, 0, 1024 if row.config.algorithm.data == "rollout" else 100, replace(row.config, **rates)
    )
    assert after < 1.0 and solved is None


def _remember(config: Any, n_steps: int, seed: int) -> float:
    seed_everything(seed)
    env, algorithm = MemoryEnv(), config.create()
    dataset = None if algorithm.data == "rollout" else collect_dataset(env, 2000, seed)
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


def test_recurrent_dqn_remembers_ten_steps() -> None:
    assert _remember(_recurrent_dqn(MEMORY), 500, 1) == 1.0


def test_dqn_without_memory_cannot() -> None:
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
