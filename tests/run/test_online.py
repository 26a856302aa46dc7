"""Off-policy training and collection in environments: stored steps, times of updates, exact resume."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import birl.seeding
from birl.acting.explorers import ConstantEpsilonGreedy, Explorer, NormalNoise
from birl.algos import DQNConfig
from birl.dataset import create_fifo_replay_buffer, create_infinite_replay_buffer
from birl.errors import ActionError, ConfigError, ResumeError, ShortRunWarning
from birl.logging import FileAdapterFactory, NoopAdapterFactory
from birl.run.checkpoint import checkpoint_step
from birl.run.data_collection import collect
from birl.run.online import online_fitter
from run.fakes import Drift, FakeLearner, signal_at

MODES = [None, *AutoresetMode]


def environment(mode: AutoresetMode | None, **options: Any) -> Any:
    return Drift(**options) if mode is None else SyncVectorEnv([lambda: Drift(**options)] * 3, autoreset_mode=mode)


def quiet(**options: Any) -> dict[str, Any]:
    return {"logger_adapter": NoopAdapterFactory(), "show_progress": False, "seed": 3, **options}


def fit_online(*arguments: Any, **options: Any) -> list[tuple[int, dict[str, float]]]:
    return list(online_fitter(*arguments, **options))


def check_episodes(buffer: Any, learner: FakeLearner, limit: int = 7) -> None:
    """Check that episodes are whole: they begin at step 0, steps are consecutive, and the end is marked."""
    for episode in buffer.episodes:
        vector = learner.vector(episode.observations)
        steps = len(vector)
        assert np.array_equal(vector[:, 1], np.arange(steps))
        final = learner.vector(episode.final_observation)
        assert final[1] == steps
        assert np.allclose(episode.rewards[:, 0], [*vector[1:, 0], final[0]])
        assert episode.terminated or episode.truncated
        assert not (episode.terminated and episode.truncated)
        assert steps <= limit


# -- collecting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["box", "dict", "tuple"])
@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_collect(mode: AutoresetMode | None, discrete: bool, kind: str) -> None:
    learner = FakeLearner(discrete=discrete)
    buffer = collect(learner, environment(mode, discrete=discrete, kind=kind), n_steps=100, show_progress=False, seed=1)
    assert buffer.step_count == buffer.transition_count == 100
    check_episodes(buffer, learner)
    collect(learner, environment(mode, discrete=discrete, kind=kind), buffer, n_steps=7, show_progress=False)
    assert buffer.transition_count == 107
    check_episodes(buffer, learner)


def test_collect_is_decided_by_the_seed() -> None:
    def rewards(seed: int | None) -> Any:
        buffer = collect(FakeLearner(), Drift(), n_steps=30, deterministic=True, show_progress=False, seed=seed)
        return np.concatenate([episode.rewards for episode in buffer.episodes])

    assert np.array_equal(rewards(1), rewards(1))
    assert not np.array_equal(rewards(1), rewards(2))
    birl.seeding.seed(5)
    expected = rewards(None)
    birl.seeding.seed(5)
    assert np.array_equal(rewards(None), expected)


def test_time_limit_is_no_terminal_and_both_at_once_is_one() -> None:
    class Both(Drift):
        def step(self, action: Any) -> Any:
            observation, reward, _, _, info = super().step(action)
            return observation, reward, self.steps == 4, self.steps == 4, info

    learner = FakeLearner()
    both = collect(learner, Both(), n_steps=20, show_progress=False)
    assert all(episode.terminated and not episode.truncated for episode in both.episodes)
    limited = collect(learner, Drift(limit=4, end=0.0), n_steps=20, show_progress=False)
    assert all(episode.truncated and not episode.terminated for episode in limited.episodes)
    batch = limited.sample_transition_batch(200)
    assert (batch.terminals == 0).all()


def test_stored_values_of_the_actor() -> None:
    learner = FakeLearner(remembers=True)
    buffer = collect(learner, environment(AutoresetMode.NEXT_STEP), n_steps=60, show_progress=False)
    for episode in buffer.episodes:
        memory = episode.extra["state.actor"][:, 0]
        position = episode.observations[:, 0]
        assert np.allclose(memory, np.cumsum(position) - position, atol=1e-5)  # the state before each observation


# -- training --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_updates_are_made_when_they_are_due(mode: AutoresetMode | None) -> None:
    class Recording(FakeLearner):
        def update(self, minibatch: Any) -> dict[str, torch.Tensor]:
            updates.append(session_step[0] + 1)
            return super().update(minibatch)

    updates: list[int] = []
    session_step = [0]
    learner, env = Recording(), environment(mode)
    buffer = create_infinite_replay_buffer(env=env)
    result = fit_online(
        learner,
        env,
        buffer,
        n_steps=50,
        **quiet(n_steps_per_epoch=20),
        update_interval=4,
        n_updates=2,
        update_start_step=12,
        callback=lambda algo, epoch, step: session_step.__setitem__(0, step),
    )
    expected = [step for step in range(1, 51) if step > 12 and step % 4 == 0 for _ in range(2)]
    assert updates == expected
    assert [epoch for epoch, _ in result] == [1, 2, 3]
    assert 50 <= buffer.transition_count <= 52
    check_episodes(buffer, learner)
    metrics = result[1][1]
    assert {"rollout_return", "loss", "time_inference", "time_environment_step", "time_sample_batch"} <= metrics.keys()


def test_first_update_waits_for_a_minibatch() -> None:
    learner = FakeLearner()
    fit_online(learner, Drift(), n_steps=10, **quiet())
    assert learner.grad_step == 10 - learner.config.batch_size + 1


def test_rollout_return_is_the_mean_over_episodes() -> None:
    learner, env = FakeLearner(), Drift()
    buffer = create_infinite_replay_buffer(env=env)
    ((_, metrics),) = fit_online(learner, env, buffer, n_steps=60, **quiet())
    returns = [episode.compute_return() for episode in buffer.episodes if episode.terminated or len(episode) == 7]
    assert metrics["rollout_return"] == pytest.approx(np.mean(returns), rel=1e-5)


def test_a_run_too_short_for_a_minibatch_says_so() -> None:
    learner, env = FakeLearner(discrete=False), Drift(discrete=False)
    assert learner.config.batch_size == 4
    buffer = create_infinite_replay_buffer(env=env)
    with pytest.warns(UserWarning, match=r"nothing will be learned in n_steps=3.*batch_size=4"):
        fit_online(learner, env, buffer, n_steps=3, **quiet())
    fit_online(learner, env, buffer, n_steps=3, **quiet())  # what the buffer holds already counts
    assert learner.grad_step > 0


@pytest.mark.filterwarnings("ignore::birl.errors.ShortRunWarning")
def test_random_steps_come_first() -> None:
    learner, env = FakeLearner(discrete=False), Drift(discrete=False)
    buffer = create_infinite_replay_buffer(env=env)
    fit_online(learner, env, buffer, n_steps=60, random_steps=30, update_start_step=1000, **quiet())
    actions = np.concatenate([episode.actions for episode in buffer.episodes])
    symmetric = np.abs(actions.sum(1)) < 1e-6  # the policy's second action is minus its first
    assert not symmetric[:30].any()
    assert symmetric[30:].all()


@pytest.mark.filterwarnings("ignore::birl.errors.ShortRunWarning")
def test_explorer_sees_greedy_actions_once_a_step() -> None:
    class Shift(Explorer):
        def sample(self, algo: Any, x: Any, step: int) -> Any:
            steps.append(step)
            assert algo.action_size == 3
            assert np.array_equal(algo.predict(x), algo.predict(x))
            return (algo.predict(x) + 1) % 3

    steps: list[int] = []
    learner, env = FakeLearner(remembers=True), Drift()
    buffer = create_infinite_replay_buffer(env=env)
    fit_online(learner, env, buffer, Shift(), n_steps=40, update_start_step=1000, **quiet())
    assert steps == list(range(40))
    for episode in buffer.episodes:
        memory = np.cumsum(episode.observations[:, 0])
        value = episode.observations @ learner.weight.numpy()[:2] + memory
        greedy = np.floor(np.abs(value) * 10).astype(int) % 3
        assert np.array_equal(episode.actions[:, 0], (greedy + 1) % 3)


def test_noise_is_clipped_to_the_environments_bounds() -> None:
    learner, env = FakeLearner(discrete=False), Drift(discrete=False)
    buffer = create_infinite_replay_buffer(env=env)
    fit_online(learner, env, buffer, NormalNoise(std=5.0), n_steps=40, **quiet())
    actions = np.concatenate([episode.actions for episode in buffer.episodes])
    assert np.abs(actions).max() == 1.0


def test_statistics_of_an_evaluation() -> None:
    options: Any = {"eval_env": Drift(limit=4, end=0.0), "eval_n_steps": 10, "eval_statistics": True}
    ((_, metrics),) = fit_online(FakeLearner(), Drift(), n_steps=20, **quiet(n_steps_per_epoch=20, **options))
    names = ["evaluation", *(f"evaluation_{each}" for each in ("median", "std", "min", "max", "episodes"))]
    assert [name for name in metrics if name.startswith("evaluation")] == names
    assert metrics["evaluation_episodes"] == 2
    assert metrics["evaluation_min"] <= metrics["evaluation_median"] <= metrics["evaluation_max"]


def test_the_error_of_an_evaluation_says_where_it_was() -> None:
    class Breaks(Drift):
        def step(self, action: Any) -> Any:
            raise ZeroDivisionError("of the user")

    with pytest.raises(ZeroDivisionError) as e:
        fit_online(FakeLearner(), Drift(), n_steps=10, eval_env=Breaks(), **quiet())
    assert e.value.__notes__ == ["This was in the evaluator 'evaluation', not in the steps or updates of training."]


def test_evaluation_environment() -> None:
    env = Drift()
    idle: list[dict[str, Any]] = [
        {"eval_n_steps": 5},
        {"eval_statistics": True},
        {"eval_epsilon": 0.1},
        {"eval_sample": True},
    ]
    for given in idle:
        with pytest.raises(ConfigError, match=f"{next(iter(given))} cannot be used without eval_env="):
            fit_online(FakeLearner(), env, n_steps=10, **given, **quiet())
    with pytest.raises(ConfigError, match="stop_at=3 needs a score: give eval_env="):
        fit_online(FakeLearner(), env, n_steps=10, stop_at=3, **quiet())
    with pytest.raises(ConfigError, match="make a second one"):
        fit_online(FakeLearner(), env, n_steps=10, eval_env=env, **quiet())
    weights, options = [], quiet(n_steps_per_epoch=10)
    for given in ({}, {"eval_env": Drift(), "eval_n_trials": 3}):
        birl.seeding.seed(0)
        learner = FakeLearner()
        result = fit_online(learner, Drift(), n_steps=40, **given, **options)
        assert ("evaluation" in result[0][1]) == ("eval_env" in given)
        weights.append(learner.weight)
    assert torch.equal(*weights)


@pytest.mark.parametrize("name", ["update_interval", "n_updates", "update_start_step", "random_steps"])
def test_arguments_out_of_range(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is -1"):
        fit_online(FakeLearner(), Drift(), n_steps=5, **quiet(), **{name: -1})


# -- resume ----------------------------------------------------------------------------------------------------


def run(
    folder: Path,
    mode: Any,
    seed: int,
    stop: int | None,
    number: int,
    n_steps: int = 61,
    env: Any = None,
    **options: Any,
) -> Any:
    """One process: None if a signal stopped it."""

    birl.seeding.seed(seed)
    learner, env = FakeLearner(remembers=True), env or environment(mode, kind="dict")
    buffer = create_fifo_replay_buffer(limit=23, env=env)
    options = {
        "n_steps_per_epoch": 25,
        "update_interval": 2,
        "random_steps": 15,
        "callback": signal_at(stop, number),
        "eval_env": Drift(kind="dict"),
        "eval_n_trials": 2,
        "checkpoint": folder,
        "logger_adapter": FileAdapterFactory(folder.parent),
        "experiment_name": folder.name,
        "with_timestamp": False,
        **options,
    }
    try:
        fit_online(learner, env, buffer, ConstantEpsilonGreedy(0.3), n_steps, **quiet(**options))
    except (KeyboardInterrupt, SystemExit):
        return None
    return learner, buffer


def state_of(result: Any) -> list[Any]:
    learner, buffer = result
    episodes = [(*e.observations.values(), e.actions, e.rewards, e.extra["state.actor"]) for e in buffer.episodes]
    return [learner.weight.numpy(), np.array(learner.grad_step), *(array for episode in episodes for array in episode)]


def files(folder: Path) -> dict[str, bytes]:
    names = [name for name in os.listdir(folder) if not name.startswith(("time_", "metrics", "checkpoint"))]
    return {name: (folder / name).read_bytes() for name in names}


@pytest.mark.parametrize(("mode", "number"), list(zip(MODES, [signal.SIGTERM, signal.SIGINT] * 2, strict=True)))
def test_stopped_anywhere_and_resumed_equals_uninterrupted(tmp_path: Path, mode: Any, number: int) -> None:
    expected = run(tmp_path / "straight" / "R", mode, 0, None, number)
    for first in (1, 13, 47):
        folder = tmp_path / str(first) / "R"
        for seed, stop in enumerate((first, 25, 60) if first < 25 else (first, first + 1)):
            assert run(folder, mode, seed, stop, number) is None
        resumed = run(folder, mode, 99, None, number)
        pairs = list(zip(state_of(expected), state_of(resumed), strict=True))
        assert len(pairs) > 5
        assert all(np.array_equal(one, two) for one, two in pairs)
        assert files(tmp_path / "straight" / "R") == files(folder)


@pytest.mark.parametrize("mode", MODES)
def test_n_and_n_equals_2n(tmp_path: Path, mode: Any) -> None:
    """No part of a vector step is lost, even if N is not a multiple of the number of environments."""
    expected = run(tmp_path / "a", mode, 0, None, 2, n_steps=62)
    run(tmp_path / "b", mode, 0, None, 2, n_steps=31)
    resumed = run(tmp_path / "b", mode, 1, None, 2, n_steps=62)
    assert all(np.array_equal(one, two) for one, two in zip(state_of(expected), state_of(resumed), strict=True))


def test_killed_between_checkpoints(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def killing(_: Any, epoch: int, step: int) -> None:
        if step == 40:
            raise Killed

    expected = run(tmp_path / "straight" / "R", AutoresetMode.SAME_STEP, 0, None, 2)
    with pytest.raises(Killed):
        run(tmp_path / "b" / "R", AutoresetMode.SAME_STEP, 0, None, 2, callback=killing)
    resumed = run(tmp_path / "b" / "R", AutoresetMode.SAME_STEP, 9, None, 2)
    assert all(np.array_equal(one, two) for one, two in zip(state_of(expected), state_of(resumed), strict=True))
    assert files(tmp_path / "straight" / "R") == files(tmp_path / "b" / "R")


def test_lost_environment_begins_new_episodes_and_keeps_the_buffer_whole(tmp_path: Path) -> None:
    class Unseeded(Drift):
        def reset(self, **options: Any) -> Any:
            return super().reset()

    def go(stop: int | None) -> Any:
        learner, env = FakeLearner(), Unseeded(end=0.0)
        buffer = create_infinite_replay_buffer(env=env)
        fit_online(
            learner, env, buffer, n_steps=40, **quiet(checkpoint=tmp_path, callback=signal_at(stop, signal.SIGINT))
        )
        return learner, buffer

    with pytest.raises(KeyboardInterrupt):
        go(17)
    with pytest.warns(RuntimeWarning, match="not exact"):
        learner, buffer = go(None)
    assert buffer.transition_count == 40
    check_episodes(buffer, learner)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["environment", "callback", "epoch_callback"])
def test_code_that_ends_the_program_loses_nothing(
    where: str, raised: type[BaseException], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Signals raise nothing while a step is made: such an exception is of the environment or other code."""

    class Ends(Drift):
        left = 10**6

        def step(self, action: Any) -> Any:
            type(self).left -= 1
            if self.left == 0:
                raise raised(0)
            return super().step(action)

    def go(folder: Path, stop: int | None) -> Any:
        def end(step: int) -> None:
            if step == stop and where != "environment":
                raise raised(0)

        Ends.left = stop if where == "environment" and stop is not None else 10**6
        birl.seeding.seed(0)
        learner = FakeLearner()
        calls: Any = {} if where == "environment" else {where: lambda algorithm, epoch, step: end(step)}
        fit_online(learner, Ends(), n_steps=40, **quiet(checkpoint=folder, n_steps_per_epoch=10, **calls))
        return learner

    expected = go(tmp_path / "whole", None)
    with pytest.raises(raised):
        go(tmp_path / "ended", 20)
    text = f"step 20 ended with {raised.__name__}, which no signal to birl caused"
    assert (text in caplog.text) == (where == "environment")
    saved = checkpoint_step(tmp_path / "ended")
    assert saved == (10 if where == "environment" else 20)
    assert torch.equal(go(tmp_path / "ended", None).weight, expected.weight)


def test_other_settings_are_refused(tmp_path: Path) -> None:
    fit_online(FakeLearner(), Drift(), n_steps=10, **quiet(checkpoint=tmp_path))
    for change, words in (
        ({"update_interval": 3}, "update_interval was 1, now 3"),
        ({"seed": 4}, "seed was 3, now 4"),
        ({"explorer": ConstantEpsilonGreedy(0.1)}, r"explorer was None, now"),
    ):
        with pytest.raises(ResumeError, match=words):
            fit_online(FakeLearner(), Drift(), n_steps=20, **{**quiet(checkpoint=tmp_path), **change})


@pytest.mark.parametrize(("discrete", "value"), [(True, 3), (True, -1), (False, 1.01), (False, np.nan)])
def test_actions_outside_the_space_are_refused(discrete: bool, value: float) -> None:
    class Far(Explorer):
        def sample(self, algo: Any, x: Any, step: int) -> Any:
            return np.full_like(algo.predict(x), value)

    with pytest.raises(ActionError, match="explorer"):
        fit_online(FakeLearner(discrete=discrete), Drift(discrete), None, Far(), 20, **quiet())


def test_a_buffer_too_small_for_a_minibatch_is_refused() -> None:
    env = Drift()
    with pytest.raises(ConfigError, match="limit >= 4"):
        fit_online(FakeLearner(), env, create_fifo_replay_buffer(3, env=env), n_steps=9, **quiet())


# -- steps made while the learner updates ------------------------------------------------------------------------


class Divisible(SyncVectorEnv):
    """Steps in two parts like `AsyncVectorEnv`, but always at the same time."""

    def __init__(self, mode: AutoresetMode, events: list[str] | None = None, **options: Any) -> None:
        super().__init__([lambda: Drift(kind="dict", **options)] * 3, autoreset_mode=mode)
        self.in_step: Any = None
        self.events = [] if events is None else events

    def step_async(self, actions: Any) -> None:
        assert self.in_step is None
        self.events.append("begin")
        self.in_step = actions

    def step_wait(self) -> Any:
        assert self.in_step is not None
        self.events.append("finish")
        actions, self.in_step = self.in_step, None
        return super().step(actions)

    def reset(self, **options: Any) -> Any:
        assert self.in_step is None
        return super().reset(**options)


def test_updates_are_made_while_the_environments_step() -> None:
    events: list[str] = []
    learner, env = FakeLearner(), Divisible(AutoresetMode.DISABLED, events, end=0.0, limit=99)
    learn = learner.update
    learner.update = lambda drawn: (events.append("update"), learn(drawn))[1]  # type: ignore[method-assign]
    fit_online(learner, env, n_steps=9, **quiet(overlap=True))
    rest = ["finish", "begin", "update", "update", "update"]
    assert events == ["begin", "finish", "begin", *rest, *rest, "finish"]
    assert env.in_step is None  # the last one, whose result was dropped
    fit_online(learner, env, n_steps=9, **quiet(overlap=True))


@pytest.mark.parametrize("mode", AutoresetMode)
def test_overlap_keeps_resume_exact(tmp_path: Path, mode: Any) -> None:
    def part(folder: Path, seed: int, stop: int | None, n_steps: int = 61) -> Any:
        return run(folder, mode, seed, stop, 2, n_steps, env=Divisible(mode), overlap=True)

    expected = part(tmp_path / "straight" / "R", 0, None)
    assert len(expected[1].episodes) > 2
    for first in (1, 13, 47):
        folder = tmp_path / str(first) / "R"
        for seed, stop in enumerate((first, 25, 60) if first < 25 else (first, first + 1)):
            assert part(folder, seed, stop) is None
        resumed = part(folder, 99, None)
        pairs = list(zip(state_of(expected), state_of(resumed), strict=True))
        assert all(np.array_equal(one, two) for one, two in pairs)
        assert files(tmp_path / "straight" / "R") == files(folder)
    part(tmp_path / "b", 0, None, n_steps=31)
    again = part(tmp_path / "b", 1, None)
    assert all(np.array_equal(one, two) for one, two in zip(state_of(expected), state_of(again), strict=True))


@pytest.mark.parametrize("mode", AutoresetMode)
def test_overlap_stores_whole_episodes_and_differs_only_in_what_the_policy_knew(mode: Any) -> None:
    buffers = []
    for env, overlap in ((environment(mode, kind="dict"), False), (Divisible(mode), True)):
        birl.seeding.seed(0)
        learner, buffer = FakeLearner(), create_infinite_replay_buffer(env=env)
        fit_online(learner, env, buffer, n_steps=60, random_steps=60, **quiet(overlap=overlap))
        check_episodes(buffer, learner)
        buffers.append(buffer)
    straight, overlapping = (buffer.episodes for buffer in buffers)
    assert len(straight) == len(overlapping) > 5
    for one, two in zip(straight, overlapping, strict=True):  # random actions do not depend on the policy
        assert np.array_equal(one.actions, two.actions)
        assert np.array_equal(one.rewards, two.rewards)


def test_overlap_with_processes(tmp_path: Path) -> None:
    mode = AutoresetMode.DISABLED
    expected = run(tmp_path / "a", mode, 0, None, 2, env=Divisible(mode), overlap=True)
    env = AsyncVectorEnv([lambda: Drift(kind="dict")] * 3, autoreset_mode=mode)
    try:
        given = run(tmp_path / "b", mode, 0, None, 2, env=env, overlap=True)
        env.reset(seed=0)  # no step is left under way
    finally:
        env.close()
    assert all(np.array_equal(one, two) for one, two in zip(state_of(expected), state_of(given), strict=True))


@pytest.mark.parametrize("mode", [None, AutoresetMode.DISABLED])
def test_overlap_needs_processes(mode: Any) -> None:
    with pytest.raises(ConfigError, match="AsyncVectorEnv"):
        fit_online(FakeLearner(), environment(mode), n_steps=5, **quiet(overlap=True))


@pytest.mark.parametrize(
    ("options", "word"), [({"update_start_step": 20}, "start"), ({"update_interval": 21}, "interval")]
)
def test_runs_too_short_for_an_update_are_warned_of(options: Any, word: str) -> None:
    with pytest.warns(ShortRunWarning, match=rf"nothing will be learned in n_steps=20.*update_{word}.* or more steps"):
        DQNConfig(batch_size=4).create().fit_online(
            gymnasium.make("CartPole-v1"),
            n_steps=20,
            logger_adapter=NoopAdapterFactory(),
            show_progress=False,
            **options,
        )
