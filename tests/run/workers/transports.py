"""Where workers run in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from birl.distributed.inline_allreduce import InlineAllReduce
from birl.distributed.transport import InlineTransport, Transport
from birl.distributed.worker_pool import TRANSPORTS, Placement
from birl.run.cluster import Cluster
from birl.run.workers.collector_group import CollectorGroup
from birl.run.workers.collector_worker import CollectorWorker
from birl.run.workers.learner_worker import LearnerWorker
from birl.run.workers.replay_worker import ReplayWorker

REAL = dict(TRANSPORTS)


def real_transport(worker: Any, name: str = "processes") -> Callable[[Placement], Transport]:
    """Make the transport that users get."""
    return lambda placement: REAL[name](worker, placement, InlineTransport)


def use_transport(
    monkeypatch: pytest.MonkeyPatch, worker: Any, make: Callable[[Placement], Transport], name: str = "processes"
) -> None:
    """Let one kind of worker have another transport."""
    before = TRANSPORTS[name]

    def choose(factory: Any, placement: Placement, inline: Any) -> Transport:
        return make(placement) if factory is worker else before(factory, placement, inline)

    monkeypatch.setitem(TRANSPORTS, name, choose)


def run_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let collectors, shards and learners run in this process."""
    for worker in (CollectorWorker, ReplayWorker):
        use_transport(monkeypatch, worker, lambda placement, worker=worker: InlineTransport(worker))  # type: ignore[misc]
    use_transport(monkeypatch, LearnerWorker, lambda placement: InlineAllReduce(LearnerWorker))
    monkeypatch.setattr("birl.run.workers.collector_group.check_picklable", lambda *arguments: None)


def record_clusters(monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    """The clusters of all runs from now on."""
    clusters: list[Cluster] = []
    init = CollectorGroup.__init__

    def recorded(self: CollectorGroup, algorithm: Any, agent: Any, cluster: Cluster, *rest: Any) -> None:
        clusters.append(cluster)
        init(self, algorithm, agent, cluster, *rest)

    monkeypatch.setattr(CollectorGroup, "__init__", recorded)
    return clusters
