"""The progress bar."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Mapping, Sequence

from tqdm import tqdm

from birl.types import State

_HIDDEN_PREFIX = "time_"
_WIDTH = 80
"""Columns of a terminal whose width is unknown."""

_BAR = 10
"""Minimum columns of the bar itself, with room for growing numbers."""


class Clock:
    """The time that a run has taken, including earlier processes."""

    def __init__(self) -> None:
        self._began, self._before = time.monotonic(), 0.0
        self._last = 0, 0.0  # step and elapsed time when `metrics` was last called

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the run, without the time between processes."""
        return self._before + time.monotonic() - self._began

    def origin(self, settings: Mapping[str, object]) -> dict[str, object]:
        """Return the start of the run in seconds since 1970, and the name of its environment."""
        return {"t_start": time.time() - self.elapsed, "env_id": settings.get("environment")}

    def metrics(self, step: int, left: int) -> dict[str, float]:
        """Return the steps per second since the last call, the elapsed time, and an estimate of the remaining time.

        Args:
            step: number of steps made so far.
            left: number of steps left.
        """
        elapsed, (last_step, last_time) = self.elapsed, self._last
        rate = (step - last_step) / max(elapsed - last_time, 1e-9)
        self._last = step, elapsed
        remaining = left / rate if rate > 0 else 0.0
        return {"time_steps_per_second": rate, "time_elapsed": elapsed, "time_remaining": remaining}

    def get_state(self) -> State:
        """Return the elapsed time."""
        return {"elapsed": self.elapsed, "last_step": self._last[0], "last_time": self._last[1]}

    def set_state(self, state: State) -> None:
        """Continue from the result of `get_state`."""
        self._before, self._began = float(state["elapsed"]), time.monotonic()
        self._last = int(state["last_step"]), float(state["last_time"])


class Progress:
    """A progress bar with rate, remaining time and metrics. Silent if standard error is not a terminal.

    Args:
        total: total number of steps.
        done: number of steps that have been made already.
        show: whether to show the bar.
        first: text in front of the bar until there are metrics.
        unit: name of the unit that is counted.
    """

    def __init__(self, total: int, done: int = 0, show: bool = True, first: str = "", unit: str = "step") -> None:
        self._bar: tqdm[None] | None = None
        self._updated_at = 0.0
        if show and sys.stderr is not None and sys.stderr.isatty():
            options = {"unit": unit, "dynamic_ncols": True, "smoothing": 0.1}
            self._bar = tqdm(total=total, initial=done, desc=first or None, **options)

    def advance(self, steps: int = 1) -> None:
        """Count steps."""
        if self._bar is not None:
            self._bar.update(steps)

    def write(self, text: str) -> None:
        """Write a line of text above the bar."""
        if self._bar is not None:
            tqdm.write(text, sys.stderr)

    def show(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Show the epoch and those of its metrics, except durations, that fit into the line."""
        if self._bar is not None:
            names = sorted(name for name in metrics if not name.startswith(_HIDDEN_PREFIX))
            items = [f"{name}={metrics[name]:.4g}" for name in names]
            self._bar.set_description(f"epoch {epoch}", refresh=False)
            self._bar.set_postfix_str(", ".join(self._fitting(items)))
            self._updated_at = time.monotonic()

    def _fitting(self, items: Sequence[str]) -> Sequence[str]:
        """Return the first items that fit into the line with the numbers and a short bar."""
        state = self._bar.format_dict if self._bar is not None else {}
        width = state.get("ncols") or _WIDTH
        room = width - _BAR - len(tqdm.format_meter(**{**state, "ncols": 0, "postfix": None}))
        ends = itertools.accumulate(len(item) + len(", ") for item in items)
        return items[: sum(end <= room for end in ends)]

    @property
    def due(self) -> bool:
        """Whether the bar is visible and its metrics are more than a second old."""
        return self._bar is not None and time.monotonic() - self._updated_at > 1.0

    def close(self) -> None:
        """Stop updating the bar, which stays visible."""
        if self._bar is not None:
            self._bar.close()
