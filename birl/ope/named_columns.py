"""Columns of observations by the names that they have in a log: numbers, and categories from their one-hot elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from birl.errors import ConfigError, did_you_mean
from birl.spaces.conversion import Columns
from birl.types import MASK, Array, Tree


@dataclass(frozen=True, eq=False)
class NamedColumn:
    """The values of a column.

    Attributes:
        values: numbers, or indices of categories, float64 ``[N]``; NaN where they are missing.
        labels: the categories; empty for numbers.
    """

    values: Array
    labels: tuple[str, ...] = ()


class ObservationColumns:
    """Reader of the columns of observations.

    A column of numbers has the name of its element; elements ``channel = app`` and ``channel = web`` are the column
    ``channel`` with two categories, and ``hours is missing`` marks the missing numbers of ``hours``. Elements of arrays
    without names are called ``observation[0]``, or ``arm[0]`` in the part ``arm``.

    Args:
        columns: names of the elements, as in `birl.dataset.DatasetInfo.columns`.
        observations: observations, or an example, as a tree of arrays ``[N, …]``.
    """

    def __init__(self, columns: Columns, observations: Tree) -> None:
        self._elements: dict[str, tuple[tuple[str | int, ...], int | None]] = {}
        self._categories: dict[str, dict[str, str]] = {}
        for path, leaf in _leaves(observations):
            if path[-1:] == (MASK,):
                continue
            name = ".".join(("observation", *map(str, path)))
            count = leaf.shape[1] if leaf.ndim == 2 else 1 if leaf.ndim == 1 else 0
            short = name.removeprefix("observation.")
            unnamed = (short,) if leaf.ndim == 1 else tuple(f"{short}[{index}]" for index in range(count))
            for index, each in enumerate(columns.get(name, unnamed)):
                self._elements[each] = (path, index if leaf.ndim == 2 else None)
                column, equal, value = each.partition(" = ")
                if equal:
                    self._categories.setdefault(column, {})[value] = each
        for column, values in self._categories.items():
            if f"{column} is unknown" in self._elements:
                values["unknown"] = f"{column} is unknown"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns, without those that are elements of others."""
        hidden = {each for values in self._categories.values() for each in values.values()}
        numbers = [each for each in self._elements if each not in hidden and not each.endswith(" is missing")]
        return (*numbers, *self._categories)

    def read(self, name: str, observations: Tree, why: str) -> NamedColumn:
        """Return a column.

        Args:
            name: its name.
            observations: observations as a tree of arrays ``[N, …]``.
            why: what asks for it, for messages.

        Raises:
            ConfigError: if there is no such column.
        """
        if name in self._categories:
            hot = np.stack([self._element(each, observations) for each in self._categories[name].values()], -1)
            values = np.where(hot.any(-1), hot.argmax(-1), np.nan)
            return NamedColumn(values, tuple(self._categories[name]))
        if name not in self._elements:
            raise ConfigError(
                f"{why}: there is no column {name!r:.60}{did_you_mean(name, self.names)}; the columns of the "
                f"observations are {', '.join(self.names)!s:.300}: give one of them"
            )
        values = self._element(name, observations)
        if f"{name} is missing" in self._elements:
            values = np.where(self._element(f"{name} is missing", observations) > 0, np.nan, values)
        return NamedColumn(values)

    def count(self, observations: Tree) -> int:
        """Return the number of observations."""
        return len(next(leaf for _, leaf in _leaves(observations)))

    def _element(self, name: str, observations: Tree) -> Array:
        path, index = self._elements[name]
        leaf = observations
        for key in path:
            leaf = leaf[key]
        column = np.asarray(leaf) if index is None else np.asarray(leaf)[:, index]
        return np.asarray(column, np.float64)


def _leaves(tree: Tree, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Array]]:
    """Iterate over the leaves of a tree with their paths."""
    if isinstance(tree, dict | tuple | list):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, part in items:
            yield from _leaves(part, (*path, key))
    else:
        yield path, np.asarray(tree)
