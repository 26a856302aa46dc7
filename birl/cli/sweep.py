"""``birl train --seeds`` in environments: one run of ``birl train`` for each seed, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import Final

import numpy as np

from birl.cli.common import (
    note,
    print_line,
    print_table,
)
from birl.cli.curves import RETURNS, read_curve
from birl.cli.run_processes import Process, end_processes, last_line, process_starter
from birl.errors import BirlError
from birl.run.run_lock import only_run

_POLL_INTERVAL: Final = 0.2


def train_seeds(
    words: Sequence[str], seeds: Sequence[int], out: Path, jobs: int, address: str | None, device: str
) -> None:
    """Train all seeds, ``jobs`` of them at the same time, and print a table of their last scores.

    Args:
        words: arguments of ``birl train``, without seed and folder.
        seeds: different seeds.
        out: folder of all runs; the run of a seed is in its subfolder ``seed_<seed>``. Finished runs are not repeated.
        jobs: number of runs at the same time.
        address: address of the Ray cluster that executes the runs; ``None`` for this machine.
        device: device of all runs.

    Raises:
        BirlError: if a run fails. The others write checkpoints, and the same command resumes all.
    """
    with only_run(out), process_starter(jobs, address, device) as start:
        waiting, running = list(seeds), dict[int, Process]()
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    seed = waiting.pop(0)
                    running[seed] = start(_command(words, seed, out), out / f"seed_{seed}")
                    note(f"seed {seed} -> {out / f'seed_{seed}'}")
                sleep(_POLL_INTERVAL)
                for seed in [seed for seed, process in running.items() if process.poll() is not None]:
                    status = running.pop(seed).returncode
                    if status:
                        folder = out / f"seed_{seed}"
                        raise BirlError(
                            f"the run of seed {seed} failed (exit status {status}): {last_line(folder)} (see "
                            f"{folder}.log); after a repair the same command resumes all runs"
                        )
        finally:
            if running:
                note(f"stopping runs, which write checkpoints; the same command resumes them from {out}")
                end_processes(list(running.values()))
        _report(out, seeds)


def _command(words: Sequence[str], seed: int, out: Path) -> list[str]:
    options = ["--seed", str(seed), "--out", str(out / f"seed_{seed}")]
    return [sys.executable, "-m", "birl", "train", *words, *options]


def _report(out: Path, seeds: Sequence[int]) -> None:
    """Print the last score of each seed, and their mean and standard deviation."""
    names = [name for name in RETURNS if all((out / f"seed_{seed}" / f"{name}.csv").is_file() for seed in seeds)]
    if not names:
        print_line(f"done: {len(seeds)} seeds in {out}")
        return
    scores = [float(read_curve(out / f"seed_{seed}" / f"{names[0]}.csv").value[-1]) for seed in seeds]
    rows = [[str(seed), f"{score:.5g}"] for seed, score in zip(seeds, scores, strict=True)]
    print_table([["SEED", names[0]], *rows])
    deviation = np.std(scores, ddof=1) if len(scores) > 1 else 0
    print_line(f"mean {np.mean(scores):.5g}, standard deviation {deviation:.5g}")
