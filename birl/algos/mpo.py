"""Maximum a Posteriori Policy Optimisation for continuous actions."""

from __future__ import annotations

import math
from typing import Final, final

import torch
from torch import Tensor

from birl.algorithm import (
    ActionSpace,
    ActorCriticConfig,
    Algorithm,
    Batch,
    Gradient,
    HardCopy,
    Loss,
    PolicyConfig,
    Polyak,
    SharedFields,
    Spec,
    StochasticActor,
    TemperatureConfig,
    Transitions,
    ValueConfig,
    config,
    field,
    q_value,
    rate,
    weighted_mean,
)
from birl.algos.crr import HARD, SOFT, CRRConfig
from birl.losses import shared, td_loss
from birl.models import (
    ActorCriticNets,
    MeanQFunctionFactory,
    NormalFactory,
    QFunctionFactory,
    Scalar,
    policy_of,
)
from birl.models.distributions import Normal
from birl.optimizers import AdamFactory, OptimizerFactory

TARGETS: Final = (
    HardCopy("critic", "critic_target", when=HARD),
    HardCopy("actor", "actor_target", when=HARD),
    Polyak("critic", "critic_target", when=SOFT),
    Polyak("actor", "actor_target", when=SOFT),
)
"""How target networks are updated."""


def clipped() -> OptimizerFactory:
    """Return Adam with clipped gradients."""
    return AdamFactory(clip_grad_norm=40.0)


@config
class MPOConfig(PolicyConfig):
    """Maximum a Posteriori Policy Optimisation (Abdolmaleki et al. 2018, arXiv:1806.06920 and arXiv:1812.02256).

    An update learns the Q-function of a target policy, improves on that policy with weighted samples, and fits the
    policy to them:

    - E-step: actions of the target policy get weights ``softmax(Q / eta)``. The temperature ``eta`` is learned so that
        the weighted actions stay within a divergence of ``epsilon`` from the target policy.
    - M-step: the policy maximises the weighted log-likelihood, with bounds on its divergence from the target policy.
      Mean and standard deviation have bounds of their own, ``epsilon_mean`` and ``epsilon_std``, each with a learned
      multiplier; with ``per_dimension``, each dimension of the actions has its own multipliers.

    Target networks are copies, taken every ``target_update_interval`` updates. Between copies the policy can move away
    from the target policy up to the bounds. With ``target_update_type="soft"`` target networks are soft-updated
    instead. Critics read actions clipped to their range. A second objective, ``-|a - clip(a)|``, keeps the policy in
    this range; it has its own bound and temperature (Abdolmaleki et al. 2020, arXiv:2005.07513).

    The defaults are those of Acme (Hoffman et al. 2020, arXiv:2006.00979), chosen for long runs. For short runs raise
    the learning rates, ``epsilon_mean`` and ``epsilon_std``, for example to 1e-3, 0.05 and 1e-3 (HalfCheetah after
    204,800 steps: 4,519, mean of three seeds). Networks matter as well: use layer normalisation and tanh after the
        first layer, and a wide critic (Furuta et al. 2021, arXiv:2103.17258).

    Logs ``critic_loss``, ``q_value``, ``actor_loss``, ``dual_loss``, ``temp`` (``eta``), ``kl_mean`` and ``kl_std``.

    Differs from the paper: targets are 1-step or n-step returns, not Retrace; all multipliers are learned by gradient
        steps, together with the temperature.

    Differs from Acme: the policy is improved at the transitions' states, not at their next states, some of which are
        terminal; the standard deviation is an exponential, not a softplus.
    """

    actor_learning_rate: float = 1e-4
    critic_learning_rate: float = 1e-4
    actor_optim_factory: OptimizerFactory = field(clipped)
    critic_optim_factory: OptimizerFactory = field(clipped)
    dual_learning_rate: float = rate(1e-2, "the temperatures and multipliers")
    dual_optim_factory: OptimizerFactory = field(AdamFactory, "Optimiser of the temperatures and multipliers.")
    q_func_factory: QFunctionFactory = field(MeanQFunctionFactory, like=ValueConfig)
    n_critics: int = field(1, like=ValueConfig)
    distribution_factory: NormalFactory = field(
        lambda: NormalFactory(std="state", initial_std=0.7),
        "Gaussian of the policy, and where its standard deviation comes from.",
    )
    n_action_samples: int = field(
        20, "Number of actions of the target policy in a state: in targets, and to improve on.", low=1
    )
    target_update_type: str = field("hard", like=CRRConfig)
    target_update_interval: int = field(100, like=SharedFields)
    tau: float = field(0.005, like=ActorCriticConfig)
    epsilon: float = field(
        0.1, "Bound of the divergence of the improved action probabilities from the target policy, in nats.", above=0
    )
    epsilon_mean: float = field(
        1e-3, "Bound of the divergence from the target policy that a change of the mean makes, in nats.", above=0
    )
    epsilon_std: float = field(
        1e-6,
        "Bound of the divergence from the target policy that a change of the standard deviation makes, in nats.",
        above=0,
    )
    per_dimension: bool = field(
        True, "Whether the bounds of mean and standard deviation are for each dimension, or for their sum."
    )
    epsilon_penalty: float | None = field(
        1e-3, "The same as `epsilon` for the penalty on actions out of their range; `None` for no penalty.", above=0
    )
    initial_temperature: float = field(1.0, like=TemperatureConfig)
    initial_alpha_mean: float = field(1.0, "Multiplier of the mean's divergence at the start.", above=0)
    initial_alpha_std: float = field(10.0, "Multiplier of the standard deviation's divergence at the start.", above=0)


class MPONets(ActorCriticNets):
    """Networks of MPO.

    Attributes:
        temperature: temperatures of the objectives, ``[K]``: one for the values, and one for the penalty if it is used.
        alpha_mean, alpha_std: multipliers ``[A]``, or ``[1]`` for all dimensions together.
    """

    def __init__(self, spec: Spec, cfg: MPOConfig) -> None:
        super().__init__(spec, cfg, policy_of(spec, cfg.actor_encoder_factory, cfg.distribution_factory))
        n_bounds = spec.actions.size if cfg.per_dimension else 1
        self.temperature = Scalar(cfg.initial_temperature, "softplus", 1 if cfg.epsilon_penalty is None else 2)
        self.alpha_mean = Scalar(cfg.initial_alpha_mean, "softplus", n_bounds)
        self.alpha_std = Scalar(cfg.initial_alpha_std, "softplus", n_bounds)


def critic_loss(nets: MPONets, batch: Batch, cfg: MPOConfig) -> Loss:
    """``y = r + discount * E_a'[min_j Q'_j(s', a')]``: the mean over ``n_action_samples`` of the target policy.

    For distributional critics it is the mixture of the samples' returns.
    """
    with torch.no_grad():
        action = nets.actor_target(batch.next_inputs).sample(cfg.n_action_samples)[0].clamp(-1, 1)
        target = nets.critic_target(batch.next_inputs, action).min().pooled().backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


@torch.no_grad()
def e_step(nets: MPONets, batch: Batch, cfg: MPOConfig) -> tuple[Normal, Tensor, Tensor]:
    """Return the target policy, samples ``[n, ..., A]`` of it, and their objectives ``[K, n, ...]``."""
    target: Normal = nets.actor_target(batch.inputs)
    action = target.sample(cfg.n_action_samples)[0]
    inside = action.clamp(-1, 1)
    objectives = [nets.critic_target(batch.inputs, inside).mean().mean(0)]
    if cfg.epsilon_penalty is not None:
        objectives.append(-(action - inside).norm(dim=-1))
    return target, action, torch.stack(objectives)


def divergences(target: Normal, policy: Normal, batch: Batch, cfg: MPOConfig) -> Tensor:
    """Return ``C_mean`` and ``C_std`` ``[2, A or 1]``: divergences if only the mean or only the deviation changes."""
    found = torch.stack(target.decoupled_kl(policy))
    if not cfg.per_dimension:
        found = found.sum(-1, keepdim=True)
    return weighted_mean(found.movedim(-1, 1), batch.weight)


def actor_loss(nets: MPONets, batch: Batch, cfg: MPOConfig) -> Loss:
    """``-E_s[sum_j w_j (log N(a_j; mu, sigma') + log N(a_j; mu', sigma))] + alpha_mean C_mean + alpha_std C_std``.

    Here ``w = softmax_j(Q'(s, a_j) / eta)``, plus the same term for the penalty (1812.02256 sections 4.1 to 4.2.1); a
    prime marks targets.
    """
    policy, (target, action, objectives) = nets.actor(batch.inputs), e_step(nets, batch, cfg)
    temperature = nets.temperature().detach()
    weight = (objectives / _align(temperature, objectives)).softmax(1).sum(0)
    by_mean, by_std = Normal(policy.mean, target.log_std), Normal(target.mean, policy.log_std)
    log_prob = by_mean.log_prob(action) + by_std.log_prob(action)
    kl = divergences(target, policy, batch, cfg)
    alpha = torch.stack((nets.alpha_mean(), nets.alpha_std())).detach()
    value = (alpha * kl).sum() - weighted_mean((weight * log_prob).sum(0), batch.weight)
    metrics = {"kl_mean": kl[0].mean(), "kl_std": kl[1].mean()}
    return Loss(value, metrics, {"objectives": objectives, "divergences": kl})


def dual_loss(nets: MPONets, batch: Batch, cfg: MPOConfig) -> Loss:
    """``eta epsilon + eta E_s[log mean_j exp(Q'(s, a_j) / eta)]``, and ``alpha (epsilon - C)`` for each bound.

    The first term occurs once for each objective (section 4.1). ``alpha`` grows while the divergence ``C`` is above its
    bound (section 4.2.1).
    """
    objectives = shared(batch, "objectives", lambda: e_step(nets, batch, cfg)[2])
    kl = shared(batch, "divergences", lambda: _current_divergences(nets, batch, cfg))
    temperature = nets.temperature()
    excess = (objectives / _align(temperature, objectives)).logsumexp(1) - math.log(cfg.n_action_samples)
    value = (temperature * weighted_mean(excess, batch.weight)).sum()
    bounds = (cfg.epsilon,) if cfg.epsilon_penalty is None else (cfg.epsilon, cfg.epsilon_penalty)
    for eta, epsilon in zip(temperature.unbind(), bounds, strict=True):
        value = value + eta * epsilon
    value = value + (nets.alpha_mean() * (cfg.epsilon_mean - kl[0])).sum()
    value = value + (nets.alpha_std() * (cfg.epsilon_std - kl[1])).sum()
    return Loss(value, {"temp": temperature[0]})


def _current_divergences(nets: MPONets, batch: Batch, cfg: MPOConfig) -> Tensor:
    return divergences(nets.actor_target(batch.inputs), nets.actor(batch.inputs), batch, cfg)


def _align(temperature: Tensor, objectives: Tensor) -> Tensor:
    """Add dimensions to temperatures ``[K]`` to match objectives ``[K, n, ...]``."""
    return temperature.view(-1, *[1] * (objectives.dim() - 1))


@final
class MPO(Algorithm[MPOConfig, MPONets]):
    """See `MPOConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = StochasticActor(value=q_value, clipped=True)
    steps = (
        Gradient("critic", critic_loss),
        Gradient("actor", actor_loss),
        Gradient("dual", dual_loss, of=("temperature", "alpha_mean", "alpha_std")),
        *TARGETS,
    )
