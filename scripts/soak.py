"""Soak: long runs whose memory, open files, threads and disk must not grow (Linux only).

``python scripts/soak.py --out soak`` makes three runs, each in a process of its own, measures it from outside once a
second, and draws a plot: a million steps of DQN with a buffer of 50,000, 300,000 of SAC in three environments that
reset themselves, 2,000 epochs of TD3+BC on logged data. ``--scale 0.01`` makes a hundredth of each.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym

import birl
from birl import algos
from birl.dataset import create_fifo_replay_buffer
from birl.logging import FileAdapterFactory
from birl.preprocessing import MinMaxActionScaler

COLUMNS = ("seconds", "memory MiB", "open files", "threads", "disk MiB", "files")


def common(out: Path) -> dict[str, Any]:
    """Options of every run: everything a run can write is written."""
    return {
        "checkpoint": out / "checkpoint",
        "logger_adapter": FileAdapterFactory(str(out)),
        "experiment_name": "run",
        "with_timestamp": False,
        "show_progress": False,
        "keep_models": 3,
    }


def dqn(out: Path, scale: float) -> None:
    """A million steps, a checkpoint with the whole buffer and an evaluation every 20,000."""
    env = gym.make("CartPole-v1")
    config = algos.DQNConfig(batch_size=64, learning_rate=5e-4, target_update_interval=500)
    explorer = algos.LinearDecayEpsilonGreedy(1.0, 0.05, 20_000)
    config.create().fit_online(
        env,
        create_fifo_replay_buffer(limit=50_000, env=env),
        explorer,
        n_steps=round(1_000_000 * scale),
        n_steps_per_epoch=round(20_000 * scale),
        update_interval=2,
        eval_env=gym.make("CartPole-v1"),
        eval_n_trials=1,
        seed=1,
        **common(out),
    )


def sac(out: Path, scale: float) -> None:
    """300,000 steps in vector environments that reset themselves in the step in which an episode ends."""
    mode = gym.vector.AutoresetMode.SAME_STEP
    env = gym.make_vec("Pendulum-v1", num_envs=3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    algos.SACConfig(batch_size=64, action_scaler=MinMaxActionScaler()).create().fit_online(
        env,
        create_fifo_replay_buffer(limit=50_000, env=env),
        n_steps=round(300_000 * scale),
        n_steps_per_epoch=round(10_000 * scale),
        update_interval=2,
        seed=1,
        **common(out),
    )


def offline(out: Path, scale: float) -> None:
    """2,000 epochs of 20 updates with evaluators, a model and a checkpoint in each."""
    dataset, env = birl.datasets.get_pendulum()
    evaluators = {
        "environment": birl.metrics.EnvironmentEvaluator(env, n_trials=1),
        "td_error": birl.metrics.TDErrorEvaluator(episodes=dataset.episodes[:2]),
    }
    epochs = round(2_000 * scale)
    config = algos.TD3PlusBCConfig(batch_size=64, action_scaler=MinMaxActionScaler())
    config.create().fit(dataset, n_steps=20 * epochs, n_steps_per_epoch=20, evaluators=evaluators, **common(out))


RUNS = {"dqn": dqn, "sac": sac, "offline": offline}


def measure(process: int, out: Path, start: float) -> list[float]:
    """Return a row of `COLUMNS`."""
    folder = Path("/proc") / str(process)
    status = dict(line.split(":", 1) for line in (folder / "status").read_text(encoding="utf-8").splitlines())
    sizes = []
    for path in out.rglob("*"):
        try:
            sizes.append(path.stat().st_size if path.is_file() else 0)
        except FileNotFoundError:  # a temporary file that has just got its name
            continue
    return [
        time.monotonic() - start,
        int(status["VmRSS"].split()[0]) / 1024,
        len(list((folder / "fd").iterdir())),
        int(status["Threads"]),
        sum(sizes) / 2**20,
        len(sizes),
    ]


def watch(name: str, out: Path, scale: float) -> list[list[float]]:
    """Make a run in a process of its own and measure it until it ends."""
    rows: list[list[float]] = []
    start = time.monotonic()
    command = [sys.executable, __file__, "--run", name, "--out", str(out), "--scale", str(scale)]
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            try:
                rows.append(measure(process.pid, out, start))
            except (FileNotFoundError, KeyError, ProcessLookupError):  # it has just ended
                break
            time.sleep(1.0)
    if process.returncode:
        sys.exit(f"the run {name} failed with status {process.returncode}")
    with open(out / "soak.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    return rows


def draw(results: dict[str, list[list[float]]], path: Path) -> None:
    """One row of panels for each run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * (len(COLUMNS) - 1), 2.2 * len(results)), layout="constrained")
    panels = figure.subplots(len(results), len(COLUMNS) - 1, squeeze=False)
    for line, (name, rows) in zip(panels, results.items(), strict=True):
        for index, (panel, label) in enumerate(zip(line, COLUMNS[1:], strict=True), 1):
            panel.plot([row[0] / 60 for row in rows], [row[index] for row in rows], linewidth=1)
            panel.set_ylim(0, 1.15 * max(row[index] for row in rows) + 1e-9)
            panel.set_title(f"{name}: {label}", fontsize=9)
            panel.set_xlabel("minutes", fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Make the runs, print a table, draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the steps (default: 1)")
    parser.add_argument("--only", choices=RUNS, nargs="*", default=list(RUNS), help="some of the runs")
    parser.add_argument("--run", choices=RUNS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        birl.seed(1)
        RUNS[given.run](given.out, given.scale)
        return
    results = {}
    for name in given.only:
        (given.out / name).mkdir(parents=True)
        results[name] = watch(name, given.out / name, given.scale)
    print(f"{'run':8} {'at':>7} " + " ".join(f"{column:>11}" for column in COLUMNS))
    for name, rows in results.items():
        for label, share in (("tenth", 0.1), ("half", 0.5), ("end", 1.0)):
            row = rows[min(round(share * len(rows)), len(rows) - 1)]
            print(f"{name:8} {label:>7} " + " ".join(f"{value:11.1f}" for value in row))
    draw(results, given.out / "soak.png")


if __name__ == "__main__":
    main()
