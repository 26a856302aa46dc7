"""Algorithms beside their references: the table of goldens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from birl import algos
from birl.models import (
    AdamFactory,
    C51QFunctionFactory,
    GRUEncoderFactory,
    IQNQFunctionFactory,
    LSTMEncoderFactory,
    MeanQFunctionFactory,
    QFunctionFactory,
    QRQFunctionFactory,
    VectorEncoderFactory,
)
from birl.run.protocols import Rollout
from birl.testing import GoldenReport, compare_with_reference, double_precision, plain_parameters
from birl.types import Batch
from tests.golden.reference_actor_critic import (
    CQLReference,
    DiscreteSACReference,
    IQLReference,
    SACReference,
    TD3Reference,
)
from tests.golden.reference_imitation import CloningReference
from tests.golden.reference_ppo import PPOReference
from tests.golden.reference_recurrent import RecurrentReference
from tests.golden.reference_returns import Head
from tests.golden.reference_value import ValueReference

OBSERVATION, ACTIONS, SIZE, UPDATES = 3, 2, 6, 6
ENCODER = VectorEncoderFactory(hidden_units=[7, 5])
TANH = VectorEncoderFactory(hidden_units=[7, 5], activation="tanh")

HEADS: dict[str, tuple[QFunctionFactory, Head]] = {
    "mean": (MeanQFunctionFactory(), Head("mean")),
    "qr": (QRQFunctionFactory(n_quantiles=4), Head("qr", 4)),
    "iqn": (IQNQFunctionFactory(n_quantiles=4, n_greedy_quantiles=4, embed_size=3), Head("iqn", 4)),
    # atoms at multiples of 0.5: some shifted atoms fall exactly on another one
    "c51": (C51QFunctionFactory(n_atoms=9, v_min=-2.0, v_max=2.0), Head("c51", 9, -2.0, 2.0)),
}


@dataclass(frozen=True)
class Case:
    """A golden.

    Attributes:
        name: row of the table.
        run: makes both, trains both and compares.
    """

    name: str
    run: Callable[[], GoldenReport]


def _exact(generator: np.random.Generator, *shape: int) -> Tensor:
    """Normal numbers that float32 holds exactly."""
    return torch.from_numpy(generator.normal(size=shape).astype(np.float32).astype(np.float64))


def transitions(discrete: bool, count: int = UPDATES, weighted: bool = False) -> list[Batch]:
    """Batches with several discounts, some of them 0, and one reward that moves atoms onto others."""
    generator = np.random.default_rng(5)
    batches = []
    for _ in range(count):
        action = torch.from_numpy(generator.integers(3, size=SIZE))
        if not discrete:
            action = torch.tanh(_exact(generator, SIZE, ACTIONS)).float().double()
        reward = _exact(generator, SIZE)
        reward[0], reward[1] = 0.5, 3.0
        discount = torch.tensor([1.0, 0.99, 0.0, 0.970299, 0.5, 0.99], dtype=torch.float64)
        weight = (
            torch.from_numpy(generator.uniform(0.3, 1.0, SIZE)) if weighted else torch.ones(SIZE, dtype=torch.float64)
        )
        batches.append(
            Batch(
                _exact(generator, SIZE, OBSERVATION),
                action,
                reward,
                _exact(generator, SIZE, OBSERVATION),
                discount,
                weight,
            )
        )
    return batches


def build(config: Any, action_size: int, discrete: bool | None = None) -> Any:
    """An algorithm in float64. Targets are moved away from their sources, so that mixing them up shows."""
    torch.manual_seed(3)
    algorithm = config.create()
    algorithm.create_impl((OBSERVATION,), action_size, discrete_action=discrete)
    with torch.no_grad():
        for target in algorithm.engine.targets:
            for parameter in algorithm.nets.get_submodule(target.target).parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    algorithm._set_mode(acting=False)
    return algorithm


def _value_case(cls: str, head: str, n_critics: int = 2) -> Case:
    factory, reference_head = HEADS[head]
    config_class = getattr(algos, f"{cls}Config")
    extra = {"alpha": 0.7} if cls == "DiscreteCQL" else {}

    def run() -> GoldenReport:
        with double_precision():
            algorithm = build(
                config_class(
                    learning_rate=1e-2,
                    encoder_factory=ENCODER,
                    q_func_factory=factory,
                    n_critics=n_critics,
                    target_update_interval=2,
                    **extra,
                ),
                action_size=3,
            )
            reference = ValueReference(
                plain_parameters(algorithm.nets),
                reference_head,
                double=cls != "DQN",
                rate=1e-2,
                interval=2,
                conservative=extra.get("alpha", 0.0),
            )
            return compare_with_reference(algorithm, reference, transitions(True, weighted=True))

    return Case(f"{cls} {head}" + ("" if n_critics == 2 else f" x{n_critics}"), run)


def _td3_case(head: str) -> Case:
    def run() -> GoldenReport:
        with double_precision():
            algorithm = build(
                algos.TD3Config(
                    actor_learning_rate=1e-2,
                    critic_learning_rate=2e-2,
                    actor_encoder_factory=ENCODER,
                    critic_encoder_factory=ENCODER,
                    q_func_factory=HEADS[head][0],
                    tau=0.1,
                    target_smoothing_sigma=0.6,
                ),
                ACTIONS,
            )
            reference = TD3Reference(
                plain_parameters(algorithm.nets),
                actor_rate=1e-2,
                critic_rate=2e-2,
                tau=0.1,
                sigma=0.6,
                clip=0.5,
                interval=2,
                head=HEADS[head][1],
            )
            return compare_with_reference(algorithm, reference, transitions(False))

    return Case(f"TD3 {head}", run)


_SAC_RATES = {"actor_rate": 1e-2, "critic_rate": 2e-2, "temp_rate": 3e-2, "tau": 0.1}
_SAC_FIELDS: dict[str, Any] = {
    "actor_learning_rate": 1e-2,
    "critic_learning_rate": 2e-2,
    "temp_learning_rate": 3e-2,
    "tau": 0.1,
    "actor_encoder_factory": ENCODER,
    "critic_encoder_factory": ENCODER,
    "initial_temperature": 0.4,
}


def _sac_case(head: str) -> Case:
    def run() -> GoldenReport:
        with double_precision():
            algorithm = build(algos.SACConfig(**_SAC_FIELDS, q_func_factory=HEADS[head][0]), ACTIONS)
            reference = SACReference(plain_parameters(algorithm.nets), **_SAC_RATES, head=HEADS[head][1])
            return compare_with_reference(algorithm, reference, transitions(False))

    return Case(f"SAC {head}", run)


def _discrete_sac() -> GoldenReport:
    with double_precision():
        fields = {name: value for name, value in _SAC_FIELDS.items() if name != "tau"}
        algorithm = build(algos.DiscreteSACConfig(**fields, target_update_interval=2), 3)
        rates = {name: value for name, value in _SAC_RATES.items() if name != "tau"}
        reference = DiscreteSACReference(plain_parameters(algorithm.nets), **rates, interval=2)
        return compare_with_reference(algorithm, reference, transitions(True))


BACKUPS = ("", "soft", "max", "mode")


def conservative_case(name: str, config: Any, made: Any, batches: Callable[[], list[Batch]], backup: str) -> Case:
    """CQL, or what differs from it in the conservative term only.

    Args:
        name: row of the table.
        config: class of the configuration.
        made: class of the reference.
        batches: makes what both learn from.
        backup: ``"soft"``: targets have the entropy bonus; ``"max"``: they take the best of the sampled actions;
            ``"mode"``: they take the policy's mode.
    """

    def run() -> GoldenReport:
        with double_precision():
            algorithm = build(
                config(
                    **_SAC_FIELDS,
                    alpha_learning_rate=4e-2,
                    initial_alpha=0.8,
                    alpha_threshold=2.0,
                    conservative_weight=3.0,
                    n_action_samples=3,
                    soft_q_backup=backup == "soft",
                    max_q_backup=backup == "max",
                    mode_q_backup=backup == "mode",
                ),
                ACTIONS,
            )
            reference = made(
                plain_parameters(algorithm.nets),
                **_SAC_RATES,
                alpha_rate=4e-2,
                threshold=2.0,
                weight=3.0,
                n_samples=3,
                backup=backup,
                order=("critic", "alpha", "actor", "temp"),
            )
            return compare_with_reference(algorithm, reference, batches())

    return Case(f"{name} {backup}".rstrip(), run)


def _iql() -> GoldenReport:
    with double_precision():
        algorithm = build(
            algos.IQLConfig(
                actor_learning_rate=1e-2,
                critic_learning_rate=2e-2,
                actor_encoder_factory=ENCODER,
                critic_encoder_factory=ENCODER,
                value_encoder_factory=ENCODER,
                tau=0.1,
                max_weight=2.0,
            ),
            ACTIONS,
        )
        reference = IQLReference(
            plain_parameters(algorithm.nets),
            actor_rate=1e-2,
            critic_rate=2e-2,
            tau=0.1,
            expectile=0.7,
            temperature=3.0,
            max_weight=2.0,
            log_std_range=(-5.0, 2.0),
        )
        return compare_with_reference(algorithm, reference, transitions(False))


def _cloning_case(kind: str) -> Case:
    def run() -> GoldenReport:
        with double_precision():
            if kind == "discrete":
                config: Any = algos.DiscreteBCConfig(learning_rate=1e-2, encoder_factory=ENCODER, beta=0.5)
            else:
                config = algos.BCConfig(learning_rate=1e-2, encoder_factory=ENCODER, policy_type=kind)
            algorithm = build(config, 3 if kind == "discrete" else ACTIONS)
            reference = CloningReference(plain_parameters(algorithm.nets), kind, rate=1e-2, beta=0.5)
            return compare_with_reference(algorithm, reference, transitions(kind == "discrete"))

    return Case("DiscreteBC" if kind == "discrete" else f"BC {kind}", run)


def rollouts(discrete: bool, count: int = 2) -> list[tuple[Rollout, dict[str, Tensor]]]:
    """Rollouts with a termination, time limits and an invalid step, for the algorithm and for the reference."""
    generator, length, lanes = np.random.default_rng(9), 7, 2
    pairs = []
    for _ in range(count):
        observation = _exact(generator, length, lanes, OBSERVATION)
        following = _exact(generator, length, lanes, OBSERVATION)
        following[:-1] = observation[1:]
        action = torch.from_numpy(generator.integers(3, size=(length, lanes)))
        if not discrete:
            action = _exact(generator, length, lanes, ACTIONS)
        flags = {name: np.zeros((length, lanes), bool) for name in ("terminated", "truncated", "is_first")}
        flags["terminated"][2, 0] = flags["truncated"][3, 1] = flags["truncated"][6, 0] = True
        flags["is_first"][0] = flags["is_first"][3, 0] = flags["is_first"][5, 1] = True
        valid = np.ones((length, lanes), bool)
        valid[4, 1] = False  # the reset step of one environment
        for t, n in ((2, 0), (3, 1), (6, 0)):  # the last observation of an episode is not the first of the next
            following[t, n] = _exact(generator, OBSERVATION)
        reward = _exact(generator, length, lanes)
        rollout = Rollout(
            observation=observation.numpy().astype(np.float32),
            action=action.numpy() if discrete else action.numpy().astype(np.float32),
            reward=reward.numpy().astype(np.float32),
            next_observation=following.numpy().astype(np.float32),
            **flags,
            valid=valid,
            extra={},
        )
        plain = {
            "observation": observation,
            "action": action,
            "reward": reward,
            "next_observation": following,
            "valid": torch.from_numpy(valid),
            **{name: torch.from_numpy(value) for name, value in flags.items()},
        }
        pairs.append((rollout, plain))
    return pairs


def _ppo_case(discrete: bool, value_clip: float | None = None, normalize: bool = True) -> Case:
    def run() -> GoldenReport:
        with double_precision():
            algorithm = build(
                algos.PPOConfig(
                    learning_rate=1e-2,
                    optim_factory=AdamFactory(eps=1e-5, clip_grad_norm=0.5),
                    actor_encoder_factory=TANH,
                    value_encoder_factory=TANH,
                    batch_size=5,
                    n_epochs=3,
                    entropy_coefficient=0.03,
                    value_clip_range=value_clip,
                    normalize_advantage=normalize,
                    gamma=0.9,
                ),
                3 if discrete else ACTIONS,
                discrete=discrete,
            )
            reference = PPOReference(
                plain_parameters(algorithm.nets),
                rate=1e-2,
                eps=1e-5,
                max_norm=0.5,
                gamma=0.9,
                gae_lambda=0.95,
                clip=0.2,
                value_clip=value_clip,
                value_coefficient=0.5,
                entropy_coefficient=0.03,
                epochs=3,
                batch_size=5,
                normalize=normalize,
                discrete=discrete,
            )
            return compare_with_reference(algorithm, reference, rollouts(discrete), update=algorithm.update_rollout)

    name = "PPO discrete" if discrete else "PPO continuous"
    return Case(name + (" value clip" if value_clip else ""), run)


def sequences(burn_in: int, state_size: int) -> list[tuple[Batch, dict[str, Tensor]]]:
    """Sequence batches ``[T, B, …]`` with stored states, an episode that begins in the middle and padding."""
    generator, length, size = np.random.default_rng(13), 6, 3
    pairs = []
    for _ in range(4):
        weight = torch.ones(length, size, dtype=torch.float64)
        weight[4:, 2] = 0
        is_first = torch.zeros(length, size, dtype=torch.bool)
        is_first[0, 0] = is_first[3, 1] = is_first[1, 2] = True
        discount = torch.full((length, size), 0.99, dtype=torch.float64)
        discount[2, 1] = 0.0
        state = 0.5 * _exact(generator, size, state_size)
        batch = Batch(
            _exact(generator, length, size, OBSERVATION),
            torch.from_numpy(generator.integers(3, size=(length, size))),
            _exact(generator, length, size),
            _exact(generator, length, size, OBSERVATION),
            discount,
            weight,
            is_first,
            {"critic": state},
        )
        names = ("observation", "action", "reward", "next_observation", "discount", "weight", "is_first")
        pairs.append((batch, {**{name: getattr(batch, name) for name in names}, "state": state}))
    return pairs


def _recurrent_case(kind: str, burn_in: int) -> Case:
    def run() -> GoldenReport:
        factory = {"gru": GRUEncoderFactory, "lstm": LSTMEncoderFactory}[kind]
        with double_precision():
            algorithm = build(
                algos.DQNConfig(
                    learning_rate=1e-2,
                    encoder_factory=factory(hidden_size=4, hidden_units=[5]),
                    target_update_interval=2,
                    burn_in=burn_in,
                ),
                3,
            )
            reference = RecurrentReference(
                plain_parameters(algorithm.nets), kind, rate=1e-2, interval=2, burn_in=burn_in
            )
            state_size = 4 if kind == "gru" else 8

            def update(batch: Batch) -> Any:
                return algorithm.engine.update(algorithm.engine.burn_in(batch, burn_in))

            return compare_with_reference(algorithm, reference, sequences(burn_in, state_size), update=update)

    return Case(f"DQN {kind} burn-in {burn_in}", run)


def windows() -> list[Batch]:
    """Windows ``[B, L, …]``, padded in front."""
    generator, size, length = np.random.default_rng(17), 3, 4
    batches = []
    for _ in range(5):
        weight = torch.ones(size, length, dtype=torch.float64)
        weight[1, :2] = 0
        timestep = torch.from_numpy(generator.integers(1, 5, size=(size, 1))) + torch.arange(length)
        timestep = torch.where(weight > 0, timestep, torch.zeros_like(timestep))
        action = torch.tanh(_exact(generator, size, length, ACTIONS))
        extra = {"returns_to_go": _exact(generator, size, length), "timestep": timestep}
        observation, reward = _exact(generator, size, length, OBSERVATION), _exact(generator, size, length)
        batches.append(Batch(observation, action, reward, None, torch.ones_like(weight), weight, extra=extra))
    return batches


CASES: tuple[Case, ...] = (
    *(_value_case("DQN", head) for head in HEADS),
    _value_case("DQN", "mean", 1),
    _value_case("DQN", "iqn", 1),
    *(_value_case("DoubleDQN", head) for head in HEADS),
    *(_value_case("DiscreteCQL", head) for head in ("mean", "qr", "c51")),
    *(_td3_case(head) for head in HEADS),
    *(_sac_case(head) for head in HEADS),
    Case("DiscreteSAC", _discrete_sac),
    *(conservative_case("CQL", algos.CQLConfig, CQLReference, lambda: transitions(False), x) for x in BACKUPS),
    Case("IQL", _iql),
    *(_cloning_case(kind) for kind in ("deterministic", "stochastic", "discrete")),
    _ppo_case(True),
    _ppo_case(False),
    _ppo_case(False, value_clip=0.1, normalize=False),
    _recurrent_case("gru", 0),
    _recurrent_case("gru", 2),
    _recurrent_case("lstm", 2),
)
