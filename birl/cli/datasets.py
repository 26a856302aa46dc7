"""Loading of datasets for the subcommands. It needs no PyTorch, see `birl.cli`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from birl import datasets
from birl.dataset import InfiniteBuffer, ReplayBuffer, Sampler, TransitionPickerProtocol
from birl.dataset.logs.files import table_format
from birl.errors import ConfigError, FileError, ForeignFileError


def load_dataset(
    name: str, picker: TransitionPickerProtocol | None = None, sampler: Sampler | None = None
) -> ReplayBuffer:
    """Load an h5 file, a folder of steps, or a dataset by its name for `birl.datasets.get_dataset`.

    Args:
        name: file, folder or name.
        picker: makes transitions from steps; by default the picker of the dataset.
        sampler: samples the steps of minibatches; uniformly by default.

    Raises:
        ConfigError, FileError: if neither exists.
    """
    path = Path(name)
    if path.suffix in (".h5", ".hdf5") and not path.exists():
        raise FileError(f"there is no file {name!r}: give the path of an .h5 file or the name of a dataset")
    if (path / "storage.json").is_file():
        return ReplayBuffer.open(path, picker, sampler=sampler)
    if table_format(path) and path.is_file():
        raise ForeignFileError(
            f"{name!r} is a table: birl data schema {name} > schema.toml describes its columns, and birl data import "
            f"{name} --schema schema.toml --out episodes makes the folder to give here"
        )
    if name not in datasets.NAMES and path.is_file():
        try:
            return ReplayBuffer.load(name, InfiniteBuffer(), transition_picker=picker, sampler=sampler)
        except ForeignFileError:
            _refuse_other_formats(path)
            raise
    if path.is_dir():
        _refuse_other_formats(path)
    # Names of Minari have a slash. Its files name an environment, which is not needed here, so it is not made.
    options: dict[str, Any] = {"make_environment": False} if "/" in name else {}
    try:
        return datasets.get_dataset(name, transition_picker=picker, sampler=sampler, **options)[0]
    except ConfigError as error:
        if path.is_dir():
            raise FileError(
                f"{name!r} is a folder without episodes: give one that birl data import or birl data split wrote, the "
                "path of an .h5 file, or the name of a dataset"
            ) from error
        raise ConfigError(
            f"there is no file or folder {name!r} (birl data import and birl data split write folders), and {error}"
        ) from error


def _refuse_other_formats(path: Path) -> None:
    """Raise `ForeignFileError` for a file or folder that `birl data import` reads."""
    found = datasets.detect_format(path)
    if found is not None:
        raise ForeignFileError(
            f"{str(path)!r} is in the format {found} of another program: birl data import {path} --out episodes makes "
            "the folder to give here"
        )
