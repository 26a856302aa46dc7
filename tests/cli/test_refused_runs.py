"""Commands that are refused leave nothing behind, and options without an effect are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("PPO", "--set", "burn_in=2"), "burn_in=2 cannot be combined"),
        (("DiscreteACER", "--set", "replay_ratio=0", "--buffer-size", 500), "--buffer-size 500 has no effect"),
        (("IMPALA", "--set", "replay_ratio=0", "--buffer-size", 500), "--buffer-size 500 has no effect"),
    ],
)
@pytest.mark.parametrize("there", [False, True])
def test_a_refused_run_leaves_no_files(birl_: Any, tmp_path: Path, words: Any, message: str, there: bool) -> None:
    out = tmp_path / "run"
    if there:
        out.mkdir()
    text = birl_("train", *words, "--env-id", "CartPole-v1", "--n-steps", 40, "--out", out, status=1)
    assert message in text
    assert os.listdir(tmp_path) == ["run"] * there
    assert not there or os.listdir(out) == []


def test_a_refused_command_leaves_another_run_as_it_is(birl_: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", "DQN", "--env-id", "CartPole-v1", "--n-steps", 40, "--set", "batch_size=8", "--out", out]
    birl_(*words)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert "other settings" in birl_(*words, "--seed", 3, status=1)
    words[1] = "PPO"
    said = birl_(*words[:-4], "--out", out, status=1)
    assert "other settings: algorithm.type was 'DQN', now 'PPO'. Give" in said
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_evaluations_may_sample(birl_: Any, tmp_path: Path) -> None:
    import json

    out = tmp_path / "run"
    same: Any = ["--env-id", "CartPole-v1"]
    birl_("train", "PPO", *same, "--n-steps", 64, "--set", "rollout_length=32", "batch_size=16", "--out", out)
    found = [json.loads(birl_("evaluate", out, "--json", "--n-episodes", 5, *more)) for more in ((), ("--sample",))]
    again = json.loads(birl_("evaluate", out, "--json", "--n-episodes", 5, "--sample"))
    assert [each["sample"] for each in found] == [False, True] and found[1] == again
    assert found[0]["returns"] != found[1]["returns"]
    birl_("train", "DQN", *same, "--n-steps", 40, "--set", "batch_size=8", "--out", tmp_path / "dqn")
    said = birl_("evaluate", tmp_path / "dqn", "--sample", status=1)
    assert "a DQN has no policy to sample from: leave it out, or explore with --epsilon" in said


def test_evaluations_may_be_a_number_of_steps(birl_: Any, tmp_path: Path) -> None:
    words = ["train", "PPO", "--env-id", "CartPole-v1", "--n-steps", 32, "--set", "rollout_length=32", "batch_size=16"]
    birl_(*words, "--eval-steps", 30, "--out", tmp_path / "run")
    assert (tmp_path / "run/evaluation.csv").exists()
