"""Probe environments: every algorithm and head knows the values in the end. The first that fails says where to look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from birl import algos
from birl.errors import ConfigError
from birl.models import (
    C51QFunctionFactory,
    IQNQFunctionFactory,
    MeanQFunctionFactory,
    QRQFunctionFactory,
    VectorEncoderFactory,
)
from birl.testing import PROBES, ChainEnv, MemoryEnv, Probe, ProbeEnv, collect_dataset, probe_errors

ENCODER = VectorEncoderFactory(hidden_units=[32, 32])
VALUE = {
    "encoder_factory": ENCODER,
    "batch_size": 32,
    "learning_rate": 1e-2,
    "gamma": 0.5,
    "target_update_interval": 10,
}
NO_TARGET: dict[str, Any] = {name: value for name, value in VALUE.items() if name != "target_update_interval"}
ACTOR: dict[str, Any] = {
    "actor_encoder_factory": ENCODER,
    "critic_encoder_factory": ENCODER,
    "batch_size": 32,
    "actor_learning_rate": 3e-3,
    "critic_learning_rate": 1e-2,
    "gamma": 0.5,
}
IMITATING: dict[str, Any] = {**ACTOR, "imitator_encoder_factory": ENCODER, "imitator_learning_rate": 1e-2}
SOFT = {"temp_learning_rate": 3e-3, "initial_temperature": 0.01}  # true values are those without an entropy bonus
CLONING = {"encoder_factory": ENCODER, "batch_size": 32, "learning_rate": 1e-2}
WINDOWS: dict[str, Any] = {
    "context_size": 3,
    "max_timestep": 5,
    "num_layers": 1,
    "attn_dropout": 0.0,
    "resid_dropout": 0.0,
    "embed_dropout": 0.0,
}
ON_POLICY: dict[str, Any] = {
    "actor_encoder_factory": ENCODER,
    "value_encoder_factory": ENCODER,
    "gamma": 0.5,
    "rollout_length": 64,
    "batch_size": 32,
    "n_epochs": 6,
}
ITERATION: dict[str, Any] = {
    **ACTOR,
    "critic_learning_rate": 2e-2,
    "batch_size": 64,
    "batch_size_per_update": 32,
    "n_critic_updates": 10,
    "n_actor_updates": 10,
}
HEADS = {
    "mean": MeanQFunctionFactory(),
    "qr": QRQFunctionFactory(n_quantiles=8),
    "iqn": IQNQFunctionFactory(n_quantiles=8, n_greedy_quantiles=8, embed_size=16),
    "c51": C51QFunctionFactory(n_atoms=31, v_min=-3.0, v_max=3.0),
}
ACTION_PROBES = ("action", "action_observation")
VALUE_PROBES = tuple(kind for kind in PROBES if kind not in ACTION_PROBES)


@dataclass(frozen=True)
class Row:
    name: str
    config: Any
    discrete: bool
    n_steps: int
    probes: tuple[str, ...] = PROBES
    expert: bool = False
    action: float = 0.3  # how far from the best action is still good
    true_values: bool = True  # a conservative algorithm's are lower


ROWS = (
    Row("DQN mean", algos.DQNConfig(**VALUE), True, 120),
    *(
        Row(f"DQN {name}", algos.DQNConfig(**VALUE, q_func_factory=head), True, 120, ("discount", "action_observation"))
        for name, head in HEADS.items()
        if name != "mean"
    ),
    Row("DoubleDQN", algos.DoubleDQNConfig(**VALUE), True, 120),
    Row("DiscreteCQL alpha 0", algos.DiscreteCQLConfig(**VALUE, alpha=0.0), True, 120),
    Row("DiscreteCQL", algos.DiscreteCQLConfig(**VALUE), True, 120, ACTION_PROBES, true_values=False),
    Row("DiscreteBCQ", algos.DiscreteBCQConfig(**VALUE, beta=0.01), True, 120),
    Row("DiscreteSAC", algos.DiscreteSACConfig(**ACTOR, **SOFT, target_update_interval=10), True, 120),
    Row("DiscreteBC", algos.DiscreteBCConfig(**CLONING, beta=0.01), True, 60, ACTION_PROBES, expert=True),
    Row("PPO discrete", algos.PPOConfig(**ON_POLICY, learning_rate=3e-3), True, 640),
    Row("NFQ", algos.NFQConfig(**NO_TARGET), True, 120),
    Row("DDPG", algos.DDPGConfig(**{**ACTOR, "actor_learning_rate": 1e-3}, tau=0.1), False, 150),
    Row("TD3", algos.TD3Config(**{**ACTOR, "actor_learning_rate": 1e-3}, tau=0.1), False, 150),
    Row("ReBRAC", algos.ReBRACConfig(**ACTOR, tau=0.1, critic_beta=0.0), False, 150),
    Row("TD3PlusBC", algos.TD3PlusBCConfig(**{**ACTOR, "actor_learning_rate": 1e-3}, tau=0.1, alpha=20.0), False, 150),
    Row("PRDC", algos.PRDCConfig(**{**ACTOR, "actor_learning_rate": 1e-3}, tau=0.1, alpha=20.0), False, 150),
    Row("SAC", algos.SACConfig(**ACTOR, **SOFT, tau=0.1), False, 150),
    *(
        Row(f"SAC {name}", algos.SACConfig(**ACTOR, **SOFT, tau=0.1, q_func_factory=head), False, 150, ("discount",))
        for name, head in HEADS.items()
        if name != "mean"
    ),
    Row(
        "CQL weight 0",
        algos.CQLConfig(**ACTOR, **SOFT, tau=0.1, conservative_weight=0.0, n_action_samples=2),
        False,
        150,
        ("discount", "time_limit", "action_observation"),
    ),
    Row(
        "CQL",
        algos.CQLConfig(**ACTOR, **SOFT, tau=0.1, conservative_weight=0.3, alpha_threshold=0.5, n_action_samples=4),
        False,
        200,
        ACTION_PROBES,
        action=0.4,
        true_values=False,
    ),
    Row(
        "BCQ",
        algos.BCQConfig(**IMITATING, tau=0.1, n_action_samples=10, action_flexibility=0.3, beta=0.05, rl_start_step=20),
        False,
        150,
        ("discount", "time_limit", "action", "action_observation"),
    ),
    Row(
        "BEAR",
        algos.BEARConfig(
            **IMITATING,
            **SOFT,
            tau=0.1,
            alpha_learning_rate=1e-2,
            initial_alpha=0.1,
            alpha_threshold=0.2,
            n_action_samples=10,
            n_target_samples=4,
            vae_kl_weight=0.05,
            warmup_steps=30,
        ),
        False,
        150,
        ("discount", "time_limit", "action_observation"),
    ),
    Row(
        "PLAS",
        algos.PLASConfig(**IMITATING, tau=0.1, beta=0.005, warmup_steps=100),
        False,
        250,
        ("discount", "time_limit", "action_observation"),
    ),
    Row(
        "PLASWithPerturbation",
        algos.PLASWithPerturbationConfig(**IMITATING, tau=0.1, beta=0.005, warmup_steps=100, action_flexibility=0.1),
        False,
        250,
        ("discount", "action_observation"),
    ),
    Row("IQL", algos.IQLConfig(**ACTOR, value_encoder_factory=ENCODER, tau=0.1), False, 150),
    Row("DiscreteIQL", algos.DiscreteIQLConfig(**ACTOR, value_encoder_factory=ENCODER, tau=0.1), True, 150),
    Row("CRR", algos.CRRConfig(**ACTOR, beta=0.1, target_update_interval=10), False, 150),
    Row(
        "CRR binary max soft",
        algos.CRRConfig(
            **ACTOR, weight_type="binary", advantage_type="max", target_update_type="soft", tau=0.1, n_action_samples=2
        ),
        False,
        150,
        ACTION_PROBES,
    ),
    Row(
        "CalQL",
        algos.CalQLConfig(**ACTOR, **SOFT, tau=0.1, conservative_weight=0.3, alpha_threshold=0.5, n_action_samples=4),
        False,
        200,
        ACTION_PROBES,
        action=0.4,
        true_values=False,
    ),
    Row("EDAC", algos.EDACConfig(**ACTOR, **SOFT, tau=0.1, n_critics=4, eta=0.1), False, 150),
    Row("AWAC", algos.AWACConfig(**ACTOR, tau=0.1, lam=0.1), False, 150),
    *(
        Row(f"{name} {what}", config(**ITERATION, beta=0.5), discrete, 15, probes, true_values=what == "values")
        for name, config, discrete in (("AWR", algos.AWRConfig, False), ("DiscreteAWR", algos.DiscreteAWRConfig, True))
        for what, probes in (("values", VALUE_PROBES), ("actions", ACTION_PROBES))
    ),
    Row("BC", algos.BCConfig(**CLONING), False, 60, ACTION_PROBES, expert=True),
    Row("BC stochastic", algos.BCConfig(**CLONING, policy_type="stochastic"), False, 60, ACTION_PROBES, expert=True),
    Row("PPO values", algos.PPOConfig(**ON_POLICY, learning_rate=3e-3), False, 640, ("discount", "time_limit")),
    Row("PPO actions", algos.PPOConfig(**ON_POLICY, learning_rate=6e-3), False, 1920, ACTION_PROBES),
    Row(
        "DecisionTransformer",
        algos.DecisionTransformerConfig(**CLONING, **WINDOWS, warmup_steps=5),
        False,
        60,
        ACTION_PROBES,
        expert=True,
    ),
    Row(
        "DiscreteDecisionTransformer",
        algos.DiscreteDecisionTransformerConfig(
            **CLONING, **WINDOWS, num_heads=2, warmup_tokens=500, final_tokens=100000
        ),
        True,
        60,
        ACTION_PROBES,
        expert=True,
    ),
    Row("TACR", algos.TACRConfig(**{**ACTOR, "actor_learning_rate": 1e-3}, **WINDOWS, tau=0.1, alpha=50.0), False, 150),
)


@pytest.mark.parametrize(
    ("row", "kind"), [pytest.param(row, kind, id=f"{row.name}-{kind}") for row in ROWS for kind in row.probes]
)
def test_probe(row: Row, kind: str) -> None:
    errors = probe_errors(row.config, kind, row.discrete, row.n_steps, expert=row.expert)
    print(f"\n{row.name:22s} {kind:20s} " + " ".join(f"{name} {value:.3f}" for name, value in errors.items()))
    if kind in ACTION_PROBES:
        assert errors["action"] <= row.action
    if row.true_values:
        assert all(errors[name] <= 0.2 for name in errors if name != "action"), errors
    assert errors, "nothing was measured"


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("kind", PROBES)
def test_probes_say_their_true_values(kind: str, discrete: bool) -> None:
    """Values by rolling out: reward now, then the values of the best actions."""
    gamma, probe = 0.5, Probe(kind, discrete)
    env = probe.make()
    for start, action, value in probe.action_values(gamma):
        env.reset(seed=0)
        env._observation = start
        env._step = 1 if kind == "discount" and start == 1.0 else 0
        total, factor, done = 0.0, 1.0, False
        while not done:
            _, reward, terminated, truncated, _ = env.step(action)
            total, factor, done = total + factor * float(reward), factor * gamma, terminated or truncated
        if kind == "time_limit":
            total += factor / (1 - gamma)  # what would have followed
        assert total == pytest.approx(value)
    assert len(probe.action_values(gamma)) == len(probe.observations) * (2 if discrete else 3)
    for observation, action in probe.best_actions():
        assert env.reward(observation, action) == 1.0
        assert all(
            env.reward(observation, other) < 1.0 for other in ((0, 1) if discrete else (-1, 0, 1)) if other != action
        )


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("make", [ChainEnv, MemoryEnv, lambda discrete: ProbeEnv("action", discrete)])
def test_environments_follow_gymnasium(make: Any, discrete: bool) -> None:
    check_env(make(discrete), skip_render_check=True)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="'nothing'"):
        ProbeEnv("nothing", True)
    with pytest.raises(ConfigError, match="n_states is 4"):
        ChainEnv(n_states=4)


@pytest.mark.parametrize("discrete", [True, False])
def test_chain_needs_the_right_action_in_every_state(discrete: bool) -> None:
    env = ChainEnv(discrete)
    observation, _ = env.reset(seed=0)
    for step in range(env.n_states - 1):
        observation, reward, terminated, truncated, _ = env.step(env.best_action(observation))
        assert (float(reward), terminated, truncated) == ((1.0, True, False) if step == 6 else (0.0, False, False))
    for constant in (0.0, 1.0) if discrete else (-1.0, 1.0):
        env.reset()
        total, done = 0.0, False
        while not done:
            _, reward, terminated, truncated, _ = env.step(constant)
            total, done = total + float(reward), terminated or truncated
        assert total == 0.0 and truncated


def test_memory_is_asked_after_its_delay() -> None:
    env = MemoryEnv()
    for seed in range(4):
        observation, _ = env.reset(seed=seed)
        cue, seen = float(observation[0]), []
        for step in range(11):
            observation, reward, terminated, _, _ = env.step(int(cue > 0))
            seen.append((tuple(observation), float(reward), terminated))
            assert terminated == (step == 10)
        assert seen[9] == ((0.0, 1.0), 0.0, False) and seen[10][1] == 1.0
        assert all(row == ((0.0, 0.0), 0.0, False) for row in seen[:9])


def test_collected_data_are_what_was_played() -> None:
    env = ChainEnv(discrete=False)
    random, expert = collect_dataset(env, 300), collect_dataset(env, 70, policy=env.best_action, skill=1.0)
    assert random.step_count == random.transition_count == 300
    assert sum(float(episode.rewards.sum()) for episode in random.episodes) <= 5
    assert [float(episode.rewards.sum()) for episode in expert.episodes] == [1.0] * 10
    again = collect_dataset(ChainEnv(discrete=False), 300)
    assert np.array_equal(again.episodes[0].actions, random.episodes[0].actions)
    assert isinstance(env, gymnasium.Env)
