"""Means over the real steps of a minibatch as dot products, which losses with many means take."""

from __future__ import annotations

import torch
from torch import Tensor


def shares(weight: Tensor) -> Tensor:
    """What each step counts in a mean: ``[M]`` for weights ``[...]`` of ``M`` steps in all, 0 at padding.

    ``torch.dot(x.flatten(), shares(weight))`` is ``weighted_mean(x, weight)``.
    """
    return (weight / weight.count_nonzero().clamp(min=1)).flatten()


def standardized(x: Tensor, share: Tensor) -> Tensor:
    """``x`` without its mean, by its standard deviation (of the steps themselves, not of a population) plus 1e-8.

    Args:
        x: ``[...]``, of ``M`` steps in all.
        share: ``[M]``, see `shares`.
    """
    x = x - torch.dot(x.flatten(), share)
    return x / (torch.dot(x.square().flatten(), share).sqrt() + 1e-8)
