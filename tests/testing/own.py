"""Two algorithms of a user's own, written as CONTRIBUTING.md says: one like DQN, one like SAC."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, final

import torch
from torch import nn

from birl.algorithm import (
    ActionSpace,
    ActorCriticConfig,
    Algorithm,
    Batch,
    Gradient,
    GreedyCritic,
    HardCopy,
    Loss,
    Polyak,
    SharedFields,
    Spec,
    StochasticActor,
    Transitions,
    ValueConfig,
    config,
    field,
    q_value,
    weighted_mean,
)
from birl.models import ContinuousQFunction, DiscreteQFunction, SquashedNormalPolicy


@config
class OwnQConfig(ValueConfig):
    """Like DQN.

    Logs ``loss``.
    """

    batch_size: int = 16
    learning_rate: float = 1e-3
    target_update_interval: int = field(100, like=SharedFields)


class OwnQNets(nn.Module):
    """A Q-function and its target."""

    def __init__(self, spec: Spec, cfg: Any) -> None:
        super().__init__()
        self.critic = DiscreteQFunction(spec, cfg.encoder_factory, cfg.q_func_factory, cfg.n_critics)
        self.critic_target = deepcopy(self.critic)


def q_loss(nets: Any, batch: Batch, cfg: Any) -> Loss:
    """``y = r + discount * max_a Q'(s', a)``."""
    with torch.no_grad():
        following = nets.critic_target(batch.next_inputs).mean().min(0).values.max(-1).values
        target = batch.reward + batch.discount * following
    error = nets.critic(batch.inputs, batch.action).mean() - target  # [N, …]
    return Loss(weighted_mean(error.square().sum(0), batch.weight))


@final
class OwnQ(Algorithm[OwnQConfig, OwnQNets]):
    """See `OwnQConfig`."""

    actions = ActionSpace.DISCRETE
    learns_from = Transitions()
    acts = GreedyCritic()
    steps = (Gradient("critic", q_loss, optimizer="", metric="loss"), HardCopy("critic", "critic_target"))


@config
class OwnSoftConfig(ActorCriticConfig):
    """Like SAC, with a fixed temperature.

    Logs ``critic_loss`` and ``actor_loss``.
    """

    batch_size: int = 16
    temperature: float = field(0.1, "Weight of the policy's entropy.", low=0)


class OwnSoftNets(nn.Module):
    """A stochastic policy, Q-functions and their targets."""

    def __init__(self, spec: Spec, cfg: Any) -> None:
        super().__init__()
        self.actor = SquashedNormalPolicy(spec, cfg.actor_encoder_factory)
        self.critic = ContinuousQFunction(spec, cfg.critic_encoder_factory, cfg.q_func_factory, cfg.n_critics)
        self.critic_target = deepcopy(self.critic)


def critic_loss(nets: Any, batch: Batch, cfg: Any) -> Loss:
    """``y = r + discount * (min_j Q'_j(s', a') - temperature * log pi(a'|s'))``."""
    with torch.no_grad():
        action, log_prob = nets.actor(batch.next_inputs).sample()
        following = nets.critic_target(batch.next_inputs, action).mean().min(0).values
        target = batch.reward + batch.discount * (following - cfg.temperature * log_prob)
    error = nets.critic(batch.inputs, batch.action).mean() - target
    return Loss(weighted_mean(error.square().sum(0), batch.weight))


def actor_loss(nets: Any, batch: Batch, cfg: Any) -> Loss:
    """``E[temperature * log pi(a|s) - min_j Q_j(s, a)]``."""
    action, log_prob = nets.actor(batch.inputs).sample()
    value = nets.critic(batch.inputs, action).mean().min(0).values
    return Loss(weighted_mean(cfg.temperature * log_prob - value, batch.weight))


@final
class OwnSoft(Algorithm[OwnSoftConfig, OwnSoftNets]):
    """See `OwnSoftConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = StochasticActor(value=q_value)
    steps = (Gradient("critic", critic_loss), Gradient("actor", actor_loss), Polyak("critic", "critic_target"))
