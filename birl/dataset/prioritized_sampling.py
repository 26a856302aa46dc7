"""Prioritized experience replay: a sampler that draws steps with large TD errors more often."""

from __future__ import annotations

import warnings
from typing import Final, TypeVar

import numpy as np

from birl.checks import check, named_arguments
from birl.dataset.arrays import ranges
from birl.dataset.flags import NO_TRANSITION
from birl.dataset.minibatch import Rows
from birl.dataset.priority_trees import RankTree, SumTree
from birl.dataset.sampling import Complete, Generators, Sampler, accepted_rows, no_complete_step, no_step_to_sample
from birl.dataset.storage import Storage
from birl.errors import CorruptFileError, NonFiniteError, UnsupportedError, UnusedOptionWarning, outside_birl
from birl.files.state_restore import check_array
from birl.types import FLOAT32_MAX, Array, State

A = TypeVar("A", Array, float)

DEFAULT_BETA: Final = 0.4
DEFAULT_BETA_STEPS: Final = 200_000
DEFAULT_EPSILON: Final = 1e-6


class PrioritizedSampler(Sampler):
    """Sampler of steps in proportion to their priorities, or by their ranks (Schaul et al. 2015, arXiv:1511.05952).

    The priority of a step is ``p = |delta| + epsilon``, the size of its latest TD error. Distributional critics use the
    loss instead, and sequences 0.9 of the largest error plus 0.1 of the mean error of their steps, as in R2D2. A step
    is drawn with probability ``P = v / sum(v)``. In the proportional variant, ``v = p**alpha``; in the rank-based
    variant, ``v = rank**-alpha``, where the step with the largest priority has rank 1 (section 3.3). A minibatch has
    one step from each of ``batch_size`` equal parts of the total (appendix B.2.1). New steps have the largest priority
    so far. Importance weights ``(N * P)**-beta``, divided by the largest one of the minibatch or of the memory, correct
    the losses (section 3.4).

    Ranks do not depend on the scale of the errors, and a few very large errors change little. Steps are sorted again
    when a quarter of the priorities has changed. Until then, a new priority has the rank that it would have had at the
    last sort. Steps of equal priority have the mean ``v`` of their ranks. Weights are exact for the probabilities with
    which steps are drawn. (The paper sorts at longer intervals, and keeps a heap in between.)

    Every algorithm that learns from TD errors updates the priorities, in every training loop and in ``update``.

    Args:
        alpha: exponent of priorities or ranks, in [0, 1]; 0 is uniform.
        beta: exponent of importance weights, in [0, 1]; 1 corrects all of the bias.
        beta_steps: number of minibatches over which ``beta`` rises to 1; ``None`` for a constant ``beta``. Give the
            number of minibatches of the run, as ``birl train`` does.
        epsilon: added to every error, above 0, so that every step can be drawn. It does not change ranks.
        normalize_over: ``"minibatch"`` or ``"memory"``, whose largest possible weight all weights are divided by. With
            the memory, a step has the same weight in every minibatch.
        variant: ``"proportional"`` or ``"rank_based"``.
        uniform_ratio: probability, in [0, 1), with which a step of a minibatch is drawn uniformly. The weights are
            those of the mixture, ``uniform_ratio / N + (1 - uniform_ratio) * P``.

    The paper uses ``alpha=0.6`` and ``beta=0.4`` for the proportional variant, 0.7 and 0.5 for ranks, ``beta`` rising
    to 1 over the run, and a quarter of the learning rate.
    """

    @named_arguments
    def __init__(
        self,
        alpha: float = 0.6,
        beta: float = DEFAULT_BETA,
        beta_steps: int | None = DEFAULT_BETA_STEPS,
        epsilon: float = DEFAULT_EPSILON,
        *,
        normalize_over: str = "minibatch",
        variant: str = "proportional",
        uniform_ratio: float = 0.0,
    ) -> None:
        self.alpha = float(check("alpha", alpha, float, low=0, high=1))
        self.beta = float(check("beta", beta, float, low=0, high=1))
        self.beta_steps = check("beta_steps", beta_steps, int, optional=True, low=1)
        self.epsilon = float(check("epsilon", epsilon, float, above=0))
        self.normalize_over: str = check("normalize_over", normalize_over, str, choices=("minibatch", "memory"))
        self.variant: str = check("variant", variant, str, choices=("proportional", "rank_based"))
        hint = ": for uniform samples, use birl.dataset.Uniform()"
        self.uniform_ratio = float(check("uniform_ratio", uniform_ratio, float, hint, low=0, below=1))
        self._warn_of_no_effect()
        self._forget(0, 0)

    def _warn_of_no_effect(self) -> None:
        """Warn of settings that have no effect with the others."""
        beta = self.beta != DEFAULT_BETA or self.beta_steps not in (None, DEFAULT_BETA_STEPS)
        if self.alpha == 0 and (beta or self.uniform_ratio):
            warnings.warn(
                f"beta={self.beta:g}, beta_steps={self.beta_steps} and uniform_ratio={self.uniform_ratio:g} have no "
                "effect with alpha=0: sampling is uniform, and all weights are 1; give a higher alpha, or leave them "
                "out",
                UnusedOptionWarning,
                stacklevel=outside_birl(),
            )
        if self.variant == "rank_based" and self.epsilon != DEFAULT_EPSILON:
            warnings.warn(
                f"epsilon={self.epsilon:g} has no effect with variant='rank_based': it does not change ranks; leave it "
                "out",
                UnusedOptionWarning,
                stacklevel=outside_birl(),
            )

    @property
    def _exponent(self) -> float:
        """Exponent of the priorities that the tree gets."""
        return self.alpha if self.variant == "proportional" else 1.0

    def _forget(self, lanes: int, capacity: int) -> None:
        """Forget all steps. Leaf ``n`` of the tree belongs to row ``n`` of a storage of this layout."""
        self._lanes, self._capacity = lanes, capacity
        self._make_tree()
        self._steps = 0  # with a priority
        self._start, self._end = np.zeros((2, lanes), np.int64)
        self._version = -1
        self._max_priority, self._draws = 1.0, 0

    def _make_tree(self) -> None:
        size = self._lanes * self._capacity
        self._tree = SumTree(size) if self.variant == "proportional" else RankTree(size, self.alpha)
        self._number = np.full(size, -1)

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
        self._remove(storage.rows(lane, position))
        # The second-newest step may have been pending before.
        lane, position = storage.live(np.maximum(self._end - 2, storage.start))
        rows, number = storage.rows(lane, position), position * storage.lanes + lane
        fresh = ((storage.flags[rows] & NO_TRANSITION) == 0) & (self._number[rows] != number)
        rows, number = rows[fresh], number[fresh]
        self._steps += int(np.count_nonzero(self._number[rows] < 0))
        self._number[rows] = number
        self._tree.set(rows, self._max_priority)
        self._start, self._end = storage.start.copy(), storage.end.copy()
        self._version = storage.version

    def _remove(self, rows: Array) -> None:
        """Forget the steps in ``rows``, so that they are not drawn."""
        rows = np.unique(rows)
        self._steps -= int(np.count_nonzero(self._number[rows] >= 0))
        self._tree.set(rows, 0.0)
        self._number[rows] = -1

    def _resize(self, capacity: int) -> None:
        """Move all steps to the layout of a storage that has grown."""
        old = np.flatnonzero(self._number >= 0)
        number, priority = self._number[old], self._tree.priorities(old)
        self._capacity = capacity
        self._make_tree()
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
        self._tree.refresh()
        host, rows = generators.host, np.zeros(count, np.int64)
        share = (np.arange(count) + host.random(count)) / count
        uniform = host.random(count) < self.uniform_ratio if self.uniform_ratio else np.zeros(count, np.bool_)
        drawn = np.arange(count)
        while True:
            rows[drawn] = self._find(share, uniform[drawn], storage, host)
            if complete is None:
                break
            drawn = np.flatnonzero(~storage.place.host(complete(storage, storage.place.indices(rows))))
            if not len(drawn):
                break
            self._remove(rows[drawn])  # a stacked frame was evicted, so they stay incomplete
            if self._tree.total == 0:
                raise no_complete_step()
            share = host.random(len(drawn))
        mass, beta = self._tree.values(rows), self._annealed_beta()
        smallest = self._tree.smallest() if self.normalize_over == "memory" else float(mass[mass.argmin()])
        if self.uniform_ratio:
            mass, smallest = self._mixed(mass), self._mixed(smallest)
        weight = (smallest / mass) ** beta  # N and the total cancel
        self._draws += 1
        scale = float((self._tree.total / smallest) ** beta)
        return Rows(storage.place.indices(rows), weight.astype(np.float32)[:, None], scale=scale)

    def _find(self, share: Array, uniform: Array, storage: Storage, generator: np.random.Generator) -> Array:
        """Return the rows at shares ``[k]``, in [0, 1), of the total, or uniform ones where ``uniform`` is true."""
        if self._tree.total == 0:
            raise no_step_to_sample(storage)
        rows = self._tree.find(share * self._tree.total)
        if uniform.any():
            rows[uniform] = self._uniform_rows(int(uniform.sum()), storage, generator)
        return rows

    def _uniform_rows(self, count: int, storage: Storage, generator: np.random.Generator) -> Array:
        """Draw the rows ``[count]`` of steps that have a priority, uniformly."""
        accepted = self._steps / (storage.used * storage.lanes)
        if accepted < 0.25:  # lanes of different length
            index = np.flatnonzero(self._number >= 0)
            return index[generator.integers(len(index), size=count)]
        draws = int(count / accepted) + 4
        return accepted_rows(storage, generator, count, draws, lambda rows: self._number.take(rows) >= 0)

    def _mixed(self, mass: A) -> A:
        """Return the values of steps, of which ``mass`` is drawn by priority, with the uniform share."""
        return self.uniform_ratio * self._tree.total / self._steps + (1 - self.uniform_ratio) * mass

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
        value = (priority + self.epsilon) ** self._exponent
        self._tree.set(leaf, value)
        self._max_priority = max(self._max_priority, float(value[value.argmax()]))

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        lane, position = ranges(self._start, self._end)
        leaf = lane * self._capacity + position % max(self._capacity, 1)
        state: State = {
            "start": self._start.copy(),
            "end": self._end.copy(),
            "alpha": self._exponent,
            "capacity": self._capacity,
            "priority": self._tree.priorities(leaf),
            "known": self._number[leaf] >= 0,
            "greatest": self._max_priority,
            "draws": self._draws,
        }
        if isinstance(self._tree, RankTree):
            state["ranks"] = {"sorted": self._tree.sorted, "changes": self._tree.changes}
        return state

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
        ranks = _check_ranks(state["ranks"], lanes * capacity) if "ranks" in state else None
        if alpha != self._exponent:  # saved in a folder by another sampler; with alpha 0 all priorities were equal
            change = self._exponent / alpha if alpha else 0.0
            priority, greatest = np.where(priority > 0, priority**change, 0.0), float(greatest) ** change
        self._forget(lanes, capacity)
        leaf = lane * capacity + position % max(capacity, 1)
        self._number[leaf[known]] = (position * lanes + lane)[known]
        self._tree.set(leaf, priority)
        if isinstance(self._tree, RankTree) and ranks is not None:
            self._tree.restore(*ranks)
        self._steps = int(known.sum())
        self._start, self._end, self._max_priority, self._draws = start.copy(), end.copy(), float(greatest), draws


def _check_ranks(state: State, rows: int) -> tuple[Array, int]:
    """Return the saved priorities of the last sort, in ascending order, and how many have changed since."""
    priority = np.asarray(state["sorted"])
    check_array(priority, (min(len(priority), rows),), np.float64, "sorted")
    if not ((np.diff(priority) >= 0).all() and (priority > 0).all() and np.isfinite(priority).all()):
        raise CorruptFileError("saved ranks must be of finite priorities in ascending order: use a copy")
    return priority, check("changes", state["changes"], int, low=0, error=CorruptFileError)
