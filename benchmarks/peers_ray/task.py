"""The task of `benchmarks.collectors` and of the peers: a random walk whose steps take time. Needs gymnasium only."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

__all__ = ["COUNTS", "KILLS", "Task", "counted", "killing"]

COUNTS, KILLS = "BIRL_BENCHMARK_COUNTS", "BIRL_BENCHMARK_KILLS"
_CHANCE = random.SystemRandom()  # each process's own, whatever was copied there


class Task(gymnasium.Env):  # type: ignore[type-arg]
    """A random walk. Two folders in the environment of its process tell it to do more.

    In that of ``BIRL_BENCHMARK_COUNTS`` it keeps the number of steps that it has made, in a file called by its process.
    For each file in that of ``BIRL_BENCHMARK_KILLS`` one such process kills itself, sooner or later.

    Args:
        seconds: that a step sleeps.
        delay: longest further time, drawn so that no seed repeats it.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seconds: float = 0.0, delay: float = 0.0) -> None:
        self._seconds, self._delay, self._made = seconds, delay, 0
        self._file = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._state, self._steps = self.np_random.normal(size=4).astype(np.float32), 0
        return self._state.copy(), {}

    def step(self, action: Any) -> Any:
        if KILLS in os.environ and _CHANCE.random() < 0.05:
            _kill_if_asked(Path(os.environ[KILLS]))
        time.sleep(self._seconds + _CHANCE.random() * self._delay)
        self._count()
        self._steps += 1
        self._state = (self._state + 0.1 * self.np_random.normal(size=4)).astype(np.float32)
        reward = float(self._state[0] * (2 * int(action) - 1))
        return self._state.copy(), reward, bool(self.np_random.random() < 0.01), self._steps >= 200, {}

    def _count(self) -> None:
        if COUNTS not in os.environ:
            return
        if self._file < 0:
            name = f"{os.getpid()}-{id(self)}"
            self._file = os.open(Path(os.environ[COUNTS]) / name, os.O_CREAT | os.O_WRONLY)
        self._made += 1
        os.pwrite(self._file, struct.pack("<q", self._made), 0)


def _kill_if_asked(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # there is none, or another process took it
        min(folder.iterdir(), default=folder / "none").unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def killing(number: int) -> Iterator[Path]:
    """Let so many processes with a `Task` kill themselves. Gives a folder with a file for each that has not yet."""
    with tempfile.TemporaryDirectory() as folder:
        for index in range(number):
            (Path(folder) / f"{index:03}").touch()
        os.environ[KILLS] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ[KILLS]


def counted(folder: Path) -> dict[int, int]:
    """Steps that were made in each process."""
    found: dict[int, int] = {}
    for path in folder.iterdir():
        data, pid = path.read_bytes(), int(path.name.split("-")[0])
        found[pid] = found.get(pid, 0) + (struct.unpack("<q", data)[0] if len(data) == 8 else 0)
    return found
