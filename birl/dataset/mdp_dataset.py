"""Datasets of logged steps, given as flat arrays."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from gymnasium import Space

from birl.checks import named_arguments
from birl.dataset.augmentation import Augmentation
from birl.dataset.buffers import InfiniteBuffer
from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.episode import Signature, parts_as_tuple
from birl.dataset.ingest import add_extra_columns, row_flags
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
    warn_of_unlogged_actions,
)
from birl.errors import DataError, EpisodeCutWarning, ShapeError, outside_birl
from birl.spaces import Actions, parse_actions
from birl.spaces.action_spaces import names_of_actions
from birl.spaces.conversion import Columns, column_names
from birl.spaces.observations import (
    check_action_mask,
    check_observations,
    columns_of,
    infer_observations,
    map_named_leaves,
    match_parts,
    order_tables,
    parse_observations,
    select_parts,
    widen_observations,
)
from birl.spaces.specs import Spec
from birl.types import MASK, ActionSize, ActionSpace, Array, Tree, parts_like, tree_leaves, tree_map

_CHUNK = 65536
_ROUNDING = 1e-6  # largest difference that rounding explains, relative to the largest number of a column
_LIMIT = (20, 10)  # minimum length, and minimum number of episodes of that length, to suspect a time limit


class MDPDataset(ReplayBuffer):
    """A replay buffer of logged steps.

    Args:
        observations: tree of arrays ``[N, …]`` of any numeric dtype. The parts of a tuple may be given as a list. The
            names of the columns of tables (pandas, polars, Arrow) are kept, also those of ``actions``: tables that are
            given later, to ``append_batch`` or to a policy's ``predict``, are read by name.
        actions: floats ``[N, A]``, or integers ``[N]`` or ``[N, 1]`` for discrete actions, ``[N, D]`` for several
            choices at once; a dict or tuple of arrays if ``action_size`` is a Dict or Tuple space.
        rewards: ``[N]`` or ``[N, 1]``.
        terminals: ``[N]``, 1 where the environment ended the episode with this step. Required: use zeros, with
            ``timeouts`` or ``episode_ids``, if no episode terminates.
        timeouts: ``[N]``, 1 where an episode was cut after this step. A step that is both is terminal.
        transition_picker: makes transitions; `birl.dataset.BasicTransitionPicker` if ``None``.
        trajectory_slicer: makes windows of trajectories; `birl.dataset.BasicTrajectorySlicer` if ``None``.
        action_space: kind of the actions; ``None`` to infer it from their dtype.
        action_size: number of discrete actions, or list of the numbers of options of several choices; ``None`` for the
            largest action plus one. Or the action space, such as ``env.action_space``, which includes the kind.
        next_observations: tree ``[N, …]``: observations after each step. With them, the last step of a truncated
            episode is a transition too. After the last step of an episode, NaN, a masked value or ``None`` means that
            the observation is unknown. Rows that are single transitions need ``timeouts=np.ones(N)``; if only some
            steps do not follow one another, episodes are cut there, with an `birl.errors.EpisodeCutWarning`.
        episode_ids: ``[N]``, numbers or text: the episode of each step, as in a column of a log. An episode ends where
            the id changes; if its last step is not terminal, it is truncated. Its steps must be consecutive.
        action_masks: ``[N, A]``, 1 for each discrete action that could be taken at a step, else 0. Observations become
            ``{"observation": …, "action_mask": …}`` (or get this leaf, if they are dicts); ``next_observations``, if
            given, must contain it.
        storage: ``"memory"``, a torch device, or the path of a new folder.
        sampler: chooses the steps of minibatches; `birl.dataset.Uniform` if ``None``.
        observation_space: spec of the observations: a Gymnasium space, such as ``env.observation_space``, or a tuple or
            dict of shapes and spaces. If ``None``, integers ``[N]`` are categories from 0 to the largest one, and
            everything else is numeric.
        observation_keys: names of the stored parts of observations; ``None`` for all.
        augmentation: changes images of minibatches on the training device; see `birl.dataset.RandomShift`.
        extra: extra arrays ``[N, …]`` of numbers by name, such as the logged probabilities of actions. Episodes, files
            and minibatches contain them, but losses do not read them.

    Ends of episodes must be given by ``terminals``, ``timeouts`` or ``episode_ids``. Without ids, steps after the last
    end form a truncated episode. The last step of a truncated episode is stored, but is a transition only with
    ``next_observations``. The given arrays are copied, never changed.

    Without ``timeouts`` there is a warning if the longest episodes are also the most frequent ones, which suggests a
    time limit among the terminals; ``timeouts=np.zeros(N)`` states that there is none. Without ``action_size`` there is
    an `birl.errors.UnloggedActionWarning` if no step holds one of the discrete actions from 0 to the largest one.
    A `birl.errors.ResolutionWarning` names columns, such as times in seconds since 1970, whose values are so large that
    float32 cannot tell them apart. Such observations stay in float64 up to the algorithm's observation scaler.

    Raises:
        ShapeError: if shapes, lengths or dtypes do not fit.
        EmptyDataError: if there is no step.
        NonFiniteError: if there is NaN or infinity.
        ActionError: if actions are out of range, or their kind is ambiguous.
        DataError: if ``terminals`` are not given, flags are not 0 or 1, no step ends an episode, ends contradict
            ``episode_ids``, or ``next_observations`` contradict ``observations``.
    """

    @named_arguments
    def __init__(
        self,
        observations: Tree,
        actions: npt.ArrayLike | Mapping[str, npt.ArrayLike],
        rewards: npt.ArrayLike,
        terminals: npt.ArrayLike | None = None,
        timeouts: npt.ArrayLike | None = None,
        transition_picker: TransitionPickerProtocol | None = None,
        trajectory_slicer: TrajectorySlicerProtocol | None = None,
        action_space: ActionSpace | None = None,
        action_size: ActionSize = None,
        *,
        next_observations: Tree = None,
        episode_ids: npt.ArrayLike | None = None,
        action_masks: npt.ArrayLike | None = None,
        storage: StorageLocation = "memory",
        sampler: Sampler | None = None,
        observation_space: Tree = None,
        observation_keys: Sequence[str] | None = None,
        augmentation: Augmentation | None = None,
        extra: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None:
        if terminals is None:  # zeros would be a guess, and a missing termination changes the learned values
            raise DataError(
                "terminals are not given: give 1 at each step where the environment ended the episode, or, if "
                "only time limits end episodes, terminals=np.zeros(len(rewards)) with timeouts (or episode_ids)"
            )
        rewards, terminal = as_column("rewards", rewards), as_flags("terminals", terminals)
        observations = select_parts(parts_as_tuple("observations", observations, len(rewards)), observation_keys)
        tables, observations = observations, map_named_leaves(partial(as_observation, "observations"), observations)
        if observation_space is not None:
            observation_space = parse_observations(observation_space, observation_keys)
        if action_masks is not None:
            tables = named_parts(tables)
            observations, observation_space = _with_masks(observations, observation_space, action_masks)
        timeout = np.zeros(len(terminal), bool) if timeouts is None else as_flags("timeouts", timeouts)
        given, (actions, action_spec) = actions, prepare_actions(actions, action_space, action_size)
        names = names_of_actions(action_size, given) if isinstance(action_size, Space) else column_names(given)
        columns = columns_of(tables, names)
        arrays = {"observations": observations, "actions": actions, "rewards": rewards}
        ids = {} if episode_ids is None else {"episode_ids": as_ids(episode_ids)}
        extra_columns = as_extra(extra)
        named = {f"extra[{name!r}]": array for name, array in extra_columns.items()}
        count = check_length(**arrays, terminals=terminal, timeouts=timeout, **ids, **named)
        check_finite("observations", observations)
        check_finite("rewards", rewards)
        spec = _infer_spec(observations, observation_space, actions, action_spec, action_size is None)
        if action_masks is not None and not spec.masked:
            raise DataError(f"action_masks are for discrete actions, but these are {action_spec}: leave them out")

        if action_size is None and not spec.masked:  # masks say which actions exist
            warn_of_unlogged_actions(spec.actions, [actions])
        ends = _episode_ends(terminal, timeout, episode_ids)
        if timeouts is None:
            _warn_of_time_limit(terminal, ends)
        finals, known, parts = None, np.zeros(count, bool), spec.observations
        if next_observations is not None:
            following = _following(next_observations, observations, columns)
            ends |= _cuts(observations, following, ends, episode_ids is None)
            finals, known[ends] = _final_observations(following, ends, spec.masked)
            parts = parts if observation_space is not None else widen_observations(parts, infer_observations(finals))
            check_observations(parts, finals, "next_observations")

        flags = row_flags(terminal, ends, known=known)
        observation, action, reward = (Signature.of(tree, skip=1) for tree in (observations, actions, rewards))
        buffer = InfiniteBuffer()
        info = DatasetInfo(observation, action, reward, spec.actions.kind, spec.actions.size_argument, parts, columns)
        self._make(info, buffer, storage, count + int(ends.sum()))
        self._use(buffer, transition_picker, trajectory_slicer, None, sampler, observation_keys, augmentation)
        leaves = list(tree_leaves(self.storage.observation_names))
        steps = dict(zip(leaves, tree_leaves(observations), strict=True)) | {"action": actions, "reward": rewards}
        last = {} if finals is None else dict(zip(leaves, tree_leaves(finals), strict=True))
        steps |= {f"extra.{name}": array for name, array in extra_columns.items()}
        add_extra_columns(self.storage, steps)
        with self.target.writing_all():
            self.storage.extend(0, flags, steps, last)
        self.flush()


def _infer_spec(observations: Tree, space: Tree, actions: Array, action_spec: Actions, widen: bool) -> Spec:
    """Return the specs of observations and actions, after a check of the actions and their masks.

    Args:
        observations, actions: logged steps.
        space: spec of the observations; ``None`` to infer it.
        action_spec: spec of the actions.
        widen: whether masks may have more actions than were logged.
    """
    width = np.shape(observations[MASK])[1:] if isinstance(observations, dict) and MASK in observations else ()
    if widen and len(width) == 1 and action_spec.kind is ActionSpace.DISCRETE and width[0] > action_spec.size:
        action_spec = parse_actions(int(width[0]), action_spec.kind)
    spec = Spec(infer_observations(observations, space), action_spec)
    check_stored(action_spec, actions)
    if spec.masked:
        check_action_mask(observations, DataError, f"observations[{MASK!r}]")
        check_mask_allows(observations, actions, action_spec)
    return spec


def _with_masks(observations: Tree, observation_space: Tree, action_masks: npt.ArrayLike) -> tuple[Tree, Tree]:
    """Add action masks to observations, and to their space unless it is ``None``."""
    masks = as_masks("action_masks", action_masks)
    if isinstance(observations, dict) and MASK in observations:
        raise DataError(f"the observations have a part {MASK!r} already: leave action_masks out")
    observations = {**named_parts(observations), MASK: masks}
    if observation_space is not None:
        observation_space = {**named_parts(observation_space), MASK: masks.shape[1:]}
    return observations, observation_space


def named_parts(tree: Tree) -> dict[str, Tree]:
    """Return a dict unchanged, and anything else as the part ``observation`` of a dict."""
    return tree if isinstance(tree, dict) else {"observation": tree}


def _episode_ends(terminal: Array, timeout: Array, ids: npt.ArrayLike | None) -> Array:
    """Return whether each step ``[N]`` is the last of its episode; without ids, the last step always is."""
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


def _warn_of_time_limit(terminal: Array, ends: Array) -> None:
    """Warn if the most frequent length of terminated episodes is the longest length of all episodes."""
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
        stacklevel=outside_birl(),
    )


def _following(next_observations: Tree, observations: Tree, columns: Columns) -> Tree:
    """Return next observations as arrays of the shapes of ``observations``; missing ones are NaN.

    Tables have the order of ``columns``, unless all names differ, as in ``next_x``.
    """
    following = match_parts(observations, parts_like(next_observations, observations))
    following = order_tables("next_observations", following, columns, nan=True, renamed=True)

    def read(leaf: npt.ArrayLike, part: str) -> Array:
        if isinstance(leaf, list) and any(row is None for row in leaf) and not all(row is None for row in leaf):
            shape = np.shape(next(row for row in leaf if row is not None))
            leaf = [np.full(shape, np.nan) if row is None else row for row in leaf]
        return as_observation("next_observations", leaf, part, nan=True)

    following = map_named_leaves(read, following)
    given, expected = tree_map(lambda leaf: leaf.shape, following), tree_map(lambda leaf: leaf.shape, observations)
    if given != expected:
        raise ShapeError(f"next_observations have shape {given}; they must have {expected}: give both the same shape")
    return following


def _final_observations(following: Tree, ends: Array, masked: bool) -> tuple[Tree, Array]:
    """Return the next observations at the ``ends`` of episodes, and which of them are known.

    An observation of which every number is NaN is unknown, and returned as zeros.
    """
    finals = tree_map(lambda leaf: leaf[ends], following)
    unknown = np.ones(int(ends.sum()), bool)
    for leaf in tree_leaves(finals):
        unknown &= np.isnan(leaf).reshape(len(leaf), -1).all(1) if leaf.dtype.kind == "f" else False
    if unknown.any():
        expand = lambda leaf: unknown.reshape(-1, *(1,) * (leaf.ndim - 1))  # noqa: E731
        finals = tree_map(lambda leaf: np.where(expand(leaf), leaf.dtype.type(0), leaf), finals)
    check_finite("next_observations", finals)
    if masked:
        check_action_mask(finals, DataError, f"next_observations[{MASK!r}]")
    return finals, ~unknown


def _cuts(observations: Tree, following: Tree, ends: Array, may_cut: bool) -> Array:
    """Return the steps inside episodes ``[N]`` whose next observation is not the observation of the next step.

    Differences that rounding explains do not count: up to a millionth of the largest number of a column, or twice the
    resolution of the coarser dtype.

    Raises:
        DataError: if it is most of the steps, or there is one and ``may_cut`` is false.
    """
    cut = np.zeros(len(ends), bool)
    for leaf, after in zip(tree_leaves(observations), tree_leaves(following), strict=True):
        tolerance = _rounding(leaf, after)
        for begin in range(0, len(ends) - 1, _CHUNK):
            stop = min(begin + _CHUNK, len(ends) - 1)
            one, other = after[begin:stop], leaf[begin + 1 : stop + 1]
            differs = one != other
            if tolerance is not None and differs.any():
                differs = ~(np.abs(one.astype(np.float64) - other) <= tolerance)
            cut[begin:stop] |= differs.reshape(stop - begin, -1).any(axis=1)
    cut &= ~ends
    count, inside = int(cut.sum()), int((~ends).sum())
    if not count:
        return cut
    step = int(cut.argmax())
    found = f"next_observations[{step}] is not observations[{step + 1}], but no episode ends there"
    if not may_cut:
        raise DataError(f"{found}, as episode_ids say: leave next_observations out, or give each part its own id")
    if 2 * count > inside:
        raise DataError(
            f"{found}, nor do {count - 1} others of {inside} steps inside episodes fit: if the rows are single "
            "transitions in any order, say so with timeouts=np.ones(N); if they are in order, next_observations are "
            "shifted or of other rows, so leave them out"
        )
    warnings.warn(
        f"{found}: an episode was cut there and at {count - 1} of {inside - 1} other steps, which suits data that lack "
        "the last steps of episodes. All steps are kept, with their next observations; timeouts with 1 at these "
        "steps say that this is right",
        EpisodeCutWarning,
        stacklevel=outside_birl(),
    )
    return cut


def _rounding(leaf: Array, after: Array) -> Array | None:
    """Return the largest difference that rounding explains in each column; ``None`` for integers."""
    kinds = [array.dtype for array in (leaf, after) if array.dtype.kind == "f"]
    if not kinds:
        return None
    resolution = max(_ROUNDING, *(2 * float(np.finfo(kind).eps) for kind in kinds))
    return resolution * np.abs(leaf).max(axis=0).astype(np.float64)
