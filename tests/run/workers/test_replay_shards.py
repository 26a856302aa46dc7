"""Replay shards: one samples like the plain loop, several have consistent weights, and nothing is lost."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl.algos import AWRConfig, ConstantEpsilonGreedy
from birl.dataset import (
    MultiStepTransitionPicker,
    PrioritizedSampler,
    RecentSampler,
    create_fifo_replay_buffer,
)
from birl.dataset.priority_trees import SumTree
from birl.distributed.transport import InlineTransport
from birl.engine import Engine
from birl.errors import ConfigError, CorruptFileError, NonFiniteError, UnsupportedError, WorkerError
from birl.files import load_archive, save_archive
from birl.models import GRUEncoderFactory
from birl.run.workers import replay_shards as shards
from birl.run.workers.collector_worker import CollectorWorker
from birl.run.workers.replay_worker import ReplayWorker
from run.fakes import Drift, signal_at
from run.workers.test_collector_group import dqn, rolled, run, sac, same
from run.workers.transports import real_transport, run_inline, use_transport, use_unruly

GRU = GRUEncoderFactory(hidden_size=3, hidden_units=[4])
GREEDY = {"explorer": lambda: ConstantEpsilonGreedy(0.3)}


def cluster(count: int = 2, **fields: Any) -> birl.Cluster:
    return birl.Cluster(**{"collectors": 2 * count, "fragment": 3, "shards": count, **fields})


def prioritized() -> dict[str, Any]:
    return {"sampler": PrioritizedSampler(beta_steps=30), "limit": 40}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all workers in this process, unless a test changes that."""
    run_inline(monkeypatch)


@pytest.mark.parametrize(
    ("make", "fields", "stored"),
    [
        (dqn, {}, prioritized),
        (dqn, {}, lambda: {**prioritized(), "transition_picker": MultiStepTransitionPicker(3, 0.9)}),
        (dqn, {"encoder_factory": GRU, "burn_in": 2, "sequence_length": 4}, prioritized),
        (sac, {}, lambda: {"sampler": RecentSampler(period=10, smallest=5)}),
        (sac, {}, dict),
    ],
    ids=["prioritized", "n-step", "sequences", "recent", "uniform"],
)
def test_one_shard_samples_what_the_plain_loop_samples(make: Any, fields: Any, stored: Any) -> None:
    options: Any = {"fields": fields, "stored": stored, "n_steps": 80, **(GREEDY if make is dqn else {})}
    one = birl.Cluster(1, 1, 1, "together", shards=1, ahead=False)
    assert same(run(one, make, **options), run(None, make, **options))


class Batches:
    """Records the minibatches of all updates."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[Any] = []
        update = Engine.update

        def updated(engine: Any, batch: Any, only: Any = None) -> Any:
            self.all.append(batch.map(torch.clone))
            return update(engine, batch, only)

        monkeypatch.setattr(Engine, "update", updated)


@pytest.mark.parametrize("ahead", [False, True])
def test_every_shard_samples_its_part_from_its_own_collectors(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, seen = Batches(monkeypatch), []
    buffer = create_fifo_replay_buffer(60, env=Drift(), lanes=4, sampler=PrioritizedSampler())
    append = buffer.append_batch

    def appended(observation: Any, *given: Any, lanes: Any = None, **options: Any) -> None:
        seen.extend((int(lane) // 2, tuple(row)) for lane, row in zip(lanes, observation.tolist(), strict=True))
        append(observation, *given, lanes=lanes, **options)

    buffer.append_batch = appended
    monkeypatch.setattr("run.workers.test_collector_group.create_fifo_replay_buffer", lambda *given, **options: buffer)
    run(cluster(order="turns", ahead=ahead), n_steps=90)
    assert len(batches.all) > 10
    for half in range(2):
        rows = {tuple(row) for batch in batches.all for row in batch.observation[2 * half : 2 * half + 2].tolist()}
        assert rows <= {row for shard, row in seen if shard == half} and len(rows) > 10


def test_weights_of_several_shards_correct_how_often_their_steps_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are sampled in proportion to ``priority / total of its shard``, whichever shard has the larger total."""
    batches, totals = Batches(monkeypatch), []
    find = SumTree.find

    def found(tree: Any, mass: Any) -> Any:
        leaf = find(tree, mass)
        totals.append((tree.total, tree.values(leaf)))
        return leaf

    monkeypatch.setattr(SumTree, "find", found)
    run(
        cluster(order="together", ahead=False),
        n_steps=60,
        stored=lambda: {"sampler": PrioritizedSampler(0.7, 0.5, None)},
    )
    pairs = list(zip(totals[::2], totals[1::2], strict=True))
    assert len(pairs) == len(batches.all) > 10
    assert any(one[0] > 1.2 * other[0] or other[0] > 1.2 * one[0] for one, other in pairs)
    for pair, batch in zip(pairs, batches.all, strict=True):
        probability = np.concatenate([priority / total for total, priority in pair])
        expected = (probability.min() / probability) ** 0.5
        np.testing.assert_allclose(batch.weight.numpy(), expected, rtol=1e-5)


def test_minibatches_sampled_ahead_lack_the_newest_priorities() -> None:
    options: Any = {"stored": prioritized, "n_steps": 80, **GREEDY}
    assert not same(run(cluster(ahead=True), **options), run(cluster(ahead=False), **options))
    algorithm, buffer = run(cluster(), **options)
    assert buffer.step_count == 40 and 20 < algorithm.grad_step <= 80 // 3


# -- what is lost ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "fields", "stored", "ahead"),
    [
        (dqn, {}, prioritized, False),
        (dqn, {"encoder_factory": GRU, "burn_in": 2, "sequence_length": 4}, prioritized, True),
        (sac, {}, lambda: {"sampler": RecentSampler(period=10, smallest=5)}, True),
    ],
    ids=["prioritized", "sequences", "recent"],
)
def test_lost_shards_change_nothing(
    make: Any, fields: Any, stored: Any, ahead: bool, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    options: Any = {"fields": fields, "stored": stored, "n_steps": 100, "update_interval": 2}
    options |= GREEDY if make is dqn else {}
    expected = run(cluster(ahead=ahead), make, **options)
    monkeypatch.setattr(shards, "STATE_INTERVAL", 15)
    made = use_unruly(monkeypatch, ReplayWorker, 1, loss=0.08)
    with caplog.at_level(logging.WARNING):
        assert same(run(cluster(ahead=ahead), make, **options), expected)
    assert made[0].killed > 10
    assert "was ended by SIGKILL, at minibatch" in caplog.text


def test_shards_that_are_lost_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    use_unruly(monkeypatch, ReplayWorker, 1, loss=1.0)
    with pytest.raises(WorkerError, match="shard [01] was ended 4 times in a row .by SIGKILL last. without a minib"):
        run(cluster(restarts=3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
def test_shards_in_processes_survive(kind: int, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    options: Any = {"stored": prioritized, "n_steps": 120, "update_interval": 1, **GREEDY}
    expected = run(cluster(), **options)
    monkeypatch.undo()
    made: list[Any] = []
    make = real_transport(ReplayWorker)
    use_transport(monkeypatch, CollectorWorker, lambda placement: InlineTransport(CollectorWorker))
    use_transport(monkeypatch, ReplayWorker, lambda placement: made.append(make(placement)) or made[-1])
    left = {30: 0, 55: 1, 56: 1, 90: 0}

    class Kills:
        def __call__(self, algorithm: Any, epoch: int, step: int) -> None:
            if step in left:
                os.kill(made[0]._workers[left.pop(step)].pid, kind)

    with caplog.at_level(logging.WARNING):
        assert same(run(cluster(step_timeout=2.0), callback=Kills(), **options), expected)
    assert not left and caplog.text.count("it is restarted with the steps of its collectors") >= 3
    assert not multiprocessing.active_children()


def test_the_transport_of_shards_is_opened_first_and_closed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """This transport may have started Ray for the collectors as well."""
    events: list[str] = []

    class Recorded(InlineTransport):
        def __init__(self, worker: Any) -> None:
            super().__init__(worker)
            events.append(f"open {worker.__name__}")

        def close(self) -> None:
            super().close()
            events.append(f"close {self._factory.__name__}")  # type: ignore[attr-defined]

    for worker in (CollectorWorker, ReplayWorker):
        use_transport(monkeypatch, worker, lambda placement, worker=worker: Recorded(worker))  # type: ignore[misc]
    run(cluster(), n_steps=20)
    assert events == ["open ReplayWorker", "open CollectorWorker", "close CollectorWorker", "close ReplayWorker"]


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "ahead", "order"),
    [
        ({}, True, "together"),
        ({}, True, "turns"),
        ({}, False, "turns"),
        ({"encoder_factory": GRU, "burn_in": 2, "sequence_length": 4}, True, "turns"),
    ],
)
def test_a_resumed_run_is_the_same_with_lost_shards_too(
    fields: Any, ahead: bool, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = {"fields": fields, "stored": prioritized, "n_steps": 80, **GREEDY}
    own = cluster(order=order, ahead=ahead)
    expected = run(own, **options)

    with pytest.raises(SystemExit):
        run(own, checkpoint=tmp_path, callback=signal_at(61), **options)
    use_unruly(monkeypatch, ReplayWorker, 1, loss=0.2)
    assert same(run(own, checkpoint=tmp_path, **options), expected)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda state: state["shards"].pop("1"), r"the checkpoint has shards \['0'\]"),
        (lambda state: state["shards"]["0"].pop("part"), "only a part of the next minibatch"),
        (lambda state: state["shards"]["0"]["part"].update(kind="int"), "a minibatch of kind 'int'"),
        (lambda state: state["shards"]["0"]["part"]["fields"].pop("actions"), "actions"),
        (lambda state: state["shards"]["0"]["state"]["sampler"].pop("greatest"), "greatest"),
    ],
)
def test_damage_is_an_error(damage: Any, message: str, tmp_path: Path) -> None:
    options: Any = {"stored": prioritized, "checkpoint": tmp_path}
    run(cluster(), callback=lambda _, epoch, step: step < 40, **options)
    path = tmp_path / "checkpoint.d3c"
    config, state = load_archive(path, "checkpoint")
    damage(state["parts"]["sampler"])
    save_archive(path, "checkpoint", config, state)
    with pytest.raises(CorruptFileError, match=message):
        run(cluster(), go_on=True, **options)


# -- what cannot be ----------------------------------------------------------------------------------------------------


def test_invalid_shards() -> None:
    with pytest.raises(ConfigError, match="Cluster.shards is 2, with 5 collectors; .*give collectors=6"):
        birl.Cluster(5, shards=2)
    with pytest.raises(ConfigError, match="Cluster.shards=2 cannot be combined with Cluster.learners=2"):
        birl.Cluster(4, shards=2, learners=2)
    with pytest.raises(ConfigError, match="Cluster.shards is -1; it must be an int >= 0"):
        birl.Cluster(shards=-1)
    with pytest.raises(ConfigError, match="batch_size is 4, with Cluster.shards=3; .*give batch_size=6"):
        run(cluster(3))
    with pytest.raises(
        UnsupportedError, match="PPO, which learns from rollouts .* cannot be combined with Cluster.shards"
    ):
        rolled(birl.Cluster(2, shards=2))
    with pytest.raises(UnsupportedError, match="AWR, which learns from returns up to the ends of episodes, cannot"):
        AWRConfig().create().fit_online(Drift(False), cluster=cluster())


def test_priorities_that_are_none_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    send = shards.ReplayShards._send_priorities
    monkeypatch.setattr(
        shards.ReplayShards, "_send_priorities", lambda self, shard, gen, x: send(self, shard, gen, x * np.nan)
    )
    with pytest.raises(NonFiniteError, match="the priority of a step is nan"):
        run(cluster(), stored=prioritized)
