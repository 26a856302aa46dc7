"""Steps as a struct of arrays: ``lanes`` ring buffers of rows, one lane for each parallel environment.

A lane is a sequence of positions ``start … end - 1``. Position ``p`` lies in row ``p % capacity`` of its lane, and lane
``l`` owns the rows ``l * capacity … (l + 1) * capacity - 1``. An episode of T steps takes T + 1 positions: T steps and
one *final* row, which holds the observation after the last step. The next observation of a step is therefore always the
observation in the following row, every observation is stored once, and truncation loses nothing.

The running episode also ends with a final row, which the next step overwrites. One byte of flags describes each row
(see `birl.dataset.flags`). Unused rows have the flag `FINAL`, so sampling and windows over rows need not know where a
lane starts or ends.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import numpy as np

from birl.checks import check
from birl.dataset.arrays import AnyPlace, MemoryPlace, ranges
from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.flags import FINAL, FIRST, HEAD, NO_NEXT, NO_TRANSITION, TERMINATED, TRUNCATED, UNKNOWN
from birl.dataset.journal import Journal
from birl.dataset.log_record import LogRecord
from birl.spaces.observations import Choices, check_names, map_named_leaves
from birl.types import Array, ArrayOrTensor, ArraySpec, Tree, tree_leaves, tree_map

T = TypeVar("T")
A = TypeVar("A", bound=ArrayOrTensor)

MAX_WRITES = 4096
"""Number of writes that a view of a storage records one by one."""

_MINIMUM_CAPACITY = 64
_BLOCK = 2**22  # bytes that are copied at a time


class Storage:
    """Arrays of steps, which grow without limit or are ring buffers.

    Args:
        info: shapes and dtypes of steps, and the kind of actions.
        lanes: number of parallel environments.
        limit: largest number of steps over all lanes, ``None`` for no limit.
        place: allocates and reads the arrays; `MemoryPlace` if ``None``.
        capacity: initial number of rows per lane.
        whole: whether to evict whole episodes while there are complete ones.

    Attributes:
        fine: names of observation columns whose resolution float32 loses. Minibatches have them in float64, so that a
            scaler can subtract an offset first. See `birl.dataset.resolution`.
    """

    fine: frozenset[str] = frozenset()

    def __init__(
        self,
        info: DatasetInfo,
        *,
        lanes: int = 1,
        limit: int | None = None,
        place: AnyPlace | None = None,
        capacity: int = 0,
        whole: bool = False,
    ) -> None:
        check("lanes", lanes, int, low=1)
        check("limit", limit, int, ": at least 1 step for each lane", optional=True, low=lanes)
        self.place: AnyPlace = MemoryPlace() if place is None else place
        self.lanes, self.limit, self.capacity = lanes, limit, max(capacity, 2)
        self.info, self.whole = info, whole
        self.logs: LogRecord | None = None
        self.leaves: dict[str, ArraySpec] = {"action": info.action_signature.tree, "reward": info.reward_signature.tree}
        signature = info.observation_signature.tree
        self.observation_names: Tree = map_named_leaves(lambda _, name: name, signature, "observation")
        check_names(list(tree_leaves(self.observation_names)))
        self.leaves |= zip(tree_leaves(self.observation_names), tree_leaves(signature), strict=True)
        kinds = zip(tree_leaves(self.observation_names), tree_leaves(info.observations), strict=True)
        self.choices = {name: leaf for name, leaf in kinds if isinstance(leaf, Choices)}  # by column name
        self.columns: dict[str, Any] = {}
        self._cache: dict[str, tuple[int, Any]] = {}
        self.version = self.generation = 0  # version changes with the contents, generation with the arrays
        self.mirrors: weakref.WeakSet[StorageView] = weakref.WeakSet()
        self.journal: Journal[Storage] | None = None  # set in the process that writes to a folder
        self.check_overwritten: Callable[[], None] | None = None  # set for readers of a folder: raises
        # Devices draw rows from an index of all steps. For a ring the index would be rebuilt after each step.
        self.device_draws = self.place.device is not None and limit is None
        self.reset_lanes()
        for name in self.leaves:
            self.columns[name] = self._allocate(name)
        self._allocate_flags()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, for example in another process: without mirrors, and read-only."""
        state = {name: value for name, value in vars(self).items() if name != "mirrors"}
        return state | {"journal": None, "check_overwritten": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, mirrors=weakref.WeakSet())

    @property
    def source(self) -> Storage:
        """The storage that is written to. A `birl.dataset.device_mirror.Mirror` returns the storage that it mirrors."""
        return self

    def refresh(self) -> None:
        """Bring a mirror up to date. Readers call this before they choose rows."""
        self.check_rows()

    def check_rows(self) -> None:
        """Raise an error if another process has overwritten rows of this ring. Call it *after* values were read."""
        if self.check_overwritten is not None:
            self.check_overwritten()

    def reset_lanes(self) -> None:
        """Remove all rows."""
        self.start, self.end = np.zeros((2, self.lanes), np.int64)
        self.steps, self.offset = np.zeros((2, self.lanes), np.int64)  # offset: evicted steps of the oldest episode
        self.open, self.pending = np.zeros((2, self.lanes), np.bool_)  # pending: newest step lacks a next observation
        self.transition_count = self.episode_count = 0

    # -- memory ----------------------------------------------------------------------------------------------------

    def _allocate(self, name: str) -> ArrayOrTensor:
        leaf, rows = self.leaves[name], self.lanes * self.capacity
        column = f"column_{list(self.leaves).index(name)}"
        return cast(ArrayOrTensor, self.place.allocate(column, (rows, *leaf.shape), leaf.dtype))

    def _allocate_flags(self) -> None:
        # The host always has the flags: eviction and episode boundaries do not wait for a device.
        place = self.place if isinstance(self.place, MemoryPlace) else MemoryPlace()
        self.flags: Array = place.allocate("column_flags", (self.lanes * self.capacity,), np.dtype(np.uint8))
        self.flags[:] = FINAL
        self.copy_flags()

    def copy_flags(self) -> None:
        """Copy the flags to the device on which rows are drawn."""
        self.device_flags: Any = self.flags if self.place.device is None else self.place.indices(self.flags.copy())

    def set_flags(self, rows: Array, values: Array | int) -> None:
        """Set the flags of rows. Every write to rows calls this, so it also notifies the mirrors."""
        self.flags[rows] = values
        for mirror in self.mirrors or ():  # iteration over an empty weak set is slow
            mirror.note_rows(rows)
        if self.device_flags is not self.flags:
            self.place.put(self.device_flags, rows, values)

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows per lane by doubling the capacity, up to the rows that the limit needs."""
        if rows <= self.capacity:
            return
        capacity = max(2 * self.capacity, _MINIMUM_CAPACITY)
        if self.limit is not None:  # grow by a quarter if episodes are shorter than 64 steps
            full = self._full_capacity()
            capacity = min(capacity, full) if self.capacity < full else self.capacity * 5 // 4
        self.resize(max(capacity, rows))

    def resize(self, capacity: int) -> None:
        """Move all rows to new arrays of ``capacity`` rows per lane, at least the rows in use.

        Raises:
            WriteError: if a disk is full. The storage is then unchanged.
        """
        lane, position = self.live()
        old = self.rows(lane, position)
        before, columns, flags = self.flags[old], self.columns, (self.capacity, self.flags, self.device_flags)
        try:
            with self.place.all_or_nothing():
                self.capacity = capacity
                self._move_rows(old, self.rows(lane, position))
        except BaseException:
            self.columns = columns
            self.capacity, self.flags, self.device_flags = flags
            raise
        self.set_flags(self.rows(lane, position), before)
        self.generation += 1
        self.end_write()

    def _move_rows(self, old: Array, new: Array) -> None:
        """Allocate new arrays, and copy rows to them."""
        columns, self.columns = self.columns, {}
        for name, column in columns.items():
            moved, block = self._allocate(name), max(1, _BLOCK // max(1, column[:1].nbytes))
            for begin in range(0, len(old), block):  # an index of all rows would take as much memory as a third copy
                part = slice(begin, begin + block)
                moved[self.place.indices(new[part])] = column[self.place.indices(old[part])]
            self.columns[name] = moved
        self._allocate_flags()

    def add_extra(self, name: str, leaf: ArraySpec) -> None:
        """Add a column, which is zero for the steps stored so far."""
        self.leaves[name] = leaf
        try:
            with self.place.all_or_nothing():
                self.columns[name] = self._allocate(name)
        except BaseException:
            del self.leaves[name]
            raise
        self.generation += 1
        if self.journal is not None:
            self.journal.on_new_column(self)

    @property
    def extra_names(self) -> list[str]:
        """Names of the extra columns, with the prefix ``extra.``."""
        return [name for name in self.leaves if name.startswith("extra.")]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, unused rows included."""
        return int(self.flags.nbytes) + sum(int(column.nbytes) for column in self.columns.values())

    @property
    def full_nbytes(self) -> int:
        """Bytes of all arrays once a ring has reached its limit."""
        return -(-self.nbytes * max(self._full_capacity(), self.capacity) // self.capacity)

    def _full_capacity(self) -> int:
        """Return the rows per lane for ``limit`` steps, with one final row for 64 steps; 0 without a limit."""
        return 0 if self.limit is None else -(-self.limit // self.lanes) * 65 // 64 + 8

    @property
    def used(self) -> int:
        """Rows per lane that are or were in use. All later rows are free in all lanes."""
        end = self.end[0] if self.lanes == 1 else self.end.max()
        return min(int(end), self.capacity)

    def tail(self) -> Array:
        """Return the flags ``[lanes, 2]`` of the last two rows of each lane, the only ones that may be rewritten."""
        return self.flags[self.last_rows()].T

    def last_rows(self) -> Array:
        """Return the last two rows ``[2, lanes]`` of each lane."""
        return self.rows(np.arange(self.lanes), np.maximum(self.end - [[2], [1]], 0))

    @property
    def has_cut_episodes(self) -> bool:
        """Whether the oldest steps of a stored episode were evicted, so that stacked frames may be missing."""
        if self.limit is None:
            return False
        return bool((self.flags[self.rows(np.arange(self.lanes), self.start)] & HEAD).any())

    # -- rows ------------------------------------------------------------------------------------------------------

    def rows(self, lane: Array | int, position: Array) -> Array:
        """Return the row numbers of positions."""
        return lane * self.capacity + position % self.capacity

    def numbers(self, rows: Array) -> Array:
        """Return the numbers of the steps in ``rows``. Each number identifies one step for the storage's lifetime."""
        if self.lanes == 1:
            start = int(self.start[0])
            return start + (rows - start) % self.capacity if start else rows
        lane, inside = rows // self.capacity, rows % self.capacity
        start = self.start[lane]
        return (start + (inside - start) % self.capacity) * self.lanes + lane

    def live(self, begin: Array | None = None) -> tuple[Array, Array]:
        """Return lane and position of all rows in use, or only from position ``begin`` ``[lanes]`` on in each lane."""
        return ranges(self.start if begin is None else begin, self.end)

    def shift(self, rows: A, by: ArrayOrTensor | int) -> A:
        """Return the rows ``by`` positions later in the same lane. ``by`` is an integer or integers, broadcast."""
        if self.lanes == 1:
            return cast(A, (rows + by) % self.capacity)
        inside = rows % self.capacity
        return cast(A, rows - inside + (inside + by) % self.capacity)

    def next(self, rows: A) -> A:
        """Return the rows after steps ``rows``."""
        return cast(A, rows + 1) if self.limit is None else self.shift(rows, 1)  # without a limit nothing wraps around

    def ahead(self, rows: A, length: int, stop: int = FINAL) -> tuple[A, A]:
        """Return windows that begin at ``rows`` ``[...]``.

        Returns:
            Rows ``[..., length]``, and whether each is before the first row with a flag of ``stop``.
        """
        window = self.shift(cast(A, rows[..., None]), self.place.arange(0, length))
        return window, self.place.none_up_to((self.place.take(self.device_flags, window) & stop) != 0)

    def behind(self, rows: A, length: int) -> tuple[A, A]:
        """Return windows that end with ``rows`` ``[...]``.

        Returns:
            Rows ``[..., length]``, and whether each is in the same episode as the last one.
        """
        window = self.shift(cast(A, rows[..., None]), self.place.arange(1 - length, 1))
        return window, self.place.none_after((self.place.take(self.device_flags, window) & (FIRST | HEAD)) != 0)

    def take(self, name: str, rows: A) -> A:
        """Return a column at ``rows``, in its own dtype. All values are read here, or followed by `check_rows`."""
        values = cast(A, self.place.take(self.columns[name], rows))
        if self.check_overwritten is not None:
            self.check_overwritten()
        return values

    def take_flags(self, rows: A, mask: int) -> A:
        """Return whether a flag of ``mask`` is set at each of ``rows``."""
        return cast(A, (self.place.take(self.device_flags, rows) & mask) != 0)

    def observation(self, rows: ArrayOrTensor) -> Tree:
        """Return the observations at ``rows`` in the dtypes of network inputs, or in float64: see `fine`."""
        return tree_map(lambda name: self.take_observation(name, rows), self.observation_names)

    def take_observation(self, name: str, rows: A) -> A:
        """Return a column of observations at ``rows``; see `observation`."""
        return self.to_network(name, self.take(name, rows))

    def to_network(self, name: str, values: A) -> A:
        """Convert values of a column of observations to the dtype that minibatches have for it; see `observation`."""
        return cast(A, self.place.to_float64(values) if name in self.fine else self.place.to_network(values))

    def terminals(self, rows: A) -> A:
        """Return float32 ``[..., 1]``: 1 where a step terminates."""
        return cast(A, self.place.to_float(self.place.take(self.device_flags, rows) & TERMINATED)[..., None])

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(
        self,
        lanes: Array,
        values: Mapping[str, Array],
        following: Mapping[str, Array] | None = None,
        ending: Array | None = None,
    ) -> None:
        """Add one step to each of ``lanes`` ``[k]``.

        Args:
            lanes: lane numbers, each at most once.
            values: columns ``[k, …]``. Missing extra columns become zeros.
            following: observation columns ``[k, …]`` after the step, if they are known.
            ending: uint8 ``[k]``: `TERMINATED` or `TRUNCATED` where the episode ends with the step, which requires
                ``following``; else 0.
        """
        was_open = self.open[lanes]
        position = self.end[lanes] - was_open  # the step replaces the final row of a running episode
        self.reserve(int((position - self.start[lanes]).max()) + 2)
        rows, after = self.rows(lanes, position), self.rows(lanes, position + 1)
        if self.journal is not None:
            self._mark_pending(lanes, rows, values, was_open)
        waiting = self.pending[lanes]
        if np.count_nonzero(waiting):
            self._resolve(lanes[waiting], position[waiting] - 1)
        for name, column in self.columns.items():
            self.place.put(column, rows, values.get(name, 0))
            if following is not None and name in following:
                self.place.put(column, after, following[name])
        known = following is not None
        first = np.where(was_open, 0, FIRST).astype(np.uint8)
        last = np.uint8(0 if known else NO_NEXT) if ending is None else ending
        self.set_flags(rows, first | last)
        self.set_flags(after, FINAL if known else FINAL | UNKNOWN)
        self.end[lanes] = position + 2
        self.steps[lanes] += 1
        self.open[lanes] = True if ending is None else ending == 0
        self.pending[lanes] = not known
        self.transition_count += len(lanes) if known else 0
        self.episode_count += len(lanes) - int(np.count_nonzero(was_open))
        self.end_write(enforce_limit(self))

    def end_write(self, in_journal: bool = False) -> None:
        """Complete a write, and record it in the journal unless an eviction has recorded it (``in_journal``)."""
        self.version += 1
        if self.journal is not None and not in_journal:
            self.journal.write(self)

    def _mark_pending(self, lanes: Array, rows: Array, values: Mapping[str, Array], known: Array) -> None:
        """Mark steps as pending if their next observation, at ``rows`` ``[k]``, is about to be replaced.

        If the process is killed during the replacement, the steps remain without a next observation.
        """
        other = np.zeros(len(lanes), np.bool_)
        for name in tree_leaves(self.observation_names):
            differs = self.place.host(self.take(name, rows)) != values[name]
            other |= differs.reshape(len(lanes), -1).any(1)
        other &= known & ~self.pending[lanes]
        if other.any():
            before = self.rows(lanes[other], self.end[lanes[other]] - 2)
            self.set_flags(before, self.flags[before] | np.uint8(NO_NEXT))
            self.pending[lanes[other]] = True
            self.transition_count -= int(other.sum())
            self.end_write()

    def _resolve(self, lanes: Array, position: Array) -> None:
        """Mark that the next observations of steps are now known."""
        rows = self.rows(lanes, position)
        self.set_flags(rows, self.flags[rows] & np.uint8(255 - NO_NEXT))
        self.transition_count += len(lanes)

    def close(self, lanes: Array, terminated: Array, final: Mapping[str, Array] | None = None) -> None:
        """End the running episodes of ``lanes`` ``[k]`` as terminated or truncated."""
        last = self.end[lanes] - 2
        rows, after = self.rows(lanes, last), self.rows(lanes, last + 1)
        ending = np.where(terminated, TERMINATED, TRUNCATED).astype(np.uint8)
        if self.journal is not None and final is not None:
            self._mark_pending(lanes, after, final, np.ones(len(lanes), np.bool_))
        self.set_flags(rows, self.flags[rows] | ending)
        waiting = self.pending[lanes]
        if final is not None:
            for name, value in final.items():
                self.place.put(self.columns[name], after, value)
            self.set_flags(after, FINAL)
        elif waiting.any():
            for name in tree_leaves(self.observation_names):
                self.place.put(self.columns[name], after[waiting], 0)
            self.set_flags(after[waiting], self.flags[after[waiting]])
        done = waiting & (np.asarray(terminated, bool) | (final is not None))
        if done.any():
            self._resolve(lanes[done], last[done])
        self.open[lanes] = self.pending[lanes] = False
        self.end_write(enforce_limit(self))

    def extend(self, lane: int, flags: Array, steps: Mapping[str, Array], finals: Mapping[str, Array]) -> None:
        """Add complete episodes to a lane without a running episode.

        Args:
            lane: lane number.
            flags: uint8 ``[R]`` for all rows, final rows included.
            steps: columns of the steps.
            finals: observation columns of the final rows.
        """
        is_step = (flags & FINAL) == 0
        cut = 0
        if self.limit is not None and np.count_nonzero(is_step) > self.limit:  # keep the newest steps
            flags, keep = flags.copy(), int(np.flatnonzero(is_step)[-self.limit])
            cut_steps = np.count_nonzero(is_step[:keep])
            steps = {name: value[cut_steps:] for name, value in steps.items()}
            finals = {name: value[keep - cut_steps :] for name, value in finals.items()}
            cut = keep - int(np.flatnonzero(flags[: keep + 1] & FIRST)[-1])
            flags[keep] |= HEAD if cut else 0
            flags, is_step = flags[keep:], is_step[keep:]
        if self.limit is not None:  # evict first, so that the ring need not grow
            needed = int(np.count_nonzero(is_step)) - self.limit
            if self.whole:
                evict_episodes(self, int(self.steps.sum()) + needed)
            evict_run(self, lane, int(self.steps[lane]) + needed)
        if self.start[lane] == self.end[lane]:
            self.offset[lane] = cut
        self.reserve(int(self.end[lane] - self.start[lane]) + len(flags))
        self.write_run(lane, flags, steps, finals)
        self.end_write(enforce_limit(self))

    def write_run(
        self,
        lane: int,
        flags: Array,
        steps: Mapping[str, Array],
        finals: Mapping[str, Array],
        runs: bool = False,
    ) -> None:
        """Write rows to the end of a lane, which must have room. They continue its running episode, if it has one.

        Args:
            lane, flags, steps, finals: see `extend`.
            runs: whether the last episode, which also has a final row, is still running.
        """
        was_open = bool(self.open[lane])  # the first step replaces the final row of the running episode
        begin = int(self.end[lane]) - was_open
        rows, is_step = self.rows(lane, begin + np.arange(len(flags))), (flags & FINAL) == 0
        if self.pending[lane]:
            self._resolve(np.array([lane]), np.array([begin - 1]))
        step_rows, final_rows = rows[is_step], rows[~is_step]
        for name, column in self.columns.items():
            self.place.put(column, step_rows, steps.get(name, 0))
            self.place.put(column, final_rows, finals.get(name, 0))  # rows of a ring contain old data
        self.set_flags(rows, flags)
        self.end[lane] = begin + len(flags)
        self.steps[lane] += len(step_rows)
        self.open[lane], self.pending[lane] = runs, False
        self.episode_count += len(final_rows) - was_open
        self.transition_count += int(np.count_nonzero((flags & NO_TRANSITION) == 0))

    # -- derived ---------------------------------------------------------------------------------------------------

    def cached(self, key: str, make: Callable[[], T]) -> T:
        """Return the result of ``make``, which is computed again only after a write."""
        version, value = self._cache.get(key, (-1, None))
        if version != self.version:
            value = make()
            self._cache[key] = (self.version, value)
        return cast(T, value)


class StorageView(Storage):
    """A storage that follows the writes to another one, its parent. `refresh` brings it up to date."""

    def __init__(self, parent: Storage, place: AnyPlace) -> None:
        self._parent, self.place = parent, place
        self.journal, self.check_overwritten, self._cache = None, None, {}
        self.mirrors = weakref.WeakSet()
        self.version = self.generation = -1
        self.written: list[Array] = []
        parent.mirrors.add(self)

    def note_rows(self, rows: Array) -> None:
        """Record that ``rows`` of the parent were written."""
        self.written.append(rows)
        if len(self.written) > MAX_WRITES:
            self.written = [np.unique(np.concatenate(self.written))]


# -- eviction ------------------------------------------------------------------------------------------------------
# The oldest steps of the fullest lanes are evicted. If all lanes are written together, these are the oldest of all
# steps.


def enforce_limit(storage: Storage) -> bool:
    """Evict the steps beyond the limit. The newest step counts once its next observation is stored.

    Returns:
        Whether steps were evicted.
    """
    if storage.limit is None:
        return False
    complete = storage.steps - storage.pending
    excess = total_excess = int(complete.sum()) - storage.limit
    if excess > 0 and storage.whole:
        excess -= evict_episodes(storage, excess)
        complete = storage.steps - storage.pending
    if excess > 0:
        evict(storage, steps_to_evict(storage, excess, complete))
    return total_excess > 0


def steps_to_evict(storage: Storage, excess: int, complete: Array) -> Array:
    """Divide ``excess`` steps among the lanes, the fullest first, which have ``complete`` ``[lanes]`` steps."""
    if storage.lanes == 1:
        return np.array([excess])
    count, left = np.zeros(storage.lanes, np.int64), complete
    while excess > 0:
        fullest = np.flatnonzero(left == left.max())[:excess]
        count[fullest] += 1
        left = complete - count
        excess -= len(fullest)
    return count


def evict(storage: Storage, count: Array) -> None:
    """Evict the oldest ``count`` ``[lanes]`` steps of each lane."""
    lanes = np.flatnonzero(count)
    if count.max() == 1:
        _evict_one(storage, lanes)
        return
    for lane in lanes.tolist():
        evict_run(storage, lane, int(count[lane]))


def evict_episodes(storage: Storage, count: int) -> int:
    """Evict complete episodes, the oldest of the fullest lane first, until ``count`` steps are evicted.

    Returns:
        Number of evicted steps, which may be fewer or more.
    """
    evicted, lanes = 0, np.flatnonzero(storage.steps).tolist()
    while evicted < count and lanes:
        lane = max(lanes, key=lambda each: int(storage.steps[each]))
        flags = storage.flags[storage.rows(lane, np.arange(storage.start[lane], storage.end[lane]))]
        steps = int(np.argmax(flags & FINAL > 0)) if len(flags) else 0
        if not steps or (storage.open[lane] and steps == len(flags) - 1):
            lanes.remove(lane)
            continue
        evict_run(storage, lane, steps)
        evicted += steps
    return evicted


def _evict_one(storage: Storage, lanes: Array) -> None:
    """Evict the oldest step of each of ``lanes``."""
    rows = storage.rows(lanes, storage.start[lanes])
    storage.transition_count -= int(np.count_nonzero((storage.flags[rows] & NO_TRANSITION) == 0))
    storage.start[lanes] += 1
    storage.steps[lanes] -= 1
    head = storage.rows(lanes, storage.start[lanes])
    flags = storage.flags[head]
    empty = (flags & FINAL) != 0
    storage.offset[lanes] = np.where(empty, 0, storage.offset[lanes] + 1)
    storage.start[lanes] += empty
    storage.episode_count -= int(empty.sum())
    if storage.journal is not None:  # before the flags change: the newest record must fit the rows at every moment
        storage.journal.write(storage)
    storage.set_flags(rows, FINAL)
    storage.set_flags(head, np.where(empty, FINAL, flags | HEAD).astype(np.uint8))


def evict_run(storage: Storage, lane: int, count: int) -> None:
    """Evict the ``count`` oldest steps of one lane."""
    if count < 2:
        if count == 1:
            _evict_one(storage, np.array([lane]))
        return
    start = storage.start[lane]
    rows = storage.rows(lane, np.arange(start, min(storage.end[lane], start + 2 * count)))
    flags = storage.flags[rows]
    steps = np.flatnonzero((flags & FINAL) == 0)[:count]
    stop = int(steps[-1])  # `_evict_one` evicts the last step, and sets the flags of the new head
    evicted = flags[:stop]
    finals = np.flatnonzero(evicted & FINAL)
    storage.transition_count -= int(np.count_nonzero((evicted & NO_TRANSITION) == 0))
    storage.start[lane] += stop
    storage.steps[lane] -= count - 1
    storage.episode_count -= len(finals)
    storage.offset[lane] = stop - finals[-1] - 1 if len(finals) else storage.offset[lane] + stop
    _evict_one(storage, np.array([lane]))
    storage.set_flags(rows[:stop], FINAL)
