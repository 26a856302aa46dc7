"""Views: the kinds of minibatch that a `Reader` draws, and the columns that are asked for beside the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from birl.checks import check
from birl.dataset.episode import PartialTrajectory, Transition
from birl.dataset.minibatch import SequenceMiniBatch, TailMiniBatch, TrajectoryMiniBatch, TransitionMiniBatch
from birl.dataset.slicers import TrajectorySlicerProtocol, slice_batch, slice_one
from birl.dataset.storage import FINAL, NO_TRANSITION, Storage
from birl.dataset.transitions import NO_COLUMNS, Columns, TransitionPickerProtocol, pick_batch, pick_one
from birl.dataset.windows import sequence_batch, tail_batch


class View(Protocol):
    """A kind of minibatch.

    Attributes:
        reject: steps with any of these flags are not drawn.
        sliced: whether the dataset's slicer makes the observations, not its picker.
    """

    reject: int = NO_TRANSITION
    sliced: bool = False

    def read(self, storage: Storage, part: Any, rows: Any) -> Any:
        """The minibatch of ``rows`` ``[B]``, made with a picker or slicer."""

    def sample(self, dataset: Any, count: int) -> Any:
        """Draw with a dataset's own method."""


@dataclass(frozen=True)
class TransitionView(View):
    """Transitions.

    Args:
        columns: what is asked for beside the steps.
    """

    columns: Columns = NO_COLUMNS

    def read(self, storage: Storage, part: TransitionPickerProtocol, rows: Any) -> TransitionMiniBatch:
        return pick_batch(storage, part, rows, self.columns)

    def read_one(self, storage: Storage, part: TransitionPickerProtocol, row: int) -> Transition:
        """One transition, through the per-item protocol."""
        return pick_one(storage, part, row)

    def sample(self, dataset: Any, count: int) -> TransitionMiniBatch:
        return dataset.sample_transition_batch(count, **self.columns.given)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SequenceView(View):
    """Sequences of ``burn_in + length`` steps whose first trained step is the one drawn.

    Args:
        length: number of trained steps.
        burn_in: number of steps before them.
        columns: what is asked for beside the steps.
    """

    length: int
    burn_in: int = 0
    columns: Columns = NO_COLUMNS

    def __post_init__(self) -> None:
        if type(self.length) is not int or type(self.burn_in) is not int or self.length < 1 or self.burn_in < 0:
            check("length", self.length, int, low=1)
            check("burn_in", self.burn_in, int, low=0)

    def read(self, storage: Storage, part: TransitionPickerProtocol, rows: Any) -> SequenceMiniBatch:
        return sequence_batch(storage, part, rows, self.length, self.burn_in, self.columns)

    def sample(self, dataset: Any, count: int) -> SequenceMiniBatch:
        given = self.columns.given
        return dataset.sample_sequence_batch(count, self.length, self.burn_in, **given)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TrajectoryView(View):
    """Windows of ``length`` steps that end with the one drawn.

    Args:
        length: number of steps.
    """

    length: int
    reject = FINAL
    sliced = True

    def __post_init__(self) -> None:
        check("length", self.length, int, low=1)

    def read(self, storage: Storage, part: TrajectorySlicerProtocol, rows: Any) -> TrajectoryMiniBatch:
        return slice_batch(storage, part, rows, self.length)

    def read_one(self, storage: Storage, part: TrajectorySlicerProtocol, row: int) -> PartialTrajectory:
        """One window, through the per-item protocol."""
        return slice_one(storage, part, row, self.length)

    def sample(self, dataset: Any, count: int) -> TrajectoryMiniBatch:
        return dataset.sample_trajectory_batch(count, self.length)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TailView(View):
    """Transitions with the rest of their episodes."""

    def read(self, storage: Storage, part: TransitionPickerProtocol, rows: Any) -> TailMiniBatch:
        return tail_batch(storage, part, rows)

    def sample(self, dataset: Any, count: int) -> TailMiniBatch:
        return dataset.sample_tail_batch(count)  # type: ignore[no-any-return]
