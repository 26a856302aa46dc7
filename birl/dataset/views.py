"""Views: the kinds of minibatches that a `Reader` samples, with their computed columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from birl.checks import check
from birl.dataset.arrays import ranges
from birl.dataset.episode import PartialTrajectory, Transition
from birl.dataset.episodes import episode_table, locate, per_item
from birl.dataset.flags import FINAL, FIRST, NO_NEXT, NO_TRANSITION
from birl.dataset.minibatch import MiniBatch, SequenceMiniBatch, TailMiniBatch, TrajectoryMiniBatch, TransitionMiniBatch
from birl.dataset.slicers import TrajectorySlicerProtocol, is_batch_slicer
from birl.dataset.storage import A, Storage
from birl.dataset.transitions import (
    NO_COLUMNS,
    BasicTransitionPicker,
    Columns,
    FrameStackTransitionPicker,
    MultiStepTransitionPicker,
    TransitionPickerProtocol,
    extra_columns,
    has_batch_methods,
    is_batch_picker,
)
from birl.errors import DataError, UnsupportedError
from birl.types import Array, ArrayOrTensor, Tree, tree_map

M = TypeVar("M", bound=MiniBatch)
M_co = TypeVar("M_co", bound=MiniBatch, covariant=True)


Part: TypeAlias = TransitionPickerProtocol | TrajectorySlicerProtocol
"""The picker or slicer of a dataset, which makes the items of a minibatch."""


class View(Protocol[M_co]):
    """A kind of minibatch.

    Attributes:
        reject: steps with any of these flags are not sampled.
        sliced: whether the dataset's slicer reads the steps instead of its picker.
    """

    reject: int = NO_TRANSITION
    sliced: bool = False

    def read(self, storage: Storage, part: Part, rows: ArrayOrTensor) -> M_co:
        """Return the minibatch of ``rows`` ``[B]``, made by a picker or slicer."""


@dataclass(frozen=True)
class TransitionView(View[TransitionMiniBatch]):
    """Transitions.

    Args:
        columns: computed columns.
    """

    columns: Columns = NO_COLUMNS

    def read(self, storage: Storage, part: Part, rows: ArrayOrTensor) -> TransitionMiniBatch:
        """Return the transitions at ``rows`` ``[B]``. A picker without ``batch`` makes them one by one."""
        place, columns, picker = storage.place, self.columns, cast(TransitionPickerProtocol, part)
        picked_columns: dict[str, Array] = {}  # columns that the picker's own transitions have
        if is_batch_picker(picker):
            batch = picker.batch(storage, rows)
        else:
            picked = TransitionMiniBatch.from_transitions(self.items(storage, picker, place.host(rows)))
            picked_columns |= {"next_action": picked.extra["next_action"]} if picked.extra else {}
            picked_columns |= picked.discounted_returns(columns.returns) if columns.returns else {}
            batch = replace(picked, extra={}, transitions=None).map(place.indices)
            batch = replace(batch, extra=extra_columns(storage, rows))
        if columns == NO_COLUMNS:
            return batch

        def after() -> ArrayOrTensor:
            steps = 1 if batch.intervals is None else place.to_int64(batch.intervals[:, 0])
            return storage.shift(rows, steps)

        found = columns.read(storage, picker, rows, after)
        found |= {name: place.indices(picked_columns[name]) for name in picked_columns if name in found}
        return replace(batch, extra={**batch.extra, **found})

    def items(self, storage: Storage, part: TransitionPickerProtocol, rows: Array) -> list[Transition]:
        """Return the transitions one by one, made by the per-item protocol."""
        return per_item(storage, rows, part, for_picker=True)


@dataclass(frozen=True)
class TrajectoryView(View[TrajectoryMiniBatch]):
    """Windows of ``length`` steps that end with the sampled step.

    Args:
        length: number of steps.
    """

    length: int
    reject = FINAL
    sliced = True

    def __post_init__(self) -> None:
        check("length", self.length, int, low=1)

    def read(self, storage: Storage, part: Part, rows: ArrayOrTensor) -> TrajectoryMiniBatch:
        """Return the windows that end with ``rows`` ``[B]``. A slicer without ``batch`` makes them one by one."""
        if is_batch_slicer(part):
            return part.batch(storage, rows, self.length)
        windows = self.items(storage, cast(TrajectorySlicerProtocol, part), storage.place.host(rows))
        batch = TrajectoryMiniBatch.from_partial_trajectories(windows).map(storage.place.indices)
        if not storage.extra_names:
            return batch
        window, alive = storage.behind(rows, self.length)
        extra = tree_map(lambda leaf: storage.place.zero_where(leaf, ~alive), extra_columns(storage, window))
        return replace(batch, extra=extra)

    def items(self, storage: Storage, part: TrajectorySlicerProtocol, rows: Array) -> list[PartialTrajectory]:
        """Return the windows one by one, made by the per-item protocol."""
        return per_item(storage, rows, lambda episode, index: part(episode, index, self.length))


@dataclass(frozen=True)
class SequenceView(View[SequenceMiniBatch]):
    """Sequences of ``burn_in + length`` steps. The sampled step is the first one after the burn-in.

    The ``burn_in`` steps precede it (Kapturowski et al. 2019, R2D2). If the episode has fewer, the sequence starts with
    padding, and the recurrent state is reset at the first real step. After the episode's end there is padding. With a
    multi-step picker each step has its n-step return, over fewer steps at the end of the sequence or episode.

    Args:
        length: number of steps that the loss counts.
        burn_in: number of steps before them, which only warm up the recurrent state.
        columns: computed columns.
    """

    length: int
    burn_in: int = 0
    columns: Columns = NO_COLUMNS

    def __post_init__(self) -> None:
        check("length", self.length, int, low=1)
        check("burn_in", self.burn_in, int, low=0)

    def window(self, storage: Storage, rows: A) -> tuple[A, A]:
        """Return the rows ``[T, B]`` of the sequences of ``rows`` ``[B]``, and which are in the same episode."""
        concatenate = storage.place.concatenate
        before, alive_before = storage.behind(rows, self.burn_in + 1)
        after, alive_after = storage.ahead(rows, self.length)
        window = concatenate([before[:, :-1], after], 1).T
        return window, concatenate([alive_before[:, :-1], alive_after], 1).T

    def read(self, storage: Storage, part: Part, rows: ArrayOrTensor) -> SequenceMiniBatch:
        """Return the sequences of ``rows`` ``[B]``."""
        picker = _single_step_picker(part, "sequences", multi_step=True)
        place = storage.place
        window, alive = self.window(storage, rows)
        if isinstance(picker, FrameStackTransitionPicker):
            alive = alive & picker.complete(storage, window)
        padding = ~alive
        known = alive & ~storage.take_flags(window, NO_NEXT)
        is_first: Any = storage.take_flags(window, FIRST) & alive
        # After padding the stored state does not apply; a head without its evicted history also starts from zero.
        is_first[1:] |= alive[1:] & ~alive[:-1]

        def zero_at(where: ArrayOrTensor, values: Tree) -> Tree:
            return tree_map(lambda leaf: place.zero_where(leaf, where), values)

        prefix = "extra.state."
        states = {
            name.removeprefix(prefix): zero_at(padding[0], place.to_float(storage.take(name, window[0])))
            for name in storage.extra_names
            if name.startswith(prefix)
        }
        reward, steps = zero_at(padding, place.to_float(storage.take("reward", window))), None
        following, last = storage.shift(window, 1), window
        if isinstance(picker, MultiStepTransitionPicker) and picker.n_steps > 1:
            reward, steps = _n_step_sums(reward, known, picker.n_steps, picker.gamma)
            following, last = storage.shift(window, steps), storage.shift(window, steps - 1)
        extra = extra_columns(storage, window) | self.columns.read(storage, picker, window, lambda: following)
        return SequenceMiniBatch(
            zero_at(padding, picker.observe(storage, window)),
            zero_at(padding, place.to_action(storage.take("action", window))),
            reward,
            zero_at(~known, picker.observe(storage, following)),
            zero_at(padding, storage.terminals(last)),
            None if steps is None else place.to_float(steps[..., None]),
            extra=zero_at(padding, extra),
            masks=place.to_float(known),
            is_first=is_first,
            start_states=states,
            burn_in=self.burn_in,
        )


def _n_step_sums(reward: A, known: A, n_steps: int, gamma: float) -> tuple[A, A]:
    """Return sums of discounted rewards ``[T, B, 1]`` over up to ``n_steps`` known steps, and lengths ``[T, B]``."""
    total: Any = reward * 1.0
    steps: Any = known * 0 + 1
    continues: Any = known
    for k in range(1, min(n_steps, len(known))):
        continues = continues[: len(known) - k] & known[k:]
        total[:-k] += gamma**k * reward[k:] * continues[..., None]
        steps[:-k] += continues
    return total, steps


@dataclass(frozen=True)
class TailView(View[TailMiniBatch]):
    """Transitions with the rest of their episodes, which can be read until the next write."""

    @staticmethod
    def picker(part: Part) -> BasicTransitionPicker:
        """Return a transition picker that the view can use, or raise `UnsupportedError`."""
        return _single_step_picker(part, "returns up to an episode's end")

    def read(self, storage: Storage, part: Part, rows: ArrayOrTensor) -> TailMiniBatch:
        """Return the transitions at ``rows`` ``[B]`` with the tails of their episodes."""
        picker = self.picker(part)
        place, table = storage.place, episode_table(storage)
        episode, index = locate(storage, place.host(rows))
        episodes, which = np.unique(episode, return_inverse=True)
        first = table.length[episodes]
        np.minimum.at(first, which, index)
        lane, start, length = (column[episodes] for column in table)
        has_next = (storage.flags[storage.rows(lane, start + length - 1)] & NO_NEXT) == 0
        count = length - first + has_next  # without a next observation, the last step is the closing row
        ends = np.cumsum(count)
        begins = ends - count
        tail, position = ranges(start + first, start + first + count)
        tails = place.indices(storage.rows(lane[tail], position))
        steps = np.ones((len(position), 1), np.float32)
        steps[ends - 1] = 0
        written = storage.source
        version = written.version

        def read(begin: int, end: int) -> Tree:
            if written.version != version:
                raise DataError(
                    "the dataset was written to after this minibatch was sampled, so rows of it may be overwritten: "
                    "sample a minibatch, learn from it, and only then write"
                )
            return picker.observe(storage, tails[begin:end])

        return TailMiniBatch(
            picker.observe(storage, rows),
            place.to_action(storage.take("action", rows)),
            place.to_float(storage.take("reward", tails)),
            terminals=storage.terminals(tails),
            extra=extra_columns(storage, rows),
            steps=place.indices(steps),
            index=place.indices(begins[which] + index - first[which]),
            longest=int(count.max()) - 1,
            read=read,
        )


def _single_step_picker(part: Part, purpose: str, multi_step: bool = False) -> BasicTransitionPicker:
    """Return ``part`` as a built-in picker of single steps, or raise `UnsupportedError`.

    Args:
        part: the dataset's transition picker.
        purpose: use of the picker, for the message.
        multi_step: whether a `MultiStepTransitionPicker` is also allowed.
    """
    basic = BasicTransitionPicker
    if isinstance(part, basic) and has_batch_methods(type(part), ("batch", "observe")):
        sums = type(part).n_step_rewards
        if multi_step and sums is MultiStepTransitionPicker.n_step_rewards:
            sums = basic.n_step_rewards
        if type(part).batch is basic.batch and sums is basic.n_step_rewards:
            return part
    alternative = ", or a MultiStepTransitionPicker" if multi_step else ""
    raise UnsupportedError(
        f"{type(part).__name__} cannot be used for {purpose}, which are made of single steps: give the dataset a "
        f"BasicTransitionPicker or FrameStackTransitionPicker{alternative}"
    )
