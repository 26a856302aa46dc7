"""Collectors that Ray places. `make test-ray` runs these; the default run does not need Ray."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from left_behind import MARK, processes_started_here
from run.fakes import Drift, Fails, Hangs
from run.workers.test_collector_group import dqn, run, sac, same

import birl
import birl.distributed.ray
from birl.distributed.ray import RayTransport
from birl.distributed.transport import WorkerLost
from birl.errors import ConfigError, WorkerError


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One Ray for all tests, which birl uses and leaves as it is."""
    given = {"num_cpus": 4, "resources": {"simulator": 3}, "object_store_memory": 100 * 2**20}
    ray.init(**given, include_dashboard=False, log_to_driver=False)
    yield
    assert ray.is_initialized()
    ray.shutdown()


@pytest.mark.parametrize("order", ["together", "turns"])
def test_collectors_survive_sigkill(tmp_path: Path, order: str) -> None:
    env = Fails(tmp_path)
    expected = run(birl.Cluster(2, 2, 4, order, transport="inline"), sac, env=env)
    for number in range(2):
        (tmp_path / f"{number}.SIGKILL").touch()
    assert same(run(birl.Cluster(2, 2, 4, order, transport="ray"), sac, env=env), expected)
    assert not list(tmp_path.iterdir())


def test_collectors_that_hang_are_restarted(tmp_path: Path) -> None:
    env = Fails(tmp_path)
    expected = run(birl.Cluster(2, 1, 4, transport="inline"), sac, env=env)
    (tmp_path / "once.hang").touch()
    assert same(run(birl.Cluster(2, 1, 4, transport="ray", step_timeout=8.0), sac, env=env), expected)
    assert not list(tmp_path.iterdir())


def test_what_hangs_again_is_named() -> None:
    message = "collector 0 was ended twice because it did not move for 8 seconds, both times in environment 0 .* step 4"
    with pytest.raises(WorkerError, match=message):
        run(birl.Cluster(1, 1, 6, transport="ray", step_timeout=8.0), env=Hangs(end=0.0))


class Breaks(Drift):
    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("of the user")


def test_errors_of_environments_reach_the_user() -> None:
    with pytest.raises(WorkerError, match="environment 0 of collector 0, reset with seed(.|\n)*of the user"):
        run(birl.Cluster(1, transport="ray"), env=Breaks())


class Holds:
    """An environment that does not pickle."""

    def __init__(self) -> None:
        self.lock = __import__("threading").Lock()

    def __call__(self, number: int) -> Any:
        return Drift()


def test_unpicklable_environments_are_an_error() -> None:
    cause = r"cannot be sent to another process \(cannot pickle '_thread.lock' object\): give the environment"
    with pytest.raises(ConfigError, match=cause):
        run(birl.Cluster(1, transport="ray"), env=Holds())


class Echo:
    """Returns its arguments."""

    position = "here"

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    def __call__(self, task: Any, payload: Any) -> Any:
        time.sleep(task)
        return self.spec, task, payload, os.getpid()

    def close(self) -> None: ...


def test_a_killed_worker_is_lost_with_its_tasks() -> None:
    remote = RayTransport(Echo)
    remote.start(0, "a")
    shared = remote.share({"x": 1})
    remote.send(0, 0.0, shared)
    index, (spec, _, payload, process) = remote.wait()
    assert (index, spec, payload) == (0, "a", {"x": 1}) and process != os.getpid()
    for _ in range(2):
        remote.send(0, 30.0, shared)
    os.kill(process, signal.SIGKILL)
    with pytest.raises(WorkerLost) as e:
        remote.wait()
    assert e.value.index == 0
    remote.start(0, "b")
    remote.send(0, 0.0, shared)
    assert remote.wait()[1][0] == "b"
    remote.close()


def test_all_machines_need_the_same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(birl.distributed.ray, "__version__", "0.0.9")
    message = r"worker 0 is on a machine .* with birl .*, and the run has birl 0.0.9: install the same version"
    with pytest.raises(ConfigError, match=message):
        run(birl.Cluster(1, 1, 5, transport="ray"), dqn)


def test_missing_resources_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("birl.distributed.ray.PATIENCE", 3.0)
    with pytest.raises(WorkerError, match=r"within 3 seconds: each asks for CPU 1; Ray has CPU 4, and CPU 0 free"):
        run(birl.Cluster(6, 1, 5, transport="ray"), dqn)
    given = {"num_cpus": 0.5, "num_gpus": 1, "simulator": 2}
    has = "CPU 4, GPU 0, simulator 3"
    message = f"asks for CPU 0.5, GPU 1, simulator 2; Ray has {has}, and {has} free"
    with pytest.raises(WorkerError, match=message):
        run(birl.Cluster(1, 1, 5, transport="ray", resources=given), dqn)


def test_collectors_get_their_resources() -> None:
    given = {"num_cpus": 2, "simulator": 1.5, "memory": 50 * 2**20}
    cluster = birl.Cluster(2, 1, 5, transport="ray", resources=given)
    assert same(run(cluster, sac), run(birl.Cluster(2, 1, 5, transport="inline"), sac))


def test_an_address_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match="Ray cannot be reached at the address '127.0.0.1:1' .*refused"):
        run(birl.Cluster(1, transport="ray", address="127.0.0.1:1"))


def test_an_address_that_is_not_rays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is an error; Ray itself answers."""
    where, port = ray.get_runtime_context().gcs_address.split(":")
    birl.distributed.ray._check_server(where, int(port))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(birl.distributed.ray, "_CONNECT_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"address '{address}' \(no answer within 0.3 seconds"):
            run(birl.Cluster(1, transport="ray", address=address))


def test_processes_of_ray_are_found() -> None:
    """This shows that the final assertion of `conftest.py` can fail."""
    found = " ".join(processes_started_here(os.environ[MARK]).values())
    assert "raylet" in found and "gcs_server" in found
