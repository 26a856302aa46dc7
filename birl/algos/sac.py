"""Soft Actor-Critic for continuous actions."""

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
    Spec,
    StochasticActor,
    TemperatureConfig,
    Transitions,
    config,
    q_value,
    weighted_mean,
)
from birl.losses import td_loss, temperature_loss
from birl.models import ContinuousQFunction, Returns, Scalar, SoftFields, SquashedNormalPolicy


@config
class SACConfig(TemperatureConfig, ActorCriticConfig):
    """Soft Actor-Critic (Haarnoja et al. 2018, arXiv:1812.05905).

    It has twin Q-functions, a squashed Gaussian policy, and a learned temperature that keeps the policy's entropy close
    to ``-|A|``, or to ``target_entropy``.

    Logs ``critic_loss``, ``q_value``, ``actor_loss``, ``temp_loss`` and ``temp`` (the temperature).

    Differs from d3rlpy: the temperature is updated after the policy, not before.
    """


class SACNets(nn.Module):
    """Networks of SAC."""

    def __init__(self, spec: Spec, cfg: SoftFields) -> None:
        super().__init__()
        self.actor = SquashedNormalPolicy(spec, cfg.actor_encoder_factory)
        self.critic = ContinuousQFunction(spec, cfg.critic_encoder_factory, cfg.q_func_factory, cfg.n_critics)
        self.critic_target = deepcopy(self.critic)
        self.temperature = Scalar(cfg.initial_temperature)
        self.target_entropy = -float(spec.actions.size) if cfg.target_entropy is None else cfg.target_entropy


def value_target(nets: SACNets, batch: Batch) -> Returns:
    """``y = r + discount * (min_j Q'_j(s', a') - alpha * log pi(a'|s'))`` ``[...]`` (eqs. 3 and 6)."""
    with torch.no_grad():
        action, log_prob = nets.actor(batch.next_inputs).sample()
        target: Returns = nets.critic_target(batch.next_inputs, action).min()
        return target.backup(batch.reward, batch.discount, bonus=-nets.temperature() * log_prob)


def critic_loss(nets: SACNets, batch: Batch, cfg: SACConfig) -> Loss:
    """Eqs. 5-6: the squared distance of every ``Q_j(s, a)`` from `value_target`."""
    target = value_target(nets, batch)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


def actor_loss(nets: SACNets, batch: Batch, cfg: TemperatureConfig) -> Loss:
    """Eq. 9: ``E[alpha * log pi(a|s) - min_j Q_j(s, a)]`` with reparametrised ``a``."""
    action, log_prob = nets.actor(batch.inputs).sample()
    value = nets.critic(batch.inputs, action).min().mean()
    value = weighted_mean(nets.temperature().detach() * log_prob - value, batch.weight)
    return Loss(value, share={"policy_entropy": -log_prob})


@final
class SAC(Algorithm[SACConfig, SACNets]):
    """See `SACConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = StochasticActor(value=q_value)
    steps = (
        Gradient("critic", critic_loss),
        Gradient("actor", actor_loss),
        Gradient("temperature", temperature_loss, optimizer="temp", metric="temp_loss"),
        Polyak("critic", "critic_target"),
    )
