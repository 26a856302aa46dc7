"""Group-sequential bounds: published tables, and what they mean for tests of known effects."""

from __future__ import annotations

import numpy as np
import pytest

from birl.errors import ConfigError
from birl.ope import crossing_probabilities, required_drift, spending_bounds, spent_error
from tests.ope import planted

FIFTHS = np.arange(1, 6) / 5


@pytest.mark.parametrize(
    ("kind", "fractions", "published"),
    [  # Reboussin et al. 2000, as the programs ld98 and ldbounds print them for two-sided levels of 0.05
        ("obrien_fleming", FIFTHS, [4.8769, 3.3569, 2.6803, 2.2898, 2.0310]),
        ("pocock", FIFTHS, [2.4380, 2.4268, 2.4101, 2.3966, 2.3859]),
        ("obrien_fleming", [0.1, 0.33, 1.0], [6.9913, 3.7308, 1.9605]),
    ],
)
def test_spending_bounds_are_the_published_ones(kind: str, fractions: list[float], published: list[float]) -> None:
    assert spending_bounds(fractions, 0.025, kind) == pytest.approx(published, abs=3e-4)


@pytest.mark.parametrize(
    ("looks", "pocock", "obrien_fleming"),  # Jennison and Turnbull 2000, tables 2.1 and 2.3, alpha 0.05
    [(2, 2.178, 1.977), (5, 2.413, 2.040), (10, 2.555, 2.087)],
)
def test_published_bounds_have_their_level(looks: int, pocock: float, obrien_fleming: float) -> None:
    t = np.arange(1, looks + 1) / looks
    for bounds in (np.full(looks, pocock), obrien_fleming / np.sqrt(t)):
        up, down = crossing_probabilities(t, bounds, -bounds, [0.0])
        assert up.sum() + down.sum() == pytest.approx(0.05, abs=2e-4)
        assert up == pytest.approx(down, abs=1e-9)


@pytest.mark.parametrize(("bounds", "inflation"), [(np.full(5, 2.413), 1.228), (2.040 / np.sqrt(FIFTHS), 1.028)])
def test_required_samples_are_the_published_ones(bounds: np.ndarray, inflation: float) -> None:
    """Jennison and Turnbull 2000, tables 2.2 and 2.4: ratio to the fixed sample, five looks, power 0.8."""
    assert (required_drift(FIFTHS, bounds, 0.8) / (1.959964 + 0.841621)) ** 2 == pytest.approx(inflation, abs=2e-3)


def test_probabilities_are_those_of_simulated_paths() -> None:
    rng, n = np.random.default_rng(0), 40_000
    t, upper, lower = np.array([0.2, 0.5, 1.0]), np.array([2.4, 2.2, 2.0]), np.array([-1.5, -1.0, 0.5])
    steps = rng.normal(size=(n, 3)) * np.sqrt(np.diff(t, prepend=0)) + 1.2 * np.diff(t, prepend=0)
    z, running = steps.cumsum(1) / np.sqrt(t), np.ones(n, bool)
    up, down = crossing_probabilities(t, upper, lower, [0.0, 1.2])
    for k in range(3):
        for share, crossed in ((up, z[:, k] >= upper[k]), (down, z[:, k] <= lower[k])):
            assert (running & crossed).mean() == pytest.approx(share[1, k], abs=4 * 0.5 / n**0.5)
        running &= (z[:, k] < upper[k]) & (z[:, k] > lower[k])


def test_all_error_is_spent_at_the_end() -> None:
    for kind in ("obrien_fleming", "pocock"):
        assert spent_error(kind, 1.0, 0.025) == pytest.approx(0.025)
        assert (np.diff(spent_error(kind, np.linspace(0.01, 1, 20), 0.1)) > 0).all()
        up, _ = crossing_probabilities(FIFTHS, spending_bounds(FIFTHS, 0.1, kind), None, [0.0])
        assert up.sum() == pytest.approx(0.1, abs=1e-6)
        assert up.cumsum() == pytest.approx(spent_error(kind, FIFTHS, 0.1), abs=1e-6)


def test_looks_that_do_not_rise_are_refused() -> None:
    for wrong in ([0.5, 0.5, 1.0], [], [0.5, 1.5], [0.0, 1.0]):
        with pytest.raises(ConfigError, match="they must rise from above 0 to at most 1: give the share"):
            spending_bounds(wrong)
    with pytest.raises(ConfigError, match=r"kind is 'linear'; it must be one of 'obrien_fleming', 'pocock'"):
        spending_bounds([1.0], kind="linear")


def test_halved_bounds_would_not_keep_the_level() -> None:
    """A control of the simulated error below: bounds half as wide cross far too often."""
    up, _ = crossing_probabilities(FIFTHS, spending_bounds(FIFTHS) / 2, None, [0.0])
    assert up.sum() > 0.1
    assert planted.too_few(900, 1000, 0.975)
