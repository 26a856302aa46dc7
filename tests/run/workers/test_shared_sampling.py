"""Several learners with a sampler that is not uniform: rows, weights and priorities are those of one learner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from birl.dataset import PrioritizedSampler, RecentSampler
from birl.dataset.priority_trees import SumTree
from run.workers.test_collector_group import dqn, run, same
from run.workers.test_synchronous_learners import Notes, cluster
from run.workers.transports import run_inline


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch)


def test_weights_and_priorities_of_all_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are divided by the largest of all minibatches, and each tree gets the errors of its own steps."""
    notes, sampled, given = Notes(monkeypatch), [], []
    find, update = SumTree.find, PrioritizedSampler.update

    def found(tree: Any, mass: Any) -> Any:
        leaf = find(tree, mass)
        sampled.append((tree.total, tree.values(leaf)))
        return leaf

    def updated(sampler: Any, rows: Any, priority: Any) -> None:
        given.append((sampler, np.array(priority)))
        update(sampler, rows, priority)

    monkeypatch.setattr(SumTree, "find", found)
    monkeypatch.setattr(PrioritizedSampler, "update", updated)
    run(cluster(order="together"), dqn, n_steps=60, stored=lambda: {"sampler": PrioritizedSampler(0.7, 0.5, None)})
    first, second = notes.batches.values()
    assert len(first) == len(second) == len(sampled) // 2 == len(given) // 2 > 10
    for number, batches in enumerate(zip(first, second, strict=True)):
        probability = [priority / total for total, priority in sampled[2 * number : 2 * number + 2]]
        least = np.concatenate(probability).min()
        for batch, own in zip(batches, probability, strict=True):
            np.testing.assert_allclose(batch.weight.numpy(), (least / own) ** 0.5, rtol=1e-5)
    assert len({id(sampler) for sampler, _ in given}) == 2
    assert not any(np.array_equal(one[1], other[1]) for one, other in zip(given[::2], given[1::2], strict=True))


def test_recent_steps_are_those_of_each_learner() -> None:
    options: Any = {"n_steps": 60, "stored": lambda: {"sampler": RecentSampler(period=10, smallest=5)}}
    assert same(run(cluster(), dqn, **options), run(cluster(), dqn, **options))
    assert not same(run(cluster(), dqn, n_steps=60), run(cluster(), dqn, **options))
