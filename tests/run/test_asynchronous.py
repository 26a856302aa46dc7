"""Asynchronous training: one worker equals the plain loop, several share steps exactly, and may be killed.

Most tests run workers in this process.
"""

from __future__ import annotations

import copy
import logging
import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import birl
from birl.algos import (
    A2CConfig,
    ConstantEpsilonGreedy,
    DiscreteACERConfig,
    DQNConfig,
    LinearDecayEpsilonGreedy,
    NStepDQNConfig,
    PPOConfig,
    REINFORCEConfig,
)
from birl.cli import main
from birl.dataset import InfiniteBuffer, ReplayBuffer
from birl.distributed.worker_process import OwnerGone
from birl.envs import reset_generator
from birl.errors import ConfigError, CorruptFileError, ResumeError, UnsupportedError, WorkerError
from birl.files import load_archive, save_archive
from birl.logging import NoopAdapterFactory
from birl.models import GRUEncoderFactory, VectorEncoderFactory
from birl.optimizers import RMSpropFactory
from birl.preprocessing import RunningObservationScaler
from birl.run import asynchronous
from birl.run.agent_core import explorers_per_process
from birl.run.asynchronous import asynchronous_fitter
from birl.run.on_policy import on_policy_fitter
from birl.run.workers import gradient_worker
from birl.run.workers.gradient_worker import GradientWorker
from run.fakes import Drift, signal_at
from run.workers.transports import Unruly, use_transport, use_unruly

SMALL = VectorEncoderFactory(hidden_units=[4])
GRU = GRUEncoderFactory(hidden_size=3, hidden_units=[4])
QUIET: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False, "n_steps_per_epoch": 20}


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run in this process."""
    use_unruly(monkeypatch, GradientWorker, 5)


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Check that no worker outlives its run."""
    yield
    assert not multiprocessing.active_children()


def a2c(seed: int = 3, **fields: Any) -> Any:
    birl.seed(seed)
    encoder = {"actor_encoder_factory": SMALL, "value_encoder_factory": SMALL}
    return A2CConfig(**{"rollout_length": 5, **encoder, **fields}).create()


def fit(algorithm: Any, n_steps: int, env: Any = None, workers: int = 1, **options: Any) -> list[Any]:
    env = Drift() if env is None else env
    given: Any = {**QUIET, "seed": 1, "workers": workers, "replays": algorithm.learns_from.replays, **options}
    return list(asynchronous_fitter(algorithm, env, n_steps, **given))


def state_of(algorithm: Any) -> dict[str, Any]:
    state = algorithm.engine.get_state()
    flat = {f"nets {name}": tensor for name, tensor in state["nets"].items()}
    for name, optimizer in state["optimizers"].items():
        for number, moments in optimizer["state"].items():
            flat |= {f"{name} {number} {key}": torch.as_tensor(value) for key, value in moments.items()}
    return {**flat, "updates": torch.tensor(state["grad_step"])}


def same(one: Any, other: Any) -> bool:
    own, theirs = state_of(one), state_of(other)
    return own.keys() == theirs.keys() and all(torch.equal(own[name], theirs[name]) for name in own)


def plain(env: Any, n_steps: int, make: Any = a2c, **fields: Any) -> Any:
    """An algorithm trained in one process, with the weights and the random numbers of a run with one worker."""
    weights, algorithm = make(**fields), make(**fields)
    replays = algorithm.learns_from.replays
    weights.build_with_env(env)
    seed = int(reset_generator(env, 1).integers(2**32))
    birl.seed(seed)
    algorithm.build_with_env(env)
    algorithm.nets.load_state_dict(weights.nets.state_dict())
    epochs = list(on_policy_fitter(algorithm, env, n_steps, replays=replays, **{**QUIET, "seed": seed}))
    return algorithm, epochs


# -- one worker --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_worker_in_a_process_of_its_own_is_the_plain_loop_bit_for_bit() -> None:
    algorithm = a2c()
    epochs = fit(algorithm, 43, gymnasium.make("CartPole-v1"))
    expected, own = plain(gymnasium.make("CartPole-v1"), 43)
    assert algorithm.grad_step == 9  # the last rollout has 3 steps
    assert same(algorithm, expected)
    names = ("loss", "policy_loss", "value_loss", "entropy", "rollout_return")
    for (_, found), (_, wanted) in zip(epochs, own, strict=True):
        assert {name: found.get(name) for name in names} == {name: wanted.get(name) for name in names}


@pytest.mark.parametrize("fields", [{"actor_encoder_factory": GRU}, {"learning_rate": 0.0}], ids=["GRU", "rate 0"])
def test_recurrent_states_and_settings_reach_the_worker(inline: None, fields: Any) -> None:
    algorithm = a2c(**fields)
    fit(algorithm, 23)
    expected, _ = plain(Drift(), 23, **fields)
    assert same(algorithm, expected)
    untrained = a2c(**fields)
    untrained.build_with_env(Drift())
    moved = not torch.equal(*(torch.cat([p.flatten() for p in x.nets.parameters()]) for x in (algorithm, untrained)))
    assert moved == (fields.get("learning_rate") != 0)


@pytest.mark.parametrize("stop", [20, 22], ids=["at the end of an epoch", "in the middle of a rollout"])
def test_a_run_goes_on_bit_for_bit_after_ctrl_c(inline: None, tmp_path: Path, stop: int) -> None:
    whole = a2c()
    fit(whole, 43, checkpoint=tmp_path / "whole")

    with pytest.raises(KeyboardInterrupt):
        fit(a2c(), 43, checkpoint=tmp_path / "cut", callback=signal_at(stop, signal.SIGINT))
    algorithm = a2c(seed=8)  # everything comes from the checkpoint
    fit(algorithm, 43, checkpoint=tmp_path / "cut")
    assert same(algorithm, whole)


# -- with buffers of their own -----------------------------------------------------------------------------------------


def acer(seed: int = 3, **fields: Any) -> Any:
    birl.seed(seed)
    encoder = dict.fromkeys(("actor_encoder_factory", "critic_encoder_factory"), SMALL)
    small = {"rollout_length": 5, "batch_size": 2, "replay_start": 12, "replay_ratio": 1.5}
    return DiscreteACERConfig(**{**encoder, **small, **fields}).create()


def test_a_worker_replays_as_the_plain_loop_does_bit_for_bit(inline: None) -> None:
    """This includes the last rollout, of 3 steps, and the replays after it."""
    algorithm = acer()
    epochs = fit(algorithm, 43)
    expected, own = plain(Drift(), 43, acer)
    assert expected.grad_step > 9 + 3  # of as many rollouts, and of older ones
    assert same(algorithm, expected)
    assert [found["loss"] for _, found in epochs] == [wanted["loss"] for _, wanted in own]


@pytest.mark.parametrize("stop", [25, 22], ids=["after the replays of a rollout", "in the middle of a rollout"])
def test_buffers_go_on_bit_for_bit(inline: None, tmp_path: Path, stop: int) -> None:
    whole = acer()
    fit(whole, 43, checkpoint=tmp_path / "whole")
    fit(acer(), 43, checkpoint=tmp_path / "cut", callback=lambda *_: _[-1] < stop)
    _, state = load_archive(tmp_path / "cut" / "checkpoint.d3c", "checkpoint")
    # Those of a rollout are made when its last step is counted, as in one process.
    assert (state["parts"]["workers"]["replays_due"]["0"] > 0) == (stop == 22)
    algorithm = acer(seed=8)  # everything comes from the checkpoint
    fit(algorithm, 43, checkpoint=tmp_path / "cut", go_on=True)
    assert same(algorithm, whole)


def test_each_worker_replays_what_it_made_itself(inline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rollout, and each replay that it makes due, is learned from once, also after the last step."""
    ledger, algorithm = Ledger(monkeypatch), acer()
    kept: dict[int, Any] = {}
    due = 0
    find = gradient_worker.compute_gradients

    def found(own: Any, collector: Any, experience: Any, task: Any, parameters: Any) -> Any:
        nonlocal due
        result = find(own, collector, experience, task, parameters)
        kept[id(own)] = own, experience.buffer
        due += result.replays_due
        return result

    monkeypatch.setattr(gradient_worker, "compute_gradients", found)
    fit(algorithm, 307, workers=3)
    assert ledger.steps == 307
    assert sorted(ledger.found) == sorted(ledger.learned)
    assert len([steps for _, steps in ledger.learned if steps == 0]) == due > 20  # 66 to 103 in six runs
    assert algorithm.grad_step == len(ledger.learned)
    assert sorted(own.grad_step for own, _ in kept.values())[0] > 0
    assert len(kept) == 3 and sum(buffer.transition_count for _, buffer in kept.values()) == 307


def test_a_killed_worker_takes_its_buffer_along(
    inline: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, algorithm = Ledger(monkeypatch, deadly=0.2), acer()
    with caplog.at_level(logging.WARNING, "birl"):
        fit(algorithm, 150, workers=2)
    assert ledger.deaths >= 5
    assert ledger.steps == 150
    assert algorithm.grad_step == len(ledger.learned) == len(ledger.found) - ledger.deaths
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == ledger.deaths
    assert all("is lost, with its replay buffer, and another worker" in message for message in messages)


def test_a_worker_that_is_killed_after_the_last_step_is_not_waited_for(
    inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, deaths = gradient_worker.compute_gradients, []

    def found(own: Any, collector: Any, experience: Any, task: Any, parameters: Any) -> Any:
        if task.max_steps == 0 and task.step == 42:
            deaths.append(task)
            raise OwnerGone
        return find(own, collector, experience, task, parameters)

    monkeypatch.setattr(gradient_worker, "compute_gradients", found)
    algorithm = acer(replay_ratio=6.0)
    fit(algorithm, 43)
    assert len(deaths) == 1
    assert algorithm.grad_step > 9


ASKED: list[tuple[float, int, int]] = []


class Recorded(ConstantEpsilonGreedy):
    """Records its probability of random actions, the step and the next number of its generator."""

    def sample(self, algo: Any, x: Any, step: int) -> Any:
        action, ahead = super().sample(algo, x, step), self.generator.bit_generator.jumped()  # type: ignore[attr-defined]
        ASKED.append((self.compute_epsilon(step), step, int(np.random.Generator(ahead).integers(2**60))))
        return action


def n_step_dqn(seed: int = 3) -> Any:
    birl.seed(seed)
    return NStepDQNConfig(encoder_factory=SMALL, target_update_interval=3, learning_rate=1e-2).create()


@pytest.mark.parametrize("used", [False, True], ids=["two", "one that was used before"])
def test_each_worker_explores_in_its_own_way(inline: None, used: bool) -> None:
    explorers = [Recorded(0.25), Recorded(0.75)]
    if used:
        explorers[0].generator.random()
        explorers = [explorers[0]] * 2
    ASKED.clear()
    fit(n_step_dqn(), 100, workers=2, explorer=explorers)
    assert {epsilon for epsilon, _, _ in ASKED} == ({0.25} if used else {0.25, 0.75})
    assert len({number for _, _, number in ASKED}) == len(ASKED)
    assert max(step for _, step, _ in ASKED) > 80  # of all workers


def test_explorers_and_targets_go_on_bit_for_bit(inline: None, tmp_path: Path) -> None:
    explorer = LinearDecayEpsilonGreedy(1.0, 0.1, 50)
    whole = n_step_dqn()
    fit(whole, 43, explorer=explorer, checkpoint=tmp_path / "whole")
    fit(n_step_dqn(), 43, explorer=explorer, checkpoint=tmp_path / "cut", callback=lambda *_: _[-1] < 22)
    algorithm = n_step_dqn(seed=8)
    fit(algorithm, 43, explorer=explorer, checkpoint=tmp_path / "cut", go_on=True)
    assert same(algorithm, whole)
    target, online = algorithm.nets.critic_target.state_dict(), algorithm.nets.critic.state_dict()
    assert all(torch.equal(target[name], online[name]) for name in target)  # the ninth update is the owner's third copy


def test_a_run_that_ended_within_a_rollout_says_that_going_on_differs(inline: None, tmp_path: Path) -> None:
    fit(a2c(), 8, checkpoint=tmp_path)
    with pytest.warns(RuntimeWarning, match="not bit for bit .* its last rollout was cut short"):
        fit(a2c(), 20, checkpoint=tmp_path)


# -- several workers ---------------------------------------------------------------------------------------------------


class Ledger:
    """Records the results of workers and the results that the owner learned from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, deadly: float = 0.0) -> None:
        self.found: list[tuple[float, int]] = []
        self.learned: list[tuple[float, int]] = []
        self.updates: list[int] = []  # made before each of them, as far as the worker knows
        self.deaths = 0
        chance, compute, update = (
            random.Random(4),
            gradient_worker.compute_gradients,
            asynchronous.GradientWorkers.update,
        )

        def find(*arguments: Any) -> Any:
            result = compute(*arguments)
            self.found.append((result.gradients.loss, result.steps))
            self.updates.append(arguments[0].grad_step)
            if chance.random() < deadly:
                self.deaths += 1
                raise OwnerGone
            return result

        def learned(workers: Any) -> Any:
            for _, result in list(workers._results)[:1]:  # none if the worker of the last update was killed
                self.learned.append((result.gradients.loss, result.steps))
            return update(workers)

        monkeypatch.setattr(gradient_worker, "compute_gradients", find)
        monkeypatch.setattr(asynchronous.GradientWorkers, "update", learned)

    @property
    def steps(self) -> int:
        return sum(steps for _, steps in self.learned)


@pytest.mark.parametrize("n", [None, 2], ids=["one environment", "two"])
def test_workers_make_exactly_the_steps_of_the_run(inline: None, monkeypatch: pytest.MonkeyPatch, n: Any) -> None:
    ledger, algorithm = Ledger(monkeypatch), a2c()
    env = Drift() if n is None else gymnasium.vector.SyncVectorEnv([partial(Drift)] * n)
    epochs = fit(algorithm, 77, env, workers=3)
    assert ledger.steps == 77
    assert algorithm.grad_step == len(ledger.learned)
    assert sorted(ledger.found) == sorted(ledger.learned)
    assert len(epochs) == 4


def test_workers_know_how_many_updates_were_made(inline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scheduled numbers of the configuration depend on it."""
    ledger = Ledger(monkeypatch)
    fit(a2c(), 43)
    assert ledger.updates == list(range(9))


def test_tasks_hold_the_parameters_of_their_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may be sent, or carried out, after later updates."""
    algorithm = a2c()
    shared: list[bool] = []

    class Checked(Unruly):
        def share(self, value: Any) -> Any:
            own = algorithm.nets.state_dict()
            shared.extend(np.shares_memory(value[name], own[name].numpy()) for name in own)
            return super().share(value)

    use_transport(monkeypatch, GradientWorker, lambda placement: Checked(GradientWorker, 5))
    fit(algorithm, 23, workers=2)
    assert shared and not any(shared)


def test_twenty_deaths_lose_what_is_said_and_nothing_else(
    inline: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, algorithm = Ledger(monkeypatch, deadly=0.25), a2c()
    with caplog.at_level(logging.WARNING, "birl"):
        epochs = fit(algorithm, 400, workers=2)
    assert ledger.deaths >= 20
    assert ledger.steps == 400
    assert algorithm.grad_step == len(ledger.learned) == len(ledger.found) - ledger.deaths
    lost = list(ledger.found)
    for each in ledger.learned:
        lost.remove(each)  # raises if a result was learned from twice
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == ledger.deaths
    assert all("was ended by SIGKILL; the rollout that it was making, of up to" in message for message in messages)
    assert epochs[-1][1]["workers_replaced"] == pytest.approx(ledger.deaths, abs=3)


def test_a_checkpoint_holds_what_was_found_and_not_learned_from(
    inline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(monkeypatch)
    found_in: list[int] = []

    def stop(_: Any, __: int, step: int) -> bool:
        return step < 33

    fit(a2c(), 90, workers=3, checkpoint=tmp_path, callback=stop)
    _, state = load_archive(tmp_path / "checkpoint.d3c", "checkpoint")
    own = state["parts"]["workers"]
    found_in = [result["steps"] for result in own["results"].values()]
    assert ledger.steps + sum(found_in) - (found_in[0] - own["uncounted_steps"] if own["uncounted_steps"] else 0) >= 33
    assert len(found_in) >= 2  # the other workers' rollouts, which the checkpoint waited for
    assert set(own["workers"]) == {"0", "1", "2"}
    algorithm = a2c(seed=9)
    fit(algorithm, 90, workers=3, checkpoint=tmp_path, go_on=True)
    assert ledger.steps == 90
    assert sorted(ledger.found) == sorted(ledger.learned)
    with pytest.raises(ResumeError, match="workers was 3, now 2"):
        fit(a2c(), 99, workers=2, checkpoint=tmp_path)


def test_checkpoints_that_do_not_fit_are_refused(inline: None, tmp_path: Path) -> None:
    fit(a2c(), 90, workers=2, checkpoint=tmp_path, callback=lambda *_: _[-1] < 33)
    path = tmp_path / "checkpoint.d3c"
    settings, state = load_archive(path, "checkpoint")
    own = state["parts"]["workers"]
    result = next(iter(own["results"].values()))
    name = next(iter(result["gradients"]))
    damages: dict[str, dict[str, Any]] = {
        "workers": {"replays_due": {"0": 0, "2": 0}},
        "seed": {"workers": {"0": {**own["workers"]["0"], "seed": -1}}},
        "gradients of other": {"results": {"0": {**result, "gradients": {"other": np.zeros(3, np.float32)}}}},
        name: {"results": {"0": {**result, "gradients": {**result["gradients"], name: np.zeros(3, np.float32)}}}},
        "state of a worker": {"workers": {"0": {"seed": 1, "state": {"collector": {}, "random": {}}}}},
    }
    for message, damage in damages.items():
        state["parts"]["workers"] = {**own, **damage}
        save_archive(path, "checkpoint", settings, state)
        with pytest.raises(CorruptFileError, match=message):
            fit(a2c(), 90, workers=2, checkpoint=tmp_path, go_on=True)


def test_statistics_are_shared(inline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One RMSprop sees the gradients of all workers, with epsilon under the root (1602.01783, section 4)."""
    gradients: list[dict[str, Any]] = []
    update = asynchronous.GradientWorkers.update

    def learned(workers: Any) -> Any:
        gradients.append(workers._results[0][1].gradients.gradients)
        return update(workers)

    monkeypatch.setattr(asynchronous.GradientWorkers, "update", learned)
    rms = RMSpropFactory(alpha=0.9, eps=0.1, centered=False, eps_inside_root=True)
    algorithm = a2c(optim_factory=rms, learning_rate=0.05)
    algorithm.build_with_env(Drift())
    start = copy.deepcopy(algorithm.nets)
    fit(algorithm, 60, workers=2)
    for name, value in start.named_parameters():
        square, expected = np.zeros(value.shape), value.detach().numpy().astype(np.float64)
        for each in gradients:
            square = 0.9 * square + 0.1 * each[name].astype(np.float64) ** 2
            expected = expected - 0.05 * each[name] / np.sqrt(square + 0.1)
        assert np.allclose(algorithm.nets.get_parameter(name).detach().numpy(), expected, atol=1e-4), name


@pytest.mark.slow
def test_real_processes_are_killed_replaced_and_ended_by_ctrl_c() -> None:
    algorithm, killed = a2c(), []

    def disturb(_: Any, __: int, step: int) -> None:
        if step == 11:
            victim = multiprocessing.active_children()[0]
            os.kill(victim.pid or 0, signal.SIGKILL)
            killed.append(victim.pid)
        if step == 60:
            assert len(multiprocessing.active_children()) == 2
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(algorithm, 10_000, workers=2, callback=disturb)
    assert len(killed) == 1
    assert algorithm.grad_step == 12


def test_a_worker_that_is_silent_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Silent(Unruly):
        def wait(self) -> tuple[int, Any]:
            if isinstance(self._tasks[0][1], gradient_worker.RolloutTask) and not caplog.records:
                self.while_waiting()
                self.while_waiting()
            return super().wait()

    use_transport(monkeypatch, GradientWorker, lambda placement: Silent(GradientWorker, 5))
    monkeypatch.setattr(asynchronous, "SILENCE", 0.0)
    with caplog.at_level(logging.WARNING, "birl"):
        fit(a2c(), 10, workers=1)
    (message,) = (record.getMessage() for record in caplog.records)
    assert "worker 0 (this process) makes a rollout" in message and "Ctrl-C, pressed twice" in message


@pytest.mark.slow
@pytest.mark.parametrize("make", [a2c, acer], ids=["A2C", "ACER"])
def test_twenty_real_processes_are_killed_at_random(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    ledger, algorithm, chance, killed = Ledger(monkeypatch), make(), random.Random(2), []

    def disturb(_: Any, __: int, step: int) -> bool:
        if len(killed) < 20 and chance.random() < 0.02:
            victim = chance.choice(multiprocessing.active_children())
            os.kill(victim.pid or 0, chance.choice([signal.SIGKILL, signal.SIGTERM]))
            killed.append(victim.pid)
        return len(killed) < 20 or step % 500 != 0

    fit(algorithm, 20_000, workers=3, callback=disturb, n_steps_per_epoch=1000)
    assert len(killed) == 20
    assert ledger.steps % 500 == 0
    assert algorithm.grad_step == len(ledger.learned)


# -- errors ------------------------------------------------------------------------------------------------------------


class Broken(Drift):
    """Fails in its third step."""

    def step(self, action: Any) -> Any:
        if self.steps == 2:
            raise FileNotFoundError("the map is gone")
        return super().step(action)


def test_a_failing_environment_ends_the_run_with_its_error() -> None:
    with pytest.raises(WorkerError, match="(?s)a worker .* has failed.*FileNotFoundError: the map is gone"):
        fit(a2c(), 50, Broken(), workers=2)


def test_endless_deaths_end_the_run(inline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger(monkeypatch, deadly=1.0)
    with pytest.raises(WorkerError, match="ended 10 times in a row .worker [01] by SIGKILL last. without a rollout"):
        fit(a2c(), 50, workers=2)


def test_environments_and_explorers_must_reach_other_processes() -> None:
    env = gymnasium.wrappers.TransformReward(Drift(), lambda reward: reward)
    with pytest.raises(ConfigError, match="env is .* cannot be sent to another process .*: give a name, .*'module:fac"):
        fit(a2c(), 10, env)
    explorer = ConstantEpsilonGreedy(0.1)
    explorer.hook = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="explorer is .* cannot be sent to another process"):
        fit(a2c(), 10, explorer=explorer)
    with pytest.raises(ConfigError, match="explorer is a list of 1; with workers=2 it must be a list of 2"):
        fit(a2c(), 10, workers=2, explorer=[ConstantEpsilonGreedy(0.1)])


def test_algorithms_that_workers_cannot_train() -> None:
    def refused(config: Any, match: str, error: type[Exception] = UnsupportedError, **options: Any) -> None:
        with pytest.raises(error, match=match):
            config.create().fit_online("CartPole-v1", n_steps=20, **{**QUIET, "workers": 2, **options})

    refused(DQNConfig(), "DQN, which learns from a replay buffer, cannot be combined with workers=2")
    refused(REINFORCEConfig(), "REINFORCE, which learns from whole episodes, cannot be combined with workers=2")
    refused(
        acer().config, "a buffer cannot be combined with workers=2", buffer=ReplayBuffer(InfiniteBuffer(), env=Drift())
    )
    running = A2CConfig(observation_scaler=RunningObservationScaler())
    refused(running, "a running observation_scaler cannot be combined with workers=2")
    refused(A2CConfig(compile_graph=True), "compile_graph=True cannot be combined with workers=2")
    refused(A2CConfig(), "workers is 0", ConfigError, workers=0)
    explored = {"explorer": ConstantEpsilonGreedy(0.1)}
    refused(A2CConfig(), "A2C learns from rollouts .* does not use explorer", ConfigError, **explored)


def test_the_command_line_has_workers(inline: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "NStepDQN", "--env-id", "CartPole-v1", "--workers", 2, "--epsilon", 0.2, "--n-steps", 40]
    words += ["--n-trials", 1, "--seed", 3, "--out", tmp_path / "run"]
    assert main(list(map(str, words))) == 0, capsys.readouterr().err
    settings, _ = load_archive(tmp_path / "run" / "checkpoint.d3c", "checkpoint")
    assert settings["workers"] == 2
    assert settings["explorer"] == [{"type": "ConstantEpsilonGreedy", "_start": 0.2, "_end": 0.2, "_duration": 1}] * 2
    assert main([*map(str, words), "--random-steps", "5"]) == 1
    assert "--random-steps: NStepDQN updates after each rollout" in capsys.readouterr().err
    assert main(["train", "DQN", "--env-id", "CartPole-v1", "--workers", "2", "--out", str(tmp_path / "dqn")]) == 1
    assert "DQN, which learns from a replay buffer, cannot be combined with workers=2" in capsys.readouterr().err
    words = ["train", "DiscreteACER", "--env-id", "CartPole-v1", "--workers", "2", "--n-steps", "40", "--n-trials", "1"]
    assert main([*words, "--buffer-size", "90", "--out", str(tmp_path / "acer")]) == 1
    assert "--buffer-size: not with --workers" in capsys.readouterr().err  # each has a buffer of its own
    assert main([*words, "--out", str(tmp_path / "acer")]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (PPOConfig(rollout_length=8, batch_size=4, n_epochs=1), "PPO made 2 updates of one rollout"),
        (
            A2CConfig(value_encoder_factory=VectorEncoderFactory(hidden_units=[4], use_batch_norm=True)),
            "networks of A2C that change buffers",
        ),
    ],
    ids=["several updates", "batch norm"],
)
def test_updates_of_several_gradients_are_refused(inline: None, config: Any, match: str) -> None:
    with pytest.raises(UnsupportedError, match=match):
        config.create().fit_online(Drift(), n_steps=20, **QUIET, workers=1)


class Noisy:
    """A user's explorer without a base class."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def sample(self, algo: Any, x: Any, step: int) -> Any:
        """Random actions."""
        return self.rng.integers(2, size=len(x))


def test_explorers_with_equal_random_numbers_are_refused() -> None:
    explorer = Noisy(0)
    for given in (explorer, [explorer] * 2):
        with pytest.raises(ConfigError, match="Noisy has a random generator of its own in 'rng'.*a list with one"):
            explorers_per_process(given, 2, "workers")
    assert len(explorers_per_process([Noisy(0), Noisy(1)], 2, "workers")) == 2
    assert explorers_per_process(explorer, 1, "workers") == [explorer]
    assert len(explorers_per_process(ConstantEpsilonGreedy(0.1), 2, "workers")) == 2  # each worker makes a copy of it


def test_nothing_is_retuned_while_workers_learn(inline: None) -> None:
    """Workers have copies of the configuration. Before and after the run, fields can be retuned."""

    def retune(algorithm: Any, epoch: int, step: int) -> None:
        with pytest.raises(UnsupportedError, match="workers learn with it"):
            algorithm.retune(entropy_coefficient=0.5)

    algorithm = a2c()
    fit(algorithm, 10, callback=retune)
    algorithm.retune(entropy_coefficient=0.5)
    assert algorithm.config.entropy_coefficient == 0.5
