"""Conversion of users' steps for a storage: checked columns, flags of rows, and runs of steps in a lane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from birl.dataset.arrays import ranges
from birl.dataset.episode import EpisodeBase, check_episodes
from birl.dataset.flags import FINAL, FIRST, NO_NEXT, TERMINATED, TRUNCATED, UNKNOWN
from birl.dataset.storage import Storage, evict, steps_to_evict
from birl.dataset.validation import check_finite, check_mask_allows, check_stored
from birl.errors import DataError, EmptyDataError, ShapeError
from birl.spaces.conversion import to_array
from birl.spaces.observations import (
    check_action_mask,
    check_observation_leaf,
    merge_columns,
    order_actions,
    order_tables,
)
from birl.types import MASK, Array, ArraySpec, Tree, tree_map


def step_columns(
    storage: Storage,
    observation: Tree,
    action: npt.ArrayLike,
    reward: npt.ArrayLike,
    extra: Mapping[str, npt.ArrayLike] | None,
    count: int | None = None,
) -> dict[str, Array]:
    """Convert ``count`` steps ``[n, …]`` to columns in the storage's dtypes.

    Extra columns that the storage lacks keep their dtypes; see `add_extra_columns`.

    Raises:
        ShapeError, NonFiniteError, ActionError: if the steps do not fit.
    """
    values = observation_columns(storage, observation, "observation", count)
    count = len(next(iter(values.values())))
    for name, given in (("action", to_array("action", action)), ("reward", to_array("reward", reward))):
        leaf = storage.leaves[name]
        if given.shape != (count, *leaf.shape) and (given.shape != (count,) or leaf.shape != (1,)):
            raise ShapeError(f"{name} has shape {given.shape}; it must have {(count, *leaf.shape)}")
        values[name] = _convert(name, given.reshape(count, *leaf.shape), leaf)
    check_stored(storage.info.actions, values["action"])
    check_mask_allows(observation, values["action"], storage.info.actions)
    if not isinstance(extra, Mapping | None):
        raise ShapeError(f"extra is {extra!r:.80}; it must be a dict of arrays by name")
    for key, item in (extra or {}).items():
        name, value = f"extra.{key}", to_array(f"extra[{key!r}]", item)
        _check_row_count(f"extra[{key!r}]", value, count)
        leaf = storage.leaves.get(name, ArraySpec(value.shape[1:], value.dtype))
        values[name] = _convert(name, value, leaf)
    return values


def add_extra_columns(storage: Storage, steps: Mapping[str, Array]) -> None:
    """Add the columns of ``steps`` that the storage does not have yet."""
    for name, column in steps.items():
        if name not in storage.leaves:
            storage.add_extra(name, ArraySpec(column.shape[1:], column.dtype))


def observation_columns(storage: Storage, observation: Tree, name: str, count: int | None = None) -> dict[str, Array]:
    """Convert the observations of ``count`` steps to columns ``[n, …]``; error messages call them ``name``.

    Raises:
        ShapeError, NonFiniteError: if they do not fit.
    """
    columns: dict[str, Array] = {}
    for path, value in _named_leaves(storage.observation_names, observation, name):
        label = path.replace("observation", name, 1)
        columns[path] = _convert(label, to_array(label, value), storage.leaves[path])
    for path, column in columns.items():
        count = len(column) if count is None else count
        _check_row_count(path.replace("observation", name, 1), column, count)
    if storage.info.actions.options:
        check_action_mask(observation, DataError, f"{name}[{MASK!r}]")
    for path, choices in storage.choices.items():
        check_observation_leaf(choices, columns[path], path.replace("observation", name, 1))
    return columns


def episode_rows(storage: Storage, episode: EpisodeBase) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """Convert an episode to the arguments of `Storage.extend`: flags, columns of its steps and of its final row.

    Raises:
        ShapeError, NonFiniteError, ActionError: if it does not fit.
        ConfigError, EmptyDataError: if it is not an episode, or has no step.
    """
    check_episodes([episode])
    if not episode.size():
        raise EmptyDataError("an episode has 0 steps, at least 1 is needed: leave it out")
    columns = storage.info.columns
    merge_columns(columns, getattr(episode, "columns", None) or {}, "the buffer", "the episode")
    extra, final_observation = getattr(episode, "extra", None), getattr(episode, "final_observation", None)
    observations = order_tables("observations", episode.observations, columns)  # an `Episode` has arrays
    actions = order_actions("actions", episode.actions, columns)
    steps = step_columns(storage, observations, actions, episode.rewards, extra)
    ends = np.arange(episode.size()) == episode.size() - 1
    flags = row_flags(ends & bool(episode.terminated), ends, known=final_observation is not None)
    if final_observation is None:
        return flags, steps, {}
    return (
        flags,
        steps,
        observation_columns(storage, add_row_axis("final_observation", final_observation), "final_observation"),
    )


def row_flags(terminal: Array, ends: Array, *, known: bool | Array) -> Array:
    """Return the flags of the rows of steps ``[N]``, with a final row after each of the ``ends``.

    Args:
        terminal: bool ``[N]``: the environment ended the episode with this step.
        ends: bool ``[N]``: the step is the last of its episode.
        known: whether the observations in the final rows are known, or bool ``[N]``, which counts at the ends.
    """
    rows, known = np.arange(len(ends)) + np.cumsum(ends) - ends, np.broadcast_to(known, ends.shape)
    flags = np.zeros(len(ends) + int(ends.sum()), np.uint8)
    flags[rows[ends] + 1] = np.where(known[ends], FINAL, FINAL | UNKNOWN)
    cut = ends & ~terminal
    flags[rows] = terminal * TERMINATED + cut * np.where(known, TRUNCATED, TRUNCATED | NO_NEXT)
    flags[rows[np.concatenate([[True], ends[:-1]])]] |= FIRST
    return flags


def add_row_axis(name: str, tree: Tree) -> Tree:
    """Convert one item, called ``name`` in messages, to arrays with one row."""
    return tree_map(lambda leaf: to_array(name, leaf)[None], tree)


def _check_row_count(name: str, array: Array, count: int) -> None:
    if array.shape[:1] != (count,):
        raise ShapeError(f"{name} has shape {array.shape} for {count} steps: give one row per step")


def _named_leaves(names: Tree, tree: Tree, path: str) -> Iterator[tuple[str, npt.ArrayLike]]:
    """Yield column names with the leaves of an observation, which must have the same structure."""
    if isinstance(names, str):
        yield names, tree
    elif isinstance(names, dict):
        if not isinstance(tree, Mapping) or set(tree) != set(names):
            given = sorted(tree) if isinstance(tree, Mapping) else type(tree).__name__
            raise ShapeError(f"{path} is {given}; it must be a dict with the keys {sorted(names)}")
        for key, item in names.items():
            yield from _named_leaves(item, tree[key], path)
    else:
        if not isinstance(tree, tuple | list) or len(tree) != len(names):
            raise ShapeError(f"{path} is {type(tree).__name__}; it must be a tuple of {len(names)} arrays")
        for item, value in zip(names, tree, strict=True):
            yield from _named_leaves(item, value, path)


def _convert(name: str, array: Array, leaf: ArraySpec) -> Array:
    """Convert ``array`` ``[n, …]`` to the leaf's dtype, if its shape and values allow that."""
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


# -- several steps at once -----------------------------------------------------------------------------------------


def lane_numbers(lanes: int | Sequence[int] | Array, count: int) -> Array:
    """Return the lanes ``[N]`` of steps as int64; a single number is one lane.

    Args:
        lanes: the user's argument.
        count: number of lanes of the storage.

    Raises:
        ShapeError: if they are not lanes of the storage.
    """
    try:
        given = np.atleast_1d(np.asarray(lanes))
    except ValueError:  # lists of different lengths
        given = np.zeros((0, 0))
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ShapeError(f"lanes is {lanes!r:.80}; it must be one whole number for each row, such as [0, 2]")
    wrong = given[(given < 0) | (given >= count)]
    if wrong.size:
        raise ShapeError(f"lane={wrong[0]}, this buffer has lanes 0 … {count - 1}: make it with lanes=")
    return given.astype(np.int64, copy=False)


class Steps(NamedTuple):
    """Steps with known next observations, as columns ``[N, …]``. Steps of the same lane follow one another.

    Attributes:
        lanes: lane ``[N]`` of each step.
        values, following, ending: see `Storage.append`.
        turn: see `turns_in_lanes`.
    """

    lanes: Array
    values: Mapping[str, Array]
    following: Mapping[str, Array]
    ending: Array
    turn: Array | None = None

    def select(self, rows: Array) -> Steps:
        """Return the steps at ``rows``, which are numbers or a mask ``[N]``."""
        values, following = _select(self.values, rows), _select(self.following, rows)
        turn = None if self.turn is None else self.turn[rows]
        return Steps(self.lanes[rows], values, following, self.ending[rows], turn)


def turns_in_lanes(lanes: Array) -> Array | None:
    """Return the index of each step ``[N]`` among the steps of its lane; ``None`` if no lane occurs twice."""
    if len(lanes) < 2 or (counts := np.bincount(lanes)).max() < 2:
        return None
    turn = np.zeros(len(lanes), np.int64)
    turn[np.argsort(lanes, kind="stable")] = ranges(np.zeros_like(counts), counts)[1]
    return turn


def append_steps(storage: Storage, steps: Steps, mask: Array | None) -> None:
    """Append steps, or those where ``mask`` ``[N]`` is true.

    The storage then holds the same rows as if the first steps of all lanes had been appended together, then the second
    steps, and so on.
    """
    if mask is not None and not mask.all():
        steps = steps.select(mask)
    if not len(steps.lanes):
        return
    if steps.turn is None:
        storage.append(steps.lanes, steps.values, steps.following, steps.ending if steps.ending.any() else None)
    else:
        _append_turns(storage, steps, steps.turn)


def _append_turns(storage: Storage, steps: Steps, turn: Array) -> None:
    """Append the steps of all lanes: together if possible, else in two halves of the turns."""
    first, last = turn.min(), turn.max()
    if first == last:
        storage.append(steps.lanes, steps.values, steps.following, steps.ending)
        return
    counts = np.bincount(steps.lanes, minlength=storage.lanes)
    evicted = _evicted_by(storage, steps, counts)
    if evicted is None:
        for half in (turn <= (first + last) // 2, turn > (first + last) // 2):
            _append_turns(storage, steps.select(half), turn[half])
        return
    if evicted.any():
        evict(storage, evicted)  # first, to make room
    for lane in np.flatnonzero(counts).tolist():
        _append_run(storage, lane, steps.select(np.flatnonzero(steps.lanes == lane)))
    storage.end_write()


def _evicted_by(storage: Storage, steps: Steps, counts: Array) -> Array | None:
    """Return how many steps each lane evicts for ``counts`` new ones; ``None`` if they may not be written at once.

    Steps are written one at a time if a journal limits the loss by a kill to one step, if some of the new steps might
    be evicted again, or if the ring might have grown in between, because samples depend on the rows of the steps.
    """
    if storage.whole or storage.journal is not None:
        return None
    complete = storage.steps - (storage.pending & (counts == 0))
    excess = 0 if storage.limit is None else int(complete.sum() + counts.sum()) - storage.limit
    if excess <= 0:
        return np.zeros(storage.lanes, np.int64)
    evicted, written = steps_to_evict(storage, excess, complete + counts), counts > 0
    if excess < counts.sum() or ((evicted >= storage.steps) & (evicted > 0))[written].any():
        return None
    # the largest number of rows in each lane if the steps were written one at a time
    most = np.minimum(storage.steps + counts, storage.steps.max() + np.count_nonzero(written))
    finals = storage.end - storage.start - storage.steps + np.bincount(steps.lanes, steps.ending > 0, storage.lanes)
    return evicted if (most + finals + 2)[written].max() <= storage.capacity else None


def _append_run(storage: Storage, lane: int, steps: Steps) -> None:
    """Append consecutive steps of one lane."""
    ends, runs = steps.ending != 0, not steps.ending[-1]
    ends[-1] = True
    flags = row_flags(steps.ending == TERMINATED, ends, known=True)
    if runs:
        flags[-2] &= FIRST
    if storage.open[lane]:
        flags[0] &= 255 - FIRST
    needed = int(storage.end[lane] - storage.start[lane]) - storage.open[lane] + len(flags)
    while storage.capacity < needed:  # grow as for steps that are appended one by one
        storage.reserve(storage.capacity + 1)
    storage.write_run(lane, flags, steps.values, _select(steps.following, ends), runs)


def _select(columns: Mapping[str, Array], rows: Array) -> dict[str, Array]:
    return {name: column[rows] for name, column in columns.items()}
