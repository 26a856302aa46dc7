"""On-policy Maximum a Posteriori Policy Optimisation, for discrete and continuous actions."""

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
    TemperatureConfig,
    config,
    field,
    weighted_mean,
)
from birl.algos.discrete_mpo import DiscreteMPOConfig
from birl.algos.mpo import MPOConfig
from birl.algos.ppo import PPOConfig, tanh_encoder
from birl.losses import generalized_advantage, old_policy, shared
from birl.models import EncoderFactory, NormalFactory, PolicyAndValue, Scalar
from birl.models.distributions import Distribution, Normal
from birl.optimizers import AdamFactory, OptimizerFactory


@config
class VMPOConfig(AlgorithmConfig):
    """On-policy Maximum a Posteriori Policy Optimisation (Song et al. 2019, arXiv:1909.12238).

    As `MPO`, with a state-value function instead of a Q-function, and the steps of a rollout instead of samples.
    Rollouts and epochs are as in `PPO`. In each minibatch the half of the steps with the largest advantages gets
    weights ``softmax(A / eta)``. The policy maximises their weighted log-likelihood, with a bound on the divergence
    from the policy that collected the rollout. The temperature ``eta`` and the multipliers of the bounds are learned.

    A Gaussian policy has two bounds, ``epsilon_mean`` and ``epsilon_std``, each for all dimensions together; any other
    has ``epsilon_policy``.

    Logs ``loss``, ``actor_loss``, ``value_loss``, ``dual_loss``, ``temp`` (``eta``) and ``kl``.

    Differs from the paper: each rollout is used for ``n_epochs`` epochs, whereas the paper copies the target network
        after a number of updates with new steps; advantages use GAE, where ``gae_lambda=1`` gives the paper's n-step
        returns; temperature and multipliers have their own optimiser; there is no PopArt.
    """

    batch_size: int = 256
    learning_rate: float = field(3e-4, like=NetworkConfig)
    optim_factory: OptimizerFactory = field(lambda: AdamFactory(clip_grad_norm=0.5), like=NetworkConfig)
    actor_encoder_factory: EncoderFactory = field(tanh_encoder, like=PolicyConfig)
    value_encoder_factory: EncoderFactory | None = field(tanh_encoder, like=PPOConfig)
    dual_learning_rate: float = field(1e-2, like=MPOConfig)
    dual_optim_factory: OptimizerFactory = field(AdamFactory, like=MPOConfig)
    distribution_factory: NormalFactory = field(lambda: NormalFactory(std="state"), like=MPOConfig)
    rollout_length: int = field(2048, like=PPOConfig)
    n_epochs: int = field(10, like=PPOConfig)
    gae_lambda: float = field(0.95, like=PPOConfig)
    value_coefficient: float = field(1.0, like=PPOConfig)
    epsilon: float = field(
        0.01, "Bound of the divergence of the weighted steps from the better half of all, in nats.", above=0
    )
    epsilon_policy: float = field(0.01, like=DiscreteMPOConfig)
    epsilon_mean: float = field(7.5e-3, like=MPOConfig)
    epsilon_std: float = field(1e-5, like=MPOConfig)
    initial_temperature: float = field(1.0, like=TemperatureConfig)
    initial_alpha: float = field(1.0, like=DiscreteMPOConfig)


class VMPONets(PolicyAndValue):
    """Networks of V-MPO.

    Attributes:
        bounds: bounds on the policy's divergences: of mean and standard deviation, or of the whole distribution.
        alpha: a multiplier for each bound.
    """

    def __init__(self, spec: Spec, cfg: VMPOConfig) -> None:
        super().__init__(spec, cfg)
        self.make_orthogonal()
        gaussian = spec.actions.kind is ActionSpace.CONTINUOUS
        self.bounds = (cfg.epsilon_mean, cfg.epsilon_std) if gaussian else (cfg.epsilon_policy,)
        self.temperature = Scalar(cfg.initial_temperature, "softplus")
        self.alpha = Scalar(cfg.initial_alpha, "softplus", len(self.bounds))


def prepare(nets: VMPONets, batch: Batch, ended: Tensor, cfg: VMPOConfig) -> Batch:
    """Compute a rollout's advantages, returns and policy ``[T, B]``, once for all epochs."""
    with torch.no_grad():
        (policy, value), next_value = nets.both(batch.inputs), nets.values(batch.next_inputs)
        advantage = generalized_advantage(batch.reward, value, next_value, batch.discount, ended, cfg.gae_lambda)
    found = {"advantage": advantage, "return": advantage + value, "policy": policy.parameters()}
    return replace(batch, extra={**batch.extra, **found})


def better_half(batch: Batch) -> Tensor:
    """Return whether each step is among the half of real steps with the largest advantages: bool, flat."""
    real = batch.weight.flatten() > 0
    advantage = batch.extra["advantage"].flatten().masked_fill(~real, -torch.inf)
    rank = advantage.argsort(descending=True).argsort()
    return rank < (real.sum() + 1) // 2


def scaled_advantages(batch: Batch, temperature: Tensor) -> Tensor:
    """Return ``A / eta`` for the better half of the steps, minus infinity for the others, flattened."""
    advantage: Tensor = batch.extra["advantage"].flatten() / temperature
    return advantage.masked_fill(~better_half(batch), -torch.inf)


def divergences(policy: Distribution, batch: Batch) -> Tensor:
    """Compute divergences ``[K]`` from the policy that collected the rollout, in the order of `VMPONets.bounds`."""
    if isinstance(policy, Normal):
        parts = [each.sum(-1) for each in old_policy(policy, batch).decoupled_kl(policy)]
    else:
        parts = [old_policy(policy, batch).kl(policy)]
    return weighted_mean(torch.stack(parts), batch.weight)


def loss(nets: VMPONets, batch: Batch, cfg: VMPOConfig) -> Loss:
    """``-sum psi log pi(a|s)`` (eq. 3), ``alpha`` times the divergences (eq. 5), and half the value's squared error.

    ``psi`` is ``softmax(A / eta)`` over the better half of the steps.
    """
    policy, value = nets.both(batch.inputs)
    with torch.no_grad():
        psi = scaled_advantages(batch, nets.temperature()).softmax(0)
    actor_loss = -torch.dot(psi, policy.log_prob(batch.action).flatten())
    kl = divergences(policy, batch)
    error = (value - batch.extra["return"]).square()
    value_loss = 0.5 * weighted_mean(error, batch.weight)
    total = actor_loss + (nets.alpha().detach() * kl).sum() + cfg.value_coefficient * value_loss
    metrics = {"actor_loss": actor_loss, "value_loss": value_loss, "kl": kl.sum()}
    return Loss(total, metrics, {"divergences": kl})


def dual_loss(nets: VMPONets, batch: Batch, cfg: VMPOConfig) -> Loss:
    """``eta epsilon + eta log mean exp(A / eta)`` over the better half (eq. 4), ``alpha (epsilon - KL)`` (eq. 5)."""
    temperature, alpha = nets.temperature(), nets.alpha()
    kl = shared(batch, "divergences", lambda: divergences(nets.actor(batch.inputs), batch))
    mass = scaled_advantages(batch, temperature).logsumexp(0) - better_half(batch).sum().log()
    value = temperature * (cfg.epsilon + mass)
    for each, bound, found in zip(alpha.unbind(), nets.bounds, kl.unbind(), strict=True):
        value = value + each * (bound - found)
    return Loss(value, {"temp": temperature})


@final
class VMPO(Algorithm[VMPOConfig, VMPONets]):
    """See `VMPOConfig`."""

    actions = ActionSpace.ANY
    learns_from = Rollouts(prepare)
    acts = StochasticActor(stateful_networks=("value",), bounded=False, clipped=True)
    steps = (
        Gradient("policy", loss, of=("actor", "value"), optimizer="", metric="loss", splits=False),
        Gradient("dual", dual_loss, of=("temperature", "alpha"), splits=False),
    )
