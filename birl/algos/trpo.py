"""Trust Region Policy Optimization, with generalised advantages and as it was first published."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    AlgorithmConfig,
    Batch,
    Gradient,
    Loss,
    PolicyConfig,
    Rollouts,
    SharedFields,
    Spec,
    StochasticActor,
    TrustRegion,
    config,
    field,
    rate,
    weighted_mean,
)
from birl.algos.a2c import A2CConfig
from birl.algos.ppo import PPOConfig, tanh_encoder
from birl.losses import finished, generalized_advantage, lambda_returns, old_policy, shares, standardized
from birl.models import (
    DistributionFactory,
    EncoderFactory,
    NormalFactory,
    PolicyAndValue,
    policy_of,
)
from birl.optimizers import AdamFactory, OptimizerFactory


@config
class TRPOConfig(AlgorithmConfig):
    """Trust Region Policy Optimization (Schulman et al. 2015, arXiv:1502.05477) with generalised advantages.

    Each rollout gives one step of the policy along the natural gradient of the surrogate (eq. 14). A line search takes
    the longest step that improves the surrogate and keeps the mean divergence from the old policy at or below
    ``max_kl``; if it finds none, the policy is unchanged. Then the value function is fitted to the returns of the
    rollout for ``n_epochs`` epochs, in minibatches of ``batch_size`` steps (recurrent networks: in sequences of
    ``sequence_length`` steps). Advantages use the value function before this update (Schulman et al. 2016,
    arXiv:1506.02438), and are standardised over the rollout. The settings, except for the networks, are those of
    Henderson et al. 2018 (arXiv:1709.06560). Training several seeds at once is not supported, and ``compile_graph``
    compiles only the value function's update.

    Logs ``policy_loss`` after the step, ``kl``, ``step_share``, ``failed_search``, ``entropy`` before the step, and
    ``value_loss``. Training stops after ten failed searches in a row.

    Differs from the paper: advantages replace sums of rewards, and the Fisher products use all steps, not a subsample
        (appendix C.1).

    Differs from sb3-contrib, which bounds ``KL(new || old)`` and, for continuous actions, averages it over dimensions
    instead of summing: for ``n`` dimensions give ``n`` times its ``target_kl`` and its damping.
    """

    batch_size: int = 64
    gamma: float = 0.995
    actor_encoder_factory: EncoderFactory = field(tanh_encoder, like=PolicyConfig)
    value_encoder_factory: EncoderFactory = field(tanh_encoder, like=SharedFields)
    value_learning_rate: float = rate(1e-3, "the state-value function")
    value_optim_factory: OptimizerFactory = field(AdamFactory, "Optimiser of the state-value function.")
    distribution_factory: DistributionFactory = field(NormalFactory, like=PPOConfig)
    rollout_length: int = field(5000, like=PPOConfig)
    n_epochs: int = field(5, "Number of passes over a rollout, in which the state-value function learns.", low=1)
    gae_lambda: float = field(0.97, like=PPOConfig)
    max_kl: float = field(
        0.01, "Largest mean divergence, in nats, of the policy from the old one. 0 leaves it unchanged.", low=0
    )
    conjugate_gradient_steps: int = field(20, "Number of steps of conjugate gradients.", low=1)
    conjugate_gradient_damping: float = field(0.1, "Added to the diagonal of the Fisher information.", low=0)
    line_search_steps: int = field(10, "Number of lengths that the line search tries.", low=1)
    line_search_shrink: float = field(0.5, "Share of each length in the one before.", above=0, below=1)
    entropy_coefficient: float = field(0.0, "Weight of the entropy, which is a part of the surrogate.", low=0)
    normalize_advantage: bool = field(True, "Whether advantages are standardised over the rollout.")


class TRPONets(PolicyAndValue):
    """The policy and the state-value function, each with an encoder of its own."""

    def __init__(self, spec: Spec, cfg: TRPOConfig) -> None:
        super().__init__(spec, cfg)
        self.make_orthogonal()


def with_old_policy(nets: TRPONets | ICML2015TRPONets, batch: Batch) -> Batch:
    """Add the policy that collected a rollout, and its actions' log-probabilities, as columns."""
    with torch.no_grad():
        policy = nets.actor(batch.inputs)
        old = {"policy": policy.parameters(), "log_prob": policy.log_prob(batch.action)}
    return replace(batch, extra={**batch.extra, **old})


def prepare(nets: TRPONets, batch: Batch, ended: Tensor, cfg: TRPOConfig) -> Batch:
    """Compute the advantages, returns and old policy of a rollout ``[T, B]``."""
    with torch.no_grad():
        value, next_value = nets.value(batch.inputs), nets.value(batch.next_inputs)
        advantage = generalized_advantage(batch.reward, value, next_value, batch.discount, ended, cfg.gae_lambda)
    returns = advantage + value
    if cfg.normalize_advantage:
        advantage = standardized(advantage, shares(batch.weight))
    batch = replace(batch, extra={**batch.extra, "advantage": advantage, "return": returns})
    return with_old_policy(nets, batch)


def policy_loss(nets: TRPONets, batch: Batch, cfg: TRPOConfig) -> Loss:
    """Eq. 14, negative: ``E[pi(a|s) / pi_old(a|s) A(s, a)]``, under ``E[KL(pi_old || pi)] <= max_kl``."""
    policy, weight = nets.actor(batch.inputs), batch.weight
    ratio = (policy.log_prob(batch.action) - batch.extra["log_prob"]).exp()
    divergence = old_policy(policy, batch).kl(policy)
    surrogate = weighted_mean(ratio * batch.extra["advantage"], weight)
    with torch.set_grad_enabled(torch.is_grad_enabled() and cfg.entropy_coefficient != 0):
        entropy = weighted_mean(policy.entropy(), weight)
    if cfg.entropy_coefficient != 0:
        surrogate = surrogate + cfg.entropy_coefficient * entropy
    return Loss(-surrogate, {"kl": weighted_mean(divergence, weight), "entropy": entropy})


def value_loss(nets: TRPONets, batch: Batch, cfg: TRPOConfig) -> Loss:
    """Squared error of the values against the returns of the rollout (arXiv:1506.02438, section 5)."""
    return Loss(weighted_mean((nets.value(batch.inputs) - batch.extra["return"]).square(), batch.weight))


@final
class TRPO(Algorithm[TRPOConfig, TRPONets]):
    """See `TRPOConfig`."""

    actions = ActionSpace.ANY
    learns_from = Rollouts(prepare, whole=("policy",))
    acts = StochasticActor(stateful_networks=("value",), bounded=False, clipped=True)
    steps = (TrustRegion("policy", policy_loss, of=("actor",)), Gradient("value", value_loss))


@config
class ICML2015TRPOConfig(AlgorithmConfig):
    """Trust Region Policy Optimization as it was first published (Schulman et al. 2015, arXiv:1502.05477).

    The step is that of ``TRPO``. Advantages are discounted sums of the rewards to the end of the episode, which may be
    a time limit. There is no value function, so rollouts are long. Steps whose episodes continue after the rollout are
    left out, because their returns are unknown; a rollout in which no episode ends is not used.

    Logs ``policy_loss`` after the step, ``kl``, ``step_share``, ``failed_search`` and ``entropy`` before it. Training
    stops after ten failed searches in a row.

    Differs from the paper: the standard deviation of continuous actions depends on the state, as in NNablaRL; see
    ``TRPO`` for the Fisher products.
    """

    batch_size: int = field(256, like=A2CConfig)
    actor_encoder_factory: EncoderFactory = field(tanh_encoder, like=PolicyConfig)
    distribution_factory: DistributionFactory = field(lambda: NormalFactory(std="state"), like=PPOConfig)
    rollout_length: int = field(100_000, like=PPOConfig)
    max_kl: float = field(0.01, like=TRPOConfig)
    conjugate_gradient_steps: int = field(10, like=TRPOConfig)
    conjugate_gradient_damping: float = field(0.001, like=TRPOConfig)
    line_search_steps: int = field(10, like=TRPOConfig)
    line_search_shrink: float = field(0.5, like=TRPOConfig)
    entropy_coefficient: float = field(0.0, like=TRPOConfig)


class ICML2015TRPONets(nn.Module):
    """The policy."""

    def __init__(self, spec: Spec, cfg: ICML2015TRPOConfig) -> None:
        super().__init__()
        self.actor = policy_of(spec, cfg.actor_encoder_factory, cfg.distribution_factory)
        self.actor.make_orthogonal(0.01)


def prepare_returns(nets: ICML2015TRPONets, batch: Batch, ended: Tensor, cfg: ICML2015TRPOConfig) -> Batch:
    """Compute returns to the end of the episode, as advantages, and the old policy of a rollout ``[T, B]``."""
    weight = batch.weight * finished(ended, batch.weight)
    returns = lambda_returns(batch.reward, torch.zeros_like(batch.reward), batch.discount, ended)
    batch = replace(batch, weight=weight, extra={**batch.extra, "advantage": returns})
    return with_old_policy(nets, batch)


@final
class ICML2015TRPO(Algorithm[ICML2015TRPOConfig, ICML2015TRPONets]):
    """See `ICML2015TRPOConfig`."""

    actions = ActionSpace.ANY
    learns_from = Rollouts(prepare_returns, n_passes="", whole=("policy",), finished=True)
    acts = StochasticActor(bounded=False, clipped=True)
    steps = (TrustRegion("policy", policy_loss, of=("actor",)),)
