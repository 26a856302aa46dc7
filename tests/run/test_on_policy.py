"""On-policy training: whole rollouts, exact numbers of steps, exact resume."""

from __future__ import annotations

import itertools
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import birl.seeding
from birl.envs import Stepper, reset_generator
from birl.errors import ActionError, ConfigError, ResumeError
from birl.logging import FileAdapterFactory, NoopAdapterFactory
from birl.run.collector import Collector
from birl.run.on_policy import on_policy_fitter
from birl.run.rollouts import RolloutAgentCore
from run.fakes import Drift, FakeActor, FakeLearner, signal_at

MODES = [None, *AutoresetMode]


def environment(mode: AutoresetMode | None, **options: Any) -> Any:
    return Drift(**options) if mode is None else SyncVectorEnv([lambda: Drift(**options)] * 3, autoreset_mode=mode)


def train(learner: FakeLearner, env: Any, n_steps: int, **options: Any) -> Any:
    options = {"logger_adapter": NoopAdapterFactory(), "show_progress": False, "seed": 3, **options}
    return list(on_policy_fitter(learner, env, n_steps=n_steps, **options))


def collector(learner: FakeLearner, env: Any) -> Collector:
    stepper = Stepper(env, reset_generator(env, 1))
    return Collector(stepper, RolloutAgentCore(learner, stepper.observation, stepper.action_space))


@pytest.mark.parametrize("kind", ["box", "dict"])
@pytest.mark.parametrize("mode", MODES)
def test_rollouts(mode: AutoresetMode | None, kind: str) -> None:
    birl.seeding.seed(0)
    learner = FakeLearner(discrete=False, remembers=True)
    train(learner, environment(mode, discrete=False, kind=kind), 97)
    assert sum(int(rollout.valid.sum()) for rollout in learner.rollouts) == 97
    assert all(len(rollout.reward) == 5 for rollout in learner.rollouts[:-1])
    n = 1 if mode is None else 3
    totals, episodes = np.zeros(n), 0
    for rollout in learner.rollouts:
        vector, following = learner.vector(rollout.observation), learner.vector(rollout.next_observation)
        rows = len(rollout.reward)
        assert vector.shape == following.shape == (rows, n, 2)
        assert rollout.action.shape == (rows, n, 2)
        assert rollout.extra["state.actor"].shape == (rows, n, 1)
        assert np.array_equal(rollout.start_state["actor"], rollout.extra["state.actor"][0])
        assert rollout.reward.dtype == np.float32
        valid = rollout.valid
        assert (following[valid][:, 1] == vector[valid][:, 1] + 1).all()
        assert np.allclose(rollout.reward[valid], following[valid][:, 0])
        assert (vector[rollout.is_first][:, 1] == 0).all()
        assert (rollout.extra["state.actor"][rollout.is_first] == 0).all()
        assert not ((rollout.terminated | rollout.truncated) & ~valid & (rollout is not learner.rollouts[-1])).any()
        episodes += int((rollout.terminated | rollout.truncated).sum())
        totals += valid.sum(0)
        ended = (rollout.terminated | rollout.truncated)[:-1]
        if mode is not AutoresetMode.NEXT_STEP:
            assert np.array_equal(rollout.is_first[1:], ended)
    assert episodes > 10
    if mode is AutoresetMode.NEXT_STEP:
        assert any((~rollout.valid).any() for rollout in learner.rollouts[:-1])


class EpisodesConfig:
    batch_size, gamma, rate, n_episodes = 4, 0.9, 0.01, 4

    def serialize(self) -> dict[str, Any]:
        return {"type": "Fake", "params": {}}


def by_episodes() -> FakeLearner:
    learner: Any = FakeLearner(remembers=True)
    learner.config = EpisodesConfig()
    return learner  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", MODES)
def test_rollouts_of_whole_episodes_lose_no_step_and_repeat_none(mode: AutoresetMode | None) -> None:
    birl.seeding.seed(0)
    learner, n, n_steps = by_episodes(), 1 if mode is None else 3, 203
    train(learner, environment(mode), n_steps)
    kept: list[list[int]] = [[] for _ in range(n)]
    for rollout in learner.rollouts:
        assert rollout.valid[0].any() and rollout.valid[-1].any()
        ended = (rollout.terminated | rollout.truncated) & rollout.valid
        assert 4 <= ended.sum() < 4 + n or rollout is learner.rollouts[-1]
        for lane, steps in enumerate(kept):
            valid = rollout.valid[:, lane]
            assert not valid.any() or (rollout.is_first[valid, lane][0] and ended[valid, lane][-1])
            steps += rollout.observation[valid, lane, 1].astype(int).tolist()
    assert len(learner.rollouts) > 5
    for steps in kept:  # 0, 1, 2, …, of one episode after another
        assert all(later in (0, step + 1) for step, later in itertools.pairwise(steps))
    assert 0 <= n_steps - sum(map(len, kept)) <= 7 * n  # those of episodes that had not ended


def test_a_run_of_whole_episodes_stopped_anywhere_equals_uninterrupted(tmp_path: Path) -> None:
    def go(folder: str, stop: int | None, seed: int) -> FakeLearner | None:
        birl.seeding.seed(seed)
        learner = by_episodes()
        env = environment(AutoresetMode.NEXT_STEP)
        try:
            train(
                learner,
                env,
                90,
                n_steps_per_epoch=25,
                callback=signal_at(stop, signal.SIGINT),
                checkpoint=tmp_path / folder,
            )
        except KeyboardInterrupt:
            return None
        return learner

    expected, stops = go("straight", None, 0), [1, 17, 38, 61, None]
    resumed = [go("stopped", stop, seed) for seed, stop in enumerate(stops)][-1]
    assert expected is not None and resumed is not None
    assert expected.grad_step > 3 and torch.equal(resumed.weight, expected.weight)


def test_no_episode_has_ended_and_nothing_is_learned() -> None:
    learner = by_episodes()
    with pytest.warns(RuntimeWarning, match="nothing was learned from 50 steps of each environment, because"):
        train(learner, Drift(limit=1000, end=0.0), 50)
    assert learner.rollouts == []


def test_environment_gets_clipped_actions_the_learner_its_own() -> None:
    class Wide(FakeLearner):
        def actor(self, **options: Any) -> Any:
            actor = super().actor(**options)
            return _Scaled(actor)

    class _Scaled:
        def __init__(self, actor: Any) -> None:
            self.actor = actor
            self.extra: dict[str, Any] = {}

        def __call__(self, *inputs: Any) -> Any:
            return self.actor(*inputs) * 5

    class Strict(Drift):
        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            return super().step(action)

    learner = Wide(discrete=False)
    train(learner, Strict(discrete=False), 10)
    assert max(np.abs(rollout.action).max() for rollout in learner.rollouts) > 1


@pytest.mark.parametrize(
    ("n_steps", "per_epoch", "ends"), [(7, 10_000, [7]), (20, 10, [10, 20]), (23, 10, [10, 20, 23])]
)
@pytest.mark.parametrize("mode", MODES)
def test_exact_number_of_steps(mode: AutoresetMode | None, n_steps: int, per_epoch: int, ends: list[int]) -> None:
    learner, steps = FakeLearner(), []
    result = train(
        learner,
        environment(mode),
        n_steps,
        n_steps_per_epoch=per_epoch,
        epoch_callback=lambda _, epoch, step: steps.append(step),
    )
    assert steps == ends
    assert [epoch for epoch, _ in result] == list(range(1, len(ends) + 1))
    assert sum(int(rollout.valid.sum()) for rollout in learner.rollouts) == n_steps


@pytest.mark.parametrize(("mode", "number"), list(zip(MODES, [signal.SIGTERM, signal.SIGINT] * 2, strict=True)))
def test_stopped_anywhere_and_resumed_equals_uninterrupted(tmp_path: Path, mode: Any, number: int) -> None:
    n_steps = 61

    def go(folder: str, stop: int | None, seed: int) -> FakeLearner | None:
        birl.seeding.seed(seed)
        learner = FakeLearner(remembers=True)
        try:
            train(
                learner,
                environment(mode, kind="dict"),
                n_steps,
                n_steps_per_epoch=25,
                callback=signal_at(stop, number),
                checkpoint=tmp_path / folder / "R",
                logger_adapter=FileAdapterFactory(tmp_path / folder),
                experiment_name="R",
                with_timestamp=False,
            )
        except (KeyboardInterrupt, SystemExit):
            return None
        return learner

    expected = go("straight", None, 0)
    assert expected is not None
    for first in (1, 7, 38):
        stops: list[int | None] = [first, first + 1, 50, 59, None]
        for seed, stop in enumerate(stops):
            learner = go(f"stopped{first}", stop, seed)
            assert (learner is None) == (stop is not None)
        assert learner is not None
        assert torch.equal(learner.weight, expected.weight)
        assert learner.grad_step == expected.grad_step
        for name in ("loss.csv", "rollout_return.csv"):
            files = [(tmp_path / folder / "R" / name).read_text() for folder in ("straight", f"stopped{first}")]
            assert files[0] == files[1]


def test_n_and_n_equals_2n_at_a_rollouts_end(tmp_path: Path) -> None:
    def go(folder: str, steps: list[int]) -> FakeLearner:
        for seed, n_steps in enumerate(steps):
            birl.seeding.seed(seed)
            learner = FakeLearner()
            train(learner, environment(AutoresetMode.DISABLED), n_steps, checkpoint=tmp_path / folder)
        return learner

    assert torch.equal(go("a", [60]).weight, go("b", [30, 60]).weight)


def test_lost_environment_ends_the_episodes_of_the_rollout(tmp_path: Path) -> None:
    class Unseeded(Drift):
        def reset(self, **options: Any) -> Any:
            return super().reset()

    learner = FakeLearner()

    with pytest.raises(KeyboardInterrupt):
        train(learner, Unseeded(end=0.0), 10, checkpoint=tmp_path, callback=signal_at(3, signal.SIGINT))
    again = FakeLearner()
    with pytest.warns(RuntimeWarning, match="not exact"):
        train(again, Unseeded(end=0.0), 10, checkpoint=tmp_path)
    first = again.rollouts[0]
    assert first.truncated[2, 0]
    assert first.is_first[3, 0]
    assert sum(int(rollout.valid.sum()) for rollout in again.rollouts) == 10


def test_other_environment_is_refused(tmp_path: Path) -> None:
    train(FakeLearner(), environment(None), 10, checkpoint=tmp_path)
    with pytest.raises(ResumeError, match="environments was 1, now 3"):
        train(FakeLearner(), environment(AutoresetMode.DISABLED), 20, checkpoint=tmp_path)


def test_evaluation_has_an_environment_of_its_own() -> None:
    env = Drift()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import gymnasium

        wrapped = gymnasium.wrappers.TimeLimit(env, 3)
    with pytest.raises(ConfigError, match="training environment"):
        train(FakeLearner(), env, 10, eval_env=wrapped)
    result = train(FakeLearner(), env, 10, eval_env=Drift(), eval_n_trials=2)
    assert "evaluation" in result[0][1]


def test_actions_that_are_nan_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeActor, "__call__", lambda actor, *_: np.full((1, 2), np.nan, np.float32))
    with pytest.raises(ActionError, match="the action \\[nan, nan\\] for environment 0"):
        collector(FakeLearner(discrete=False), Drift(discrete=False)).interact(0)
