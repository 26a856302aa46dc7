"""Conversion of users' steps to checked columns of a storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from birl.checks import check
from birl.dataset.episode import EpisodeBase
from birl.dataset.flags import FINAL, FIRST, NO_NEXT, TERMINATED, TRUNCATED, UNKNOWN
from birl.dataset.storage import Storage
from birl.dataset.validation import check_allowed, check_finite, check_stored
from birl.errors import DataError, EmptyDataError, ShapeError
from birl.spaces.observations import check_leaf, check_mask
from birl.types import MASK, Array, Leaf, Tree, tree_map


def step_columns(
    storage: Storage,
    observation: Tree,
    action: Any,
    reward: Any,
    extra: Mapping[str, Any] | None,
    count: int | None = None,
) -> dict[str, Array]:
    """Columns of ``count`` steps ``[n, …]``, in the storage's dtypes, or their own if they are new, see `add_extras`.

    Raises:
        ShapeError, NonFiniteError, ActionError: if the steps do not fit.
    """
    values = observation_columns(storage, observation, "observation", count)
    count = len(next(iter(values.values())))
    for name, given in (("action", np.asarray(action)), ("reward", np.asarray(reward))):
        leaf = storage.leaves[name]
        if given.shape != (count, *leaf.shape) and (given.shape != (count,) or leaf.shape != (1,)):
            raise ShapeError(f"{name} has shape {given.shape}; it must have {(count, *leaf.shape)}")
        values[name] = _fit(name, given.reshape(count, *leaf.shape), leaf)
    check_stored(storage.info.actions, values["action"])
    check_allowed(observation, values["action"], storage.info.actions)
    if not isinstance(extra, Mapping | None):
        raise ShapeError(f"extra is {extra!r:.80}; it must be a dict of arrays by name")
    for key, value in (extra or {}).items():
        name, value = f"extra.{key}", np.asarray(value)
        check_rows(f"extra[{key!r}]", value, count)
        leaf = storage.leaves.get(name, Leaf(value.shape[1:], value.dtype))
        values[name] = _fit(name, value, leaf)
    return values


def add_extras(storage: Storage, steps: Mapping[str, Array]) -> None:
    """Add the columns of steps that a storage does not have yet."""
    for name, column in steps.items():
        if name not in storage.leaves:
            storage.add_extra(name, Leaf(column.shape[1:], column.dtype))


def observation_columns(storage: Storage, observation: Tree, name: str, count: int | None = None) -> dict[str, Array]:
    """Observation columns ``[n, …]`` of ``count`` steps; ``name`` is for messages.

    Raises:
        ShapeError, NonFiniteError: if they do not fit.
    """
    columns = {
        path: _fit(path.replace("observation", name, 1), np.asarray(value), storage.leaves[path])
        for path, value in _pairs(storage.observation_names, observation, name)
    }
    for path, column in columns.items():
        count = len(column) if count is None else count
        check_rows(path.replace("observation", name, 1), column, count)
    if storage.info.actions.options:
        check_mask(observation, DataError, f"{name}[{MASK!r}]")
    for path, choices in storage.choices.items():
        check_leaf(choices, columns[path], path.replace("observation", name, 1))
    return columns


def episode_rows(storage: Storage, episode: EpisodeBase) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """The arguments of `Storage.extend` for an episode: flags, columns of its steps, columns of its final row.

    Raises:
        ShapeError, NonFiniteError, ActionError: if it does not fit.
        ConfigError, EmptyDataError: if it is no episode, or has no step.
    """
    check("episode", episode, EpisodeBase, ": make one with birl.dataset.Episode(…)")  # type: ignore[type-abstract]
    if not episode.size():
        raise EmptyDataError("an episode has 0 steps, at least 1 is needed: leave it out")
    extra, final_observation = getattr(episode, "extra", None), getattr(episode, "final_observation", None)
    steps = step_columns(storage, episode.observations, episode.actions, episode.rewards, extra)
    ends = np.arange(episode.size()) == episode.size() - 1
    flags = row_flags(ends & bool(episode.terminated), ends, known=final_observation is not None)
    if final_observation is None:
        return flags, steps, {}
    return flags, steps, observation_columns(storage, first_rows(final_observation), "final_observation")


def row_flags(terminal: Array, ends: Array, *, known: bool) -> Array:
    """Flags of all rows of steps ``[N]`` with a final row after each end, whose observation is known or not."""
    rows = np.arange(len(ends)) + np.cumsum(ends) - ends
    flags = np.full(len(ends) + int(ends.sum()), FINAL if known else FINAL | UNKNOWN, np.uint8)
    cut = ends & ~terminal
    flags[rows] = terminal * TERMINATED + cut * (TRUNCATED if known else TRUNCATED | NO_NEXT)
    flags[rows[np.concatenate([[True], ends[:-1]])]] |= FIRST
    return flags


def check_rows(name: str, array: Array, count: int) -> Array:
    """An array that has a row for each of ``count`` steps; else a `ShapeError`."""
    if array.shape[:1] != (count,):
        raise ShapeError(f"{name} has shape {array.shape} for {count} steps: give one row per step")
    return array


def checked_flags(name: str, given: Any, count: int) -> Array:
    """Bool ``[n]`` for ``count`` steps, of booleans or numbers 0 and 1.

    Raises:
        ShapeError, DataError: if they are not that.
    """
    flags = check_rows(name, np.asarray(given), count)
    if flags.size != count:
        raise ShapeError(f"{name} has shape {flags.shape}; it must have ({count},)")
    if flags.dtype != np.bool_ and (flags.dtype.kind not in "iuf" or not ((flags == 0) | (flags == 1)).all()):
        raise DataError(f"{name} is {given!r:.80}; it must be true or false for each step")
    return flags.reshape(count).astype(np.bool_, copy=False)


def first_rows(tree: Tree) -> Tree:
    """One item as arrays with one row."""
    return tree_map(lambda leaf: np.asarray(leaf)[None], tree)


def _pairs(names: Tree, tree: Tree, path: str) -> Iterator[tuple[str, Any]]:
    """Column names with the leaves of an observation of the same structure."""
    if isinstance(names, str):
        yield names, tree
    elif isinstance(names, dict):
        if not isinstance(tree, Mapping) or set(tree) != set(names):
            given = sorted(tree) if isinstance(tree, Mapping) else type(tree).__name__
            raise ShapeError(f"{path} is {given}; it must be a dict with the keys {sorted(names)}")
        for key, item in names.items():
            yield from _pairs(item, tree[key], path)
    else:
        if not isinstance(tree, tuple | list) or len(tree) != len(names):
            raise ShapeError(f"{path} is {type(tree).__name__}; it must be a tuple of {len(names)} arrays")
        for item, value in zip(names, tree, strict=True):
            yield from _pairs(item, value, path)


def _fit(name: str, array: Array, leaf: Leaf) -> Array:
    """``array`` ``[n, …]`` in the leaf's dtype, if shape and values allow."""
    if array.dtype.kind not in "biuf":
        raise ShapeError(f"{name} is {array.dtype}; it must hold numbers")
    if array.shape[1:] != leaf.shape:
        raise ShapeError(
            f"{name} is {array.dtype} of shape {array.shape[1:]}; it must be {leaf.dtype} of shape {leaf.shape}"
        )
    check_finite(name, array)
    if array.dtype == leaf.dtype:
        return array
    converted = array.astype(leaf.dtype)
    if not np.can_cast(array.dtype, leaf.dtype, "same_kind") and not np.array_equal(converted, array):
        raise ShapeError(f"{name} is {array.dtype} and does not fit into {leaf.dtype} without loss: convert it")
    return converted
