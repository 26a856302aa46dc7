"""Calibrated Q-Learning."""

from __future__ import annotations

from typing import final

from birl.algorithm import ActionSpace, Algorithm, StochasticActor, Transitions, config, q_value
from birl.algos.cql import CQL, CQLConfig, CQLNets


@config
class CalQLConfig(CQLConfig):
    """Calibrated Q-Learning (Nakamoto et al. 2023, arXiv:2303.05479): CQL for offline training that goes on online.

    CQL pushes down the values of the policy's actions. Cal-QL stops at the value of the policy that made the data, so
    that a good start is not unlearned online: the conservative loss takes ``max(Q(s, a), V(s))`` for their ``Q(s, a)``
    (eq. 5.1). ``V(s)`` is the discounted sum of the (scaled) rewards from the step to the end of its episode. Rewards
    after a time limit, or of steps yet to come, do not count: where rewards are negative the value is too high there,
    and CQL's term is weaker.

    Logs what CQL logs: ``critic_loss`` (in all), ``conservative_loss``, ``alpha``, ``alpha_loss``, ``actor_loss``,
    ``temp_loss`` and ``temp``.

    Differs from d3rlpy: as `CQLConfig` does.
    """


@final
class CalQL(Algorithm[CalQLConfig, CQLNets]):
    """See `CalQLConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions(returns_to_go=True)
    acts = StochasticActor(value=q_value)
    steps = CQL.steps  # its conservative loss stops at the return-to-go where a batch has one
