"""Munchausen DQN: DQN that is rewarded for being sure of its actions."""

from __future__ import annotations

from typing import final

import torch

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    GreedyCritic,
    HardCopy,
    Loss,
    NetworkConfig,
    Transitions,
    config,
    field,
)
from birl.algos.dqn import DQNConfig, DQNNets
from birl.losses import td_loss
from birl.optimizers import AdamFactory, OptimizerFactory


@config
class MunchausenDQNConfig(DQNConfig):
    """Munchausen DQN (Vieillard et al. 2020, arXiv:2007.14430): the log-policy is added to the reward.

    The policy is ``softmax(Q' / temperature)`` of the target network. It takes the place of the maximum in targets, and
    its scaled logarithm, clipped, is a bonus on the data's action. It acts greedily. With ``IQNQFunctionFactory`` this
    is Munchausen IQN; the quantile and categorical heads work alike.

    The bonus is an implicit Kullback-Leibler penalty: the policy changes little from one target to the next. Short runs
    need a small ``target_update_interval``, or the policy stays near its random beginning.

    Logs ``loss``.

    Differs from the paper: an ensemble of critics is possible; Munchausen IQN acts greedily, too, instead of by the
    policy, and takes the policy from the same number of sampled quantiles as its targets.
    """

    learning_rate: float = 5e-5
    optim_factory: OptimizerFactory = field(lambda: AdamFactory(eps=1e-2 / 32), like=NetworkConfig)
    entropy_temperature: float = field(0.03, "Temperature of the policy.", above=0)
    munchausen_scaling_term: float = field(0.9, "Share of the log-policy that is added to the reward.", low=0, high=1)
    clipping_value: float = field(-1.0, "Lowest log-policy, multiplied by the temperature, that is added.", high=0)


def munchausen_loss(nets: DQNNets, batch: Batch, cfg: MunchausenDQNConfig) -> Loss:
    """Huber loss with threshold 1 against the target of section 2, ``pi = softmax(Q' / t)``.

    ``y = r + alpha [t log pi(a|s)]_l^0 + discount * pi(s')^T (Q'(s') - t log pi(s'))``.
    """
    with torch.no_grad():
        temperature, next_returns = cfg.entropy_temperature, nets.critic_target(batch.next_inputs)
        next_log_policy = (next_returns.preferences().mean(0) / temperature).log_softmax(-1)
        policy = next_log_policy.exp()
        entropy = -(policy * next_log_policy).sum(-1)

        log_policy = (nets.critic_target(batch.inputs).preferences().mean(0) / temperature).log_softmax(-1)
        taken = log_policy.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        bonus = cfg.munchausen_scaling_term * (temperature * taken).clamp(cfg.clipping_value, 0)

        target = next_returns.mix(policy).min().backup(batch.reward + bonus, batch.discount, temperature * entropy)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch, delta=1.0)


@final
class MunchausenDQN(Algorithm[MunchausenDQNConfig, DQNNets]):
    """See `MunchausenDQNConfig`."""

    actions = ActionSpace.DISCRETE
    learns_from = Transitions()
    acts = GreedyCritic()
    steps = (Gradient("critic", munchausen_loss, optimizer="", metric="loss"), HardCopy("critic", "critic_target"))
