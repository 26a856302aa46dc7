"""Random policies, for collecting data and as a baseline."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor, nn

from birl.algorithm import ActionSpace, Algorithm, AlgorithmConfig, Inputs, Nothing, Policy, Spec, config, field
from birl.models.distributions import Beta, Categorical, Normal
from birl.models.policies import categorical
from birl.types import leaf_shapes, tree_leaves


@config
class RandomPolicyConfig(AlgorithmConfig):
    """Random continuous actions, uniform in ``[-1, 1]`` or normal and clipped to that range.

    The action scaler maps them to the environment's units.
    """

    distribution: str = field("uniform", "Distribution of random actions.", choices=("uniform", "normal"))
    normal_std: float = field(1.0, "Standard deviation of normal random actions.", above=0)


@config
class DiscreteRandomPolicyConfig(AlgorithmConfig):
    """Uniformly random discrete actions, of one choice or of several."""


class NoNets(nn.Module):
    """Nothing to learn."""

    def __init__(self, spec: Spec, cfg: Any) -> None:
        super().__init__()
        self.spec, self.cfg = spec, cfg
        # a buffer, so that this policy is saved and exported like all others
        self.action_size: Tensor
        self.register_buffer("action_size", torch.tensor(spec.actions.size))

    def lead(self, inputs: Inputs) -> tuple[int, ...]:
        """Return the leading dimensions of the observations."""
        leaf, shape = next(tree_leaves(inputs.observation)), next(leaf_shapes(self.spec.observation_shape))
        return tuple(leaf.shape[: leaf.dim() - len(shape)])


def random_action(nets: NoNets, inputs: Inputs) -> Tensor:
    """Return actions in ``[-1, 1]``."""
    size = (*nets.lead(inputs), nets.spec.actions.size)
    device = nets.action_size.device
    if nets.cfg.distribution == "uniform":
        return torch.rand(size, device=device) * 2 - 1
    return (torch.randn(size, device=device) * nets.cfg.normal_std).clamp(-1, 1)


def distribution_of_actions(nets: NoNets, inputs: Inputs) -> Beta | Normal:
    """Return the uniform distribution on ``[-1, 1]``, or the normal one."""
    one = torch.ones(*nets.lead(inputs), nets.spec.actions.size, device=nets.action_size.device)
    if nets.cfg.distribution == "uniform":
        return Beta(one, one)
    return Normal(0 * one, one * math.log(nets.cfg.normal_std))


def distribution_of_choices(nets: NoNets, inputs: Inputs) -> Categorical:
    """Return the uniform distribution over the allowed actions."""
    logits = torch.zeros(*nets.lead(inputs), nets.spec.actions.size, device=nets.action_size.device)
    return categorical(nets.spec.actions, logits, inputs.mask if nets.spec.masked else None)


def random_choice(nets: NoNets, inputs: Inputs) -> Tensor:
    """Draw indices of allowed actions."""
    if nets.spec.masked or nets.spec.actions.shape:
        return distribution_of_choices(nets, inputs).sample()[0]
    return torch.randint(nets.spec.actions.size, nets.lead(inputs), device=nets.action_size.device)


@final
class RandomPolicy(Algorithm[RandomPolicyConfig, NoNets]):
    """See `RandomPolicyConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Nothing()
    acts = Policy(random_action, random_action, network="", clipped=True, distribution=distribution_of_actions)


@final
class DiscreteRandomPolicy(Algorithm[DiscreteRandomPolicyConfig, NoNets]):
    """See `DiscreteRandomPolicyConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Nothing()
    acts = Policy(random_choice, random_choice, network="", distribution=distribution_of_choices)
