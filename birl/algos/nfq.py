"""Neural fitted Q iteration."""

from __future__ import annotations

from typing import final

import torch
from torch import nn

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    GreedyCritic,
    Loss,
    Spec,
    Transitions,
    ValueConfig,
    config,
)
from birl.losses import td_loss
from birl.models import DiscreteQFunction, eval_mode


@config
class NFQConfig(ValueConfig):
    """Neural fitted Q iteration (Riedmiller 2005, doi:10.1007/11564096_32): DQN without a target network.

    The trained network itself values the next state. In ``MultiDiscrete`` action spaces critics branch as in `DQN`.

    Logs ``loss`` and ``q_value``.

    Differs from the paper: each gradient step computes a new target on a minibatch, and the optimiser is Adam, as in
        d3rlpy; the paper trains with Rprop on all data until the targets are fitted, then computes new ones. An
        ensemble of critics is possible: targets take the lowest value.

    Differs from d3rlpy: the squared error, as in the paper, instead of the Huber loss (only for heads of expected
        returns).
    """

    batch_size: int = 32
    learning_rate: float = 6.25e-5


class NFQNets(nn.Module):
    """Networks of NFQ."""

    def __init__(self, spec: Spec, cfg: NFQConfig) -> None:
        super().__init__()
        self.critic = DiscreteQFunction(spec, cfg.encoder_factory, cfg.q_func_factory, cfg.n_critics)


def q_loss(nets: NFQNets, batch: Batch, cfg: NFQConfig) -> Loss:
    """``y = r + discount * max_a Q(s', a)`` (the paper's pattern set, with rewards for costs), squared error."""
    with torch.no_grad(), eval_mode(nets.critic):  # batch statistics are those of the data, not of next observations
        next_returns = nets.critic(batch.next_inputs)
        best = next_returns.best()
        target = next_returns.gather(best).min().backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


@final
class NFQ(Algorithm[NFQConfig, NFQNets]):
    """See `NFQConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Transitions()
    acts = GreedyCritic()
    steps = (Gradient("critic", q_loss, optimizer="", metric="loss"),)
