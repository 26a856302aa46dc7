"""The replay buffer: one object for logged data and for experience that is being collected."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from birl.dataset.arrays import FolderPlace, make_place
from birl.dataset.base import ReplayBufferBase
from birl.dataset.buffers import BufferProtocol, FIFOBuffer, InfiniteBuffer
from birl.dataset.episode import (
    DatasetInfo,
    Episode,
    EpisodeBase,
    Leaf,
    Observation,
    PartialTrajectory,
    Signature,
    Transition,
)
from birl.dataset.episodes import EpisodeList
from birl.dataset.folders import (
    check_new_folder,
    get_generator_state,
    get_storage_state,
    open_folder,
    save_folder,
    set_generator_state,
    set_storage_state,
)
from birl.dataset.incoming import observation_columns, row_leaf, step_columns
from birl.dataset.mini_batch import SequenceMiniBatch, TailMiniBatch, TrajectoryMiniBatch, TransitionMiniBatch
from birl.dataset.pickers import (
    BasicTransitionPicker,
    FrameStackTransitionPicker,
    TransitionPickerProtocol,
    is_vectorised,
    pick_batch,
    pick_one,
)
from birl.dataset.return_to_go import DiscountedReturns
from birl.dataset.sampling import sample_complete_rows, sample_rows
from birl.dataset.slicers import (
    BasicTrajectorySlicer,
    FrameStackTrajectorySlicer,
    TrajectorySlicerProtocol,
    sequence_batch,
    slice_batch,
    slice_one,
)
from birl.dataset.spaces import action_leaf, count_lanes, observation_of, single_spaces
from birl.dataset.storage import FINAL, FIRST, NO_NEXT, TERMINATED, TRUNCATED, UNKNOWN, Storage
from birl.dataset.validation import detect_action_size, detect_action_space, prepare_actions, whole_number
from birl.dataset.windows import tail_batch
from birl.dataset.writers import BasicWriterPreprocess, WriterPreprocessProtocol, process_batch
from birl.errors import ConfigError, DataError, ShapeError, UnsupportedError
from birl.seeding import new_generator
from birl.types import ActionSpace, Array, Shape, State, Tree, tree_map

Place = str | os.PathLike[str] | torch.device
_STACKS = (FrameStackTransitionPicker, FrameStackTrajectorySlicer)


class ReplayBuffer(ReplayBufferBase):
    """Experience replay over arrays.

    Shapes and dtypes come from ``env``, else from ``episodes``, else from the three signatures.

    Args:
        buffer: `InfiniteBuffer` or `FIFOBuffer`.
        transition_picker: `BasicTransitionPicker` if ``None``.
        trajectory_slicer: `BasicTrajectorySlicer` if ``None``.
        writer_preprocessor: `BasicWriterPreprocess` if ``None``.
        episodes: episodes to begin with.
        env: environment, or vector environment: then each of its environments is a lane.
        observation_signature, action_signature, reward_signature: what is stored. Rewards are one float32 if ``None``.
        action_space: ``None`` to find it from the environment, or from the dtype of the actions.
        action_size: number of action dimensions, or of discrete actions; ``None`` to find it.
        cache_size: of no effect, kept for code written for d3rlpy: episodes may have any length.
        write_at_termination: kept for code written for d3rlpy; only ``False`` is possible: steps are stored one by one.
        storage: ``"memory"``, a torch device, or the path of a new folder for data larger than memory.
        lanes: number of parallel environments that write; ``None`` for the number in ``env``.

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
        action_size: int | None = None,
        cache_size: int = 10000,
        write_at_termination: bool = False,
        *,
        storage: Place = "memory",
        lanes: int | None = None,
    ) -> None:
        if write_at_termination:
            raise UnsupportedError(
                "write_at_termination=True cannot be had, allowed is False: steps are stored when they are appended. "
                "To learn from whole episodes only, collect each one and give it to append_episode(…) when it is over"
            )
        self._set_parts(buffer, transition_picker, trajectory_slicer, writer_preprocessor)
        reward = Leaf((1,), np.dtype(np.float32)) if reward_signature is None else row_leaf(reward_signature)
        if env is not None:
            observation_space, env_action_space = single_spaces(env)
            unprocessed = observation_of(observation_space)
            zero = self._writer.process_observation(unprocessed)
            zero = tuple(zero) if isinstance(unprocessed, tuple) and isinstance(zero, list) else zero
            observation = Signature.of(tree_map(np.asarray, zero)).tree
            action, space, size = action_leaf(env_action_space)
        elif episodes:
            first = episodes[0]
            observation, reward = first.observation_signature.tree, row_leaf(first.reward_signature)
            actions, space = prepare_actions(first.actions, action_space)
            action, size = row_leaf(Signature.of(actions, skip=1)), actions.shape[1]
            if space is ActionSpace.DISCRETE and action_size is None:
                size = max(detect_action_size(episode.actions, space) for episode in episodes)
        elif observation_signature is not None and action_signature is not None:
            observation, action = observation_signature.tree, row_leaf(action_signature)
            space = action_space or detect_action_space(np.zeros((1, *action.shape), action.dtype))
            if space is ActionSpace.DISCRETE and action_size is None:
                raise ConfigError(
                    "action_size is not given: with signatures alone, give the number of discrete actions"
                )
            size = action.shape[0]
        else:
            raise ConfigError("shapes cannot be told: give env=, episodes= (at least one) or the signatures")
        if action_space is not None and action_space is not space:
            raise ConfigError(f"action_space={action_space}, but the environment's is {space}: leave it out")
        if space is ActionSpace.DISCRETE and action.dtype.kind not in "iu":
            action = Leaf((1,), np.dtype(np.int64))
        place = make_place(storage)
        check_new_folder(place)
        rows = sum(episode.size() + 1 for episode in episodes or ())
        if buffer.limit is not None:
            rows = min(rows, buffer.limit + 2)
        self._generator = new_generator()
        self._attach(
            Storage(
                observation,
                action,
                reward,
                lanes=(count_lanes(env) if env is not None else 1) if lanes is None else lanes,
                limit=buffer.limit,
                place=place,
                capacity=rows,
            ),
            space,
            size if action_size is None else int(action_size),
        )
        for episode in episodes or ():
            self.append_episode(episode)
        self.flush()

    def _set_parts(
        self,
        buffer: BufferProtocol,
        picker: TransitionPickerProtocol | None,
        slicer: TrajectorySlicerProtocol | None,
        writer: WriterPreprocessProtocol | None,
    ) -> None:
        if not isinstance(buffer, BufferProtocol):
            raise ConfigError(
                f"buffer={buffer!r:.80}, allowed are InfiniteBuffer(), FIFOBuffer(limit) and classes derived from them"
            )
        self._buffer = buffer
        self._picker: TransitionPickerProtocol = picker or BasicTransitionPicker()
        self._slicer: TrajectorySlicerProtocol = slicer or BasicTrajectorySlicer()
        self._writer: WriterPreprocessProtocol = writer or BasicWriterPreprocess()

    def _attach(self, storage: Storage, space: ActionSpace, size: int) -> None:
        self._storage, self._space, self._size = storage, space, size
        self._reader = storage  # what batches are gathered from
        self._all_lanes, self._saved = np.arange(storage.lanes), False
        self._is_tuple = isinstance(storage.observation_names, tuple)
        self._buffer.bind(storage)

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
            extra: further arrays to store with the step, by name; ``state.<network>`` holds start states for sequences.
            lane: number of the parallel environment.

        Raises:
            ShapeError, NonFiniteError, ActionError: if the step does not fit. Nothing is stored then.
        """
        lanes = self._lane(lane)
        observation = self._processed(observation)
        values = self._columns(
            tree_map(lambda leaf: np.asarray(leaf)[None], observation),
            np.asarray(self._writer.process_action(action))[None],
            np.asarray(self._writer.process_reward(reward))[None],
            None if extra is None else {name: np.asarray(value)[None] for name, value in extra.items()},
        )
        self._before_write()
        self._storage.append(lanes, values)

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
        """
        count = self._storage.lanes
        terminated, truncated = (np.asarray(flag, np.bool_).reshape(-1) for flag in (terminated, truncated))
        if len(terminated) != count or len(truncated) != count:
            raise ShapeError(
                f"{len(terminated)} steps were given, this buffer is for {count} environments: make it with lanes="
            )
        observation = process_batch(self._writer, self._as_tree(observation), count)
        following = observation_columns(
            self._storage, process_batch(self._writer, self._as_tree(next_observation), count), "next_observation"
        )
        if type(self._writer).process_action is not BasicWriterPreprocess.process_action:
            action = np.stack([np.asarray(self._writer.process_action(item)) for item in np.asarray(action)])
        if type(self._writer).process_reward is not BasicWriterPreprocess.process_reward:
            reward = np.stack([np.asarray(self._writer.process_reward(item)) for item in np.asarray(reward)])
        values = self._columns(tree_map(np.asarray, observation), np.asarray(action), np.asarray(reward), extra)
        lanes = self._all_lanes
        if mask is not None and not np.all(mask):
            lanes = np.flatnonzero(mask)
            values = {name: value[lanes] for name, value in values.items()}
            following = {name: value[lanes] for name, value in following.items()}
            terminated, truncated = terminated[lanes], truncated[lanes]
        if len(lanes):
            self._before_write()
            self._storage.append(lanes, values, following)
            done = terminated | truncated
            if done.any():
                self._storage.close(lanes[done], terminated[done])

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
        if not self._storage.open[lane]:
            return
        if final_observation is not None:
            processed = self._processed(final_observation)
            final = observation_columns(
                self._storage, tree_map(lambda leaf: np.asarray(leaf)[None], processed), "final_observation"
            )
        self._before_write()
        self._storage.close(lanes, np.array([bool(terminated)]), final)

    def append_episode(self, episode: EpisodeBase, *, lane: int = 0) -> None:
        """Add a whole episode. One that is not terminated counts as truncated.

        Raises:
            DataError: if an episode is running in this lane.
            ShapeError, NonFiniteError, ActionError: if it does not fit. Nothing is stored then.
        """
        if self._storage.open[self._lane(lane)[0]]:
            raise DataError(
                f"an episode is running in lane {lane}: end it with clip_episode(…) before append_episode(…)"
            )
        count, terminated = episode.size(), bool(episode.terminated)
        final_observation = getattr(episode, "final_observation", None)
        values = self._columns(episode.observations, episode.actions, episode.rewards, getattr(episode, "extra", None))
        flags = np.zeros(count + 1, np.uint8)
        flags[0] |= FIRST
        flags[count - 1] |= TERMINATED if terminated else TRUNCATED
        flags[count] = FINAL
        finals: dict[str, Array] = {}
        if final_observation is not None:
            batch = tree_map(lambda leaf: np.asarray(leaf)[None], final_observation)
            finals = observation_columns(self._storage, batch, "final_observation")
        else:
            flags[count] |= UNKNOWN
            flags[count - 1] |= 0 if terminated else NO_NEXT
        self._before_write()
        self._storage.extend(lane, flags, values, finals)

    def _lane(self, lane: int) -> Array:
        if not 0 <= lane < self._storage.lanes:
            raise ShapeError(f"lane={lane}, this buffer has lanes 0 … {self._storage.lanes - 1}: make it with lanes=")
        return self._all_lanes[lane : lane + 1]

    def _as_tree(self, observation: Observation) -> Observation:
        """d3rlpy gives the parts of a tuple as a list."""
        return tuple(observation) if isinstance(observation, list) and self._is_tuple else observation

    def _processed(self, observation: Observation) -> Observation:
        return self._as_tree(self._writer.process_observation(self._as_tree(observation)))

    def _columns(
        self, observation: Tree, action: Any, reward: Any, extra: Mapping[str, Any] | None
    ) -> dict[str, Array]:
        return step_columns(self._storage, observation, action, reward, extra, self._space, self._size)

    def _before_write(self) -> None:
        if self._saved and self._storage.limit is not None:  # a ring on disk is not readable while it is overwritten
            save_folder(self._storage, self._info(), clean=False)
        self._saved = False

    # -- sampling --------------------------------------------------------------------------------------------------

    def sample_transition(self) -> Transition:
        """Draw one transition."""
        return pick_one(self._storage, self._picker, int(self._rows(1, self._picker)[0]))

    def sample_transition_batch(
        self, batch_size: int, next_actions: bool = False, returns: DiscountedReturns | None = None
    ) -> TransitionMiniBatch:
        """Draw ``batch_size`` transitions, uniformly and independently; see `ReplayBufferBase`.

        Raises:
            EmptyDataError: if there is none.
        """
        rows = self._rows(whole_number("batch_size", batch_size), self._picker)
        return pick_batch(self._reader, self._picker, rows, next_actions, returns)

    def sample_trajectory(self, length: int) -> PartialTrajectory:
        """Draw one window."""
        row = int(self._rows(1, self._slicer, any_step=True)[0])
        return slice_one(self._storage, self._slicer, row, whole_number("length", length))

    def sample_trajectory_batch(self, batch_size: int, length: int) -> TrajectoryMiniBatch:
        """Draw windows of ``length`` steps that end with a uniformly drawn step, padded at the front."""
        rows = self._rows(whole_number("batch_size", batch_size), self._slicer, any_step=True)
        return slice_batch(self._reader, self._slicer, rows, whole_number("length", length))

    def sample_sequence_batch(
        self,
        batch_size: int,
        length: int,
        burn_in: int = 0,
        next_actions: bool = False,
        returns: DiscountedReturns | None = None,
    ) -> SequenceMiniBatch:
        """Draw sequences of ``burn_in + length`` steps; step ``burn_in`` is a uniformly drawn transition.

        Observations are those of the transition picker; rewards are of single steps.

        Raises:
            EmptyDataError: if there is no transition.
            UnsupportedError: if the picker makes other targets than of single steps.
        """
        rows = self._rows(whole_number("batch_size", batch_size), self._picker)
        length, burn_in = whole_number("length", length), whole_number("burn_in", burn_in, 0)
        return sequence_batch(self._reader, self._picker, rows, length, burn_in, next_actions, returns)

    def sample_tail_batch(self, batch_size: int) -> TailMiniBatch:
        """Draw transitions, uniformly and independently, with the rest of their episodes.

        The minibatch can be read until the next write.

        Raises:
            EmptyDataError: if there is no transition.
            UnsupportedError: if the picker makes other targets than of single steps.
        """
        rows = self._rows(whole_number("batch_size", batch_size), self._picker)
        return tail_batch(self._reader, self._picker, rows, self._storage)

    def placed_for(self, device: torch.device, *, growing: bool = False) -> ReplayBufferBase:
        """What to draw from when training on ``device``; the buffer itself is left as it is.

        On an accelerator that is a buffer of the same contents and draws, and what is appended to it goes to this one:

        - copied to the device, each column in its own dtype, if the data lie in memory and (at the buffer's limit)
          take no more than `birl.dataset.mirror.DEVICE_MEMORY_SHARE` of the device's free memory. Gathers then run
          there, and so do the draws, with a generator of the device's own, seeded by this buffer's and part of the
          state. Rows of a ``growing`` buffer are drawn on the host, and rows written are sent before the next draw.
        - else, for CUDA, one that gathers into pinned memory. So it is for data in folders, and for growing buffers
          without limit.

        On the CPU, for data on a device already and with pickers or slicers that work one by one it is this buffer.

        Args:
            device: the training device.
            growing: whether steps are appended between draws.
        """
        from birl.dataset.mirror import place_together

        placed = place_together([(self, growing)], device)
        return self if placed is None else placed[0]

    def _rows(self, count: int, part: Any, *, any_step: bool = False) -> Any:
        """Rows to draw, where the reader has them; none whose stacked frames were evicted."""
        return self._rows_of(self._storage, count, part, any_step)

    def _rows_of(self, storage: Storage, count: int, part: Any, any_step: bool) -> Any:
        n_frames = getattr(part, "n_frames", 1) if isinstance(part, _STACKS) else 1
        if n_frames == 1 or storage.limit is None:
            return sample_rows(storage, self._generator, count, any_step=any_step)
        complete = FrameStackTransitionPicker(n_frames).complete
        return sample_complete_rows(storage, self._generator, count, complete, any_step=any_step)

    # -- what is there ---------------------------------------------------------------------------------------------

    @property
    def episodes(self) -> Sequence[Episode]:
        """All episodes, running ones included; made when they are asked for."""
        return EpisodeList(self._storage)

    def size(self) -> int:
        """Number of episodes, running ones included."""
        return self._storage.episode_count

    @property
    def transition_count(self) -> int:
        """Number of steps whose next observation is known: those that can be drawn."""
        return self._storage.transition_count

    @property
    def step_count(self) -> int:
        """Number of steps."""
        return int(self._storage.steps.sum())

    @property
    def dataset_info(self) -> DatasetInfo:
        """Signatures of what is stored, action space and size."""
        leaves = self._storage.leaves
        tree = tree_map(lambda name: leaves[name], self._storage.observation_names)
        shape, dtype = tree_map(lambda leaf: leaf.shape, tree), tree_map(lambda leaf: leaf.dtype, tree)
        action, reward = leaves["action"], leaves["reward"]
        return DatasetInfo(
            Signature([dtype], [shape]) if isinstance(tree, Leaf) else Signature(dtype, shape),
            Signature([action.dtype], [action.shape]),
            Signature([reward.dtype], [reward.shape]),
            self._space,
            self._size,
        )

    def action_bounds(self) -> tuple[Array, Array]:
        """Least and greatest actions ``[A]`` of all steps; found once after a write. Infinite without steps."""
        return self._storage.action_bounds()

    @property
    def observation_shape(self) -> Shape:
        """Shape (or tree of shapes) of sampled observations, stacked frames included."""
        stored = self.dataset_info.observation_signature.tree_shape
        if is_vectorised(self._picker):
            return self._picker.observation_shape(stored)  # type: ignore[attr-defined]
        if not self.transition_count:
            return stored
        first = np.flatnonzero((self._storage.flags & (FINAL | NO_NEXT)) == 0)[0]
        return tree_map(np.shape, pick_one(self._storage, self._picker, int(first)).observation)

    @property
    def transition_picker(self) -> TransitionPickerProtocol:
        """Makes transitions of steps."""
        return self._picker

    @property
    def trajectory_slicer(self) -> TrajectorySlicerProtocol:
        """Makes windows of steps."""
        return self._slicer

    @property
    def buffer(self) -> BufferProtocol:
        """How many steps are kept."""
        return self._buffer

    @property
    def storage(self) -> Storage:
        """The arrays."""
        return self._storage

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, unused rows included."""
        return self._storage.nbytes

    def __repr__(self) -> str:
        counts = f"{self.size()} episodes, {self.step_count} steps, {self.transition_count} transitions"
        return f"<{type(self).__name__}: {counts}>"

    # -- files and state -------------------------------------------------------------------------------------------

    def dump(self, f: BinaryIO | str | os.PathLike[str]) -> None:
        """Write all episodes in the HDF5 layout of d3rlpy 2, with what that leaves out added.

        Args:
            f: path, or a file opened with ``"w+b"``. A path is replaced only when all is written.
        """
        from birl.dataset.hdf5 import dump

        dump(self.episodes, f, self.dataset_info)

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
        action_size: int | None = None,
        storage: Place = "memory",
    ) -> ReplayBuffer:
        """Read what `dump`, or d3rlpy (versions 1 and 2), wrote.

        Raises:
            ConfigError: if ``f`` is no file.
            CorruptFileError, ForeignFileError: if the file cannot be used.
        """
        from birl.dataset.hdf5 import check_readable, load

        check_readable(f, "ReplayBuffer.load(f, buffer)")
        episodes, space, size = load(f, episode_cls, action_space)
        return ReplayBuffer(
            InfiniteBuffer() if buffer is None else buffer,
            transition_picker,
            trajectory_slicer,
            writer_preprocessor,
            episodes,
            action_space=space,
            action_size=size if action_size is None else action_size,
            storage=storage,
        )

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        transition_picker: TransitionPickerProtocol | None = None,
        trajectory_slicer: TrajectorySlicerProtocol | None = None,
        writer_preprocessor: WriterPreprocessProtocol | None = None,
    ) -> ReplayBuffer:
        """Open data that was made with ``storage=folder``. Rows stay on disk."""
        storage, info = open_folder(Path(folder))
        self = ReplayBuffer.__new__(ReplayBuffer)
        buffer = InfiniteBuffer() if storage.limit is None else FIFOBuffer(storage.limit)
        self._set_parts(buffer, transition_picker, trajectory_slicer, writer_preprocessor)
        self._generator = new_generator()
        self._attach(storage, ActionSpace(info["action_space"]), int(info["action_size"]))
        self._saved = True
        return self

    def _info(self) -> dict[str, Any]:
        return {"action_space": self._space.value, "action_size": self._size}

    def flush(self) -> None:
        """Bring a folder up to date on disk. Nothing to do for other storage."""
        if isinstance(self._storage.place, FolderPlace):
            save_folder(self._storage, self._info())
            self._saved = True

    def get_state(self, *, contents: bool = True) -> State:
        """State of the random generators and, with ``contents``, all that is stored."""
        state: State = {"generator": self._generator.bit_generator.state, **get_generator_state(self._storage)}
        if contents:
            self.flush()
            state |= {"storage": get_storage_state(self._storage), "action_size": self._size}
        return state

    def set_state(self, state: State) -> None:
        """Go back to a state; what is drawn next is what was drawn next then."""
        self._generator.bit_generator.state = state["generator"]
        set_generator_state(self._storage, state)
        if "storage" in state:
            self._before_write()
            set_storage_state(self._storage, state["storage"])
            self._size = int(state["action_size"])


def create_fifo_replay_buffer(
    limit: int,
    episodes: Sequence[EpisodeBase] | None = None,
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    writer_preprocessor: WriterPreprocessProtocol | None = None,
    env: Any = None,
    write_at_termination: bool = False,
    *,
    storage: Place = "memory",
    **options: Any,
) -> ReplayBuffer:
    """A `ReplayBuffer` that keeps the newest ``limit`` steps. Other arguments as there."""
    parts = (transition_picker, trajectory_slicer, writer_preprocessor)
    options["write_at_termination"] = write_at_termination
    return ReplayBuffer(FIFOBuffer(limit), *parts, episodes, env, storage=storage, **options)


def create_infinite_replay_buffer(
    episodes: Sequence[EpisodeBase] | None = None,
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    writer_preprocessor: WriterPreprocessProtocol | None = None,
    env: Any = None,
    write_at_termination: bool = False,
    *,
    storage: Place = "memory",
    **options: Any,
) -> ReplayBuffer:
    """A `ReplayBuffer` that keeps everything. Other arguments as there."""
    parts = (transition_picker, trajectory_slicer, writer_preprocessor)
    options["write_at_termination"] = write_at_termination
    return ReplayBuffer(InfiniteBuffer(), *parts, episodes, env, storage=storage, **options)
