"""Learners in one process. Each has a thread; one thread runs at a time, and pauses where a mean is computed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from birl.distributed.process_group import GroupBroken, GroupStore, LearnerGroup, Rendezvous
from birl.distributed.transport import InlineTransport, Worker, no_open_task
from birl.distributed.worker_process import OwnerGone
from birl.seeding import random_state, set_random_state


class InlineAllReduce(InlineTransport, GroupStore):
    """Workers in this process that average tensors with it. The process itself is the first member of the group.

    A worker starts a task when the owner waits for its result, or for its contribution to a mean. Each task has its own
    state of the global random generators.

    Args:
        factory: makes the workers. It takes a keyword argument ``join``, the function that joins a group.
    """

    def __init__(self, factory: Callable[..., Worker[Any, Any, Any]]) -> None:
        super().__init__(partial(factory, join=lambda rendezvous, number: _InlineGroup(self.worker_mean)))
        self._running: dict[int, _PausableThread] = {}

    def new_rendezvous(self, size: int, timeout: float) -> Rendezvous:
        return Rendezvous("", 0, 0, size, timeout)

    def join(self, rendezvous: Rendezvous, number: int) -> LearnerGroup:
        return _InlineGroup(self.owner_mean, self.break_group)

    def wait(self) -> tuple[int, Any]:
        index = next(iter(self._running), None)
        if index is None and not self._tasks:
            raise no_open_task()
        index = self._tasks[0][0] if index is None else index
        thread = self._thread(index)
        if not thread.done:
            thread.resume()
        while not thread.done:
            thread.error_to_raise = GroupBroken("the first learner brings nothing")
            thread.resume()
        del self._running[index]
        return index, thread.result

    def _thread(self, index: int) -> _PausableThread:
        """Return the thread of a worker's current task, or start that of its next task."""
        if index not in self._running:
            entry = next((each for each in self._tasks if each[0] == index), None)
            if entry is None:
                raise GroupBroken(f"learner {index} has no task")
            self._tasks.remove(entry)
            self._running[index] = _PausableThread(partial(self._workers[index], entry[1], entry[2]))
        return self._running[index]

    def owner_mean(self, value: Tensor) -> Tensor:
        """Average the owner's tensor with the tensors of all workers."""
        threads = [self._thread(index) for index in sorted(self._workers)]
        for thread in threads:
            thread.resume()
            if thread.done:
                raise GroupBroken("a learner has ended its task")
        mean = torch.stack([value.detach(), *(thread.contribution for thread in threads)]).mean(0)
        for thread in threads:
            thread.contribution = mean
        return mean.clone()

    def worker_mean(self, value: Tensor) -> Tensor:
        """Contribute a worker's tensor from the worker's thread, and return the mean."""
        thread = next(thread for thread in self._running.values() if thread.active)
        thread.contribution = value.detach().clone()
        thread.pause()
        return thread.contribution.clone()

    def break_group(self) -> None:
        """Let workers that wait for a mean raise `GroupBroken`."""
        for thread in self._running.values():
            thread.error_to_raise = GroupBroken("the first learner has left")

    def _forget(self, index: int) -> None:
        thread = self._running.pop(index, None)
        if thread is not None and not thread.done:
            thread.error_to_raise = OwnerGone()
            thread.resume()
        super()._forget(index)


class _InlineGroup(LearnerGroup):
    """A group whose mean and end are functions of the transport."""

    def __init__(self, mean: Callable[[Tensor], Tensor], close: Callable[[], None] = lambda: None) -> None:
        self._mean, self._close = mean, close

    def all_reduce_mean(self, value: Tensor) -> Tensor:
        return self._mean(value)

    def close(self) -> None:
        self._close()


class _PausableThread:
    """A thread that runs a function and can pause in it. Only one such thread runs at a time.

    Attributes:
        contribution: tensor to average, set before a pause; the mean afterwards.
        error_to_raise: error that `pause` raises when the thread continues.
        active: whether the thread is running.
        done: whether the function has ended.
        result: the function's result.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._resumed, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self.contribution = torch.empty(0)
        self.result: Any = None
        self.error_to_raise: BaseException | None = None
        self.active = self.done = False
        self._error: BaseException | None = None
        self._random = random_state()
        threading.Thread(target=self._run, daemon=True).start()

    def resume(self) -> None:
        """Let the thread run until it pauses or is done. Raise the function's error, if there was one."""
        before = random_state()
        set_random_state(self._random)
        self.active = True
        self._resumed.release()
        self._paused.acquire()
        self.active = False
        self._random = random_state()
        set_random_state(before)
        if self._error is not None:
            raise self._error

    def pause(self) -> None:
        """Wait for the next `resume`; call it in the thread."""
        self._paused.release()
        self._resumed.acquire()
        error, self.error_to_raise = self.error_to_raise, None
        if error is not None:
            raise error

    def _run(self) -> None:
        self._resumed.acquire()
        try:
            if self.error_to_raise is None:
                self.result = self._function()
        except OwnerGone:
            pass
        except BaseException as error:  # `resume` raises it in the other thread
            self._error = error
        self.done = True
        self._paused.release()
