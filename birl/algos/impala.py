"""IMPALA's actor-critic with V-trace, for any action space."""

from __future__ import annotations

from typing import final

import torch

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    Loss,
    Replays,
    Spec,
    StochasticActor,
    config,
    field,
    weighted_mean,
)
from birl.algos.acer import ReplayedPolicyConfig
from birl.algos.ppo import PPOConfig
from birl.losses import last_steps, old_policy, vtrace
from birl.models import (
    DefaultEncoderFactory,
    DistributionFactory,
    EncoderFactory,
    NormalFactory,
    PolicyAndValue,
)
from birl.optimizers import OptimizerFactory, RMSpropFactory


def _rmsprop() -> OptimizerFactory:
    return RMSpropFactory(alpha=0.99, eps=0.01, centered=False, eps_inside_root=True, clip_grad_norm=40.0)


@config
class IMPALAConfig(ReplayedPolicyConfig):
    """IMPALA's learner: an actor-critic corrected by V-trace (Espeholt et al. 2018, arXiv:1802.01561, section 4).

    It learns from each rollout and from older ones in a replay buffer (section 5.2.2), which were collected by earlier
    policies. With ``replay_ratio=0`` it is an advantage actor-critic, as there is nothing to correct. With
    ``fit_online(env, workers=16)`` each of 16 processes acts and has its own replay buffer.

    Differs from the paper: actors compute gradients themselves, so that the newest steps are on-policy; replayed steps
        have separate updates, by default one for each rollout on average, whereas the paper mixes both in each batch.
        Value errors have twice the weight: ``value_coefficient=0.25`` is the paper's half of half the square.

    Logs ``loss``, which is a sum over steps, and the means ``policy_loss``, ``value_loss``, ``entropy`` and
    ``importance_weight``.
    """

    learning_rate: float = 6e-4
    optim_factory: OptimizerFactory = field(_rmsprop)
    value_encoder_factory: EncoderFactory | None = field(DefaultEncoderFactory, like=PPOConfig)
    distribution_factory: DistributionFactory = field(NormalFactory, like=PPOConfig)
    replay_ratio: float = 1.0
    entropy_coefficient: float = 0.01
    trace_lambda: float = field(1.0, "Decay of the traces of V-trace.", low=0, high=1)
    clip_rho: float = field(1.0, "Largest importance weight of a step's error and of the policy's gradient.", above=0)
    clip_c: float = field(1.0, "Largest importance weight of a trace; not above `clip_rho`.", above=0)


class IMPALANets(PolicyAndValue):
    """The policy and the state-value function."""

    def __init__(self, spec: Spec, cfg: IMPALAConfig) -> None:
        super().__init__(spec, cfg)


def loss(nets: IMPALANets, batch: Batch, cfg: IMPALAConfig) -> Loss:
    """Section 4.2: policy gradient with V-trace's advantages, value error and entropy bonus, summed over steps.

    The paper's clipping of gradients and epsilon of RMSprop are for sums: means would be far below that epsilon.
    """
    policy, value = nets.both(batch.inputs)
    log_prob = policy.log_prob(batch.action)
    with torch.no_grad():
        ratio = (log_prob - old_policy(policy, batch).log_prob(batch.action)).exp()
        ended = last_steps(batch.weight, batch.is_first)
        steps = batch.reward, value, nets.values(batch.next_inputs), batch.discount, ended
        target, advantage = vtrace(*steps, ratio, cfg.trace_lambda, cfg.clip_rho, cfg.clip_c, cfg.clip_rho)
        used = weighted_mean(ratio.clamp(max=cfg.clip_rho), batch.weight)
    policy_loss = -weighted_mean(advantage * log_prob, batch.weight)
    value_loss = weighted_mean((target - value).square(), batch.weight)
    entropy = weighted_mean(policy.entropy(), batch.weight)
    mean = policy_loss + cfg.value_coefficient * value_loss - cfg.entropy_coefficient * entropy
    return Loss(
        mean * batch.weight.count_nonzero(),
        {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "importance_weight": used},
    )


@final
class IMPALA(Algorithm[IMPALAConfig, IMPALANets]):
    """See `IMPALAConfig`."""

    actions = ActionSpace.ANY
    learns_from = Replays()
    acts = StochasticActor(stateful_networks=("value",), bounded=False, clipped=True)
    steps = (Gradient("policy", loss, of=("actor", "value"), optimizer="", metric="loss", splits=False),)  # a sum
