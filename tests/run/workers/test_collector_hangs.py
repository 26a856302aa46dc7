"""Hung collectors are restarted; one that hangs again in the same position ends the run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

import birl
from birl.distributed.transport import ProcessTransport, WorkerLost
from birl.distributed.watchdog import START_TIMEOUT, Watchdog
from birl.errors import ConfigError, WorkerError
from run.fakes import Fails, Hangs
from run.workers.test_collector_group import run, sac, same


@pytest.mark.slow
def test_hanging_stopped_and_crashed_collectors_change_nothing(tmp_path: Path) -> None:
    env = Fails(tmp_path)
    expected = run(birl.Cluster(2, 1, 4, transport="inline"), sac, env=env)
    for number, kind in enumerate(("hang", "SIGSTOP", "SIGSEGV")):
        (tmp_path / f"{number}.{kind}").touch()
    assert same(run(birl.Cluster(2, 1, 4, step_timeout=8.0), sac, env=env), expected)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_hangs_again_in_the_same_place_is_named() -> None:
    message = (
        "collector 0 was ended twice because it did not move for 8 seconds, both times in environment 0 of collector "
        "0, reset with seed [0-9]+, in step 4 of 6 of its task 0"
    )
    with pytest.raises(WorkerError, match=message):
        run(birl.Cluster(1, 1, 6, step_timeout=8.0), env=Hangs(end=0.0))


class Naps:
    """Sleeps for some seconds in each of several positions."""

    def __init__(self, spec: Any) -> None:
        self.position = "none"

    def __call__(self, task: Any, payload: Any) -> Any:
        for i in range(task[1]):
            self.position = str(i)
            time.sleep(task[0])
        return os.getpid()

    def close(self) -> None: ...


@pytest.mark.slow
def test_slow_workers_are_no_hung_ones() -> None:
    workers = ProcessTransport(Naps, step_timeout=3.0)
    workers.start(0, None)
    workers.send(0, (0.4, 10), None)  # longer than the limit, but always in another position
    first = workers.wait()[1]
    workers.send(0, (600.0, 1), None)
    with pytest.raises(WorkerLost) as e:
        workers.wait()
    assert (e.value.index, e.value.position, e.value.how) == (0, "0", "because it did not move for 3 seconds")
    workers.start(0, None)
    workers.send(0, (0.0, 1), None)
    assert workers.wait()[1] != first  # another process
    workers.close()


def test_only_time_spent_waiting_counts() -> None:
    watchdog = Watchdog(8.0)
    watchdog.start(0)
    assert watchdog.interval == 1.0
    assert not any(watchdog.add_wait(0, 100.0) for _ in range(int(START_TIMEOUT)))  # of each, one second counts
    assert watchdog.add_wait(0, 1.0)
    assert watchdog.describe(0) == ("because it did not start for 300 seconds", "its start")
    watchdog.record(0, "here")
    assert not any(watchdog.add_wait(0, 1.0) for _ in range(8))
    watchdog.record(0, "here")
    assert watchdog.add_wait(0, 0.5)
    assert watchdog.describe(0) == ("because it did not move for 8 seconds", "here")
    watchdog.record(0, "there")
    assert not watchdog.add_wait(0, 1.0)


@pytest.mark.parametrize("name", ["step_timeout", "patience"])
def test_limits_are_checked(name: str) -> None:
    with pytest.raises(ConfigError, match=f"Cluster.{name} is 0; it must be a float > 0"):
        birl.Cluster(**{name: 0})
