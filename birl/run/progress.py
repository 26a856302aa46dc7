"""The progress bar."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Mapping, Sequence

from tqdm import tqdm

_HIDDEN_PREFIX = "time_"
_WIDTH = 80
"""Columns of a terminal that does not tell."""

_BAR = 10
"""Columns of the bar itself, at least, and of numbers that become longer."""


class Progress:
    """A bar with rate, remaining time and key metrics. Silent if standard error is not a terminal.

    Args:
        total: number of steps of the whole run.
        done: number of steps made before.
        show: whether to show anything at all.
        first: text in front of the bar until there are metrics.
        unit: what is counted.
    """

    def __init__(self, total: int, done: int = 0, show: bool = True, first: str = "", unit: str = "step") -> None:
        self._bar: tqdm[None] | None = None
        self._shown_at = 0.0
        if show and sys.stderr is not None and sys.stderr.isatty():
            options = {"unit": unit, "dynamic_ncols": True, "smoothing": 0.1}
            self._bar = tqdm(total=total, initial=done, desc=first or None, **options)

    def advance(self, steps: int = 1) -> None:
        """Count steps."""
        if self._bar is not None:
            self._bar.update(steps)

    def say(self, words: str) -> None:
        """Show a line of text above the bar."""
        if self._bar is not None:
            tqdm.write(words, sys.stderr)

    def show(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Show the epoch and those of its metrics that fit in, times left out."""
        if self._bar is not None:
            shown = sorted(name for name in metrics if not name.startswith(_HIDDEN_PREFIX))
            words = [f"{name}={metrics[name]:.4g}" for name in shown]
            self._bar.set_description(f"epoch {epoch}", refresh=False)
            self._bar.set_postfix_str(", ".join(self._fitting(words)))
            self._shown_at = time.monotonic()

    def _fitting(self, words: Sequence[str]) -> Sequence[str]:
        """The first of ``words`` that fit into the line beside the numbers and a short bar."""
        state = self._bar.format_dict if self._bar is not None else {}
        width = state.get("ncols") or _WIDTH
        room = width - _BAR - len(tqdm.format_meter(**{**state, "ncols": 0, "postfix": None}))
        ends = itertools.accumulate(len(word) + len(", ") for word in words)
        return words[: sum(end <= room for end in ends)]

    @property
    def due(self) -> bool:
        """Whether the bar is visible and its metrics are more than a second old."""
        return self._bar is not None and time.monotonic() - self._shown_at > 1.0

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
