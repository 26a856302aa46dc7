"""Arrays with the step fields of RLDS (Ramos et al. 2021, arXiv:2111.02767): ``.npz`` files or dicts of arrays.

birl does not read the TFRecord files of RLDS. ``np.savez("steps.npz", **columns)`` writes what `load_rlds` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from birl.checks import check
from birl.dataset import ReplayBuffer, Sampler
from birl.dataset.flat_episodes import FlatEpisodes
from birl.dataset.replay_buffer import StorageLocation
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import TransitionPickerProtocol
from birl.dataset.validation import as_column, as_flags
from birl.datasets.steps import Source, flat_episodes, join, nested, read_sources, require_columns, rows_of
from birl.errors import DataError
from birl.types import Array, tree_leaves


def load_rlds(
    source: Source | Sequence[Source],
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    *,
    observation_keys: Sequence[str] | None = None,
    last_step: str | None = None,
    storage: StorageLocation = "memory",
    sampler: Sampler | None = None,
) -> ReplayBuffer:
    """Load steps with the fields of RLDS, one row for each step.

    The fields are ``observation`` (or ``observation/<part>`` for each part), ``action``, ``reward``, and ``is_first``
    or ``is_last``, which mark the ends of episodes. An episode is terminated if ``is_terminal`` is true in its last
    row, and otherwise truncated. Without ``is_terminal``, it is terminated if the ``discount`` of its last transition
    is 0. Other fields are left out. Images become channels first.

    In RLDS, the last row of an episode has only an observation: its action and reward mean nothing. It becomes the
    final observation. Data of robots in the form of Open X-Embodiment have an action and a reward in their last row,
    too. A reward there that is not 0 is an error, unless ``last_step`` says which of the two holds.

    Args:
        source: an ``.npz`` file, a dict of arrays, or a list of them.
        transition_picker: makes transitions from steps.
        trajectory_slicer: makes windows of steps.
        observation_keys: names of the parts of observations to read; ``None`` for all.
        last_step: ``"observation"`` if the last row of an episode has only an observation, ``"step"`` if it is a step
            like the others, whose next observation is unknown; ``None`` for the first one after a check.
        storage: ``"memory"``, a torch device, or the path of a new folder.
        sampler: selects the steps of minibatches; `birl.dataset.Uniform` if ``None``.

    Raises:
        ForeignFileError, CorruptFileError: if a file cannot be used.
        DataError: if its arrays do not fit together.
    """
    check("last_step", last_step, str, choices=("observation", "step"), optional=True)
    parts = [_episodes(arrays, label, observation_keys, last_step) for arrays, label in read_sources(source)]
    return ReplayBuffer.from_flat(
        join(parts, "RLDS data"), None, transition_picker, trajectory_slicer, storage=storage, sampler=sampler
    )


def _episodes(
    arrays: Mapping[str, Array], label: str, keys: Sequence[str] | None, last_step: str | None
) -> FlatEpisodes:
    marks = [name for name in ("is_first", "is_last", "is_terminal", "discount") if name in arrays]
    require_columns(arrays, ["action", "reward", *marks], label, "RLDS's layout")
    observation = nested(arrays, "observation", label, keys)
    require_columns({"action": arrays["action"], **_named(observation)}, ["action", *_named(observation)], label, "it")
    count = len(arrays["action"])
    if not {"is_first", "is_last"} & arrays.keys():
        raise DataError(f"{label} has neither is_first nor is_last, so the ends of episodes are unknown: add one")
    first, last, terminal = (
        as_flags(f"{label}: {name}", arrays[name]) if name in arrays else None
        for name in ("is_first", "is_last", "is_terminal")
    )
    ends = np.zeros(count, bool) if last is None else last.copy()
    if first is not None:
        ends[:-1] |= first[1:]
    complete = ends.copy() if last is None else last  # rows that RLDS marks as the last of their episode
    ends[-1:] = True
    if last is None:
        complete[-1:] = True
    reward = as_column(f"{label}: reward", arrays["reward"])[:, 0]
    if last_step is None and np.any(reward[complete] != 0):
        row = int(np.flatnonzero(complete & (reward != 0))[0])
        raise DataError(
            f"{label}: reward[{row}] is {float(reward[row]):.6g} in the last row of an episode, which has "
            "only an observation in RLDS: pass last_step='observation' to ignore it, or last_step='step' if last "
            "rows are steps with an action and a reward, as in Open X-Embodiment"
        )
    if terminal is None:
        terminal = _ends_by_discount(arrays, ends, complete if last_step != "step" else np.zeros(count, bool))
    return steps_and_finals(
        observation,
        arrays["action"],
        reward,
        terminal,
        ends,
        np.zeros(count, bool) if last_step == "step" else complete,
        label,
    )


def _named(observation: object) -> dict[str, Array]:
    return {f"observation {number}": leaf for number, leaf in enumerate(tree_leaves(observation))}


def _ends_by_discount(arrays: Mapping[str, Array], ends: Array, observation_only: Array) -> Array:
    """Return where episodes terminate: the discount of their last transition is 0."""
    terminal = np.zeros(len(ends), bool)
    if "discount" in arrays:
        zero = as_column("discount", arrays["discount"])[:, 0] == 0
        before = np.concatenate([[False], zero[:-1] & ~ends[:-1]])
        terminal = ends & np.where(observation_only, before, zero)
    return terminal


def steps_and_finals(
    observations: object, actions: Array, rewards: Array, terminal: Array, ends: Array, only: Array, label: str
) -> FlatEpisodes:
    """Return rows as episodes, some of which end with a row that has only an observation.

    Args:
        observations, actions, rewards: rows ``[N, …]``.
        terminal: bool ``[N]``: read in the last row of each episode.
        ends: bool ``[N]``: whether a row is the last of its episode.
        only: bool ``[N]``: whether a row has only an observation; implies ``ends``.
        label: the source, for messages.

    An episode of a single row without an action is left out, because it has no step.
    """
    inside = np.flatnonzero(terminal & ~ends)
    if inside.size:
        raise DataError(
            f"{label}: the episode is terminal in row {inside[0]}, but goes on: mark the row as its end (is_last) or "
            "leave the mark out"
        )
    step = ~only
    last = np.zeros(len(ends), bool)  # the last step of each episode with a step
    last[:-1] = step[:-1] & (ends[:-1] | only[1:])
    last[-1:] = step[-1:]
    rows = np.flatnonzero(last)
    following = np.minimum(rows + 1, len(ends) - 1)
    known = only[following] & ~ends[rows]
    ended = np.zeros(len(ends), bool)
    ended[rows] = np.where(known, terminal[following], terminal[rows])
    finals = rows_of(observations, following[known])
    return flat_episodes(
        rows_of(observations, step), actions[step], rewards[step], ended[step], last[step], finals, known, label
    )
