"""Statistics of gradients, for the logs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def statistics(gradients: Iterable[Tensor]) -> Tensor:
    """`GRADIENT_STATISTICS` of each gradient: float32 ``[n, 4]``, on the device. Nothing waits for it."""
    rows = [torch.stack([g.amin(), g.amax(), g.mean(), g.std(correction=0)]) for g in gradients]
    return torch.stack(rows).to(torch.float32)
