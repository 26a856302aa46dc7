"""Handling of Ctrl-C and SIGTERM: finish the step, write a checkpoint, then stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn


class Abandoned(BaseException):
    """Exception that a signal raises in `Interrupt.abandonable` or `Interrupt.check`, to leave the current code.

    It is not a subclass of ``Exception``, so that handlers in that code do not catch it.
    """


@contextlib.contextmanager
def handled_by(handler: Callable[[int, FrameType | None], object], *numbers: int) -> Iterator[None]:
    """Return a context in which a function handles signals. It does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            # None: the handler was not installed from Python and cannot be restored
            signal.signal(number, signal.SIG_DFL if before is None else before)


class Interrupt:
    """Handler that delays SIGINT and SIGTERM until the loop reaches a point from which a run can be resumed.

    The first signal is recorded; a second one acts at once.

    Attributes:
        signal: number of the signal that was received, or ``None``.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._abandonable = False

    def delayed(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that records signals instead of acting on them."""
        return handled_by(self._record, signal.SIGINT, signal.SIGTERM)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            self.stop()
        self.signal = number
        if self._abandonable:
            raise Abandoned

    @contextlib.contextmanager
    def abandonable(self) -> Iterator[None]:
        """Return a context, for example of an evaluation, in which a signal raises `Abandoned` at once."""
        self._abandonable = True
        try:
            if self.signal is not None:
                raise Abandoned
            yield
        finally:
            self._abandonable = False

    def check(self) -> None:
        """Raise `Abandoned` if a signal was received. Call it in waits from which a run can be resumed."""
        if self.signal is not None:
            raise Abandoned

    def stop(self) -> NoReturn:
        """Act on the signal: raise `KeyboardInterrupt` for SIGINT, or exit with status 143 for SIGTERM."""
        if self.signal == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt
