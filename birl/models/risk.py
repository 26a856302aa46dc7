"""Risk measures for the selection of actions by quantiles (Dabney et al. 2018, arXiv:1806.06923, section 3).

A measure distorts the uniform quantile levels ``tau`` to ``beta(tau)``, and actions are compared by the mean over the
distorted levels. A neutral measure changes nothing. Levels and targets of losses are never distorted.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from birl.checks import check
from birl.files.serializable import Serializable
from birl.models.value_distributions import midpoints


class RiskMeasure(Serializable):
    """Base of risk measures: a distortion ``beta`` of levels in [0, 1]."""

    @abstractmethod
    def distort(self, taus: Tensor) -> Tensor:
        """Return ``beta(tau)``, which increases from 0 to at most 1."""

    def draw(self, size: tuple[int, ...], like: Tensor) -> Tensor:
        """Draw random distorted levels of this size, on the device and in the dtype of ``like``."""
        return self.distort(torch.rand(size, dtype=like.dtype, device=like.device))

    def levels(self, n: int) -> Tensor:
        """Return ``n`` fixed levels: the midpoints of equal parts of [0, 1], distorted."""
        return self.distort(midpoints(n, torch.float64)).to(torch.get_default_dtype())

    def masses(self, n: int) -> Tensor:
        """Return the weight of each of ``n`` quantiles: the share of distorted levels in its part of [0, 1]."""
        inside = self.share_below(torch.arange(1, n, dtype=torch.float64) / n)
        shares = torch.cat((inside.new_zeros(1), inside, inside.new_ones(1))).diff()
        return shares.to(torch.get_default_dtype())

    def share_below(self, taus: Tensor) -> Tensor:
        """Return the shares of distorted levels that are at most ``taus``, numbers between 0 and 1."""
        return _inverse(self.distort, taus)


def _inverse(rising: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
    """Find for each ``y`` the largest ``x`` in [0, 1] with ``rising(x) <= y``, by bisection."""
    low, high = torch.zeros_like(y), torch.ones_like(y)
    for _ in range(60):
        middle = (low + high) / 2
        below = rising(middle) <= y
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return torch.where(rising(torch.ones_like(y)) <= y, torch.ones_like(y), (low + high) / 2)


@dataclass(frozen=True)
class CVaR(RiskMeasure, type="cvar"):
    """Conditional value at risk, ``beta(tau) = eta tau``: the mean of the worst share of returns.

    Attributes:
        eta: the share, in (0, 1]; 1 is neutral.
    """

    eta: float = 0.25

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check("CVaR.eta", self.eta, float, above=0, high=1)

    def distort(self, taus: Tensor) -> Tensor:
        return self.eta * taus


@dataclass(frozen=True)
class CPW(RiskMeasure, type="cpw"):
    """Cumulative probability weighting (Tversky and Kahneman 1992): rare returns, good and bad ones, count more.

    ``beta(tau) = tau^eta / (tau^eta + (1 - tau)^eta)^(1 / eta)``.

    Attributes:
        eta: in [0.3, 1]; 1 is neutral, and 0.71 describes people. Below 0.3 the measure would not be monotonic.
    """

    eta: float = 0.71

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check("CPW.eta", self.eta, float, low=0.3, high=1)

    def distort(self, taus: Tensor) -> Tensor:
        power = taus**self.eta
        return power / (power + (1 - taus) ** self.eta) ** (1 / self.eta)


@dataclass(frozen=True)
class Wang(RiskMeasure, type="wang"):
    """``beta(tau) = Phi(Phi^-1(tau) + eta)``, where ``Phi`` is the normal distribution (Wang 2000).

    Attributes:
        eta: below 0 risk is avoided, above 0 sought; 0 is neutral.
    """

    eta: float = -0.75

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check("Wang.eta", self.eta, float)

    def distort(self, taus: Tensor) -> Tensor:
        return torch.special.ndtr(torch.special.ndtri(taus) + self.eta)


@dataclass(frozen=True)
class Power(RiskMeasure, type="power"):
    """``tau^(1 / (1 + |eta|))`` if ``eta >= 0``, else ``1 - (1 - tau)^(1 / (1 + |eta|))``.

    Attributes:
        eta: below 0 risk is avoided, above 0 sought; 0 is neutral.
    """

    eta: float = -2.0

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check("Power.eta", self.eta, float)

    def distort(self, taus: Tensor) -> Tensor:
        exponent = 1 / (1 + abs(self.eta))
        return taus**exponent if self.eta >= 0 else 1 - (1 - taus) ** exponent


@dataclass(frozen=True)
class Norm(RiskMeasure, type="norm"):
    """Each level is the mean of some uniform numbers, so that extreme returns count less.

    Attributes:
        k: number of uniform numbers, from 1 to 12; 1 is neutral.
    """

    k: int = 3

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check("Norm.k", self.k, int, low=1, high=12)

    def draw(self, size: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.rand((*size, self.k), dtype=like.dtype, device=like.device).mean(-1)

    def distort(self, taus: Tensor) -> Tensor:
        """Return the quantiles of the mean of ``k`` uniform numbers."""
        return _inverse(self.share_below, taus)

    def share_below(self, taus: Tensor) -> Tensor:
        """Return the distribution function of this mean (Irwin-Hall)."""
        k = self.k
        terms = [(-1) ** j * math.comb(k, j) * (k * taus - j).clamp(min=0) ** k for j in range(k + 1)]
        return torch.stack(terms).sum(0) / math.factorial(k)
