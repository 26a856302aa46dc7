"""The replay buffer: one object for logged data and for experience that is being collected."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import torch

from birl.checks import check
from birl.dataset.arrays import FolderPlace, make_place
from birl.dataset.augmentation import Augmentation
from birl.dataset.base import ReplayBufferBase
from birl.dataset.buffers import BufferProtocol, FIFOBuffer, InfiniteBuffer, retention_of
from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.episode import Episode, EpisodeBase, Signature, check_episodes
from birl.dataset.flags import NO_TRANSITION, TERMINATED, TRUNCATED
from birl.dataset.folders import (
    begin_writing,
    check_saved_actions,
    end_writing,
    get_storage_state,
    new_folder,
    open_folder,
    open_sampler,
    save_folder,
    save_sampler,
    set_storage_state,
)
from birl.dataset.hdf5 import check_readable, read_episodes
from birl.dataset.ingest import (
    add_extra_columns,
    add_row_axis,
    append_steps,
    checked_flags,
    episode_rows,
    lane_numbers,
    observation_columns,
    step_columns,
)
from birl.dataset.reader import Reader, Source
from birl.dataset.sampling import Sampler, Uniform
from birl.dataset.slicers import BasicTrajectorySlicer, TrajectorySlicerProtocol
from birl.dataset.storage import Storage
from birl.dataset.transitions import BasicTransitionPicker, TransitionPickerProtocol, is_batch_picker
from birl.dataset.views import TransitionView
from birl.dataset.writers import BasicWriterPreprocess, WriterPreprocessProtocol, process_observations, process_rows
from birl.errors import ConfigError, DataError, ShapeError, UnsupportedError
from birl.spaces.observations import picked
from birl.types import ActionSpace, Array, Observation, Shape, State, Tree, parts_like, tree_map

StorageLocation: TypeAlias = "str | os.PathLike[str] | torch.device"


class ReplayBuffer(ReplayBufferBase):
    """Experience replay over arrays.

    Shapes and dtypes come from ``env``, else from ``episodes``, else from the three signatures.

    Args:
        buffer: `InfiniteBuffer`, `FIFOBuffer` or `EpisodicFIFOBuffer`.
        transition_picker: `BasicTransitionPicker` if ``None``.
        trajectory_slicer: `BasicTrajectorySlicer` if ``None``.
        writer_preprocessor: `BasicWriterPreprocess` if ``None``.
        episodes: episodes to begin with.
        env: environment, or vector environment: then each of its environments is a lane.
        observation_signature, action_signature, reward_signature: what is stored. Rewards are one float32 if ``None``.
        action_space: ``None`` to find it from the environment, or from the dtype of the actions.
        action_size: number of action dimensions, or of discrete actions; or an action space; ``None`` to find it.
        cache_size: ignored, kept for code written for d3rlpy: episodes may have any length.
        write_at_termination: kept for code written for d3rlpy; only ``False`` is possible: steps are stored one by one.
        storage: ``"memory"``, a torch device, or the path of a new folder for data larger than memory.
        lanes: number of parallel environments that write; ``None`` for the number in ``env``.
        sampler: chooses the steps of minibatches; `birl.dataset.Uniform` if ``None``.
        observation_space: what observations are where ``env`` does not tell it; see `MDPDataset`.
        observation_keys: names of the parts of the observations of ``env`` that are stored; all if ``None``.
        augmentation: changes images of minibatches on the training device; see `birl.dataset.RandomShift`.

    Attributes:
        storage: the arrays.

    Raises:
        ConfigError: if shapes cannot be told, or ``storage`` is not usable.
        UnsupportedError: for ``write_at_termination``.
    """

    def __init__(
        self,
        buffer: BufferProtocol,
        transition_picker: TransitionPickerProtocol | None = None,
        trajectory_slicer: TrajectorySlicerProtocol | None = None,
        writer_preprocessor: WriterPreprocessProtocol | None = None,
        episodes: Sequence[EpisodeBase] | None = None,
        env: Any = None,
        observation_signature: Signature | None = None,
        action_signature: Signature | None = None,
        reward_signature: Signature | None = None,
        action_space: ActionSpace | None = None,
        action_size: Any = None,
        cache_size: int = 10000,
        write_at_termination: bool = False,
        *,
        storage: StorageLocation = "memory",
        lanes: int | None = None,
        sampler: Sampler | None = None,
        observation_space: Any = None,
        observation_keys: Sequence[str] | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        if check("write_at_termination", write_at_termination, bool):
            raise UnsupportedError(
                "write_at_termination is True; it must be False, as steps are stored when they are appended. To learn "
                "from whole episodes only, collect each one and give it to append_episode(…) when it is over"
            )
        writer = BasicWriterPreprocess() if writer_preprocessor is None else writer_preprocessor
        check("writer_preprocessor", writer, WriterPreprocessProtocol)  # type: ignore[type-abstract]
        signatures = (observation_signature, action_signature, reward_signature)
        for name, signature in zip(("observation", "action", "reward"), signatures, strict=True):
            check(f"{name}_signature", signature, Signature, optional=True)
        check("action_space", action_space, ActionSpace, optional=True)
        check("episodes", episodes, Sequence, optional=True)  # type: ignore[type-abstract]
        reward = Signature([np.float32], [(1,)]) if reward_signature is None else reward_signature.as_row()
        if env is not None:
            check_episodes(episodes or ())
            info = DatasetInfo.from_env(env, writer, reward, action_space, action_size, observation_keys)
        elif episodes:
            if observation_keys is not None:
                raise ConfigError(
                    f"observation_keys is {observation_keys!r:.100}, but episodes are stored whole: leave it out, and "
                    "name the parts to read in the algorithm's configuration"
                )
            info = DatasetInfo.from_episodes(episodes, action_space, action_size, observation_space)
        elif observation_signature is not None and action_signature is not None:
            stored = (observation_signature, action_signature, reward)
            info = DatasetInfo.from_signatures(*stored, action_space, action_size, observation_space)
        else:
            raise ConfigError("shapes cannot be told: give env=, episodes= (at least one) or the signatures")
        if lanes is None:
            lanes = getattr(env, "num_envs", 1)
        rows = sum(episode.size() + 1 for episode in episodes or ())
        self._make(info, buffer, storage, rows, lanes)
        self._use(buffer, transition_picker, trajectory_slicer, writer, sampler, observation_keys, augmentation)
        for episode in episodes or ():
            self.append_episode(episode)
        self.flush()

    def _make(
        self, info: DatasetInfo, buffer: BufferProtocol, storage: StorageLocation, rows: int, lanes: int = 1
    ) -> None:
        """Make an empty storage with room for ``rows`` rows."""
        if not isinstance(buffer, BufferProtocol):
            raise ConfigError(
                f"buffer is {buffer!r:.80}; it must be an InfiniteBuffer(), a FIFOBuffer(limit), or of a class derived "
                "from them"
            )
        place, limit = make_place(storage), buffer.limit
        make = new_folder if isinstance(place, FolderPlace) else Storage
        capacity = rows if limit is None else min(rows, limit + 2)
        self.storage = make(info, lanes=lanes, limit=limit, place=place, capacity=capacity, whole=buffer.whole)

    def _use(
        self,
        buffer: BufferProtocol,
        picker: TransitionPickerProtocol | None,
        slicer: TrajectorySlicerProtocol | None,
        writer: WriterPreprocessProtocol | None,
        sampler: Sampler | None = None,
        observation_keys: Sequence[str] | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        """Set the parts around the storage."""
        self._keys = observation_keys
        see: Any = ": birl.dataset has some, and your own is called like them"
        check("transition_picker", picker, TransitionPickerProtocol, see, optional=True)  # type: ignore[type-abstract]
        check("trajectory_slicer", slicer, TrajectorySlicerProtocol, see, optional=True)  # type: ignore[type-abstract]
        check("sampler", sampler, Sampler, optional=True)
        check("writer_preprocessor", writer, WriterPreprocessProtocol, optional=True)  # type: ignore[type-abstract]
        self._buffer, self._writer = buffer, writer or BasicWriterPreprocess()
        sampler = Uniform() if sampler is None else sampler  # one may be empty
        parts = (picker or BasicTransitionPicker(), slicer or BasicTrajectorySlicer(), sampler)
        check("augmentation", augmentation, Augmentation, optional=True)  # type: ignore[type-abstract]
        for part in (sampler, augmentation) if augmentation else (sampler,):
            part.fits(self.storage.info, parts[0])
        sampler.take()
        self.reader = Reader([Source(self.storage, *parts, augmentation=augmentation)])
        self._all_lanes, self._saved = np.arange(self.storage.lanes), False
        buffer.storage = self.storage

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(
        self,
        observation: Observation,
        action: Any,
        reward: Any,
        *,
        extra: Mapping[str, Any] | None = None,
        lane: int = 0,
    ) -> None:
        """Add one step to the running episode, or begin one.

        The step can be drawn as soon as its next observation is there: with the next step, or at `clip_episode`.

        Args:
            observation: tree ``[…]``.
            action: ``[A]``, or an integer.
            reward: a number.
            extra: further arrays to store with the step, by name. They come back in minibatches and episodes; losses do
                not see them. ``state.<network>`` holds start states for sequences.
            lane: number of the parallel environment.

        Raises:
            ShapeError, NonFiniteError, ActionError: if the step does not fit. Nothing is stored then.
        """
        lanes = self._lane(lane)
        action, reward = self._writer.process_action(action), self._writer.process_reward(reward)
        step = (self._processed(observation), np.asarray(action), np.asarray(reward), dict(extra or {}))
        values = step_columns(self.storage, *add_row_axis(step))
        self._before_write(values)
        self.storage.append(lanes, values)

    def append_batch(
        self,
        observation: Observation,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        next_observation: Observation,
        extra: Mapping[str, Any] | None = None,
        *,
        mask: Any = None,
        lanes: Sequence[int] | Array | None = None,
    ) -> None:
        """Add one step of every parallel environment; row i goes to lane i. Episodes end by the flags.

        Args:
            observation: tree ``[n, …]``.
            action: ``[n, A]``, or integers ``[n]``.
            reward: ``[n]``.
            terminated, truncated: bool ``[n]``.
            next_observation: tree ``[n, …]``, the one before a reset where an episode ended.
            extra: further arrays ``[n, …]`` by name.
            mask: bool ``[n]``: only these are stored (to leave out the steps that only reset).
            lanes: the lane ``[n]`` of each row, if there is not one for each. Rows of the same lane follow each other.
        """
        own = None if lanes is None else lane_numbers(lanes, self.storage.lanes)
        count = self.storage.lanes if own is None else len(own)
        if np.shape(terminated)[:1] != (count,):
            raise ShapeError(
                f"{np.size(terminated)} steps for {count} lanes: give one row for each, or make the buffer with lanes="
            )
        terminated = checked_flags("terminated", terminated, count)
        truncated = checked_flags("truncated", truncated, count)
        mask = None if mask is None else checked_flags("mask", mask, count)
        writer, names = self._writer, self.storage.observation_names
        observation, next_observation = self._parts(observation), self._parts(next_observation)
        observation = process_observations(writer.process_observation, parts_like(observation, names))
        next_observation = process_observations(writer.process_observation, parts_like(next_observation, names))
        following = observation_columns(self.storage, next_observation, "next_observation", count)
        action, reward = process_rows(writer.process_action, action), process_rows(writer.process_reward, reward)
        values = step_columns(self.storage, observation, action, reward, extra, count)
        self._before_write(values)
        ending = np.where(terminated, TERMINATED, truncated * TRUNCATED).astype(np.uint8)
        append_steps(self.storage, own, values, following, ending, mask)

    def clip_episode(
        self, terminated: bool, *, truncated: bool | None = None, final_observation: Observation = None, lane: int = 0
    ) -> None:
        """End the running episode of a lane. Does nothing if none is running.

        Args:
            terminated: the environment ended it.
            truncated: it was cut; taken for true if ``terminated`` is false.
            final_observation: tree ``[…]`` after the last action. Without it the last step of a truncated episode is
                no transition; that of a terminated one gets zeros.
            lane: number of the parallel environment.
        """
        lanes, final = self._lane(lane), None
        if not self.storage.open[lane]:
            return
        if final_observation is not None:
            final = add_row_axis(self._processed(final_observation))
            final = observation_columns(self.storage, final, "final_observation")
        self._before_write()
        self.storage.close(lanes, np.array([bool(terminated)]), final)

    def append_episode(self, episode: EpisodeBase, *, lane: int = 0) -> None:
        """Add a whole episode. One that is not terminated counts as truncated.

        Raises:
            DataError: if an episode is running in this lane.
            ShapeError, NonFiniteError, ActionError: if it does not fit. Nothing is stored then.
        """
        if self.storage.open[self._lane(lane)[0]]:
            raise DataError(
                f"an episode is running in lane {lane}: end it with clip_episode(…) before append_episode(…)"
            )
        rows = episode_rows(self.storage, episode)
        self._before_write(rows[1])
        self.storage.extend(lane, *rows)

    def _lane(self, lane: int) -> Array:
        if not 0 <= lane < self.storage.lanes:
            lane_numbers(lane, self.storage.lanes)  # says so
        return self._all_lanes[lane : lane + 1]

    def _processed(self, observation: Observation) -> Observation:
        names, observation = self.storage.observation_names, self._parts(observation)
        return parts_like(self._writer.process_observation(parts_like(observation, names)), names)

    def _parts(self, observation: Tree) -> Tree:
        return observation if self._keys is None else picked(self.storage.observation_names, observation)

    def _before_write(self, steps: Mapping[str, Array] | None = None) -> None:
        if self._saved:
            begin_writing(self.storage)
            if self.storage.limit is not None:  # what was flushed of a ring is about to be overwritten
                save_folder(self.storage, clean=False)
        self._saved = False
        add_extra_columns(self.storage, steps or {})

    # -- what is there ---------------------------------------------------------------------------------------------

    @property
    def buffer(self) -> BufferProtocol:
        """The retention: decides how many steps are kept."""
        return self._buffer

    @property
    def dataset_info(self) -> DatasetInfo:
        """Signatures of what is stored, action space and size."""
        return self.storage.info

    @property
    def observation_shape(self) -> Shape:
        """Shape (or tree of shapes) of sampled observations, stacked frames included."""
        stored = self.dataset_info.observation_signature.tree_shape
        if is_batch_picker(self.transition_picker):
            return self.transition_picker.observation_shape(stored)
        if not self.transition_count:
            return stored
        first = np.flatnonzero((self.storage.flags & NO_TRANSITION) == 0)[:1]
        (transition,) = TransitionView().items(self.storage, self.transition_picker, first)
        return tree_map(np.shape, transition.observation)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, unused rows included."""
        return self.storage.nbytes

    def __repr__(self) -> str:
        counts = f"{self.size()} episodes, {self.step_count} steps, {self.transition_count} transitions"
        return f"<{type(self).__name__}: {counts}>"

    # -- files and state -------------------------------------------------------------------------------------------

    @classmethod
    def load(
        cls,
        f: BinaryIO | str | os.PathLike[str],
        buffer: BufferProtocol | None = None,
        episode_cls: type[Episode] = Episode,
        transition_picker: TransitionPickerProtocol | None = None,
        trajectory_slicer: TrajectorySlicerProtocol | None = None,
        writer_preprocessor: WriterPreprocessProtocol | None = None,
        *,
        action_space: ActionSpace | None = None,
        action_size: Any = None,
        storage: StorageLocation = "memory",
        sampler: Sampler | None = None,
        observation_space: Any = None,
    ) -> ReplayBuffer:
        """Read what `dump`, or d3rlpy (versions 1 and 2), wrote.

        Arguments are those of the class; what `dump` noted down need not be given.

        Raises:
            ConfigError: if ``f`` is no file.
            CorruptFileError, ForeignFileError: if the file cannot be used.
        """
        check_readable(f, "ReplayBuffer.load(f, buffer)")
        episodes, space, size, observations = read_episodes(f, episode_cls, action_space)
        return ReplayBuffer(
            InfiniteBuffer() if buffer is None else buffer,
            transition_picker,
            trajectory_slicer,
            writer_preprocessor,
            episodes,
            action_space=space,
            action_size=size if action_size is None else action_size,
            storage=storage,
            sampler=sampler,
            observation_space=observations if observation_space is None else observation_space,
        )

    @classmethod
    def from_episode_generator(
        cls,
        episode_generator: Callable[[], Sequence[EpisodeBase]],
        buffer: BufferProtocol,
        transition_picker: TransitionPickerProtocol | None = None,
        trajectory_slicer: TrajectorySlicerProtocol | None = None,
        writer_preprocessor: WriterPreprocessProtocol | None = None,
    ) -> ReplayBuffer:
        """A buffer of the episodes that a function, or an `EpisodeGenerator`, returns."""
        parts = (transition_picker, trajectory_slicer, writer_preprocessor)
        return ReplayBuffer(buffer, *parts, episode_generator())

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        transition_picker: TransitionPickerProtocol | None = None,
        trajectory_slicer: TrajectorySlicerProtocol | None = None,
        writer_preprocessor: WriterPreprocessProtocol | None = None,
        *,
        sampler: Sampler | None = None,
    ) -> ReplayBuffer:
        """Open data that was made with ``storage=folder``. Rows stay on disk.

        Any number of buffers may read a folder, also while another one writes to it: they hold what was there when they
        were opened. The first write makes a buffer the only writer, until `close` or the end of its process.

        A ``sampler`` of the class that the data had when they were last flushed goes on with its priorities.

        Raises:
            ForeignFileError, CorruptFileError: if the folder cannot be used.
        """
        self = ReplayBuffer.__new__(ReplayBuffer)
        self.storage = open_folder(Path(folder))
        buffer = retention_of(self.storage)
        self._use(buffer, transition_picker, trajectory_slicer, writer_preprocessor, sampler)
        open_sampler(Path(folder), self.reader.sources[0].sampler)
        self._saved = True
        return self

    def flush(self) -> None:
        """Write pending changes of a folder to disk. Does nothing for other storage.

        Every step is safe from a kill of the process as soon as it is appended; what is flushed also from a power cut.
        """
        storage, sampler = self.storage, self.reader.sources[0].sampler
        if isinstance(storage.place, FolderPlace) and (storage.journal is not None or sampler.get_state()):
            begin_writing(storage)
            save_folder(storage)
            save_sampler(storage, sampler)
            self._saved = True

    def close(self) -> None:
        """Write pending changes of a folder to disk and let other buffers write to it. This one may still be read.

        A later write makes it the writer again, unless there was another one. Does nothing for other storage.
        """
        if isinstance(self.storage.place, FolderPlace) and self.storage.journal is not None:
            self.flush()
            end_writing(self.storage)

    def get_state(self, *, contents: bool = True) -> State:
        """State of the random generators and, with ``contents``, all stored steps."""
        state = self.reader.get_state()
        if contents:
            if self.storage.journal is not None:  # it writes to a folder
                self.flush()
            state |= {"storage": get_storage_state(self.storage), "action_size": self.storage.info.action_size}
        return state

    def set_state(self, state: State) -> None:
        """Go back to a state; what is drawn next is what was drawn next then."""
        self.reader.set_state(state)
        if "storage" in state:
            info = replace(self.storage.info, action_size=state["action_size"])
            check_saved_actions(info.actions, state["storage"])
            self._before_write()
            set_storage_state(self.storage, state["storage"])
            self.storage.info = info


def create_fifo_replay_buffer(
    limit: int,
    episodes: Sequence[EpisodeBase] | None = None,
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    writer_preprocessor: WriterPreprocessProtocol | None = None,
    env: Any = None,
    write_at_termination: bool = False,
    **options: Any,
) -> ReplayBuffer:
    """A `ReplayBuffer` that keeps the newest ``limit`` steps. Other arguments as there."""
    parts = (transition_picker, trajectory_slicer, writer_preprocessor)
    return ReplayBuffer(FIFOBuffer(limit), *parts, episodes, env, write_at_termination=write_at_termination, **options)


def create_infinite_replay_buffer(
    episodes: Sequence[EpisodeBase] | None = None,
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    writer_preprocessor: WriterPreprocessProtocol | None = None,
    env: Any = None,
    write_at_termination: bool = False,
    **options: Any,
) -> ReplayBuffer:
    """A `ReplayBuffer` that keeps everything. Other arguments as there."""
    parts = (transition_picker, trajectory_slicer, writer_preprocessor)
    return ReplayBuffer(InfiniteBuffer(), *parts, episodes, env, write_at_termination=write_at_termination, **options)
