"""The tables of the pages "Moving from …": every name has a counterpart that exists."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import typing
from pathlib import Path
from typing import Any

import pytest

from birl.cli.train import train

DOCS = Path(__file__).parent.parent / "docs"
ROW = r"^\| `([a-z][\w.]+)` \| (.*) \| ?(.*) ?\|$"
NUMBERS = {"pfrl": 79, "nnablarl": 73, "pytorchrl": 16, "sb3": 27}
PAGES = {name: re.findall(ROW, (DOCS / f"moving-{name}.md").read_text("utf-8"), re.M) for name in NUMBERS}


def exists(words: str) -> bool:
    """Whether ``birl.a.b(option, other)`` or ``--option`` is there."""
    if words.startswith("--"):
        return words.removeprefix("--").replace("-", "_") in train.__annotations__
    path, _, options = words.removesuffix(")").partition("(")
    parts = path.split(".")
    found: Any = importlib.import_module(parts[0])
    for index, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:index]))
            except ImportError:
                return False
        found = getattr(found, part)
    if not options:
        return True
    if typing.is_typeddict(found):
        known = set(found.__annotations__)
    elif dataclasses.is_dataclass(found):
        known = {each.name for each in dataclasses.fields(found)}
    else:
        known = set(inspect.signature(found).parameters)
    return {each.strip() for each in options.split(",")} <= known


def test_tables_are_whole() -> None:
    names = {page: [row[0] for row in rows] for page, rows in PAGES.items()}
    assert {page: len(set(found)) for page, found in names.items()} == NUMBERS
    assert all(len(found) == len(set(found)) for found in names.values())


@pytest.mark.parametrize(("name", "own"), [row[:2] for rows in PAGES.values() for row in rows])
def test_every_counterpart_exists(name: str, own: str) -> None:
    words = re.findall(r"`([^`]+)`", own)
    assert words and [each for each in words if not exists(each)] == []
    assert "*(" not in own  # nothing is still to come


def test_the_check_can_fail() -> None:
    good = ["birl.algos.DQN", "birl.models.distributions.Normal", "--noise-std", "birl.run.Options(callback, score)"]
    good += ["birl.algos.PPOConfig(clip_range)", "birl.algos.Algorithm.fit_online(buffer)"]
    assert all(map(exists, good))
    bad = ["birl.algos.DQM", "birl.nowhere.X", "--nonsense", "birl.run.Options(callback, skore)"]
    bad += ["birl.algos.PPOConfig(clip_ranje)", "birl.algos.Algorithm.fit_online(bufer)"]
    assert not any(map(exists, bad))


@pytest.mark.parametrize("page", ["pfrl", "nnablarl"])
def test_options_and_recipes_in_words_exist(page: str) -> None:
    from birl.recipes import RECIPES

    named = re.findall(r"recipes? ((?:`[\w-]+`(?:, )?)+)", (DOCS / f"moving-{page}.md").read_text("utf-8"))
    assert named
    for words in named:
        assert set(re.findall(r"`([\w-]+)`", words)) <= {name for _, name in RECIPES}
