"""Ratios of visits against those of dynamic programming, the estimator made of them, and models that vary least."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ope.test_bootstrap import steps_of
from ope.test_decisions import LOGGER, POLICY, WORLD, FixedPolicy, logs

from birl.errors import DataError
from birl.ope import (
    Estimate,
    Trajectories,
    allowed,
    check_limits,
    double_reinforcement_learning,
    doubly_robust,
    evaluate,
    marginal_ratios,
    more_robust_q,
    t_interval,
    verdict,
)
from birl.ope.importance_weights import padded
from birl.ope.linear_models import StepFeatures, cross_fitted_q
from birl.ope.validity_limits import reward_facts
from tests.ope import planted


def visits(world: planted.World, policy: Any) -> Any:
    """``P(s_t, a_t)`` by going forwards, ``[T, S, A]``."""
    state, found = world.start, []
    for _ in range(world.horizon):
        pair = state[:, None] * policy
        found.append(pair)
        state = np.einsum("sa,sat->t", pair, world.move)
    return np.stack(found)


@pytest.mark.parametrize("ends", [0.0, 0.2])
def test_ratios_of_visits_are_those_of_dynamic_programming(ends: float) -> None:
    world = planted.world(0, 5, ends=ends)
    of = planted.log(world, LOGGER, 1, 20_000, 0)
    steps, state, length = steps_of(of, 0)
    part = np.repeat(np.arange(20_000) % 2, length)
    found = marginal_ratios(steps, POLICY[state], part)
    exact = visits(world, POLICY) / visits(world, LOGGER)
    wanted = exact[steps.step, state, steps.action]
    assert np.abs(found - wanted).mean() < 0.06 and wanted.std() > 0.3
    products = np.exp(np.log(POLICY / LOGGER)[state, steps.action])
    assert np.abs(products - wanted).mean() > 1.3 * np.abs(found - wanted).mean()


def test_ratios_balance_what_they_were_fitted_to() -> None:
    """Of all features and steps the weighted sum is what the policy would see next; the equation itself."""
    of = planted.log(WORLD, LOGGER, 1, 300, 1)
    steps, state, length = steps_of(of, 0)
    other = np.full(len(state), 1)
    other[: length[0]] = 0  # the first episode is the part that is left out
    z = marginal_ratios(steps, POLICY[state], 1 - other)  # so the others are valued by the first alone ...
    assert np.isfinite(z).all()
    z = marginal_ratios(steps, POLICY[state], other)[: length[0]]  # ... and the first by the others
    rest = np.flatnonzero(other)
    before = dict.fromkeys(range(len(state)), 1.0)
    for t in range(WORLD.horizon):
        now = [i for i in rest if steps.step[i] == t]
        for s in range(5):
            for a in range(3):
                mass = sum(before[i] * POLICY[s, a] for i in now if state[i] == s)
                taken = [i for i in now if state[i] == s and steps.action[i] == a]
                share = sum(steps.action[i] == a for i in now)
                ratio = mass / (len(taken) + 1e-4 * (share + 1))
                for i in taken:
                    before[i + 1] = ratio
                if t < length[0] and state[t] == s and steps.action[t] == a:
                    assert z[t] == pytest.approx(ratio, rel=1e-9)


def seen(row: int, of: planted.Logs, world: planted.World, parts: int = 2) -> Trajectories:
    steps, state, length = steps_of(of, row)
    part = np.repeat(np.arange(len(length)) % parts, length)
    all_q, v = cross_fitted_q(steps, POLICY[state], part)
    z = marginal_ratios(steps, POLICY[state], part)
    ends = np.cumsum(length)[:-1]
    columns = [padded(np.split(x, ends))[0] for x in (all_q[np.arange(len(v)), steps.action], v, z)]
    return Trajectories(of.reward[row], of.mask[row], world.gamma, None, *columns)


def test_the_estimate_covers_without_propensities() -> None:
    repetitions = 200
    of = planted.log(WORLD, LOGGER, repetitions, 200, 3)
    interval = [t_interval(double_reinforcement_learning(seen(row, of, WORLD))) for row in range(repetitions)]
    truth = WORLD.truth(POLICY)
    assert planted.covers(np.array([each.holds(truth) for each in interval]))
    halves = [abs((each.lower + each.upper) / 2 - truth) < (each.upper - each.lower) / 4 for each in interval]
    assert not planted.covers(np.array(halves))


def test_it_is_right_if_the_model_or_the_ratios_are() -> None:
    of = planted.log(WORLD, LOGGER, 1, 20_000, 5)
    good, truth = seen(0, of, WORLD), WORLD.truth(POLICY)
    error = float(double_reinforcement_learning(good).terms.std()) / np.sqrt(20_000)
    wrong_model = replace(good, q=good.q * 0, v=good.v * 0)  # type: ignore[operator]
    wrong_ratios = replace(good, z=good.z * 0 + 1)  # type: ignore[operator]
    for right in (good, wrong_model, wrong_ratios):
        assert abs(float(double_reinforcement_learning(right).value) - truth) < 8 * error
    neither = replace(wrong_model, z=wrong_ratios.z)
    assert abs(float(double_reinforcement_learning(neither).value) - truth) > 10 * error
    with pytest.raises(DataError, match="the episodes have no z"):
        double_reinforcement_learning(replace(good, z=None))


def test_it_is_a_row_and_never_the_verdict() -> None:
    found = evaluate(FixedPolicy(POLICY), logs(300, what="nothing"), gamma=0.95)
    row = found.rows["double_reinforcement_learning"]
    assert row.interval is not None and row.interval.holds(WORLD.truth(POLICY))
    assert row.gain_interval is not None and row.gain_interval.holds(WORLD.truth(POLICY) - WORLD.truth(LOGGER))
    assert found.decides is None and verdict(found).verdict == "cannot_tell"
    with_propensities = evaluate(FixedPolicy(LOGGER), logs(100), gamma=0.95)
    assert not with_propensities.rows["double_reinforcement_learning"].gain.terms.any()


@pytest.mark.parametrize(
    ("value", "low", "high", "times"),
    [(5.0, 0.0, 1.0, 5 / 1.75), (-3.0, -2.0, 1.0, 3 / 3.5), (0.5, 0.0, 1.0, 0.5 / 1.75), (1.0, -1.0, 0.0, np.inf)],
)
def test_what_no_rewards_could_add_up_to_is_refused(value: float, low: float, high: float, times: float) -> None:
    of = Trajectories(np.array([[low, high, 0.0], [high, 99.0, 99.0]]), np.array([[1, 1, 1], [1, 0, 0]]), gamma=0.5)
    facts = reward_facts(Estimate(np.full(2, value)), of)
    assert facts["beyond_rewards"] == pytest.approx(times)
    refused = [one.message for one in check_limits(facts) if one.refused]
    words = (
        "times the maximum that logged rewards allow; at most 1.5"
        if np.isfinite(times)
        else "none of them has its sign"
    )
    assert bool(refused) == (times > 1.5) and all(words in m and "inf" not in m for m in refused)
    assert ("double_reinforcement_learning" in allowed(check_limits(facts))) == (times <= 1.5)


# -- models that make estimates vary least ---------------------------------------------------------------------------


def bandit(seed: int, n: int = 1500) -> tuple[StepFeatures, Any, Any, Any]:
    """One step; values depend on a number that the model does not see, and how likely actions were does, too."""
    rng = np.random.default_rng(seed)
    hidden = rng.random(n)
    logged = np.stack([0.05 + 0.9 * hidden, 0.95 - 0.9 * hidden], 1)
    action = (rng.random(n) < logged[:, 1]).astype(int)
    reward = np.where(action == 1, 3 * hidden, 2 - 2 * hidden) + 0.1 * rng.normal(size=n)
    zeros = np.zeros(n, int)
    steps = StepFeatures(np.ones((n, 1)), action, reward, zeros, zeros == 0, 1.0)
    return steps, logged, np.full((n, 2), 0.5), np.arange(n) % 2


def test_it_varies_less_than_the_model_that_fits_best() -> None:
    """By a third here, at the same mean; a model of values as they are fits the wrong rows."""
    spread: dict[str, list[float]] = {"fitted": [], "robust": []}
    values: dict[str, list[float]] = {"fitted": [], "robust": []}
    for seed in range(60):
        steps, logged, target, part = bandit(seed)
        every = np.arange(len(part))
        all_q, fitted_v = cross_fitted_q(steps, target, part)
        ratio = np.log(target / logged)[every, steps.action][:, None]
        robust = more_robust_q(steps, target, np.exp(ratio[:, 0]), part)
        models = {"fitted": (all_q[every, steps.action], fitted_v), "robust": robust}
        for name, (q, v) in models.items():
            of = Trajectories(steps.reward[:, None], ratio == ratio, 1.0, ratio, q[:, None], v[:, None])
            found = doubly_robust(of)
            spread[name].append(float(found.terms.std()))
            values[name].append(float(found.value))
    assert np.mean(spread["robust"]) < 0.9 * np.mean(spread["fitted"])
    assert np.std(values["robust"]) < np.std(values["fitted"])
    for name in values:
        assert abs(np.mean(values[name]) - 1.25) < 4 * np.std(values[name]) / np.sqrt(60)


def test_it_minimises_what_it_says() -> None:
    """In one step: no other values of two actions have a smaller empirical variance, up to the sample and the ridge."""
    steps, logged, target, _ = bandit(0, 40_000)
    part = np.arange(40_000) % 2
    rho = (target / logged)[np.arange(40_000), steps.action]
    q, _ = more_robust_q(steps, target, rho, part)
    rows = part == 0
    best = np.array([q[rows & (steps.action == a)][0] for a in range(2)])

    def variance(values: Any) -> float:
        return float((target @ values + rho * (steps.reward - values[steps.action])).var())

    least = min(variance(np.array([a, b])) for a in np.linspace(-2, 4, 25) for b in np.linspace(-2, 4, 25))
    assert variance(best) < 1.02 * least


def test_in_many_steps_it_is_valid_and_little_worse_than_a_model_that_is_right() -> None:
    of = planted.log(WORLD, LOGGER, 1, 3000, 9)
    steps, state, length = steps_of(of, 0)
    part = np.repeat(np.arange(3000) % 2, length)
    ends = np.cumsum(length)[:-1]
    rho = np.log(POLICY / LOGGER)[state, steps.action]
    ratio = padded(np.split(rho, ends))[0]
    q, v = (padded(np.split(x, ends))[0] for x in more_robust_q(steps, POLICY[state], np.exp(rho), part))
    found = doubly_robust(Trajectories(of.reward[0], of.mask[0], WORLD.gamma, ratio, q, v))
    assert t_interval(found, 0.999).holds(WORLD.truth(POLICY))
    other = seen(0, of, WORLD)
    fitted = doubly_robust(replace(other, log_ratio=ratio))
    assert found.terms.std() < 1.2 * fitted.terms.std()
