"""Advantage actor-critic, for discrete and continuous actions."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    AlgorithmConfig,
    Batch,
    Gradient,
    Loss,
    NetworkConfig,
    PolicyConfig,
    Rollouts,
    Spec,
    StochasticActor,
    config,
    field,
    weighted_mean,
)
from birl.algos.ppo import PPOConfig, tanh_encoder
from birl.losses import generalized_advantage, rollout_metrics, shares, standardized
from birl.models import DistributionFactory, EncoderFactory, NormalFactory, PolicyAndValue
from birl.optimizers import OptimizerFactory, RMSpropFactory


def _optimizer() -> OptimizerFactory:
    return RMSpropFactory(alpha=0.99, eps=1e-5, centered=False, clip_grad_norm=0.5)


@config
class A2CConfig(AlgorithmConfig):
    """Advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, algorithm S3), synchronous over all environments.

    The policy and the value function take one gradient step after every ``rollout_length`` steps of all environments.
    Actions, initial weights and the effect of ``value_encoder_factory=None`` are as in PPO. Recurrent networks learn
    through the whole rollout.

    Logs ``loss``, ``policy_loss``, ``value_loss``, ``entropy`` and ``explained_variance``.

    Differs from the paper: gradients are means over all steps, not sums over the steps of one environment, and are
    clipped to a norm of 0.5; the learning rate is constant; RMSprop's epsilon is outside the square root, which learns
    better with such gradients (CartPole, one environment, 40,960 steps: 197, 455, 500 and 500; inside it 11, 51 and
    14); with ``gae_lambda`` below 1, advantages are estimated with GAE.

    Differs from Stable-Baselines3: there is an entropy bonus by default.
    """

    batch_size: int = field(256, "Not used: an update learns from a whole rollout.", low=1)
    learning_rate: float = field(7e-4, like=NetworkConfig)
    optim_factory: OptimizerFactory = field(_optimizer, like=NetworkConfig)
    actor_encoder_factory: EncoderFactory = field(tanh_encoder, like=PolicyConfig)
    value_encoder_factory: EncoderFactory | None = field(tanh_encoder, like=PPOConfig)
    distribution_factory: DistributionFactory = field(NormalFactory, like=PPOConfig)
    rollout_length: int = field(5, like=PPOConfig)
    gae_lambda: float = field(1.0, like=PPOConfig)
    value_coefficient: float = field(0.5, like=PPOConfig)
    entropy_coefficient: float = field(0.01, like=PPOConfig)
    normalize_advantage: bool = field(False, "Whether advantages are standardised in each rollout.")


class A2CNets(PolicyAndValue):
    """The policy and the state-value function."""

    def __init__(self, spec: Spec, cfg: A2CConfig) -> None:
        super().__init__(spec, cfg)
        self.make_orthogonal()


def prepare(nets: A2CNets, batch: Batch, ended: Tensor, cfg: A2CConfig) -> Batch:
    """Compute the advantages and returns of a rollout ``[T, B]``."""
    with torch.no_grad():
        value, next_value = nets.values(batch.inputs), nets.values(batch.next_inputs)
        advantage = generalized_advantage(batch.reward, value, next_value, batch.discount, ended, cfg.gae_lambda)
    return replace(batch, extra={**batch.extra, "advantage": advantage, "return": advantage + value})


def loss(nets: A2CNets, batch: Batch, cfg: A2CConfig) -> Loss:
    """``-log pi(a|s) (R - V) + c_v (R - V(s))^2 - c_e H``: algorithm S3, with the entropy bonus of section 4."""
    (policy, value), weight, advantage = nets.both(batch.inputs), batch.weight, batch.extra["advantage"]
    if cfg.normalize_advantage:
        advantage = standardized(advantage, shares(weight))
    policy_loss = -weighted_mean(policy.log_prob(batch.action) * advantage, weight)
    value_loss = weighted_mean((value - batch.extra["return"]).square(), weight)
    entropy = weighted_mean(policy.entropy(), weight)
    total = policy_loss + cfg.value_coefficient * value_loss - cfg.entropy_coefficient * entropy
    return Loss(total, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy})


@final
class A2C(Algorithm[A2CConfig, A2CNets]):
    """See `A2CConfig`."""

    actions = ActionSpace.ANY
    learns_from = Rollouts(prepare, n_passes="", metrics=rollout_metrics)
    acts = StochasticActor(stateful_networks=("value",), bounded=False, clipped=True)
    steps = (Gradient("policy", loss, of=("actor", "value"), optimizer="", metric="loss"),)
