"""Episodes as views of a storage, and values that are computed from whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np

from birl.dataset.episode import Episode
from birl.dataset.flags import FINAL, NO_NEXT, TERMINATED, TRUNCATED, UNKNOWN
from birl.dataset.storage import Storage
from birl.spaces import Composite
from birl.types import Array, ArrayOrTensor, tree_map

T = TypeVar("T")
_CHUNK = 65536


class EpisodeTable(NamedTuple):
    """Lane, first position and length of all episodes: arrays ``[E]``, ordered by lane, oldest first."""

    lane: Array
    start: Array
    length: Array


def episode_table(storage: Storage) -> EpisodeTable:
    """Find all episodes, including running ones."""

    def make() -> EpisodeTable:
        lane, position = storage.live()
        finals = np.flatnonzero(storage.flags[storage.rows(lane, position)] & FINAL)
        begins = np.concatenate([[0], finals[:-1] + 1]) if len(finals) else finals
        return EpisodeTable(lane[begins], position[begins], finals - begins)

    return storage.cached("episodes", make)


class ChangedEpisodes:
    """Tracker of the episodes that were written, or were still running, since the last call of `find`.

    Make a new one when the storage's ``generation`` changes.

    Args:
        storage: the storage.

    Attributes:
        generation, version: generation and version of the storage at the last call.
        ended: position in each lane ``[lanes]`` up to which all episodes have ended.
    """

    def __init__(self, storage: Storage) -> None:
        self.generation, self.version, self.ended = storage.generation, -1, storage.start.copy()

    def find(self, storage: Storage) -> tuple[Array, Array, Array] | None:
        """Return rows ``[R]``, their positions, and whether each is a final row; ``None`` if nothing was written."""
        if self.version == storage.version:
            return None
        lane, position = storage.live(np.maximum(self.ended, storage.start))
        rows, self.version = storage.rows(lane, position), storage.version
        final = (storage.flags[rows] & FINAL) != 0  # true for the last row of each lane
        last = final & ~(storage.open[lane] & (position == storage.end[lane] - 1))
        np.maximum.at(self.ended, lane[last], position[last] + 1)
        return (rows, position, final) if len(rows) else None


def longest_horizon(storage: Storage) -> float:
    """Return the length of the longest episode; infinite if any was truncated or runs, so that values continue."""
    lane, start, length = episode_table(storage)
    last = storage.flags[storage.rows(lane, start + length - 1)]
    return float(length.max(initial=0)) if bool(np.all(last & TERMINATED)) else np.inf


def episode_at(storage: Storage, index: int, *, copy: bool = True, for_picker: bool = False) -> Episode:
    """Return one episode.

    Args:
        storage: the storage.
        index: index into `episode_table`.
        copy: whether to copy rows that a later step may overwrite: those of a ring, and those of a folder that another
            process may write to, where the newest ones are overwritten when a run returns to its checkpoint. Rows of a
            ring that another process may overwrite are always copied.
        for_picker: whether to append the final observation, if known, as a last row of ``observations``, and zeros as a
            last row of ``actions``, for per-item pickers that read ``observations[index + 1]``.
    """
    lane, start, length = (int(column[index]) for column in episode_table(storage))
    first = lane * storage.capacity + start % storage.capacity
    rows: Any = slice(first, first + length + 1)
    ring, another_writes = storage.limit is not None, storage.check_overwritten is not None
    wraps = rows.stop > (lane + 1) * storage.capacity
    if (copy and (ring or another_writes)) or (ring and (another_writes or wraps)):
        rows = storage.place.indices(storage.rows(lane, np.arange(start, start + length + 1)))
    last, after = storage.flags[storage.rows(lane, np.array([start + length - 1, start + length]))]
    unknown = bool(last & NO_NEXT) or bool(after & UNKNOWN)

    def read(name: str) -> Array:
        array = storage.place.host(storage.columns[name][rows] if isinstance(rows, slice) else storage.take(name, rows))
        array = array.view()
        array.flags.writeable = False  # writing to it would change the data, or only a copy of a ring's rows
        return array

    observations, actions = tree_map(read, storage.observation_names), read("action")
    episode = Episode(
        tree_map(lambda leaf: leaf[:length], observations),
        actions[:length],
        read("reward")[:length],
        bool(last & TERMINATED),
        truncated=bool(last & TRUNCATED),
        final_observation=None if unknown else tree_map(lambda leaf: leaf[length], observations),
        extra={name.removeprefix("extra."): read(name)[:length] for name in storage.extra_names} or None,
        spaces=storage.info.spaces,
        columns=storage.info.columns,
    )
    if for_picker and not bool(last & NO_NEXT):
        if actions[length].any():  # old data of a ring
            actions = actions.copy()
            actions[length] = 0
            actions.flags.writeable = False
        episode.observations, episode.actions = observations, actions
    storage.check_rows()
    return episode


def locate(storage: Storage, rows: Array) -> tuple[Array, Array]:
    """Return the episode numbers of steps ``rows`` ``[B]``, and their indices in these episodes."""
    table = episode_table(storage)
    position, lane = np.divmod(storage.numbers(rows), storage.lanes)
    span = int(storage.end.max()) + 1  # offset of each lane, so that the starts of all episodes ascend
    starts = storage.cached("episode starts", lambda: table.lane * span + table.start)
    episode = np.searchsorted(starts, lane * span + position, side="right") - 1
    return episode, position - table.start[episode]


def per_item(storage: Storage, rows: Array, make: Callable[[Episode, int], T], *, for_picker: bool = False) -> list[T]:
    """Return ``make(episode, index)`` for each of the steps ``rows`` ``[B]``. For ``for_picker`` see `episode_at`."""
    numbers, indices = locate(storage, rows)
    episodes = {int(e): episode_at(storage, int(e), copy=False, for_picker=for_picker) for e in np.unique(numbers)}
    return [make(episodes[e], i) for e, i in zip(numbers.tolist(), indices.tolist(), strict=True)]


def timesteps_and_returns(storage: Storage) -> tuple[ArrayOrTensor, ArrayOrTensor]:
    """Return for all rows the timestep (int64, from 1) and the undiscounted return-to-go (float32).

    They are computed on first use and cached until the next write: two numbers per row.
    """

    def make() -> tuple[ArrayOrTensor, ArrayOrTensor]:
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
    """Return the minimum and maximum of all actions, float64 ``[A]``; infinite without steps. Cached until a write."""

    def make() -> tuple[Array, Array]:
        shape = storage.leaves["action"].shape
        low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
        for begin in range(0, len(storage.flags), _CHUNK):
            rows = begin + np.flatnonzero((storage.flags[begin : begin + _CHUNK] & FINAL) == 0)
            if len(rows):
                actions = storage.place.host(storage.take("action", rows))
                low, high = np.minimum(low, actions.min(axis=0)), np.maximum(high, actions.max(axis=0))
        if isinstance(storage.info.actions, Composite):  # choices have no bounds
            low[storage.info.actions.choices], high[storage.info.actions.choices] = -1.0, 1.0
        return low, high

    return storage.cached("action_bounds", make)


class EpisodeList(Sequence[Episode]):
    """The episodes of a storage. Each one is made when it is accessed, and slices are lists.

    Arrays of an episode are views of the storage, or copies if the storage is a ring. They cannot be written to.

    Attributes:
        storage: the storage.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def __len__(self) -> int:
        return self.storage.episode_count

    @overload
    def __getitem__(self, index: int) -> Episode: ...

    @overload
    def __getitem__(self, index: slice) -> list[Episode]: ...

    def __getitem__(self, index: int | slice) -> Episode | list[Episode]:
        if isinstance(index, slice):
            return [episode_at(self.storage, i) for i in range(*index.indices(len(self)))]
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"episode {index} of {count}")
        return episode_at(self.storage, int(index) % count)

    def __add__(self, other: Sequence[Episode]) -> list[Episode]:
        return [*self, *other]

    def __radd__(self, other: Sequence[Episode]) -> list[Episode]:
        return [*other, *self]

    def __repr__(self) -> str:
        return f"<{len(self)} episodes, {int(self.storage.steps.sum())} steps>"
