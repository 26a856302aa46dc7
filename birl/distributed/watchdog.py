"""Detection of workers that hang."""

from __future__ import annotations

from typing import Final, NamedTuple

START_TIMEOUT: Final = 300.0
"""Seconds in which a worker must start: it imports modules and makes environments."""


class Heartbeat(NamedTuple):
    """Message with which a worker reports its position.

    Attributes:
        position: position of the worker in its task, as text.
    """

    position: str


class Watchdog:
    """Clocks that measure how long each worker has stayed in one position.

    Only time that the owner spends waiting for a worker counts: heartbeats that have arrived are read first, and time
    in which the owner itself was stopped is left out.

    Args:
        step_timeout: seconds after which a worker counts as hung.

    Attributes:
        interval: longest time of one wait in seconds, and the interval of heartbeats.
    """

    def __init__(self, step_timeout: float) -> None:
        self._limits = {True: step_timeout, False: max(START_TIMEOUT, step_timeout)}
        self.interval = min(1.0, step_timeout / 4)
        self._positions: dict[int, str | None] = {}  # None before the first heartbeat
        self._waited: dict[int, float] = {}

    def start(self, index: int) -> None:
        """Watch a worker that is being started, for the first time or again."""
        self._positions[index], self._waited[index] = None, 0.0

    def __contains__(self, index: int) -> bool:
        """Return whether a worker was ever started."""
        return index in self._positions

    def has_started(self, index: int) -> bool:
        """Return whether a worker has sent a heartbeat since its start."""
        return self._positions[index] is not None

    def reset(self, index: int) -> None:
        """Restart the clock of a worker, which was sent a task or has answered one."""
        self._waited[index] = 0.0

    def record(self, index: int, position: str) -> None:
        """Record the position of a worker's heartbeat."""
        if position != self._positions[index]:
            self._positions[index], self._waited[index] = position, 0.0

    def add_wait(self, index: int, seconds: float) -> bool:
        """Record time spent waiting for a worker. Return whether the worker counts as hung."""
        self._waited[index] += min(seconds, self.interval)  # beyond it, the owner was stopped
        return self._waited[index] > self._limits[self.has_started(index)]

    def describe(self, index: int) -> tuple[str, str]:
        """Return why a hung worker is ended, and its last position (``"its start"`` if it has none yet)."""
        started = self.has_started(index)
        why = f"because it did not {'move' if started else 'start'} for {self._limits[started]:g} seconds"
        return why, self._positions[index] or "its start"
