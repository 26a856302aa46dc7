"""Estimators against plain loops, numbers computed by hand, and mistakes that other libraries make."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from birl.errors import DataError, EmptyDataError, NonFiniteError, ShapeError
from birl.ope import (
    Trajectories,
    betting_bound,
    bias_bound,
    clip_ratios,
    doubly_robust,
    folds,
    importance_sampling,
    kernel_log_density,
    log_ratios,
    mixture_log_ratios,
    on_policy,
    padded,
    per_decision,
    shrink_ratios,
    switch_ratios,
    temper_ratios,
    weighted_doubly_robust,
    weighted_importance_sampling,
    weighted_per_decision,
)
from birl.ope.estimators import ESTIMATORS

GAMMA = 0.9


def lists(seed: int, n: int = 7) -> list[dict[str, list[float]]]:
    """Episodes of 1 to 5 steps as plain lists."""
    rng = np.random.default_rng(seed)
    names = {"r": (-1, 2), "rho": (0.2, 3), "q": (-1, 1), "v": (-1, 1), "z": (0.2, 3)}
    sizes = rng.integers(1, 6, n)
    return [{name: rng.uniform(*ends, size).tolist() for name, ends in names.items()} for size in sizes]


def arrays(episodes: list[dict[str, list[float]]]) -> Trajectories:
    columns = {name: padded([episode[name] for episode in episodes])[0] for name in ("r", "q", "v", "z")}
    ratio, mask = padded([np.log(episode["rho"]) for episode in episodes])
    return Trajectories(columns["r"], mask, GAMMA, ratio, columns["q"], columns["v"], columns["z"])


def weight(episode: dict[str, list[float]], t: int) -> float:
    """``w_t``: that of the last step after the end, 1 before the start."""
    return math.prod(episode["rho"][: t + 1]) if t >= 0 else 1.0


def ret(episode: dict[str, list[float]]) -> float:
    return sum(GAMMA**t * r for t, r in enumerate(episode["r"]))


def plain_wpdis(episodes: list[dict[str, list[float]]]) -> float:
    total = 0.0
    for t in range(5):
        paid = sum(weight(e, t) * e["r"][t] for e in episodes if t < len(e["r"]))
        total += GAMMA**t * paid / sum(weight(e, t) for e in episodes)
    return total


def plain_dr(episode: dict[str, list[float]]) -> float:
    """Jiang and Li's recursion, backwards."""
    value = 0.0
    for r, rho, q, v in reversed(list(zip(*(episode[name] for name in ("r", "rho", "q", "v")), strict=True))):
        value = v + rho * (r + GAMMA * value - q)
    return value


def plain_wdr(episodes: list[dict[str, list[float]]]) -> float:
    total = 0.0
    for t in range(5):
        now, before = (sum(weight(e, s) for e in episodes) for s in (t, t - 1))
        for e in episodes:
            if t < len(e["r"]):
                total += GAMMA**t * weight(e, t) / now * (e["r"][t] - e["q"][t])
                total += GAMMA**t * weight(e, t - 1) / before * e["v"][t]
    return total


def plain_drl(episode: dict[str, list[float]]) -> float:
    """The first value, and at each step the error of the model times the ratio of visits."""
    total, after = episode["v"][0], [*episode["v"][1:], 0.0]
    for t, (r, z, q) in enumerate(zip(episode["r"], episode["z"], episode["q"], strict=True)):
        total += GAMMA**t * z * (r + GAMMA * after[t] - q)
    return total


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


PLAIN: dict[str, Callable[[list[dict[str, list[float]]]], float]] = {
    "on_policy": lambda es: mean([ret(e) for e in es]),
    "direct_method": lambda es: mean([e["v"][0] for e in es]),
    "importance_sampling": lambda es: mean([weight(e, 9) * ret(e) for e in es]),
    "weighted_importance_sampling": lambda es: sum(weight(e, 9) * ret(e) for e in es) / sum(weight(e, 9) for e in es),
    "per_decision": lambda es: mean([sum(GAMMA**t * weight(e, t) * r for t, r in enumerate(e["r"])) for e in es]),
    "weighted_per_decision": plain_wpdis,
    "doubly_robust": lambda es: mean([plain_dr(e) for e in es]),
    "weighted_doubly_robust": plain_wdr,
    "double_reinforcement_learning": lambda es: mean([plain_drl(e) for e in es]),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_is_its_equation(name: str) -> None:
    for seed in range(3):
        episodes = lists(seed)
        found = ESTIMATORS[name](arrays(episodes))
        assert found.terms.shape == (7,)
        np.testing.assert_allclose(found.value, PLAIN[name](episodes), rtol=1e-12)
        backwards = ESTIMATORS[name](arrays(episodes[::-1]))  # the order of episodes is of no matter
        np.testing.assert_allclose(backwards.terms[::-1], found.terms, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_episode_may_have_no_weight_from_its_first_step_on(name: str) -> None:
    """The policy never does what was done first: the episode stays in all divisors, and the model speaks of it."""
    for seed in range(3):
        episodes = lists(seed)
        for episode in episodes[::2]:
            episode["rho"][0] = 0.0
        with np.errstate(divide="ignore"):
            found = ESTIMATORS[name](arrays(episodes))
        np.testing.assert_allclose(found.value, PLAIN[name](episodes), rtol=1e-12)
        assert np.isfinite(found.terms).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_repetitions_stand_in_front(name: str) -> None:
    each = [arrays(lists(seed)) for seed in (0, 1)]
    each = [t for t in each if t.mask.shape[-1] == 5]
    assert len(each) == 2
    both = Trajectories(
        *(np.stack([getattr(t, key) for t in each]) for key in ("reward", "mask")),
        GAMMA,
        *(np.stack([getattr(t, key) for t in each]) for key in ("log_ratio", "q", "v", "z")),
    )
    found = ESTIMATORS[name](both).terms
    np.testing.assert_allclose(found, [ESTIMATORS[name](t).terms for t in each], rtol=1e-12)


@pytest.mark.parametrize("name", sorted(ESTIMATORS.keys() - {"direct_method"}))
def test_the_policy_that_logged_gains_nothing(name: str) -> None:
    """Ratios are 1: its gain over the logs is exactly 0 in every term. A model needs the same baseline."""
    of = arrays(lists(0, 50))
    of = Trajectories(of.reward, of.mask, GAMMA, np.zeros_like(of.reward), of.q, of.v, np.ones_like(of.reward))
    robust = "robust" in name or name == "double_reinforcement_learning"
    gain = ESTIMATORS[name](of) - on_policy(of, of.v if robust else None)
    np.testing.assert_allclose(gain.terms, 0, atol=1e-15)
    if not robust:
        assert (gain.terms == 0).all() and gain.value == 0
    assert ((ESTIMATORS[name](of) - ESTIMATORS[name](of)).terms == 0).all()


def test_a_constant_added_to_rewards_adds_its_discounted_sum() -> None:
    rng = np.random.default_rng(0)
    reward, ratio = rng.normal(size=(2, 30, 4))
    mask, q, v = np.ones((30, 4), bool), np.zeros((30, 4)), np.zeros((30, 4))
    plus = 2 * sum(GAMMA**t for t in range(4))
    for name in ("weighted_importance_sampling", "weighted_per_decision"):
        a, b = (ESTIMATORS[name](Trajectories(r, mask, GAMMA, ratio, q, v)) for r in (reward, reward + 2))
        np.testing.assert_allclose(b.terms, a.terms + plus, rtol=1e-10)


def survival(n: int = 20_000) -> tuple[Trajectories, float]:
    """Each step pays 1 and ends the episode with 0.5 after action 0, 0.1 after action 1; and the truth."""
    rng = np.random.default_rng(0)
    logged, target, end, horizon = np.array([0.5, 0.5]), np.array([0.3, 0.7]), np.array([0.5, 0.1]), 8
    action = rng.integers(0, 2, (n, horizon))
    goes_on = rng.random((n, horizon)) > end[action]
    mask = np.concatenate([np.ones((n, 1), bool), np.cumprod(goes_on, 1)[:, :-1].astype(bool)], 1)
    ratio = log_ratios(np.log(target)[action], np.log(logged)[action], mask)
    stays = 1 - target @ end
    return Trajectories(mask * 1.0, mask, 1.0, ratio), sum(stays**t for t in range(horizon))


@pytest.mark.parametrize("name", ["importance_sampling", "per_decision", "weighted_per_decision"])
def test_survival_is_the_policys_own(name: str) -> None:
    """Where each step pays 1, divisors of survivors, and weights that are 0 after the end, give far other values."""
    of, truth = survival()
    found = ESTIMATORS[name](of)
    error = found.terms.std() / math.sqrt(found.terms.size)
    assert abs(found.value - truth) < 4 * error < 0.4
    logs = on_policy(of).value
    assert truth - logs > 0.7
    w, alive = of.weight, of.mask
    survivors = ((w * of.reward).sum(0) / (w * alive).sum(0)).sum()  # every policy gets the horizon so
    ended = (w * alive)[:, -1] @ of.reward.sum(1) / (w * alive)[:, -1].sum()
    assert survivors == pytest.approx(8) and ended == pytest.approx(8)
    np.testing.assert_allclose(of.weight.mean(0), 1, atol=0.1)


def test_weighted_importance_sampling_of_survival_keeps_weights_after_the_end() -> None:
    of, truth = survival(100_000)
    assert abs(weighted_importance_sampling(of).value - truth) < 0.4


def test_a_reward_of_one_leaves_no_doubt_for_ratios() -> None:
    """Terms that were normalised before have a spread where the estimate has none."""
    rng = np.random.default_rng(0)
    mask = np.ones((40, 3), bool)
    of = Trajectories(mask * 1.0, mask, 1.0, rng.normal(size=(40, 3)), mask * 0.0, mask * 0.0)
    for estimator in (weighted_importance_sampling, weighted_per_decision, weighted_doubly_robust):
        assert np.ptp(estimator(of).terms) < 1e-13
    assert np.ptp(of.relative_weight[:, -1]) > 1


def test_by_hand() -> None:
    """Two episodes: rewards 1, 2 with ratios 2, 0.5; and reward 4 with ratio 0.5. gamma is 0.5."""
    reward, mask = padded([[1.0, 2.0], [4.0]])
    ratio, _ = padded([np.log([2.0, 0.5]), np.log([0.5])])
    of = Trajectories(reward, mask, 0.5, ratio, mask * 1.0, mask * 2.0)
    assert on_policy(of).value == 3  # (1 + 1 + 4) / 2
    assert importance_sampling(of).value == 2  # (1 * 2 + 0.5 * 4) / 2
    assert weighted_importance_sampling(of).value == pytest.approx(4 / 1.5)
    assert per_decision(of).value == 2.5  # (2 * 1 + 0.5 * 1 * 2 + 0.5 * 4) / 2
    assert weighted_per_decision(of).value == pytest.approx(4 / 2.5 + 0.5 * 2 / 1.5)
    assert doubly_robust(of).value == pytest.approx(((2 + 2 * (1 + 0.5 * 2.5 - 1)) + (2 + 0.5 * 3)) / 2)


def test_lowest_is_taken_off_and_added() -> None:
    """With weights of mean 1 nothing changes; without any weight the estimate is the least return, not 0."""
    reward, mask = padded([[-1.0, -2.0], [-3.0]])
    even = Trajectories(reward, mask, 0.5, np.log([[1.5, 1.0], [0.5, 1.0]]))
    for estimator in (importance_sampling, per_decision):
        assert estimator(even, lowest=-4).value == pytest.approx(estimator(even).value)
        none = Trajectories(reward, mask, 0.5, np.full((2, 2), -np.inf))
        assert estimator(none).value == 0 and estimator(none, lowest=-4).value == -6
        with pytest.raises(
            DataError, match=r"a reward is -3.0, but lowest is -1; it must be the smallest possible reward"
        ):
            estimator(even, lowest=-1)
        rounded = np.full((3, 2), np.float32(-0.1), np.float64)
        stored = Trajectories(rounded, np.ones((3, 2), bool), 0.9, np.zeros((3, 2)))
        found = estimator(stored, lowest=-0.1)  # which float32 rounds to less
        assert betting_bound(found, lowest=-0.1 * 1.9) <= found.value + 1e-6


def test_the_spread_of_a_ratio_is_that_of_leaving_an_episode_out() -> None:
    """Terms of heavy episodes too, whose first-order influence is too small: against n estimates of n - 1 episodes."""
    episodes = lists(3, 12)
    for name in ("weighted_importance_sampling", "weighted_per_decision", "weighted_doubly_robust"):
        terms = ESTIMATORS[name](arrays(episodes)).terms
        without = [PLAIN[name](episodes[:i] + episodes[i + 1 :]) for i in range(12)]
        lost = 11 * (PLAIN[name](episodes) - np.array(without))
        np.testing.assert_allclose(terms - terms.mean(), lost - lost.mean(), atol=1e-10)
        assert np.ptp(terms) > 0.5


def test_long_episodes_keep_their_weights() -> None:
    """Products of 5,000 ratios leave the range of floats; ratios of them do not."""
    rng = np.random.default_rng(0)
    log_ratio = rng.normal(0.3, 0.1, (20, 5000))
    of = Trajectories(np.ones((20, 5000)), np.ones((20, 5000), bool), 0.99, log_ratio)
    assert weighted_per_decision(of).value == pytest.approx((1 - 0.99**5000) / 0.01)
    with pytest.raises(DataError, match=r"weight of step \(\d+, \d+\) is e\^\d+; the mean of weights must be 1"):
        per_decision(of)


def test_two_loggers_of_which_one_lacks_an_action() -> None:
    """The mixture's weights are finite and have the mean 1; naive ratios do not exist."""
    rng = np.random.default_rng(0)
    n, horizon = 30_000, 3
    loggers, target = np.array([[1.0, 0.0], [0.3, 0.7]]), np.array([0.4, 0.6])
    logger = np.arange(n) % 3 // 2  # two thirds by the first
    action = (rng.random((n, horizon)) < loggers[logger, 1][:, None]).astype(int)
    mask = np.ones((n, horizon), bool)
    with np.errstate(divide="ignore"):
        every = np.log(loggers)[:, action]
    ratio = mixture_log_ratios(np.log(target)[action], every, logger, mask)
    of = Trajectories(action * 1.0, mask, 1.0, ratio)
    w = of.weight
    by_hand = [
        np.prod(target[row]) / (2 / 3 * np.prod(loggers[0, row]) + 1 / 3 * np.prod(loggers[1, row])) for row in action
    ]
    np.testing.assert_allclose(w[:, -1], by_hand, rtol=1e-12)
    np.testing.assert_allclose(w.mean(0), 1, atol=0.05)
    found = per_decision(of)
    assert abs(found.value - 1.8) < 4 * found.terms.std() / math.sqrt(n)
    with pytest.raises(DataError, match=r"the logging policy of step \(0, \d\) never takes the logged action"):
        mixture_log_ratios(np.log(target)[action], every[:, [2, *range(1, n)]], logger, mask)
    with pytest.raises(ShapeError, match="must hold 30000 numbers from 0 to 1"):
        mixture_log_ratios(np.log(target)[action], every, logger + 1, mask)


def test_changed_ratios() -> None:
    rho = np.array([0.0, 0.5, 1.0, 4.0])
    with np.errstate(divide="ignore"):
        log = np.log(rho)
    np.testing.assert_allclose(np.exp(clip_ratios(log, 2)), [0, 0.5, 1, 2])
    np.testing.assert_allclose(np.exp(switch_ratios(log, 2)), [0, 0.5, 1, 0])
    np.testing.assert_allclose(np.exp(shrink_ratios(log, 3)), 3 * rho / (3 + rho**2))
    np.testing.assert_allclose(np.exp(temper_ratios(log, 0.25)), rho / (0.75 + 0.25 * rho))
    np.testing.assert_allclose(np.exp(temper_ratios(log, 0.0)), rho)
    np.testing.assert_allclose(np.exp(temper_ratios(log, 1.0)), [0, 1, 1, 1])  # what is never done stays so
    with pytest.raises(DataError, match=r"limit is 0; it must be a float > 0"):
        clip_ratios(log, 0)


@pytest.mark.parametrize("change", [lambda r: clip_ratios(r, 1.2), lambda r: switch_ratios(r, 1.2)])
def test_the_bias_is_within_its_bound(change: Callable[[np.ndarray], np.ndarray]) -> None:
    of = arrays(lists(0, 30))
    assert of.log_ratio is not None
    changed = change(of.log_ratio)
    other = Trajectories(of.reward, of.mask, GAMMA, changed, of.q, of.v)
    moved = abs(doubly_robust(other).value - doubly_robust(of).value)
    assert 0 < moved <= bias_bound(of, changed)
    assert bias_bound(of, of.log_ratio) == 0


def test_switched_off_everywhere_the_model_alone_speaks() -> None:
    of = arrays(lists(0))
    assert of.log_ratio is not None
    off = Trajectories(of.reward, of.mask, GAMMA, switch_ratios(of.log_ratio, 1e-9), of.q, of.v)
    np.testing.assert_allclose(doubly_robust(off).value, ESTIMATORS["direct_method"](off).value)


def test_a_kernel_is_a_density_in_every_dimension() -> None:
    """The sum over a fine grid is 1, with two dimensions too: the divisor is sqrt(2 pi) h for each of them."""
    grid = np.linspace(-4, 4, 161)
    plane = np.stack(np.meshgrid(grid, grid), -1)
    density = np.exp(kernel_log_density(plane, np.array([0.3, -0.2]), np.array([0.5, 0.25])))
    assert density.sum() * (grid[1] - grid[0]) ** 2 == pytest.approx(1, abs=1e-9)
    with pytest.raises(DataError, match=r"bandwidth is 0; it must be finite numbers > 0"):
        kernel_log_density(plane, plane, 0)


def test_until_a_horizon() -> None:
    of = arrays(lists(0))
    short = of.until(2)
    assert short.mask.shape == (7, 2) and short.q is not None and short.q.shape == (7, 2)
    assert on_policy(short).value == pytest.approx(mean([ret({"r": e["r"][:2]}) for e in lists(0)]))
    with pytest.raises(DataError, match="horizon is 0; it must be an int >= 1"):
        of.until(0)


def test_folds_keep_groups_together() -> None:
    groups = np.repeat([f"user {k}" for k in range(10)], 3)
    part = folds(groups, 3)
    assert set(part) == {0, 1, 2} and sorted(np.bincount(part)) == [9, 9, 12]
    assert all(len(set(part[groups == name])) == 1 for name in groups)
    with pytest.raises(DataError, match="count is 11; it must be 2 to 10, the number of groups"):
        folds(groups, 11)


def test_what_is_not_there_is_said() -> None:
    mask = np.ones((2, 3), bool)
    of = Trajectories(mask * 1.0, mask, 0.9)
    with pytest.raises(DataError, match="log_ratio is None, but weights need it"):
        per_decision(of)
    with pytest.raises(DataError, match="the episodes have no q, which this estimator needs"):
        doubly_robust(Trajectories(mask * 1.0, mask, 0.9, mask * 0.0))
    far = Trajectories(mask * 1.0, mask, 0.9, np.array([[0, -np.inf, 0], [-np.inf, 0, 0]]))
    assert per_decision(far).value == 0.5
    with pytest.raises(DataError, match="all weights are 0 from step 1 on.* or a horizon of at most 1$"):
        weighted_per_decision(far)
    never = Trajectories(mask * 1.0, mask, 0.9, np.array([[-np.inf, 0, 0]] * 2))
    assert per_decision(never).value == 0
    with pytest.raises(DataError, match="0 from step 0 on, .* evaluate a policy nearer to the logs$"):
        weighted_per_decision(never)
    with pytest.raises(ShapeError, match="both must be of the same episodes"):
        on_policy(of) - on_policy(Trajectories(mask[:1] * 1.0, mask[:1], 0.9))


def test_bad_arrays_are_refused() -> None:
    mask = np.array([[True, True], [True, False]])
    good = np.zeros((2, 2))
    with pytest.raises(ShapeError, match=r"q has the shape \(2, 3\); the mask has \(2, 2\)"):
        Trajectories(good, mask, 0.9, q=np.zeros((2, 3)))
    with pytest.raises(NonFiniteError, match=r"reward is nan at step \(0, 1\); it must be finite"):
        Trajectories(np.array([[0, np.nan], [0, np.nan]]), mask, 0.9)
    with pytest.raises(NonFiniteError, match=r"log_ratio is inf at step \(1, 0\); .* finite, or minus infinity"):
        Trajectories(good, mask, 0.9, np.array([[0, 0], [np.inf, 0]]))
    with pytest.raises(ShapeError, match=r"the mask has a hole at step \(0, 1\)"):
        Trajectories(np.zeros((1, 3)), np.array([[True, False, True]]), 0.9)
    with pytest.raises(EmptyDataError, match=r"episode \(1,\) has no step"):
        Trajectories(good, np.array([[True, True], [False, False]]), 0.9)
    with pytest.raises(EmptyDataError, match="n >= 1 and T >= 1"):
        Trajectories(np.zeros((0, 2)), np.zeros((0, 2)), 0.9)
    with pytest.raises(DataError, match=r"gamma is 1.5; it must be a float >= 0 and <= 1"):
        Trajectories(good, mask, 1.5)
    with pytest.raises(EmptyDataError, match="there are no episodes"):
        padded([])


def test_probabilities_for_log_probabilities_are_refused() -> None:
    mask = np.ones((1, 2), bool)
    with pytest.raises(DataError, match=r"log_logged is 0.5 at step \(0, 0\), the logarithm of a probability above 1"):
        log_ratios(np.log([[0.5, 0.5]]), np.array([[0.5, 0.25]]), mask)
    dense = log_ratios(np.array([[0.5, 0.5]]), np.array([[0.7, 0.7]]), mask, densities=True)
    np.testing.assert_allclose(dense, -0.2)
    with pytest.raises(DataError, match=r"the logged action of step \(0, 1\) has the propensity 0"):
        log_ratios(np.log([[0.5, 0.5]]), np.array([[-0.1, -np.inf]]), mask)
