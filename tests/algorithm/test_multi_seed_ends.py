"""How runs of many seeds end, keep their models, and go on after an interrupted evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run.fakes import InterruptedScores, Scores

import birl
from birl.algos import DQNConfig
from birl.dataset import MDPDataset
from birl.errors import ConfigError, ResumeError
from birl.logging import FileAdapterFactory

pytestmark = pytest.mark.filterwarnings("ignore::birl.errors.EvaluationWarning")  # one of `Scores` is NaN


def train(folder: Path, **options: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    birl.seed(0)
    dataset = MDPDataset(
        rng.normal(size=(60, 2)).astype(np.float32),
        rng.integers(2, size=60),
        rng.normal(size=60).astype(np.float32),
        np.arange(60) % 10 == 9,
    )
    options = {"n_steps_per_epoch": 2, "with_timestamp": False, "show_progress": False, **options}
    options |= {"logger_adapter": FileAdapterFactory(folder), "experiment_name": "run"}
    return birl.fit_many(DQNConfig(batch_size=4), dataset, 8, seeds=2, checkpoint=folder / "checkpoint", **options)


def test_a_callback_of_one_seed_ends_all(tmp_path: Path) -> None:
    seen: list[Any] = []

    def stop(algo: Any, epoch: int, step: int) -> bool:
        seen.append(step)
        return not (step == 4 and seen.count(4) == 1)  # the first of two

    assert [algo.grad_step for algo in train(tmp_path, callback=stop)] == [4, 4]
    with pytest.raises(ConfigError, match="callback is 3"):
        train(tmp_path, callback=3)


def test_each_seed_keeps_its_newest_models(tmp_path: Path) -> None:
    train(tmp_path, keep_models=2)
    for seed in (0, 1):
        found = sorted(path.name for path in (tmp_path / f"run/seed_{seed}").glob("*.d3"))
        assert found == ["model_6.d3", "model_8.d3"]


@pytest.mark.slow
def test_the_folder_of_all_runs_is_held(tmp_path: Path) -> None:
    def twice(algo: Any, epoch: int, step: int) -> None:
        with pytest.raises(ResumeError, match="another run is active"):
            train(tmp_path)

    train(tmp_path, epoch_callback=twice)


def test_a_signal_in_an_evaluation_does_not_advance_evaluators_twice(tmp_path: Path) -> None:
    armed = [True]
    with pytest.raises(SystemExit):
        train(tmp_path / "stopped", evaluators=lambda seed: {"first": Scores(), "score": InterruptedScores(armed)})
    train(tmp_path / "stopped", evaluators=lambda seed: {"first": Scores(), "score": InterruptedScores(armed)})
    train(tmp_path / "straight", evaluators=lambda seed: {"first": Scores(), "score": InterruptedScores(armed)})
    for name in ("seed_0/first.csv", "seed_1/first.csv", "seed_0/score.csv", "seed_1/score.csv"):
        assert (tmp_path / "stopped/run" / name).read_bytes() == (tmp_path / "straight/run" / name).read_bytes()
