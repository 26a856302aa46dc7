"""Critic Regularized Regression."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from birl.algorithm import (
    ActionSpace,
    ActorCriticConfig,
    Algorithm,
    Batch,
    Gradient,
    HardCopy,
    Inputs,
    Loss,
    Policy,
    Polyak,
    SharedFields,
    Spec,
    Transitions,
    When,
    config,
    field,
    q_value,
    weighted_mean,
)
from birl.algos.awac import compared_returns
from birl.losses import td_loss
from birl.models import ActorCriticNets, ConditionalNormalPolicy
from birl.models.distributions import Categorical

HARD = When(every="target_update_interval", given=("target_update_type", "hard"))
SOFT = When(given=("target_update_type", "soft"))


@config
class CRRConfig(ActorCriticConfig):
    """Critic Regularized Regression (Wang et al. 2020, arXiv:2006.15134): imitates the actions that the critic prefers.

    ``A(s, a)`` is ``Q(s, a)`` minus the mean (``advantage_type="mean"``) or the maximum (``"max"``) of the Q-values of
    ``n_action_samples`` actions of the policy. The weight of a transition is 1 where ``A > 0`` and else 0
    (``weight_type="binary"``), or ``exp(A / beta)``, at most ``max_weight`` (``"exp"``).

    Actions come from the critic-weighted policy. ``sample_action`` draws ``n_action_samples`` actions of the policy and
    chooses one of them with probabilities proportional to ``exp(Q / beta)``. ``predict`` returns the mean of its
    candidates, weighted with these probabilities. The candidates are not random: they are the policy's mean and points
    spread evenly over the Gaussian around it (a Sobol sequence). The same observation therefore always gives the same
    action, also from an exported policy.

    Logs ``critic_loss``, ``q_value`` and ``actor_loss``.

    Differs from the paper: the policy is a single Gaussian, as in d3rlpy, not a mixture; ``predict`` as above.

    Differs from d3rlpy: ``predict`` and ``sample_action`` work as described above (d3rlpy's ``predict`` samples in each
    call and ignores ``beta``, and its ``sample_action`` samples the policy); the logarithm of the standard deviation
    lies in [-5, 2]; ``update_actor_interval`` has an effect; targets are copied after updates d, 2d, … (d3rlpy: 1, d +
    1, …).
    """

    batch_size: int = 100
    n_critics: int = 1
    beta: float = field(1.0, "Temperature of advantage weights and of the choice of actions.", above=0)
    n_action_samples: int = field(4, "Number of the policy's actions to compare with, and to choose from.", low=1)
    advantage_type: str = field("mean", "Value that an advantage compares with.", choices=("mean", "max"))
    weight_type: str = field("exp", "Form of the advantage weights.", choices=("exp", "binary"))
    max_weight: float = field(20.0, like=SharedFields)
    target_update_type: str = field(
        "hard",
        "Whether targets are copies (every `target_update_interval`) or follow slowly (with `tau`).",
        choices=("hard", "soft"),
    )
    target_update_interval: int = field(100, like=SharedFields)
    update_actor_interval: int = field(1, like=SharedFields)


class CRRNets(ActorCriticNets):
    """Networks of CRR, and the constants of the critic-weighted policy.

    Attributes:
        noise: ``[n, A]``: where the candidates of `mean_action` lie, in standard deviations; the first is the mean.
        beta: temperature of the critic-weighted policy.
    """

    noise: Tensor

    def __init__(self, spec: Spec, cfg: CRRConfig) -> None:
        actor = ConditionalNormalPolicy(spec, cfg.actor_encoder_factory, log_std_range=(-5.0, 2.0))
        super().__init__(spec, cfg, actor)
        points = SobolEngine(spec.actions.size).fast_forward(1).draw(cfg.n_action_samples)  # the first is 0: left out
        self.register_buffer("noise", torch.special.ndtri(points), persistent=False)
        self.beta = cfg.beta


def critic_loss(nets: CRRNets, batch: Batch, cfg: CRRConfig) -> Loss:
    """Algorithm 1: ``y = r + discount * min_j Q'_j(s', a')`` with ``a'`` of the target policy."""
    with torch.no_grad():
        action = nets.actor_target(batch.next_inputs).sample()[0].clamp(-1, 1)
        target = nets.critic_target(batch.next_inputs, action).min().backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


def actor_loss(nets: CRRNets, batch: Batch, cfg: CRRConfig) -> Loss:
    """``-E[f(A(s, a)) * log pi(a|s)]`` (section 3): ``f(A)`` is 1 where ``A > 0``, or ``exp(A / beta)``."""
    policy = nets.actor(batch.inputs)
    with torch.no_grad():
        value = compared_returns(nets, batch, policy, cfg.n_action_samples).mean().mean(0)
        others = value[1:].mean(0) if cfg.advantage_type == "mean" else value[1:].amax(0)
        advantage = value[0] - others
        if cfg.weight_type == "exp":
            weight = (advantage / cfg.beta).exp().clamp(max=cfg.max_weight)
        else:
            weight = (advantage > 0).to(advantage.dtype)
    return Loss(-weighted_mean(weight * policy.log_prob(batch.action), batch.weight))


def mean_action(nets: CRRNets, inputs: Inputs) -> Tensor:
    """Return the mean of the critic-weighted policy: the candidates' mean, weighted with ``exp(Q / beta)``."""
    policy = nets.actor(inputs)
    noise = nets.noise.view(-1, *[1] * (policy.mean.dim() - 1), policy.mean.shape[-1])
    action = (policy.mean + policy.log_std.exp() * noise).clamp(-1, 1)  # [n, ..., A]
    probability = (q_value(nets, inputs, action) / nets.beta).softmax(0)
    return (probability.unsqueeze(-1) * action).sum(0)


def sample(nets: CRRNets, inputs: Inputs) -> Tensor:
    """Draw one of ``n`` actions of the policy with probabilities proportional to ``exp(Q / beta)``."""
    action = nets.actor(inputs).sample(nets.noise.shape[0])[0].clamp(-1, 1)
    logits = q_value(nets, inputs, action) / nets.beta
    index = Categorical(logits.movedim(0, -1)).sample()[0]
    return action.gather(0, index[None, ..., None].expand(1, *action.shape[1:])).squeeze(0)


@final
class CRR(Algorithm[CRRConfig, CRRNets]):
    """See `CRRConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = Policy(mean_action, sample, q_value, stateful_networks=("critic",))
    steps = (
        Gradient("critic", critic_loss),
        Gradient("actor", actor_loss, when=When(every="update_actor_interval")),
        HardCopy("critic", "critic_target", when=HARD),
        HardCopy("actor", "actor_target", when=HARD),
        Polyak("critic", "critic_target", when=SOFT),
        Polyak("actor", "actor_target", when=SOFT),
    )
