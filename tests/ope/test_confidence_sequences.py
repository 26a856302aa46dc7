"""Confidence sequences: plain references, and how often they cover the truth at all times together."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from birl.errors import DataError, ShapeError
from birl.ope import (
    allocation_change,
    bounded_difference,
    mixture_threshold,
    running_difference,
)
from tests.ope import planted

Draw = Callable[[np.random.Generator, int], np.ndarray]
OUTCOMES: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "exponential": lambda rng, n: rng.exponential(size=n),
    "one in twenty": lambda rng, n: (rng.random(n) < 0.05) * 1.0,
    "heavy tails": lambda rng, n: rng.standard_t(3, size=n),
}


def test_an_interval_is_that_of_the_paper() -> None:
    """Differences of means and their errors by arm, and the mixture's width, computed plainly for one time."""
    rng, n, tuned, error = np.random.default_rng(0), 300, 1000, 0.025
    treated, outcome = rng.random(n) < 0.3, rng.normal(size=n) + 5
    running = running_difference(treated, outcome)
    lower, upper = running.bounds(error, tuned)
    arms = outcome[treated], outcome[~treated]
    variance = sum(arm.var(ddof=1) / len(arm) for arm in arms)
    a = 2 * error
    rho2 = (-2 * math.log(a) + math.log(-2 * math.log(a) + 1)) / tuned
    width = math.sqrt(2 * (n * rho2 + 1) / (n * rho2) * math.log(1 + math.sqrt(n * rho2 + 1) / (2 * error)))
    assert running.value[-1] == pytest.approx(arms[0].mean() - arms[1].mean())
    assert upper[-1] - lower[-1] == pytest.approx(2 * width * math.sqrt(variance))
    assert np.isinf(lower[:40]).all()  # fewer than 30 treated units


def test_the_bounded_interval_is_that_of_the_paper() -> None:
    """Theorem 2 of arXiv:2010.09686, unit by unit."""
    rng, share, error = np.random.default_rng(1), 0.4, 0.025
    treated, outcome = rng.random(60) < share, rng.uniform(2, 4, 60)
    lower, upper = bounded_difference(treated, outcome, share, 2, 4, error)
    reach = max(1 / share, 1 / (1 - share))
    seen: list[float] = []
    xs: list[float] = []
    bets = weighted = costs = 0.0
    for i in range(60):
        y = (outcome[i] - 2) / 2
        center = (0.5 + sum(seen)) / (i + 1)
        phi = (y - center) / share if treated[i] else -(y - center) / (1 - share)
        x = phi / (2 * reach) + 0.5
        means = [(0.5 + sum(xs[: k + 1])) / (k + 2) for k in range(i)]
        before = means[-1] if means else 0.5
        variance = (0.25 + sum((value - mean) ** 2 for value, mean in zip(xs, means, strict=True))) / (i + 1)
        bet = min(math.sqrt(2 * math.log(1 / error) / (variance * (i + 1) * math.log(i + 2))), 0.5)
        costs += 4 * (x - before) ** 2 * (-math.log(1 - bet) - bet) / 4
        bets, weighted = bets + bet, weighted + bet * x
        seen.append(y)
        xs.append(x)
    middle, half = weighted / bets, (math.log(1 / error) + costs) / bets
    assert lower[-1] == pytest.approx(2 * reach * 2 * (middle - half - 0.5))
    assert upper[-1] == pytest.approx(2 * reach * 2 * (middle + half - 0.5))


def misses(draw: Draw, share: float, repetitions: int, n: int, scale: float = 1.0) -> int:
    """How many of the tests with no effect the interval leaves out 0 at any of n times."""
    count = 0
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        treated, outcome = rng.random(n) < share, draw(rng, n)
        running = running_difference(treated, outcome)
        half = scale * mixture_threshold(running.units / n, 0.025) * running.error
        count += bool((np.abs(running.value) > half).any())  # not where the error is unknown
    return count


@pytest.mark.parametrize("outcomes", OUTCOMES)
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_a_sequence_covers_at_all_times_together(outcomes: str, share: float) -> None:
    missed = misses(OUTCOMES[outcomes], share, 100, 3000)
    assert not planted.too_few(100 - missed, 100, 0.95), missed


@pytest.mark.slow
@pytest.mark.parametrize("outcomes", OUTCOMES)
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_a_sequence_covers_at_all_times_of_long_tests(outcomes: str, share: float) -> None:
    missed = misses(OUTCOMES[outcomes], share, 1000, 10_000)
    assert not planted.too_few(1000 - missed, 1000, 0.95), missed


def test_sequences_of_half_the_width_do_not_cover() -> None:
    missed = misses(OUTCOMES["normal"], 0.5, 100, 3000, scale=0.5)
    assert planted.too_few(100 - missed, 100, 0.95), missed


def test_plain_intervals_do_not_cover_at_all_times() -> None:
    """What reading a 95 % interval a hundred times does."""
    count = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        running = running_difference(rng.random(3000) < 0.5, rng.normal(size=3000))
        looks = np.arange(30, 3000, 30)
        count += bool((np.abs(running.value[looks]) > 1.96 * running.error[looks]).any())
    assert count / 200 > 0.25


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_bounded_sequences_cover_with_few_units_of_rare_outcomes(share: float) -> None:
    missed, halved = 0, 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        treated = rng.random(500) < share
        outcome = (rng.random(500) < np.where(treated, 0.5, 0.02)) * 1.0
        lower, upper = bounded_difference(treated, outcome, share, 0, 1)
        missed += bool(((lower > 0.48) | (upper < 0.48)).any())
        middle, half = (lower + upper) / 2, (upper - lower) / 8
        halved += bool((np.abs(middle - 0.48) > half)[100:].any())
    assert not planted.too_few(200 - missed, 200, 0.95) and planted.too_few(200 - halved, 200, 0.95)
    assert (lower > 0).any()  # it decides


def test_outcomes_out_of_the_declared_range_are_refused() -> None:
    with pytest.raises(DataError, match="the outcome of unit 2 is 1.5; it must be from 0 to 1, the declared range"):
        bounded_difference(np.array([True, False]), np.array([0.5, 1.5]), 0.5, 0, 1)
    with pytest.raises(ShapeError, match=r"treated has the shape \(2,\) and outcome \(3,\); both must be \[n\]"):
        running_difference(np.ones(2, bool), np.ones(3))


def test_evidence_of_a_change_is_that_of_plain_sums() -> None:
    """Beta functions by ``lgamma``, averaged over the two possible times of a change in 100 units."""
    rng, share = np.random.default_rng(0), 0.3
    treated = np.append(rng.random(64) < share, np.ones(36, bool))

    def factor(part: np.ndarray) -> float:
        ones, zeros = int(part.sum()), int((~part).sum())
        beta = math.lgamma(ones + 1) + math.lgamma(zeros + 1) - math.lgamma(len(part) + 2)
        return math.exp(beta - ones * math.log(share) - zeros * math.log(1 - share))

    found = allocation_change(treated, share)
    assert found is not None and 60 <= found.first <= 64 and found.share > 0.9
    plain = factor(treated) / 2 + factor(treated[64:]) / 6 + 1 / 3
    assert found.evidence == pytest.approx(plain)


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_a_change_of_the_allocation_is_found_and_no_other(share: float) -> None:
    false, found = 0, []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        false += allocation_change(rng.random(10_000) < share, share, 0.05) is not None
        change = allocation_change(rng.random(8000) < np.where(np.arange(8000) < 5000, share, 1.5 * share), share)
        found.append(None if change is None else change.first)
    assert false <= 5 and None not in found
    firsts = np.array(found, float)
    assert abs(np.median(firsts) - 5000) < 50 and (np.abs(firsts - 5000) < 600).mean() > 0.95
