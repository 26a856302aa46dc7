"""Munchausen DQN: DQN with the scaled log-policy added to the reward."""

from __future__ import annotations

from typing import final

import torch

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    GreedyCritic,
    Loss,
    NetworkConfig,
    Transitions,
    config,
    field,
)
from birl.algos.dqn import TARGET, DQNConfig, DQNNets
from birl.losses import td_loss
from birl.optimizers import AdamFactory, OptimizerFactory


@config
class MunchausenDQNConfig(DQNConfig):
    """Munchausen DQN (Vieillard et al. 2020, arXiv:2007.14430): the log-policy is added to the reward.

    The policy is ``softmax(Q' / temperature)`` of the target network. It replaces the maximum in targets, and its
    scaled and clipped logarithm is a bonus on the data's action. The algorithm acts greedily; exploration comes from an
    explorer (epsilon-greedy in the paper). With ``IQNQFunctionFactory`` this is Munchausen IQN, the ``MunchausenIQN``
    of NNablaRL; the quantile and categorical heads work as well. In ``MultiDiscrete`` action spaces critics branch as
    in `DQN`, and the policy is over all combinations of options.

    The bonus is an implicit Kullback-Leibler penalty: the policy changes little from one target to the next. Short runs
    need a small ``target_update_interval``, or the policy stays close to its random initialisation.

    Logs ``loss`` and ``q_value``.

    Differs from the paper: an ensemble of critics is possible. Differs from the authors' code: Munchausen IQN acts
    greedily, as in NNablaRL; the authors' code samples actions and uses the policy's probabilities as logits. The
    explorer ``Boltzmann(entropy_temperature)`` samples from the policy itself. ``n_choice_quantiles`` of the head gives
    the policy its own quantile levels.
    """

    learning_rate: float = 5e-5
    optim_factory: OptimizerFactory = field(lambda: AdamFactory(eps=1e-2 / 32), like=NetworkConfig)
    entropy_temperature: float = field(0.03, "Temperature of the policy.", above=0)
    munchausen_scaling_term: float = field(0.9, "Share of the log-policy that is added to the reward.", low=0, high=1)
    clipping_value: float = field(-1.0, "Lowest log-policy, multiplied by the temperature, that is added.", high=0)


def munchausen_loss(nets: DQNNets, batch: Batch, cfg: MunchausenDQNConfig) -> Loss:
    """Huber loss against the target of section 2, ``pi = softmax(Q' / t)``.

    ``y = r + alpha [t log pi(a|s)]_l^0 + discount * pi(s')^T (Q'(s') - t log pi(s'))``.
    """
    temperature = cfg.entropy_temperature
    with torch.no_grad():
        next_returns = nets.critic_target(batch.next_inputs)
        next_policy = next_returns.policy(temperature)
        log_policy = nets.critic_target(batch.inputs).policy(temperature).log_prob(batch.action)
        bonus = cfg.munchausen_scaling_term * (temperature * log_policy).clamp(cfg.clipping_value, 0)
        following = next_returns.mix(next_policy.log_probs.exp()).min()
        target = following.backup(batch.reward + bonus, batch.discount, temperature * next_policy.entropy())
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch, delta=cfg.huber_threshold)


@final
class MunchausenDQN(Algorithm[MunchausenDQNConfig, DQNNets]):
    """See `MunchausenDQNConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Transitions()
    acts = GreedyCritic()
    steps = (Gradient("critic", munchausen_loss, optimizer="", metric="loss"), TARGET)
