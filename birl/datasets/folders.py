"""Search for the files of named datasets, which birl does not download, and storage of their episodes."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar, Unpack

from birl.dataset import Episode, InfiniteBuffer, ReplayBuffer
from birl.dataset.replay_buffer import ReplayBufferOptions
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import TransitionPickerProtocol
from birl.errors import ConfigError, FileError, MissingExtraError
from birl.types import Environment

_Env = TypeVar("_Env", bound=Environment)
Where = str | os.PathLike[str] | None


def data_folders() -> list[Path]:
    """Return the folders to search, in order.

    These are ``BIRL_DATA_DIR`` or ``~/.birl/datasets``, then d4rl's ``D4RL_DATASET_DIR`` or ``~/.d4rl/datasets``.
    """
    return [
        Path(os.environ.get("BIRL_DATA_DIR") or Path.home() / ".birl" / "datasets"),
        Path(os.environ.get("D4RL_DATASET_DIR") or Path.home() / ".d4rl" / "datasets"),
    ]


def find(what: str, names: Sequence[str], path: Where, source: str) -> Path:
    """Find the file or folder of a dataset.

    Args:
        what: name of the dataset, for messages.
        names: possible relative paths, the preferred one first.
        path: the file (or folder) itself, or a folder to search; ``None`` for `data_folders`.
        source: where to download it, for messages.

    Raises:
        FileError: if it is missing; the message says what to download and where to put it.
    """
    folders = data_folders() if path is None else [Path(path)]
    if path is not None and Path(path).is_file():
        return Path(path)
    for folder in folders:
        for name in names:
            if (folder / name).exists():
                return folder / name
    searched = ", ".join(str(folder) for folder in folders)
    raise FileError(
        f"{what} is not on this machine, and birl does not download it. Download {source} and save it as "
        f"{folders[0] / names[0]} (searched: {searched}; BIRL_DATA_DIR names another folder, path= another place)"
    )


class _BufferOptions(ReplayBufferOptions, total=False):
    """Arguments of `ReplayBuffer`."""

    transition_picker: TransitionPickerProtocol | None
    trajectory_slicer: TrajectorySlicerProtocol | None


def store_episodes(
    episodes: Iterable[Episode], rows: int = 0, **options: Unpack[_BufferOptions]
) -> ReplayBuffer | None:
    """Store episodes, read one by one, in a dataset; ``None`` if there are no episodes.

    Args:
        episodes: the episodes.
        rows: number of rows to reserve.
        **options: arguments of `ReplayBuffer`. The first episode gives the signature of observations.
    """
    iterator = iter(episodes)
    first = next(iterator, None)
    if first is None:
        return None
    options["observation_signature"] = first.observation_signature
    dataset = ReplayBuffer(InfiniteBuffer(), **options)
    dataset.storage.reserve(rows)
    with dataset.target.writing_all():
        for episode in itertools.chain([first], iterator):
            dataset.append_episode(episode)
    dataset.flush()
    return dataset


def environment_or_none(what: str, make: Callable[[], _Env]) -> _Env | None:
    """Create the environment of a dataset, or return ``None`` with a warning if it is not available."""
    try:
        return make()
    except (ConfigError, MissingExtraError) as error:
        warnings.warn(f"the environment of {what} is not available, None is returned for it: {error}", stacklevel=3)
        return None
