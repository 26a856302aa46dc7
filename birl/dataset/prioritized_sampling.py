"""Prioritized experience replay: a sampler that draws steps with large TD errors more often."""

from __future__ import annotations

import logging
from typing import Final

import numpy as np

from birl.checks import check, named_arguments
from birl.dataset.arrays import ranges
from birl.dataset.flags import NO_TRANSITION
from birl.dataset.minibatch import Rows
from birl.dataset.sampling import Complete, Generators, Sampler, no_complete_step, no_step_to_sample
from birl.dataset.storage import Storage
from birl.errors import CorruptFileError, NonFiniteError, UnsupportedError
from birl.files.state_restore import check_array
from birl.types import FLOAT32_MAX, Array, State

DEFAULT_BETA: Final = 0.4
DEFAULT_BETA_STEPS: Final = 200_000
_BLOCK: Final = 256  # leaves with one minimum
_TOP: Final = 1024  # sums in the highest level: their cumulative sum is faster than descending from one root


class PrioritizedSampler(Sampler):
    """Sampler of steps in proportion to their priorities (Schaul et al. 2015, arXiv:1511.05952, proportional variant).

    A step is drawn with probability ``P = p**alpha / sum(p**alpha)``, where ``p = |delta| + epsilon`` is the size of
    its latest TD error. Distributional critics use the loss instead, and sequences 0.9 of the largest error plus 0.1 of
    the mean error of their steps, as in R2D2. A minibatch has one step from each of ``batch_size`` equal parts of the
    total (appendix B.2.1). New steps have the largest priority so far. Importance weights ``(N * P)**-beta``, divided
    by the largest one of the minibatch or of the memory, correct the losses (section 3.4).

    Every algorithm that learns from TD errors updates the priorities, in every training loop and in ``update``.

    Args:
        alpha: exponent of priorities, in [0, 1]; 0 is uniform.
        beta: exponent of importance weights, in [0, 1]; 1 corrects all of the bias.
        beta_steps: number of minibatches over which ``beta`` rises to 1; ``None`` for a constant ``beta``. Give the
            number of minibatches of the run, as ``birl train`` does.
        epsilon: added to every error, above 0, so that every step can be drawn.
        normalize_over: ``"minibatch"`` or ``"memory"``, whose largest possible weight all weights are divided by. With
            the memory, a step has the same weight in every minibatch.

    The paper uses ``alpha=0.6``, ``beta=0.4`` rising to 1 over the run, and a quarter of the learning rate.
    """

    @named_arguments
    def __init__(
        self,
        alpha: float = 0.6,
        beta: float = DEFAULT_BETA,
        beta_steps: int | None = DEFAULT_BETA_STEPS,
        epsilon: float = 1e-6,
        *,
        normalize_over: str = "minibatch",
    ) -> None:
        self.alpha = float(check("alpha", alpha, float, low=0, high=1))
        self.beta = float(check("beta", beta, float, low=0, high=1))
        self.beta_steps = check("beta_steps", beta_steps, int, optional=True, low=1)
        self.epsilon = float(check("epsilon", epsilon, float, above=0))
        self.normalize_over: str = check("normalize_over", normalize_over, str, choices=("minibatch", "memory"))
        if self.alpha == 0 and (self.beta_steps not in (None, DEFAULT_BETA_STEPS) or self.beta != DEFAULT_BETA):
            logging.getLogger("birl").warning(
                "beta=%g and beta_steps=%s have no effect with alpha=0: sampling is uniform, and all weights are 1; "
                "give a higher alpha, or leave them out",
                *(self.beta, self.beta_steps),
            )
        self._forget(0, 0)

    def _forget(self, lanes: int, capacity: int) -> None:
        """Forget all steps. Leaf ``n`` of the tree belongs to row ``n`` of a storage of this layout."""
        self._lanes, self._capacity = lanes, capacity
        self._tree, self._number = SumTree(lanes * capacity), np.full(lanes * capacity, -1)
        self._start, self._end = np.zeros((2, lanes), np.int64)
        self._version = -1
        self._max_priority, self._draws = 1.0, 0

    # -- synchronization with the storage --------------------------------------------------------------------------

    def _synchronize(self, storage: Storage) -> None:
        """Remove evicted steps, and give new steps the largest priority."""
        if storage.version == self._version:
            return
        if storage.lanes != self._lanes or (storage.end < self._end).any() or (storage.start < self._start).any():
            self._forget(storage.lanes, storage.capacity)  # the storage was restored or replaced
        elif storage.capacity != self._capacity:
            self._resize(storage.capacity)
        lane, position = ranges(self._start, storage.start)
        evicted = np.unique(storage.rows(lane, position))
        self._tree.set(evicted, 0.0)
        self._number[evicted] = -1
        # The second-newest step may have been pending before.
        lane, position = storage.live(np.maximum(self._end - 2, storage.start))
        rows, number = storage.rows(lane, position), position * storage.lanes + lane
        fresh = ((storage.flags[rows] & NO_TRANSITION) == 0) & (self._number[rows] != number)
        self._number[rows[fresh]] = number[fresh]
        self._tree.set(rows[fresh], self._max_priority)
        self._start, self._end = storage.start.copy(), storage.end.copy()
        self._version = storage.version

    def _resize(self, capacity: int) -> None:
        """Move all steps to the layout of a storage that has grown."""
        old = np.flatnonzero(self._number >= 0)
        number, priority = self._number[old], self._tree.values(old)
        self._capacity = capacity
        self._tree, self._number = SumTree(self._lanes * capacity), np.full(self._lanes * capacity, -1)
        leaf = self._leaf(number)
        self._number[leaf] = number
        self._tree.set(leaf, priority)

    def _leaf(self, number: Array) -> Array:
        """Return the leaves of steps, given their numbers."""
        if self._lanes == 1:
            return number % self._capacity if self._end[0] > self._capacity else number
        position, lane = np.divmod(number, self._lanes)
        return lane * self._capacity + position % self._capacity

    # -- drawing ---------------------------------------------------------------------------------------------------

    def draw(self, storage: Storage, count: int, generators: Generators, reject: int, complete: Complete) -> Rows:
        if reject != NO_TRANSITION:
            raise UnsupportedError(
                "a PrioritizedSampler draws transitions and sequences, by their TD errors; windows of trajectories "
                "have none: make the dataset without sampler="
            )
        self._synchronize(storage)
        uniform = generators.host.random(count)
        rows = self._find((np.arange(count) + uniform) / count, storage)
        while complete is not None:
            incomplete = np.flatnonzero(~storage.place.host(complete(storage, storage.place.indices(rows))))
            if not len(incomplete):
                break
            self._tree.set(rows[incomplete], 0.0)  # a stacked frame was evicted, so they stay incomplete
            if self._tree.total == 0:
                raise no_complete_step()
            rows[incomplete] = self._find(generators.host.random(len(incomplete)), storage)
        priority = self._tree.values(rows)
        smallest, beta = priority[priority.argmin()], self._annealed_beta()
        if self.normalize_over == "memory":
            smallest = self._tree.smallest()
        weight = (smallest / priority) ** beta  # N and the total cancel
        self._draws += 1
        scale = float((self._tree.total / smallest) ** beta)
        return Rows(storage.place.indices(rows), weight.astype(np.float32)[:, None], scale=scale)

    def _find(self, share: Array, storage: Storage) -> Array:
        """Return the rows at the given shares ``[k]``, in [0, 1), of the total priority."""
        if self._tree.total == 0:
            raise no_step_to_sample(storage)
        return self._tree.find(share * self._tree.total)

    def _annealed_beta(self) -> float:
        if self.beta_steps is None:
            return self.beta
        return self.beta + (1 - self.beta) * min(self._draws / self.beta_steps, 1.0)

    def update(self, rows: Rows, priority: Array) -> None:
        priority = np.asarray(priority, np.float64)
        if not len(priority):
            return
        # For small arrays, argmin and argmax take a fifth of the time of min and max, and also find NaN.
        if not 0 <= priority[priority.argmin()] <= priority[priority.argmax()] <= FLOAT32_MAX:
            wrong = np.flatnonzero(~((priority >= 0) & (priority <= FLOAT32_MAX)))
            raise NonFiniteError(
                f"the priority of a step is {priority[wrong[0]]:.6g}; it must be finite in float32 and at least 0. "
                "If it is a TD error, training diverges: lower the learning rate, clip gradients or scale rewards"
            )
        leaf = self._leaf(rows.generation)
        known = self._number[leaf] == rows.generation
        if not known.all():
            leaf, priority = leaf[known], priority[known]
            if not len(leaf):
                return
        value = (priority + self.epsilon) ** self.alpha
        self._tree.set(leaf, value)
        self._max_priority = max(self._max_priority, float(value[value.argmax()]))

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        lane, position = ranges(self._start, self._end)
        leaf = lane * self._capacity + position % max(self._capacity, 1)
        return {
            "start": self._start.copy(),
            "end": self._end.copy(),
            "alpha": self.alpha,
            "capacity": self._capacity,
            "priority": self._tree.values(leaf),
            "known": self._number[leaf] >= 0,
            "greatest": self._max_priority,
            "draws": self._draws,
        }

    def set_state(self, state: State) -> None:
        start, end = (np.asarray(state[name]) for name in ("start", "end"))
        capacity, lanes = check("capacity", state["capacity"], int, low=0, error=CorruptFileError), len(start)
        for name, value in (("start", start), ("end", end)):
            check_array(value, (lanes,), np.int64, name)
        counts = end - start
        if (start < 0).any() or (counts < 0).any() or (counts > capacity).any():
            raise CorruptFileError(
                f"the saved priorities are of the steps {start!s:.60} to {end!s:.60}, which cannot be: use a copy"
            )
        lane, position = ranges(start, end)
        priority = check_array(state["priority"], (len(lane),), np.float64, "priority")
        known = check_array(state["known"], (len(lane),), np.bool_, "known")
        greatest = check("greatest", state["greatest"], float, above=0, error=CorruptFileError)
        draws = check("draws", state["draws"], int, low=0, error=CorruptFileError)
        alpha = check("alpha", state["alpha"], float, low=0, high=1, error=CorruptFileError)
        if not (np.isfinite(priority).all() and (priority >= 0).all() and not priority[~known].any()):
            raise CorruptFileError("saved priorities must be finite and at least 0: restore the file from a copy")
        if alpha != self.alpha:  # saved in a folder by another sampler; with alpha 0 all priorities were equal
            change = self.alpha / alpha if alpha else 0.0
            priority, greatest = np.where(priority > 0, priority**change, 0.0), float(greatest) ** change
        self._forget(lanes, capacity)
        leaf = lane * capacity + position % max(capacity, 1)
        self._number[leaf[known]] = (position * lanes + lane)[known]
        self._tree.set(leaf, priority)
        self._start, self._end, self._max_priority, self._draws = start.copy(), end.copy(), float(greatest), draws


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
