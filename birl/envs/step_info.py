"""Named entries of the ``info`` of a step, as arrays with one row for each environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from birl.errors import EnvironmentMismatchError
from birl.spaces.conversion import to_array
from birl.types import Array


class StepInfo(NamedTuple):
    """The ``info`` of a step, in the form of the environment.

    Attributes:
        info: the dict of ``step``.
        single: whether it is that of a single environment, without a first dimension.
    """

    info: Mapping[str, Any]
    single: bool

    def columns(self, keys: Sequence[str], valid: Array, step: int) -> dict[str, Array]:
        """Return entries as columns ``[n, …]`` of bools or float64.

        Args:
            keys: names of the entries.
            valid: bool ``[n]``: environments whose entries are read; the rows of others are 0. Without any, there are
                no columns.
            step: number of the step, for messages.

        Raises:
            EnvironmentMismatchError: if an environment lacks an entry, or it is no number or array of numbers.
        """
        if not valid.any():
            return {}
        return {key: self._column(key, valid, step) for key in keys}

    def _column(self, key: str, valid: Array, step: int) -> Array:
        rows = [self._entry(key, i) if real else None for i, real in enumerate(valid.tolist())]
        arrays = [None if row is None else _number(key, row, i, step) for i, row in enumerate(rows)]
        missing = [i for i, (array, real) in enumerate(zip(arrays, valid, strict=True)) if array is None and real]
        if missing:
            names = sorted(map(str, self.info))
            raise EnvironmentMismatchError(
                f"info of environment {missing[0]} has no {key!r} in step {step}, but {names!s:.200}; it must have "
                f"every entry that info_keys names, in every step: add info[{key!r}] to the environment, or leave it "
                "out of info_keys"
            )
        shapes = {array.shape for array in arrays if array is not None}
        if len(shapes) > 1:
            raise EnvironmentMismatchError(
                f"info[{key!r}] has the shapes {sorted(shapes)} in step {step}; it must have one: correct the "
                "environment"
            )
        like = next((array for array in arrays if array is not None), np.zeros(()))
        return np.stack([np.zeros_like(like) if array is None else array for array in arrays])

    def _entry(self, key: str, index: int) -> object:
        """Return the entry of one environment; ``None`` if it lacks it. Its own final info comes first."""
        if self.single:
            return self.info.get(key)
        final = self.info.get("final_info")
        if final is not None and not isinstance(final, Mapping):  # a dict, or None, for each environment
            own = final[index]
            if isinstance(own, Mapping):
                return own.get(key)
        for info in (final, self.info):
            if isinstance(info, Mapping) and key in info and info.get(f"_{key}", np.ones(index + 1))[index]:
                entry: object = info[key][index]
                return entry
        return None


def _number(key: str, value: object, index: int, step: int) -> Array:
    try:
        array = to_array(f"info[{key!r}]", value)
    except Exception as error:
        raise EnvironmentMismatchError(_wrong(key, value, index, step)) from error
    if array.dtype.kind not in "biuf":
        raise EnvironmentMismatchError(_wrong(key, value, index, step))
    return array if array.dtype.kind == "b" else array.astype(np.float64)


def _wrong(key: str, value: object, index: int, step: int) -> str:
    return (
        f"info[{key!r}] of environment {index} is {value!r:.80} in step {step}; it must be a number or an array of "
        "numbers of one shape: leave it out of info_keys"
    )
