"""The search for files of named datasets. Nothing is ever downloaded."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from birl.dataset import Episode, InfiniteBuffer, ReplayBuffer
from birl.errors import ConfigError, FileError, MissingExtraError

Where = str | os.PathLike[str] | None


def data_folders() -> list[Path]:
    """Folders that are searched, in order.

    ``BIRL_DATA_DIR`` or ``~/.birl/datasets``; ``D4RL_DATASET_DIR`` or ``~/.d4rl/datasets``, where d4rl keeps its own.
    """
    own, peer = os.environ.get("BIRL_DATA_DIR"), os.environ.get("D4RL_DATASET_DIR")
    home = Path.home()
    return [Path(own) if own else home / ".birl" / "datasets", Path(peer) if peer else home / ".d4rl" / "datasets"]


def find(what: str, names: Sequence[str], path: Where, source: str) -> Path:
    """The file or folder of a dataset.

    Args:
        what: name of the dataset, for messages.
        names: relative paths it may have, the preferred one first.
        path: the file (or folder) itself, or a folder to search; ``None`` for `data_folders`.
        source: where it can be downloaded, for messages.

    Raises:
        FileError: if it is not found; the message says what to download and where to put it.
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
        f"{what} is not on this machine, and birl downloads nothing by itself. Download {source} and save it as "
        f"{folders[0] / names[0]} (searched: {searched}; BIRL_DATA_DIR names another folder, path= another place)"
    )


def stored(episodes: Iterable[Episode], rows: int = 0, **options: Any) -> ReplayBuffer | None:
    """A dataset of episodes that are read one after the other, or ``None`` if there is none.

    Args:
        episodes: the episodes.
        rows: rows to make room for.
        **options: of `ReplayBuffer`; what is stored of observations is told by the first episode.
    """
    dataset: ReplayBuffer | None = None
    for episode in episodes:
        if dataset is None:
            signature = episode.observation_signature
            dataset = ReplayBuffer(InfiniteBuffer(), observation_signature=signature, **options)
            dataset.storage.reserve(rows)
        dataset.append_episode(episode)
    if dataset is not None:
        dataset.flush()
    return dataset


def environment_or_none(what: str, make: Callable[[], Any]) -> Any:
    """The environment of a dataset, or ``None`` with a warning: data can be used where their environment cannot."""
    try:
        return make()
    except (ConfigError, MissingExtraError) as error:
        warnings.warn(f"the environment of {what} is not available, None is returned for it: {error}", stacklevel=3)
        return None
