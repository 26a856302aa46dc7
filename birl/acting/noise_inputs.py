"""Policies that sample actions from given noise, so that exports reproduce the samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from birl.acting.built_policy import BuiltPolicy
from birl.errors import UnsupportedError
from birl.models.distributions import Categorical, Distribution, Normal, SquashedNormal
from birl.types import Inputs, Tree

_ALMOST_ONE = 1 - 2.0**-20
_SQRT_HALF = math.sqrt(0.5)


class DrawnModule(nn.Module):
    """A policy with a distribution, as a module from observations and standard normal noise to actions.

    Attributes:
        width: how many numbers of noise an action takes.
    """

    def __init__(self, policy: BuiltPolicy) -> None:
        super().__init__()
        self.nets, self._policy = policy.nets, policy
        self.width = math.prod(policy.spec.actions.shape)

    def _distribution(self, observation: Tree) -> Distribution:
        policy = self._policy
        assert policy.policy.distribution is not None
        found = policy.policy.distribution(self.nets, Inputs(policy.units.as_input(observation)))
        assert not isinstance(found, Tensor)  # deterministic policies take no noise
        return found

    def draw(self, observation: Tree, noise: Tensor) -> Tensor:
        """Actions ``[B, *shape]`` in the environment's units for observations ``[B, …]`` and noise ``[B, width]``."""
        own = noise if self._policy.spec.actions.shape else noise.squeeze(-1)
        return self._policy.environment_tensor(drawn_by(self._distribution(observation), own))

    def log_probability(self, observation: Tree, action: Tensor) -> Tensor:
        """Log-probabilities ``[B]`` of the environment's actions; see `Distribution.log_probability`."""
        policy = self._policy
        own = policy.units.action(action if policy.spec.actions.shape else action.unsqueeze(-1))
        slope = policy.units.log_slope(own).to(torch.float32)
        found: Tensor = self._distribution(observation).log_probability(own, slope, policy.clips)
        return found

    def forward(self, given: tuple[Tree, Tensor]) -> tuple[Tensor, Tensor]:
        """Actions, and their log-probabilities ``[B]``."""
        observation, noise = given
        action = self.draw(observation, noise)
        return action, self.log_probability(observation, action)


class MixedModule(nn.Module):
    """Sample one of several modules for each row of a batch.

    The first number of noise selects the module; the others are the modules' own noise, in order.
    """

    def __init__(self, modules: Sequence[DrawnModule], weights: Sequence[float]) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self.log_weights: Tensor
        self.register_buffer("log_weights", torch.tensor(weights, dtype=torch.float64).log().float())
        self._widths = [module.width for module in modules]
        self.width = 1 + sum(self._widths)

    def draw(self, observation: Tree, noise: Tensor) -> Tensor:
        """See `DrawnModule.draw`."""
        which, *own = noise.split([1, *self._widths], -1)
        pairs = zip(self.members, own, strict=True)
        actions = torch.stack([module.draw(observation, each) for module, each in pairs])  # type: ignore[operator]
        rows = self.log_weights + torch.zeros_like(which)  # a traced length would be a constant
        index = drawn_by(Categorical(rows), which.squeeze(-1))
        index = index.reshape(1, -1, *[1] * (actions.dim() - 2)).expand(1, *actions.shape[1:])
        return actions.gather(0, index).squeeze(0)

    def log_probability(self, observation: Tree, action: Tensor) -> Tensor:
        """See `DrawnModule.log_probability`."""
        found = [module.log_probability(observation, action) for module in self.members]  # type: ignore[operator]
        return (torch.stack(found, -1) + self.log_weights).logsumexp(-1)

    def forward(self, given: tuple[Tree, Tensor]) -> tuple[Tensor, Tensor]:
        """See `DrawnModule.forward`."""
        observation, noise = given
        action = self.draw(observation, noise)
        return action, self.log_probability(observation, action)


def drawn_by(distribution: Distribution, noise: Tensor) -> Tensor:
    """The action that standard normal ``noise``, shaped like it, draws from a distribution.

    Raises:
        UnsupportedError: if no noise of this form draws from it, as from a beta distribution.
    """
    if isinstance(distribution, Normal | SquashedNormal):
        action = distribution.mean + distribution.log_std.exp() * noise
        return action.tanh() if isinstance(distribution, SquashedNormal) else action
    if isinstance(distribution, Categorical):
        share = (0.5 + 0.5 * torch.erf(noise * _SQRT_HALF)).clamp(0.0, _ALMOST_ONE).unsqueeze(-1)
        sums = distribution.probs.cumsum(-1)
        return (sums <= share * sums[..., -1:]).sum(-1)
    raise UnsupportedError(
        f"a {type(distribution).__name__} distribution is not drawn from by normal noise, as exports are: use a "
        "NormalFactory or a SquashedNormalFactory"
    )
