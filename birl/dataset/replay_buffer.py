"""The replay buffer, for logged data and for new experience."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeAlias, TypedDict, TypeVar, Unpack, cast

import numpy as np
import torch

from birl.checks import check, named_arguments
from birl.dataset.arrays import FolderPlace, make_place
from birl.dataset.augmentation import Augmentation
from birl.dataset.base import ReplayBufferBase
from birl.dataset.buffers import BufferProtocol, FIFOBuffer, InfiniteBuffer, buffer_of
from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.episode import Episode, EpisodeBase, Signature, check_episodes
from birl.dataset.flags import NO_TRANSITION
from birl.dataset.flat_episodes import FlatEpisodes, flat_rows
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
from birl.dataset.held_steps import HeldSteps
from birl.dataset.reader import Reader, Source
from birl.dataset.sampling import Sampler, Uniform
from birl.dataset.slicers import BasicTrajectorySlicer, TrajectorySlicerProtocol
from birl.dataset.storage import Storage
from birl.dataset.transitions import BasicTransitionPicker, TransitionPickerProtocol, is_batch_picker
from birl.dataset.validation import warn_of_unlogged_actions
from birl.dataset.views import TransitionView
from birl.dataset.write_target import WriteTarget
from birl.dataset.writers import BasicWriterPreprocess, WriterPreprocessProtocol
from birl.errors import BirlError, ConfigError
from birl.spaces.conversion import to_array
from birl.spaces.observations import columns_from_json
from birl.types import ActionSize, ActionSpace, Array, GymEnv, Shape, State, Tree, tree_map

T = TypeVar("T")
StorageLocation: TypeAlias = "str | os.PathLike[str] | torch.device"


class ReplayBuffer(ReplayBufferBase):
    """Experience replay over arrays.

    Shapes and dtypes come from ``env``, or else from ``episodes``, or else from the signatures. Episodes of a dataset
    know its spaces, so a buffer of some of them has the same actions and observations; see `Episode.spaces`. A buffer
    without any of these takes the shapes of the first episode that is appended, or of the environment of `fit_online`.

    Args:
        buffer: `InfiniteBuffer`, `FIFOBuffer` or `EpisodicFIFOBuffer`.
        transition_picker: makes transitions; `BasicTransitionPicker` if ``None``.
        trajectory_slicer: makes windows of trajectories; `BasicTrajectorySlicer` if ``None``.
        writer_preprocessor: changes steps before they are stored; `BasicWriterPreprocess` if ``None``.
        episodes: initial episodes.
        env: environment, or vector environment with one lane for each of its environments.
        observation_signature, action_signature, reward_signature: stored shapes and dtypes. Rewards are one float32 if
            ``None``.
        action_space: kind of the actions; ``None`` to use the environment's, or infer it from their dtype.
        action_size: number of action dimensions or of discrete actions, or an action space; ``None`` to infer it.
        cache_size: ignored; accepted for compatibility with d3rlpy. Episodes may have any length.
        write_at_termination: whether steps are stored, and can be sampled, only when their episode has ended: for
            algorithms and pickers that need whole episodes. Running episodes are then not in `episodes`.
        storage: ``"memory"``, a torch device, or the path of a new folder for data larger than memory.
        lanes: number of parallel environments whose steps are stored; ``None`` for the number in ``env``.
        sampler: selects the steps of minibatches; `birl.dataset.Uniform` if ``None``.
        observation_space: spec of the observations if there is no ``env``; see `MDPDataset`.
        observation_keys: names of the stored parts of the observations of ``env``; ``None`` for all.
        augmentation: changes images of minibatches on the training device; see `birl.dataset.RandomShift`.
        info_keys: names of entries of the environment's ``info`` that are stored with each step, as extra columns of
            the same names; `HindsightSampler` passes them to ``compute_reward``. Bools stay bools, other numbers
            become float64.

    Attributes:
        storage: the arrays.

    Raises:
        ConfigError: if ``storage`` is not usable, or for other uses of a buffer without shapes.
    """

    _later: dict[str, Any] | None = None  # the arguments of a buffer whose shapes are not known yet

    @named_arguments
    def __init__(
        self,
        buffer: BufferProtocol,
        transition_picker: TransitionPickerProtocol | None = None,
        trajectory_slicer: TrajectorySlicerProtocol | None = None,
        writer_preprocessor: WriterPreprocessProtocol | None = None,
        episodes: Sequence[EpisodeBase] | None = None,
        env: GymEnv | None = None,
        observation_signature: Signature | None = None,
        action_signature: Signature | None = None,
        reward_signature: Signature | None = None,
        action_space: ActionSpace | None = None,
        action_size: ActionSize = None,
        cache_size: int = 10000,
        write_at_termination: bool = False,
        *,
        storage: StorageLocation = "memory",
        lanes: int | None = None,
        sampler: Sampler | None = None,
        observation_space: Tree = None,
        observation_keys: Sequence[str] | None = None,
        augmentation: Augmentation | None = None,
        info_keys: Sequence[str] = (),
    ) -> None:
        options = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        check("write_at_termination", write_at_termination, bool)
        info_keys = _check_info_keys(info_keys)
        writer = BasicWriterPreprocess() if writer_preprocessor is None else writer_preprocessor
        check("writer_preprocessor", writer, WriterPreprocessProtocol)  # type: ignore[type-abstract]
        signatures = (observation_signature, action_signature, reward_signature)
        for name, signature in zip(("observation", "action", "reward"), signatures, strict=True):
            check(f"{name}_signature", signature, Signature, optional=True)
        check("action_space", action_space, ActionSpace, optional=True)
        check("episodes", episodes, Sequence, optional=True)  # type: ignore[type-abstract]
        foreign = False  # whether there are episodes that are not of a dataset, which was checked
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
            foreign = not all(getattr(episode, "spaces", None) for episode in episodes)
            if action_size is None and foreign:
                logged = (to_array("actions", episode.actions) for episode in episodes)
                warn_of_unlogged_actions(info.actions, logged)
        elif observation_signature is not None and action_signature is not None:
            stored = (observation_signature, action_signature, reward)
            info = DatasetInfo.from_signatures(*stored, action_space, action_size, observation_space)
        elif (one := observation_signature or action_signature) is not None:
            missing = "action" if one is observation_signature else "observation"
            raise ConfigError(
                f"{missing}_signature is None, but the other one is given: give both, or env=, or episodes="
            )
        else:
            check_buffer(buffer)
            check_parts(transition_picker, trajectory_slicer, writer, sampler, augmentation)
            self._later = options
            self._buffer, self.storage = buffer, cast(Storage, Shapeless())
            parts = (transition_picker or BasicTransitionPicker(), trajectory_slicer or BasicTrajectorySlicer())
            self.reader, self.target = Reader([Source(self.storage, *parts)]), cast(WriteTarget, self.storage)
            return
        if lanes is None:
            lanes = getattr(env, "num_envs", 1)
        rows = sum(episode.size() + 1 for episode in episodes or ())
        self._make(info, buffer, storage, rows, lanes)
        self._use(buffer, transition_picker, trajectory_slicer, writer, sampler, observation_keys, augmentation)
        self.target.held = HeldSteps(lanes) if write_at_termination else None
        self.target.info_keys = info_keys
        with self.target.writing_all(known=not foreign):
            for episode in episodes or ():
                super().append_episode(episode)
        self.flush()

    def _make(
        self, info: DatasetInfo, buffer: BufferProtocol, storage: StorageLocation, rows: int, lanes: int = 1
    ) -> None:
        """Create an empty storage with room for ``rows`` rows."""
        check_buffer(buffer)
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
        """Check and set the objects that use the storage, and make the reader."""
        check_parts(picker, slicer, writer, sampler, augmentation)
        self._buffer = buffer
        self.target = WriteTarget(self.storage, writer or BasicWriterPreprocess(), observation_keys)
        sampler = Uniform() if sampler is None else sampler
        parts = (picker or BasicTransitionPicker(), slicer or BasicTrajectorySlicer(), sampler)
        for part in (sampler, augmentation) if augmentation else (sampler,):
            part.fits(self.storage.info, parts[0])
        sampler.take()
        self.reader = Reader([Source(self.storage, *parts, augmentation=augmentation)])
        buffer.storage = self.storage

    def append_episode(self, episode: EpisodeBase, *, lane: int = 0) -> None:
        """Add a complete episode; see `ReplayBufferBase.append_episode`. It determines shapes that are not known yet.

        Raises:
            DataError: if an episode is running in this lane.
            ShapeError, NonFiniteError, ActionError: if it does not fit; nothing is stored.
        """
        if self._later is None or lane != 0:
            super().append_episode(episode, lane=lane)
        else:
            self._determine(episodes=[episode])

    def determine_shapes(self, env: GymEnv, lanes: int, observation_keys: Sequence[str] | None = None) -> None:
        """Take the shapes of an environment unless they are known.

        Args:
            env: see `ReplayBuffer`.
            lanes: number of lanes if the buffer was made without ``lanes``.
            observation_keys: the stored parts of observations if the buffer was made without ``observation_keys``.
        """
        if self._later is not None:
            own_lanes, own_keys = self._later["lanes"], self._later["observation_keys"]
            keys = observation_keys if own_keys is None else own_keys
            lanes = lanes if own_lanes is None else own_lanes
            self._determine(env=env, lanes=lanes, observation_keys=keys)

    def _determine(self, **shapes: Any) -> None:
        options, self._later = self._later, None
        try:
            ReplayBuffer.__init__(self, **{**(options or {}), **shapes})
        except BirlError:
            self._later = options
            raise

    # -- contents --------------------------------------------------------------------------------------------------

    @property
    def buffer(self) -> BufferProtocol:
        """The retention policy, such as a `FIFOBuffer`."""
        return self._buffer

    @property
    def dataset_info(self) -> DatasetInfo:
        """Signatures of the stored columns, and the action space and size."""
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
        action_size: ActionSize = None,
        storage: StorageLocation = "memory",
        sampler: Sampler | None = None,
        observation_space: Tree = None,
    ) -> ReplayBuffer:
        """Read a file that `dump`, or d3rlpy (versions 1 and 2), wrote.

        The other arguments are described in `ReplayBuffer`. Spaces and sizes can be left out for files of `dump`, which
        contain them.

        Raises:
            ConfigError: if ``f`` is not a path or binary file.
            CorruptFileError, ForeignFileError: if the file cannot be used.
        """
        check_readable(f, "ReplayBuffer.load(f, buffer)")
        episodes, space, stored_size, observations = read_episodes(f, episode_cls, action_space)
        size = stored_size if action_size is None else action_size
        observations = observations if observation_space is None else observation_space
        buffer = InfiniteBuffer() if buffer is None else buffer
        if isinstance(episodes, FlatEpisodes):
            return ReplayBuffer.from_flat(
                episodes,
                buffer,
                transition_picker,
                trajectory_slicer,
                writer_preprocessor,
                action_space=space,
                action_size=size,
                storage=storage,
                sampler=sampler,
                observation_space=observations,
            )
        return ReplayBuffer(
            buffer,
            transition_picker,
            trajectory_slicer,
            writer_preprocessor,
            episodes,
            action_space=space,
            action_size=size,
            storage=storage,
            sampler=sampler,
            observation_space=observations,
        )

    @classmethod
    def from_flat(
        cls,
        episodes: FlatEpisodes,
        buffer: BufferProtocol | None = None,
        transition_picker: TransitionPickerProtocol | None = None,
        trajectory_slicer: TrajectorySlicerProtocol | None = None,
        writer_preprocessor: WriterPreprocessProtocol | None = None,
        *,
        action_space: ActionSpace | None = None,
        action_size: ActionSize = None,
        storage: StorageLocation = "memory",
        sampler: Sampler | None = None,
        observation_space: Tree = None,
    ) -> ReplayBuffer:
        """Make a buffer of episodes in flat arrays. The other arguments are those of `load`."""
        self, buffer = ReplayBuffer.__new__(ReplayBuffer), InfiniteBuffer() if buffer is None else buffer
        rows = len(episodes.rewards) + len(episodes.lengths)
        info = DatasetInfo.from_episodes([episodes.as_one()], action_space, action_size, observation_space)
        if action_size is None:
            warn_of_unlogged_actions(info.actions, [episodes.actions])
        self._make(info, buffer, storage, rows)
        self._use(buffer, transition_picker, trajectory_slicer, writer_preprocessor, sampler)
        with self.target.writing_all():
            flags, steps, finals = flat_rows(self.storage, episodes)
            self.target.prepare(steps)
            self.storage.extend(0, flags, steps, finals)
        self.flush()
        return self

    @classmethod
    def from_episode_generator(
        cls,
        episode_generator: Callable[[], Sequence[EpisodeBase]],
        buffer: BufferProtocol,
        transition_picker: TransitionPickerProtocol | None = None,
        trajectory_slicer: TrajectorySlicerProtocol | None = None,
        writer_preprocessor: WriterPreprocessProtocol | None = None,
    ) -> ReplayBuffer:
        """Make a buffer of the episodes that a function, or an `EpisodeGenerator`, returns."""
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
        info_keys: Sequence[str] = (),
    ) -> ReplayBuffer:
        """Open a buffer that was made with ``storage=folder``. Rows stay on disk.

        Any number of buffers may read a folder, also while another one writes to it; each has the contents that the
        folder had when it was opened. A buffer becomes the only writer with its first write, until `close` or the end
        of its process.

        If ``sampler`` is of the class that was in use at the last flush, it continues with the saved priorities. For
        ``info_keys`` see `ReplayBuffer`.

        Raises:
            ForeignFileError, CorruptFileError: if the folder cannot be used.
        """
        self = ReplayBuffer.__new__(ReplayBuffer)
        self.storage = open_folder(Path(folder))
        buffer = buffer_of(self.storage)
        self._use(buffer, transition_picker, trajectory_slicer, writer_preprocessor, sampler)
        open_sampler(Path(folder), self.reader.sources[0].sampler)
        self.target.info_keys = _check_info_keys(info_keys)
        self.target.saved = True
        self.target.plan_look()
        return self

    def flush(self) -> None:
        """Write pending changes of a folder to disk. Does nothing for other storage.

        Appended steps are safe if the process is killed; flushed steps are also safe if the power fails.
        """
        storage, sampler = self.storage, self.reader.sources[0].sampler
        if isinstance(storage.place, FolderPlace) and (storage.journal is not None or sampler.get_state()):
            begin_writing(storage)
            save_folder(storage)
            save_sampler(storage, sampler)
            self.target.saved = True

    def close(self) -> None:
        """Write pending changes of a folder to disk and let other buffers write to it. This buffer stays readable.

        A later write makes it the writer again, unless another buffer has written. Does nothing for other storage.
        """
        if isinstance(self.storage.place, FolderPlace) and self.storage.journal is not None:
            self.flush()
            end_writing(self.storage)

    def get_state(self, *, contents: bool = True) -> State:
        """Return the state of the random generators and samplers and, with ``contents``, all stored steps."""
        state = self.reader.get_state()
        if contents:
            if self.storage.journal is not None:  # this buffer writes to a folder
                self.flush()
            info = self.storage.info
            state |= {"storage": get_storage_state(self.storage), "action_size": info.action_size}
            if info.columns:
                state["columns"] = {name: list(names) for name, names in info.columns.items()}
            if self.target.held is not None:
                state["held"] = self.target.held.get_state()
        return state

    def set_state(self, state: State) -> None:
        """Restore a state. The next minibatches are those that were sampled after the state was saved."""
        self.reader.set_state(state)
        if "storage" in state:
            columns = self.storage.info.columns if "columns" not in state else columns_from_json(state["columns"])
            info = replace(self.storage.info, action_size=state["action_size"], columns=columns)
            check_saved_actions(info.actions, state["storage"])
            self.target.prepare()
            set_storage_state(self.storage, state["storage"])
            self.storage.info = info
            if self.target.held is not None:
                self.target.held.set_state(state.get("held", {}))
        self.target.plan_look()


class Shapeless:
    """Stands for the empty storage of a buffer whose shapes are not known yet. Every other use raises `ConfigError`."""

    transition_count = episode_count = 0
    steps, flags = np.zeros(1, np.int64), np.zeros(0, np.uint8)

    @property
    def source(self) -> Shapeless:
        """Return itself; see `Storage.source`."""
        return self

    def live(self) -> tuple[Array, Array]:
        """Return no rows; see `Storage.live`."""
        return np.zeros(0, np.int64), np.zeros(0, np.int64)

    def rows(self, lane: Array, position: Array) -> Array:
        """Return no rows; see `Storage.rows`."""
        return position

    def cached(self, key: str, make: Callable[[], T]) -> T:
        """Return the result of ``make``; see `Storage.cached`."""
        return make()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConfigError(
            "the shapes of this replay buffer are not known yet: make it with env=, episodes= (at least one) or the "
            "signatures, or append an episode first"
        )


def check_buffer(buffer: object) -> None:
    """Raise `ConfigError` for an object that is no retention policy."""
    if not isinstance(buffer, BufferProtocol):
        raise ConfigError(
            f"buffer is {buffer!r:.80}; it must be an InfiniteBuffer(), a FIFOBuffer(limit), or of a class derived "
            "from them"
        )


def check_parts(picker: object, slicer: object, writer: object, sampler: object, augmentation: object) -> None:
    """Raise `ConfigError` for objects that cannot be used with a storage; ``None`` is allowed."""
    hint = ": birl.dataset has several; your own must be callable in the same way"
    check("transition_picker", picker, TransitionPickerProtocol, hint, optional=True)  # type: ignore[type-abstract]
    check("trajectory_slicer", slicer, TrajectorySlicerProtocol, hint, optional=True)  # type: ignore[type-abstract]
    check("sampler", sampler, Sampler, optional=True)
    check("writer_preprocessor", writer, WriterPreprocessProtocol, optional=True)  # type: ignore[type-abstract]
    check("augmentation", augmentation, Augmentation, optional=True)  # type: ignore[type-abstract]


def _check_info_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """Return names of entries of the info as a tuple."""
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        raise ConfigError(f"info_keys is {keys!r:.100}; it must list names of entries of info, such as ('is_grasped',)")
    return tuple(keys)


class ReplayBufferOptions(TypedDict, total=False):
    """Further arguments of `ReplayBuffer`."""

    observation_signature: Signature | None
    action_signature: Signature | None
    reward_signature: Signature | None
    action_space: ActionSpace | None
    action_size: ActionSize
    cache_size: int
    storage: StorageLocation
    lanes: int | None
    sampler: Sampler | None
    observation_space: Tree
    observation_keys: Sequence[str] | None
    augmentation: Augmentation | None
    info_keys: Sequence[str]


@named_arguments
def create_fifo_replay_buffer(
    limit: int,
    episodes: Sequence[EpisodeBase] | None = None,
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    writer_preprocessor: WriterPreprocessProtocol | None = None,
    env: GymEnv | None = None,
    write_at_termination: bool = False,
    **options: Unpack[ReplayBufferOptions],
) -> ReplayBuffer:
    """Make a `ReplayBuffer` that keeps the newest ``limit`` steps. For the other arguments see `ReplayBuffer`."""
    parts = (transition_picker, trajectory_slicer, writer_preprocessor)
    return ReplayBuffer(FIFOBuffer(limit), *parts, episodes, env, write_at_termination=write_at_termination, **options)


@named_arguments
def create_infinite_replay_buffer(
    episodes: Sequence[EpisodeBase] | None = None,
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    writer_preprocessor: WriterPreprocessProtocol | None = None,
    env: GymEnv | None = None,
    write_at_termination: bool = False,
    **options: Unpack[ReplayBufferOptions],
) -> ReplayBuffer:
    """Make a `ReplayBuffer` that keeps all steps. For the other arguments see `ReplayBuffer`."""
    parts = (transition_picker, trajectory_slicer, writer_preprocessor)
    return ReplayBuffer(InfiniteBuffer(), *parts, episodes, env, write_at_termination=write_at_termination, **options)
