"""Detection of columns of numbers whose resolution float32, the precision of networks, loses."""

from __future__ import annotations

import warnings
from typing import Final

import numpy as np

from birl.dataset.flags import FINAL, UNKNOWN
from birl.dataset.storage import Storage
from birl.errors import ResolutionWarning, outside_birl
from birl.spaces import Continuous
from birl.spaces.observations import map_named_leaves
from birl.types import Array, Tree

FIRST_LOOK: Final = 64
"""Number of steps of an environment at which their resolution is first looked at."""

_CHUNK = 65536
_LOST: Final = 2.5e-4
"""Rounding errors above this share of a column's range lose its resolution: about a thousandth of the deviation."""

_EXAMPLE: Final = "such as x[:, 0] - x[0, 0]"
_SAMPLE: Final = 2048
_LARGE: Final = 2.0**16
"""Values of columns below this one are compared with the range alone: they may differ by noise."""

_NOISE: Final = 1e-10
_MERGED: Final = 0.1
"""Share of the different values that become equal above which resolution is lost, whatever the range."""

_EPSILON: Final = 2.0**-23
_EXACT: Final = 2.0**24
"""Whole numbers up to this one are exact in float32."""


class Resolution:
    """Range of columns, and the error of converting them to float32, over chunks of rows.

    A few outliers or two distant clusters make the range large. A sample of the rows shows whether values become equal.
    """

    def __init__(self) -> None:
        self._low, self._high, self._error = np.array(np.inf), np.array(-np.inf), np.array(0.0)
        self._sample, self._stride = np.zeros((0, 0)), 1

    def add(self, rows: Array) -> None:
        """Add rows ``[n, k]``."""
        if not len(rows):
            return
        low, high = rows.min(axis=0).astype(np.float64), rows.max(axis=0).astype(np.float64)
        largest = np.maximum(np.abs(low), np.abs(high))
        step = largest * _EPSILON  # not less than float32's
        error = np.zeros(len(step))
        if rows.dtype != np.float32 and (largest >= _LARGE).any():
            self._add_to_sample(rows)
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

    def _add_to_sample(self, rows: Array) -> None:
        more = rows[:: self._stride].astype(np.float64)
        self._sample = np.concatenate([self._sample, more]) if len(self._sample) else more
        while len(self._sample) > 2 * _SAMPLE:
            self._sample, self._stride = self._sample[::2].copy(), 2 * self._stride

    def _merged(self) -> tuple[Array, Array]:
        """Return whether too many different values of each column become equal, and the rounding errors."""
        if len(self._sample) < 2:
            return np.zeros(self._low.shape, np.bool_), self._error
        exact = np.sort(self._sample, axis=0)
        rounded = exact.astype(np.float32)
        size = np.maximum(np.abs(exact[1:]), np.abs(exact[:-1]))
        differ = np.diff(exact, axis=0) > _NOISE * size
        equal = differ & (size >= _LARGE) & (rounded[1:] == rounded[:-1])
        error = np.maximum(self._error, np.abs(exact - rounded).max(axis=0))
        return equal.sum(axis=0) > _MERGED * differ.sum(axis=0), error

    def lost(self, names: list[str], rows: int = 1) -> list[str]:
        """Return descriptions of the columns, called ``names``, whose resolution is lost; none without ``rows``."""
        if not rows:
            return []
        spread = self._high - self._low
        merged, error = self._merged()
        columns = np.flatnonzero((spread > 0) & ((self._error > _LOST * spread) | merged)).tolist()
        return [
            f"{names[index]} (from {self._low[index]:.15g} to {self._high[index]:.15g}, rounded by up to "
            f"{error[index]:.3g})"
            for index in columns
        ]


def warn_of_lost_columns(found: list[str], example: str, scalable: bool = False) -> None:
    """Warn of columns that `Resolution.lost` found.

    Args:
        found: descriptions of the columns.
        example: how to subtract an offset.
        scalable: whether observation scalers read all of them in float64.
    """
    if not found:
        return
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    scaled = (
        "become equal without an observation scaler. Set one, such as observation_scaler='standard', which subtracts "
        "in float64 (exported policies take float32 and lose them), or subtract"
        if scalable
        else "become equal, also with a scaler. Subtract"
    )
    warnings.warn(
        f"float32, the precision of networks, loses the resolution of {', '.join(found[:5])}{more}: values that differ "
        f"{scaled} an offset in float64 first, {example}, and the same one wherever the policy acts; or leave the "
        "column out",
        ResolutionWarning,
        stacklevel=outside_birl(),
    )


def warn_of_lost_resolution(storage: Storage, *, known: bool = False) -> None:
    """Find stored observations, continuous actions and rewards whose resolution float32 loses, and warn of them.

    Minibatches get such observations in float64 from now on; see `Storage.fine`.

    Args:
        storage: the steps.
        known: whether there was a warning already, so that none is needed.
    """
    rows = storage.rows(*storage.live())
    flags, fine, lost = storage.flags[rows], list[str](), list[str]()
    steps, seen = rows[(flags & FINAL) == 0], rows[(flags & UNKNOWN) == 0]
    for name, leaf in storage.leaves.items():
        wide = leaf.dtype.kind in "iuf" and leaf.dtype.itemsize >= 4 and len(leaf.shape) < 2
        chosen = name in storage.choices or (name == "action" and not isinstance(storage.info.actions, Continuous))
        if not wide or chosen or name.startswith("extra.") or name in storage.fine:
            continue
        resolution, which = Resolution(), seen if name.startswith("observation") else steps
        for begin in range(0, len(which), _CHUNK):
            part = storage.place.indices(which[begin : begin + _CHUNK])
            resolution.add(storage.place.host(storage.take(name, part)).reshape(len(part), -1))
        label = name.replace("observation", "observations", 1) if name.startswith("observation") else f"{name}s"
        found = resolution.lost([f"{label}[:, {index}]" for index in range(max(leaf.shape, default=1))], len(which))
        if found and name.startswith("observation") and leaf.dtype != np.float32:
            storage.fine |= {name}
            fine += found
        else:
            lost += found
    if not known:
        warn_of_lost_columns(fine, _EXAMPLE, scalable=True)
        warn_of_lost_columns(lost, _EXAMPLE)


def warn_of_lost_rows(observations: Tree) -> None:
    """Warn of observations ``[n, …]`` that are not stored, such as those of rollouts; see `warn_of_lost_resolution`."""
    fine, lost = list[str](), list[str]()

    def look(leaf: Array, name: str) -> None:
        if leaf.dtype.kind in "iuf" and leaf.dtype.itemsize >= 4 and leaf.ndim < 3:
            resolution, rows = Resolution(), leaf.reshape(len(leaf), -1)
            resolution.add(rows)
            names = [f"{name}[:, {index}]" for index in range(rows.shape[1])]
            (lost if leaf.dtype == np.float32 else fine).extend(resolution.lost(names, len(rows)))

    map_named_leaves(look, observations, "observations")
    warn_of_lost_columns(fine, _EXAMPLE, scalable=True)
    warn_of_lost_columns(lost, _EXAMPLE)
