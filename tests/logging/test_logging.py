"""Logger adapters: what lies in a run folder, and how it is cut back on resume."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run.fakes import signal_at

import birl
from birl.engine import compiler
from birl.errors import ConfigError, MissingExtraError, NonFiniteError, WriteError
from birl.logging import (
    BirlLogger,
    CombineAdapter,
    CombineAdapterFactory,
    FileAdapter,
    FileAdapterFactory,
    LoggerAdapter,
    LoggerAdapterFactory,
    LoggingStrategy,
    MLflowAdapterFactory,
    NoopAdapterFactory,
    TensorboardAdapterFactory,
    WanDBAdapterFactory,
)
from birl.logging.averages import GradientStatistics
from birl.logging.logger import optional
from tests.tiers import slow_but


class Model:
    def save(self, fname: str) -> None:
        Path(fname).write_text("model")


def rows(path: Path) -> list[list[str]]:
    return list(csv.reader(path.read_text().splitlines()))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def write(adapter: LoggerAdapter, epoch: int, **metrics: float) -> None:
    adapter.before_write_metric(epoch, epoch * 10)
    for name, value in metrics.items():
        adapter.write_metric(epoch, epoch * 10, name, value)
    adapter.after_write_metric(epoch, epoch * 10)


def test_fault_14_run_folder_layout(tmp_path: Path) -> None:
    """Every CSV file of a run has the same three columns and no header, so that all of them can be plotted."""
    logger = BirlLogger(FileAdapterFactory(tmp_path), "DQN", with_timestamp=False)
    logger.add_params(
        {"observation_shape": (3,), "action_size": 2, "config": {"type": "DQN", "params": {"x": np.float32(1)}}}
    )
    for epoch in (1, 2):
        logger.add_metric("loss", 1.0 * epoch)
        logger.add_metric("loss", torch.tensor(3.0 * epoch))
        with logger.measure_time("step"):
            pass
        metrics = logger.commit(epoch, epoch * 10)
        logger.save_model(epoch * 10, Model())
    logger.close()
    folder = tmp_path / "DQN"
    assert sorted(os.listdir(folder)) == [
        "loss.csv", "metrics.jsonl", "model_10.d3", "model_20.d3", "params.json", "time_step.csv",
    ]  # fmt: skip
    assert rows(folder / "loss.csv") == [["1", "10", "2.0"], ["2", "20", "4.0"]]
    for path in folder.glob("*.csv"):
        assert all(len([float(field) for field in row]) == 3 for row in rows(path))
    assert metrics["loss"] == 4.0
    assert metrics["time_step"] >= 0.0
    assert [line["loss"] for line in lines(folder)] == [2.0, 4.0]
    params = json.loads((folder / "params.json").read_text())
    assert params == {"observation_shape": [3], "action_size": 2, "config": {"type": "DQN", "params": {"x": 1.0}}}


def test_no_secret_gets_into_a_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hush-1234")
    adapter = FileAdapterFactory(tmp_path).create("run")
    adapter.write_params({"config": {}})
    write(adapter, 1, loss=1.0)
    assert not any("hush-1234" in path.read_text() for path in (tmp_path / "run").iterdir())


def test_json_lines_stay_json_when_a_metric_is_not_finite(tmp_path: Path) -> None:
    adapter = FileAdapter(tmp_path)
    write(adapter, 1, loss=float("nan"), value=2.0)
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    assert lines(tmp_path) == [{"epoch": 1, "step": 10, "loss": None, "value": 2.0}]
    assert rows(tmp_path / "loss.csv") == [["1", "10", "nan"]]


def test_metric_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    write(FileAdapter(tmp_path / "run"), 1, **{"../evil": 1.0, "eval/return": 2.0})
    assert sorted(os.listdir(tmp_path)) == ["run"]
    assert sorted(os.listdir(tmp_path / "run")) == [".._evil.csv", "eval_return.csv", "metrics.jsonl"]


def test_resume_cuts_files_back(tmp_path: Path) -> None:
    adapter = FileAdapter(tmp_path)
    write(adapter, 1, loss=1.0, value=1.0)
    state = json.loads(json.dumps(adapter.get_state()))
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    write(adapter, 2, loss=2.0, late=3.0)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 3, "half')  # killed while writing
    (tmp_path / "notes.csv").write_text("a user's own file")

    again = FileAdapter(tmp_path)
    again.set_state(state)
    assert (tmp_path / "notes.csv").read_text() == "a user's own file"
    (tmp_path / "notes.csv").unlink()
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
    assert again.get_state() == state
    write(again, 2, loss=5.0)
    assert rows(tmp_path / "loss.csv") == [["1", "10", "1.0"], ["2", "20", "5.0"]]


def test_resume_before_the_first_metric(tmp_path: Path) -> None:
    adapter = FileAdapter(tmp_path)
    state = adapter.get_state()
    write(adapter, 1, loss=1.0)
    FileAdapter(tmp_path).set_state(state)
    assert os.listdir(tmp_path) == []


def test_resume_keeps_what_an_earlier_run_left_in_the_folder(tmp_path: Path) -> None:
    write(FileAdapter(tmp_path), 1, loss=1.0)
    second = FileAdapter(tmp_path)
    state = second.get_state()
    write(second, 1, loss=2.0, other=3.0)
    FileAdapter(tmp_path).set_state(state)
    assert rows(tmp_path / "loss.csv") == [["1", "10", "1.0"]]
    assert not (tmp_path / "other.csv").exists()


def test_resume_does_not_stretch_a_file_that_lost_its_end(tmp_path: Path) -> None:
    adapter = FileAdapter(tmp_path)
    write(adapter, 1, loss=1.0)
    state = adapter.get_state()
    (tmp_path / "loss.csv").write_text("")
    adapter.set_state(state)
    assert (tmp_path / "loss.csv").read_text() == ""


@pytest.mark.parametrize("line", ["[1]", "1", '"x"', "null", "[" * 100_000, "{", '{"gradients": 3}', "\xff"])
def test_foreign_lines_among_the_metrics_are_no_metrics(line: str, tmp_path: Path) -> None:
    adapter = FileAdapter(tmp_path)
    write(adapter, 1, loss=0.5)
    state = adapter.get_state()
    for later in ("", line + "\n"):  # written after the checkpoint, and before
        with open(tmp_path / "metrics.jsonl", "a", encoding="latin-1") as file:
            file.write(line + "\n")
        again = FileAdapter(tmp_path)
        again.set_state(state)
        write(again, 2, loss=0.25)
        assert rows(tmp_path / "loss.csv") == [["1", "10", "0.5"], ["2", "20", "0.25"]]
        Path(tmp_path / "metrics.jsonl").write_text(later)


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="run folder"):
        FileAdapterFactory(tmp_path / "file").create("run")


def test_combine(tmp_path: Path) -> None:
    two = [FileAdapterFactory(tmp_path / "a"), FileAdapterFactory(tmp_path / "b")]
    logger = BirlLogger(CombineAdapterFactory([NoopAdapterFactory(), *two]), "run", with_timestamp=False)
    logger.add_params({"x": 1})
    logger.write(1, 10, {"loss": 1.0})
    state = logger.get_state()
    logger.write(2, 20, {"loss": 2.0})
    logger.save_model(20, Model())
    logger.set_state(state)
    logger.close()
    for name in "ab":
        assert rows(tmp_path / name / "run" / "loss.csv") == [["1", "10", "1.0"]]
        assert (tmp_path / name / "run" / "model_20.d3").exists()


def test_timestamp(tmp_path: Path) -> None:
    logger = BirlLogger(NoopAdapterFactory(), "run")
    assert re.fullmatch(r"run_\d{14}", logger.experiment_name)


def test_adapters_in_both_of_d3rlpys_forms() -> None:
    calls: list[Any] = []

    class Adapter(LoggerAdapter):
        def write_metric(self, epoch: int, step: int, name: str, value: float) -> None:
            calls.append((epoch, step, name, value))

        def watch_model(self, epoch: int, step: int) -> None:
            calls.append("watched")

    class Old(LoggerAdapterFactory):
        def create(self, experiment_name: str) -> Adapter:
            calls.append(experiment_name)
            return Adapter()

    class New:
        def create(self, algo: Any, experiment_name: str, n_steps_per_epoch: int) -> Adapter:
            calls.append((algo, experiment_name, n_steps_per_epoch))
            return Adapter()

    BirlLogger(Old(), "a", False).write(1, 2, {"m": 3.0})
    BirlLogger(CombineAdapterFactory([New()]), "b", False, algo="algo", n_steps_per_epoch=7).write(1, 2, {"m": 3.0})
    assert calls == ["a", (1, 2, "m", 3.0), "watched", ("algo", "b", 7), (1, 2, "m", 3.0), "watched"]


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    adapter = TensorboardAdapterFactory(tmp_path).create("run")
    adapter.write_params({"config": {"rate": 0.1}})
    write(adapter, 1, loss=1.0)
    state = adapter.get_state()
    write(adapter, 2, loss=2.0)
    adapter.set_state(state)
    write(adapter, 2, loss=5.0)
    adapter.close()
    events = EventAccumulator(str(tmp_path / "runs" / "run"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("metrics/loss")] == [(10, 1.0), (20, 5.0)]


def test_tensorboard_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"birl\[tensorboard\]"):
        TensorboardAdapterFactory(tmp_path).create("run")


# -- adapters that lack newer methods ----------------------------------------------------------------------------------


class Bare:
    """The six methods of the specification and nothing else, without a base class."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def write_params(self, params: dict[str, Any]) -> None:
        self.calls.append("params")

    def before_write_metric(self, epoch: int, step: int) -> None:
        self.calls.append(("before", epoch, step))

    def write_metric(self, epoch: int, step: int, name: str, value: float) -> None:
        self.calls.append((name, value))

    def after_write_metric(self, epoch: int, step: int) -> None:
        self.calls.append(("after", epoch, step))

    def save_model(self, epoch: int, algo: Any) -> None:
        self.calls.append(("model", epoch))

    def close(self) -> None:
        self.calls.append("closed")


class Given:
    """Factory of one adapter."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter

    def create(self, experiment_name: str) -> Any:
        return self.adapter


STATISTICS = {"min": -2.0, "max": 3.0, "mean": 0.5, "std": 1.0}
AS_METRICS = [(f"q.weight_grad_{name}", value) for name, value in STATISTICS.items()]


@pytest.mark.parametrize("wrap", [lambda adapter: adapter, lambda adapter: CombineAdapter([adapter])])
def test_an_adapter_with_the_methods_of_the_specification_is_enough(wrap: Callable[[Any], Any]) -> None:
    adapter = Bare()
    logger = BirlLogger(Given(wrap(adapter)), "a", False)
    logger.add_params({})
    logger.write(1, 2, {"loss": 3.0}, {"q.weight": STATISTICS})
    logger.save_model(2, Model())
    logger.close()
    assert adapter.calls == [
        "params", ("before", 1, 2), ("loss", 3.0), *AS_METRICS, ("after", 1, 2), ("model", 2), "closed",
    ]  # fmt: skip


def test_gradients_reach_adapters_as_metrics_unless_they_take_them() -> None:
    seen: list[Any] = []

    class Metrics(LoggerAdapter):
        def write_metric(self, epoch: int, step: int, name: str, value: float) -> None:
            seen.append((name, value))

    class Taking(LoggerAdapter):
        def write_gradient(self, epoch: int, step: int, name: str, statistics: Mapping[str, float]) -> None:
            seen.append((epoch, step, name, dict(statistics)))

    for adapter in (Metrics(), Taking(), NoopAdapterFactory().create("")):
        BirlLogger(Given(adapter), "a", False).write(1, 2, {}, {"q.weight": STATISTICS})
    assert seen == [*AS_METRICS, (1, 2, "q.weight", STATISTICS)]


def test_fault_14_gradient_files_are_d3rlpys_and_are_cut_back(tmp_path: Path) -> None:
    logger = BirlLogger(FileAdapterFactory(tmp_path), "run", False)
    folder = tmp_path / "run"
    logger.write(1, 10, {"loss": 1.0}, {"q.weight": STATISTICS})
    first = "epoch,step,min,max,mean,std\n1,10,-2.0,3.0,0.5,1.0\n"
    assert (folder / "q.weight_grad.csv").read_text() == first
    state = json.loads(json.dumps(logger.get_state()))
    logger.write(2, 20, {"gradients": 1.0}, {"q.weight": STATISTICS, "q.bias": {**STATISTICS, "max": float("nan")}})
    assert (folder / "q.weight_grad.csv").read_text() == first + "2,20,-2.0,3.0,0.5,1.0\n"
    assert (folder / "q.bias_grad.csv").exists()
    assert lines(folder)[1]["gradients"]["q.bias"]["max"] is None
    again = BirlLogger(FileAdapterFactory(tmp_path), "run", False)
    again.set_state(state)
    assert (folder / "q.weight_grad.csv").read_text() == first
    assert not (folder / "q.bias_grad.csv").exists()
    assert len(lines(folder)) == 1


def test_a_metric_called_gradients_is_a_metric(tmp_path: Path) -> None:
    write(FileAdapter(tmp_path), 1, gradients=2.0)
    assert FileAdapter(tmp_path).get_state()["bytes"].keys() == {"metrics.jsonl", "gradients.csv"}


# -- logging_steps, log_gradients --------------------------------------------------------------------------------------


def dataset(discrete: bool = True) -> Any:
    generator = np.random.default_rng(1)
    n = 60
    actions = generator.integers(2, size=(n, 1)) if discrete else generator.uniform(-1, 1, (n, 1)).astype(np.float32)
    ends = np.arange(n) % 20 == 19
    observations, rewards = generator.normal(size=(n, 3)).astype(np.float32), generator.normal(size=n)
    birl.seed(3)
    return birl.dataset.MDPDataset(observations, actions, rewards.astype(np.float32), ends)


class Table(LoggerAdapter):
    """Keeps the rows and the statistics of gradients."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.gradients: list[dict[str, dict[str, float]]] = []

    def before_write_metric(self, epoch: int, step: int) -> None:
        self.rows.append({"epoch": epoch, "step": step})
        self.gradients.append({})

    def write_metric(self, epoch: int, step: int, name: str, value: float) -> None:
        self.rows[-1][name] = value

    def write_gradient(self, epoch: int, step: int, name: str, statistics: Mapping[str, float]) -> None:
        self.gradients[-1][name] = dict(statistics)


ENCODER = birl.models.VectorEncoderFactory([8])


def dqn() -> Any:
    return birl.algos.DQNConfig(batch_size=8, encoder_factory=ENCODER, compile_graph=False).create()


def td3(compile_graph: bool = False) -> Any:
    config = birl.algos.TD3Config(
        batch_size=8, actor_encoder_factory=ENCODER, critic_encoder_factory=ENCODER, compile_graph=compile_graph
    )
    return config.create()


def fit(algorithm: Any, data: Any, n_steps: int, adapter: Any, **options: Any) -> Any:
    return algorithm.fit(data, n_steps, logger_adapter=Given(adapter), show_progress=False, **options)


def test_logging_steps() -> None:
    single = Table()  # every update by itself, to take the means from
    fit(dqn(), dataset(), 25, single, n_steps_per_epoch=1)
    losses = [row["loss"] for row in single.rows]
    adapter = Table()
    strategy = birl.LoggingStrategy.STEPS
    assert strategy is birl.constants.LoggingStrategy.STEPS is LoggingStrategy.STEPS
    options = {"n_steps_per_epoch": 10, "logging_steps": 4, "logging_strategy": strategy}
    result = fit(dqn(), dataset(), 25, adapter, evaluators={"constant": lambda algo, data: 7.0}, **options)
    places = [(row["epoch"], row["step"]) for row in adapter.rows]
    assert places == [(1, 4), (1, 8), (1, 10), (2, 12), (2, 16), (2, 20), (3, 24), (3, 25)]
    begin = 0
    for row in adapter.rows:
        assert row["loss"] == pytest.approx(np.mean(losses[begin : row["step"]]), rel=1e-5)
        assert ("constant" in row) == (row["step"] in (10, 20, 25))  # evaluators: once an epoch
        begin = row["step"]
    assert [epoch for epoch, _ in result] == [1, 2, 3]
    assert [metrics["loss"] for _, metrics in result] == [adapter.rows[index]["loss"] for index in (2, 5, 7)]
    by_epoch = Table()
    fit(dqn(), dataset(), 25, by_epoch, n_steps_per_epoch=10, logging_steps=4, logging_strategy="epoch")
    assert [row["step"] for row in by_epoch.rows] == [10, 20, 25]


def test_logging_steps_online() -> None:
    env, adapter = birl.envs.make_env("CartPole-v1"), Table()
    options: dict[str, Any] = {"logging_steps": 6, "logging_strategy": LoggingStrategy.STEPS, "log_gradients": True}
    options |= {"show_progress": False, "n_steps_per_epoch": 10, "seed": 1, "logger_adapter": Given(adapter)}
    dqn().fit_online(env, n_steps=20, **options)
    assert [row["step"] for row in adapter.rows] == [6, 10, 12, 18, 20]
    assert "critic.head.linear.weight" in adapter.gradients[-1]
    adapter.rows.clear()
    birl.algos.PPOConfig(rollout_length=5, batch_size=5).create().fit_online(env, n_steps=20, **options)
    assert [row["step"] for row in adapter.rows] == [6, 10, 12, 18, 20]
    assert adapter.gradients[-1]


def test_logging_steps_of_a_sequence_model() -> None:
    adapter = Table()
    config = birl.algos.DecisionTransformerConfig(batch_size=2, context_size=3, num_layers=1)
    options = {"logging_steps": 2, "logging_strategy": LoggingStrategy.STEPS, "log_gradients": True}
    fit(config.create(), dataset(discrete=False), 5, adapter, n_steps_per_epoch=3, **options)
    assert [row["step"] for row in adapter.rows] == [2, 3, 4, 5]
    assert all(adapter.gradients)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"logging_strategy": "often"}, "birl.LoggingStrategy.STEPS"),
        ({"logging_strategy": 3}, "birl.LoggingStrategy.STEPS"),
        ({"logging_steps": 0}, "logging_steps is 0"),
        ({"logging_steps": 2.0}, "logging_steps is 2.0"),
    ],
)
def test_wrong_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        fit(dqn(), dataset(), 5, Table(), **options)


@pytest.mark.parametrize("compiled", slow_but([False], [False, True]))
def test_gradient_statistics_are_those_of_the_gradients(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """TD3, which updates its actor in every second update, compared with gradients of a copy."""
    monkeypatch.setattr(compiler, "BACKEND", "aot_eager")  # a whole update as one graph, without a C++ compiler
    algorithm, copy = td3(compiled), td3()
    adapter, expected = Table(), {}
    data = dataset(discrete=False)
    for each in (algorithm, copy):
        birl.seed(5)
        each.build_with_dataset(data)
    copy.nets.load_state_dict(algorithm.nets.state_dict())
    birl.seed(5)
    state = data.get_state(contents=False)
    fit(algorithm, data, 4, adapter, n_steps_per_epoch=4, log_gradients=True)
    data.set_state(state)
    birl.seed(5)
    engine = copy.engine
    for step in range(1, 5):
        batch = copy.learner.batch(data.sample_transition_batch(8))
        for part in engine.gradient_steps:
            if part.name == "actor" and step % 2:
                continue
            gradients, _ = engine.compute_gradients(part, batch)
            for name, gradient in gradients.items():
                expected.setdefault(name, []).append(gradient.double().numpy())
            engine.apply(part.name, gradients)
        if step % 2 == 0:
            for target in engine.targets:
                target(engine, batch)
    (found,) = adapter.gradients
    assert found.keys() == expected.keys()
    for name, gradients in expected.items():
        assert len(gradients) == (2 if name.startswith("actor") else 4)
        assert found[name] == pytest.approx(
            {
                "min": min(each.min() for each in gradients),
                "max": max(each.max() for each in gradients),
                "mean": np.mean([each.mean() for each in gradients]),
                "std": np.mean([each.std() for each in gradients]),
            },
            rel=1e-3,
            abs=1e-6,
        )


def test_statistics_of_several_updates_at_once() -> None:
    generator = np.random.default_rng(0)
    values = torch.as_tensor(generator.normal(size=(5, 3, 4)))
    one, many, resumed = GradientStatistics(), GradientStatistics(), GradientStatistics()
    many.add("critic", ["a", "b", "c"], values)
    many.add("actor", ["c"], values[0, :1])
    for index, row in enumerate(values):
        one.add("critic", ["a", "b", "c"], row)
        if index == 2:
            one.add("actor", ["c"], values[0, :1])
            resumed.set_state(one.get_state())
    for row in values[3:]:
        resumed.add("critic", ["a", "b", "c"], row)
    taken = many.pop()
    assert list(taken) == ["a", "b", "critic.c", "actor.c"]  # two steps train c
    assert taken["b"] == pytest.approx(
        {
            "min": values[:, 1, 0].min().item(),
            "max": values[:, 1, 1].max().item(),
            "mean": values[:, 1, 2].mean().item(),
            "std": values[:, 1, 3].mean().item(),
        }
    )
    for other in (one.pop(), resumed.pop()):
        assert other.keys() == taken.keys()
        assert all(other[name] == pytest.approx(taken[name]) for name in taken)
    assert many.pop() == {}


def test_watching_gradients_changes_nothing_else(tmp_path: Path) -> None:
    results = []
    for watched in (False, True):
        adapter, algorithm = Table(), dqn()
        birl.seed(5)
        result = fit(algorithm, dataset(), 12, adapter, n_steps_per_epoch=6, log_gradients=watched)
        algorithm.save(tmp_path / "model.d3")
        names = [sorted(metrics) for _, metrics in result]
        losses = [metrics["loss"] for _, metrics in result]
        results.append(((tmp_path / "model.d3").read_bytes(), names, losses))
        assert all(adapter.gradients) == watched
        assert algorithm.engine.watch is None  # after the run nothing watches
    assert results[0] == results[1]


def test_a_run_that_fails_watches_no_longer() -> None:
    adapter, algorithm = Table(), dqn()

    def poison(algo: Any, epoch: int, step: int) -> None:
        if step == 2:
            with torch.no_grad():
                next(algo.nets.critic.parameters()).fill_(float("nan"))

    with pytest.raises(NonFiniteError):
        fit(algorithm, dataset(), 6, adapter, n_steps_per_epoch=3, log_gradients=True, callback=poison)
    assert algorithm.engine.watch is None


def test_a_run_stopped_within_an_epoch_logs_what_it_would_have(tmp_path: Path) -> None:
    """With logging_steps and gradients: all files are those of an uninterrupted run (times aside)."""

    def run(name: str, stop_at: int | None = None) -> None:
        birl.seed(7)
        td3().fit(
            dataset(discrete=False),
            30,
            n_steps_per_epoch=10,
            experiment_name=name,
            with_timestamp=False,
            logger_adapter=FileAdapterFactory(tmp_path),
            show_progress=False,
            checkpoint=tmp_path / f"{name}-state",
            logging_steps=4,
            logging_strategy=LoggingStrategy.STEPS,
            log_gradients=True,
            callback=signal_at(stop_at, signal.SIGINT),
        )

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run("whole")
        for moment in (5, 19):  # between two writings, and after the actor's last step before one
            with pytest.raises(KeyboardInterrupt):
                run("stopped", moment)
        run("stopped")
    finally:
        signal.signal(signal.SIGINT, previous)
    files = {
        name: {
            path.name: path.read_bytes()
            for path in (tmp_path / name).iterdir()
            if not path.name.startswith("time_") and path.name != "metrics.jsonl"
        }
        for name in ("whole", "stopped")
    }
    assert len([name for name in files["whole"] if name.endswith("_grad.csv")]) > 6
    assert files["stopped"] == files["whole"]
    with pytest.raises(birl.errors.ResumeError, match="logging_steps"):
        td3().fit(dataset(discrete=False), 30, n_steps_per_epoch=10, checkpoint=tmp_path / "whole-state")


# -- Weights & Biases, MLflow ------------------------------------------------------------------------------------------


class FakeWandb(types.ModuleType):
    """Records the calls of a ``wandb`` run."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.calls: list[Any] = []
        self.config = self

    def init(self, **options: Any) -> Any:
        self.calls.append(("init", options))
        self.id = options.get("id", "abc")
        return self

    def update(self, params: dict[str, Any], **options: Any) -> None:
        self.calls.append(("config", json.dumps(params)))

    def log(self, values: dict[str, float], step: int) -> None:
        self.calls.append(("log", values, step))

    def finish(self) -> None:
        self.calls.append("finish")


def test_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    factory = WanDBAdapterFactory(project="logs")
    logger = BirlLogger(factory, "run", False)
    assert fake.calls == []  # nothing is started before there is something to say
    logger.add_params({"action_size": 2, "rate": np.float32(0.5)})
    logger.write(1, 10, {"loss": 1.0, "return": 2.0}, {"q.weight": {"min": -1.0}})
    state = json.loads(json.dumps(logger.get_state()))
    logger.close()
    assert fake.calls == [
        ("init", {"project": "logs", "name": "run"}),
        ("config", '{"action_size": 2, "rate": 0.5}'),
        ("log", {"epoch": 1, "loss": 1.0, "return": 2.0, "gradients/q.weight.min": -1.0}, 10),
        "finish",
    ]
    fake.calls.clear()
    again = BirlLogger(factory, "run", False)
    again.set_state(state)
    again.write(2, 20, {"loss": 3.0})
    again.close()
    assert fake.calls == [
        ("init", {"project": "logs", "name": "run", "id": "abc", "resume": "allow"}),
        ("log", {"epoch": 2, "loss": 3.0}, 20),
        "finish",
    ]
    fake.calls.clear()
    BirlLogger(factory, "run", False).close()
    assert fake.calls == []


class FakeMlflow(types.ModuleType):
    """Records the calls of an ``mlflow`` client."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, Any] = {}
        self.entities = types.ModuleType("mlflow.entities")
        self.entities.Param = lambda name, value: (name, value)  # type: ignore[attr-defined]
        self.entities.Metric = lambda name, value, time, step: (name, value, step)  # type: ignore[attr-defined]

    def MlflowClient(self, tracking_uri: str | None) -> Any:
        self.uri = tracking_uri
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        return types.SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self.experiments[name] = str(len(self.experiments))
        return self.experiments[name]

    def create_run(self, experiment_id: str, run_name: str) -> Any:
        name = f"id of {run_name} in {experiment_id}"
        self.runs[name] = types.SimpleNamespace(params={}, metrics=[], status="RUNNING")
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=name))

    def get_run(self, run_id: str) -> Any:
        return types.SimpleNamespace(data=self.runs[run_id])

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(metrics) <= 1000
        assert len(params) <= 100
        own = self.runs[run_id]
        assert not own.params.keys() & dict(params).keys()  # MLflow refuses to change one
        own.params |= dict(params)
        own.metrics += metrics

    def get_metric_history(self, run_id: str, name: str) -> Any:
        return [types.SimpleNamespace(step=step) for key, _, step in self.runs[run_id].metrics if key == name]

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id].status = status

    def set_terminated(self, run_id: str) -> None:
        self.runs[run_id].status = "FINISHED"


def test_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", fake.entities)
    factory = MLflowAdapterFactory("logs", tracking_uri="here")
    logger = BirlLogger(factory, "run", False)
    assert fake.runs == {}
    params = {"config": {"params": {"gamma": 0.9, "long": "x" * 9000}}, **{f"p{i}": i for i in range(150)}}
    logger.add_params(params)
    assert fake.uri == "here"
    (run,) = fake.runs.values()
    assert run.params["config.params.gamma"] == "0.9"
    assert len(run.params) == 152
    assert len(run.params["config.params.long"]) == 500
    logger.write(1, 10, {"loss": 1.0, "odd (name)!": 2.0}, {"q.weight": {"min": -1.0}})
    state = json.loads(json.dumps(logger.get_state()))
    logger.write(2, 20, {"loss": 2.0})
    assert run.metrics == [
        ("loss", 1.0, 10), ("odd _name__", 2.0, 10), ("q.weight_grad_min", -1.0, 10), ("epoch", 1.0, 10),
        ("loss", 2.0, 20), ("epoch", 2.0, 20),
    ]  # fmt: skip
    logger.close()
    assert run.status == "FINISHED"

    again = BirlLogger(factory, "run", False)
    again.set_state(state)
    assert run.status == "RUNNING"
    again.add_params(params)
    again.write(2, 20, {"loss": 2.0})  # made again, and there already
    again.write(3, 30, {"loss": 3.0})
    again.close()
    assert run.metrics[6:] == [("loss", 3.0, 30), ("epoch", 3.0, 30)]
    assert list(fake.runs) == ["id of run in 0"]
    BirlLogger(factory, "other", False).close()
    assert len(fake.runs) == 1


@pytest.mark.parametrize(("factory", "module"), [(WanDBAdapterFactory(), "wandb"), (MLflowAdapterFactory(), "mlflow")])
def test_missing_packages_name_their_extra(factory: Any, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"birl\[{module}\]"):
        BirlLogger(factory, "run", False)


def test_tensorboard_gradients(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = BirlLogger(TensorboardAdapterFactory(tmp_path), "run", False)
    logger.write(1, 10, {"loss": 1.0}, {"q.weight": STATISTICS})
    logger.close()
    events = EventAccumulator(str(tmp_path / "runs" / "run"))
    events.Reload()
    assert [event.value for event in events.Scalars("gradients/q.weight/max")] == [3.0]


# -- where a run comes from, histograms and images ---------------------------------------------------------------------

ORIGIN = {"command": "train.py", "birl": "0.1", "commit": "abc"}
IMAGE = np.arange(12, dtype=np.uint8).reshape(3, 4)


def write_all(logger: BirlLogger) -> None:
    logger.add_origin(ORIGIN)
    for shape in ((3, 4), (2, 2, 3)):
        optional(logger.adapter, "write_image")(1, 10, f"image{len(shape)}", IMAGE.reshape(shape))
    optional(logger.adapter, "write_histogram")(1, 10, "weights", np.arange(6.0).reshape(2, 3))
    logger.close()


def test_tensorboard_histograms_and_images(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_all(BirlLogger(TensorboardAdapterFactory(tmp_path), "run", False))
    events = EventAccumulator(str(tmp_path / "runs" / "run"))
    events.Reload()
    (histogram,) = events.Histograms("weights")
    assert (histogram.step, histogram.histogram_value.num, histogram.histogram_value.sum) == (10, 6, 15.0)
    assert [(e.step, e.height, e.width) for name in ("image2", "image3") for e in events.Images(name)] == [
        (10, 3, 4),
        (10, 2, 2),
    ]
    assert "origin/text_summary" in events.Tags()["tensors"]


def test_wandb_histograms_and_images(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = FakeWandb()
    fake.Histogram, fake.Image = (lambda values: ("histogram", len(values))), (lambda image: ("image", image.shape))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    write_all(BirlLogger(WanDBAdapterFactory(), "run", False))
    assert fake.calls[1:] == [
        ("config", json.dumps({"origin": ORIGIN})),
        ("log", {"image2": ("image", (3, 4))}, 10),
        ("log", {"image3": ("image", (2, 2, 3))}, 10),
        ("log", {"weights": ("histogram", 6)}, 10),
        "finish",
    ]


def test_mlflow_images_and_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = FakeMlflow()
    calls: list[Any] = []
    fake.set_tag = lambda run, name, value: calls.append((name, value))
    fake.log_image = lambda run, image, artifact_file: calls.append((artifact_file, image.shape))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", fake.entities)
    write_all(BirlLogger(MLflowAdapterFactory(), "run", False))
    tags = [(f"origin.{name}", value) for name, value in ORIGIN.items()]
    assert calls == [*tags, ("image2_10.png", (3, 4)), ("image3_10.png", (2, 2, 3))]


def test_adapters_without_them_write_the_rest(tmp_path: Path) -> None:
    write_all(BirlLogger(FileAdapterFactory(tmp_path), "run", False))
    assert json.loads((tmp_path / "run" / "origin.json").read_text()) == ORIGIN
    assert os.listdir(tmp_path / "run") == ["origin.json"]
    bare = Bare()
    write_all(BirlLogger(types.SimpleNamespace(create=lambda name: bare), "run", False))  # type: ignore[arg-type]
    assert not [call for call in bare.calls if call != "closed"]
