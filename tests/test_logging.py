"""Logger adapters: what lies in a run folder, and how it is cut back on resume."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.errors import MissingExtraError, WriteError
from birl.logging import (
    BirlLogger,
    CombineAdapterFactory,
    FileAdapter,
    FileAdapterFactory,
    LoggerAdapter,
    LoggerAdapterFactory,
    NoopAdapterFactory,
    TensorboardAdapterFactory,
)


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
        logger.add_metric("loss", 3.0 * epoch)
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
