"""Collectors: one equals the plain loop, several share steps exactly, and late or killed ones change nothing."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

import birl
from birl.algorithm.learner import Learner
from birl.algos import (
    ConstantEpsilonGreedy,
    DiscreteACERConfig,
    DQNConfig,
    Explorer,
    NormalNoise,
    PPOConfig,
    SACConfig,
    TD3Config,
)
from birl.dataset import create_fifo_replay_buffer
from birl.distributed.transport import InlineTransport, WorkerLost
from birl.errors import ConfigError, CorruptFileError, ResumeError, ShapeError, WorkerError
from birl.files import load_archive, save_archive
from birl.logging import NoopAdapterFactory
from birl.models import GRUEncoderFactory, VectorEncoderFactory
from birl.preprocessing import RunningObservationScaler, RunningRewardScaler
from birl.run.fingerprint import digest
from birl.run.on_policy import on_policy_fitter
from birl.run.online import online_fitter
from birl.run.workers.collector_group import CollectorGroup
from birl.run.workers.collector_worker import CollectorWorker
from run.fakes import Drift, Fails, signal_at
from run.workers.transports import run_inline, use_transport, use_unruly

SMALL = VectorEncoderFactory(hidden_units=[4])
GRU = GRUEncoderFactory(hidden_size=3, hidden_units=[4])
TOGETHER = birl.Cluster(3, 2, 2, "together")
TURNS = birl.Cluster(3, 2, 2, "turns")


def dqn(**fields: Any) -> Any:
    return DQNConfig(**{"batch_size": 4, "encoder_factory": SMALL, **fields}).create()


def sac(**fields: Any) -> Any:
    encoders = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL}
    return SACConfig(**{"batch_size": 4, **encoders, **fields}).create()


def run(cluster: Any = None, make: Any = dqn, n_steps: int = 50, env: Any = None, **options: Any) -> tuple[Any, Any]:
    """Make a run with a fixed seed. Return the algorithm and its buffer, which is made with the ``stored`` options."""
    birl.seed(3)
    fields, explorer = options.pop("fields", {}), options.pop("explorer", None)
    stored = {"limit": 1000, **(options.pop("stored", dict)())}
    algorithm = make(**fields)
    env = Drift(make is dqn) if env is None else env
    given: Any = {"update_interval": 3, "n_steps_per_epoch": 20, "seed": 1, "random_steps": 5, **options}
    given |= {"logger_adapter": NoopAdapterFactory(), "show_progress": False, "cluster": cluster}
    lanes = 1 if cluster is None else cluster.lanes
    buffer = create_fifo_replay_buffer(env=env if hasattr(env, "step") else Drift(), lanes=lanes, **stored)
    list(online_fitter(algorithm, env, buffer, explorer() if explorer else None, n_steps, **given))
    return algorithm, buffer


def contents(result: tuple[Any, Any]) -> tuple[str, dict[str, Any]]:
    algorithm, buffer = result
    return digest([buffer.storage]), algorithm.engine.get_state()["nets"]


def same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    own, theirs = contents(one), contents(other)
    return own[0] == theirs[0] and all(torch.equal(tensor, theirs[1][name]) for name, tensor in own[1].items())


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run collectors in this process, unless a test changes that."""
    run_inline(monkeypatch)


# -- one collector -----------------------------------------------------------------------------------------------------

ONE = birl.Cluster(1, 1, 1, "together")


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (dqn, {"explorer": lambda: ConstantEpsilonGreedy(0.3)}),
        (dqn, {"fields": {"encoder_factory": GRU}, "explorer": lambda: ConstantEpsilonGreedy(0.3)}),
        (sac, {"fields": {"observation_scaler": RunningObservationScaler(), "reward_scaler": RunningRewardScaler()}}),
    ],
    ids=["explorer", "recurrent", "scaled"],
)
def test_one_collector_is_the_plain_loop(make: Any, options: Any) -> None:
    fields = options.get("fields", {})
    fresh = {name: type(own)() if "scaler" in name else own for name, own in fields.items()}
    assert same(run(ONE, make, **options), run(None, make, **{**options, "fields": fresh}))


def test_one_collector_with_fragments_acts_on_older_weights() -> None:
    assert not same(run(birl.Cluster(1, 1, 6, "together"), sac), run(None, sac))


# -- several -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [TOGETHER, TURNS], ids=lambda cluster: cluster.order)
@pytest.mark.parametrize("make", [dqn, sac])
def test_late_and_killed_collectors_change_nothing(make: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"explorer": lambda: ConstantEpsilonGreedy(0.3)} if make is dqn else {}
    expected = run(cluster, make, **options)
    own = use_unruly(monkeypatch, CollectorWorker, 1, loss=0.3)
    assert same(run(cluster, make, **options), expected)
    assert own[0].killed > 5


def test_a_collector_is_lost_while_an_answer_of_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scripted(InlineTransport):
        script = iter([1, -1])  # who answers first, and who is lost then

        def wait(self) -> tuple[int, Any]:
            index = next(self.script, None)
            if index is None:
                return super().wait()
            if index < 0:
                self._forget(1)
                raise WorkerLost(1, "by SIGKILL")
            self._tasks.rotate(-1)  # the first task of collector 1
            answer = super().wait()
            self._tasks.rotate(1)
            return answer

    cluster = birl.Cluster(2, 1, 4, "turns")
    expected = run(cluster, n_steps=24)
    use_transport(monkeypatch, CollectorWorker, lambda placement: Scripted(CollectorWorker))
    assert same(run(cluster, n_steps=24), expected)
    assert next(Scripted.script, None) is None


def test_memories_and_noise_survive_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"fields": {"encoder_factory": GRU}, "explorer": lambda: ConstantEpsilonGreedy(0.3)}
    expected = run(TURNS, dqn, **options)
    use_unruly(monkeypatch, CollectorWorker, 5, loss=0.3)
    assert same(run(TURNS, dqn, **options), expected)


class Steps(Explorer):
    """Records the steps at which it is called."""

    asked: list[int] = []  # noqa: RUF012  of all copies

    def sample(self, algo: Any, x: Any, step: int) -> Any:
        self.asked.append(step)
        return np.zeros(len(x), np.int64)


@pytest.mark.parametrize("order", ["together", "turns", "arrival"])
@pytest.mark.parametrize(("collectors", "fragment"), [(1, 7), (2, 1), (3, 7), (8, 3)])
def test_steps_are_exact(collectors: int, order: str, fragment: int) -> None:
    Steps.asked.clear()
    cluster = birl.Cluster(collectors, 1, fragment, order)
    algorithm, buffer = run(cluster, n_steps=41, explorer=Steps, random_steps=0, fields={"batch_size": 3})
    assert buffer.step_count == 41 and sorted(Steps.asked) == list(range(41))
    assert algorithm.grad_step == 41 // 3
    for episode in buffer.episodes:  # no lane mixes the steps of two environments
        assert np.array_equal(episode.observations[:, 1], np.arange(len(episode.observations)))


def test_an_answer_to_another_task_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mixed(InlineTransport):
        def wait(self) -> tuple[int, Any]:
            self._tasks.rotate(-3)
            return super().wait()

    use_transport(monkeypatch, CollectorWorker, lambda placement: Mixed(CollectorWorker))
    with pytest.raises(WorkerError, match="collector 0 answered task 3, but task 0 was its next"):
        run(birl.Cluster(3, 1, 4))


def test_steps_of_several_environments() -> None:
    """Updates follow counted steps; as with vector environments, the last call of a collector may make more steps."""
    algorithm, buffer = run(birl.Cluster(2, 3, 4, "turns"), n_steps=41, fields={"batch_size": 3})
    assert 41 <= buffer.step_count < 44
    assert algorithm.grad_step == 41 // 3
    seeds = buffer.storage.columns["observation"].reshape(6, -1, 2)[:, 0, 0]
    assert len(set(seeds)) == 6  # every environment has resets of its own


def lags(cluster: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    kept = CollectorGroup.attach

    def attach(self: Any, session: Any) -> None:
        kept(self, session)
        self.report = lambda metrics: found.append({**metrics, "in_flight": self.in_flight, "assigned": self.assigned})

    monkeypatch.setattr(CollectorGroup, "attach", attach)
    run(cluster, **options)
    return found


def test_lag_is_what_the_order_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {each["lag"] for each in lags(birl.Cluster(3, 1, 5, "together"), monkeypatch)} == {0}
    use_unruly(monkeypatch, CollectorWorker)
    found = lags(birl.Cluster(3, 1, 2, "turns", in_flight=2), monkeypatch, n_steps=60)
    assert [each["lag"] for each in found] == [*range(5), *[5] * 25]
    assert max(each["in_flight"] for each in found) == 10


def test_old_fragments_are_dropped_and_assigned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    use_unruly(monkeypatch, CollectorWorker, 2)
    found = lags(birl.Cluster(3, 1, 4, "arrival", in_flight=2, max_lag=4), monkeypatch, n_steps=60)
    assert max(each["lag"] for each in found) <= 4
    assert found[-1]["dropped_steps"] > 0
    assert found[-1]["assigned"] - found[-1]["dropped_steps"] == 60
    _, buffer = run(birl.Cluster(3, 1, 4, "arrival", in_flight=2, max_lag=4), n_steps=60)
    assert buffer.step_count == 60
    for episode in buffer.episodes:  # what follows a gap is another episode
        steps = episode.observations[:, 1]
        assert np.array_equal(steps, steps[0] + np.arange(len(steps)))


def test_a_fragment_as_old_as_max_lag_allows_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = birl.Cluster(1, 1, 4, "arrival", in_flight=2)
    assert {each["lag"] for each in lags(cluster, monkeypatch, n_steps=40)} == {0, 1}
    found = lags(replace(cluster, max_lag=1), monkeypatch, n_steps=40)
    assert {each["lag"] for each in found} == {0, 1} and "dropped_steps" not in found[-1]
    found = lags(replace(cluster, max_lag=0), monkeypatch, n_steps=40)
    assert {each["lag"] for each in found} == {0} and found[-1]["dropped_steps"] > 0


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_collectors_in_processes_survive_sigkill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    expected = run(birl.Cluster(2, 1, 4, transport="inline"), sac, env=Fails(tmp_path))
    for number in range(2):
        (tmp_path / f"{number}.SIGKILL").touch()
    assert same(run(birl.Cluster(2, 1, 4), sac, env=Fails(tmp_path)), expected)
    assert not list(tmp_path.iterdir()) and not multiprocessing.active_children()


def test_processes_need_what_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="cannot be sent to another process.*a function of the environment's number"):
        dqn().fit_online(lambda number: Drift(), cluster=birl.Cluster(2))
    with pytest.raises(ConfigError, match="explorer is .*cannot be sent"):
        explorer = ConstantEpsilonGreedy(0.1)
        explorer.own = lambda: None  # type: ignore[attr-defined]
        dqn().fit_online(Drift(), explorer=explorer, cluster=birl.Cluster(2))


# -- rollouts ----------------------------------------------------------------------------------------------------------


def ppo(**fields: Any) -> Any:
    encoders = {"actor_encoder_factory": SMALL, "value_encoder_factory": SMALL}
    sizes = {"rollout_length": 10, "n_epochs": 2, "batch_size": 5}
    sizes |= {"sequence_length": 5} if "actor_encoder_factory" in fields else {}  # with a memory
    return PPOConfig(**{**sizes, **encoders, **fields}).create()


def acer(**fields: Any) -> Any:
    return DiscreteACERConfig(rollout_length=10, replay_start=10, batch_size=2, replay_ratio=1).create()


def rolled(cluster: Any = None, make: Any = ppo, n_steps: int = 50, **options: Any) -> Any:
    birl.seed(3)
    algorithm = make(**options.pop("fields", {}))
    given: Any = {"n_steps_per_epoch": 20, "seed": 1, "replays": algorithm.learns_from.replays, **options}
    given |= {"logger_adapter": NoopAdapterFactory(), "show_progress": False, "cluster": cluster}
    list(on_policy_fitter(algorithm, Drift(), n_steps, **given))
    return algorithm


def alike(one: Any, other: Any) -> bool:
    own, theirs = (each.engine.get_state() for each in (one, other))
    return own["grad_step"] == theirs["grad_step"] and all(
        torch.equal(tensor, theirs["nets"][name]) for name, tensor in own["nets"].items()
    )


@pytest.mark.parametrize(
    ("make", "fields"),
    [(ppo, {}), (ppo, {"actor_encoder_factory": GRU, "value_encoder_factory": GRU}), (acer, {})],
    ids=["PPO", "recurrent", "replayed"],
)
def test_rollouts_of_one_collector_are_those_of_the_plain_loop(make: Any, fields: Any) -> None:
    expected = rolled(None, make, n_steps=45, fields=fields)
    for fragment in (None, 5):
        assert alike(rolled(birl.Cluster(1, 1, fragment), make, n_steps=45, fields=fields), expected)


def test_rollouts_are_joined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    learned: list[Any] = []
    update = Learner.update
    monkeypatch.setattr(Learner, "update", lambda self, minibatch: learned.append(minibatch) or update(self, minibatch))
    cluster = birl.Cluster(3, 2, 5)
    expected = rolled(cluster, n_steps=150)
    first, second, last = learned
    assert first.reward.shape == second.reward.shape == (10, 6) and first.valid.all() and second.valid.all()
    assert last.valid.sum() == 30
    steps = np.concatenate([first.observation, second.observation])[..., 1]
    going_on = ~np.concatenate([first.is_first, second.is_first])[1:]
    assert np.array_equal(steps[1:][going_on], steps[:-1][going_on] + 1)  # episodes go on in their lanes
    assert len(set(first.observation[0, :, 0])) == 6
    use_unruly(monkeypatch, CollectorWorker, 1, loss=0.3)
    assert alike(rolled(cluster, n_steps=150), expected)

    with pytest.raises(SystemExit):
        rolled(cluster, n_steps=150, checkpoint=tmp_path, callback=signal_at(77))
    assert alike(rolled(cluster, n_steps=150, checkpoint=tmp_path), expected)


@pytest.mark.parametrize("n_steps", [1, 7, 61])
def test_rollouts_have_exact_steps(n_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[Any] = []
    update = Learner.update
    monkeypatch.setattr(Learner, "update", lambda self, minibatch: learned.append(minibatch) or update(self, minibatch))
    rolled(birl.Cluster(2, 3), n_steps=n_steps, fields={"batch_size": 2})
    assert sum(int(each.valid.sum()) for each in learned) == n_steps


def test_rollouts_that_collectors_cannot_make() -> None:
    with pytest.raises(ConfigError, match="Cluster.order='turns' cannot be combined with PPO, which learns from roll"):
        rolled(birl.Cluster(2, order="turns"))
    with pytest.raises(ConfigError, match="it must divide the rollout_length, which is 10"):
        rolled(birl.Cluster(2, fragment=4))


# -- checkpoints -------------------------------------------------------------------------------------------------------


def stopped(folder: Path, cluster: Any, at: int, **options: Any) -> Any:
    """Stop a run at a step, and start it again with the same arguments."""

    with pytest.raises(SystemExit):
        run(cluster, checkpoint=folder, callback=signal_at(at), **options)
    return run(cluster, checkpoint=folder, **options)


@pytest.mark.parametrize("cluster", [TOGETHER, TURNS], ids=lambda cluster: cluster.order)
@pytest.mark.parametrize("at", [2, 27])
def test_a_resumed_run_is_the_same(cluster: Any, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"explorer": lambda: ConstantEpsilonGreedy(0.3)}
    expected = run(cluster, **options)
    use_unruly(monkeypatch, CollectorWorker, at, loss=0.3)
    assert same(stopped(tmp_path, cluster, at, **options), expected)


def test_a_longer_run_says_that_it_differs(tmp_path: Path) -> None:
    run(TURNS, checkpoint=tmp_path)
    with pytest.warns(RuntimeWarning, match="continues from step 50, but not bit for bit.*last tasks were cut short"):
        run(TURNS, checkpoint=tmp_path, n_steps=60)
    cluster = birl.Cluster(2, 1, 5, "together")
    run(cluster, checkpoint=tmp_path / "whole", n_steps=40)
    assert same(run(cluster, checkpoint=tmp_path / "whole", n_steps=60), run(cluster, n_steps=60))


def test_a_run_resumes_with_its_cluster(tmp_path: Path) -> None:
    run(TURNS, checkpoint=tmp_path)
    with pytest.raises(ResumeError, match="cluster.fragment was 2, now 5"):
        run(birl.Cluster(3, 2, 5, "turns"), checkpoint=tmp_path, n_steps=60)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda group: group["weights"].clear(), "task with weights"),
        (lambda group: group["counts"].update(number=-1), "number is -1"),
        (lambda group: group["collectors"]["1"]["tasks"]["0"].update(calls=0), "calls is 0"),
        (lambda group: next(iter(group["weights"].values()))["nets"].popitem(), "the weights are critic"),
        (lambda group: group["collectors"].pop("1"), "cannot be used"),
        (lambda group: group["collectors"]["1"]["state"]["collector"].pop("actor"), "state of a collector cannot"),
    ],
)
def test_damage_is_an_error(damage: Any, message: str, tmp_path: Path) -> None:
    def callback(_: Any, epoch: int, step: int) -> Any:
        return step < 30

    run(TURNS, checkpoint=tmp_path, callback=callback)
    path = tmp_path / "checkpoint.d3c"
    config, state = load_archive(path, "checkpoint")
    damage(state["parts"]["collector"])
    save_archive(path, "checkpoint", config, state)
    with pytest.raises(CorruptFileError, match=message):
        run(TURNS, checkpoint=tmp_path, go_on=True)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


class Breaks(Drift):
    def step(self, action: Any) -> Any:
        if self.steps == 4:
            raise ZeroDivisionError("of the user")
        return super().step(action)


def test_an_error_of_an_environment_names_it() -> None:
    message = "environment 1 of collector 0, reset with seed [0-9]+, in step 5 of 6 of its task 0"
    with pytest.raises(WorkerError, match=message) as e:
        run(birl.Cluster(2, 2, 6), env=lambda number: Breaks(end=0.0) if number == 1 else Drift())
    assert "ZeroDivisionError: of the user" in str(e.value)


class Forgets(Drift):
    """Ignores the seed of a reset."""

    def reset(self, **options: Any) -> Any:
        return super().reset(seed=None, options=None)


def test_an_environment_that_does_not_repeat_begins_a_new_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    use_unruly(monkeypatch, CollectorWorker, 1, loss=0.3)
    with pytest.warns(RuntimeWarning, match="could not be restored"):
        _, buffer = run(birl.Cluster(2, 1, 4), env=Forgets(end=0.0))
    assert buffer.step_count == 50
    for episode in buffer.episodes:
        assert np.array_equal(episode.observations[:, 1], np.arange(len(episode.observations)))


def test_collectors_that_are_killed_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    use_unruly(monkeypatch, CollectorWorker, 0, loss=1.0)
    with pytest.raises(WorkerError, match="collector [01] was ended 4 times in a row .by SIGKILL last.* fewer"):
        run(birl.Cluster(2, 1, 4, restarts=3))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"collectors": 0}, "Cluster.collectors is 0; it must be an int >= 1"),
        ({"environments": 1.5}, "Cluster.environments is 1.5"),
        ({"fragment": 0}, "Cluster.fragment is 0"),
        ({"order": "random"}, "'together', 'turns', 'arrival'"),
        ({"order": "together", "in_flight": 2}, "with order='together' it must be 1"),
        ({"max_lag": 3, "order": "turns"}, "only order='arrival' drops"),
        ({"max_lag": -1, "order": "arrival"}, "Cluster.max_lag is -1"),
        ({"restarts": -1}, "Cluster.restarts is -1"),
        ({"transport": "mail"}, "Cluster.transport is 'mail'"),
        ({"address": "auto"}, "Cluster.address is 'auto', but collectors are 'processes'"),
    ],
)
def test_invalid_clusters(fields: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        birl.Cluster(**fields)


def test_options_that_exclude_a_cluster() -> None:
    with pytest.raises(ConfigError, match="cluster is 4; it must be a Cluster"):
        dqn().fit_online(Drift(), cluster=4)
    with pytest.raises(ConfigError, match="cannot be combined with workers=2"):
        dqn().fit_online(Drift(), cluster=TURNS, workers=2)
    with pytest.raises(ConfigError, match="SyncVectorEnv was given with cluster"):
        dqn().fit_online(SyncVectorEnv([Drift]), cluster=TURNS)
    with pytest.raises(ConfigError, match="overlap=True cannot be combined with cluster=…: collectors act meanwhile"):
        dqn().fit_online(Drift(), cluster=TURNS, overlap=True)
    with pytest.raises(ShapeError, match="the buffer has 1 lanes for 6 environments"):
        dqn().fit_online(Drift(), create_fifo_replay_buffer(100, env=Drift()), cluster=TURNS)
    with pytest.raises(ConfigError, match="explorer is a list of 2; with collectors=3"):
        dqn().fit_online(Drift(), explorer=[ConstantEpsilonGreedy(0.1)] * 2, cluster=TURNS)


@pytest.mark.filterwarnings("ignore::birl.errors.ShortRunWarning")
def test_each_collector_may_have_an_explorer_of_its_own() -> None:
    explorers = lambda: [ConstantEpsilonGreedy(epsilon) for epsilon in (0.0, 1.0)]  # noqa: E731
    options: Any = {"random_steps": 0, "update_start_step": 99, "env": Drift(end=0.0)}
    algorithm, buffer = run(birl.Cluster(2, 1, 5), explorer=explorers, **options)
    for lane, wild in enumerate((False, True)):
        rows = buffer.storage.rows(lane, np.arange(5))  # of the first episode
        observations, actions = (buffer.storage.columns[name][rows] for name in ("observation", "action"))
        assert np.array_equal(algorithm.predict(observations), actions[:, 0]) != wild


def test_td3_with_noise_takes_turns_alike() -> None:
    def td3(**fields: Any) -> Any:
        encoders = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL}
        return TD3Config(batch_size=4, **encoders).create()

    options: Any = {"explorer": lambda: NormalNoise(std=0.2), "env": Drift(False)}
    assert same(run(TURNS, td3, **options), run(TURNS, td3, **options))
