"""Shards of the replay, as the run's own process sees them: told what was written, asked for minibatches, made anew.

Each shard has a copy of the lanes of its collectors, and draws an equal part of every minibatch from them. Before steps
are stored, all shards have answered. So a shard that is lost is made anew from what the run's own process has: the
steps, a state that it told, and its orders since. A new step's priority is the largest so far, wherever it is found
again, because a shard tells its state whenever a larger one has come.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Self

import numpy as np

from birl.dataset.lane_views import Lanes
from birl.dataset.minibatch import Rows, SequenceMiniBatch, TransitionMiniBatch
from birl.dataset.reader import Source
from birl.dataset.sampling import Generators
from birl.distributed.ray import Remote
from birl.distributed.transport import Gone, Inline, Processes, Transport
from birl.distributed.workers import check_given
from birl.errors import ConfigError, CorruptFileError, UnsupportedError, WorkerError
from birl.logging import LOG
from birl.run.cluster import Cluster
from birl.run.workers.replay_worker import Draw, Drawn, Given, Priorities, Repeat, ReplayWorker, Tell
from birl.types import Array, State

TRANSPORTS: Final[dict[str, Callable[[Cluster], Transport]]] = {
    "inline": lambda cluster: Inline(ReplayWorker),
    "processes": lambda cluster: Processes(ReplayWorker, cluster.step_timeout),
    "ray": lambda cluster: Remote(ReplayWorker, cluster.address, cluster.step_timeout, cluster.patience),
}

TOLD_INTERVAL: Final = 1000
"""Orders after which a shard tells its state: as many are repeated at most when it is made anew."""

_KINDS: Final = {kind.__name__: kind for kind in (TransitionMiniBatch, SequenceMiniBatch)}


class _Shard:
    """A shard, and what it is made anew from.

    Attributes:
        index: its number.
        lanes: its steps.
        told: the state that it told.
        since: orders that were carried out since then.
        generators: their state after the last draw.
        open: orders that are not answered.
        copying: number of answers before theirs, of orders that bring it where it was.
        begun: whether there is one.
        drawn: its part of the next minibatch, if that is there.
        greatest: the largest priority that was handed to it.
        deaths: how often it was lost since its last answer.
    """

    def __init__(self, index: int, lanes: Lanes, told: State) -> None:
        self.index, self.lanes = index, lanes
        self.told = told
        self.since: list[Draw | Priorities] = []
        self.generators: State = {}
        self.open: deque[Draw | Priorities | Tell] = deque()
        self.copying, self.begun = 0, False
        self.drawn: Drawn | None = None
        self.greatest = 0.0
        self.deaths = 0
        self.give_back: Callable[[_Shard, Array, Array], None]

    def update(self, rows: Rows, priority: Array) -> None:
        """Take priorities of rows that were drawn here: what `MiniBatch.update_priorities` calls."""
        self.give_back(self, rows.generation, priority)


class ReplayShards:
    """What a run with shards draws from. A context in which they can begin; its state is a part of checkpoints.

    Args:
        algorithm: built.
        buffer: of the steps of all collectors.
        cluster: says how many shards there are, and where.

    Attributes:
        sources: what they draw with.
        transition_picker: what makes transitions.
        replaced: how many shards were made anew.

    Raises:
        UnsupportedError: if the algorithm, or the buffer, cannot be divided.
        ConfigError: if minibatches cannot.
    """

    def __init__(self, algorithm: Any, buffer: Any, cluster: Cluster) -> None:
        self.sources = _sources(algorithm, buffer, cluster)
        source, own = self.sources[0], cluster.lanes // cluster.shards
        self.transition_picker = source.picker
        self._cluster, self._parts = cluster, (source.picker, source.slicer, source.sampler, source.augmentation)
        self._shards = []
        for index in range(cluster.shards):
            generators = source.generators if index == 0 else Generators()
            told = replace(source, generators=generators).get_state()
            self._shards.append(_Shard(index, Lanes(buffer.storage, index * own, own), told))
            self._shards[-1].give_back = self._give_back
        self._transport: Transport | None = None
        self._number = self.replaced = 0

    @property
    def transition_count(self) -> int:
        """Number of transitions, if all shards had as few as one of them has."""
        for shard in self._shards:
            shard.lanes.refresh()
        return min(shard.lanes.transition_count for shard in self._shards) * len(self._shards)

    def sample(self, view: Any, count: int) -> Any:
        """Draw a minibatch. The next one may be drawn meanwhile; see `birl.run.cluster.Cluster`."""
        if all(shard.drawn is None for shard in self._shards):
            self._order(view, count)
        self.settle()
        drawn = [shard.drawn for shard in self._shards]
        batch = self._joined(drawn)
        for shard in self._shards:
            shard.drawn = None
        if self._cluster.ahead:
            self._order(view, count)
        return batch

    def settle(self) -> None:
        """Wait until all shards have answered. Call it before steps are stored."""
        while any(shard.open for shard in self._shards):
            self._listen()

    def _joined(self, drawn: list[Any]) -> Any:
        first, *others = (each.batch for each in drawn)
        batch = first.concatenate(*others) if others else first
        if drawn[0].generation is None:
            return batch
        if others:
            largest = max(each.scale for each in drawn)
            weights = [each.batch.weights * np.float32(each.scale / largest) for each in drawn]
            batch = batch.replace(weights=np.concatenate(weights))
        parts = zip(self._shards, drawn, strict=True)
        return batch.replace(rows=[(shard, Rows(each.generation, None, each.generation)) for shard, each in parts])

    # -- orders ----------------------------------------------------------------------------------------------------

    def _order(self, view: Any, count: int) -> None:
        self._number += 1
        for shard in self._shards:
            self._begin(shard)
            if len(shard.since) >= TOLD_INTERVAL:
                self._send(shard, Tell())
            changes = list(shard.lanes.changes())
            self._send(shard, Draw(self._number, view, count // len(self._shards), changes))

    def _give_back(self, shard: _Shard, generation: Array, priority: Array) -> None:
        greatest = float(priority.max(initial=0.0))
        self._begin(shard)
        self._send(shard, Priorities(generation, priority, told=greatest > shard.greatest))
        shard.greatest = max(greatest, shard.greatest)

    def _send(self, shard: _Shard, order: Draw | Priorities | Tell) -> None:
        shard.open.append(order)
        self._transported.send(shard.index, order, None)

    def _listen(self) -> None:
        """Wait for one answer."""
        try:
            index, answer = self._transported.wait()
        except Gone as error:
            self._lose(self._shards[error.index], error)
            return
        shard = self._shards[index]
        if shard.copying:
            shard.copying -= 1
            return
        order = shard.open.popleft()
        if isinstance(order, Draw):
            shard.drawn, shard.generators, shard.deaths = answer, answer.state, 0
            shard.since.append(order._replace(changes=[]))
        elif isinstance(order, Priorities) and not order.told:
            shard.since.append(order)
        else:
            shard.told, shard.since = answer.state, []

    # -- what is lost ----------------------------------------------------------------------------------------------

    def _begin(self, shard: _Shard) -> None:
        """Make a shard, if there is none, with the steps of its lanes, where it was after its last answer."""
        if shard.begun:
            return
        shard.begun, lanes, deaths = True, shard.lanes, shard.deaths
        given = Given(shard.index, lanes.info, lanes.lanes, lanes.limit, self._parts, shard.told)
        self._transported.start(shard.index, given)
        again: list[Any] = [Repeat(shard.since, shard.generators)] if shard.since else []
        for order in itertools.chain(lanes.changes(whole=True), again):
            shard.copying = 1
            self._transported.send(shard.index, order, None)
            while shard.copying:  # one after another: all of them take as much memory as the buffer
                self._listen()
            if shard.deaths > deaths:  # it was lost again, and made anew
                return
        for open_order in shard.open:
            order = open_order._replace(changes=[]) if isinstance(open_order, Draw) else open_order
            self._transported.send(shard.index, order, None)

    def _lose(self, shard: _Shard, error: Gone) -> None:
        shard.deaths, self.replaced = shard.deaths + 1, self.replaced + 1
        if shard.deaths > self._cluster.restarts:
            raise WorkerError(
                f"shard {shard.index} was ended {shard.deaths} times in a row ({error.how} last) without a minibatch "
                f"between them: minibatch {self._number} cannot be drawn. Where the system ends it for lack of memory, "
                "use more shards on more machines, or a smaller buffer"
            )
        LOG.warning(
            "shard %d was ended %s, at minibatch %d or before; it is made anew with the steps of its collectors and "
            "their priorities, and nothing is lost",
            *(shard.index, error.how, self._number),
        )
        shard.begun, shard.copying = False, 0
        self._begin(shard)

    @property
    def _transported(self) -> Transport:
        assert self._transport is not None
        return self._transport

    def __enter__(self) -> Self:
        self._transport = TRANSPORTS[self._cluster.transport](self._cluster)
        return self

    def __exit__(self, *error: object) -> None:
        """End all shards."""
        self._transported.close()
        self._transport = None
        for shard in self._shards:
            shard.begun = False

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self, *, contents: bool = False) -> State:
        """State of all samplers and generators, and the minibatch that was drawn ahead. Steps are not included."""
        self.settle()
        for shard in self._shards:
            if shard.begun:
                self._send(shard, Tell())
        self.settle()
        shards = {}
        for shard in self._shards:
            drawn = {} if shard.drawn is None else {"drawn": _saved(shard.drawn)}
            shards[str(shard.index)] = {"told": shard.told, "greatest": shard.greatest, **drawn}
        return {"number": self._number, "shards": shards}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`, before any shard has begun."""
        if state["shards"].keys() != {str(shard.index) for shard in self._shards}:
            raise CorruptFileError(f"the checkpoint has shards {list(state['shards'])!s:.80}: use a copy")
        drawn = [_restored(each.get("drawn"), self.sources[0]) for each in state["shards"].values()]
        if len({each is None for each in drawn}) != 1:
            raise CorruptFileError("the checkpoint has only a part of the next minibatch: use a copy")
        self._number = int(state["number"])
        for shard in self._shards:
            own = state["shards"][str(shard.index)]
            shard.told, shard.greatest, shard.since = own["told"], float(own["greatest"]), []
            shard.drawn = _restored(own.get("drawn"), self.sources[0])


def _saved(drawn: Drawn) -> State:
    """A minibatch as the state of a checkpoint."""
    batch = drawn.batch
    fields = {name: x for name, x in vars(batch).items() if x is not None and name != "augmentation"}
    saved = {"kind": type(batch).__name__, "fields": fields, "scale": drawn.scale}
    return saved if drawn.generation is None else {**saved, "generation": drawn.generation}


def _restored(saved: Mapping[str, Any] | None, source: Source) -> Drawn | None:
    """Inverse of `_saved`."""
    if saved is None:
        return None
    kind = _KINDS.get(saved["kind"])
    if kind is None:
        raise CorruptFileError(f"the checkpoint has a minibatch of kind {saved['kind']!r:.40}: use a copy")
    fields = dict(saved["fields"])
    fields |= {"augmentation": source.augmentation} if "augmented" in fields else {}
    return Drawn(kind(**fields), saved.get("generation"), float(saved["scale"]))


def _sources(algorithm: Any, buffer: Any, cluster: Cluster) -> list[Source]:
    """What shards draw with, if they can.

    Raises:
        UnsupportedError: if they cannot.
        ConfigError: if minibatches cannot be divided, or a part cannot be sent to another process.
    """
    name, learner, batch_size = type(algorithm).__name__, algorithm.learner, algorithm.config.batch_size
    sources: list[Source] = list(getattr(getattr(buffer, "reader", None), "sources", ()))
    if len(sources) != 1:
        raise UnsupportedError(
            f"{len(sources)} buffers were given with Cluster.shards, which divide one: give one buffer, or leave "
            "shards out"
        )
    if not learner.experience.gathers or learner.returns is not None:
        raise UnsupportedError(
            f"{name} learns from returns up to the ends of episodes, which shards do not send: leave shards out, or "
            "use an algorithm that learns from transitions or sequences"
        )
    if batch_size % cluster.shards:
        raise ConfigError(
            f"batch_size is {batch_size}, with Cluster.shards={cluster.shards}; every shard draws as many: give "
            f"batch_size={-(-batch_size // cluster.shards) * cluster.shards}, or another number of shards"
        )
    if cluster.transport == "processes":
        for part in ("picker", "sampler"):
            check_given(part, getattr(sources[0], part), "define its class in a module that can be imported")
    return sources
