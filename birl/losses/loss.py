"""What a loss function returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Loss"]


@dataclass(frozen=True)
class Loss:
    """A loss with what there is to know about it.

    Attributes:
        value: the scalar to minimise.
        metrics: further scalars to log, by name.
        priority: non-negative ``[B]``: how surprising each transition was, for prioritised replay.
    """

    value: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
    priority: Tensor | None = None
