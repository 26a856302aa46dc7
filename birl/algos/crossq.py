"""CrossQ: SAC without target networks."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    Inputs,
    Loss,
    PolicyConfig,
    ResetConfig,
    SharedFields,
    Spec,
    StochasticActor,
    TemperatureConfig,
    Transitions,
    ValueConfig,
    config,
    field,
    q_value,
)
from birl.algos import sac
from birl.algos.td3 import DELAYED
from birl.losses import td_loss, temperature_loss
from birl.models import (
    BatchRenormEncoderFactory,
    ContinuousQFunction,
    EncoderFactory,
    MeanQFunctionFactory,
    QFunctionFactory,
    Returns,
    eval_mode,
    is_recurrent,
)
from birl.optimizers import AdamFactory, OptimizerFactory
from birl.types import tree_map


def _adam() -> AdamFactory:
    return AdamFactory(betas=(0.5, 0.999))


@config
class CrossQConfig(TemperatureConfig, ResetConfig, PolicyConfig):
    """CrossQ (Bhatt et al. 2019, arXiv:1902.05605): SAC without target networks, with batch norm and wide critics.

    The critics process both state-action pairs of a transition in one batch, so that its statistics cover the data's
    actions and the policy's. Batch renormalisation, as in the published version, uses running statistics after a
    warm-up. While the policy or the critics are updated, the other network is normalised by its running statistics.

    Logs ``critic_loss``, ``q_value``, ``actor_loss``, ``temp_loss`` and ``temp`` (the temperature).
    """

    actor_learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    temp_learning_rate: float = 1e-3
    actor_optim_factory: OptimizerFactory = field(_adam, like=PolicyConfig)
    critic_optim_factory: OptimizerFactory = field(_adam, like=PolicyConfig)
    temp_optim_factory: OptimizerFactory = field(_adam, like=TemperatureConfig)
    actor_encoder_factory: EncoderFactory = field(BatchRenormEncoderFactory, like=PolicyConfig)
    critic_encoder_factory: EncoderFactory = field(
        lambda: BatchRenormEncoderFactory(hidden_units=[2048, 2048]), like=PolicyConfig
    )
    q_func_factory: QFunctionFactory = field(MeanQFunctionFactory, like=ValueConfig)
    n_critics: int = field(2, like=ValueConfig)
    update_actor_interval: int = field(3, like=SharedFields)


class CrossQNets(sac.SACNets):
    """Networks of CrossQ: those of SAC, without targets."""

    def __init__(self, spec: Spec, cfg: CrossQConfig) -> None:
        super().__init__(spec, cfg)
        del self.critic_target


def together(critic: ContinuousQFunction, batch: Batch, next_action: Tensor) -> tuple[Returns, Returns]:
    """Compute returns ``[N, ...]`` of ``(s, a)`` and of ``(s', a')``, from one batch of both.

    Recurrent critics process them one after the other, because their states differ.
    """
    if is_recurrent(critic):
        return critic(batch.inputs, batch.action), critic(batch.next_inputs, next_action)
    both = tree_map(lambda *each: torch.stack(each), batch.observation, batch.next_observation)
    returns: Returns = critic(Inputs(both), torch.stack((batch.action, next_action)))
    return returns.part(0), returns.part(1)


def critic_loss(nets: CrossQNets, batch: Batch, cfg: CrossQConfig) -> Loss:
    """SAC's without targets: ``y = r + discount * (min_j Q_j(s', a') - alpha * log pi(a'|s'))``, with no gradient."""
    with torch.no_grad(), eval_mode(nets.actor):
        next_action, log_prob = nets.actor(batch.next_inputs).sample()
    present, following = together(nets.critic, batch, next_action)
    target = following.min().backup(batch.reward, batch.discount, bonus=-nets.temperature() * log_prob)
    return td_loss(present, target, batch)


def actor_loss(nets: CrossQNets, batch: Batch, cfg: CrossQConfig) -> Loss:
    """SAC's (arXiv:1812.05905, eq. 9): ``E[alpha * log pi(a|s) - min_j Q_j(s, a)]`` with reparametrised ``a``."""
    with eval_mode(nets.critic):
        return sac.actor_loss(nets, batch, cfg)


@final
class CrossQ(Algorithm[CrossQConfig, CrossQNets]):
    """See `CrossQConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = StochasticActor(value=q_value)
    steps = (
        Gradient("critic", critic_loss),
        Gradient("actor", actor_loss, when=DELAYED),
        Gradient("temperature", temperature_loss, optimizer="temp", metric="temp_loss", when=DELAYED),
    )
