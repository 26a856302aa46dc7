"""The guide from a Parquet file to a verdict and an exported policy, run from its first line to its last."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import birl
from birl.cli import main
from birl.dataset import ReplayBuffer

GUIDE = (Path(__file__).parents[2] / "docs" / "from-logs-to-a-decision.md").read_text(encoding="utf-8")


def run_guide() -> tuple[dict[str, Any], list[str]]:
    """Its names, and its commands."""
    names: dict[str, Any] = {}
    commands = []
    for language, block in re.findall(r"^```(python|toml|sh)\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE):
        if language == "python":
            Path("made.py").write_text(block, encoding="utf-8")
            names |= runpy.run_path("made.py")
        elif language == "toml":
            Path("schema.toml").write_text(block, encoding="utf-8")
        else:
            for line in block.splitlines():
                commands.append(line)
                words = shlex.split(line)[1:]
                assert main(words[: words.index(">")] if ">" in words else words) == 0, line
    return names, commands


@pytest.mark.slow
def test_from_a_parquet_file_to_a_verdict_and_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    world, commands = run_guide()
    said = capsys.readouterr()
    assert [line.split()[1:3] for line in commands][-2:] == [["ope", "report"], ["export", "runs/cql"]]
    assert len(commands) == 9
    assert "data: 6000 episodes, 6000 of them terminated" in said.out
    assert "runs/cql is the best of those with valid estimates: certify it." in said.out
    assert "runs/cql: ship" in said.out and "the whole interval is above 0.2" in said.out
    assert "with a Gamma of" in said.out and Path("ope/report.html").is_file() and Path("report.html").is_file()

    # the world is known: the interval holds the gain of the policy that was exported, played in it through its file
    session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
    schema = json.loads(Path("policy.schema.json").read_text())
    assert [each["column"] for each in schema["inputs"][0]["columns"]] == ["value", "channel", "hours"]
    policy = birl.ope.EpsilonGreedy(birl.load_learnable("runs/cql/model_1000.d3"), 0.1)  # type: ignore[arg-type]
    hours = [0.0]

    def choose(seen: dict[str, Any]) -> np.ndarray:
        missing = seen["hours"] is None
        hours[0] = hours[0] if missing else seen["hours"]
        row = [seen["value"], seen["channel"] == "app", seen["channel"] == "web", hours[0], missing]
        return policy.action_probability(np.array([row], np.float32))[0]

    def earned(chooses: Any, count: int) -> np.ndarray:
        rng, totals = np.random.default_rng(1), []
        for number in range(count):
            hours[0] = 0.0
            totals.append(sum(row["profit"] for row in world["visit"](number, rng, chooses)))
        return np.array(totals)

    mine, theirs = earned(choose, 1500), earned(world["today"], 20_000)
    truth = mine.mean() - theirs.mean()
    error = np.hypot(mine.std() / len(mine) ** 0.5, theirs.std() / len(theirs) ** 0.5)
    (found,) = json.loads(Path("ope/report.json").read_text())["policies"]
    low, high = found["gain"]
    assert found["verdict"] == "ship" and low - 3 * error < truth < high + 3 * error
    assert truth > 0.2

    x = np.concatenate([episode.observations for episode in ReplayBuffer.open("data/certify").episodes])
    noise = np.random.default_rng(0).normal(size=(len(x), 1)).astype(np.float32)
    action, stated = session.run(None, {"input_0": x, "noise": noise})
    assert stated == pytest.approx(policy.action_log_probability(x, action), abs=1e-4)
