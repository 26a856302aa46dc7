"""Arrays with the fields of RL Unplugged (Gulcehre et al. 2020, arXiv:2006.13888): ``.npz`` files or dicts of arrays.

birl does not read TFRecord files. ``np.savez("data.npz", **columns)`` writes what `load_rl_unplugged` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from birl.dataset import ReplayBuffer, Sampler
from birl.dataset.flat_episodes import FlatEpisodes
from birl.dataset.replay_buffer import StorageLocation
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import TransitionPickerProtocol
from birl.dataset.validation import as_column
from birl.datasets.rlds import steps_and_finals
from birl.datasets.steps import Source, flat_episodes, join, nested, read_sources, require_columns, rows_of
from birl.errors import DataError, ShapeError
from birl.types import Array, tree_leaves

_TUPLES: Final = (
    ("o_t", "a_t", "r_t", "d_t", "o_tp1"),
    ("o_tm1", "a_tm1", "r_t", "d_t", "o_t"),
    ("o_tm1", "a_tm1", "r_t", "p_t", "o_t"),
)
_FIRST, _LAST = 0, 2  # values of dm_env's step_type


def load_rl_unplugged(
    source: Source | Sequence[Source],
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    *,
    observation_keys: Sequence[str] | None = None,
    storage: StorageLocation = "memory",
    sampler: Sampler | None = None,
) -> ReplayBuffer:
    """Load transitions or steps with the fields of RL Unplugged.

    - Transitions: ``o_t, a_t, r_t, d_t, o_tp1`` (Atari, real-world RL) or ``o_tm1, a_tm1, r_t, d_t`` (or ``p_t``)
      ``, o_t``. Rows whose next observation is the observation of the next row form one episode.
    - Steps: ``observation, action, reward, discount, step_type``, where ``step_type`` is 0 in the first row of an
      episode, 2 in its last row, which has only an observation, and otherwise 1. Action, reward and discount of a row
      belong together.

    Parts of observations are ``<name>/<part>``. An episode is terminated if the discount of its last transition is 0,
    and otherwise truncated; its final observation is known. Other arrays are left out. Images become channels first.

    Args:
        source: an ``.npz`` file, a dict of arrays, or a list of them.
        transition_picker: makes transitions from steps.
        trajectory_slicer: makes windows of steps.
        observation_keys: names of the parts of observations to read; ``None`` for all.
        storage: ``"memory"``, a torch device, or the path of a new folder.
        sampler: selects the steps of minibatches; `birl.dataset.Uniform` if ``None``.

    Raises:
        ForeignFileError, CorruptFileError: if a file cannot be used.
        DataError: if its arrays do not fit together.
    """
    parts = [_episodes(arrays, label, observation_keys) for arrays, label in read_sources(source)]
    return ReplayBuffer.from_flat(
        join(parts, "RL Unplugged data"), None, transition_picker, trajectory_slicer, storage=storage, sampler=sampler
    )


def _episodes(arrays: Mapping[str, Array], label: str, keys: Sequence[str] | None) -> FlatEpisodes:
    if "step_type" in arrays:
        return _of_steps(arrays, label, keys)
    present = {name.partition("/")[0] for name in arrays}
    for names in _TUPLES:
        if present >= set(names):
            return _of_transitions(arrays, label, keys, names)
    raise ShapeError(
        f"{label} has the arrays {sorted(arrays)!s:.300}; RL Unplugged's are {', '.join(_TUPLES[0])}, or observation, "
        "action, reward, discount, step_type: rename them, or give another format"
    )


def _of_transitions(
    arrays: Mapping[str, Array], label: str, keys: Sequence[str] | None, names: tuple[str, ...]
) -> FlatEpisodes:
    now, action, reward, discount, after = names
    require_columns(arrays, [action, reward, discount], label, "RL Unplugged's layout")
    observations, following = (nested(arrays, name, label, keys) for name in (now, after))
    shape = (len(arrays[action]),)
    leaves = list(zip(tree_leaves(observations), tree_leaves(following), strict=False))
    if any(one.shape != other.shape or one.shape[:1] != shape for one, other in leaves):
        raise ShapeError(
            f"{label}: {now} and {after} must have the same shapes, with a row for each {action}: give both"
        )
    terminal = as_column(discount, arrays[discount])[:, 0] == 0
    ends = terminal.copy()
    ends[-1:] = True
    for one, other in leaves:
        ends[:-1] |= (other[:-1] != one[1:]).reshape(shape[0] - 1, -1).any(axis=1)
    finals, known = rows_of(following, ends), np.ones(int(ends.sum()), bool)
    return flat_episodes(observations, arrays[action], arrays[reward], terminal, ends, finals, known, label)


def _of_steps(arrays: Mapping[str, Array], label: str, keys: Sequence[str] | None) -> FlatEpisodes:
    names = ["action", "reward", "discount", "step_type"]
    require_columns(arrays, names, label, "RL Unplugged's layout")
    observations = nested(arrays, "observation", label, keys)
    count = len(arrays["action"])
    if any(leaf.shape[:1] != (count,) for leaf in tree_leaves(observations)):
        raise ShapeError(f"{label}: observation must have a row for each of {count} actions: give whole arrays")
    kind = as_column("step_type", arrays["step_type"])[:, 0]
    if not np.isin(kind, (_FIRST, 1, _LAST)).all():
        raise DataError(f"{label}: step_type must be 0 (first), 1 or 2 (last), as in dm_env: give these numbers")
    only = kind == _LAST
    ends = only.copy()
    ends[:-1] |= kind[1:] == _FIRST
    ends[-1:] = True
    zero = as_column("discount", arrays["discount"])[:, 0] == 0
    terminal = np.where(only, np.concatenate([[False], zero[:-1] & ~ends[:-1]]), zero) & ends
    return steps_and_finals(observations, arrays["action"], arrays["reward"], terminal, ends, only, label)
