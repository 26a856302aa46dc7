"""Digests of steps, by which data know which rows they share with others.

A digest is of the observation, the action and the reward of a step, so it stays the same if rows get new ids, another
order, or other episodes.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from birl.types import Array

SKETCH: Final = 1024
"""Number of digests in a sketch that is stored with data and models."""
_MAX_CHANCE: Final = 0.05  # with a larger one, rows are too few to tell data apart
_CAUTION: Final = 2  # data of another time are not distributed alike
CHANCE: Final = 1e-5
"""Probability with which what is independent is said to share rows or actions."""


@dataclass(frozen=True, eq=False)
class RowSketch:
    """The smallest digests of some rows, from which shared rows are found.

    Attributes:
        count: number of rows.
        within: number of rows, with repetitions, whose digests are among these.
        single: number of these rows that occur once.
        digests: the smallest distinct digests, ascending uint64 ``[K]``.
    """

    count: int
    within: int
    single: int
    digests: Array

    @classmethod
    def of(cls, digests: Array, size: int = SKETCH) -> RowSketch:
        """Return the sketch of rows with these digests ``[N]``."""
        kept, counts = np.unique(digests, return_counts=True)
        return cls(len(digests), int(counts[:size].sum()), int((counts[:size] == 1).sum()), kept[:size])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowSketch) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.count, self.digests.tobytes()))

    def merge(self, other: RowSketch) -> RowSketch:
        """Return the sketch of the rows of both."""
        if self == other:
            return self
        limit = min((each.digests[-1] for each in (self, other) if len(each.digests) >= SKETCH), default=None)
        kept = np.union1d(self.digests, other.digests)
        kept = kept if limit is None else kept[kept <= limit]
        within, single = (
            max(getattr(each, name) / max(len(each.digests), 1) for each in (self, other)) * len(kept)
            for name in ("within", "single")
        )
        count = self.count + other.count
        return RowSketch(count, min(round(within), count), min(round(single), len(kept)), kept)

    def shared_with(self, digests: Array) -> float:
        """Return the share of rows that are also among the rows of this sketch; 0 if chance may explain it.

        Rows of discrete values repeat by chance. A row of independent data is among N others with a probability of at
        most N times that of a repetition of two, and with the share of rows that occur more than once (Good 1953,
        Biometrika 40:237-264). The smaller estimate counts, because one of the data may be logged twice. If rows are
        not nearly unique, nothing is claimed.

        Args:
            digests: digests ``[N]`` of all rows of other data.
        """
        if not len(self.digests):
            return 0.0
        own = digests if self.within >= self.count else digests[digests <= self.digests[-1]]
        _, counts = np.unique(digests, return_counts=True)
        pairs = float((counts * (counts - 1.0)).sum() + 2) / max(len(digests) * (len(digests) - 1), 1)
        expected = min(pairs * self.count, (self.within - self.single + 1) / self.within)
        if not len(own) or expected > _MAX_CHANCE:
            return 0.0
        hits = int(np.isin(own, self.digests).sum())
        return hits / len(own) if exceeds_chance(hits, len(own), _CAUTION * expected) else 0.0

    def to_json(self) -> list[int | str]:
        """Return JSON values; see `from_json`."""
        return [self.count, self.within, self.single, base64.b64encode(self.digests.astype("<u8").tobytes()).decode()]

    @classmethod
    def from_json(cls, data: Sequence[int | str]) -> RowSketch:
        """Make a sketch from the result of `to_json`.

        Raises:
            ValueError: if it is none.
        """
        count, within, single, text = data
        digests = np.frombuffer(base64.b64decode(str(text), validate=True), "<u8").astype(np.uint64)
        if not 0 <= int(single) <= len(digests) <= int(within) <= int(count) or (digests[1:] <= digests[:-1]).any():
            raise ValueError("no sketch of rows")
        return cls(int(count), int(within), int(single), digests)


def exceeds_chance(hits: float, n: int, probability: float, chance: float = CHANCE) -> bool:
    """Return whether so many hits of ``n`` are improbable, if the mean of their probabilities is ``probability``.

    ``P(hits >= n q) <= exp(-n kl(q, p))`` for ``q > p`` and independent trials (Hoeffding 1963, theorem 1).
    """
    share, p = hits / max(n, 1), min(max(probability, 1e-9), 1.0)
    if share <= p:
        return False
    divergence = share * math.log(share / p)
    divergence += (1 - share) * math.log((1 - share) / (1 - p)) if share < 1 else 0.0
    return n * divergence > -math.log(chance)


def hash_rows(columns: Sequence[Array]) -> Array:
    """Return a number for each row, ``[n]``, which is equal for rows with the same bytes."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            flat = np.ascontiguousarray(column.reshape(len(column), -1))
            data = flat.view(np.uint8).reshape(len(flat), -1)
            data = np.pad(data, ((0, 0), (0, -data.shape[1] % 8)))
            words = data.view(np.uint64)
            odd = np.random.default_rng(words.shape[1]).integers(0, 2**63, words.shape[1], np.uint64) * np.uint64(2) + 1
            hashes = _mix_bits(
                hashes * np.uint64(0x9E3779B97F4A7C15) + (_mix_bits(words) * odd).sum(1, dtype=np.uint64)
            )
    return hashes


def _mix_bits(x: Array) -> Array:
    """Mix the bits of uint64 numbers (Steele et al. 2014, SplitMix)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
