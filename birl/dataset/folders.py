"""State of a storage for checkpoints, and memory-mapped folders that can be opened again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from birl.dataset.arrays import FolderPlace, Place
from birl.dataset.storage import FINAL, NO_NEXT, Storage
from birl.errors import ConfigError, CorruptFileError, ForeignFileError, ShapeError
from birl.files import atomic_write
from birl.types import Array, Leaf, State, Tree

_INDEX = "storage.json"
_LANE_ARRAYS = ("start", "end", "offset", "open", "pending")
_VERSION = 1


def _tail(storage: Storage) -> Array:
    """Flags of the last two rows of each lane: the only part of existing steps that a later write may change."""
    return storage.flags[storage.rows(np.arange(storage.lanes), np.maximum(storage.end - [[2], [1]], 0))].T


def get_storage_state(storage: Storage) -> State:
    """Everything needed to make an equal storage; rows are copied.

    A folder without limit only ever grows, so its state is a position: restoring goes back to it.
    """
    used = storage.used
    state: State = {name: getattr(storage, name).copy() for name in _LANE_ARRAYS}
    state |= {"capacity": storage.capacity, "limit": storage.limit, "tail": _tail(storage)}
    if isinstance(storage.place, FolderPlace) and storage.limit is None:
        storage.place.flush()
        return state
    shape = (storage.lanes, storage.capacity)

    def read(array: Array) -> Array:
        return array.reshape(*shape, *array.shape[1:])[:, :used].copy()

    state["flags"] = read(storage.flags)
    state["columns"] = {name: read(storage.place.host(column)) for name, column in storage.columns.items()}
    return state


def set_storage_state(storage: Storage, state: State) -> None:
    """Make ``storage`` equal to the storage whose state was saved.

    Raises:
        ShapeError: if lanes, columns or limit are others.
        ConfigError: if the rows are in a folder that is not this one's.
    """
    start = np.asarray(state["start"])
    if len(start) != storage.lanes or state["limit"] != storage.limit:
        raise ShapeError(
            f"the state is of {len(start)} environments with limit {state['limit']}, this buffer has {storage.lanes} "
            f"with limit {storage.limit}: make it with the same settings"
        )
    if "columns" in state:
        _restore_rows(storage, state)
    elif not isinstance(storage.place, FolderPlace) or int(np.max(state["end"])) > storage.capacity:
        raise ConfigError(
            "the rows of this state lie in a folder: open that folder with ReplayBuffer.open(folder) first"
        )
    for name in _LANE_ARRAYS:
        getattr(storage, name)[:] = np.asarray(state[name])
    if "columns" not in state:
        _rewind(storage, np.asarray(state["tail"]))
    recount(storage)


def _restore_rows(storage: Storage, state: State) -> None:
    columns = {name: np.asarray(column) for name, column in state["columns"].items()}
    for name, column in columns.items():
        leaf = Leaf(column.shape[2:], column.dtype)
        if name.startswith("extra.") and name not in storage.leaves:
            storage.add_extra(name, leaf)
        if storage.leaves.get(name) != leaf:
            raise ShapeError(
                f"the state's column {name!r} is {leaf}, here it is {storage.leaves.get(name)}: use equal data"
            )
    storage.reset_lanes()
    if storage.capacity != state["capacity"]:
        storage.resize(int(state["capacity"]))
    flags = np.asarray(state["flags"])
    rows = np.arange(storage.lanes)[:, None] * storage.capacity + np.arange(flags.shape[1])
    storage.flags[:] = FINAL
    storage.flags[rows] = flags
    storage.copy_flags()
    for name, column in storage.columns.items():
        storage.place.put(column, rows, columns.get(name, 0))


def _rewind(storage: Storage, tail: Array) -> None:
    """Go back to the lanes' ends: rows after them are not in use."""
    for lane, end in enumerate(storage.end.tolist()):
        begin = lane * storage.capacity
        storage.flags[begin + end : begin + storage.capacity] = FINAL
        if end:
            storage.flags[begin + end - 2 : begin + end] = tail[lane]


def recount(storage: Storage) -> None:
    """Count steps, transitions and episodes from the flags."""
    lane, position = storage.live()
    flags = storage.flags[storage.rows(lane, position)]
    is_step = (flags & FINAL) == 0
    storage.steps[:] = np.bincount(lane[is_step], minlength=storage.lanes)
    storage.episode_count = int(np.count_nonzero(~is_step))
    storage.transition_count = int(np.count_nonzero((flags & (FINAL | NO_NEXT)) == 0))
    storage.version += 1
    storage.generation += 1


# -- folders -------------------------------------------------------------------------------------------------------


def check_new_folder(place: Place) -> None:
    """Raise `ConfigError` if a place is a folder that is not empty: existing files are never replaced."""
    if not isinstance(place, FolderPlace):
        return
    if (place.folder / _INDEX).exists():
        raise ConfigError(
            f"{place.folder} holds a dataset already: open it with ReplayBuffer.open(…) or name a new folder"
        )
    if place.folder.is_dir() and any(place.folder.iterdir()):
        raise ConfigError(
            f"{place.folder} has files but no dataset of birl: name a new folder for storage=, or empty this one"
        )


def save_folder(storage: Storage, info: dict[str, Any], *, clean: bool = True) -> None:
    """Write rows to disk, then the index that says where they are.

    Args:
        storage: a storage in a folder.
        info: values to restore the owner from (plain JSON).
        clean: false marks a ring that is being overwritten and cannot be opened until it is saved again.
    """
    place = storage.place
    assert isinstance(place, FolderPlace)
    if clean:
        place.flush()
    index = {
        "format": "birl-storage",
        "version": _VERSION,
        "clean": clean,
        "info": info,
        "lanes": storage.lanes,
        "limit": storage.limit,
        "capacity": storage.capacity,
        "observation": storage.observation_names,
        "leaves": {name: [list(leaf.shape), leaf.dtype.str] for name, leaf in storage.leaves.items()},
        "tail": _tail(storage).tolist(),
        **{name: getattr(storage, name).tolist() for name in _LANE_ARRAYS},
    }

    atomic_write(place.folder / _INDEX, json.dumps(index).encode())
    if clean:
        place.remove_others()


def open_folder(folder: Path) -> tuple[Storage, dict[str, Any]]:
    """Open a storage and its owner's info.

    Raises:
        ForeignFileError: if the folder holds no storage, or one of a newer birl.
        CorruptFileError: if files are missing, damaged, or a ring was being written when its process ended.
    """
    path = folder / _INDEX
    try:
        index = json.loads(path.read_bytes())
        known = index["format"] == "birl-storage" and index["version"] <= _VERSION
    except FileNotFoundError as error:
        raise ForeignFileError(f"{folder} holds no dataset of birl ({_INDEX} is missing): check the path") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"{path} is damaged ({error}): restore the folder from a copy") from error
    if not known:
        raise ForeignFileError(f"{path} is not of this version of birl: install a newer one")
    if not index["clean"]:
        raise CorruptFileError(
            f"{folder} was being written when its process ended, and its oldest steps are partly overwritten: "
            "restore it from a checkpoint or collect it again"
        )
    try:
        return _attach(folder, index), index["info"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CorruptFileError(f"{folder} is damaged ({error}): restore the folder from a copy") from error


def _attach(folder: Path, index: dict[str, Any]) -> Storage:
    leaves = {str(name): Leaf(tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in index["leaves"].items()}

    def tree(names: Any) -> Tree:
        if isinstance(names, str):
            return leaves[names]
        return {key: tree(item) for key, item in names.items()} if isinstance(names, dict) else tuple(map(tree, names))

    storage = Storage(
        tree(index["observation"]), leaves["action"], leaves["reward"], lanes=int(index["lanes"]), limit=index["limit"]
    )
    storage.leaves, storage.capacity = leaves, int(index["capacity"])
    place = FolderPlace(folder)
    rows = storage.lanes * storage.capacity

    def attach(name: str, leaf: Leaf) -> Any:
        path = folder / f"{name}.{rows}.npy"
        np.lib.format.open_memmap(path, mode="r")  # "r+" would make a short file longer: this one refuses it
        mapped = np.lib.format.open_memmap(path, mode="r+")
        if mapped.shape != (rows, *leaf.shape) or mapped.dtype != leaf.dtype:
            raise ValueError(f"{path.name} has shape {mapped.shape} and dtype {mapped.dtype}")
        return place.attach(name, path, mapped)

    storage.columns = {name: attach(f"column_{number}", leaf) for number, (name, leaf) in enumerate(leaves.items())}
    storage.flags = storage.device_flags = attach("column_flags", Leaf((), np.dtype(np.uint8)))
    storage.place = place
    for name in _LANE_ARRAYS:
        getattr(storage, name)[:] = np.asarray(index[name])
    if storage.limit is None:
        if int(storage.end.max()) > storage.capacity:
            raise ValueError("the index points behind the last row")
        _rewind(storage, np.array(index["tail"], np.uint8))
    recount(storage)
    return storage
