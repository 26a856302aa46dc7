"""Deep deterministic policy gradient."""

from __future__ import annotations

from typing import final

import torch

from birl.algorithm import (
    ActionSpace,
    ActorCriticConfig,
    Algorithm,
    Batch,
    DeterministicActor,
    Gradient,
    Loss,
    Polyak,
    Transitions,
    config,
    q_value,
)
from birl.algos.td3 import TD3Nets, actor_loss
from birl.losses import td_loss
from birl.models import ActorCriticNets


@config
class DDPGConfig(ActorCriticConfig):
    """Deep deterministic policy gradient (Lillicrap et al. 2015, arXiv:1509.02971).

    Logs ``critic_loss``, ``q_value`` and ``actor_loss``.

    Differs from the paper: learning rates, minibatch size and ``tau`` are d3rlpy's, and the critic has no weight decay
        (the paper's values: 1e-4 and 1e-3, 64, 0.001, 0.01); exploration noise is not part of the algorithm: an
        explorer, passed to `fit_online`, adds it. An ensemble of critics is possible: targets take the lowest value,
        and the policy maximises the first critic.
    """

    n_critics: int = 1


def critic_loss(nets: ActorCriticNets, batch: Batch, cfg: ActorCriticConfig) -> Loss:
    """Eqs. 4-5: ``y = r + discount * Q'(s', pi'(s'))``."""
    with torch.no_grad():
        next_returns = nets.critic_target(batch.next_inputs, nets.actor_target(batch.next_inputs))
        target = next_returns.min().backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


@final
class DDPG(Algorithm[DDPGConfig, TD3Nets]):
    """See `DDPGConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = DeterministicActor(value=q_value)
    steps = (
        Gradient("critic", critic_loss),
        Gradient("actor", actor_loss),
        Polyak("critic", "critic_target"),
        Polyak("actor", "actor_target"),
    )
