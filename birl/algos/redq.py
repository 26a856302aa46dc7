"""Randomised ensembled double Q-learning and DroQ: many updates for each environment step."""

from __future__ import annotations

from typing import final

import torch

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    Loss,
    PolicyConfig,
    Polyak,
    SharedFields,
    StochasticActor,
    Transitions,
    config,
    field,
    q_value,
)
from birl.algos.sac import SACConfig, SACNets
from birl.algos.td3 import DELAYED
from birl.algos.tqc import actor_loss
from birl.errors import ConfigError
from birl.losses import td_loss, temperature_loss
from birl.models import DroQEncoderFactory, EncoderFactory


@config
class REDQConfig(SACConfig):
    """Randomised ensembled double Q-learning (Chen et al. 2021, arXiv:2101.05982).

    This is SAC with many critics. Each update draws a few of them, and the target is their lowest value; the policy
    maximises the mean of all critics. This allows many updates per step: ``fit_online`` makes 20 unless ``n_updates``
    is given. The policy and the temperature are updated in the last of them, so change ``update_actor_interval``
    together with ``n_updates``.

    Logs ``critic_loss``, ``q_value``, ``actor_loss``, ``temp_loss`` and ``temp`` (the temperature).
    """

    n_critics: int = 10
    n_target_critics: int = field(
        2, "Number of critics that each update draws; targets take the lowest of them.", low=1
    )
    update_actor_interval: int = field(20, like=SharedFields)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_target_critics > self.n_critics:
            raise ConfigError(
                f"{type(self).__name__}.n_target_critics is {self.n_target_critics}; it must be at most n_critics, "
                f"which is {self.n_critics}"
            )


@config
class DroQConfig(REDQConfig):
    """DroQ (Hiraoka et al. 2021, arXiv:2110.02034): REDQ with two critics, which dropout makes a random ensemble.

    Layer norm keeps them stable. Dropout is also active in targets and in the policy's loss; it is off only while
    acting. There are 20 updates for each step, as in REDQ.

    Logs ``critic_loss``, ``q_value``, ``actor_loss``, ``temp_loss`` and ``temp`` (the temperature).
    """

    n_critics: int = 2
    critic_encoder_factory: EncoderFactory = field(DroQEncoderFactory, like=PolicyConfig)


def critic_loss(nets: SACNets, batch: Batch, cfg: REDQConfig) -> Loss:
    """Algorithm 1: ``y = r + discount * (min_(j in M) Q'_j(s', a') - alpha * log pi(a'|s'))``; ``M`` is drawn once."""
    with torch.no_grad():
        action, log_prob = nets.actor(batch.next_inputs).sample()
        drawn = torch.rand(cfg.n_critics, device=log_prob.device).argsort()[: cfg.n_target_critics]
        target = nets.critic_target(batch.next_inputs, action).members(drawn).min()
        target = target.backup(batch.reward, batch.discount, bonus=-nets.temperature() * log_prob)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


UPDATES = 20  # for each step in an environment


@final
class REDQ(Algorithm[REDQConfig, SACNets]):
    """See `REDQConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions(n_updates=UPDATES)
    acts = StochasticActor(value=q_value)
    steps = (
        Gradient("critic", critic_loss),
        Polyak("critic", "critic_target"),
        Gradient("actor", actor_loss, when=DELAYED),
        Gradient("temperature", temperature_loss, optimizer="temp", metric="temp_loss", when=DELAYED),
    )


@final
class DroQ(Algorithm[DroQConfig, SACNets]):
    """See `DroQConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions(n_updates=UPDATES)
    acts = StochasticActor(value=q_value)
    steps = REDQ.steps
