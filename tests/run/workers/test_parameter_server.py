"""Learners that push gradients to the first one: computed at older parameters, applied in order, of bounded age."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import birl
from birl.algos import ConstantEpsilonGreedy, CrossQConfig, TD3Config
from birl.distributed.inline_allreduce import InlineAllReduce
from birl.distributed.transport import InlineTransport, WorkerLost
from birl.engine import Engine
from birl.errors import ConfigError, CorruptFileError, UnsupportedError, WorkerError
from birl.files import load_archive, save_archive
from birl.models import VectorEncoderFactory
from birl.run.workers.collector_worker import CollectorWorker
from birl.run.workers.learner_worker import LearnerWorker
from birl.run.workers.parameter_server import ParameterServer
from run.fakes import Drift, signal_at
from run.workers.test_collector_group import dqn, run, sac, same
from run.workers.transports import real_transport, run_inline, use_transport

SMALL = VectorEncoderFactory(hidden_units=[4])


def cluster(workers: int = 2, **fields: Any) -> birl.Cluster:
    given = {"collectors": workers, "fragment": 3, "learners": workers + 1, "gradients": "pushed", **fields}
    return birl.Cluster(**given)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all workers in this process, unless a test changes that."""
    run_inline(monkeypatch)


@pytest.mark.parametrize("workers", [1, 3])
def test_gradients_of_older_parameters_move_the_newest(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: dict[int, Any] = {}
    first: dict[str, Any] = {}
    compute, learn = Engine.compute_update_gradients, ParameterServer.learn

    def found(engine: Any, name: str, make: Any) -> Any:
        update = engine.update

        def noted(batch: Any, only: Any = None) -> Any:
            batches[engine.grad_step + 1] = batch.map(torch.clone)
            return update(batch, only)

        engine.update = noted
        try:
            return compute(engine, name, make)
        finally:
            del engine.update

    def learned(pushed: Any, session: Any, minibatch: Any) -> None:
        if not first:
            first.update(pushed._algorithm.engine.get_state())
        learn(pushed, session, minibatch)

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "compute_update_gradients", found)
        patched.setattr(ParameterServer, "learn", learned)
        pushed, buffer = run(cluster(workers), dqn, n_steps=60)
    assert pushed.grad_step > 10 and buffer.step_count == 60
    assert set(batches) >= set(range(1, pushed.grad_step + 1))

    old, own = dqn(), dqn()
    for each in (old, own):
        each.build_with_env(Drift())
        each.engine.set_state(first)
    (step,) = own.engine.gradient_steps
    names = dict(own.nets.named_parameters())
    trained = {name: names[name] for name in own.engine.parameters[step.name]}
    adam = torch.optim.Adam(trained.values(), lr=own.config.learning_rate)
    history = [{name: x.clone() for name, x in own.nets.state_dict().items()}]
    for number in range(1, pushed.grad_step + 1):
        old.nets.load_state_dict(history[max(0, number - workers)])
        value = step.loss(old.nets, batches[number], old.config).value
        theirs = dict(old.nets.named_parameters())
        gradients = torch.autograd.grad(value, [theirs[name] for name in trained])
        for x, gradient in zip(trained.values(), gradients, strict=True):
            x.grad = gradient
        adam.step()
        history.append({name: x.clone() for name, x in own.nets.state_dict().items()})
    for name, value in pushed.nets.state_dict().items():
        torch.testing.assert_close(value, history[-1][name], atol=1e-6, rtol=0)


def td3(**fields: Any) -> Any:
    return TD3Config(batch_size=4, actor_encoder_factory=SMALL, critic_encoder_factory=SMALL).create()


@pytest.mark.parametrize("make", [sac, td3])
def test_all_steps_are_pushed_and_their_age_is_bounded(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lags: list[float] = []
    learn = ParameterServer.learn

    class Recorded:
        def __init__(self, session: Any) -> None:
            self.session, self.time, self.averages = session, session.time, self

        def add(self, metrics: Any) -> None:
            lags.append(metrics["gradient_lag"])
            self.session.averages.add(metrics)

    monkeypatch.setattr(
        ParameterServer, "learn", lambda self, session, minibatch: learn(self, Recorded(session), minibatch)
    )
    env = Drift(False)
    expected = run(cluster(3), make, env=env, n_steps=60)
    assert lags == [0, 1, *[2] * (len(lags) - 2)] and len(lags) == expected[0].grad_step > 10
    assert same(run(cluster(3), make, env=env, n_steps=60), expected)
    counts = expected[0].engine.step_counts
    assert counts["critic"] == expected[0].grad_step
    assert counts["actor"] == expected[0].grad_step // (2 if make is td3 else 1)
    if make is sac:
        assert counts["temperature"] == expected[0].grad_step


class Unruly(InlineAllReduce):
    """Results are lost together with their learner.

    Args:
        lost: numbers of these answers.
    """

    def __init__(self, lost: set[int]) -> None:
        super().__init__(LearnerWorker)
        self.lost, self.count = set(lost), 0

    def wait(self) -> tuple[int, Any]:
        index, answer = super().wait()
        self.count += 1
        if self.count in self.lost:
            self.lost.discard(self.count)
            self._forget(index)
            raise WorkerLost(index, "by SIGKILL")
        return index, answer


def test_lost_learners_are_restarted(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    transport = Unruly({1, 2, 3, 8, 9, 15})
    use_transport(monkeypatch, LearnerWorker, lambda placement: transport)
    with caplog.at_level(logging.WARNING):
        algorithm, buffer = run(cluster(3), sac, n_steps=61)
    assert not transport.lost and buffer.step_count == 61
    assert algorithm.engine.step_counts["actor"] == algorithm.grad_step > 10
    assert "was ended by SIGKILL, in update" in caplog.text
    always = Unruly(set(range(1000)))
    use_transport(monkeypatch, LearnerWorker, lambda placement: always)
    with pytest.raises(WorkerError, match="learners were ended 4 times in a row"):
        run(cluster(restarts=3))


@pytest.mark.slow
def test_learners_in_processes_survive_sigkill(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.undo()
    use_transport(monkeypatch, CollectorWorker, lambda placement: InlineTransport(CollectorWorker))
    made: list[Any] = []
    make, assign = real_transport(LearnerWorker), ParameterServer._assign

    def assigned(pushed: Any, index: int) -> None:
        assign(pushed, index)
        if pushed._algorithm.grad_step == 5 and not pushed.restarts:
            os.kill(made[0]._workers[1].pid, signal.SIGKILL)

    use_transport(monkeypatch, LearnerWorker, lambda placement: made.append(make(placement)) or made[-1])
    monkeypatch.setattr(ParameterServer, "_assign", assigned)
    with caplog.at_level(logging.WARNING):
        algorithm, _ = run(cluster(1), sac)
    assert algorithm.grad_step > 10
    assert "learner 1 was ended by SIGKILL, in update 6 or before" in caplog.text


@pytest.mark.parametrize("make", [dqn, sac])
def test_a_resumed_run_is_the_same(make: Any, tmp_path: Path) -> None:
    options: Any = {"explorer": lambda: ConstantEpsilonGreedy(0.3)} if make is dqn else {}
    expected = run(cluster(), make, **options)

    with pytest.raises(SystemExit):
        run(cluster(), make, checkpoint=tmp_path, callback=signal_at(34), **options)
    assert same(run(cluster(), make, checkpoint=tmp_path, **options), expected)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda each: each.update(learner=0), "learner is 0"),
        (
            lambda each: each["steps"]["critic"]["gradients"].update(other=1),
            "gradients of other parameters than critic's",
        ),
    ],
)
def test_damage_is_an_error(damage: Any, message: str, tmp_path: Path) -> None:
    run(cluster(), sac, checkpoint=tmp_path, callback=lambda _, epoch, step: step < 40)
    path = tmp_path / "checkpoint.d3c"
    config, state = load_archive(path, "checkpoint")
    damage(next(iter(state["parts"]["learners"]["gradients"].values())))
    save_archive(path, "checkpoint", config, state)
    with pytest.raises(CorruptFileError, match=message):
        run(cluster(), sac, checkpoint=tmp_path, go_on=True)


def test_invalid_settings() -> None:
    with pytest.raises(ConfigError, match="Cluster.gradients is 'pushed', but Cluster.learners is 1"):
        birl.Cluster(2, gradients="pushed")
    with pytest.raises(ConfigError, match="every learner but the first must .*: give collectors=4"):
        birl.Cluster(3, learners=3, gradients="pushed")
    with pytest.raises(ConfigError, match="Cluster.gradients is 'sent'; it must be one of 'together', 'pushed'"):
        birl.Cluster(2, learners=2, gradients="sent")
    with pytest.raises(UnsupportedError, match="batch normalisation in the networks of CrossQ"):
        CrossQConfig(batch_size=4).create().fit_online(Drift(False), n_steps=20, cluster=cluster(), show_progress=False)
