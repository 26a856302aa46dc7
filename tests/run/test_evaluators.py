"""Evaluators: their names and results, what is kept if one fails, and the direction of a score."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import birl.seeding
from birl.errors import ConfigError, EvaluationWarning, ResumeError
from birl.logging import FileAdapterFactory
from birl.metrics import (
    AverageValueEstimationEvaluator,
    ContinuousActionDiffEvaluator,
    DiscreteActionMatchEvaluator,
    TDErrorEvaluator,
)
from birl.run.evaluators import Score, direction_of
from birl.run.offline import fitter
from run.fakes import FakeLearner
from run.test_offline import data


def run(folder: Path, evaluators: Any, n_steps: int = 30, **options: Any) -> tuple[FakeLearner, list[Any]]:
    birl.seeding.seed(1)
    learner, given = FakeLearner(), {"n_steps_per_epoch": 10, "with_timestamp": False, "show_progress": False}
    given |= {"logger_adapter": FileAdapterFactory(folder.parent), "experiment_name": folder.name}
    return learner, list(fitter(learner, data(), n_steps, evaluators=evaluators, **{**given, **options}))


def gives(*values: Any) -> Callable[[Any, Any], Any]:
    left = iter(values)
    return lambda algo, dataset: next(left)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "'mine' returned None.*does it end without a return"),
        ("bad", "'mine' returned 'bad'; it must return a number"),
        (np.array([3.0]), r"'mine' returned an array of shape \(1,\).*return its mean"),
        (torch.zeros(2, 3), r"'mine' returned an array of shape \(2, 3\)"),
        (1j, "'mine' returned 1j"),
        ([1.0], r"'mine' returned \[1.0\]"),
        ({"mean": 1.0, "top": None}, "'mine_top' returned None"),
    ],
)
def test_what_is_no_number_names_the_evaluator_and_keeps_the_model(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(tmp_path / "run", {"good": gives(1.0), "mine": gives(value)})
    assert (tmp_path / "run/model_10.d3").exists()
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text())
    assert line["step"] == 10 and line["good"] == 1.0 and "loss" in line and "mine" not in line


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2), np.array(2), torch.tensor(2.0), torch.tensor(2, requires_grad=False), {"mean": 2}]
)
def test_numbers_of_all_kinds_are_taken(tmp_path: Path, value: Any) -> None:
    _, epochs = run(tmp_path / "run", {"mine": gives(value)}, 10)
    assert epochs[0][1]["mine"] == 2.0 and type(epochs[0][1]["mine"]) is float


def test_a_failed_evaluation_is_repeated_when_the_run_is_resumed(tmp_path: Path) -> None:
    def broken(algo: Any, dataset: Any) -> float:
        if algo.grad_step == 20 and not (tmp_path / "mended").exists():
            raise KeyError("bug")
        return float(algo.grad_step)

    with pytest.raises(KeyError) as caught:
        run(tmp_path / "run", {"mine": broken}, checkpoint=tmp_path / "run")
    assert "evaluator 'mine'" in caught.value.__notes__[0]
    (tmp_path / "mended").touch()
    learner, epochs = run(tmp_path / "run", {"mine": broken}, checkpoint=tmp_path / "run")
    assert [metrics["mine"] for _, metrics in epochs] == [20.0, 30.0]
    whole, _ = run(tmp_path / "whole", {"mine": broken}, checkpoint=tmp_path / "whole")
    assert torch.equal(learner.weight, whole.weight)
    for name in ("mine.csv", "loss.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("which", ["callback", "epoch_callback"])
def test_the_error_of_a_callback_keeps_the_model(tmp_path: Path, which: str) -> None:
    def broken(algo: Any, epoch: int, step: int) -> None:
        if step == 20:
            raise KeyError("bug")

    options = {"save_interval": 3, "checkpoint": tmp_path / "run"}
    with pytest.raises(KeyError):
        run(tmp_path / "run", None, **{which: broken}, **options)
    assert (tmp_path / "run/model_20.d3").exists()
    learner, _ = run(tmp_path / "run", None, **options)
    assert torch.equal(learner.weight, run(tmp_path / "whole", None)[0].weight)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("-inf")])
def test_what_is_not_finite_is_logged_and_ranks_no_model(tmp_path: Path, value: Any) -> None:
    with pytest.warns(EvaluationWarning, match="'mine' returned"):
        run(tmp_path / "run", {"mine": gives(1.0, value, 0.5)}, score="mine")
    assert json.loads((tmp_path / "run/model_best.json").read_text())["step"] == 10
    assert len((tmp_path / "run/mine.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize("name", ["step", "epoch", "gradients", "rollout_return", "", "a\nb", "\0", "x" * 300, 3, None])
def test_names_that_cannot_be(tmp_path: Path, name: Any) -> None:
    with pytest.raises(ConfigError, match="evaluators has the name"):
        run(tmp_path / "run", {name: gives(1.0)})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "evaluators",
    [
        {"loss": gives(1.0)},
        {"a": gives({"b": 1.0}), "a_b": gives(1.0)},
        {"a/b": gives(1.0), "a_b": gives(2.0)},
    ],
)
def test_no_metric_is_overwritten(tmp_path: Path, evaluators: Any) -> None:
    with pytest.raises(ConfigError, match="the name of another metric"):
        run(tmp_path / "run", evaluators)
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text())
    assert line["loss"] != 1.0 and line.get("a_b", 1.0) == 1.0 and (tmp_path / "run/model_10.d3").exists()


# -- the direction of a score ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "direction", "step"),
    [("td_error", None, 20), ("mine", "minimize", 20), ("mine", None, 30), ("td_error", "maximize", 30)],
)
def test_lower_scores_may_be_better(tmp_path: Path, name: str, direction: str | None, step: int) -> None:
    run(tmp_path / "run", {name: gives(5.0, 1.0, 9.0)}, score=name, score_direction=direction)
    best = json.loads((tmp_path / "run/model_best.json").read_text())
    assert best["step"] == step and best["direction"] == ("minimize" if step == 20 else "maximize")


def test_evaluators_know_their_direction() -> None:
    lower, higher = (TDErrorEvaluator, ContinuousActionDiffEvaluator), (AverageValueEstimationEvaluator,)
    assert {Score("x", "x").default_direction({"x": kind()}) for kind in lower} == {"minimize"}
    assert {Score("loss", "loss").default_direction({"loss": kind()}) for kind in higher} == {"maximize"}
    assert Score("x", "x").default_direction({"x": DiscreteActionMatchEvaluator()}) == "maximize"
    assert Score("rollout_return", None).default_direction({}) == "maximize"


@pytest.mark.parametrize(
    ("score", "step", "direction"),
    [("a/b", 20, "maximize"), ("a_b", 20, "maximize"), ("a_loss", 30, "minimize"), ("a/mean", 10, "maximize")],
)
def test_a_part_of_an_evaluator_may_be_the_score(tmp_path: Path, score: str, step: int, direction: str) -> None:
    results = [
        {"mean": 9.0, "b": 1.0, "loss": 3.0},
        {"mean": 2.0, "b": 5.0, "loss": 2.0},
        {"mean": 1, "b": 0, "loss": 1},
    ]
    run(tmp_path / "run", {"a": gives(*results)}, score=score)
    best = json.loads((tmp_path / "run/model_best.json").read_text())
    metric = {"a/mean": "a"}.get(score, score.replace("/", "_"))
    assert (best["metric"], best["step"], best["direction"]) == (metric, step, direction)
    _, epochs = run(tmp_path / "stops", {"a": gives(*results)}, score="a/b", stop_at=4)
    assert len(epochs) == 2


def test_unknown_parts_are_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"returned no 'a_c', which is the score: give one of 'a', 'a_b' as score"):
        run(tmp_path / "run", {"a": gives({"mean": 1.0, "b": 2.0})}, score="a/c")
    assert (tmp_path / "run/model_10.d3").exists() and (tmp_path / "run/a_b.csv").exists()
    for score in ("b", "a", "tde", "td_std"):  # the evaluators of birl have known parts
        with pytest.raises(ConfigError, match="score is .* one of 'td'"):
            run(tmp_path / "none", {"td": TDErrorEvaluator()}, score=score)
    assert not (tmp_path / "none").exists()


def test_a_run_ends_at_a_low_score(tmp_path: Path) -> None:
    _, epochs = run(tmp_path / "run", {"error": gives(5.0, 1.0, 9.0)}, score="error", stop_at=2.0)
    assert len(epochs) == 2


def test_a_run_is_not_resumed_with_another_direction(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, {"a": gives(1.0)}, 10, score="a", checkpoint=folder)
    with pytest.raises(ResumeError, match="score_direction is 'minimize'.* by 'a' with 'maximize': give"):
        run(folder, {"a": gives(2.0)}, 20, score="a", score_direction="minimize", checkpoint=folder)
    run(folder, {"a": gives(0.5)}, 20, score="a", score_direction="maximize", checkpoint=folder)
    assert json.loads((folder / "model_best.json").read_text())["step"] == 10


@pytest.mark.parametrize("direction", ["min", "max", -1, True])
def test_a_direction_of_an_evaluator_that_cannot_be(tmp_path: Path, direction: Any) -> None:
    def mine(algo: Any, dataset: Any) -> float:
        raise AssertionError

    vars(mine)["direction"] = direction
    with pytest.raises(ConfigError, match="direction of the evaluator 'mine' is .* one of 'maximize', 'minimize'"):
        run(tmp_path / "run", {"mine": mine})
    assert not (tmp_path / "run").exists()


COSTS = """
q-loss val.loss timeLoss absTDError RMSE mse2 a/nll perplexity kl KLDistance violations crashes losses n_collisions
penalties neg_return negative_log_likelihood
"""


@pytest.mark.parametrize("name", COSTS.split())
def test_names_of_costs(name: str) -> None:
    assert direction_of(name) == "minimize"


@pytest.mark.parametrize("name", ["loss_reduction", "neg_cost", "negMSE", "glossy", "return", "riskless", "Score"])
def test_names_of_what_is_no_cost(name: str) -> None:
    assert direction_of(name) == "maximize"


def test_no_best_model_may_be_kept(tmp_path: Path) -> None:
    run(tmp_path / "run", {"a": gives(1.0, 2.0, 3.0)}, score="a", keep_best=False)
    assert not [name for name in os.listdir(tmp_path / "run") if name.startswith("model_best")]


@pytest.mark.parametrize("options", [{"score_direction": "minimize"}, {"score": "a", "score_direction": "down"}])
def test_directions_that_cannot_be(tmp_path: Path, options: Any) -> None:
    with pytest.raises(ConfigError, match="score_direction"):
        run(tmp_path / "run", {"a": gives(1.0)}, **options)


# -- lines of metrics that no run writes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["[1]", "1", '"x"', "null", "[" * 100_000, '{"a', '{"\\u0000": 1, "' + "x" * 999 + '": 2}']
)
def test_lines_that_no_run_writes_are_dropped(tmp_path: Path, line: str) -> None:
    folder = tmp_path / "run"
    run(folder, None, 10, checkpoint=folder)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(line + "\n")
    run(folder, None, 20, checkpoint=folder)
    assert [json.loads(each)["step"] for each in (folder / "metrics.jsonl").read_text().splitlines()] == [10, 20]
