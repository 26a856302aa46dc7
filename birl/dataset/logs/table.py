"""Conversion of tables to episodes: `from_table`, and the importer of chunks that it uses.

The importer checks and encodes the rows chunk by chunk and stores them in the order of the log: in memory, or in files
of a temporary folder if the result is a folder. Only episode, time and flags of each row, which determine the order of
the rows and the ends of episodes, always stay in memory. The importer then writes the episodes in chunks, with the same
checks as for all other data.
"""

from __future__ import annotations

import bisect
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from birl.checks import check
from birl.dataset.arrays import FolderPlace, make_place, release_pages
from birl.dataset.buffers import InfiniteBuffer
from birl.dataset.episode import Signature
from birl.dataset.ingest import add_extra_columns, row_flags, step_columns
from birl.dataset.log_record import LogRecord
from birl.dataset.log_schema import Cut, LogSchema
from birl.dataset.logs.columns import Column, TableLike, check_not_empty, chunk_rows, read_columns
from birl.dataset.logs.row_digests import row_digests
from birl.dataset.logs.rows import RowEncoder
from birl.dataset.replay_buffer import ReplayBuffer, StorageLocation
from birl.dataset.row_sketch import RowSketch
from birl.errors import DataError, EmptyDataError
from birl.files.atomic import convert_to_write_error
from birl.types import MASK, ActionSpace, Array

_IN_MEMORY: Final = ("episode", "time", "terminated", "truncated", "drop")


def from_table(table: TableLike, schema: LogSchema, *, storage: StorageLocation = "memory") -> ReplayBuffer:
    """Convert a table of logged steps to episodes.

    Args:
        table: a dict of arrays ``[N]`` or ``[N, K]``, or an object with ``__arrow_c_stream__``, such as a table of
            pyarrow, pandas, polars or duckdb, which needs pyarrow (extra ``logs``).
        schema: the meaning of the columns.
        storage: ``"memory"``, a torch device, or the path of a new folder for data larger than memory.

    Returns:
        The episodes in order of first appearance, with their steps ordered by time. Observations are float32 ``[D]``;
        with action masks they are a dict of ``observation`` and ``action_mask``. Depending on the schema, the extra
        columns are ``log_propensity``, ``propensities`` ``[A]``, ``logger``, ``cluster``, ``time`` (dates in seconds
        since 1970), ``time_gap``, ``censored`` and ``reward_pending``.

    Raises:
        DataError, ShapeError, NonFiniteError, ActionError: for invalid rows. The message names the row (counted from
            1), the column and the remedy.
        MissingExtraError: if pyarrow is needed and not installed.
    """
    importer = Importer(check("schema", schema, LogSchema, ": LogSchema.load(path) reads one"), storage)
    with importer:
        importer.add(read_columns(table, schema.columns), "the table")
        return importer.finish()


class Importer:
    """Collector of the rows of tables, which converts them to episodes. Use it in a ``with`` statement.

    Args:
        schema: the meaning of the columns.
        storage: location of the episodes.

    Attributes:
        counts: numbers of kept and dropped rows and episodes, after `finish`.
        encoder: encoder of the rows.
    """

    def __init__(self, schema: LogSchema, storage: StorageLocation = "memory") -> None:
        self.schema, self.encoder, self.counts = schema, RowEncoder(schema), dict[str, Any]()
        self._storage, self._count = storage, 0
        self._begins: list[int] = []
        self._origins: list[str] = []
        self._rows: dict[str, _RowStore] = {}
        self._pending: list[tuple[int, Mapping[str, Column]]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._on_disk = isinstance(make_place(storage), FolderPlace)

    def __enter__(self) -> Importer:
        if self._on_disk:
            parent = Path(os.fspath(self._storage)).absolute().parent  # type: ignore[arg-type]
            with convert_to_write_error(parent):
                parent.mkdir(parents=True, exist_ok=True)
                self._folder = tempfile.TemporaryDirectory(prefix=".import-", dir=parent)
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, tables: Iterable[Mapping[str, Column]], origin: str) -> None:
        """Add the rows of a file or table."""
        first = self._count
        self._begins.append(first)
        self._origins.append(origin)
        for columns in tables:
            if count := len(next(iter(columns.values())).missing):
                self._pending.append((self._count, columns))
                self._count += count
                if self.encoder.learn_widths(columns):
                    self._encode()
        check_not_empty(self._count - first, origin)

    def _encode(self) -> None:
        """Encode the pending rows, whose widths were unknown, in order."""
        pending, self._pending = self._pending, []
        for begin, columns in pending:
            rows = self.encoder.encode(columns, lambda row, begin=begin: self._label(begin + row))  # type: ignore[misc]
            for name, values in rows.items():
                if name not in self._rows:
                    on_disk = self._folder is not None and name not in _IN_MEMORY
                    file = Path(self._folder.name) / str(len(self._rows)) if on_disk and self._folder else None
                    self._rows[name] = _RowStore(values, file)
                self._rows[name].add(values)

    def count_rows(self) -> list[int]:
        """Count the rows of each file or table."""
        return np.diff([*self._begins, self._count]).tolist()

    def _label(self, row: int) -> str:
        """Return the label of a row for messages."""
        origin = bisect.bisect_right(self._begins, row) - 1
        number = row - self._begins[origin] + 1
        return f"row {number} of {self._origins[origin]}"

    # -- episodes --------------------------------------------------------------------------------------------------

    def finish(self) -> ReplayBuffer:
        """Convert all added rows to episodes."""
        self._encode()
        rows = {name: self._rows.pop(name).all() for name in tuple(self._rows)}
        order, ends = self._order_rows(rows)
        del rows["episode"]
        order, ends, terminal = self._select_episodes(rows, order, ends)
        if not len(order):
            reasons = ", ".join(f"{rule}: {count['episodes']}" for rule, count in self.counts["dropped"].items())
            raise EmptyDataError(f"no episode is left of {self.counts['rows_in']} rows ({reasons}): change these rules")
        buffer = self._make_buffer(rows, len(order) + int(ends.sum()))
        extra_rows = {name.removeprefix("extra."): values for name, values in rows.items() if name.startswith("extra.")}
        extra_rows |= self._time_columns(rows, order, ends)
        last, begin = np.flatnonzero(ends), 0
        limit = chunk_rows(sum(values[:1].nbytes for values in rows.values()))  # or one episode, if it is longer
        while begin < len(order):
            fits = last[(last >= begin) & (last < begin + limit)]
            stop = int(fits[-1] if len(fits) else last[np.searchsorted(last, begin)]) + 1
            part = slice(begin, stop)
            selected = order[part]
            observation: Any = self._fill_forward(rows["observation"][selected], ends[part])
            if "mask" in rows:
                observation = {"observation": observation, MASK: rows["mask"][selected]}
            extra = {name: values[selected] for name, values in extra_rows.items()}
            steps = step_columns(buffer.storage, observation, rows["action"][selected], rows["reward"][selected], extra)
            add_extra_columns(buffer.storage, steps)
            buffer.storage.extend(0, row_flags(terminal[part], ends[part], known=False), steps, {})
            begin = stop
            if isinstance(buffer.storage.place, FolderPlace):  # or all pages read and written would stay resident
                buffer.storage.place.release_pages()
                for values in rows.values():
                    release_pages(values)
        self.counts |= {"rows_out": len(order), "episodes": int(ends.sum()), "terminated": int(terminal.sum())}
        self.counts["clusters"] = len(np.unique(rows["extra.cluster"][order])) if "extra.cluster" in rows else 0
        buffer.flush()
        self.encoder.warn_of_lost_resolution()
        sketch, dates = RowSketch.of(row_digests(buffer.storage)), self.encoder.kind_of_time == "dates"
        buffer.storage.logs = LogRecord(self.schema, tuple(self.encoder.observation_names), dates=dates, rows=sketch)
        return buffer

    def _make_buffer(self, rows: Mapping[str, Array], capacity: int) -> ReplayBuffer:
        action, taken, observation = self.schema.action, rows["action"], rows["observation"]
        tree = {"observation": observation, MASK: rows["mask"]} if "mask" in rows else observation
        buffer = ReplayBuffer(
            InfiniteBuffer(),
            observation_signature=Signature.of(tree, skip=1),
            action_signature=Signature.of(taken, skip=1),
            action_space=ActionSpace.DISCRETE if action.discrete else ActionSpace.CONTINUOUS,
            action_size=action.count if action.discrete else taken.shape[1],
            storage=self._storage,
        )
        name = "observation.observation" if "mask" in rows else "observation"
        names = {name: tuple(self.encoder.observation_names), "action": tuple(self.encoder.action_names)}
        buffer.storage.info = replace(buffer.storage.info, columns=names)
        buffer.storage.reserve(capacity)
        return buffer

    def _order_rows(self, rows: Mapping[str, Array]) -> tuple[Array, Array]:
        """Return the order of the rows, and in that order a mask ``[n]`` of the last row of each episode."""
        schema, episode, time = self.schema, rows["episode"], rows.get("time")
        if time is None:
            order = np.argsort(episode, kind="stable")
        elif schema.order == "given":
            order = np.argsort(episode, kind="stable")
            back = np.flatnonzero((np.diff(time[order]) < 0) & (np.diff(episode[order]) == 0))
            if back.size:
                before, row = order[back[0]], order[back[0] + 1]
                raise DataError(
                    f"{self._label(row)}, column {schema.time!r:.50}: time goes back after {self._label(before)} of "
                    "the same episode: repair it, or sort the rows by time with order = 'sort'"
                )
        else:
            order = np.lexsort((time, episode))
        same = np.diff(episode[order]) == 0
        if time is None:
            interleaved = same & (np.diff(order) != 1)
            self.counts["interleaved"] = len(np.unique(episode[order[1:][interleaved]]))
        else:
            order, same = self._without_duplicates(rows, order, same)
            if isinstance(schema.episode, Cut):
                same &= np.diff(self.encoder.seconds(time)[order]) <= schema.episode.gap
        return order, np.append(~same, True)

    def _without_duplicates(self, rows: Mapping[str, Array], order: Array, same: Array) -> tuple[Array, Array]:
        """Remove or reject steps with the time of the previous one.

        Args:
            rows: columns of all rows.
            order: numbers ``[n]`` of the rows in order.
            same: whether each row and the next one are of the same episode, ``[n - 1]``.

        Returns:
            The arguments ``order`` and ``same`` of the remaining rows.
        """
        duplicate = same & (np.diff(rows["time"][order]) == 0)
        self.counts["duplicates"] = int(duplicate.sum())
        if not duplicate.any():
            return order, same
        first = int(np.argmax(duplicate))
        if self.schema.duplicates == "error":
            raise DataError(
                f"{self._label(order[first + 1])} is of the same episode and time as {self._label(order[first])}, as "
                f"{int(duplicate.sum())} rows are: repair them, or keep the first of each with duplicates = 'first'"
            )
        keep = np.append(True, ~duplicate)
        kept = order[np.maximum.accumulate(np.where(keep, np.arange(len(order)), 0))]
        for name in ("terminated", "truncated"):  # the mark of a removed duplicate applies to the row that is kept
            rows[name][kept[rows[name][order]]] = True
        return order[keep], same[~duplicate]

    def _select_episodes(self, rows: Mapping[str, Array], order: Array, ends: Array) -> tuple[Array, Array, Array]:
        """Return order, ends and terminations of the rows whose episodes no rule drops."""
        schema = self.schema
        terminal, cut = rows["terminated"][order], rows["truncated"][order]
        wrong = np.flatnonzero((terminal | cut) & ~ends)
        if wrong.size:
            kind = "terminated" if terminal[wrong[0]] else "truncated"
            raise DataError(
                f"{self._label(order[wrong[0] + 1])} comes after {self._label(order[wrong[0]])}, where its episode is "
                f"{kind} (column {getattr(schema, kind)!r:.60}): give the later rows another episode, drop them, or "
                "correct the mark"
            )
        number = np.cumsum(ends) - ends
        reasons = np.zeros(int(ends.sum()), np.int16)
        np.maximum.at(reasons, number, rows["drop"][order])
        self.counts |= {"rows_in": self._count, "dropped": {}}
        for index, rule in enumerate(self.encoder.drop_rules):
            dropped = reasons == index + 1
            if dropped.any():
                self.counts["dropped"][rule] = {"episodes": int(dropped.sum()), "rows": int(dropped[number].sum())}
        keep = reasons[number] == 0
        order, ends, terminal, cut = order[keep], ends[keep], terminal[keep], cut[keep]
        unmarked = ends & ~terminal & ~cut
        self.counts["unmarked"] = int(unmarked.sum())
        self._censored = np.zeros(0, bool)
        if schema.censored_after is not None:
            late = self.encoder.seconds(rows["time"])[order] >= self.encoder.parse_time(schema.censored_after)
            self.counts["censored"] = int((unmarked & late).sum())
            self._censored = (unmarked & late)[ends][np.cumsum(ends) - ends]  # of the last step, at each step
            unmarked &= ~late
        if unmarked.any() and schema.unmarked is None:
            row = order[int(np.argmax(unmarked))]
            raise DataError(
                f"{self._label(row)} is the last one of its episode and has no mark, as {int(unmarked.sum())} do: "
                "give unmarked = 'truncated' (if the log or a limit cut these episodes) or unmarked = 'terminated'"
            )
        return order, ends, terminal | (unmarked & (schema.unmarked == "terminated"))

    def _time_columns(self, rows: Mapping[str, Array], order: Array, ends: Array) -> dict[str, Array]:
        """Return the extra columns that depend on the order of the steps: times, gaps and censoring."""
        found: dict[str, Array] = {}
        if "time" in rows:
            found["time"] = times = self.encoder.seconds(rows["time"])
            if self.schema.unit_of_time is not None:
                gaps = np.append(np.diff(times[order]), 0) / self.schema.unit_of_time
                found["time_gap"] = np.zeros(self._count)
                found["time_gap"][order] = np.where(ends, 1.0, gaps)
        if "final" in rows:
            end = float(times.max())
            if self.schema.log_end is not None:
                end = self.encoder.parse_time(self.schema.log_end, "log_end")
            pending = rows["final"] > end
            found["reward_pending"] = pending.astype(np.uint8)
            begins = np.flatnonzero(np.append(True, ends[:-1]))
            episodes = np.logical_or.reduceat(pending[order], begins)
            since = float(times[order[begins[episodes]]].min()) if episodes.any() else None
            self.counts |= {"pending": int(episodes.sum()), "pending_since": since, "log_end": end}
        if len(self._censored):
            found["censored"] = np.zeros(self._count, np.uint8)
            found["censored"][order] = self._censored
        return found

    def _fill_forward(self, observation: Array, ends: Array) -> Array:
        """Replace missing numbers by the last known ones of their episodes, or by `fill` before there is one."""
        names = self.encoder.observation_names
        first = np.append(True, ends[:-1])
        row = np.arange(len(observation))
        start = np.maximum.accumulate(np.where(first, row, 0))
        for each in self.schema.observation:
            if each.missing != "forward":
                continue
            for index, name in enumerate(names):
                if name == each.column or name.startswith(f"{each.column}["):
                    present = ~np.isnan(observation[:, index])
                    last = np.maximum.accumulate(np.where(present, row, -1))
                    known = last >= start
                    values = observation[np.maximum(last, 0), index]
                    observation[:, index] = np.where(known, values, np.float32(each.fill))  # type: ignore[arg-type]
        return observation


class _RowStore:
    """Rows of one column in the order of the log, in memory or in a file."""

    def __init__(self, like: Array, file: Path | None) -> None:
        self._shape, self._dtype, self._file = like.shape[1:], like.dtype, file
        self._parts: list[Array] = []
        self._count = 0

    def add(self, values: Array) -> None:
        """Append rows."""
        self._count += len(values)
        if self._file is None:
            self._parts.append(values)
            return
        with convert_to_write_error(self._file), open(self._file, "ab") as file:
            file.write(np.ascontiguousarray(values).data)

    def all(self) -> Array:
        """Return all rows."""
        if self._file is None:
            return np.concatenate(self._parts)
        return np.memmap(self._file, self._dtype, "r", shape=(self._count, *self._shape))
