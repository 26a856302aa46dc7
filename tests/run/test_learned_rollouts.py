"""Several learners of rollouts: each learns from its own collectors, and the update equals one on all rollouts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import birl
from birl.algorithm.learner import Learner
from birl.algorithm.rollouts import Rollouts
from birl.algos import A2CConfig, IMPALAConfig, REINFORCEConfig
from birl.engine import Engine
from birl.errors import UnsupportedError, WorkerError
from birl.run.workers.learner_worker import LearnerWorker
from run.fakes import Drift, signal_at
from run.workers import test_collector_errors, test_collector_group
from run.workers.test_collector_group import SMALL, alike, ppo, rolled
from run.workers.test_synchronous_learners import Notes, Unruly, joined
from run.workers.transports import run_inline, use_transport


def cluster(learned: int = 2, **fields: Any) -> birl.Cluster:
    return birl.Cluster(**{"collectors": 2 * learned, "learners": learned, **fields})


def plain(**fields: Any) -> Any:
    """PPO whose loss is a mean over the minibatch."""
    return ppo(normalize_advantage=False, **fields)


def a2c(**fields: Any) -> Any:
    encoders = {"actor_encoder_factory": SMALL, "value_encoder_factory": SMALL}
    return A2CConfig(rollout_length=5, **encoders, **fields).create()


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch)


@pytest.mark.parametrize(("make", "count"), [(plain, 2), (a2c, 3)])
def test_learners_learn_what_one_learns_from_joined_minibatches(
    make: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        notes = Notes(patched)
        together = rolled(cluster(count), make, n_steps=120)
    assert len(notes.batches) == count and together.grad_step == len(next(iter(notes.batches.values()))) > 3
    alone = make()
    alone.build_with_env(Drift())
    alone.engine.set_state(notes.first)
    for parts in zip(*notes.batches.values(), strict=True):
        assert len({part.observation.numpy().tobytes() for part in parts}) == count
        whole = joined(list(parts))
        names = parts[0].extra
        whole.extra.update({name: torch.cat([part.extra[name] for part in parts]) for name in names})
        alone.engine.update(whole, ("policy",))
    for name, value in alone.nets.state_dict().items():
        torch.testing.assert_close(together.nets.state_dict()[name], value, atol=1e-6, rtol=0)


def test_all_stop_after_the_same_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is on the mean over all learners, which differ."""
    counts: dict[int, int] = {}
    update = Engine.update

    def updated(engine: Any, batch: Any, only: Any = None) -> Any:
        counts[id(engine)] = counts.get(id(engine), 0) + 1
        return update(engine, batch, only)

    monkeypatch.setattr(Engine, "update", updated)
    algorithm = rolled(cluster(), plain, n_steps=200, fields={"n_epochs": 10, "target_kl": 1e-5})
    assert len(set(counts.values())) == 1 and 0 < algorithm.grad_step < 10 * 200 // 10


def test_lost_learners_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rolled(cluster(3), n_steps=170)  # the last rollout is not whole
    made = Unruly({1, 8, 9, 12}, {1, 2, 5, 11})
    use_transport(monkeypatch, LearnerWorker, lambda cluster: made)
    assert alike(rolled(cluster(3), n_steps=170), expected)
    assert not made.left["mean"] and not made.left["answer"]


def test_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    expected = rolled(cluster(), n_steps=150)
    with pytest.raises(SystemExit):
        rolled(cluster(), n_steps=150, checkpoint=tmp_path, callback=signal_at(94))
    assert alike(rolled(cluster(), n_steps=150, checkpoint=tmp_path), expected)


@pytest.mark.timeout(120)
def test_the_first_one_learns_alone_from_rollouts_with_missing_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners would have different numbers of valid steps, and so of minibatches."""
    missing: list[Any] = []
    update = Learner.update

    def learned(self: Any, drawn: Any) -> Any:
        missing.append((drawn.valid.shape[1], int((~drawn.valid).sum())))
        return update(self, drawn)

    monkeypatch.setattr(Learner, "update", learned)
    monkeypatch.setattr(test_collector_group, "Drift", test_collector_errors.Breaks)
    algorithm = rolled(cluster(on_error="restart"), n_steps=200)
    parts, wholes = ([count for n, count in missing if n == lanes] for lanes in (2, 4))
    assert parts and not any(parts) and wholes and all(wholes)
    assert algorithm.grad_step > 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("first", "number"), [("more", "1"), ("fewer", r"\d+")])
def test_learners_with_fewer_minibatches_are_no_endless_wait(
    first: str, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example if a user's algorithm leaves out steps of a rollout. They are not dropped silently."""
    steps = Rollouts._steps

    def fewer(self: Any, config: Any, batch: Any) -> Any:
        made = list(steps(self, config, batch))
        own = threading.current_thread() is threading.main_thread()
        return iter(made if own == (first == "more") else made[1:])

    monkeypatch.setattr(Rollouts, "_steps", fewer)
    with pytest.raises(WorkerError, match=rf"in update {number} learner 0 had {first} minibatches than the others"):
        rolled(cluster(3), n_steps=240)


@pytest.mark.slow
def test_learners_in_processes_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rolled(cluster(), n_steps=120)
    monkeypatch.undo()
    assert alike(rolled(cluster(), n_steps=120), expected)


@pytest.mark.parametrize(
    ("make", "fields", "says"),
    [
        (lambda: IMPALAConfig().create(), {}, "IMPALA, which learns from .* in addition to its rollouts, cannot"),
        (lambda: REINFORCEConfig().create(), {}, "REINFORCE, which learns from whole episodes, cannot"),
        (ppo, {"gradients": "pushed", "learners": 3}, "PPO, which learns from rollouts of its newest weights, cannot"),
    ],
)
def test_what_several_learners_do_not_divide(make: Any, fields: Any, says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        make().fit_online(Drift(), n_steps=20, cluster=cluster(**fields), show_progress=False)
