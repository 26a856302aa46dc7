"""What collectors reach: efficiency, exact counts, equal bits after delays and kills, memory.

``python -m benchmarks.collectors --transport processes`` measures and writes ``results/collectors.md`` and ``.csv``;
``--only efficiency memory`` some parts, and keeps the table's others; ``--quick`` each for a short time, to see that it
works. ``--transport ray`` needs Ray, which is started on this machine, and writes ``results/collectors_ray.md``.
Measure on a quiet machine: efficiency is a matter of the clock.

*Efficiency*: a step sleeps 10 ms, nothing is learned; steps a second from the second round of fragments on, over those
of as many threads that only sleep, measured right afterwards. *Memory*: private bytes of the processes of collectors.
*Scores*: what algorithms learn with four collectors and by themselves. *Times*: of both, where a step sleeps 10 ms.
"""
# ruff: noqa: T201  a script that prints

from __future__ import annotations

import argparse
import csv
import hashlib
import itertools
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

import birl
from benchmarks import learning
from benchmarks.peers_ray.task import COUNTS, Task, counted, killing
from benchmarks.scores import Outcome
from birl.config import AlgorithmConfig
from birl.dataset import create_fifo_replay_buffer
from birl.envs import make_env
from birl.models import VectorEncoderFactory
from birl.run.fingerprint import digest

__all__ = ["Row", "counts", "steps_of_threads", "trained", "write"]

STEP, FRAGMENT = 0.01, 50
_DRIVEN = 8000  # steps of the run whose learner is killed
_COUNTED, _START, _UPDATES = 307, 20, 307 // 4 - 20 // 4  # updates after 24, 28, … steps


class Row(NamedTuple):
    """A line of the table.

    Attributes:
        goal: what the bar is; empty if there is none.
    """

    part: str
    case: str
    value: str
    goal: str = ""


def trained(cluster: birl.Cluster, env: Task, n_steps: int, *, learns: bool = True, **options: Any) -> tuple[Any, Any]:
    """A run from seed 0. Returns the algorithm and its buffer."""
    birl.seed(0)
    encoder = VectorEncoderFactory(hidden_units=[16])
    dqn = birl.algos.DQNConfig(batch_size=8, encoder_factory=encoder).create()
    buffer = create_fifo_replay_buffer(max(n_steps + 1000, 100_000) if learns else 1000, env=env, lanes=cluster.lanes)
    explorer = options.pop("explorer", None) or birl.algos.ConstantEpsilonGreedy(0.3)
    quiet = {"logger_adapter": birl.logging.NoopAdapterFactory(), "show_progress": False, "seed": 0}
    start = _START if learns else n_steps
    given = {"n_steps_per_epoch": n_steps, "update_interval": 4, "update_start_step": start, **quiet, **options}
    dqn.fit_online(env, buffer, explorer, n_steps, cluster=cluster, **given)
    return dqn, buffer


def _cluster(transport: str, *given: Any) -> birl.Cluster:
    """Collectors, of which Ray places as many on this machine as are asked for: sleeping takes no processor."""
    return birl.Cluster(*given, transport=transport, resources={"num_cpus": 0.1} if transport == "ray" else None)


def bits(result: tuple[Any, Any]) -> str:
    """Digest of all steps and all parameters."""
    algorithm, buffer = result
    whole = hashlib.sha256(digest([buffer.storage]).encode())
    for name, tensor in sorted(algorithm.engine.get_state()["nets"].items()):
        whole.update(name.encode() + tensor.numpy().tobytes())
    return whole.hexdigest()[:16]


# -- parts -------------------------------------------------------------------------------------------------------------


def bare(transport: str, quick: bool) -> Iterator[Row]:
    """How much of what a collector lacks is the task's own."""
    env, found = Task(STEP), []
    env.reset(seed=0)
    for _ in range(1 if quick else 5):
        found.append(steps_of_threads(1, 1000, STEP, lambda _: env.step(0)) / steps_of_threads(1, 1000, STEP))
    yield Row("bare", "a thread that makes the task's steps, without a policy, over one that sleeps", spread(found))


def efficiency(transport: str, quick: bool) -> Iterator[Row]:
    """Steps a second over those of sleeping threads."""
    goals = {1: ".97", 2: ".96", 4: ".94", 8: ".90"}
    for n, goal in goals.items():
        found = [_efficiency(n, transport, 4 if quick else 20) for _ in range(1 if quick else 3)]
        ratios, cpu = (list(each) for each in zip(*found, strict=True))
        yield Row("efficiency", f"{n} collectors", spread(ratios), f">= {goal}")
        yield Row("efficiency", f"{n} collectors, learner's CPU, ms a fragment", spread(cpu), "<= 5")
    for seconds in (0.001, 0.005):  # the collectors are the slower side, then the learner
        ratios = [_efficiency(4, transport, 4 if quick else 20, seconds)[0] for _ in range(1 if quick else 3)]
        case = f"4 collectors, {1000 * seconds:.0f} ms more for each step in the learner: slower side busy"
        yield Row("efficiency", case, spread(ratios), ">= .95")


def spread(values: list[float]) -> str:
    """Median, lowest and highest."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} … {max(values):.3f})"


def _efficiency(n: int, transport: str, rounds: int, learner: float = 0.0) -> tuple[float, float]:
    """Steps a second over those of the slower side alone, and the learner's milliseconds of CPU for each fragment."""
    times: dict[int, tuple[float, float]] = {}
    whole = n * FRAGMENT

    def note(algo: Any, epoch: int, step: int) -> None:
        time.sleep(learner)
        if step % whole == 0:
            times[step // whole] = time.perf_counter(), time.process_time()

    cluster = _cluster(transport, n, 1, FRAGMENT)
    trained(cluster, Task(STEP), (rounds + 2) * whole, learns=False, callback=note)
    seconds, cpu = (after - before for before, after in zip(times[2], times[rounds + 2], strict=True))
    alone = steps_of_threads(n, rounds * FRAGMENT, STEP)
    if learner:
        alone = min(alone, steps_of_threads(1, whole, learner))
    return rounds * whole / seconds / alone, 1000 * cpu / (rounds * n)


def steps_of_threads(n: int, n_steps: int, seconds: float, step: Callable[[float], Any] = time.sleep) -> float:
    """Steps a second of ``n`` threads that sleep ``seconds``, or call ``step`` with them, ``n_steps`` times each."""

    def make() -> None:
        for _ in range(n_steps):
            step(seconds)

    threads = [threading.Thread(target=make) for _ in range(n)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return n * n_steps / (time.perf_counter() - begin)


class Steps(birl.algos.Explorer):
    """Notes the steps at which it is asked."""

    asked: list[int] = []  # noqa: RUF012  of all copies

    def sample(self, algo: Any, x: Any, step: int) -> Any:
        self.asked.append(step)
        return np.zeros(len(x), np.int64)


def counts(transport: str, quick: bool) -> Iterator[Row]:
    """Steps, updates and the explorer's steps, which are seen where collectors are in this process."""
    for n in (1, 2, 3, 8):
        for fragment in (1, 7, 13):
            for order in ("together", "turns", "arrival"):
                Steps.asked.clear()
                cluster = birl.Cluster(n, 1, fragment, order, transport="inline")
                algorithm, buffer = trained(cluster, Task(), _COUNTED, explorer=Steps())
                found = buffer.step_count, algorithm.grad_step, sorted(Steps.asked) == list(range(_COUNTED))
                if found != (_COUNTED, _UPDATES, True):
                    case = f"{n} collectors, fragment {fragment}, {order}"
                    yield Row("counts", case, str(found), str((_COUNTED, _UPDATES, True)))
                    return
    yield Row("counts", "1, 2, 3, 8 collectors; fragments of 1, 7, 13; 3 orders", "36 of 36 exact", "exact")


def delays(transport: str, quick: bool) -> Iterator[Row]:
    """Equal bits over runs with random delays."""
    for order in ("together", "turns"):
        cluster = _cluster(transport, 3, 2, 5, order)
        expected = bits(trained(birl.Cluster(3, 2, 5, order, transport="inline"), Task(), 600))
        found = [bits(trained(cluster, Task(delay=0.01), 600)) for _ in range(2 if quick else 5)]
        yield Row("delays", order, f"{found.count(expected)} of {len(found)} runs equal", "all")


def kills(transport: str, quick: bool) -> Iterator[Row]:
    """Equal bits after collectors were killed, each two seconds or more after the one before is back."""
    number, n_steps = (1, 1000) if quick else (20, 12000)
    cluster = _cluster(transport, 2, 1, 5, "turns")
    expected = bits(trained(birl.Cluster(2, 1, 5, "turns", transport="inline"), Task(), n_steps))
    times: list[float] = []
    asked = [0.0]

    def note(algo: Any, epoch: int, step: int) -> None:
        times.append(time.perf_counter())
        if len(asked) <= number and times[-1] - asked[-1] > 2.0 and not list(left.iterdir()):
            asked.append(times[-1])
            (left / str(step)).touch()

    with killing(0) as left:
        result = trained(cluster, Task(STEP), n_steps, callback=note)
        done = len(asked) - 1 - len(list(left.iterdir()))
    same = bits(result) == expected
    yield Row("kills", f"{done} collectors killed by SIGKILL", "equal" if same else "other bits", "equal")
    longest = max(after - before for before, after in itertools.pairwise(times))
    yield Row("kills", "longest time without a step, seconds", f"{longest:.1f}", "<= 5")


def driver(transport: str, quick: bool) -> Iterator[Row]:
    """Equal bits after the learner was killed and started again by the same command."""
    expected = bits(trained(birl.Cluster(2, 1, 5, "turns", transport="inline"), Task(), _DRIVEN))
    clock, killed, said = random.Random(0), 0, ""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.collectors", "--run-in", folder, "--transport", transport]
        while not said:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            if killed < (2 if quick else 10):
                try:
                    said = process.communicate(timeout=3.0 + 8.0 * clock.random())[0]
                except subprocess.TimeoutExpired:
                    process.kill()
                    killed += 1
            else:
                said = process.communicate()[0] or "nothing"
    same = said.split()[-1:] == [expected]
    yield Row("driver", f"learner killed {killed} times", "equal" if same else f"other bits ({said!r})", "equal")


def memory(transport: str, quick: bool) -> Iterator[Row]:
    """Private memory of a collector, and whether it grows."""
    n_fragments, sizes = (400 if quick else 100_000), list[tuple[float, float]]()
    with tempfile.TemporaryDirectory() as folder:
        os.environ[COUNTS] = folder

        def look(algo: Any, epoch: int, step: int) -> None:
            if step in (n_fragments // 10, n_fragments - 4):
                found = [_private(pid) for pid in counted(Path(folder))]
                sizes.append((statistics.mean(found), max(found)))

        try:
            trained(_cluster(transport, 2, 1, 1), Task(), n_fragments, learns=False, callback=look)
        finally:
            del os.environ[COUNTS]
    yield Row("memory", "a collector, private, MB", f"{sizes[-1][0]:.0f} (largest {sizes[-1][1]:.0f})", "<= 200")
    grown = sizes[-1][0] - sizes[0][0]
    yield Row("memory", f"growth from fragment {n_fragments // 10} to {n_fragments}, MB", f"{grown:+.1f}", "0")


def _private(pid: int) -> float:
    """Private memory of a process in MB, as Linux tells it."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) / 1024


# -- scores ------------------------------------------------------------------------------------------------------------


class Sleeping(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose step takes ``STEP`` seconds more."""

    def step(self, action: Any) -> Any:
        time.sleep(STEP)
        return self.env.step(action)


_BOTH: dict[str, Any] = {**learning.RELATIVE, "gamma": 0.98}
_PENDULUM: dict[str, Any] = {"env_id": "Pendulum-v1", "target": math.inf, "limit": 10_000, "epoch": 1000}
_PENDULUM["options"] = {"random_steps": 1000, "update_start_step": 1000}
_CARTPOLE: dict[str, Any] = {"env_id": "CartPole-v1", "target": math.inf, "limit": 20_480, "epoch": 2048}


def _dqn() -> AlgorithmConfig:
    encoder = VectorEncoderFactory(hidden_units=[128, 128])
    return birl.algos.DQNConfig(batch_size=64, learning_rate=5e-4, target_update_interval=500, encoder_factory=encoder)


def _ppo(n: int) -> AlgorithmConfig:
    encoder = VectorEncoderFactory(hidden_units=[64, 64], activation="tanh")
    return birl.algos.PPOConfig(
        rollout_length=256 // n,
        batch_size=64,
        n_epochs=10,
        learning_rate=1e-3,
        gamma=0.98,
        gae_lambda=0.9,
        actor_encoder_factory=encoder,
        value_encoder_factory=encoder,
    )


def tasks(n: int) -> dict[str, learning.Task]:
    """What is learned with ``n`` collectors."""
    return {
        "DQN": learning.Task(
            config=_dqn,
            explorer=lambda: birl.algos.LinearDecayEpsilonGreedy(1.0, 0.05, 5000),
            options={"update_start_step": 1000, "update_interval": 2},
            **_CARTPOLE,
        ),
        "SAC": learning.Task(config=lambda: birl.algos.SACConfig(temp_learning_rate=1e-3, **_BOTH), **_PENDULUM),
        "PPO": learning.Task(config=lambda: _ppo(n), **_CARTPOLE),
        "MPO": learning.Task(
            config=lambda: birl.algos.MPOConfig(epsilon_mean=0.05, epsilon_std=1e-3, **_BOTH), **_PENDULUM
        ),
    }


_COLLECTORS = 4


def scores(transport: str, quick: bool) -> Iterator[Row]:
    """Returns learned by four collectors and alone."""
    seeds = range(2 if quick else 10)
    for name, (alone, together) in _pairs(transport, quick).items():
        own, theirs = _learned(alone, seeds), _learned(together, seeds)
        (low, high), (own_low, own_high) = theirs.interval, own.interval
        distinguished = low > own_high or high < own_low
        shown = f"{_COLLECTORS} collectors {theirs}, alone {own}" + ", distinguished" * distinguished
        yield Row("scores", f"{name}, {alone.env_id}, {alone.limit:,} steps, {len(seeds)} seeds", shown, "not below")


def times(transport: str, quick: bool) -> Iterator[Row]:
    """Seconds of four collectors over those of one environment, where a step takes ``STEP`` seconds more."""
    for name, (alone, together) in _pairs(transport, quick).items():
        long, short = _time(alone), _time(together)
        case = f"{name}, {alone.limit:,} steps: four collectors over none"
        yield Row("times", case, f"{short / long:.3f} ({short:.0f} of {long:.0f} s)", "<= .35")


def _pairs(transport: str, quick: bool) -> dict[str, tuple[learning.Task, learning.Task]]:
    """What is learned alone, and with collectors."""
    options = {"cluster": _cluster(transport, _COLLECTORS)}
    alone, together = tasks(1), tasks(_COLLECTORS)
    together = {name: replace(task, options={**task.options, **options}) for name, task in together.items()}
    if quick:
        alone, together = (
            {name: replace(task, limit=4 * task.epoch) for name, task in each.items()} for each in (alone, together)
        )
    return {name: (alone[name], together[name]) for name in alone}


def _learned(task: learning.Task, seeds: range) -> Outcome:
    """Greedy returns of all evaluations. They do not hang on time, so nothing sleeps."""
    found, spent = [], []
    for seed in seeds:
        birl.seed(seed)
        env, eval_env = gymnasium.make(task.env_id), make_env(task.env_id, task.episodes)
        begin = time.perf_counter()
        found.append([metrics["evaluation"] for _, metrics in learning.epochs(task, env, eval_env, seed)])
        spent.append(time.perf_counter() - begin)
        eval_env.close()
    steps = list(range(task.epoch, task.limit + 1, task.epoch))
    return Outcome(steps, np.array(found), spent, tail=3)


def _time(task: learning.Task) -> float:
    """Seconds of a run without evaluations, from its first callback on: of all its steps, judged by a third of them."""
    times: dict[int, float] = {}

    def note(algo: Any, epoch: int, step: int) -> None:
        times[step] = time.perf_counter()

    birl.seed(0)
    env = Sleeping(gymnasium.make(task.env_id))
    third = task.limit // 3
    list(learning.epochs(task, env, None, 0, n_steps=third, n_steps_per_epoch=third, callback=note))
    first, last = min(times), max(times)
    return (times[last] - times[first]) / (last - first) * task.limit


PARTS: dict[str, Callable[[str, bool], Iterator[Row]]] = {
    part.__name__: part for part in (counts, delays, kills, driver, memory, bare, efficiency, scores, times)
}


def write(rows: list[Row], out: Path, name: str, what: str, quick: bool) -> None:
    """Write the table of what was measured, as Markdown and as CSV of that name."""
    cpus, note = os.cpu_count(), " A short trial, no result." if quick else ""
    day = time.strftime("%Y-%m-%d")
    lines = [f"{what}: {cpus} cores, torch {torch.__version__}, {day}.{note}"]
    lines += ["", f"| {' | '.join(Row._fields)} |", "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with open(out / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([Row._fields, *rows])


def others(parts: list[str], path: Path) -> list[Row]:
    """What a table has of other parts, which were measured before."""
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [Row(**row) for row in csv.DictReader(file) if row["part"] not in parts]


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--transport", choices=("processes", "ray"), default="processes")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--run-in", type=Path, help=argparse.SUPPRESS)  # the run that is killed
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.run_in is not None:
        cluster = _cluster(given.transport, 2, 1, 5, "turns")
        kept = {"checkpoint": given.run_in, "n_steps_per_epoch": 50}
        print(bits(trained(cluster, Task(STEP), _DRIVEN, **kept)))
        return
    name = "collectors" if given.transport == "processes" else f"collectors_{given.transport}"
    rows = [] if given.quick else others(given.only, given.out / f"{name}.csv")
    for part in given.only:
        for row in PARTS[part](given.transport, given.quick):
            rows.append(row)
            print(" | ".join(row), flush=True)
            rows.sort(key=lambda each: list(PARTS).index(each.part))
            write(rows, given.out, name, f"Collectors, transport {given.transport}", given.quick)


if __name__ == "__main__":
    main()
