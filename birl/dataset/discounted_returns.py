"""Discounted returns of the data, for algorithms that learn from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast
from weakref import WeakKeyDictionary

import numpy as np

from birl.dataset.arrays import ranges
from birl.dataset.episodes import ChangedEpisodes
from birl.dataset.storage import Storage
from birl.types import Array, ArrayOrTensor

Failure: TypeAlias = tuple[float, float]
"""The return of a failed step, and the reward that all its later steps have. See `SparseRewardTransitionPicker`."""


@dataclass
class _Cache:
    """Returns of all rows of a storage."""

    values: Any
    changed: ChangedEpisodes
    failure: Failure | None


class DiscountedReturns:
    """Discounted sums of the rewards from a step to the end of its episode.

    For an episode that was truncated or is still running, the sum ends with its last step.

    The returns of all rows are computed on first use and cached. After a write, only the returns of episodes that had
    not ended are computed again.

    Args:
        gamma: discount factor of one step.
        scale: applied to the rewards ``[R]`` before the sum; ``None`` for the identity.
    """

    def __init__(self, gamma: float, scale: Callable[[Array], Array] | None = None) -> None:
        self.gamma, self._scale = gamma, scale
        self._caches: WeakKeyDictionary[Storage, _Cache] = WeakKeyDictionary()

    def __deepcopy__(self, memo: dict[int, object]) -> DiscountedReturns:
        return DiscountedReturns(self.gamma, self._scale)

    def columns(
        self, storage: Storage, rows: ArrayOrTensor, failure: Failure | None = None
    ) -> dict[str, ArrayOrTensor]:
        """Return float32 ``discounted_return`` ``[..., 1]`` of the steps at ``rows`` ``[...]``.

        Args:
            storage: storage of the steps.
            rows: row numbers.
            failure: see `birl.dataset.SparseRewardTransitionPicker`.
        """
        return {"discounted_return": storage.place.take(self._values(storage, failure), rows)[..., None]}

    def sums(self, rewards: Sequence[Array]) -> Array:
        """Return float32 ``[B, 1]``: the return of each of ``rewards`` ``[L, 1]``, up to the end of an episode."""
        parts = [np.asarray(item, np.float32).reshape(-1) for item in rewards]
        lengths = np.array([len(part) for part in parts])
        owner, ahead = ranges(np.zeros_like(lengths), lengths)
        values = self._scaled(np.concatenate(parts)) * np.float64(self.gamma) ** ahead
        return np.bincount(owner, values, len(parts)).astype(np.float32)[:, None]

    def _values(self, storage: Storage, failure: Failure | None) -> ArrayOrTensor:
        """Return the returns of all rows."""
        cache = self._caches.pop(storage, None)  # an error must not leave half of the returns
        if cache is None or (cache.changed.generation, cache.failure) != (storage.generation, failure):
            values = storage.place.indices(np.zeros(len(storage.flags), np.float32))
            cache = _Cache(values, ChangedEpisodes(storage), failure)
        if (changed := cache.changed.find(storage)) is not None:
            rows, _, final = changed
            reward = storage.place.host(storage.take("reward", rows))[:, 0]
            total = _discounted(np.where(final, 0.0, self._scaled(reward)), final, self.gamma)
            if failure is not None:
                value, step_reward = failure
                failed = _constant_to_end(reward, final, step_reward)
                total = np.where(failed, self._scaled(np.array([value], np.float32)), total).astype(np.float32)
            storage.place.put(cache.values, rows, total)
        self._caches[storage] = cache
        return cast(ArrayOrTensor, cache.values)

    def _scaled(self, reward: Array) -> Array:
        return np.asarray(reward if self._scale is None else self._scale(reward), np.float64)


def _constant_to_end(reward: Array, final: Array, value: float) -> Array:
    """Return for each row ``[R]`` whether all rewards up to the next ``final`` row are ``value``."""
    stops = np.flatnonzero(final | (reward != np.float32(value)))
    return cast(Array, final[stops[np.searchsorted(stops, np.arange(len(reward)))]] & ~final)


def _discounted(reward: Array, final: Array, gamma: float) -> Array:
    """Return float32 sums ``sum_k gamma**k reward[t + k]`` ``[R]`` up to the next ``final`` row.

    The sum over ``2 k`` steps is the sum over ``k`` steps plus the discounted sum over the next ``k`` steps.
    """
    total = reward.copy()
    ends = np.flatnonzero(final)
    left = ends[np.searchsorted(ends, np.arange(len(reward)))] - np.arange(len(reward))  # steps up to the end
    span = 1
    while span < left.max():
        ahead = np.flatnonzero(left > span)
        total[ahead] += gamma**span * total[ahead + span]  # numpy evaluates the right side before it writes
        span *= 2
    return total.astype(np.float32)
