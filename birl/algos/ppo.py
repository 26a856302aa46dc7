"""Proximal Policy Optimization, for discrete and continuous actions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

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
    Update,
    When,
    config,
    field,
    weighted_mean,
)
from birl.errors import ConfigError
from birl.losses import generalized_advantage, old_policy, rollout_metrics, shares, standardized
from birl.models import (
    DefaultEncoderFactory,
    DistributionFactory,
    EncoderFactory,
    NormalFactory,
    PolicyAndValue,
    Scalar,
    eval_mode,
)
from birl.optimizers import AdamFactory, LRSchedulerFactory, OptimizerFactory, ShareSchedulerFactory


def tanh_encoder() -> EncoderFactory:
    """Return the default encoder with tanh, as most on-policy algorithms use it."""
    return DefaultEncoderFactory(activation="tanh")


def ppo_encoder() -> EncoderFactory:
    """Return the default encoder with two layers of 64 tanh units for vectors (arXiv:1707.06347, section 6.1)."""
    return DefaultEncoderFactory(activation="tanh", hidden_units=[64, 64])


@config
class PPOConfig(AlgorithmConfig):
    """Proximal Policy Optimization with the clipped objective (Schulman et al. 2017, arXiv:1707.06347).

    By default continuous actions come from a Gaussian with a state-independent standard deviation, and are clipped to
    the environment's bounds. A rollout has ``rollout_length`` steps from each environment; the networks learn from it
    for ``n_epochs`` epochs, in minibatches of ``batch_size`` steps (recurrent networks: in sequences of
    ``sequence_length`` steps). Weights are initialised orthogonally (Engstrom et al. 2020, arXiv:2005.12729, section
    3). Vectors are read by two layers of 64 units, as in the paper; with two of 256, PPO learns Pendulum in fewer
    steps, and MiniGrid less reliably.

    With ``value_encoder_factory=None`` the value function is a second head on the policy's encoder, which learns from
    both losses: the usual network for images. With a ``kl_coefficient``, eq. 8's penalty, logged as ``kl_loss``, also
    keeps the policy close to the one that collected the rollout; ``clip_range=1e9`` leaves only this penalty. Its
    weight is constant or, with ``kl_penalty_target``, adapted by the rule of section 4 between 1e-8 and 1e8. Then
    ``kl``, the divergence after all epochs, and ``kl_weight``, the weight for the next rollout, are logged as well.

    Logs ``loss``, ``policy_loss``, ``value_loss``, ``entropy``, ``approximate_kl``, ``clip_fraction`` and
    ``explained_variance``.

    Differs from Stable-Baselines3: there is an entropy bonus by default; the standard deviation of advantages has no
    Bessel correction; with ``value_clip_range`` the loss is the larger of the clipped and the unclipped error, as in
    OpenAI's code, not always the clipped one; ``target_kl`` is compared with the mean over an epoch, at its end, and
    without Stable-Baselines3's factor of 1.5: give 1.5 times the value that you would give to Stable-Baselines3.
    """

    batch_size: int = 64
    learning_rate: float = field(3e-4, like=NetworkConfig)
    optim_factory: OptimizerFactory = field(lambda: AdamFactory(eps=1e-5, clip_grad_norm=0.5), like=NetworkConfig)
    actor_encoder_factory: EncoderFactory = field(ppo_encoder, like=PolicyConfig)
    value_encoder_factory: EncoderFactory | None = field(
        ppo_encoder,
        "Encoder of the state-value function. If `None`, it reads the features of the policy's, which then learns from "
        "both losses.",
    )
    distribution_factory: DistributionFactory = field(
        NormalFactory,
        "Distribution of continuous actions, and source of its standard deviation: a `NormalFactory`, "
        "`SquashedNormalFactory` or `BetaFactory`.",
    )
    rollout_length: int = field(2048, "Number of steps each environment makes between updates.", low=1)
    n_epochs: int = field(10, "Number of passes over a rollout.", low=1)
    gae_lambda: float = field(0.95, "Decay of generalised advantage estimation.", low=0, high=1)
    clip_range: float = field(0.2, "Clip range of the policy's probability ratio.", above=0)
    clip_range_schedule: LRSchedulerFactory | None = field(
        None, "Schedule of the clip range: a factor that depends on the number of updates, read once per rollout."
    )
    value_clip_range: float | None = field(None, "Clip range of the change in value.", above=0)
    value_coefficient: float = field(0.5, "Weight of the value loss.", low=0)
    entropy_coefficient: float = field(0.01, "Weight of the entropy bonus.", low=0)
    target_kl: float | None = field(
        None, "No further pass over a rollout once the mean approximate KL divergence of a pass is above it.", above=0
    )
    normalize_advantage: bool = field(True, "Whether advantages are standardised in each minibatch.")
    dual_clip: float | None = field(
        None, "Where advantages are negative, the objective is at least this many times the advantage.", above=1
    )
    kl_coefficient: float = field(0.0, "Weight of the divergence from the policy of the rollout.", low=0)
    kl_penalty_target: float | None = field(
        None,
        "Target of the divergence. After each rollout the weight, initially `kl_coefficient`, doubles if the "
        "divergence is above 1.5 times the target, and halves if 1.5 times the divergence is below the target.",
        above=0,
    )

    @property
    def adapts_penalty(self) -> bool:
        """Whether the weight of the divergence changes between rollouts."""
        return self.kl_penalty_target is not None

    def __post_init__(self) -> None:
        if self.adapts_penalty and self.kl_coefficient == 0:
            raise ConfigError(
                f"kl_penalty_target is {self.kl_penalty_target} and kl_coefficient is 0, which doubling does not "
                "change: give an initial weight, such as kl_coefficient=1.0"
            )
        if not isinstance(self.clip_range_schedule, ShareSchedulerFactory | None):
            raise ConfigError(
                f"clip_range_schedule is {self.clip_range_schedule!r:.80}, which only schedules learning rates: use a "
                "ShareSchedulerFactory, such as LinearSchedulerFactory(duration)"
            )


class PPONets(PolicyAndValue):
    """The policy and the state-value function."""

    def __init__(self, spec: Spec, cfg: PPOConfig) -> None:
        super().__init__(spec, cfg)
        self.make_orthogonal()
        if cfg.adapts_penalty:
            self.penalty = Scalar(cfg.kl_coefficient, "identity").requires_grad_(False)


def prepare(nets: PPONets, batch: Batch, ended: Tensor, cfg: PPOConfig) -> Batch:
    """Compute a rollout's advantages, returns and behaviour log-probabilities ``[T, B]``, once for all epochs."""
    with torch.no_grad():
        (policy, value), next_value = nets.both(batch.inputs), nets.values(batch.next_inputs)
        advantage = generalized_advantage(batch.reward, value, next_value, batch.discount, ended, cfg.gae_lambda)
        log_prob = policy.log_prob(batch.action)
    found = {"advantage": advantage, "return": advantage + value, "value": value, "log_prob": log_prob}
    if cfg.kl_coefficient != 0:
        found["policy"] = policy.parameters()
    return replace(batch, extra={**batch.extra, **found})


def loss(nets: PPONets, batch: Batch, cfg: PPOConfig) -> Loss:
    """Eq. 9: clipped objective (eq. 7), value error and entropy bonus.

    Optionally with the dual clip of Ye et al. (2020, arXiv:1912.09729, eq. 5) and the penalty of eq. 8.
    """
    (policy, value), weight = nets.both(batch.inputs), batch.weight
    share = shares(weight)

    def mean(value: Tensor) -> Tensor:
        return torch.dot(value.flatten(), share)

    advantage = batch.extra["advantage"]
    if cfg.normalize_advantage:
        advantage = standardized(advantage, share)
    log_ratio = policy.log_prob(batch.action) - batch.extra["log_prob"]
    ratio = log_ratio.exp()
    limit: Any = batch.extra.get("clip_range", cfg.clip_range)  # a column if there is a schedule
    objective = torch.min(ratio * advantage, ratio.clamp(1 - limit, 1 + limit) * advantage)
    if cfg.dual_clip is not None:
        objective = torch.where(advantage < 0, torch.max(objective, cfg.dual_clip * advantage), objective)
    policy_loss = -mean(objective)

    old, returns = batch.extra["value"], batch.extra["return"]
    error = (value - returns).square()
    if cfg.value_clip_range is not None:
        clipped = old + (value - old).clamp(-cfg.value_clip_range, cfg.value_clip_range)
        error = torch.max(error, (clipped - returns).square())
    value_loss = mean(error)
    total = policy_loss + cfg.value_coefficient * value_loss
    with torch.set_grad_enabled(torch.is_grad_enabled() and cfg.entropy_coefficient != 0):
        entropy = mean(policy.entropy())
    if cfg.entropy_coefficient != 0:
        total = total - cfg.entropy_coefficient * entropy
    with torch.no_grad():  # http://joschu.net/blog/kl-approx.html
        kl = mean(ratio - 1 - log_ratio)
        clip_fraction = mean(((ratio - 1).abs() > limit).to(ratio.dtype))
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approximate_kl": kl,
        "clip_fraction": clip_fraction,
    }
    if cfg.kl_coefficient != 0:
        weight_of_kl = nets.penalty() if cfg.adapts_penalty else cfg.kl_coefficient
        metrics["kl_loss"] = weight_of_kl * mean(old_policy(policy, batch).kl(policy))
        total = total + metrics["kl_loss"]
    return Loss(total, metrics)


@dataclass(frozen=True)
class AdaptPenalty:
    """Adaptive weight of the penalty, from the divergence after each rollout's epochs (section 4, below eq. 8)."""

    name, eager_only = "penalty", ""
    when = When(given=("adapts_penalty", True))
    networks, fields = ("actor", "penalty"), ("kl_penalty_target",)

    @torch.no_grad()
    def __call__(self, on: Update, batch: Batch) -> Batch:
        """Double the weight, halve it or leave it unchanged."""
        with eval_mode(on.nets):
            policy = on.nets.actor(batch.inputs)
        divergence = weighted_mean(old_policy(policy, batch).kl(policy), batch.weight)
        divergence, target = on.reduce({"kl": divergence})["kl"], on.config.kl_penalty_target
        far, near = divergence > 1.5 * target, 1.5 * divergence < target
        weight = on.nets.penalty()
        weight = torch.where(far, 2 * weight, torch.where(near, weight / 2, weight)).clamp(1e-8, 1e8)
        on.assign({"penalty.raw": weight})
        on.report({"kl": divergence, "kl_weight": weight})
        return batch


@final
class PPO(Algorithm[PPOConfig, PPONets]):
    """See `PPOConfig`."""

    actions = ActionSpace.ANY
    learns_from = Rollouts(
        prepare,
        limit=("approximate_kl", "target_kl"),
        scheduled=("clip_range",),
        last=("penalty",),
        metrics=rollout_metrics,
    )
    acts = StochasticActor(stateful_networks=("value",), bounded=False, clipped=True)
    steps = (Gradient("policy", loss, of=("actor", "value"), optimizer="", metric="loss"), AdaptPenalty())
