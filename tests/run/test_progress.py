"""The progress bar."""

from __future__ import annotations

import io
import re

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


def test_no_metric_is_cut_at_the_end_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    progress = Progress(1_000_000, 0)
    for metrics in ({"rollout_return": 12.5, "loss": 1.25, "evaluation": 9.0}, {"loss": 1.5, "evaluation": 9.0}):
        progress.show(2, metrics)
        progress.advance()
    progress.close()
    lines = [line for line in terminal.getvalue().replace("\n", "\r").split("\r") if "epoch 2" in line]
    assert len(lines) >= 3 and all(len(line) < 80 and "evaluation=9" in line for line in lines)
    assert all(re.search(r"(, \w+=[\d.]+)+\]\s*$", line) for line in lines)


def test_the_bar_says_what_a_run_begins_with(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    drive(Progress(10, 0, True, "the first update compiles"))
    before, after = terminal.getvalue().split("epoch 2", 1)
    assert "the first update compiles:" in before
    assert "compiles" not in after


@pytest.mark.parametrize(("stream", "show"), [(io.StringIO(), True), (Terminal(), False)])
def test_quiet_without_a_terminal(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, show: bool) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    progress = Progress(10, 0, show)
    drive(progress)
    assert stream.getvalue() == ""
    assert not progress.due
