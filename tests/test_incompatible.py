"""The table of features that cannot be combined: its rows, its error and its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import birl
from birl.errors import ConfigError, UnsupportedError
from birl.incompatible import FEATURES, INCOMPATIBLE, Incompatible, check_compatible
from scripts.make_combinations_page import PAGE, page

SOURCES = sorted((Path(__file__).resolve().parents[1] / "birl").rglob("*.py"))


@pytest.mark.parametrize("row", INCOMPATIBLE, ids=lambda row: f"{row.first} with {row.second}")
def test_each_row_is_an_error_with_three_parts(row: Incompatible) -> None:
    used = {row.first: "FIRST", row.second: "SECOND"}
    with pytest.raises(row.error, match=re.escape(f"FIRST cannot be combined with SECOND: {row.reason}; {row.remedy}")):
        check_compatible(used)
    for name in used:
        check_compatible({name: "alone"})
    assert row.error in (UnsupportedError, ConfigError)


def test_every_feature_is_in_a_row_and_every_pair_is_there_once() -> None:
    assert {name for row in INCOMPATIBLE for name in row[:2]} == set(FEATURES)
    pairs = [frozenset(row[:2]) for row in INCOMPATIBLE]
    assert len(set(pairs)) == len(pairs)
    with pytest.raises(AssertionError):
        check_compatible({"no feature": "x"})


def test_every_feature_is_named_by_code() -> None:
    """A row whose features no code names can never be an error."""
    code = "".join(path.read_text(encoding="utf-8") for path in SOURCES if path.name != "incompatible.py")
    code += (SOURCES[0].parents[0] / "incompatible.py").read_text(encoding="utf-8").partition("def prioritised")[2]
    named = {"fit", "fit_online", "fit_many"}  # loops, which are passed by name
    assert [name for name in FEATURES if f'"{name}"' not in code and name not in named] == []


@pytest.mark.parametrize(
    ("name", "why", "encoder"),
    [
        ("AWR", "learns from single states", "critic_encoder_factory"),
        ("DiscreteAWR", "learns from single states", "actor_encoder_factory"),
        ("NStepDQN", "values the last state of a rollout for all of its steps at once", "encoder_factory"),
        ("PRDC", "compares single states", "critic_encoder_factory"),
    ],
)
def test_networks_with_memory_need_the_states_before(name: str, why: str, encoder: str) -> None:
    algorithm = getattr(birl.algos, f"{name}Config")(**{encoder: "gru"}).create()
    with pytest.raises(UnsupportedError, match=f"{name}, which {why}, cannot be combined with a recurrent encoder: "):
        algorithm.create_impl((3,), 2)


def test_the_page_is_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python scripts/make_combinations_page.py"
