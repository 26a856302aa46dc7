"""Advantage learning: Q-learning that values actions the less, the further they are from the best one."""

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
    HardCopy,
    Loss,
    Transitions,
    config,
    field,
)
from birl.algos.dqn import DQNConfig, DQNNets
from birl.losses import td_loss
from birl.models import Returns, eval_mode


@config
class ALConfig(DQNConfig):
    """Advantage learning (Bellemare et al. 2016, arXiv:1512.04860, after Baird 1999), with DQN's networks.

    Targets are lower by ``alpha`` times the action gap: how much less the data's action is worth than the best one in
    its state, to the target network. The best actions keep their values, and the others move away from them, so that
    errors change the greedy policy less often. With 0 this is DQN. Values of actions that are not the best are not
    their returns: they are lower.

    With quantiles or atoms the gap is one of expected returns, by which the whole distribution moves. In
    ``MultiDiscrete`` action spaces it is the mean over the branches.

    Logs ``loss``.

    Differs from the paper: Adam instead of RMSProp, as `DQN`; an ensemble of critics is possible.
    """

    alpha: float = field(0.9, "Share of the action gap that is taken from targets.", low=0, below=1)


@config
class PALConfig(ALConfig):
    """Persistent advantage learning (Bellemare et al. 2016, arXiv:1512.04860): AL, but for actions worth repeating.

    Targets are lower by ``alpha`` times an action gap as in `AL`: by that of the state or, if it is smaller, by that of
    the same action in the next state, which is 0 after the end of an episode. Where one goes on with the same action,
    nothing is taken.

    It learns from single steps: after several of them there is no next state to repeat the action in, so n-step
    returns are refused. Where the action may not be taken in the next state, the gap is that of the state.

    Logs ``loss``.

    Differs from the paper: as `AL`. Differs from PFRL: there the next state's gap counts after the end, too.
    """


@config
class DoublePALConfig(PALConfig):
    """PAL with the targets of Double DQN (arXiv:1509.06461): the online network chooses, the target network values.

    Action gaps are those of the target network, as in `PAL`.

    Logs ``loss``.
    """


def advantage_loss(nets: DQNNets, batch: Batch, cfg: ALConfig) -> Loss:
    """Huber loss with threshold 1 against ``y = r + discount * V'(s') - alpha * [V'(s) - Q'(s, a)]``."""
    with torch.no_grad():
        gap = nets.critic_target(batch.inputs).gap(batch.action)
        next_returns = nets.critic_target(batch.next_inputs)
        best = next_returns.best()
        target = next_returns.gather(best).min().backup(batch.reward - cfg.alpha * gap, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch, delta=1.0)


def persistent_gap(nets: DQNNets, batch: Batch, next_returns: Returns) -> Tensor:
    """``min(V'(s) - Q'(s, a), V'(s') - Q'(s', a))`` ``[…]``, the second of which is 0 after the end."""
    next_gap = torch.where(batch.discount > 0, next_returns.gap(batch.action), 0.0)
    return torch.minimum(nets.critic_target(batch.inputs).gap(batch.action), next_gap)


def persistent_advantage_loss(nets: DQNNets, batch: Batch, cfg: PALConfig) -> Loss:
    """Huber loss with threshold 1 against ``y = r + discount * V'(s') - alpha * gap``, with `persistent_gap`.

    It is the paper's sampled form: the larger one of two errors, AL's and that with the next state's gap.
    """
    with torch.no_grad():
        next_returns = nets.critic_target(batch.next_inputs)
        reward = batch.reward - cfg.alpha * persistent_gap(nets, batch, next_returns)
        best = next_returns.best()
        target = next_returns.gather(best).min().backup(reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch, delta=1.0)


def double_persistent_advantage_loss(nets: DQNNets, batch: Batch, cfg: DoublePALConfig) -> Loss:
    """Huber loss with threshold 1 against ``y = r + discount * Q'(s', argmax_a Q(s', a)) - alpha * gap``."""
    with torch.no_grad():
        with eval_mode(nets.critic):
            best = nets.critic(batch.next_inputs).best()
        next_returns = nets.critic_target(batch.next_inputs)
        reward = batch.reward - cfg.alpha * persistent_gap(nets, batch, next_returns)
        target = next_returns.gather(best).min().backup(reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch, delta=1.0)


@final
class AL(Algorithm[ALConfig, DQNNets]):
    """See `ALConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Transitions()
    acts = GreedyCritic()
    steps = (Gradient("critic", advantage_loss, optimizer="", metric="loss"), HardCopy("critic", "critic_target"))


@final
class PAL(Algorithm[PALConfig, DQNNets]):
    """See `PALConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Transitions(one_step=True)
    acts = GreedyCritic()
    steps = (
        Gradient("critic", persistent_advantage_loss, optimizer="", metric="loss"),
        HardCopy("critic", "critic_target"),
    )


@final
class DoublePAL(Algorithm[DoublePALConfig, DQNNets]):
    """See `DoublePALConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = PAL.learns_from
    acts = GreedyCritic()
    steps = (
        Gradient("critic", double_persistent_advantage_loss, optimizer="", metric="loss"),
        HardCopy("critic", "critic_target"),
    )
