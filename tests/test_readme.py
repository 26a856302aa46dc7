"""The code of the README and of the quickstart runs, and their links and tables name what exists."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

from birl.cli import main
from birl.cli.loading import algorithm_classes

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
REPOSITORY = re.compile(r"https://(?:github\.com/birl-rl/birl/blob|raw\.githubusercontent\.com/birl-rl/birl)/main/")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("text", "count", "run"), [(README, 1, "tour"), (QUICKSTART, 5, "quickstart")])
def test_python_blocks(
    text: str, count: int, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(text, "python")
    assert len(found) == count
    script = tmp_path / "readme.py"
    script.write_text("\n".join(found), encoding="utf-8")
    runpy.run_path(str(script))
    assert float(capsys.readouterr().out.split()[0]) > 50  # the mean return: better than random, which reaches 23
    assert (tmp_path / "birl_logs" / run / "model_2000.d3").exists()
    assert (tmp_path / "policy.onnx").exists()


@pytest.mark.parametrize(("text", "count"), [(README, 2), (QUICKSTART, 5)])
def test_commands(
    text: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks(text, "sh") for line in block.replace("\\\n", " ").splitlines()]
    commands = [line for line in lines if line.startswith("birl ")]
    assert len(commands) == count
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert "over 10 episodes" in capsys.readouterr().out
    assert (tmp_path / "curve.png").exists() == ("birl plot" in text)


def test_links_resolve_on_any_site() -> None:
    """PyPI shows the README, too, so its links are absolute; those to the repository name files that exist."""
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert len(targets) > 20 and [target for target in targets if not target.startswith("https://")] == []
    inside = [REPOSITORY.sub("", target).partition("#")[0] for target in targets if REPOSITORY.match(target)]
    assert len(inside) > 20 and [path for path in inside if not (ROOT / path).is_file()] == []


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 120


def test_tables_name_only_what_exists() -> None:
    rows = [line for line in README.splitlines() if line.startswith("| ") and "`" in line]
    named = {name for line in rows for name in re.findall(r"`(\w+)`", line)}
    assert named == set(algorithm_classes())
