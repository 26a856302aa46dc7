"""Generative adversarial imitation of an expert, with PPO, TRPO or A2C, for discrete and continuous actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    DemonstratedRollouts,
    Experience,
    Gradient,
    Inputs,
    Loss,
    Rollouts,
    Spec,
    When,
    config,
    field,
    rate,
    weighted_mean,
)
from birl.algos.a2c import A2C, A2CConfig, A2CNets
from birl.algos.ppo import PPO, PPOConfig, PPONets, tanh_encoder
from birl.algos.trpo import TRPO, TRPOConfig, TRPONets
from birl.errors import ConfigError, missing_name
from birl.incompatible import check_compatible
from birl.models import EncoderFactory, RewardFunction, ValueFunction, is_recurrent
from birl.optimizers import AdamFactory, OptimizerFactory
from birl.types import Networks


@config
class ImitationFields:
    """Discriminator fields, to be inherited before the learner: ``class GAILConfig(ImitationFields, PPOConfig)``."""

    reward: str = field("gail", "How the discriminator's output becomes a reward.", choices=("gail", "airl"))
    discriminator_learning_rate: float = rate(3e-4, "the discriminator")
    discriminator_optim_factory: OptimizerFactory = field(AdamFactory, "Optimiser of the discriminator.")
    discriminator_encoder_factory: EncoderFactory = field(tanh_encoder, "Encoder of the discriminator, feed-forward.")
    n_discriminator_epochs: int = field(1, "Number of the discriminator's passes over a rollout.", low=1)
    states_only: bool = field(False, "Whether the discriminator sees states without actions.")
    shaping: bool = field(False, 'Whether AIRL\'s discriminator has a shaping term (`reward="airl"` only).')

    def __post_init__(self) -> None:
        if self.shaping and self.reward != "airl":
            raise ConfigError(
                f'shaping=True was given with reward="{self.reward}", where nothing separates it from the reward: use '
                'reward="airl", or leave it out'
            )
        super().__post_init__()  # type: ignore[misc]  # the learner's


@config
class GAILConfig(ImitationFields, PPOConfig):
    """Generative Adversarial Imitation Learning (Ho and Ermon 2016, arXiv:1606.03476) with PPO.

    A discriminator learns to distinguish an expert's steps from the policy's. The policy is rewarded for steps that
    look like the expert's and learns with `PPOConfig`'s loss; the environment's rewards are only logged. The expert's
    steps are a dataset, ``fit_online(env, demonstrations=dataset)``, from a file, from `birl collect` or from Minari.
    For each rollout, an equal number of expert steps is drawn. The discriminator learns from both first; then the
    policy learns from the rollout, with rewards from the updated discriminator.

    With ``reward="gail"`` the reward is ``-log(1 - D)``, where ``D`` is the probability that a step is the expert's. It
    is always positive, so that in environments whose episodes can end early, survival alone is rewarded. With
    ``reward="airl"`` it is ``log D - log(1 - D)``, and ``D = exp(f) / (exp(f) + pi(a|s))`` (Fu et al. 2018,
    arXiv:1710.11248, section 4): the learned ``f`` can be used as a reward function, and rewards have both signs. With
    ``shaping`` it is ``f(s, a, s') = g(s, a) + gamma h(s') - h(s)`` (section 6), where the shaping term ``h`` estimates
    the value of a state and is 0 after a termination. With ``states_only`` as well, ``g`` depends on the state only, as
    in the paper.

    The discriminator is feed-forward. Recurrent policies need ``reward="gail"``.

    Logs ``discriminator_loss``, ``expert_accuracy`` and ``agent_accuracy`` (fractions of the expert's and the policy's
    steps that the discriminator classifies correctly), and what PPO logs: ``loss``, ``policy_loss``, ``value_loss``,
    ``entropy``, ``approximate_kl``, ``clip_fraction`` and ``explained_variance``.

    Differs from the paper: policies learn by PPO's clipped objective, not by TRPO (`TRPOGAILConfig`); ``D`` is the
    probability of the expert, not of the policy; the discriminator reads actions as they are passed to the environment,
    clipped to its bounds, like the expert's.
    """


class WithDiscriminator(nn.Module):
    """Networks of a learner, and a discriminator whose output is the logit of the expert.

    The learner's networks come second: ``class GAILNets(WithDiscriminator, PPONets)``.
    """

    def __init__(self, spec: Spec, cfg: Any) -> None:
        super().__init__(spec, cfg)  # the learner's
        factory = cfg.discriminator_encoder_factory
        self.discriminator = RewardFunction(spec, factory, with_action=not cfg.states_only)
        if is_recurrent(self.discriminator):
            raise ConfigError(
                f"discriminator_encoder_factory is {factory!r:.80}, but the discriminator reads single steps: give a "
                "feed-forward encoder"
            )
        learner: Any = self
        if cfg.reward == "airl" and is_recurrent(learner.actor):
            check_compatible({"airl": 'reward="airl"', "recurrent network": "a recurrent policy"})
        if cfg.shaping:
            self.shaping = ValueFunction(spec, factory)


class GAILNets(WithDiscriminator, PPONets):
    """The policy, the state-value function and the discriminator."""


def logit(nets: Networks, batch: Batch, whose: str, cfg: Any) -> Tensor:
    """Compute ``log D - log(1 - D)`` for the steps of the ``"agent"`` or the ``"expert"`` in a batch."""
    expert, own = whose == "expert", batch.extra
    state = Inputs(own["expert_observation"] if expert else batch.observation)
    found: Tensor = nets.discriminator(state, own["expert_action" if expert else "taken_action"])
    if cfg.shaping:  # Fu et al., eq. 4
        following = nets.shaping(Inputs(own[f"{whose}_next_observation"]))
        found = found + own[f"{whose}_discount"] * following - nets.shaping(state)
    return found if cfg.reward == "gail" else found - own[f"{whose}_log_prob"]


Prepare = Callable[[Any, Batch, Tensor, Any], Batch]


def rewarded(prepare: Prepare) -> Prepare:
    """Run a learner's ``prepare`` with the discriminator's rewards instead of the environment's."""

    def prepare_with_reward(nets: Networks, batch: Batch, ended: Tensor, cfg: Any) -> Batch:
        own = dict(batch.extra)
        with torch.no_grad():
            if cfg.reward == "airl":
                own["agent_log_prob"] = nets.actor(batch.inputs).log_prob(own["taken_action"])
                own["expert_log_prob"] = nets.actor(Inputs(own["expert_observation"])).log_prob(own["expert_action"])
            score = logit(nets, replace(batch, extra=own), "agent", cfg)
        # Section 5.1 of Ho and Ermon, for D of the expert: -log(1 - D); Fu et al., algorithm 1: log D - log(1 - D).
        reward = F.softplus(score) if cfg.reward == "gail" else score
        return replace(prepare(nets, replace(batch, reward=reward, extra=own), ended, cfg), reward=batch.reward)

    return prepare_with_reward


def discriminator_loss(nets: Networks, batch: Batch, cfg: Any) -> Loss:
    """Ho and Ermon, eq. 17: ``-E_expert[log D] - E_agent[log(1 - D)]``."""
    agent, expert = logit(nets, batch, "agent", cfg), logit(nets, batch, "expert", cfg)
    metrics = {"expert_accuracy": expert > 0, "agent_accuracy": agent < 0}
    return Loss(
        weighted_mean(F.softplus(-expert) + F.softplus(agent), batch.weight),
        {name: weighted_mean(right.to(agent.dtype), batch.weight) for name, right in metrics.items()},
    )


DISCRIMINATOR_STEPS = (
    Gradient("discriminator", discriminator_loss, when=When(given=("shaping", False))),
    Gradient("discriminator", discriminator_loss, of=("discriminator", "shaping"), when=When(given=("shaping", True))),
)
"""The discriminator's step, which precedes the steps of the learner."""


def imitating(rollouts: Experience) -> DemonstratedRollouts:
    """Add demonstrations and the discriminator's rewards to the rollouts of an on-policy learner.

    Raises:
        ConfigError: if the learner does not learn from rollouts alone.
    """
    if type(rollouts) is not Rollouts:
        raise ConfigError(
            f"imitation was requested with {type(rollouts).__name__}, whose steps keep their stored rewards: use a "
            "learner from rollouts alone, such as PPO, TRPO or A2C"
        )
    fields = {each.name: getattr(rollouts, each.name) for each in dataclasses.fields(rollouts)}
    return DemonstratedRollouts(
        **{**fields, "prepare": rewarded(rollouts.prepare)},
        discriminator_step="discriminator",
        n_discriminator_passes="n_discriminator_epochs",
        uses_next="shaping",
    )


@final
class GAIL(Algorithm[GAILConfig, GAILNets]):
    """See `GAILConfig`."""

    actions = ActionSpace.ANY
    learns_from = imitating(PPO.learns_from)
    acts = PPO.acts
    steps = (*DISCRIMINATOR_STEPS, *PPO.steps)


@config
class TRPOGAILConfig(ImitationFields, TRPOConfig):
    """Generative Adversarial Imitation Learning (Ho and Ermon 2016, arXiv:1606.03476) with TRPO, as in the paper.

    See `GAILConfig` for the discriminator and its rewards, and `TRPOConfig` for the policy.

    Logs ``discriminator_loss``, ``expert_accuracy`` and ``agent_accuracy``, and what TRPO logs: ``policy_loss``,
    ``kl``, ``step_share``, ``failed_search``, ``entropy`` and ``value_loss``.

    Differs from the paper: ``D`` is the probability of the expert, not of the policy; the discriminator reads actions
        as they are passed to the environment; rollouts have 5,000 steps, not 50,000.
    """


class TRPOGAILNets(WithDiscriminator, TRPONets):
    """The policy, the state-value function and the discriminator."""


@final
class TRPOGAIL(Algorithm[TRPOGAILConfig, TRPOGAILNets]):
    """See `TRPOGAILConfig`."""

    actions = ActionSpace.ANY
    learns_from = imitating(TRPO.learns_from)
    acts = TRPO.acts
    steps = (*DISCRIMINATOR_STEPS, *TRPO.steps)


@config
class A2CGAILConfig(ImitationFields, A2CConfig):
    """Generative Adversarial Imitation Learning (Ho and Ermon 2016, arXiv:1606.03476) with A2C.

    See `GAILConfig` for the discriminator and its rewards, and `A2CConfig` for the policy: rollouts are short, and the
    policy takes one gradient step on each.

    Logs ``discriminator_loss``, ``expert_accuracy`` and ``agent_accuracy``, and what A2C logs: ``loss``,
    ``policy_loss``, ``value_loss``, ``entropy`` and ``explained_variance``.

    Differs from the paper: policies learn with A2C; ``D`` is the probability of the expert, not of the policy; the
        discriminator reads actions as they are passed to the environment.
    """


class A2CGAILNets(WithDiscriminator, A2CNets):
    """The policy, the state-value function and the discriminator."""


@final
class A2CGAIL(Algorithm[A2CGAILConfig, A2CGAILNets]):
    """See `A2CGAILConfig`."""

    actions = ActionSpace.ANY
    learns_from = imitating(A2C.learns_from)
    acts = A2C.acts
    steps = (*DISCRIMINATOR_STEPS, *A2C.steps)


def __getattr__(name: str) -> NoReturn:
    raise missing_name(__name__, name, globals(), {"JUDGE": f"{__name__}.DISCRIMINATOR_STEPS"})
