"""Checkpoints: one file from which a run resumes exactly."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from birl.errors import ConfigError, FileError, ResumeError
from birl.files import load_archive, load_config, save_archive
from birl.files.state_restore import Stateful, convert_to_corrupt_error, restore_on_error, restore_states
from birl.seeding import random_state, set_random_state
from birl.types import State

CHECKPOINT = "checkpoint.d3c"
_KIND = "checkpoint"
_STEP = "step"


class _Absent:
    """A value that is missing on one side."""

    def __repr__(self) -> str:
        return "not given"


_ABSENT = _Absent()


def checkpoint_path(folder: str | Path) -> Path:
    """Return the path of the checkpoint in a run folder."""
    return Path(folder) / CHECKPOINT


def checkpoint_step(folder: str | Path) -> int:
    """Return the number of steps that the run in a folder has made, without reading arrays; 0 without a checkpoint."""
    path = checkpoint_path(folder)
    if not path.is_file():
        return 0
    with convert_to_corrupt_error(path):
        return int(load_config(path, _KIND).get(_STEP, 0))


def save_checkpoint(folder: str | Path, settings: dict[str, Any], state: State) -> None:
    """Write the checkpoint, either completely or not at all.

    Args:
        folder: existing run folder.
        settings: settings of the run, as JSON values. A run with other settings does not resume from it.
        state: everything that the run depends on, except for the global random generators, which are added.

    Raises:
        WriteError: if it cannot be written; the previous checkpoint is kept.
    """
    path = checkpoint_path(folder)
    step = state["session"]["step"]
    save_archive(path, _KIND, {**settings, _STEP: step}, {**state, "random": random_state()})


def check_checkpoint_folder(folder: object) -> None:
    """Raise an error if ``folder`` is not a path of a folder. The folder need not exist.

    Raises:
        ConfigError: if it is not a path, or is the path of a file.
        FileError: if it cannot be accessed.
    """
    if not isinstance(folder, str | os.PathLike) or folder == "" or "\0" in str(folder):
        raise ConfigError(f"checkpoint is {folder!r}; it must be the path of a folder, or None")
    try:
        if Path(folder).exists() and not Path(folder).is_dir():
            raise ConfigError(f"checkpoint={str(folder)!r} is a file; it must be a folder: give another one")
    except OSError as error:
        raise FileError(f"{folder} cannot be read ({error.strerror}): give another checkpoint=") from error


def load_checkpoint(folder: str | Path, settings: dict[str, Any]) -> State | None:
    """Read the checkpoint of a folder that passes `check_checkpoint_folder`; return ``None`` if there is none.

    Raises:
        ResumeError: if the run has other settings; the message names them.
        CorruptFileError, ForeignFileError: if the file cannot be read.
    """
    path = checkpoint_path(folder)
    if not path.exists():
        return None
    saved, state = load_archive(path, _KIND)
    saved.pop(_STEP, None)
    different = differences(saved, settings)
    if different:
        raise ResumeError(
            f"{path} belongs to a run with other settings: {'; '.join(different)}. Use the settings (and the build of "
            "birl) it was started with to continue it, or another folder (or remove this one) to start from scratch"
        )
    return state


def differences(saved: object, given: object, name: str = "") -> list[str]:
    """Describe the differences between two nested settings.

    Fitted parameters of scalers (``None`` on one side) and their statistics are ignored, because they come with the
    checkpoint. A field that exists on one side only is ignored if it is ``None`` or ``False``.
    """
    if "_scaler.params" in name and name.endswith(".statistics"):
        return []
    if isinstance(saved, dict) and isinstance(given, dict):
        names = [*saved, *(key for key in given if key not in saved)]
        pairs = [(saved.get(key, _ABSENT), given.get(key, _ABSENT), f"{name}.{key}".lstrip(".")) for key in names]
        return [line for pair in pairs for line in differences(*pair)]
    if _are_parts(saved) and _are_parts(given) and len(saved) == len(given):
        places = [name if len(saved) == 1 else f"{name}[{place}]" for place in range(len(saved))]
        return [line for pair in zip(saved, given, places, strict=True) for line in differences(*pair)]
    fitted = "_scaler.params." in name and (saved is None or given is None)
    pair = (saved, given)
    off = _ABSENT in pair and all(value is _ABSENT or value is None or value is False for value in pair)
    if saved == given or fitted or off:
        return []
    return [f"{name} was {_short(saved)}, now {_short(given)}"]


def _are_parts(value: object) -> TypeGuard[list[dict[str, object]]]:
    """Return whether a setting is a list of parts, such as samplers, with their parameters."""
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) and "type" in each for each in value)


def _short(value: object) -> str:
    """Format a setting. A setting with its own parameters is shown by its type alone."""
    if _are_parts(value):
        return ", ".join(map(_short, value))
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        value = value["type"]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


class GlobalRandomness:
    """The global random generators as a part of a checkpoint."""

    def get_state(self) -> State:
        """See `random_state`."""
        return random_state()

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        set_random_state(state)


@contextlib.contextmanager
def restore_parts(parts: Mapping[str, Stateful], state: State, label: object) -> Iterator[None]:
    """Return a context that restores parts and the global random generators, or nothing if it or its block fails.

    Args:
        parts: parts of the checkpoint by name; see `birl.files.state_restore.restore_states`.
        state: from `load_checkpoint`.
        label: name of the file, for messages.
    """
    parts = {**parts, "random": GlobalRandomness()}
    with restore_on_error(parts):
        with convert_to_corrupt_error(label):
            saved = {**state["parts"], "random": state["random"]}
        restore_states(parts, saved, label)  # evaluators may have been added after it was written
        yield
