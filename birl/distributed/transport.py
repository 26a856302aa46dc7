"""Getting orders to collectors and answers back, wherever they are."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol


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


class Inline:
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
