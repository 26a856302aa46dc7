"""Targets of the temporal-difference loss: returns, or plain tensors of expected returns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from birl.errors import ConfigError, ShapeError
from birl.losses import td_loss
from birl.models.value_distributions import MeanReturns, QuantileReturns

BATCH: Any = SimpleNamespace(weight=torch.ones(5))
VALUES = torch.arange(10.0).reshape(2, 5).requires_grad_()


@pytest.mark.parametrize("delta", [None, 1.0])
def test_a_tensor_is_a_target_of_expected_returns(delta: float | None) -> None:
    for target in (torch.linspace(0, 3, 5), torch.linspace(0, 3, 10).reshape(2, 5)):
        moving = (target * 1).requires_grad_()
        loss = td_loss(MeanReturns(VALUES), moving, BATCH, delta=delta)
        expected = td_loss(MeanReturns(VALUES), MeanReturns(target), BATCH, delta=delta)
        assert torch.equal(loss.value, expected.value)
        assert torch.equal(loss.compute_priority(), expected.compute_priority())  # type: ignore[arg-type]
        loss.value.backward()
        assert moving.grad is None


def test_other_targets_are_refused_by_name() -> None:
    mean, quantiles = MeanReturns(VALUES), QuantileReturns(torch.zeros(2, 5, 3), torch.full((3,), 0.5))
    for shape in ((5, 1), (1,), (2, 5, 1)):  # these would be broadcast
        with pytest.raises(ShapeError, match=r"the target of td_loss has shape .*; it must have \(5,\)"):
            td_loss(mean, torch.zeros(shape), BATCH)
    with pytest.raises(ConfigError, match="a tensor, but the prediction is a distribution, QuantileReturns: back up"):
        td_loss(quantiles, torch.zeros(5), BATCH)
    with pytest.raises(ConfigError, match="the target of td_loss is a float; it must be returns"):
        td_loss(mean, 0.5, BATCH)  # type: ignore[arg-type]
