"""Steps as a struct of arrays: ``lanes`` rings of rows, one lane for each parallel environment.

A lane is a sequence of positions ``start … end - 1``; position ``p`` lies in row ``p % capacity`` of its lane, and
lane ``l`` owns the rows ``l * capacity … (l + 1) * capacity - 1``. An episode of T steps takes T + 1 positions: T
steps and one *final* row that holds the observation after the last step. So the next observation of a step is
always the observation of the following row, every observation is stored once, and truncation loses nothing.

The episode that is being written ends with a final row too; the next step overwrites it. One byte of flags per row
says what the row is. Rows that are not in use are flagged `FINAL`, so neither sampling nor a window that walks
over rows needs to know where a lane starts or ends.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from birl.checks import check
from birl.dataset.arrays import MemoryPlace, Place
from birl.dataset.episode import DatasetInfo
from birl.dataset.eviction import enforce_limit, evict_episodes, evict_run
from birl.dataset.flags import FINAL, FIRST, HEAD, NO_NEXT, NO_TRANSITION, TERMINATED, TRUNCATED, UNKNOWN
from birl.dataset.journal import Journal
from birl.dataset.log_record import LogRecord
from birl.spaces.observations import Choices
from birl.types import Array, Leaf, Tree, tree_leaves, tree_map

T = TypeVar("T")

_MINIMUM_CAPACITY = 64
_BLOCK = 2**22  # bytes that are moved at once


class Storage:
    """Growing or ring-shaped arrays of steps.

    Args:
        info: shapes and dtypes of steps, and the kind of actions.
        lanes: number of parallel environments.
        limit: largest number of steps over all lanes, ``None`` for no limit.
        place: where arrays lie.
        capacity: rows per lane to begin with.
        whole: drop whole episodes, as long as there are any that have ended.
    """

    def __init__(
        self,
        info: DatasetInfo,
        *,
        lanes: int = 1,
        limit: int | None = None,
        place: Place | None = None,
        capacity: int = 0,
        whole: bool = False,
    ) -> None:
        check("lanes", lanes, int, low=1)
        check("limit", limit, int, ": at least 1 step for each lane", optional=True, low=lanes)
        self.place: Place = MemoryPlace() if place is None else place
        self.lanes, self.limit, self.capacity = lanes, limit, max(capacity, 2)
        self.info, self.whole = info, whole
        self.logs: LogRecord | None = None
        self.leaves: dict[str, Leaf] = {"action": info.action_signature.tree, "reward": info.reward_signature.tree}
        self.observation_names: Tree = self._name("observation", info.observation_signature.tree)
        kinds = zip(tree_leaves(self.observation_names), tree_leaves(info.observations), strict=True)
        self.choices = {name: leaf for name, leaf in kinds if isinstance(leaf, Choices)}
        self.columns: dict[str, Any] = {}
        self._cache: dict[str, tuple[int, Any]] = {}
        self.version = self.generation = 0  # of the contents; of the arrays they lie in
        self.mirrors: weakref.WeakSet[Any] = weakref.WeakSet()  # they are notified of written rows
        self.journal: Journal | None = None  # of the one writer of a folder
        self.watch: Callable[[], None] | None = None  # of a folder's reader: raises once its rows are overwritten
        # On a device rows are drawn from an index there. Of a ring it would have to be made again after each step.
        self.device_draws = self.place.device is not None and limit is None
        self.reset_lanes()
        for name in self.leaves:
            self.columns[name] = self._allocate(name)
        self._allocate_flags()

    def __getstate__(self) -> dict[str, Any]:
        """A copy, such as one in another process, has no mirrors, and is not written to."""
        own = {name: value for name, value in vars(self).items() if name != "mirrors"}
        return own | {"journal": None, "watch": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, mirrors=weakref.WeakSet())

    @property
    def source(self) -> Storage:
        """The storage that is written to; of a `birl.dataset.device_mirror.Mirror` another one."""
        return self

    def refresh(self) -> None:
        """Bring a mirror up to date. Called before each draw."""
        if self.watch is not None:
            self.watch()

    def _name(self, path: str, tree: Tree) -> Tree:
        """Name the leaves of an observation tree by their path."""
        if isinstance(tree, Leaf):
            self.leaves[path] = tree
            return path
        if isinstance(tree, dict):
            return {key: self._name(f"{path}.{key}", item) for key, item in tree.items()}
        return tuple(self._name(f"{path}.{index}", item) for index, item in enumerate(tree))

    def reset_lanes(self) -> None:
        """Forget all rows."""
        self.start, self.end = np.zeros((2, self.lanes), np.int64)
        self.steps, self.offset = np.zeros((2, self.lanes), np.int64)  # offset: evicted steps of the oldest episode
        self.open, self.pending = np.zeros((2, self.lanes), np.bool_)  # pending: newest step has no next observation
        self.transition_count = self.episode_count = 0

    # -- memory ----------------------------------------------------------------------------------------------------

    def _allocate(self, name: str) -> Any:
        leaf, rows = self.leaves[name], self.lanes * self.capacity
        return self.place.allocate(f"column_{list(self.leaves).index(name)}", (rows, *leaf.shape), leaf.dtype)

    def _allocate_flags(self) -> None:
        # The host always has the flags: eviction and episode boundaries are found without asking a device.
        place = self.place if isinstance(self.place, MemoryPlace) else MemoryPlace()
        self.flags: Array = place.allocate("column_flags", (self.lanes * self.capacity,), np.dtype(np.uint8))
        self.flags[:] = FINAL
        self.copy_flags()

    def copy_flags(self) -> None:
        """Bring the flags to the device where indices are drawn."""
        self.device_flags = self.flags if self.place.device is None else self.place.indices(self.flags.copy())

    def set_flags(self, rows: Array, values: Array | int) -> None:
        """Write the flags of rows. No row is written without them: mirrors hear of it here."""
        self.flags[rows] = values
        for mirror in self.mirrors or ():  # an empty weak set is slow to walk over
            mirror.note(rows)
        if self.device_flags is not self.flags:
            self.place.put(self.device_flags, rows, values)

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows per lane: double, or go straight to the limit if that is enough."""
        if rows <= self.capacity:
            return
        capacity = max(2 * self.capacity, _MINIMUM_CAPACITY)
        if self.limit is not None:  # a quarter more if episodes are shorter than 64 steps
            full = self._full_capacity()
            capacity = min(capacity, full) if self.capacity < full else self.capacity * 5 // 4
        self.resize(max(capacity, rows))

    def resize(self, capacity: int) -> None:
        """Move all rows into arrays of ``capacity`` rows per lane (at least the rows in use)."""
        lane, position = self.live()
        old = self.rows(lane, position)
        before, columns = self.flags[old], self.columns
        self.capacity = capacity
        new = self.rows(lane, position)
        self.columns = {}
        for name, column in columns.items():
            moved, block = self._allocate(name), max(1, _BLOCK // max(1, column[:1].nbytes))
            for begin in range(0, len(old), block):  # a copy of all rows beside both arrays would take as much again
                part = slice(begin, begin + block)
                moved[self.place.indices(new[part])] = column[self.place.indices(old[part])]
            self.columns[name] = moved
        self._allocate_flags()
        self.set_flags(new, before)
        self.generation += 1
        self.end_write()

    def add_extra(self, name: str, leaf: Leaf) -> None:
        """Add a column; steps that are already there get zeros."""
        self.leaves[name] = leaf
        self.columns[name] = self._allocate(name)
        self.generation += 1
        if self.journal is not None:
            self.journal.grown(self)

    @property
    def extra_names(self) -> list[str]:
        """Names of the extra columns, with their prefix ``extra.``."""
        return [name for name in self.leaves if name.startswith("extra.")]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, unused rows included."""
        return int(self.flags.nbytes) + sum(int(column.nbytes) for column in self.columns.values())

    @property
    def full_nbytes(self) -> int:
        """Bytes of all arrays when a ring has reached its limit."""
        return -(-self.nbytes * max(self._full_capacity(), self.capacity) // self.capacity)

    def _full_capacity(self) -> int:
        """Rows per lane for ``limit`` steps: one final row for 64 steps. 0 without a limit."""
        return 0 if self.limit is None else -(-self.limit // self.lanes) * 65 // 64 + 8

    @property
    def used(self) -> int:
        """Rows per lane that are or were in use: rows after them are free in all lanes."""
        end = self.end[0] if self.lanes == 1 else self.end.max()
        return min(int(end), self.capacity)

    def tail(self) -> Array:
        """Flags ``[lanes, 2]`` of the last two rows of each lane: of those in use only they may be written again."""
        return self.flags[self.last_rows()].T

    def last_rows(self) -> Array:
        """The last two rows ``[2, lanes]`` of each lane."""
        return self.rows(np.arange(self.lanes), np.maximum(self.end - [[2], [1]], 0))

    # -- rows ------------------------------------------------------------------------------------------------------

    def rows(self, lane: Array | int, position: Array) -> Array:
        """Row numbers of positions."""
        return lane * self.capacity + position % self.capacity

    def numbers(self, rows: Array) -> Array:
        """Numbers of the steps in ``rows``: no other step of this storage ever gets the same one."""
        if self.lanes == 1:
            start = int(self.start[0])
            return start + (rows - start) % self.capacity if start else rows
        lane, inside = rows // self.capacity, rows % self.capacity
        start = self.start[lane]
        return (start + (inside - start) % self.capacity) * self.lanes + lane

    def live(self, begin: Array | None = None) -> tuple[Array, Array]:
        """Lane and position of every row in use; of each lane only those from position ``begin`` ``[lanes]`` on."""
        begin = self.start if begin is None else begin
        counts = self.end - begin
        lane = np.repeat(np.arange(self.lanes), counts)
        return lane, np.arange(len(lane)) + np.repeat(begin - np.cumsum(counts) + counts, counts)

    def shift(self, rows: Any, by: Any) -> Any:
        """The rows ``by`` positions later, in the same lane. ``by`` is an integer or integers, broadcast."""
        if self.lanes == 1:
            return (rows + by) % self.capacity
        inside = rows % self.capacity
        return rows - inside + (inside + by) % self.capacity

    def next(self, rows: Any) -> Any:
        """The rows after steps ``rows``. Where nothing wraps around this is the next number."""
        return rows + 1 if self.limit is None else self.shift(rows, 1)

    def ahead(self, rows: Any, length: int, stop: int = FINAL) -> tuple[Any, Any]:
        """Windows that begin at ``rows`` ``[...]``: rows ``[..., length]``, and which are before the first ``stop``."""
        window = self.shift(rows[..., None], self.place.steps(0, length))
        return window, self.place.none_up_to((self.place.take(self.device_flags, window) & stop) != 0)

    def behind(self, rows: Any, length: int) -> tuple[Any, Any]:
        """Windows that end with ``rows`` ``[...]``: rows ``[..., length]``, and whether each is in the same episode."""
        window = self.shift(rows[..., None], self.place.steps(1 - length, 1))
        return window, self.place.none_after((self.place.take(self.device_flags, window) & (FIRST | HEAD)) != 0)

    def take(self, name: str, rows: Any) -> Any:
        """One column at ``rows``, in its own dtype."""
        return self.place.take(self.columns[name], rows)

    def take_flags(self, rows: Any, mask: int) -> Any:
        """Whether a flag of ``mask`` is set."""
        return (self.place.take(self.device_flags, rows) & mask) != 0

    def observation(self, rows: Any) -> Tree:
        """Observations at ``rows``, as networks take them."""
        place, columns = self.place, self.columns
        return tree_map(lambda name: place.to_network(place.take(columns[name], rows)), self.observation_names)

    def terminals(self, rows: Any) -> Any:
        """Float32 ``[..., 1]``: 1 where a step terminates."""
        return self.place.to_float(self.place.take(self.device_flags, rows) & TERMINATED)[..., None]

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
            values: columns ``[k, …]``; extra columns that are missing become zeros.
            following: observation columns ``[k, …]`` after the step, if known already.
            ending: uint8 ``[k]``: `TERMINATED` or `TRUNCATED` where the episode ends with the step, which needs
                ``following``; else 0.
        """
        was_open = self.open[lanes]
        position = self.end[lanes] - was_open  # a running episode's final row makes way
        self.reserve(int((position - self.start[lanes]).max()) + 2)
        rows, after = self.rows(lanes, position), self.rows(lanes, position + 1)
        if self.journal is not None:
            self._await(lanes, rows, values, was_open)
        waiting = self.pending[lanes]
        if waiting.any():
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
        self.episode_count += len(lanes) - int(was_open.sum())
        self.end_write(enforce_limit(self))

    def end_write(self, noted: bool = False) -> None:
        """A write is complete. Its end may have been ``noted`` already, see `birl.dataset.eviction`."""
        self.version += 1
        if self.journal is not None and not noted:
            self.journal.write(self)

    def _await(self, lanes: Array, rows: Array, values: Mapping[str, Array], known: Array) -> None:
        """Let steps wait whose next observation, at ``rows`` ``[k]``, is about to be replaced by another one.

        A kill in the middle of that then leaves the steps, without what follows them.
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
        """Mark that the next observation of steps is now known."""
        rows = self.rows(lanes, position)
        self.set_flags(rows, self.flags[rows] & np.uint8(255 - NO_NEXT))
        self.transition_count += len(lanes)

    def close(self, lanes: Array, terminated: Array, final: Mapping[str, Array] | None = None) -> None:
        """End the running episodes of ``lanes`` ``[k]``: terminated, or else truncated."""
        last = self.end[lanes] - 2
        rows, after = self.rows(lanes, last), self.rows(lanes, last + 1)
        ending = np.where(terminated, TERMINATED, TRUNCATED).astype(np.uint8)
        if self.journal is not None and final is not None:
            self._await(lanes, after, final, np.ones(len(lanes), np.bool_))
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
        """Add whole episodes to a lane that has none running.

        Args:
            lane: lane number.
            flags: uint8 ``[R]``, one for each row, final rows included.
            steps: columns for the rows that are steps.
            finals: observation columns for the rows that are final.
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
        if self.limit is not None:  # free rows first, so that the ring need not grow
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
        """Write rows after those of a lane, which has room for them. They go on with its episode, if one is running.

        Args:
            lane, flags, steps, finals: see `extend`.
            runs: whether the last episode, which has a final row, too, is still running.
        """
        was_open = bool(self.open[lane])  # its final row makes way
        begin = int(self.end[lane]) - was_open
        rows, is_step = self.rows(lane, begin + np.arange(len(flags))), (flags & FINAL) == 0
        if self.pending[lane]:
            self._resolve(np.array([lane]), np.array([begin - 1]))
        step_rows, final_rows = rows[is_step], rows[~is_step]
        for name, column in self.columns.items():
            self.place.put(column, step_rows, steps.get(name, 0))
            self.place.put(column, final_rows, finals.get(name, 0))  # a ring's rows hold old data
        self.set_flags(rows, flags)
        self.end[lane] = begin + len(flags)
        self.steps[lane] += len(step_rows)
        self.open[lane], self.pending[lane] = runs, False
        self.episode_count += len(final_rows) - was_open
        self.transition_count += int(np.count_nonzero((flags & NO_TRANSITION) == 0))

    # -- derived ---------------------------------------------------------------------------------------------------

    def cached(self, key: str, make: Callable[[], T]) -> T:
        """The result of ``make``, computed again only after a write."""
        version, value = self._cache.get(key, (-1, None))
        if version != self.version:
            value = make()
            self._cache[key] = (self.version, value)
        return value  # type: ignore[no-any-return]
