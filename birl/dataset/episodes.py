"""Episodes as views of a storage, and values derived from whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from birl.dataset.episode import Episode
from birl.dataset.flags import FINAL, NO_NEXT, TERMINATED, TRUNCATED, UNKNOWN
from birl.dataset.storage import Storage
from birl.spaces import Composite
from birl.types import Array, tree_map

_CHUNK = 65536


class EpisodeTable(NamedTuple):
    """Where episodes lie: arrays ``[E]``, ordered by lane, then age."""

    lane: Array
    start: Array
    length: Array


def episode_table(storage: Storage) -> EpisodeTable:
    """Find all episodes, the running ones included."""

    def make() -> EpisodeTable:
        lane, position = storage.live()
        finals = np.flatnonzero(storage.flags[storage.rows(lane, position)] & FINAL)
        begins = np.concatenate([[0], finals[:-1] + 1]) if len(finals) else finals
        return EpisodeTable(lane[begins], position[begins], finals - begins)

    return storage.cached("episodes", make)


def farthest_end(storage: Storage) -> float:
    """Number of steps in the longest episode; infinite if one was cut or is running, as values look beyond that end."""
    lane, start, length = episode_table(storage)
    last = storage.flags[storage.rows(lane, start + length - 1)]
    return float(length.max(initial=0)) if bool(np.all(last & TERMINATED)) else np.inf


def episode_at(storage: Storage, index: int, *, copy: bool = True, for_picker: bool = False) -> Episode:
    """One episode.

    Args:
        storage: the storage.
        index: index into `episode_table`.
        copy: copy rows that a later step may overwrite (those of a ring).
        for_picker: keep the final observation, if known, as a last row of ``observations``, so that per-item pickers
            which read ``observations[index + 1]`` find it, and zeros as a last row of ``actions``.
    """
    lane, start, length = (int(column[index]) for column in episode_table(storage))
    first = lane * storage.capacity + start % storage.capacity
    rows: Any = slice(first, first + length + 1)
    if storage.limit is not None and (copy or rows.stop > (lane + 1) * storage.capacity):
        rows = storage.place.indices(storage.rows(lane, np.arange(start, start + length + 1)))
    last, after = storage.flags[storage.rows(lane, np.array([start + length - 1, start + length]))]
    unknown = bool(last & NO_NEXT) or bool(after & UNKNOWN)

    def read(name: str) -> Array:
        return storage.place.host(storage.columns[name][rows] if isinstance(rows, slice) else storage.take(name, rows))

    observations, actions = tree_map(read, storage.observation_names), read("action")
    episode = Episode(
        tree_map(lambda leaf: leaf[:length], observations),
        actions[:length],
        read("reward")[:length],
        bool(last & TERMINATED),
        truncated=bool(last & TRUNCATED),
        final_observation=None if unknown else tree_map(lambda leaf: leaf[length], observations),
        extra={name.removeprefix("extra."): read(name)[:length] for name in storage.extra_names} or None,
    )
    if for_picker and not bool(last & NO_NEXT):
        if actions[length].any():  # old rows of a ring
            actions = actions.copy()
            actions[length] = 0
        episode.observations, episode.actions = observations, actions
    return episode


def locate(storage: Storage, rows: Array) -> tuple[Array, Array]:
    """Episode numbers, and indices in these episodes, of steps ``rows`` ``[B]``."""
    table = episode_table(storage)
    position, lane = np.divmod(storage.numbers(rows), storage.lanes)
    span = int(storage.end.max()) + 1  # puts the positions of all lanes on one line, on which starts rise
    starts = storage.cached("episode starts", lambda: table.lane * span + table.start)
    episode = np.searchsorted(starts, lane * span + position, side="right") - 1
    return episode, position - table.start[episode]


def per_item(
    storage: Storage, rows: Array, make: Callable[[Episode, int], Any], *, for_picker: bool = False
) -> list[Any]:
    """``make(episode, index)`` of each of the steps ``rows`` ``[B]``. For ``for_picker`` see `episode_at`."""
    episodes, indices = locate(storage, rows)
    made = {int(e): episode_at(storage, int(e), copy=False, for_picker=for_picker) for e in np.unique(episodes)}
    return [make(made[e], i) for e, i in zip(episodes.tolist(), indices.tolist(), strict=True)]


def timesteps_and_returns(storage: Storage) -> tuple[Any, Any]:
    """For every row: the number of its step (int64, from 1) and the rewards from it to the episode's end (float32).

    Computed once for all rows, on first use, and kept until the next write: two more numbers per row.
    """

    def make() -> tuple[Any, Any]:
        lane, position = storage.live()
        rows, table = storage.rows(lane, position), episode_table(storage)
        episode = np.repeat(np.arange(len(table.lane)), table.length + 1)
        evicted = np.where(table.start == storage.start[table.lane], storage.offset[table.lane], 0)
        reward = storage.place.host(storage.take("reward", rows)).astype(np.float64)[:, 0]
        reward[(storage.flags[rows] & FINAL) != 0] = 0.0
        total = np.cumsum(reward)
        ends = np.cumsum(table.length + 1) - 1
        timestep = np.zeros(len(storage.flags), np.int64)
        to_go = np.zeros(len(storage.flags), np.float32)
        timestep[rows] = position - (table.start - evicted)[episode] + 1
        to_go[rows] = total[ends][episode] - total + reward
        return storage.place.indices(timestep), storage.place.indices(to_go)

    return storage.cached("timesteps_and_returns", make)


def action_bounds(storage: Storage) -> tuple[Array, Array]:
    """Least and greatest actions of all steps, float64 ``[A]``; one pass after a write. Infinite without steps."""

    def make() -> tuple[Array, Array]:
        shape = storage.leaves["action"].shape
        low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
        for begin in range(0, len(storage.flags), _CHUNK):
            rows = begin + np.flatnonzero((storage.flags[begin : begin + _CHUNK] & FINAL) == 0)
            if len(rows):
                actions = storage.place.host(storage.take("action", rows))
                low, high = np.minimum(low, actions.min(axis=0)), np.maximum(high, actions.max(axis=0))
        if isinstance(storage.info.actions, Composite):  # choices have none
            low[storage.info.actions.choices], high[storage.info.actions.choices] = -1.0, 1.0
        return low, high

    return storage.cached("action_bounds", make)


class EpisodeList(Sequence[Episode]):
    """The episodes of a storage, made when they are asked for. Slices are lists.

    Arrays of an episode are views of the storage, copies if the storage is a ring.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __len__(self) -> int:
        return self._storage.episode_count

    @overload
    def __getitem__(self, index: int) -> Episode: ...

    @overload
    def __getitem__(self, index: slice) -> list[Episode]: ...

    def __getitem__(self, index: int | slice) -> Episode | list[Episode]:
        if isinstance(index, slice):
            return [episode_at(self._storage, i) for i in range(*index.indices(len(self)))]
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"episode {index} of {count}")
        return episode_at(self._storage, int(index) % count)

    def __add__(self, other: Sequence[Episode]) -> list[Episode]:
        return [*self, *other]

    def __radd__(self, other: Sequence[Episode]) -> list[Episode]:
        return [*other, *self]

    def __repr__(self) -> str:
        return f"<{len(self)} episodes, {int(self._storage.steps.sum())} steps>"
