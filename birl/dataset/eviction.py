"""Dropping steps beyond the limit of a storage: the oldest ones of the fullest lanes.

If lanes are written in step, those are the oldest ones of all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from birl.dataset.flags import FINAL, HEAD, NO_TRANSITION
from birl.types import Array


def enforce_limit(storage: Any) -> bool:
    """Drop the steps beyond the limit. The newest counts once its next observation is there.

    Returns:
        Whether there were any.
    """
    if storage.limit is None:
        return False
    complete = storage.steps - storage.pending
    excess = over = int(complete.sum()) - storage.limit
    if excess > 0 and storage.whole:
        excess -= evict_episodes(storage, excess)
        complete = storage.steps - storage.pending
    if excess > 0:
        evict(storage, surplus(storage, excess, complete))
    return over > 0


def surplus(storage: Any, excess: int, complete: Array) -> Array:
    """How many steps to drop from each lane so that of ``complete`` ``[lanes]`` there are ``excess`` fewer."""
    if storage.lanes == 1:
        return np.array([excess])
    drop, left = np.zeros(storage.lanes, np.int64), complete
    while excess > 0:
        fullest = np.flatnonzero(left == left.max())[:excess]
        drop[fullest] += 1
        left = complete - drop
        excess -= len(fullest)
    return drop


def evict(storage: Any, drop: Array) -> None:
    """Drop the oldest ``drop`` ``[lanes]`` steps of each lane."""
    lanes = np.flatnonzero(drop)
    if drop.max() == 1:
        evict_one(storage, lanes)
        return
    for lane in lanes.tolist():
        evict_run(storage, lane, int(drop[lane]))


def evict_episodes(storage: Any, count: int) -> int:
    """Drop episodes that have ended, the oldest of the fullest lane first, until ``count`` steps are gone."""
    gone, lanes = 0, np.flatnonzero(storage.steps).tolist()
    while gone < count and lanes:
        lane = max(lanes, key=lambda each: storage.steps[each])
        flags = storage.flags[storage.rows(lane, np.arange(storage.start[lane], storage.end[lane]))]
        steps = int(np.argmax(flags & FINAL > 0)) if len(flags) else 0
        if not steps or (storage.open[lane] and steps == len(flags) - 1):
            lanes.remove(lane)
            continue
        evict_run(storage, lane, steps)
        gone += steps
    return gone


def evict_one(storage: Any, lanes: Array) -> None:
    """Drop the oldest step of each of ``lanes``."""
    rows = storage.rows(lanes, storage.start[lanes])
    storage.transition_count -= int(np.count_nonzero((storage.flags[rows] & NO_TRANSITION) == 0))
    storage.start[lanes] += 1
    storage.steps[lanes] -= 1
    head = storage.rows(lanes, storage.start[lanes])
    flags = storage.flags[head]
    gone = (flags & FINAL) != 0
    storage.offset[lanes] = np.where(gone, 0, storage.offset[lanes] + 1)
    storage.start[lanes] += gone
    storage.episode_count -= int(gone.sum())
    if storage.journal is not None:  # before the flags of what it says are there go
        storage.journal.write(storage)
    storage.set_flags(rows, FINAL)
    storage.set_flags(head, np.where(gone, FINAL, flags | HEAD).astype(np.uint8))


def evict_run(storage: Any, lane: int, count: int) -> None:
    """Drop the ``count`` oldest steps of one lane."""
    if count < 2:
        if count == 1:
            evict_one(storage, np.array([lane]))
        return
    start = storage.start[lane]
    rows = storage.rows(lane, np.arange(start, min(storage.end[lane], start + 2 * count)))
    flags = storage.flags[rows]
    steps = np.flatnonzero((flags & FINAL) == 0)[:count]
    stop = int(steps[-1])  # evict the last step by itself: this also mends the flags of the new head
    dropped = flags[:stop]
    finals = np.flatnonzero(dropped & FINAL)
    storage.transition_count -= int(np.count_nonzero((dropped & NO_TRANSITION) == 0))
    storage.start[lane] += stop
    storage.steps[lane] -= count - 1
    storage.episode_count -= len(finals)
    storage.offset[lane] = stop - finals[-1] - 1 if len(finals) else storage.offset[lane] + stop
    evict_one(storage, np.array([lane]))
    storage.set_flags(rows[:stop], FINAL)
