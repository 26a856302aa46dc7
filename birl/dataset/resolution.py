"""Detection of columns of numbers whose resolution float32, the precision of networks, loses."""

from __future__ import annotations

import warnings
from typing import Final

import numpy as np

from birl.dataset.flags import FINAL, UNKNOWN
from birl.dataset.storage import Storage
from birl.errors import ResolutionWarning, outside_birl
from birl.spaces import Continuous
from birl.types import Array

_CHUNK = 65536
_LOST: Final = 2.5e-4
"""Rounding errors above this share of a column's range lose its resolution: about a thousandth of the deviation."""

_EPSILON: Final = 2.0**-23
_EXACT: Final = 2.0**24
"""Whole numbers up to this one are exact in float32."""


class Resolution:
    """Range of columns, and the error of converting them to float32, over chunks of rows."""

    def __init__(self) -> None:
        self._low, self._high, self._error = np.array(np.inf), np.array(-np.inf), np.array(0.0)

    def add(self, rows: Array) -> None:
        """Add rows ``[n, k]``."""
        if not len(rows):
            return
        low, high = rows.min(axis=0).astype(np.float64), rows.max(axis=0).astype(np.float64)
        largest = np.maximum(np.abs(low), np.abs(high))
        step = largest * _EPSILON  # not less than float32's
        error = np.zeros(len(step))
        # the error is half a step at most, so that most columns need no conversion
        suspicious = np.flatnonzero(step > _LOST * (high - low))
        if suspicious.size:
            values = rows[:, suspicious]
            exact = values.astype(np.float64)
            if rows.dtype == np.float32:  # the error was made before, unless the numbers are exact
                whole = (exact == np.floor(exact)).all(axis=0) & (largest[suspicious] <= _EXACT)
                error[suspicious] = np.where(whole, 0.0, step[suspicious] / 2)
            else:
                error[suspicious] = np.abs(exact - exact.astype(np.float32)).max(axis=0)
        self._low, self._high = np.minimum(self._low, low), np.maximum(self._high, high)
        self._error = np.maximum(self._error, error)

    def lost(self, names: list[str]) -> list[str]:
        """Return descriptions of the columns, called ``names``, whose resolution is lost."""
        spread = self._high - self._low
        columns = np.flatnonzero((spread > 0) & (self._error > _LOST * spread)).tolist()
        return [
            f"{names[index]} (from {self._low[index]:.15g} to {self._high[index]:.15g}, rounded by up to "
            f"{self._error[index]:.3g})"
            for index in columns
        ]


def warn_of_lost_columns(found: list[str], example: str) -> None:
    """Warn of columns that `Resolution.lost` found; ``example`` is how to subtract an offset."""
    if not found:
        return
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    warnings.warn(
        f"float32, the precision of networks, loses the resolution of {', '.join(found[:5])}{more}: values that differ "
        f"become equal, also with a scaler. Subtract an offset in float64 first, {example}, and the same one wherever "
        "the policy acts; or leave the column out",
        ResolutionWarning,
        stacklevel=outside_birl(),
    )


def warn_of_lost_resolution(storage: Storage) -> None:
    """Warn of stored observations, continuous actions and rewards whose resolution float32 loses."""
    rows = storage.rows(*storage.live())
    flags, found = storage.flags[rows], list[str]()
    steps, seen = rows[(flags & FINAL) == 0], rows[(flags & UNKNOWN) == 0]
    for name, leaf in storage.leaves.items():
        wide = leaf.dtype.kind in "iuf" and leaf.dtype.itemsize >= 4 and len(leaf.shape) < 2
        chosen = name in storage.choices or (name == "action" and not isinstance(storage.info.actions, Continuous))
        if not wide or chosen or name.startswith("extra."):
            continue
        resolution, which = Resolution(), seen if name.startswith("observation") else steps
        for begin in range(0, len(which), _CHUNK):
            part = storage.place.indices(which[begin : begin + _CHUNK])
            resolution.add(storage.place.host(storage.take(name, part)).reshape(len(part), -1))
        label = name.replace("observation", "observations", 1) if name.startswith("observation") else f"{name}s"
        if len(which):
            found += resolution.lost([f"{label}[:, {index}]" for index in range(max(leaf.shape, default=1))])
    warn_of_lost_columns(found, "such as x[:, 0] - x[0, 0]")
