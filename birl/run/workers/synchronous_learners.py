"""Several learners that make every update together: each learns from the steps of its own collectors.

The run's own process is the first learner. It has all steps, and sends each other learner the steps of its lanes. In an
update, every learner samples its own minibatch. The gradients of each step are averaged, which gives the same update as
the concatenated minibatches. Afterwards all learners have the same parameters, bit for bit.

The first learner has all data of the others. A lost learner is restarted with the first one's parameters and the steps
of its lanes, and the update is made again, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, cast

from birl.dataset import Uniform
from birl.dataset.reader import Reader
from birl.distributed import AverageGradients
from birl.distributed.inline_allreduce import InlineAllReduce
from birl.distributed.process_group import GlooStore, GroupBroken, GroupStore, LearnerGroup
from birl.errors import WorkerError
from birl.run.cluster import Cluster
from birl.run.protocols import Minibatch, Rollout, StepBuffer, Trainable
from birl.run.session import Session
from birl.run.workers.learner_worker import LearnerResult, LearnerTask, SetStateTask, UpdateTask, parameter_digest
from birl.run.workers.protocols import DistributedAlgorithm
from birl.run.workers.remote_learners import RemoteLearners
from birl.run.workers.shared_sampling import SharedSampling
from birl.seeding import random_state, set_random_state
from birl.types import tree_map

CHECK_INTERVAL: Final = 1000
"""Number of updates between two comparisons of all learners' parameters."""


class SynchronousLearners(RemoteLearners):
    """Learners that make each update together, and are a part of checkpoints.

    Args:
        algorithm: algorithm whose networks are built.
        buffer: replay buffer with the steps of all collectors, whose first lanes belong to the first learner. ``None``
            if the algorithm learns from rollouts; then each learner uses the rollouts of its own collectors.
        cluster: number and placement of the learners.

    Raises:
        UnsupportedError: if several learners cannot learn the algorithm, or from the buffer.
    """

    def __init__(self, algorithm: Trainable, buffer: StepBuffer | None, cluster: Cluster) -> None:
        text = f"Cluster.learners={cluster.learners}"
        cast(DistributedAlgorithm, algorithm).learner.check_compatible({"learners": text, "averaged gradients": text})
        super().__init__(algorithm, buffer, cluster, 0)
        self._sampling = None
        if self._replay is not None:
            uniform = isinstance(self._replay.sampler, Uniform)
            self._sampling = None if uniform else SharedSampling(self._replay, self.lanes)
            self.source = self._sampling or Reader([replace(self._replay, storage=self.lanes[0])])
        self._rollout: Rollout | None = None  # the rollout of all lanes in the current update
        self._store: GroupStore | None = None
        self._group: LearnerGroup | None = None
        self._digest = ""  # the other learners must answer with the same one
        self._ended = False  # whether another learner has ended its part of the current update
        self._uneven = 0  # times in a row that a learner waited for a minibatch that another did not have

    def learn(self, session: Session, minibatch: Minibatch) -> None:
        if not isinstance(minibatch, Rollout):
            self.update(partial(session.update, minibatch))
        elif minibatch.valid.all():
            self._rollout = minibatch
            self.update(partial(session.update, _select_lanes(minibatch, self._lane_numbers[0])))
        else:  # the other learners get the parameters afterwards
            self._leave_group()
            session.update(minibatch)

    def update(self, make: Callable[[], object]) -> None:
        """Make an update with all learners.

        Args:
            make: function that makes the first learner's update. It is called again if another learner is lost
                meanwhile.

        Raises:
            WorkerError: if one learner has ended its part of an update while another waits for it, and none was lost,
                twice.
        """
        number, restarts = self._algorithm.grad_step + 1, self.restarts
        complete = self.wait_complete()
        self._digest = ""
        if not complete and self.restarts == restarts:
            self._count_uneven(number - 1, "fewer")
        elif complete:
            self._uneven = 0
        if not complete or self._group is None:
            self._form_group()
        engine = self._algorithm.engine
        before = engine.get_state(), random_state()
        while True:
            self._ended, restarts = False, self.restarts
            report_digest = number % CHECK_INTERVAL == 0 or self._rollout is not None
            for index, slot in self.slots.items():
                if slot.running:
                    self.send(index, self._task(index, number, report_digest))
            try:
                make()
                break
            except GroupBroken:
                self._leave_group()
                engine.set_state(before[0])
                set_random_state(before[1])
                self.wait_complete()
                if self._ended and self.restarts == restarts:
                    self._count_uneven(number, "more")
                self._form_group()
        self._digest = parameter_digest(self._algorithm.nets) if report_digest else ""
        self.reset_failures()

    def _count_uneven(self, number: int, first: str) -> None:
        """Raise an error at the second time in a row. The first time may be due to a lost connection."""
        self._uneven += 1
        if self._uneven > 1:
            raise WorkerError(
                f"in update {number} learner 0 had {first} minibatches than the others, and one waited for the other "
                "in vain: learn from all steps of a rollout, or leave learners out"
            ) from None

    def _task(self, index: int, number: int, report_digest: bool) -> UpdateTask:
        if self._rollout is not None:
            rollout = _select_lanes(self._rollout, self._lane_numbers[index])
            return UpdateTask(number, [], report_digest, rollout=rollout)
        rows = None if self._sampling is None else self._sampling.rows[index]
        return UpdateTask(number, list(self.lanes[index].changes()), report_digest, rows)

    def handle_result(self, index: int, task: LearnerTask, result: LearnerResult) -> None:
        super().handle_result(index, task, result)
        self._ended = self._ended or result.complete
        if self._digest and result.digest and result.digest != self._digest:
            raise WorkerError(
                f"learner {index} has other parameters than learner 0 after {self._algorithm.grad_step} updates: "
                "change parameters only by learning, and run the same build of torch on all machines"
            )

    def _form_group(self) -> None:
        """Form a new group, in which all learners have the first one's parameters."""
        self._leave_group()
        state = self.transport.share(self._algorithm.learner.get_state())
        while True:
            for index in self.slots:
                self.start(index)
                self.send(index, SetStateTask(), state)
            if not self.wait_complete() or not all(slot.running for slot in self.slots.values()):
                continue
            transport = self.transport
            if self._store is None:
                self._store = transport if isinstance(transport, InlineAllReduce) else GlooStore(transport.host)
            rendezvous = self._store.new_rendezvous(self._cluster.learners, self._cluster.step_timeout)
            for index in self.slots:
                self.send(index, rendezvous)
            try:
                self._group = self._store.join(rendezvous, 0)
            except GroupBroken:
                self.wait_complete()
                continue
            if self.wait_complete():
                break
            self._leave_group()
        self._algorithm.engine.reduce = AverageGradients(None, self._group.all_reduce_mean)
        if self._sampling is not None:
            self._sampling.group = self._group

    def _leave_group(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = self._algorithm.engine.reduce = None

    def __exit__(self, *error: object) -> None:
        """End all learners but the first."""
        self._leave_group()
        self._store = None
        super().__exit__(*error)


def _select_lanes(rollout: Rollout, lanes: range) -> Rollout:
    """Return the steps of some lanes of a rollout."""
    part = slice(lanes[0], lanes[-1] + 1)
    columns = {name: value for name, value in vars(rollout).items() if value is not None}
    return replace(rollout, **{name: tree_map(lambda x: x[:, part], value) for name, value in columns.items()})
