"""Environments that fail under collectors, and fragments whose length is measured."""

from __future__ import annotations

import logging
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import birl
from birl.algorithm.learner import Learner
from birl.distributed.transport import InlineTransport
from birl.envs.stepper import Stepper
from birl.errors import ConfigError, EnvironmentMismatchError, WorkerError
from birl.files.state_restore import convert_to_corrupt_error
from birl.run.cluster import FIRST_FRAGMENT, fragment_length
from birl.run.workers.collector_group import CollectorGroup
from birl.run.workers.collector_worker import CollectorWorker
from run.fakes import Drift, signal_at
from run.workers.test_collector_group import alike, here, lags, ppo, rolled, run, same, stopped
from run.workers.transports import run_inline, use_transport, use_unruly
from tests.tiers import slow_but

__all__ = ["here"]


class Breaks(Drift):
    """Fails in the fifth step of every third episode, which depends on its seed."""

    def __init__(self, at: int = 5, **options: Any) -> None:
        super().__init__(end=0.0, **options)
        self.at = at

    def reset(self, **options: Any) -> Any:
        observation = super().reset(**options)
        self.bad = self.np_random.integers(3) == 0
        return observation

    def step(self, action: Any) -> Any:
        if self.bad and self.steps == self.at - 1:
            raise ZeroDivisionError("of the user")
        return super().step(action)


def test_the_error_of_an_environment_names_its_seed_and_actions() -> None:
    with pytest.raises(WorkerError, match=r"environment [01] of collector 0, reset with seed [0-9]+") as e:
        run(birl.Cluster(2, 2, 6), env=Breaks())
    text = str(e.value)
    assert "ZeroDivisionError: of the user" in text and "on_error='restart'" in text
    seed, actions = int(text.split("seed ")[1].split(",")[0]), text.split("by its actions: [")[1].split("]")[0]
    env = Breaks()
    env.reset(seed=seed)
    *before, last = map(int, actions.split(", "))
    assert len(before) == 4
    for action in before:
        env.step(action)
    with pytest.raises(ZeroDivisionError):
        env.step(last)


RESTART = birl.Cluster(3, 2, 4, "turns", on_error="restart")


ORDERS = [(order, fragment) for order in ("together", "turns") for fragment in (1, 4, 7)]


@pytest.mark.parametrize(("order", "fragment"), slow_but([("together", 4), ("turns", 7)], ORDERS))
def test_failed_environments_are_remade(
    order: str, fragment: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = birl.Cluster(3, 2, fragment, order, on_error="restart")
    found: list[Any] = []
    with caplog.at_level(logging.WARNING, "birl"):
        expected = run(cluster, env=Breaks(), n_steps=120)
    warned = [record.getMessage() for record in caplog.records if "remade" in record.getMessage()]
    buffer = expected[1]
    assert 120 <= buffer.step_count < 126 and len(warned) > 3
    assert all("ZeroDivisionError: of the user by its actions: [" in message for message in warned)
    broken = 0
    for episode in buffer.episodes:  # an episode that failed has all its steps but the one that did, and is truncated
        steps = episode.observations[:, 1]
        assert np.array_equal(steps, np.arange(len(steps))) and not episode.terminated
        broken += len(steps) == 4
    assert 0 <= broken - len(warned) <= 6  # the run may end where another episode has four steps
    use_unruly(monkeypatch, CollectorWorker, 1, loss=0.3)
    assert same(run(cluster, env=Breaks(), n_steps=120), expected)
    monkeypatch.undo()
    run_inline(monkeypatch)
    found = lags(cluster, monkeypatch, env=Breaks(), n_steps=120)
    assert found[-1]["environment_errors"] == len(warned)


def test_a_run_with_failures_resumes(tmp_path: Path) -> None:
    expected = run(RESTART, env=Breaks())
    assert same(stopped(tmp_path, RESTART, 27, env=Breaks()), expected)


@pytest.mark.parametrize("cluster", [(1, 1, 5), (1, 1, 10), (3, 2, 5), (3, 2, 10)])
def test_rollouts_are_full_whatever_fails(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[Any] = []
    monkeypatch.setattr("run.workers.test_collector_group.Drift", Breaks)
    update = Learner.update
    monkeypatch.setattr(Learner, "update", lambda self, minibatch: learned.append(minibatch) or update(self, minibatch))
    own = birl.Cluster(*cluster, on_error="restart")
    expected = rolled(own, ppo, n_steps=120)
    assert [len(each.valid) for each in learned[:-1]] == [10] * (len(learned) - 1)
    assert sum(int(each.valid.sum()) for each in learned) == 120
    lanes = cluster[0] * cluster[1]
    columns = {name: np.concatenate([getattr(each, name) for each in learned]) for name in ("valid", "truncated")}
    columns["step"] = np.concatenate([each.next_observation[..., 1] for each in learned])
    for lane in range(lanes):
        kept = columns["valid"][:, lane]
        steps, cut = columns["step"][kept, lane], columns["truncated"][kept, lane]
        restarts = np.flatnonzero(steps == 1)[1:]
        ended = steps[restarts - 1]
        assert set(ended) == {4, 7} and (cut[restarts - 1] | (ended == 4)).all()
    use_unruly(monkeypatch, CollectorWorker, 1, loss=0.2)
    assert alike(rolled(own, ppo, n_steps=120), expected)


class NeverWorks(Drift):
    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("of the user")


def test_what_fails_again_and_again_ends_the_run() -> None:
    with pytest.raises(WorkerError, match="environment 0 of collector 0(.|\n)*ZeroDivisionError: of the user") as found:
        run(birl.Cluster(2, 1, 4, restarts=3, on_error="restart"), env=NeverWorks())
    said = str(found.value)
    assert "it was remade 3 times in a row (restarts=3)" in said and "on_error" not in said


class Interrupts(Drift):
    """An environment that ends the program, as old ones do at the end of a window."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def step(self, action: Any) -> Any:
        if self.steps == 3:
            raise self.error("of the user")
        return super().step(action)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_environments_that_end_the_program_are_named(error: type[BaseException]) -> None:
    with pytest.raises(
        WorkerError, match=rf"environment \d of collector \d, reset(.|\n)*{error.__name__}: of the user"
    ):
        run(birl.Cluster(2, 1, 4), env=Interrupts(error))
    run(birl.Cluster(1, 1, 4, restarts=2, on_error="restart"), env=Interrupts(error))  # it is remade


def test_an_environment_that_fails_while_it_is_restored_is_named() -> None:
    """Not the checkpoint, which is right."""

    class Once(Drift):
        left = 1000

        def step(self, action: Any) -> Any:
            type(self).left -= 1
            if self.left == 0:
                raise ZeroDivisionError("of the user")
            return super().step(action)

    stepper = Stepper(Once(), np.random.default_rng(0))
    for _ in range(4):
        stepper.step(np.zeros(1, np.int64))
    state = stepper.get_state()
    Once.left = len(state["actions"])
    with (
        pytest.raises(WorkerError, match=r"raised ZeroDivisionError \(of the user\) in action .* were repeated"),
        convert_to_corrupt_error("the checkpoint"),
    ):
        Stepper(Once(), np.random.default_rng(0)).set_state(state)


# -- environments that never start -------------------------------------------------------------------------------------


class NoReset(Drift):
    def reset(self, **options: Any) -> Any:
        super().reset(**options)
        raise ZeroDivisionError(f"with seed {options['seed']} of the user")


def no_third(number: int) -> Any:
    if number == 2:
        raise ZeroDivisionError("of the maker")
    return Drift()


@pytest.mark.parametrize("on_error", ["stop", "restart"])
def test_the_error_of_a_first_reset_names_its_seed(on_error: str) -> None:
    message = "environment 3 of collector 1 has failed in its first reset, with seed ([0-9]+), and(.|\n)*restart"
    with pytest.raises(WorkerError, match=message) as e:
        run(birl.Cluster(2, 2, 6, on_error=on_error), env=lambda number: NoReset() if number == 3 else Drift())
    seed = str(e.value).split("with seed ")[1].split(",")[0]
    assert f"ZeroDivisionError: with seed {seed} of the user" in str(e.value)


def test_the_error_of_a_factory_names_the_environment() -> None:
    with pytest.raises(WorkerError, match="environment 2 of collector 1 has failed while it was made, and") as e:
        run(birl.Cluster(2, 2, 6, on_error="restart"), env=no_third)
    assert "ZeroDivisionError: of the maker" in str(e.value)


def test_an_error_of_birl_while_environments_are_made_keeps_its_type() -> None:
    with pytest.raises(ConfigError, match="cannot create an environment from 'Nothing-v0'") as e:
        run(birl.Cluster(2, 2, 6), env=lambda number: birl.envs.make_env("Nothing-v0") if number == 2 else Drift())
    sent = pickle.loads(pickle.dumps(e.value))  # noqa: S301  as a process sends it
    assert sent.__notes__ == ["This was in environment 2 of collector 1, while it was made."]


def test_environments_of_a_run_have_the_same_spaces() -> None:
    message = r"environment 3 of collector 1 is not like the first .* \(2,\) and 3 discrete .* and 2 action dim"
    with pytest.raises(EnvironmentMismatchError, match=message) as e:
        run(birl.Cluster(2, 2, 6), env=lambda number: Drift(discrete=number != 3))
    assert not hasattr(e.value, "__notes__")  # the message names the collector


# -- fragments whose length is measured --------------------------------------------------------------------------------


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The duration of a step that collectors report."""
    durations = [0.1 / 7]
    kept = CollectorWorker.__call__

    def call(self: Any, task: Any, weights: Any) -> Any:
        return kept(self, task, weights)._replace(seconds=durations[0])

    monkeypatch.setattr(CollectorWorker, "__call__", call)
    return durations


@pytest.mark.parametrize("order", ["together", "turns", "arrival"])
def test_fragments_are_measured_once(seconds: list[float], order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = birl.Cluster(2, 1, "auto", order)
    found = lags(cluster, monkeypatch, n_steps=200)
    sizes = [each.get("fragment") for each in found]
    assert sizes[0] is None and set(sizes[2:]) == {7.0}
    lengths: list[int] = []
    close = CollectorGroup._close_lost_episodes
    monkeypatch.setattr(
        CollectorGroup,
        "_close_lost_episodes",
        lambda s, place, own: lengths.append(len(own.rows["valid"])) or close(s, place, own),
    )
    _, buffer = run(cluster, n_steps=200)
    first = 2 * cluster.with_default_order(order).credit
    assert lengths[:first] == [FIRST_FRAGMENT] * first and set(lengths[first:-2]) == {7}
    assert buffer.step_count == 200


@pytest.mark.parametrize("at", [5, 90])
def test_a_resumed_run_keeps_its_fragments(seconds: list[float], at: int, tmp_path: Path) -> None:
    """After 90 steps the length is known, and the run keeps it, however long later steps take."""
    cluster = birl.Cluster(2, 1, "auto", "turns")
    expected = run(cluster, n_steps=150)

    with pytest.raises(SystemExit):
        run(cluster, n_steps=150, checkpoint=tmp_path, callback=signal_at(at))
    seconds[0] = 0.1 / 3
    again = run(cluster, n_steps=150, checkpoint=tmp_path)
    assert same(again, expected)


def test_how_long_fragments_are() -> None:
    assert [fragment_length(each) for each in (0.01, 0.002, 1.0, 1e-6, 0.0)] == [10, 50, 1, 1000, 1000]


def test_measured_time_is_that_of_steps() -> None:
    found: list[float] = []

    class Recorded(CollectorWorker):
        def __call__(self, task: Any, weights: Any) -> Any:
            fragment = super().__call__(task, weights)
            found.append(fragment.seconds)
            return fragment

    class Waits(Drift):
        def step(self, action: Any) -> Any:
            time.sleep(0.02)
            return super().step(action)

    with pytest.MonkeyPatch.context() as patch:
        use_transport(patch, CollectorWorker, lambda placement: InlineTransport(Recorded))
        run(birl.Cluster(1, 2, 3), env=Waits(), n_steps=12)
    assert min(found) >= 0.04  # two environments, one after another


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fragment": "long"}, "Cluster.fragment is 'long'; it must be an int >= 1 or 'auto' or None"),
        ({"on_error": "ignore"}, "Cluster.on_error is 'ignore'; it must be one of 'stop', 'restart'"),
        ({"resources": {"num_gpus": 1}}, "Cluster.resources is .*but collectors are 'processes'"),
        ({"resources": {"num_gpus": -1}, "transport": "ray"}, r"Cluster.resources\['num_gpus'\] is -1"),
        ({"resources": {"num_cpus": 0}, "transport": "ray"}, "Cluster.resources asks for nothing"),
        ({"resources": 2, "transport": "ray"}, "Cluster.resources is 2; it must be a dict"),
    ],
)
def test_invalid_clusters(fields: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        birl.Cluster(**fields)


def test_resources_of_collectors() -> None:
    assert birl.Cluster(transport="ray").ray_resources == {"CPU": 1.0}
    given = {"num_cpus": 2, "num_gpus": 0.5, "simulator": 1}
    assert birl.Cluster(transport="ray", resources=given).ray_resources == {"CPU": 2.0, "GPU": 0.5, "simulator": 1.0}
