"""The shards of a run's replay buffer, each of which samples a part of every minibatch.

Each shard has a copy of the lanes of its collectors, and samples an equal part of every minibatch from them. All shards
have answered before further steps are stored. A lost shard is restarted from data of the run's own process: the steps,
the last state that the shard reported, and its tasks since then. A new step gets the largest priority so far, also
after a restart, because a shard reports its state after every priority that is larger than all before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, Self, cast

import numpy as np

from birl.dataset.lane_views import LaneView
from birl.dataset.minibatch import MiniBatch, Rows, SequenceMiniBatch, TransitionMiniBatch
from birl.dataset.reader import Source
from birl.dataset.sampling import Generators
from birl.dataset.views import M, View
from birl.distributed.transport import ReportStateTask, WorkerLost
from birl.distributed.worker_pool import LossReport, WorkerPool
from birl.distributed.worker_process import check_picklable
from birl.errors import ConfigError, CorruptFileError
from birl.run.cluster import Cluster
from birl.run.protocols import StepBuffer, Trainable
from birl.run.workers.protocols import DistributedAlgorithm
from birl.run.workers.replay_worker import (
    PriorityTask,
    RepeatTask,
    ReplayParts,
    ReplayResult,
    ReplayTask,
    ReplayWorker,
    ReplayWorkerSpec,
    SampleTask,
)
from birl.types import Array, State

STATE_INTERVAL: Final = 1000
"""Number of tasks after which a shard reports its state. A restarted shard repeats at most this many tasks."""

_MINIBATCHES: Final = {each.__name__: each for each in (TransitionMiniBatch, SequenceMiniBatch)}


class _Shard:
    """The data from which a shard is restarted.

    Attributes:
        index: its number.
        lanes: its steps.
        state: last state that it has reported.
        repeats: tasks whose results have arrived since then.
        generators: state of the generators after the last sampling.
        part: part of the next minibatch, if the shard has sampled it.
        largest_priority: largest priority that was sent to the shard.
    """

    def __init__(
        self, index: int, lanes: LaneView, state: State, update_priorities: Callable[[_Shard, Array, Array], None]
    ) -> None:
        self.index, self.lanes, self.state = index, lanes, state
        self.repeats: list[SampleTask | PriorityTask] = []
        self.generators: State = {}
        self.part: ReplayResult | None = None
        self.largest_priority = 0.0
        self._update_priorities = update_priorities

    def update(self, rows: Rows, priority: Array) -> None:
        """Update the priorities of rows that were sampled here; `MiniBatch.update_priorities` calls this."""
        self._update_priorities(self, rows.generation, priority)


class ReplayShards(WorkerPool[ReplayWorkerSpec, ReplayTask, ReplayResult]):
    """The source of minibatches of a run with shards, which run within its context. It is a part of checkpoints.

    Args:
        algorithm: algorithm whose networks are built.
        buffer: replay buffer with the steps of all collectors.
        cluster: number and placement of the shards.

    Attributes:
        sources: sources that the shards sample from.
        transition_picker: object that makes transitions.

    Raises:
        UnsupportedError: if shards cannot be used with the algorithm or the buffer.
        ConfigError: if minibatches cannot be divided, or a part of the buffer cannot be sent to another process.
    """

    worker_name = "shard"

    def __init__(self, algorithm: Trainable, buffer: StepBuffer, cluster: Cluster) -> None:
        super().__init__(ReplayWorker, cluster.placement(), range(cluster.shards), cluster.restarts)
        self.sources = _sources(cast(DistributedAlgorithm, algorithm), buffer, cluster)
        source, lanes_each = self.sources[0], cluster.lanes // cluster.shards
        self.transition_picker = source.picker
        self._cluster = cluster
        self._shards = []
        for index in range(cluster.shards):
            generators = source.generators if index == 0 else Generators()
            state = replace(source, generators=generators).get_state()
            lanes = LaneView(source.storage, index * lanes_each, lanes_each)
            self._shards.append(_Shard(index, lanes, state, self._send_priorities))
        self._number = 0

    @property
    def transition_count(self) -> int:
        """Number of transitions in the smallest shard, times the number of shards."""
        for shard in self._shards:
            shard.lanes.refresh()
        return min(shard.lanes.transition_count for shard in self._shards) * len(self._shards)

    def sample(self, view: View[M], count: int) -> M:
        """Return a minibatch. With ``Cluster.ahead``, shards then start to sample the next one."""
        if all(shard.part is None for shard in self._shards):
            self._send_sampling(view, count)
        self.wait_all()
        batch = cast(M, self._concatenate([shard.part for shard in self._shards if shard.part is not None]))
        for shard in self._shards:
            shard.part = None
        if self._cluster.ahead:
            self._send_sampling(view, count)
        return batch

    def _concatenate(self, parts: Sequence[ReplayResult]) -> MiniBatch:
        first, *others = batches = [part.batch for part in parts if part.batch is not None]
        batch = first.concatenate(*others) if others else first
        if parts[0].generation is None:
            return batch
        if others:
            largest = max(part.scale for part in parts)
            scales = [np.float32(part.scale / largest) for part in parts]
            weights = [each.weights * scale for each, scale in zip(batches, scales, strict=True)]
            batch = batch.replace(weights=np.concatenate(weights))
        pairs = zip(self._shards, parts, strict=True)
        return batch.replace(rows=[(shard, Rows(part.generation, None, part.generation)) for shard, part in pairs])

    # -- tasks -----------------------------------------------------------------------------------------------------

    def _send_sampling(self, view: View[MiniBatch], count: int) -> None:
        self._number += 1
        for shard in self._shards:
            self.start(shard.index)
            if len(shard.repeats) >= STATE_INTERVAL:
                self.send(shard.index, ReportStateTask())
            task = SampleTask(self._number, view, count // len(self._shards))
            self.send(shard.index, task, list(shard.lanes.changes()))

    def _send_priorities(self, shard: _Shard, generation: Array, priority: Array) -> None:
        largest = float(priority.max(initial=0.0))
        task = PriorityTask(generation, priority, report_state=largest > shard.largest_priority)
        self.send(shard.index, task)
        shard.largest_priority = max(largest, shard.largest_priority)

    def handle_result(self, index: int, task: ReplayTask, result: ReplayResult) -> None:
        shard = self._shards[index]
        if isinstance(task, SampleTask):
            assert result.state is not None
            shard.part, shard.generators = result, result.state
            shard.repeats.append(task)
            self.reset_failures(index)
        elif isinstance(task, PriorityTask) and not task.report_state:
            shard.repeats.append(task)
        else:
            assert result.state is not None
            shard.state, shard.repeats = result.state, []

    # -- restarts --------------------------------------------------------------------------------------------------

    def spec(self, index: int) -> ReplayWorkerSpec:
        shard = self._shards[index]
        return ReplayWorkerSpec(index, ReplayParts.of(self.sources[0], shard.lanes), shard.state)

    def setup_tasks(self, index: int) -> Iterable[ReplayTask]:
        """Return tasks that copy the steps, and repeat the tasks that the shard had answered."""
        shard = self._shards[index]
        yield from shard.lanes.changes(whole=True)
        if shard.repeats:
            yield RepeatTask(shard.repeats, shard.generators)

    def describe_loss(self, lost: WorkerLost) -> LossReport:
        return LossReport(
            f", at minibatch {self._number} or before; it is restarted with the steps of its collectors and their "
            "priorities, and nothing is lost",
            "without a minibatch between them",
            f"minibatch {self._number} cannot be sampled. Where the system ends the shard for lack of memory, use more "
            "shards on more machines, or a smaller buffer",
        )

    def __enter__(self) -> Self:
        self.open_transport()
        return self

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self, *, contents: bool = False) -> State:
        """Return the state of samplers and generators, and the minibatch that was sampled ahead, without steps."""
        self.wait_all()
        for shard in self._shards:
            if self.slots[shard.index].running:
                self.send(shard.index, ReportStateTask())
        self.wait_all()
        shards = {}
        for shard in self._shards:
            part = {} if shard.part is None else {"part": _save_part(shard.part)}
            shards[str(shard.index)] = {"state": shard.state, "largest_priority": shard.largest_priority, **part}
        return {"number": self._number, "shards": shards}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`, before any shard has started."""
        if state["shards"].keys() != {str(shard.index) for shard in self._shards}:
            raise CorruptFileError(f"the checkpoint has shards {list(state['shards'])!s:.80}: use a copy")
        saved = [each.get("part") for each in state["shards"].values()]
        if len({part is None for part in saved}) != 1:
            raise CorruptFileError("the checkpoint has only a part of the next minibatch: use a copy")
        for part in saved:  # raises an error before anything changes
            _load_part(part, self.sources[0])
        self._number = int(state["number"])
        for shard in self._shards:
            own = state["shards"][str(shard.index)]
            shard.state, shard.largest_priority, shard.repeats = own["state"], float(own["largest_priority"]), []
            shard.part = _load_part(own.get("part"), self.sources[0])


def _save_part(part: ReplayResult) -> State:
    """Return a part of a minibatch as the state of a checkpoint."""
    batch = part.batch
    fields = {name: value for name, value in vars(batch).items() if value is not None and name != "augmentation"}
    saved = {"kind": type(batch).__name__, "fields": fields, "scale": part.scale}
    return saved if part.generation is None else {**saved, "generation": part.generation}


def _load_part(saved: State | None, source: Source) -> ReplayResult | None:
    """Inverse of `_save_part`."""
    if saved is None:
        return None
    kind = _MINIBATCHES.get(saved["kind"])
    if kind is None:
        raise CorruptFileError(f"the checkpoint has a minibatch of kind {saved['kind']!r:.40}: use a copy")
    fields = dict(saved["fields"])
    fields |= {"augmentation": source.augmentation} if "augmented" in fields else {}
    return ReplayResult(kind(**fields), saved.get("generation"), float(saved["scale"]))


def _sources(algorithm: DistributedAlgorithm, buffer: StepBuffer, cluster: Cluster) -> list[Source]:
    """Return the sources that shards sample from.

    Raises:
        UnsupportedError: if shards cannot sample for the algorithm.
        ConfigError: if minibatches cannot be divided, or a part cannot be sent to another process.
    """
    learner, batch_size = algorithm.learner, algorithm.config.batch_size
    sources: list[Source] = list(getattr(getattr(buffer, "reader", None), "sources", ()))
    used = {"shards": f"Cluster.shards={cluster.shards}"}
    if len(sources) != 1:
        used["several buffers"] = f"{len(sources)} buffers"
    learner.check_compatible(used)
    if batch_size % cluster.shards:
        raise ConfigError(
            f"batch_size is {batch_size}, with Cluster.shards={cluster.shards}; every shard samples an equal part: "
            f"give batch_size={-(-batch_size // cluster.shards) * cluster.shards}, or another number of shards"
        )
    if cluster.transport == "processes":
        for part in ("picker", "sampler"):
            check_picklable(part, getattr(sources[0], part), "define its class in a module that can be imported")
    return sources
