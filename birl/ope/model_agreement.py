"""Whether models agree on a gain that weights cannot show, so that an online test of the policy is worth it.

Over long horizons, products of ratios leave no effective episode, and only models remain: fitted Q evaluation, and
double reinforcement learning, whose ratios of visits do not grow with every step. Their intervals ignore the error of
the linear form, so they never decide. They may still justify a guarded online test, which decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from birl.ope.change_points import GainOverTime
from birl.ope.estimators import Estimate
from birl.ope.importance_weights import Trajectories
from birl.ope.intervals import t_interval
from birl.types import Array

MIN_CARRIED: Final = 50.0
"""Weights check the model over the first steps, as long as so many episodes are effective."""
MIN_WINDOWS: Final = 500.0
"""Weights of the last L steps are used if so many of all steps are effective."""
_LENGTHS: Final = (16, 8, 4, 2, 1)
_CONFIDENCE: Final = 0.99


@dataclass(frozen=True, eq=False)
class ModelChecks:
    """What logs say about a model whose values weights cannot correct over the whole horizon.

    Attributes:
        carried: number of first steps over which weights check the model.
        early_error: whether weights contradict the model there: the 99 % interval of the sum of weighted Bellman errors
            excludes 0.
        memory: whether Bellman errors of consecutive steps are correlated (99 % interval), so that observations are not
            Markov and the model misses a state.
        window: number of last steps whose weights correct the model in ``windowed``.
        windowed: correction of the model's value, for states that last for some steps; see `windowed_correction`.
        first_order: correction for states that last long; see `first_order_correction`.
        over_time: gain by double reinforcement learning over the time of the logs; ``None`` if times are unknown.
    """

    carried: int
    early_error: bool
    memory: bool
    window: int
    windowed: Estimate
    first_order: Estimate
    over_time: GainOverTime | None = None

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with the model, as sentences; empty if nothing was found."""
        faults = (
            (
                self.early_error,
                f"weights contradict the model over the first {self.carried} steps, where they can check it",
            ),
            (
                self.memory,
                "errors of the model in consecutive steps are related: observations do not hold the whole state",
            ),
            (self.carried == 0 or self.window == 0, "weights cannot check the model at any step"),
        )
        return tuple(text for found, text in faults if found)


def check_model(episodes: Trajectories, ess: Array, clusters: Array | None = None) -> ModelChecks:
    """Check a model with the steps and the weights that there are.

    If ``Q`` is right, its Bellman error ``r_t + gamma V(s_{t+1}) - Q(s_t, a_t)`` has the mean 0 given everything up to
    step t, so neither products with weights nor products with the error before have another mean.

    Args:
        episodes: logged episodes of one data set, with ratios and values.
        ess: effective episodes at each step, ``[T]``.
        clusters: the cluster of each episode, ``[n]``.
    """
    assert episodes.q is not None and episodes.v is not None and episodes.log_ratio is not None
    error = _bellman_errors(episodes)
    enough = np.append(ess >= MIN_CARRIED, False)
    carried = int((~enough).argmax())
    early = (episodes.discount * episodes.weight * error)[:, :carried].sum(-1)
    related = (error[:, 1:] * error[:, :-1]).sum(-1)
    window, windowed = windowed_correction(episodes)
    return ModelChecks(
        carried,
        _differs(early, clusters),
        _differs(related, clusters),
        window,
        windowed,
        first_order_correction(episodes),
    )


def windowed_correction(episodes: Trajectories) -> tuple[int, Estimate]:
    """Return the correction of a model's value by weights of the last L steps, for the largest L with enough weight.

    ``sum_t gamma^t rho_{t-L+1} ... rho_t (r_t + gamma V(s_{t+1}) - Q(s_t, a_t))``: the weights of `doubly_robust`
    without the ratios of earlier steps, so that they do not vanish (Guo, Thomas and Brunskill 2017, arXiv:1703.03453,
    leave these out of importance sampling). If a state that observations lack lasts for L steps, the correction shows
    it.

    Args:
        episodes: logged episodes of one data set, with ratios and values.

    Returns:
        L, 1 to 16, and terms for each episode; L is 0, and the terms are 0, if no length has `MIN_WINDOWS` effective
        steps.
    """
    assert episodes.log_ratio is not None
    error, steps = _bellman_errors(episodes), episodes.mask.shape[1]
    total = np.cumsum(np.where(episodes.mask, episodes.log_ratio, 0.0), -1)
    for length in _LENGTHS:
        before = np.concatenate([np.zeros((len(total), min(length, steps))), total[:, :-length]], -1)
        with np.errstate(over="ignore", invalid="ignore"):
            weight = np.where(episodes.mask, np.exp(total - before), 0.0)
            effective = weight.sum() ** 2 / (weight**2).sum()
        if effective >= MIN_WINDOWS:
            return length, Estimate((episodes.discount * weight * error).sum(-1))
    return 0, Estimate(np.zeros(len(total)))


def first_order_correction(episodes: Trajectories) -> Estimate:
    """Return the correction of a model's value by weights to the first order in the ratios of earlier steps.

    ``sum_t gamma^t rho_t (1 + sum_{s < t} (rho_s - 1)) (r_t + gamma V(s_{t+1}) - Q(s_t, a_t))``. The variance of these
    weights grows with t, not with powers of t. If actions act on later rewards through a state that observations lack,
    the correction shows the sum of what each of them does by itself, however much later.

    Args:
        episodes: logged episodes of one data set, with ratios and values.
    """
    assert episodes.log_ratio is not None
    ratio = np.where(episodes.mask, np.exp(np.minimum(episodes.log_ratio, 300.0)), 1.0)
    before = 1 + np.cumsum(ratio - 1, -1) - (ratio - 1)
    return Estimate((episodes.discount * ratio * before * _bellman_errors(episodes)).sum(-1))


def _bellman_errors(episodes: Trajectories) -> Array:
    """Return ``r_t + gamma V(s_{t+1}) - Q(s_t, a_t)``, 0 after the end, ``[n, T]``."""
    assert episodes.q is not None and episodes.v is not None
    v = np.where(episodes.mask, episodes.v, 0.0)
    after = np.concatenate([v[:, 1:], np.zeros_like(v[:, :1])], -1)
    return np.where(episodes.mask, episodes.reward + episodes.gamma * after - episodes.q, 0.0)


def _differs(terms: Array, clusters: Array | None) -> bool:
    """Return whether the 99 % interval of a mean excludes 0."""
    if not np.ptp(terms):
        return False
    return not bool(t_interval(Estimate(terms), _CONFIDENCE, clusters).holds(0.0))


@dataclass(frozen=True)
class ModelGain:
    """A gain on which models agree.

    Attributes:
        linear, marginal: gain by fitted Q evaluation with a linear model, and by double reinforcement learning.
        windowed, first_order: the former with the corrections of `ModelChecks`.
        lower, upper: the smallest lower and the largest upper end of the intervals of all four, where that of
            ``linear`` is as wide as that of ``marginal``, widened by the difference of these two.
    """

    linear: float
    marginal: float
    windowed: float
    first_order: float
    lower: float
    upper: float


def model_gain(
    linear: Estimate, marginal: Estimate, checks: ModelChecks, confidence: float, clusters: Array | None = None
) -> ModelGain:
    """Return the gain on which estimates of the same episodes agree.

    Args:
        linear: gain by fitted Q evaluation, `birl.ope.direct_method`.
        marginal: gain by `birl.ope.double_reinforcement_learning`.
        checks: corrections of the former.
        confidence: two-sided confidence of the intervals.
        clusters: the cluster of each episode, ``[n]``.
    """
    corrected = (Estimate(linear.terms + each.terms) for each in (checks.windowed, checks.first_order))
    intervals = [t_interval(each, confidence, clusters) for each in (marginal, *corrected)]
    values = [float(linear.value), *(float(each.lower + each.upper) / 2 for each in intervals)]
    halves = [float(each.upper - each.lower) / 2 for each in intervals]
    ends = list(zip(values, [halves[0], *halves], strict=True))
    difference = abs(values[0] - values[1])
    lower, upper = min(value - half for value, half in ends), max(value + half for value, half in ends)
    return ModelGain(values[0], values[1], values[2], values[3], lower - difference, upper + difference)
