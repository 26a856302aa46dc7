"""The temporal-difference loss of Q-learning algorithms."""

from __future__ import annotations

from birl.models.value_distributions import Returns
from birl.types import Batch, Loss, weighted_mean


def td_loss(prediction: Returns, target: Returns, batch: Batch, metric: str = "", delta: float | None = None) -> Loss:
    """Return the distance between predicted and target returns, summed over the ensemble, averaged over the batch.

    The mean prediction is logged as ``q_value``.

    Args:
        prediction: returns ``[N, ...]`` of the taken actions.
        target: returns ``[...]``, backed up.
        batch: the batch, whose weights are ``[...]``.
        metric: name under which the loss is logged in addition; empty for none.
        delta: Huber threshold for scalar returns; ``None`` for the squared error.
    """
    loss = prediction.td_loss(target, delta)
    value = weighted_mean(loss, batch.weight).sum()
    metrics = {"q_value": weighted_mean(prediction.mean().detach(), batch.weight).mean()}
    metrics |= {metric: value} if metric else {}
    return Loss(value, metrics, priority=lambda: prediction.error(target, loss).mean(0))
