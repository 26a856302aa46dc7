"""The worker of a replay shard, which samples minibatches from the steps of some collectors.

The run's own process can restore all data of a shard. The shard's steps are lanes of the run's buffer, and the state of
its sampler results from the last state that it reported and its tasks since then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from birl.dataset import DatasetInfo
from birl.dataset.augmentation import Augmentation
from birl.dataset.lane_views import Changes, LaneCopy, LaneView
from birl.dataset.minibatch import MiniBatch, Rows
from birl.dataset.reader import Reader, Source
from birl.dataset.sampling import Generators, Sampler
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import TransitionPickerProtocol
from birl.dataset.views import View
from birl.distributed.transport import ReportStateTask, Worker
from birl.files.state_restore import convert_to_corrupt_error
from birl.types import Array, State


class ReplayParts(NamedTuple):
    """The parts of a worker's replay buffer.

    Attributes:
        info, lanes, limit: arguments of `LaneCopy`.
        picker, slicer, sampler, augmentation: see `Source`.
    """

    info: DatasetInfo
    lanes: int
    limit: int | None
    picker: TransitionPickerProtocol
    slicer: TrajectorySlicerProtocol
    sampler: Sampler
    augmentation: Augmentation | None

    @classmethod
    def of(cls, source: Source, lanes: LaneView) -> ReplayParts:
        """Return the parts of a source for a worker that has copies of some lanes of its storage."""
        parts = source.picker, source.slicer, source.sampler, source.augmentation
        return cls(lanes.info, lanes.lanes, lanes.limit, *parts)

    def make_source(self, generators: Generators | None = None) -> Source:
        """Make the source of a worker, whose storage is empty."""
        storage = LaneCopy(self.info, self.lanes, self.limit)
        parts = self.picker, self.slicer, self.sampler, generators or Generators(), self.augmentation
        return Source(storage, *parts)


class ReplayWorkerSpec(NamedTuple):
    """Specification of a shard.

    Attributes:
        shard: its number.
        parts: parts of its replay buffer.
        state: state of its sampler and generators.
    """

    shard: int
    parts: ReplayParts
    state: State


class SampleTask(NamedTuple):
    """Task to sample a minibatch. The payload is a list of the lanes' `Changes` since the last one.

    Attributes:
        number: number of the minibatch.
        view: view that defines the elements of the minibatch.
        size: number of elements.
    """

    number: int
    view: View[MiniBatch]
    size: int


class PriorityTask(NamedTuple):
    """Task to update the priorities of steps that were sampled here.

    Attributes:
        generation: numbers ``[B]`` of the steps; see `Rows`.
        priority: priorities ``[B]`` of the steps.
        report_state: whether to answer with the state that follows.
    """

    generation: Array
    priority: Array
    report_state: bool


class RepeatTask(NamedTuple):
    """Task to restore the sampler of a restarted shard by repeating tasks whose results have arrived.

    Attributes:
        tasks: tasks since the shard last reported its state.
        generators: state of the generators after these tasks.
    """

    tasks: list[SampleTask | PriorityTask]
    generators: State


ReplayTask: TypeAlias = SampleTask | PriorityTask | ReportStateTask | RepeatTask | Changes


class ReplayResult(NamedTuple):
    """The result of a task.

    Attributes:
        batch: the minibatch, if the task asks for one.
        generation: numbers ``[B]`` of its steps, if priorities are used.
        scale: factor that makes its weights comparable with those of other shards; see `Rows`.
        state: state of the generators, and also of the sampler if the task asks for it.
    """

    batch: MiniBatch | None = None
    generation: Array | None = None
    scale: float = 1.0
    state: State | None = None


class ReplayWorker(Worker[ReplayTask, "Sequence[Changes] | None", ReplayResult]):
    """The worker of a shard.

    Args:
        spec: specification of the shard.
    """

    def __init__(self, spec: ReplayWorkerSpec) -> None:
        self._shard, self._position = spec.shard, f"the start of shard {spec.shard}"
        self._source = spec.parts.make_source(Generators(np.random.default_rng(0)))  # until the state is set
        self._lanes = self._source.storage
        self._reader = Reader([self._source])
        with convert_to_corrupt_error("the checkpoint", "the state of a shard cannot be used"):
            self._source.set_state(spec.state)

    def __call__(self, task: ReplayTask, payload: Sequence[Changes] | None) -> ReplayResult:
        self._position = f"{type(task).__name__} {getattr(task, 'number', '')} of shard {self._shard}"
        match task:
            case SampleTask():
                for changes in payload or ():
                    self._apply(changes)
                return self._sample(task)
            case PriorityTask():
                self._update_priorities(task)
                return ReplayResult(state=self._source.get_state() if task.report_state else None)
            case ReportStateTask():
                return ReplayResult(state=self._source.get_state())
            case RepeatTask():
                for each in task.tasks:
                    if isinstance(each, SampleTask):
                        self._source.draw_rows(each.view, each.size)
                    else:
                        self._update_priorities(each)
                self._source.generators.set_state(task.generators, None)
            case Changes():
                self._apply(task)
        return ReplayResult()

    def _apply(self, changes: Changes) -> None:
        assert isinstance(self._lanes, LaneCopy)
        self._lanes.apply(changes)

    def _sample(self, task: SampleTask) -> ReplayResult:
        batch = self._reader.sample(task.view, task.size)
        state = self._source.generators.get_state()
        if batch.rows is None:
            return ReplayResult(batch, state=state)
        ((_, rows),) = batch.rows
        return ReplayResult(batch.replace(rows=None), rows.generation, rows.scale, state)

    def _update_priorities(self, task: PriorityTask) -> None:
        position, lane = np.divmod(task.generation, self._lanes.lanes)
        self._source.update(Rows(self._lanes.rows(lane, position), None, task.generation), task.priority)

    @property
    def position(self) -> str:
        return self._position

    def close(self) -> None: ...
