"""One run in a folder: real processes that hold the lock, are killed, and leave files behind."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import birl.seeding
from birl.errors import ConfigError, ResumeError, WriteError
from birl.logging import CombineAdapter, FileAdapterFactory, LoggerAdapterFactory
from birl.run.offline import fitter
from birl.run.run_lock import LOCK, only_run
from run.fakes import FakeLearner
from run.test_offline import data, quiet

HOLD = """
import sys, time
from birl.run.run_lock import only_run
with only_run(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process whose run is active in ``tmp_path / "run"``."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def run(folder: Path, n_steps: int = 20, **options: Any) -> FakeLearner:
    birl.seeding.seed(1)
    learner = FakeLearner()
    list(fitter(learner, data(), n_steps, **quiet(checkpoint=folder, n_steps_per_epoch=10, **options)))
    return learner


def test_another_process_is_named_until_it_dies(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    folder, learner = tmp_path / "run", FakeLearner()
    with pytest.raises(ResumeError, match=rf"another run .* \(process {holder.pid} on .*, since 20\d\d-.*\+00:00\)"):
        list(fitter(learner, data(), 20, **quiet(checkpoint=folder)))
    assert learner.grad_step == 0
    assert not (folder / "checkpoint.d3c").exists()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (folder / ".run.holder").exists()  # it had no time to clear away
    assert run(folder).grad_step == 20
    assert not (folder / ".run.holder").exists()


def test_the_folder_of_the_logs_is_held_too(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    class Both(LoggerAdapterFactory):
        def create(self, experiment_name: str) -> Any:
            return CombineAdapter([FileAdapterFactory(tmp_path).create(experiment_name)])

    for factory in (FileAdapterFactory(tmp_path), Both()):
        options = {**quiet(), "logger_adapter": factory, "experiment_name": "run", "with_timestamp": False}
        with pytest.raises(ResumeError, match=f"process {holder.pid}"):
            list(fitter(FakeLearner(), data(), 20, **options))
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_runs_that_begin_in_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    options: Any = {"logger_adapter": FileAdapterFactory(tmp_path), "n_steps_per_epoch": 10, "show_progress": False}
    runs = [fitter(FakeLearner(), data(), 20, **options) for _ in range(3)]
    for each in runs:
        next(each)
    folders = os.listdir(tmp_path)
    assert len(folders) == 3
    for each in runs:
        each.close()
    for name in folders:
        assert len((tmp_path / name / "metrics.jsonl").read_text().splitlines()) == 1


def test_a_run_in_the_same_process_counts_too(tmp_path: Path) -> None:
    options = quiet(checkpoint=tmp_path / "run", n_steps_per_epoch=10)
    first = fitter(FakeLearner(), data(), 20, **options)
    next(first)
    with pytest.raises(ResumeError, match=f"process {os.getpid()}"):
        list(fitter(FakeLearner(), data(), 20, **options))
    first.close()
    assert run(tmp_path / "run").grad_step == 20


def test_a_run_that_fails_lets_go(tmp_path: Path) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "run", callback=fail)
    with pytest.raises(ConfigError):
        run(tmp_path / "run", score="nothing")
    with pytest.raises(ResumeError, match="rate was"):
        list(fitter(FakeLearner(rate=0.5), data(), 20, **quiet(checkpoint=tmp_path / "run", n_steps_per_epoch=10)))
    assert run(tmp_path / "run").grad_step == 20


def test_what_killed_runs_left_half_written_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    ours = [f".{name}.0123456789ab.tmp" for name in ("checkpoint.d3c", "model_20.d3", "model_best.json", "params.json")]
    others = [".data.h5.0123456789ab.tmp", ".checkpoint.d3c.mine.tmp", "model_20.d3.tmp", "notes.0123456789ab.tmp"]
    for name in ours + others:
        (folder / name).write_bytes(b"half")
    run(folder)
    assert set(os.listdir(folder)) == {*others, "checkpoint.d3c", LOCK}


def test_what_killed_runs_of_many_seeds_left_is_removed(tmp_path: Path) -> None:
    ours, others = tmp_path / "seed_3", tmp_path / "other"
    for folder in (ours, others):
        folder.mkdir()
        (folder / ".model_20.d3.0123456789ab.tmp").touch()
    with only_run(tmp_path):
        assert not any(ours.iterdir()) and any(others.iterdir())


def test_nothing_is_removed_during_an_active_run(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    half = tmp_path / "run/.checkpoint.d3c.0123456789ab.tmp"
    half.write_bytes(b"half")
    with pytest.raises(ResumeError):
        run(tmp_path / "run")
    assert half.exists()


def refuse_call(number: int) -> None:
    raise OSError(number, os.strerror(number))


def test_removing_the_file_of_the_lock_does_not_allow_two_runs(
    holder: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run" / LOCK).unlink()
    for _ in range(2):  # the attempt makes a new file
        with pytest.raises(ResumeError, match=f"process {holder.pid}"):
            run(tmp_path / "run")
    kept = (tmp_path / "run/.run.holder").read_text()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert run(tmp_path / "copy").grad_step == 20
    holder.kill()
    holder.wait()
    assert run(tmp_path / "run").grad_step == 20
    # A killed run's id may be given to another process: here to this one.
    for other in (kept.replace(f'"pid": {holder.pid}', f'"pid": {os.getpid()}'), "[1]", "[" * 100_000, '{"pid": []}'):
        (tmp_path / "run/.run.holder").write_text(other)
        assert run(tmp_path / "run").grad_step == 20


def test_file_systems_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> None:
        def acquire(self: Any) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(FileLock, "acquire", acquire)

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).touch()  # of an earlier run
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", lambda *_: refuse_call(errno.ENOSYS))
        with pytest.warns(RuntimeWarning, match="cannot be locked"):
            assert run(tmp_path / "run", n_steps=10).grad_step == 10
    refuse(errno.ENOTSUP)
    with pytest.warns(RuntimeWarning, match="cannot be locked"):
        assert run(tmp_path / "run").grad_step == 20
    refuse(errno.EROFS)
    with pytest.raises(WriteError, match="Read-only"), only_run(tmp_path / "run"):
        pass


def test_a_refused_run_holds_no_folder(tmp_path: Path) -> None:
    run(tmp_path / "run")
    for _ in range(2):
        with pytest.raises(ResumeError, match="other settings") as kept:  # as a notebook keeps the last error
            run(tmp_path / "run", logging_strategy="steps", logging_steps=10)
    assert kept.tb is not None
    run(tmp_path / "run")
