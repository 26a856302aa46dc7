"""Group-sequential bounds: a test is read at a few planned looks and keeps its error level.

A test statistic at the share t of the planned sample is ``Z_t = B_t / sqrt(t)``, where ``B`` is a Brownian motion with
a drift. Probabilities of crossing bounds at several looks follow by integrating its density from look to look
(Armitage, McPherson and Rowe 1969, Journal of the Royal Statistical Society A 132; Jennison and Turnbull 2000, "Group
Sequential Methods", chapter 19). A spending function says how much of the error level is spent up to each look (Lan and
DeMets 1983, Biometrika 70).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np

from birl.checks import check
from birl.errors import ConfigError
from birl.types import Array

SPENDING: Final = ("obrien_fleming", "pocock")
"""Spending functions of `spent_error`."""
FARTHEST: Final = 8.0
"""Bounds are at most so many standard errors from 0; beyond, normal probabilities do not matter."""
_NODES: Final = 200
_HALVINGS: Final = 60
_LARGEST_DRIFT: Final = 12.0


def spent_error(kind: str, fraction: float | Array, error: float) -> Array:
    """Return the one-sided error that is spent up to a share of the planned sample (Lan and DeMets 1983).

    ``2 (1 - Phi(z / sqrt(t)))`` with the quantile ``z`` of ``1 - error / 2`` spends little early, like O'Brien and
    Fleming's bounds; ``error log(1 + (e - 1) t)`` spends evenly, like Pocock's.

    Args:
        kind: one of `SPENDING`.
        fraction: shares of the planned sample, above 0 and at most 1, ``[...]``.
        error: one-sided error level, above 0 and below 0.5.
    """
    check("kind", kind, str, choices=SPENDING)
    t = np.asarray(fraction, np.float64)
    if kind == "pocock":
        return np.asarray(error * np.log1p((math.e - 1) * t))
    return 2 * normal_tail(NormalDist().inv_cdf(1 - error / 2) / np.sqrt(t))


def normal_tail(x: Array) -> Array:
    """Return the probability that a standard normal variable is greater than ``x``, ``[...]``."""
    scaled = np.asarray(x, np.float64) / math.sqrt(2)
    return np.array([0.5 * math.erfc(value) for value in scaled.ravel()]).reshape(scaled.shape)


def check_fractions(fractions: Sequence[float] | Array) -> Array:
    """Return shares of the planned sample as an array ``[K]``.

    Raises:
        ConfigError: unless they rise, from above 0 to at most 1.
    """
    t = np.asarray(fractions, np.float64)
    if t.ndim != 1 or not t.size or not (np.diff(t, prepend=0) > 0).all() or t[-1] > 1 + 1e-9:
        raise ConfigError(
            f"fractions is {np.array2string(t, threshold=6)}; they must rise from above 0 to at most 1: give the share "
            "of the planned sample at each look"
        )
    return t


@lru_cache(maxsize=4)
def _nodes(count: int) -> tuple[Array, Array]:
    points, weights = np.polynomial.legendre.leggauss(count)
    return np.asarray(points), np.asarray(weights)


@dataclass(frozen=True, eq=False)
class _Density:
    """The density of B without drift, on the paths that have crossed no bound, at nodes of an integral."""

    time: float
    x: Array
    weight: Array  # density times weight of the node

    def exits(self, time: float, bound: float, drifts: Array, above: bool) -> Array:
        """Return the probability of being beyond ``bound`` (a value of B) at a later time, for each drift, ``[D]``."""
        step, drift = time - self.time, drifts[:, None]
        shifted = self.weight * np.exp(drift * self.x - drift**2 * self.time / 2)
        distance = (bound - self.x - drift * step) / math.sqrt(step)
        return np.asarray((shifted * normal_tail(distance if above else -distance)).sum(-1))

    def moved(self, time: float, low: float, high: float) -> _Density:
        """Return the density at a later time between two bounds."""
        points, weights = _nodes(_NODES)
        half, step = (high - low) / 2, time - self.time
        x = low + half * (points + 1)
        density = np.exp(-((x[:, None] - self.x) ** 2) / (2 * step)) @ self.weight / math.sqrt(2 * math.pi * step)
        return _Density(time, x, half * weights * density)


_START: Final = _Density(0.0, np.zeros(1), np.ones(1))


def _farthest(time: float) -> float:
    """Return a value of B that no path of interest exceeds: 8 standard errors with the largest drift."""
    return FARTHEST * math.sqrt(time) + _LARGEST_DRIFT * time


def spending_bounds(fractions: Sequence[float] | Array, error: float = 0.025, kind: str = "obrien_fleming") -> Array:
    """Return the bounds of Z at each look, ``[K]``: under no effect, ``Z >= bound`` at some look with ``error``.

    Args:
        fractions: shares of the planned sample at the looks, rising to at most 1.
        error: one-sided error level, above 0 and below 0.5.
        kind: spending function, one of `SPENDING`.
    """
    t = check_fractions(fractions)
    check("error", error, float, above=0, below=0.5)
    new = np.diff(spent_error(kind, np.minimum(t, 1.0), error), prepend=0.0)
    bounds, density, none = np.full(len(t), FARTHEST), _START, np.zeros(1)
    for k, time in enumerate(t.tolist()):
        low, high = -FARTHEST, FARTHEST
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            too_likely = density.exits(time, middle * math.sqrt(time), none, above=True)[0] > new[k]
            low, high = (middle, high) if too_likely else (low, middle)
        bounds[k] = high
        density = density.moved(time, -_farthest(time), high * math.sqrt(time))
    return bounds


def crossing_probabilities(
    fractions: Sequence[float] | Array, upper: Array, lower: Array | None, drifts: Sequence[float] | Array
) -> tuple[Array, Array]:
    """Return the probability that Z first crosses the upper and the lower bound at each look, two arrays ``[D, K]``.

    Args:
        fractions: shares of the planned sample at the looks, ``[K]``.
        upper: upper bounds of Z, ``[K]``.
        lower: lower bounds of Z, ``[K]``; ``None`` for none.
        drifts: means of Z at the planned sample, ``[D]``, from -12 to 12.
    """
    t, drift = check_fractions(fractions), np.asarray(drifts, np.float64)
    up, down, density = np.zeros((len(drift), len(t))), np.zeros((len(drift), len(t))), _START
    for k, time in enumerate(t.tolist()):
        root, far = math.sqrt(time), _farthest(time)
        high, low = min(float(upper[k]) * root, far), -far if lower is None else max(float(lower[k]) * root, -far)
        up[:, k] = density.exits(time, high, drift, above=True)
        if lower is not None:
            down[:, k] = density.exits(time, low, drift, above=False)
        density = density.moved(time, low, high)
    return up, down


def required_drift(fractions: Sequence[float] | Array, upper: Array, power: float) -> float:
    """Return the mean of Z at the planned sample with which Z crosses the upper bounds with a probability ``power``."""
    check("power", power, float, above=0, below=1)
    low, high = 0.0, _LARGEST_DRIFT
    for _ in range(5):  # each time, 32 drifts at once
        tried = np.linspace(low, high, 34)
        reached = crossing_probabilities(fractions, upper, None, tried)[0].sum(-1) >= power
        first = max(int(reached.argmax()), 1)
        low, high = float(tried[first - 1]), float(tried[first])
    return high
