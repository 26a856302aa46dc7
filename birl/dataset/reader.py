"""Readers, which draw rows of a dataset with a sampler and read them through a view."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch

from birl.checks import check
from birl.dataset.arrays import Place
from birl.dataset.episode import EpisodeBase
from birl.dataset.episodes import locate
from birl.dataset.incoming import episode_rows
from birl.dataset.layout import Layout
from birl.dataset.minibatch import MiniBatch, TransitionMiniBatch
from birl.dataset.mirror import Mirror, place_near
from birl.dataset.sampling import Generators, Rows, Sampler, Uniform
from birl.dataset.slicers import BasicTrajectorySlicer, FrameStackTrajectorySlicer, TrajectorySlicerProtocol
from birl.dataset.storage import FINAL, FIRST, NO_TRANSITION, Storage
from birl.dataset.transitions import FrameStackTransitionPicker, TransitionPickerProtocol, is_vectorised
from birl.dataset.views import TrajectoryView, TransitionView, View
from birl.errors import EmptyDataError
from birl.types import ActionSpace, Array, State

ROWS_AT_ONCE = 1024
_STACKS = (FrameStackTransitionPicker, FrameStackTrajectorySlicer)


class Reader(ABC):
    """The only way out of a dataset.

    Attributes:
        picker: makes transitions.
        slicer: makes windows.
    """

    picker: TransitionPickerProtocol
    slicer: TrajectorySlicerProtocol
    device_generator: torch.Generator | None = None
    """The generator of draws from a mirror on a device; ``None`` where rows are drawn on the host."""

    @abstractmethod
    def draw(self, view: View, count: int, beside: Sequence[Self] = ()) -> Any:
        """Draw a minibatch.

        Args:
            view: kind of the minibatch.
            count: number of elements.
            beside: readers of the same steps with other generators. Each draws ``count`` more elements.

        Returns:
            One minibatch of all elements.
        """

    @abstractmethod
    def draw_one(self, view: TransitionView | TrajectoryView) -> Any:
        """Draw one transition or window through the per-item protocol."""

    @abstractmethod
    def renewed(self) -> Self:
        """A reader of the same steps with new random generators."""

    @abstractmethod
    def near(self, device: torch.device, *, growing: bool = False) -> Reader:
        """A reader of the same steps near a device. See `ReplayBuffer.placed_for`."""

    @property
    @abstractmethod
    def transition_count(self) -> int:
        """Number of transitions."""

    def all_transitions(self, *, initial: bool = False) -> Iterator[TransitionMiniBatch]:
        """Every transition once, in the order of the episodes, many at a time.

        Args:
            initial: only those with which an episode begins. An episode whose beginning was evicted has none.

        Returns:
            Minibatches of numpy arrays; ``extra`` is the number ``episode`` ``[B]`` of the episode.

        Raises:
            EmptyDataError: if there is none.
        """
        batches = self.walk(initial)
        first = next(batches, None)
        if first is None and initial and self.transition_count:
            raise EmptyDataError("no episode begins in the data, its beginnings were evicted: evaluate with episodes=…")
        if first is None:
            raise EmptyDataError("there is no transition: give episodes of two or more steps")
        return itertools.chain([first], batches)

    @abstractmethod
    def walk(self, initial: bool = False, first_episode: int = 0) -> Iterator[TransitionMiniBatch]:
        """As `all_transitions`, with episodes counted from ``first_episode``; nothing if there is none."""

    @abstractmethod
    def episode_returns(self) -> Array:
        """Undiscounted return ``[E]`` of every episode."""

    @abstractmethod
    def get_state(self, *, contents: bool = False) -> State:
        """State of the random generators. Stored steps belong to the dataset: ``contents`` has no effect."""

    @abstractmethod
    def set_state(self, state: State) -> None:
        """Go back to a state; what is drawn next is what was drawn next then."""


class StorageReader(Reader):
    """Draws minibatches from a storage, or from its mirror near a device.

    Args:
        storage: holds the steps.
        picker: makes transitions.
        slicer: makes windows; `BasicTrajectorySlicer` if ``None``.
        sampler: chooses rows; `Uniform` if ``None``.
        generators: source of randomness; new ones if ``None``.
    """

    def __init__(
        self,
        storage: Storage,
        picker: TransitionPickerProtocol,
        slicer: TrajectorySlicerProtocol | None = None,
        sampler: Sampler | None = None,
        generators: Generators | None = None,
    ) -> None:
        self.storage, self.picker = storage, picker
        self.slicer: TrajectorySlicerProtocol = slicer or BasicTrajectorySlicer()
        self.sampler: Sampler = sampler or Uniform()
        self.generators = generators or Generators()

    @classmethod
    def of_episodes(
        cls,
        episodes: Sequence[EpisodeBase],
        picker: TransitionPickerProtocol,
        action_space: ActionSpace,
        action_size: int | None = None,
    ) -> StorageReader:
        """A reader of a copy of episodes.

        Args:
            episodes: one or more.
            picker: makes transitions.
            action_space: kind of the actions.
            action_size: number of discrete actions; ``None`` for the largest one plus one.

        Raises:
            EmptyDataError: if there is no episode.
        """
        if not episodes:
            raise EmptyDataError("there are no episodes to read: give one or more")
        layout = Layout.of_episodes(episodes, action_space, action_size)
        storage = Storage(layout, capacity=sum(episode.size() + 1 for episode in episodes))
        for episode in episodes:
            storage.extend(0, *episode_rows(storage, episode))
        return cls(storage, picker)

    def _with(self, storage: Storage, generators: Generators) -> StorageReader:
        return StorageReader(storage, self.picker, self.slicer, self.sampler, generators)

    def renewed(self) -> StorageReader:
        """A reader of the same steps with new random generators."""
        return self._with(self.storage, Generators())

    # -- places ----------------------------------------------------------------------------------------------------

    @property
    def vectorised(self) -> bool:
        """Whether picker and slicer make whole minibatches."""
        return is_vectorised(self.picker) and is_vectorised(self.slicer, ("batch",))

    def near(self, device: torch.device, *, growing: bool = False) -> StorageReader:
        """A reader of the same steps, mirrored near ``device`` if that is of use. See `ReplayBuffer.placed_for`."""
        place = place_near([(self.storage, growing)], device) if self.vectorised else None
        return self if place is None else self.mirrored(place, growing=growing)

    def mirrored(self, place: Place, *, growing: bool = False) -> StorageReader:
        """A reader of a mirror of the storage. See `Mirror`."""
        return self._with(Mirror(self.storage, place, growing=growing), Generators(self.generators.host))

    @property
    def device_generator(self) -> torch.Generator | None:  # type: ignore[override]
        """The generator of draws from a mirror on a device; ``None`` where rows are drawn on the host."""
        storage = self.storage
        if storage.source is storage or not storage.device_draws:
            return None
        return self.generators.on(storage.place.device)

    # -- minibatches -----------------------------------------------------------------------------------------------

    def draw(self, view: View, count: int, beside: Sequence[StorageReader] = ()) -> Any:
        """See `Reader.draw`. All elements are gathered at once."""
        if type(count) is not int or count < 1:  # asked first: a draw takes a few microseconds
            count = check("batch_size", count, int, low=1)
        rows = self._rows(view, count)
        if beside:
            drawn = zip(rows, *(each._rows(view, count) for each in beside), strict=True)
            rows = Rows(*(None if parts[0] is None else self.storage.place.join(parts) for parts in drawn))
        batch: MiniBatch = view.read(self.storage, self._part(view), rows.index)
        return batch if rows.weight is None else replace(batch, weights=rows.weight, rows=rows)

    def update(self, batch: MiniBatch, priority: Any) -> None:
        """Set the priorities ``[B]`` of a minibatch's elements; ignored by samplers without priorities."""
        self.sampler.update(batch.rows, priority)

    def draw_one(self, view: TransitionView | TrajectoryView) -> Any:
        row = int(self._rows(view, 1).index[0])
        return view.items(self.storage.source, self._part(view), np.array([row]))[0]

    def _part(self, view: View) -> Any:
        return self.slicer if view.sliced else self.picker

    def _rows(self, view: View, count: int) -> Rows:
        storage, part = self.storage, self._part(view)
        storage.refresh()
        drawn_from = storage if storage.device_draws else storage.source
        stacked = isinstance(part, _STACKS) and part.n_frames > 1 and storage.limit is not None
        complete = FrameStackTransitionPicker(part.n_frames).complete if stacked else None
        rows = self.sampler.draw(drawn_from, count, self.generators, view.reject, complete)
        return rows if drawn_from is storage else rows._replace(index=storage.place.indices(rows.index))

    # -- everything ------------------------------------------------------------------------------------------------

    @property
    def transition_count(self) -> int:
        """Number of transitions."""
        return self.storage.source.transition_count

    def walk(self, initial: bool = False, first_episode: int = 0) -> Iterator[TransitionMiniBatch]:
        storage = self.storage.source
        rows = storage.rows(*storage.live())
        rows = rows[(storage.flags[rows] & NO_TRANSITION) == 0]
        if initial:
            rows = rows[(storage.flags[rows] & FIRST) != 0]
        for begin in range(0, len(rows), ROWS_AT_ONCE):
            chunk = rows[begin : begin + ROWS_AT_ONCE]
            batch = TransitionView().read(storage, self.picker, storage.place.indices(chunk))
            numbers = first_episode + locate(storage, chunk)[0]
            yield replace(batch.map(storage.place.host).filled(), extra={"episode": numbers})

    def episode_returns(self) -> Array:
        """Undiscounted return ``[E]`` of every episode."""
        storage = self.storage.source
        rows = storage.rows(*storage.live())
        rows = rows[(storage.flags[rows] & FINAL) == 0]
        reward = storage.place.host(storage.take("reward", rows))[:, 0]
        return np.bincount(locate(storage, rows)[0], weights=reward, minlength=storage.episode_count)

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self, *, contents: bool = False) -> State:
        return self.generators.get_state()

    def set_state(self, state: State) -> None:
        """See `Reader.set_state`. On another kind of device the draws begin anew."""
        self.generators.set_state(state, self.storage.place.device)
