"""Functions that several subcommands share."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from birl import algos, dataset, datasets, ope
from birl.algorithm import Algorithm, load_learnable
from birl.envs import make_env
from birl.errors import ConfigError, FileError

_MODEL = re.compile(r"model_(\d+)\.d3")


def note(text: str) -> None:
    """Print a message to standard error; standard output is for results."""
    tqdm.write(text, file=sys.stderr)  # above the progress bar, if there is one


def print_table(rows: Sequence[Sequence[str]], right: bool = False) -> None:
    """Print rows in columns of equal width; all but the first are aligned on the left, or on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:{'>' if right and place else '<'}{widths[place]}}" for place, cell in enumerate(row)]
        print("  ".join(cells).rstrip())


def algorithm_classes() -> dict[str, type[Algorithm[Any, Any]]]:
    """All algorithms of birl by name, sorted."""
    found = {name: getattr(algos, name) for name in sorted(algos.__all__)}
    return {name: value for name, value in found.items() if hasattr(value, "config_class")}


def algorithm_class(name: str) -> type[Algorithm[Any, Any]]:
    """The algorithm called ``name``; case, ``_`` and ``-`` do not matter.

    Raises:
        ConfigError: if there is none.
    """
    known = {_plain(key): value for key, value in algorithm_classes().items()}
    found = known.get(_plain(name))
    for evaluation in ope.__all__:
        if _plain(name) == _plain(evaluation):
            raise ConfigError(
                f"{evaluation} evaluates the policy of a trained algorithm and is not trained by itself: in Python, "
                f"birl.ope.{evaluation}(algo).fit(dataset, …)"
            )
    if found is None:
        near = difflib.get_close_matches(_plain(name), known, 2)
        hint = f"Did you mean {' or '.join(known[key].__name__ for key in near)}? " if near else ""
        names = ", ".join(value.__name__ for value in known.values())
        raise ConfigError(f"no algorithm is called {name!r}. {hint}There are: {names}")
    return found


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


_NO_MODEL = "the folder {} has no model_<step>.d3: train there first, or give a model file"


def runs_of_seeds(folder: Path) -> list[Path]:
    """The run folders in the folder of several seeds, in the order of the seeds."""
    runs = [path for path in folder.glob("seed_*") if path.is_dir() and path.name[5:].isdecimal()]
    return sorted(runs, key=lambda path: int(path.name[5:]))


def runs_of(path: Path) -> list[Path]:
    """A run folder with metrics itself, or else the run folders of several seeds in it."""
    return [path] if any(path.glob("*.csv")) else runs_of_seeds(path)


def several_runs(folder: Path) -> str:
    """Message about a folder with one run for each of several seeds; empty for other folders."""
    runs = runs_of_seeds(folder)
    return f"{folder} holds one run for each of {len(runs)} seeds: give one of them, {runs[0]}" if runs else ""


def newest_model(folder: Path) -> Path | None:
    """The model of a run folder with the most steps, or ``None``."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _MODEL.fullmatch(path.name))]
    return max(found)[1] if found else None


def load_model(path: Path, device: str) -> tuple[Path, Any]:
    """Load a model file, or the newest model of a run folder.

    Returns:
        The file and the algorithm.

    Raises:
        FileError: if there is none.
    """
    file: Path | None = path
    if path.is_dir():
        file = newest_model(path)
        if file is None:
            raise FileError(several_runs(path) or _NO_MODEL.format(path))
    elif not path.exists():
        raise FileError(f"there is no {path}: give a model file (.d3) or the folder of a run")
    return file, load_learnable(file, device)  # type: ignore[return-value, arg-type]


def load_dataset(name: str) -> Any:
    """Load an h5 file, or a dataset by the name that `birl.datasets.get_dataset` knows.

    Raises:
        ConfigError, FileError: if neither exists.
    """
    path = Path(name)
    if path.suffix in (".h5", ".hdf5") and not path.exists():
        raise FileError(f"there is no file {name!r}: give the path of an .h5 file or the name of a dataset")
    if name not in datasets.NAMES and path.is_file():
        return dataset.ReplayBuffer.load(name, dataset.InfiniteBuffer())
    try:
        return datasets.get_dataset(name)[0]
    except ConfigError as error:
        if path.is_dir():
            raise FileError(f"{name!r} is a folder: give the path of an .h5 file or the name of a dataset") from error
        raise ConfigError(f"there is no file {name!r}, and {error}") from error


def make_environment(name: str, num_envs: int | None = None, **options: Any) -> Any:
    """Call `birl.envs.make_env`, which then finds ``module:factory`` in the working folder, too.

    Args:
        name, num_envs: see `birl.envs.make_env`.
        **options: passed to the environment; a factory that does not take them is called without.
    """
    folder = os.getcwd()
    if ":" in name and folder not in sys.path:
        sys.path.append(folder)
    try:
        return make_env(name, num_envs, **options)
    except TypeError as error:
        if not any(option in str(error) for option in options):
            raise
        if ":" not in name:
            raise ConfigError(f"the environment {name} cannot be made with {options}: {error}") from error
        return make_env(name, num_envs)
