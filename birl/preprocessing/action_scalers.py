"""Action scalers. Policies act in ``[-1, 1]``; these translate to the units of the environment and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from birl.files.serializable import Serializable
from birl.preprocessing.base import MinMax, Scaler, as_float
from birl.types import Array


class ActionScaler(Scaler, Serializable):
    """Base of scalers of continuous actions. Your own is ``class Mine(ActionScaler, type="mine")``."""

    _scaled = "action"

    def log_slope(self, x: Tensor) -> Tensor:
        """Logarithm of the slope of `reverse_transform` at actions ``x`` ``[..., A]``, minus infinity where it is flat.

        Densities are divided by it. A scaler maps each dimension by itself.
        """
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.reverse_transform(at).sum(), at)
        return slope.abs().log()


register_action_scaler = ActionScaler.register


@dataclass(eq=False)
class MinMaxActionScaler(MinMax, ActionScaler, type="min_max"):
    """Map ``[minimum, maximum]`` to ``[-1, 1]``, each dimension by itself.

    A constant dimension becomes 0, and every action of the policy comes back as the constant.

    Args:
        minimum: lower bounds ``[action_size]``, or ``None`` to be fitted.
        maximum: upper bounds.
    """

    def reverse_transform(self, x: Any) -> Any:
        """Inverse of `transform`. -1 and 1 give the bounds to the last bit, so no action leaves its space."""
        x = as_float(x)
        *_, minimum, maximum = self._tensors(x)
        return torch.lerp(minimum, maximum, (x + 1) / 2)

    def log_slope(self, x: Tensor) -> Tensor:
        """See `ActionScaler.log_slope`. The same everywhere, and so without differentiation in exports."""
        *_, minimum, maximum = self._tensors(x)
        return ((maximum - minimum) / 2).log().expand_as(x)

    def _constants(self) -> tuple[Array, ...]:
        return *super()._constants(), self.minimum, self.maximum
