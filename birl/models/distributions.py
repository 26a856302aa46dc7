"""Action distributions as plain values: tensors in, tensors out, no host synchronisation.

All of them are a `Distribution`, so losses do not depend on whether actions are continuous, discrete or both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from birl.spaces import Composite, Continuous

ATANH_LIMIT = 1.0 - 1e-6
"""Actions from here to 1 count as saturated: in 32 bits they do not tell which sample they are the ``tanh`` of."""

NEVER = -1e9
"""Logit or value of an action that is not allowed: finite, so that its probability times its logarithm is 0."""


class Distribution(Protocol):
    """Interface of distributions over actions, for losses and policies.

    The last dimensions of the parameters are the action dimensions. Log-probabilities, entropies and divergences are
    sums over them, and have only the leading dimensions ``[...]``.

    An earlier policy is stored as a column of a batch, and compared with the current policy at the same observations::

        batch = replace(batch, extra={**batch.extra, "policy": nets.actor(batch.inputs).parameters()})   # prepared once
        ...
        policy = nets.actor(batch.inputs)
        divergence = policy.with_parameters(batch.extra["policy"]).kl(policy)
    """

    def sample(self, n: int | None = None) -> tuple[Tensor, Tensor]:
        """Return actions and their log-probabilities ``[(n,) ...]``: ``n`` samples for each element, or one.

        Continuous samples are differentiable functions of the parameters (reparametrised); discrete ones are not.
        """

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability or log-density of ``action``; extra leading dimensions broadcast."""

    def log_probability(self, action: Tensor, log_slope: Tensor, clipped: bool) -> Tensor:
        """Return the log-probability of ``action``, or its log-density ``[...]`` in other units than the policy's.

        It is minus infinity for actions that are never sampled. `log_prob`, which is for losses, is finite and ignores
        bounds and units.

        Args:
            action: action in the policy's units; extra leading dimensions broadcast.
            log_slope: logarithm of the scale from the policy's units to the other units, for each column of actions.
            clipped: whether samples are clipped to [-1, 1]. A bound then has the probability of all samples beyond it,
                which has no units, instead of a density.
        """

    def mode(self) -> Tensor:
        """Return the greedy action."""

    def entropy(self) -> Tensor:
        """Return the entropy in nats ``[...]``."""

    def kl(self, other: Self) -> Tensor:
        """Return ``KL(self || other)`` in nats ``[...]``, in closed form."""

    def parameters(self) -> Tensor:
        """Return the parameters ``[..., P]`` of the distribution, differentiable.

        The mask of allowed actions is not included: it is part of the observations.
        """

    def with_parameters(self, parameters: Tensor) -> Self:
        """Return a distribution of the same kind over the same actions, with other `parameters` ``[..., P]``."""


_ROUNDING = 1e-5
"""Largest distance of a scaled action beyond -1 or 1 that counts as rounding."""

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)
_ATANH_OF_LIMIT = math.atanh(ATANH_LIMIT)
_LOG_SATURATED_LENGTH = math.log1p(-ATANH_LIMIT)


@dataclass(frozen=True)
class Normal:
    """Gaussian with independent dimensions.

    Attributes:
        mean: ``[..., action_size]``.
        log_std: natural logarithm of the standard deviation; broadcasts against ``mean``.
    """

    mean: Tensor
    log_std: Tensor

    def sample(self, n: int | None = None) -> tuple[Tensor, Tensor]:
        """Return reparametrised actions ``[(n,) ..., action_size]`` and log-densities ``[(n,) ...]``."""
        noise = _noise(self.mean, n)
        return self.mean + self.log_std.exp() * noise, _log_density(noise, self.log_std).sum(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density of ``action`` ``[..., action_size]``; extra leading dimensions broadcast."""
        return _log_density((action - self.mean) * (-self.log_std).exp(), self.log_std).sum(-1)

    def log_probability(self, action: Tensor, log_slope: Tensor, clipped: bool) -> Tensor:
        """See `Distribution.log_probability`."""
        density = _log_density((action - self.mean) * (-self.log_std).exp(), self.log_std) - log_slope
        if clipped:
            beyond = _log_ndtr((action.sign() * self.mean - 1.0) * (-self.log_std).exp())
            density = _inside(action, torch.where(action.abs() >= ATANH_LIMIT, beyond, density))
        return density.sum(-1)

    def mode(self) -> Tensor:
        """Return the mean."""
        return self.mean

    def entropy(self) -> Tensor:
        """Return the differential entropy in nats ``[...]``."""
        return (self.log_std + (0.5 + _HALF_LOG_2PI)).expand_as(self.mean).sum(-1)

    def kl(self, other: Normal) -> Tensor:
        """Return ``KL(self || other)`` in nats ``[...]``."""
        ratio = self.log_std - other.log_std
        distance = (self.mean - other.mean) * (-other.log_std).exp()
        return (0.5 * ((2.0 * ratio).exp() + distance.square() - 1.0) - ratio).sum(-1)

    def decoupled_kl(self, other: Normal) -> tuple[Tensor, Tensor]:
        """Return two divergences from ``self``: with the mean of ``other``, and with its standard deviation.

        MPO bounds each of them (Abdolmaleki et al. 2018, arXiv:1812.02256, section 4.2.1). Dimensions are not summed.

        Returns:
            Two tensors ``[..., action_size]``.
        """
        ratio = self.log_std - other.log_std
        distance = (other.mean - self.mean) * (-self.log_std).exp()
        return 0.5 * distance.square(), (0.5 * ((2.0 * ratio).exp() - 1.0) - ratio).expand_as(self.mean)

    def parameters(self) -> Tensor:
        """Return means, then logarithms of the standard deviations ``[..., 2 * action_size]``."""
        return torch.cat((self.mean, self.log_std.expand_as(self.mean)), -1)

    def with_parameters(self, parameters: Tensor) -> Normal:
        """See `Distribution.with_parameters`."""
        return Normal(*parameters.chunk(2, -1))


@dataclass(frozen=True)
class SquashedNormal:
    """``tanh`` of a Gaussian with independent dimensions (Haarnoja et al. 2018, arXiv:1812.05905, appendix C).

    The logarithm of the Jacobian, ``log(1 - tanh(u)**2)``, is computed as ``2 (log 2 - u - softplus(-2u))``, which
    stays precise where the tanh saturates.

    Attributes:
        mean: mean of the Gaussian, ``[..., action_size]``.
        log_std: natural logarithm of the Gaussian's standard deviation; broadcasts against ``mean``.
    """

    mean: Tensor
    log_std: Tensor

    def sample(self, n: int | None = None) -> tuple[Tensor, Tensor]:
        """Return reparametrised actions ``[(n,) ..., action_size]`` in [-1, 1] and log-densities ``[(n,) ...]``."""
        noise = _noise(self.mean, n)
        raw = self.mean + self.log_std.exp() * noise
        return raw.tanh(), (_log_density(noise, self.log_std) - _log_jacobian(raw)).sum(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density of ``action`` in [-1, 1].

        A saturated action, at or beyond `ATANH_LIMIT`, has the mean density of all saturated actions at its bound:
        their probability divided by the length of their interval.
        """
        raw = action.clamp(-ATANH_LIMIT, ATANH_LIMIT).atanh()
        scale = (-self.log_std).exp()
        density = _log_density((raw - self.mean) * scale, self.log_std) - _log_jacobian(raw)
        beyond = _log_ndtr((action.sign() * self.mean - _ATANH_OF_LIMIT) * scale) - _LOG_SATURATED_LENGTH
        return torch.where(action.abs() >= ATANH_LIMIT, beyond, density).sum(-1)

    def log_probability(self, action: Tensor, log_slope: Tensor, clipped: bool) -> Tensor:
        """See `Distribution.log_probability`."""
        return self.log_prob(action.to(self.mean.dtype)) + _inside(action, -log_slope).sum(-1)

    def entropy(self) -> Tensor:
        """Return the differential entropy in nats ``[...]``, estimated by one sample: there is no closed form."""
        return -self.sample()[1]

    def mode(self) -> Tensor:
        """Return ``tanh(mean)``, the median, which is the greedy action of a squashed policy."""
        return self.mean.tanh()

    def kl(self, other: SquashedNormal) -> Tensor:
        """Return ``KL(self || other)`` in nats ``[...]``. It is the divergence of the Gaussians: tanh is invertible."""
        return Normal(self.mean, self.log_std).kl(Normal(other.mean, other.log_std))

    def parameters(self) -> Tensor:
        """Return the parameters of the Gaussian; see `Normal.parameters`."""
        return Normal(self.mean, self.log_std).parameters()

    def with_parameters(self, parameters: Tensor) -> SquashedNormal:
        """See `Distribution.with_parameters`."""
        return SquashedNormal(*parameters.chunk(2, -1))


@dataclass(frozen=True)
class Beta:
    """Beta distributions of independent dimensions, stretched to [-1, 1] (Chou et al. 2017, PMLR 70:834-843).

    The density is 0 outside the bounds, so samples need not be clipped. With narrow peaks, densities are small
    differences of large numbers, which are therefore computed in 64 bits.

    Attributes:
        alpha, beta: ``[..., action_size]``, at least 1, so that the density has one peak.
    """

    alpha: Tensor
    beta: Tensor

    def sample(self, n: int | None = None) -> tuple[Tensor, Tensor]:
        """Return reparametrised actions ``[(n,) ..., action_size]`` in [-1, 1] and log-densities ``[(n,) ...]``."""
        shape = self.alpha.shape if n is None else (n, *self.alpha.shape)
        up, down = (torch.distributions.Gamma(x, torch.ones_like(x), validate_args=False) for x in self._pair)
        above, below = (each.rsample(shape[: len(shape) - self.alpha.dim()]) for each in (up, down))
        action = (above - below) / (above + below)
        return action, self.log_prob(action)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density of ``action`` in [-1, 1], clamped to `ATANH_LIMIT`: at 1 it may be infinite."""
        inside = action.clamp(-ATANH_LIMIT, ATANH_LIMIT).double()
        alpha, beta = self._precise
        density = (alpha - 1.0) * torch.log1p(inside) + (beta - 1.0) * torch.log1p(-inside)
        return self._total(density - (alpha + beta - 1.0) * _LOG_2 - _log_beta(alpha, beta))

    def log_probability(self, action: Tensor, log_slope: Tensor, clipped: bool) -> Tensor:
        """See `Distribution.log_probability`."""
        return self.log_prob(action.to(self.alpha.dtype)) + _inside(action, -log_slope).sum(-1)

    def mode(self) -> Tensor:
        """Return the peak; the middle of a uniform distribution."""
        up, down = self.alpha - 1.0, self.beta - 1.0
        return (up - down) / (up + down).clamp(min=1e-12)

    def entropy(self) -> Tensor:
        """Return the differential entropy in nats ``[...]``."""
        alpha, beta = self._precise
        both = alpha + beta
        mean = (alpha - 1.0) * alpha.digamma() + (beta - 1.0) * beta.digamma() - (both - 2.0) * both.digamma()
        return self._total(_log_beta(alpha, beta) - mean + _LOG_2)

    def kl(self, other: Beta) -> Tensor:
        """Return ``KL(self || other)`` in nats ``[...]``."""
        (alpha, beta), (other_alpha, other_beta) = self._precise, other._precise
        more, less = alpha - other_alpha, beta - other_beta
        mean = more * alpha.digamma() + less * beta.digamma() - (more + less) * (alpha + beta).digamma()
        return self._total(_log_beta(other_alpha, other_beta) - _log_beta(alpha, beta) + mean)

    def parameters(self) -> Tensor:
        """Return ``alpha``, then ``beta`` ``[..., 2 * action_size]``."""
        return torch.cat(self._pair, -1)

    def with_parameters(self, parameters: Tensor) -> Beta:
        """See `Distribution.with_parameters`."""
        return Beta(*parameters.chunk(2, -1))

    @property
    def _pair(self) -> tuple[Tensor, Tensor]:
        return self.alpha, self.beta

    @property
    def _precise(self) -> tuple[Tensor, Tensor]:
        if self.alpha.device.type == "mps":  # it has no 64-bit numbers
            return self._pair
        return self.alpha.double(), self.beta.double()

    def _total(self, of_dimensions: Tensor) -> Tensor:
        return of_dimensions.sum(-1).to(self.alpha.dtype)


@dataclass(frozen=True)
class Categorical:
    """Distribution over ``action_size`` discrete actions, or over several independent choices.

    Attributes:
        logits: unnormalised log-probabilities ``[..., action_size]``; ``[..., D, action_size]`` for several choices.
        allowed: bool, like ``logits``: all other actions have probability 0; ``None`` if all are allowed.
        several: whether there are several choices: actions are ``[..., D]``, and `log_prob`, `entropy`, `expectation`,
            `log_partition` and `kl` sums over them.
    """

    logits: Tensor
    allowed: Tensor | None = None
    several: bool = False

    @property
    def masked_logits(self) -> Tensor:
        """The logits, very low for actions that are not allowed."""
        return masked(self.logits, self.allowed)

    @property
    def log_probs(self) -> Tensor:
        """Log-probabilities ``[..., action_size]``."""
        return self.masked_logits.log_softmax(-1)

    @property
    def probs(self) -> Tensor:
        """Probabilities ``[..., action_size]``."""
        return self.masked_logits.softmax(-1)

    def sample(self, n: int | None = None) -> tuple[Tensor, Tensor]:
        """Return actions, int64 ``[(n,) ...]``, and their log-probabilities.

        They maximise logits plus Gumbel noise. Unlike ``torch.multinomial``, this checks nothing on the host.
        """
        shape = self.logits.shape if n is None else (n, *self.logits.shape)
        gumbel = -self.logits.new_empty(shape).exponential_().log()
        action = (self.masked_logits.detach() + gumbel).argmax(-1)
        return action, self.log_prob(action)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability of int64 ``action`` ``[...]``; extra leading dimensions broadcast."""
        log_probs = self.log_probs
        if action.dim() >= log_probs.dim():
            log_probs = log_probs.expand(*action.shape, -1)
        return self._sum(log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1))

    def log_probability(self, action: Tensor, log_slope: Tensor, clipped: bool) -> Tensor:
        """See `Distribution.log_probability`. Choices have neither units nor bounds."""
        log_prob = self.log_prob(action)
        return log_prob.masked_fill(log_prob < NEVER / 2, -math.inf)

    def _sum(self, of_choices: Tensor) -> Tensor:
        return of_choices.sum(-1) if self.several else of_choices

    def among(self, allowed: Tensor | None) -> Categorical:
        """Return the distribution restricted to the allowed actions."""
        return replace(self, allowed=allowed)

    def expectation(self, values: Tensor) -> Tensor:
        """Return the expectation ``[...]`` of ``values`` of each action, shaped like ``logits``."""
        return self._sum((self.log_probs.exp() * values).sum(-1))

    def log_partition(self) -> Tensor:
        """Return the logarithm ``[...]`` of the sum of ``exp(logit)`` over the allowed actions."""
        return self._sum(self.masked_logits.logsumexp(-1))

    def log_count(self) -> Tensor:
        """Return the logarithm ``[...]`` of the number of allowed actions. ``allowed`` must not be ``None``."""
        return self._sum(cast(Tensor, self.allowed).sum(-1).log())

    def mean_square(self) -> Tensor:
        """Return the mean ``[...]`` of the squared logits of allowed actions."""
        squares = self.logits.square()
        if self.allowed is None:
            return squares.flatten(-2).mean(-1) if self.several else squares.mean(-1)
        return self._sum((squares * self.allowed).sum(-1)) / self._sum(self.allowed.sum(-1))

    def mode(self) -> Tensor:
        """Return the most probable action, int64 ``[...]``."""
        return self.masked_logits.argmax(-1)

    def entropy(self) -> Tensor:
        """Return the entropy in nats ``[...]``."""
        log_probs = self.log_probs
        return self._sum(-(log_probs.exp() * log_probs).sum(-1))

    def kl(self, other: Categorical) -> Tensor:
        """Return ``KL(self || other)`` in nats ``[...]``."""
        log_probs = self.log_probs
        return self._sum((log_probs.exp() * (log_probs - other.log_probs)).sum(-1))

    def parameters(self) -> Tensor:
        """Return the logits ``[..., action_size]``; ``[..., D * action_size]`` for several choices."""
        return self.logits.flatten(-2) if self.several else self.logits

    def with_parameters(self, parameters: Tensor) -> Categorical:
        """See `Distribution.with_parameters`. The same actions are allowed."""
        logits = parameters.unflatten(-1, self.logits.shape[-2:]) if self.several else parameters
        return replace(self, logits=logits)


@dataclass(frozen=True)
class Joint:
    """Independent distributions of the parts of an action; see `birl.spaces.Composite`.

    Attributes:
        parts: a distribution for each part.
        actions: splits actions ``[..., W]`` into parts and joins them.
    """

    parts: tuple[Distribution, ...]
    actions: Composite

    def sample(self, n: int | None = None) -> tuple[Tensor, Tensor]:
        """Return actions ``[(n,) ..., W]`` and log-probabilities ``[(n,) ...]``."""
        drawn = [part.sample(n) for part in self.parts]
        return self.actions.join([action for action, _ in drawn]), self._total([log_prob for _, log_prob in drawn])

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the sum ``[...]`` over the parts; extra leading dimensions of ``action`` broadcast."""
        pairs = zip(self.parts, self.actions.split(action), strict=True)
        return self._total([part.log_prob(each) for part, each in pairs])

    def log_probability(self, action: Tensor, log_slope: Tensor, clipped: bool) -> Tensor:
        """See `Distribution.log_probability`. Continuous parts without bounds are not clipped."""
        slopes = log_slope.split(self.actions.widths, -1)
        free = [isinstance(part, Continuous) and part.unbounded for part in self.actions.parts]
        rows = zip(self.parts, self.actions.split(action), slopes, free, strict=True)
        return self._total([part.log_probability(each, slope, clipped and not own) for part, each, slope, own in rows])

    def mode(self) -> Tensor:
        """Return the modes of all parts."""
        return self.actions.join([part.mode() for part in self.parts])

    def entropy(self) -> Tensor:
        """Return the sum ``[...]`` in nats."""
        return self._total([part.entropy() for part in self.parts])

    def kl(self, other: Joint) -> Tensor:
        """Return ``KL(self || other)`` in nats ``[...]``."""
        return self._total([own.kl(each) for own, each in zip(self.parts, other.parts, strict=True)])

    def parameters(self) -> Tensor:
        """Return the parameters of all parts, concatenated ``[..., P]``."""
        return torch.cat([part.parameters() for part in self.parts], -1)

    def with_parameters(self, parameters: Tensor) -> Joint:
        """See `Distribution.with_parameters`."""
        sizes = [part.parameters().shape[-1] for part in self.parts]
        pairs = zip(self.parts, parameters.split(sizes, -1), strict=True)
        return replace(self, parts=tuple(part.with_parameters(own) for part, own in pairs))

    @staticmethod
    def _total(values: list[Tensor]) -> Tensor:
        return sum(values[1:], start=values[0])


def masked(values: Tensor, allowed: Tensor | None) -> Tensor:
    """Return ``values`` ``[..., A]``, very low where an action is not allowed."""
    return values if allowed is None else values.masked_fill(~allowed, NEVER)


def _inside(action: Tensor, value: Tensor) -> Tensor:
    """Return ``value`` for each column of an action ``[..., A]``, minus infinity outside of [-1, 1]."""
    return torch.where(action.abs() > 1.0 + _ROUNDING, -math.inf, value)


def _noise(mean: Tensor, n: int | None) -> Tensor:
    return torch.randn_like(mean) if n is None else torch.randn((n, *mean.shape), dtype=mean.dtype, device=mean.device)


def _log_density(noise: Tensor, log_std: Tensor) -> Tensor:
    return -0.5 * noise.square() - (log_std + _HALF_LOG_2PI)


def _log_jacobian(raw: Tensor) -> Tensor:
    return 2.0 * (_LOG_2 - raw - F.softplus(-2.0 * raw))


def _log_ndtr(x: Tensor) -> Tensor:
    """Return the logarithm of the standard normal distribution function, to 3e-6 in 32 bits.

    Torch's function overflows in ONNX below -13. Far below 0 this is the continued fraction of the Mills ratio.
    """
    below = -x.clamp(max=-2.5)
    fraction = below
    for k in range(20, 0, -1):
        fraction = below + k / fraction
    far = -0.5 * below.square() - _HALF_LOG_2PI - fraction.log()
    return torch.where(x < -2.5, far, (0.5 + 0.5 * torch.erf(x.clamp(min=-2.5) * math.sqrt(0.5))).log())


def _log_beta(alpha: Tensor, beta: Tensor) -> Tensor:
    """Return the logarithm of the beta function."""
    return alpha.lgamma() + beta.lgamma() - (alpha + beta).lgamma()
