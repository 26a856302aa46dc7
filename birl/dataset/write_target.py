"""The storage that a replay buffer appends steps to, with the preprocessing of the steps."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from birl.dataset.folders import begin_writing, save_folder
from birl.dataset.held_steps import HeldSteps
from birl.dataset.ingest import add_extra_columns, lane_numbers
from birl.dataset.resolution import FIRST_LOOK, warn_of_lost_resolution
from birl.dataset.storage import Storage
from birl.dataset.writers import WriterPreprocessProtocol
from birl.errors import MissingColumnWarning, outside_birl
from birl.spaces.conversion import Columns
from birl.spaces.observations import match_parts, order_actions, order_tables
from birl.types import Array, Observation, Tree, parts_like


@dataclass
class WriteTarget:
    """A storage that steps are appended to.

    Attributes:
        storage: the arrays.
        writer: changes steps before they are stored.
        observation_keys: names of the stored parts of observations; ``None`` for all.
        saved: whether the index of the storage's folder is up to date.
        info_keys: names of the entries of the environment's info that are stored as extra columns.
        held: steps of running episodes, which are stored when their episodes end; ``None`` to store them at once.
        next_look: number of transitions at which `look_at_resolution` reads the steps again.
        compared: whether a warning has named the extra columns that steps lacked.
        all_lanes: numbers of all lanes ``[lanes]``.
    """

    storage: Storage
    writer: WriterPreprocessProtocol
    observation_keys: Sequence[str] | None = None
    saved: bool = False
    info_keys: Sequence[str] = ()
    held: HeldSteps | None = None
    next_look: int = FIRST_LOOK
    compared: bool = False

    def __post_init__(self) -> None:
        self.all_lanes = np.arange(self.storage.lanes)

    def lanes(self, lane: int) -> Array:
        """Return the number of a lane as an array ``[1]``."""
        if not 0 <= lane < self.storage.lanes:
            lane_numbers(lane, self.storage.lanes)  # raises the error
        return self.all_lanes[lane : lane + 1]

    def running(self, lane: int) -> bool:
        """Return whether a lane has a running episode."""
        return bool(self.storage.open[lane]) if self.held is None else self.held.running(lane)

    def parts(self, observation: Observation, name: str = "observation", *, row: bool = False) -> Tree:
        """Return the stored parts of observations, called ``name`` in messages, or of one ``row``.

        Tables become arrays with their columns in the order of the dataset's.
        """
        names = self.storage.observation_names
        given = parts_like(observation if self.observation_keys is None else match_parts(names, observation), names)
        return order_tables(name, given, self.storage.info.columns, row=row)

    def action(self, given: npt.ArrayLike, *, row: bool = False) -> npt.ArrayLike:
        """Return actions, or one action for ``row``; tables become arrays with their columns in the dataset's order."""
        return cast(npt.ArrayLike, order_actions("action", given, self.storage.info.columns, row=row))

    def add_columns(self, columns: Columns) -> None:
        """Take the names of the columns of steps that are in the storage."""
        info = self.storage.info
        if columns and not columns.items() <= info.columns.items():
            self.storage.info = replace(info, columns={**columns, **info.columns})

    def processed(self, observation: Observation) -> Tree:
        """Return one observation as it is stored."""
        stored = self.writer.process_observation(self.parts(observation, row=True))
        return parts_like(stored, self.storage.observation_names)

    def prepare(self, steps: Mapping[str, Array] | None = None, mask: Array | None = None) -> None:
        """Prepare the storage for a write of ``steps``, whose extra columns it may lack, where ``mask`` is true."""
        if self.saved:
            begin_writing(self.storage)
            if self.storage.limit is not None:  # flushed rows of a ring are about to be overwritten
                save_folder(self.storage, clean=False)
        self.saved = False
        if steps is not None:
            self._warn_of_missing_columns(steps, mask)
            add_extra_columns(self.storage, steps)

    def _warn_of_missing_columns(self, steps: Mapping[str, Array], mask: Array | None) -> None:
        if self.compared or len(steps) == len(self.storage.leaves) or (mask is not None and not np.any(mask)):
            return
        missing = [name.removeprefix("extra.") for name in self.storage.extra_names if name not in steps]
        new = [key for key in self.info_keys if f"extra.{key}" in steps and f"extra.{key}" not in self.storage.leaves]
        if not self.storage.transition_count or not (missing or new):
            return
        self.compared = True
        if missing:
            text = (
                f"the buffer has the extra columns {', '.join(missing)!s:.200}, but the steps that are added have not; "
                "they hold 0 there: give extra={…}, or info_keys=(…) if the environment's info has them"
            )
        else:
            text = (
                f"info_keys has {', '.join(new)!s:.200}, but the buffer has steps without; they hold 0 there: make a "
                "buffer of new steps"
            )
        warnings.warn(text, MissingColumnWarning, stacklevel=outside_birl())

    def look_at_resolution(self) -> None:
        """Warn of columns whose resolution float32 loses, at 64, 128, 256 … transitions."""
        count = self.storage.transition_count
        if count < self.next_look:
            return
        self.plan_look()
        warn_of_lost_resolution(self.storage)

    def plan_look(self) -> None:
        """Plan the next look at the resolution. It depends on the number of transitions alone, also after a resume."""
        self.next_look = FIRST_LOOK << (self.storage.transition_count // FIRST_LOOK).bit_length()

    @contextlib.contextmanager
    def writing_all(self, *, known: bool = False) -> Iterator[None]:
        """Return a context for the writes of a whole dataset, whose resolution is looked at once, at the end.

        Args:
            known: whether there was a warning of lost resolution already.
        """
        self.next_look = sys.maxsize
        yield
        warn_of_lost_resolution(self.storage, known=known)
        self.plan_look()
