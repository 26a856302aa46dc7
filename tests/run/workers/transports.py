"""Transports of workers in tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from birl.distributed.inline_allreduce import InlineAllReduce
from birl.distributed.transport import InlineTransport, Transport, WorkerLost
from birl.distributed.worker_pool import TRANSPORTS, Placement
from birl.distributed.worker_process import OwnerGone
from birl.run.cluster import Cluster
from birl.run.workers.collector_group import CollectorGroup
from birl.run.workers.collector_worker import CollectorWorker
from birl.run.workers.learner_worker import LearnerWorker
from birl.run.workers.replay_worker import ReplayWorker

REAL = dict(TRANSPORTS)


def real_transport(worker: Any, name: str = "processes") -> Callable[[Placement], Transport]:
    """Return a function that makes the transport that users get."""
    return lambda placement: REAL[name](worker, placement, InlineTransport)


def use_transport(
    monkeypatch: pytest.MonkeyPatch, worker: Any, make: Callable[[Placement], Transport], name: str = "processes"
) -> None:
    """Replace the transport of one kind of worker."""
    before = TRANSPORTS[name]

    def choose(factory: Any, placement: Placement, inline: Any) -> Transport:
        return make(placement) if factory is worker else before(factory, placement, inline)

    monkeypatch.setitem(TRANSPORTS, name, choose)


def run_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run collectors, shards and learners in this process."""
    for worker in (CollectorWorker, ReplayWorker):
        use_transport(monkeypatch, worker, lambda placement, worker=worker: InlineTransport(worker))  # type: ignore[misc]
    use_transport(monkeypatch, LearnerWorker, lambda placement: InlineAllReduce(LearnerWorker))
    monkeypatch.setattr("birl.run.workers.collector_group.check_picklable", lambda *arguments: None)


class Unruly(InlineTransport):
    """Results arrive in a random order, and workers are lost with their tasks, before or after their work.

    A worker is also lost when it raises `OwnerGone`.

    Args:
        worker: class of the workers.
        seed: seed of the order and of the losses.
        loss: probability that a worker is lost before its work, and again after it.
    """

    def __init__(self, worker: Any, seed: int = 0, loss: float = 0.0) -> None:
        super().__init__(worker)
        self._random, self._loss, self.killed = random.Random(seed), loss, 0

    def wait(self) -> tuple[int, Any]:
        index = self._random.choice([each[0] for each in self._tasks])
        self._lose_now_and_then(index)
        first = next(task for task in self._tasks if task[0] == index)
        self._tasks.remove(first)
        self._tasks.appendleft(first)
        try:
            answer = super().wait()
        except OwnerGone:
            self._lose(index)
        self._lose_now_and_then(index)
        return answer

    def _lose_now_and_then(self, index: int) -> None:
        if self._loss and self._random.random() < self._loss:
            self._lose(index)

    def _lose(self, index: int) -> NoReturn:
        self.killed += 1
        self._forget(index)
        raise WorkerLost(index, "by SIGKILL") from None


def use_unruly(monkeypatch: pytest.MonkeyPatch, worker: Any, seed: int = 0, loss: float = 0.0) -> list[Unruly]:
    """Give one kind of worker an `Unruly` transport. Return the list of transports, which grows as they are made."""
    made: list[Unruly] = []

    def make(placement: Placement) -> Unruly:
        made.append(Unruly(worker, seed, loss))
        return made[-1]

    use_transport(monkeypatch, worker, make)
    return made


def record_clusters(monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    """Return the list of the clusters of all later runs."""
    clusters: list[Cluster] = []
    init = CollectorGroup.__init__

    def recorded(self: CollectorGroup, algorithm: Any, agent: Any, cluster: Cluster, *rest: Any) -> None:
        clusters.append(cluster)
        init(self, algorithm, agent, cluster, *rest)

    monkeypatch.setattr(CollectorGroup, "__init__", recorded)
    return clusters
