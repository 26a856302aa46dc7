"""Summaries for those who decide: what they say, in plain words, for each verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from birl.dataset import Episode, create_infinite_replay_buffer
from birl.ope import evaluate, verdict
from birl.ope.decision_page import write_report
from birl.ope.decision_summary import summary_sentence
from birl.types import ActionSpace
from tests.ope.planted import treat


def logs(effect: float, n: int = 400, level: float = 12.0) -> Any:
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(n):
        a = rng.integers(0, 2, (1, 1))
        r = level + effect * a + rng.uniform(-1, 1, (1, 1))
        extra = {"log_propensity": np.log([0.5])}
        episodes.append(Episode(rng.normal(size=(1, 2)).astype(np.float32), a, r, True, extra=extra))
    return create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=2)


@pytest.mark.parametrize(
    ("effect", "chance", "min_gain", "starts", "holds"),
    [
        (2.0, 0.9, 0.2, "Ship it, first to a part of the users: per decision, it earns between 0.", "; 0.2 EUR more"),
        (2.0, 0.1, 0.0, "Do not ship it: per decision, it earns between 0.", " less than what the logs earned (-"),
        (0.0, 0.9, 0.0, "Wait: the logs leave it open: per decision, it may earn up to 0.", " EUR more than what the"),
        (2.0, 0.9, 0.8, "Wait: the logs leave it open: per decision, it earns between 0.", "0.8 EUR more is required."),
    ],
)  # fmt: skip
def test_one_sentence(effect: float, chance: float, min_gain: float, starts: str, holds: str) -> None:
    found = evaluate(treat(chance), logs(effect), gamma=1.0)
    said = summary_sentence(found, verdict(found, min_gain), "EUR")
    assert said.startswith(starts) and holds in said and said.endswith(".") and said.count(": ") <= 2


def test_shares_are_of_what_is_earned_today_and_left_out_where_that_is_nothing() -> None:
    found = evaluate(treat(0.9), logs(2.0), gamma=1.0)
    said = verdict(found)
    low, high = (100 * end / found.logs.value for end in (said.lower or 0.0, said.upper or 0.0))
    assert f"({low:+.3g} % to {high:+.3g} %)" in summary_sentence(found, said)
    other = evaluate(treat(0.9), logs(2.0), gamma=1.0, against=treat(0.6), against_name="today's rule")
    text = summary_sentence(other, verdict(other))
    assert "%" not in text and "more than today's rule." in text


def test_logs_that_cannot_tell_have_no_gain() -> None:
    found = evaluate(treat(0.9), logs(2.0, n=20), gamma=1.0)
    assert summary_sentence(found, verdict(found)) == "These logs cannot tell."


def test_the_page_begins_with_the_summary(tmp_path: Path) -> None:
    found = evaluate(treat(0.9), logs(2.0), gamma=1.0, name="treat")
    said = verdict(found)
    write_report(tmp_path, {"treat": found}, {"treat": said}, unit="EUR")
    text = " ".join("".join(ElementTree.parse(tmp_path / "report.html").getroot().itertext()).split())
    places = [
        text.index(part)
        for part in (
            "treat: ship",
            "Ship it, first to a part of the users",
            "gain per decision, EUR",
            "What carries it",
            "400 decisions, which count like",
            "acts differently in 36.6 %",
            "a model alone agrees: it puts the gain at 0.7",
            "rare losses: up to 1 in ",
            "hidden causes: ",
            "the gain over the logs is between",
        )
    ]
    assert places == sorted(places) and text.count("Ship it") == 1
    both = {"treat": found, "less": evaluate(treat(0.1), logs(2.0), gamma=1.0, name="less")}
    write_report(tmp_path, both, {name: verdict(each) for name, each in both.items()})
    text = " ".join("".join(ElementTree.parse(tmp_path / "report.html").getroot().itertext()).split())
    assert text.count("Ship it, first") == text.count("Do not ship it") == 1
