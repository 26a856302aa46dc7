"""Worlds whose values are known, logged 2,000 times: intervals hold the truth as often as they say, or are refused.

Coverage at nominal 95 % must lie between 93 and 97 %; a test fails if a binomial test rejects that at 1e-3. As a
control, intervals of half the width must fail it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from birl.ope import (
    Diagnostics,
    Estimate,
    Interval,
    Trajectories,
    allowed,
    betting_bound,
    bootstrap_interval,
    check_limits,
    diagnose,
    direct_method,
    doubly_robust,
    hcope_bound,
    kernel_log_density,
    log_ratios,
    mixture_log_ratios,
    model_facts,
    on_policy,
    per_decision,
    t_interval,
    weight_facts,
)
from birl.ope.estimators import ESTIMATORS
from tests.ope import planted

REPETITIONS = 2000


@dataclass(frozen=True)
class Plan:
    """A world, its policies, and how it is logged."""

    world: planted.World
    policy_distance: float
    n: int
    seed: int = 0

    @property
    def policies(self) -> tuple[np.ndarray, np.ndarray]:
        return planted.policies(self.seed, self.policy_distance)

    @property
    def floor(self) -> float:
        """Six standard deviations below the least mean reward: no reward is less."""
        return float(self.world.reward.min() - 6 * self.world.noise)


PLANS = {
    "near": Plan(planted.world(0, 5), 0.6, 200),
    "costs": Plan(planted.world(0, 5, shift=-4.0), 0.6, 200),
    "middle": Plan(planted.world(0, 5), 1.0, 200),
    "long": Plan(planted.world(0, 20), 0.6, 200),
    "ends": Plan(planted.world(0, 20, ends=0.12), 1.2, 300, seed=3),
}
WEIGHTS = ("per_decision", "weighted_per_decision")
ROBUST = ("doubly_robust", "weighted_doubly_robust", "gain")
COVER = {
    "near": ("on_policy", "importance_sampling", "weighted_importance_sampling", *WEIGHTS, *ROBUST),
    "costs": ("on_policy", "floored", "weighted_per_decision", *ROBUST),
    "middle": ("on_policy", *ROBUST),
    "long": ("on_policy", *ROBUST),
    "ends": ("on_policy", "doubly_robust", "gain"),
}


@dataclass(frozen=True)
class Planted:
    """Estimates of all repetitions, the truth of each, and the weights' figures of some."""

    estimates: dict[str, Estimate]
    truth: dict[str, float]
    weights: Diagnostics


def seen(plan: Plan, repetitions: int, seed: int) -> Trajectories:
    logger, policy = plan.policies
    return planted.trajectories(planted.log(plan.world, logger, repetitions, plan.n, seed), plan.world, logger, policy)


@cache
def found(name: str) -> Planted:
    plan, terms = PLANS[name], dict[str, list[np.ndarray]]()
    for seed in range(10):
        of = seen(plan, REPETITIONS // 10, seed)
        for key in ESTIMATORS.keys() & {*COVER[name], "weighted_per_decision", "direct_method"}:
            terms.setdefault(key, []).append(ESTIMATORS[key](of).terms)
        terms.setdefault("gain", []).append((doubly_robust(of) - on_policy(of)).terms)
        terms.setdefault("floored", []).append(per_decision(of, lowest=plan.floor).terms)
    logger, policy = (plan.world.truth(one) for one in plan.policies)
    truth = dict.fromkeys(terms, policy) | {"on_policy": logger, "gain": policy - logger}
    return Planted({key: Estimate(np.concatenate(rows)) for key, rows in terms.items()}, truth, diagnose(of))


def test_intervals_of_a_policy_that_never_does_what_many_episodes_began_with() -> None:
    """A third of all episodes has the weight 0 from the first step on; intervals of half the width miss."""
    world, n = planted.world(0, 3), 200
    logger, policy = planted.policies(0, 0.3)
    policy = np.where(np.arange(3) == 0, 0.0, policy)
    policy /= policy.sum(-1, keepdims=True)
    terms = dict[str, list[np.ndarray]]()
    keys = ESTIMATORS.keys() - {"direct_method", "double_reinforcement_learning", "on_policy"}
    for seed in range(4):
        with np.errstate(divide="ignore"):
            of = planted.trajectories(planted.log(world, logger, 250, n, seed), world, logger, policy)
        for key in keys:
            terms.setdefault(key, []).append(ESTIMATORS[key](of).terms)
        terms.setdefault("gain", []).append((doubly_robust(of) - on_policy(of)).terms)
    assert 0.25 < (of.weight[..., 0] == 0).mean() < 0.45 and diagnose(of).ess.min() > 20
    for key, rows in terms.items():
        truth = world.truth(policy) - (world.truth(logger) if key == "gain" else 0.0)
        interval = t_interval(Estimate(np.concatenate(rows)))
        assert planted.covers(interval.holds(truth)), (key, interval.holds(truth).mean())
        assert not planted.covers(halved(interval).holds(truth)), key


def halved(of: Interval) -> Interval:
    middle, half = (of.lower + of.upper) / 2, (of.upper - of.lower) / 4
    return replace(of, lower=middle - half, upper=middle + half)


@pytest.mark.parametrize(("name", "estimator"), [(name, key) for name, keys in COVER.items() for key in keys])
def test_intervals_hold_the_truth(name: str, estimator: str) -> None:
    of = found(name)
    interval = t_interval(of.estimates[estimator])
    hits = interval.holds(of.truth[estimator])
    assert hits.shape == (REPETITIONS,)
    assert planted.covers(hits), f"{hits.mean():.3f}"
    assert not planted.covers(halved(interval).holds(of.truth[estimator]))


def test_every_estimator_has_a_row() -> None:
    """The direct method's interval is made of refits: its terms know nothing of the model."""
    others = {"direct_method", "double_reinforcement_learning"}  # test_bootstrap.py, test_marginal.py
    assert {key for keys in COVER.values() for key in keys} >= ESTIMATORS.keys() - others
    of = found("near")
    assert t_interval(of.estimates["direct_method"]).holds(of.truth["direct_method"]).mean() < 0.4


def test_the_worlds_are_as_hard_as_they_are_said_to_be() -> None:
    of = {name: found(name).weights for name in PLANS}
    assert of["near"].ess.mean() > 100 and np.median(of["near"].pareto_k) < 0.4
    assert 50 < of["middle"].ess.mean() < 80
    assert 25 < of["long"].ess.mean() < 50 and 20 < of["ends"].ess.mean() < 40
    alone = t_interval(found("ends").estimates["weighted_per_decision"])
    assert not planted.covers(alone.holds(found("ends").truth["weighted_per_decision"]))  # what the limits are for


@pytest.mark.parametrize("name", ["near", "middle", "costs"])
def test_lower_bounds_hold_more_often_than_they_say(name: str) -> None:
    of, plan = found(name), PLANS[name]
    terms = Estimate(of.estimates["floored"].terms[:1000])
    floor = plan.floor * sum(plan.world.gamma**t for t in range(plan.world.horizon))
    bounds = betting_bound(terms, lowest=floor), hcope_bound(terms, lowest=floor), t_interval(terms).lower
    betting, hcope, _ = (bound <= of.truth["floored"] for bound in bounds)
    for holds in (betting, hcope):
        assert not planted.too_few(int(holds.sum()), holds.size, 0.975), holds.mean()
    distance = [float((of.truth["floored"] - bound).mean()) for bound in bounds]
    assert distance[2] < distance[0] < distance[1]  # t, betting, the classical bound: what trust in tails is worth


def test_bootstrap_of_fitted_q_evaluation_cover() -> None:
    """On one-hot states, with the model fitted on resampled episodes."""
    plan, refits = replace(PLANS["near"], n=100), 50
    logger, policy = plan.policies
    rng = np.random.default_rng(0)
    hits = []
    for seed in range(8):
        logs = planted.log(plan.world, logger, REPETITIONS // 8, plan.n, 100 + seed)
        moved, paid = planted.counts(logs, plan.world)
        first = (logs.state[:, :, 0, None] == np.arange(5)).astype(np.float64)
        times = rng.multinomial(plan.n, np.full(plan.n, 1 / plan.n), (len(moved), refits)).astype(np.float64)
        times = np.concatenate([np.ones((len(moved), 1, plan.n)), times], 1)  # the first are the data as they are
        size = times.shape[:2]
        columns = ((times @ x.reshape(*x.shape[:2], -1)).reshape(*size, *x.shape[2:]) for x in (moved, paid))
        _, v = planted.fit(*columns, policy, plan.world)
        values = ((times @ first) / plan.n * v[:, :, 0]).sum(-1)
        hits.append(bootstrap_interval(values[:, 0], values[:, 1:]).holds(plan.world.truth(policy)))
    assert planted.covers(np.concatenate(hits), low=0.91), np.concatenate(hits).mean()


def test_clusters_cover_where_episodes_do_not() -> None:
    """Ten episodes a user: taken as independent, they make the interval far too narrow."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(40), 10)
    terms = Estimate(rng.normal(size=(REPETITIONS, 40))[:, user] + rng.normal(size=(REPETITIONS, 400)))
    assert planted.covers(t_interval(terms, clusters=user).holds(0.0))
    assert t_interval(terms).holds(0.0).mean() < 0.65


def test_two_loggers_cover() -> None:
    """The first of two never takes the second action."""
    rng = np.random.default_rng(0)
    loggers, policy, n = np.array([[1.0, 0.0], [0.4, 0.6]]), np.array([0.5, 0.5]), 200
    logger = np.arange(n) % 2
    action = (rng.random((REPETITIONS, n, 3)) < loggers[logger, 1][:, None]).astype(int)
    mask = np.ones(action.shape, bool)
    with np.errstate(divide="ignore"):
        every = np.moveaxis(np.log(loggers)[:, action], 0, 1)
    ratio = mixture_log_ratios(np.log(policy)[action], every, logger, mask)
    of = Trajectories(action + 0.5 * rng.normal(size=action.shape), mask, 1.0, ratio)
    interval = t_interval(per_decision(of))
    hits = interval.holds(1.5)  # loggers have fixed numbers of episodes, so it is wider than it need be
    assert not planted.too_few(int(hits.sum()), hits.size, 0.95)
    assert not planted.covers(halved(interval).holds(1.5))


def test_a_deterministic_policy_by_a_kernel() -> None:
    """One step of a linear system with Gaussian logs: with the kernel's noise, the value is in closed form."""
    rng = np.random.default_rng(0)
    state = rng.normal(size=(REPETITIONS, 300, 1))
    action = 0.5 * state + rng.normal(size=state.shape)
    reward = -((state - action) ** 2) + 0.1 * rng.normal(size=state.shape)
    logged = -0.5 * (action - 0.5 * state) ** 2 - 0.5 * math.log(2 * math.pi)
    for h in (0.25, 0.5):
        target = kernel_log_density(action[..., None], 0.8 * state[..., None], h)
        of = Trajectories(reward, reward < np.inf, 1.0, log_ratios(target, logged, reward < np.inf, densities=True))
        assert planted.covers(t_interval(per_decision(of)).holds(-(0.2**2) - h**2)), h


def test_heavy_tailed_rewards() -> None:
    """Student's t with 2.5 degrees of freedom: the mean over 400 episodes is covered."""
    rng = np.random.default_rng(0)
    assert planted.covers(t_interval(Estimate(rng.standard_t(2.5, (REPETITIONS, 400)))).holds(0.0), high=0.98)


def one(of: Trajectories) -> Trajectories:
    columns = (of.log_ratio, of.q, of.v)
    return Trajectories(of.reward[0], of.mask[0], of.gamma, *(None if x is None else x[0] for x in columns))


def test_a_policy_far_away_is_refused() -> None:
    of = one(seen(replace(PLANS["long"], policy_distance=3.0), 1, 0))
    facts = weight_facts(diagnose(of))
    assert (facts["ess"] or 0) < 20
    assert not {"importance_sampling", *WEIGHTS} & set(allowed(check_limits(facts)))
    facts |= model_facts(doubly_robust(of), direct_method(of), facts["ess"] or 0)
    assert "direct_method" in allowed(check_limits(facts)) or "doubly_robust" in allowed(check_limits(facts))


def test_a_model_that_does_not_see_the_state_is_refused() -> None:
    """Actions 1 and 2 spoil the state for good, and nothing shows it: a model is narrow and wrong, weights are not."""
    move, start = np.zeros((5, 3, 5)), np.eye(5)[0]
    move[0, 0, 0] = move[0, 1:, 1] = 1
    move[1:, :, 1] = 1
    world = planted.World(start, move, np.eye(5)[:, :1].repeat(3, 1), 0.1, 5, 1.0)
    logger, policy = (np.tile(row, (5, 1)) for row in ([0.8, 0.1, 0.1], [0.6, 0.2, 0.2]))
    logs = planted.log(world, logger, 1, 1000, 0)
    open_eyes = one(planted.trajectories(logs, world, logger, policy))
    blind = replace(logs, state=logs.state * 0, goes_to=np.where(logs.goes_to < 5, 0, 5))
    closed_eyes = one(planted.trajectories(blind, world, logger, policy))
    left, values = [], []
    for of in (open_eyes, closed_eyes):
        robust, model = doubly_robust(of), direct_method(of)
        facts = weight_facts(diagnose(of))
        left.append(set(allowed(check_limits(facts | model_facts(robust, model, facts["ess"] or 0)))))
        values.append((float(robust.value), float(model.value), t_interval(robust).holds(world.truth(policy))))
    assert values[0][2] and values[1][2] and abs(values[0][1] - world.truth(policy)) < 0.1
    assert values[1][1] - world.truth(policy) > 0.5
    assert "direct_method" in left[0] and "direct_method" not in left[1]
    assert {*WEIGHTS, "doubly_robust"} <= left[0] & left[1]


REFUSED = {
    "12 episodes": ({"episodes": 12}, "there are 12 episodes; at least 30 is allowed: log more episodes"),
    "one trajectory": ({"episodes": 1}, "there are 1 episodes; at least 30"),
    "3 users": ({"clusters": 3}, "there are 3 clusters; at least 30 is allowed"),
    "censored": ({"censored": 0.3}, "0.3 of the episodes are truncated before the horizon; at most 0.2 is allowed"),
    "unsupported": ({"unsupported": 0.1}, "on actions that the logs hardly contain; at most 0.05 is allowed: let the"),
    "seen": ({"seen": 1}, "policies that learned from these episodes: 1; at most 0 is allowed: hold out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_estimator_may_answer(name: str) -> None:
    facts, message = REFUSED[name]
    findings = check_limits(facts)
    assert allowed(findings) == () and all(message in one.message for one in findings if one.refused)


@pytest.mark.parametrize(
    ("facts", "message", "left"),
    [
        ({"certain": 1.0}, "all of the logged actions had the propensity 1; at most 0.95", {"direct_method"}),
        ({"no_propensities": 1.0}, "all of the steps have no propensity; at most 0 is allowed", {"direct_method"}),
        ({"calibration_error": 0.08}, "estimated propensities are off by 0.08 on average", {"direct_method"}),
        ({"gamma_differs": 0.09}, "fit the model with the discount of the evaluation", {"kernel", *WEIGHTS}),
    ],
)
def test_what_some_may_not_answer(facts: dict[str, float | None], message: str, left: set[str]) -> None:
    findings = check_limits(facts)
    assert any(message in one.message for one in findings if one.refused)
    assert left <= set(allowed(findings)) and "doubly_robust" not in allowed(findings)
