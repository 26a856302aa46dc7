"""Transports, which start workers, send them tasks and receive their results, in this process or in others."""

from __future__ import annotations

import contextlib
import copy
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import torch

from birl.distributed.watchdog import Heartbeat, Watchdog
from birl.distributed.worker_process import (
    OwnerConnection,
    OwnerGone,
    ProcessEnded,
    WorkerProcess,
    make_failure,
    pickle_message,
    stop_all,
    wait_any,
)
from birl.errors import BirlError, WorkerError

_GRACE: Final = 2.0  # seconds for a worker to read its messages before it is ended

TaskT_contra = TypeVar("TaskT_contra", contravariant=True)
PayloadT_contra = TypeVar("PayloadT_contra", contravariant=True)
ResultT_co = TypeVar("ResultT_co", covariant=True)


class Worker(Protocol[TaskT_contra, PayloadT_contra, ResultT_co]):
    """An object that carries out tasks, in the process that a transport has chosen."""

    @property
    def position(self) -> str:
        """Position of the worker in its task, as text. Another thread reads it."""

    def __call__(self, task: TaskT_contra, payload: PayloadT_contra, /) -> ResultT_co:
        """Carry out a task and return its result."""

    def close(self) -> None:
        """Release all resources; no tasks follow."""


class ReportStateTask(NamedTuple):
    """Task to report the state of a worker."""


WorkerFactory: TypeAlias = Callable[[Any], Worker[Any, Any, Any]]
"""A class or function, which can be imported, that makes a `Worker` from its specification."""


class WorkerLost(Exception):  # noqa: N818  internal: callers of `Transport.wait` catch it
    """A worker was ended, and its open tasks are lost.

    Attributes:
        index: number of the worker.
        how: how it was ended, such as ``"by SIGKILL"``.
        position: position in which the worker hung, if that is why it was ended.
    """

    def __init__(self, index: int, how: str, position: str | None = None) -> None:
        super().__init__(f"worker {index} was ended {how}")
        self.index, self.how, self.position = index, how, position


def no_open_task() -> WorkerError:
    """Return the error for waiting on a result when no task is open, which would never end."""
    return WorkerError(
        "the run waits for a result, but its workers have answered all their tasks, so that it would wait for ever: "
        "birl has miscounted its tasks. Start the run again, which goes on from its last checkpoint, and report "
        "this error with the command or script of the run"
    )


def _do_nothing() -> None: ...


class Transport(ABC):
    """Workers with numbers. Each carries out its tasks in the order in which they were sent.

    Attributes:
        while_waiting: `wait` calls it at least once a second while no result arrives. It may raise an error, which
            leaves `wait`.
    """

    def __init__(self) -> None:
        self.while_waiting: Callable[[], None] = _do_nothing

    @property
    def host(self) -> str:
        """Address at which workers reach this machine."""
        return "127.0.0.1"

    @abstractmethod
    def start(self, index: int, spec: object) -> None:
        """Start a worker. An earlier worker with this number is ended, and its tasks are dropped."""

    def share(self, value: object) -> object:
        """Prepare a value that is the payload of several tasks, and return the payload to send."""
        return value

    @abstractmethod
    def send(self, index: int, task: object, payload: object) -> None:
        """Send a task with its payload."""

    @abstractmethod
    def wait(self) -> tuple[int, Any]:
        """Wait for the next result, and return it with the worker's number.

        Raises:
            WorkerLost: if a worker is lost, or was ended because it hung.
            WorkerError: if no task is open.
            BirlError: if a worker has failed, for example with an error of its environment.
        """

    def locate(self, index: int) -> str:
        """Return where a worker runs, as text."""
        return "this process"

    @abstractmethod
    def close(self) -> None:
        """End all workers."""


class _Sender:
    """A thread that writes messages to a worker, so that a stopped worker does not block its owner."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker, self._messages = worker, queue.SimpleQueue[bytes | memoryview | None]()
        self._thread = threading.Thread(target=self._send_all, daemon=True)
        self._thread.start()

    def send(self, message: object) -> None:
        """Send a message after earlier ones. It is pickled here, so that an error reaches the caller."""
        self._messages.put(pickle_message(message))

    def _send_all(self) -> None:
        with contextlib.suppress(ProcessEnded, BirlError):  # the wait for results raises them again
            while (message := self._messages.get()) is not None:
                self._worker.send(message)

    def close(self, timeout: float | None = None) -> bool:
        """Stop sending. Return whether everything was sent, or the worker has ended, within ``timeout`` seconds."""
        self._messages.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()


class ProcessTransport(Transport):
    """Workers in separate processes of this machine.

    Args:
        factory: makes the workers.
        step_timeout: seconds that a worker may stay in one position; ``math.inf`` for no limit.
    """

    def __init__(self, factory: WorkerFactory, step_timeout: float) -> None:
        super().__init__()
        self._factory, self._watchdog = factory, Watchdog(step_timeout)
        self._workers: dict[int, WorkerProcess] = {}
        self._senders: dict[int, _Sender] = {}
        self._open: dict[int, int] = {}  # number of open tasks; the worker that answered last is at the end

    def start(self, index: int, spec: object) -> None:
        self._forget(index)
        self._workers[index] = WorkerProcess(_serve_tasks, (self._factory, spec, self._watchdog.interval))
        self._senders[index] = _Sender(self._workers[index])
        self._watchdog.start(index)
        self._open[index] = 0

    def send(self, index: int, task: object, payload: object) -> None:
        if self._open[index] == 0:
            self._watchdog.reset(index)
        self._open[index] += 1
        self._senders[index].send((task, payload))

    def wait(self) -> tuple[int, Any]:
        while True:
            index, message = self._receive()
            if index is not None and not isinstance(message, Heartbeat):
                self._open[index] = self._open.pop(index) - 1
                self._watchdog.reset(index)
                return index, message
            if index is not None:
                self._watchdog.record(index, message.position)
            self.while_waiting()

    def _receive(self) -> tuple[int | None, Any]:
        """Receive the next message and its worker, or ``(None, None)`` if none arrives for a while."""
        by_worker = {self._workers[index]: index for index, count in self._open.items() if count}
        if not by_worker:
            raise no_open_task()
        index: int | None = None
        try:
            start = time.monotonic()
            worker = wait_any(by_worker, self._watchdog.interval)
            self._end_hung(by_worker, time.monotonic() - start)
            index = None if worker is None else by_worker[worker]
            return index, None if worker is None else worker.receive()
        except ProcessEnded as error:
            assert index is not None
            self._forget(index)
            raise WorkerLost(index, error.how) from None

    def _end_hung(self, by_worker: dict[WorkerProcess, int], waited: float) -> None:
        for worker, index in by_worker.items():
            if self._watchdog.add_wait(index, waited) and not worker.connection.poll():
                self._forget(index)
                raise WorkerLost(index, *self._watchdog.describe(index))

    def locate(self, index: int) -> str:
        return f"process {self._workers[index].pid}"

    def close(self) -> None:
        for index in [index for index, sender in self._senders.items() if not sender.close(_GRACE)]:
            self._forget(index)
        stop_all(self._workers.values())
        self._workers.clear()
        self._senders.clear()

    def _forget(self, index: int) -> None:
        self._open.pop(index, None)
        if index in self._workers:
            worker = self._workers.pop(index)
            worker.terminate()
            self._senders.pop(index).close()  # before the connection is closed, which it uses
            worker.kill()


def _serve_tasks(owner: OwnerConnection, argument: tuple[WorkerFactory, Any, float]) -> None:
    """Carry out tasks in a process. A second thread reads them, so that owner and worker cannot deadlock."""
    torch.set_num_threads(1)  # one core for each worker
    factory, spec, interval = argument
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    sending, done = threading.Lock(), threading.Event()

    def send(message: object) -> None:
        with sending:
            owner.send(message)

    def read_tasks() -> None:
        try:
            while True:
                tasks.put(owner.receive())
        except OwnerGone:
            tasks.put(None)

    def send_heartbeats(worker: Worker[Any, Any, Any]) -> None:
        last: str | None = None
        with contextlib.suppress(OwnerGone):
            while not done.is_set():
                if (position := worker.position) != last:  # an unchanged position needs no message
                    send(Heartbeat(position))
                    last = position
                done.wait(interval)

    def carry_out() -> None:
        worker = factory(spec)
        heartbeats = threading.Thread(target=send_heartbeats, args=(worker,), daemon=True)
        heartbeats.start()
        try:
            while (task := tasks.get()) is not None:
                send(worker(*task))
        finally:
            done.set()
            heartbeats.join(_GRACE)
            worker.close()

    reader = threading.Thread(target=read_tasks, daemon=True)
    reader.start()
    try:
        carry_out()
    except Exception as error:
        send(make_failure(error))
    reader.join()  # a thread that wakes while Python ends would abort the process


class InlineTransport(Transport):
    """Workers in this process. They carry out one task at a time, while the owner waits for a result.

    Args:
        factory: makes the workers. Each gets a copy of its specification.
    """

    def __init__(self, factory: WorkerFactory) -> None:
        super().__init__()
        self._factory = factory
        self._workers: dict[int, Worker[Any, Any, Any]] = {}
        self._tasks: deque[tuple[int, object, object]] = deque()

    def start(self, index: int, spec: object) -> None:
        self._forget(index)
        self._workers[index] = self._factory(copy.deepcopy(spec))

    def send(self, index: int, task: object, payload: object) -> None:
        self._tasks.append((index, task, payload))

    def wait(self) -> tuple[int, Any]:
        if not self._tasks:
            raise no_open_task()
        index, task, payload = self._tasks.popleft()
        return index, self._workers[index](task, payload)

    def close(self) -> None:
        for index in list(self._workers):
            self._forget(index)

    def _forget(self, index: int) -> None:
        if index in self._workers:
            self._workers.pop(index).close()
        self._tasks = deque(entry for entry in self._tasks if entry[0] != index)
