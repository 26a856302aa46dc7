"""What asynchronous workers reach: steps a second with 1, 2 and 4 of them, and what twenty deaths cost.

``python -m benchmarks.asynchronous`` measures A3C and writes ``results/asynchronous.md`` and ``.csv``; ``--quick`` for
a short time, to see that it works. Measure on a quiet machine.

*Scaling*: a step sleeps 5 ms; steps a second from the second quarter of a run on, over those of as many threads that
only sleep, measured right afterwards. *Deaths*: processes of workers end themselves by SIGKILL at random steps; what
all of them stepped is compared with what was learned from.
"""
# ruff: noqa: T201  a script that prints

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import birl
from benchmarks.collectors import Row, steps_of_threads, write
from benchmarks.peers_ray.task import COUNTS, Task, counted, killing
from birl.models import VectorEncoderFactory

__all__ = ["deaths", "scaling"]

STEP, ROLLOUT = 0.005, 5


def trained(workers: int, env: Task, n_steps: int, **options: Any) -> Any:
    """A run of A3C from seed 0."""
    birl.seed(0)
    encoder = VectorEncoderFactory(hidden_units=[64, 64])
    config = birl.algos.A3CConfig(rollout_length=ROLLOUT, actor_encoder_factory=encoder, value_encoder_factory=encoder)
    algorithm = config.create()
    quiet = {"logger_adapter": birl.logging.NoopAdapterFactory(), "show_progress": False, "seed": 0}
    algorithm.fit_online(env, n_steps=n_steps, n_steps_per_epoch=n_steps, workers=workers, **quiet, **options)
    return algorithm


def scaling(quick: bool) -> Iterator[Row]:
    """Steps a second, alone and over those of sleeping threads."""
    alone = 0.0
    for workers in (1, 2, 4):
        found = [_speed(workers, 200 if quick else 2000) for _ in range(1 if quick else 3)]
        speed, ratio = (statistics.median(each) for each in zip(*found, strict=True))
        alone = alone or speed
        case = f"{workers} worker{'s' * (workers > 1)}"
        yield Row("scaling", case, f"{speed:.0f} steps/s, {speed / alone:.2f} times one, {ratio:.3f} of threads")


def _speed(workers: int, each: int) -> tuple[float, float]:
    times: dict[int, float] = {}
    n_steps = workers * each
    begin = n_steps // 4

    def note(algorithm: Any, epoch: int, step: int) -> None:
        times[step] = time.perf_counter()

    trained(workers, Task(STEP), n_steps, callback=note)
    speed = (n_steps - begin) / (times[n_steps] - times[begin])
    return speed, speed / steps_of_threads(workers, each, STEP)


def deaths(quick: bool) -> Iterator[Row]:
    """Steps that were made, learned from and lost, with workers that are killed."""
    number, n_steps = (2, 400) if quick else (20, 6000)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("birl")
    logger.addHandler(handler)
    with killing(number) as left, tempfile.TemporaryDirectory() as counts:
        os.environ[COUNTS] = counts
        learned: list[int] = []
        try:
            trained(4, Task(STEP), n_steps, callback=lambda algorithm, epoch, step: learned.append(step))
        finally:
            del os.environ[COUNTS]
            logger.removeHandler(handler)
        done = number - len(list(left.iterdir()))
        made = sum(counted(Path(counts)).values())
    given = sum("another worker takes its place" in text for text in said)
    yield Row("deaths", "workers killed by SIGKILL, and reported", f"{done} of {number}, {given}", "equal")
    yield Row("deaths", "steps learned from", str(len(learned)), str(n_steps))
    yield Row("deaths", "steps made beyond those", str(made - n_steps), f"0 to {ROLLOUT * done}, as is said")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for part in (scaling, deaths):
        for row in part(given.quick):
            rows.append(row)
            print(" | ".join(row), flush=True)
            write(rows, given.out, "asynchronous", "A3C", given.quick)


if __name__ == "__main__":
    main()
