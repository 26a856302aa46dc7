"""Advantage learning: Q-learning that lowers the values of actions that are not the best."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    GreedyCritic,
    Loss,
    Transitions,
    config,
    field,
)
from birl.algos.dqn import TARGET, DQNConfig, DQNNets
from birl.losses import td_loss
from birl.models import Returns, eval_mode


@config
class ALConfig(DQNConfig):
    """Advantage learning (Bellemare et al. 2016, arXiv:1512.04860, after Baird 1999), with DQN's networks.

    Targets are lowered by ``alpha`` times the action gap, the difference between the target network's values of the
    best action and of the data's action. The best actions keep their values and the gap to the others grows, so that
    errors change the greedy policy less often. With ``alpha=0`` this is DQN. The values of suboptimal actions are lower
    than their expected returns.

    With quantiles or atoms the gap is computed from expected returns and shifts the whole distribution. In
    ``MultiDiscrete`` action spaces it is the mean over the branches.

    Logs ``loss`` and ``q_value``.

    Differs from the paper: Adam instead of RMSProp, as in `DQN`; an ensemble of critics is possible.
    """

    alpha: float = field(0.9, "Share of the action gap that is taken from targets.", low=0, below=1)


@config
class PALConfig(ALConfig):
    """Persistent advantage learning (Bellemare et al. 2016, arXiv:1512.04860): AL, but for actions worth repeating.

    Targets are lowered by ``alpha`` times the smaller of two action gaps: the action's gap in the state, as in `AL`,
    and its gap in the next state, which is 0 after the end of an episode. If the action is the best one in the next
    state, the target is not lowered.

    It learns from single steps. N-step returns raise an error, because they skip the next state. If the action is not
    allowed in the next state, the gap in the state is used.

    Logs ``loss`` and ``q_value``.

    Differs from the paper: as `AL`. Differs from PFRL: PFRL also uses the next state's gap after a termination.
    """


@config
class DoublePALConfig(PALConfig):
    """PAL with the targets of Double DQN (arXiv:1509.06461): the online network chooses, the target network values.

    Action gaps are those of the target network, as in `PAL`.

    Logs ``loss`` and ``q_value``.
    """


def advantage_loss(nets: DQNNets, batch: Batch, cfg: ALConfig) -> Loss:
    """Huber loss against ``y = r + discount * V'(s') - alpha * [V'(s) - Q'(s, a)]``."""
    with torch.no_grad():
        gap = nets.critic_target(batch.inputs).gap(batch.action)
        next_returns = nets.critic_target(batch.next_inputs)
        best = next_returns.best()
        target = next_returns.gather(best).min().backup(batch.reward - cfg.alpha * gap, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch, delta=cfg.huber_threshold)


def persistent_gap(nets: DQNNets, batch: Batch, next_returns: Returns) -> Tensor:
    """Return ``min(V'(s) - Q'(s, a), V'(s') - Q'(s', a))`` ``[…]``; the second gap is 0 after the end."""
    next_gap = torch.where(batch.discount > 0, next_returns.gap(batch.action), 0.0)
    return torch.minimum(nets.critic_target(batch.inputs).gap(batch.action), next_gap)


def persistent_advantage_loss(nets: DQNNets, batch: Batch, cfg: PALConfig) -> Loss:
    """Huber loss against ``y = r + discount * V'(s') - alpha * gap``, with `persistent_gap`.

    It is the paper's sampled form: the larger one of two errors, AL's and that with the next state's gap.
    """
    with torch.no_grad():
        next_returns = nets.critic_target(batch.next_inputs)
        reward = batch.reward - cfg.alpha * persistent_gap(nets, batch, next_returns)
        best = next_returns.best()
        target = next_returns.gather(best).min().backup(reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch, delta=cfg.huber_threshold)


def double_persistent_advantage_loss(nets: DQNNets, batch: Batch, cfg: DoublePALConfig) -> Loss:
    """Huber loss against ``y = r + discount * Q'(s', argmax_a Q(s', a)) - alpha * gap``."""
    with torch.no_grad():
        with eval_mode(nets.critic):
            best = nets.critic(batch.next_inputs).best()
        next_returns = nets.critic_target(batch.next_inputs)
        reward = batch.reward - cfg.alpha * persistent_gap(nets, batch, next_returns)
        target = next_returns.gather(best).min().backup(reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch, delta=cfg.huber_threshold)


@final
class AL(Algorithm[ALConfig, DQNNets]):
    """See `ALConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Transitions()
    acts = GreedyCritic()
    steps = (Gradient("critic", advantage_loss, optimizer="", metric="loss"), TARGET)


@final
class PAL(Algorithm[PALConfig, DQNNets]):
    """See `PALConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Transitions(one_step=True)
    acts = GreedyCritic()
    steps = (
        Gradient("critic", persistent_advantage_loss, optimizer="", metric="loss"),
        TARGET,
    )


@final
class DoublePAL(Algorithm[DoublePALConfig, DQNNets]):
    """See `DoublePALConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = PAL.learns_from
    acts = GreedyCritic()
    steps = (
        Gradient("critic", double_persistent_advantage_loss, optimizer="", metric="loss"),
        TARGET,
    )
