"""The return value of loss functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from birl.types import Batch


@dataclass(frozen=True)
class Loss:
    """A loss with its metrics and the values that it shares.

    Attributes:
        value: the scalar to minimise.
        metrics: further scalars to log, by name.
        share: values that later steps of the same update also need; see `shared`.
    """

    value: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
    share: dict[str, Tensor] = field(default_factory=dict)

    def detached(self) -> Loss:
        """The same without gradients."""
        metrics, share = ({name: x.detach() for name, x in each.items()} for each in (self.metrics, self.share))
        return Loss(self.value.detach(), metrics, share)

    def shared_with(self, batch: Batch) -> Batch:
        """``batch`` with `share` in its ``extra``."""
        return replace(batch, extra={**batch.extra, **self.share}) if self.share else batch


def shared(batch: Batch, name: str, compute: Callable[[], Tensor]) -> Tensor:
    """The value that an earlier step of this update shared as ``name``, computed if none did."""
    if name in batch.extra:
        return batch.extra[name]
    with torch.no_grad():
        return compute()
