"""AWAC, CRR, EDAC and Cal-QL beside their references: rows of the table of goldens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from birl import algos
from birl.testing import GoldenReport, compare_with_reference, double_precision, plain_parameters
from birl.types import Batch
from tests.golden.cases import (
    _SAC_FIELDS,
    _SAC_RATES,
    ACTIONS,
    BACKUPS,
    ENCODER,
    HEADS,
    SIZE,
    Case,
    build,
    conservative_case,
    transitions,
)
from tests.golden.reference_weighted import AWACReference, CalQLReference, CRRReference, EDACReference


def _awac_case(head: str, n_samples: int = 3) -> Case:
    def run() -> GoldenReport:
        with double_precision():
            algorithm = build(
                algos.AWACConfig(
                    actor_learning_rate=1e-2,
                    critic_learning_rate=2e-2,
                    actor_encoder_factory=ENCODER,
                    critic_encoder_factory=ENCODER,
                    q_func_factory=HEADS[head][0],
                    tau=0.1,
                    lam=0.2,
                    n_action_samples=n_samples,
                    max_weight=1.1,
                ),
                ACTIONS,
            )
            with torch.no_grad():  # wide enough for samples to leave the range; one beyond its bound
                algorithm.nets.actor.log_std.copy_(torch.tensor([-0.2, 0.4]))
            reference = AWACReference(
                plain_parameters(algorithm.nets),
                actor_rate=1e-2,
                critic_rate=2e-2,
                tau=0.1,
                lam=0.2,
                n_samples=n_samples,
                max_weight=1.1,
                head=HEADS[head][1],
            )
            return compare_with_reference(algorithm, reference, transitions(False, weighted=True))

    return Case(f"AWAC {head}", run)


def _crr_case(head: str, advantage: str, weight: str, update: str, actor_interval: int) -> Case:
    def run() -> GoldenReport:
        with double_precision():
            algorithm = build(
                algos.CRRConfig(
                    actor_learning_rate=1e-2,
                    critic_learning_rate=2e-2,
                    actor_encoder_factory=ENCODER,
                    critic_encoder_factory=ENCODER,
                    q_func_factory=HEADS[head][0],
                    beta=0.2,
                    n_action_samples=3,
                    advantage_type=advantage,
                    weight_type=weight,
                    max_weight=1.1,
                    n_critics=2,
                    target_update_type=update,
                    tau=0.1,
                    target_update_interval=3,
                    update_actor_interval=actor_interval,
                ),
                ACTIONS,
            )
            reference = CRRReference(
                plain_parameters(algorithm.nets),
                actor_rate=1e-2,
                critic_rate=2e-2,
                tau=0.1,
                beta=0.2,
                n_samples=3,
                advantage=advantage,
                weight=weight,
                max_weight=1.1,
                interval=3 if update == "hard" else 0,
                actor_interval=actor_interval,
                head=HEADS[head][1],
            )
            return compare_with_reference(algorithm, reference, transitions(False, weighted=True))

    return Case(f"CRR {head} {advantage} {weight} {update}", run)


def _edac_case(head: str) -> Case:
    def run() -> GoldenReport:
        with double_precision():
            algorithm = build(
                algos.EDACConfig(**_SAC_FIELDS, q_func_factory=HEADS[head][0], n_critics=3, eta=0.7), ACTIONS
            )
            reference = EDACReference(plain_parameters(algorithm.nets), **_SAC_RATES, eta=0.7, head=HEADS[head][1])
            return compare_with_reference(algorithm, reference, transitions(False))

    return Case(f"EDAC {head}", run)


def _calibrated() -> list[Batch]:
    """Returns on both sides of what the critics say."""
    generator = np.random.default_rng(23)
    return [
        replace(batch, extra={"return_to_go": torch.from_numpy(generator.normal(size=SIZE) / 3)})
        for batch in transitions(False)
    ]


CASES: tuple[Case, ...] = (
    *(_awac_case(head) for head in HEADS),
    *(_crr_case(head, "mean", "exp", "hard", 2) for head in HEADS),
    _crr_case("mean", "max", "exp", "soft", 1),
    _crr_case("mean", "mean", "binary", "soft", 1),
    _crr_case("mean", "max", "binary", "hard", 1),
    *(_edac_case(head) for head in HEADS),
    *(conservative_case("CalQL", algos.CalQLConfig, CalQLReference, _calibrated, x) for x in BACKUPS),
)
