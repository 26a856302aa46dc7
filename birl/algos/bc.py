"""Behaviour cloning: supervised learning of the actions in the data."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    Inputs,
    Loss,
    NetworkConfig,
    Policy,
    Spec,
    StochasticActor,
    Transitions,
    actor_distribution,
    config,
    field,
    weighted_mean,
)
from birl.models import CategoricalPolicy, DeterministicPolicy, NormalFactory, SquashedNormalPolicy, policy_of


@config
class BCConfig(NetworkConfig):
    """Behaviour cloning for continuous actions (Pomerleau 1988).

    ``policy_type="deterministic"`` minimises the squared error, ``"stochastic"`` the negative log-likelihood under a
    squashed Gaussian. Action spaces that combine continuous and discrete parts always use the negative log-likelihood,
    with a Gaussian for the continuous parts.

    Logs ``loss``.

    Differs from d3rlpy: d3rlpy's stochastic policy is trained on the squared error of samples, always acts
    deterministically, and keeps the logarithm of its standard deviation in [-4, 15] (birl: [-20, 2]).
    """

    batch_size: int = 100
    policy_type: str = field("deterministic", "Form of the policy.", choices=("deterministic", "stochastic"))


class BCNets(nn.Module):
    """The policy."""

    def __init__(self, spec: Spec, cfg: BCConfig) -> None:
        super().__init__()
        self.actor: nn.Module
        if spec.actions.kind is ActionSpace.COMPOSITE:
            self.actor = policy_of(spec, cfg.encoder_factory, NormalFactory(tanh_mean=True))
        else:
            kind = DeterministicPolicy if cfg.policy_type == "deterministic" else SquashedNormalPolicy
            self.actor = kind(spec, cfg.encoder_factory)


def imitation_loss(nets: BCNets, batch: Batch, cfg: BCConfig) -> Loss:
    """``E[mean over dimensions of (a - pi(s))^2]``, or ``-E[log pi(a|s)]`` with a stochastic policy."""
    policy = nets.actor(batch.inputs)
    if isinstance(policy, Tensor):
        return Loss(weighted_mean((policy - batch.action).square().mean(-1), batch.weight))
    return Loss(-weighted_mean(policy.log_prob(batch.action), batch.weight))


def greedy(nets: BCNets, inputs: Inputs) -> Tensor:
    """Return the policy's output, or its mode."""
    output = nets.actor(inputs)
    return output if isinstance(output, Tensor) else output.mode()


def sample(nets: BCNets, inputs: Inputs) -> Tensor:
    """Return a sample, or the output if the policy is deterministic."""
    output = nets.actor(inputs)
    return output if isinstance(output, Tensor) else output.sample()[0]


@final
class BC(Algorithm[BCConfig, BCNets]):
    """See `BCConfig`."""

    actions = ActionSpace.CONTINUOUS | ActionSpace.COMPOSITE
    learns_from = Transitions(online=False, has_td_errors=False)
    acts = Policy(greedy, sample, distribution=actor_distribution)
    steps = (Gradient("actor", imitation_loss, optimizer="", metric="loss"),)


@config
class DiscreteBCConfig(NetworkConfig):
    """Behaviour cloning for discrete actions, with a penalty on large logits.

    Logs ``loss``, ``imitation_loss`` and ``regularization_loss``.

    Differs from d3rlpy: the penalty is on the network's outputs (d3rlpy: on their log-softmax, which pulls the policy
        towards equal probabilities), and ``sample_action`` samples.
    """

    batch_size: int = 100
    beta: float = field(0.5, "Weight of the penalty on large logits.", low=0)


class DiscreteBCNets(nn.Module):
    """The policy."""

    def __init__(self, spec: Spec, cfg: DiscreteBCConfig) -> None:
        super().__init__()
        self.actor = CategoricalPolicy(spec, cfg.encoder_factory)


def cross_entropy(nets: DiscreteBCNets, batch: Batch, cfg: DiscreteBCConfig) -> Loss:
    """``-E[log pi(a|s)] + beta * E[mean over actions of logits^2]``."""
    policy = nets.actor(batch.inputs)
    imitation = -weighted_mean(policy.log_prob(batch.action), batch.weight)
    penalty = weighted_mean(policy.mean_square(), batch.weight)
    metrics = {"imitation_loss": imitation, "regularization_loss": cfg.beta * penalty}
    return Loss(imitation + cfg.beta * penalty, metrics)


@final
class DiscreteBC(Algorithm[DiscreteBCConfig, DiscreteBCNets]):
    """See `DiscreteBCConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Transitions(online=False, has_td_errors=False)
    acts = StochasticActor()
    steps = (Gradient("actor", cross_entropy, optimizer="", metric="loss"),)
