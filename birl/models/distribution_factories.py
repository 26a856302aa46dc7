"""Factories of distributions over continuous actions, from the outputs of a network.

Discrete actions always have a categorical distribution.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from birl.checks import check
from birl.errors import ConfigError
from birl.files.serializable import Serializable
from birl.models.distributions import Beta, Normal, SquashedNormal

_STDS: Final = ("parameter", "spherical", "state", "fixed")


class DistributionFactory(Serializable):
    """Base of factories of distributions over ``size`` continuous action dimensions.

    Attributes:
        bounded: whether all samples are in [-1, 1].
    """

    bounded: ClassVar[bool] = False

    @abstractmethod
    def n_outputs(self, size: int) -> int:
        """Return the number of network outputs for each state."""

    def log_std(self, size: int) -> tuple[Tensor, bool] | None:
        """Return the initial log standard deviation ``[1 or size]`` and whether it is learned.

        ``None`` if the standard deviation depends on the state.
        """
        return None

    @abstractmethod
    def build(self, output: Tensor, log_std: Tensor | None) -> Normal | SquashedNormal | Beta:
        """Return the distribution.

        Args:
            output: outputs of the network, ``[..., n_outputs]``.
            log_std: current value of `log_std`.
        """


@dataclass(frozen=True)
class _GaussianFactory(DistributionFactory):
    """Base of Gaussians, squashed or not. The learned parameter is the logarithm of the standard deviation."""

    std: str = "parameter"
    initial_std: float = 1.0
    log_std_range: tuple[float, float] = (-20.0, 2.0)

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        own = type(self).__name__
        check(f"{own}.std", self.std, str, choices=_STDS)
        check(f"{own}.initial_std", self.initial_std, float, above=0)
        bounds = self.log_std_range
        if not isinstance(bounds, list | tuple) or len(bounds) != 2:
            raise ConfigError(f"{own}.log_std_range is {bounds!r:.80}; it must be two numbers, the lower one first")
        low, high = (check(f"{own}.log_std_range", bound, float) for bound in bounds)
        object.__setattr__(self, "log_std_range", (low, high))
        if not low <= math.log(self.initial_std) <= high:
            raise ConfigError(
                f"{own}.initial_std is {self.initial_std:g}, whose logarithm {math.log(self.initial_std):.3g} is "
                f"outside log_std_range, {low:g} to {high:g}: change one of them"
            )

    def n_outputs(self, size: int) -> int:
        return 2 * size if self.std == "state" else size

    def log_std(self, size: int) -> tuple[Tensor, bool] | None:
        if self.std == "state":
            return None
        length = 1 if self.std == "spherical" else size
        return torch.full((length,), math.log(self.initial_std)), self.std != "fixed"

    def _parts(self, output: Tensor, log_std: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the mean and the logarithm of the standard deviation."""
        if log_std is None:
            output, change = output.chunk(2, -1)
            log_std = change + math.log(self.initial_std)
        return output, log_std.clamp(*self.log_std_range)


@dataclass(frozen=True)
class NormalFactory(_GaussianFactory, type="normal"):
    """Gaussian, whose samples may leave the environment's bounds and are clipped to them.

    Attributes:
        std: source of the standard deviation: ``"parameter"``, a learned number for each dimension, the same in all
            states; ``"spherical"``, one learned number for all dimensions; ``"state"``, an output of the network;
            ``"fixed"``.
        initial_std: initial or fixed standard deviation, in units of the policy's actions.
        log_std_range: clamp of the natural logarithm of the standard deviation.
        tanh_mean: whether the mean is squashed to [-1, 1].
    """

    tanh_mean: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check("NormalFactory.tanh_mean", self.tanh_mean, bool)

    def build(self, output: Tensor, log_std: Tensor | None) -> Normal:
        mean, log_std = self._parts(output, log_std)
        return Normal(mean.tanh() if self.tanh_mean else mean, log_std)


@dataclass(frozen=True)
class SquashedNormalFactory(_GaussianFactory, type="squashed_normal"):
    """``tanh`` of a Gaussian: all samples are in [-1, 1], to which the environment's bounds are scaled.

    Its entropy is estimated by a sample.

    Attributes:
        std, initial_std, log_std_range: parameters of the Gaussian; see `NormalFactory`.
    """

    std: str = "state"
    bounded: ClassVar[bool] = True

    def build(self, output: Tensor, log_std: Tensor | None) -> SquashedNormal:
        return SquashedNormal(*self._parts(output, log_std))


@dataclass(frozen=True)
class BetaFactory(DistributionFactory, type="beta"):
    """Beta distributions on [-1, 1], to which the environment's bounds are scaled (Chou et al. 2017, PMLR 70:834-843).

    ``alpha`` and ``beta`` are ``1 + softplus`` of the network's outputs, so that there is one peak (section 4).
    """

    bounded: ClassVar[bool] = True

    def n_outputs(self, size: int) -> int:
        return 2 * size

    def build(self, output: Tensor, log_std: Tensor | None) -> Beta:
        return Beta(*(1.0 + F.softplus(output)).chunk(2, -1))
