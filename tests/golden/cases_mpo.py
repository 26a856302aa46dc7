"""Goldens of MPO, for continuous and discrete actions, and of V-MPO."""

from __future__ import annotations

from functools import partial
from typing import Any

from birl import algos
from birl.models import NormalFactory
from birl.optimizers import AdamFactory
from tests.golden.case import ACTOR_FIELDS, ACTOR_RATES, HEADS, Case, weighted_transitions
from tests.golden.reference_mpo import DiscreteMPOReference, MPOReference

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


def _mpo(head: str, label: str = "", per_dimension: bool = True, penalty: float | None = 2e-3) -> Case:
    factory, own = HEADS[head]
    config = algos.MPOConfig(
        **FIELDS,
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
        head=own,
    )
    return Case(f"{head}{label}", config, reference, weighted_transitions)


def _discrete(head: str) -> Case:
    factory, own = HEADS[head]
    config = algos.DiscreteMPOConfig(**FIELDS, q_func_factory=factory, epsilon_policy=2e-3, initial_alpha=0.7)
    reference = partial(DiscreteMPOReference, **NUMBERS, epsilon_policy=2e-3, head=own)
    return Case(head, config, reference, weighted_transitions)


CASES: tuple[Case, ...] = (
    *(_mpo(head) for head in HEADS),
    _mpo("mean", " one bound, no penalty", per_dimension=False, penalty=None),
    *(_discrete(head) for head in ("mean", "qr", "c51")),
)
