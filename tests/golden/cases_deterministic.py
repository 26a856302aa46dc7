"""Goldens of NFQ, DDPG, TD3+BC, PRDC, discrete IQL and ReBRAC."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from birl import algos
from birl.algos.prdc import NearestActions
from birl.testing import GoldenReport, compare_with_reference, double_precision, plain_parameters
from tests.golden.cases import ACTIONS, ENCODER, HEADS, OBSERVATION, Case, build, transitions
from tests.golden.reference_deterministic import (
    DeterministicReference,
    DiscreteIQLReference,
    NFQReference,
    PRDCReference,
)

_RATES = {"actor_rate": 1e-2, "critic_rate": 2e-2, "tau": 0.1}
_FIELDS: dict[str, Any] = {
    "actor_learning_rate": 1e-2,
    "critic_learning_rate": 2e-2,
    "tau": 0.1,
    "actor_encoder_factory": ENCODER,
    "critic_encoder_factory": ENCODER,
}


def _spread(algorithm: Any) -> Any:
    """Away from small weights: Q-values of both signs, and target actions near the bounds, where noise is clipped."""
    with torch.no_grad():
        for network in (algorithm.nets.critic, algorithm.nets.critic_target):
            for parameter in network.parameters():
                parameter.add_(0.6 * torch.randn_like(parameter))
        for parameter in algorithm.nets.actor_target.linear.parameters():
            parameter.mul_(4)
    return algorithm


def _nfq_case(head: str, n_critics: int) -> Case:
    def run() -> GoldenReport:
        factory, reference_head = HEADS[head]
        with double_precision():
            algorithm = build(
                algos.NFQConfig(
                    learning_rate=1e-2, encoder_factory=ENCODER, q_func_factory=factory, n_critics=n_critics
                ),
                action_size=3,
            )
            reference = NFQReference(plain_parameters(algorithm.nets), reference_head, rate=1e-2)
            return compare_with_reference(algorithm, reference, transitions(True, weighted=True))

    return Case(f"NFQ {head} x{n_critics}", run)


def _ddpg_case(head: str, n_critics: int) -> Case:
    def run() -> GoldenReport:
        factory, reference_head = HEADS[head]
        with double_precision():
            algorithm = build(algos.DDPGConfig(**_FIELDS, q_func_factory=factory, n_critics=n_critics), ACTIONS)
            reference = DeterministicReference(plain_parameters(algorithm.nets), reference_head, **_RATES)
            return compare_with_reference(algorithm, reference, transitions(False, weighted=True))

    return Case(f"DDPG {head} x{n_critics}", run)


def _td3_plus_bc_case(head: str) -> Case:
    def run() -> GoldenReport:
        factory, reference_head = HEADS[head]
        with double_precision():
            algorithm = _spread(
                build(
                    algos.TD3PlusBCConfig(**_FIELDS, q_func_factory=factory, alpha=1.7, target_smoothing_sigma=0.6),
                    ACTIONS,
                )
            )
            reference = DeterministicReference(
                plain_parameters(algorithm.nets), reference_head, **_RATES, smoothing=(0.6, 0.5), interval=2, alpha=1.7
            )
            return compare_with_reference(algorithm, reference, transitions(False, weighted=True))

    return Case(f"TD3PlusBC {head}", run)


def _prdc_case(head: str) -> Case:
    def run() -> GoldenReport:
        factory, reference_head = HEADS[head]
        generator = torch.Generator().manual_seed(5)
        with double_precision():
            states = torch.randn(30, OBSERVATION, generator=generator, dtype=torch.float64)
            actions = 2 * torch.rand(30, ACTIONS, generator=generator, dtype=torch.float64) - 1
            config = algos.PRDCConfig(**_FIELDS, q_func_factory=factory, alpha=1.7, beta=0.6)
            algorithm = _spread(build(config, ACTIONS))
            nearest = NearestActions(torch.cat([0.6 * states, actions], 1), ACTIONS)
            reference = PRDCReference(
                plain_parameters(algorithm.nets),
                reference_head,
                **_RATES,
                steps=list(zip(states, actions, strict=True)),
                beta=0.6,
                smoothing=(0.2, 0.5),
                interval=2,
                alpha=1.7,
            )
            return compare_with_reference(
                algorithm,
                reference,
                transitions(False, weighted=True),
                update=lambda batch: algorithm.engine.update(algorithm.with_nearest(batch, nearest)),
            )

    return Case(f"PRDC {head}", run)


def _rebrac_case(head: str) -> Case:
    def run() -> GoldenReport:
        factory, reference_head = HEADS[head]
        generator = torch.Generator().manual_seed(7)
        batches = []
        for batch in transitions(False, weighted=True):
            action = 2 * torch.rand(batch.action.shape, generator=generator, dtype=torch.float64) - 1
            known = torch.ones_like(batch.weight)
            known[3] = known[5] = 0  # cut there: the action that stands there must not matter
            batches.append(replace(batch, extra={"next_action": action, "next_action_known": known}))
        with double_precision():
            algorithm = _spread(
                build(
                    algos.ReBRACConfig(
                        **_FIELDS, q_func_factory=factory, actor_beta=0.7, critic_beta=0.3, target_smoothing_sigma=0.6
                    ),
                    ACTIONS,
                )
            )
            reference = DeterministicReference(
                plain_parameters(algorithm.nets),
                reference_head,
                **_RATES,
                smoothing=(0.6, 0.5),
                interval=2,
                penalties=(0.7, 0.3),
            )
            return compare_with_reference(algorithm, reference, batches)

    return Case(f"ReBRAC {head}", run)


def _discrete_iql() -> GoldenReport:
    with double_precision():
        algorithm = build(algos.DiscreteIQLConfig(**_FIELDS, value_encoder_factory=ENCODER, max_weight=2.0), 3)
        reference = DiscreteIQLReference(
            plain_parameters(algorithm.nets), **_RATES, expectile=0.7, temperature=3.0, max_weight=2.0
        )
        return compare_with_reference(algorithm, reference, transitions(True, weighted=True))


CASES: tuple[Case, ...] = (
    *(_nfq_case(head, 2) for head in HEADS),
    _nfq_case("mean", 1),
    *(_ddpg_case(head, 2) for head in HEADS),
    _ddpg_case("mean", 1),
    *(_td3_plus_bc_case(head) for head in HEADS),
    *(_prdc_case(head) for head in HEADS),
    Case("DiscreteIQL", _discrete_iql),
    *(_rebrac_case(head) for head in HEADS),
)
