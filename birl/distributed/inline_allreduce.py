"""Learners in one process: each works in a thread of its own, one at a time, and they meet where means are computed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from birl.distributed.process_group import Broken, Group, Meeting
from birl.distributed.transport import Inline, idle
from birl.distributed.workers import Left


class Rounds(Inline):
    """Workers in this process that compute means with it, which is the first of the group.

    A worker's order is begun when somebody waits for its answer, or for its part of a mean. Each has global random
    numbers of its own.

    Args:
        begin: makes the work of a worker; ``join`` is given to it, which makes its `Group`.
    """

    def __init__(self, begin: Callable[..., Any]) -> None:
        super().__init__(partial(begin, join=lambda meeting, number: _Member(self, number)))
        self._tasks: dict[int, _Task] = {}

    def next(self, size: int, grace: float) -> Meeting:
        """Where a new group meets, as `Store.next`."""
        return Meeting("", 0, 0, size, grace)

    def join(self, meeting: Meeting, number: int) -> Group:
        """The group, as its first one has it."""
        return _First(self)

    def wait(self) -> tuple[int, Any]:
        index = next(iter(self._tasks), None)
        if index is None and not self._sent:
            raise idle()
        index = self._sent[0][0] if index is None else index
        task = self._task(index)
        if not task.done:
            task.resume()
        while not task.done:
            task.raised = Broken("the first one brings nothing")
            task.resume()
        del self._tasks[index]
        return index, task.answer

    def _task(self, index: int) -> _Task:
        """What a worker is at, or its next order."""
        if index not in self._tasks:
            sent = next((each for each in self._sent if each[0] == index), None)
            if sent is None:
                raise Broken(f"{index} has no order")
            self._sent.remove(sent)
            self._tasks[index] = _Task(partial(self._works[index], sent[1], sent[2]))
        return self._tasks[index]

    def mean(self, value: Tensor) -> Tensor:
        """The mean of what the first one and all workers bring."""
        tasks = [self._task(index) for index in sorted(self._works)]
        for task in tasks:
            task.resume()
            if task.done:
                raise Broken("one has ended its order")
        found = torch.stack([value.detach(), *(task.value for task in tasks)]).mean(0)
        for task in tasks:
            task.value = found
        return found.clone()

    def part(self, value: Tensor) -> Tensor:
        """What a worker brings, in its thread. Returns the mean."""
        task = next(task for task in self._tasks.values() if task.works)
        task.value = value.detach().clone()
        task.pause()
        return task.value.clone()

    def dissolve(self) -> None:
        """Those that are in a mean leave it."""
        for task in self._tasks.values():
            task.raised = Broken("the first one has left")

    def _forget(self, index: int) -> None:
        task = self._tasks.pop(index, None)
        if task is not None and not task.done:
            task.raised = Left()
            task.resume()
        super()._forget(index)


class _First(Group):
    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def mean(self, value: Tensor) -> Tensor:
        return self._rounds.mean(value)

    def close(self) -> None:
        self._rounds.dissolve()


class _Member(Group):
    def __init__(self, rounds: Rounds, number: int) -> None:
        self._rounds = rounds

    def mean(self, value: Tensor) -> Tensor:
        return self._rounds.part(value)

    def close(self) -> None: ...


class _Task:
    """A function that can pause, in a thread of its own.

    Attributes:
        value: what it brought before it paused, and what it finds when it goes on.
        raised: the error that it finds instead.
        works: whether it is its turn.
        done: whether it has ended.
        answer: of the function.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self.value: Any = None
        self.answer: Any = None
        self.raised: BaseException | None = None
        self.works = self.done = False
        self._error: BaseException | None = None
        self._random = _random()
        threading.Thread(target=self._run, daemon=True).start()

    def resume(self) -> None:
        """Let it work until it pauses, or is done. Raises its error."""
        before = _random()
        _set_random(self._random)
        self.works = True
        self._turn.release()
        self._back.acquire()
        self.works = False
        self._random = _random()
        _set_random(before)
        if self._error is not None:
            raise self._error

    def pause(self) -> None:
        """Wait for the next turn, in its thread."""
        self._back.release()
        self._turn.acquire()
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if self.raised is None:
                self.answer = self._function()
        except Left:
            pass
        except BaseException as error:  # whoever waits for the answer raises it
            self._error = error
        self.done = True
        self._back.release()


def _random() -> tuple[Any, Any, Any]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_random(state: tuple[Any, Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
