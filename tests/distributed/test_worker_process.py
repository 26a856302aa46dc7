"""Worker processes: their messages, their start and their end."""

import importlib
import os
import pickle
import signal
import sys
import time
from multiprocessing import forkserver, resource_sharer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from birl.distributed import worker_process
from birl.distributed.transport import ProcessTransport
from birl.distributed.worker_process import OwnerConnection, OwnerGone, WorkerProcess, pickle_message, stop_all
from birl.errors import WorkerError


def _shares() -> bool:
    """Return whether this process has sent anything that the receiver must fetch from it."""
    return resource_sharer._resource_sharer._listener is not None  # type: ignore[attr-defined]


def _echo(owner: OwnerConnection, argument: Any) -> None:
    while True:
        message = owner.receive()
        owner.send((message, _shares()))


def test_tensors_are_sent_whole() -> None:
    """They are sent as bytes: nothing stays in shared memory, which is small in containers, or with the sender."""
    sent = {
        "scalar": torch.tensor(3.0),
        "none": torch.empty(0, 3),
        "turned": torch.arange(6).reshape(2, 3).T,
        "flags": torch.tensor([True, False]),
        "short": torch.ones(3, dtype=torch.bfloat16),
        "random": torch.get_rng_state(),
    }
    before, worker = _shares(), WorkerProcess(_echo, None)
    try:
        worker.send(pickle_message(sent))
        received, shares = worker.receive()
    finally:
        stop_all([worker])
    assert not shares and _shares() == before
    assert received.keys() == sent.keys()
    for name, tensor in sent.items():
        torch.testing.assert_close(received[name], tensor, rtol=0, atol=0, check_stride=False)
        received[name].zero_()  # it is the receiver's own


def test_sending_to_an_owner_that_is_gone() -> None:
    class Closed:
        def send_bytes(self, data: Any) -> None:
            raise BrokenPipeError

    with pytest.raises(OwnerGone):
        OwnerConnection(Closed()).send(torch.zeros(3))


def _about(owner: OwnerConnection, argument: Any) -> None:
    owner.send((dict(os.environ), os.getcwd(), np.random.random(), os.getpid()))
    owner.receive()


def _own_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def test_workers_start_as_new_processes_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They have the current environment variables and folder, and their own global random numbers.

    If they are forked from a server, they share nearly all of the 200 MB that a spawned process needs.
    """
    found = []
    for value in range(2):
        monkeypatch.setenv("BIRL_TESTED", str(value))
        monkeypatch.chdir(tmp_path)
        worker = WorkerProcess(_about, None)
        environment, folder, number, pid = worker.receive()
        own = _own_megabytes(pid) if sys.platform == "linux" else 0.0
        stop_all([worker])
        assert environment == dict(os.environ)
        assert Path(folder) == tmp_path and pid not in (os.getpid(), *(each[1] for each in found))
        assert own < 50
        found.append((number, pid))
    assert found[0][0] != found[1][0]


def test_modules_of_a_worker_see_the_environment_of_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Many modules read their settings when they are imported."""
    (tmp_path / "reads_at_import.py").write_text(
        "import os\nVALUE = os.environ['BIRL_TESTED']\n"
        "def report(owner, argument):\n    owner.send(VALUE)\n    owner.receive()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for value in ("0", "1"):
        monkeypatch.setenv("BIRL_TESTED", value)
        worker = WorkerProcess(importlib.import_module("reads_at_import").report, None)
        assert worker.receive() == value
        stop_all([worker])


def _status(pid: int | None) -> dict[str, str]:
    """The status of a process in /proc; empty if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {} if found["State"][0] in "ZX" else found


def _stuck(owner: OwnerConnection, argument: Any) -> None:
    owner.send("stuck")
    time.sleep(1000)


def test_workers_whose_server_is_killed_go_on_and_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sys.platform == "linux"
    stuck, other = WorkerProcess(_stuck, None), WorkerProcess(_echo, None)
    assert stuck.receive() == "stuck"
    server = int(_status(stuck.pid)["PPid"])
    assert server not in (os.getpid(), 1)
    os.kill(server, signal.SIGKILL)
    other.send(pickle_message(1))
    assert other.receive()[0] == 1
    newer = WorkerProcess(_echo, None)  # of a new server
    newer.send(pickle_message(2))
    assert newer.receive()[0] == 2
    monkeypatch.setattr(worker_process, "_GRACE", 1.0)
    stop_all([stuck, other, newer])
    deadline = time.monotonic() + 30
    while any(_status(each.pid) for each in (stuck, other, newer)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_status(each.pid) for each in (stuck, other, newer))


def test_a_worker_is_spawned_where_there_can_be_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def ensure_running() -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(forkserver._forkserver, "ensure_running", ensure_running)  # type: ignore[attr-defined]
    worker = WorkerProcess(_echo, None)
    worker.send(pickle_message(3))
    assert worker.receive()[0] == 3
    assert _status(worker.pid)["PPid"] == str(os.getpid())
    stop_all([worker])


class _Adding:
    """Worker that adds to a number."""

    position = "adding"

    def __init__(self, own: int) -> None:
        self._own = own

    def __call__(self, task: int, payload: int) -> int:
        if task < 0:
            raise ValueError(f"the task is {task}")
        return self._own + task + payload

    def close(self) -> None:
        pass


def test_workers_end_in_order() -> None:
    """They end with status 0; Python aborts now and then if a thread is left when it ends."""
    transport = ProcessTransport(_Adding, 60.0)
    for index in range(4):
        transport.start(index, 10 * index)
        transport.send(index, 1, 2)
    assert sorted(transport.wait() for _ in range(4)) == [(0, 3), (1, 13), (2, 23), (3, 33)]
    processes = [worker._process for worker in transport._workers.values()]
    transport.close()
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]


@pytest.mark.parametrize(("own", "message"), [(3, "the task is -1"), (None, "unsupported operand")])
def test_workers_that_fail_end_in_order(own: Any, message: str) -> None:
    """They may fail in a task or when they are made."""
    transport = ProcessTransport(_Adding if own else _starting_badly, 60.0)
    transport.start(0, own)
    transport.send(0, -1, 0)
    (worker,) = transport._workers.values()
    with pytest.raises(WorkerError, match=message):
        transport.wait()
    transport.close()
    assert worker._process.exitcode == 0


def test_a_task_that_cannot_be_pickled_is_an_error_of_its_sender() -> None:
    """An error in the thread that writes would leave the owner waiting for a result."""
    transport = ProcessTransport(_Adding, 60.0)
    transport.start(0, 10)
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError), match="pickle"):
        transport.send(0, lambda: None, 2)
    transport.close()


def _starting_badly(own: Any) -> Any:
    return own + 1


def _exits(owner: OwnerConnection, argument: Any) -> None:
    os._exit(1)


def test_a_process_that_cannot_start_says_what_scripts_must_do() -> None:
    worker = WorkerProcess(_exits, None)
    with pytest.raises(WorkerError, match='status 1 .* under `if __name__ == "__main__":`'):
        worker.receive()
    stop_all([worker])
