"""The temporal-difference loss of Q-learning algorithms."""

from __future__ import annotations

from torch import Tensor

from birl.errors import ConfigError, ShapeError
from birl.models.value_distributions import MeanReturns, Returns
from birl.types import Batch, Loss, real_steps


def td_loss(
    prediction: Returns, target: Returns | Tensor, batch: Batch, metric: str = "", delta: float | None = None
) -> Loss:
    """Return the distance between predicted and target returns, summed over the ensemble, averaged over the batch.

    The mean prediction is logged as ``q_value``.

    Args:
        prediction: returns ``[N, ...]`` of the taken actions.
        target: returns ``[...]``, backed up; or a tensor of expected returns ``[...]`` or ``[N, ...]``, if the
            prediction has expectations.
        batch: the batch, whose weights are ``[...]``.
        metric: name under which the loss is logged in addition; empty for none.
        delta: Huber threshold for scalar returns; ``None`` for the squared error.

    Raises:
        ConfigError: if the target is a tensor and the prediction a distribution, or it is no returns at all.
        ShapeError: if a tensor has another shape.
    """
    target = _as_returns(prediction, target)
    loss = prediction.td_loss(target, delta)
    count, predicted = real_steps(batch.weight), prediction.mean().detach()
    value = (loss * batch.weight).sum() / count
    metrics = {"q_value": (predicted * batch.weight).sum() / (count * len(predicted))}
    metrics |= {metric: value} if metric else {}
    return Loss(value, metrics, priority=lambda: prediction.error(target, loss).mean(0))


def _as_returns(prediction: Returns, target: Returns | Tensor) -> Returns:
    """Return the target as returns; a tensor becomes expectations without a gradient."""
    own = type(prediction).__name__
    if not isinstance(target, Tensor):
        if hasattr(target, "backup"):
            return target
        raise ConfigError(
            f"the target of td_loss is a {type(target).__name__}; it must be returns like the prediction, {own}: "
            "back up the target network's returns, such as nets.critic_target(…).min().backup(reward, discount)"
        )
    if not isinstance(prediction, MeanReturns):
        raise ConfigError(
            f"the target of td_loss is a tensor, but the prediction is a distribution, {own}: back up the target "
            "network's returns, such as nets.critic_target(…).min().backup(reward, discount), or use a mean head"
        )
    shape = prediction.values.shape
    if target.shape not in (shape, shape[1:]):
        raise ShapeError(
            f"the target of td_loss has shape {tuple(target.shape)}; it must have {tuple(shape[1:])}, a number for "
            f"each element of the batch, or {tuple(shape)}: squeeze or index it"
        )
    return MeanReturns(target.detach())
