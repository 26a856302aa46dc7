"""Probe environments: every algorithm and head knows the values in the end. The first that fails says where to look."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from birl.errors import ConfigError
from birl.testing import PROBES, ChainEnv, MemoryEnv, ProbeEnv, collect_dataset, probe_errors
from tests.algorithms import ACTION_PROBES, PROBE_RUNS, WHOLE, Probing, Run

HARDEST = "action_observation"
"""The probe of all algorithms in the default tier, which has all probes only of those that stand for the others."""


def slow(run: Run, kind: str) -> bool:
    kinds = run.variant.kinds
    shown = HARDEST if HARDEST in kinds else kinds[-1]
    return run.slow or (run.name.split()[0] not in WHOLE and kind != shown)


RUNS = [
    pytest.param(run, kind, marks=[pytest.mark.slow] if slow(run, kind) else [], id=f"{run.name}-{kind}")
    for run in PROBE_RUNS
    for kind in run.variant.kinds
]


@pytest.mark.parametrize(("run", "kind"), RUNS)
def test_probe(run: Run, kind: str) -> None:
    wanted: Probing = run.variant
    errors = probe_errors(run.config, kind, run.discrete, wanted.n_steps, expert=wanted.expert)
    print(f"\n{run.name:22s} {kind:20s} " + " ".join(f"{name} {value:.3f}" for name, value in errors.items()))
    if kind in ACTION_PROBES:
        assert errors["action"] <= wanted.action
    if wanted.true_values:
        assert all(errors[name] <= 0.2 for name in errors if name != "action"), errors
    assert errors, "nothing was measured"


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("kind", PROBES)
def test_probes_say_their_true_values(kind: str, discrete: bool) -> None:
    """Values by rolling out: reward now, then the values of the best actions."""
    gamma, env = 0.5, ProbeEnv(kind, discrete)
    for start, action, value in env.action_values(gamma):
        env.reset(seed=0)
        env._observation = start
        env._step = 1 if kind == "discount" and start == 1.0 else 0
        total, factor, done = 0.0, 1.0, False
        while not done:
            _, reward, terminated, truncated, _ = env.step(action)
            total, factor, done = total + factor * float(reward), factor * gamma, terminated or truncated
        if kind == "time_limit":
            total += factor / (1 - gamma)  # what would have followed
        assert total == pytest.approx(value)
    assert len(env.action_values(gamma)) == len(env.observations) * (2 if discrete else 3)
    for observation, action in env.best_actions():
        assert env.reward(observation, action) == 1.0
        assert all(
            env.reward(observation, other) < 1.0 for other in ((0, 1) if discrete else (-1, 0, 1)) if other != action
        )


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("make", [ChainEnv, MemoryEnv, lambda discrete: ProbeEnv("action", discrete)])
def test_environments_follow_gymnasium(make: Any, discrete: bool) -> None:
    check_env(make(discrete), skip_render_check=True)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="'nothing'"):
        ProbeEnv("nothing", True)
    with pytest.raises(ConfigError, match="n_states is 4"):
        ChainEnv(n_states=4)


@pytest.mark.parametrize("discrete", [True, False])
def test_chain_needs_the_right_action_in_every_state(discrete: bool) -> None:
    env = ChainEnv(discrete)
    observation, _ = env.reset(seed=0)
    for step in range(env.n_states - 1):
        observation, reward, terminated, truncated, _ = env.step(env.best_action(observation))
        assert (float(reward), terminated, truncated) == ((1.0, True, False) if step == 6 else (0.0, False, False))
    for constant in (0.0, 1.0) if discrete else (-1.0, 1.0):
        env.reset()
        total, done = 0.0, False
        while not done:
            _, reward, terminated, truncated, _ = env.step(constant)
            total, done = total + float(reward), terminated or truncated
        assert total == 0.0 and truncated


def test_memory_is_asked_after_its_delay() -> None:
    env = MemoryEnv()
    for seed in range(4):
        observation, _ = env.reset(seed=seed)
        cue, seen = float(observation[0]), []
        for step in range(11):
            observation, reward, terminated, _, _ = env.step(int(cue > 0))
            seen.append((tuple(observation), float(reward), terminated))
            assert terminated == (step == 10)
        assert seen[9] == ((0.0, 1.0), 0.0, False) and seen[10][1] == 1.0
        assert all(row == ((0.0, 0.0), 0.0, False) for row in seen[:9])


def test_collected_data_are_what_was_played() -> None:
    env = ChainEnv(discrete=False)
    random, expert = collect_dataset(env, 300), collect_dataset(env, 70, policy=env.best_action, skill=1.0)
    assert random.step_count == random.transition_count == 300
    assert sum(float(episode.rewards.sum()) for episode in random.episodes) <= 5
    assert [float(episode.rewards.sum()) for episode in expert.episodes] == [1.0] * 10
    again = collect_dataset(ChainEnv(discrete=False), 300)
    assert np.array_equal(again.episodes[0].actions, random.episodes[0].actions)
    assert isinstance(env, gymnasium.Env)
