"""Sums, counts and sketches that are updated with batches of some thousand steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from birl.dataset.row_sketch import hash_rows
from birl.spaces import Discrete
from birl.types import Array

BINS_PER_OCTAVE: Final = 8
"""Bins of time gaps in each octave."""
_SKETCH: Final = 2**16


@dataclass(frozen=True, eq=False)
class LoggedSteps:
    """Steps ``[n]`` in the order of their episodes.

    Attributes:
        observation: observations as numbers, float32 ``[n, D]``.
        action: actions as stored; in a sample, integers ``[n, C]`` of C discrete actions, otherwise float64 ``[n, A]``.
        reward: rewards, float64 ``[n]``.
        episode: index of the episode, ``[n]``.
        step: index of the step in its episode, ``[n]``.
        extra: other columns by name.
        mask: which actions were possible, ``[n, A]``, or ``None``.
        raw: leaves of the observations as stored.
    """

    observation: Array
    action: Array
    reward: Array
    episode: Array
    step: Array
    extra: Mapping[str, Array]
    mask: Array | None
    raw: Sequence[Array] = ()

    @property
    def followed(self) -> Array:
        """Indices of the steps whose next step is also among these, at the next index."""
        return np.flatnonzero(self.episode[1:] == self.episode[:-1])


class ColumnMoments:
    """Moments and ranges of the columns of observations.

    Moments are computed around the first row, so that squares of large numbers keep their digits.
    """

    def __init__(self, width: int) -> None:
        self._first: Array | None = None
        self._sum, self._square, self._not_finite = np.zeros(width), np.zeros(width), np.zeros(width, np.int64)
        self._low, self._high = np.full(width, np.inf), np.full(width, -np.inf)

    def add(self, x: Array) -> None:
        """Add rows ``[n, D]``."""
        finite = np.isfinite(x)
        if self._first is None:
            self._first = np.where(finite[0], x[0], 0).astype(np.float64)
        centered = np.where(finite, x - self._first, 0.0)
        self._sum, self._square = self._sum + centered.sum(0), self._square + (centered**2).sum(0)
        self._not_finite = self._not_finite + (~finite).sum(0)
        self._low = np.minimum(self._low, np.where(finite, x, np.inf).min(0))
        self._high = np.maximum(self._high, np.where(finite, x, -np.inf).max(0))

    def summary(self, total: int) -> dict[str, Array]:
        """Return statistics of each column of ``total`` rows, ``[D]`` by name."""
        n = np.maximum(total - self._not_finite, 1)
        mean = self._sum / n
        std = np.sqrt(np.maximum(self._square / n - mean**2, 0))
        first = np.zeros(len(mean)) if self._first is None else self._first
        return {
            "mean": first + mean,
            "std": std,
            "low": self._low,
            "high": self._high,
            "not_finite": self._not_finite,
        }


class RewardMoments:
    """Returns of episodes, and moments of rewards.

    Args:
        length: lengths of the episodes, ``[E]``.
        gamma: discount.
    """

    def __init__(self, length: Array, gamma: float) -> None:
        self._length, self._gamma = length, gamma
        self.by_episode = {name: np.zeros(len(length)) for name in ("return", "discounted")}
        self.zeros = 0
        self._low, self._high = np.inf, -np.inf
        self._sum = self._square = self._absolute = self._last = 0.0

    def add(self, steps: LoggedSteps) -> None:
        """Add steps."""
        episode, reward, absolute = steps.episode, steps.reward, np.abs(steps.reward)
        index, episodes = episode - episode[0], slice(episode[0], episode[-1] + 1)
        self.by_episode["return"][episodes] += np.bincount(index, reward)
        self.by_episode["discounted"][episodes] += np.bincount(index, reward * self._gamma**steps.step)
        self._sum += float(reward.sum())
        self._square += float((reward**2).sum())
        self._absolute += float(absolute.sum())
        self._last += float(absolute[steps.step == self._length[episode] - 1].sum())
        self._low, self._high = min(self._low, float(reward.min())), max(self._high, float(reward.max()))
        self.zeros += int((reward == 0).sum())

    def summary(self, total: int) -> dict[str, float]:
        """Return statistics of ``total`` rewards by name."""
        mean = self._sum / total
        std = math.sqrt(max(self._square / total - mean**2, 0.0))
        last = self._last / self._absolute if self._absolute else 0.0
        return {"mean": mean, "std": std, "low": self._low, "high": self._high, "last": last}


class Duplicates:
    """Repeated steps: digests of each episode, steps that repeat the previous one, and counts of unique steps.

    ``digest`` is of all that is stored of an episode, ``content`` of observations, actions and rewards only: copies may
    have other ids, times or propensities. ``log_propensity`` is the logarithm of the probability of all actions of an
    episode, if propensities are logged.

    Args:
        episodes: number of episodes.
    """

    def __init__(self, episodes: int) -> None:
        self.digest, self.content = np.zeros(episodes, np.uint64), np.zeros(episodes, np.uint64)
        self.log_propensity = np.zeros(episodes)
        self.repeated = 0
        self._sketch = {name: np.zeros(0, np.uint64) for name in ("observations", "pairs")}
        self._previous = (-1, np.uint64(0))  # episode and hash of the previous step

    def add(self, steps: LoggedSteps) -> None:
        """Add steps."""
        state = hash_rows(steps.raw)
        pair = hash_rows([state, steps.action])
        step = hash_rows([pair, steps.reward])
        begins = np.flatnonzero(np.append(True, np.diff(steps.episode) != 0))
        episodes = steps.episode[begins]
        with np.errstate(over="ignore"):
            for digest, columns in ((self.digest, [*steps.extra.values()]), (self.content, [])):
                digest[episodes] += np.add.reduceat(hash_rows([step, *columns, steps.step]), begins)
        if (logged := steps.extra.get("extra.log_propensity")) is not None:
            self.log_propensity[episodes] += np.add.reduceat(logged.reshape(-1).astype(np.float64), begins)
        self._sketch["observations"] = _smallest(self._sketch["observations"], state)
        self._sketch["pairs"] = _smallest(self._sketch["pairs"], pair)
        same = np.append(self._previous[0], steps.episode[:-1]) == steps.episode
        self.repeated += int((same & (np.append(self._previous[1], step[:-1]) == step)).sum())
        self._previous = (int(steps.episode[-1]), step[-1])

    def unique(self) -> dict[str, float]:
        """Return approximate numbers of different observations and of pairs with actions."""
        return {name: _estimate_unique(values) for name, values in self._sketch.items()}


class TimeGaps:
    """Histogram of the times between steps of an episode, and the number of gaps that are not positive."""

    def __init__(self) -> None:
        self.gaps = np.zeros(BINS_PER_OCTAVE * 256, np.int64)
        self.backwards = 0
        self._previous = (-1, 0.0)  # episode and time of the previous step

    def add(self, steps: LoggedSteps) -> None:
        """Add steps."""
        time = steps.extra["extra.time"].reshape(-1).astype(np.float64)
        same = np.append(self._previous[0], steps.episode[:-1]) == steps.episode
        gap = (time - np.append(self._previous[1], time[:-1]))[same]
        self.backwards += int((gap <= 0).sum())
        bins = np.floor(BINS_PER_OCTAVE * (np.log2(gap[gap > 0]) + 128)).clip(0, len(self.gaps) - 1).astype(int)
        self.gaps += np.bincount(bins, minlength=len(self.gaps))
        self._previous = (int(steps.episode[-1]), float(time[-1]))


class ActionCounts:
    """Number of steps in which each discrete action was taken and, with masks, was possible."""

    def __init__(self, actions: Discrete, masked: bool) -> None:
        self._start = actions.start
        self.taken = np.zeros(actions.size, np.int64)
        self.possible = np.zeros(actions.size, np.int64) if masked else None

    def add(self, steps: LoggedSteps) -> None:
        """Add steps."""
        self.taken += np.bincount(steps.action.reshape(-1).astype(int) - self._start, minlength=len(self.taken))
        if self.possible is not None and steps.mask is not None:
            self.possible += steps.mask.sum(0)


def _smallest(known: Array, new: Array) -> Array:
    """Keep the smallest distinct hashes, which estimate their number (Bar-Yossef et al. 2002, k minimum values)."""
    if len(known) == _SKETCH:
        new = new[new < known[-1]]
    return np.unique(np.concatenate([known, new]))[:_SKETCH]


def _estimate_unique(smallest: Array) -> float:
    if len(smallest) < _SKETCH:
        return float(len(smallest))
    return float((_SKETCH - 1) / (float(smallest[-1]) / 2.0**64))
