"""Several learners and a sampler that is not uniform: the first learner chooses the rows of all minibatches.

So the state of a sampler is with the first learner alone, as everything else. The others read the rows that they are
sent. Priorities come back within the update, through the group that computes its means: an update that is made again
because a learner was lost hands them back again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from birl.dataset.lane_views import Lanes
from birl.dataset.minibatch import Rows
from birl.dataset.reader import Reader, Source, read_rows
from birl.distributed.process_group import Group
from birl.types import Array, State


class SharedSampling:
    """What the first learner draws from: its own lanes, and for the others, theirs.

    Args:
        source: of the whole buffer.
        lanes: of each learner, by its number from 0.

    Attributes:
        chosen: rows of the present minibatches of the others, by number.
        group: of all learners; whoever makes it sets it.
    """

    def __init__(self, source: Source, lanes: Mapping[int, Lanes]) -> None:
        self._sources = {}
        for index, own in lanes.items():
            self._sources[index] = replace(source if index == 0 else source.renewed(), storage=own)
        self._reader = Reader([self._sources[0]])
        self.chosen: dict[int, Rows] = {}
        self.group: Group | None = None

    @property
    def sources(self) -> list[Source]:
        """The first learner's."""
        return [self._sources[0]]

    def sample(self, view: Any, count: int) -> Any:
        """Draw the first learner's minibatch, and choose the rows of all others'."""
        batch = self._reader.sample(view, count)
        self.chosen = {index: source.draw_rows(view, count) for index, source in self._sources.items() if index}
        if batch.rows is None:
            return batch
        ((_, first),) = batch.rows
        scales = {0: first.scale, **{index: rows.scale for index, rows in self.chosen.items()}}
        share = {index: np.float32(scale / max(scales.values())) for index, scale in scales.items()}
        self.chosen = {i: rows._replace(weight=rows.weight * share[i]) for i, rows in self.chosen.items()}
        return batch.replace(rows=[(self, first)], weights=batch.weights * share[0])

    def update(self, rows: Rows, priority: Array) -> None:
        """Hand the priorities of all learners to the samplers that chose their rows."""
        assert self.group is not None
        found = exchanged(self.group, 0, len(self._sources), priority)
        for index, source in self._sources.items():
            source.update(rows if index == 0 else self.chosen[index], found[index])

    def get_state(self, *, contents: bool = False) -> State:
        """State of all samplers and their generators."""
        return {str(index): source.get_state() for index, source in self._sources.items()}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        for index, source in self._sources.items():
            source.set_state(state[str(index)])


class Chosen:
    """What another learner draws from: rows that it was sent.

    Args:
        source: its steps.
        rows: theirs.
        group, number, size: what it is a member of.
    """

    def __init__(self, source: Source, rows: Rows, group: Group | None, number: int, size: int) -> None:
        self._source, self._rows = source, rows
        self._group, self._number, self._size = group, number, size

    def sample(self, view: Any, count: int) -> Any:
        """The minibatch of these rows."""
        batch = read_rows(view, [(self._source, self._rows)])
        return batch if batch.weights is None else batch.replace(rows=[(self, self._rows)])

    def update(self, rows: Rows, priority: Array) -> None:
        """Send priorities to the first learner."""
        assert self._group is not None
        exchanged(self._group, self._number, self._size, priority)


def exchanged(group: Group, number: int, size: int, values: Array) -> Array:
    """The values ``[size, B]`` of all learners, given those ``[B]`` of one. All call this."""
    whole = torch.zeros(size, len(values), dtype=torch.float64)
    whole[number] = torch.from_numpy(np.asarray(values, np.float64))
    return (group.mean(whole) * size).numpy().astype(np.float32)
