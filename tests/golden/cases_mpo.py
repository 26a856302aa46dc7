"""Goldens of MPO, for continuous and discrete actions, and of V-MPO."""

from __future__ import annotations

from functools import partial
from typing import Any

from birl import algos
from birl.models import NormalFactory
from birl.optimizers import AdamFactory
from tests.golden.case import ACTOR_FIELDS, ACTOR_RATES, HEADS, Case, by_algorithm, weighted_transitions
from tests.golden.cases_ppo import TANH, rollouts
from tests.golden.reference_mpo import DiscreteMPOReference, MPOReference
from tests.golden.reference_v_mpo import VMPOReference

CLIPPED = AdamFactory(clip_grad_norm=0.5)
FIELDS: dict[str, Any] = {
    **ACTOR_FIELDS,
    "actor_optim_factory": CLIPPED,
    "critic_optim_factory": CLIPPED,
    "dual_learning_rate": 3e-2,
    "n_critics": 2,
    "target_update_interval": 3,
    "epsilon": 0.05,
    "initial_temperature": 0.3,
}
NUMBERS: dict[str, Any] = {**ACTOR_RATES, "dual_rate": 3e-2, "max_norm": 0.5, "interval": 3, "epsilon": 0.05}


def _mpo(head: str, label: str = "", per_dimension: bool = True, penalty: float | None = 2e-3, tau: float = 0) -> Case:
    factory, own = HEADS[head]
    config = algos.MPOConfig(
        **FIELDS,
        target_update_type="soft" if tau else "hard",
        tau=tau,
        q_func_factory=factory,
        distribution_factory=NormalFactory(std="state", initial_std=0.9),
        n_action_samples=4,
        epsilon_mean=2e-3,
        epsilon_std=1e-4,
        epsilon_penalty=penalty,
        per_dimension=per_dimension,
        initial_alpha_mean=0.7,
        initial_alpha_std=30.0,
    )
    reference = partial(
        MPOReference,
        **NUMBERS,
        n_samples=4,
        epsilon_mean=2e-3,
        epsilon_std=1e-4,
        epsilon_penalty=penalty,
        per_dimension=per_dimension,
        initial_std=0.9,
        tau=tau,
        head=own,
    )
    return Case(f"{head}{label}", config, reference, weighted_transitions)


def _discrete(head: str) -> Case:
    factory, own = HEADS[head]
    config = algos.DiscreteMPOConfig(**FIELDS, q_func_factory=factory, epsilon_policy=2e-3, initial_alpha=0.7)
    reference = partial(DiscreteMPOReference, **NUMBERS, epsilon_policy=2e-3, head=own)
    return Case(head, config, reference, weighted_transitions)


def _v_mpo(policy: str) -> Case:
    discrete = policy == "discrete"
    config = algos.VMPOConfig(
        learning_rate=1e-2,
        optim_factory=CLIPPED,
        dual_learning_rate=3e-2,
        actor_encoder_factory=TANH,
        value_encoder_factory=TANH,
        distribution_factory=NormalFactory(std="state", initial_std=0.5),
        batch_size=5,
        n_epochs=3,
        value_coefficient=0.7,
        gamma=0.9,
        epsilon=0.05,
        epsilon_policy=2e-3,
        epsilon_mean=3e-3,
        epsilon_std=1e-4,
        initial_temperature=0.6,
        initial_alpha=1.7,
    )
    reference = partial(
        VMPOReference,
        rate=1e-2,
        eps=1e-8,
        max_norm=0.5,
        dual_rate=3e-2,
        gamma=0.9,
        gae_lambda=0.95,
        value_coefficient=0.7,
        epochs=3,
        batch_size=5,
        policy=policy,
        epsilon=0.05,
        bounds=(2e-3,) if discrete else (3e-3, 1e-4),
        initial_std=0.5,
    )
    return Case(policy, config, reference, rollouts, discrete=discrete, update=by_algorithm)


CASES: tuple[Case, ...] = (
    *(_mpo(head) for head in HEADS),
    _mpo("mean", " one bound, no penalty, soft", per_dimension=False, penalty=None, tau=0.1),
    *(_discrete(head) for head in ("mean", "qr", "c51")),
    _v_mpo("discrete"),
    _v_mpo("state"),
)
