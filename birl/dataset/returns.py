"""Discounted returns of the data, for algorithms that ask for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from birl.dataset.storage import FINAL, Storage
from birl.types import Array

__all__ = ["DiscountedReturns"]


@dataclass
class _Kept:
    """What was computed for one storage: returns of all rows, and up to which position of each lane they stay."""

    values: Any
    over: Array
    version: int
    generation: int


class DiscountedReturns:
    """Discounted sums of the rewards from a step to the end of its episode.

    An episode that was cut by a time limit, or is still running, is summed up to its last step.

    All rows are computed at once when they are first asked for, and kept; after a write only those of episodes that
    were not over before it.

    Args:
        gamma: discount factor of one step.
        scale: applied to the rewards ``[R]`` before they are summed; ``None`` for nothing.
    """

    def __init__(self, gamma: float, scale: Callable[[Array], Array] | None = None) -> None:
        self.gamma, self._scale = gamma, scale
        self._kept: WeakKeyDictionary[Storage, _Kept] = WeakKeyDictionary()

    def __deepcopy__(self, memo: Any) -> DiscountedReturns:
        return DiscountedReturns(self.gamma, self._scale)

    def columns(self, storage: Storage, rows: Any) -> dict[str, Any]:
        """Float32 ``return_to_go`` ``[..., 1]`` of the steps at ``rows`` ``[...]``."""
        return {"return_to_go": storage.place.take(self._values(storage), rows)[..., None]}

    def _values(self, storage: Storage) -> Any:
        kept = self._kept.get(storage)
        if kept is None or kept.generation != storage.generation:
            values = storage.place.indices(np.zeros(len(storage.flags), np.float32))
            kept = self._kept[storage] = _Kept(values, np.zeros(storage.lanes, np.int64), -1, storage.generation)
        if kept.version != storage.version:
            self._update(storage, kept)
            kept.version = storage.version
        return kept.values

    def _update(self, storage: Storage, kept: _Kept) -> None:
        begin = np.maximum(kept.over, storage.start)
        counts = storage.end - begin
        lane = np.repeat(np.arange(storage.lanes), counts)
        position = np.arange(len(lane)) + np.repeat(begin - np.cumsum(counts) + counts, counts)
        if not len(lane):
            return
        rows = storage.rows(lane, position)
        final = (storage.flags[rows] & FINAL) != 0  # the last row of a lane is one
        reward = storage.place.host(storage.take("reward", rows))[:, 0]
        reward = np.asarray(reward if self._scale is None else self._scale(reward), np.float64)
        storage.place.put(kept.values, rows, _discounted(np.where(final, 0.0, reward), final, self.gamma))
        is_last = np.append(lane[1:] != lane[:-1], True)
        running = final & storage.open[lane] & is_last
        last = np.flatnonzero(final & ~running)
        kept.over = begin
        np.maximum.at(kept.over, lane[last], position[last] + 1)


def _discounted(reward: Array, final: Array, gamma: float) -> Array:
    """Float32 sums ``sum_k gamma**k reward[t + k]`` ``[R]`` that end where ``final`` is next true.

    A sum over ``2 k`` steps is one over ``k`` steps and a discounted one over the ``k`` steps after them.
    """
    total = reward.copy()
    ends = np.flatnonzero(final)
    left = ends[np.searchsorted(ends, np.arange(len(reward)))] - np.arange(len(reward))  # steps up to the end
    span = 1
    while span < left.max():
        ahead = np.flatnonzero(left > span)
        total[ahead] += gamma**span * total[ahead + span]  # the right side is read before anything is written
        span *= 2
    return total.astype(np.float32)
