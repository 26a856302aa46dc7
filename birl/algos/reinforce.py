"""REINFORCE, for discrete and continuous actions."""

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
    When,
    config,
    field,
    weighted_mean,
)
from birl.algos.ppo import PPOConfig
from birl.losses import lambda_returns
from birl.models import DefaultEncoderFactory, DistributionFactory, EncoderFactory, NormalFactory, PolicyAndValue
from birl.optimizers import AdamFactory, OptimizerFactory


@config
class REINFORCEConfig(AlgorithmConfig):
    """REINFORCE (Williams 1992, doi:10.1007/BF00992696, eq. 11 and section 5), on whole episodes.

    Once ``n_episodes`` episodes have ended, one gradient step uses all of their steps, each with the return of the rest
    of its episode. With several environments, running episodes are used after they have ended, although they started
    with the policy before the update. A truncated episode is treated as if it had terminated, because the rewards that
    would have followed are unknown; with ``baseline`` the value of its last observation is added.

    With ``baseline`` a value function is learned as well and subtracted from returns (Sutton and Barto 2018,
    section 13.4); its loss is logged as ``value_loss``.

    Scale rewards that are far from 1, for example with ``reward_scaler=MultiplyRewardScaler(0.01)``. Updates have
    different sizes, and ``compile_graph=True`` would compile each size; ``"auto"`` does not compile.

    Logs ``loss``, ``policy_loss`` and ``entropy``.

    Differs from the paper: the sums over the steps of episodes are averaged over episodes, and the gradient is clipped
        to a norm of 1.
    """

    batch_size: int = field(256, "Not used: an update learns from whole episodes.", low=1)
    gamma: float = 1.0
    learning_rate: float = field(1e-3, like=NetworkConfig)
    optim_factory: OptimizerFactory = field(lambda: AdamFactory(clip_grad_norm=1.0), like=NetworkConfig)
    actor_encoder_factory: EncoderFactory = field(DefaultEncoderFactory, like=PolicyConfig)
    value_encoder_factory: EncoderFactory | None = field(DefaultEncoderFactory, like=PPOConfig)
    distribution_factory: DistributionFactory = field(
        lambda: NormalFactory(std="fixed", initial_std=0.3), like=PPOConfig
    )
    n_episodes: int = field(10, "Number of episodes that end between updates.", low=1)
    baseline: bool = field(False, "Whether a learned state value is subtracted from returns.")
    value_coefficient: float = field(0.5, like=PPOConfig)
    entropy_coefficient: float = field(0.0, like=PPOConfig)


class REINFORCENets(PolicyAndValue):
    """The policy and, with a baseline, the state-value function."""

    def __init__(self, spec: Spec, cfg: REINFORCEConfig) -> None:
        super().__init__(spec, cfg)
        if not cfg.baseline:
            del self.value


def prepare(nets: REINFORCENets, batch: Batch, ended: Tensor, cfg: REINFORCEConfig) -> Batch:
    """Compute the returns of the rest of each episode ``[T, B]``, and the mean length of an episode."""
    with torch.no_grad():
        value = nets.values(batch.next_inputs) if cfg.baseline else torch.zeros_like(batch.reward)
        returns = lambda_returns(batch.reward, value, batch.discount, ended)
    steps = batch.weight.sum() / (ended * batch.weight).sum().clamp(min=1)
    return replace(batch, extra={**batch.extra, "return": returns, "steps": steps.expand_as(returns)})


def loss(nets: REINFORCENets, batch: Batch, cfg: REINFORCEConfig) -> Loss:
    """``-(1 / episodes) sum_t (log pi(a_t|s_t) (G_t - b_t) + c_e H)``: eq. 11 with ``b_t = 0``.

    With a baseline ``b_t = V(s_t)``, and the mean of ``c_v (G_t - V(s_t))^2`` over steps is added.
    """
    weight, steps, advantage = batch.weight, batch.extra["steps"], batch.extra["return"]
    metrics = {}
    if cfg.baseline:
        policy, value = nets.both(batch.inputs)
        metrics["value_loss"] = weighted_mean((value - batch.extra["return"]).square(), weight)
        advantage = advantage - value.detach()
    else:
        policy = nets.actor(batch.inputs)
    policy_loss = -weighted_mean(steps * policy.log_prob(batch.action) * advantage, weight)
    entropy = policy.entropy()
    total = policy_loss - cfg.entropy_coefficient * weighted_mean(steps * entropy, weight)
    if cfg.baseline:
        total = total + cfg.value_coefficient * metrics["value_loss"]
    return Loss(total, {"policy_loss": policy_loss, "entropy": weighted_mean(entropy, weight), **metrics})


@final
class REINFORCE(Algorithm[REINFORCEConfig, REINFORCENets]):
    """See `REINFORCEConfig`."""

    actions = ActionSpace.ANY
    learns_from = Rollouts(prepare, n_passes="")
    acts = StochasticActor(bounded=False, clipped=True)  # recurrent baselines start with an episode
    steps = (
        Gradient("policy", loss, optimizer="", metric="loss", of=("actor",), when=When(given=("baseline", False))),
        Gradient(
            "policy", loss, optimizer="", metric="loss", of=("actor", "value"), when=When(given=("baseline", True))
        ),
    )
