"""Steps of running episodes that wait for the end of their episodes before they are stored."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from birl.dataset.flags import TERMINATED
from birl.dataset.ingest import row_flags
from birl.dataset.storage import Storage
from birl.types import Array, State

Columns = dict[str, Array]


class HeldSteps:
    """The steps of the running episode of each lane, outside the storage.

    Args:
        lanes: number of lanes.
    """

    def __init__(self, lanes: int) -> None:
        self._steps: list[list[Columns]] = [[] for _ in range(lanes)]
        self._following: list[Columns] = [{} for _ in range(lanes)]  # the observation after the newest step, if known

    def running(self, lane: int) -> bool:
        """Return whether a lane has a running episode."""
        return bool(self._steps[lane])

    def append(
        self,
        storage: Storage,
        lanes: Array,
        values: Mapping[str, Array],
        following: Mapping[str, Array] | None = None,
        ending: Array | None = None,
    ) -> None:
        """Hold steps, and store the episodes that end; see `Storage.append`. Lanes may occur several times."""
        for row, lane in enumerate(lanes.tolist()):
            self._steps[lane].append(_row(values, row))
            self._following[lane] = {} if following is None else _row(following, row)
            if ending is not None and ending[row]:
                self.close(storage, lane, ending[row] == TERMINATED)

    def close(self, storage: Storage, lane: int, terminated: bool, final: Mapping[str, Array] | None = None) -> None:
        """Store the running episode of a lane; see `Storage.close`."""
        steps, last = self._steps[lane], self._following[lane] if final is None else final
        names = {name for step in steps for name in step}
        columns = {name: np.concatenate([step.get(name, _zeros(storage, name)) for step in steps]) for name in names}
        ends = np.arange(len(steps)) == len(steps) - 1
        self._steps[lane], self._following[lane] = [], {}
        storage.extend(lane, row_flags(ends & terminated, ends, known=bool(last)), columns, last)

    def get_state(self) -> State:
        """Return the held steps."""
        lanes = zip(self._steps, self._following, strict=True)
        return {str(lane): {"steps": steps, "following": last} for lane, (steps, last) in enumerate(lanes) if steps}

    def set_state(self, state: State) -> None:
        """Restore the held steps."""
        for lane in range(len(self._steps)):
            saved = state.get(str(lane), {"steps": [], "following": {}})
            self._steps[lane], self._following[lane] = list(saved["steps"]), dict(saved["following"])


def _row(columns: Mapping[str, Array], row: int) -> Columns:
    return {name: np.array(column[row : row + 1]) for name, column in columns.items()}


def _zeros(storage: Storage, name: str) -> Array:
    leaf = storage.leaves[name]
    return np.zeros((1, *leaf.shape), leaf.dtype)
