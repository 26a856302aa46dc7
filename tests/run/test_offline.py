"""Offline training: exact numbers of steps, exact resume, and errors for NaN and infinity."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import birl.seeding
from birl.dataset import MDPDataset, SparseRewardTransitionPicker
from birl.errors import ConfigError, NonFiniteError, ResumeError, WriteError
from birl.logging import FileAdapterFactory, NoopAdapterFactory
from birl.run.checkpoint import checkpoint_path
from birl.run.offline import fitter
from run.fakes import FakeLearner


def data(steps: int = 60, picker: Any = None) -> MDPDataset:
    rng = np.random.Generator(np.random.PCG64(0))
    observations = rng.normal(size=(steps, 2)).astype(np.float32)
    terminals = (np.arange(steps) % 10 == 9).astype(np.float32)
    actions, rewards = rng.integers(3, size=steps), rng.normal(size=steps).astype(np.float32)
    return MDPDataset(observations, actions, rewards, terminals, transition_picker=picker)


def quiet(**options: Any) -> dict[str, Any]:
    return {"logger_adapter": NoopAdapterFactory(), "show_progress": False, **options}


def fit(*arguments: Any, **options: Any) -> list[tuple[int, dict[str, float]]]:
    return list(fitter(*arguments, **options))


def run(
    folder: Path, n_steps: int, seed: int, stop: dict[int, int] | None = None, **options: Any
) -> FakeLearner | None:
    """One process: None if it was stopped by the signal that ``stop`` has for a step."""

    def callback(_: Any, epoch: int, step: int) -> None:
        if step in (stop or {}):
            os.kill(os.getpid(), (stop or {})[step])

    birl.seeding.seed(seed)
    learner = FakeLearner()
    options = {
        "n_steps_per_epoch": 20,
        "callback": callback,
        "checkpoint": folder,
        "logger_adapter": FileAdapterFactory(folder.parent),
        "experiment_name": folder.name,
        "with_timestamp": False,
        "show_progress": False,
        **options,
    }
    try:
        fit(learner, data(), n_steps, **options)
    except (KeyboardInterrupt, SystemExit):
        return None
    return learner


def files(folder: Path) -> dict[str, bytes]:
    names = [name for name in os.listdir(folder) if not name.startswith(("time_", "metrics", "checkpoint"))]
    return {name: (folder / name).read_bytes() for name in names}


# -- numbers of steps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_steps", "per_epoch", "ends"),
    [(50, 10_000, [50]), (1, 1, [1]), (40, 20, [20, 40]), (45, 20, [20, 40, 45]), (19, 20, [19])],
)
def test_fault_07_exactly_n_steps_are_trained(n_steps: int, per_epoch: int, ends: list[int]) -> None:
    learner, steps, epochs, each = FakeLearner(), [], [], []
    result = fit(
        learner,
        data(),
        n_steps,
        **quiet(n_steps_per_epoch=per_epoch),
        callback=lambda algo, epoch, step: each.append((epoch, step)),
        epoch_callback=lambda algo, epoch, step: (epochs.append(epoch), steps.append(step)),
    )
    assert learner.grad_step == n_steps
    assert steps == ends
    assert epochs == [epoch for epoch, _ in result] == list(range(1, len(ends) + 1))
    assert each == [((step - 1) // per_epoch + 1, step) for step in range(1, n_steps + 1)]


def test_metrics_are_means_over_the_epoch() -> None:
    class Counting(FakeLearner):
        def update(self, minibatch: Any) -> dict[str, torch.Tensor]:
            self.grad_step += 1
            metrics = {"loss": torch.tensor(float(self.grad_step))}
            return metrics if self.grad_step % 2 else {**metrics, "actor_loss": torch.tensor(1.0 * self.grad_step)}

    result = fit(Counting(), data(), 5, **quiet(n_steps_per_epoch=4), evaluators={"two": lambda algo, dataset: 2})
    first, last = (metrics for _, metrics in result)
    assert (first["loss"], first["actor_loss"], first["two"]) == (2.5, 3.0, 2.0)
    assert last["loss"] == 5.0
    assert "actor_loss" not in last
    assert {"time_step", "time_sample_batch", "time_algorithm_update"} <= first.keys()
    assert first["time_step"] >= first["time_algorithm_update"] > 0


def test_fault_16_nothing_is_read_from_the_device_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics are summed on their device and read every hundred steps, however many updates there were."""
    reads: list[int] = []
    original = torch.Tensor.__float__

    def counted(tensor: torch.Tensor) -> float:
        reads.append(1)
        return original(tensor)

    monkeypatch.setattr(torch.Tensor, "__float__", counted)
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: pytest.fail("item() in a step"))
    fit(FakeLearner(), data(), 1000, **quiet(n_steps_per_epoch=1000))
    assert len(reads) <= 2 * 10


def test_fitter_is_a_generator_that_can_be_left(tmp_path: Path) -> None:
    closed: list[bool] = []

    class Adapter(NoopAdapterFactory):
        def create(self, experiment_name: str) -> Any:
            adapter = super().create(experiment_name)
            adapter.close = lambda: closed.append(True)  # type: ignore[method-assign]
            return adapter

    before = signal.getsignal(signal.SIGINT)  # may be SIG_IGN: nohup
    learner = FakeLearner()
    loop = fitter(learner, data(), 100, n_steps_per_epoch=10, logger_adapter=Adapter(), show_progress=False)
    assert next(loop)[0] == 1
    assert signal.getsignal(signal.SIGINT) is before  # not held back outside of the loop
    assert next(loop)[0] == 2
    loop.close()
    assert learner.grad_step == 20
    assert closed == [True]


def test_run_folder(tmp_path: Path) -> None:
    run(tmp_path / "R", 50, 0, save_interval=2)
    assert sorted(os.listdir(tmp_path / "R")) == [
        ".run.lock", "actor_loss.csv", "checkpoint.d3c", "loss.csv", "metrics.jsonl", "model_40.d3", "model_50.d3",
        "origin.json", "params.json", "time_algorithm_update.csv", "time_elapsed.csv", "time_remaining.csv",
        "time_sample_batch.csv", "time_step.csv", "time_steps_per_second.csv",
    ]  # fmt: skip
    lines = (tmp_path / "R" / "loss.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in lines] == [["1", "20"], ["2", "40"], ["3", "50"]]


@pytest.mark.parametrize("name", ["n_steps", "n_steps_per_epoch", "save_interval"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "10"])
def test_arguments_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; it must be an int >= 1"):
        fit(FakeLearner(), data(), **{"n_steps": 5, **quiet(), name: value})


@pytest.mark.parametrize("name", ["log_gradients", "with_timestamp"])
def test_switches_are_on_or_off(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 'yes'; it must be a bool"):
        fit(FakeLearner(), data(), 5, **{**quiet(), name: "yes"})


def test_numbers_of_numpy_are_taken(tmp_path: Path) -> None:
    options = quiet(checkpoint=tmp_path / "R", n_steps_per_epoch=np.int64(2), logging_steps=np.int64(1))
    assert len(fit(FakeLearner(), data(), np.int64(4), **options, logging_strategy="steps")) == 2


# -- resume ----------------------------------------------------------------------------------------------------


def test_fault_08_n_and_n_equals_2n(tmp_path: Path) -> None:
    straight = run(tmp_path / "a" / "R", 80, 0)
    run(tmp_path / "b" / "R", 40, 0)
    resumed = run(tmp_path / "b" / "R", 80, 123)
    assert straight is not None
    assert resumed is not None
    assert torch.equal(straight.weight, resumed.weight)
    assert resumed.grad_step == 80
    assert files(tmp_path / "a" / "R") == files(tmp_path / "b" / "R")


def test_n_and_n_equals_2n_off_the_epoch_grid(tmp_path: Path) -> None:
    straight = run(tmp_path / "a", 74, 0)
    run(tmp_path / "b", 37, 0)
    steps: list[tuple[int, int]] = []
    resumed = run(tmp_path / "b", 74, 1, epoch_callback=lambda _, epoch, step: steps.append((epoch, step)))
    assert straight is not None
    assert resumed is not None
    assert torch.equal(straight.weight, resumed.weight)
    assert steps == [(2, 40), (3, 60), (4, 74)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_at_any_step(tmp_path: Path, number: int) -> None:
    expected = run(tmp_path / "straight" / "R", 70, 0)
    assert expected is not None
    for first in (1, 20, 69):
        folder = tmp_path / str(first) / "R"
        for seed, step in enumerate(step for step in sorted({first, first + 1, 40, 70}) if step >= first):
            assert run(folder, 70, seed, {step: number}) is None
        resumed = run(folder, 70, 99)
        assert resumed is not None
        assert torch.equal(resumed.weight, expected.weight)
        assert files(folder) == files(tmp_path / "straight" / "R")


class Killed(BaseException):
    """Stands for SIGKILL: nothing more is written."""


@pytest.mark.parametrize("where", ["step", "checkpoint", "logger", "model"])
def test_killed_anywhere(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on from the last whole checkpoint; what the logger wrote after it is written again."""
    expected = run(tmp_path / "straight" / "R", 100, 0)
    assert expected is not None
    folder = tmp_path / "killed" / "R"
    calls = {"n": 0}

    def killing(original: Any, at: int) -> Any:
        def function(*args: Any, **options: Any) -> Any:
            calls["n"] += 1
            if calls["n"] == at:
                raise Killed
            return original(*args, **options)

        return function

    import birl.files
    import birl.logging.file_adapter
    import birl.run.session

    for seed, at in enumerate((45, 30, 10) if where == "step" else (2, 1, 2, 3)):
        calls["n"] = 0
        with monkeypatch.context() as patch, pytest.raises(Killed):
            if where == "step":
                patch.setattr(FakeLearner, "update", killing(FakeLearner.update, at))
            elif where == "checkpoint":
                patch.setattr(birl.run.session, "save_checkpoint", killing(birl.run.session.save_checkpoint, at))
            elif where == "model":
                patch.setattr(FakeLearner, "save", killing(FakeLearner.save, at))
            else:
                adapter = birl.logging.file_adapter.FileAdapter
                patch.setattr(adapter, "_append", killing(adapter._append, at + 3))
            run(folder, 100, seed)
    resumed = run(folder, 100, 99)
    assert resumed is not None
    assert torch.equal(resumed.weight, expected.weight)
    assert files(folder) == files(tmp_path / "straight" / "R")


def test_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    run(tmp_path / "R", 40, 0)
    before = files(tmp_path / "R")
    learner = FakeLearner()
    assert fit(learner, data(), 40, **quiet(checkpoint=tmp_path / "R", n_steps_per_epoch=20)) == []
    assert learner.grad_step == 40
    assert files(tmp_path / "R") == before


def test_resume_restores_global_generators(tmp_path: Path) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    birl.seeding.seed(1)
    fit(FakeLearner(), data(), 10, **quiet(checkpoint=tmp_path))
    expected = draw()
    birl.seeding.seed(2)
    fit(FakeLearner(), data(), 10, **quiet(checkpoint=tmp_path))
    assert draw() == expected


def test_resumed_run_keeps_its_timestamp(tmp_path: Path) -> None:
    for n_steps in (10, 20):
        options = {"logger_adapter": FileAdapterFactory(tmp_path / "logs"), "experiment_name": f"run{n_steps}"}
        fit(FakeLearner(), data(), n_steps, **quiet(checkpoint=tmp_path / "c", **options))
    assert len(os.listdir(tmp_path / "logs")) == 1


def test_other_settings_are_refused(tmp_path: Path) -> None:
    run(tmp_path / "R", 40, 0)
    with pytest.raises(ResumeError, match=r"n_steps_per_epoch was 20, now 10"):
        run(tmp_path / "R", 80, 0, n_steps_per_epoch=10)
    options = quiet(checkpoint=tmp_path / "R", n_steps_per_epoch=20)
    with pytest.raises(ResumeError, match=r"algorithm\.params\.rate was 0\.01, now 0\.02"):
        fit(FakeLearner(rate=0.02), data(), 80, **options)
    with pytest.raises(ResumeError, match="transitions was 60, now 50"):
        fit(FakeLearner(), data(50), 80, **options)
    with pytest.raises(ResumeError, match="has made 40 steps already"):
        fit(FakeLearner(), data(), 30, **options)


def test_another_picker_is_refused(tmp_path: Path) -> None:
    def sparse(failure: float) -> MDPDataset:
        return data(picker=SparseRewardTransitionPicker(failure))

    options = quiet(checkpoint=tmp_path / "R", n_steps_per_epoch=20)
    fit(FakeLearner(), sparse(-5), 20, **options)
    with pytest.raises(ResumeError, match=r"picker\.failure was \[-5\.0, 0\.0\], now \[-50\.0, 0\.0\]"):
        fit(FakeLearner(), sparse(-50), 40, **options)
    fit(FakeLearner(), sparse(-5), 40, **options)


# -- evaluation ------------------------------------------------------------------------------------------------


def test_evaluation_does_not_change_training() -> None:
    def noisy(algo: Any, dataset: Any) -> float:
        random.random(), np.random.rand(), torch.rand(5)
        return 1.0

    weights = []
    for evaluators in (None, {"noisy": noisy}):
        birl.seeding.seed(0)
        learner = FakeLearner()
        fit(learner, data(), 60, **quiet(n_steps_per_epoch=10), evaluators=evaluators)
        weights.append(learner.weight)
    assert torch.equal(*weights)


def test_signal_during_evaluation_does_not_wait_for_its_end(tmp_path: Path) -> None:
    def evaluator(algo: Any, dataset: Any) -> float:
        assert calls != [], "a signal should have left the evaluation"
        return float(algo.weight[0])

    def interrupted(algo: Any, dataset: Any) -> float:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("not reached")

    calls: list[int] = [1]
    straight = run(tmp_path / "a" / "R", 60, 0, evaluators={"value": evaluator})
    assert run(tmp_path / "b" / "R", 60, 0, evaluators={"value": interrupted}) is None
    resumed = run(tmp_path / "b" / "R", 60, 1, evaluators={"value": evaluator})
    assert straight is not None
    assert resumed is not None
    assert torch.equal(straight.weight, resumed.weight)
    assert files(tmp_path / "a" / "R") == files(tmp_path / "b" / "R")


# -- numbers that are not finite -------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [41, 59, 60])
def test_loss_that_is_not_finite_stops_the_run(tmp_path: Path, at: int) -> None:
    class Poisoned(FakeLearner):
        def update(self, minibatch: Any) -> dict[str, torch.Tensor]:
            self.poison_at = at
            return super().update(minibatch)

    folder = tmp_path / "R"
    options = {"checkpoint": folder, "n_steps_per_epoch": 20}
    fit(FakeLearner(), data(), 40, **quiet(**options))
    good = checkpoint_path(folder).read_bytes()
    with pytest.raises(NonFiniteError, match=r"^loss became NaN or infinite between step 41 and step 60"):
        fit(Poisoned(), data(), 80, **quiet(**options))
    assert checkpoint_path(folder).read_bytes() == good


def test_long_epochs_are_checked_on_the_way() -> None:
    learner = FakeLearner()
    learner.poison_at = 130
    with pytest.raises(NonFiniteError, match="between step 101 and step 200"):
        fit(learner, data(), 10_000, **quiet())
    assert learner.grad_step == 200


@pytest.mark.parametrize("what", ["loss", "weight"])
def test_no_bad_state_is_written_on_a_signal(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "R"
    run(folder, 40, 0)
    good = checkpoint_path(folder).read_bytes()

    class Broken(FakeLearner):
        def update(self, minibatch: Any) -> dict[str, torch.Tensor]:
            self.poison_at = 50 if what == "loss" else -1
            metrics = super().update(minibatch)
            if self.grad_step == 50:
                self.weight = self.weight * float("nan") if what == "weight" else self.weight
                os.kill(os.getpid(), signal.SIGTERM)
            return metrics

    with pytest.raises(NonFiniteError, match=what):
        fit(Broken(), data(), 80, **quiet(checkpoint=folder, n_steps_per_epoch=20))
    assert checkpoint_path(folder).read_bytes() == good


def test_checkpoints_are_not_resumed_onto_other_data(tmp_path: Path) -> None:
    fit(FakeLearner(), data(), 10, **quiet(checkpoint=tmp_path / "c"))
    other = data()
    changed = MDPDataset(
        *(np.concatenate([getattr(e, name) for e in other.episodes]) for name in ("observations", "actions")),
        np.ones(60, np.float32),
        np.arange(60) % 10 == 9,
    )
    with pytest.raises(ResumeError, match="digest_of_data was"):
        fit(FakeLearner(), changed, 20, **quiet(checkpoint=tmp_path / "c"))


@pytest.mark.parametrize("path", ["", 7, True])
def test_a_checkpoint_that_is_no_path(tmp_path: Path, path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"checkpoint is {path!r}; it must be the path of a folder, or None"):
        fit(FakeLearner(), data(), 10, **quiet(checkpoint=path))
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="must be a folder"):
        fit(FakeLearner(), data(), 10, **quiet(checkpoint=tmp_path / "file"))
    with pytest.raises(WriteError, match="another checkpoint"):
        fit(FakeLearner(), data(), 10, **quiet(checkpoint=tmp_path / "file" / "c"))
