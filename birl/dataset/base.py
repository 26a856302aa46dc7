"""The interface of datasets and replay buffers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import torch

from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.discounted_returns import DiscountedReturns
from birl.dataset.episode import Episode, EpisodeBase, PartialTrajectory, Transition
from birl.dataset.episodes import EpisodeList, action_bounds
from birl.dataset.flags import TERMINATED, TRUNCATED
from birl.dataset.hdf5 import Layout, dump
from birl.dataset.ingest import (
    Steps,
    add_row_axis,
    append_steps,
    episode_rows,
    lane_numbers,
    observation_columns,
    step_columns,
    turns_in_lanes,
)
from birl.dataset.log_record import LogRecord, merge_records
from birl.dataset.minibatch import SequenceMiniBatch, TailMiniBatch, TrajectoryMiniBatch, TransitionMiniBatch
from birl.dataset.reader import Reader
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import Columns, TransitionPickerProtocol
from birl.dataset.validation import as_flags
from birl.dataset.views import M, SequenceView, TailView, TrajectoryView, TransitionView, View
from birl.dataset.write_target import WriteTarget
from birl.dataset.writers import process_observations, process_rows
from birl.errors import ArgumentError, DataError, ShapeError
from birl.habits import explain_attributes
from birl.types import Array, Observation, Shape, State


@explain_attributes("buffer")
class ReplayBufferBase(ABC):
    """The interface of datasets and replay buffers for algorithms and training loops.

    Attributes:
        reader: samples minibatches and iterates over all transitions.
        target: the storage that steps are appended to.
    """

    reader: Reader
    target: WriteTarget

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(
        self,
        observation: Observation,
        action: npt.ArrayLike,
        reward: npt.ArrayLike,
        *,
        extra: Mapping[str, npt.ArrayLike] | None = None,
        lane: int = 0,
    ) -> None:
        """Add one step to the running episode, or start an episode with it.

        The step can be sampled once its next observation is known: after the next step or `clip_episode`.

        Args:
            observation: tree ``[…]``.
            action: ``[A]``, or an integer.
            reward: a number.
            extra: extra arrays to store with the step, by name. Minibatches and episodes contain them, but losses do
                not read them. ``state.<network>`` holds start states for sequences.
            lane: number of the parallel environment.

        Raises:
            ShapeError, NonFiniteError, ActionError: if the step does not fit; it is not stored.
        """
        to = self.target
        lanes, writer = to.lanes(lane), cast(Any, to.writer)  # it receives the user's values, which need not be arrays
        action, reward = writer.process_action(to.action(action, row=True)), writer.process_reward(reward)
        step = {
            "observation": to.processed(observation),
            "action": action,
            "reward": reward,
            "extra": dict(extra or {}),
        }
        values = step_columns(to.storage, *(add_row_axis(name, part) for name, part in step.items()))
        to.prepare(values)
        if to.held is not None:
            to.held.append(to.storage, lanes, values)
        else:
            to.storage.append(lanes, values)
        to.look_at_resolution()

    def append_batch(
        self,
        observation: Observation,
        action: npt.ArrayLike,
        reward: npt.ArrayLike,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        next_observation: Observation,
        extra: Mapping[str, npt.ArrayLike] | None = None,
        *,
        mask: npt.ArrayLike | None = None,
        lanes: Sequence[int] | Array | None = None,
    ) -> None:
        """Add one step of every parallel environment: row i goes to lane i. Episodes end where a flag is set.

        Args:
            observation: tree ``[n, …]``.
            action: ``[n, A]``, or integers ``[n]``.
            reward: ``[n]``.
            terminated, truncated: bool ``[n]``.
            next_observation: tree ``[n, …]``. Where an episode ended, it is the last observation before the reset.
            extra: extra arrays ``[n, …]`` by name.
            mask: bool ``[n]``: the rows to store, for example without steps that only reset; ``None`` for all.
            lanes: the lane ``[n]`` of each row; ``None`` for one row in each lane. Rows of the same lane are
                consecutive steps.
        """
        to = self.target
        row_lanes = to.all_lanes if lanes is None else lane_numbers(lanes, to.storage.lanes)
        count = len(row_lanes)
        if np.shape(terminated)[:1] != (count,):
            raise ShapeError(
                f"{np.size(terminated)} steps for {count} lanes: give one row for each, or make the buffer with lanes="
            )
        terminated = as_flags("terminated", terminated, count)
        truncated = as_flags("truncated", truncated, count)
        mask = None if mask is None else as_flags("mask", mask, count)
        writer = to.writer
        observation = process_observations(writer.process_observation, to.parts(observation))
        next_observation = process_observations(
            writer.process_observation, to.parts(next_observation, "next_observation")
        )
        following = observation_columns(to.storage, next_observation, "next_observation", count)
        action = process_rows(writer.process_action, to.action(action))
        reward = process_rows(writer.process_reward, reward)
        values = step_columns(to.storage, observation, action, reward, extra, count)
        to.prepare(values, mask)
        ending = np.where(terminated, TERMINATED, truncated * TRUNCATED).astype(np.uint8)
        if to.held is not None:
            steps = Steps(row_lanes, values, following, ending)
            to.held.append(to.storage, *(steps if mask is None else steps.select(mask))[:4])
        else:
            turn = None if lanes is None else turns_in_lanes(row_lanes)
            append_steps(to.storage, Steps(row_lanes, values, following, ending, turn), mask)
        to.look_at_resolution()

    def clip_episode(
        self, terminated: bool, *, truncated: bool | None = None, final_observation: Observation = None, lane: int = 0
    ) -> None:
        """End the running episode of a lane. Does nothing if there is none.

        Args:
            terminated: whether the environment ended the episode.
            truncated: ignored: an episode that is not terminated counts as truncated.
            final_observation: tree ``[…]`` after the last action. Without it, the last step of a truncated episode is
                not sampled as a transition, and the next observation of a terminal step is zero.
            lane: number of the parallel environment.
        """
        to, final = self.target, None
        lanes = to.lanes(lane)
        if not to.running(lane):
            return
        if final_observation is not None:
            final = add_row_axis("final_observation", to.processed(final_observation))
            final = observation_columns(to.storage, final, "final_observation")
        to.prepare()
        if to.held is not None:
            to.held.close(to.storage, lane, bool(terminated), final)
        else:
            to.storage.close(lanes, np.array([bool(terminated)]), final)

    def append_episode(self, episode: EpisodeBase, *, lane: int = 0) -> None:
        """Add a complete episode. If it is not terminated, it counts as truncated.

        Raises:
            DataError: if an episode is running in this lane.
            ShapeError, NonFiniteError, ActionError: if it does not fit; nothing is stored.
        """
        to = self.target
        if to.running(int(to.lanes(lane)[0])):
            raise DataError(
                f"an episode is running in lane {lane}: end it with clip_episode(…) before append_episode(…)"
            )
        rows = episode_rows(to.storage, episode)
        to.prepare(rows[1])
        to.storage.extend(lane, *rows)
        to.add_columns(getattr(episode, "columns", None) or {})
        to.look_at_resolution()

    # -- sampling --------------------------------------------------------------------------------------------------

    def sample(self, view: View[M], count: int | None = None) -> M:
        """Sample a minibatch of ``count`` elements.

        Raises:
            ArgumentError: without ``count``, as in other libraries' ``sample(batch_size)``.
        """
        if count is None:
            raise ArgumentError(
                f"sample got {view!r:.80} and no count; it takes a view and a count: "
                "sample_transition_batch(batch_size) returns a minibatch of transitions"
            )
        return self.reader.sample(view, count)

    def sample_transition(self) -> Transition:
        """Sample one transition."""
        return self.reader.sample_transition()

    def sample_transition_batch(
        self, batch_size: int, next_actions: bool = True, returns: DiscountedReturns | None = None
    ) -> TransitionMiniBatch:
        """Sample transitions, uniformly and independently unless the dataset has another sampler.

        Args:
            batch_size: number of transitions.
            next_actions: whether ``extra`` also has ``next_action`` ``[B, A]``, the action taken at the next
                observation, and float32 ``next_action_known`` ``[B, 1]``. Both are 0 after the last step of an episode.
            returns: adds ``discounted_return`` ``[B, 1]`` to ``extra``: discounted rewards up to the episode's end.

        Raises:
            EmptyDataError: if there is no transition.
        """
        return self.sample(TransitionView(Columns(next_actions, returns)), batch_size).filled()

    def sample_trajectory(self, length: int) -> PartialTrajectory:
        """Sample one window of ``length`` steps, padded at the front."""
        return self.reader.sample_trajectory(length)

    def sample_trajectory_batch(self, batch_size: int, length: int) -> TrajectoryMiniBatch:
        """Sample windows of ``length`` steps, padded at the front.

        The last step is sampled uniformly unless the dataset has another sampler.
        """
        return self.sample(TrajectoryView(length), batch_size)

    def sample_sequence_batch(
        self,
        batch_size: int,
        length: int,
        burn_in: int = 0,
        next_actions: bool = False,
        returns: DiscountedReturns | None = None,
    ) -> SequenceMiniBatch:
        """Sample sequences of ``burn_in + length`` steps.

        Step ``burn_in`` is a transition, sampled uniformly unless the dataset has another sampler. The transition
        picker makes the observations and, with a `MultiStepTransitionPicker`, n-step rewards.

        Raises:
            EmptyDataError: if there is no transition.
            UnsupportedError: if the dataset has a transition picker of the user's own.
        """
        view = SequenceView(length, burn_in, Columns(next_actions, returns))
        return self.sample(view, batch_size)

    def sample_tail_batch(self, batch_size: int) -> TailMiniBatch:
        """Sample transitions with the rest of their episodes.

        They are sampled uniformly and independently unless the dataset has another sampler. The minibatch can be read
        until the next write.

        Raises:
            EmptyDataError: if there is no transition.
            UnsupportedError: if the dataset has a multi-step transition picker, or one of the user's own.
        """
        return self.sample(TailView(), batch_size)

    def all_transitions(self) -> Iterator[TransitionMiniBatch]:
        """Iterate over all transitions once, in the order of the episodes, many at a time.

        Raises:
            EmptyDataError: if there is no transition.
        """
        return self.reader.all_transitions()

    @property
    def episodes(self) -> Sequence[Episode]:
        """All episodes, including running ones. Each one is made when it is accessed.

        Their arrays are read-only, because they are views of the stored steps. To change values, change a copy,
        ``np.array(episode.rewards)``, and make a new dataset; ``torch.tensor(episode.rewards)`` copies, too, where
        ``torch.from_numpy`` warns.
        """
        first, *others = (EpisodeList(storage) for storage in self.reader.storages)
        return sum(others, first)

    def size(self) -> int:
        """Return the number of episodes, including running ones."""
        return sum(storage.episode_count for storage in self.reader.storages)

    @property
    def transition_count(self) -> int:
        """Number of steps that can be sampled: terminal steps, and steps with a known next observation."""
        return self.reader.transition_count

    @property
    def step_count(self) -> int:
        """Number of steps."""
        return sum(int(storage.steps.sum()) for storage in self.reader.storages)

    @property
    def logs(self) -> LogRecord | None:
        """The record of the logs that all steps come from; ``None`` if some do not come from logs."""
        found = [storage.logs for storage in self.reader.storages]
        return None if None in found else reduce(partial(merge_records, who="one part", what="another part"), found)

    @property
    @abstractmethod
    def dataset_info(self) -> DatasetInfo:
        """Signatures of the stored steps, action space and action size."""

    def action_bounds(self) -> tuple[Array, Array]:
        """Return the minimum and maximum ``[A]`` of all actions; infinite without steps. Cached until a write."""
        low, high = zip(*map(action_bounds, self.reader.storages), strict=True)
        return reduce(np.minimum, low), reduce(np.maximum, high)

    @property
    @abstractmethod
    def observation_shape(self) -> Shape:
        """Shape (or tree of shapes) of sampled observations, stacked frames included."""

    @property
    def transition_picker(self) -> TransitionPickerProtocol:
        """Object that makes transitions of steps."""
        return self.reader.sources[0].picker

    @property
    def trajectory_slicer(self) -> TrajectorySlicerProtocol:
        """Object that makes windows of trajectories."""
        return self.reader.sources[0].slicer

    def placed_for(self, device: torch.device, *, growing: bool = False) -> Reader:
        """Return the reader for training on ``device``. The buffer itself does not change.

        On an accelerator the reader uses a mirror of the steps, which follows the writes to the buffer:

        - The mirror is a copy on the device, each column in its own dtype, if the data are in memory and take (at the
          buffer's limit) at most `birl.dataset.device_mirror.DEVICE_MEMORY_SHARE` of the device's free memory. Rows are
          then gathered on the device. They are also drawn there, with a generator of the device that the buffer's
          generator seeds and that is part of the reader's state. Rows of a ``growing`` buffer are drawn on the host,
          and written rows are sent before the next minibatch is sampled.
        - Otherwise, on CUDA devices, rows are gathered into pinned memory: for data in folders, for growing buffers
          without a limit, and for data that are too large.

        On the CPU, for data that are on a device already, and with per-item pickers or slicers, it is `reader` itself.

        Args:
            device: the training device.
            growing: whether steps are appended between minibatches.
        """
        return self.reader.near(device, growing=growing)

    def dump(self, f: BinaryIO | str | os.PathLike[str], *, layout: Layout | None = None) -> None:
        """Write all episodes to an HDF5 file in a layout of d3rlpy, with additional data that d3rlpy ignores.

        Args:
            f: path, or a file opened with ``"w+b"``. An existing file is replaced only after all is written.
            layout: see `birl.dataset.dump`: by default d3rlpy's layout 2.1, and for more than 10,000 episodes its flat
                layout 1, which d3rlpy reads with ``load_v1``.
        """
        dump(self.episodes, f, self.dataset_info, layout=layout)

    @abstractmethod
    def get_state(self, *, contents: bool = True) -> State:
        """Return the state of the random generators and samplers and, with ``contents``, all stored steps."""

    @abstractmethod
    def set_state(self, state: State) -> None:
        """Restore a state."""
