"""Views: the kinds of minibatch that a `Reader` draws, with the columns that are asked for beside the steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from birl.checks import check
from birl.dataset.episode import PartialTrajectory, Transition
from birl.dataset.episodes import episode_table, locate, per_item
from birl.dataset.flags import FINAL, FIRST, NO_NEXT, NO_TRANSITION
from birl.dataset.minibatch import MiniBatch, SequenceMiniBatch, TailMiniBatch, TrajectoryMiniBatch, TransitionMiniBatch
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.storage import Storage
from birl.dataset.transitions import (
    NO_COLUMNS,
    BasicTransitionPicker,
    Columns,
    FrameStackTransitionPicker,
    MultiStepTransitionPicker,
    TransitionPickerProtocol,
    extra_columns,
    is_vectorised,
)
from birl.errors import DataError, UnsupportedError
from birl.types import Array, Tree, tree_map

M = TypeVar("M", bound=MiniBatch)
M_co = TypeVar("M_co", bound=MiniBatch, covariant=True)


class View(Protocol[M_co]):
    """A kind of minibatch.

    Attributes:
        reject: steps with any of these flags are not drawn.
        sliced: whether the dataset's slicer makes the observations, not its picker.
    """

    reject: int = NO_TRANSITION
    sliced: bool = False

    def read(self, storage: Storage, part: Any, rows: Any) -> M_co:
        """The minibatch of ``rows`` ``[B]``, made with a picker or slicer."""


@dataclass(frozen=True)
class TransitionView(View[TransitionMiniBatch]):
    """Transitions.

    Args:
        columns: columns that are requested beside the steps.
    """

    columns: Columns = NO_COLUMNS

    def read(self, storage: Storage, part: Any, rows: Any) -> TransitionMiniBatch:
        """Transitions at ``rows`` ``[B]``: at once if the picker can, else one by one."""
        place, columns = storage.place, self.columns
        own: dict[str, Any] = {}  # what the picker's own transitions tell
        if is_vectorised(part):
            batch: TransitionMiniBatch = part.batch(storage, rows)
        else:
            picked = TransitionMiniBatch.from_transitions(self.items(storage, part, place.host(rows)))
            own |= {"next_action": picked.extra["next_action"]} if picked.extra else {}
            own |= picked.discounted_returns(columns.returns) if columns.returns else {}
            batch = replace(picked, extra={}, transitions=None).map(place.indices)
            batch = replace(batch, extra=extra_columns(storage, rows))
        if columns == NO_COLUMNS:
            return batch

        def after() -> Any:
            steps = 1 if batch.intervals is None else place.to_int64(batch.intervals[:, 0])
            return storage.shift(rows, steps)

        found = columns.read(storage, part, rows, after)
        found |= {name: place.indices(own[name]) for name in own if name in found}
        return replace(batch, extra={**batch.extra, **found})

    def items(self, storage: Storage, part: TransitionPickerProtocol, rows: Array) -> list[Transition]:
        """The transitions one by one, through the per-item protocol."""
        return per_item(storage, rows, part, for_picker=True)


@dataclass(frozen=True)
class TrajectoryView(View[TrajectoryMiniBatch]):
    """Windows of ``length`` steps that end with the one drawn.

    Args:
        length: number of steps.
    """

    length: int
    reject = FINAL
    sliced = True

    def __post_init__(self) -> None:
        check("length", self.length, int, low=1)

    def read(self, storage: Storage, part: Any, rows: Any) -> TrajectoryMiniBatch:
        """Windows that end with ``rows`` ``[B]``: at once if the slicer can, else one by one."""
        if is_vectorised(part, ("batch",)):
            return part.batch(storage, rows, self.length)  # type: ignore[no-any-return]
        windows = self.items(storage, part, storage.place.host(rows))
        batch = TrajectoryMiniBatch.from_partial_trajectories(windows).map(storage.place.indices)
        if not storage.extra_names:
            return batch
        window, alive = storage.behind(rows, self.length)
        extra = tree_map(lambda leaf: storage.place.zero_where(leaf, ~alive), extra_columns(storage, window))
        return replace(batch, extra=extra)

    def items(self, storage: Storage, part: TrajectorySlicerProtocol, rows: Array) -> list[PartialTrajectory]:
        """The windows one by one, through the per-item protocol."""
        return per_item(storage, rows, lambda episode, index: part(episode, index, self.length))


@dataclass(frozen=True)
class SequenceView(View[SequenceMiniBatch]):
    """Sequences of ``burn_in + length`` steps whose first trained step is the one drawn.

    The ``burn_in`` steps before it come first (Kapturowski et al. 2019, R2D2). Where the episode has fewer, padding
    comes first and the state is reset at the first real step. Beyond the episode's end there is padding. With a picker
    of several steps, each step has its n-step return, over fewer steps where the sequence or its episode ends.

    Args:
        length: number of trained steps.
        burn_in: number of steps before them.
        columns: what is asked for beside the steps.
    """

    length: int
    burn_in: int = 0
    columns: Columns = NO_COLUMNS

    def __post_init__(self) -> None:
        check("length", self.length, int, low=1)
        check("burn_in", self.burn_in, int, low=0)

    def window(self, storage: Storage, rows: Any) -> tuple[Any, Any]:
        """The rows ``[T, B]`` of the sequences of ``rows`` ``[B]``, and which are in the same episode."""
        join = storage.place.concatenate
        before, alive_before = storage.behind(rows, self.burn_in + 1)
        after, alive_after = storage.ahead(rows, self.length)
        window = join([before[:, :-1], after], 1).T
        return window, join([alive_before[:, :-1], alive_after], 1).T

    def read(self, storage: Storage, part: Any, rows: Any) -> SequenceMiniBatch:
        _require_single_steps(part, "sequences", several=True)
        place = storage.place
        window, alive = self.window(storage, rows)
        if isinstance(part, FrameStackTransitionPicker):
            alive = alive & part.complete(storage, window)
        padding = ~alive
        known = alive & ~storage.take_flags(window, NO_NEXT)
        is_first = storage.take_flags(window, FIRST) & alive
        # After padding the state is not the stored one: a head whose history was evicted starts from zero as well.
        is_first[1:] |= alive[1:] & ~alive[:-1]
        observe = part.observe

        def read(values: Tree, dead: Any = padding) -> Tree:
            return tree_map(lambda leaf: place.zero_where(leaf, dead), values)

        prefix = "extra.state."
        states = {
            name.removeprefix(prefix): read(place.to_float(storage.take(name, window[0])), padding[0])
            for name in storage.extra_names
            if name.startswith(prefix)
        }
        reward, steps = read(place.to_float(storage.take("reward", window))), None
        following, last = storage.shift(window, 1), window
        if (n_steps := getattr(part, "n_steps", 1)) > 1:
            reward, steps = _summed(reward, known, n_steps, part.gamma)
            following, last = storage.shift(window, steps), storage.shift(window, steps - 1)
        extra = extra_columns(storage, window) | self.columns.read(storage, part, window, lambda: following)
        return SequenceMiniBatch(
            read(observe(storage, window)),
            read(place.to_action(storage.take("action", window))),
            reward,
            read(observe(storage, following), ~known),
            read(storage.terminals(last)),
            None if steps is None else place.to_float(steps[..., None]),
            extra=read(extra),
            masks=place.to_float(known),
            is_first=is_first,
            start_states=states,
            burn_in=self.burn_in,
        )


def _summed(reward: Any, known: Any, n_steps: int, gamma: float) -> tuple[Any, Any]:
    """Discounted sums of rewards ``[T, B, 1]`` over up to ``n_steps`` known steps, and how many ``[T, B]`` they are."""
    total, steps, goes_on = reward * 1.0, known * 0 + 1, known
    for k in range(1, min(n_steps, len(known))):
        goes_on = goes_on[: len(known) - k] & known[k:]
        total[:-k] += gamma**k * reward[k:] * goes_on[..., None]
        steps[:-k] += goes_on
    return total, steps


@dataclass(frozen=True)
class TailView(View[TailMiniBatch]):
    """Transitions with the rest of their episodes, which can be read until the next write."""

    def read(self, storage: Storage, part: Any, rows: Any) -> TailMiniBatch:
        _require_single_steps(part, "returns up to an episode's end")
        place, table = storage.place, episode_table(storage)
        episode, index = locate(storage, place.host(rows))
        chosen, which = np.unique(episode, return_inverse=True)
        first = table.length[chosen]
        np.minimum.at(first, which, index)
        lane, start, length = (column[chosen] for column in table)
        closed = (storage.flags[storage.rows(lane, start + length - 1)] & NO_NEXT) == 0
        count = length - first + closed  # else the last step, which is no transition, is the closing row
        ends = np.cumsum(count)
        begins = ends - count
        position = np.arange(ends[-1]) + np.repeat(start + first - begins, count)
        tails = place.indices(storage.rows(np.repeat(lane, count), position))
        steps = np.ones((len(position), 1), np.float32)
        steps[ends - 1] = 0
        written = storage.source
        version = written.version

        def read(begin: int, end: int) -> Tree:
            if written.version != version:
                raise DataError(
                    "the dataset was written to after this minibatch was drawn, so that rows of it may be gone: draw "
                    "one, learn from it, and only then write"
                )
            return part.observe(storage, tails[begin:end])

        return TailMiniBatch(
            part.observe(storage, rows),
            place.to_action(storage.take("action", rows)),
            place.to_float(storage.take("reward", tails)),
            terminals=storage.terminals(tails),
            extra=extra_columns(storage, rows),
            steps=place.indices(steps),
            index=place.indices(begins[which] + index - first[which]),
            longest=int(count.max()) - 1,
            read=read,
        )


def _require_single_steps(picker: Any, purpose: str, several: bool = False) -> None:
    basic, own = BasicTransitionPicker, type(picker)
    sums = (basic.add_up, MultiStepTransitionPicker.add_up) if several else (basic.add_up,)
    if not is_vectorised(picker) or own.batch is not basic.batch or own.add_up not in sums:
        more = ", or a MultiStepTransitionPicker" if several else ""
        raise UnsupportedError(
            f"{type(picker).__name__} cannot be used for {purpose}, which are made of single steps: give the dataset a "
            f"BasicTransitionPicker or FrameStackTransitionPicker{more}"
        )
