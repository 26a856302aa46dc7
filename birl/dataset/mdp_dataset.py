"""Logged data as flat arrays."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from birl.dataset.augmentation import Augmentation
from birl.dataset.buffers import InfiniteBuffer
from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.episode import Signature, parts_as_tuple
from birl.dataset.ingest import row_flags
from birl.dataset.replay_buffer import ReplayBuffer, StorageLocation
from birl.dataset.sampling import Sampler
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import TransitionPickerProtocol
from birl.dataset.validation import (
    as_column,
    as_extra,
    as_flags,
    as_ids,
    as_masks,
    as_observation,
    check_finite,
    check_length,
    check_mask_allows,
    check_stored,
    last_steps,
    prepare_actions,
)
from birl.errors import DataError, ShapeError
from birl.spaces import actions_told
from birl.spaces.observations import (
    as_observations,
    check_inside,
    check_mask,
    chosen,
    named_map,
    observations_in,
    picked,
    wider,
)
from birl.spaces.specs import Spec
from birl.types import MASK, ActionSpace, Array, Leaf, Tree, parts_like, tree_leaves, tree_map

_CHUNK = 65536
_LIMIT = (20, 10)  # a time limit is suspected from so many steps on, and so many episodes of this length


class MDPDataset(ReplayBuffer):
    """A replay buffer made of logged steps.

    Args:
        observations: tree of arrays ``[N, …]``; any numeric dtype, which is kept. The parts of a tuple may be given as
            a list.
        actions: floats ``[N, A]``, or integers ``[N]`` or ``[N, 1]`` for discrete actions, ``[N, D]`` for several
            choices at once; as a dict or tuple of arrays if ``action_size`` is a Dict or Tuple space.
        rewards: ``[N]`` or ``[N, 1]``.
        terminals: ``[N]``, 1 where the environment ended the episode with this step. Must be given: all zeros, with
            ``timeouts`` or ``episode_ids``, say that no episode terminates.
        timeouts: ``[N]``, 1 where an episode was cut after this step. A step that is both is terminal.
        transition_picker: `birl.dataset.BasicTransitionPicker` if ``None``.
        trajectory_slicer: `birl.dataset.BasicTrajectorySlicer` if ``None``.
        action_space: kind of actions; ``None`` to tell it from their dtype.
        action_size: number of discrete actions, or list of numbers of options of several choices; ``None`` for the
            largest one plus one. Or the action space, such as ``env.action_space``, which says the kind, too.
        next_observations: tree ``[N, …]``: observations after each step. With them the last step of a truncated
            episode is a transition too.
        episode_ids: ``[N]``, numbers or text: the episode of each step, as in a log's column. An episode ends where
            the id changes; if its last step is not terminal, it is truncated. Its steps must follow one another.
        action_masks: ``[N, A]``, 1 for each discrete action that could be taken at a step, else 0. Observations become
            ``{"observation": …, "action_mask": …}`` (or get this leaf, if they are dicts), which algorithms understand;
            ``next_observations``, if they are given, must have it.
        storage: ``"memory"``, a torch device, or the path of a new folder.
        sampler: chooses the steps of minibatches; `birl.dataset.Uniform` if ``None``.
        observation_space: what observations are: a space of Gymnasium, such as ``env.observation_space``, or a tuple or
            dict of shapes and spaces. If ``None``, whole numbers ``[N]`` are choices counted from 0, of which the
            largest is the last, and all else are quantities.
        observation_keys: names of the parts of observations that are kept; all if ``None``.
        augmentation: changes images of minibatches on the training device; see `birl.dataset.RandomShift`.
        extra: further arrays ``[N, …]`` of numbers by name, such as the logged probabilities of actions. They come back
            in episodes, in files and in every kind of minibatch; losses do not see them.

    An end must be known: by ``terminals``, ``timeouts`` or ``episode_ids``. Without ids, steps after the last end are
    kept as a truncated episode. The last step of a truncated episode is kept, and drawn as a transition only if
    ``next_observations`` are given. The arrays that are given are copied, never changed.

    Without ``timeouts`` there is a warning if the longest length is also the most frequent one, as when a time limit is
    among the terminals; ``timeouts=np.zeros(N)`` says that it is not.

    Raises:
        ShapeError: if shapes, lengths or dtypes do not fit.
        EmptyDataError: if there is no step.
        NonFiniteError: if there is NaN or infinity.
        ActionError: if actions are out of range, or their kind cannot be told.
        DataError: if ``terminals`` are not given, flags are not 0 or 1, no step ends an episode, ends contradict
            ``episode_ids``, or ``next_observations`` contradict ``observations``.
    """

    def __init__(
        self,
        observations: Tree,
        actions: Any,
        rewards: Any,
        terminals: Any = None,
        timeouts: Any = None,
        transition_picker: TransitionPickerProtocol | None = None,
        trajectory_slicer: TrajectorySlicerProtocol | None = None,
        action_space: ActionSpace | None = None,
        action_size: Any = None,
        *,
        next_observations: Tree = None,
        episode_ids: Any = None,
        action_masks: Any = None,
        storage: StorageLocation = "memory",
        sampler: Sampler | None = None,
        observation_space: Any = None,
        observation_keys: Sequence[str] | None = None,
        augmentation: Augmentation | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if terminals is None:  # zeros would be a guess: a forgotten termination changes what is learned
            raise DataError(
                "terminals are not given: give 1 at each step where the environment ended the episode, or, if "
                "only time limits end episodes, terminals=np.zeros(len(rewards)) with timeouts (or episode_ids)"
            )
        rewards, terminal = as_column("rewards", rewards), as_flags("terminals", terminals)
        observations = chosen(parts_as_tuple("observations", observations, len(rewards)), observation_keys)
        observations = named_map(partial(as_observation, "observations"), observations)
        if observation_space is not None:
            observation_space = as_observations(observation_space, observation_keys)
        if action_masks is not None:
            masks = as_masks("action_masks", action_masks)
            if isinstance(observations, dict) and MASK in observations:
                raise DataError(f"the observations have a part {MASK!r} already: leave action_masks out")
            observations = {**named_parts(observations), MASK: masks}
            if observation_space is not None:
                observation_space = {**named_parts(observation_space), MASK: masks.shape[1:]}
        timeout = np.zeros(len(terminal), bool) if timeouts is None else as_flags("timeouts", timeouts)
        actions, what = prepare_actions(actions, action_space, action_size)
        arrays = {"observations": observations, "actions": actions, "rewards": rewards}
        ids = {} if episode_ids is None else {"episode_ids": as_ids(episode_ids)}
        beside = as_extra(extra)
        named = {f"extra[{name!r}]": array for name, array in beside.items()}
        count = check_length(**arrays, terminals=terminal, timeouts=timeout, **ids, **named)
        check_finite("observations", observations)
        check_finite("rewards", rewards)
        width = np.shape(observations[MASK])[1:] if isinstance(observations, dict) and MASK in observations else ()
        if action_size is None and len(width) == 1 and what.kind is ActionSpace.DISCRETE and width[0] > what.size:
            what = actions_told(int(width[0]), what.kind)
        parts = observations_in(observations, observation_space)
        spec = Spec(parts, what)
        if action_masks is not None and not spec.masked:
            raise DataError(f"action_masks are for discrete actions, but these are {what}: leave them out")
        check_stored(spec.actions, actions)
        if spec.masked:
            check_mask(observations, DataError, f"observations[{MASK!r}]")
            check_mask_allows(observations, actions, what)

        ends = _episode_ends(terminal, timeout, episode_ids)
        if timeouts is None:
            _notice_time_limit(terminal, ends)
        flags = row_flags(terminal, ends, known=next_observations is not None)
        finals: Tree = None
        if next_observations is not None:
            following = picked(observations, parts_like(next_observations, observations))
            following = named_map(partial(as_observation, "next_observations"), following)
            _check_following(observations, following, ends)
            finals = tree_map(lambda leaf: leaf[ends], following)
            check_finite("next_observations", finals)
            if spec.masked:
                check_mask(finals, DataError, f"next_observations[{MASK!r}]")
            parts = parts if observation_space is not None else wider(parts, observations_in(finals))
            check_inside(parts, finals, "next_observations")

        observation, action, reward = (Signature.of(tree, skip=1) for tree in (observations, actions, rewards))
        buffer = InfiniteBuffer()
        info = DatasetInfo(observation, action, reward, what.kind, what.told, parts)
        self._make(info, buffer, storage, count + int(ends.sum()))
        self._use(buffer, transition_picker, trajectory_slicer, None, sampler, observation_keys, augmentation)
        names = self.storage.observation_names
        steps = dict(zip(tree_leaves(names), tree_leaves(observations), strict=True))
        last = {} if finals is None else dict(zip(tree_leaves(names), tree_leaves(finals), strict=True))
        steps |= {"action": actions, "reward": rewards}
        for name, array in beside.items():
            self.storage.add_extra(f"extra.{name}", Leaf(array.shape[1:], array.dtype))
            steps[f"extra.{name}"] = array
        self.storage.extend(0, flags, steps, last)
        self.flush()


def named_parts(tree: Tree) -> dict[str, Tree]:
    """A dict as it is; anything else as its only part, ``observation``."""
    return tree if isinstance(tree, dict) else {"observation": tree}


def _episode_ends(terminal: Array, timeout: Array, ids: Any) -> Array:
    """Whether each step ``[N]`` is the last of its episode, the steps after the last mark included."""
    marked = terminal | timeout
    if ids is None:
        if not marked.any():
            raise DataError(
                f"no step of {len(marked)} ends an episode: give terminals with 1 where the task ended, timeouts with "
                "1 where an episode was cut (the last step of a single unfinished one), or episode_ids, a log's "
                "episode column"
            )
        marked[-1] = True
        return marked
    ends = last_steps(ids)
    inside = np.flatnonzero(marked & ~ends)
    if inside.size:
        step, name = int(inside[0]), "terminals" if terminal[inside[0]] else "timeouts"
        raise DataError(
            f"{name}[{step}] is 1, but episode_ids[{step + 1}] says that the episode goes on: leave episode_ids out if "
            "the ends are right, or drop the rows after each end"
        )
    return ends


def _notice_time_limit(terminal: Array, ends: Array) -> None:
    """Warn if no length of terminated episodes is more frequent than the greatest length of all."""
    last = np.flatnonzero(ends)
    lengths, counts = np.unique(np.diff(last, prepend=-1)[terminal[last]], return_counts=True)
    longest = np.diff(last, prepend=-1).max()
    if not len(lengths) or lengths[-1] < max(longest, _LIMIT[0]) or counts[-1] < max(counts.max(), _LIMIT[1]):
        return
    warnings.warn(
        f"{counts[-1]} of {counts.sum()} terminals come after exactly {longest} steps, and none later. If that is a "
        "time limit, pass these ends as timeouts= and not as terminals, or values are learned as if nothing could be "
        "earned after them. If the task itself ends there, timeouts=np.zeros(len(rewards)) says so",
        UserWarning,
        stacklevel=3,
    )


def _check_following(observations: Tree, following: Tree, ends: Array) -> None:
    """Inside an episode the next observation is the observation of the next step."""
    given, expected = tree_map(lambda leaf: leaf.shape, following), tree_map(lambda leaf: leaf.shape, observations)
    if given != expected:
        raise ShapeError(f"next_observations have shape {given}; they must have {expected}: give both the same shape")
    for leaf, after in zip(tree_leaves(observations), tree_leaves(following), strict=True):
        for begin in range(0, len(ends) - 1, _CHUNK):
            stop = min(begin + _CHUNK, len(ends) - 1)
            differs = (after[begin:stop] != leaf[begin + 1 : stop + 1]).reshape(stop - begin, -1).any(axis=1)
            wrong = np.flatnonzero(differs & ~ends[begin:stop])
            if wrong.size:
                step = begin + int(wrong[0])
                raise DataError(
                    f"next_observations[{step}] is not observations[{step + 1}], but no episode ends there: mark the "
                    "end with timeouts, or leave next_observations out"
                )
