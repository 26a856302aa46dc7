"""Getting orders to collectors and answers back, wherever they are."""

from __future__ import annotations

import contextlib
import copy
import platform
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch

from birl._version import __version__
from birl.distributed.watchdog import Alive, Watch
from birl.distributed.workers import Ended, Left, Owner, Worker, end, failure, first_ready
from birl.errors import BirlError, ConfigError, WorkerError

_GRACE: Final = 2.0  # seconds in which a worker reads what was sent to it, when there is no more work


class Work(Protocol):
    """What a worker does."""

    @property
    def place(self) -> str:
        """Where it is in its order, in words. Another thread reads it."""

    def __call__(self, order: Any, beside: Any, /) -> Any:
        """Carry out an order. Returns the answer."""

    def close(self) -> None:
        """There are no more orders."""


def check_version(worker: str, version: str) -> None:
    """Refuse to work for a run with another version of birl.

    Args:
        worker: who works, in words, such as ``"shard 1"``.
        version: of the run's birl.

    Raises:
        ConfigError: if this process has another one.
    """
    if version != __version__:
        raise ConfigError(
            f"{worker} is on a machine ({platform.node()}) with birl {__version__}, and the run has birl {version}: "
            "install the same version on all machines"
        )


Begin = Callable[[Any], Work]
"""Makes a `Work` of what it is given: a function that can be imported."""


class Gone(Exception):  # noqa: N818  never seen outside: whoever sends orders catches it
    """Whoever worked is not there any more, and its orders are lost.

    Attributes:
        index: its number.
        how: such as ``"by SIGKILL"``.
        place: where it hung, if that is why it was ended.
    """

    def __init__(self, index: int, how: str, place: Any = None) -> None:
        super().__init__(f"{index} was ended {how}")
        self.index, self.how, self.place = index, how, place


def _nothing() -> None:
    """What there is to do while a run waits, unless it says otherwise."""


def idle() -> WorkerError:
    """The error of waiting for an answer when no order is open: no answer would ever come."""
    return WorkerError(
        "the run waits for an answer, but its workers have answered all their orders, so that it would wait for ever: "
        "birl has miscounted its orders. Start the run again, which goes on from its last checkpoint, and report "
        "this error with the command or script of the run"
    )


class Transport(Protocol):
    """Workers by number. Each carries out its orders in the order in which they were sent.

    Attributes:
        while_waiting: `wait` calls it at least once a second while no answer comes. It may raise an error, which leaves
            `wait`.
    """

    while_waiting: Callable[[], None] = staticmethod(_nothing)

    def start(self, index: int, given: Any) -> None:
        """Begin a worker, in the place of the one before, if there was one, whose orders are forgotten."""

    def put(self, value: Any) -> Any:
        """Make a value ready to be sent ``beside`` several orders. Returns what stands for it."""

    def send(self, index: int, order: Any, beside: Any) -> None:
        """Send an order."""

    def wait(self) -> tuple[int, Any]:
        """Wait for the next answer. Returns the worker's number and the answer.

        Raises:
            Gone: if a worker is lost, or hung and was ended.
            WorkerError: if no order is open.
            BirlError: if one has failed, by an error of its environment for instance.
        """

    def close(self) -> None:
        """End all workers."""


class _Mail:
    """Sends messages to a worker in a thread of its own: nobody waits for one that was stopped and does not read."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._messages = worker, queue.SimpleQueue[Any]()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def send(self, message: Any) -> None:
        """Send a message after those before."""
        self._messages.put(message)

    def _send(self) -> None:
        with contextlib.suppress(Ended, BirlError):  # whoever waits for its answers is told
            while (message := self._messages.get()) is not None:
                self._worker.send(message)

    def end(self, timeout: float | None = None) -> bool:
        """Send no more. Returns whether all was sent, or the worker is gone, within ``timeout`` seconds."""
        self._messages.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()


class Processes(Transport):
    """Workers in processes of this machine, one each.

    Args:
        begin: makes the work of a worker.
        step_timeout: seconds that a worker may stay in one place.

    Attributes:
        host: address of this machine, as workers know it.
    """

    host = "127.0.0.1"

    def __init__(self, begin: Begin, step_timeout: float) -> None:
        self._begin, self._watch = begin, Watch(step_timeout)
        self._workers: dict[int, Worker] = {}
        self._mail: dict[int, _Mail] = {}
        self._open: dict[int, int] = {}  # number of answers that are still to come

    def start(self, index: int, given: Any) -> None:
        self._forget(index)
        self._workers[index] = Worker(_work, (self._begin, given, self._watch.slice))
        self._mail[index] = _Mail(self._workers[index])
        self._watch.start(index)
        self._open[index] = 0

    def put(self, value: Any) -> Any:
        return value

    def send(self, index: int, order: Any, beside: Any) -> None:
        if self._open[index] == 0:
            self._watch.moved(index)
        self._open[index] += 1
        self._mail[index].send((order, beside))

    def wait(self) -> tuple[int, Any]:
        while True:
            index, message = self._hear()
            if index is not None and not isinstance(message, Alive):
                self._open[index] -= 1
                self._watch.moved(index)
                return index, message
            if index is not None:
                self._watch.saw(index, message.place)
            self.while_waiting()

    def _hear(self) -> tuple[int | None, Any]:
        """The next message of anybody; none of nobody after a while."""
        by_worker = {self._workers[index]: index for index, count in self._open.items() if count}
        if not by_worker:
            raise idle()
        index: int | None = None
        try:
            begin = time.monotonic()
            worker = first_ready(by_worker, self._watch.slice)
            self._end_hung(by_worker, time.monotonic() - begin)
            index = None if worker is None else by_worker[worker]
            return index, None if worker is None else worker.receive()
        except Ended as error:
            assert index is not None
            self._forget(index)
            raise Gone(index, error.how) from None

    def _end_hung(self, by_worker: dict[Worker, int], waited: float) -> None:
        for worker, index in by_worker.items():
            if self._watch.waited(index, waited) and not worker.connection.poll():
                self._forget(index)
                raise Gone(index, *self._watch.verdict(index))

    def close(self) -> None:
        for index in [index for index, mail in self._mail.items() if not mail.end(_GRACE)]:
            self._forget(index)
        end(self._workers.values())
        self._workers.clear()
        self._mail.clear()

    def _forget(self, index: int) -> None:
        self._open.pop(index, None)
        if index in self._workers:
            worker = self._workers.pop(index)
            worker.end_now()
            self._mail.pop(index).end()  # before the connection is closed, which it uses
            worker.kill()


def _work(owner: Owner, given: tuple[Begin, Any, float]) -> None:
    """Carry out orders, which are read meanwhile: nobody waits for somebody who waits for them."""
    torch.set_num_threads(1)  # there are others
    begin, own, interval = given
    orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
    sending, done = threading.Lock(), threading.Event()

    def send(message: Any) -> None:
        with sending:
            owner.send(message)

    def read() -> None:
        try:
            while True:
                orders.put(owner.receive())
        except Left:
            orders.put(None)

    def tell(work: Work) -> None:
        told: Any = ()
        with contextlib.suppress(Left):
            while not done.is_set():
                if (place := work.place) != told:  # silence says the same
                    send(Alive(place))
                    told = place
                done.wait(interval)

    def carry_out() -> None:
        work = begin(own)
        telling = threading.Thread(target=tell, args=(work,), daemon=True)
        telling.start()
        try:
            while (order := orders.get()) is not None:
                send(work(*order))
        finally:
            done.set()
            telling.join(_GRACE)
            work.close()

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    try:
        carry_out()
    except Exception as error:
        send(failure(error))
    reading.join()  # a thread that wakes while Python ends would abort the process


class Inline(Transport):
    """Workers in this process: they work, one order at a time, while somebody waits for an answer.

    Args:
        begin: makes the work of a worker. Each gets a copy of what it is given.
    """

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._works: dict[int, Work] = {}
        self._sent: deque[tuple[int, Any, Any]] = deque()

    def start(self, index: int, given: Any) -> None:
        self._forget(index)
        self._works[index] = self._begin(copy.deepcopy(given))

    def put(self, value: Any) -> Any:
        return value

    def send(self, index: int, order: Any, beside: Any) -> None:
        self._sent.append((index, order, beside))

    def wait(self) -> tuple[int, Any]:
        if not self._sent:
            raise idle()
        index, order, beside = self._sent.popleft()
        return index, self._works[index](order, beside)

    def close(self) -> None:
        for index in list(self._works):
            self._forget(index)

    def _forget(self, index: int) -> None:
        if index in self._works:
            self._works.pop(index).close()
        self._sent = deque(sent for sent in self._sent if sent[0] != index)
