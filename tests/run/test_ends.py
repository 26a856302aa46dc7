"""The end of runs and their continuation: scores, best models, kept models, callbacks that end a run, longer runs."""

from __future__ import annotations

import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import birl.seeding
from birl.errors import ConfigError
from birl.logging import CombineAdapter, FileAdapterFactory, NoopAdapter
from birl.run.offline import fitter
from birl.run.on_policy import on_policy_fitter
from birl.run.online import online_fitter
from run.fakes import Drift, FakeLearner, Scores
from run.test_offline import data, quiet
from run.test_progress import Terminal

pytestmark = pytest.mark.filterwarnings("ignore::birl.errors.EvaluationWarning")  # one of `Scores` is NaN


def run(folder: Path, n_steps: int = 70, seed: int = 1, **options: Any) -> tuple[FakeLearner, list[Any]]:
    birl.seeding.seed(seed)
    learner = FakeLearner()
    options = {
        "n_steps_per_epoch": 10,
        "checkpoint": folder,
        "logger_adapter": FileAdapterFactory(folder.parent),
        "experiment_name": folder.name,
        "with_timestamp": False,
        "show_progress": False,
        **options,
    }
    return learner, list(fitter(learner, data(), n_steps, **options))


def models(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(".d3"))


def best(folder: Path) -> Any:
    return json.loads((folder / "model_best.json").read_text(encoding="utf-8"))


# -- the best model --------------------------------------------------------------------------------------------


def test_the_best_model_is_kept(tmp_path: Path) -> None:
    weights = {}
    learner, _ = run(
        tmp_path / "run",
        evaluators={"other": lambda algo, dataset: 9.0, "score": Scores()},
        score="score",
        epoch_callback=lambda algo, epoch, step: weights.__setitem__(step, algo.weight.clone()),
    )
    assert best(tmp_path / "run") == {"metric": "score", "score": 5.0, "step": 60, "direction": "maximize"}
    assert (tmp_path / "run/model_best.d3").read_bytes() == weights[60].numpy().tobytes()
    assert not torch.equal(learner.weight, weights[60])


def test_a_resumed_run_remembers_the_best(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, 20, evaluators={"score": Scores()}, score="score")
    (folder / "model_best.d3").unlink()
    run(folder, 50, evaluators={"score": Scores()}, score="score")
    assert not (folder / "model_best.d3").exists()  # nothing was better than 3
    run(folder, 60, evaluators={"score": Scores()}, score="score")
    assert best(folder)["step"] == 60


def test_without_a_score_no_model_is_the_best(tmp_path: Path) -> None:
    run(tmp_path / "run", 20, evaluators={"score": Scores()})
    assert models(tmp_path / "run") == ["model_10.d3", "model_20.d3"]


@pytest.mark.parametrize("options", [{"score": "loss"}, {"score": 3}, {"stop_at": 1.0}, {"score": "a", "stop_at": "b"}])
def test_scores_that_cannot_be(options: dict[str, Any]) -> None:
    learner = FakeLearner()
    with pytest.raises(ConfigError, match="score|stop_at"):
        list(fitter(learner, data(), 10, evaluators={"a": Scores()}, **quiet(**options)))
    assert learner.grad_step == 0


def test_online_the_evaluation_is_the_score(tmp_path: Path) -> None:
    options = {"logger_adapter": FileAdapterFactory(tmp_path), "with_timestamp": False, "show_progress": False}
    options |= {"n_steps_per_epoch": 20, "eval_n_trials": 2}
    list(online_fitter(FakeLearner(), Drift(), n_steps=40, experiment_name="a", eval_env=Drift(), **options))
    assert best(tmp_path / "a")["metric"] == "evaluation"
    del options["eval_n_trials"]
    list(online_fitter(FakeLearner(), Drift(), n_steps=40, experiment_name="b", score="rollout_return", **options))
    assert best(tmp_path / "b")["metric"] == "rollout_return"
    list(online_fitter(FakeLearner(), Drift(), n_steps=40, experiment_name="c", **options))
    assert models(tmp_path / "c") == ["model_20.d3", "model_40.d3"]


# -- runs that end early ---------------------------------------------------------------------------------------


def test_a_run_ends_at_a_score(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, options = tmp_path / "run", {"score": "score", "stop_at": 3, "save_interval": 7}
    learner, epochs = run(folder, evaluators={"score": Scores()}, **options)
    assert (learner.grad_step, len(epochs)) == (20, 2)
    assert models(folder) == ["model_20.d3", "model_best.d3"]

    again, epochs = run(folder, evaluators={"score": Scores()}, **options)
    assert (epochs, again.grad_step) == ([], 20)
    assert torch.equal(again.weight, learner.weight)
    assert "ended after 20 steps: score reached 3 (stop_at=3); go_on=True" in caplog.text

    options["stop_at"] = 5.0
    assert run(folder, evaluators={"score": Scores()}, **options)[1] == []
    longer, epochs = run(folder, evaluators={"score": Scores()}, go_on=True, **options)
    assert longer.grad_step == 60
    whole, _ = run(tmp_path / "whole", 60)
    assert torch.equal(longer.weight, whole.weight)


@pytest.mark.parametrize(
    ("which", "no"),
    [
        ("callback", False),
        ("epoch_callback", False),
        ("callback", np.False_),
        ("callback", torch.tensor(False)),
        ("epoch_callback", np.array(False)),
    ],
)
def test_a_callback_ends_the_run(tmp_path: Path, which: str, no: Any, caplog: pytest.LogCaptureFixture) -> None:
    def stop(algo: Any, epoch: int, step: int) -> Any:
        return no if step >= 25 else None

    end = 25 if which == "callback" else 30
    learner, epochs = run(tmp_path / "run", **{which: stop})
    assert (learner.grad_step, len(epochs)) == (end, 3)
    assert f"model_{end}.d3" in models(tmp_path / "run")
    assert run(tmp_path / "run", **{which: stop})[1] == []
    assert "callback returned False; go_on=True continues it" in caplog.text
    longer, _ = run(tmp_path / "run", go_on=True)
    whole, _ = run(tmp_path / "whole")
    assert torch.equal(longer.weight, whole.weight)


@pytest.mark.parametrize("value", [None, 0, 0.0, (), True, np.True_, torch.tensor(0)])
def test_only_false_ends_a_run(value: Any) -> None:
    learner = FakeLearner()
    list(fitter(learner, data(), 10, callback=lambda *_: value, epoch_callback=lambda *_: value, **quiet()))
    assert learner.grad_step == 10


def test_online_runs_end_early_too() -> None:
    learner, seen = FakeLearner(), []

    def stop(algo: Any, epoch: int, step: int) -> bool:
        seen.append(step)
        return step < 13

    list(online_fitter(learner, Drift(), n_steps=40, callback=stop, **quiet()))
    assert seen[-1] == 13


# -- runs that have ended --------------------------------------------------------------------------------------


def test_a_finished_run_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "run", 20)
    assert "nothing to do" not in caplog.text
    assert run(tmp_path / "run", 20)[1] == []
    assert "made all its 20 steps; a larger n_steps continues it" in caplog.text
    assert "goes on from" not in caplog.text
    caplog.clear()
    assert len(run(tmp_path / "run", 40)[1]) == 2
    assert "nothing to do" not in caplog.text


def test_the_run_folder_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "birl"):
        run(tmp_path / "run", 20, checkpoint=tmp_path / "state")
        assert f"the run is in {tmp_path / 'run'} and {tmp_path / 'state'}" in caplog.text
        assert "goes on" not in caplog.text
        run(tmp_path / "run", 30, checkpoint=tmp_path / "state")
    assert f"{tmp_path / 'state'}; it continues from step 20" in caplog.text


def test_a_terminal_shows_what_the_caller_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is not reported above the bar if the user named it; a finished run has no bar."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    run(tmp_path / "run", 20, show_progress=True)
    assert "20/20" in terminal.getvalue()
    assert "the run is in" not in terminal.getvalue()
    length = len(terminal.getvalue())
    run(tmp_path / "run", 20, show_progress=True)
    assert terminal.getvalue()[length:] == ""
    run(tmp_path / "other", 20, show_progress=True, with_timestamp=True)
    assert f"the run is in {tmp_path / 'other_'}" in terminal.getvalue()


# -- how many models are kept ----------------------------------------------------------------------------------


def test_the_newest_models_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("model_7.d3", "model_best_of_mine.d3"):
        (folder / name).write_bytes(b"mine")
    run(folder, 30, keep_models=2, evaluators={"score": Scores()}, score="score")
    mine = {"model_7.d3", "model_best_of_mine.d3", "model_best.d3"}
    assert set(models(folder)) - mine == {"model_20.d3", "model_30.d3"}
    run(folder, 45, keep_models=2, evaluators={"score": Scores()}, score="score")
    assert set(models(folder)) == mine | {"model_40.d3", "model_45.d3"}


def test_every_place_keeps_the_newest_models(tmp_path: Path) -> None:
    class Old:  # an adapter with the methods of older versions only
        def __getattr__(self, name: str) -> Any:
            if name in ("write_params", "before_write_metric", "write_metric", "after_write_metric", "save_model"):
                return lambda *_: None
            if name == "close":
                return lambda: None
            raise AttributeError(name)

    class Factory:
        def create(self, experiment_name: str) -> Any:
            places = [FileAdapterFactory(tmp_path / each).create("run") for each in "ab"]
            return CombineAdapter([*places, Old(), NoopAdapter()])  # type: ignore[list-item]

    run(tmp_path / "c", 30, logger_adapter=Factory(), keep_models=1, evaluators={"score": Scores()}, score="score")
    for each in "ab":
        assert models(tmp_path / each / "run") == ["model_30.d3", "model_best.d3"]
        assert best(tmp_path / each / "run")["step"] == 20


# -- longer runs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "lanes", "exact"), [(20, 1, True), (20, 2, True), (22, 1, False), (19, 2, False)])
def test_a_longer_rollout_run_says_whether_it_is_exact(tmp_path: Path, first: int, lanes: int, exact: bool) -> None:
    def train(folder: Path, n_steps: int) -> torch.Tensor:
        birl.seeding.seed(3)
        env = SyncVectorEnv([Drift] * lanes, autoreset_mode=AutoresetMode.DISABLED)
        learner = FakeLearner()
        list(on_policy_fitter(learner, env, n_steps, **quiet(checkpoint=folder)))
        return learner.weight

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(tmp_path / "run", first)
        assert caught == []
        longer = train(tmp_path / "run", 40)
    assert torch.equal(longer, train(tmp_path / "whole", 40)) == exact
    assert [str(each.message) for each in caught if "last rollout was cut short" in str(each.message)] != [] or exact
    assert caught == [] or not exact


def test_a_run_that_compiles_on_the_way_says_so(tmp_path: Path) -> None:
    class Compiling(FakeLearner):
        compiled = True

    def train(learner: FakeLearner, n_steps: int) -> None:
        list(fitter(learner, data(), n_steps, **quiet(checkpoint=tmp_path / "run")))

    train(FakeLearner(), 20)
    with pytest.warns(RuntimeWarning, match="not compiled so far, and are compiled from now on"):
        train(Compiling(), 40)


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_numbers_of_models_that_cannot_be(value: Any) -> None:
    with pytest.raises(ConfigError, match="keep_models is"):
        list(fitter(FakeLearner(), data(), 10, **quiet(keep_models=value)))
