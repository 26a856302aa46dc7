"""No wait for collectors is endless: a wrong count of steps or tasks is an error, and a signal ends a run."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import birl
from birl.distributed import transport, worker_process
from birl.distributed.inline_allreduce import InlineAllReduce
from birl.distributed.transport import InlineTransport, ProcessTransport, Transport
from birl.errors import WorkerError
from birl.run.session import Session
from birl.run.workers.collector_group import CollectorGroup
from birl.run.workers.collector_worker import CollectorWorker
from run.fakes import Drift
from run.workers.test_collector_group import run, sac, same
from run.workers.transports import run_inline, use_unruly

pytestmark = pytest.mark.timeout(120)  # what fails here would hang


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run collectors in this process."""
    run_inline(monkeypatch)


def miscounted(monkeypatch: pytest.MonkeyPatch, name: str, by: int) -> None:
    """Make a count of steps wrong after the first task."""
    assign, done = CollectorGroup._assign, []

    def wrong(self: CollectorGroup, index: int) -> None:
        assign(self, index)
        if not done:
            setattr(self, name, getattr(self, name) + by)
            done.append(name)

    monkeypatch.setattr(CollectorGroup, "_assign", wrong)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("order", ["together", "turns", "arrival"])
@pytest.mark.parametrize(("name", "by"), [("assigned", 1), ("dropped", -1), ("missed", -1)])
def test_steps_that_no_collector_makes_are_an_error(
    name: str, by: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    miscounted(monkeypatch, name, by)
    with pytest.raises(WorkerError, match="step 50 of 50 is missing, but the collectors have carried out all their ta"):
        run(birl.Cluster(2, 1, 4, order))


@pytest.mark.usefixtures("here")
def test_counting_a_step_twice_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    count = CollectorGroup.count

    def twice(self: CollectorGroup, step: int, *options: Any) -> list[Any]:
        return count(self, step, *options) + (count(self, step, *options) if step == 3 else [])

    monkeypatch.setattr(CollectorGroup, "count", twice)
    with pytest.raises(WorkerError, match="step 50 of 50 is missing.*report this error"):
        run(birl.Cluster(2, 1, 4, "turns"))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("order", ["together", "turns", "arrival"])
def test_a_task_that_was_never_sent_is_an_error(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    send = InlineTransport.send
    monkeypatch.setattr(
        InlineTransport,
        "send",
        lambda self, index, task, payload: task.number == 5 or send(self, index, task, payload),
    )
    with pytest.raises(WorkerError, match="answered (all their tasks|task [0-9]+, but task 5 was its next)"):
        run(birl.Cluster(2, 1, 4, order))


@pytest.mark.parametrize(
    "make", [InlineTransport, InlineAllReduce, lambda factory: ProcessTransport(factory, 60.0)], ids=["i", "r", "p"]
)
def test_there_is_no_result_without_a_task(make: Callable[[Any], Transport]) -> None:
    made = make(CollectorWorker)
    with pytest.raises(WorkerError, match="the run waits for a result, but its workers have answered all their tasks"):
        made.wait()
    made.close()


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("order", ["together", "turns"])
@pytest.mark.parametrize("at", [1, 5, 12])
def test_a_run_that_is_stopped_while_it_waits_resumes_exactly(
    at: int, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, waits, steps = birl.Cluster(3, 2, 2, order), [], [0]
    expected = run(cluster, sac, env=Drift(False))
    check = Session.check_signals

    def stopped(self: Session) -> None:
        waits.append(self.step)
        if len(waits) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        check(self)

    monkeypatch.setattr(Session, "check_signals", stopped)
    use_unruly(monkeypatch, CollectorWorker, 1, loss=0.1)
    options: Any = {"checkpoint": tmp_path, "callback": lambda algorithm, epoch, step: steps.append(step)}
    with pytest.raises(SystemExit) as raised:
        run(cluster, sac, env=Drift(False), **options)
    assert raised.value.code == 143 and len(waits) == at and steps[-1] == waits[-1]  # not one step later
    assert same(run(cluster, sac, env=Drift(False), **options), expected)


class Sleeps(Drift):
    """Writes a file at the start of a step that never ends."""

    def __init__(self, path: Path) -> None:
        super().__init__(False)
        self.path = path

    def step(self, action: Any) -> Any:
        self.path.touch()
        time.sleep(600)


def test_a_signal_ends_a_run_whose_collectors_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (worker_process, transport):
        monkeypatch.setattr(module, "_GRACE", 0.1)  # no collector here ends by itself

    def stop() -> None:
        while not (tmp_path / "began").exists():
            time.sleep(0.1)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    sent: list[float] = []
    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    with pytest.raises(SystemExit) as raised:
        run(birl.Cluster(1, 1, 4, step_timeout=600.0), sac, env=Sleeps(tmp_path / "began"), checkpoint=tmp_path / "run")
    assert raised.value.code == 143 and time.monotonic() - sent[0] < 60
    thread.join()
