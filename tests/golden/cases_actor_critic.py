"""Goldens of the SAC family, IQL, AWAC, CRR, and of imitation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from birl import algos
from birl.types import Batch
from tests.golden.case import (
    ACTOR_FIELDS,
    ACTOR_RATES,
    ENCODER,
    HEADS,
    SIZE,
    VALUE_FIELDS,
    Case,
    transitions,
    weighted_transitions,
    with_head,
)
from tests.golden.reference_actor_critic import CQLReference, DiscreteSACReference, IQLReference, SACReference
from tests.golden.reference_deterministic import DiscreteIQLReference
from tests.golden.reference_imitation import CloningReference
from tests.golden.reference_weighted import AWACReference, CalQLReference, CRRReference, EDACReference

SOFT_FIELDS = {**ACTOR_FIELDS, "temp_learning_rate": 3e-2, "initial_temperature": 0.4}
SOFT_RATES = {**ACTOR_RATES, "temp_rate": 3e-2}
TAU = {"tau": 0.1}


def _sac(head: str, logarithm: bool = False) -> Case:
    fields = {"log_temperature_loss": True} if logarithm else {}
    numbers = {**SOFT_RATES, **TAU, "logarithm": logarithm}
    parts = with_head(head, algos.SACConfig, SOFT_FIELDS | TAU | fields, SACReference, numbers)
    return Case(f"{head}-log-temperature" if logarithm else head, **parts, inputs=transitions)


def _discrete_sac(head: str) -> Case:
    fields, numbers = {**SOFT_FIELDS, "target_update_interval": 2}, {**SOFT_RATES, "interval": 2}
    parts = with_head(head, algos.DiscreteSACConfig, fields, DiscreteSACReference, numbers)
    return Case(head, **parts, inputs=transitions)


def _edac(head: str) -> Case:
    fields, numbers = {**SOFT_FIELDS, **TAU, "n_critics": 3, "eta": 0.7}, {**SOFT_RATES, **TAU, "eta": 0.7}
    return Case(head, **with_head(head, algos.EDACConfig, fields, EDACReference, numbers), inputs=transitions)


def _conservative(config: Any, reference: Any, backup: str) -> Case:
    """CQL, or Cal-QL, which differs from it in the conservative term only.

    Args:
        config: class of the configuration.
        reference: class of the reference.
        backup: ``"soft"``: targets have the entropy bonus; ``"max"``: they take the best of the sampled actions;
            ``"mode"``: they take the policy's mode; ``"paper"``: they take a sampled action, and the mean of proposals
            counts, not their sum.
    """
    switches = {
        "soft": {"soft_q_backup": True},
        "max": {"max_q_backup": True},
        "mode": {},
        "paper": {"mode_q_backup": False, "sum_proposals": False},
    }
    return Case(
        backup,
        config(
            **SOFT_FIELDS,
            **TAU,
            alpha_learning_rate=4e-2,
            initial_alpha=0.8,
            alpha_threshold=2.0,
            conservative_weight=3.0,
            n_action_samples=3,
            **switches[backup],
        ),
        partial(
            reference,
            **SOFT_RATES,
            **TAU,
            alpha_rate=4e-2,
            threshold=2.0,
            weight=3.0,
            n_samples=3,
            mean=backup == "paper",
            backup=backup,
            order=("critic", "alpha", "actor", "temp"),
        ),
        inputs=_with_returns if config is algos.CalQLConfig else transitions,
    )


def _with_returns(algorithm: Any) -> list[Batch]:
    """Returns to go on both sides of what the critics say."""
    generator = np.random.default_rng(23)
    return [
        replace(batch, extra={"discounted_return": torch.from_numpy(generator.normal(size=SIZE) / 3)})
        for batch in transitions(algorithm)
    ]


def _iql(config: Any, reference: Any, inputs: Any, **numbers: Any) -> Case:
    fields = {**ACTOR_FIELDS, **TAU, "value_encoder_factory": ENCODER, "max_weight": 2.0}
    numbers |= {**ACTOR_RATES, **TAU, "expectile": 0.7, "temperature": 3.0, "max_weight": 2.0}
    return Case("", config(**fields), partial(reference, **numbers), inputs)


def _awac(head: str) -> Case:
    def widen(algorithm: Any) -> None:
        """Wide enough for samples to leave the range; one beyond its bound."""
        with torch.no_grad():
            algorithm.nets.actor.log_std.copy_(torch.tensor([-0.2, 0.4]))

    fields = {**ACTOR_FIELDS, **TAU, "lam": 0.2, "n_action_samples": 3, "max_weight": 1.1}
    numbers = {**ACTOR_RATES, **TAU, "lam": 0.2, "n_samples": 3, "max_weight": 1.1}
    parts = with_head(head, algos.AWACConfig, fields, AWACReference, numbers)
    return Case(head, **parts, inputs=weighted_transitions, prepare=widen)


def _crr(head: str, advantage: str, weight: str, update: str, actor_interval: int) -> Case:
    fields = {
        **ACTOR_FIELDS,
        **TAU,
        "beta": 0.2,
        "n_action_samples": 3,
        "advantage_type": advantage,
        "weight_type": weight,
        "max_weight": 1.1,
        "n_critics": 2,
        "target_update_type": update,
        "target_update_interval": 3,
        "update_actor_interval": actor_interval,
    }
    numbers = {
        **ACTOR_RATES,
        **TAU,
        "beta": 0.2,
        "n_samples": 3,
        "advantage": advantage,
        "weight": weight,
        "max_weight": 1.1,
        "interval": 3 if update == "hard" else 0,
        "actor_interval": actor_interval,
    }
    parts = with_head(head, algos.CRRConfig, fields, CRRReference, numbers)
    return Case(f"{head} {advantage} {weight} {update}", **parts, inputs=weighted_transitions)


def _cloning(config: Any, kind: str, label: str, **fields: Any) -> Case:
    reference = partial(CloningReference, kind=kind, rate=1e-2, beta=0.5)
    return Case(label, config(**VALUE_FIELDS, **fields), reference, transitions)


CASES: tuple[Case, ...] = (
    *(_sac(head) for head in HEADS),
    _sac("mean", logarithm=True),
    *(_discrete_sac(head) for head in HEADS),
    *(
        _conservative(config, reference, backup)
        for config, reference in ((algos.CQLConfig, CQLReference), (algos.CalQLConfig, CalQLReference))
        for backup in ("soft", "max", "mode", "paper")
    ),
    *(_edac(head) for head in HEADS),
    _iql(algos.IQLConfig, IQLReference, transitions, log_std_range=(-5.0, 2.0)),
    _iql(algos.DiscreteIQLConfig, DiscreteIQLReference, weighted_transitions),
    *(_awac(head) for head in HEADS),
    *(_crr(head, "mean", "exp", "hard", 2) for head in HEADS),
    _crr("mean", "max", "exp", "soft", 1),
    _crr("mean", "mean", "binary", "soft", 1),
    _crr("mean", "max", "binary", "hard", 1),
    *(_cloning(algos.BCConfig, kind, kind, policy_type=kind) for kind in ("deterministic", "stochastic")),
    _cloning(algos.DiscreteBCConfig, "discrete", "", beta=0.5),
)
