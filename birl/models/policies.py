"""Policies, which map observations to actions or to distributions over actions."""

from __future__ import annotations

import math
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from birl.models.distribution_factories import DistributionFactory, NormalFactory
from birl.models.distributions import Beta, Categorical, Distribution, Joint, Normal, SquashedNormal
from birl.models.encoders import EncoderFactory
from birl.models.networks import LinearNetwork
from birl.spaces import Composite, choice_masks
from birl.spaces.specs import Spec
from birl.types import Inputs


class DeterministicPolicy(LinearNetwork):
    """Policy with actions in [-1, 1] through a tanh.

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the encoder.
    """

    def forward(self, inputs: Inputs) -> Tensor:
        """Return actions ``[..., action_size]``."""
        return self.linear(self.encode(inputs)).tanh()


class ResidualPolicy(LinearNetwork):
    """Perturbation of given actions (arXiv:1812.02900, section 4): ``clip(a + scale * tanh(f(s, a)), -1, 1)``.

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the action-conditioned encoder.
        scale: largest absolute change of an action.
    """

    def __init__(self, spec: Spec, encoder_factory: EncoderFactory, scale: float) -> None:
        super().__init__(spec, encoder_factory, with_action=True)
        self.scale = scale

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Return perturbed actions ``[..., action_size]``. ``action`` may have more leading dimensions than states."""
        change: Tensor = self.linear(self.encode(inputs, action)).tanh()
        return (action + self.scale * change).clamp(-1, 1)


class _GaussianPolicy(LinearNetwork):
    """Base of policies whose mean and standard deviation depend on the observation."""

    def __init__(
        self, spec: Spec, encoder_factory: EncoderFactory, log_std_range: tuple[float, float] = (-20.0, 2.0)
    ) -> None:
        super().__init__(spec, encoder_factory, 2 * spec.actions.size)
        self.log_std_range = log_std_range


class SquashedNormalPolicy(_GaussianPolicy):
    """Tanh-squashed Gaussian whose mean and standard deviation depend on the observation (arXiv:1812.05905).

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the encoder.
        log_std_range: clamp of the natural logarithm of the standard deviation.
    """

    def forward(self, inputs: Inputs) -> SquashedNormal:
        """Return the distribution with parameters ``[..., action_size]``."""
        mean, log_std = self.linear(self.encode(inputs)).chunk(2, -1)
        return SquashedNormal(mean, log_std.clamp(*self.log_std_range))


class NormalPolicy(LinearNetwork):
    """Gaussian whose standard deviation is a learned parameter, the same for all observations.

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the encoder.
        tanh_mean: whether the mean is squashed to [-1, 1].
        log_std_range: clamp of the natural logarithm of the standard deviation.
        initial_log_std: initial value of this logarithm.
    """

    def __init__(
        self,
        spec: Spec,
        encoder_factory: EncoderFactory,
        tanh_mean: bool = True,
        log_std_range: tuple[float, float] = (-20.0, 2.0),
        initial_log_std: float = 0.0,
    ) -> None:
        super().__init__(spec, encoder_factory)
        self.log_std = nn.Parameter(torch.full((spec.actions.size,), initial_log_std))
        self.tanh_mean = tanh_mean
        self.log_std_range = log_std_range

    def forward(self, inputs: Inputs) -> Normal:
        """Return the distribution with mean ``[..., action_size]`` and ``log_std`` ``[action_size]``."""
        return self.read(self.encode(inputs), inputs)

    def read(self, features: Tensor, inputs: Inputs) -> Normal:
        """Return the distribution, given the features of ``inputs``."""
        mean = self.linear(features)
        return Normal(mean.tanh() if self.tanh_mean else mean, self.log_std.clamp(*self.log_std_range))


class ConditionalNormalPolicy(_GaussianPolicy):
    """Gaussian whose mean, in [-1, 1], and standard deviation depend on the observation. Samples may leave the range.

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the encoder.
        log_std_range: clamp of the natural logarithm of the standard deviation.
    """

    def forward(self, inputs: Inputs) -> Normal:
        """Return the distribution with parameters ``[..., action_size]``."""
        mean, log_std = self.linear(self.encode(inputs)).chunk(2, -1)
        return Normal(mean.tanh(), log_std.clamp(*self.log_std_range))


class _FactoryPolicy(LinearNetwork):
    """Base of policies whose continuous actions have the distribution of a factory."""

    log_std: Tensor | None

    def __init__(
        self,
        spec: Spec,
        encoder_factory: EncoderFactory,
        distribution: DistributionFactory,
        n_outputs: int,
        n_quantities: int,
    ) -> None:
        super().__init__(spec, encoder_factory, n_outputs)
        self.distribution = distribution
        log_std, learns = distribution.log_std(n_quantities) or (None, False)
        if log_std is not None and learns:
            self.log_std = nn.Parameter(log_std)
        else:
            self.register_buffer("log_std", log_std, persistent=False)


class DistributionPolicy(_FactoryPolicy):
    """Policy over continuous actions with the distribution of a factory.

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the encoder.
        distribution: makes the distribution.
    """

    def __init__(self, spec: Spec, encoder_factory: EncoderFactory, distribution: DistributionFactory) -> None:
        size = spec.actions.size
        super().__init__(spec, encoder_factory, distribution, distribution.n_outputs(size), size)

    def forward(self, inputs: Inputs) -> Normal | SquashedNormal | Beta:
        """Return the distribution of actions ``[..., action_size]``."""
        return self.read(self.encode(inputs), inputs)

    def read(self, features: Tensor, inputs: Inputs) -> Normal | SquashedNormal | Beta:
        """Return the distribution, given the features of ``inputs``."""
        return self.distribution.build(self.linear(features), self.log_std)


class CategoricalPolicy(LinearNetwork):
    """Distribution over discrete actions.

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the encoder.
    """

    def forward(self, inputs: Inputs) -> Categorical:
        """Return the distribution, with logits ``[..., action_size]``, or ``[..., D, options]`` for several choices."""
        return self.read(self.encode(inputs), inputs)

    def read(self, features: Tensor, inputs: Inputs) -> Categorical:
        """Return the distribution, given the features of ``inputs``."""
        mask = inputs.mask if self.spec.masked else None
        return categorical(self.spec.actions, self.linear(features), mask)


class JointPolicy(_FactoryPolicy):
    """Independent distributions of the parts of an action.

    Args:
        spec: shapes of observations and actions; the actions are `birl.spaces.Composite`.
        encoder_factory: makes the encoder.
        distribution: makes the distribution of continuous parts.
    """

    def __init__(self, spec: Spec, encoder_factory: EncoderFactory, distribution: DistributionFactory) -> None:
        actions = cast(Composite, spec.actions)
        sizes = [part.size if part.discrete else distribution.n_outputs(part.size) for part in actions.parts]
        quantities = sum(part.size for part in actions.parts if not part.discrete)
        super().__init__(spec, encoder_factory, distribution, sum(sizes), quantities)
        self.actions, self._sizes, self._quantities = actions, sizes, quantities

    def forward(self, inputs: Inputs) -> Joint:
        """Return the distribution of actions ``[..., W]``."""
        return self.read(self.encode(inputs), inputs)

    def read(self, features: Tensor, inputs: Inputs) -> Joint:
        """Return the distribution, given the features of ``inputs``."""
        log_std = None if self.log_std is None else self.log_std.expand(self._quantities)
        parts: list[Distribution] = []
        mask = inputs.mask if self.spec.masked else None
        masks = iter([] if mask is None else choice_masks(self.actions, mask))
        outputs = self.linear(features).split(self._sizes, -1)
        for part, output in zip(self.actions.parts, outputs, strict=True):
            if part.discrete:
                parts.append(categorical(part, output, next(masks, None)))
                continue
            own = None
            if log_std is not None:
                own, log_std = log_std[: part.size], log_std[part.size :]
            parts.append(self.distribution.build(output, own))
        return Joint(tuple(parts), self.actions)


def categorical(actions: Any, logits: Tensor, mask: Tensor | None) -> Categorical:
    """Return the distribution over one or several choices with logits ``[..., size]``."""
    return Categorical(actions.to_branches(logits), actions.mask_to_branches(mask, logits), bool(actions.shape))


StochasticPolicy: TypeAlias = CategoricalPolicy | NormalPolicy | DistributionPolicy | JointPolicy


def policy_of(
    spec: Spec, encoder_factory: EncoderFactory, distribution: DistributionFactory | None = None
) -> StochasticPolicy:
    """Make a stochastic policy for any kind of actions.

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the encoder.
        distribution: makes the distribution of continuous actions; by default ``NormalFactory()``.
    """
    distribution = distribution or NormalFactory()
    if spec.actions.discrete:
        return CategoricalPolicy(spec, encoder_factory)
    if isinstance(spec.actions, Composite):
        return JointPolicy(spec, encoder_factory, distribution)
    if isinstance(distribution, NormalFactory) and distribution.std == "parameter":  # `FlatPolicy` supports this class
        initial = math.log(distribution.initial_std)
        return NormalPolicy(spec, encoder_factory, distribution.tanh_mean, distribution.log_std_range, initial)
    return DistributionPolicy(spec, encoder_factory, distribution)
