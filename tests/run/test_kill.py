"""Killed runs that are started again end as undisturbed ones: real processes, real signals, the same command.

A run is started with ``python -m birl train``, killed, and started again with the same words until it is done. Its
models (parameters, optimisers, counters) must then be those of an undisturbed run, byte for byte, and so must
its metrics. The default tests kill three runs once; the slow ones kill one run of every kind four times.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import birl
from birl.algos import DiscreteRandomPolicyConfig, RandomPolicyConfig
from birl.envs import make_env
from birl.files import load_archive
from birl.preprocessing import MinMaxActionScaler

ROOT = Path(__file__).parents[2]
EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}
PROCESSES: list[subprocess.Popen[bytes]] = []
DATA = {"pendulum": "Pendulum-v1", "cartpole": "CartPole-v1"}


@dataclass(frozen=True)
class Run:
    """A command line. Neither the epochs nor the rollouts divide the number of steps."""

    algorithm: str
    source: str
    n_steps: int
    epoch: int
    settings: str = ""

    def command(self, folder: Path, out: Path) -> list[str]:
        words = [sys.executable, "-m", "birl", "train", self.algorithm, *self.source.format(folder=folder).split()]
        words += ["--n-steps", str(self.n_steps), "--n-steps-per-epoch", str(self.epoch)]
        words += ["--n-trials", "1"] if "--env-id" in words else []
        return [*words, "--seed", "7", "--out", str(out), "--set", "batch_size=16", *self.settings.split()]

    @property
    def epochs(self) -> int:
        return -(-self.n_steps // self.epoch)


RUNS = {
    "BC": Run("BC", "--dataset {folder}/pendulum.h5", 1010, 50),
    "DQN": Run("DQN", "--env-id CartPole-v1", 810, 40, "target_update_interval=100"),
    "DQN, recurrent": Run(
        "DQN",
        "--env-id CartPole-v1",
        310,
        15,
        "encoder_factory=gru sequence_length=5 burn_in=2 target_update_interval=50",
    ),
    "TD3": Run("TD3", "--env-id Pendulum-v1", 510, 25),
    "SAC": Run("SAC", "--env-id Pendulum-v1", 410, 20),
    "SAC, vector": Run("SAC", "--env-id Pendulum-v1 --num-envs 3", 410, 20, "q_func_factory=iqn"),
    "DiscreteCQL": Run("DiscreteCQL", "--dataset {folder}/cartpole.h5 --env-id CartPole-v1", 810, 40),
    "IQL": Run("IQL", "--dataset {folder}/pendulum.h5", 410, 20),
    "PPO": Run("PPO", "--env-id CartPole-v1 --num-envs 4", 1610, 80, "rollout_length=23 n_epochs=3"),
    "PPO, recurrent": Run(
        "PPO",
        "--env-id Pendulum-v1 --num-envs 2",
        410,
        20,
        "rollout_length=17 sequence_length=9 n_epochs=2 actor_encoder_factory=lstm value_encoder_factory=gru",
    ),
    "DecisionTransformer": Run(
        "DecisionTransformer", "--dataset {folder}/pendulum.h5", 210, 10, "context_size=5 warmup_steps=50"
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small datasets."""
    path = tmp_path_factory.mktemp("kill")
    for name, env_id in DATA.items():
        birl.seed(1)
        env, bounds = make_env(env_id), MinMaxActionScaler()
        policy = (
            DiscreteRandomPolicyConfig() if name == "cartpole" else RandomPolicyConfig(action_scaler=bounds)
        ).create()
        policy.build_with_env(env)
        policy.collect(env, n_steps=500, seed=1, show_progress=False).dump(path / f"{name}.h5")
    return path


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """End all processes that a failed test leaves running."""
    yield
    while PROCESSES:
        process = PROCESSES.pop()
        process.kill()
        process.wait()


GATE = """
import os, sys, time
from pathlib import Path
from birl.cli import main
from birl.run.session import Session

held, writing, step = Path(sys.argv.pop(1)), sys.argv.pop(1) == "writing", int(sys.argv.pop(1))
replace, tick, reached = os.replace, Session.tick, False

def hold():
    held.touch()
    while held.exists():
        time.sleep(0.01)

def gated_replace(source, target):
    if writing and reached and str(target).endswith("checkpoint.d3c"):
        hold()
    replace(source, target)

def gated_tick(self, steps=1):
    global reached
    tick(self, steps)
    before, reached = reached, self.step >= step
    if reached and not before and not writing:
        hold()

os.replace, Session.tick = gated_replace, gated_tick
raise SystemExit(main())
"""
"""Runs the command, but waits at a step, or while it next writes a checkpoint, for as long as a file is there."""


class Process:
    """``python -m birl train …`` at work.

    Args:
        run: what it does.
        folder: of the datasets.
        out: of the run.
        gate: "training" or "writing", and a step: it waits there until a signal has been sent (see `GATE`).
    """

    def __init__(self, run: Run, folder: Path, out: Path, gate: tuple[str, int] | None = None) -> None:
        self.out, self._log, self._held = out, out.with_suffix(".log"), out.with_suffix(".held")
        self._torn = unfinished_files(out)  # left by those killed before; they are cleared away when they are old
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with open(self._log, "w", encoding="utf-8") as log:
            command = run.command(folder, out)
            if gate is not None:
                command = [command[0], "-c", GATE, str(self._held), *map(str, gate), *command[3:]]
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        PROCESSES.append(self._process)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait(self) -> int:
        return self._process.wait()

    def send(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; returns the exit status."""
        self._process.send_signal(number)
        self._held.unlink(missing_ok=True)
        return self.wait()

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is being written, or was when the process was killed."""
        return bool(unfinished_files(self.out) - self._torn)

    def wait_for_epochs(self, number: int) -> None:
        self._wait(lambda: epochs_logged(self.out) >= number, 0.005)

    def wait_at_gate(self) -> None:
        self._wait(self._held.exists, 0.01)

    def wait_for_file(self, name: str) -> None:
        self._wait((self.out / name).exists, 0.0002)

    def wait_for_checkpoint(self) -> None:
        self._wait(lambda: self.writing, 0.0002)

    def _wait(self, condition: Callable[[], bool], interval: float) -> None:
        while not condition():
            assert self.running, f"it ended too soon:\n{self.log}"
            time.sleep(interval)


def epochs_logged(out: Path) -> int:
    try:
        return (out / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def unfinished_files(out: Path) -> set[str]:
    """Checkpoints that are being written: until they are complete, their names begin with a dot."""
    return {name for name in os.listdir(out) if name.startswith(".checkpoint")} if out.is_dir() else set()


def metrics(out: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [dict(without_times(line)) for line in lines]


def without_times(line: dict[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    for key, value in line.items():
        if isinstance(value, dict):
            yield from without_times(value, f"{before}{key}.")
        elif not key.startswith("time"):
            yield before + key, value


def models(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.glob("model_*.d3")}


def finish(run: Run, folder: Path, out: Path) -> Process:
    process = Process(run, folder, out)
    assert process.wait() == 0, process.log
    assert "warning" not in process.log.lower(), process.log  # such as that the environment could not be restored
    assert f"model_{run.n_steps}.d3" in process.log
    return process


def check_equal(out: Path, reference: Path) -> None:
    """Every model and every metric of two runs agree bit for bit."""
    assert metrics(out) == metrics(reference)
    ours, theirs = models(out), models(reference)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def check_stopped(process: Process, number: signal.Signals, status: int) -> None:
    """The exit status and the message are right, and the checkpoint can be read."""
    assert status == EXIT_CODES[number], process.log
    assert "Traceback" not in process.log
    if number != signal.SIGKILL:
        assert "stopped; give the same command again" in process.log.splitlines()[-1]
        assert not process.writing
    load_archive(process.out / "checkpoint.d3c", "checkpoint")


# ---------------------------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize(
    ("name", "number", "writing"),
    [
        ("BC", signal.SIGKILL, True),
        pytest.param("DQN", signal.SIGTERM, False, marks=pytest.mark.slow),
        pytest.param("PPO", signal.SIGINT, False, marks=pytest.mark.slow),
    ],
)
def test_killed_once(name: str, number: signal.Signals, writing: bool, folder: Path, tmp_path: Path) -> None:
    full = RUNS[name]
    run = Run(full.algorithm, full.source, full.n_steps // 2, full.epoch, full.settings)
    gate = ("writing" if writing else "training", run.n_steps // 2)
    process = Process(run, folder, tmp_path / "killed", gate)
    process.wait_at_gate()
    assert process.writing == writing
    check_stopped(process, number, process.send(number))
    assert 0 < epochs_logged(process.out) < run.epochs  # it was killed in the middle

    process = finish(run, folder, process.out)
    assert "resuming at step" in process.log
    finish(run, folder, tmp_path / "whole")
    check_equal(process.out, tmp_path / "whole")


@pytest.mark.slow
def test_terminated_before_the_first_step(folder: Path, tmp_path: Path) -> None:
    process = Process(RUNS["PPO"], folder, tmp_path / "early")
    process.wait_for_file("run.json")
    assert process.send(signal.SIGTERM) == EXIT_CODES[signal.SIGTERM], process.log
    assert "Traceback" not in process.log


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_killed_at_random_moments(name: str, folder: Path, tmp_path: Path) -> None:
    """Each signal comes in a random epoch, and SIGKILL once more at any time after a start.

    With a probability of a half a signal waits, once its epoch has started, for the next checkpoint to be under way;
    otherwise it comes at a random moment of that epoch.
    """
    seed = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"\n{name}: random moments of KILL_SEED={seed}")
    moments = random.Random(seed)
    run = RUNS[name]
    start = time.monotonic()
    finish(run, folder, tmp_path / "whole")
    whole = time.monotonic() - start

    out = tmp_path / "killed"
    signals = [signal.SIGTERM, signal.SIGINT, signal.SIGKILL]
    moments.shuffle(signals)
    for index, number in enumerate(signals):
        process = Process(run, folder, out)
        span = (run.epochs - 2) // (len(signals) + 1)
        epoch, writing = 1 + span * index + moments.randrange(1, span), moments.random() < 0.5
        process.wait_for_epochs(epoch)
        if writing:
            process.wait_for_checkpoint()
        else:
            time.sleep(moments.random() * whole / run.epochs / 2)
        start = time.monotonic()
        status = process.send(number)
        seconds = time.monotonic() - start
        print(
            f"{name}: {number.name} in epoch {epoch + 1}/{run.epochs}, {'writing' if writing else 'training'}"
            f"{', half a checkpoint left' if process.writing else ''}: exit status {status} after {seconds:.2f} s"
        )
        check_stopped(process, number, status)

    process = Process(run, folder, out)
    delay = moments.random() * whole / 4
    time.sleep(delay)
    print(f"{name}: SIGKILL {delay:.2f} s after a start: exit status {process.send(signal.SIGKILL)}")

    finish(run, folder, out)
    check_equal(out, tmp_path / "whole")
