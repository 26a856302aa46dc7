"""What a shard of the replay is: steps of some collectors, from which it draws minibatches by order.

A shard holds nothing that the run's own process cannot give it again: its steps are lanes of the run's buffer, and the
state of its sampler follows from one that it has told, and from its orders since.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from birl._version import __version__
from birl.dataset import DatasetInfo
from birl.dataset.lane_views import Changes, Copied
from birl.dataset.minibatch import Rows
from birl.dataset.reader import Reader, Source
from birl.dataset.sampling import Generators
from birl.distributed.transport import Work, check_version
from birl.files.state_restore import damage_as_typed_errors
from birl.types import Array, State


class Given(NamedTuple):
    """What a shard is made of.

    Attributes:
        shard: its number.
        info, lanes, limit: of its steps; see `Copied`.
        parts: picker, slicer, sampler and augmentation that it draws with.
        state: of its sampler and generators.
        birl: version of whoever sends this.
    """

    shard: int
    info: DatasetInfo
    lanes: int
    limit: int | None
    parts: tuple[Any, Any, Any, Any]
    state: State
    birl: str = __version__


class Draw(NamedTuple):
    """Draw a minibatch.

    Attributes:
        number: of the minibatch.
        view: its kind.
        size: number of its elements.
        changes: what was written to its lanes since the last one.
    """

    number: int
    view: Any
    size: int
    changes: list[Changes]


class Priorities(NamedTuple):
    """Take priorities of steps that were drawn here.

    Attributes:
        generation: numbers ``[B]`` of the steps; see `Rows`.
        priority: theirs, ``[B]``.
        told: whether to answer with the state after it.
    """

    generation: Array
    priority: Array
    told: bool


class Tell(NamedTuple):
    """Answer with the state of sampler and generators."""


class Repeat(NamedTuple):
    """Bring the sampler to where it was: carry out orders again of which the answers are there.

    Attributes:
        orders: since it told its state.
        generators: state of the generators after them.
    """

    orders: list[Draw | Priorities]
    generators: State


class Drawn(NamedTuple):
    """An order was carried out.

    Attributes:
        batch: the minibatch, if one was asked for.
        generation: numbers ``[B]`` of its steps, if priorities are used.
        scale: what its weights are multiplied with to compare them with those of other shards; see `Rows`.
        state: of the generators; of the sampler, too, if it was asked for.
    """

    batch: Any = None
    generation: Array | None = None
    scale: float = 1.0
    state: State | None = None


class ReplayWorker(Work):
    """A shard at work.

    Args:
        given: what it is made of.

    Raises:
        ConfigError: if another version of birl has sent it.
    """

    def __init__(self, given: Given) -> None:
        check_version(f"shard {given.shard}", given.birl)
        self._number, self._place = given.shard, f"the beginning of shard {given.shard}"
        self._lanes = Copied(given.info, given.lanes, given.limit)
        picker, slicer, sampler, augmentation = given.parts
        generators = Generators(np.random.default_rng(0))  # until the state is set
        self._source = Source(self._lanes, picker, slicer, sampler, generators, augmentation)
        self._reader = Reader([self._source])
        with damage_as_typed_errors("the checkpoint", "the state of a shard cannot be used"):
            self._source.set_state(given.state)

    def __call__(self, order: Any, beside: Any) -> Drawn:
        """Carry out an order: `Changes`, `Draw`, `Priorities`, `Repeat` or `Tell`."""
        self._place = f"{type(order).__name__} {getattr(order, 'number', '')} of shard {self._number}"
        if isinstance(order, Changes):
            self._lanes.follow(order)
        elif isinstance(order, Draw):
            return self._draw(order)
        elif isinstance(order, Priorities):
            self._take(order)
            return Drawn(state=self._source.get_state() if order.told else None)
        elif isinstance(order, Repeat):
            for each in order.orders:
                if isinstance(each, Draw):
                    self._source.draw_rows(each.view, each.size)
                else:
                    self._take(each)
            self._source.generators.set_state(order.generators, None)
        else:
            return Drawn(state=self._source.get_state())
        return Drawn()

    def _draw(self, order: Draw) -> Drawn:
        for changes in order.changes:
            self._lanes.follow(changes)
        batch = self._reader.sample(order.view, order.size)
        state = self._source.generators.get_state()
        if batch.rows is None:
            return Drawn(batch, state=state)
        ((_, rows),) = batch.rows
        return Drawn(batch.replace(rows=None), rows.generation, rows.scale, state)

    def _take(self, order: Priorities) -> None:
        position, lane = np.divmod(order.generation, self._lanes.lanes)
        self._source.update(Rows(self._lanes.rows(lane, position), None, order.generation), order.priority)

    @property
    def place(self) -> str:
        """Where it is."""
        return self._place

    def close(self) -> None:
        """There is nothing to close."""
