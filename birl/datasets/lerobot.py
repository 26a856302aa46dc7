"""Datasets in LeRobot's layout, versions 2 and 3: a folder with ``meta/info.json`` and ``data/chunk-*/*.parquet``.

They need the extra ``logs``.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from birl.checks import check
from birl.dataset import ReplayBuffer, Sampler
from birl.dataset.logs.columns import column_from_arrow, row_labels
from birl.dataset.logs.files import LogFile
from birl.dataset.replay_buffer import StorageLocation
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import TransitionPickerProtocol
from birl.dataset.validation import as_column, as_flags
from birl.datasets.steps import as_path, choose, flat_episodes, rows_of
from birl.errors import CorruptFileError, DataError, EmptyDataError, FileError, ForeignFileError
from birl.files import open_binary, parse_json
from birl.files.reading import MAX_JSON_BYTES, bytes_left, read_exactly
from birl.types import Array

INFO: Final = "meta/info.json"
UNMARKED: Final = ("terminated", "truncated")
_DTYPES: Final = re.compile(r"(float|u?int)(8|16|32|64)|bool")
_COLUMNS: Final = ("action", "episode_index", "frame_index")
_OPTIONAL: Final = ("next.reward", "next.done", "next.truncated")
_PREFIX: Final = "observation."


def load_lerobot(
    path: str | os.PathLike[str],
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    *,
    observation_keys: Sequence[str] | None = None,
    unmarked: str = "terminated",
    storage: StorageLocation = "memory",
    sampler: Sampler | None = None,
) -> ReplayBuffer:
    """Load a dataset of LeRobot from its folder. Nothing is downloaded.

    Features ``observation.<part>`` of numbers become a dict of observations, a single one an array. Videos and images
    are left out, with a warning. Rewards are ``next.reward``; 0, with a warning, without them.

    An episode is terminated where ``next.done`` is 1, unless ``next.truncated`` is 1, too. If ``next.done`` is 0 in its
    last frame, it is truncated. Without ``next.done``, each episode is terminated, as in LeRobot's own replay buffer;
    ``unmarked="truncated"`` treats the end of a recording as a cut instead. The observation after the last action is
    not stored, so the last step of a truncated episode is not sampled as a transition. Frames after a frame with
    ``next.done`` form another episode.

    Args:
        path: the folder.
        transition_picker: makes transitions from steps.
        trajectory_slicer: makes windows of steps.
        observation_keys: names of the observations to read, such as ``"state"``; ``None`` for all.
        unmarked: ``"terminated"`` or ``"truncated"``, the end of an episode in data without ``next.done``.
        storage: ``"memory"``, a torch device, or the path of a new folder.
        sampler: selects the steps of minibatches; `birl.dataset.Uniform` if ``None``.

    Raises:
        FileError: if the folder or a file cannot be used.
        ConfigError: if there is no such observation.
        DataError: if the frames do not fit together.
        MissingExtraError: if pyarrow is not installed.
    """
    check("unmarked", unmarked, str, choices=UNMARKED)
    folder = as_path(path, "a folder")
    features = _features(folder)
    numeric = {name: kind for name, feature in features.items() if (kind := _dtype(feature)) is not None}
    parts = {name.removeprefix(_PREFIX): name for name in numeric if name.startswith(_PREFIX)}
    missing = [name for name in _COLUMNS if name not in numeric] + ["observation.<part>"] * (not parts)
    if missing:
        raise ForeignFileError(
            f"{folder / INFO} has the features {sorted(features)!s:.300}, but not "
            f"{', '.join(missing)} as numbers: give a dataset of LeRobot with them"
        )
    keys = None if observation_keys is None else [key.removeprefix(_PREFIX) for key in observation_keys]
    choose(dict.fromkeys(parts, np.zeros(0)), keys, str(folder))  # an unknown name is an error before files are read
    chosen = list(parts) if keys is None else keys
    optional = [name for name in _OPTIONAL if name in numeric]
    columns = _read(folder, [*(parts[key] for key in chosen), *_COLUMNS, *optional], numeric)
    left_out = [name for name in features if name.startswith(_PREFIX) and name not in numeric]
    if left_out and keys is None:
        warnings.warn(
            f"{folder}: {', '.join(left_out)} are videos or images, which are left out", UserWarning, stacklevel=2
        )
    if "next.reward" not in columns:
        warnings.warn(f"{folder}: there are no rewards (next.reward): they are 0", UserWarning, stacklevel=2)

    count = len(columns["action"])
    rewards = columns.get("next.reward", np.zeros(count, np.float32))
    ends = np.append(np.diff(columns["episode_index"]) != 0, True)
    if "next.done" in columns:
        terminal = as_flags(f"{folder}: next.done", columns["next.done"])
        ends |= terminal
        if "next.truncated" in columns:
            terminal &= ~as_flags(f"{folder}: next.truncated", columns["next.truncated"])
    else:
        terminal = ends & (unmarked == "terminated")
    seen = {key: columns[parts[key]] for key in chosen}  # a feature of one number may be a column of numbers
    seen = {key: column.reshape(count, -1) for key, column in seen.items()}
    observations = choose(seen, chosen, str(folder))
    unknown = np.zeros(int(ends.sum()), bool)
    actions = columns["action"]
    flat = flat_episodes(observations, actions, rewards, terminal, ends, None, unknown, str(folder))
    return ReplayBuffer.from_flat(flat, None, transition_picker, trajectory_slicer, storage=storage, sampler=sampler)


def _features(folder: Path) -> Mapping[str, Any]:
    """Read the features of a dataset."""
    if not os.path.isfile(folder / INFO):
        raise FileError(f"{folder} has no {INFO}: give the folder of a dataset of LeRobot")
    with open_binary(folder / INFO) as (file, label):
        info = parse_json(read_exactly(file, min(bytes_left(file), MAX_JSON_BYTES + 1), label), label)
    version = info.get("codebase_version") if isinstance(info, dict) else None
    if not isinstance(version, str) or not re.fullmatch(r"v?[23](\.\d+)?", version):
        raise ForeignFileError(
            f"{folder / INFO} has the version {version!r:.20}; birl reads versions 2 and 3 of LeRobot's "
            "layout: convert it"
        )
    features = info.get("features")
    if not isinstance(features, dict) or not all(isinstance(feature, dict) for feature in features.values()):
        raise CorruptFileError(f"{folder / INFO} has no features: use another copy of the dataset")
    return features


def _dtype(feature: Mapping[str, Any]) -> np.dtype[Any] | None:
    """Return the dtype of a feature of numbers, and ``None`` for videos, images and texts."""
    name = feature.get("dtype")
    return np.dtype(name) if isinstance(name, str) and _DTYPES.fullmatch(name) and name != "float8" else None


def _read(folder: Path, names: Sequence[str], dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Array]:
    """Read columns of all frames, in the order of episodes and frames."""
    files = sorted((folder / "data").glob("chunk-*/*.parquet"))
    if not files:
        raise FileError(f"{folder} has no files data/chunk-*/*.parquet: download the dataset again")
    found: dict[str, list[Array]] = {name: [] for name in names}
    for file in files:
        if not file.resolve().is_relative_to(folder.resolve()):
            raise ForeignFileError(f"{file} is a link out of the folder: put a copy of the file in its place")
        begin = 0
        for batch in LogFile(file).read(tuple(names)):
            for name in names:
                column = column_from_arrow(batch.column(name), name, row_labels(str(file), begin))
                if column.missing.any() or column.labels is not None or column.values.dtype.kind not in "biuf":
                    row = begin + int(np.argmax(column.missing))
                    raise DataError(
                        f"{file}, row {row + 1}: {name} is {column.kind} or missing; it must be numbers: repair it"
                    )
                found[name].append(column.values.astype(dtypes[name]))
            begin += batch.num_rows
    if not any(map(len, found[names[0]])):
        raise EmptyDataError(f"{folder} has no frame: give a dataset with one or more")
    try:
        columns = {name: np.concatenate(arrays) for name, arrays in found.items()}
    except ValueError as error:
        raise DataError(f"{folder}: the files have columns of different shapes ({error}): download it again") from error
    for name in ("frame_index", "episode_index"):
        columns[name] = as_column(f"{folder}: {name}", columns[name])[:, 0]
    order = np.lexsort((columns["frame_index"], columns["episode_index"]))
    columns = {name: rows_of(column, order) for name, column in columns.items()}
    repeated = (np.diff(columns["frame_index"]) == 0) & (np.diff(columns["episode_index"]) == 0)
    if repeated.any():
        row = int(np.argmax(repeated))
        raise DataError(
            f"{folder}: frame {columns['frame_index'][row]} of episode {columns['episode_index'][row]} is "
            "there twice: remove the other file"
        )
    return columns
