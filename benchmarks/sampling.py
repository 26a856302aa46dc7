"""Time to sample one batch of 256 transitions, and memory for each stored transition: birl and d3rlpy side by side.

``python benchmarks/sampling.py --peer-python ENV/bin/python``, where that interpreter has d3rlpy installed. Without
the option only birl is measured.

Each side is a process of its own with the same data: 1 million steps of 17 float32 observation and 6 float32 action
numbers in episodes of 1000 steps. They stay alive and are timed in turns, each for as long as the other, so that
whatever else the machine does hits both. Beside the time on the clock stands the processor time of the process (all
its threads), which other processes hardly change. Set OMP_NUM_THREADS=1 to measure one thread.
"""
# ruff: noqa: T201  a script that prints

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

# birl and d3rlpy are imported by the workers that measure them: neither process has both.

OBSERVATION, ACTION, EPISODE = 17, 6, 1000
RAW = 4 * OBSERVATION + 4 * ACTION + 4 + 1
"""Bytes of one raw transition: observation, action and reward in float32, one byte for the end of an episode."""
SIDES = {"d3rlpy": "d3rlpy", "birl": "birl, arrays in memory", "birl:cpu": "birl, torch tensors"}


# -------------------------------------------------------------------------------------------- in the measured process


def make_dataset(side: str, n_steps: int) -> Any:
    """The dataset of one side, with nothing else kept of what it was made from."""
    generator = np.random.default_rng(0)
    arrays = {
        "observations": generator.standard_normal((n_steps, OBSERVATION), dtype=np.float32),
        "actions": generator.uniform(-1, 1, (n_steps, ACTION)).astype(np.float32),
        "rewards": generator.standard_normal((n_steps, 1), dtype=np.float32),
        "terminals": (np.arange(n_steps) % EPISODE == EPISODE - 1).astype(np.float32)[:, None],
    }
    if side == "d3rlpy":
        import d3rlpy  # type: ignore[import-not-found]

        return d3rlpy.dataset.MDPDataset(**arrays)
    from birl.dataset import MDPDataset

    return MDPDataset(**arrays, storage=side.partition(":")[2] or "memory")


def resident_bytes() -> int:
    """Memory of this process that is in use (Linux), without what is freed but not given back yet."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def work(side: str, n_steps: int, batch_size: int) -> None:
    """Make the dataset, say so, then for each number read sample as many batches and say how many seconds it took.

    The answers are the seconds on the clock and of the processor.
    """
    make_dataset(side, 2 * EPISODE).sample_transition_batch(batch_size)  # what loads lazily is loaded
    before = resident_bytes()
    start = time.perf_counter()
    dataset = make_dataset(side, n_steps)
    made = time.perf_counter() - start
    facts = {"made": made, "resident": resident_bytes() - before, "transitions": int(dataset.transition_count)}
    facts["nbytes"] = getattr(dataset, "nbytes", 0)
    batch = dataset.sample_transition_batch(batch_size)
    assert batch.observations.shape == batch.next_observations.shape == (batch_size, OBSERVATION)
    assert batch.actions.shape == (batch_size, ACTION)
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        start, start_processor = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            dataset.sample_transition_batch(batch_size)
        print(json.dumps([time.perf_counter() - start, time.process_time() - start_processor]), flush=True)


# -------------------------------------------------------------------------------------------- in the measuring process


class Worker:
    """One side, at work in a process of its own."""

    def __init__(self, python: str, side: str, n_steps: int, batch_size: int) -> None:
        command = [python, os.path.abspath(__file__), "--worker", side]
        command += ["--steps", str(n_steps), "--batch-size", str(batch_size)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.facts = self._answer()
        self._count = 1

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line[0] in "[{":  # the imports of some libraries print
                return json.loads(line)
        raise SystemExit("a worker ended without an answer: see its message above")

    def warm_up(self, batches: int, seconds: float) -> None:
        """Sample some batches, and find how many take ``seconds``."""
        self._count = batches
        took, _ = self.sample()
        self._count = max(1, round(seconds / took))

    def sample(self) -> tuple[float, float]:
        """Seconds for one batch, on the clock and of the processor: the mean over several."""
        assert self._process.stdin is not None
        print(self._count, file=self._process.stdin, flush=True)
        clock, processor = self._answer()
        return clock / self._count, processor / self._count

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="interpreter that has d3rlpy")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=40, help="times that each side is timed")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of each time")
    parser.add_argument("--warm-up", type=int, default=50, help="batches before the first time, not counted")
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker, options.steps, options.batch_size)
        return
    pythons = {side: options.peer_python if side == "d3rlpy" else sys.executable for side in SIDES}
    workers = {
        side: Worker(python, side, options.steps, options.batch_size) for side, python in pythons.items() if python
    }
    for worker in workers.values():
        worker.warm_up(options.warm_up, options.seconds)
    times: dict[str, list[tuple[float, float]]] = {side: [] for side in workers}
    for _ in range(options.rounds):
        for side, worker in workers.items():
            times[side].append(worker.sample())
    for worker in workers.values():
        worker.close()

    print(
        f"one batch of {options.batch_size} of {options.steps} transitions ({OBSERVATION} observation, {ACTION} action "
        f"numbers): medians of {options.rounds} rounds of {options.seconds} s, sides in turns, after {options.warm_up} "
        f"batches of warm-up; a raw transition has {RAW} bytes\n"
    )
    print("| side | ms, clock | d3rlpy's over it | ms, processor | d3rlpy's over it | array bytes | resident bytes |")
    print("|---|---|---|---|---|---|---|")
    peer = [statistics.median(column) for column in zip(*times["d3rlpy"], strict=True)] if "d3rlpy" in times else None
    for side, values in times.items():
        words = [SIDES[side]]
        for index, column in enumerate(zip(*values, strict=True)):
            low, middle, high = (1e3 * value for value in statistics.quantiles(column, n=4))
            words.append(f"{middle:.4f} ({low:.4f} to {high:.4f})")
            words.append(f"{1e3 * peer[index] / middle:.0f}x" if peer else "not measured")
        facts = workers[side].facts
        for size in (facts["nbytes"] / facts["transitions"], facts["resident"] / facts["transitions"]):
            words.append(f"{size:.1f} ({size / RAW:.3f} of raw)" if size else "not told")
        print(f"| {' | '.join(words)} |")


if __name__ == "__main__":
    main()
