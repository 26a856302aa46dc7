"""Getting orders to collectors and answers back, wherever they are."""

from __future__ import annotations

import copy
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from birl.distributed.workers import Ended, Left, Owner, Worker, end, first_ready


class Work(Protocol):
    """What a worker does."""

    def __call__(self, order: Any, beside: Any, /) -> Any:
        """Carry out an order. Returns the answer."""

    def close(self) -> None:
        """There are no more orders."""


Begin = Callable[[Any], Work]
"""Makes a `Work` of what it is given: a function that can be imported."""


class Gone(Exception):  # noqa: N818  never seen outside: whoever sends orders catches it
    """Whoever worked is not there any more, and its orders are lost.

    Attributes:
        index: its number.
        how: such as ``"by SIGKILL"``.
    """

    def __init__(self, index: int, how: str) -> None:
        super().__init__(f"{index} was ended {how}")
        self.index, self.how = index, how


class Transport(Protocol):
    """Workers by number. Each carries out its orders in the order in which they were sent."""

    def start(self, index: int, given: Any) -> None:
        """Begin a worker, in the place of the one before, if there was one, whose orders are forgotten."""

    def put(self, value: Any) -> Any:
        """Make a value ready to be sent ``beside`` several orders. Returns what stands for it."""

    def send(self, index: int, order: Any, beside: Any) -> None:
        """Send an order."""

    def wait(self) -> tuple[int, Any]:
        """Wait for the next answer. Returns the worker's number and the answer.

        Raises:
            Gone: if a worker is lost.
            BirlError: if one has failed, by an error of its environment for instance.
        """

    def close(self) -> None:
        """End all workers."""


class Processes(Transport):
    """Workers in processes of this machine, one each.

    Args:
        begin: makes the work of a worker.
    """

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._workers: dict[int, Worker] = {}
        self._open: dict[int, int] = {}  # number of answers that are still to come
        self._gone: dict[int, Ended] = {}  # noticed, and not told yet

    def start(self, index: int, given: Any) -> None:
        self._forget(index)
        self._workers[index] = Worker(_work, (self._begin, given))
        self._open[index] = 0

    def put(self, value: Any) -> Any:
        return value

    def send(self, index: int, order: Any, beside: Any) -> None:
        self._open[index] += 1
        try:
            self._workers[index].send((order, beside))
        except Ended as error:
            self._gone[index] = error

    def wait(self) -> tuple[int, Any]:
        by_worker = {self._workers[index]: index for index, count in self._open.items() if count}
        index = next(iter(self._gone)) if self._gone else by_worker[first_ready(by_worker)]
        try:
            if index in self._gone:
                raise self._gone[index]
            answer = self._workers[index].receive()
        except Ended as error:
            self._forget(index)
            raise Gone(index, error.how) from None
        self._open[index] -= 1
        return index, answer

    def close(self) -> None:
        end(self._workers.values())
        self._workers.clear()

    def _forget(self, index: int) -> None:
        self._gone.pop(index, None)
        self._open.pop(index, None)
        if index in self._workers:
            self._workers.pop(index).kill()


def _work(owner: Owner, given: tuple[Begin, Any]) -> None:
    """Carry out orders, which are read meanwhile: nobody waits for somebody who waits for them."""
    torch.set_num_threads(1)  # there are others
    begin, own = given
    orders: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        try:
            while True:
                orders.put(owner.receive())
        except Left:
            orders.put(None)

    threading.Thread(target=read, daemon=True).start()
    work = begin(own)
    try:
        while (order := orders.get()) is not None:
            owner.send(work(*order))
    finally:
        work.close()


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
        index, order, beside = self._sent.popleft()
        return index, self._works[index](order, beside)

    def close(self) -> None:
        for index in list(self._works):
            self._forget(index)

    def _forget(self, index: int) -> None:
        if index in self._works:
            self._works.pop(index).close()
        self._sent = deque(sent for sent in self._sent if sent[0] != index)
