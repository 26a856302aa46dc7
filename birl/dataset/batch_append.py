"""Writing several steps of a lane at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from birl.dataset.eviction import evict, surplus
from birl.dataset.flags import FIRST, TERMINATED
from birl.dataset.ingest import row_flags
from birl.dataset.storage import Storage
from birl.errors import ShapeError
from birl.types import Array

Columns = Mapping[str, Array]


def lane_numbers(lanes: Any, there: int) -> Array:
    """The lanes ``[N]`` of steps as int64.

    Args:
        lanes: as users gave them; a number is one of them.
        there: number of lanes that there are.

    Raises:
        ShapeError: if they are no lanes.
    """
    try:
        given = np.atleast_1d(np.asarray(lanes))
    except ValueError:  # lists of different lengths
        given = np.zeros((0, 0))
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ShapeError(f"lanes is {lanes!r:.80}; it must be one whole number for each row, such as [0, 2]")
    wrong = given[(given < 0) | (given >= there)]
    if wrong.size:
        raise ShapeError(f"lane={wrong[0]}, this buffer has lanes 0 … {there - 1}: make it with lanes=")
    return given.astype(np.int64, copy=False)


def append_steps(
    storage: Storage, lanes: Array | None, values: Columns, following: Columns, ending: Array, mask: Array | None
) -> None:
    """Add steps whose next observations are known; those of a lane follow each other.

    The storage then holds the same as if the first steps of all lanes had come at once, after them the second ones, and
    so on.

    Args:
        storage: to write to.
        lanes: the lane ``[N]`` of each; one for each lane if ``None``.
        values, following, ending: columns ``[N, …]`` and uint8 ``[N]``, see `Storage.append`.
        mask: bool ``[N]``: only these are stored; all if ``None``.
    """
    turn = None
    if lanes is None:
        lanes = np.arange(storage.lanes)
    elif len(lanes) > 1 and (counts := np.bincount(lanes)).max() > 1:
        order, turn = np.argsort(lanes, kind="stable"), np.zeros(len(lanes), np.int64)
        turn[order] = np.arange(len(lanes)) - np.repeat(np.cumsum(counts) - counts, counts)
    if mask is not None and not mask.all():
        lanes, ending, turn = lanes[mask], ending[mask], turn if turn is None else turn[mask]
        values, following = _rows(values, mask), _rows(following, mask)
    if not len(lanes):
        return
    if turn is None:
        storage.append(lanes, values, following, ending if ending.any() else None)
    else:
        _append(storage, lanes, values, following, ending, turn)


def _append(storage: Storage, lanes: Array, values: Columns, following: Columns, ending: Array, turn: Array) -> None:
    first, last = turn.min(), turn.max()
    if first == last:
        storage.append(lanes, values, following, ending)
        return
    counts = np.bincount(lanes, minlength=storage.lanes)
    drop = _dropped(storage, lanes, counts, ending)
    if drop is None:
        for part in (turn <= (first + last) // 2, turn > (first + last) // 2):
            columns = _rows(values, part), _rows(following, part)
            _append(storage, lanes[part], *columns, ending[part], turn[part])
        return
    if drop.any():
        evict(storage, drop)  # first, so that there is room
    for lane in np.flatnonzero(counts).tolist():
        own = np.flatnonzero(lanes == lane)
        _append_run(storage, lane, _rows(values, own), _rows(following, own), ending[own])
    storage.end_write()


def _dropped(storage: Storage, lanes: Array, counts: Array, ending: Array) -> Array | None:
    """How many steps each lane drops for ``counts`` new ones; ``None`` if these may not come at once.

    They may not where a kill must cost no more than the step under way, where some of them might have to go again, and
    where the ring might have grown on the way: what is drawn depends on the rows in which the steps lie.
    """
    if storage.whole or storage.journal is not None:
        return None
    complete = storage.steps - (storage.pending & (counts == 0))
    excess = 0 if storage.limit is None else int(complete.sum() + counts.sum()) - storage.limit
    if excess <= 0:
        return np.zeros(storage.lanes, np.int64)
    drop, written = surplus(storage, excess, complete + counts), counts > 0
    if excess < counts.sum() or ((drop >= storage.steps) & (drop > 0))[written].any():
        return None
    steps = np.minimum(storage.steps + counts, storage.steps.max() + np.count_nonzero(written))  # at most on the way
    finals = storage.end - storage.start - storage.steps + np.bincount(lanes, ending > 0, storage.lanes)
    return drop if (steps + finals + 2)[written].max() <= storage.capacity else None


def _append_run(storage: Storage, lane: int, steps: Columns, following: Columns, ending: Array) -> None:
    ends, runs = ending != 0, not ending[-1]
    ends[-1] = True
    flags = row_flags(ending == TERMINATED, ends, known=True)
    if runs:
        flags[-2] &= FIRST
    if storage.open[lane]:
        flags[0] &= 255 - FIRST
    needed = int(storage.end[lane] - storage.start[lane]) - storage.open[lane] + len(flags)
    while storage.capacity < needed:  # as it grows when steps come one after another
        storage.reserve(storage.capacity + 1)
    storage.write_run(lane, flags, steps, _rows(following, ends), runs)


def _rows(columns: Columns, which: Any) -> Columns:
    return {name: column[which] for name, column in columns.items()}
