"""Export of episodes to a Parquet file, with the schema with which birl imports it again."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from birl.dataset.arrays import ranges
from birl.dataset.base import ReplayBufferBase
from birl.dataset.episode import Episode
from birl.dataset.log_schema import ActionColumns, LogSchema, ObservationColumn, PropensityColumn, RewardColumn
from birl.dataset.logs.columns import ArrowArray, ArrowTable, chunk_rows
from birl.errors import EmptyDataError, UnsupportedError, WriteError, require
from birl.files import atomic_write
from birl.files.atomic import convert_to_write_error
from birl.spaces import Continuous, Discrete
from birl.spaces.observations import Numbers, map_named_leaves
from birl.types import MASK, Array, Tree, without_mask

_KNOWN_AT: Final = "reward_known_at"
"""Column of the times of steps whose rewards are final."""


def write_parquet(
    dataset: ReplayBufferBase, path: str | os.PathLike[str], *, loggers: Sequence[object] = ()
) -> dict[str, Any]:
    """Write the steps of a dataset as rows of a Parquet file, in chunks of episodes.

    The columns are ``episode`` and ``step``, counted from 0; ``observation``, or ``observation.<part>`` for each part,
    and ``action_mask``; ``action``, ``reward``, ``terminated`` and ``truncated``; the extra columns under their names
    (``extra.<name>`` if the name is taken); and ``final_observation``, in the last row of an episode, if it is known.
    Arrays ``[k]`` are lists.

    A schema file with the suffix ``.toml`` is written next to it. With it, an import restores the same episodes,
    including propensities, loggers, clusters, times and pending rewards. There is a schema only for vector
    observations, with or without a mask, and for discrete or continuous actions. An import does not read final
    observations, so the last step of a truncated episode is then no transition.

    Args:
        dataset: the episodes.
        path: the file.
        loggers: names of loggers; the extra column ``logger`` holds indices into them.

    Returns:
        The numbers of ``episodes`` and ``rows``, and whether there is a ``schema``.

    Raises:
        UnsupportedError: for arrays with more than one dimension, such as images.
        EmptyDataError: if there are no episodes.
        WriteError: if a file exists already or cannot be written.
        MissingExtraError: if pyarrow is not installed.
    """
    parquet, file = require("pyarrow.parquet", "logs"), Path(path).absolute()
    schema_file = file.with_suffix(".toml")
    for each in (file, schema_file):
        if each.exists():
            raise WriteError(f"{each} exists already: give another name, or remove it first")
    found = {"episodes": 0, "rows": 0}
    has_times = True
    with convert_to_write_error(path):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=file.parent) as work:
            with contextlib.ExitStack() as stack:
                writer = None
                for episodes in _episode_chunks(dataset.episodes):
                    table = _make_table(episodes, found["episodes"], loggers)
                    if writer is None:
                        writer = stack.enter_context(parquet.ParquetWriter(Path(work) / "steps", table.schema))
                    writer.write_table(table)
                    found["episodes"] += len(episodes)
                    found["rows"] += table.num_rows
                    has_times &= all(map(_has_increasing_times, episodes))
            if writer is None:
                raise EmptyDataError("the dataset has no episodes: there is nothing to export")
            os.replace(Path(work) / "steps", file)
    schema = _make_schema(dataset, has_times)
    if schema is not None:
        atomic_write(schema_file, schema.text().encode())
    return {**found, "schema": schema is not None}


def _episode_chunks(episodes: Sequence[Episode]) -> Iterator[list[Episode]]:
    """Iterate over chunks of episodes."""
    chunk: list[Episode] = []
    rows = 0
    for episode in episodes:
        chunk.append(episode)
        rows += len(episode)
        width = sum(array[:1].nbytes for array in _named_arrays(episode.observations).values())
        if rows >= chunk_rows(width):
            yield chunk
            chunk, rows = [], 0
    if chunk:
        yield chunk


def _named_arrays(tree: Tree) -> dict[str, Any]:
    """Return the leaves of an observation tree, by column name."""
    found: dict[str, Any] = {}

    def add(leaf: object, name: str) -> None:
        found[f"observation{name and '.'}{name}"] = leaf

    map_named_leaves(add, without_mask(tree))
    if isinstance(tree, dict) and MASK in tree:
        found[MASK] = tree[MASK]
    return found


def _make_table(episodes: Sequence[Episode], first: int, loggers: Sequence[object]) -> ArrowTable:
    """Make a table of the steps of these episodes; ``first`` is the number of the first episode."""
    arrow = require("pyarrow", "logs")
    lengths = np.array([len(episode) for episode in episodes])
    ends = lengths.cumsum() - 1
    number, step = ranges(np.zeros_like(lengths), lengths)
    columns: dict[str, Any] = {"episode": first + number, "step": step}
    seen = [_named_arrays(episode.observations) for episode in episodes]
    for name in seen[0]:
        columns[name] = np.concatenate([each[name] for each in seen])
    for name in ("actions", "rewards"):
        values = np.concatenate([getattr(episode, name) for episode in episodes])
        columns[name[:-1]] = values[:, 0] if values.shape[1:] == (1,) else values
    for name in ("terminated", "truncated"):
        columns[name] = np.zeros(lengths.sum(), bool)
        columns[name][ends] = [getattr(episode, name) for episode in episodes]
    for name in episodes[0].extra or {}:
        values = np.concatenate([(episode.extra or {})[name] for episode in episodes])
        if name == "logger" and len(loggers):
            values = np.array([str(each) for each in loggers])[values]
        columns[f"extra.{name}" if name in columns or name.startswith("final_") else name] = values
    arrays = {name: _make_column(name, values, None) for name, values in columns.items()}
    if "reward_pending" in columns and "time" in columns:  # an import marks missing times of rewards again
        arrays[_KNOWN_AT] = _make_column(_KNOWN_AT, columns["time"], columns["reward_pending"] != 0)
    last = zip(ends, (episode.final_observation for episode in episodes), strict=True)
    finals = [(end, _named_arrays(final)) for end, final in last if final is not None]
    for name, values in seen[0].items():
        missing = np.ones(lengths.sum(), bool)
        rows = np.zeros((len(missing), *values.shape[1:]), values.dtype)
        for end, final in finals:
            missing[end], rows[end] = False, final[name]
        arrays[f"final_{name}"] = _make_column(name, rows, missing)
    return arrow.table(arrays)


def _make_column(name: str, values: Array, missing: Array | None) -> ArrowArray:
    if values.ndim > 2:
        raise UnsupportedError(
            f"{name} has the shape {values.shape[1:]} in each step; columns hold numbers or lists of them: export to "
            "Minari, or write an .h5 file (dump)"
        )
    arrow = require("pyarrow", "logs")
    if values.ndim == 1:
        return arrow.array(values, mask=missing)
    if missing is None:
        return arrow.FixedSizeListArray.from_arrays(arrow.array(values.ravel()), values.shape[1])
    # Lists of any length: before PyArrow 26, Parquet files with missing lists of a fixed length cannot be read
    offsets = np.concatenate([[0], np.cumsum(np.where(missing, 0, values.shape[1]))])
    return arrow.ListArray.from_arrays(offsets, arrow.array(values[~missing].ravel()), mask=arrow.array(missing))


def _has_increasing_times(episode: Episode) -> bool:
    """Return whether the extra column ``time`` increases from step to step."""
    time = (episode.extra or {}).get("time")
    return time is not None and time.ndim == 1 and bool(np.isfinite(time).all() and (np.diff(time) > 0).all())


def _make_schema(dataset: ReplayBufferBase, has_times: bool) -> LogSchema | None:
    """Return the schema of the exported columns; ``None`` if these observations or actions have none."""
    info = dataset.dataset_info
    actions, parts = info.actions, _named_arrays(info.observations)
    mask = parts.pop(MASK, None)
    if len(parts) != 1 or not all(isinstance(part, Numbers) for part in parts.values()):
        return None
    if not isinstance(actions, Discrete | Continuous) or (isinstance(actions, Discrete) and actions.start):
        return None
    if isinstance(actions, Discrete):
        action = ActionColumns(kind="discrete", column="action", size=actions.size, mask=None if mask is None else MASK)
    else:
        action = ActionColumns(kind="continuous", column="action")
    extra = dataset.episodes[0].extra or {}
    propensity = None
    if "propensities" in extra:
        propensity = PropensityColumn(column="propensities", kind="vector")
    elif "log_propensity" in extra:
        propensity = PropensityColumn(column="log_propensity", kind="log" if actions.discrete else "log_density")
    return LogSchema(
        episode="episode",
        observation=tuple(ObservationColumn(column=name) for name in parts),
        action=action,
        reward=RewardColumn(column="reward", known_at=_KNOWN_AT if has_times and "reward_pending" in extra else None),
        propensity=propensity,
        time="time" if has_times else None,
        terminated="terminated",
        truncated="truncated",
        unmarked="truncated",  # the episode that is still running
        logger="logger" if "logger" in extra else None,
        cluster="cluster" if "cluster" in extra else None,
    )
