"""Reward scalers. All parameters are numbers, so they work on rewards of any shape.

``multiplier`` is applied last (see `ConstantShiftRewardScaler` for the exception) and cannot be 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from birl.checks import Allowed, check
from birl.errors import ConfigError
from birl.files.named import Serializable
from birl.preprocessing.base import Scaler, as_float, row_statistics
from birl.types import Array


class RewardScaler(Scaler, Serializable):
    """Base of reward scalers. Your own is ``class Mine(RewardScaler, type="mine")``."""

    def _values(self, episode: Any) -> Array:
        return np.asarray(episode.rewards).reshape(-1)


register_reward_scaler = RewardScaler.register


class _AffineReward(RewardScaler):
    """``transform(x) = (x - shift) / scale * multiplier``."""

    multiplier: float

    def _affine(self) -> tuple[float, float]:
        """shift, and a scale that is not 0."""
        return 0.0, 1.0

    def __post_init__(self) -> None:
        # The fields of all reward scalers are numbers; None stands for "to be fitted" (or "no limit").
        for field in fields(self):  # type: ignore[arg-type]
            kind = bool if isinstance(field.default, bool) else float
            allowed = Allowed(kind, optional=field.default is None)
            allowed.check(f"{type(self).__name__}.{field.name}", getattr(self, field.name))
        if self.multiplier == 0:
            raise ConfigError(f"{type(self).__name__}.multiplier is 0; it must not be, or all rewards would be equal")

    def _check_order(self, low: str, high: str) -> None:
        lower, upper = getattr(self, low), getattr(self, high)
        if (lower is None) != (upper is None):
            raise ConfigError(f"{type(self).__name__} takes {low} and {high} together, or neither")
        if lower is not None and lower > upper:
            raise ConfigError(f"{type(self).__name__}.{low} is {lower}; it must be <= {high}, which is {upper}")

    def transform(self, x: Any) -> Any:
        """Scaled rewards: float tensor of the shape of ``x``."""
        if not self.built:
            raise self._missing()
        shift, scale = self._affine()
        return (as_float(x) - shift) * (self.multiplier / scale)

    def reverse_transform(self, x: Any) -> Any:
        """Inverse of `transform`."""
        if not self.built:
            raise self._missing()
        shift, scale = self._affine()
        return as_float(x) * (scale / self.multiplier) + shift


@dataclass
class MultiplyRewardScaler(_AffineReward, type="multiply"):
    """``multiplier * x``."""

    multiplier: float = 1.0


@dataclass
class ClipRewardScaler(_AffineReward, type="clip"):
    """``multiplier * clip(x, low, high)``. The way back cannot restore what was clipped.

    Args:
        low: lower limit, or ``None`` for none.
        high: upper limit, or ``None`` for none.
        multiplier: applied after clipping.
    """

    low: float | None = None
    high: float | None = None
    multiplier: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ConfigError(f"ClipRewardScaler.low is {self.low}; it must be <= high, which is {self.high}")

    def transform(self, x: Any) -> Any:
        """Clipped rewards: float tensor of the shape of ``x``."""
        x = as_float(x)
        if self.low is not None or self.high is not None:
            x = torch.clamp(x, self.low, self.high)
        return x * self.multiplier


@dataclass
class MinMaxRewardScaler(_AffineReward, type="min_max"):
    """``multiplier * (x - minimum) / (maximum - minimum)``: to ``[0, multiplier]``.

    Args:
        minimum: least reward, or ``None`` to be fitted.
        maximum: greatest reward. If it equals ``minimum``, rewards are only shifted.
        multiplier: factor.
    """

    minimum: float | None = None
    maximum: float | None = None
    multiplier: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_order("minimum", "maximum")

    @property
    def built(self) -> bool:
        """Whether the bounds are known."""
        return self.minimum is not None

    def fit_with_episodes(self, episodes: Iterable[Any]) -> None:
        """Take the least and greatest reward of all steps."""
        statistics = row_statistics(self._values(episode) for episode in episodes)
        self.minimum, self.maximum = float(statistics.minimum), float(statistics.maximum)

    def _affine(self) -> tuple[float, float]:
        assert self.minimum is not None and self.maximum is not None
        return self.minimum, (self.maximum - self.minimum) or 1.0


@dataclass
class StandardRewardScaler(_AffineReward, type="standard"):
    """``multiplier * (x - mean) / (std + eps)``.

    Args:
        mean: mean reward, or ``None`` to be fitted.
        std: standard deviation of rewards.
        eps: positive constant that keeps constant rewards finite.
        multiplier: factor.
    """

    mean: float | None = None
    std: float | None = None
    eps: float = 1e-3
    multiplier: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.mean is None) != (self.std is None):
            raise ConfigError("StandardRewardScaler takes mean and std together, or neither")
        check("StandardRewardScaler.std", self.std, float, optional=True, low=0)
        check("StandardRewardScaler.eps", self.eps, float, above=0)

    @property
    def built(self) -> bool:
        """Whether mean and standard deviation are known."""
        return self.mean is not None

    def fit_with_episodes(self, episodes: Iterable[Any]) -> None:
        """Take mean and population standard deviation over all steps."""
        statistics = row_statistics(self._values(episode) for episode in episodes)
        self.mean, self.std = float(statistics.mean), float(statistics.std)

    def _affine(self) -> tuple[float, float]:
        assert self.mean is not None and self.std is not None
        return self.mean, self.std + self.eps


@dataclass
class ReturnBasedRewardScaler(_AffineReward, type="return"):
    """``multiplier * x / (return_max - return_min)``: the returns of all episodes span ``multiplier``.

    Used with this data by IQL and others (Kostrikov et al. 2021, arXiv:2110.06169, who multiply by 1000).

    Args:
        return_max: greatest undiscounted return of an episode, or ``None`` to be fitted.
        return_min: least return. If it equals ``return_max``, rewards are only multiplied.
        multiplier: factor.
    """

    return_max: float | None = None
    return_min: float | None = None
    multiplier: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_order("return_min", "return_max")

    @property
    def built(self) -> bool:
        """Whether the bounds are known."""
        return self.return_max is not None

    def fit_with_episodes(self, episodes: Iterable[Any]) -> None:
        """Take the least and greatest return of all episodes."""
        returns = [self._values(episode).sum(dtype=np.float64) for episode in episodes]
        statistics = row_statistics([np.array(returns)])
        self.return_min, self.return_max = float(statistics.minimum), float(statistics.maximum)

    def _affine(self) -> tuple[float, float]:
        assert self.return_max is not None and self.return_min is not None
        return 0.0, (self.return_max - self.return_min) or 1.0


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
