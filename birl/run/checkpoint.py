"""Run checkpoints: one file from which a run goes on as if it had never stopped."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from birl.errors import ConfigError, FileError, ResumeError, WriteError
from birl.files import load_archive, load_config, save_archive
from birl.types import State

CHECKPOINT = "checkpoint.d3c"
_KIND = "checkpoint"
_STEP = "step"


class _Absent:
    """Stands for a value that one side does not have."""

    def __repr__(self) -> str:
        return "not given"


_ABSENT = _Absent()


def checkpoint_path(folder: str | Path) -> Path:
    """Where the checkpoint of a run folder lies."""
    return Path(folder) / CHECKPOINT


def checkpoint_step(folder: str | Path) -> int:
    """Number of steps that the run in a folder has made; 0 without a checkpoint. The state itself is not read."""
    path = checkpoint_path(folder)
    return int(load_config(path, _KIND).get(_STEP, 0)) if path.is_file() else 0


def save_checkpoint(folder: str | Path, settings: dict[str, Any], state: State) -> None:
    """Write the checkpoint: completely, or not at all.

    Args:
        folder: run folder; made if it is not there.
        settings: what the run was started with (JSON): a run with other settings will not continue from it.
        state: everything the run depends on, but for the global random generators, which are added here.

    Raises:
        WriteError: if it cannot be written; the checkpoint before it is untouched.
    """
    path = checkpoint_path(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(
            f"the folder {path.parent} for a checkpoint cannot be made ({error.strerror}): give another checkpoint="
        ) from error
    step = state["session"]["step"]
    save_archive(path, _KIND, {**settings, _STEP: step}, {**state, "random": random_state()})


def load_checkpoint(folder: str | Path, settings: dict[str, Any]) -> State | None:
    """Read the checkpoint, or return ``None`` if there is none.

    Raises:
        ResumeError: if the run was started with other settings, naming them.
        CorruptFileError, ForeignFileError: if the file cannot be read.
        ConfigError: if ``folder`` is a file, or no path.
    """
    if not isinstance(folder, str | os.PathLike) or folder == "":
        raise ConfigError(f"checkpoint is {folder!r}; it must be the path of a folder, or None")
    path = checkpoint_path(folder)
    try:
        if Path(folder).exists() and not Path(folder).is_dir():
            raise ConfigError(f"checkpoint={str(folder)!r} is a file; it must be a folder: give another one")
        if not path.exists():
            return None
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}): give another checkpoint=") from error
    saved, state = load_archive(path, _KIND)
    saved.pop(_STEP, None)
    different = differences(saved, settings)
    if different:
        raise ResumeError(
            f"{path} belongs to a run with other settings: {'; '.join(different)}. Use the settings it was started "
            "with to continue it, or another folder (or remove this one) to start anew"
        )
    return state


def differences(saved: Any, given: Any, name: str = "") -> list[str]:
    """What differs between two nested settings, in words.

    A scaler's parameter that is ``None`` on one side is no difference: it is fitted to the data, and comes with the
    checkpoint.
    """
    if isinstance(saved, dict) and isinstance(given, dict):
        names = [*saved, *(key for key in given if key not in saved)]
        pairs = [(saved.get(key, _ABSENT), given.get(key, _ABSENT), f"{name}.{key}".lstrip(".")) for key in names]
        return [line for pair in pairs for line in differences(*pair)]
    fitted = "_scaler.params." in name and (saved is None or given is None)
    if saved == given or fitted:
        return []
    return [f"{name} was {saved!r:.60}, now {given!r:.60}"]


def random_state() -> State:
    """State of the global generators of Python, numpy and torch (all CUDA devices in use included)."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: State = {
        "python": {"version": version, "internal": np.array(internal, dtype=np.uint64), "gauss": gauss},
        "numpy": {"kind": kind, "keys": keys, "position": position, "has_gauss": has_gauss, "cached": cached},
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        state["cuda"] = {str(index): value for index, value in enumerate(torch.cuda.get_rng_state_all())}
    return state


@contextlib.contextmanager
def randomness_kept() -> Iterator[None]:
    """Whatever is drawn from the global generators inside is put back: evaluation never changes training."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


def set_random_state(state: State) -> None:
    """Inverse of `random_state`."""
    python, legacy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(int(word) for word in python["internal"]), python["gauss"]))
    words = (legacy["kind"], legacy["keys"], legacy["position"], legacy["has_gauss"], legacy["cached"])
    np.random.set_state(words)
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(list(state["cuda"].values()))
