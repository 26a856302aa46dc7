"""Ensemble-Diversified Actor-Critic."""

from __future__ import annotations

from typing import final

import torch.nn.functional as F
from torch import Tensor

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    Loss,
    StochasticActor,
    Transitions,
    config,
    field,
    q_value,
    weighted_mean,
)
from birl.algos.sac import SAC, SACConfig, SACNets, value_target
from birl.losses import td_loss


@config
class EDACConfig(SACConfig):
    """Ensemble-Diversified Actor-Critic (An et al. 2021, arXiv:2110.01548): SAC with many Q-functions, kept diverse.

    The minimum of ``n_critics`` Q-functions is low where they disagree, as they do far from the data. The loss
    penalises Q-functions whose gradients with respect to the action are similar, so that fewer Q-functions suffice.

    SAC-N of the same paper has no such penalty: use ``SACConfig(n_critics=N)`` or ``EDACConfig(eta=0)``.

    Logs ``critic_loss`` (the total), ``q_value``, ``diversity_loss`` (multiplied by ``eta``), ``actor_loss``,
    ``temp_loss`` and ``temp``.
    """

    n_critics: int = 10
    eta: float = field(1.0, "Weight of the similarity of the critics' gradients.", low=0)


def similarity(gradient: Tensor) -> Tensor:
    """Compute ``sum over i != j of cos(g_i, g_j) / (N - 1)`` ``[...]`` for gradients ``[N, ..., A]``.

    The sum over pairs is the square of the sum minus the sum of the squares. It is 0 for one member.
    """
    direction = F.normalize(gradient, dim=-1, eps=1e-10)
    pairs = direction.sum(0).square() - direction.square().sum(0)
    return pairs.sum(-1) / max(len(gradient) - 1, 1)


def critic_loss(nets: SACNets, batch: Batch, cfg: EDACConfig) -> Loss:
    """Algorithm 1: SAC's loss plus ``eta`` times the similarity of the gradients of ``Q_i(s, a)`` for ``a``."""
    target = value_target(nets, batch)
    returns, gradient = nets.critic.differentiate(batch.inputs, batch.action)
    td = td_loss(returns, target, batch)
    penalty = cfg.eta * weighted_mean(similarity(gradient), batch.weight)
    return Loss(td.value + penalty, {**td.metrics, "diversity_loss": penalty}, priority=td.priority)


@final
class EDAC(Algorithm[EDACConfig, SACNets]):
    """See `EDACConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions(single_seed="differentiates through gradients")
    acts = StochasticActor(value=q_value)
    steps = (Gradient("critic", critic_loss), *SAC.steps[1:])
