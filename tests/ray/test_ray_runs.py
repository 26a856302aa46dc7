"""Whole runs that Ray places end like runs on one machine, even if a process was lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
from left_behind import MARK, processes_started_here

from birl.cli import main
from birl.cli.run_processes import end_processes, last_line, process_starter, start_process
from birl.distributed.ray import RayLauncher
from birl.errors import ConfigError

TRAIN = ["--env-id", "CartPole-v1", "--n-steps", "600", "--n-steps-per-epoch", "200", "--set", "batch_size=8"]


def models(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("model_*.d3"))}


def test_seeds_end_as_on_one_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "DQN", *TRAIN, "--seeds", "2"]
    assert main([*words, "--out", str(tmp_path / "here")]) == 0
    assert main([*words, "--jobs", "2", "--address", "local", "--out", str(tmp_path / "there")]) == 0
    assert len(models(tmp_path / "here")) >= 2 and models(tmp_path / "here") == models(tmp_path / "there")
    assert "deviation" in capsys.readouterr().out
    assert not ray.is_initialized()


def test_a_search_is_the_same_wherever_trials_run(tmp_path: Path) -> None:
    words = ["tune", "DQN", *TRAIN, "--trials", "3", "--search", "learning_rate=1e-4..1e-2:log", "--no-prune"]
    assert main([*words, "--out", str(tmp_path / "here")]) == 0
    assert main([*words, "--address", "local", "--out", str(tmp_path / "there")]) == 0
    here, there = ((tmp_path / name / "trials.csv").read_text() for name in ("here", "there"))
    assert here == there and len(here.splitlines()) == 4


@pytest.fixture
def launcher() -> Any:
    made = RayLauncher(partial(start_process, jobs=1))
    yield made
    made.close()


def script(folder: Path, text: str) -> list[str]:
    (folder / "work.py").write_text(text)
    return ["python", str(folder / "work.py")]


def test_a_run_whose_actor_is_lost_is_started_again(launcher: RayLauncher, tmp_path: Path) -> None:
    """The script writes its process id, and ends the second time."""
    text = "import os, sys, time\n"
    text += "from pathlib import Path\n"
    text += "file = Path(sys.argv[0]).parent / 'started'\n"
    text += "lines = file.read_text().split() if file.exists() else []\n"
    text += "file.write_text(' '.join([*lines, f'{os.getppid()}:{os.getpid()}']))\n"
    text += "time.sleep(0 if lines else 600)\n"
    run = launcher.start(script(tmp_path, text), tmp_path / "run")
    until = time.monotonic() + 120
    while not (tmp_path / "started").exists() or not (tmp_path / "started").read_text():
        assert run.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    while run.poll() is None and not run._started:
        time.sleep(0.1)
    actor, process = map(int, (tmp_path / "started").read_text().split(":"))
    os.kill(actor, signal.SIGKILL)
    os.kill(process, signal.SIGKILL)
    assert run.wait(120) == 0
    assert len((tmp_path / "started").read_text().split()) == 2
    assert "Ray has lost this run" in last_line(tmp_path / "run")


def test_a_run_ends_with_its_actor_and_goes_on(tmp_path: Path) -> None:
    """The actor alone is killed: its run must not hold the folder when the next one starts."""
    words = ["train", "DQN", *TRAIN, "--n-steps", "4000"]
    assert main([*words, "--out", str(tmp_path / "here")]) == 0
    with process_starter(1, "local") as start:
        there = tmp_path / "there"
        run = start(["python", "-m", "birl", *words, "--out", str(there)], there)
        until = time.monotonic() + 120
        while not list(there.glob("model_*.d3")):
            assert run.poll() is None and time.monotonic() < until
            time.sleep(0.01)
        process = next(
            pid for pid, line in processes_started_here(os.environ[MARK]).items() if line.endswith(str(there))
        )
        os.kill(int(Path(f"/proc/{process}/stat").read_text().split()[3]), signal.SIGKILL)
        assert run.wait(120) == 0, last_line(there)
    assert "Ray has lost this run" in Path(f"{there}.log").read_text()
    assert str(process) not in os.listdir("/proc")
    assert models(tmp_path / "here") == models(there)


def test_runs_are_ended(launcher: RayLauncher, tmp_path: Path) -> None:
    sleeps = script(tmp_path, "import time\nprint('on', flush=True)\ntime.sleep(600)\n")
    run = launcher.start(sleeps, tmp_path / "run")
    with pytest.raises(subprocess.TimeoutExpired):
        run.wait(2)
    run.terminate()
    assert run.wait(60) == -signal.SIGTERM
    waiting = [launcher.start(sleeps, tmp_path / f"run{k}") for k in range(int(ray.cluster_resources()["CPU"]) + 1)]
    for each in waiting:  # one of them has no place
        each.kill()
    assert all(each.wait(60) < 0 for each in waiting)


def test_errors_are_those_of_a_run(launcher: RayLauncher, tmp_path: Path) -> None:
    run = launcher.start(script(tmp_path, "raise SystemExit('what is wrong')"), tmp_path / "run")
    assert run.wait(60) == 1 and last_line(tmp_path / "run") == "what is wrong"
    lost = launcher.start(["python"], tmp_path / "no" / "such" / "run")
    with pytest.raises(ConfigError, match="all machines must have birl, share this folder, and have"):
        lost.wait(60)
    sleeps = launcher.start(script(tmp_path, "import time\ntime.sleep(600)"), tmp_path / "sleeps")
    end_processes([lost, sleeps])  # a run that cannot start does not keep others running
    assert sleeps.returncode == -signal.SIGTERM


def test_another_version_of_birl(launcher: RayLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("birl.distributed.ray.__version__", "0.0.9")
    run = launcher.start(script(tmp_path, ""), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"the run has birl 0\.0\.9: install the same version on all machines"):
        run.wait(60)


def test_a_cluster_without_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "DQN", *TRAIN, "--device", "cuda", "--seeds", "2", "--address", "local", "--out", str(tmp_path)]
    assert main(words) == 1
    assert "asks for a GPU, and no machine of Ray's cluster has one" in capsys.readouterr().err


def test_an_address_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "DQN", *TRAIN, "--seeds", "2", "--address", "127.0.0.1:1", "--out", str(tmp_path / "runs")]
    assert main(words) == 1
    assert "Ray cannot be reached at the address '127.0.0.1:1'" in capsys.readouterr().err
