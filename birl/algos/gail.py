"""Generative adversarial imitation of an expert, for discrete and continuous actions."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    DemonstratedRollouts,
    Gradient,
    Inputs,
    Loss,
    Spec,
    config,
    field,
    rate,
    weighted_mean,
)
from birl.algos import ppo
from birl.algos.ppo import PPO, PPOConfig, PPONets, tanh_encoder
from birl.errors import ConfigError, UnsupportedError
from birl.models import EncoderFactory, RewardFunction, is_recurrent
from birl.optimizers import AdamFactory, OptimizerFactory


@config
class GAILConfig(PPOConfig):
    """Generative Adversarial Imitation Learning (Ho and Ermon 2016, arXiv:1606.03476) with PPO.

    A discriminator learns to tell an expert's steps from those of the policy, which is rewarded for passing as the
    expert, in `PPOConfig`'s way; the environment's rewards are only logged. The expert's steps are a dataset,
    ``fit_online(env, demonstrations=dataset)``: that of a file, of `birl collect`, or of Minari. For each rollout as
    many of them are drawn as it has steps; the discriminator passes over both first, then the policy over its own, with
    rewards from the discriminator as it is then.

    With ``reward="gail"`` the reward is ``-log(1 - D)``, where ``D`` is the probability that a step is the expert's. It
    is above 0: where an episode may end early, living on is rewarded by itself. With ``reward="airl"`` it is
    ``log D - log(1 - D)``, and ``D = exp(f) / (exp(f) + pi(a|s))`` (Fu et al. 2018, arXiv:1710.11248, section 4): what
    the discriminator has learned in the end, ``f``, is a reward by itself, and both signs occur.

    The discriminator is feed-forward. Recurrent policies are for ``reward="gail"``.

    Logs ``discriminator_loss``, ``expert_accuracy`` and ``agent_accuracy`` (shares of the expert's and the policy's
    steps that are taken for what they are), and what PPO logs: ``loss``, ``policy_loss``, ``value_loss``, ``entropy``,
    ``approximate_kl`` and ``clip_fraction``.

    Differs from the paper: policies learn by PPO's clipped objective, not by TRPO; ``D`` is the probability of the
    expert, not of the policy; the discriminator sees actions as the environment was given them, within its bounds, as
    an expert's are. Of AIRL, ``f`` is a function of state and action without a shaping term (section 6).
    """

    reward: str = field("gail", "What the discriminator's judgement is as a reward.", choices=("gail", "airl"))
    discriminator_learning_rate: float = rate(3e-4, "the discriminator")
    discriminator_optim_factory: OptimizerFactory = field(AdamFactory, "Optimiser of the discriminator.")
    discriminator_encoder_factory: EncoderFactory = field(tanh_encoder, "Encoder of the discriminator, feed-forward.")
    n_discriminator_epochs: int = field(1, "Number of the discriminator's passes over a rollout.", low=1)


class GAILNets(PPONets):
    """The policy, the state-value function and the discriminator, whose logit is that of the expert."""

    def __init__(self, spec: Spec, cfg: GAILConfig) -> None:
        super().__init__(spec, cfg)
        self.discriminator = RewardFunction(spec, cfg.discriminator_encoder_factory)
        if is_recurrent(self.discriminator):
            raise ConfigError(
                f"discriminator_encoder_factory is {cfg.discriminator_encoder_factory!r:.80}, but single steps are "
                "judged: give a feed-forward encoder"
            )
        if cfg.reward == "airl" and is_recurrent(self.actor):
            raise UnsupportedError(
                'reward="airl" needs the probabilities of the expert\'s actions, which a recurrent policy has only '
                'along its own episodes: use reward="gail", or a feed-forward actor_encoder_factory'
            )


def logit(nets: GAILNets, batch: Batch, whose: str, cfg: GAILConfig) -> Tensor:
    """``log D - log(1 - D)`` of the steps in a batch: those of the ``"agent"`` or of the ``"expert"``."""
    expert = whose == "expert"
    observation = batch.extra["expert_observation"] if expert else batch.observation
    found = nets.discriminator(Inputs(observation), batch.extra["expert_action" if expert else "taken_action"])
    return found if cfg.reward == "gail" else found - batch.extra[f"{whose}_log_prob"]


def prepare(nets: GAILNets, batch: Batch, ended: Tensor, cfg: GAILConfig) -> Batch:
    """As `birl.algos.ppo.prepare`, with the discriminator's rewards instead of the environment's."""
    own = dict(batch.extra)
    with torch.no_grad():
        if cfg.reward == "airl":
            own["agent_log_prob"] = nets.actor(batch.inputs).log_prob(own["taken_action"])
            own["expert_log_prob"] = nets.actor(Inputs(own["expert_observation"])).log_prob(own["expert_action"])
        judged = logit(nets, replace(batch, extra=own), "agent", cfg)
    # Section 5.1 of Ho and Ermon, for D of the expert: -log(1 - D); Fu et al., algorithm 1: log D - log(1 - D).
    reward = F.softplus(judged) if cfg.reward == "gail" else judged
    prepared = ppo.prepare(nets, replace(batch, reward=reward, extra=own), ended, cfg)
    return replace(prepared, reward=batch.reward)


def discriminator_loss(nets: GAILNets, batch: Batch, cfg: GAILConfig) -> Loss:
    """Ho and Ermon, eq. 17: ``-E_expert[log D] - E_agent[log(1 - D)]``."""
    agent, expert = logit(nets, batch, "agent", cfg), logit(nets, batch, "expert", cfg)
    metrics = {"expert_accuracy": expert > 0, "agent_accuracy": agent < 0}
    return Loss(
        weighted_mean(F.softplus(-expert) + F.softplus(agent), batch.weight),
        {name: weighted_mean(right.to(agent.dtype), batch.weight) for name, right in metrics.items()},
    )


@final
class GAIL(Algorithm[GAILConfig, GAILNets]):
    """See `GAILConfig`."""

    actions = ActionSpace.ANY
    learns_from = DemonstratedRollouts(
        prepare,
        limit=("approximate_kl", "target_kl"),
        scheduled=("clip_range",),
        judge="discriminator",
        n_judging_passes="n_discriminator_epochs",
    )
    acts = PPO.acts
    steps = (Gradient("discriminator", discriminator_loss), *PPO.steps)
