"""Readers, which sample minibatches: a sampler selects rows of a storage, and a view makes a minibatch of them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, final

import numpy as np
import torch

from birl.checks import check
from birl.dataset.arrays import AnyPlace
from birl.dataset.augmentation import Augmentation
from birl.dataset.device_mirror import Mirror, place_near
from birl.dataset.episode import PartialTrajectory, Transition
from birl.dataset.episodes import locate
from birl.dataset.flags import FINAL, FIRST, NO_TRANSITION
from birl.dataset.minibatch import MiniBatch, Rows, TransitionMiniBatch
from birl.dataset.sampling import Generators, Sampler, Uniform
from birl.dataset.slicers import BasicTrajectorySlicer, TrajectorySlicerProtocol, is_batch_slicer
from birl.dataset.storage import Storage
from birl.dataset.transitions import TransitionPickerProtocol, is_batch_picker
from birl.dataset.views import M, Part, TrajectoryView, TransitionView, View
from birl.errors import EmptyDataError, UnsupportedError
from birl.types import Array, State

ROWS_AT_ONCE = 1024


class MinibatchSource(Protocol):
    """A source of minibatches for a learner: a dataset, a buffer, a `Reader` or replay in several processes."""

    def sample(self, view: View[M], count: int) -> M:
        """Sample a minibatch of ``count`` elements."""


@dataclass(frozen=True, eq=False)
class Source:
    """A storage, or a mirror of one near the training device, with the objects that sample from it.

    Attributes:
        storage: storage of the steps.
        picker: makes transitions.
        slicer: makes windows of trajectories.
        sampler: selects rows.
        generators: random generators of the sampler and the augmentation.
        augmentation: changes the observations of minibatches on the training device; ``None`` for no augmentation.
    """

    storage: Storage
    picker: TransitionPickerProtocol
    slicer: TrajectorySlicerProtocol = field(default_factory=BasicTrajectorySlicer)
    sampler: Sampler = field(default_factory=Uniform)
    generators: Generators = field(default_factory=Generators)
    augmentation: Augmentation | None = None

    def mirrored(self, place: AnyPlace, growing: bool) -> Source:
        """Return a source that samples the same steps from a mirror of the storage. See `Mirror`."""
        mirror = Mirror(self.storage, place, growing=growing)
        return replace(self, storage=mirror, generators=Generators(self.generators.host))

    def renewed(self) -> Source:
        """Return a source of the same steps with new random generators and a copy of the sampler."""
        return replace(self, sampler=copy.deepcopy(self.sampler), generators=Generators())

    def part(self, view: View[MiniBatch]) -> Part:
        """Return the picker or slicer that a view uses."""
        return self.slicer if view.sliced else self.picker

    def draw_rows(self, view: View[MiniBatch], count: int) -> Rows:
        """Sample the rows of a minibatch for a view."""
        storage = self.storage
        storage.refresh()
        sampled = storage if storage.device_draws else storage.source
        complete = getattr(self.part(view), "complete", None)
        if complete is not None and not sampled.has_cut_episodes:
            complete = None
        rows = self.sampler.draw(sampled, count, self.generators, view.reject, complete)
        index = rows.index if sampled is storage else storage.place.indices(rows.index)
        augmented = None if self.augmentation is None else self._draw_augmentation(view, count)
        if rows.weight is None:
            return Rows(index, goal=rows.goal, augmented=augmented)
        generation = sampled.numbers(sampled.place.host(rows.index))
        return Rows(index, storage.place.indices(rows.weight), generation, rows.goal, augmented, rows.scale)

    def _draw_augmentation(self, view: View[MiniBatch], count: int) -> Array:
        """Draw the random numbers ``[count, 2, k]`` of the augmentation."""
        if not hasattr(view, "columns"):
            raise UnsupportedError(
                "an augmentation changes transitions and sequences, not windows of trajectories or returns up to an "
                "episode's end: make the dataset without augmentation="
            )
        assert self.augmentation is not None
        numbers = self.augmentation.draw(2 * count, self.generators.host)
        return numbers.reshape(2, count, -1).swapaxes(0, 1).copy()

    def update(self, rows: Rows, priority: Array) -> None:
        """Set the priorities ``[B]`` of sampled rows in the sampler, except for steps that have been overwritten."""
        storage = self.storage.source
        if rows.generation is not None:
            index = self.storage.place.host(rows.index)
            stored = storage.numbers(index) == rows.generation
            if not stored.all():
                index, rows, priority = index[stored], Rows(None, None, rows.generation[stored]), priority[stored]
            self.sampler.update(Rows(index, None, rows.generation), priority)

    def get_state(self) -> State:
        """Return the state of the random generators, and of the sampler if it has one."""
        state, sampler_state = self.generators.get_state(), self.sampler.get_state()
        return {**state, "sampler": sampler_state} if sampler_state else state

    def set_state(self, state: State) -> None:
        """Restore a state. If it is from another kind of device, the device's generator is seeded again."""
        self.generators.set_state(state, self.storage.place.device)
        if "sampler" in state:
            self.sampler.set_state(state["sampler"])


@final
class Reader:
    """The reader of all minibatches of a dataset, which come from one source or a mixture of two.

    While one of two sources has no transitions, minibatches come from the other source alone.

    Args:
        sources: one or two sources.
        ratio: share of the second source, in [0, 1], rounded to whole elements of a minibatch.
        choice: random generators that select the source of single elements; ``None`` if there is one source.
    """

    def __init__(self, sources: Sequence[Source], ratio: float = 0.0, choice: Generators | None = None) -> None:
        self.sources, self.ratio, self.choice = sources, ratio, choice

    # -- places ----------------------------------------------------------------------------------------------------

    def renewed(self) -> Reader:
        """Return a reader of the same steps with new random generators and copies of the samplers."""
        sources = [source.renewed() for source in self.sources]
        return Reader(sources, self.ratio, self.choice and Generators())

    def near(self, device: torch.device, *, growing: bool = False) -> Reader:
        """Return a reader of the same steps, mirrored near ``device`` if useful. See `ReplayBuffer.placed_for`."""
        if not all(is_batch_picker(each.picker) and is_batch_slicer(each.slicer) for each in self.sources):
            return self
        place = place_near([(source.storage, growing and not i) for i, source in enumerate(self.sources)], device)
        return self if place is None else self.mirrored(place, growing=growing)

    def mirrored(self, place: AnyPlace, *, growing: bool = False) -> Reader:
        """Return a reader that samples from mirrors in ``place``. Only the first source can be ``growing``."""
        sources = [source.mirrored(place, growing and not i) for i, source in enumerate(self.sources)]
        return Reader(sources, self.ratio, self.choice)

    @property
    def device_generator(self) -> torch.Generator | None:
        """The generator with which a device samples its mirror; ``None`` if sampling needs the host."""
        source, *others = self.sources
        storage = source.storage
        if others or storage.source is storage or not storage.device_draws or not isinstance(source.sampler, Uniform):
            return None
        if source.augmentation is not None:
            return None
        return source.generators.on(storage.place.device)

    # -- minibatches -----------------------------------------------------------------------------------------------

    def sample(self, view: View[M], count: int, others: Sequence[Reader] = ()) -> M:
        """Sample a minibatch.

        Args:
            view: kind of the minibatch.
            count: number of elements.
            others: readers of the same steps with other generators. Each samples ``count`` more elements.

        Returns:
            One minibatch of all elements. If there is one source, all elements are gathered at once.
        """
        if type(count) is not int or count < 1:  # tested here first, because `check` takes microseconds
            count = check("batch_size", count, int, low=1)
        shares = [share for reader in (self, *others) for share in reader._shares(count)]
        parts = [(source, source.draw_rows(view, number)) for source, number in shares]
        groups = [parts] if len(self.sources) == 1 else [[part] for part in parts]
        first, *rest = [read_rows(view, group) for group in groups]
        batch = first.concatenate(*rest) if rest else first
        return batch if batch.weights is None else batch.replace(rows=parts)

    def sample_transition(self) -> Transition:
        """Sample one transition by the per-item protocol. If there are two sources, one is selected at random."""
        view = TransitionView()
        source, row = self._sample_row(view)
        return copy.deepcopy(view.items(source.storage.source, source.picker, row)[0])  # not views of the storage

    def sample_trajectory(self, length: int) -> PartialTrajectory:
        """Sample one window of ``length`` steps by the per-item protocol. See `sample_transition`."""
        view = TrajectoryView(length)
        source, row = self._sample_row(view)
        return copy.deepcopy(view.items(source.storage.source, source.slicer, row)[0])

    def _sample_row(self, view: View[MiniBatch]) -> tuple[Source, Array]:
        second = self.choice is not None and self.choice.host.random() < self._share()
        source = self.sources[int(second)]
        rows = source.draw_rows(view, 1)
        if rows.goal is not None:
            raise UnsupportedError(
                "a HindsightSampler does not change the goals of single items: sample a minibatch, "
                "sample_transition_batch(1)"
            )
        return source, np.array([int(rows.index[0])])

    def _shares(self, count: int) -> list[tuple[Source, int]]:
        """Return the number of elements to sample from each source, for sources from which it is not 0."""
        second = round(count * self._share())
        shares = zip(self.sources, (count - second, second), strict=False)
        return [(source, number) for source, number in shares if number]

    def _share(self) -> float:
        """Return the share of the second source: 0 or 1 while one of the two sources has no transitions."""
        if not 0.0 < self.ratio < 1.0:
            return self.ratio
        first, second = (source.storage.source.transition_count for source in self.sources)
        return self.ratio if first and second else float(not first)

    # -- everything ------------------------------------------------------------------------------------------------

    @property
    def storages(self) -> list[Storage]:
        """The storages of the sources, without mirrors."""
        return [source.storage.source for source in self.sources]

    @property
    def transition_count(self) -> int:
        """Number of transitions."""
        return sum(storage.transition_count for storage in self.storages)

    def all_transitions(self, *, initial: bool = False) -> Iterator[TransitionMiniBatch]:
        """Iterate over all transitions once, in the order of the episodes, many at a time.

        Args:
            initial: whether to include only the first transition of each episode. An episode whose first step was
                evicted has none.

        Returns:
            Minibatches of numpy arrays. ``extra`` also has the column ``episode`` ``[B]``, the episode's number.

        Raises:
            EmptyDataError: if there are no transitions.
        """
        if not self.transition_count:
            raise EmptyDataError("there is no transition: give episodes of two or more steps")
        batches = self._all_batches(initial)
        first = next(batches, None)
        if first is None:
            raise EmptyDataError("the first steps of all episodes were evicted: evaluate with episodes=…")
        return itertools.chain([first], batches)

    def _all_batches(self, initial: bool) -> Iterator[TransitionMiniBatch]:
        first_episode = 0
        for source, storage in zip(self.sources, self.storages, strict=True):
            rows = storage.rows(*storage.live())
            rows = rows[(storage.flags[rows] & NO_TRANSITION) == 0]
            if initial:
                rows = rows[(storage.flags[rows] & FIRST) != 0]
            for begin in range(0, len(rows), ROWS_AT_ONCE):
                chunk = rows[begin : begin + ROWS_AT_ONCE]
                batch = TransitionView().read(storage, source.picker, storage.place.indices(chunk))
                numbers = first_episode + locate(storage, chunk)[0]
                batch = batch.map(storage.place.host).filled()
                yield replace(batch, extra={**batch.extra, "episode": numbers})
            first_episode += storage.episode_count

    def episode_returns(self) -> Array:
        """Return the undiscounted return ``[E]`` of every episode."""
        returns = []
        for storage in self.storages:
            rows = storage.rows(*storage.live())
            rows = rows[(storage.flags[rows] & FINAL) == 0]
            reward = storage.place.host(storage.take("reward", rows))[:, 0]
            returns.append(np.bincount(locate(storage, rows)[0], weights=reward, minlength=storage.episode_count))
        return np.concatenate(returns)

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self, *, contents: bool = False) -> State:
        """Return the state of generators and samplers. Steps belong to the dataset, so ``contents`` has no effect."""
        first, *others = (source.get_state() for source in self.sources)
        return first if self.choice is None else {**self.choice.get_state(), "primary": first, "secondary": others[0]}

    def set_state(self, state: State) -> None:
        """Restore a state. The next minibatches are those that were sampled after the state was saved."""
        states = [state]
        if self.choice is not None:
            self.choice.set_state(state, None)
            states = [state["primary"], state["secondary"]]
        for source, source_state in zip(self.sources, states, strict=True):
            source.set_state(source_state)


def read_rows(view: View[M], parts: Sequence[tuple[Source, Rows]]) -> M:
    """Return the minibatch of rows that were sampled by sources of the same storage."""
    source, rows = parts[0]
    storage, concatenate = source.storage, source.storage.place.concatenate
    all_rows = rows
    if len(parts) > 1:
        goal = None if rows.goal is None else np.concatenate([each.goal for _, each in parts])
        all_rows = Rows(concatenate([each.index for _, each in parts]), goal=goal)
    batch = source.sampler.read(view, storage, source.part(view), all_rows)
    if source.augmentation is not None:
        batch = batch.with_augmentation(source.augmentation, np.concatenate([each.augmented for _, each in parts]))
    if rows.weight is None:
        return batch
    return batch.replace(weights=rows.weight if len(parts) == 1 else concatenate([each.weight for _, each in parts]))
