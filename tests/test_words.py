"""The words of birl's former private dialect do not come back, neither in names nor in sentences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

RETIRED = {
    "told": "given, configured, reported",
    "beside": "next to, with, as well as",
    "abreast": "side by side, in parallel",
    "nobody": "no process, no caller",
    "somebody": "a process, a caller",
    "everybody": "all",
    "anybody": "any caller",
    "whoever": "the caller that",
    "anew": "again, from scratch",
    "begun": "started",
    "heard": "received",
    "lesson": "minibatch",
    "lessons": "minibatches",
    "crew": "worker pool",
    "of which there are": "count them: “two such …”",
}
"""Retired words, and what to say."""

_PATTERN = re.compile(rf"(?<![a-z])(?:{'|'.join(RETIRED)})(?![a-z])", re.IGNORECASE)
_EXEMPT = {"tests/test_words.py", "docs/adr", "benchmarks/results"}
"""This list, and records of decisions and measurements, which are history."""


def _pages() -> list[Path]:
    folders = ("birl", "docs", "tests", "benchmarks", "scripts", "examples", ".github")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    kinds = {".py", ".pyi", ".md", ".toml", ".yml", ".html", ".cff"}
    return [path for path in found if path.suffix in kinds or path.name == "Makefile"]


def test_retired_words_do_not_come_back() -> None:
    found = []
    for path in _pages():
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(tuple(_EXEMPT)):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if re.fullmatch(r'\s*"(--)?\w+": "(birl\.|--).*",', line):
                    continue  # an old name with its new one
                found += [
                    f"{name}:{number} {match.group()}: say {RETIRED[match.group().lower()]}"
                    for match in _PATTERN.finditer(line)
                ]
    assert found == []


@pytest.mark.parametrize("line", ["def told(self):", "It is begun anew.", "x = self._lessons", "Beside this"])
def test_the_search_sees_names_and_sentences(line: str) -> None:
    assert _PATTERN.search(line)
