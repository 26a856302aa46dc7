"""Discounted returns of the data, for algorithms that use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from birl.dataset.flags import FINAL
from birl.dataset.storage import Storage
from birl.types import Array

Failure = tuple[float, float]
"""What a step is given as its return, and the reward of every step from there on which says so."""


@dataclass
class _Kept:
    """Cached returns of all rows of a storage, and the positions up to which they stay valid in each lane."""

    values: Any
    over: Array
    version: int
    generation: int
    failure: Failure | None


class DiscountedReturns:
    """Discounted sums of the rewards from a step to the end of its episode.

    An episode that was cut by a time limit, or is still running, is summed up to its last step.

    The returns of all rows are computed at once on first use, and kept; after a write, only those of episodes that had
    not ended before it are computed again.

    Args:
        gamma: discount factor of one step.
        scale: applied to the rewards ``[R]`` before they are summed; ``None`` for nothing.
    """

    def __init__(self, gamma: float, scale: Callable[[Array], Array] | None = None) -> None:
        self.gamma, self._scale = gamma, scale
        self._kept: WeakKeyDictionary[Storage, _Kept] = WeakKeyDictionary()

    def __deepcopy__(self, memo: Any) -> DiscountedReturns:
        return DiscountedReturns(self.gamma, self._scale)

    def columns(self, storage: Storage, rows: Any, failure: Failure | None = None) -> dict[str, Any]:
        """Float32 ``discounted_return`` ``[..., 1]`` of the steps at ``rows`` ``[...]``.

        Args:
            storage: what is read.
            rows: row numbers.
            failure: see `birl.dataset.SparseRewardTransitionPicker`.
        """
        return {"discounted_return": storage.place.take(self._values(storage, failure), rows)[..., None]}

    def sums(self, rewards: Sequence[Array]) -> Array:
        """Float32 ``[B, 1]``: the return of each of ``rewards`` ``[L, 1]``, which lead to the end of their episodes."""
        parts = [np.asarray(item, np.float32).reshape(-1) for item in rewards]
        lengths = np.array([len(part) for part in parts])
        ahead = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        values = self._scaled(np.concatenate(parts)) * np.float64(self.gamma) ** ahead
        owner = np.repeat(np.arange(len(parts)), lengths)
        return np.bincount(owner, values, len(parts)).astype(np.float32)[:, None]

    def _values(self, storage: Storage, failure: Failure | None) -> Any:
        kept = self._kept.get(storage)
        if kept is None or (kept.generation, kept.failure) != (storage.generation, failure):
            values = storage.place.indices(np.zeros(len(storage.flags), np.float32))
            over = np.zeros(storage.lanes, np.int64)
            kept = self._kept[storage] = _Kept(values, over, -1, storage.generation, failure)
        if kept.version != storage.version:
            self._update(storage, kept)
            kept.version = storage.version
        return kept.values

    def _update(self, storage: Storage, kept: _Kept) -> None:
        begin = np.maximum(kept.over, storage.start)
        lane, position = storage.live(begin)
        if not len(lane):
            return
        rows = storage.rows(lane, position)
        final = (storage.flags[rows] & FINAL) != 0  # the last row of a lane is one
        reward = storage.place.host(storage.take("reward", rows))[:, 0]
        total = _discounted(np.where(final, 0.0, self._scaled(reward)), final, self.gamma)
        if kept.failure is not None:
            value, step_reward = kept.failure
            failed = _same_up_to_the_end(reward, final, step_reward)
            total = np.where(failed, self._scaled(np.array([value], np.float32)), total).astype(np.float32)
        storage.place.put(kept.values, rows, total)
        is_last = np.append(lane[1:] != lane[:-1], True)
        running = final & storage.open[lane] & is_last
        last = np.flatnonzero(final & ~running)
        kept.over = begin
        np.maximum.at(kept.over, lane[last], position[last] + 1)

    def _scaled(self, reward: Array) -> Array:
        return np.asarray(reward if self._scale is None else self._scale(reward), np.float64)


def _same_up_to_the_end(reward: Array, final: Array, value: float) -> Array:
    """For each row ``[R]`` whether all rewards from there to where ``final`` is next true are ``value``."""
    stops = np.flatnonzero(final | (reward != np.float32(value)))
    return final[stops[np.searchsorted(stops, np.arange(len(reward)))]] & ~final  # type: ignore[no-any-return]


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
