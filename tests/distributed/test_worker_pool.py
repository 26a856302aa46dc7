"""The pool of workers: tasks, results, and lost workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

import pytest

from birl.distributed import worker_pool
from birl.distributed.transport import InlineTransport, ProcessTransport, WorkerLost
from birl.distributed.worker_pool import LossReport, Placement, WorkerPool
from birl.errors import WorkerError


class Adder:
    """Adds numbers to the one in its spec."""

    position = "adding"

    def __init__(self, spec: int) -> None:
        self.total = spec

    def __call__(self, task: int, payload: Any) -> tuple[int, Any]:
        self.total += task
        return self.total, payload

    def close(self) -> None: ...


class Lossy(InlineTransport):
    """Loses the workers whose numbers are in ``losses``, one at each wait."""

    def __init__(self, losses: list[int | None]) -> None:
        super().__init__(Adder)
        self.losses = losses
        self.largest_backlog = 0

    def wait(self) -> tuple[int, Any]:
        self.largest_backlog = max(self.largest_backlog, len(self._tasks))
        index = self.losses.pop(0) if self.losses else None
        if index is None:
            return super().wait()
        self._forget(index)
        raise WorkerLost(index, "by SIGKILL")


class Pool(WorkerPool[int, int, tuple[int, Any]]):
    """Restarts workers from their last total."""

    worker_name = "adder"

    def __init__(self, n: int = 2, max_restarts: int = 2, setup: Iterable[int] = ()) -> None:
        super().__init__(Adder, Placement("inline", 60.0), range(n), max_restarts)
        self.totals = dict.fromkeys(range(n), 0)
        self.results: list[tuple[int, int, Any]] = []
        self.setup = setup

    def spec(self, index: int) -> int:
        return self.totals[index]

    def setup_tasks(self, index: int) -> Iterable[int]:
        return self.setup

    def payload(self, task: int) -> object:
        return "again"

    def handle_result(self, index: int, task: int, result: tuple[int, Any]) -> None:
        self.totals[index] = result[0]
        self.results.append((index, task, result[1]))

    def describe_loss(self, lost: WorkerLost) -> LossReport:
        return LossReport("; it goes on from its total", "without a sum", "use fewer")


def use(monkeypatch: pytest.MonkeyPatch, *losses: int | None) -> Lossy:
    transport = Lossy(list(losses))
    monkeypatch.setitem(worker_pool.TRANSPORTS, "inline", lambda factory, placement, inline: transport)
    return transport


def test_a_lost_worker_goes_on_from_its_state_with_its_open_tasks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use(monkeypatch, None, 0)
    with Pool() as pool, caplog.at_level(logging.WARNING, "birl"):
        for task in (1, 2, 3):
            pool.send(0, task, "first")
        pool.send(1, 10, "first")
        pool.wait_all()
    assert pool.totals == {0: 6, 1: 10} and pool.restarts == 1
    assert sorted(pool.results) == [(0, 1, "first"), (0, 2, "again"), (0, 3, "again"), (1, 10, "first")]
    assert caplog.messages == ["adder 0 was ended by SIGKILL; it goes on from its total"]


def test_setup_tasks_are_sent_one_after_another_before_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = use(monkeypatch, None, None, 0, 0)  # lost in its task, and again in its setup
    pool = Pool(n=1, setup=[100, 200])
    pool.send(0, 1)
    pool.wait_all()
    assert pool.totals == {0: 301} and pool.results == [(0, 1, "again")] and pool.restarts == 2
    assert transport.largest_backlog == 1


@pytest.mark.parametrize("each", [True, False])
def test_losses_in_a_row_are_limited(each: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each worker, or of all workers together."""
    monkeypatch.setattr(Pool, "counts_per_worker", each)
    use(monkeypatch, 0, 1, 0, 1, 0)
    pool = Pool(max_restarts=2)
    pool.send(0, 1)
    pool.send(1, 1)
    who = (
        "adder 0 was ended 3 times in a row .by SIGKILL" if each else "adders were ended 3 times in a row .adder 0 by S"
    )
    with pytest.raises(WorkerError, match=f"{who}.* without a sum: use fewer"):
        pool.wait_all()
    assert pool.restarts == (5 if each else 3)


def test_progress_resets_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, 0, 0, 1, None, 0, 0)
    pool = Pool(max_restarts=2)
    pool.send(0, 1)
    pool.send(1, 1)
    while not pool.results:
        pool.receive()
    pool.reset_failures(0)
    pool.send(0, 1)
    pool.wait_all()
    assert pool.restarts == 5 and pool._failures == {0: 2, 1: 1}
    pool.reset_failures()
    assert not pool._failures


def test_workers_that_are_always_ready_take_turns() -> None:
    transport = ProcessTransport(Adder, 60.0)
    for index in range(2):
        transport.start(index, 0)
        for _ in range(3):
            transport.send(index, 1, None)
    limit = time.monotonic() + 60
    while not all(worker.connection.poll() for worker in transport._workers.values()) and time.monotonic() < limit:
        time.sleep(0.05)
    time.sleep(0.5)  # all answers have arrived
    order = [transport.wait()[0] for _ in range(6)]
    transport.close()
    assert order in ([0, 1] * 3, [1, 0] * 3)
