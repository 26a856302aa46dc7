"""Several learners: one update on concatenated minibatches, the same bits for all, and nothing is lost."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import birl
from birl.algos import (
    ConstantEpsilonGreedy,
    CrossQConfig,
    TD3PlusBCConfig,
)
from birl.dataset import PrioritizedSampler, create_fifo_replay_buffer
from birl.distributed.inline_allreduce import InlineAllReduce
from birl.distributed.process_group import GlooGroup, GlooStore, GroupBroken
from birl.distributed.transport import WorkerLost
from birl.engine import Engine
from birl.errors import ConfigError, CorruptFileError, UnsupportedError, WorkerError
from birl.files import load_archive, save_archive
from birl.models import distributions
from birl.preprocessing import RunningRewardScaler
from birl.run.workers import synchronous_learners as learners
from birl.run.workers.learner_worker import LearnerWorker
from run.fakes import Drift, signal_at
from run.workers.test_collector_group import dqn, run, sac, same
from run.workers.transports import real_transport, run_inline, use_transport


def cluster(learned: int = 2, **fields: Any) -> birl.Cluster:
    return birl.Cluster(**{"collectors": 2 * learned, "fragment": 3, "learners": learned, **fields})


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all workers in this process, unless a test changes that, and compare learners after every update."""
    run_inline(monkeypatch)
    monkeypatch.setattr(learners, "CHECK_INTERVAL", 1)


class Notes:
    """Records the data of each learner's updates: its batches, and the noise that its losses drew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first: dict[str, Any] = {}
        self.batches: dict[int, list[Any]] = {}
        self.noise: dict[int, list[list[torch.Tensor]]] = {}
        here, update, standard = threading.local(), Engine.update, distributions._noise

        def updated(engine: Any, batch: Any, only: Any = None) -> Any:
            own = self.noise.setdefault(id(engine), [])
            if threading.current_thread() is threading.main_thread():
                self.first = self.first or engine.get_state()
            self.batches.setdefault(id(engine), []).append(batch.map(torch.clone))
            own.append([])
            here.noise = own[-1]
            return update(engine, batch, only)

        def drawn(*given: Any) -> torch.Tensor:
            found = standard(*given)
            getattr(here, "noise", []).append(found)
            return found

        monkeypatch.setattr(Engine, "update", updated)
        monkeypatch.setattr(distributions, "_noise", drawn)


def joined(batches: list[Any]) -> Any:
    names = ("observation", "action", "reward", "next_observation", "discount", "weight")
    return type(batches[0])(**{name: torch.cat([getattr(each, name) for each in batches]) for name in names})


def prioritized() -> dict[str, Any]:
    return {"sampler": PrioritizedSampler(), "limit": 48}


@pytest.mark.parametrize(
    ("make", "count", "stored"), [(dqn, 2, dict), (dqn, 3, prioritized), (sac, 3, dict), (sac, 2, prioritized)]
)
def test_learners_learn_what_one_learns_from_joined_minibatches(
    make: Any, count: int, stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        notes = Notes(patched)
        together, _ = run(cluster(count), make, n_steps=60, stored=stored)
    assert len(notes.batches) == count and together.grad_step == len(next(iter(notes.batches.values()))) > 10
    alone = make()
    alone.build_with_env(Drift(make is dqn))
    alone.engine.set_state(notes.first)
    batches, noises = zip(*notes.batches.values(), strict=True), zip(*notes.noise.values(), strict=True)
    for number, (parts, noise) in enumerate(zip(batches, noises, strict=True)):
        if number:
            assert len({part.observation.numpy().tobytes() for part in parts}) == count
        given = iter([torch.cat(each) for each in zip(*noise, strict=True)])
        monkeypatch.setattr(distributions, "_noise", lambda *_, given=given: next(given))
        alone.engine.update(joined(list(parts)))
        assert next(given, None) is None
    for name, value in alone.nets.state_dict().items():
        torch.testing.assert_close(together.nets.state_dict()[name], value, atol=1e-6, rtol=0)
    if make is sac:
        before = {name: x for name, x in notes.first["nets"].items() if name.startswith("temperature")}
        assert before and not any(torch.equal(alone.nets.state_dict()[name], x) for name, x in before.items())


@pytest.mark.parametrize("order", ["together", "turns"])
@pytest.mark.parametrize("limit", [1000, 30])
def test_every_learner_draws_from_its_own_collectors(order: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    notes, seen = Notes(monkeypatch), []
    buffer = create_fifo_replay_buffer(limit, env=Drift(), lanes=8)
    append = buffer.append_batch

    def appended(observation: Any, *given: Any, lanes: Any = None, **options: Any) -> None:
        seen.extend((int(lane) // 4, tuple(row)) for lane, row in zip(lanes, observation.tolist(), strict=True))
        append(observation, *given, lanes=lanes, **options)

    buffer.append_batch = appended
    monkeypatch.setattr("run.workers.test_collector_group.create_fifo_replay_buffer", lambda *given, **options: buffer)
    algorithm, _ = run(cluster(environments=2, order=order), n_steps=90)
    own, other = notes.batches.values()
    assert len(own) == len(other) == algorithm.grad_step > 10
    for number, batches in enumerate((own, other)):
        rows = {tuple(row) for batch in batches for row in batch.observation.tolist()}
        assert rows <= {row for learner, row in seen if learner == number} and len(rows) > 10


def test_steps_and_updates_are_exact() -> None:
    for order in ("together", "turns", "arrival"):
        algorithm, buffer = run(cluster(order=order, fragment=7), n_steps=61, random_steps=0)
        assert buffer.step_count == 61
        assert 10 < algorithm.grad_step <= 61 // 3  # none before every learner has a minibatch


# -- what is lost ------------------------------------------------------------------------------------------------------


class Unruly(InlineAllReduce):
    """Loses learners during an all-reduce, or together with a result.

    Args:
        means, answers: numbers of those with which it happens.
    """

    def __init__(self, means: set[int], answers: set[int]) -> None:
        super().__init__(LearnerWorker)
        self.left = {"mean": set(means), "answer": set(answers)}
        self.counts, self.gone = {"mean": 0, "answer": 0}, []

    def happens(self, what: str) -> bool:
        self.counts[what] += 1
        found = self.counts[what] in self.left[what]
        self.left[what].discard(self.counts[what])
        return found

    def owner_mean(self, value: Any) -> Any:
        if self.happens("mean"):
            self.gone.append(1)
            self._forget(1)
            raise GroupBroken("killed")
        return super().owner_mean(value)

    def wait(self) -> tuple[int, Any]:
        if self.gone:
            raise WorkerLost(self.gone.pop(), "by SIGKILL")
        index, answer = super().wait()
        if self.happens("answer"):
            self._forget(index)
            raise WorkerLost(index, "by SIGKILL")
        return index, answer


@pytest.mark.parametrize(("make", "stored"), [(dqn, prioritized), (sac, dict)])
def test_lost_learners_change_nothing(make: Any, stored: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    expected = run(cluster(3), make, stored=stored)
    made: list[Unruly] = []

    def transport(given: Any) -> Unruly:
        made.append(Unruly({1, 8, 9, 12}, {1, 2, 5, 11, 12, 30}))
        return made[-1]

    use_transport(monkeypatch, LearnerWorker, transport)
    with caplog.at_level(logging.WARNING):
        assert same(run(cluster(3), make, stored=stored), expected)
    assert not made[0].left["mean"] and not made[0].left["answer"]
    assert "learner 1 was ended by SIGKILL, in update" in caplog.text


def test_learners_that_are_lost_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    always = set(range(1, 1000))
    use_transport(monkeypatch, LearnerWorker, lambda placement: Unruly(always, set()))
    with pytest.raises(WorkerError, match="learners were ended 4 times in a row .learner 1 by SIGKILL last. without"):
        run(cluster(restarts=3))


def test_learners_wait_for_one_another_for_the_step_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[float] = []
    meet = InlineAllReduce.new_rendezvous
    monkeypatch.setattr(
        InlineAllReduce,
        "new_rendezvous",
        lambda self, size, timeout: recorded.append(timeout) or meet(self, size, timeout),
    )
    run(cluster(step_timeout=40.0), n_steps=30)
    assert recorded == [40.0]
    assert _real(cluster(step_timeout=40.0).placement())._watchdog._limits[True] == 40.0


class Real:
    """Learners in processes, one of which gets a signal in the middle of an update."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kinds: dict[int, int]) -> None:
        self.workers: list[Any] = []
        self.kinds, self.count, self.pauses = dict(kinds), 0, []
        make, mean = _real, GlooGroup.all_reduce_mean

        def made(given: Any) -> Any:
            self.workers.append(make(given))
            return self.workers[-1]

        def meant(group: Any, value: Any) -> Any:
            self.count += 1
            kind = self.kinds.pop(self.count, None)
            if kind is not None:
                self.start = time.monotonic()
                os.kill(self.workers[-1]._workers[1].pid, kind)
            try:
                return mean(group, value)
            except GroupBroken:
                self.pauses.append(time.monotonic() - self.start)
                raise

        use_transport(monkeypatch, LearnerWorker, made)
        monkeypatch.setattr(GlooGroup, "all_reduce_mean", meant)


_real = real_transport(LearnerWorker)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [dict, prioritized])
def test_learners_in_processes_survive_sigkill(stored: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    expected = run(cluster(collectors=2), sac, stored=stored)
    real = Real(monkeypatch, {8: signal.SIGKILL})  # in the step of the actor
    with caplog.at_level(logging.WARNING):
        assert same(run(cluster(collectors=2), sac, stored=stored), expected)
    assert not real.kinds and len(real.pauses) == 1
    print(f"noticed after {real.pauses[0]:.1f} s")
    update = 3 if stored is dict else 2  # priorities are exchanged by a mean of their own in each update
    assert f"learner 1 was ended by SIGKILL, in update {update} or before; it is restarted" in caplog.text
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_stopped_learners_are_noticed(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    expected = run(cluster(collectors=2), sac)
    recorded: list[float] = []
    lose = learners.SynchronousLearners._handle_lost
    monkeypatch.setattr(
        learners.SynchronousLearners,
        "_handle_lost",
        lambda self, error: recorded.append(time.monotonic()) or lose(self, error),
    )
    real = Real(monkeypatch, {8: signal.SIGSTOP})
    with caplog.at_level(logging.WARNING):
        assert same(run(cluster(collectors=2, step_timeout=3.0), sac), expected)
    print(f"noticed after {recorded[0] - real.start:.1f} s")
    assert "learner 1 was ended because it did not move" in caplog.text
    assert not multiprocessing.active_children()


SCRIPT = """
import os
import birl
from run.workers import test_synchronous_learners as here
from run.workers import transports
from run.workers.test_collector_group import run, sac

if __name__ == "__main__":
    def tell(algorithm, epoch, step):
        if step == 30:
            print(*(worker.pid for worker in made[0]._workers.values()), flush=True)

    made = []
    real, collectors = transports.REAL["processes"], transports.CollectorWorker

    def make(worker, placement, inline):
        if worker is collectors:
            return inline(worker)
        made.append(real(worker, placement, inline))
        return made[-1]

    transports.TRANSPORTS["processes"] = make
    run(here.cluster(collectors=2), sac, n_steps=10**6, callback=tell)
"""


@pytest.mark.slow
def test_learners_end_with_the_first_one(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        numbers = [int(number) for number in process.stdout.readline().split()]
        assert len(numbers) == 1
        os.kill(numbers[0], 0)  # it is there
        process.kill()
    while _is_there(numbers[0]):
        time.sleep(0.1)


def _is_there(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "order", "stored"),
    [(dqn, "together", prioritized), (sac, "together", dict), (dqn, "turns", dict), (sac, "turns", prioritized)],
)
def test_a_resumed_run_is_the_same(make: Any, order: str, stored: Any, tmp_path: Path) -> None:
    options: Any = {"explorer": lambda: ConstantEpsilonGreedy(0.3)} if make is dqn else {}
    options["stored"] = stored
    expected = run(cluster(order=order), make, **options)

    with pytest.raises(SystemExit):
        run(cluster(order=order), make, checkpoint=tmp_path, callback=signal_at(34), **options)
    assert same(run(cluster(order=order), make, checkpoint=tmp_path, **options), expected)


def test_damage_is_an_error(tmp_path: Path) -> None:
    run(cluster(), checkpoint=tmp_path, callback=lambda _, epoch, step: step < 30)
    path = tmp_path / "checkpoint.d3c"
    config, state = load_archive(path, "checkpoint")
    state["parts"]["learners"]["seed"] = -1
    save_archive(path, "checkpoint", config, state)
    with pytest.raises(CorruptFileError, match="learners of seed -1"):
        run(cluster(), checkpoint=tmp_path, go_on=True)


# -- what cannot be ----------------------------------------------------------------------------------------------------


def test_invalid_learners() -> None:
    with pytest.raises(ConfigError, match="Cluster.learners is 3, with 2 collectors; .*give collectors=3"):
        birl.Cluster(2, learners=3)
    with pytest.raises(ConfigError, match="Cluster.learners is 2, with 5 collectors; .*give collectors=6"):
        birl.Cluster(5, learners=2)
    with pytest.raises(ConfigError, match="Cluster.learners is 0; it must be an int >= 1"):
        birl.Cluster(2, learners=0)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: CrossQConfig(batch_size=4).create(),
            UnsupportedError,
            "batch normalisation in the networks of CrossQ",
        ),
        (
            lambda: sac(compile_graph=True),
            UnsupportedError,
            "compile_graph=True cannot be combined with Cluster.learners",
        ),
        (
            lambda: sac(reward_scaler=RunningRewardScaler()),
            UnsupportedError,
            "a running reward_scaler cannot be combined",
        ),
        (lambda: sac(reset_interval=5), UnsupportedError, "reset_interval=5 cannot be combined with Cluster.learners"),
        (
            lambda: TD3PlusBCConfig(batch_size=4).create(),
            UnsupportedError,
            "TD3PlusBC's step actor cannot be combined .* is not a mean",
        ),
    ],
)
def test_what_cannot_be_averaged(make: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make().fit_online(Drift(False), n_steps=20, cluster=cluster(), show_progress=False)


def test_samplers_that_exclude_pushed_gradients() -> None:
    buffer = create_fifo_replay_buffer(100, env=Drift(), lanes=3, sampler=PrioritizedSampler())
    with pytest.raises(
        UnsupportedError, match="a PrioritizedSampler cannot be combined with .*: it chooses rows of minibatches"
    ):
        dqn().fit_online(Drift(), buffer, cluster=cluster(4, collectors=3, gradients="pushed"))


def test_changed_parameters_are_an_error() -> None:
    def callback(algorithm: Any, epoch: int, step: int) -> None:
        if step == 40:
            with torch.no_grad():
                next(algorithm.nets.parameters()).add_(1.0)

    with pytest.raises(WorkerError, match="learner 1 has other parameters than learner 0 after [0-9]+ updates"):
        run(cluster(), callback=callback)


def test_nothing_is_retuned_meanwhile() -> None:
    def callback(algorithm: Any, epoch: int, step: int) -> None:
        algorithm.retune(gamma=0.5)

    with pytest.raises(UnsupportedError, match="several learners learn together cannot be combined with retune"):
        run(cluster(), callback=callback)


def test_learners_listen_on_this_machine_only() -> None:
    """Torch's store has no authentication, so it must not be reachable from elsewhere."""
    store = GlooStore("127.0.0.1")
    port = store.new_rendezvous(2, 5.0).port
    files = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    rows = [line.split() for file in files if file.exists() for line in file.read_text().splitlines()[1:]]
    listening = [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    assert listening == ["0100007F"]
    members = [threading.Thread(target=GlooGroup, args=(store.new_rendezvous(1, 5.0), 0)) for _ in range(2)]
    for member in members:
        member.start()
        member.join()
