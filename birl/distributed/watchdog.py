"""Which workers do not move any more."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

START: Final = 300.0
"""Seconds in which a worker must have begun: it imports, and makes environments."""


class Alive(NamedTuple):
    """A sign of life.

    Attributes:
        place: in its work: words, of which only equality counts.
    """

    place: Any


class Watch:
    """How long each worker has been in one place.

    Only the time counts in which somebody waited for it: signs that came meanwhile are seen first, and a process that
    was stopped, and goes on, blames nobody for that.

    Args:
        step_timeout: seconds after which a worker counts as hung.

    Attributes:
        slice: seconds to wait at a time; workers give a sign as often.
    """

    def __init__(self, step_timeout: float) -> None:
        self._limits = {True: step_timeout, False: max(START, step_timeout)}
        self.slice = min(1.0, step_timeout / 4)
        self._places: dict[int, Any] = {}  # None before the first sign
        self._quiet: dict[int, float] = {}

    def start(self, index: int) -> None:
        """A worker begins anew."""
        self._places[index], self._quiet[index] = None, 0.0

    def __contains__(self, index: int) -> bool:
        """Whether it has ever begun."""
        return index in self._places

    def begun(self, index: int) -> bool:
        """Whether a worker has given a sign since its beginning."""
        return self._places[index] is not None

    def moved(self, index: int) -> None:
        """A worker was sent an order, or has answered one."""
        self._quiet[index] = 0.0

    def saw(self, index: int, place: Any) -> None:
        """A worker has told its place."""
        if place != self._places[index]:
            self._places[index], self._quiet[index] = place, 0.0

    def waited(self, index: int, seconds: float) -> bool:
        """Somebody waited for a worker. Returns whether it counts as hung."""
        self._quiet[index] += min(seconds, self.slice)  # more than that was not waiting
        return self._quiet[index] > self._limits[self.begun(index)]

    def verdict(self, index: int) -> tuple[str, Any]:
        """Of a worker that hung: how it was ended, and its place, ``"its beginning"`` if it has none yet."""
        begun = self.begun(index)
        how = f"because it did not {'move' if begun else 'begin'} for {self._limits[begun]:g} seconds"
        return how, self._places[index] if begun else "its beginning"
