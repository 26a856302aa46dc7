"""The README's code runs: all Python blocks in one session, all ``birl`` commands in one folder."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

from birl.cli import main
from birl.cli.common import algorithm_classes

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def test_python_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks("python")
    assert len(found) == 5
    script = tmp_path / "readme.py"
    script.write_text("\n".join(found), encoding="utf-8")
    runpy.run_path(str(script))
    assert float(capsys.readouterr().out.split()[0]) > 50  # the mean return: better than random, which reaches 23
    assert (tmp_path / "birl_logs" / "tour" / "model_2000.d3").exists()
    assert (tmp_path / "policy.onnx").exists()


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("sh") for line in block.replace("\\\n", " ").splitlines()]
    commands = [line for line in lines if line.startswith("birl ")]
    assert len(commands) == 5
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert "over 10 episodes" in capsys.readouterr().out
    assert (tmp_path / "curve.png").exists()


def test_links_lead_somewhere() -> None:
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", README) if not target.startswith("http")]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_tables_name_only_what_exists() -> None:
    rows = [line for line in README.splitlines() if line.startswith("| ") and "`" in line]
    named = {name for line in rows for name in re.findall(r"`(\w+)`", line)}
    assert named == set(algorithm_classes())
