"""Hooks: their interval, their state, and what they write; the origin of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl.errors import ConfigError, UnsupportedError
from birl.logging import CombineAdapterFactory, FileAdapterFactory, LoggerAdapter, NoopAdapterFactory
from birl.run import Hook
from birl.run.online import online_fitter
from birl.run.session import _commit, origin
from run.fakes import Drift, FakeLearner


class Counting(Hook):
    """Counts its calls."""

    def __init__(self, every: int = 1) -> None:
        super().__init__(every)
        self.calls: list[int] = []

    def __call__(self, algo: Any, epoch: int, step: int) -> object:
        assert epoch == (step - 1) // 20 + 1
        self.calls.append(step)
        return len(self.calls) < 100

    def get_state(self) -> Any:
        return {"calls": {str(call): True for call in self.calls}}

    def set_state(self, state: Any) -> None:
        self.calls = [int(call) for call in state["calls"]]


def run(callback: Any, n_steps: int = 40, **options: Any) -> None:
    given: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False, "n_steps_per_epoch": 20, **options}
    list(online_fitter(FakeLearner(), Drift(), n_steps=n_steps, seed=1, callback=callback, **given))


def generator(algo: Any, epoch: int, step: int) -> Any:
    yield False


async def coroutine(algo: Any, epoch: int, step: int) -> bool:
    return False


class Yielding(Hook):
    """A hook whose call runs nothing."""

    def __call__(self, algo: Any, epoch: int, step: int) -> Any:
        yield False


@pytest.mark.parametrize("option", ["callback", "epoch_callback"])
@pytest.mark.parametrize(("function", "word"), [(generator, "yield"), (coroutine, "async"), (Yielding(), "yield")])
def test_functions_that_run_nothing_are_refused_at_the_start(option: str, function: Any, word: str) -> None:
    learner = FakeLearner()
    with pytest.raises(ConfigError, match=f"is a function with {word}"):
        list(online_fitter(learner, Drift(), n_steps=9, show_progress=False, **{"callback": None, option: function}))
    assert learner.grad_step == 0


@pytest.mark.parametrize("value", [np.array([False]), torch.zeros(2, dtype=torch.bool), "stop"])
@pytest.mark.parametrize("option", ["callback", "epoch_callback"])
def test_text_and_several_booleans_are_no_decision(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="a callback returned .*it must return False"):
        run(**{"callback": None, option: lambda algo, epoch, step: value})


@pytest.mark.filterwarnings("ignore:coroutine 'coroutine' was never awaited")
@pytest.mark.parametrize("function", [generator, coroutine])
@pytest.mark.parametrize("option", ["callback", "epoch_callback"])
def test_results_that_have_not_run_are_refused(option: str, function: Any) -> None:
    with pytest.raises(ConfigError, match="a callback returned .*, which has not run; .* without async or yield"):
        run(**{"callback": None, option: lambda *arguments: function(*arguments)})


def test_hooks_have_rhythms() -> None:
    seven, each, steps = Counting(7), Counting(), []
    run([seven, lambda algo, epoch, step: steps.append(step), each])
    assert seven.calls == [7, 14, 21, 28, 35] and each.calls == steps == list(range(1, 41))


def test_hooks_of_logged_data_are_called_in_time() -> None:
    """Several updates may be made in one call, but not beyond the step of a hook."""
    dataset = birl.datasets.get_cartpole()[0]
    hook = Counting(7)
    hook.get_state = hook.set_state = None  # type: ignore[method-assign, assignment]
    config = birl.algos.DQNConfig(batch_size=4)
    options: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    config.create().fit(dataset, 20, n_steps_per_epoch=20, callback=hook, **options)
    assert hook.calls == [7, 14]


def test_hooks_go_on_from_a_checkpoint_and_end_runs(tmp_path: Path) -> None:
    one = Counting(3)
    run(one, 20, checkpoint=tmp_path)
    two = Counting(3)
    run(two, 40, checkpoint=tmp_path)
    assert two.calls == list(range(3, 40, 3)) and one.calls == [3, 6, 9, 12, 15, 18]
    last: list[int] = []
    run([Counting(5), lambda algo, epoch, step: last.append(step) or step < 9])  # type: ignore[func-returns-value]
    assert last[-1] == 9


def test_what_is_no_hook() -> None:
    for wrong in (3, [print, 3], Counting, [Counting]):
        with pytest.raises(ConfigError, match="callback is .* it must be a function"):
            run(wrong)
    with pytest.raises(ConfigError, match="every is 0"):
        Counting(0)
    with pytest.raises(UnsupportedError, match="a hook, or a list of callbacks, cannot be combined with fit_many"):
        birl.fit_many(birl.algos.DQNConfig(), birl.datasets.get_cartpole()[0], seeds=2, n_steps=1, callback=[print])


class Written(LoggerAdapter):
    """Keeps everything that is written."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def create(self, experiment_name: str) -> Written:
        return self

    def write_histogram(self, epoch: int, step: int, name: str, values: Any) -> None:
        self.found.append((epoch, step, name, values))


def test_hooks_write(tmp_path: Path) -> None:
    class Writing(Hook):
        def __call__(self, algo: Any, epoch: int, step: int) -> None:
            self.adapter.write_histogram(epoch, step, "numbers", [step])
            self.adapter.write_image(epoch, step, "image", None)

    written = Written()
    both = CombineAdapterFactory([FileAdapterFactory(tmp_path), written])  # type: ignore[list-item]
    run(Writing(15), logger_adapter=both)
    assert written.found == [(1, 15, "numbers", [15]), (2, 30, "numbers", [30])]


def test_a_run_folder_says_command_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hush-1234")
    monkeypatch.setattr(sys, "argv", ["my program.py", "--rate", "1"])
    repository = tmp_path / "work"
    repository.mkdir()
    monkeypatch.chdir(repository)
    assert origin() == {"command": "'my program.py' --rate 1", "birl": birl.__version__, "commit": None}

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (repository / "a.py").write_text("1")
    git("add", "a.py")
    git("commit", "-qm", "a")
    git("tag", "-a", "v1", "-m", "v1")
    _commit.cache_clear()
    assert origin()["commit"] == git("rev-parse", "HEAD")
    (repository / "a.py").write_text("2")
    _commit.cache_clear()
    run(None, logger_adapter=FileAdapterFactory(tmp_path / "logs"), experiment_name="x", with_timestamp=False)
    text = (tmp_path / "logs" / "x" / "origin.json").read_text()
    assert json.loads(text)["commit"] == git("rev-parse", "HEAD") + "-dirty" and "hush" not in text
    monkeypatch.setenv("PATH", "")
    _commit.cache_clear()
    assert origin()["commit"] is None
    _commit.cache_clear()
