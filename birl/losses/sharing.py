"""Values that several losses of an update need, and that are computed once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from birl.types import Batch


def shared(batch: Batch, name: str, compute: Callable[[], Tensor]) -> Tensor:
    """Return the value that an earlier step of this update shared as ``name``, or compute it if none did."""
    if name in batch.extra:
        return batch.extra[name]
    with torch.no_grad():
        return compute()
