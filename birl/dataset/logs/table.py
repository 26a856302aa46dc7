"""Tables as episodes: `from_table`, and the importer behind it, which takes some rows at a time.

The rows of a batch are checked and encoded, and kept in the order in which they come: in memory, or in files of a
temporary folder if the result is a folder. Only three numbers of each row (episode, time, flags) stay in memory in any
case: from these follow the order of the rows and the ends of episodes. Then the episodes are written, some thousand
rows at a time, through the checks that all data go through.
"""

from __future__ import annotations

import bisect
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from birl.checks import check
from birl.dataset.arrays import FolderPlace, make_place, release_pages
from birl.dataset.buffers import InfiniteBuffer
from birl.dataset.episode import Signature
from birl.dataset.ingest import row_flags, step_columns
from birl.dataset.log_record import LogRecord
from birl.dataset.log_schema import Cut, LogSchema
from birl.dataset.logs.columns import Column, check_rows, rows_at_once, tables_of
from birl.dataset.logs.rows import RowEncoder
from birl.dataset.replay_buffer import ReplayBuffer, StorageLocation
from birl.errors import DataError, EmptyDataError, WriteError
from birl.types import MASK, ActionSpace, Array, ArraySpec

_KEPT: Final = ("episode", "time", "terminated", "truncated", "drop")


def from_table(table: Any, schema: LogSchema, *, storage: StorageLocation = "memory") -> ReplayBuffer:
    """Episodes of a log.

    Args:
        table: a dict of arrays ``[N]`` or ``[N, K]``; or anything with ``__arrow_c_stream__``, such as a table of
            pyarrow, pandas, polars or duckdb, which needs pyarrow (extra ``logs``).
        schema: what its columns mean.
        storage: ``"memory"``, a torch device, or the path of a new folder for data larger than memory.

    Returns:
        The episodes in the order in which they first appear, their steps ordered by time. Observations are float32
        ``[D]``, a part ``observation`` beside ``action_mask`` if there are masks. Beside the steps there are, as the
        schema has them, ``log_propensity``, ``propensities`` ``[A]``, ``logger``, ``cluster``, ``time`` (dates in
        seconds since 1970), ``time_gap`` and ``censored``.

    Raises:
        DataError, ShapeError, NonFiniteError, ActionError: naming row (counted from 1), column and what to do.
        MissingExtraError: for a table of Arrow without pyarrow.
    """
    importer = Importer(check("schema", schema, LogSchema, ": LogSchema.load(path) reads one"), storage)
    with importer:
        importer.add(tables_of(table, schema.columns), "the table")
        return importer.finish()


class Importer:
    """Collects the rows of tables and makes episodes of them. Use it in a ``with`` statement.

    Args:
        schema: what columns mean.
        storage: where the episodes go.

    Attributes:
        counts: what happened to rows and episodes, after `finish`.
        encoder: what encodes the rows.
    """

    def __init__(self, schema: LogSchema, storage: StorageLocation = "memory") -> None:
        self.schema, self.encoder, self.counts = schema, RowEncoder(schema), dict[str, Any]()
        self._storage, self._count = storage, 0
        self._begins: list[int] = []
        self._origins: list[str] = []
        self._rows: dict[str, _Rows] = {}
        self._waiting: list[tuple[int, Mapping[str, Column]]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._on_disk = isinstance(make_place(storage), FolderPlace)

    def __enter__(self) -> Importer:
        if self._on_disk:
            parent = Path(os.fspath(self._storage)).absolute().parent  # type: ignore[arg-type]
            try:
                parent.mkdir(parents=True, exist_ok=True)
                self._folder = tempfile.TemporaryDirectory(prefix=".import-", dir=parent)
            except OSError as error:
                raise WriteError(f"{parent} cannot be written to ({error}): choose another folder") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, tables: Iterable[Mapping[str, Column]], origin: str) -> None:
        """Take the rows of a file or table."""
        first = self._count
        self._begins.append(first)
        self._origins.append(origin)
        for columns in tables:
            if count := len(next(iter(columns.values())).missing):
                self._waiting.append((self._count, columns))
                self._count += count
                if self.encoder.knows(columns):
                    self._encode()
        check_rows(self._count - first, origin)

    def _encode(self) -> None:
        """Encode the rows that wait for others that tell their widths, in their order."""
        waiting, self._waiting = self._waiting, []
        for begin, columns in waiting:
            rows = self.encoder.encode(columns, lambda row, begin=begin: self._where(begin + row))  # type: ignore[misc]
            for name, values in rows.items():
                if name not in self._rows:
                    on_disk = self._folder is not None and name not in _KEPT
                    file = Path(self._folder.name) / str(len(self._rows)) if on_disk and self._folder else None
                    self._rows[name] = _Rows(values, file)
                self._rows[name].add(values)

    def rows_of_origins(self) -> list[int]:
        """Number of rows of each file or table."""
        return np.diff([*self._begins, self._count]).tolist()

    def _where(self, row: int) -> str:
        """A row, in words."""
        which = bisect.bisect_right(self._begins, row) - 1
        number = row - self._begins[which] + 1
        return f"row {number} of {self._origins[which]}"

    # -- episodes --------------------------------------------------------------------------------------------------

    def finish(self) -> ReplayBuffer:
        """The episodes of all rows that were added."""
        self._encode()
        rows = {name: self._rows.pop(name).all() for name in tuple(self._rows)}
        order, ends = self._ordered(rows)
        del rows["episode"]
        order, ends, terminal = self._marked(rows, order, ends)
        if not len(order):
            reasons = ", ".join(f"{rule}: {gone['episodes']}" for rule, gone in self.counts["dropped"].items())
            raise EmptyDataError(f"no episode is left of {self.counts['rows_in']} rows ({reasons}): change these rules")
        buffer = self._buffer(rows, len(order) + int(ends.sum()))
        beside = self._beside(rows, order, ends)
        names = [name for name in rows if name.startswith("extra.")]
        for name, values in ({name: rows[name] for name in names} | beside).items():
            buffer.storage.add_extra(name, ArraySpec(values.shape[1:], values.dtype))
        last, begin = np.flatnonzero(ends), 0
        at_once = rows_at_once(sum(values[:1].nbytes for values in rows.values()))  # unless an episode has more
        while begin < len(order):
            fits = last[(last >= begin) & (last < begin + at_once)]
            stop = int(fits[-1] if len(fits) else last[np.searchsorted(last, begin)]) + 1
            part = slice(begin, stop)
            chosen = order[part]
            observation: Any = self._filled(rows["observation"][chosen], ends[part])
            if "mask" in rows:
                observation = {"observation": observation, MASK: rows["mask"][chosen]}
            extra = {name.removeprefix("extra."): rows[name][chosen] for name in names}
            extra |= {name.removeprefix("extra."): values[part] for name, values in beside.items()}
            steps = step_columns(buffer.storage, observation, rows["action"][chosen], rows["reward"][chosen], extra)
            flags = row_flags(terminal[part], ends[part], known=False)
            buffer.storage.extend(0, flags, steps, {})
            begin = stop
            if isinstance(buffer.storage.place, FolderPlace):  # else all that was read and written would add up
                buffer.storage.place.release_pages()
                for values in rows.values():
                    release_pages(values)
        self.counts |= {"rows_out": len(order), "episodes": int(ends.sum()), "terminated": int(terminal.sum())}
        self.counts["clusters"] = len(np.unique(rows["extra.cluster"][order])) if "extra.cluster" in rows else 0
        buffer.flush()
        buffer.storage.logs = LogRecord(self.schema, tuple(self.encoder.observation_names))
        return buffer

    def _buffer(self, rows: Mapping[str, Array], room: int) -> ReplayBuffer:
        action, width = self.schema.action, rows["observation"].shape[1:]
        if "mask" in rows:
            names = {"observation": (np.float32, width), MASK: (np.uint8, rows["mask"].shape[1:])}
            observation = Signature({k: d for k, (d, _) in names.items()}, {k: s for k, (_, s) in names.items()})
        else:
            observation = Signature([np.float32], [width])
        leaf = rows["action"]
        buffer = ReplayBuffer(
            InfiniteBuffer(),
            observation_signature=observation,
            action_signature=Signature([leaf.dtype], [leaf.shape[1:]]),
            action_space=ActionSpace.DISCRETE if action.discrete else ActionSpace.CONTINUOUS,
            action_size=action.count if action.discrete else leaf.shape[1],
            storage=self._storage,
        )
        buffer.storage.reserve(room)
        return buffer

    def _ordered(self, rows: Mapping[str, Array]) -> tuple[Array, Array]:
        """The order of the rows, and whether each in this order is the last of its episode."""
        schema, episode, time = self.schema, rows["episode"], rows.get("time")
        if time is None:
            order = np.argsort(episode, kind="stable")
        elif schema.order == "given":
            order = np.argsort(episode, kind="stable")
            back = np.flatnonzero((np.diff(time[order]) < 0) & (np.diff(episode[order]) == 0))
            if back.size:
                before, row = order[back[0]], order[back[0] + 1]
                raise DataError(
                    f"{self._where(row)}, column {schema.time!r:.50}: time goes back after {self._where(before)} of "
                    "the same episode: repair it, or let rows be ordered by time with order = 'sort'"
                )
        else:
            order = np.lexsort((time, episode))
        same = np.diff(episode[order]) == 0
        if time is None:
            apart = same & (np.diff(order) != 1)
            self.counts["apart"] = len(np.unique(episode[order[1:][apart]]))
        else:
            step = np.diff(self.encoder.seconds(time)[order]) if isinstance(schema.episode, Cut) else None
            order, same = self._without_duplicates(rows, order, same, np.diff(time[order]) == 0, step)
        return order, np.append(~same, True)

    def _without_duplicates(
        self, rows: Mapping[str, Array], order: Array, same: Array, at_once: Array, step: Array | None
    ) -> tuple[Array, Array]:
        """Leave out, or refuse, steps at the same time as the one before; and cut where nothing happened for long."""
        again = same & at_once
        self.counts["duplicates"] = int(again.sum())
        if step is not None and isinstance(self.schema.episode, Cut):
            same = same & (step <= self.schema.episode.gap)
        if not again.any():
            return order, same
        first = int(np.argmax(again))
        if self.schema.duplicates == "error":
            raise DataError(
                f"{self._where(order[first + 1])} is of the same episode and time as {self._where(order[first])}, and "
                f"there are {int(again.sum())} such rows: repair them, or keep each first one with duplicates = 'first'"
            )
        keep = np.append(True, ~again)
        kept = order[np.maximum.accumulate(np.where(keep, np.arange(len(order)), 0))]
        for name in ("terminated", "truncated"):  # an end is the episode's, whichever of its rows tells it
            rows[name][kept[rows[name][order]]] = True
        return order[keep], same[~again]

    def _marked(self, rows: Mapping[str, Array], order: Array, ends: Array) -> tuple[Array, Array, Array]:
        """Ends and terminations, without the episodes that a rule leaves out."""
        schema = self.schema
        terminal, cut = rows["terminated"][order], rows["truncated"][order]
        wrong = np.flatnonzero((terminal | cut) & ~ends)
        if wrong.size:
            kind = "terminated" if terminal[wrong[0]] else "truncated"
            raise DataError(
                f"{self._where(order[wrong[0] + 1])} comes after {self._where(order[wrong[0]])}, where its episode is "
                f"{kind} (column {getattr(schema, kind)!r:.60}): give what follows another episode, drop it, or "
                "correct the mark"
            )
        number = np.cumsum(ends) - ends
        reasons = np.zeros(int(ends.sum()), np.int16)
        np.maximum.at(reasons, number, rows["drop"][order])
        self.counts |= {"rows_in": self._count, "dropped": {}}
        for index, rule in enumerate(self.encoder.drop_rules):
            gone = reasons == index + 1
            if gone.any():
                self.counts["dropped"][rule] = {"episodes": int(gone.sum()), "rows": int(gone[number].sum())}
        keep = reasons[number] == 0
        order, ends, terminal, cut = order[keep], ends[keep], terminal[keep], cut[keep]
        unmarked = ends & ~terminal & ~cut
        self.counts["unmarked"] = int(unmarked.sum())
        self._censored = np.zeros(0, bool)
        if schema.censored_after is not None:
            late = self.encoder.seconds(rows["time"])[order] >= self.encoder.moment(schema.censored_after)
            self.counts["censored"] = int((unmarked & late).sum())
            self._censored = _spread(unmarked & late, ends)
            unmarked &= ~late
        if unmarked.any() and schema.unmarked is None:
            row = order[int(np.argmax(unmarked))]
            raise DataError(
                f"{self._where(row)} is the last one of its episode and has no mark, as {int(unmarked.sum())} do: "
                "say what these ends are, unmarked = 'truncated' (the log or a limit cut them) or 'terminated'"
            )
        return order, ends, terminal | (unmarked & (schema.unmarked == "terminated"))

    def _beside(self, rows: Mapping[str, Array], order: Array, ends: Array) -> dict[str, Array]:
        """Further columns of the steps that follow from their order."""
        found: dict[str, Array] = {}
        if "time" in rows:
            found["extra.time"] = times = self.encoder.seconds(rows["time"])[order]
            if self.schema.unit_of_time is not None:
                gaps = np.append(np.diff(times), 0) / self.schema.unit_of_time
                found["extra.time_gap"] = np.where(ends, 1.0, gaps)
        if len(self._censored):
            found["extra.censored"] = self._censored.astype(np.uint8)
        return found

    def _filled(self, observation: Array, ends: Array) -> Array:
        """Observations with missing numbers replaced by the last ones of their episodes, or by `fill`."""
        names = self.encoder.observation_names
        first = np.append(True, ends[:-1])
        row = np.arange(len(observation))
        start = np.maximum.accumulate(np.where(first, row, 0))
        for each in self.schema.observation:
            if each.missing != "forward":
                continue
            for place, name in enumerate(names):
                if name == each.column or name.startswith(f"{each.column}["):
                    there = ~np.isnan(observation[:, place])
                    last = np.maximum.accumulate(np.where(there, row, -1))
                    known = last >= start
                    values = observation[np.maximum(last, 0), place]
                    observation[:, place] = np.where(known, values, np.float32(each.fill))  # type: ignore[arg-type]
        return observation


def _spread(last: Array, ends: Array) -> Array:
    """What is true at the last steps of episodes, at all of their steps."""
    return last[ends][np.cumsum(ends) - ends]  # type: ignore[no-any-return]


class _Rows:
    """Rows of one column in the order in which they come: a list, or a file."""

    def __init__(self, like: Array, file: Path | None) -> None:
        self._shape, self._dtype, self._file = like.shape[1:], like.dtype, file
        self._parts: list[Array] = []
        self._count = 0

    def add(self, values: Array) -> None:
        """Append rows."""
        self._count += len(values)
        if values.dtype != self._dtype:  # whole numbers and others of one column of times
            self._dtype = np.result_type(values.dtype, self._dtype)
        if self._file is None:
            self._parts.append(values)
            return
        try:
            with open(self._file, "ab") as file:
                file.write(np.ascontiguousarray(values).data)
        except OSError as error:
            raise WriteError(f"{self._file.parent} cannot be written to ({error}): free some space") from error

    def all(self) -> Array:
        """All rows."""
        if self._file is None:
            return np.concatenate(self._parts)
        return np.memmap(self._file, self._dtype, "r", shape=(self._count, *self._shape))
