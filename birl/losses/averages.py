"""Means over the real steps of a minibatch as dot products, and the policy that selected their actions."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from birl.models.distributions import Distribution
from birl.types import Batch

DistributionT = TypeVar("DistributionT", bound=Distribution)


def shares(weight: Tensor) -> Tensor:
    """Return the weight ``[M]`` of each step in a mean, for weights ``[...]`` of ``M`` steps; 0 at padding.

    ``torch.dot(x.flatten(), shares(weight))`` is ``weighted_mean(x, weight)``.
    """
    return (weight / weight.count_nonzero().clamp(min=1)).flatten()


def explained_variance(value: Tensor, returns: Tensor, share: Tensor) -> Tensor:
    """Return the share of the variance of returns that values explain: ``1 - Var(returns - value) / Var(returns)``.

    It is at most 1, and values below -10 are reported as -10.

    Args:
        value, returns: ``[...]``, for ``M`` steps.
        share: ``[M]``, see `shares`.
    """
    pair = torch.stack([returns.flatten(), (returns - value).flatten()])
    total, unexplained = (pair - (pair @ share).unsqueeze(1)).square() @ share
    return (1 - unexplained / total.clamp(min=1e-12)).clamp(min=-10)


def rollout_metrics(batch: Batch) -> dict[str, Tensor]:
    """Return ``explained_variance`` of a rollout with the columns ``return`` and ``advantage``."""
    returns = batch.extra["return"]
    return {"explained_variance": explained_variance(returns - batch.extra["advantage"], returns, shares(batch.weight))}


def standardized(x: Tensor, share: Tensor) -> Tensor:
    """Subtract the mean of ``x``, and divide by its (biased) standard deviation plus 1e-8.

    Args:
        x: ``[...]``, for ``M`` steps.
        share: ``[M]``, see `shares`.
    """
    x = x - torch.dot(x.flatten(), share)
    return x / (torch.dot(x.square().flatten(), share).sqrt() + 1e-8)


def old_policy(policy: DistributionT, batch: Batch) -> DistributionT:
    """Return a distribution like ``policy`` with the parameters ``batch.extra["policy"]`` ``[..., P]``.

    At padding it has the parameters of ``policy``, detached: zeros may be no valid parameters.
    """
    current = policy.parameters().detach()
    return policy.with_parameters(torch.where(batch.weight.unsqueeze(-1) > 0, batch.extra["policy"], current))
