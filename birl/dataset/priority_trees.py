"""Trees that draw leaves in proportion to their values: priorities, or powers of the ranks of priorities."""

from __future__ import annotations

from typing import Final

import numpy as np

from birl.types import Array

_BLOCK: Final = 256  # leaves with one minimum
_TOP: Final = 1024  # sums in the highest level: their cumulative sum is faster than descending from one root
_SORTS: Final = 4  # priorities are sorted again when a quarter of them has changed


class SumTree:
    """A binary tree of sums in one array.

    Node ``n`` is the sum of the nodes ``2 n`` and ``2 n + 1``, and the second half of the array holds the leaves. Sums
    are always computed from their two children, never adjusted, so the tree is a function of its leaves.

    Args:
        size: number of leaves.
    """

    def __init__(self, size: int) -> None:
        self._count = 1 << max(size - 1, 0).bit_length()
        self._nodes = np.zeros(2 * self._count)
        self._top = min(self._count, _TOP)  # number of sums in the highest level, and its first node
        self._depth = (self._count // self._top).bit_length() - 1
        self._sums: Array | None = None
        self._minima: Array | None = None  # of blocks of leaves; `smallest` makes them
        self._changed = np.zeros(0, bool)  # blocks with a leaf that was set since

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._cumulative_sums()[-1])

    def _cumulative_sums(self) -> Array:
        """Return the sums of the first 0, 1, 2 … nodes of the highest level."""
        if self._sums is None:
            self._sums = np.zeros(self._top + 1)
            self._nodes[self._top : 2 * self._top].cumsum(out=self._sums[1:])
        return self._sums

    def values(self, leaf: Array) -> Array:
        """Return the values of leaves ``[k]``."""
        return self._nodes[self._count :].take(leaf)

    def priorities(self, leaf: Array) -> Array:
        """Return the priorities of leaves ``[k]``, which are their values here."""
        return self.values(leaf)

    def refresh(self) -> None:
        """Bring values up to date, before leaves are drawn."""

    def smallest(self) -> float:
        """Return the smallest leaf above 0. Minima of blocks are kept until a leaf of the block is set."""
        leaves = self._nodes[self._count :].reshape(-1, min(_BLOCK, self._count))
        if self._minima is None:
            self._minima, self._changed = np.full(len(leaves), np.inf), np.ones(len(leaves), bool)
        changed = np.flatnonzero(self._changed)
        if len(changed):
            block = leaves[changed]
            self._minima[changed] = np.where(block > 0, block, np.inf).min(1)
            self._changed[changed] = False
        return float(self._minima.min())

    def set(self, leaf: Array, value: Array | float) -> None:
        """Set leaves ``[k]``. A leaf that occurs twice gets one of its values."""
        if not len(leaf):
            return
        nodes, node = self._nodes, leaf + self._count
        self._sums, nodes[node] = None, value
        if self._minima is not None:
            self._changed[leaf // min(_BLOCK, self._count)] = True
        sparse = min((self._count // (8 * len(leaf))).bit_length(), self._depth + 1)  # levels much wider than k
        pairs = nodes.view(np.complex128)  # element n holds the two children of node n
        for above in node >> np.arange(1, sparse)[:, None]:
            pair = pairs.take(above)
            nodes[above] = pair.real + pair.imag
        for level in range(max(sparse, 1), self._depth + 1):
            first = self._count >> level
            np.add(nodes[2 * first : 4 * first : 2], nodes[2 * first + 1 : 4 * first : 2], out=nodes[first : 2 * first])

    def find(self, mass: Array) -> Array:
        """Return for each ``mass`` ``[k]``, in [0, total), the first leaf where the cumulative sum exceeds it."""
        sums = self._cumulative_sums()
        node = np.minimum(sums[1:].searchsorted(mass, side="right"), self._top - 1)
        mass = mass - sums.take(node)
        node += self._top
        for _ in range(self._depth):
            node += node  # faster than a shift by a number
            left = self._nodes.take(node)
            right = mass >= left
            left *= right
            mass -= left
            node += right
        value, leaf = self._nodes.take(node), node - self._count
        if value[value.argmin()] > 0:
            return leaf
        leaves = self._nodes[self._count :]
        for index in np.flatnonzero(value == 0):  # rounding led past the last leaf above 0
            leaf[index] = np.flatnonzero(leaves[: leaf[index]])[-1]
        return leaf


class RankTree(SumTree):
    """A tree of powers ``rank**-alpha`` of the ranks of priorities; the largest priority has rank 1.

    Equal priorities have the mean value of their ranks. Ranks are those among the priorities at the last sort, so the
    value of a leaf is a function of its priority and of the sorted priorities.

    Args:
        size: number of leaves.
        alpha: exponent.
    """

    def __init__(self, size: int, alpha: float) -> None:
        super().__init__(size)
        self._alpha, self._priority = alpha, np.zeros(size)  # 0: no step
        self.changes = 0
        self._set_sorted(np.zeros(0))

    def _set_sorted(self, priority: Array) -> None:
        """Set the priorities ``[n]`` of the last sort, in ascending order."""
        self.sorted = priority
        powers = np.arange(1.0, len(priority) + 2) ** -self._alpha
        self._powers = np.append(0.0, powers.cumsum())  # sums over the first 0 … n + 1 ranks

    def priorities(self, leaf: Array) -> Array:
        return self._priority.take(leaf)

    def set(self, leaf: Array, value: Array | float) -> None:
        """Set the priorities of leaves ``[k]``. A leaf that occurs twice gets one of them."""
        self._priority[leaf] = value
        self.changes += len(leaf)
        super().set(leaf, self._values_of(np.asarray(value)))

    def _values_of(self, priority: Array) -> Array:
        first = len(self.sorted) - self.sorted.searchsorted(priority, side="right")  # number of larger ones
        last = len(self.sorted) - self.sorted.searchsorted(priority, side="left")
        return np.where(priority > 0, self._mean_power(first, np.maximum(last, first + 1)), 0.0)

    def _mean_power(self, first: Array, last: Array) -> Array:
        """Return the mean over the ranks ``first + 1 … last``."""
        mean: Array = (self._powers.take(last) - self._powers.take(first)) / (last - first)
        return mean

    def refresh(self) -> None:
        """Sort the priorities if a quarter of them has changed since the last sort."""
        if not self.changes or self.changes * _SORTS < len(self.sorted):
            return
        leaf = np.flatnonzero(self._priority)
        leaf = leaf[self._priority.take(leaf).argsort()]
        self._set_sorted(self._priority.take(leaf))
        count, self.changes = len(leaf), 0
        begins = np.flatnonzero(np.append(True, self.sorted[1:] != self.sorted[:-1])[:count])  # of equal priorities
        ends = np.append(begins[1:], count)
        super().set(leaf, np.repeat(self._mean_power(count - ends, count - begins), ends - begins))

    def restore(self, priority: Array, changes: int) -> None:
        """Restore the last sort: its priorities ``[n]`` in ascending order, and how many have changed since."""
        self._set_sorted(priority)
        self.changes = changes
        leaf = np.flatnonzero(self._priority)
        super().set(leaf, self._values_of(self._priority.take(leaf)))
