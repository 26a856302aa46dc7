"""Twin Delayed Deep Deterministic policy gradient."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from birl.algorithm import (
    ActionSpace,
    ActorCriticConfig,
    Algorithm,
    Batch,
    DeterministicActor,
    Gradient,
    Loss,
    Polyak,
    SharedFields,
    Spec,
    Transitions,
    When,
    config,
    field,
    q_value,
    weighted_mean,
)
from birl.losses import td_loss
from birl.models import ActorCriticNets, DeterministicPolicy

DELAYED = When(every="update_actor_interval")
TARGETS = (Polyak("critic", "critic_target", when=DELAYED), Polyak("actor", "actor_target", when=DELAYED))


@config
class TD3Config(ActorCriticConfig):
    """TD3 (Fujimoto et al. 2018, arXiv:1802.09477): twin critics, smoothed targets, delayed policy updates.

    Logs ``critic_loss``, ``q_value`` and ``actor_loss``.

    Differs from d3rlpy: the policy maximises the first critic, as in the paper, not the lowest; the policy is updated
        in updates d, 2d, … (d3rlpy: 1, d + 1, …).
    """

    target_smoothing_sigma: float = field(0.2, "Standard deviation of the target policy's noise.", low=0)
    target_smoothing_clip: float = field(0.5, "Largest absolute target policy noise.", low=0)
    update_actor_interval: int = field(2, like=SharedFields)


class TD3Nets(ActorCriticNets):
    """Networks of TD3."""

    def __init__(self, spec: Spec, cfg: ActorCriticConfig) -> None:
        super().__init__(spec, cfg, DeterministicPolicy(spec, cfg.actor_encoder_factory))


def smoothed_action(nets: TD3Nets, batch: Batch, cfg: TD3Config) -> Tensor:
    """Return ``clip(pi'(s') + clip(eps, -c, c), -1, 1)`` ``[..., A]`` (eq. 14)."""
    action = nets.actor_target(batch.next_inputs)
    limit = cfg.target_smoothing_clip
    noise = (torch.randn_like(action) * cfg.target_smoothing_sigma).clamp(-limit, limit)
    return (action + noise).clamp(-1, 1)


def critic_loss(nets: TD3Nets, batch: Batch, cfg: TD3Config) -> Loss:
    """Algorithm 1: ``y = r + discount * min_j Q'_j(s', clip(pi'(s') + clip(eps, -c, c), -1, 1))``."""
    with torch.no_grad():
        next_returns = nets.critic_target(batch.next_inputs, smoothed_action(nets, batch, cfg))
        target = next_returns.min().backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


def actor_loss(nets: TD3Nets, batch: Batch, cfg: TD3Config) -> Loss:
    """Eq. 1 with the first critic: ``-E[Q_1(s, pi(s))]`` (arXiv:1509.02971, eq. 6)."""
    value = nets.critic.first(batch.inputs, nets.actor(batch.inputs)).mean()[0]
    return Loss(-weighted_mean(value, batch.weight))


@final
class TD3(Algorithm[TD3Config, TD3Nets]):
    """See `TD3Config`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = DeterministicActor(value=q_value)
    steps = (Gradient("critic", critic_loss), Gradient("actor", actor_loss, when=DELAYED), *TARGETS)
