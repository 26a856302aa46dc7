"""Calibrated Q-Learning."""

from __future__ import annotations

from typing import final

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    Loss,
    StochasticActor,
    Transitions,
    config,
    q_value,
)
from birl.algos import cql
from birl.algos.cql import CQL, CQLConfig, CQLNets


@config
class CalQLConfig(CQLConfig):
    """Calibrated Q-Learning (Nakamoto et al. 2023, arXiv:2303.05479): CQL for offline, then online training.

    CQL lowers the values of the policy's actions. Cal-QL does not lower them below the value of the behaviour policy,
    so that a good offline policy is not unlearned online. The behaviour policy's value is estimated by the discounted
    sum of the (scaled) rewards from the step to the end of its episode. Rewards after a time limit, or of future steps
    of a running episode, are not counted: with negative rewards the estimate is then too high, and CQL's term is
    weaker.

    Logs what CQL logs: ``critic_loss`` (the total), ``q_value``, ``conservative_loss``, ``alpha``, ``alpha_loss``,
    ``actor_loss``, ``temp_loss`` and ``temp``.

    Differs from the paper and from d3rlpy: as `CQLConfig` does.
    """


def critic_loss(nets: CQLNets, batch: Batch, cfg: CalQLConfig) -> Loss:
    """CQL's loss with ``max(Q(s, a), V(s))`` for ``Q(s, a)`` of the policy's actions (eq. 5.1)."""
    return cql.critic_loss(nets, batch, cfg, batch.extra["discounted_return"])


def alpha_loss(nets: CQLNets, batch: Batch, cfg: CalQLConfig) -> Loss:
    """Dual ascent on ``alpha``, by the gap that the critics' loss computed."""
    return cql.alpha_loss(nets, batch, cfg, batch.extra["discounted_return"])


@final
class CalQL(Algorithm[CalQLConfig, CQLNets]):
    """See `CalQLConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions(discounted_returns=True)
    acts = StochasticActor(value=q_value)
    steps = (Gradient("critic", critic_loss), Gradient("alpha", alpha_loss), *CQL.steps[2:])
