"""Policies that learned from the rows that evaluate them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from birl.dataset.base import ReplayBufferBase
from birl.dataset.log_record import LogRecord
from birl.dataset.logs.row_digests import row_digests
from birl.dataset.row_sketch import RowSketch
from birl.types import Array


class HeldOutRows:
    """The rows of a dataset, whose digests are computed when they are first needed, and again after a write.

    Args:
        dataset: the dataset.
    """

    def __init__(self, dataset: ReplayBufferBase) -> None:
        self._dataset = dataset

    @property
    def digests(self) -> Array:
        """Digests of all rows, ``[N]``."""
        storages = self._dataset.reader.storages
        return np.concatenate([each.cached("row digests", partial(row_digests, each)) for each in storages])

    def seen_by(self, policies: Mapping[str, object]) -> set[str]:
        """Return the names of the policies that learned from logs with some of these rows, by their records.

        Only policies that learned from imported logs have a record.
        """
        own = self._dataset.logs
        found = set()
        for name, policy in policies.items():
            logs = getattr(policy, "logs", None)
            if not isinstance(logs, LogRecord):
                continue
            if (own is not None and logs.shares(own)) or (logs.rows is not None and self.shared_with(logs.rows)):
                found.add(name)
        return found

    def shared_with(self, rows: RowSketch) -> float:
        """Return the share of the rows that are also among others; 0 if chance explains it."""
        return rows.shared_with(self.digests)
