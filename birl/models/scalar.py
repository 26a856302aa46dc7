"""Learned scalars: temperatures and Lagrange multipliers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from birl.errors import ConfigError

SMALLEST = 1e-8
"""Least value of a softplus `Scalar`, so that divisions by it stay finite."""


class Scalar(nn.Module):
    """A learned positive number or vector, stored as its logarithm.

    Args:
        initial: initial value, above 0.
        transform: ``"exp"``; ``"softplus"`` for a value of at least `SMALLEST` that changes linearly with the parameter
            where it is large; or ``"identity"`` for a number of any sign that is the parameter itself.
        size: number of values, all with the same initial value; ``None`` for one value without dimensions.

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
        """Return the value, a tensor without dimensions or ``[size]``."""
        if self.transform == "softplus":
            return F.softplus(self.raw) + SMALLEST
        return self.raw.exp() if self.transform == "exp" else self.raw
