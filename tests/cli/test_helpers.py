"""Parts of observations on the command line."""

from __future__ import annotations

import re
from pathlib import Path

from cli.conftest import Shell

import birl
import birl.cli


def test_parts_of_observations_are_named_with_set(birl_: Shell, tmp_path: Path) -> None:
    words = ["train", "DQN", "--env-id", "run.fakes:MissionGrid", "--n-steps", 20, "--out", tmp_path / "run"]
    said = birl_(*words, status=1)
    assert "the part 'mission' of the observation is Text" in said
    keys = re.search(r"here --set '(observation_keys=\[[^']*\])'", said)
    assert keys is not None
    json_form = """--set 'observation_keys=["direction", "image"]'"""
    for wrong in ("direction,image", "('direction', 'image')", "[direction,image]"):
        assert json_form in birl_(*words, "--set", f"observation_keys={wrong}", status=1)
    birl_(*words, "--set", keys[1], "--set", "batch_size=4")
    birl_(*words, "--fresh", "--set", 'observation_keys=["direction", "image"]', "--set", "batch_size=4")
    assert "episodes" in birl_("evaluate", tmp_path / "run", "--env-id", "run.fakes:MissionGrid", "--n-episodes", 2)


def test_observations_that_are_choices_need_nothing(birl_: Shell, tmp_path: Path) -> None:
    out = tmp_path / "lake"
    words = ["train", "DQN", "--env-id", "FrozenLake-v1", "--n-steps", 30, "--set", "batch_size=4", "--n-trials", 1]
    birl_(*words, "--out", out)
    model = birl.load_learnable(out / "model_30.d3")
    assert model.observation_shape == (16,) and model.spec.data_shape == ()
    assert birl_("evaluate", out, "--n-episodes", 1).startswith("return ")


def test_python_code_that_messages_name_in_options_is_in_the_package() -> None:
    """A message that is reworded must not lose its option on the command line."""
    root = Path(birl.__file__).parent
    source = "\n".join(path.read_text(encoding="utf-8") for path in root.rglob("*.py") if path.parent.name != "cli")
    assert [code for code in birl.cli._OPTIONS if code not in source] == []
