"""Steps per second of A3C with workers, in an environment whose step sleeps.

    python scripts/asynchronous_speed.py --workers 1 2 4 --sleep-ms 5 --n-steps 4000

The clock runs from half of the steps on: the seconds that processes take to begin are not counted.
"""

from __future__ import annotations

import argparse
import functools
import time
from typing import Any

import gymnasium

import birl


class Sleeping(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose step takes long and no processor."""

    def __init__(self, env: Any, seconds: float) -> None:
        super().__init__(env)
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        """The same step, later."""
        time.sleep(self.seconds)
        return self.env.step(action)


def steps_per_second(workers: int | None, n_steps: int, seconds: float) -> float:
    """Speed of the second half of a run; without workers if ``workers`` is ``None``."""
    birl.seed(0)
    begun: dict[str, float] = {}

    def clock(_: Any, __: int, step: int) -> None:
        if step in (n_steps // 2, n_steps):
            begun[str(step)] = time.perf_counter()

    a3c = birl.algos.A3CConfig().create()
    a3c.fit_online(
        Sleeping(gymnasium.make("CartPole-v1"), seconds),
        n_steps=n_steps,
        n_steps_per_epoch=n_steps,
        workers=workers,
        callback=clock,
        seed=0,
        show_progress=False,
        logger_adapter=birl.logging.NoopAdapterFactory(),
    )
    return (n_steps - n_steps // 2) / (begun[str(n_steps)] - begun[str(n_steps // 2)])


def main() -> None:
    """Print a line for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="0 is the loop in one process")
    parser.add_argument("--sleep-ms", type=float, default=5.0)
    parser.add_argument("--n-steps", type=int, default=4000)
    options = parser.parse_args()
    measure = functools.partial(steps_per_second, n_steps=options.n_steps, seconds=options.sleep_ms / 1000)
    for workers in options.workers:
        print(f"{workers} workers: {measure(workers or None):.0f} steps per second", flush=True)


if __name__ == "__main__":
    main()
