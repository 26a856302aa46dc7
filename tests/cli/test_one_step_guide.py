"""The guide to one-step logs and slates, run from its first line to its last."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

from birl.cli import main

GUIDE = (Path(__file__).parents[2] / "docs" / "one-step-logs.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_from_impressions_to_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(python|toml|sh)\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    Path("page.py").write_text("\n".join(block for language, block in blocks if language == "python"))
    names: dict[str, Any] = runpy.run_path("page.py")
    Path("schema.toml").write_text(next(block for language, block in blocks if language == "toml"))
    commands = [line for language, block in blocks if language == "sh" for line in block.splitlines()]
    status = [main(shlex.split(line)[1:]) for line in commands]
    said = capsys.readouterr()
    assert set(status) == {0}, said.err
    assert "data: 12000 episodes, 12000 of them terminated" in said.out and "run: ship" in said.out
    (policy,) = json.loads(Path("report/report.json").read_text())["policies"]
    assert "the value is what you want to maximise: the mean reward of a decision" in policy["assumptions"]
    assert policy["horizon"] == 1 and names["verdict"].verdict == "ship" and names["result"].decides is not None
