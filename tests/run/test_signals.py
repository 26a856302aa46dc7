"""Signals are delayed until a run can be resumed from its current step."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from birl.run.signals import Abandoned, Interrupt

HANDLERS = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.fixture(autouse=True)
def _handlers_are_put_back() -> object:
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == HANDLERS


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_first_signal_is_remembered(number: int, expected: type[BaseException]) -> None:
    interrupt = Interrupt()
    with interrupt.delayed():
        os.kill(os.getpid(), number)
        assert interrupt.signal == number
    with pytest.raises(expected) as raised:
        interrupt.stop()
    if expected is SystemExit:
        assert raised.value.code == 143


def test_second_signal_acts_at_once() -> None:
    interrupt, reached = Interrupt(), False
    with pytest.raises(KeyboardInterrupt), interrupt.delayed():
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not reached")
    assert reached


def test_what_can_be_abandoned_is_left_at_once() -> None:
    interrupt = Interrupt()
    with interrupt.delayed():
        with pytest.raises(Abandoned), interrupt.abandonable():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except Exception:  # user code that catches everything it knows of
                raise AssertionError("caught") from None
        with pytest.raises(Abandoned), interrupt.abandonable():  # still to be obeyed
            raise AssertionError("not reached")
    assert interrupt.signal == signal.SIGTERM


def test_other_threads_hold_nothing_back() -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with Interrupt().delayed():
                pass
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
