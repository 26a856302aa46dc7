"""Demonstrations in Robomimic's HDF5 layout (Mandlekar et al. 2021, arXiv:2108.03298)."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from birl.checks import check
from birl.dataset import Episode, ReplayBuffer, Sampler, Signature
from birl.dataset.hdf5 import HDF5File, open_hdf5
from birl.dataset.replay_buffer import StorageLocation
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import TransitionPickerProtocol
from birl.dataset.validation import as_flags, prepare_actions
from birl.datasets.folders import store_episodes
from birl.datasets.steps import channels_first, choose, require_columns, rows_of
from birl.errors import ConfigError, EmptyDataError, ForeignFileError
from birl.types import Array, Tree, tree_map

_DEMO: Final = re.compile(r"demo_(\d+)")
DONES: Final = ("terminal", "last")


def load_robomimic(
    path: str | os.PathLike[str],
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    *,
    observation_keys: Sequence[str] | None = None,
    filter_key: str | None = None,
    dones: str = "terminal",
    storage: StorageLocation = "memory",
    sampler: Sampler | None = None,
) -> ReplayBuffer:
    """Load the demonstrations ``data/demo_<n>`` of a file, one at a time.

    ``obs/<key>`` become a dict of observations, a single key an array, with images as channels first. The last row of
    ``next_obs`` becomes the final observation. ``states`` and other data are left out. Rewards are 0, with a warning,
    if the file has none.

    ``dones`` mean what Robomimic's algorithms make of them: no value follows a step with 1. It terminates an episode.
    A demonstration whose last step has 0 is truncated. Robomimic's conversion of simulator states marks every step at
    which the task is solved, often several ones at the end of a demonstration. Each then ends an episode, with a
    warning. With ``dones="last"`` demonstrations stay whole, and only their last step counts.

    Args:
        path: the file.
        transition_picker: makes transitions from steps.
        trajectory_slicer: makes windows of steps.
        observation_keys: names of the observations to read; ``None`` for all.
        filter_key: a list of demonstrations in the file, such as ``"train"`` or ``"valid"``; ``None`` for all.
        dones: ``"terminal"`` or ``"last"``.
        storage: ``"memory"``, a torch device, or the path of a new folder.
        sampler: selects the steps of minibatches; `birl.dataset.Uniform` if ``None``.

    Raises:
        ForeignFileError, CorruptFileError: if the file cannot be used.
        ConfigError: if it has no such observation or filter.
        DataError: if its arrays do not fit together.
    """
    check("dones", dones, str, choices=DONES)
    with open_hdf5(path) as file:
        names = _demonstrations(file, filter_key)
        first = file.array(f"data/{names[0]}/actions")
        stored, actions = prepare_actions(first, None, None)
        if actions.discrete:  # the largest action may be in any demonstration
            size = 1 + max(int(file.array(f"data/{name}/actions").max(initial=0)) for name in names)
        found = _Counter()
        dataset = store_episodes(
            _episodes(file, names, observation_keys, dones, found),
            transition_picker=transition_picker,
            trajectory_slicer=trajectory_slicer,
            action_signature=Signature.of(stored, skip=1),
            reward_signature=_reward_signature(file, names[0]),
            action_space=actions.kind,
            action_size=size if actions.discrete else actions.size_argument,
            storage=storage,
            sampler=sampler,
        )
    if dataset is None:
        raise EmptyDataError(f"{path} has no step: give a file with demonstrations")
    if found.inside and dones == "terminal":
        warnings.warn(
            f"{path}: {found.inside} steps before the last one of their demonstration are done, so the {len(names)} "
            f"demonstrations become {dataset.size()} episodes. dones='last' keeps them whole",
            UserWarning,
            stacklevel=2,
        )
    if found.without_rewards:
        warnings.warn(
            f"{path}: {found.without_rewards} demonstrations have no rewards: they are 0", UserWarning, stacklevel=2
        )
    return dataset


class _Counter:
    """Counts of what the reader decided.

    Attributes:
        inside: number of steps that are done before the end of their demonstration.
        without_rewards: number of demonstrations without rewards.
    """

    def __init__(self) -> None:
        self.inside = self.without_rewards = 0


def is_robomimic(file: HDF5File) -> bool:
    """Return whether a file has demonstrations."""
    return any(map(_DEMO.fullmatch, file.members("data")))


def _reward_signature(file: HDF5File, name: str) -> Signature:
    rewards = f"data/{name}/rewards"
    return Signature([file.array(rewards).dtype if rewards in file else np.dtype(np.float32)], [(1,)])


def _demonstrations(file: HDF5File, filter_key: str | None) -> list[str]:
    """Return the names of the demonstrations in order."""
    present = {name: int(match[1]) for name in file.members("data") if (match := _DEMO.fullmatch(name))}
    if not present:
        raise ForeignFileError(f"{file.name} has no groups data/demo_<n>: give a file in Robomimic's layout")
    if filter_key is None:
        return sorted(present, key=present.__getitem__)
    if filter_key not in (filters := file.members("mask")):
        raise ConfigError(
            f"filter_key is {filter_key!r:.60}; {file.name} has {filters!s:.200}: choose one, or leave it out"
        )
    names = file.texts(f"mask/{filter_key}")
    missing = [name for name in names if name not in present]
    if missing or not names:
        raise ForeignFileError(
            f"{file.name}: mask/{filter_key} names {missing!s:.100}, which are missing: use another copy"
        )
    return names


def _episodes(
    file: HDF5File, names: Sequence[str], keys: Sequence[str] | None, dones: str, found: _Counter
) -> Iterator[Episode]:
    for name in names:
        place = f"data/{name}"
        columns = {
            each: file.array(f"{place}/{each}") for each in ("actions", "rewards", "dones") if f"{place}/{each}" in file
        }
        found.without_rewards += "rewards" not in columns
        if "actions" in columns:
            columns.setdefault("rewards", np.zeros(len(columns["actions"]), np.float32))
        label = f"{file.name}: {place}"
        require_columns(columns, ["actions", "rewards", "dones"], label, "Robomimic's layout")
        if not len(columns["actions"]):
            continue
        observations, following = (_observations(file, f"{place}/{each}", keys, label) for each in ("obs", "next_obs"))
        done = as_flags(f"{label}/dones", columns["dones"])
        found.inside += int(done[:-1].sum())
        ends = done.copy()
        if dones == "last":
            ends[:-1] = False
        ends[-1] = True
        stops = (np.flatnonzero(ends) + 1).tolist()
        for begin, stop in zip([0, *stops], stops, strict=False):
            yield _episode(observations, following, columns, begin, stop, ended=bool(done[stop - 1]))


def _observations(file: HDF5File, place: str, keys: Sequence[str] | None, label: str) -> Tree:
    """Read observations, or next observations, which may be missing."""
    present = file.members(place)
    if place.endswith("next_obs") and not present:
        return None
    if keys is not None and not set(keys) <= set(present):
        choose(dict.fromkeys(present, np.zeros(0)), keys, label)  # raises the error
    return channels_first(choose({key: file.array(f"{place}/{key}") for key in keys or present}, keys, f"{label}/obs"))


def _episode(
    observations: Tree, following: Tree, columns: dict[str, Array], begin: int, stop: int, *, ended: bool
) -> Episode:
    rows, steps = slice(begin, stop), len(columns["rewards"])
    final = None
    if following is not None:
        final = tree_map(lambda leaf: leaf[stop - 1], following)
    elif stop < steps:
        final = tree_map(lambda leaf: leaf[stop], observations)
    return Episode(
        rows_of(observations, rows),
        columns["actions"][rows],
        columns["rewards"][rows],
        ended,
        truncated=not ended,
        final_observation=final,
    )
