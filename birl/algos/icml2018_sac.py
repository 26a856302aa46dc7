"""Soft Actor-Critic in its first form: with a state-value function, and without a temperature."""

from __future__ import annotations

from copy import deepcopy
from typing import final

import torch
from torch import nn

from birl.algorithm import (
    ActionSpace,
    ActorCriticConfig,
    Algorithm,
    AlgorithmConfig,
    Batch,
    Gradient,
    Loss,
    PolicyConfig,
    Polyak,
    ResetConfig,
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
from birl.losses import td_loss
from birl.models import (
    ContinuousQFunction,
    DefaultEncoderFactory,
    EncoderFactory,
    MeanQFunctionFactory,
    MeanReturns,
    SquashedNormalPolicy,
    ValueFunction,
)
from birl.preprocessing import MultiplyRewardScaler, RewardScaler


@config
class ICML2018SACConfig(ResetConfig, PolicyConfig):
    """Soft Actor-Critic as it was first published (Haarnoja et al. 2018, arXiv:1801.01290).

    Targets of the Q-functions come from a state-value function with a soft-updated target network. The entropy has a
    fixed weight of 1, so the reward scale sets its importance: 5 by default, and 20 for Humanoid in the paper. ``SAC``
    is the later form, which learns a temperature instead. Predicted values are in units of scaled rewards. A scale of 5
    suits rewards of about 1 per step. With larger rewards, such as those of Pendulum-v1, the entropy has almost no
    weight: pass a lower scale, or ``reward_scaler=None``.

    Logs ``v_loss``, ``critic_loss``, ``q_value`` and ``actor_loss``.

    Differs from the paper: the loss of the Q-functions has no factor of 1/2.
    """

    reward_scaler: RewardScaler | None = field(lambda: MultiplyRewardScaler(5.0), like=AlgorithmConfig)
    value_encoder_factory: EncoderFactory = field(DefaultEncoderFactory, like=SharedFields)
    n_critics: int = field(2, like=ValueConfig)
    tau: float = field(0.005, like=ActorCriticConfig)


class ICML2018SACNets(nn.Module):
    """Networks of SAC in its first form."""

    def __init__(self, spec: Spec, cfg: ICML2018SACConfig) -> None:
        super().__init__()
        self.actor = SquashedNormalPolicy(spec, cfg.actor_encoder_factory)
        self.critic = ContinuousQFunction(spec, cfg.critic_encoder_factory, MeanQFunctionFactory(), cfg.n_critics)
        self.value = ValueFunction(spec, cfg.value_encoder_factory)
        self.value_target = deepcopy(self.value)


def value_loss(nets: ICML2018SACNets, batch: Batch, cfg: ICML2018SACConfig) -> Loss:
    """Eq. 5, with the lowest of the Q-functions: ``E[(V(s) - (min_j Q_j(s, a) - log pi(a|s)))^2] / 2``, ``a ~ pi``."""
    with torch.no_grad():
        action, log_prob = nets.actor(batch.inputs).sample()
        target = nets.critic(batch.inputs, action).min().mean() - log_prob
    return Loss(0.5 * weighted_mean((nets.value(batch.inputs) - target).square(), batch.weight))


def critic_loss(nets: ICML2018SACNets, batch: Batch, cfg: ICML2018SACConfig) -> Loss:
    """Eqs. 7-8: ``y = r + discount * V'(s')``."""
    with torch.no_grad():
        target = MeanReturns(nets.value_target(batch.next_inputs)).backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


def actor_loss(nets: ICML2018SACNets, batch: Batch, cfg: ICML2018SACConfig) -> Loss:
    """Eq. 12: ``E[log pi(a|s) - min_j Q_j(s, a)]`` with reparametrised ``a``."""
    action, log_prob = nets.actor(batch.inputs).sample()
    value = nets.critic(batch.inputs, action).min().mean()
    return Loss(weighted_mean(log_prob - value, batch.weight))


@final
class ICML2018SAC(Algorithm[ICML2018SACConfig, ICML2018SACNets]):
    """See `ICML2018SACConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = StochasticActor(value=q_value)
    steps = (
        Gradient("value", value_loss, optimizer="critic", metric="v_loss"),
        Gradient("critic", critic_loss),
        Gradient("actor", actor_loss),
        Polyak("value", "value_target"),
    )
