"""Action scalers, which map between the environment's actions and the policy's range ``[-1, 1]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from birl.files.serializable import Serializable
from birl.preprocessing.base import MinMax, Scaler, as_float
from birl.spaces.actions import inner_bounds
from birl.types import Array


class ActionScaler(Scaler, Serializable):
    """Base class of scalers of continuous actions. Define your own with ``class Mine(ActionScaler, type="mine")``."""

    _quantity = "action"

    def log_slope(self, x: Tensor) -> Tensor:
        """Return the logarithm of the slope of `reverse_transform` at actions ``x`` ``[..., A]``.

        It is minus infinity where the map is flat. Densities are divided by the slope. A scaler must map each dimension
        independently of the others.
        """
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.reverse_transform(at).sum(), at)
        return slope.abs().log()


register_action_scaler = ActionScaler.register


@dataclass(eq=False)
class MinMaxActionScaler(MinMax, ActionScaler, type="min_max"):
    """Scaler of each dimension from ``[minimum, maximum]`` to ``[-1, 1]``.

    A constant dimension is mapped to 0, and its inverse is the constant.

    Args:
        minimum: lower bounds ``[action_size]``; ``None`` to fit them.
        maximum: upper bounds.
    """

    _inner: ClassVar[Any]  # for dataclasses, no field: the bounds rounded inwards, in a slot
    __slots__ = ("_inner",)  # like `Affine._cache`

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        low, high = (getattr(self, each, None) for each in ("minimum", "maximum"))
        if name in self._fitted and isinstance(low, np.ndarray) and isinstance(high, np.ndarray):
            super().__setattr__("_inner", inner_bounds(low, high))  # here, because it cannot be compiled

    def reverse_transform(self, x: Tensor) -> Tensor:
        """Compute the inverse of `transform`.

        -1 and 1 give exactly the bounds, rounded inwards to float32, so no action is outside its space.
        """
        x = as_float(x)
        *_, minimum, maximum = self._tensors(x)
        return torch.lerp(minimum, maximum, (x + 1) / 2)

    def log_slope(self, x: Tensor) -> Tensor:
        """See `ActionScaler.log_slope`. The slope is constant, so exports need no differentiation."""
        *_, minimum, maximum = self._tensors(x)
        return ((maximum - minimum) / 2).log().expand_as(x)

    def _constants(self) -> tuple[Array, ...]:
        return *super()._constants(), *self._inner
