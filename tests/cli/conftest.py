"""Runs ``birl`` as a user does: words in, exit status and lines out."""

from __future__ import annotations

from typing import Any

import pytest

from birl.cli import main


class Shell:
    """Runs ``birl`` in this process and keeps what it says."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: Any, status: int = 0) -> str:
        """Run; returns standard output, or after an error what stands on standard error."""
        found = main([str(word) for word in words])
        out, err = self._capsys.readouterr()
        assert found == status, err
        self.notes = err
        if status == 0:
            return out
        lines = err.splitlines()
        assert "Traceback" not in err
        assert lines[-1].startswith("birl: ")
        assert sum(line.startswith("birl: ") for line in lines) == 1
        return lines[-1]


@pytest.fixture
def birl_(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)
