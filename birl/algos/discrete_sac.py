"""Soft Actor-Critic for discrete actions."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final, cast, final

import torch
from torch import nn

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    HardCopy,
    Loss,
    PolicyConfig,
    SharedFields,
    Spec,
    StochasticActor,
    TemperatureConfig,
    Transitions,
    ValueConfig,
    config,
    field,
    q_value,
    weighted_mean,
)
from birl.errors import ConfigError
from birl.losses import td_loss, temperature_loss
from birl.models import CategoricalPolicy, DiscreteQFunction, MeanQFunctionFactory, QFunctionFactory, Scalar
from birl.types import Networks


@config
class DiscreteSACConfig(TemperatureConfig, PolicyConfig):
    """Soft Actor-Critic for discrete actions (Christodoulou 2019, arXiv:1910.07207).

    Expectations over all actions replace sampled actions. With a quantile head (discrete QR-SAC) or a
    categorical one, targets are the mixture of the actions' returns under the policy. The target entropy is
    ``0.98 * log|A|``, or ``target_entropy``; if some actions are masked, it is the same fraction of the largest
    possible entropy. In ``MultiDiscrete`` action spaces each choice has a distribution of its own, and critics branch
    as in `DQN`.

    Logs ``critic_loss``, ``q_value``, ``actor_loss``, ``temp_loss`` and ``temp`` (the temperature).

    Differs from d3rlpy: the critics' squared error, as in the paper, instead of the Huber loss (only for heads of
    expected returns); a mixture of quantiles instead of their averages; the temperature is updated after the policy,
    not before; targets are copied as in `DQNConfig`.
    """

    batch_size: int = 64
    q_func_factory: QFunctionFactory = field(MeanQFunctionFactory, like=ValueConfig)
    n_critics: int = field(2, like=ValueConfig)
    target_update_interval: int = field(8000, like=SharedFields)


TARGET: Final = 0.98
"""Default target entropy, as a fraction of the largest possible entropy."""


class DiscreteSACNets(nn.Module):
    """Networks of discrete SAC, and the target entropy.

    Attributes:
        target_entropy: in nats.
        target_share: as a fraction of the largest possible one.

    Raises:
        ConfigError: if the entropy is above the largest possible one: the temperature would rise without end.
    """

    def __init__(self, spec: Spec, cfg: DiscreteSACConfig) -> None:
        super().__init__()
        self.actor = CategoricalPolicy(spec, cfg.actor_encoder_factory)
        self.critic = DiscreteQFunction(spec, cfg.critic_encoder_factory, cfg.q_func_factory, cfg.n_critics)
        self.critic_target = deepcopy(self.critic)
        self.temperature = Scalar(cfg.initial_temperature)
        largest, given = cast(Any, spec.actions).log_count, cfg.target_entropy
        if given is not None and not 0 <= given <= largest:
            raise ConfigError(
                f"target_entropy is {given}; policies of {spec.actions} have an entropy from 0 to {largest:.4g} nats"
            )
        self.target_share = TARGET if given is None or not largest else given / largest
        self.target_entropy = self.target_share * largest if given is None else given


def critic_loss(nets: Networks, batch: Batch, cfg: DiscreteSACConfig) -> Loss:
    """Eqs. 4 and 10: ``y = r + discount * pi(s')^T [min_j Q'_j(s') - alpha * log pi(s')]``.

    Quantiles and atoms of the target are those of the mixture of all actions' returns, shifted by the mean entropy
    bonus.
    """
    with torch.no_grad():
        policy = nets.actor(batch.next_inputs)
        next_returns = nets.critic_target(batch.next_inputs).min().mixture(policy.probs)
        target = next_returns.backup(batch.reward, batch.discount, bonus=nets.temperature() * policy.entropy())
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


def actor_loss(nets: Networks, batch: Batch, cfg: DiscreteSACConfig) -> Loss:
    """Eq. 12: ``E[pi(s)^T [alpha * log pi(s) - min_j Q_j(s)]]``."""
    policy = nets.actor(batch.inputs)
    with torch.no_grad():
        value = nets.critic(batch.inputs).min().mean()
    value = policy.expectation(nets.temperature().detach() * policy.log_probs - value)
    entropy = policy.entropy()
    if policy.allowed is not None:  # the same fraction of the largest possible entropy in every state
        entropy = entropy + nets.target_entropy - nets.target_share * policy.log_count()
    return Loss(weighted_mean(value, batch.weight), share={"policy_entropy": entropy})


@final
class DiscreteSAC(Algorithm[DiscreteSACConfig, DiscreteSACNets]):
    """See `DiscreteSACConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Transitions()
    acts = StochasticActor(value=q_value)
    steps = (
        Gradient("critic", critic_loss),
        Gradient("actor", actor_loss),
        Gradient("temperature", temperature_loss, optimizer="temp", metric="temp_loss"),
        HardCopy("critic", "critic_target"),
    )
