"""State of a storage for checkpoints, and folders of memory-mapped files that can be opened again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from filelock import Timeout

from birl.checks import check
from birl.dataset.arrays import FolderPlace
from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.episode import Signature
from birl.dataset.flags import FINAL, FIRST, HEAD, NO_TRANSITION
from birl.dataset.journal import LANE_ARRAYS, MAX_SEQUENCE, Journal, map_sequences, read_journal, restarts
from birl.dataset.log_record import load_record
from birl.dataset.sampling import Sampler
from birl.dataset.storage import Storage
from birl.errors import (
    ConfigError,
    CorruptFileError,
    DataError,
    FileError,
    ForeignFileError,
    ShapeError,
    WriteError,
)
from birl.files import atomic_write, load_archive, load_config, open_binary, parse_json, save_archive
from birl.files.atomic import convert_to_write_error
from birl.files.locks import FolderLock
from birl.files.reading import MAX_JSON_BYTES, bytes_left, read_exactly
from birl.files.state_restore import check_array, convert_to_corrupt_error
from birl.spaces import Actions, check_actions
from birl.spaces.observations import choices_to_json, columns_from_json, observations_from_json
from birl.types import ActionSpace, Array, ArraySpec, State, tree_map, tree_of_json

_INDEX, _SAMPLER, _LOCK = "storage.json", "sampler.safetensors", "storage"
_VERSION = 2  # has journals
_RETRIES = 2


def _lane_state(storage: Storage) -> State:
    """Return where the lanes start and end. Later writes change nothing else in a storage that only grows."""
    state: State = {name: getattr(storage, name).copy() for name in LANE_ARRAYS}
    state |= {"capacity": storage.capacity, "limit": storage.limit, "tail": storage.tail()}
    return state | {"fine": sorted(storage.fine)}


def get_storage_state(storage: Storage) -> State:
    """Return everything needed to make an equal storage; rows are copied.

    A folder without a limit only grows, so its state is a position that can be restored.
    """
    state = _lane_state(storage)
    if isinstance(storage.place, FolderPlace) and storage.limit is None:
        storage.place.flush()
        return state

    shape = (storage.lanes, storage.capacity)

    def read(array: Array) -> Array:
        return array.reshape(*shape, *array.shape[1:])[:, : storage.used].copy()

    columns = {name: read(storage.place.host(column)) for name, column in storage.columns.items()}
    storage.check_rows()
    return state | {"flags": read(storage.flags), "columns": columns}


def check_saved_actions(actions: Actions, state: State) -> None:
    """Raise `ActionError` if a state of `get_storage_state` holds choices that are not in ``actions``."""
    if actions.discrete and "columns" in state:
        stored, flags = np.asarray(state["columns"]["action"]), np.asarray(state["flags"])
        if stored.shape[:-1] == flags.shape:  # `set_storage_state` rejects other shapes
            check_actions(actions, stored[(flags & FINAL) == 0])  # final rows have no action


def set_storage_state(storage: Storage, state: State) -> None:
    """Make ``storage`` equal to the storage whose state was saved.

    Raises:
        ShapeError: if lanes, columns or limit differ.
        ConfigError: if the rows are in another folder.
    """
    lanes = _checked_lanes(storage, state)
    rows_missing = storage.limit is None and lanes["end"].max() > storage.capacity
    if "columns" in state:
        _restore_rows(storage, state)
    elif rows_missing or not isinstance(storage.place, FolderPlace):
        raise ConfigError("rows of this state are missing: open their folder with ReplayBuffer.open(folder) first")
    rewound = (lanes["end"] < storage.end).any()
    for name in LANE_ARRAYS:
        getattr(storage, name)[:] = lanes[name]
    if "columns" not in state:
        if storage.journal is not None:  # before the flags change: the newest record must fit the rows at every moment
            (storage.journal.restart if rewound else storage.journal.write)(storage, lanes["tail"])
        _clean_flags(storage, lanes["tail"])
    storage.fine = frozenset(name for name in storage.leaves if name in state.get("fine", ()))
    lane, position = storage.live()
    flags = storage.flags[storage.rows(lane, position)]
    is_step = (flags & FINAL) == 0
    storage.steps[:] = np.bincount(lane[is_step], minlength=storage.lanes)
    storage.episode_count = int(np.count_nonzero(~is_step))
    storage.transition_count = int(np.count_nonzero((flags & NO_TRANSITION) == 0))
    storage.version += 1
    storage.generation += 1
    if storage.journal is not None:
        storage.journal.write(storage)


def _clean_flags(storage: Storage, tail: Array) -> None:
    """Undo the changes of a later, incomplete write to the flags."""
    size, capacity = storage.end - storage.start, storage.capacity
    for flags, first, count in zip(storage.flags.reshape(-1, capacity), storage.end % capacity, size, strict=True):
        last = first + capacity - count  # end of the free rows, which may wrap around
        flags[first:last] = FINAL
        flags[: max(last - capacity, 0)] = FINAL
    used = np.flatnonzero(size)
    storage.flags[storage.last_rows()[:, used]] = tail[used].T
    head = storage.rows(used, storage.start[used])
    storage.flags[head] |= np.where(storage.flags[head] & FIRST, 0, HEAD).astype(np.uint8)


def _checked_lanes(storage: Storage, state: State) -> dict[str, Array]:
    """Return the arrays of a state with an element for each lane, and ``tail`` ``[lanes, 2]``.

    Raises:
        ShapeError: if the number of lanes or the limit differs.
        CorruptFileError: if no storage can have this state.
    """
    start, limit, capacity = np.asarray(state["start"]), state["limit"], state["capacity"]
    if start.shape != (storage.lanes,) or limit != storage.limit:
        raise ShapeError(
            f"the state is of {len(start)} environments with limit {limit}, this buffer has {storage.lanes} "
            f"with limit {storage.limit}: make it with the same settings"
        )
    lanes = {name: check_array(state[name], (storage.lanes,), dtype, name) for name, dtype in LANE_ARRAYS.items()}
    tail = np.asarray(state["tail"])
    start, end = lanes["start"], lanes["end"]
    used = end.max() if storage.limit is None else (end - start).max()
    ordered = (start >= 0).all() and (lanes["offset"] >= 0).all() and (end >= start).all() and end.max() < 2**60
    if type(capacity) is not int or not ordered or used > capacity or (storage.limit is None and start.any()):
        raise CorruptFileError(
            f"the rows of the saved steps go from {start!s:.60} to {end!s:.60} with a capacity of {capacity!r:.30}, "
            "which cannot be: restore the file or folder from a copy"
        )
    last = tail[:, 1] if tail.shape == (storage.lanes, 2) and tail.dtype.kind in "iu" else None
    if last is None or tail.min() < 0 or tail.max() > 255 or (last[end > start] & FINAL == 0).any():
        raise CorruptFileError(f"the newest saved steps have the flags {tail!s:.80}, which cannot be: use a copy")
    return {**lanes, "tail": tail}


def _restore_rows(storage: Storage, state: State) -> None:
    used, most = min(int(max(state["end"])), state["capacity"]), max(storage.limit or 0, storage.capacity)
    if not 2 <= state["capacity"] <= 4 * max(used, most) + 1024:  # a storage at most doubles
        raise CorruptFileError(f"the saved steps take {used} rows of {state['capacity']}: restore them from a copy")
    flags = check_array(state["flags"], (storage.lanes, used), np.uint8, "the array of flags")
    columns = {name: np.asarray(column) for name, column in state["columns"].items()}
    for name, column in columns.items():
        leaf = ArraySpec(column.shape[2:], column.dtype)
        if column.shape[:2] != flags.shape:
            raise CorruptFileError(f"the saved column {name!r:.80} has {column.shape[:2]} rows, flags {flags.shape}")
        if storage.leaves.get(name, leaf if name.startswith("extra.") else None) != leaf:
            raise ShapeError(
                f"the state's column {name!r} is {leaf}, here it is {storage.leaves.get(name)}: use equal data"
            )
    for name in columns.keys() - storage.leaves.keys():
        storage.add_extra(name, ArraySpec(columns[name].shape[2:], columns[name].dtype))
    storage.reset_lanes()
    if storage.journal is not None:  # a kill after this leaves an empty storage, whose state can be set again
        storage.journal.restart(storage)
    if storage.capacity != state["capacity"]:
        storage.resize(state["capacity"])
    rows = storage.rows(np.arange(storage.lanes)[:, None], np.arange(flags.shape[1]))
    storage.flags[:] = FINAL
    storage.flags[rows] = flags
    storage.copy_flags()
    for name, column in storage.columns.items():
        storage.place.put(column, rows, columns.get(name, 0))


# -- folders -------------------------------------------------------------------------------------------------------


def new_folder(info: DatasetInfo, *, place: Any, **options: Any) -> Storage:
    """Make a storage in a new folder, open for writing until `end_writing`.

    Raises:
        ConfigError: if the folder is not empty: existing files are never replaced.
        WriteError: if it cannot be made.
    """
    if place.folder.is_dir() and any(place.folder.iterdir()):
        if (place.folder / _INDEX).exists():
            raise ConfigError(
                f"{place.folder} holds a dataset already: open it with ReplayBuffer.open(…) or name a new folder"
            )
        raise ConfigError(
            f"{place.folder} has files but no dataset of birl: name a new folder for storage=, or empty this one"
        )
    _lock(place)
    storage = Storage(info, place=place, **options)
    _start_journal(storage)
    save_folder(storage, clean=storage.limit is None)
    return storage


def begin_writing(storage: Storage) -> None:
    """Become the only writer of a folder, until `end_writing` or the end of the process.

    Raises:
        WriteError: if there is another writer, if the folder has been written to since it was opened, or if it is
            read-only.
    """
    place = storage.place
    if not isinstance(place, FolderPlace) or storage.journal is not None:
        return
    _lock(place)
    with convert_to_write_error(place.folder, "make it writable"):
        try:
            index, record = _read_index(place.folder), read_journal(place.folder, storage.lanes)
            newest = max(index.get("sequence", 0), 0 if record is None or not record.trusted else record.sequence)
            if newest != place.sequence:
                raise WriteError(
                    f"{place.folder} has been written to since it was opened here: open it again with "
                    "ReplayBuffer.open(…)"
                )
            columns, flags = _open_arrays(place, storage, writing=True)
            flags[:] = storage.flags
            storage.columns, storage.flags, storage.device_flags = columns, flags, flags
            storage.check_overwritten = None
            storage.generation += 1
            rewound = record is not None and bool((record.state["end"] > storage.end).any())
            _start_journal(storage, max(newest, 0 if record is None else record.sequence), rewound)
        except BaseException:
            end_writing(storage)
            raise


def _lock(place: FolderPlace) -> None:
    """Create a folder and lock it.

    Raises:
        WriteError: if it is locked, or cannot be made or written.
    """
    lock = FolderLock(place.folder, _LOCK, "two writers")
    with convert_to_write_error(place.folder):
        try:
            place.folder.mkdir(parents=True, exist_ok=True)
            links = [path.name for path in place.folder.iterdir() if path.is_symlink() or path.is_fifo()]
            if links:
                raise WriteError(
                    f"{place.folder} holds {links[0]!r:.80}, a link or pipe: writes to it would leave the folder. Put "
                    "a copy of the file in its place, or remove it"
                )
            if lock.acquire():
                lock.write_holder()
        except Timeout:
            raise WriteError(
                f"{place.folder} is being written ({lock.holder}): only one buffer may do so at a time. Wait for its "
                "end or close() it, or copy the episodes into another buffer"
            ) from None
    place.lock = lock


def _start_journal(storage: Storage, sequence: int = 0, rewound: bool = False) -> None:
    """Record every write from now on, with numbers greater than ``sequence``.

    Args:
        storage: a storage in a folder.
        sequence: number of the newest write so far.
        rewound: whether the storage has returned to an earlier position, so that it will replace rows.
    """
    place = storage.place
    assert isinstance(place, FolderPlace)

    def save(storage: Storage) -> None:
        save_folder(storage, clean=storage.limit is None)

    storage.journal = Journal(place.folder, storage.lanes, sequence, save)
    (storage.journal.restart if rewound else storage.journal.write)(storage)


def end_writing(storage: Storage) -> None:
    """Let other processes write. This process continues to read the present contents."""
    place = storage.place
    assert isinstance(place, FolderPlace)
    if storage.journal is not None:
        place.sequence, storage.journal = storage.journal.sequence, None
        storage.flags = storage.device_flags = storage.flags.copy()
        storage.generation += 1
        _watch(storage)
    if place.lock is not None:
        place.lock.release()
        place.lock = None


def save_folder(storage: Storage, *, clean: bool = True) -> None:
    """Write rows to disk, then their index.

    Args:
        storage: a storage in a folder, open for writing.
        clean: whether the rows on disk are complete. False marks a ring whose rows are being overwritten, which a power
            cut would destroy.
    """
    place, info, journal = storage.place, storage.info, storage.journal
    assert isinstance(place, FolderPlace) and journal is not None
    if clean:
        place.flush()
        journal.flush()
    index = {
        "format": "birl-storage",
        "version": _VERSION,
        "clean": clean,
        "sequence": journal.sequence,
        "whole": storage.whole,
        "info": {
            "action_space": info.action_space.value,
            "action_size": info.action_size,
            "choices": choices_to_json(info.observations),
            **({"columns": info.columns} if info.columns else {}),
        },
        "lanes": storage.lanes,
        "observation": storage.observation_names,
        "leaves": {name: (leaf.shape, leaf.dtype.str) for name, leaf in storage.leaves.items()},
        **_lane_state(storage),
    }
    atomic_write(place.folder / _INDEX, json.dumps(index, default=np.ndarray.tolist).encode())
    if clean:
        place.remove_unused()


def save_sampler(storage: Storage, sampler: Sampler) -> None:
    """Write a sampler's state, if it has one, next to the rows that `save_folder` wrote."""
    place, state = storage.place, sampler.get_state()
    assert isinstance(place, FolderPlace)
    if state:
        save_archive(place.folder / _SAMPLER, "sampler", {"sampler": type(sampler).__name__}, state)


def open_sampler(folder: Path, sampler: Sampler) -> None:
    """Restore the state of a sampler from a folder, if a sampler of the same class was saved there."""
    path = folder / _SAMPLER
    if path.exists() and load_config(path, "sampler").get("sampler") == type(sampler).__name__:
        with convert_to_corrupt_error(path):
            sampler.set_state(load_archive(path, "sampler")[1])


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / _INDEX
    if not path.exists():
        raise ForeignFileError(f"{folder} holds no dataset of birl ({_INDEX} is missing): check the path")
    with open_binary(path) as (file, label):
        index: dict[str, Any] = parse_json(read_exactly(file, min(bytes_left(file), MAX_JSON_BYTES + 1), label), label)
    if index["format"] != "birl-storage" or index["version"] > _VERSION:
        raise ForeignFileError(f"{path} is not of this version of birl: install a newer one")
    return index


def open_folder(folder: Path) -> Storage:
    """Open a storage for reading, also after its writer was killed.

    Raises:
        ForeignFileError: if the folder holds no storage, or one of a newer birl.
        CorruptFileError: if files are missing or damaged, or a ring was being written at a power cut.
        WriteError: if a ring is being written continuously.
    """
    for attempt in range(100):
        try:
            index = _read_index(folder)
            record = read_journal(folder, index["lanes"])
            indexed = index.get("sequence", 0) - (not index["clean"])  # a ring's index may be older than its journal
            if record is not None and record.trusted and record.sequence > indexed:
                index |= {**record.state, "sequence": record.sequence}
            elif not index["clean"]:
                raise CorruptFileError(
                    f"{folder} was being written when the machine stopped, or its journal is damaged: its oldest steps "
                    "are partly overwritten. Restore it from a checkpoint or collect it again"
                )
            storage = _storage_of(folder, index)
            _watch(storage)
            again = None if storage.limit is None else read_journal(folder, storage.lanes)
        except FileError:
            raise
        except Exception as error:  # damaged files can raise any error
            if attempt < _RETRIES:  # the writer may have just replaced the files by larger ones
                continue
            raise CorruptFileError(
                f"{folder} is damaged ({type(error).__name__}: {error!s:.200}): restore the folder from a copy"
            ) from error
        if again is None or record is None or again.sequence == record.sequence:
            storage.logs = load_record(folder)
            return storage
    raise WriteError(f"{folder} is being written continuously: pause its writer, or make it without a limit")


def _watch(storage: Storage) -> None:
    """Make readers raise an error once rows have been overwritten, or may be right now."""
    place, lanes, capacity = storage.place, storage.lanes, storage.capacity
    assert isinstance(place, FolderPlace)
    if storage.limit is None:
        storage.check_overwritten = _watch_restarts(place, lanes)
        return
    seen, start = place.sequence, storage.start.copy()
    slack = storage.limit // lanes // 64 + 8  # free rows of a full ring to which single steps are written

    def watch() -> None:
        record = read_journal(place.folder, lanes)
        if record is None or record.sequence <= seen or record.state["capacity"] != capacity:
            return  # a writer with a larger ring writes to other files
        first, last = record.state["start"], record.state["end"]
        # A write is recorded when it is complete: a step takes two rows, and episodes all rows that were freed for them
        free = capacity - (last - first)
        if (
            restarts(record.sequence) > restarts(seen)
            or (last + np.where(free > slack, free, 2) - capacity > start).any()
        ):
            raise DataError(
                f"{place.folder} has been written to, and the oldest steps that were read here are overwritten: open "
                "it again with ReplayBuffer.open(…)"
            )

    storage.check_overwritten = watch


def _watch_restarts(place: FolderPlace, lanes: int) -> Callable[[], None] | None:
    """Return a function that raises an error once the writer of a folder that only grows has returned to a checkpoint.

    It reads two numbers in memory, because readers call it for every column of a minibatch.
    """
    numbers, seen = map_sequences(place.folder, lanes), restarts(place.sequence)
    if numbers is None:
        return None

    def watch() -> None:
        if restarts(numbers[0]) <= seen and restarts(numbers[1]) <= seen:
            return
        record = read_journal(place.folder, lanes)  # a damaged record can have any number
        if record is not None and restarts(record.sequence) > seen:
            raise DataError(
                f"the writer of {place.folder} has returned to a checkpoint, and the newest steps that were read here "
                "are overwritten: open it again with ReplayBuffer.open(…)"
            )

    return watch


def _open_arrays(place: FolderPlace, storage: Storage, *, writing: bool) -> tuple[dict[str, Any], Array]:
    """Map the files of the columns and flags of a storage."""
    rows = storage.lanes * storage.capacity
    columns = {
        name: place.open_array(f"column_{number}", (rows, *leaf.shape), leaf.dtype, writing=writing)
        for number, (name, leaf) in enumerate(storage.leaves.items())
    }
    return columns, place.open_array("column_flags", (rows,), np.dtype(np.uint8), writing=writing)


def _storage_of(folder: Path, index: dict[str, Any]) -> Storage:
    """Make the storage of a folder. The sizes in the index are checked against the files before memory is used."""
    leaves = {name: ArraySpec(tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in index["leaves"].items()}
    observation = tree_map(leaves.__getitem__, tree_of_json(index["observation"]))
    space, size = ActionSpace(index["info"]["action_space"]), index["info"]["action_size"]
    action, reward = Signature.of(leaves["action"]), Signature.of(leaves["reward"])
    observations = observations_from_json(tree_map(lambda leaf: leaf.shape, observation), index["info"].get("choices"))
    columns = columns_from_json(index["info"].get("columns"))
    info = DatasetInfo(Signature.of(observation), action, reward, space, size, observations, columns)
    lanes, capacity = index["lanes"], index["capacity"]
    if type(lanes) is not int or type(capacity) is not int or lanes != len(index["start"]) or capacity < 2:
        raise CorruptFileError(f"{folder} is damaged: {lanes!r:.30} environments of {capacity!r:.30} rows each")
    place = FolderPlace(folder)
    place.sequence = check("sequence", index.get("sequence", 0), int, low=0, high=MAX_SEQUENCE, error=CorruptFileError)
    storage = Storage(info, lanes=lanes, limit=index["limit"], whole=bool(index.get("whole")))
    storage.leaves, storage.capacity, storage.place = leaves, capacity, place
    storage.columns, flags = _open_arrays(place, storage, writing=False)
    storage.flags = storage.device_flags = flags.copy()  # a copy, because the writer changes them
    set_storage_state(storage, index)
    return storage
