"""Which rows to take: uniform draws over what a storage holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from birl.dataset.storage import FINAL, HEAD, NO_TRANSITION, Storage
from birl.errors import EmptyDataError
from birl.types import Array


def sample_rows(storage: Storage, generator: np.random.Generator, count: int, *, any_step: bool = False) -> Any:
    """Row numbers ``[count]``, uniform and independent, of transitions (or of any steps).

    Rejection over all rows: no index array is kept. Where rejection is not apt (most rows are rejected, or rows are
    drawn on a torch device, which it would have to wait for) an index is kept until the next write.

    Raises:
        EmptyDataError: if there is nothing to draw.
    """
    available = int(storage.steps.sum()) if any_step else storage.transition_count
    if available == 0:
        raise EmptyDataError(
            f"there is no {'step' if any_step else 'transition'} to sample among {int(storage.steps.sum())} steps: add "
            "data first. A truncated episode's last step needs final_observation to be a transition"
        )
    used = storage.used
    accepted = available / (used * storage.lanes)
    reject = FINAL if any_step else NO_TRANSITION
    if storage.device_draws:
        index = storage.cached(f"index {reject}", lambda: torch.nonzero((storage.device_flags & reject) == 0)[:, 0])
        drawn = torch.randint(
            len(index), (count,), device=index.device, generator=device_generator(storage, generator)
        )
        return index.index_select(0, drawn)
    if accepted < 0.25:
        index = storage.cached(f"index {reject}", lambda: np.flatnonzero((storage.flags & reject) == 0))
        return storage.place.indices(index[generator.integers(len(index), size=count)])
    draws = int(count / accepted * 1.05) + 4
    rows = _draw(storage, generator, draws, used, reject)
    while len(rows) < count:
        rows = np.concatenate([rows, _draw(storage, generator, draws, used, reject)])
    return storage.place.indices(rows[:count])


def sample_complete_rows(
    storage: Storage,
    generator: np.random.Generator,
    count: int,
    complete: Callable[[Storage, Any], Any],
    *,
    any_step: bool = False,
) -> Any:
    """As `sample_rows`, of rows that are ``complete``: those before which no frame that they need was evicted.

    Raises:
        EmptyDataError: if there is nothing to draw.
    """
    rows = sample_rows(storage, generator, count, any_step=any_step)
    if not (storage.flags[storage.rows(np.arange(storage.lanes), storage.start)] & HEAD).any():
        return rows
    rows = rows[complete(storage, rows)]
    if len(rows) < count:  # few steps are near a head: the rest comes from an index
        reject = FINAL if any_step else NO_TRANSITION
        index = storage.place.indices(np.flatnonzero((storage.flags & reject) == 0))
        index = index[complete(storage, index)]
        if not len(index):
            raise EmptyDataError("of every step some stacked frame was evicted: raise the buffer's limit")
        more = storage.place.indices(generator.integers(len(index), size=count - len(rows)))
        join: Any = np.concatenate if isinstance(rows, np.ndarray) else torch.cat
        rows = join([rows, index[more]])
    return rows


def _draw(storage: Storage, generator: np.random.Generator, count: int, used: int, reject: int) -> Array:
    """Uniform rows, less those that are rejected."""
    rows = generator.integers(used * storage.lanes, size=count)
    if storage.lanes > 1 and used < storage.capacity:
        rows = rows // used * storage.capacity + rows % used
    return rows[(storage.flags.take(rows) & reject) == 0]


def device_generator(storage: Storage, generator: np.random.Generator) -> torch.Generator:
    """The device's own generator, seeded once from ``generator``."""
    if storage.torch_generator is None:
        storage.torch_generator = torch.Generator(storage.place.device)
        storage.torch_generator.manual_seed(int(generator.integers(2**63)))
    return storage.torch_generator
