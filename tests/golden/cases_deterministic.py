"""Goldens of deterministic policies: TD3, DDPG, TD3+BC, PRDC and ReBRAC."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from birl import algos
from birl.algos.prdc import NearestActions, with_nearest
from birl.types import Batch
from tests.golden.case import (
    ACTIONS,
    ACTOR_FIELDS,
    ACTOR_RATES,
    HEADS,
    OBSERVATION,
    Case,
    transitions,
    weighted_transitions,
    with_head,
)
from tests.golden.reference_actor_critic import TD3Reference
from tests.golden.reference_deterministic import DeterministicReference, PRDCReference

_FIELDS, _RATES = {**ACTOR_FIELDS, "tau": 0.1}, {**ACTOR_RATES, "tau": 0.1}
_SMOOTHING = {"smoothing": (0.6, 0.5), "interval": 2}


def _spread(algorithm: Any) -> None:
    """Away from small weights: Q-values of both signs, and target actions near the bounds, where noise is clipped."""
    with torch.no_grad():
        for network in (algorithm.nets.critic, algorithm.nets.critic_target):
            for parameter in network.parameters():
                parameter.add_(0.6 * torch.randn_like(parameter))
        for parameter in algorithm.nets.actor_target.linear.parameters():
            parameter.mul_(4)


def _td3(head: str) -> Case:
    fields, numbers = {"target_smoothing_sigma": 0.6}, {"sigma": 0.6, "clip": 0.5, "interval": 2}
    parts = with_head(head, algos.TD3Config, _FIELDS | fields, TD3Reference, _RATES | numbers)
    return Case(head, **parts, inputs=transitions)


def _ddpg(head: str, n_critics: int = 2) -> Case:
    parts = with_head(head, algos.DDPGConfig, {**_FIELDS, "n_critics": n_critics}, DeterministicReference, _RATES)
    return Case(f"{head} x{n_critics}", **parts, inputs=weighted_transitions)


def _td3_plus_bc(head: str) -> Case:
    fields, numbers = {"alpha": 1.7, "target_smoothing_sigma": 0.6}, {**_SMOOTHING, "alpha": 1.7}
    parts = with_head(head, algos.TD3PlusBCConfig, _FIELDS | fields, DeterministicReference, _RATES | numbers)
    return Case(head, **parts, inputs=weighted_transitions, prepare=_spread)


def _prdc(head: str) -> Case:
    generator = torch.Generator().manual_seed(5)
    states = torch.randn(30, OBSERVATION, generator=generator, dtype=torch.float64)
    actions = 2 * torch.rand(30, ACTIONS, generator=generator, dtype=torch.float64) - 1
    steps = {"steps": list(zip(states, actions, strict=True)), "beta": 0.6}
    numbers = {**_RATES, **steps, "smoothing": (0.2, 0.5), "interval": 2, "alpha": 1.7}

    def update(algorithm: Any, batch: Batch) -> Any:
        nearest = NearestActions(torch.cat([0.6 * states, actions], 1), ACTIONS)
        return algorithm.engine.update(with_nearest(algorithm.learner, batch, nearest))

    parts = with_head(head, algos.PRDCConfig, {**_FIELDS, "alpha": 1.7, "beta": 0.6}, PRDCReference, numbers)
    return Case(head, **parts, inputs=weighted_transitions, prepare=_spread, update=update)


def _with_next_actions(algorithm: Any) -> list[Batch]:
    """Two steps are cut after: the action that stands there must not matter."""
    generator, batches = torch.Generator().manual_seed(7), []
    for batch in weighted_transitions(algorithm):
        action = 2 * torch.rand(batch.action.shape, generator=generator, dtype=torch.float64) - 1
        known = torch.ones_like(batch.weight)
        known[3] = known[5] = 0
        batches.append(replace(batch, extra={"next_action": action, "next_action_known": known}))
    return batches


def _rebrac(head: str) -> Case:
    fields = {"actor_beta": 0.7, "critic_beta": 0.3, "target_smoothing_sigma": 0.6}
    numbers = {**_RATES, **_SMOOTHING, "penalties": (0.7, 0.3)}
    parts = with_head(head, algos.ReBRACConfig, _FIELDS | fields, DeterministicReference, numbers)
    return Case(head, **parts, inputs=_with_next_actions, prepare=_spread)


CASES: tuple[Case, ...] = (
    *(_td3(head) for head in HEADS),
    *(_ddpg(head) for head in HEADS),
    _ddpg("mean", 1),
    *(_td3_plus_bc(head) for head in HEADS),
    *(_prdc(head) for head in HEADS),
    *(_rebrac(head) for head in HEADS),
)
