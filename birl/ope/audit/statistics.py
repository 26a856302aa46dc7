"""Sums, counts and sketches that grow by some thousand steps at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from birl.spaces import Discrete
from birl.types import Array

PARTS: Final = 8
"""Of an octave of time, in which gaps are counted."""
_SKETCH: Final = 2**16


@dataclass(frozen=True, eq=False)
class Steps:
    """Some steps ``[n]`` in the order of their episodes.

    Attributes:
        episode: which episode, and ``step``: which of its steps.
        raw: parts of the observations as they are stored, and ``x``: these as numbers ``[n, D]``.
        action: as stored.
        reward: float64.
        extra: other columns by name.
        mask: which actions were possible, ``[n, A]``, or ``None``.
    """

    episode: Array
    step: Array
    raw: Sequence[Array]
    x: Array
    action: Array
    reward: Array
    extra: Mapping[str, Array]
    mask: Array | None


class ColumnSums:
    """Moments and ranges of the columns of observations.

    They are taken around the first row, so that squares of numbers far from zero keep their digits.
    """

    def __init__(self, width: int) -> None:
        self._first: Array | None = None
        self._sum, self._square, self._bad = np.zeros(width), np.zeros(width), np.zeros(width, np.int64)
        self._low, self._high = np.full(width, np.inf), np.full(width, -np.inf)

    def add(self, x: Array) -> None:
        """More rows ``[n, D]``."""
        finite = np.isfinite(x)
        if self._first is None:
            self._first = np.where(finite[0], x[0], 0).astype(np.float64)
        clean = np.where(finite, x - self._first, 0.0)
        self._sum, self._square = self._sum + clean.sum(0), self._square + (clean**2).sum(0)
        self._bad = self._bad + (~finite).sum(0)
        self._low = np.minimum(self._low, np.where(finite, x, np.inf).min(0))
        self._high = np.maximum(self._high, np.where(finite, x, -np.inf).max(0))

    def told(self, total: int) -> dict[str, Array]:
        """Numbers of each column, ``[D]``, of ``total`` rows."""
        n = np.maximum(total - self._bad, 1)
        mean = self._sum / n
        spread = np.sqrt(np.maximum(self._square / n - mean**2, 0))
        first = np.zeros(len(mean)) if self._first is None else self._first
        return {"mean": first + mean, "std": spread, "low": self._low, "high": self._high, "not_finite": self._bad}


class RewardSums:
    """Returns of episodes, and moments of rewards.

    Args:
        length: of the episodes, ``[E]``.
        gamma: discount.
    """

    def __init__(self, length: Array, gamma: float) -> None:
        self._length, self._gamma = length, gamma
        self.by_episode = {name: np.zeros(len(length)) for name in ("return", "discounted")}
        self.zeros = 0
        self._low, self._high = np.inf, -np.inf
        self._sum = self._square = self._size = self._last = 0.0

    def add(self, steps: Steps) -> None:
        """More steps."""
        episode, reward, size = steps.episode, steps.reward, np.abs(steps.reward)
        place, here = episode - episode[0], slice(episode[0], episode[-1] + 1)
        self.by_episode["return"][here] += np.bincount(place, reward)
        self.by_episode["discounted"][here] += np.bincount(place, reward * self._gamma**steps.step)
        self._sum += float(reward.sum())
        self._square += float((reward**2).sum())
        self._size += float(size.sum())
        self._last += float(size[steps.step == self._length[episode] - 1].sum())
        self._low, self._high = min(self._low, float(reward.min())), max(self._high, float(reward.max()))
        self.zeros += int((reward == 0).sum())

    def told(self, total: int) -> dict[str, float]:
        """Numbers of all rewards, of which there are ``total``."""
        mean = self._sum / total
        std = math.sqrt(max(self._square / total - mean**2, 0.0))
        last = self._last / self._size if self._size else 0.0
        return {"mean": mean, "std": std, "low": self._low, "high": self._high, "last": last}


class Repeats:
    """Steps that are the same: a digest of each episode, steps that repeat the one before, and how many are unique."""

    def __init__(self, episodes: int) -> None:
        self.digest = np.zeros(episodes, np.uint64)
        self.repeated = 0
        self._sketch = {name: np.zeros(0, np.uint64) for name in ("observations", "pairs")}
        self._before = (-1, np.uint64(0))  # episode and hash of the step before

    def add(self, steps: Steps) -> None:
        """More steps."""
        state = _hash(steps.raw)
        pair = _hash([state, steps.action])
        whole = _hash([pair, steps.reward])
        with np.errstate(over="ignore"):
            np.add.at(self.digest, steps.episode, _hash([whole, *steps.extra.values(), steps.step]))
        self._sketch["observations"] = _smallest(self._sketch["observations"], state)
        self._sketch["pairs"] = _smallest(self._sketch["pairs"], pair)
        same = np.append(self._before[0], steps.episode[:-1]) == steps.episode
        self.repeated += int((same & (np.append(self._before[1], whole[:-1]) == whole)).sum())
        self._before = (int(steps.episode[-1]), whole[-1])

    def unique(self) -> dict[str, float]:
        """About how many different observations and pairs with actions there are."""
        return {name: _distinct(values) for name, values in self._sketch.items()}


class Times:
    """Times between steps of an episode, counted by size, and how many of them do not go on."""

    def __init__(self) -> None:
        self.gaps = np.zeros(PARTS * 256, np.int64)
        self.backwards = 0
        self._before = (-1, 0.0)  # episode and time of the step before

    def add(self, steps: Steps) -> None:
        """More steps."""
        time = steps.extra["extra.time"].reshape(-1).astype(np.float64)
        same = np.append(self._before[0], steps.episode[:-1]) == steps.episode
        apart = (time - np.append(self._before[1], time[:-1]))[same]
        self.backwards += int((apart <= 0).sum())
        bins = np.floor(PARTS * (np.log2(apart[apart > 0]) + 128)).clip(0, len(self.gaps) - 1).astype(int)
        self.gaps += np.bincount(bins, minlength=len(self.gaps))
        self._before = (int(steps.episode[-1]), float(time[-1]))


class ChoiceCounts:
    """How often each discrete action was taken and, if masks say so, how often it was possible."""

    def __init__(self, actions: Discrete, masked: bool) -> None:
        self._first = actions.start
        self.taken = np.zeros(actions.size, np.int64)
        self.possible = np.zeros(actions.size, np.int64) if masked else None

    def add(self, steps: Steps) -> None:
        """More steps."""
        self.taken += np.bincount(steps.action.reshape(-1).astype(int) - self._first, minlength=len(self.taken))
        if self.possible is not None and steps.mask is not None:
            self.possible += steps.mask.sum(0)


def _hash(columns: Sequence[Array]) -> Array:
    """A number for each row, ``[n]``, the same for rows with the same bytes."""
    found = np.zeros(len(columns[0]), np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            flat = np.ascontiguousarray(column.reshape(len(column), -1))
            data = flat.view(np.uint8).reshape(len(flat), -1)
            data = np.pad(data, ((0, 0), (0, -data.shape[1] % 8)))
            words = data.view(np.uint64)
            odd = np.random.default_rng(words.shape[1]).integers(0, 2**63, words.shape[1], np.uint64) * np.uint64(2) + 1
            found = _mixed(found * np.uint64(0x9E3779B97F4A7C15) + (_mixed(words) * odd).sum(1, dtype=np.uint64))
    return found


def _mixed(x: Array) -> Array:
    """Bits of uint64 spread over all others (Steele et al. 2014, SplitMix)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _smallest(known: Array, new: Array) -> Array:
    """The smallest different hashes, from which their number follows (Bar-Yossef et al. 2002, k minimum values)."""
    return np.unique(np.concatenate([known, new]))[:_SKETCH]


def _distinct(smallest: Array) -> float:
    if len(smallest) < _SKETCH:
        return float(len(smallest))
    return float((_SKETCH - 1) / (float(smallest[-1]) / 2.0**64))
