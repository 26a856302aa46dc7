"""Implicit Q-Learning, for continuous and for discrete actions."""

from __future__ import annotations

from copy import deepcopy
from typing import final

import torch
from torch import Tensor, nn

from birl.algorithm import (
    ActionSpace,
    ActorCriticConfig,
    Algorithm,
    Batch,
    Gradient,
    Loss,
    PolicyConfig,
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
from birl.losses import shared, td_loss
from birl.models import (
    CategoricalPolicy,
    ContinuousQFunction,
    DefaultEncoderFactory,
    DiscreteQFunction,
    EncoderFactory,
    MeanQFunctionFactory,
    MeanReturns,
    NormalPolicy,
    ValueFunction,
)


@config
class IQLConfig(PolicyConfig):
    """Implicit Q-Learning (Kostrikov et al. 2021, arXiv:2110.06169): never evaluates actions outside the dataset.

    The policy is a Gaussian with a bounded mean and a learned, state-independent standard deviation.

    Logs ``critic_loss``, ``q_loss`` (the same), ``q_value``, ``v_loss`` and ``actor_loss``.

    Differs from d3rlpy: V and Q have separate gradient steps, V first, as in the paper's algorithm 1 (d3rlpy: one step
        for both), and ``clip_grad_norm`` clips each gradient separately. The logarithm of the standard deviation is a
        plain parameter that starts at 0, as in the authors' code (d3rlpy: a sigmoid of a parameter, which starts at
        -1.5).
    """

    value_encoder_factory: EncoderFactory = field(DefaultEncoderFactory, like=SharedFields)
    tau: float = field(0.005, like=ActorCriticConfig)
    n_critics: int = field(2, like=ValueConfig)
    expectile: float = field(0.7, "Expectile of the state-value regression.", above=0, below=1)
    weight_temp: float = field(3.0, "Inverse temperature of the advantage weights.", low=0)
    max_weight: float = field(100.0, like=SharedFields)


@config
class DiscreteIQLConfig(IQLConfig):
    """Implicit Q-Learning (Kostrikov et al. 2021, arXiv:2110.06169) for discrete actions.

    The critics value every action; the policy is categorical. In ``MultiDiscrete`` action spaces critics branch as in
    `DQN`, so that the value of an action is the mean of the values of its options (arXiv:2305.01738 says when this is
    exact), and the policy has a distribution for each choice. An advantage weights the whole action.

    Logs ``critic_loss``, ``q_loss`` (the same), ``q_value``, ``v_loss`` and ``actor_loss``.
    """


class IQLNets(nn.Module):
    """Networks of IQL."""

    def __init__(self, spec: Spec, cfg: IQLConfig) -> None:
        super().__init__()
        self.actor = NormalPolicy(spec, cfg.actor_encoder_factory, tanh_mean=True, log_std_range=(-5.0, 2.0))
        self.critic = ContinuousQFunction(spec, cfg.critic_encoder_factory, MeanQFunctionFactory(), cfg.n_critics)
        self.critic_target = deepcopy(self.critic)
        self.value = ValueFunction(spec, cfg.value_encoder_factory)


class DiscreteIQLNets(nn.Module):
    """Networks of discrete IQL."""

    def __init__(self, spec: Spec, cfg: DiscreteIQLConfig) -> None:
        super().__init__()
        self.actor = CategoricalPolicy(spec, cfg.actor_encoder_factory)
        self.critic = DiscreteQFunction(spec, cfg.critic_encoder_factory, MeanQFunctionFactory(), cfg.n_critics)
        self.critic_target = deepcopy(self.critic)
        self.value = ValueFunction(spec, cfg.value_encoder_factory)


def target_value(nets: IQLNets | DiscreteIQLNets, batch: Batch) -> Tensor:
    """Return ``min_j Q'_j(s, a)`` ``[B]`` of the taken actions, computed once per update."""
    return shared(batch, "target_value", lambda: nets.critic_target(batch.inputs, batch.action).min().mean())


def value_loss(nets: IQLNets | DiscreteIQLNets, batch: Batch, cfg: IQLConfig | DiscreteIQLConfig) -> Loss:
    """Eq. 5: expectile regression of V on the target Q."""
    target = target_value(nets, batch)
    difference = target - nets.value(batch.inputs)
    expectile = torch.where(difference > 0, cfg.expectile, 1 - cfg.expectile)
    return Loss(weighted_mean(expectile * difference.square(), batch.weight), share={"target_value": target})


def critic_loss(nets: IQLNets | DiscreteIQLNets, batch: Batch, cfg: IQLConfig | DiscreteIQLConfig) -> Loss:
    """Eq. 6: ``y = r + discount * V(s')`` with V after its update (algorithm 1)."""
    with torch.no_grad():
        target = MeanReturns(nets.value(batch.next_inputs)).backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch, metric="q_loss")


def actor_loss(nets: IQLNets | DiscreteIQLNets, batch: Batch, cfg: IQLConfig | DiscreteIQLConfig) -> Loss:
    """Eq. 7: log-likelihood weighted with ``exp(beta * (Q - V))``, at most ``max_weight``."""
    with torch.no_grad():
        advantage = target_value(nets, batch) - nets.value(batch.inputs)
        weight = (cfg.weight_temp * advantage).exp().clamp(max=cfg.max_weight)
    log_prob = nets.actor(batch.inputs).log_prob(batch.action)
    return Loss(-weighted_mean(weight * log_prob, batch.weight))


@final
class IQL(Algorithm[IQLConfig, IQLNets]):
    """See `IQLConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = StochasticActor(value=q_value, clipped=True)
    steps = (
        Gradient("value", value_loss, optimizer="critic", metric="v_loss"),
        Gradient("critic", critic_loss),
        Gradient("actor", actor_loss),
        Polyak("critic", "critic_target"),
    )


@final
class DiscreteIQL(Algorithm[DiscreteIQLConfig, DiscreteIQLNets]):
    """See `DiscreteIQLConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Transitions()
    acts = StochasticActor(value=q_value)
    steps = IQL.steps
