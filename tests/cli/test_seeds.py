"""``birl train --seeds`` in environments: a process for each seed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Shell

from birl.cli import sweep
from birl.files import load_archive

WORDS = ["train", "DQN", "--env-id", "CartPole-v1", "--n-steps", 60, "--random-steps", 20, "--n-trials", 1]
SCRIPT = """
import sys, os
words = sys.argv[1:]
seed, folder = int(words[words.index("--seed") + 1]), words[words.index("--out") + 1]
os.makedirs(folder, exist_ok=True)
with open(folder + "/evaluation.csv", "w") as file:
    file.write(f"1,30,1.0\\n2,60,{10.0 + seed}\\n")
with open(folder + "/words", "w") as file:
    file.write("\\n".join(words))
print("the reason" if seed == 9 else "done", file=sys.stderr)
sys.exit(3 if seed == 9 else 0)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small script takes the place of ``birl train``."""
    script = tmp_path / "fake.py"
    script.write_text(SCRIPT)
    kept = sweep._command

    def command(words: Any, seed: int, out: Path) -> list[str]:
        return [sys.executable, "-S", "-E", str(script), *kept(words, seed, out)[4:]]

    monkeypatch.setattr(sweep, "_command", command)
    monkeypatch.setattr(sweep, "_POLL_INTERVAL", 0.01)


@pytest.mark.parametrize("jobs", [1, 3])
def test_each_seed_is_a_run_of_its_own(fake: None, birl_: Shell, tmp_path: Path, jobs: int) -> None:
    more = ["--set", "gamma=0.9", "--set", "learning_rate=0.01", "--prioritized"]
    more += ["--collectors", 2, "--fragment", "auto"]
    said = birl_(*WORDS, "batch_size=16", *more, "--seeds", "3,5,8", "--jobs", jobs, "--out", tmp_path / "x")
    assert "3     13\n5     15\n8     18\n" in said and "mean 15.333, standard deviation 2.5166" in said
    for seed in (3, 5, 8):
        words = (tmp_path / "x" / f"seed_{seed}" / "words").read_text().split("\n")
        assert words[:2] == ["DQN", "batch_size=16"] and words[-4:-2] == ["--seed", str(seed)]
        assert "--prioritized" in words and "--seeds" not in words and "--jobs" not in words
        assert words[words.index("--fragment") + 1] == "auto" and words.count("--set") == 2


def test_a_run_that_fails_is_reported(fake: None, birl_: Shell, tmp_path: Path) -> None:
    said = birl_(*WORDS, "--seeds", "3,9", "--out", tmp_path / "x", status=1)
    assert (
        "the run of seed 9 failed (exit status 3): the reason (see" in said
        and "after a repair the same command resumes all runs" in said
    )


@pytest.mark.slow
def test_a_seed_is_trained_as_if_alone(birl_: Shell, tmp_path: Path) -> None:
    more = ["batch_size=16", "--collectors", 2, "--fragment", 5]
    birl_(*WORDS, *more, "--seeds", 2, "--jobs", 2, "--out", tmp_path / "x")
    birl_(*WORDS, *more, "--seed", 1, "--out", tmp_path / "y")
    folders = tmp_path / "x" / "seed_1", tmp_path / "y"
    own, alone = (load_archive(folder / "model_60.d3", "model")[1] for folder in folders)
    assert repr(own) == repr(alone)
    birl_(*WORDS, *more, "--seeds", 2, "--jobs", 2, "--out", tmp_path / "x")
    assert (tmp_path / "x" / "seed_0.log").read_text().count("there was nothing left to do") == 1


def test_a_placed_run_sees_one_gpu(birl_: Shell, tmp_path: Path) -> None:
    words = ["train", "DQN", "--env-id", "CartPole-v1", "--n-steps", 10, "--seeds", 2, "--out", tmp_path / "runs"]
    said = birl_(*words, "--device", "cuda:1", "--address", "local", status=1)
    assert "--device is 'cuda:1'; with --address it must be 'cuda' or 'cpu'" in said and "give --device cuda" in said
