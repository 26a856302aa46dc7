"""What a loss function returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from birl.types import Batch


@dataclass(frozen=True)
class Loss:
    """A loss with what there is to know about it.

    Attributes:
        value: the scalar to minimise.
        metrics: further scalars to log, by name.
        priority: non-negative ``[B]``: how surprising each transition was, for prioritised replay.
        carry: values that losses of later phases of the same update need too; see `carried`.
    """

    value: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
    priority: Tensor | None = None
    carry: dict[str, Tensor] = field(default_factory=dict)

    def detached(self) -> Loss:
        """The same without gradients."""
        metrics, carry = ({name: x.detach() for name, x in each.items()} for each in (self.metrics, self.carry))
        return replace(self, value=self.value.detach(), metrics=metrics, carry=carry)

    def carried_on(self, batch: Batch) -> Batch:
        """``batch`` with `carry` in its ``extra``."""
        return replace(batch, extra={**batch.extra, **self.carry}) if self.carry else batch


def carried(batch: Batch, name: str, compute: Callable[[], Tensor]) -> Tensor:
    """What an earlier phase of this update carried on as ``name``; computed if that phase was not due, or left out."""
    if name in batch.extra:
        return batch.extra[name]
    with torch.no_grad():
        return compute()
