"""Ctrl-C and SIGTERM: finish the step, write a checkpoint, then stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn


class Abandoned(BaseException):
    """Leaves what `Interrupt.abandonable` or `Interrupt.check` lets a signal end.

    Not an ``Exception``, so that no code there catches it.
    """


@contextlib.contextmanager
def handled_by(handler: Callable[[int, FrameType | None], object], *numbers: int) -> Iterator[None]:
    """Context in which a function handles signals; not outside the main thread, where Python delivers none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            # None: a handler that was not installed from Python and cannot be put back
            signal.signal(number, signal.SIG_DFL if before is None else before)


class Interrupt:
    """Holds back SIGINT and SIGTERM until the loop reaches a point from which a run can be resumed.

    The first signal is remembered; a second one acts at once.

    Attributes:
        signal: number of the signal that came, or ``None``.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._abandonable = False

    def held_back(self) -> contextlib.AbstractContextManager[None]:
        """Context that records signals instead of acting on them."""
        return handled_by(self._remember, signal.SIGINT, signal.SIGTERM)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
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

    def check(self) -> None:
        """Raise `Abandoned` if a signal came: for code that waits, where a run can be resumed from."""
        if self.signal is not None:
            raise Abandoned

    def stop(self) -> NoReturn:
        """Act on the signal: `KeyboardInterrupt` for SIGINT, exit with status 143 for SIGTERM."""
        if self.signal == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt
