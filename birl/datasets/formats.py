"""The file formats of other programs that birl reads, by name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from birl._version import __version__
from birl.dataset import ReplayBuffer
from birl.dataset.flags import TERMINATED
from birl.dataset.flat_episodes import lengths_and_flags
from birl.dataset.hdf5 import open_hdf5
from birl.dataset.logs.files import LogFile, new_folder, write_import_record
from birl.datasets.lerobot import INFO, load_lerobot
from birl.datasets.ogbench import load_ogbench
from birl.datasets.rl_unplugged import load_rl_unplugged
from birl.datasets.rlds import load_rlds
from birl.datasets.rllib_json import is_rllib, load_rllib_json
from birl.datasets.robomimic import is_robomimic, load_robomimic
from birl.datasets.steps import as_path
from birl.errors import ConfigError, FileError, did_you_mean
from birl.files import open_binary, parse_json
from birl.files.npz import npz_names
from birl.files.reading import MAX_JSON_BYTES

FORMATS: Final[dict[str, Callable[..., ReplayBuffer]]] = {
    "robomimic": load_robomimic,
    "lerobot": load_lerobot,
    "ogbench": load_ogbench,
    "rlds": load_rlds,
    "rl-unplugged": load_rl_unplugged,
    "rllib": load_rllib_json,
}
"""The functions that load each format."""

_SINGLE: Final = ("robomimic", "lerobot")  # one file or folder is the whole dataset
_OWN: Final = ("storage", "sampler", "transition_picker", "trajectory_slicer")


def detect_format(path: str | os.PathLike[str]) -> str | None:
    """Return the name of the format of a file or folder; ``None`` if it is none of `FORMATS`, or ambiguous."""
    place = as_path(path, "a file or folder")
    if os.path.isfile(place / INFO):
        return "lerobot"
    if not os.path.isfile(place):
        return None
    try:
        with open_binary(place) as (stream, label):
            head = stream.read(8)
            if head.startswith(b"{"):
                stream.seek(0)
                return "rllib" if is_rllib(parse_json(stream.readline(MAX_JSON_BYTES + 1).strip(), label)) else None
        if head.startswith(b"\x89HDF"):
            with open_hdf5(place) as file:
                return "robomimic" if is_robomimic(file) else None
        return _format_of_arrays({name.partition("/")[0] for name in npz_names(place)}) if head[:2] == b"PK" else None
    except FileError:
        return None  # reading the file reports the error


def _format_of_arrays(names: set[str]) -> str | None:
    if {"is_first", "is_last"} & names and {"observation", "action"} <= names:
        return "rlds"
    if "step_type" in names or {"a_t", "o_tp1"} <= names or {"a_tm1", "o_t"} <= names:
        return "rl-unplugged"
    plain = {"rewards", "next_observations"} & names
    if {"observations", "actions", "terminals"} <= names and ("valids" in names or not plain):
        return "ogbench"
    return None


def import_format(
    paths: Sequence[str],
    name: str | None,
    out: str | os.PathLike[str],
    options: Mapping[str, object],
    *,
    fresh: bool = False,
) -> dict[str, Any]:
    """Load files of another program into a new folder of episodes, for `ReplayBuffer.open`.

    Args:
        paths: files or folders.
        name: name of the format in `FORMATS`; ``None`` to find out.
        out: path of the folder.
        options: further arguments of the function of the format.
        fresh: whether a folder of an earlier import, with its parts, is replaced.

    Returns:
        The contents of ``import.json``: the files with their digests, the format, and the numbers of episodes,
        terminated ones and steps.

    Raises:
        ConfigError: if the format is unknown, or has no such option.
        FileError, DataError: as the function of the format, or if the folder exists already.
    """
    load, name = _chosen(paths, name, options)
    with new_folder(out, fresh=fresh) as folder:
        buffer = load(paths[0] if len(paths) == 1 else list(paths), storage=folder, **options)
        ended = lengths_and_flags(buffer.episodes)[1] & TERMINATED
        record = {
            "version": 1,
            "birl": __version__,
            "format": name,
            "files": [LogFile(file).describe() for path in paths for file in _files(Path(path))],
            "episodes": buffer.size(),
            "terminated": int(np.count_nonzero(ended)),
            "rows_out": buffer.step_count,
            "transitions": buffer.transition_count,
        }
        buffer.close()
        del buffer
        write_import_record(folder, record, "")
    return record


def _files(path: Path) -> list[Path]:
    return (
        [file for file in sorted(path.rglob("*")) if file.suffix in (".parquet", ".json")] if path.is_dir() else [path]
    )


def _chosen(
    paths: Sequence[str], name: str | None, options: Mapping[str, object]
) -> tuple[Callable[..., ReplayBuffer], str]:
    """Return the function of a format and its name, after a check of its options."""
    for path in paths:
        if not Path(path).exists():
            raise FileError(f"there is no file or folder {path!r}: check the path")
    if name is None:
        found = {detect_format(path) for path in paths}
        name = found.pop() if len(found) == 1 else None
        if name is None:
            raise ConfigError(
                f"the format of {', '.join(map(str, paths))!s:.200} is not known: give --schema for a table (birl data "
                f"schema proposes one), or --format with one of {', '.join(FORMATS)}"
            )
    if name not in FORMATS:
        raise ConfigError(
            f"--format is {name!r:.40}{did_you_mean(name, FORMATS)}; it must be one of {', '.join(FORMATS)}"
        )
    load = FORMATS[name]
    allowed = [each for each in list(inspect.signature(load).parameters)[1:] if each not in _OWN]
    for option in options:
        if option not in allowed:
            raise ConfigError(f"the format {name} has no option {option!r:.40}; it has: {', '.join(allowed)}")
    if name in _SINGLE and len(paths) > 1:
        raise ConfigError(f"the format {name} takes one file or folder, not {len(paths)}: import them one by one")
    return load, name
