"""Replay shards that Ray places."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

import pytest
import ray
from run.workers.test_collector_group import dqn, run, same
from run.workers.transports import real_transport, use_transport

import birl
from birl.algos import ConstantEpsilonGreedy
from birl.dataset import PrioritizedSampler
from birl.run.workers.replay_worker import ReplayWorker


def test_a_shard_that_is_killed_changes_nothing(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """The run starts Ray, and shuts it down at its end."""

    def cluster(transport: str, **fields: Any) -> birl.Cluster:
        return birl.Cluster(2, 1, 3, shards=1, transport=transport, **fields)

    options: dict[str, Any] = {"stored": lambda: {"sampler": PrioritizedSampler(), "limit": 40}, "n_steps": 80}
    options |= {"explorer": lambda: ConstantEpsilonGreedy(0.3)}
    expected = run(cluster("inline"), dqn, **options)
    made: list[Any] = []
    make = real_transport(ReplayWorker, "ray")
    use_transport(monkeypatch, ReplayWorker, lambda placement: made.append(make(placement)) or made[-1], "ray")

    def callback(_: Any, epoch: int, step: int) -> None:
        if step == 50:
            os.kill(ray._private.state.actors(made[0]._actors[0]._actor_id.hex())["Pid"], signal.SIGKILL)

    with caplog.at_level(logging.WARNING):
        own = cluster("ray", resources={"num_cpus": 0.25})
        assert same(run(own, dqn, callback=callback, **options), expected)
    assert "shard 0 was ended" in caplog.text and not ray.is_initialized()
