"""Machines that are lost and added: two of Ray's nodes, both on this one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from run.fakes import Drift
from run.workers.test_collector_group import run, sac, same

import birl
from birl.errors import WorkerError

STORE = 100 * 2**20


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A cluster whose driver's node has no free CPU."""
    if ray.is_initialized():
        ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": STORE})
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


class Slow(Drift):
    """Is slow, so that a node is lost during a run."""

    def step(self, action: Any) -> Any:
        time.sleep(0.2)
        return super().step(action)


@pytest.mark.parametrize("patience", [120.0, 5.0])
def test_a_lost_node(nodes: Any, patience: float) -> None:
    """Its collectors continue on another node; if there is none in time, the run ends with an error."""
    expected = run(birl.Cluster(2, 1, 4, transport="inline"), sac, env=Drift(False))
    lost = nodes.add_node(num_cpus=2, object_store_memory=STORE)
    nodes.wait_for_nodes()
    cluster = birl.Cluster(2, 1, 4, transport="ray", patience=patience)
    with ThreadPoolExecutor(1) as pool:  # Ray starts nodes in the main thread only
        result = pool.submit(run, cluster, sac, env=Slow(False), n_steps=50 if patience > 60 else 2000)
        time.sleep(12.0)  # in the middle of the run, or before it: either way it must go on
        nodes.remove_node(lost, allow_graceful=False)
        if patience > 60:
            nodes.add_node(num_cpus=2, object_store_memory=STORE)
            assert same(result.result(), expected)
        else:
            with pytest.raises(WorkerError, match="found no resources within 5 seconds: each asks for CPU 1"):
                result.result()
