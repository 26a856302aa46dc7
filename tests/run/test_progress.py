"""The progress bar."""

from __future__ import annotations

import io

import pytest

from birl.run.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drive(progress: Progress) -> None:
    for _ in range(3):
        progress.advance()
    progress.show(2, {"time_step": 0.1, "loss": 1.25, "value": 2.0})
    progress.close()


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    drive(Progress(10, 4))
    assert all(word in terminal.getvalue() for word in ("epoch 2", "7/10", "loss=1.25", "value=2", "step/s"))
    assert "time_step" not in terminal.getvalue()


def test_the_bar_says_what_a_run_begins_with(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    drive(Progress(10, 0, True, "the first update compiles"))
    before, after = terminal.getvalue().split("epoch 2", 1)
    assert "the first update compiles:" in before
    assert "compiles" not in after


@pytest.mark.parametrize(("stream", "show"), [(io.StringIO(), True), (Terminal(), False)])
def test_quiet_elsewhere(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, show: bool) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    progress = Progress(10, 0, show)
    drive(progress)
    assert stream.getvalue() == ""
    assert not progress.due
