"""Ctrl-C and SIGTERM: finish the step, write a checkpoint, then stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn


class Abandoned(BaseException):
    """Raised inside `Interrupt.abandonable` to leave it. Not an ``Exception``, so that no code there catches it."""


class Interrupt:
    """Holds back SIGINT and SIGTERM until the loop reaches a point from which a run can be resumed.

    The first signal is remembered; a second one acts at once. Outside the main thread, where Python delivers no
    signals, nothing is held back.

    Attributes:
        signal: number of the signal that came, or ``None``.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._abandonable = False
        self._previous: dict[int, Any] = {}

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Context that records signals instead of acting on them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in self._previous:
            signal.signal(number, self._remember)
        try:
            yield
        finally:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            # None: a handler that was not installed from Python and cannot be put back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            self._restore()
            self.stop()
        self.signal = number
        if self._abandonable:
            raise Abandoned

    @contextlib.contextmanager
    def abandonable(self) -> Iterator[None]:
        """Context, for example of an evaluation, in which a signal raises `Abandoned` at once."""
        self._abandonable = True
        try:
            if self.signal is not None:
                raise Abandoned
            yield
        finally:
            self._abandonable = False

    def stop(self) -> NoReturn:
        """Act on the signal: `KeyboardInterrupt` for SIGINT, exit with status 143 for SIGTERM."""
        if self.signal == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt
