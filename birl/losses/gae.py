"""Generalised advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor


def generalized_advantage(
    reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, ended: Tensor, gae_lambda: float
) -> Tensor:
    """Advantages by GAE (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    ``delta_t = r_t + discount_t * V(s'_t) - V(s_t)`` uses the true next observation ``s'_t``, so an episode cut by a
    time limit is bootstrapped and a terminated one is not; the sum over later deltas stops at either end.

    Args:
        reward, value, next_value: ``[T, B]``.
        discount: ``[T, B]``: ``gamma * (1 - terminated)``.
        ended: ``[T, B]``: 1 where the step is the last of its episode, terminated or truncated.
        gae_lambda: ``lambda`` in ``[0, 1]``.

    Returns:
        Advantages ``[T, B]``.
    """
    delta = reward + discount * next_value - value
    decay = discount * gae_lambda * (1 - ended)
    advantage, later = torch.zeros_like(delta), torch.zeros_like(delta[0])
    for step in range(len(delta) - 1, -1, -1):
        later = delta[step] + decay[step] * later
        advantage[step] = later
    return advantage
