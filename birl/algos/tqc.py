"""Truncated Quantile Critics: SAC whose targets leave out the highest quantiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import torch

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    Loss,
    StochasticActor,
    Transitions,
    ValueConfig,
    config,
    field,
    q_value,
    weighted_mean,
)
from birl.algos.sac import SAC, SACConfig, SACNets
from birl.errors import ConfigError
from birl.losses import td_loss
from birl.models import IQNQFunctionFactory, QFunctionFactory, QRQFunctionFactory


@config
class TQCConfig(SACConfig):
    """Truncated Quantile Critics (Kuznetsov et al. 2020, arXiv:2005.04269).

    Targets pool the quantiles of all critics and drop the highest: ``n_dropped_quantiles`` controls overestimation. The
        policy maximises the mean of all quantiles.

    Logs ``critic_loss``, ``q_value``, ``actor_loss``, ``temp_loss`` and ``temp`` (the temperature).

    The temperature's loss is linear in its logarithm, as in the authors' code. With the other setting of
    ``log_temperature_loss``, birl's default for SAC, the temperature falls 10 % more slowly.

    Differs from the paper: critics have birl's layers by default (the paper's: three of 512 units). With
        ``IQNQFunctionFactory`` the quantile levels are random.
    """

    q_func_factory: QFunctionFactory = field(lambda: QRQFunctionFactory(n_quantiles=25), like=ValueConfig)
    n_critics: int = 5
    log_temperature_loss: bool = True
    n_dropped_quantiles: int = field(
        2, "Number of highest quantiles, for each critic, that targets leave out of the mixture.", low=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        factory: Any = self.q_func_factory
        if not isinstance(factory, QRQFunctionFactory | IQNQFunctionFactory):
            raise ConfigError(
                f"TQCConfig.q_func_factory is {type(factory).__name__}, whose returns have no quantiles to leave out; "
                "it must be QRQFunctionFactory or IQNQFunctionFactory"
            )
        if self.n_dropped_quantiles >= factory.n_quantiles:
            raise ConfigError(
                f"TQCConfig.n_dropped_quantiles is {self.n_dropped_quantiles}, and a critic has {factory.n_quantiles} "
                "quantiles: it must be lower, so that some are left"
            )


def critic_loss(nets: SACNets, batch: Batch, cfg: TQCConfig) -> Loss:
    """Algorithm 1: quantile regression on ``y_i = r + discount * (z_i(s', a') - alpha * log pi(a'|s'))``.

    ``z_i`` are the quantiles of all target critics but the ``n_critics * n_dropped_quantiles`` highest. Unlike in
    QR-DQN, losses are averaged over quantiles and over critics, as in the authors' code; with this scale the gradients
    of many weights are close to Adam's epsilon.
    """
    with torch.no_grad():
        action, log_prob = nets.actor(batch.next_inputs).sample()
        mixture: Any = nets.critic_target(batch.next_inputs, action)
        target = mixture.truncated(cfg.n_critics * cfg.n_dropped_quantiles)
        target = target.backup(batch.reward, batch.discount, bonus=-nets.temperature() * log_prob)
    loss = td_loss(nets.critic(batch.inputs, batch.action), target, batch)
    factory: Any = cfg.q_func_factory
    return replace(loss, value=loss.value / (factory.n_quantiles * cfg.n_critics))


def actor_loss(nets: SACNets, batch: Batch, cfg: SACConfig) -> Loss:
    """``E[alpha * log pi(a|s) - Q(s, a)]`` with reparametrised ``a``, where ``Q`` is the mean of all critics."""
    action, log_prob = nets.actor(batch.inputs).sample()
    value = nets.critic(batch.inputs, action).mean().mean(0)
    value = weighted_mean(nets.temperature().detach() * log_prob - value, batch.weight)
    return Loss(value, share={"policy_entropy": -log_prob})


@final
class TQC(Algorithm[TQCConfig, SACNets]):
    """See `TQCConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = StochasticActor(value=q_value)
    steps = (Gradient("critic", critic_loss), Gradient("actor", actor_loss), *SAC.steps[2:])
