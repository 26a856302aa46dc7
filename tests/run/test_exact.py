"""Exact resume: the actions that environments received, bounded logs of them, and evaluators."""

from __future__ import annotations

import signal
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import birl.seeding
from birl.dataset import create_infinite_replay_buffer
from birl.envs import stepper
from birl.run.data_collection import collect
from run.fakes import FakeLearner, InterruptedScores, Scores, signal_at
from run.test_ends import run as fit
from run.test_online import MODES, fit_online, quiet, run, state_of

pytestmark = pytest.mark.filterwarnings("ignore::birl.errors.EvaluationWarning")  # one of `Scores` is NaN

VECTORS = [mode for mode in MODES if mode is not None]


class Chaos(gymnasium.Env):
    """Differences of 1e-9 in an action are large after ten steps."""

    def __init__(self, dtype: Any = np.float32) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), dtype)
        self.given: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = float(self.np_random.random())
        return np.array([self.state, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.given.append(action)
        self.state = (self.state * 100 + float(action[0])) % 1.0
        return np.array([self.state, 0], np.float32), self.state, False, False, {}


class Doubles:
    """An explorer whose actions are float64."""

    def sample(self, algo: Any, x: Any, step: int) -> Any:
        return np.full((len(x), 2), 0.1 + 0.01 * (step % 10), np.float64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_explorer_with_other_dtypes_resumes_exactly(tmp_path: Path, dtype: Any) -> None:
    def go(folder: Path, stop: int | None) -> Any:
        birl.seeding.seed(0)
        env = Chaos(dtype)
        buffer, learner = create_infinite_replay_buffer(env=env), FakeLearner(discrete=False)
        options = quiet(checkpoint=folder, callback=signal_at(stop))
        try:
            fit_online(learner, env, buffer, Doubles(), 60, **options)
        except SystemExit:
            return None
        assert {each.dtype for each in env.given} == {np.dtype(dtype)}
        return [learner.weight.numpy(), *(getattr(buffer.episodes[0], name) for name in ("observations", "actions"))]

    expected = go(tmp_path / "straight", None)
    assert go(tmp_path / "stopped", 33) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = go(tmp_path / "stopped", None)
    assert all(map(np.array_equal, expected, resumed))


def test_environments_are_given_what_is_stored() -> None:
    env = Chaos()
    buffer = collect(FakeLearner(discrete=False), env, explorer=Doubles(), n_steps=20, show_progress=False)
    assert np.array_equal(np.stack(env.given), buffer.episodes[0].actions)


# -- logs of vector environments -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", VECTORS)
@pytest.mark.parametrize("stop", [1, 20, 22, 41, 60])
def test_runs_with_bounded_logs_resume_exactly(
    tmp_path: Path, mode: Any, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_MIN_LOGGED_STEPS", "_MAX_LOGGED_STEPS"):
        monkeypatch.setattr(stepper, name, 4)
    expected = run(tmp_path / "straight", mode, 0, None, signal.SIGTERM)
    assert run(tmp_path / "stopped", mode, 0, stop, signal.SIGTERM) is None
    resumed = run(tmp_path / "stopped", mode, 9, None, signal.SIGTERM)
    assert all(map(np.array_equal, state_of(expected), state_of(resumed)))


# -- evaluators ------------------------------------------------------------------------------------------------


def test_a_signal_in_an_evaluation_does_not_advance_evaluators_twice(tmp_path: Path) -> None:
    armed = [True]
    folder = tmp_path / "stopped"
    with pytest.raises(SystemExit):
        fit(folder, evaluators={"first": Scores(), "score": InterruptedScores(armed)})
    fit(folder, evaluators={"first": Scores(), "score": InterruptedScores(armed)})
    fit(tmp_path / "straight", evaluators={"first": Scores(), "score": Scores()})
    for name in ("first.csv", "score.csv"):
        assert (folder / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()
