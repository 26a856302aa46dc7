"""The table of algorithms that the suites read: contract, probes, chain, populations and goldens.

A new algorithm needs one row here. Every suite begins from fields of its own (`CONTRACT_FIELDS` and so on),
which fill a configuration as far as it has them, and a row says only what differs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from birl import algos
from birl.models import (
    BatchRenormEncoderFactory,
    C51QFunctionFactory,
    DroQEncoderFactory,
    EncoderFactory,
    GRUEncoderFactory,
    IQNQFunctionFactory,
    LSTMEncoderFactory,
    MeanQFunctionFactory,
    QRQFunctionFactory,
    VectorEncoderFactory,
)
from birl.optimizers import AdamFactory, SGDFactory
from birl.preprocessing import MinMaxActionScaler, MultiplyRewardScaler
from birl.testing import PROBES
from birl.types import ActionSpace

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Variant:
    """One way in which a suite runs an algorithm.

    Attributes:
        label: follows the algorithm's name in the name of the test.
        fields: of the configuration, where they are not those of the suite.
        discrete: the kind of actions, for algorithms that handle both.
    """

    label: str = ""
    fields: Fields = dataclasses.field(default_factory=dict)
    discrete: bool | None = None


@dataclass(frozen=True)
class Probing(Variant):
    """A run on probe environments.

    Attributes:
        n_steps: number of updates, or of environment steps.
        kinds: which probes.
        expert: whether the data are the best actions.
        action: how far from the best action is still good.
        true_values: whether predicted values must be the true ones; a conservative algorithm's are lower.
        slow: whether it belongs to the slow tier.
    """

    n_steps: int = 0
    kinds: tuple[str, ...] = PROBES
    expert: bool = False
    action: float = 0.3
    true_values: bool = True
    slow: bool = False


@dataclass(frozen=True)
class Chain(Variant):
    """A run on the chain.

    Attributes:
        n_steps: number of updates, or of environment steps.
        skill: share of good actions in the data: imitation needs something to imitate.
        slow: whether it belongs to the slow tier.
    """

    n_steps: int = 0
    skill: float = 0.0
    slow: bool = False


@dataclass(frozen=True)
class Row:
    """What the suites need to know about an algorithm.

    Attributes:
        config: class of its configuration.
        contract: variants that keep the contract.
        probes: variants that learn the true values of probe environments.
        chain: variants that solve the chain.
        seeds: variants that are trained as many seeds at once.
        single_seed: why many seeds of it cannot be trained at once, as in the error; empty if they can.
    """

    config: type
    contract: tuple[Variant, ...] = (Variant(),)
    probes: tuple[Probing, ...] = ()
    chain: tuple[Chain, ...] = ()
    seeds: tuple[Variant, ...] = ()
    single_seed: str = ""

    @property
    def name(self) -> str:
        """Name of the algorithm."""
        return self.config.__name__.removesuffix("Config")


@dataclass(frozen=True)
class Run:
    """A variant of an algorithm with its configuration, as a suite runs it."""

    name: str
    config: Any
    variant: Any
    slow: bool = False
    """Whether it belongs to the slow tier."""

    @property
    def discrete(self) -> bool:
        """Whether actions are discrete."""
        space = self.config.algorithm.actions
        return bool(self.variant.discrete) if ActionSpace.BOTH in space else ActionSpace.DISCRETE in space

    @property
    def action_size(self) -> int:
        """Number of action dimensions, or of actions."""
        return 3 if self.discrete else 2


def fill(config: type, encoder: EncoderFactory, *fields: Fields) -> Any:
    """A configuration with ``encoder`` everywhere and those of ``fields`` that it has; later ones win.

    A ``tau`` of 1 stays: such targets are copied every ``target_update_interval`` updates.
    """
    known = [item.name for item in dataclasses.fields(config) if (item.name, item.default) != ("tau", 1.0)]
    given: dict[str, Any] = {name: encoder for name in known if name.endswith("encoder_factory")}
    for each in fields:
        given |= {name: value for name, value in each.items() if name in known}
    return config(**given)


WHOLE = ("DQN", "SAC", "PPO")
"""Algorithms of which all variants keep the contract in the default tier, and that are trained as many seeds there, for
those of all others."""


def _runs(suite: str, encoder: EncoderFactory, *fields: Fields) -> tuple[Run, ...]:
    """The default tier has the first variant of each algorithm that is not slow by itself."""
    found = []
    for row in ROWS:
        single = not (suite == "contract" and row.name in WHOLE)
        started = False
        for each in getattr(row, suite):
            slow = getattr(each, "slow", False) or (single and started)
            slow = slow or (suite in ("chain", "seeds") and row.name not in WHOLE)
            started = started or not slow
            config = fill(row.config, encoder, *fields, each.fields)
            found.append(Run(f"{row.name} {each.label}".rstrip(), config, each, slow))
    return tuple(found)


def tiers(runs: Iterable[Run]) -> list[Any]:
    """Runs as pytest's parameters, marked by their tier."""
    return [pytest.param(run, marks=[pytest.mark.slow] if run.slow else [], id=run.name) for run in runs]


WINDOWS: dict[str, Any] = {"num_layers": 1, "attn_dropout": 0.0, "resid_dropout": 0.0, "embed_dropout": 0.0}
GRU = GRUEncoderFactory(hidden_size=6, hidden_units=[6])
LSTM = LSTMEncoderFactory(hidden_size=6, hidden_units=[6])
SEQUENCES = {"batch_size": 8, "sequence_length": 4, "burn_in": 2}
CONTRACT_FIELDS: dict[str, Any] = {
    "batch_size": 16,
    "n_epochs": 2,
    "rollout_length": 20,
    "batch_size_per_update": 8,
    "n_critic_updates": 3,
    "n_actor_updates": 4,
    "context_size": 6,
    "max_timestep": 20,
    **WINDOWS,
}
PROBE_FIELDS: dict[str, Any] = {
    "batch_size": 32,
    "learning_rate": 1e-2,
    "actor_learning_rate": 3e-3,
    "critic_learning_rate": 1e-2,
    "imitator_learning_rate": 1e-2,
    "temp_learning_rate": 3e-3,
    "initial_temperature": 0.01,  # true values are those without an entropy bonus
    "gamma": 0.5,
    "tau": 0.1,
    "target_update_interval": 10,
    "rollout_length": 64,
    "n_epochs": 6,
    "context_size": 3,
    "max_timestep": 5,
    **WINDOWS,
}
CHAIN_FIELDS: dict[str, Any] = {
    "batch_size": 64,
    "actor_learning_rate": 3e-3,
    "critic_learning_rate": 1e-2,
    "imitator_learning_rate": 3e-3,
    "temp_learning_rate": 1e-4,
    "initial_temperature": 0.02,
    "gamma": 0.9,
    "tau": 0.1,
    "rollout_length": 256,
    "n_epochs": 6,
    "entropy_coefficient": 0.01,
    "context_size": 3,
    "max_timestep": 60,
    **WINDOWS,
}
SEEDS_FIELDS: dict[str, Any] = {"batch_size": 8, "batch_size_per_update": 4, "learning_rate": 1e-3}

ACTION_PROBES = ("action", "action_observation")
VALUE_PROBES = tuple(kind for kind in PROBES if kind not in ACTION_PROBES)
SOME_PROBES = ("discount", "time_limit", "action_observation")

HEADS = {"qr": QRQFunctionFactory(n_quantiles=8)}
HEADS["iqn"] = IQNQFunctionFactory(n_quantiles=8, n_greedy_quantiles=8, embed_size=16)
PROBE_HEADS = {**HEADS, "c51": C51QFunctionFactory(n_atoms=31, v_min=-3.0, v_max=3.0)}
CHAIN_HEADS = {"mean": MeanQFunctionFactory(), **HEADS, "c51": C51QFunctionFactory(n_atoms=21, v_min=-0.5, v_max=1.5)}


def _heads(n_steps: int, fields: Fields, slow: tuple[str, ...] = ("qr", "iqn", "c51")) -> tuple[Chain, ...]:
    """The chain with every head. All algorithms share the heads: the slow tier has those that others show."""
    return tuple(
        Chain(name, {**fields, "q_func_factory": head}, n_steps=n_steps, slow=name in slow)
        for name, head in CHAIN_HEADS.items()
    )


VALUE_CHAIN = {"batch_size": 128, "learning_rate": 2e-3, "target_update_interval": 25}
TD3_PROBE = {"actor_learning_rate": 1e-3}
TD3_CHAIN = {"actor_learning_rate": 1e-3, "critic_learning_rate": 3e-3, "tau": 0.05}
TD3_CHAIN_OF_HEADS = {"actor_learning_rate": 5e-4}
CONSERVATIVE_PROBE = {"conservative_weight": 0.3, "alpha_threshold": 0.5, "n_action_samples": 4}
CONSERVATIVE_CHAIN = {"conservative_weight": 0.1, "alpha_threshold": 0.5, "n_action_samples": 4}
RENORM = dict.fromkeys(
    ("actor_encoder_factory", "critic_encoder_factory"), BatchRenormEncoderFactory([32, 32], momentum=0.1, warmup=50)
)
CLONING_CHAIN = {"learning_rate": 1e-2}
BEAR_RUN = {
    "imitator_learning_rate": 1e-2,
    "alpha_learning_rate": 1e-2,
    "initial_alpha": 0.1,
    "alpha_threshold": 0.2,
    "n_action_samples": 10,
    "n_target_samples": 4,
    "vae_kl_weight": 0.05,
}
LATENT_CHAIN = {"actor_learning_rate": 1e-3, "imitator_learning_rate": 1e-2, "beta": 0.005}
ITERATION_PROBE = {
    "critic_learning_rate": 2e-2,
    "batch_size": 64,
    "batch_size_per_update": 32,
    "n_critic_updates": 10,
    "n_actor_updates": 10,
    "beta": 0.5,
}
ITERATION_CHAIN = {
    "actor_learning_rate": 3e-2,
    "critic_learning_rate": 3e-2,
    "batch_size": 1024,
    "batch_size_per_update": 256,
    "n_critic_updates": 4,
    "n_actor_updates": 8,
    "lam": 0.3,  # values are small in most states: the noise of longer returns would hide them
}
ITERATION_PROBES = (
    Probing("values", ITERATION_PROBE, n_steps=15, kinds=VALUE_PROBES),
    Probing("actions", ITERATION_PROBE, n_steps=15, kinds=ACTION_PROBES, true_values=False),
)
A2C_PROBE = {"rollout_length": 16, "learning_rate": 1e-2}
A2C_CHAIN = {"rollout_length": 64, "learning_rate": 4e-3, "gae_lambda": 0.95}
# Sums over rollouts are steep: RMSprop with its epsilon of 0.1 then moves at once.
A3C_PROBE = {"rollout_length": 8, "learning_rate": 1e-2}
A3C_CHAIN = {"rollout_length": 32, "learning_rate": 3e-3}
N_STEP_PROBE = {"rollout_length": 8, "learning_rate": 5e-3, "target_update_interval": 10}
N_STEP_CHAIN = {"rollout_length": 8, "learning_rate": 1e-2, "target_update_interval": 10}
REINFORCE_PROBE = {"n_episodes": 16, "value_coefficient": 1.0}
REINFORCE_CHAIN = {"n_episodes": 8, "learning_rate": 1e-2}
MPO_PROBE = {
    "actor_learning_rate": 3e-3,
    "critic_learning_rate": 1e-2,
    "dual_learning_rate": 3e-2,
    "n_action_samples": 8,
    "epsilon_mean": 0.1,
    "epsilon_std": 0.01,
    "epsilon_policy": 0.1,
    "initial_alpha_std": 1.0,
}
MPO_CHAIN = {**MPO_PROBE, "target_update_interval": 10}
VMPO_PROBE = {"learning_rate": 1e-2, "epsilon": 0.1, "epsilon_policy": 0.1, "epsilon_mean": 0.1, "epsilon_std": 0.01}
VMPO_CHAIN = {**VMPO_PROBE, "learning_rate": 4e-3}
GAIL_RUN: dict[str, Any] = {"learning_rate": 4e-3, "discriminator_learning_rate": 4e-3}
AIRL_RUN = {**GAIL_RUN, "reward": "airl"}
REPLAYED = {  # ACER and IMPALA: short rollouts, and older ones from the start
    "optim_factory": AdamFactory(),
    "batch_size": 8,
    "rollout_length": 16,
    "replay_ratio": 2.0,
    "replay_start": 64,
}
TRUST_REGION = {"max_kl": 0.05, "value_learning_rate": 1e-2, "conjugate_gradient_steps": 10}
TRUST_REGION_PROBE = {**TRUST_REGION, "value_learning_rate": 3e-2}
TRPO_GAIL = {**TRUST_REGION, "discriminator_learning_rate": 4e-3}
TRPO_AIRL = {**TRPO_GAIL, "reward": "airl"}
A2C_GAIL = {**A2C_PROBE, "discriminator_learning_rate": 4e-3}
A2C_AIRL = {**A2C_CHAIN, "discriminator_learning_rate": 4e-3, "reward": "airl"}
BOUNDS = MinMaxActionScaler(-2.0, 2.0)
SEEDS_ENCODER = VectorEncoderFactory(hidden_units=[16, 16])


def _seeds_encoder(**options: Any) -> Fields:
    return {"encoder_factory": VectorEncoderFactory(hidden_units=[16, 16], **options)}


def _noisy(hidden_units: list[int], noisy: float = 0.5) -> Fields:
    return {"encoder_factory": VectorEncoderFactory(hidden_units=hidden_units, noisy=noisy)}


def _dueling_c51(n_atoms: int, v_min: float, v_max: float) -> Fields:
    head = C51QFunctionFactory(n_atoms=n_atoms, v_min=v_min, v_max=v_max, dueling=[16], noisy=0.1)
    return {"q_func_factory": head}


ROWS: tuple[Row, ...] = (
    Row(
        algos.DQNConfig,
        contract=(Variant(), Variant("GRU", {"encoder_factory": GRU, **SEQUENCES})),
        probes=(
            Probing("mean", n_steps=120),
            *(
                Probing(name, {"q_func_factory": head}, n_steps=120, kinds=("discount", "action_observation"))
                for name, head in PROBE_HEADS.items()
            ),
        ),
        chain=_heads(600, VALUE_CHAIN, slow=("iqn", "c51")),
        seeds=(
            Variant(fields={"target_update_interval": 7}),
            Variant("IQN", {"q_func_factory": IQNQFunctionFactory(n_quantiles=8, n_greedy_quantiles=4, embed_size=8)}),
        ),
    ),
    Row(
        algos.MunchausenDQNConfig,
        probes=(  # without the bonus and with a cold policy the values are those of the best actions
            Probing(fields={"munchausen_scaling_term": 0.0, "entropy_temperature": 1e-3}, n_steps=120),
        ),
        chain=_heads(600, VALUE_CHAIN),
        seeds=(Variant(fields={"target_update_interval": 7}),),
    ),
    Row(
        algos.ALConfig,
        probes=(
            Probing("values", n_steps=120, kinds=VALUE_PROBES),
            Probing("actions", n_steps=120, kinds=ACTION_PROBES, true_values=False),  # of which the others lie lower
        ),
        chain=_heads(600, VALUE_CHAIN),
        seeds=(Variant(fields={"target_update_interval": 7}),),
    ),
    Row(
        algos.PALConfig,
        probes=(Probing(n_steps=120),),
        chain=_heads(600, VALUE_CHAIN, slow=("mean", "qr", "c51")),
        seeds=(Variant(fields={"target_update_interval": 7}),),
    ),
    Row(
        algos.DoublePALConfig,
        probes=(Probing(n_steps=120),),
        chain=_heads(600, VALUE_CHAIN, slow=("mean", "qr", "iqn")),
        seeds=(Variant("QR", {"q_func_factory": QRQFunctionFactory(n_quantiles=5), "target_update_interval": 7}),),
    ),
    Row(
        algos.DPPConfig,
        contract=(Variant(), Variant("log sum exp", {"operator": "log_sum_exp"})),
        probes=(  # preferences are not values
            Probing("", {"inverse_temperature": 5.0}, n_steps=120, kinds=ACTION_PROBES, true_values=False),
            Probing("max", {"operator": "max"}, n_steps=120, kinds=("action_observation",), true_values=False),
        ),
        chain=_heads(600, {**VALUE_CHAIN, "inverse_temperature": 50.0}, slow=("qr", "iqn"))[:3],
        seeds=(Variant(fields={"target_update_interval": 7}),),
    ),
    Row(
        algos.DoubleDQNConfig,
        contract=(Variant(), Variant("dueling noisy C51", {**_noisy([6], 0.1), **_dueling_c51(11, -10.0, 10.0)})),
        probes=(Probing(n_steps=120),),
        chain=(
            *_heads(600, VALUE_CHAIN),
            Chain(
                "dueling noisy C51",
                {**VALUE_CHAIN, **_noisy([32], 0.1), **_dueling_c51(21, -0.5, 1.5)},
                n_steps=800,
            ),
        ),
        seeds=(
            Variant("dueling noisy C51", {**_noisy([16, 16]), **_dueling_c51(11, -10.0, 10.0)}),
            Variant(
                "dueling noisy IQN, ensemble",
                {
                    **_noisy([16]),
                    "n_critics": 2,
                    "q_func_factory": IQNQFunctionFactory(
                        n_quantiles=4, n_greedy_quantiles=4, embed_size=4, dueling=[8], noisy=True
                    ),
                },
            ),
            Variant("QR, ensemble", {"q_func_factory": QRQFunctionFactory(n_quantiles=5), "n_critics": 2}),
            Variant("dropout, layer norm", _seeds_encoder(dropout_rate=0.3, use_layer_norm=True)),
            # a bias before batch norm has no gradient but rounding, which Adam would blow up: SGD leaves it small
            Variant("batch norm", {**_seeds_encoder(use_batch_norm=True), "optim_factory": SGDFactory()}),
        ),
    ),
    Row(
        algos.DiscreteCQLConfig,
        probes=(
            Probing("alpha 0", {"alpha": 0.0}, n_steps=120),
            Probing(n_steps=120, kinds=ACTION_PROBES, true_values=False),
        ),
        chain=(Chain("", {**VALUE_CHAIN, "alpha": 0.05}, n_steps=600),),
        seeds=(Variant(),),
    ),
    Row(
        algos.DiscreteBCQConfig,
        contract=(Variant(), Variant("own encoder", {"share_encoder": False})),
        probes=(Probing("", {"beta": 0.01}, n_steps=120),),
        chain=(Chain("", {**VALUE_CHAIN, "beta": 0.01}, n_steps=400),),
    ),
    Row(
        algos.DiscreteSACConfig,
        probes=(Probing(n_steps=120),),
        chain=(
            Chain("", {"critic_learning_rate": 2e-3, "batch_size": 128, "target_update_interval": 20}, n_steps=500),
        ),
        seeds=(Variant(), *(Variant(name, {"q_func_factory": HEADS[name]}) for name in HEADS)),
    ),
    Row(
        algos.DiscreteBCConfig,
        probes=(Probing("", {"beta": 0.01}, n_steps=60, kinds=ACTION_PROBES, expert=True),),
        chain=(Chain("", {**CLONING_CHAIN, "beta": 0.01}, n_steps=100, skill=0.6),),
    ),
    Row(algos.NFQConfig, probes=(Probing(n_steps=120),), chain=(Chain("", VALUE_CHAIN, n_steps=300),)),
    Row(
        algos.DDPGConfig,
        probes=(Probing("", TD3_PROBE, n_steps=150),),
        chain=(Chain("", TD3_CHAIN, n_steps=450),),
    ),
    Row(
        algos.TD3Config,
        probes=(Probing("", TD3_PROBE, n_steps=150),),
        chain=(Chain("mean", TD3_CHAIN, n_steps=800), *_heads(800, TD3_CHAIN_OF_HEADS)[1:]),
        seeds=(Variant(fields={"action_scaler": BOUNDS}),),
    ),
    Row(
        algos.TD3PlusBCConfig,
        probes=(Probing("", {**TD3_PROBE, "alpha": 20.0}, n_steps=150),),
        chain=(Chain("", {**TD3_CHAIN, "actor_learning_rate": 3e-3}, n_steps=500, skill=0.3),),
    ),
    Row(
        algos.PRDCConfig,
        probes=(Probing("", {**TD3_PROBE, "alpha": 20.0}, n_steps=150),),
        chain=(Chain("", TD3_CHAIN, n_steps=800),),
        single_seed="PRDC",
    ),
    Row(
        algos.ReBRACConfig,
        contract=(Variant("", {"actor_beta": 0.1, "critic_beta": 0.1}),),
        probes=(Probing("", {"critic_beta": 0.0}, n_steps=150),),
        chain=(Chain("", {**TD3_CHAIN, "actor_learning_rate": 3e-3, "actor_beta": 0.4}, n_steps=400, skill=0.3),),
    ),
    Row(
        algos.SACConfig,
        contract=(
            Variant(),
            Variant("LSTM", {"actor_encoder_factory": LSTM, "critic_encoder_factory": LSTM, **SEQUENCES}),
        ),
        probes=(
            Probing(n_steps=150),
            *(
                Probing(name, {"q_func_factory": head}, n_steps=150, kinds=("discount",))
                for name, head in PROBE_HEADS.items()
            ),
        ),
        chain=_heads(400, {}, slow=("qr",)),
        seeds=(Variant(fields={"action_scaler": BOUNDS}),),
    ),
    Row(
        algos.ICML2018SACConfig,
        probes=(  # values count entropy, too: see tests/algos/test_critics.py
            Probing(
                "", {"reward_scaler": MultiplyRewardScaler(10.0)}, n_steps=200, kinds=ACTION_PROBES, true_values=False
            ),
        ),
        chain=(Chain("", {"reward_scaler": MultiplyRewardScaler(20.0)}, n_steps=800),),
        seeds=(Variant(fields={"action_scaler": BOUNDS}),),
    ),
    Row(
        algos.MPOConfig,
        contract=(
            Variant("", {"n_action_samples": 3, "target_update_interval": 2}),
            Variant(
                "one bound",
                {"n_action_samples": 3, "n_critics": 2, "per_dimension": False, "epsilon_penalty": None}
                | {"target_update_type": "soft"},
            ),
        ),
        probes=(Probing("", MPO_PROBE, n_steps=200, kinds=(*SOME_PROBES, "action")),),
        chain=(Chain("", MPO_CHAIN, n_steps=400),),
        seeds=(Variant(fields={"action_scaler": BOUNDS, "n_action_samples": 3, "target_update_interval": 7}),),
    ),
    Row(
        algos.DiscreteMPOConfig,
        contract=(Variant("", {"target_update_interval": 2}),),
        probes=(Probing("", MPO_PROBE, n_steps=200, kinds=SOME_PROBES),),
        chain=(Chain("", MPO_CHAIN, n_steps=400),),
        seeds=(Variant(fields={"target_update_interval": 7}),),
    ),
    Row(
        algos.TQCConfig,
        probes=(Probing("", {"n_critics": 2}, n_steps=150, kinds=SOME_PROBES),),
        chain=(Chain("", {"n_critics": 2}, n_steps=400),),
        seeds=(Variant(fields={"action_scaler": BOUNDS}),),
    ),
    Row(
        algos.REDQConfig,
        contract=(Variant("", {"n_critics": 4, "update_actor_interval": 2}),),
        probes=(Probing("", {"n_critics": 4, "update_actor_interval": 1}, n_steps=150, kinds=SOME_PROBES),),
        chain=(Chain("", {"n_critics": 4, "update_actor_interval": 1}, n_steps=400),),
        seeds=(Variant(fields={"action_scaler": BOUNDS, "n_critics": 4, "update_actor_interval": 2}),),
    ),
    Row(
        algos.DroQConfig,
        contract=(Variant("", {"update_actor_interval": 2}),),
        probes=(
            Probing(
                "",
                {"critic_encoder_factory": DroQEncoderFactory([32, 32]), "update_actor_interval": 1},
                n_steps=200,
                kinds=SOME_PROBES,
            ),
        ),
        chain=(
            Chain("", {"critic_encoder_factory": DroQEncoderFactory([32]), "update_actor_interval": 1}, n_steps=400),
        ),
        seeds=(
            Variant(
                fields={
                    "action_scaler": BOUNDS,
                    "critic_encoder_factory": DroQEncoderFactory([16, 16], dropout_rate=0.2),
                    "update_actor_interval": 2,
                }
            ),
        ),
    ),
    Row(
        algos.CrossQConfig,
        contract=(Variant("", {"update_actor_interval": 2}),),
        probes=(Probing("", {**RENORM, "update_actor_interval": 1}, n_steps=200, kinds=SOME_PROBES),),
        chain=(Chain("", {**RENORM, "update_actor_interval": 1}, n_steps=400),),
        seeds=(Variant(fields={**RENORM, "action_scaler": BOUNDS, "update_actor_interval": 2}),),
    ),
    Row(
        algos.NAFConfig,
        contract=(Variant(), Variant("GRU", {"encoder_factory": GRU, **SEQUENCES})),
        probes=(Probing(n_steps=150),),
        chain=(Chain("", {"learning_rate": 3e-3}, n_steps=600),),
        seeds=(Variant(fields={"action_scaler": BOUNDS}),),
    ),
    Row(
        algos.CQLConfig,
        contract=(Variant("", {"n_action_samples": 3}),),
        probes=(
            Probing("weight 0", {"conservative_weight": 0.0, "n_action_samples": 2}, n_steps=150, kinds=SOME_PROBES),
            Probing("", CONSERVATIVE_PROBE, n_steps=200, kinds=ACTION_PROBES, action=0.4, true_values=False),
        ),
        chain=(Chain("", CONSERVATIVE_CHAIN, n_steps=300),),
        seeds=(Variant(fields={"action_scaler": BOUNDS, "n_action_samples": 3}),),
    ),
    Row(
        algos.CalQLConfig,
        contract=(Variant("", {"n_action_samples": 3}),),
        probes=(Probing("", CONSERVATIVE_PROBE, n_steps=200, kinds=ACTION_PROBES, action=0.4, true_values=False),),
        chain=(Chain("", CONSERVATIVE_CHAIN, n_steps=300),),
    ),
    Row(
        algos.EDACConfig,
        contract=(Variant("", {"n_critics": 3}),),
        probes=(Probing("", {"n_critics": 4, "eta": 0.1}, n_steps=150),),
        chain=(Chain("", {"n_critics": 4, "eta": 0.01}, n_steps=300),),
        single_seed="EDAC, which differentiates through gradients",
    ),
    Row(
        algos.IQLConfig,
        probes=(Probing(n_steps=150),),
        chain=(Chain("", {"weight_temp": 30.0, "expectile": 0.9}, n_steps=400),),
        seeds=(Variant(fields={"action_scaler": BOUNDS}),),
    ),
    Row(
        algos.DiscreteIQLConfig,
        probes=(Probing(n_steps=150),),
        chain=(Chain("", {"weight_temp": 30.0, "expectile": 0.9}, n_steps=300),),
    ),
    Row(
        algos.CRRConfig,
        contract=(
            Variant("", {"update_actor_interval": 2}),
            Variant("soft", {"target_update_type": "soft", "advantage_type": "max", "n_critics": 2}),
        ),
        probes=(
            Probing("", {"beta": 0.1}, n_steps=150),
            Probing(
                "binary max soft",
                {
                    "weight_type": "binary",
                    "advantage_type": "max",
                    "target_update_type": "soft",
                    "n_action_samples": 2,
                },
                n_steps=150,
                kinds=ACTION_PROBES,
            ),
        ),
        chain=(Chain("", {"beta": 0.03, "target_update_type": "soft"}, n_steps=300),),
    ),
    Row(
        algos.AWACConfig,
        contract=(Variant("", {"n_action_samples": 2}),),
        probes=(Probing("", {"lam": 0.1}, n_steps=150),),
        chain=(Chain("", {"lam": 0.03}, n_steps=250),),
    ),
    Row(algos.AWRConfig, probes=ITERATION_PROBES, chain=(Chain("", ITERATION_CHAIN, n_steps=80),), single_seed="AWR"),
    Row(
        algos.DiscreteAWRConfig,
        probes=ITERATION_PROBES,
        chain=(Chain("", ITERATION_CHAIN, n_steps=80),),
        single_seed="DiscreteAWR",
    ),
    Row(
        algos.BCQConfig,
        contract=(Variant("", {"n_action_samples": 4}),),
        probes=(
            Probing(
                "",
                {"n_action_samples": 10, "action_flexibility": 0.3, "beta": 0.05, "rl_start_step": 20},
                n_steps=150,
                kinds=("discount", "time_limit", "action", "action_observation"),
            ),
        ),
        chain=(
            Chain(
                "",
                {"n_action_samples": 5, "action_flexibility": 0.3, "beta": 0.05, "update_actor_interval": 2},
                n_steps=300,
            ),
        ),
    ),
    Row(
        algos.BEARConfig,
        contract=(
            Variant("", {"n_action_samples": 4, "n_target_samples": 3, "n_mmd_action_samples": 2, "warmup_steps": 1}),
        ),
        probes=(Probing("", {**BEAR_RUN, "warmup_steps": 30}, n_steps=150, kinds=SOME_PROBES),),
        chain=(Chain("", {**BEAR_RUN, "warmup_steps": 50}, n_steps=200),),
    ),
    Row(
        algos.PLASConfig,
        contract=(Variant("", {"warmup_steps": 1}),),
        probes=(Probing("", {"beta": 0.005, "warmup_steps": 100}, n_steps=250, kinds=SOME_PROBES),),
        chain=(Chain("", {**LATENT_CHAIN, "warmup_steps": 150}, n_steps=500),),
    ),
    Row(
        algos.PLASWithPerturbationConfig,
        contract=(Variant("", {"warmup_steps": 1}),),
        probes=(
            Probing(
                "",
                {"beta": 0.005, "warmup_steps": 100, "action_flexibility": 0.1},
                n_steps=250,
                kinds=("discount", "action_observation"),
            ),
        ),
        chain=(
            Chain(
                "",
                {**LATENT_CHAIN, "actor_learning_rate": 5e-4, "warmup_steps": 200, "action_flexibility": 0.1},
                n_steps=600,
                skill=0.4,
            ),
        ),
    ),
    Row(
        algos.BCConfig,
        contract=(Variant(), Variant("stochastic", {"policy_type": "stochastic"})),
        probes=(
            Probing(n_steps=60, kinds=ACTION_PROBES, expert=True),
            Probing("stochastic", {"policy_type": "stochastic"}, n_steps=60, kinds=ACTION_PROBES, expert=True),
        ),
        chain=(
            Chain("", CLONING_CHAIN, n_steps=300, skill=0.6),
            Chain("stochastic", {**CLONING_CHAIN, "policy_type": "stochastic"}, n_steps=400, skill=0.6),
        ),
        seeds=(Variant(fields={"action_scaler": BOUNDS, "learning_rate": algos.BCConfig().learning_rate}),),
    ),
    Row(
        algos.PPOConfig,
        contract=(
            Variant("continuous", discrete=False),
            Variant("discrete", discrete=True),
            Variant(
                "GRU",
                {
                    "batch_size": 40,
                    "actor_encoder_factory": GRU,
                    "value_encoder_factory": GRU,
                    "sequence_length": 10,
                },
                discrete=True,
            ),
            Variant(
                "GRU for both, adapted penalty",
                {
                    "batch_size": 40,
                    "actor_encoder_factory": GRU,
                    "value_encoder_factory": None,
                    "sequence_length": 10,
                    "kl_coefficient": 0.5,
                    "kl_penalty_target": 0.01,
                },
                discrete=False,
            ),
        ),
        probes=(
            Probing("discrete", {"learning_rate": 1e-2}, True, n_steps=1280),
            Probing(
                "discrete, one encoder",
                {"learning_rate": 1e-2, "value_encoder_factory": None},
                True,
                n_steps=1280,
                kinds=SOME_PROBES,
            ),
            Probing("values", {"learning_rate": 1e-2}, False, n_steps=1280, kinds=("discount", "time_limit")),
            Probing("actions", {"learning_rate": 6e-3}, False, n_steps=1920, kinds=ACTION_PROBES),
        ),
        chain=(
            Chain("discrete", {"learning_rate": 4e-3}, True, n_steps=4096),
            Chain("continuous", {"learning_rate": 4e-3}, False, n_steps=4096),
        ),
        single_seed="PPO",
    ),
    Row(
        algos.A2CConfig,
        contract=(
            Variant("continuous", discrete=False),
            Variant("discrete, one encoder", {"value_encoder_factory": None}, discrete=True),
            Variant("GRU", {"actor_encoder_factory": GRU, "value_encoder_factory": GRU}, discrete=True),
        ),
        probes=(
            Probing("discrete", A2C_PROBE, True, n_steps=2560),
            Probing("continuous", A2C_PROBE, False, n_steps=2560, kinds=("discount", "time_limit")),
        ),
        chain=(
            Chain("discrete", A2C_CHAIN, True, n_steps=6144),
            Chain("continuous", A2C_CHAIN, False, n_steps=6144, slow=True),
        ),
        single_seed="A2C",
    ),
    Row(
        algos.A3CConfig,
        contract=(
            Variant("continuous", {"value_encoder_factory": None}, discrete=False),
            Variant("discrete, GRU", {"actor_encoder_factory": GRU, "value_encoder_factory": GRU}, discrete=True),
        ),
        probes=(Probing("discrete", A3C_PROBE, True, n_steps=1920, slow=True),),
        chain=(Chain("discrete", A3C_CHAIN, True, n_steps=6144),),
        single_seed="A3C",
    ),
    Row(
        algos.NStepDQNConfig,
        contract=(Variant(), Variant("QR", {"q_func_factory": QRQFunctionFactory(n_quantiles=4)})),
        probes=(Probing("", N_STEP_PROBE, n_steps=2560),),
        chain=(Chain("", N_STEP_CHAIN, n_steps=4096),),
        single_seed="NStepDQN",
    ),
    Row(
        algos.REINFORCEConfig,
        contract=(
            Variant("continuous", {"n_episodes": 2}, discrete=False),
            Variant("discrete", {"n_episodes": 2}, discrete=True),
            Variant("baseline", {"n_episodes": 2, "baseline": True}, discrete=True),
            Variant("GRU", {"n_episodes": 2, "actor_encoder_factory": GRU}, discrete=True),
        ),
        probes=(
            Probing("discrete", REINFORCE_PROBE, True, n_steps=1280, kinds=ACTION_PROBES),
            Probing("values", {**REINFORCE_PROBE, "baseline": True}, True, n_steps=1920, kinds=VALUE_PROBES),
        ),
        chain=(
            Chain("discrete", REINFORCE_CHAIN, True, n_steps=6144),
            Chain("continuous", REINFORCE_CHAIN, False, n_steps=6144, slow=True),
        ),
        single_seed="REINFORCE",
    ),
    Row(
        algos.VMPOConfig,
        contract=(
            Variant("continuous", discrete=False),
            Variant("discrete", discrete=True),
            Variant(
                "GRU",
                {
                    "batch_size": 40,
                    "actor_encoder_factory": GRU,
                    "value_encoder_factory": GRU,
                    "sequence_length": 10,
                },
                discrete=False,
            ),
        ),
        probes=(
            Probing("discrete", VMPO_PROBE, True, n_steps=1280),
            Probing("continuous", VMPO_PROBE, False, n_steps=1280, kinds=SOME_PROBES),
        ),
        chain=(
            Chain("discrete", VMPO_CHAIN, True, n_steps=4096),
            Chain("continuous", VMPO_CHAIN, False, n_steps=4096),
        ),
        single_seed="VMPO",
    ),
    Row(
        algos.GAILConfig,
        contract=(
            Variant("continuous", discrete=False),
            Variant("discrete", discrete=True),
            Variant("airl", {"reward": "airl"}, discrete=False),
            Variant("airl shaped", {"reward": "airl", "shaping": True, "states_only": True}, discrete=True),
            Variant(
                "GRU",
                {
                    "batch_size": 40,
                    "actor_encoder_factory": GRU,
                    "value_encoder_factory": GRU,
                    "sequence_length": 10,
                },
                discrete=True,
            ),
        ),
        probes=(
            Probing("", GAIL_RUN, True, n_steps=1920, kinds=ACTION_PROBES, expert=True, true_values=False),
            Probing("airl", AIRL_RUN, False, 2560, ("action_observation",), True, true_values=False),
        ),
        chain=(  # which ends at the goal: rewards above 0 alone would say to stay away from it
            Chain("airl discrete", AIRL_RUN, True, n_steps=6144, skill=1.0),
            Chain("airl continuous", AIRL_RUN, False, n_steps=8192, skill=1.0),
        ),
        single_seed="GAIL",
    ),
    Row(
        algos.TRPOGAILConfig,
        contract=(
            Variant("airl shaped", {"reward": "airl", "shaping": True}, discrete=False),
            Variant(
                "GRU",
                {"actor_encoder_factory": GRU, "value_encoder_factory": GRU, "sequence_length": 10},
                discrete=True,
            ),
        ),
        probes=(
            Probing("", TRPO_GAIL, True, 1920, ACTION_PROBES, True, true_values=False, slow=True),
            Probing("airl", TRPO_AIRL, False, 2560, ("action_observation",), True, true_values=False, slow=True),
        ),
        chain=(Chain("airl", TRPO_AIRL, True, n_steps=6144, skill=1.0),),
        single_seed="TRPO",
    ),
    Row(
        algos.A2CGAILConfig,
        contract=(
            Variant("airl", {"reward": "airl"}, discrete=False),
            Variant("GRU", {"actor_encoder_factory": GRU, "value_encoder_factory": GRU}, discrete=True),
        ),
        probes=(Probing("", A2C_GAIL, True, 2560, ACTION_PROBES, True, true_values=False, slow=True),),
        chain=(Chain("airl", A2C_AIRL, True, n_steps=8192, skill=1.0),),
        single_seed="A2C",
    ),
    Row(
        algos.DiscreteACERConfig,
        contract=(
            Variant(),
            Variant("GRU", dict.fromkeys(("actor_encoder_factory", "critic_encoder_factory"), GRU)),
            Variant("GRU for both", {"actor_encoder_factory": GRU, "critic_encoder_factory": None}),
        ),
        probes=(
            Probing("", {**REPLAYED, "learning_rate": 1e-2}, n_steps=1280),
            Probing(
                "one encoder",
                {**REPLAYED, "learning_rate": 4e-3, "critic_encoder_factory": None},
                n_steps=1280,
                kinds=("time_limit", "action_observation"),
            ),
        ),
        chain=(Chain("", {**REPLAYED, "learning_rate": 4e-3}, n_steps=4096),),
        single_seed="DiscreteACER",
    ),
    Row(
        algos.ACERConfig,
        contract=(Variant(), Variant("one encoder", {"value_encoder_factory": None})),
        probes=(
            Probing("values", {**REPLAYED, "learning_rate": 1e-2}, n_steps=1280, kinds=("discount", "time_limit")),
            Probing("actions", {**REPLAYED, "learning_rate": 6e-3}, n_steps=1920, kinds=ACTION_PROBES),
        ),
        chain=(
            Chain("", {**REPLAYED, "learning_rate": 4e-3}, n_steps=4096),
            Chain("one encoder", {**REPLAYED, "value_encoder_factory": None}, n_steps=4096, slow=True),
        ),
        single_seed="ACER",
    ),
    Row(
        algos.IMPALAConfig,
        contract=(Variant("continuous", discrete=False), Variant("discrete", discrete=True)),
        probes=(
            Probing("discrete", {**REPLAYED, "learning_rate": 1e-2}, True, n_steps=1280, kinds=SOME_PROBES),
            Probing("actions", {**REPLAYED, "learning_rate": 6e-3}, False, n_steps=1920, kinds=ACTION_PROBES),
        ),
        chain=(
            Chain("discrete", {**REPLAYED, "learning_rate": 4e-3}, True, n_steps=4096),
            Chain("continuous", {**REPLAYED, "learning_rate": 4e-3}, False, n_steps=4096, slow=True),
        ),
        single_seed="IMPALA",
    ),
    Row(
        algos.DecisionTransformerConfig,
        contract=(Variant("", {"warmup_steps": 10}),),
        probes=(Probing("", {"warmup_steps": 5}, n_steps=60, kinds=ACTION_PROBES, expert=True),),
        chain=(Chain("", {**CLONING_CHAIN, "warmup_steps": 5}, n_steps=100, skill=0.6),),
        single_seed="trajectories",
    ),
    Row(
        algos.DiscreteDecisionTransformerConfig,
        contract=(Variant("", {"num_heads": 2, "warmup_tokens": 40, "final_tokens": 1000}),),
        probes=(
            Probing(
                "",
                {"num_heads": 2, "warmup_tokens": 500, "final_tokens": 100000},
                n_steps=60,
                kinds=ACTION_PROBES,
                expert=True,
            ),
        ),
        chain=(
            Chain(
                "",
                {"learning_rate": 5e-3, "num_heads": 2, "warmup_tokens": 2000, "final_tokens": 40000},
                n_steps=200,
                skill=0.6,
            ),
        ),
        single_seed="trajectories",
    ),
    Row(
        algos.TACRConfig,
        probes=(Probing("", {**TD3_PROBE, "alpha": 50.0}, n_steps=150),),
        chain=(Chain("", {"critic_learning_rate": 3e-3}, n_steps=200, skill=0.6),),
        single_seed="trajectories",
    ),
    Row(
        algos.TRPOConfig,
        contract=(
            Variant("continuous", discrete=False),
            Variant("discrete", discrete=True),
            Variant(
                "GRU",
                {"actor_encoder_factory": GRU, "value_encoder_factory": GRU, "sequence_length": 10},
                discrete=True,
            ),
        ),
        probes=(
            Probing("discrete", TRUST_REGION_PROBE, True, n_steps=1280),
            Probing("values", TRUST_REGION_PROBE, False, n_steps=1280, kinds=("discount", "time_limit")),
            Probing("actions", TRUST_REGION, False, n_steps=1920, kinds=ACTION_PROBES),
        ),
        chain=(
            Chain("discrete", TRUST_REGION, True, n_steps=4096),
            Chain("continuous", TRUST_REGION, False, n_steps=4096),
        ),
        single_seed="TRPO",
    ),
    Row(
        algos.ICML2015TRPOConfig,
        contract=(Variant("continuous", discrete=False), Variant("discrete", discrete=True)),
        probes=(
            Probing("discrete", TRUST_REGION, True, n_steps=1280, kinds=ACTION_PROBES),
            Probing("continuous", TRUST_REGION, False, n_steps=1920, kinds=ACTION_PROBES),
        ),
        chain=(
            Chain("discrete", TRUST_REGION, True, n_steps=6144),
            Chain("continuous", TRUST_REGION, False, n_steps=6144, slow=True),
        ),
        single_seed="TRPO",
    ),
)

CONTRACT_RUNS = _runs("contract", VectorEncoderFactory(hidden_units=[8, 8]), CONTRACT_FIELDS)
PROBE_RUNS = _runs("probes", VectorEncoderFactory(hidden_units=[32, 32]), PROBE_FIELDS)
CHAIN_RUNS = _runs("chain", VectorEncoderFactory(hidden_units=[32]), CHAIN_FIELDS)
SEED_RUNS = {run.name: run for run in _runs("seeds", SEEDS_ENCODER, SEEDS_FIELDS)}
