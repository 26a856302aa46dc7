"""Sampling for several learners with a sampler that is not uniform: the first learner draws all rows.

Only the first learner has samplers with their states. It sends the other learners the rows of their minibatches.
Priorities are exchanged during the update, through the group that averages gradients. If an update is repeated because
a learner was lost, the priorities are updated again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from birl.dataset.lane_views import LaneView
from birl.dataset.minibatch import Rows
from birl.dataset.reader import Reader, Source, read_rows
from birl.dataset.views import M, View
from birl.distributed.process_group import LearnerGroup
from birl.types import Array, State


class SharedSampling:
    """The first learner's source of minibatches, which also draws the rows of the other learners' minibatches.

    Args:
        source: source of the whole buffer.
        lanes: lanes of each learner, by its number from 0.

    Attributes:
        rows: rows of the current minibatches of the other learners, by number.
        group: group of all learners, set by the object that forms it.
    """

    def __init__(self, source: Source, lanes: Mapping[int, LaneView]) -> None:
        self._sources = {}
        for index, own in lanes.items():
            self._sources[index] = replace(source if index == 0 else source.renewed(), storage=own)
        self._reader = Reader([self._sources[0]])
        self.rows: dict[int, Rows] = {}
        self.group: LearnerGroup | None = None

    @property
    def sources(self) -> list[Source]:
        """The source of the first learner."""
        return [self._sources[0]]

    def sample(self, view: View[M], count: int) -> M:
        """Sample the first learner's minibatch, and draw the rows of all others."""
        batch = self._reader.sample(view, count)
        self.rows = {index: source.draw_rows(view, count) for index, source in self._sources.items() if index}
        if batch.rows is None:
            return batch
        ((_, first),) = batch.rows
        scales = {0: first.scale, **{index: rows.scale for index, rows in self.rows.items()}}
        share = {index: np.float32(scale / max(scales.values())) for index, scale in scales.items()}
        self.rows = {i: rows._replace(weight=rows.weight * share[i]) for i, rows in self.rows.items()}
        return batch.replace(rows=[(self, first)], weights=batch.weights * share[0])

    def update(self, rows: Rows, priority: Array) -> None:
        """Pass the priorities of all learners to the samplers that drew their rows."""
        assert self.group is not None
        priorities = exchange(self.group, 0, len(self._sources), priority)
        for index, source in self._sources.items():
            source.update(rows if index == 0 else self.rows[index], priorities[index])

    def get_state(self, *, contents: bool = False) -> State:
        """Return the state of all samplers and their generators."""
        return {str(index): source.get_state() for index, source in self._sources.items()}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        for index, source in self._sources.items():
            source.set_state(state[str(index)])


class SentRows:
    """Source of a minibatch for another learner, which was sent its rows.

    Args:
        source: source of its steps.
        rows: rows of the next minibatch.
        group: group of all learners.
        number: number of this learner.
        size: number of learners.
    """

    def __init__(self, source: Source, rows: Rows, group: LearnerGroup | None, number: int, size: int) -> None:
        self._source, self._rows = source, rows
        self._group, self._number, self._size = group, number, size

    def sample(self, view: View[M], count: int) -> M:
        """Read the minibatch."""
        batch = read_rows(view, [(self._source, self._rows)])
        return batch if batch.weights is None else batch.replace(rows=[(self, self._rows)])

    def update(self, rows: Rows, priority: Array) -> None:
        """Send priorities to the first learner."""
        assert self._group is not None
        exchange(self._group, self._number, self._size, priority)


def exchange(group: LearnerGroup, number: int, size: int, values: Array) -> Array:
    """Exchange values between all learners, which call this together.

    Args:
        group: group of all learners.
        number: number of this learner.
        size: number of learners.
        values: values ``[B]`` of this learner.

    Returns:
        The values of all learners, ``[size, B]``.
    """
    table = torch.zeros(size, len(values), dtype=torch.float64)
    table[number] = torch.from_numpy(np.asarray(values, np.float64))
    return np.asarray((group.all_reduce_mean(table) * size).numpy(), np.float32)
