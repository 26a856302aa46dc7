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
NO_TARGET: dict[str, Any] = {name: value for name, value in VALUE.items() if name != "target_update_interval"}
ACTOR: dict[str, Any] = {
    "actor_encoder_factory": ENCODER,
    "critic_encoder_factory": ENCODER,
    "batch_size": 64,
    "actor_learning_rate": 3e-3,
    "critic_learning_rate": 1e-2,
    "gamma": 0.9,
}
IMITATING: dict[str, Any] = {**ACTOR, "imitator_encoder_factory": ENCODER, "imitator_learning_rate": 3e-3}
LATENT: dict[str, Any] = {**IMITATING, "actor_learning_rate": 1e-3, "imitator_learning_rate": 1e-2}
SOFT = {"temp_learning_rate": 1e-4, "initial_temperature": 0.02}
CLONING: dict[str, Any] = {"encoder_factory": ENCODER, "batch_size": 64, "learning_rate": 1e-2}
WINDOWS: dict[str, Any] = {
    "context_size": 3,
    "max_timestep": 60,
    "num_layers": 1,
    "attn_dropout": 0.0,
    "resid_dropout": 0.0,
    "embed_dropout": 0.0,
}
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
ITERATION: dict[str, Any] = {
    **ACTOR,
    "actor_learning_rate": 3e-2,
    "critic_learning_rate": 3e-2,
    "batch_size": 1024,
    "batch_size_per_update": 256,
    "n_critic_updates": 4,
    "n_actor_updates": 8,
    "lam": 0.3,  # values are small in most states: the noise of longer returns would hide them
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
    Row("DiscreteBCQ", algos.DiscreteBCQConfig(**VALUE, beta=0.01), True, 400),
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
    Row("NFQ", algos.NFQConfig(**NO_TARGET), True, 300),
    Row("DDPG", algos.DDPGConfig(**TD3_MEAN), False, 450),
    Row("TD3 mean", algos.TD3Config(**TD3_MEAN), False, 800),
    *(
        Row(f"TD3 {n}", algos.TD3Config(**TD3_OTHERS, q_func_factory=head), False, 800)
        for n, head in HEADS.items()
        if n != "mean"
    ),
    Row(
        "ReBRAC",
        algos.ReBRACConfig(**{**TD3_MEAN, "actor_learning_rate": 3e-3}, actor_beta=0.4),
        False,
        400,
        skill=0.3,
    ),
    Row("TD3PlusBC", algos.TD3PlusBCConfig(**{**TD3_MEAN, "actor_learning_rate": 3e-3}), False, 500, skill=0.3),
    Row("PRDC", algos.PRDCConfig(**TD3_MEAN), False, 800),
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
    Row(
        "CalQL",
        algos.CalQLConfig(**ACTOR, **SOFT, tau=0.1, conservative_weight=0.1, alpha_threshold=0.5, n_action_samples=4),
        False,
        300,
    ),
    Row("EDAC", algos.EDACConfig(**ACTOR, **SOFT, tau=0.1, n_critics=4, eta=0.01), False, 300),
    Row("AWR", algos.AWRConfig(**ITERATION), False, 80),
    Row("DiscreteAWR", algos.DiscreteAWRConfig(**ITERATION), True, 80),
    Row("AWAC", algos.AWACConfig(**ACTOR, tau=0.1, lam=0.03), False, 250),
    Row("CRR", algos.CRRConfig(**ACTOR, beta=0.03, target_update_type="soft", tau=0.1), False, 300),
    Row(
        "BCQ",
        algos.BCQConfig(
            **IMITATING, tau=0.1, n_action_samples=5, action_flexibility=0.3, beta=0.05, update_actor_interval=2
        ),
        False,
        300,
    ),
    Row(
        "DiscreteIQL",
        algos.DiscreteIQLConfig(**ACTOR, value_encoder_factory=ENCODER, tau=0.1, weight_temp=30.0, expectile=0.9),
        True,
        300,
    ),
    Row(
        "BEAR",
        algos.BEARConfig(
            **{**IMITATING, "imitator_learning_rate": 1e-2},
            **SOFT,
            tau=0.1,
            alpha_learning_rate=1e-2,
            initial_alpha=0.1,
            alpha_threshold=0.2,
            n_action_samples=10,
            n_target_samples=4,
            vae_kl_weight=0.05,
            warmup_steps=50,
        ),
        False,
        200,
    ),
    Row("PLAS", algos.PLASConfig(**LATENT, tau=0.1, beta=0.005, warmup_steps=150), False, 500),
    Row(
        "PLASWithPerturbation",
        algos.PLASWithPerturbationConfig(
            **{**LATENT, "actor_learning_rate": 5e-4}, tau=0.1, beta=0.005, warmup_steps=200, action_flexibility=0.1
        ),
        False,
        600,
        skill=0.4,
    ),
    Row("BC", algos.BCConfig(**CLONING), False, 300, skill=0.6),
    Row("BC stochastic", algos.BCConfig(**CLONING, policy_type="stochastic"), False, 400, skill=0.6),
    Row("PPO continuous", algos.PPOConfig(**ON_POLICY), False, 4096),
    Row(
        "DecisionTransformer",
        algos.DecisionTransformerConfig(**CLONING, **WINDOWS, warmup_steps=5),
        False,
        100,
        skill=0.6,
    ),
    Row(
        "DiscreteDecisionTransformer",
        algos.DiscreteDecisionTransformerConfig(
            **{**CLONING, "learning_rate": 5e-3}, **WINDOWS, num_heads=2, warmup_tokens=2000, final_tokens=40000
        ),
        True,
        200,
        skill=0.6,
    ),
    Row(
        "TACR",
        algos.TACRConfig(**{**ACTOR, "critic_learning_rate": 3e-3}, **WINDOWS, tau=0.1),
        False,
        200,
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


# Heads are shared by all algorithms, and seen here with one of them each: the other pairs are in the slow tier.
LATER = {f"{name} {head}" for name in ("DoubleDQN", "TD3") for head in ("qr", "iqn", "c51")}
LATER |= {"DQN iqn", "DQN c51", "SAC qr"}
MARKED = [pytest.param(row, marks=[pytest.mark.slow] if row.name in LATER else [], id=row.name) for row in ROWS]


def test_what_comes_later_is_there():
    assert {row.name for row in ROWS} >= LATER


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("row", MARKED)
def test_chain(row: Row, seed: int) -> None:
    begin = time.process_time()
    before, after, solved = learn(row, seed, row.n_steps)
    seconds = time.process_time() - begin
    print(f"\n{row.name:22s} seed {seed}: {after:.0f} after {row.n_steps} steps, solved at {solved}, {seconds:.1f} s")
    assert before < 1.0, "an untrained policy solves the chain: this shows nothing"
    assert after == 1.0


@pytest.mark.parametrize("row", MARKED)
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
