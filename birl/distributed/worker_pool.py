"""Pools of remote workers, which send tasks, receive results and restart lost workers.

`WorkerPool` is the base class of the pools of online runs: collectors, replay shards, learners and gradient workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, Self, TypeVar

from birl.distributed.ray import RayTransport
from birl.distributed.transport import InlineTransport, ProcessTransport, Transport, WorkerFactory, WorkerLost
from birl.errors import WorkerError
from birl.logging import LOG

SpecT = TypeVar("SpecT")
TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


class Placement(NamedTuple):
    """The transport of a pool's workers, with its settings.

    Attributes:
        transport: a key of `TRANSPORTS`.
        step_timeout: seconds without progress after which a worker is killed.
        address, patience, resources: see `RayTransport`.
    """

    transport: str
    step_timeout: float
    address: str | None = None
    patience: float = 300.0
    resources: Mapping[str, float] | None = None


TRANSPORTS: Final[dict[str, Callable[[WorkerFactory, Placement, type[InlineTransport]], Transport]]] = {
    "inline": lambda factory, placement, inline: inline(factory),
    "processes": lambda factory, placement, inline: ProcessTransport(factory, placement.step_timeout),
    "ray": lambda factory, placement, inline: RayTransport(
        factory, placement.address, placement.step_timeout, placement.patience, placement.resources
    ),
}
"""Functions that make transports, by name: ``(worker factory, placement, class of the inline transport)``."""


class LossReport(NamedTuple):
    """The description of a worker's loss.

    Attributes:
        warning: text after ``"collector 1 was ended by SIGKILL"``: the task that it had, and how the run continues.
        missing: text about what the pool has not received since the first loss, such as ``"without a minibatch"``.
        advice: what users can do if workers are lost repeatedly.
    """

    warning: str
    missing: str
    advice: str


class _WorkerSlot(Generic[TaskT]):
    """The pool's record of a worker, which is kept when the worker is restarted.

    Attributes:
        tasks: tasks without a result, which were sent or will be sent when the worker starts.
        running: whether the worker is running.
        setup: number of setup tasks without a result.
        restarts: number of times that the worker was lost.
    """

    def __init__(self) -> None:
        self.tasks: deque[TaskT] = deque()
        self.running = False
        self.setup = self.restarts = 0


class WorkerPool(ABC, Generic[SpecT, TaskT, ResultT]):
    """Workers of one kind, each with its open tasks. The exit of its context ends all workers.

    A worker that is lost, because its process was killed or hung, is restarted from its `spec`, carries out its
    `setup_tasks`, and is sent its open tasks again.

    Args:
        factory: makes a worker from its spec.
        placement: where workers run.
        indices: numbers of the workers.
        max_restarts: number of losses in a row that are allowed; see `reset_failures`.

    Attributes:
        worker_name: name of one worker in messages, such as ``"collector"``.
        counts_per_worker: whether ``max_restarts`` limits each worker separately instead of all together.
        inline_transport: class of the transport for workers in this process.
        restarts: number of losses so far.
        check_signals: function that is called at least once a second while the pool waits. Its error ends the wait.
    """

    worker_name: str
    counts_per_worker = True
    inline_transport: type[InlineTransport] = InlineTransport

    def __init__(self, factory: WorkerFactory, placement: Placement, indices: Iterable[int], max_restarts: int) -> None:
        self._factory, self._placement, self._max_restarts = factory, placement, max_restarts
        self.slots: dict[int, _WorkerSlot[TaskT]] = {index: _WorkerSlot() for index in indices}
        self._open_transport: Transport | None = None
        self._failures: Counter[int] = Counter()  # losses in a row
        self.restarts = 0
        self.check_signals: Callable[[], None] = lambda: None

    # -- what subclasses define ------------------------------------------------------------------------------------

    @abstractmethod
    def spec(self, index: int) -> SpecT:
        """Return the specification of a worker, including the state from which it continues."""

    @abstractmethod
    def handle_result(self, index: int, task: TaskT, result: ResultT) -> None:
        """Handle the result of a task."""

    @abstractmethod
    def describe_loss(self, lost: WorkerLost) -> LossReport:
        """Describe the loss of a worker. May raise `WorkerError` if a restart would not help."""

    def setup_tasks(self, index: int) -> Iterable[TaskT]:
        """Return the tasks for a worker that has just started. Their results are dropped."""
        return ()

    def payload(self, task: TaskT) -> object:
        """Return the payload for an open task that is sent again."""
        return None

    def handle_loss(self, index: int) -> None:
        """Replace a worker that was lost."""
        self.start(index)

    # -- workers ---------------------------------------------------------------------------------------------------

    @property
    def transport(self) -> Transport:
        """The transport, which is opened at first use."""
        return self._open_transport or self.open_transport()

    def open_transport(self) -> Transport:
        """Open the transport. The pool that is opened first must be closed last: it may have started Ray for others."""
        transport = TRANSPORTS[self._placement.transport](self._factory, self._placement, self.inline_transport)
        transport.while_waiting = lambda: self.check_signals()
        self._open_transport = transport
        return transport

    def start(self, index: int) -> None:
        """Start a worker that is not running, set it up, and send it its open tasks."""
        while not self.slots[index].running:
            self._start_once(index)

    def _start_once(self, index: int) -> None:
        slot = self.slots[index]
        slot.running, restarts = True, slot.restarts
        self.transport.start(index, self.spec(index))
        for task in self.setup_tasks(index):
            slot.setup = 1
            self.transport.send(index, task, None)
            while slot.setup:  # one after another: together they may take as much memory as the replay buffer
                self.receive()
            if slot.restarts > restarts:  # it was lost again, and `handle_loss` has already handled that
                return
        for task in list(slot.tasks):
            self.transport.send(index, task, self.payload(task))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End all workers. Open tasks are kept and sent again after a restart."""
        if self._open_transport is not None:
            self._open_transport.close()
        self._open_transport = None
        for slot in self.slots.values():
            slot.running, slot.setup = False, 0

    # -- tasks and results -----------------------------------------------------------------------------------------

    def send(self, index: int, task: TaskT, payload: object = None) -> None:
        """Send a task to a worker, which is started if it is not running.

        Args:
            index: number of the worker.
            task: the task, which is kept until its result arrives.
            payload: data sent with the task and not kept. The method `payload` provides them if the task is sent again.
        """
        self.start(index)
        self.slots[index].tasks.append(task)
        self.transport.send(index, task, payload)

    def receive(self) -> bool:
        """Wait until a result arrives or a worker is lost, and handle it. Return whether a result arrived.

        Raises:
            WorkerError: if no task is open, or if workers were lost more often than ``max_restarts`` in a row.
        """
        try:
            index, result = self.transport.wait()
        except WorkerLost as lost:
            self._handle_lost(lost)
            return False
        slot = self.slots[index]
        if slot.setup:
            slot.setup -= 1
        else:
            self.handle_result(index, slot.tasks.popleft(), result)
        return True

    @property
    def has_open_tasks(self) -> bool:
        """Whether any worker has tasks without a result."""
        return any(slot.tasks for slot in self.slots.values())

    def wait_all(self) -> None:
        """Wait until all tasks have results."""
        while self.has_open_tasks:
            self.receive()

    def _handle_lost(self, lost: WorkerLost) -> None:
        index = lost.index
        slot, report = self.slots[index], self.describe_loss(lost)
        slot.running, slot.setup, slot.restarts = False, 0, slot.restarts + 1
        self.restarts += 1
        self._failures[index] += 1
        count = self._failures[index] if self.counts_per_worker else self._failures.total()
        if count > self._max_restarts:
            if self.counts_per_worker:
                workers, last = f"{self.worker_name} {index} was", ""
            else:
                workers, last = f"{self.worker_name}s were", f"{self.worker_name} {index} "
            raise WorkerError(
                f"{workers} ended {count} times in a row ({last}{lost.how} last) {report.missing}: {report.advice}"
            )
        LOG.warning("%s %d was ended %s%s", self.worker_name, index, lost.how, report.warning)
        self.handle_loss(index)

    def reset_failures(self, index: int | None = None) -> None:
        """Reset the number of losses in a row of one worker, or of all, because there is progress."""
        if index is None:
            self._failures.clear()
        else:
            del self._failures[index]
