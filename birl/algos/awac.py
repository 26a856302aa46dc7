"""Advantage Weighted Actor-Critic."""

from __future__ import annotations

from copy import deepcopy
from typing import final

import torch
from torch import nn

from birl.algorithm import (
    ActionSpace,
    ActorCriticConfig,
    Algorithm,
    Batch,
    Gradient,
    Loss,
    Polyak,
    SharedFields,
    Spec,
    StochasticActor,
    Transitions,
    config,
    field,
    q_value,
    weighted_mean,
)
from birl.losses import td_loss
from birl.models import ContinuousQFunction, NormalPolicy, Returns
from birl.models.distributions import Normal
from birl.types import Networks


@config
class AWACConfig(ActorCriticConfig):
    """Advantage Weighted Actor-Critic (Nair et al. 2020, arXiv:2006.09359): offline training, then online fine-tuning.

    The policy imitates the actions of the data, weighted with ``exp(A / lam)``. It is a Gaussian with a bounded mean
    and a learned, state-independent standard deviation between ``exp(-6)`` and 1. Its samples are clipped to the range
    of actions when it acts and before the critics evaluate them.

    Logs ``critic_loss``, ``q_value`` and ``actor_loss``. Also logs ``temp`` and ``temp_loss``, which are always 0, as
    d3rlpy does.

    Differs from the paper: weights are clipped to ``max_weight``, because the exponential is unbounded.

    Differs from d3rlpy: weights are ``exp(A / lam)`` as in eq. 13, not their softmax over the minibatch, which makes
    the weight of a transition depend on the others in its minibatch; targets have no entropy bonus (d3rlpy adds SAC's,
    with temperature 1); the actor's loss is a mean over the minibatch, not a sum.
    """

    batch_size: int = 1024
    lam: float = field(1.0, "Temperature of the advantage weights.", above=0)
    n_action_samples: int = field(1, "Number of actions sampled from the policy for the value of a state.", low=1)
    max_weight: float = field(100.0, like=SharedFields)


class AWACNets(nn.Module):
    """Networks of AWAC."""

    def __init__(self, spec: Spec, cfg: AWACConfig) -> None:
        super().__init__()
        self.actor = NormalPolicy(
            spec, cfg.actor_encoder_factory, tanh_mean=True, log_std_range=(-6.0, 0.0), initial_log_std=-3.0
        )
        self.critic = ContinuousQFunction(spec, cfg.critic_encoder_factory, cfg.q_func_factory, cfg.n_critics)
        self.critic_target = deepcopy(self.critic)


def compared_returns(nets: Networks, batch: Batch, policy: Normal, count: int) -> Returns:
    """Compute returns ``[N, 1 + count, ...]`` of the data's action, and then of ``count`` actions of the policy.

    Args:
        nets: networks with a ``critic``.
        batch: the minibatch.
        policy: the policy's distribution at ``batch.inputs``.
        count: number of samples.
    """
    sampled = policy.sample(count)[0].clamp(-1, 1)
    returns: Returns = nets.critic(batch.inputs, torch.cat([batch.action.unsqueeze(0), sampled]))
    return returns


def critic_loss(nets: AWACNets, batch: Batch, cfg: AWACConfig) -> Loss:
    """Eq. 9: ``y = r + discount * min_j Q'_j(s', a')`` with ``a'`` of the policy."""
    with torch.no_grad():
        action = nets.actor(batch.next_inputs).sample()[0].clamp(-1, 1)
        target = nets.critic_target(batch.next_inputs, action).min().backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


def actor_loss(nets: AWACNets, batch: Batch, cfg: AWACConfig) -> Loss:
    """Eq. 13: ``-E[exp(A / lam) * log pi(a|s)]`` with ``A = Q(s, a) - mean_k Q(s, a_k)``, ``a_k`` of the policy."""
    policy = nets.actor(batch.inputs)
    with torch.no_grad():
        value = compared_returns(nets, batch, policy, cfg.n_action_samples).min().mean()
        weight = ((value[0] - value[1:].mean(0)) / cfg.lam).exp().clamp(max=cfg.max_weight)
    loss = -weighted_mean(weight * policy.log_prob(batch.action), batch.weight)
    zero = torch.zeros_like(loss)
    return Loss(loss, {"temp": zero, "temp_loss": zero})


@final
class AWAC(Algorithm[AWACConfig, AWACNets]):
    """See `AWACConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = StochasticActor(value=q_value, clipped=True)
    steps = (Gradient("critic", critic_loss), Gradient("actor", actor_loss), Polyak("critic", "critic_target"))
