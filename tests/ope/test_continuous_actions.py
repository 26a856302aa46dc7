"""Doubly robust estimates for continuous actions: a linear model of both, and samples of the policy."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl.dataset import MDPDataset
from birl.models import VectorEncoderFactory
from birl.ope import Gaussian, Mixture, evaluate
from birl.ope.episode_arrays import ACTION_SAMPLES, read_episodes
from birl.ope.linear_models import StepFeatures, action_features, cross_fitted_action_values
from birl.testing import build_algorithm

STEPS, GAMMA, LOGGED, STD = 3, 0.95, 0.4, 0.3


def log_density(x: Any, std: float) -> Any:
    return -0.5 * (x / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))


def policy(slope: float = 0.6) -> Gaussian:
    """The mean is tanh(slope * s)."""
    config = birl.algos.BCConfig(encoder_factory=VectorEncoderFactory(hidden_units=[]))
    algo = build_algorithm(config, (1,), 1, discrete_action=False)
    with torch.no_grad():
        algo.nets.actor.linear.weight.fill_(slope)
        algo.nets.actor.linear.bias.zero_()
    return Gaussian(algo, STD)


def episodes(count: int, seed: int, slope: float | None = None) -> Any:
    """Columns ``[n, T, ...]`` of episodes of the logging policy, a clipped Gaussian around 0, or of `policy`."""
    rng, columns = np.random.default_rng(seed), []
    state = rng.normal(size=(count, 1)).astype(np.float32) * 0.5
    for _ in range(STEPS):
        mean, std = (0.0, LOGGED) if slope is None else (np.tanh(slope * state), STD)
        raw = mean + std * rng.normal(size=state.shape)
        action = np.clip(raw, -1, 1).astype(np.float32)
        log = np.where(np.abs(raw) < 1, log_density(raw, LOGGED), np.log(NormalDist().cdf(-1 / LOGGED)))[:, 0]
        reward = (-((action - 0.5 * state) ** 2) + np.sin(2 * state) + 0.2 * rng.normal(size=state.shape))[:, 0]
        columns.append((state, action, reward, log))
        state = (0.7 * state + 0.4 * action + 0.3 * rng.normal(size=state.shape)).astype(np.float32)
    return [np.stack(column, 1) for column in zip(*columns, strict=True)]


def dataset(count: int, seed: int, shift: float = 0.0) -> MDPDataset:
    state, action, reward, log = (x.reshape(count * STEPS, *x.shape[2:]) for x in episodes(count, seed))
    ends = np.arange(count * STEPS) % STEPS == STEPS - 1
    continuous = birl.ActionSpace.CONTINUOUS
    return MDPDataset(
        state, action, reward, ends, action_space=continuous, action_size=1, extra={"log_propensity": log + shift}
    )


@pytest.fixture(scope="module")
def truth() -> float:
    reward = episodes(100_000, 99, 0.6)[2]
    return float((reward * GAMMA ** np.arange(STEPS)).sum(1).mean())


def test_intervals_cover_the_truth_and_are_narrower(truth: float) -> None:
    target = policy()
    found = [evaluate(target, dataset(200, seed), gamma=GAMMA) for seed in range(100)]
    robust, weighted = ([each.rows[name] for each in found] for name in ("doubly_robust", "weighted_per_decision"))
    values = np.array([row.value for row in robust])
    intervals = [row.interval for row in robust if row.interval is not None]
    assert len(intervals) == 100 and sum(interval.holds(truth) for interval in intervals) >= 89
    assert abs(values.mean() - truth) <= 3 * values.std() / 10
    width = [np.median([row.interval.upper - row.interval.lower for row in rows]) for rows in (robust, weighted)]  # type: ignore[union-attr]
    assert width[0] <= 0.85 * width[1]
    assert {each.decides for each in found} == {"doubly_robust", None}
    # nothing tells which continuous actions the logs lack, so limits of weights hold for robust estimators, too
    unreliable = [each for each in found if each.rows["weighted_per_decision"].refused]
    assert unreliable and all(each.rows["doubly_robust"].refused for each in unreliable)
    assert all("direct_method" not in each.rows for each in found)  # its support is unknown


def test_the_model_is_not_needed_for_validity(truth: float) -> None:
    """V is the expectation of Q also where both are wrong: the mean of rho * Q - V over logged steps is 0."""
    view = read_episodes(dataset(6000, 7), GAMMA, None).view(policy())
    trajectories = view.trajectories
    assert trajectories.log_ratio is not None and trajectories.q is not None and trajectories.v is not None
    first = np.exp(trajectories.log_ratio[:, 0]) * trajectories.q[:, 0] - trajectories.v[:, 0]
    assert abs(first.mean()) <= 4 * first.std() / np.sqrt(len(first))
    assert trajectories.q.std() > 0.1
    found = evaluate(policy(), dataset(6000, 7), gamma=GAMMA).rows["doubly_robust"].interval
    assert found is not None and found.holds(truth)


def test_it_decides_only_where_weights_may() -> None:
    """Policies far from the logs, and wrong propensities."""
    far = evaluate(policy(5.0), dataset(60, 0), gamma=GAMMA)
    assert far.rows["per_decision"].refused and far.rows["doubly_robust"].refused and far.decides is None
    wrong = evaluate(policy(), dataset(400, 0, shift=1.0), gamma=GAMMA)
    assert wrong.decides is None and wrong.rows["doubly_robust"].refused


def test_estimates_are_repeatable_and_leave_random_numbers_alone() -> None:
    data, target = dataset(60, 0), Mixture([policy(), policy(0.2)])
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    both = [evaluate(target, data, gamma=GAMMA).rows["doubly_robust"].value for _ in range(2)]
    assert both[0] == both[1] and torch.equal(torch.rand(1), expected)
    assert evaluate(target, data, gamma=GAMMA, against=target).rows["doubly_robust"].gain.value == 0


def test_objects_of_users_have_no_model() -> None:
    """Nothing says that their ``predict`` samples from the density that they state."""

    class Own:
        def predict(self, x: Any) -> Any:
            return np.zeros((len(x), 1))

        def action_probability(self, x: Any, action: Any = None) -> Any:
            return np.exp(log_density(action[:, 0], STD))

    assert "doubly_robust" not in evaluate(Own(), dataset(60, 0), gamma=GAMMA).rows


def test_values_of_a_linear_world_are_exact() -> None:
    """``r = s + 2 a - a^2 + s a`` in episodes of two steps; the policy's moments are known."""
    rng, n = np.random.default_rng(0), 600
    s, a = rng.normal(size=(n, 1)), rng.normal(size=(n, 1))
    reward = (s + 2 * a - a**2 + s * a)[:, 0]
    step = np.arange(n) % 2
    x = np.concatenate([np.ones((n, 1)), s], 1)
    mean, squared = 0.5 * s, 0.25 * s**2 + 0.04
    logged, expected = action_features(x, a, a**2), action_features(x, mean, squared)
    assert logged is not None and expected is not None
    steps = StepFeatures(logged, np.zeros(n), reward, step, step == 1, 0.0)
    q, v = cross_fitted_action_values(steps, expected, np.arange(n) // 2 % 3)
    np.testing.assert_allclose(q, reward, atol=0.01)
    np.testing.assert_allclose(v, (s + 2 * mean - squared + s * mean)[:, 0], atol=0.01)
    assert action_features(np.ones((3, 100)), np.ones((3, 10)), np.ones((3, 10))) is None
    assert ACTION_SAMPLES > 1
