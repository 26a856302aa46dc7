"""OGBench's ``.npz`` files (Park et al. 2024, arXiv:2410.20092), as published or as its loader returns them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from birl.dataset import ReplayBuffer, Sampler
from birl.dataset.flat_episodes import FlatEpisodes
from birl.dataset.replay_buffer import StorageLocation
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import TransitionPickerProtocol
from birl.dataset.validation import as_column, as_flags
from birl.datasets.steps import Source, channels_first, flat_episodes, join, read_sources, require_columns, rows_of
from birl.errors import ShapeError
from birl.types import Array

_COLUMNS: Final = ("observations", "actions", "terminals")


def load_ogbench(
    source: Source | Sequence[Source],
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    *,
    rewards: npt.ArrayLike | None = None,
    storage: StorageLocation = "memory",
    sampler: Sampler | None = None,
) -> ReplayBuffer:
    """Load data of OGBench.

    All three layouts are read: published files, whose trajectories have T + 1 rows for T steps; the compact form, which
    marks the last one with 0 in ``valids``; and the regular form with ``next_observations``. The observation after the
    last step becomes the final observation. Images become channels first.

    ``terminals`` mark ends of trajectories, which OGBench cuts after a fixed number of steps, so episodes are
    truncated. Single-task data have ``masks``, 0 where the task is solved; as in OGBench's algorithms no value follows,
    so an episode terminates there and the remaining steps form another one.

    Args:
        source: an ``.npz`` file, a dict of arrays, or a list of them.
        transition_picker: makes transitions from steps.
        trajectory_slicer: makes windows of steps.
        rewards: rewards ``[N]``, for the rows of data without them. Published files have none; without this argument
            they are 0, with a warning.
        storage: ``"memory"``, a torch device, or the path of a new folder.
        sampler: selects the steps of minibatches; `birl.dataset.Uniform` if ``None``.

    Raises:
        ForeignFileError, CorruptFileError: if a file cannot be used.
        DataError: if its arrays do not fit together.
    """
    parts = [_episodes(arrays, label, rewards) for arrays, label in read_sources(source)]
    return ReplayBuffer.from_flat(
        join(parts, "OGBench data"), None, transition_picker, trajectory_slicer, storage=storage, sampler=sampler
    )


def _episodes(arrays: dict[str, Array], label: str, rewards: npt.ArrayLike | None) -> FlatEpisodes:
    names = [*_COLUMNS, *(name for name in ("rewards", "masks", "valids", "next_observations") if name in arrays)]
    require_columns(arrays, names, label, "OGBench's layout")
    observations, actions = channels_first(arrays["observations"]), arrays["actions"]
    count, ends = len(actions), as_flags(f"{label}: terminals", arrays["terminals"])
    if rewards is not None:
        arrays = {**arrays, "rewards": as_column("rewards", rewards)}
        require_columns(arrays, ["observations", "rewards"], label, "OGBench's layout")
    elif "rewards" not in arrays:
        warnings.warn(
            f"{label} has no rewards, as OGBench's published files: they are 0. Pass rewards= for a task of your own",
            UserWarning,
            stacklevel=3,
        )
    reward = arrays.get("rewards", np.zeros(count, np.float32))
    solved = np.zeros(count, bool)
    if "masks" in arrays:
        solved = ~as_flags(f"{label}: masks", arrays["masks"])
    if "next_observations" in arrays:
        ends[-1:] = True
        last = ends | solved
        finals = rows_of(channels_first(arrays["next_observations"]), last)
        return flat_episodes(observations, actions, reward, solved, last, finals, np.ones(last.sum(), bool), label)
    step = as_flags(f"{label}: valids", arrays["valids"]) if "valids" in arrays else ~ends
    if step[-1:].any():
        raise ShapeError(
            f"{label}: the last row is a step, whose next observation is missing; in OGBench's layout, each trajectory "
            "ends with a row that holds only an observation: give the whole file"
        )
    # the row after a step holds its next observation; a row that is no step ends the trajectory
    last = np.zeros(count, bool)
    last[:-1] = step[:-1] & (~step[1:] | solved[:-1])
    finals = rows_of(observations, np.flatnonzero(last) + 1)
    return flat_episodes(
        rows_of(observations, step),
        actions[step],
        reward[step],
        (solved & last)[step],
        last[step],
        finals,
        np.ones(last.sum(), bool),
        label,
    )
