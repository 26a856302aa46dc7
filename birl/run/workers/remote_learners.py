"""The pool of a run's learners in other processes, which the first learner controls."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Self, cast

import torch

from birl.checks import check
from birl.dataset import Uniform
from birl.dataset.lane_views import LaneView
from birl.dataset.reader import Source
from birl.distributed.inline_allreduce import InlineAllReduce
from birl.distributed.transport import WorkerLost
from birl.distributed.worker_pool import LossReport, WorkerPool
from birl.errors import CorruptFileError
from birl.incompatible import check_compatible
from birl.run.cluster import Cluster
from birl.run.protocols import Minibatch, StepBuffer, Trainable
from birl.run.session import Session
from birl.run.workers.learner_worker import LearnerResult, LearnerSpec, LearnerTask, LearnerWorker
from birl.run.workers.protocols import AlgorithmSpec, DistributedAlgorithm
from birl.run.workers.replay_worker import ReplayParts
from birl.seeding import is_seed, new_generator
from birl.types import State


class RemoteLearners(WorkerPool[LearnerSpec, LearnerTask, LearnerResult]):
    """The learners of a run except the first one, which is the run's own process. They run within this context.

    Args:
        algorithm: algorithm whose networks are built.
        buffer: replay buffer with the steps of all collectors; ``None`` if the algorithm learns from rollouts.
        cluster: number and placement of the learners.
        first: number of the first learner that has lanes of the buffer.

    Attributes:
        lanes: lanes of each learner, by its number.
        source: source of the first learner's minibatches.

    Raises:
        UnsupportedError: if several learners cannot learn from the buffer.
    """

    worker_name = "learner"
    counts_per_worker = False
    inline_transport = InlineAllReduce
    source: Any

    def __init__(self, algorithm: Trainable, buffer: StepBuffer | None, cluster: Cluster, first: int) -> None:
        super().__init__(LearnerWorker, cluster.placement(), range(1, cluster.learners), cluster.restarts)
        self._algorithm, self._cluster = cast(DistributedAlgorithm, algorithm), cluster
        self._replay = None if buffer is None else _source(self._algorithm, buffer, cluster)
        each = cluster.lanes // (cluster.learners - first)
        numbers = range(first, cluster.learners)
        self._lane_numbers = {number: range(i * each, (i + 1) * each) for i, number in enumerate(numbers)}
        self.lanes: dict[int, LaneView] = {}
        if self._replay is not None:
            storage = self._replay.storage
            self.lanes = {number: LaneView(storage, own[0], each) for number, own in self._lane_numbers.items()}
        self._seed = int(new_generator().integers(2**32))
        self._complete = True  # whether no learner was lost, in `wait_complete`

    @property
    def transition_count(self) -> int:
        """Smallest number of transitions that a learner has."""
        for lanes in self.lanes.values():
            lanes.refresh()
        return min(lanes.transition_count for lanes in self.lanes.values())

    @abstractmethod
    def learn(self, session: Session, minibatch: Minibatch) -> None:
        """Make the next update.

        Args:
            session: session of the run.
            minibatch: minibatch that the first learner has sampled, or a rollout.
        """

    def wait_complete(self) -> bool:
        """Wait for all results. Return whether no learner was lost."""
        self._complete = True
        self.wait_all()
        return self._complete

    def handle_result(self, index: int, task: LearnerTask, result: LearnerResult) -> None:
        self._complete = self._complete and result.complete

    def describe_loss(self, lost: WorkerLost) -> LossReport:
        number = self._algorithm.grad_step + 1
        return LossReport(
            f", in update {number} or before; it is restarted with the parameters of learner 0 and the steps of its "
            "collectors, and nothing is lost",
            "without an update between them",
            f"update {number} cannot be made. Where the system ends them for lack of memory, use fewer learners, or a "
            "smaller buffer",
        )

    def handle_loss(self, index: int) -> None:
        """Forget the tasks of a lost learner. It is restarted when the next task is due."""
        self.slots[index].tasks.clear()
        self._complete = False

    def setup_tasks(self, index: int) -> Iterable[LearnerTask]:
        """Return tasks that copy the steps of the learner's lanes."""
        return self.lanes[index].changes(whole=True) if self.lanes else ()

    def spec(self, index: int) -> LearnerSpec:
        algorithm = AlgorithmSpec.of(self._algorithm, str(self._algorithm.torch_device))
        replay = None if self._replay is None else ReplayParts.of(self._replay, self.lanes[index])
        inline = self._cluster.transport == "inline"
        threads = None if inline else max(1, torch.get_num_threads() // self._cluster.learners)
        return LearnerSpec(index, algorithm, replay, self._seed, threads)

    def __enter__(self) -> Self:
        self.open_transport()
        self._algorithm.learner.shared = "several learners learn together"
        return self

    def __exit__(self, *error: object) -> None:
        """End all learners but the first."""
        self._algorithm.learner.shared = ""
        super().__exit__(*error)
        for slot in self.slots.values():
            slot.tasks.clear()

    def get_state(self) -> State:
        """Return the seed of the learners' random numbers."""
        return {"seed": self._seed}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        if not is_seed(check("seed", state["seed"], int, error=CorruptFileError)):
            raise CorruptFileError(f"the checkpoint has learners of seed {state['seed']!r:.40}: use a copy")
        self._seed = state["seed"]


def _source(algorithm: DistributedAlgorithm, buffer: StepBuffer, cluster: Cluster) -> Source:
    """Return the source that learners sample from.

    Raises:
        UnsupportedError: if several learners cannot learn from the buffer.
    """
    sources: list[Source] = list(getattr(getattr(buffer, "reader", None), "sources", ()))
    text = f"Cluster.learners={cluster.learners}"
    if len(sources) != 1:
        check_compatible({"several buffers": f"{len(sources)} buffers", "learners": text})
    (source,) = sources
    uniform = isinstance(source.sampler, Uniform)
    if not uniform and (cluster.gradients == "pushed" or not algorithm.learner.experience.gathers):
        check_compatible({"sampler": f"a {type(source.sampler).__name__}", "pushed gradients": text})
    return source
