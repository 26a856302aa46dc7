"""Emphasis on recent experience: the newest steps are drawn more often, and old ones are not forgotten."""

from __future__ import annotations

import numpy as np

from birl.checks import check
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
    the ``N`` steps that are there, and then it begins anew (section 3.1). Over ``anneal_steps`` minibatches ``eta``
    rises linearly to 1, where draws are uniform (section 3.2).

    Differs from the paper, which makes all updates of an episode at its end: there ``period`` is the episode's length.
    Updates between steps need a fixed one.

    Args:
        eta: how much the newest count, above 0 and at most 1; 1 is uniform.
        period: number of minibatches over which the window shrinks; the length of an episode.
        smallest: least number of steps to draw from.
        anneal_steps: number of minibatches until draws are uniform; ``None`` if ``eta`` stays.
    """

    def __init__(
        self, eta: float = 0.996, period: int = 1000, smallest: int = 5000, anneal_steps: int | None = None
    ) -> None:
        self.eta = float(check("eta", eta, float, above=0, high=1))
        self.period = check("period", period, int, low=1)
        self.smallest = check("smallest", smallest, int, low=1)
        self.anneal_steps = check("anneal_steps", anneal_steps, int, optional=True, low=1)
        self._draws = 0

    def window(self, count: int) -> int:
        """Number of the newest of ``count`` steps from which the next minibatch is drawn."""
        eta = self.eta
        if self.anneal_steps is not None:
            eta += (1 - eta) * min(self._draws / self.anneal_steps, 1.0)
        k = self._draws % self.period + 1
        return min(max(int(count * eta ** (1000 * k / self.period)), self.smallest), count)

    def draw(self, storage: Storage, count: int, generators: Generators, reject: int, complete: Complete) -> Rows:
        there = int(storage.steps.sum())
        if not (there if reject == FINAL else storage.transition_count):
            raise no_step_to_sample(storage, reject)
        rows = self._newest(storage, self.window(there), count, generators, reject, complete)
        if not len(rows):  # of these none can be read
            rows = self._newest(storage, there, count, generators, reject, complete)
        if not len(rows):
            raise no_complete_step()
        self._draws += 1
        return Rows(storage.place.indices(rows))

    def _newest(
        self, storage: Storage, window: int, count: int, generators: Generators, reject: int, complete: Complete
    ) -> Array:
        """Rows ``[count]`` among the newest ``window`` steps, as many from each lane in proportion; or none."""
        host, share = generators.host, window / max(int(storage.steps.sum()), 1)
        counts = np.maximum(np.ceil((storage.end - storage.start) * share).astype(np.int64), 1)
        counts = np.minimum(counts, storage.end - storage.start)
        ends = counts.cumsum()

        def kept(number: Array) -> Array:
            """The rows of these of the newest positions, counted over all lanes, less those that cannot be drawn."""
            lane = ends.searchsorted(number, side="right")
            rows = storage.rows(lane, storage.end[lane] - ends[lane] + number)
            rows = rows[(storage.flags[rows] & reject) == 0]
            if complete is None or not len(rows):
                return rows
            return rows[storage.place.host(complete(storage, storage.place.indices(rows)))]

        rows = kept(host.integers(ends[-1], size=count))
        for _ in range(_TRIES):
            if len(rows) >= count:
                return rows[:count]
            rows = np.concatenate([rows, kept(host.integers(ends[-1], size=count))])
        every = kept(np.arange(ends[-1]))  # few of them can be drawn
        return every[host.integers(len(every), size=count)] if len(every) else every

    def get_state(self) -> State:
        return {"draws": self._draws}

    def set_state(self, state: State) -> None:
        self._draws = check("draws", state["draws"], int, low=0, error=CorruptFileError)
