"""From steps to the rest of their episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from birl.dataset.episodes import episode_table, locate
from birl.dataset.mini_batch import TailMiniBatch
from birl.dataset.pickers import BasicTransitionPicker, is_vectorised
from birl.dataset.storage import NO_NEXT, Storage
from birl.errors import DataError, UnsupportedError
from birl.types import Tree


def tail_batch(storage: Storage, picker: Any, rows: Any, written: Storage) -> TailMiniBatch:
    """The steps at ``rows`` ``[B]``, which are transitions, with their tails.

    Args:
        storage: what is read.
        picker: makes the observations.
        rows: row numbers, where ``storage`` has them.
        written: the storage that steps are appended to. Once that has happened nothing more is read.

    Raises:
        UnsupportedError: if the picker makes other targets than of single steps, or works one by one.
    """
    if not is_vectorised(picker) or getattr(type(picker), "batch", None) is not BasicTransitionPicker.batch:
        raise UnsupportedError(
            f"{type(picker).__name__} cannot be used for returns up to an episode's end, which are made of single "
            "steps: give the dataset a BasicTransitionPicker or FrameStackTransitionPicker"
        )
    place, table = storage.place, episode_table(storage)
    episode, index = locate(storage, place.host(rows))
    chosen, which = np.unique(episode, return_inverse=True)
    first = table.length[chosen]
    np.minimum.at(first, which, index)
    lane, start, length = (column[chosen] for column in table)
    closed = (storage.flags[storage.rows(lane, start + length - 1)] & NO_NEXT) == 0
    count = length - first + closed  # else the last step, which is no transition, is the closing row
    ends = np.cumsum(count)
    begins = ends - count
    position = np.arange(ends[-1]) + np.repeat(start + first - begins, count)
    tails = place.indices(storage.rows(np.repeat(lane, count), position))
    steps = np.ones((len(position), 1), np.float32)
    steps[ends - 1] = 0
    version = written.version

    def read(begin: int, end: int) -> Tree:
        if written.version != version:
            raise DataError(
                "the dataset was written to after this minibatch was drawn, so that rows of it may be gone: draw one, "
                "learn from it, and only then write"
            )
        return picker.observe(storage, tails[begin:end])

    return TailMiniBatch(
        picker.observe(storage, rows),
        place.to_action(storage.take("action", rows)),
        place.to_float(storage.take("reward", tails)),
        storage.terminals(tails),
        place.indices(steps),
        place.indices(begins[which] + index - first[which]),
        int(count.max()) - 1,
        read,
    )
