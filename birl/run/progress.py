"""The progress bar."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Mapping, Sequence

from tqdm import tqdm

_HIDDEN_PREFIX = "time_"
_WIDTH = 80
"""Columns of a terminal whose width is unknown."""

_BAR = 10
"""Minimum columns of the bar itself, with room for growing numbers."""


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
