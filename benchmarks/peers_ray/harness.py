"""What the scripts of this folder have in common: one task, one way to kill, one line of results."""

# ruff: noqa: T201  a script that prints

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers_ray.task import COUNTS, counted

__all__ = ["STEP", "measure"]

STEP = 0.01


def measure(library: str, run: Callable[[int, int, Callable[[], None]], int]) -> None:
    """Run, kill now and then, and print a line of JSON.

    Args:
        library: its name.
        run: ``run(workers, n_steps, started)`` makes ``n_steps`` steps with ``workers`` workers, calls ``started`` when
            these are there, and returns how many steps it reports.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--n-steps", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=0, help="Workers that are killed by SIGKILL, one after another.")
    parser.add_argument("--pause", type=float, default=5.0, help="Seconds between two of them.")
    given = parser.parse_args()
    killed: list[int] = []
    done = threading.Event()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ[COUNTS] = name
        times: list[float] = []

        def started() -> None:
            times.append(time.perf_counter())
            threading.Thread(target=kill, daemon=True).start()

        def kill() -> None:
            while len(killed) < given.kills and not done.wait(given.pause):
                alive = [pid for pid in counted(folder) if Path(f"/proc/{pid}").exists() and pid != os.getpid()]
                if alive:
                    os.kill(alive[len(killed) % len(alive)], signal.SIGKILL)
                    killed.append(1)

        reported, error = 0, ""
        try:
            reported = run(given.workers, given.n_steps, started)
        except Exception as problem:  # the line says so
            error = f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"
        seconds = time.perf_counter() - (times[0] if times else time.perf_counter())
        done.set()
        made = sum(counted(folder).values())
    print(
        json.dumps(
            {
                "library": library,
                "workers": given.workers,
                "asked": given.n_steps,
                "reported": reported,
                "overshoot": reported - given.n_steps,
                "made": made,
                "lost": made - reported,
                "kills": len(killed),
                "seconds": round(seconds, 2),
                "steps_per_second": round(reported / max(seconds, 1e-9), 1),
                "ideal": round(given.workers / STEP, 1),
                "error": error,
            }
        )
    )
