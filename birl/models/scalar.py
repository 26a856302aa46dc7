"""Learned scalars: temperatures and Lagrange multipliers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from birl.errors import ConfigError


class Scalar(nn.Module):
    """A learned positive number, held as its logarithm.

    Args:
        initial: value at the start, above 0.
        transform: ``"exp"``, or ``"identity"`` for a number of any sign that is held as it is.

    Raises:
        ConfigError: if ``initial`` or ``transform`` is out of range.
    """

    def __init__(self, initial: float, transform: str = "exp") -> None:
        super().__init__()
        if transform not in ("exp", "identity"):
            raise ConfigError(f"transform is {transform!r}; it must be 'exp' or 'identity'")
        if transform == "exp" and not initial > 0:
            raise ConfigError(f"initial is {initial!r}; it must be a float > 0 because its logarithm is learned")
        self.transform = transform
        self.raw = nn.Parameter(torch.tensor(math.log(initial) if transform == "exp" else float(initial)))

    def forward(self) -> Tensor:
        """The value, a tensor without dimensions."""
        return self.raw.exp() if self.transform == "exp" else self.raw
