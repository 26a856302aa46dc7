"""Proximal Policy Optimization, for discrete and continuous actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn

from birl.acting.policy import mode_action, sampled_action
from birl.algorithm.algorithm import Algorithm
from birl.config import AlgorithmConfig, NetworkConfig, PolicyConfig, config, field
from birl.engine import Gradient, Loss
from birl.losses import generalized_advantage
from birl.models import CategoricalPolicy, DefaultEncoderFactory, EncoderFactory, NormalPolicy, ValueFunction
from birl.optimizers import AdamFactory, OptimizerFactory
from birl.preprocessing import MinMaxActionScaler
from birl.preprocessing.units import fold_sequences, rollout_batch
from birl.types import ActionSpace, Batch, Spec


def _encoder() -> EncoderFactory:
    return DefaultEncoderFactory(activation="tanh")


@config
class PPOConfig(AlgorithmConfig):
    """Proximal Policy Optimization with the clipped objective (Schulman et al. 2017, arXiv:1707.06347).

    Continuous actions come from a Gaussian with a standard deviation of its own, and are clipped to the environment's
    bounds. A rollout of ``rollout_length`` steps from each environment is learned from in ``n_epochs`` passes of
    minibatches of ``batch_size`` steps; with recurrence, of sequences of ``sequence_length`` steps.

    Logs ``loss``, ``policy_loss``, ``value_loss``, ``entropy``, ``approximate_kl`` and ``clip_fraction``.
    """

    batch_size: int = 64
    learning_rate: float = field(3e-4, like=NetworkConfig)
    optim_factory: OptimizerFactory = field(lambda: AdamFactory(eps=1e-5, clip_grad_norm=0.5), like=NetworkConfig)
    actor_encoder_factory: EncoderFactory = field(_encoder, like=PolicyConfig)
    value_encoder_factory: EncoderFactory = field(_encoder, "Encoder of the state-value function.")
    rollout_length: int = field(2048, "Number of steps each environment makes between updates.", low=1)
    n_epochs: int = field(10, "Number of passes over a rollout.", low=1)
    gae_lambda: float = field(0.95, "Decay of generalised advantage estimation.", low=0, high=1)
    clip_range: float = field(0.2, "Clip range of the policy's probability ratio.", above=0)
    value_clip_range: float | None = field(None, "Clip range of the change in value.", above=0)
    value_coefficient: float = field(0.5, "Weight of the value loss.", low=0)
    entropy_coefficient: float = field(0.0, "Weight of the entropy bonus.", low=0)
    normalize_advantage: bool = field(True, "Whether advantages are standardised in each minibatch.")


class PPONets(nn.Module):
    """The policy and the state-value function."""

    def __init__(self, spec: Spec, cfg: PPOConfig) -> None:
        super().__init__()
        if spec.discrete_action:
            self.actor: nn.Module = CategoricalPolicy(spec, cfg.actor_encoder_factory)
        else:
            self.actor = NormalPolicy(spec, cfg.actor_encoder_factory, tanh_mean=False)
        self.value = ValueFunction(spec, cfg.value_encoder_factory)
        # A policy that starts near uniform explores (Andrychowicz et al. 2020, arXiv:2006.05990, section 3.2).
        with torch.no_grad():
            self.actor.linear.weight.mul_(0.01)
            self.actor.linear.bias.zero_()


def prepare(nets: PPONets, batch: Batch, ended: Tensor, cfg: PPOConfig) -> Batch:
    """Advantages, returns and the behaviour policy's log-probabilities of a rollout ``[T, B]``, once for all passes."""
    with torch.no_grad():
        value, next_value = nets.value(batch.inputs), nets.value(batch.next_inputs)
        advantage = generalized_advantage(batch.reward, value, next_value, batch.discount, ended, cfg.gae_lambda)
        log_prob = nets.actor(batch.inputs).log_prob(batch.action)
    found = {"advantage": advantage, "return": advantage + value, "value": value, "log_prob": log_prob}
    return replace(batch, extra={**batch.extra, **found})


def loss(nets: PPONets, batch: Batch, cfg: PPOConfig) -> Loss:
    """Eq. 9: clipped objective (eq. 7), value error and entropy bonus."""
    policy, weight = nets.actor(batch.inputs), batch.weight
    share = (weight / weight.count_nonzero().clamp(min=1)).flatten()  # of each step in a mean; 0 where it is padding

    def mean(value: Tensor) -> Tensor:
        return torch.dot(value.flatten(), share)

    advantage = batch.extra["advantage"]
    if cfg.normalize_advantage:
        advantage = advantage - mean(advantage)
        advantage = advantage / (mean(advantage.square()).sqrt() + 1e-8)
    log_ratio = policy.log_prob(batch.action) - batch.extra["log_prob"]
    ratio, limit = log_ratio.exp(), cfg.clip_range
    policy_loss = -mean(torch.min(ratio * advantage, ratio.clamp(1 - limit, 1 + limit) * advantage))

    value, old, returns = nets.value(batch.inputs), batch.extra["value"], batch.extra["return"]
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
    return Loss(
        total,
        {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approximate_kl": kl,
            "clip_fraction": clip_fraction,
        },
    )


@final
class PPO(Algorithm[PPOConfig, PPONets]):
    """See `PPOConfig`."""

    config_class = PPOConfig
    networks = PPONets
    action_space = ActionSpace.BOTH
    acting = "actor"
    remembering = ("value",)
    data = "rollout"
    steps = (Gradient("policy", loss, of=("actor", "value"), optimizer="", metric="loss"),)
    policy_mode = staticmethod(mode_action)
    policy_sample = staticmethod(sampled_action)
    bounded_policy = False
    keeps_policy_action = True

    def build_with_env(self, env: Any) -> None:
        """Build for an environment; bounded continuous actions are scaled to its bounds unless a scaler is given."""
        if not self.built and self.config.action_scaler is None and bounded_actions(env):
            self.replace_config(action_scaler=MinMaxActionScaler())
        super().build_with_env(env)

    def clip_policy_action(self, action: Tensor) -> Tensor:
        """A Gaussian has no bounds; the environment may."""
        bounded = not self.spec.discrete_action and self.config.action_scaler is not None
        return action.clamp(-1, 1) if bounded else action

    @property
    def rollout_length(self) -> int:
        """Number of steps that each environment makes between updates."""
        return self.config.rollout_length

    def updates_in(self, n_steps: int) -> int:
        """Number of updates in a run of so many steps, about."""
        return n_steps * self.config.n_epochs // self.config.batch_size

    def update_rollout(self, rollout: Any) -> dict[str, Tensor]:
        """All passes over a rollout.

        Returns:
            Metrics averaged over the minibatches, as scalar tensors on the device.
        """
        self._set_mode(acting=False)
        cfg, engine = self.config, self.engine
        batch, ended = rollout_batch(rollout, self.units, cfg.gamma)
        batch = prepare(self.nets, batch, ended, cfg)
        found = [engine.update(minibatch) for _ in range(cfg.n_epochs) for minibatch in self._minibatches(batch)]
        return {name: torch.stack([metrics[name] for metrics in found]).mean() for name in found[0]}

    def _minibatches(self, batch: Batch) -> Iterator[Batch]:
        if self.is_recurrent:
            batch = fold_sequences(batch, self.config.sequence_length)
            per_batch = max(1, self.config.batch_size // self.config.sequence_length)
            for chosen in torch.split(torch.randperm(batch.reward.shape[1]), per_batch):
                index = chosen.to(batch.reward.device)
                state = batch.state and {name: value[index] for name, value in batch.state.items()}
                yield replace(batch.map(lambda x, index=index: x.index_select(1, index)), state=state)  # type: ignore[misc]
            return
        # The whole rollout is put in order once for each pass; a minibatch then is a slice of it, without a copy.
        flat = replace(batch, is_first=None, state=None).map(lambda x: x.flatten(0, 1))
        valid = flat.weight.nonzero()[:, 0]
        order = valid[torch.randperm(len(valid)).to(valid.device)]
        flat, size = flat.map(lambda x: x.index_select(0, order)), self.config.batch_size
        for start in range(0, len(order), size):
            yield flat.map(lambda x, start=start: x[start : start + size])  # type: ignore[misc]


def bounded_actions(env: Any) -> bool:
    """Whether an environment's actions are continuous with finite bounds."""
    space = getattr(env, "single_action_space", None) or env.action_space
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    return low is not None and high is not None and bool((abs(low) < 1e30).all() and (abs(high) < 1e30).all())
