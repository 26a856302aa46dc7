"""Kill runs at random moments, resume them, and compare every file with that of an undisturbed run.

    OMP_NUM_THREADS=1 python scripts/kill_runs.py 500          # kills
    OMP_NUM_THREADS=1 python scripts/kill_runs.py 50 --seed 3 --only PPO
    OMP_NUM_THREADS=1 python scripts/kill_runs.py 50 --together # pairs of processes against one folder: one may run

Processes are forked, so that the library is imported once. Half of the kills are SIGKILL, the others SIGTERM and
SIGINT; some wait until a file is being written. A run is killed up to four times before it may end. Models, the best
model and what is logged (but times) must then be the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import birl
import birl.algos as algos
from birl.dataset import MDPDataset, ReplayBuffer, create_fifo_replay_buffer
from birl.envs import make_env, stepper
from birl.errors import ResumeError
from birl.logging import FileAdapterFactory
from birl.metrics import EnvironmentEvaluator, TDErrorEvaluator
from birl.models import VectorEncoderFactory

SMALL = VectorEncoderFactory(hidden_units=[16, 16])
REFUSED = 77
ONE, LATE = "one ran, one was refused", "one ran, the other came after its end"


class Walk:
    """An evaluator that remembers: a random walk of its own."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)

    def __call__(self, algo: Any, dataset: Any) -> float:
        return float(self._generator.normal())

    def get_state(self) -> dict[str, Any]:
        return {"generator": self._generator.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        self._generator.bit_generator.state = state["generator"]


def _data(discrete: bool) -> ReplayBuffer:
    rng = np.random.default_rng(0)
    observations, rewards = rng.normal(size=(600, 4)).astype(np.float32), rng.normal(size=600).astype(np.float32)
    actions = rng.integers(2, size=600) if discrete else rng.uniform(-1, 1, size=(600, 2)).astype(np.float32)
    steps = np.arange(600)
    return MDPDataset(observations, actions, rewards, steps % 29 == 28, steps % 31 == 17)


def _options(folder: Path, epoch: int) -> dict[str, Any]:
    return {
        "logger_adapter": FileAdapterFactory(folder.parent),
        "experiment_name": folder.name,
        "with_timestamp": False,
        "show_progress": False,
        "checkpoint": folder,
        "n_steps_per_epoch": epoch,
    }


def offline_dqn(folder: Path) -> None:
    """Evaluators that remember, a score, few models, statistics of gradients."""
    config = algos.DQNConfig(batch_size=16, encoder_factory=SMALL, target_update_interval=50)
    evaluators = {"walk": Walk(), "td": TDErrorEvaluator(), "return": EnvironmentEvaluator("CartPole-v1", 1, seed=3)}
    options = _options(folder, 20) | {"score": "walk", "keep_models": 2, "log_gradients": True}
    config.create().fit(_data(True), 310, evaluators=evaluators, **options)


def offline_iql(folder: Path) -> None:
    """A checkpoint in every other epoch."""
    config = algos.IQLConfig(
        batch_size=16, actor_encoder_factory=SMALL, critic_encoder_factory=SMALL, value_encoder_factory=SMALL
    )
    options = _options(folder, 25) | {"score": "walk", "save_interval": 2}
    config.create().fit(_data(False), 210, evaluators={"walk": Walk(1)}, **options)


def offline_ended(folder: Path) -> None:
    """A run that ends at a score."""
    config = algos.BCConfig(batch_size=16, encoder_factory=SMALL)
    options = _options(folder, 25) | {"score": "walk", "stop_at": 1.5, "keep_models": 3}
    config.create().fit(_data(False), 2000, evaluators={"walk": Walk(2)}, **options)


def many_seeds(folder: Path) -> None:
    """Two seeds in one process."""
    config = algos.DQNConfig(batch_size=16, encoder_factory=SMALL, target_update_interval=50)
    options = _options(folder, 40) | {"keep_models": 1}
    birl.fit_many(config, _data(True), 210, seeds=2, evaluators=lambda seed: {"walk": Walk(seed)}, **options)


def online_dqn(folder: Path) -> None:
    """A ring that overflows, an explorer, evaluations."""
    config = algos.DQNConfig(batch_size=16, encoder_factory=SMALL, target_update_interval=50)
    env = make_env("CartPole-v1")
    options = _options(folder, 50) | {"eval_env": "CartPole-v1", "eval_n_trials": 1, "keep_models": 2, "seed": 1}
    explorer = algos.LinearDecayEpsilonGreedy(1.0, 0.1, 500)
    buffer = create_fifo_replay_buffer(limit=300, env=env)
    config.create().fit_online(env, buffer, explorer, n_steps=410, **options)


def online_vector(folder: Path) -> None:
    """Vector environments that reset themselves, with a short log."""
    stepper._LEAST_STEPS = stepper._MOST_STEPS = 37  # type: ignore[misc]
    config = algos.SACConfig(batch_size=16, actor_encoder_factory=SMALL, critic_encoder_factory=SMALL)
    env = SyncVectorEnv([lambda: make_env("Pendulum-v1")] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
    options = _options(folder, 30) | {"update_start_step": 50, "random_steps": 30, "score": "rollout_return", "seed": 1}
    config.create().fit_online(env, n_steps=310, **options)


def on_policy(folder: Path) -> None:
    """Rollouts that epochs do not divide."""
    config = algos.PPOConfig(
        batch_size=16,
        rollout_length=23,
        n_epochs=3,
        target_kl=0.01,
        actor_encoder_factory=SMALL,
        value_encoder_factory=SMALL,
    )
    options = _options(folder, 80) | {"eval_env": "CartPole-v1", "eval_n_trials": 1, "keep_models": 2, "seed": 1}
    config.create().fit_online(make_env("CartPole-v1", 4), n_steps=810, **options)


RUNS: dict[str, Callable[[Path], None]] = {
    "DQN": offline_dqn,
    "IQL": offline_iql,
    "BC, stop_at": offline_ended,
    "DQN, many": many_seeds,
    "DQN, online": online_dqn,
    "SAC, vector": online_vector,
    "PPO": on_policy,
}


def start(name: str, folder: Path) -> int:
    """Fork a process that makes the run; returns its number."""
    sys.stdout.flush()
    if (process := os.fork()) != 0:
        return process
    status = 1
    try:
        with open(folder.with_suffix(".log"), "a", encoding="utf-8") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            birl.seed(7)
            RUNS[name](folder)
            status = 0
    except SystemExit as error:
        status = int(error.code or 0)
    except KeyboardInterrupt:
        status = 130
    except ResumeError as error:
        status = REFUSED if "another run is at work" in str(error) else 1
        traceback.print_exc()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def wait(process: int, seconds: float | None = None, until: Callable[[], bool] = lambda: False) -> int | None:
    """Exit status of a process, negative for a signal; ``None`` if it is at work after so long, or ``until`` holds."""
    end = None if seconds is None else time.monotonic() + seconds
    while end is None or time.monotonic() < end:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if until():
            return None
        time.sleep(0.0005)
    return None


def contents(folder: Path) -> dict[str, Any]:
    """Everything that must be the same."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            found[name] = [{k: v for k, v in line.items() if not k.startswith("time_")} for line in lines]
        elif path.is_file() and not path.name.startswith(("time_", "checkpoint")):
            found[name] = path.read_bytes()
    return found


def kills(number: int, names: list[str], moments: random.Random, work: Path) -> int:
    """Kill and resume; returns the number of runs that did not end as they should."""
    whole, seconds = {}, {}
    for name in names:
        started = time.monotonic()
        if wait(start(name, work / "whole" / name)) != 0:
            raise SystemExit((work / "whole" / name).with_suffix(".log").read_text(encoding="utf-8"))
        seconds[name], whole[name] = time.monotonic() - started, contents(work / "whole" / name)
    print("undisturbed:", {name: round(value, 1) for name, value in seconds.items()}, "seconds", flush=True)
    counts: Counter[str] = Counter()
    failed: list[str] = []
    attempt = 0
    while counts["kills"] < number:
        attempt += 1
        name = names[attempt % len(names)]
        folder, left = work / f"run{attempt}" / name, moments.randint(1, 4)
        folder.parent.mkdir()
        status: int | None = None
        while status != 0:
            process = start(name, folder)
            if left:
                writing = moments.random() < 0.4
                halves = (lambda f=folder: any(f.glob(".*.tmp"))) if writing else (lambda: False)  # type: ignore[misc]
                status = wait(process, moments.random() * seconds[name])
                if status is None and writing:
                    status = wait(process, seconds[name], halves)
                if status is None:
                    sent = moments.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
                    counts["while a file was half written"] += any(folder.glob(".*.tmp")) if folder.exists() else 0
                    os.kill(process, sent)
                    status = wait(process)
                    counts["kills"] += 1
                    counts[f"{name}: {sent.name}"] += 1
                    left -= 1
            else:
                status = wait(process)
            if status not in (0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 130):
                failed.append(f"{name} ended with status {status}: {folder.with_suffix('.log')}")
                break
        ours = contents(folder)
        differing = [each for each in ours.keys() | whole[name].keys() if ours.get(each) != whole[name].get(each)]
        if differing and status == 0:
            failed.append(f"{name} differs in {', '.join(sorted(differing))}: {folder}")
        counts["runs compared"] += 1
        if not failed or failed[-1].find(str(folder)) < 0:
            shutil.rmtree(folder.parent)
        if attempt % 20 == 0:
            print(dict(counts), f"{len(failed)} failed", flush=True)
    print(*sorted(counts.items()), *failed, f"{len(failed)} of {counts['runs compared']} runs failed", sep="\n")
    return len(failed)


def together(number: int, names: list[str], work: Path) -> int:
    """Start pairs of processes; returns the number of pairs of which not exactly one ran."""
    counts: Counter[str] = Counter()
    for attempt in range(number):
        name = names[attempt % len(names)]
        folder = work / f"pair{attempt}" / name
        folder.parent.mkdir()
        pair = [start(name, folder) for _ in range(2)]
        ends = tuple(sorted(str(wait(process)) for process in pair))
        late = "nothing to do" in folder.with_suffix(".log").read_text(encoding="utf-8")
        known = {("0", str(REFUSED)): ONE, ("0", "0"): LATE if late else "both ran"}
        counts[known.get(ends, f"statuses {ends}")] += 1
        print(dict(counts), flush=True)
        for path in folder.rglob("metrics.jsonl"):
            steps = [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()]
            counts["metrics doubled"] += len(steps) != len(set(steps))
    print(*sorted(counts.items()), sep="\n")
    return number - counts[ONE] - counts[LATE] + counts["metrics doubled"]


def main() -> int:
    """Read the command line, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int, help="number of kills, or of pairs")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--only", choices=list(RUNS), action="append", help="name of a run; several may be given")
    parser.add_argument("--together", action="store_true", help="two processes against one folder instead of kills")
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="kills"))
    (work / "whole").mkdir()
    names, moments = given.only or list(RUNS), random.Random(given.seed)
    failures = together(given.number, names, work) if given.together else kills(given.number, names, moments, work)
    if not failures:
        shutil.rmtree(work)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
