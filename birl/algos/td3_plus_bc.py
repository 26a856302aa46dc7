"""TD3 with behaviour cloning."""

from __future__ import annotations

from typing import final

from torch import Tensor

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
from birl.algos.td3 import DELAYED, TARGETS, TD3Config, TD3Nets, critic_loss


@config
class TD3PlusBCConfig(TD3Config):
    """TD3+BC (Fujimoto and Gu 2021, arXiv:2106.06860): TD3 whose policy also stays near the data's actions.

    Observations should be standardised, as in the paper: ``observation_scaler=StandardObservationScaler()``.

    Logs ``critic_loss``, ``q_value``, ``actor_loss`` and ``bc_loss`` (the squared error of the policy's actions).

    Differs from the paper: Q is normalised by its mean absolute value at the policy's actions, as in the authors' code
        and in d3rlpy (eq. 5: at the data's actions).

    Differs from d3rlpy: the policy is updated in updates d, 2d, … (d3rlpy: 1, d + 1, …).
    """

    alpha: float = field(2.5, "Weight of the scaled Q-value against the cloning error.", low=0)


def drawn_to(nets: TD3Nets, batch: Batch, target: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Eqs. 3 and 5: ``-lambda * E[Q_1(s, pi(s))] + E[(pi(s) - target)^2]``, ``lambda = alpha / E[|Q_1|]``.

    Returns:
        The loss, and its second term.
    """
    action = nets.actor(batch.inputs)
    value = nets.critic.first(batch.inputs, action).mean()[0]
    scale = alpha / weighted_mean(value.detach().abs(), batch.weight)
    distance = weighted_mean((action - target).square().mean(-1), batch.weight)
    return distance - scale * weighted_mean(value, batch.weight), distance


def actor_loss(nets: TD3Nets, batch: Batch, cfg: TD3PlusBCConfig) -> Loss:
    """Eqs. 3 and 5: ``-lambda * E[Q_1(s, pi(s))] + E[(pi(s) - a)^2]``, ``lambda = alpha / E[|Q_1|]``."""
    loss, cloning = drawn_to(nets, batch, batch.action, cfg.alpha)
    return Loss(loss, {"bc_loss": cloning})


@final
class TD3PlusBC(Algorithm[TD3PlusBCConfig, TD3Nets]):
    """See `TD3PlusBCConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = DeterministicActor(value=q_value)
    steps = (Gradient("critic", critic_loss), Gradient("actor", actor_loss, when=DELAYED, splits=False), *TARGETS)
