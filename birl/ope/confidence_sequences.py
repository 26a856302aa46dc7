"""Confidence sequences: intervals of a difference of means that hold at all times at once, however often they are read.

A confidence interval covers the truth with its confidence at one time that was chosen in advance. If a test is read
every day until the interval excludes 0, the error is far larger than the level. The intervals of a confidence sequence
cover the truth at **all** times together, so a test may be read at any time and stopped at any time.

Also here: a sequential test of the shares of two arms, because a test whose allocation changes is biased.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from birl.checks import check
from birl.errors import DataError, ShapeError
from birl.types import Array

MIN_ARM: Final = 30
"""Asymptotic confidence sequences start when each arm has so many units, or more if outcomes are skewed."""
SKEW_FACTOR: Final = 25.0
"""Each arm needs so many units, times the squared skewness of outcomes (Cochran 1977, "Sampling Techniques", 2.15)."""
_BLOCK: Final = 64
"""Smallest distance in units between the possible times of a change of the allocation."""


def mixture_threshold(share_of_tuned: float | Array, error: float) -> Array:
    """Return how many standard errors an asymptotic confidence sequence is from the mean on one side, ``[...]``.

    ``sqrt(2 (tau + 1) / tau log(1 + sqrt(tau + 1) / (2 error)))`` with ``tau = n rho^2``: the one-sided normal mixture
    of Robbins (1970), in the form of Waudby-Smith et al. 2021 (arXiv:2103.06476). A standardised mean of no effect
    exceeds it at any n with a probability of at most ``error``. ``rho`` makes it tightest near ``n = tuned``, by their
    approximation ``rho^2 = (-2 log(a) + log(1 - 2 log(a))) / tuned`` with ``a = 2 error``.

    Args:
        share_of_tuned: ``n / tuned``, above 0, ``[...]``.
        error: one-sided error level, above 0 and below 0.5.
    """
    check("error", error, float, above=0, below=0.5)
    log = -2 * math.log(2 * error)
    tau = np.asarray(share_of_tuned, np.float64) * (log + math.log1p(log))
    return np.sqrt(2 * (tau + 1) / tau * np.log1p(np.sqrt(tau + 1) / (2 * error)))


@dataclass(frozen=True, eq=False)
class MeanDifference:
    """Running differences of two means, after each unit.

    Attributes:
        value: mean of the treated arm minus mean of the other, ``[n]``; NaN as long as an arm has no unit.
        error: its standard error, ``[n]``; NaN as long as an arm has fewer units than `min_arm_units` of the outcomes
            so far, or all outcomes of both arms are equal.
        treated, units: number of treated units, and of all units, ``[n]``.
    """

    value: Array
    error: Array
    treated: Array
    units: Array

    def bounds(self, error: float, tuned: float) -> tuple[Array, Array]:
        """Return the asymptotic confidence sequence of the difference, ``[n]`` and ``[n]``; see `mixture_threshold`.

        Args:
            error: error level of each side.
            tuned: number of units near which it is tightest; it must not depend on the outcomes.

        Returns:
            Lower and upper ends; infinite where the standard error is unknown.
        """
        check("tuned", tuned, float, above=0)
        half = mixture_threshold(self.units / tuned, error) * self.error
        known = np.isfinite(half)
        return np.where(known, self.value - half, -np.inf), np.where(known, self.value + half, np.inf)


def running_difference(treated: Array, outcome: Array) -> MeanDifference:
    """Return the difference of the arms' means after each unit.

    Args:
        treated: whether each unit is in the treated arm, bool ``[n]``, in the order in which units came.
        outcome: outcome of each unit, ``[n]``.

    Raises:
        ShapeError: if the lengths differ.
    """
    treated, outcome = np.asarray(treated, bool), np.asarray(outcome, np.float64)
    if treated.shape != outcome.shape or treated.ndim != 1:
        raise ShapeError(
            f"treated has the shape {treated.shape} and outcome {outcome.shape}; both must be [n]: give one value of "
            "each for every unit"
        )
    units = np.arange(1, len(treated) + 1)
    centered = outcome - (outcome.mean() if len(outcome) else 0.0)  # sums of squares lose no digits
    needed = min_arm_units(_running_skewness(centered))
    means, squared, known = [], np.zeros(len(units)), np.ones(len(units), bool)
    with np.errstate(invalid="ignore", divide="ignore"):
        for arm in (treated, ~treated):
            count, total = np.cumsum(arm), np.cumsum(np.where(arm, centered, 0.0))
            means.append(total / count)
            spread = np.cumsum(np.where(arm, centered**2, 0.0)) - total * means[-1]
            squared = squared + np.maximum(spread, 0.0) / (count - 1) / count
            known &= count >= needed
    return MeanDifference(
        means[0] - means[1], np.sqrt(np.where(known, squared, np.nan)), np.asarray(np.cumsum(treated)), units
    )


def min_arm_units(skewness: float | Array) -> Array:
    """Return how many units each arm needs before the central limit theorem is trusted, ``[...]``.

    For outcomes of 0 and 1 of which few are 1, this means about 25 of them in each arm.

    Args:
        skewness: skewness of the outcomes, ``[...]``; infinite if unknown.
    """
    return np.maximum(MIN_ARM, SKEW_FACTOR * np.square(skewness))


def _running_skewness(centered: Array) -> Array:
    """Return the skewness of the outcomes up to each unit, ``[n]``; infinite as long as they are equal."""
    n = np.arange(1, len(centered) + 1)
    first, second, third = (np.cumsum(centered**power) / n for power in (1, 2, 3))
    variance = second - first**2
    known = variance > 1e-12 * np.maximum(second, np.finfo(np.float64).tiny)
    moment = third - 3 * first * second + 2 * first**3
    return np.where(known, moment / np.where(known, variance, 1.0) ** 1.5, np.inf)


def bounded_difference(
    treated: Array, outcome: Array, share: float, low: float, high: float, error: float = 0.025
) -> tuple[Array, Array]:
    """Return a confidence sequence of the difference of two means for outcomes of a declared range, ``[n]``, ``[n]``.

    It holds for every number of units and any distribution in the range: the empirical-Bernstein confidence sequence
    with predictable bets of Waudby-Smith and Ramdas 2020 (arXiv:2010.09686, theorem 2), for the terms
    ``(y - c) / share`` of treated and ``-(y - c) / (1 - share)`` of other units, whose mean is the difference. ``c`` is
    the mean outcome of the units before. It is wider than an asymptotic confidence sequence.

    Args:
        treated: whether each unit is in the treated arm, bool ``[n]``, in the order in which units came.
        outcome: outcome of each unit, ``[n]``.
        share: probability of the treated arm, above 0 and below 1.
        low, high: smallest and largest possible outcome, not the observed ones.
        error: error level of each side.

    Raises:
        DataError: if an outcome is out of the range.
    """
    check("share", share, float, above=0, below=1)
    check("error", error, float, above=0, below=0.5)
    check("high", high, float, above=low)
    y = (np.asarray(outcome, np.float64) - low) / (high - low)
    if ((y < 0) | (y > 1)).any():
        row = int(((y < 0) | (y > 1)).argmax())
        raise DataError(
            f"the outcome of unit {row + 1} is {np.asarray(outcome)[row]:.6g}; it must be from {low:g} to {high:g}, "
            "the declared range: give the smallest and the largest possible outcome"
        )
    count, reach = np.arange(1, len(y) + 1), max(1 / share, 1 / (1 - share))
    before = (0.5 + np.cumsum(y) - y) / count
    terms = np.where(np.asarray(treated, bool), 1 / share, -1 / (1 - share)) * (y - before)
    x = (terms / reach + 1) / 2  # from 0 to 1
    mean = (0.5 + np.cumsum(x)) / (count + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / (count + 1)
    mean_before, variance_before = np.append(0.5, mean[:-1]), np.append(0.25, variance[:-1])
    log = math.log(1 / error)
    bet = np.minimum(np.sqrt(2 * log / (variance_before * count * np.log1p(count))), 0.5)
    cost = 4 * (x - mean_before) ** 2 * (-np.log1p(-bet) - bet) / 4
    total = np.cumsum(bet)
    center, half = np.cumsum(bet * x) / total, (log + np.cumsum(cost)) / total
    scale = 2 * reach * (high - low)
    return scale * (center - half - 0.5), scale * (center + half - 0.5)


@dataclass(frozen=True)
class AllocationChange:
    """A change of the allocation of a test.

    Attributes:
        first: index of the first unit after the most likely time of the change.
        share: share of treated units from there on.
        evidence: how much more likely the arms are with a change than without, at least ``1 / error``.
    """

    first: int
    share: float
    evidence: float


def allocation_change(treated: Array, share: float, error: float = 0.001) -> AllocationChange | None:
    """Return the change of the allocation of a test; ``None`` if there is no evidence of one.

    A sequential test of the share of treated units (sample-ratio mismatch): the Bayes factor of a share that is uniform
    from 0 to 1 against the planned share is a martingale under the planned share (Lindon and Malek 2020,
    arXiv:2011.03567). Here it is averaged over the time at which the allocation may have changed. If the allocation is
    the planned one, the test reports a change at any time with a probability of at most ``error``.

    Args:
        treated: whether each unit is in the treated arm, bool ``[n]``, in the order in which units came.
        share: planned share of the treated arm, above 0 and below 1.
        error: probability of a false report, above 0 and below 1.
    """
    check("share", share, float, above=0, below=1)
    check("error", error, float, above=0, below=1)
    n, total = len(treated), np.append(0, np.cumsum(np.asarray(treated, bool)))
    starts = _possible_changes(n)
    ends = np.append(starts[1:], n)
    log_factorial = np.append(0.0, np.cumsum(np.log(np.arange(1, n + 2))))
    prior = 1 / ((np.arange(len(starts)) + 1.0) * (np.arange(len(starts)) + 2.0))
    most = 0.0
    for number, end in enumerate(ends.tolist()):  # one value for each possible change, not for each unit
        started = starts[: number + 1]
        ones = total[end] - total[started]
        zeros = end - started - ones
        log_uniform = log_factorial[ones] + log_factorial[zeros] - log_factorial[ones + zeros + 1]
        log_planned = ones * math.log(share) + zeros * math.log1p(-share)
        later = 1.0 / (number + 2)  # weight of changes still to come, whose factor is 1 so far
        most = max(
            most, float((prior[: number + 1] * np.exp(np.minimum(log_uniform - log_planned, 600))).sum() + later)
        )
    if most < 1 / error:
        return None
    first = _most_likely_change(total, share)
    after = total[n] - total[first]
    return AllocationChange(first, float(after / (n - first)), most)


def _possible_changes(n: int) -> Array:
    """Return the times of a change that are considered, ``[m]``: 0, 64, 128, … and sparser later.

    They do not depend on ``n``, except that none is beyond it: otherwise the error would depend on when a test is read.
    """
    times, step, at = [0], _BLOCK, _BLOCK
    while at < n:
        times.append(at)
        if at >= 100 * step:
            step *= 10
        at = (at // step + 1) * step
    return np.array(times)


def _most_likely_change(total: Array, share: float) -> int:
    """Return the time from which on another share makes the arms most likely."""
    n = len(total) - 1
    at = np.arange(n)
    ones = total[n] - total[at]
    count = n - at
    with np.errstate(divide="ignore", invalid="ignore"):
        p = ones / count
        gain = np.where(ones > 0, ones * np.log(p / share), 0.0)
        gain += np.where(ones < count, (count - ones) * np.log((1 - p) / (1 - share)), 0.0)
    return 0 if gain[0] > gain.max() - 3 else int(gain.argmax())  # no change, but another share, is almost as likely
