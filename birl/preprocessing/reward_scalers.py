"""Reward scalers. All parameters are numbers, so they work with rewards of any shape.

``multiplier`` is applied last, except in `ConstantShiftRewardScaler` with ``multiply_first``, and must not be 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from birl.checks import Allowed, check
from birl.errors import ConfigError
from birl.files.serializable import Serializable
from birl.preprocessing.base import Fitted, Scaler, Steps, as_float, row_statistics
from birl.types import Array


class RewardScaler(Scaler, Serializable):
    """Base class of reward scalers. Define your own with ``class Mine(RewardScaler, type="mine")``."""

    _quantity = "reward"

    additive: ClassVar[bool] = False
    """Whether the sum of scaled rewards equals the scaled sum, which n-step returns require."""

    def _values(self, episode: Steps) -> Array:
        return np.asarray(super()._values(episode)).reshape(-1)


register_reward_scaler = RewardScaler.register


class _AffineReward(RewardScaler):
    """``transform(x) = (x - shift) / scale * multiplier``."""

    multiplier: float

    def _affine(self) -> tuple[float, float]:
        """Return the shift, and a scale other than 0."""
        return 0.0, 1.0

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            kind = bool if isinstance(field.default, bool) else float
            allowed = Allowed(kind, optional=field.default is None)  # None: fit the parameter, or no limit
            value = allowed.check(f"{type(self).__name__}.{field.name}", getattr(self, field.name))
            setattr(self, field.name, value)
        if self.multiplier == 0:
            raise ConfigError(f"{type(self).__name__}.multiplier is 0; it must not be, or all rewards would be equal")

    def transform(self, x: Tensor) -> Tensor:
        """Scale rewards. Returns a float tensor of the same shape."""
        shift, scale = self._affine()
        return (as_float(x) - shift) * (self.multiplier / scale)

    def reverse_transform(self, x: Tensor) -> Tensor:
        """Compute the inverse of `transform`."""
        shift, scale = self._affine()
        return as_float(x) * (scale / self.multiplier) + shift


@dataclass
class MultiplyRewardScaler(_AffineReward, type="multiply"):
    """``multiplier * x``."""

    multiplier: float = 1.0

    additive = True


@dataclass
class ClipRewardScaler(_AffineReward, type="clip"):
    """``multiplier * clip(x, low, high)``. The inverse does not restore clipped rewards.

    Args:
        low: lower limit, or ``None`` for no limit.
        high: upper limit, or ``None`` for no limit.
        multiplier: applied after clipping.
    """

    low: float | None = None
    high: float | None = None
    multiplier: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ConfigError(f"ClipRewardScaler.low is {self.low}; it must be <= high, which is {self.high}")

    def transform(self, x: Tensor) -> Tensor:
        """Clip rewards. Returns a float tensor of the same shape."""
        x = as_float(x)
        if self.low is not None or self.high is not None:
            x = torch.clamp(x, self.low, self.high)
        return x * self.multiplier


@dataclass
class MinMaxRewardScaler(Fitted, _AffineReward, type="min_max"):
    """``multiplier * (x - minimum) / (maximum - minimum)``: maps rewards to ``[0, multiplier]``.

    Args:
        minimum: smallest reward; ``None`` to fit it.
        maximum: largest reward. If it equals ``minimum``, rewards are only shifted.
        multiplier: factor.
    """

    minimum: float | None = None
    maximum: float | None = None
    multiplier: float = 1.0

    _fitted = ("minimum", "maximum")

    def _affine(self) -> tuple[float, float]:
        minimum, maximum = self._parameters()
        return minimum, (maximum - minimum) or 1.0


@dataclass
class StandardRewardScaler(Fitted, _AffineReward, type="standard"):
    """``multiplier * (x - mean) / (std + eps)``.

    Args:
        mean: mean reward; ``None`` to fit it.
        std: standard deviation of rewards.
        eps: positive constant that keeps constant rewards finite.
        multiplier: factor.
    """

    mean: float | None = None
    std: float | None = None
    eps: float = 1e-3
    multiplier: float = 1.0

    _fitted = ("mean", "std")

    def __post_init__(self) -> None:
        super().__post_init__()
        check("StandardRewardScaler.eps", self.eps, float, above=0)

    def _affine(self) -> tuple[float, float]:
        mean, std = self._parameters()
        return mean, std + self.eps


@dataclass
class ReturnBasedRewardScaler(Fitted, _AffineReward, type="return"):
    """``multiplier * x / (return_max - return_min)``: the returns of all episodes span a range of ``multiplier``.

    Used by IQL and others on D4RL (Kostrikov et al. 2021, arXiv:2110.06169, with ``multiplier=1000``).

    Args:
        return_max: largest undiscounted return of an episode; ``None`` to fit it.
        return_min: smallest return. If it equals ``return_max``, rewards are only multiplied.
        multiplier: factor.
    """

    return_max: float | None = None
    return_min: float | None = None
    multiplier: float = 1.0

    additive = True
    _fitted = ("return_min", "return_max")

    def fit_with_episodes(self, episodes: Iterable[Steps]) -> None:
        check("episodes", episodes, Iterable, ": give dataset.episodes")  # type: ignore[type-abstract]
        returns = [self._values(episode).sum(dtype=np.float64) for episode in episodes]
        statistics = row_statistics([np.array(returns)])
        self._set(statistics.minimum, statistics.maximum)

    def _affine(self) -> tuple[float, float]:
        low, high = self._parameters()
        return 0.0, (high - low) or 1.0


@dataclass
class ConstantShiftRewardScaler(_AffineReward, type="shift"):
    """``multiplier * (x + shift)``, or ``multiplier * x + shift`` with ``multiply_first``.

    Args:
        shift: added to every reward.
        multiplier: factor.
        multiply_first: multiply before the shift instead of after it.
    """

    shift: float
    multiplier: float = 1.0
    multiply_first: bool = False

    def _affine(self) -> tuple[float, float]:
        return -(self.shift / self.multiplier if self.multiply_first else self.shift), 1.0
