"""Digests of stored steps."""

from __future__ import annotations

import math

import numpy as np

from birl.dataset.flags import FINAL
from birl.dataset.logs.columns import chunk_rows
from birl.dataset.row_sketch import hash_rows
from birl.dataset.storage import Storage
from birl.types import MASK, Array, tree_leaves


def row_digests(storage: Storage) -> Array:
    """Return the digests of all steps, ``[N]``, in any order."""
    lane, position = storage.live()
    rows = storage.rows(lane, position)
    rows = rows[(storage.flags[rows] & FINAL) == 0]
    leaves = [name for name in tree_leaves(storage.observation_names) if name.split(".")[-1] != MASK]
    width = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in storage.leaves.values())
    size, parts = chunk_rows(width), [np.zeros(0, np.uint64)]
    for begin in range(0, len(rows), size):
        part = rows[begin : begin + size]
        columns = [
            np.asarray(storage.place.host(storage.take(name, storage.place.indices(part))))
            for name in (*leaves, "action", "reward")
        ]
        columns[-1] = columns[-1].astype(np.float32)
        parts.append(hash_rows(columns))
    return np.concatenate(parts)
