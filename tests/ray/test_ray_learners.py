"""Learners that Ray places."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from run.workers.test_collector_group import run, sac, same
from run.workers.transports import real_transport, use_transport

import birl
from birl.distributed.process_group import GlooGroup
from birl.run.workers import synchronous_learners as learners
from birl.run.workers.learner_worker import LearnerWorker


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[None]:
    """One Ray for all tests."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    yield
    ray.shutdown()


def cluster(**fields: Any) -> birl.Cluster:
    return birl.Cluster(2, 1, 3, learners=2, **fields)


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
def test_lost_learners_change_nothing(kind: int, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(learners, "CHECK_INTERVAL", 1)
    expected = run(cluster(transport="inline"), sac)
    made: list[Any] = []
    times: list[float] = []
    mean, make, lose = (
        GlooGroup.all_reduce_mean,
        real_transport(LearnerWorker, "ray"),
        learners.SynchronousLearners._handle_lost,
    )

    def meant(group: Any, value: Any) -> Any:
        times.append(time.monotonic())
        if len(times) == 8:  # in the step of the actor
            os.kill(ray._private.state.actors(made[0]._actors[1]._actor_id.hex())["Pid"], kind)
        return mean(group, value)

    def lost(self: Any, error: Any) -> None:
        made.append(time.monotonic() - times[7])
        lose(self, error)

    monkeypatch.setattr(GlooGroup, "all_reduce_mean", meant)
    monkeypatch.setattr(learners.SynchronousLearners, "_handle_lost", lost)
    use_transport(monkeypatch, LearnerWorker, lambda placement: made.append(make(placement)) or made[-1], "ray")
    with caplog.at_level(logging.WARNING):
        assert same(run(cluster(transport="ray", step_timeout=6.0), sac), expected)
    print(f"noticed after {made[1]:.1f} s")
    assert "learner 1 was ended" in caplog.text and "in update 3 or before" in caplog.text


def test_pushed_gradients_are_the_same_over_ray() -> None:
    pushed = {"learners": 2, "gradients": "pushed"}
    expected = run(birl.Cluster(1, 1, 3, transport="inline", **pushed), sac)
    assert same(run(birl.Cluster(1, 1, 3, transport="ray", **pushed), sac), expected)
