"""The dual step of maximum-entropy reinforcement learning."""

from __future__ import annotations

from torch import Tensor

from birl.types import Loss, weighted_mean


def temperature_loss(temperature: Tensor, entropy: Tensor, target: float, weight: Tensor) -> Loss:
    """``J(alpha) = E[alpha * (entropy - target)]`` (arXiv:1812.05905, eq. 18).

    Alpha falls while the entropy exceeds its target.

    Args:
        temperature: the scalar ``alpha``.
        entropy: ``[...]``: the policy's entropy, or ``-log pi(a|s)`` as its one-sample estimate; not differentiated.
        target: entropy to aim at.
        weight: ``[...]``.
    """
    value = temperature * weighted_mean(entropy.detach() - target, weight)
    return Loss(value, {"temp": temperature})
