"""Normalised advantage functions: Q-learning for continuous actions."""

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
    Inputs,
    Loss,
    NetworkConfig,
    Policy,
    Polyak,
    ResetConfig,
    Spec,
    Transitions,
    config,
    field,
    q_value,
)
from birl.losses import td_loss
from birl.models import MeanReturns, QuadraticQFunction


@config
class NAFConfig(ResetConfig, NetworkConfig):
    """Normalised advantage functions (Gu et al. 2016, arXiv:1603.00748): DQN for continuous actions.

    Q is quadratic in the action, with its maximum at the best action, so that no separate policy has to be learned. The
    algorithm acts greedily: give ``fit_online`` an explorer, such as ``NormalNoise``.

    Logs ``loss`` and ``q_value``.

    Differs from the paper: layers and learning rate are birl's defaults, and there is no batch norm by default
    (``encoder_factory=VectorEncoderFactory(use_batch_norm=True)``); the paper tunes the learning rate for each task,
    and also learns from imagined rollouts. Differs from PFRL: the target network is soft-updated, as in the paper
    (PFRL copies it by default); a tanh always keeps the best action within bounds (PFRL: unless ``scale_mu=False``).
    """

    tau: float = field(0.005, like=ActorCriticConfig)


class NAFNets(nn.Module):
    """Networks of NAF."""

    def __init__(self, spec: Spec, cfg: NAFConfig) -> None:
        super().__init__()
        self.critic = QuadraticQFunction(spec, cfg.encoder_factory)
        self.critic_target = deepcopy(self.critic)


def naf_loss(nets: NAFNets, batch: Batch, cfg: NAFConfig) -> Loss:
    """Algorithm 1: the squared distance of ``Q(s, a)`` from ``y = r + discount * V'(s')``."""
    with torch.no_grad():
        target = MeanReturns(nets.critic_target.best(batch.next_inputs)[1]).backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


def best_action(nets: NAFNets, inputs: Inputs) -> Tensor:
    """Return the actions ``mu(s)`` ``[..., A]`` with the highest values."""
    return nets.critic.best(inputs)[0]


@final
class NAF(Algorithm[NAFConfig, NAFNets]):
    """See `NAFConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = Policy(greedy=best_action, sample=best_action, value=q_value, network="critic")
    steps = (Gradient("critic", naf_loss, optimizer="", metric="loss"), Polyak("critic", "critic_target"))
