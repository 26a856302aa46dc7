"""A second run of an algorithm: its folder, and the schedule of its explorer."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

import birl
from birl.logging import CombineAdapterFactory, FileAdapterFactory, TensorboardAdapterFactory
from run.test_offline import data

QUIET: Any = {"logger_adapter": birl.logging.NoopAdapterFactory(), "show_progress": False}


class Spy(birl.algos.LinearDecayEpsilonGreedy):
    """Keeps the steps that it is asked for."""

    def __init__(self) -> None:
        super().__init__(1.0, 0.0, duration=40)
        self.steps: list[int] = []

    def compute_epsilon(self, step: int) -> float:
        self.steps.append(step)
        return super().compute_epsilon(step)


class Recording(Spy):
    """Keeps the steps of all copies."""

    all_steps: ClassVar[list[int]] = []

    def compute_epsilon(self, step: int) -> float:
        self.all_steps.append(step)
        return super().compute_epsilon(step)


class Writing(birl.algos.ConstantEpsilonGreedy):
    """Appends the steps that it is asked for to a file."""

    def __init__(self, file: str) -> None:
        super().__init__(0.5)
        self.file = file

    def sample(self, algo: Any, x: Any, step: int) -> Any:
        with open(self.file, "a") as file:
            file.write(f"{step}\n")
        return super().sample(algo, x, step)


def dqn() -> Any:
    return birl.algos.DQNConfig(batch_size=4).create()


def test_the_schedule_of_an_explorer_continues(caplog: pytest.LogCaptureFixture) -> None:
    algorithm, spy = dqn(), Spy()
    for _ in range(2):
        algorithm.fit_online("CartPole-v1", explorer=spy, n_steps=20, **QUIET)
    with caplog.at_level(logging.INFO, "birl"):
        algorithm.fit_online("CartPole-v1", explorer=spy, n_steps=5, **QUIET)
    assert spy.steps == list(range(45))
    assert "the explorer's schedule continues at step 40; a new explorer starts at 0" in caplog.text


def test_a_new_explorer_and_another_algorithm_start() -> None:
    algorithm, spy, new = dqn(), Spy(), Spy()
    algorithm.fit_online("CartPole-v1", explorer=spy, n_steps=10, **QUIET)
    algorithm.fit_online("CartPole-v1", explorer=new, n_steps=10, **QUIET)
    dqn().fit_online("CartPole-v1", explorer=spy, n_steps=10, **QUIET)
    assert new.steps == list(range(10)) and spy.steps == [*range(10), *range(10)]


def test_the_schedule_continues_in_collectors() -> None:
    algorithm, spy = dqn(), Recording()
    cluster = birl.Cluster(collectors=1, transport="inline", fragment=4)
    algorithm.fit_online("CartPole-v1", explorer=spy, n_steps=16, cluster=cluster, **QUIET)
    algorithm.fit_online("CartPole-v1", explorer=spy, n_steps=16, cluster=cluster, **QUIET)
    assert spy.all_steps == list(range(32))


def test_a_second_run_resumes_its_schedule_from_a_checkpoint(tmp_path: Path) -> None:
    algorithm, spy = dqn(), Spy()
    options = {**QUIET, "seed": 1}
    algorithm.fit_online("CartPole-v1", explorer=spy, n_steps=20, **options)
    algorithm.fit_online("CartPole-v1", explorer=spy, n_steps=8, **options, checkpoint=tmp_path)
    algorithm.fit_online("CartPole-v1", explorer=spy, n_steps=16, **options, checkpoint=tmp_path)  # in this process
    new, again = dqn(), Spy()
    new.fit_online("CartPole-v1", explorer=again, n_steps=24, **options, checkpoint=tmp_path)  # in another one
    assert spy.steps == list(range(36)) and again.steps == list(range(36, 44))
    new.fit_online("CartPole-v1", explorer=again, n_steps=4, **options)
    assert again.steps == list(range(36, 48))


def test_the_schedule_continues_in_collect_and_agents() -> None:
    algorithm, spy = dqn(), Spy()
    algorithm.collect("CartPole-v1", explorer=spy, n_steps=10, show_progress=False)
    algorithm.collect("CartPole-v1", explorer=spy, n_episodes=1, show_progress=False)
    seen = len(spy.steps)
    algorithm.fit_online("CartPole-v1", explorer=spy, n_steps=10, **QUIET)
    agent = algorithm.agent(explorer=spy)
    env = birl.envs.make_env("CartPole-v1")
    observation, _ = env.reset(seed=0)
    for _ in range(5):
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        agent.observe(observation, float(reward), terminated, truncated)
    algorithm.collect("CartPole-v1", explorer=spy, n_steps=5, show_progress=False)
    assert seen > 10 and spy.steps == list(range(seen + 20))


def test_the_schedule_continues_in_workers(tmp_path: Path) -> None:
    """The workers have copies of the explorer in other processes, so that they write their steps to a file."""
    algorithm, writes = birl.algos.NStepDQNConfig(rollout_length=4).create(), Writing(str(tmp_path / "steps"))
    for _ in range(2):
        algorithm.fit_online("CartPole-v1", explorer=writes, n_steps=16, workers=1, **QUIET)
    steps = [int(line) for line in (tmp_path / "steps").read_text().splitlines()]
    assert sorted(set(steps)) == list(range(32))


# -- folders ---------------------------------------------------------------------------------------------------


def steps_of(folder: Path) -> list[int]:
    return [int(line.split(",")[1]) for line in (folder / "loss.csv").read_text().splitlines()]


def test_a_second_run_of_a_name_has_its_own_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: Any = {"n_steps_per_epoch": 5, "experiment_name": "x", "with_timestamp": False, "show_progress": False}
    algorithm = dqn()
    algorithm.fit(data(), 10, **options, logger_adapter=FileAdapterFactory(tmp_path))
    first = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    assert "already" not in caplog.text
    algorithm.fit(data(), 5, **options, logger_adapter=FileAdapterFactory(tmp_path))
    assert "there is a run x already; this new run is called x_2" in caplog.text
    dqn().fit_online("CartPole-v1", n_steps=10, **options, logger_adapter=FileAdapterFactory(tmp_path))
    assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == first
    assert steps_of(tmp_path / "x") == [5, 10] and steps_of(tmp_path / "x_2") == [5]
    assert (tmp_path / "x_3/model_10.d3").exists()


def test_runs_of_the_same_second_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen:
        @staticmethod
        def now() -> Any:
            import datetime

            return datetime.datetime(2026, 1, 1)

    monkeypatch.setattr("birl.logging.logger.datetime", Frozen)
    for _ in range(2):
        dqn().fit(data(), 5, logger_adapter=FileAdapterFactory(tmp_path), show_progress=False)
    assert sorted(os.listdir(tmp_path)) == ["DQN_20260101000000", "DQN_20260101000000_2"]


def test_a_resumed_run_keeps_its_folder(tmp_path: Path) -> None:
    options: Any = {"n_steps_per_epoch": 5, "experiment_name": "x", "with_timestamp": False, "show_progress": False}
    options |= {"logger_adapter": FileAdapterFactory(tmp_path)}
    dqn().fit(data(), 5, **options)
    dqn().fit(data(), 5, **options, checkpoint=tmp_path / "state")
    dqn().fit(data(), 10, **options, checkpoint=tmp_path / "state")
    assert steps_of(tmp_path / "x") == [5] and steps_of(tmp_path / "x_2") == [5, 10]
    assert sorted(os.listdir(tmp_path)) == ["state", "x", "x_2"]


def test_every_kind_of_log_has_its_own_folder(tmp_path: Path) -> None:
    both = CombineAdapterFactory([FileAdapterFactory(tmp_path / "files"), TensorboardAdapterFactory(tmp_path)])
    options: Any = {"experiment_name": "x", "with_timestamp": False, "show_progress": False}
    dqn().fit(data(), 2, **options, logger_adapter=TensorboardAdapterFactory(tmp_path))
    dqn().fit(data(), 2, **options, logger_adapter=both)
    assert os.listdir(tmp_path / "files") == ["x_2"] and sorted(os.listdir(tmp_path / "runs")) == ["x", "x_2"]
    for _ in range(2):
        birl.fit_many(
            birl.algos.DQNConfig(batch_size=4), data(), 2, 2, **options, logger_adapter=FileAdapterFactory(tmp_path)
        )
    assert sorted(os.listdir(tmp_path / "x_2")) == sorted(os.listdir(tmp_path / "x"))
