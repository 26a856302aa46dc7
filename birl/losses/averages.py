"""The real steps of a minibatch: means over them as dot products, and the policy that chose their actions."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from birl.models.distributions import Distribution
from birl.types import Batch

DistributionT = TypeVar("DistributionT", bound=Distribution)


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


def old_policy(policy: DistributionT, batch: Batch) -> DistributionT:
    """The distribution like ``policy`` with the parameters ``batch.extra["policy"]`` ``[..., P]``.

    At padding it is ``policy`` itself, without a gradient: zeros need not be parameters of any distribution.
    """
    own = policy.parameters().detach()
    return policy.with_parameters(torch.where(batch.weight.unsqueeze(-1) > 0, batch.extra["policy"], own))
