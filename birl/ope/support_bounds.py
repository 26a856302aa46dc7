"""Bounds of gains where logs do not support all actions of a policy.

What an action earns that the logging policy never took is not in the logs. Only the range of rewards bounds it: the
gain is then known up to an interval, however many episodes there are (Manski 1990, "Nonparametric bounds on treatment
effects", American Economic Review 80). In episodes of several steps, everything after the first such action is unknown.

A policy is followed up to its first unsupported action. With ``l_t`` for the probability of an unsupported action at
step t, and ``w_{t-1}`` for the weight of the supported steps before, ``gamma^t w_{t-1} l_t`` is the discounted
probability that the first one is at step t. Its mean times the lowest and the highest return from there on, plus the
value of the supported steps, bounds the value of the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from birl.errors import ConfigError, DataError
from birl.ope.estimators import Estimate, doubly_robust, per_decision, weight_before
from birl.ope.importance_weights import Trajectories
from birl.ope.intervals import t_interval
from birl.types import Array

_CLEAR = 0.9
"""Smallest F1 score with which a threshold describes a region."""
_MOST_COLUMNS = 200
_FAR = 1e12
"""Returns beyond this size count as infinite."""


@dataclass(frozen=True)
class RewardRange:
    """The lowest and the highest reward of a step.

    Attributes:
        lower, upper: ends of the range; ``None`` if unknown.

    Raises:
        ConfigError: if the ends are not numbers, or in the wrong order.
    """

    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        for end in (self.lower, self.upper):
            if end is not None and not (isinstance(end, int | float | np.number) and np.isfinite(end)):
                raise ConfigError(
                    f"an end of reward_range is {end!r:.40}; it must be a finite number, or None if unknown"
                )
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise ConfigError(f"reward_range is ({self.lower}, {self.upper}): give the lower end first")

    def check_rewards(self, reward: Array, mask: Array) -> None:
        """Raise `DataError` if a logged reward ``[n, T]`` is outside."""
        low = -np.inf if self.lower is None else self.lower
        high = np.inf if self.upper is None else self.upper
        outside = mask & ((reward < low) | (reward > high))
        if outside.any():
            episode, step = (int(k) for k in np.argwhere(outside)[0])
            raise DataError(
                f"the reward of step {step} in episode {episode} is {reward[episode, step]:g}, outside reward_range, "
                f"which is from {low:g} to {high:g}: give the lowest and the highest reward that are possible"
            )

    def returns(self, gamma: float, horizon: int) -> tuple[Array, Array]:
        """Return the lowest and the highest discounted return from each step on, ``[T]``.

        An episode may end after any step. Ends that are unknown give infinite returns.
        """
        steps = np.cumsum(gamma ** np.arange(horizon, dtype=np.float64))[::-1]
        low = -np.inf if self.lower is None else self.lower
        high = np.inf if self.upper is None else self.upper
        return low * (steps if low < 0 else np.ones(horizon)), high * (steps if high > 0 else np.ones(horizon))


@dataclass(frozen=True, eq=False)
class Support:
    """Which actions of a policy logs do not support.

    Attributes:
        lost: probability of an unsupported action at each step, ``[n, T]``; 0 after the end of an episode.
        v: mean of the model's values over the supported actions, ``[n, T]``; ``None`` without a model.
        regions: where actions are not supported, as texts.
    """

    lost: Array
    v: Array | None
    regions: tuple[str, ...] = ()

    def first_lost(self, trajectories: Trajectories) -> Array:
        """Return ``gamma^t w_{t-1} l_t``, ``[n, T]``."""
        return np.asarray(trajectories.discount * weight_before(trajectories.weight) * self.lost)


@dataclass(frozen=True, eq=False)
class GainBounds:
    """The gain of a policy, which is known up to the returns after its unsupported actions.

    Attributes:
        supported: terms of the gain with a return of 0 after unsupported actions, ``[n]``.
        lost: discounted probability that the policy's first unsupported action is at each step, ``[n, T]``.
        other_lost: the same for the policy to compare with, ``[n, T]``; ``None`` for the logs.
        low, high: lowest and highest return from each step on, ``[T]``; infinite if unknown.
        regions: where actions are not supported, as texts.
    """

    supported: Array
    lost: Array
    other_lost: Array | None
    low: Array
    high: Array
    regions: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether the range of rewards bounds the gain on both sides."""
        return None not in self.ends

    @cached_property
    def ends(self) -> tuple[Estimate | None, Estimate | None]:
        """The lowest and the highest gain that the logs allow; ``None`` without a known range of rewards."""
        return self._end(self.low, self.high), self._end(self.high, self.low)

    def _end(self, own: Array, other: Array) -> Estimate | None:
        terms, known = self.supported, True
        for lost, rest, sign in ((self.lost, own, 1), (self.other_lost, other, -1)):
            if lost is None or not lost.any():
                continue
            known &= bool(np.isfinite(rest).all())
            terms = terms + sign * (lost * np.where(np.isfinite(rest), rest, 0)).sum(-1)
        return Estimate(terms) if known else None

    def interval(self, confidence: float, clusters: Array | None = None) -> tuple[float | None, float | None]:
        """Return an interval that covers the whole range of gains; see `ends`."""
        low, high = self.ends
        return (
            None if low is None else float(t_interval(low, confidence, clusters).lower),
            None if high is None else float(t_interval(high, confidence, clusters).upper),
        )

    def as_dict(self) -> dict[str, object]:
        """Return JSON values: regions, the mean gain without unsupported actions, and the lowest and highest gain."""
        low, high = (None if end is None else float(end.value) for end in self.ends)
        gain = float(self.supported.mean())
        return {"regions": list(self.regions), "supported_gain": gain, "lowest_gain": low, "highest_gain": high}

    def times(self, min_gain: float, confidence: float, clusters: Array | None = None) -> float | None:
        """Return how many times as many episodes would probably decide; ``None`` if no number would.

        The range of gains does not shrink with the number of episodes, but the intervals of its ends do.
        """
        for end, sign in zip(self.ends, (1, -1), strict=True):
            if end is not None and sign * (float(end.value) - min_gain) > 0:
                interval = t_interval(end, confidence, clusters)
                half = float(interval.upper - interval.lower) / 2
                return (half / abs(float(end.value) - min_gain)) ** 2
        return None

    def turning_return(self, min_gain: float, confidence: float, clusters: Array | None = None) -> float | None:
        """Return the mean return after unsupported actions down to which the gain exceeds ``min_gain``.

        ``None`` if the gain does not exceed it for any return, or if the policy's own actions are all supported.
        """
        lost = self.lost.sum(-1)
        if not lost.any():
            return None

        def lower(rest: Array) -> Array:
            return np.asarray(t_interval(Estimate(self.supported + rest[:, None] * lost), confidence, clusters).lower)

        # the lower end is concave in the return: find its maximum, then the place to the left of it
        scale = max(1.0, float(np.abs(self.supported).max()))
        rests = np.concatenate([-np.geomspace(1e-3, 1e4, 60)[::-1], [0.0], np.geomspace(1e-3, 1e4, 60)]) * scale
        above = lower(rests) > min_gain
        if not above.any():
            return None
        first = int(above.argmax())
        left, right = (-_FAR if first == 0 else rests[first - 1]), rests[first]
        for _ in range(60):
            middle = (left + right) / 2
            left, right = (left, middle) if lower(np.array([middle]))[0] > min_gain else (middle, right)
        return float(right)


def gain_bounds(
    trajectories: Trajectories,
    support: Support | None,
    baseline: Estimate,
    reward_range: RewardRange,
    *,
    robust: bool,
    versus: tuple[Trajectories, Support | None] | None = None,
    baseline_share: float = 1.0,
) -> GainBounds | None:
    """Return the bounds of a gain; ``None`` if all actions are supported.

    Args:
        trajectories: logged episodes with the ratios and values of the policy. Unsupported actions have the ratio 0.
        support: what the logs do not support.
        baseline: what the logs earned.
        reward_range: range of the rewards of a step.
        robust: whether the value of the supported steps is `doubly_robust`, or else `per_decision`.
        versus: the policy to compare with; ``None`` for the logs.
        baseline_share: share of the baseline that the gain subtracts.
    """
    unsupported = [each for each in (support, versus[1] if versus else None) if each is not None and each.lost.any()]
    if not unsupported:
        return None
    horizon = trajectories.mask.shape[-1]
    nothing = np.zeros(trajectories.mask.shape)
    terms, lost = _supported_terms(trajectories, support, robust)
    other_lost = None
    if versus is None:
        terms = terms - baseline_share * baseline.terms
    else:
        other, other_lost = _supported_terms(*versus, robust)
        terms = terms - baseline_share * other
        other_lost = nothing if other_lost is None else baseline_share * other_lost
    low, high = reward_range.returns(trajectories.gamma, horizon)
    regions = tuple(dict.fromkeys(text for each in unsupported for text in each.regions))
    return GainBounds(terms, nothing if lost is None else lost, other_lost, low, high, regions)


def _supported_terms(trajectories: Trajectories, support: Support | None, robust: bool) -> tuple[Array, Array | None]:
    """Return the terms of the value of the supported steps, ``[n]``, and what is lost, ``[n, T]``."""
    if robust and trajectories.v is not None:
        v = trajectories.v if support is None or support.v is None else support.v
        terms = doubly_robust(replace(trajectories, v=v)).terms
    else:
        terms = per_decision(trajectories).terms
    return terms, None if support is None else support.first_lost(trajectories)


def describe_region(inside: Array, columns: Array, names: Sequence[str]) -> str | None:
    """Describe the rows of a table that are inside a region by one column: ``"where age < 31"``.

    Args:
        inside: which rows are inside, bool ``[N]``.
        columns: the table, ``[N, D]``.
        names: names of its columns.

    Returns:
        The condition with the largest F1 score; ``None`` if it describes the region badly, or if nothing is inside.
    """
    total, best, text = int(inside.sum()), _CLEAR, None
    if not total:
        return None
    if total == len(inside):
        return "anywhere"
    for column, name in list(zip(columns.T, names, strict=True))[:_MOST_COLUMNS]:
        order = np.argsort(column, kind="stable")
        value, hits = column[order], inside[order].cumsum()
        cut = np.flatnonzero(value[1:] > value[:-1])  # rows 0 to cut are below the threshold
        if not cut.size:
            continue
        below, count = hits[cut], cut + 1
        for found, size, sign in ((below, count, "<"), (total - below, len(inside) - count, ">")):
            score = 2 * found / (size + total)
            place = int(score.argmax())
            if score[place] > best:
                best = float(score[place])
                threshold = (float(value[cut[place]]) + float(value[cut[place] + 1])) / 2
                text = f"where {name} {sign} {threshold:.4g}"
    return text
