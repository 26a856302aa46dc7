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


class SamplingModule(nn.Module):
    """A module that computes the samples of a stochastic policy from observations and standard normal noise.

    Attributes:
        width: number of noise values per action.
    """

    def __init__(self, policy: BuiltPolicy) -> None:
        super().__init__()
        self.nets, self._policy = policy.nets, policy
        self.width = math.prod(policy.spec.actions.shape)

    def _distribution(self, observation: Tree) -> Distribution:
        policy = self._policy
        assert policy.policy.distribution is not None
        distribution = policy.policy.distribution(self.nets, Inputs(policy.units.as_input(observation)))
        assert not isinstance(distribution, Tensor)  # deterministic policies take no noise
        return distribution

    def sample(self, observation: Tree, noise: Tensor) -> Tensor:
        """Return unscaled actions ``[B, *shape]`` for observations ``[B, …]`` and noise ``[B, width]``."""
        values = noise if self._policy.spec.actions.shape else noise.squeeze(-1)
        return self._policy.environment_tensor(action_from_noise(self._distribution(observation), values))

    def log_probability(self, observation: Tree, action: Tensor) -> Tensor:
        """Return log-probabilities ``[B]`` of unscaled actions; see `Distribution.log_probability`."""
        policy = self._policy
        scaled = policy.units.action(action if policy.spec.actions.shape else action.unsqueeze(-1))
        slope = policy.units.log_slope(scaled).to(torch.float32)
        return self._distribution(observation).log_probability(scaled, slope, policy.clips)

    def forward(self, given: tuple[Tree, Tensor]) -> tuple[Tensor, Tensor]:
        """Return actions and their log-probabilities ``[B]``."""
        observation, noise = given
        action = self.sample(observation, noise)
        return action, self.log_probability(observation, action)


class MixtureModule(nn.Module):
    """A mixture of policies: each row of a batch uses one of several modules.

    The first noise value selects the module. The other values are the noise of the modules, in order.
    """

    def __init__(self, modules: Sequence[SamplingModule], weights: Sequence[float]) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self.log_weights: Tensor
        self.register_buffer("log_weights", torch.tensor(weights, dtype=torch.float64).log().float())
        self._widths = [module.width for module in modules]
        self.width = 1 + sum(self._widths)

    def sample(self, observation: Tree, noise: Tensor) -> Tensor:
        """See `SamplingModule.sample`."""
        which, *parts = noise.split([1, *self._widths], -1)
        pairs = zip(self.members, parts, strict=True)
        actions = torch.stack([module.sample(observation, each) for module, each in pairs])  # type: ignore[operator]
        rows = self.log_weights + torch.zeros_like(which)  # tracing would make the length a constant
        index = action_from_noise(Categorical(rows), which.squeeze(-1))
        index = index.reshape(1, -1, *[1] * (actions.dim() - 2)).expand(1, *actions.shape[1:])
        return actions.gather(0, index).squeeze(0)

    def log_probability(self, observation: Tree, action: Tensor) -> Tensor:
        """See `SamplingModule.log_probability`."""
        log_probs = [module.log_probability(observation, action) for module in self.members]  # type: ignore[operator]
        return (torch.stack(log_probs, -1) + self.log_weights).logsumexp(-1)

    def forward(self, given: tuple[Tree, Tensor]) -> tuple[Tensor, Tensor]:
        """See `SamplingModule.forward`."""
        observation, noise = given
        action = self.sample(observation, noise)
        return action, self.log_probability(observation, action)


def action_from_noise(distribution: Distribution, noise: Tensor) -> Tensor:
    """Return the sample of a distribution that standard normal ``noise`` of the action's shape determines.

    Raises:
        UnsupportedError: if normal noise cannot sample the distribution, such as a beta distribution.
    """
    if isinstance(distribution, Normal | SquashedNormal):
        action = distribution.mean + distribution.log_std.exp() * noise
        return action.tanh() if isinstance(distribution, SquashedNormal) else action
    if isinstance(distribution, Categorical):
        share = (0.5 + 0.5 * torch.erf(noise * _SQRT_HALF)).clamp(0.0, _ALMOST_ONE).unsqueeze(-1)
        sums = distribution.probs.cumsum(-1)
        return (sums <= share * sums[..., -1:]).sum(-1)
    raise UnsupportedError(
        f"exports sample from normal noise, which a {type(distribution).__name__} distribution does not support: use a "
        "NormalFactory or a SquashedNormalFactory"
    )
