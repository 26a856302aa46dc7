"""Windows of episodes: sequences of steps, and steps with the rest of their episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from birl.dataset.episodes import episode_table, locate
from birl.dataset.minibatch import SequenceMiniBatch, TailMiniBatch
from birl.dataset.storage import FIRST, NO_NEXT, Storage
from birl.dataset.transitions import (
    NO_COLUMNS,
    BasicTransitionPicker,
    Columns,
    FrameStackTransitionPicker,
    extra_columns,
    is_vectorised,
)
from birl.errors import DataError, UnsupportedError
from birl.types import Tree, tree_map


def sequence_batch(
    storage: Storage,
    picker: Any,
    rows: Any,
    length: int,
    burn_in: int,
    columns: Columns = NO_COLUMNS,
) -> SequenceMiniBatch:
    """Sequences whose first trained steps are ``rows`` ``[B]``.

    The ``burn_in`` steps before it come first (Kapturowski et al. 2019, R2D2). Where the episode has fewer, padding
    comes first and the state is reset at the first real step. Beyond the episode's end there is padding.
    """
    _require_single_steps(picker, "sequences")
    place = storage.place
    before, alive_before = storage.behind(rows, burn_in + 1)
    after, alive_after = storage.ahead(rows, length)
    window = place.join([before[:, :-1], after], 1).T
    alive = place.join([alive_before[:, :-1], alive_after], 1).T
    if isinstance(picker, FrameStackTransitionPicker):
        alive = alive & picker.complete(storage, window)
    padding = ~alive
    known = alive & ~storage.take_flags(window, NO_NEXT)
    is_first = storage.take_flags(window, FIRST) & alive
    # After padding the state is not the stored one: a head whose history was evicted starts from zero as well.
    is_first[1:] |= alive[1:] & ~alive[:-1]
    observe = picker.observe

    def read(values: Tree, dead: Any = padding) -> Tree:
        return tree_map(lambda leaf: place.blank(leaf, dead), values)

    prefix = "extra.state."
    states = {
        name.removeprefix(prefix): read(place.to_float(storage.take(name, window[0])), padding[0])
        for name in storage.extra_names
        if name.startswith(prefix)
    }
    extra = extra_columns(storage, window) | columns.read(storage, picker, window, lambda: storage.shift(window, 1))
    return SequenceMiniBatch(
        read(observe(storage, window)),
        read(place.to_action(storage.take("action", window))),
        read(place.to_float(storage.take("reward", window))),
        read(observe(storage, storage.shift(window, 1)), ~known),
        read(storage.terminals(window)),
        extra=read(extra),
        masks=place.to_float(known),
        is_first=is_first,
        start_states=states,
        burn_in=burn_in,
    )


def tail_batch(storage: Storage, picker: Any, rows: Any) -> TailMiniBatch:
    """The steps at ``rows`` ``[B]``, which are transitions, with their tails.

    Args:
        storage: what is read.
        picker: makes the observations.
        rows: row numbers. They are read until the next write.

    Raises:
        UnsupportedError: if the picker makes other targets than of single steps, or works one by one.
    """
    _require_single_steps(picker, "returns up to an episode's end")
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
    written = storage.source
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
        terminals=storage.terminals(tails),
        steps=place.indices(steps),
        index=place.indices(begins[which] + index - first[which]),
        longest=int(count.max()) - 1,
        read=read,
    )


def _require_single_steps(picker: Any, purpose: str) -> None:
    if not is_vectorised(picker) or type(picker).batch is not BasicTransitionPicker.batch:
        raise UnsupportedError(
            f"{type(picker).__name__} cannot be used for {purpose}, which are made of single steps: give the dataset a "
            "BasicTransitionPicker or FrameStackTransitionPicker"
        )
