"""Emphasizing recent experience: a sampler that draws the newest steps more often."""

from __future__ import annotations

from typing import cast

import numpy as np

from birl.checks import check, named_arguments
from birl.dataset.flags import FINAL
from birl.dataset.minibatch import Rows
from birl.dataset.sampling import Complete, Generators, Sampler, no_complete_step, no_step_to_sample
from birl.dataset.storage import Storage
from birl.errors import CorruptFileError
from birl.types import Array, State

_TRIES = 20


class RecentSampler(Sampler):
    """Emphasizing recent experience (ERE: Wang and Ross 2019, arXiv:1906.04009).

    Minibatch ``k = 1 … period`` is drawn uniformly from the newest ``c = max(N eta**(1000 k / period), smallest)`` of
    the ``N`` stored steps; then ``k`` starts at 1 again (section 3.1). Over ``anneal_steps`` minibatches ``eta`` rises
    linearly to 1, which makes draws uniform (section 3.2).

    Differs from the paper, which makes all updates of an episode at its end, so that ``period`` is the length of the
    episode. Updates between steps need a fixed period.

    Args:
        eta: weight of old steps, above 0 and at most 1; 1 is uniform.
        period: number of minibatches over which the window shrinks; the length of an episode.
        smallest: minimum number of steps to draw from.
        anneal_steps: number of minibatches until draws are uniform; ``None`` for a constant ``eta``.
    """

    @named_arguments
    def __init__(
        self, eta: float = 0.996, period: int = 1000, smallest: int = 5000, anneal_steps: int | None = None
    ) -> None:
        self.eta = float(check("eta", eta, float, above=0, high=1))
        self.period = check("period", period, int, low=1)
        self.smallest = check("smallest", smallest, int, low=1)
        self.anneal_steps = check("anneal_steps", anneal_steps, int, optional=True, low=1)
        self._draws = 0

    def window(self, count: int) -> int:
        """Return the number of newest steps, of ``count`` steps, from which the next minibatch is drawn."""
        eta = self.eta
        if self.anneal_steps is not None:
            eta += (1 - eta) * min(self._draws / self.anneal_steps, 1.0)
        k = self._draws % self.period + 1
        return min(max(int(count * eta ** (1000 * k / self.period)), self.smallest), count)

    def draw(self, storage: Storage, count: int, generators: Generators, reject: int, complete: Complete) -> Rows:
        steps = int(storage.steps.sum())
        if not (steps if reject == FINAL else storage.transition_count):
            raise no_step_to_sample(storage, reject)
        for window in (self.window(steps), steps):  # all steps if none in the window can be read
            rows = self._newest(storage, window, count, generators, reject, complete)
            if len(rows):
                self._draws += 1
                return Rows(storage.place.indices(rows))
        raise no_complete_step()

    def _newest(
        self, storage: Storage, window: int, count: int, generators: Generators, reject: int, complete: Complete
    ) -> Array:
        """Draw rows ``[count]`` from the newest ``window`` steps, in proportion from all lanes; empty if none fits."""
        host, share = generators.host, window / max(int(storage.steps.sum()), 1)
        counts = np.maximum(np.ceil((storage.end - storage.start) * share).astype(np.int64), 1)
        counts = np.minimum(counts, storage.end - storage.start)
        ends = counts.cumsum()

        def usable_rows(number: Array) -> Array:
            """Return the usable rows at positions of the window, which are numbered over all lanes."""
            lane = ends.searchsorted(number, side="right")
            rows = storage.rows(lane, storage.end[lane] - ends[lane] + number)
            rows = rows[(storage.flags[rows] & reject) == 0]
            if complete is None or not len(rows):
                return rows
            return cast(Array, rows[storage.place.host(complete(storage, storage.place.indices(rows)))])

        rows = usable_rows(host.integers(ends[-1], size=count))
        for _ in range(_TRIES):
            if len(rows) >= count:
                return rows[:count]
            rows = np.concatenate([rows, usable_rows(host.integers(ends[-1], size=count))])
        usable = usable_rows(np.arange(ends[-1]))  # few rows are usable
        return usable[host.integers(len(usable), size=count)] if len(usable) else usable

    def get_state(self) -> State:
        return {"draws": self._draws}

    def set_state(self, state: State) -> None:
        self._draws = check("draws", state["draws"], int, low=0, error=CorruptFileError)
