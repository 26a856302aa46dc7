"""All transitions of a dataset, in order and in batches of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from birl.dataset.base import ReplayBufferBase
from birl.dataset.buffers import InfiniteBuffer
from birl.dataset.episode import EpisodeBase
from birl.dataset.episodes import locate
from birl.dataset.pickers import TransitionPickerProtocol, pick_batch
from birl.dataset.replay_buffer import ReplayBuffer
from birl.dataset.storage import FINAL, FIRST, NO_NEXT, Storage
from birl.errors import EmptyDataError
from birl.types import Array, Tree, tree_map

BATCH_SIZE = 1024


@dataclass(frozen=True)
class Window:
    """Consecutive transitions, as numpy arrays.

    Attributes:
        observations: tree ``[B, …]``.
        actions: ``[B, A]``, or integers ``[B]``.
        rewards: float32 ``[B]``: discounted sums over ``intervals`` steps.
        next_observations: tree ``[B, …]``.
        terminals: float32 ``[B]``.
        intervals: float32 ``[B]``.
        episodes: numbers ``[B]`` of the episodes they are from.
    """

    observations: Tree
    actions: Array
    rewards: Array
    next_observations: Tree
    terminals: Array
    intervals: Array
    episodes: Array


class Transitions:
    """The transitions of ``episodes``, or of ``dataset`` if that is ``None``, made by the dataset's picker.

    Raises:
        EmptyDataError: if there is no transition.
    """

    def __init__(self, dataset: ReplayBufferBase, episodes: Sequence[EpisodeBase] | None = None) -> None:
        self._picker: TransitionPickerProtocol = dataset.transition_picker
        self._storage = _storage(dataset, episodes)
        lane, position = self._storage.live()
        rows = self._storage.rows(lane, position)
        self._rows = rows[(self._storage.flags[rows] & (FINAL | NO_NEXT)) == 0]
        if len(self._rows) == 0:
            raise EmptyDataError("there is no transition: give episodes of two or more steps")

    def __iter__(self) -> Iterator[Window]:
        return self._windows(self._rows)

    def initial(self) -> Iterator[Window]:
        """Only those with which an episode begins. An episode whose beginning was evicted has none.

        Raises:
            EmptyDataError: if there is none.
        """
        rows = self._rows[(self._storage.flags[self._rows] & FIRST) != 0]
        if len(rows) == 0:
            raise EmptyDataError("no episode begins in the data, its beginnings were evicted: evaluate with episodes=…")
        return self._windows(rows)

    def _windows(self, rows: Array) -> Iterator[Window]:
        storage = self._storage
        for begin in range(0, len(rows), BATCH_SIZE):
            chunk = rows[begin : begin + BATCH_SIZE]
            indices = chunk if storage.place.device is None else storage.place.indices(chunk)
            batch = pick_batch(storage, self._picker, indices)
            actions = _numpy(batch.actions)
            yield Window(
                tree_map(_numpy, batch.observations),
                actions[:, 0] if actions.dtype.kind in "iu" else actions,
                _numpy(batch.rewards)[:, 0],
                tree_map(_numpy, batch.next_observations),
                _numpy(batch.terminals)[:, 0],
                _numpy(batch.intervals)[:, 0],
                locate(storage, chunk)[0],
            )

    def returns(self) -> Array:
        """Undiscounted return ``[E]`` of every episode."""
        storage = self._storage
        lane, position = storage.live()
        rows = storage.rows(lane, position)
        rows = rows[(storage.flags[rows] & FINAL) == 0]
        reward = storage.place.host(storage.take("reward", rows))[:, 0]
        return np.bincount(locate(storage, rows)[0], weights=reward)


class _Seen(InfiniteBuffer):
    """A buffer that shows the storage it was given."""

    storage: Storage

    def bind(self, storage: Storage) -> None:
        super().bind(storage)
        self.storage = storage


def _storage(dataset: ReplayBufferBase, episodes: Sequence[EpisodeBase] | None) -> Storage:
    if episodes is None and isinstance(dataset, ReplayBuffer):
        return dataset.storage
    seen, info = _Seen(), dataset.dataset_info
    # Given episodes may take actions that the dataset, whose number of actions may be a guess, never took.
    ReplayBuffer(
        seen,
        episodes=dataset.episodes if episodes is None else episodes,
        action_space=info.action_space,
        action_size=info.action_size if episodes is None else None,
    )
    return seen.storage


def _numpy(array: Any) -> Array:
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()  # type: ignore[no-any-return]
