"""Learned scalars: temperatures and Lagrange multipliers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from birl.errors import ConfigError

SMALLEST = 1e-8
"""Least value of a softplus `Scalar`: what is divided by it stays finite."""


class Scalar(nn.Module):
    """A learned positive number, or several, held as the logarithm.

    Args:
        initial: value at the start, above 0.
        transform: ``"exp"``; ``"softplus"`` for one that is held as it is where it is large, and is at least
            `SMALLEST`; or ``"identity"`` for a number of any sign that is held as it is.
        size: how many numbers there are, all with the same start; ``None`` for one without dimensions.

    Raises:
        ConfigError: if ``initial`` or ``transform`` is out of range.
    """

    def __init__(self, initial: float, transform: str = "exp", size: int | None = None) -> None:
        super().__init__()
        if transform not in ("exp", "softplus", "identity"):
            raise ConfigError(f"transform is {transform!r}; it must be 'exp', 'softplus' or 'identity'")
        if transform != "identity" and not initial > 0:
            raise ConfigError(f"initial is {initial!r}; it must be a float > 0 because its logarithm is learned")
        self.transform = transform
        raw = float(initial)
        if transform == "exp":
            raw = math.log(initial)
        elif transform == "softplus":
            raw = initial + math.log(-math.expm1(-initial))
        self.raw = nn.Parameter(torch.full(() if size is None else (size,), raw))

    def forward(self) -> Tensor:
        """The value, a tensor without dimensions or ``[size]``."""
        if self.transform == "softplus":
            return F.softplus(self.raw) + SMALLEST
        return self.raw.exp() if self.transform == "exp" else self.raw
