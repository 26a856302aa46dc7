"""Revisited behaviour-regularised actor-critic."""

from __future__ import annotations

from typing import final

import torch

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    DeterministicActor,
    Gradient,
    Loss,
    Transitions,
    config,
    field,
    q_value,
    weighted_mean,
)
from birl.algos.td3 import DELAYED, TARGETS, TD3Config, TD3Nets, smoothed_action
from birl.losses import td_loss


@config
class ReBRACConfig(TD3Config):
    """ReBRAC (Tarasov et al. 2023, arXiv:2305.09836): TD3+BC with separate penalties for policy and critics.

    The paper's networks are deeper, and its critics have layer norm:
    ``VectorEncoderFactory(hidden_units=[256, 256, 256], use_layer_norm=True)`` as ``critic_encoder_factory``, the same
    without layer norm for the policy. It tunes both weights for each dataset.

    Logs ``critic_loss``, ``q_value``, ``actor_loss`` and ``bc_loss`` (the squared error of the policy's actions, summed
    over dimensions).

    Differs from the authors' code and from d3rlpy: these leave out the last step of a truncated episode, because its
    next action is unknown. birl learns from it, without a penalty in its target, and does the same with the newest step
    of a running episode.

    Differs from d3rlpy: the policy is updated in updates d, 2d, … (d3rlpy: 1, d + 1, …).
    """

    batch_size: int = 1024
    actor_learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    actor_beta: float = field(0.001, "Weight of the squared distance to the data's action in the policy's loss.", low=0)
    critic_beta: float = field(0.01, "Weight of the squared distance to the data's next action in targets.", low=0)


def critic_loss(nets: TD3Nets, batch: Batch, cfg: ReBRACConfig) -> Loss:
    """Eq. 5: ``y = r + discount * (min_j Q'_j(s', a') - beta_2 * |a' - a'_data|^2)``, ``a'`` as in TD3."""
    with torch.no_grad():
        action = smoothed_action(nets, batch, cfg)
        penalty = (action - batch.extra["next_action"]).square().sum(-1) * batch.extra["next_action_known"]
        next_returns = nets.critic_target(batch.next_inputs, action).min()
        target = next_returns.backup(batch.reward, batch.discount, bonus=-cfg.critic_beta * penalty)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


def actor_loss(nets: TD3Nets, batch: Batch, cfg: ReBRACConfig) -> Loss:
    """Eq. 4: ``E[beta_1 * |pi(s) - a|^2 - lambda * min_j Q_j(s, pi(s))]``, ``lambda = 1 / E[|min_j Q_j|]``."""
    action = nets.actor(batch.inputs)
    value = nets.critic(batch.inputs, action).min().mean()
    size = weighted_mean(value.detach().abs(), batch.weight)
    cloning = weighted_mean((action - batch.action).square().sum(-1), batch.weight)
    return Loss(cfg.actor_beta * cloning - weighted_mean(value, batch.weight) / size, {"bc_loss": cloning})


@final
class ReBRAC(Algorithm[ReBRACConfig, TD3Nets]):
    """See `ReBRACConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions(next_actions=True)
    acts = DeterministicActor(value=q_value)
    steps = (Gradient("critic", critic_loss), Gradient("actor", actor_loss, when=DELAYED, splits=False), *TARGETS)
