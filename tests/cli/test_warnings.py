"""Commands show the warnings of birl's logger."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Shell
from run.fakes import Drift
from run.workers.transports import use_transport

from birl.distributed.transport import InlineTransport, WorkerLost
from birl.run.workers.collector_worker import CollectorWorker

WORDS = ["train", "DQN", "--env-id", "run.fakes:Drift", "--n-steps", 60, "--n-trials", 1, "--set", "batch_size=4"]
WARNING = (
    "birl: warning: collector 1 was ended by SIGKILL, in task 1 or before; it is restarted and goes on from its last "
    "fragment"
)


class Lossy(InlineTransport):
    """Loses collector 1 once."""

    def __init__(self) -> None:
        super().__init__(CollectorWorker)
        self.lost = False

    def wait(self) -> tuple[int, Any]:
        if self._tasks[0][0] == 1 and not self.lost:
            self.lost = True
            self._forget(1)
            raise WorkerLost(1, "by SIGKILL")
        return super().wait()


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    use_transport(monkeypatch, CollectorWorker, lambda placement: Lossy())
    return [*WORDS, "--collectors", 2, "--fragment", 5, "--out", tmp_path / "run"]


def test_a_lost_collector_is_reported_once(birl_: Shell, words: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    assert "collector 1" not in birl_(*words)
    assert birl_.notes.splitlines().count(WARNING) == 1
    assert len([record for record in caplog.records if "SIGKILL" in record.getMessage()]) == 1  # as for others
    assert logging.getLogger("birl").handlers == []
    birl_(*words)  # a command's own message is not repeated by the logger
    assert "there was nothing left to do" in birl_.notes and "nothing to do" not in birl_.notes


def test_logging_that_a_user_has_set_up_shows_warnings(
    birl_: Shell, words: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(handler)
    try:
        birl_(*words)
    finally:
        logging.getLogger().removeHandler(handler)
    assert birl_.notes.count("collector 1 was ended") == 1 and "birl: warning" not in birl_.notes


class Burns(Drift):
    """The second one, in which policies are evaluated, fails."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self.burns = self.made > 1

    def step(self, action: Any) -> Any:
        if self.burns:
            raise ZeroDivisionError("robot on fire")
        return super().step(action)


def test_the_error_of_an_evaluation_names_it(birl_: Shell, tmp_path: Path) -> None:
    said = birl_(*WORDS, "--env-id", "cli.test_warnings:Burns", "--out", tmp_path / "run", status=1)
    assert said == (
        "birl: unexpected ZeroDivisionError: robot on fire. This was in the evaluator 'evaluation', not in the steps "
        "or updates of training (with --debug: where)"
    )


def test_names_in_files_do_not_control_the_terminal(birl_: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "run\x1b[31m\u202e"
    folder.mkdir()
    (folder / "loss\x1b]0;x.csv").write_text("1,10,0.5\n")
    (folder / "params.json").write_text(json.dumps({"\x1b[2J": "\x9b31m", "more": ["\u202e"]}))
    (folder / "run.json").write_text("{")
    said = birl_("plot-all", folder, "--save", tmp_path / "a.png", "--params")
    said += birl_("stats", folder / "nothing", status=1) + birl_.notes
    assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(said)
    assert "\ufffd[2J=\ufffd31m" in said
