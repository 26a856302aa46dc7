"""Deep Q-Networks: DQN and Double DQN."""

from __future__ import annotations

from copy import deepcopy
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
    Polyak,
    SharedFields,
    Spec,
    Transitions,
    ValueConfig,
    When,
    config,
    field,
)
from birl.errors import ConfigError
from birl.losses import td_loss
from birl.models import (
    C51QFunctionFactory,
    DiscreteQFunction,
    IQNQFunctionFactory,
    QFunctionFactory,
    QRQFunctionFactory,
    Returns,
    eval_mode,
)


@config
class DQNConfig(ValueConfig):
    """Deep Q-Network (Mnih et al. 2015, doi:10.1038/nature14236).

    With ``QRQFunctionFactory`` this is QR-DQN (arXiv:1710.10044), with ``IQNQFunctionFactory`` IQN (arXiv:1806.06923),
    with ``C51QFunctionFactory`` categorical DQN (arXiv:1707.06887). In ``MultiDiscrete`` action spaces it is branching
    DQN (Tavakoli et al. 2018, arXiv:1711.08946): the value of the state and an advantage of each option of each choice.

    Logs ``loss`` and ``q_value``.

    Differs from the paper: Adam instead of RMSProp, as in d3rlpy; an ensemble of critics is possible.

    Differs from d3rlpy: targets are copied after updates d, 2d, … (d3rlpy: 1, d + 1, …).
    """

    batch_size: int = 32
    learning_rate: float = 6.25e-5
    target_update_interval: int = field(8000, like=SharedFields)
    tau: float = field(
        1.0, "Share of the online network in each update of the target network; 1 copies it.", low=0, high=1
    )
    huber_threshold: float | None = field(
        1.0,
        "Error above which the loss is linear, also called delta or kappa. `None` for the squared error, without a "
        "factor of 1/2; quantile losses need a number.",
        above=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_threshold(self.q_func_factory, self.huber_threshold)


def check_threshold(head: QFunctionFactory, threshold: float | None) -> None:
    """Raise `ConfigError` if the loss of a head has no such Huber threshold."""
    if threshold is None and isinstance(head, QRQFunctionFactory | IQNQFunctionFactory):
        raise ConfigError(
            f"huber_threshold is None, but the quantile loss of {type(head).__name__} has a threshold: give a number "
            "above 0, which is 1 in the papers"
        )
    if threshold != 1.0 and isinstance(head, C51QFunctionFactory):
        raise ConfigError(
            f"huber_threshold is {threshold}, but the loss of C51QFunctionFactory is a cross-entropy, which has none: "
            "leave it out"
        )


TARGET = Polyak("critic", "critic_target", When(every="target_update_interval"))


@config
class DoubleDQNConfig(DQNConfig):
    """Double DQN (van Hasselt et al. 2016, arXiv:1509.06461): the online network chooses, the target network values.

    Logs ``loss`` and ``q_value``.
    """


class DQNNets(nn.Module):
    """Networks of DQN."""

    def __init__(self, spec: Spec, cfg: ValueConfig) -> None:
        super().__init__()
        self.critic = DiscreteQFunction(spec, cfg.encoder_factory, cfg.q_func_factory, cfg.n_critics)
        self.critic_target = deepcopy(self.critic)


def q_loss(nets: DQNNets, batch: Batch, cfg: DQNConfig) -> Loss:
    """``y = r + discount * max_a Q'(s', a)``; the error is clipped, that is, a Huber loss."""
    with torch.no_grad():
        next_returns = nets.critic_target(batch.next_inputs)
        best = next_returns.best()
        target = next_returns.gather(best).min().backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch, delta=cfg.huber_threshold)


def double_q_target(nets: DQNNets, batch: Batch) -> Returns:
    """Eq. 4: ``y = r + discount * Q'(s', argmax_a Q(s', a))``."""
    with torch.no_grad():
        with eval_mode(nets.critic):
            best = nets.critic(batch.next_inputs).best()
        return nets.critic_target(batch.next_inputs, best).min().backup(batch.reward, batch.discount)


def double_q_loss(nets: DQNNets, batch: Batch, cfg: DoubleDQNConfig) -> Loss:
    """Huber loss against `double_q_target`."""
    target = double_q_target(nets, batch)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch, delta=cfg.huber_threshold)


@final
class DQN(Algorithm[DQNConfig, DQNNets]):
    """See `DQNConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Transitions()
    acts = GreedyCritic()
    steps = (Gradient("critic", q_loss, optimizer="", metric="loss"), TARGET)


@final
class DoubleDQN(Algorithm[DoubleDQNConfig, DQNNets]):
    """See `DoubleDQNConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Transitions()
    acts = GreedyCritic()
    steps = (Gradient("critic", double_q_loss, optimizer="", metric="loss"), TARGET)
