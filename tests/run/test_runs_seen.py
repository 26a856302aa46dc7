"""What callbacks and evaluators see of a run, how they stop it, and the file of its episodes."""

from __future__ import annotations

import copy
import csv
import json
import os
import signal
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import birl
from birl.errors import ConfigError, EvaluationWarning
from birl.logging import FileAdapterFactory, NoopAdapterFactory
from birl.run import Hook, Run
from birl.run.hooks import with_run
from birl.run.offline import fitter
from birl.run.on_policy import on_policy_fitter
from birl.run.online import online_fitter
from run.fakes import Drift, FakeLearner
from run.test_offline import data

QUIET: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False, "n_steps_per_epoch": 10}


def offline(n_steps: int = 40, **options: Any) -> FakeLearner:
    learner = FakeLearner()
    list(fitter(learner, data(), n_steps, **{**QUIET, **options}))
    return learner


def scores(*values: float) -> Any:
    left = iter(values)
    return lambda algo, dataset: next(left)


def test_callbacks_see_metrics_and_scores() -> None:
    seen: list[Any] = []

    def after(algo: Any, epoch: int, step: int, run: Run) -> None:
        assert run.best is not None
        assert (run.step, run.epoch, run.n_steps) == (step, epoch, 40) and "loss" in run.metrics
        seen.append((run.metrics["a"], run.score, run.best["step"], list(run.scores.items())))

    offline(30 + 10, evaluators={"a": scores(1, 3, 2, 0)}, score="a", epoch_callback=after)
    assert [each[:3] for each in seen] == [(1, 1, 10), (3, 3, 20), (2, 2, 20), (0, 0, 20)]
    assert seen[-1][3] == [(10, 1), (20, 3), (30, 2), (40, 0)]


def test_early_stopping_takes_three_lines(tmp_path: Path) -> None:
    def patient(algo: Any, epoch: int, step: int, run: Run) -> None:
        if run.best is not None and step - run.best["step"] >= 20:
            run.stop("no improvement in 20 steps")

    evaluators = {"a": scores(3, 2, 1, 9)}
    given: Any = {"evaluators": evaluators, "score": "a", "epoch_callback": patient, "checkpoint": tmp_path}
    assert offline(20, **given).grad_step == 20
    assert offline(70, **given).grad_step == 30  # the resumed run remembers the best


def test_success_rates_and_lengths_of_training_episodes() -> None:
    rates, steps = [], []

    def after(algo: Any, epoch: int, step: int, run: Run) -> None:
        rates.append(np.mean([length < 7 for length in run.episode_lengths]))
        steps.append(sum(run.episode_lengths))
        assert len(run.episode_returns) == len(run.episode_lengths) > 0
        assert run.metrics["episode_length"] == pytest.approx(np.mean(run.episode_lengths))
        assert run.metrics["rollout_return"] == pytest.approx(np.mean(run.episode_returns))

    list(online_fitter(FakeLearner(), Drift(), n_steps=90, epoch_callback=after, **{**QUIET, "n_steps_per_epoch": 30}))
    assert len(rates) == 3 and 83 <= sum(steps) <= 90


class ByArgument(Hook):
    def __call__(self, algo: Any, epoch: int, step: int, run: Run) -> None:  # type: ignore[override]
        assert run.adapter is self.adapter
        if step >= 15:
            run.stop()


def last(algo: Any, epoch: int, step: int, *, run: Any = None) -> None:
    if step >= 15:
        run.stop("enough")


def more(algo: Any, epoch: int, step: int, *others: Any) -> None:
    if step >= 15:
        others[0].stop()


@pytest.mark.parametrize("callback", [ByArgument(), last, more, [more], ByArgument(5)])
def test_stop_ends_a_run(callback: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert offline(callback=callback).grad_step == 15


def test_an_evaluator_may_stop_the_run() -> None:
    def evaluator(algo: Any, dataset: Any, run: Run) -> float:
        assert "loss" in run.metrics
        run.stop("good enough")
        return 1.0

    assert offline(evaluators={"a": evaluator}).grad_step == 10


def test_habits_of_d3rlpy_go_on() -> None:
    """Default values, ``*args`` alone and mocks receive what they did."""
    mock, found = Mock(return_value=None), []
    offline(
        10,
        callback=lambda algo, epoch, step, seen=found: seen.append(step),
        epoch_callback=lambda *arguments: found.append(len(arguments)),
        evaluators={"a": lambda algo, dataset, v=2.0: v},
    )
    assert found == [*range(1, 11), 3]
    offline(10, epoch_callback=mock)
    assert len(mock.call_args.args) == 3
    birl.algos.DQNConfig(batch_size=4).create().fit(data(), 2, callback=print, **{**QUIET, "n_steps_per_epoch": 2})


@pytest.mark.parametrize("wrong", [lambda: None, lambda a, b: None, lambda a, b, c, d, e: None])
@pytest.mark.parametrize("which", ["callback", "epoch_callback"])
def test_functions_that_cannot_be_called(wrong: Any, which: str) -> None:
    for call in (offline, lambda **options: birl.algos.DQNConfig().create().fit(data(), 2, **{**QUIET, **options})):
        with pytest.raises(ConfigError, match=r"cannot be called with \(algo, epoch, step\)"):
            call(**{which: wrong})


def test_evaluators_that_cannot_be_called() -> None:
    with pytest.raises(ConfigError, match=r"cannot be called with \(algo, dataset\) or \(algo, dataset, run\)"):
        offline(evaluators={"a": lambda algo: 1.0})


def test_functions_without_a_signature_are_called() -> None:
    assert with_run(max, 2)(1, 2, "run") == 2


def test_many_seeds_see_the_run() -> None:
    def evaluator(algo: Any, dataset: Any, run: Run) -> float:
        return float(run.step)

    def stop(algo: Any, epoch: int, step: int, run: Run) -> None:
        assert run.metrics["seed_0/a"] == step
        run.stop()

    dqn = birl.algos.DQNConfig(batch_size=4)
    options: Any = {**QUIET, "epoch_callback": stop, "evaluators": {"a": evaluator}}
    found = birl.fit_many(dqn, data(), 40, seeds=2, **options)
    assert [each.grad_step for each in found] == [10, 10]


# -- the file of episodes --------------------------------------------------------------------------------------


def rows(folder: Path) -> tuple[Any, list[dict[str, str]]]:
    first, *rest = (folder / "time_monitor.csv").read_text().splitlines()
    return json.loads(first.removeprefix("#")), list(csv.DictReader(rest))


def train(folder: Path, loop: Any, n_steps: int, stop: int = -1, lanes: int = 2, **options: Any) -> None:
    def interrupt(algo: Any, epoch: int, step: int) -> None:
        if step == stop:
            os.kill(os.getpid(), signal.SIGINT)

    birl.seed(1)
    env = SyncVectorEnv([Drift] * lanes, autoreset_mode=AutoresetMode.SAME_STEP) if lanes else Drift()
    given: Any = {"logger_adapter": FileAdapterFactory(folder.parent), "experiment_name": folder.name, "seed": 1}
    given |= {"with_timestamp": False, "show_progress": False, "n_steps_per_epoch": 20, "callback": interrupt}
    try:
        list(loop(FakeLearner(), env, n_steps=n_steps, **given, **options))
    except KeyboardInterrupt:
        assert stop > 0


@pytest.mark.parametrize("loop", [online_fitter, on_policy_fitter])
@pytest.mark.parametrize("lanes", [0, 2])
def test_episodes_are_written_once(tmp_path: Path, loop: Any, lanes: int) -> None:
    train(tmp_path / "whole", loop, 60, lanes=lanes, checkpoint=tmp_path / "whole")
    train(tmp_path / "parts", loop, 60, stop=33, lanes=lanes, checkpoint=tmp_path / "parts")
    train(tmp_path / "parts", loop, 60, lanes=lanes, checkpoint=tmp_path / "parts")
    (origin, whole), (_, parts) = rows(tmp_path / "whole"), rows(tmp_path / "parts")
    assert origin["env_id"] == ("SyncVectorEnv" if lanes else "Drift") and origin["t_start"] > 1e9
    assert [list(row) for row in whole] == [["r", "l", "t", "step", "is_success"]] * len(whole) and len(whole) > 5
    same = [[(row["r"], row["l"], row["step"]) for row in each] for each in (whole, parts)]
    assert same[0] == same[1]
    assert all(1 <= int(row["l"]) <= 7 and 0 <= float(row["t"]) < 1000 for row in parts)
    times = [float(row["t"]) for row in parts]
    assert times == sorted(times)
    csvs = [(tmp_path / each / "episode_length.csv").read_bytes() for each in ("whole", "parts")]
    assert csvs[0] == csvs[1]


def test_lengths_are_those_of_the_environment(tmp_path: Path) -> None:
    class Known(gymnasium.Wrapper):  # type: ignore[type-arg]
        lengths: ClassVar[list[int]] = []

        def step(self, action: Any) -> Any:
            result = super().step(action)
            if result[2] or result[3]:
                self.lengths.append(self.env.steps)  # type: ignore[attr-defined]
            return result

    options: Any = {"logger_adapter": FileAdapterFactory(tmp_path), "experiment_name": "x", "with_timestamp": False}
    list(online_fitter(FakeLearner(), Known(Drift()), n_steps=60, seed=1, show_progress=False, **options))
    assert [int(row["l"]) for row in rows(tmp_path / "x")[1]] == Known.lengths


def test_collectors_write_episodes(tmp_path: Path) -> None:
    options: Any = {"logger_adapter": FileAdapterFactory(tmp_path), "experiment_name": "x", "with_timestamp": False}
    options |= {"cluster": birl.Cluster(collectors=2, transport="inline"), "show_progress": False}
    birl.algos.DQNConfig(batch_size=4).create().fit_online("CartPole-v1", n_steps=200, **options)
    assert sum(int(row["l"]) for row in rows(tmp_path / "x")[1]) > 50


def test_offline_runs_have_no_episodes(tmp_path: Path) -> None:
    offline(10, logger_adapter=FileAdapterFactory(tmp_path), experiment_name="x", with_timestamp=False)
    assert not (tmp_path / "x/time_monitor.csv").exists()
    line = json.loads((tmp_path / "x/metrics.jsonl").read_text())
    assert line["time_steps_per_second"] > 0 and line["time_elapsed"] > 0 and line["time_remaining"] == 0


# -- successes -------------------------------------------------------------------------------------------------


class Succeeding(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Reports a success at the end of every other episode, and the opposite before the end."""

    episode = 0

    def reset(self, **options: Any) -> Any:
        self.episode += 1
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        succeeds = self.episode % 2 == 0
        return *result, {**info, "is_success": succeeds if result[2] or result[3] else not succeeds}


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
@pytest.mark.parametrize("loop", [online_fitter, on_policy_fitter])
def test_successes_are_counted(tmp_path: Path, loop: Any, mode: AutoresetMode | None) -> None:
    seen: list[Run] = []
    make = lambda: Succeeding(Drift())  # noqa: E731
    env = make() if mode is None else SyncVectorEnv([make, make], autoreset_mode=mode)
    options: Any = {"logger_adapter": FileAdapterFactory(tmp_path), "experiment_name": "x", "with_timestamp": False}
    options |= {"show_progress": False, "n_steps_per_epoch": 60, "seed": 1, "score": "success_rate"}
    options |= {"epoch_callback": lambda algo, epoch, step, run: seen.append(copy.copy(run))}
    evaluation: Any = {"eval_env": make(), "eval_n_trials": 5}
    (found,) = [metrics for _, metrics in loop(FakeLearner(), env, n_steps=60, **options, **evaluation)]
    written = [float(row["is_success"]) for row in rows(tmp_path / "x")[1]]
    by_lane = written if mode is None else written[::2]
    assert len(written) > 5 and set(written) == {0.0, 1.0} and len(by_lane) > 2
    assert found["success_rate"] == pytest.approx(np.mean(written))
    assert seen[0].episode_successes == written and seen[0].best is not None
    assert found["evaluation_success_rate"] == 0.4  # of 5 episodes, the second and the fourth
    if mode is None:
        assert written == [float(index % 2) for index in range(len(written))]


class Silent(Succeeding):
    """Reports only the failures."""

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, {key: value for key, value in info.items() if key != "is_success" or not value}


def test_episodes_that_report_no_success_are_named_once() -> None:
    options: Any = {
        "n_steps_per_epoch": 60,
        "show_progress": False,
        "logger_adapter": birl.logging.NoopAdapterFactory(),
    }
    with pytest.warns(EvaluationWarning, match=r"\d+ of \d+ training episodes of epoch 1 ended with") as found:
        metrics = [each for _, each in online_fitter(FakeLearner(), Silent(Drift()), n_steps=120, seed=1, **options)]
    assert len(found) == 1 and [each["success_rate"] for each in metrics] == [0, 0]


def test_successes_of_workers_are_counted(tmp_path: Path) -> None:
    options: Any = {"logger_adapter": FileAdapterFactory(tmp_path), "with_timestamp": False, "show_progress": False}
    cluster = birl.Cluster(collectors=2, transport="inline")
    env = lambda number: Succeeding(gymnasium.make("CartPole-v1"))  # noqa: E731
    dqn = birl.algos.DQNConfig(batch_size=4).create()
    dqn.fit_online(env, n_steps=200, cluster=cluster, experiment_name="x", **options)
    found = json.loads((tmp_path / "x/metrics.jsonl").read_text())
    written = [float(row["is_success"]) for row in rows(tmp_path / "x")[1]]
    assert found["success_rate"] == pytest.approx(np.mean(written)) and set(written) == {0.0, 1.0}


def test_evaluators_report_success_rates() -> None:
    env = SyncVectorEnv([lambda: Succeeding(Drift())] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    dqn = birl.algos.DQNConfig(batch_size=4).create()
    dqn.build_with_env(Drift())
    evaluator = birl.metrics.EnvironmentEvaluator(env, n_trials=4)
    assert isinstance(evaluator(dqn), float) and evaluator.success_rate == 0.5
    assert birl.metrics.EnvironmentStatistics(env, n_trials=4)(dqn)["success_rate"] == 0.5
    plain = birl.metrics.EnvironmentEvaluator(Drift(), n_trials=4)
    assert isinstance(plain(dqn), float) and plain.success_rate is None
    assert "success_rate" not in birl.metrics.EnvironmentStatistics(Drift(), n_trials=4)(dqn)


def test_a_success_must_be_a_number() -> None:
    class Wrong(Succeeding):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {"is_success": "yes"}

    with pytest.raises(birl.errors.EnvironmentMismatchError, match=r"info\['is_success'\]='yes'"):
        list(online_fitter(FakeLearner(), Wrong(Drift()), n_steps=60, **QUIET))


class Reporting(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Reports entries of info in the steps of every ``every``-th episode."""

    def __init__(self, entries: dict[str, Any], every: int = 1) -> None:
        super().__init__(Drift())
        self.entries, self.every, self.episode = entries, every, 0

    def reset(self, **options: Any) -> Any:
        self.episode += 1
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, info | (self.entries if self.episode % self.every == 0 else {})


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
@pytest.mark.parametrize(
    ("entries", "rate"),
    [
        ({"success": 1.0}, 1.0),
        ({"success": 1.0, "is_success": False}, 0.0),
        ({"success": "yes"}, None),
        ({"success": 7}, None),
    ],
)
def test_success_counts_without_is_success(entries: Any, rate: Any, mode: AutoresetMode | None) -> None:
    make = lambda: Reporting(entries)  # noqa: E731
    env = make() if mode is None else SyncVectorEnv([make, make], autoreset_mode=mode)
    dqn = birl.algos.DQNConfig(batch_size=4).create()
    dqn.build_with_env(Drift())
    evaluator = birl.metrics.EnvironmentEvaluator(env, n_trials=4)
    evaluator(dqn)
    assert evaluator.success_rate == rate


@pytest.mark.parametrize("value", [-1, 2, "yes"])
@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_successes_lie_from_0_to_1(value: Any, mode: AutoresetMode | None) -> None:
    make = lambda: Reporting({"is_success": value})  # noqa: E731
    env = make() if mode is None else SyncVectorEnv([make, make], autoreset_mode=mode)
    dqn = birl.algos.DQNConfig(batch_size=4).create()
    dqn.build_with_env(Drift())
    with pytest.raises(birl.errors.EnvironmentMismatchError, match="it must be True or False, or from 0 to 1"):
        birl.metrics.EnvironmentEvaluator(env, n_trials=4)(dqn)


def test_episodes_without_a_success_are_counted_in_a_warning() -> None:
    dqn = birl.algos.DQNConfig(batch_size=4).create()
    dqn.build_with_env(Drift())
    evaluator = birl.metrics.EnvironmentEvaluator(Reporting({"is_success": True}, every=2), n_trials=4)
    with pytest.warns(birl.errors.EvaluationWarning, match="2 of 4 episodes ended with"):
        evaluator(dqn)
    assert evaluator.success_rate == 1.0
