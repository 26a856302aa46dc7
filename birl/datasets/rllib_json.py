"""RLlib's JSON files: one batch of steps in each line, as its ``JsonWriter`` writes them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from birl.checks import check
from birl.dataset import ReplayBuffer, Sampler
from birl.dataset.replay_buffer import StorageLocation
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import TransitionPickerProtocol
from birl.dataset.validation import as_flags
from birl.datasets.steps import as_path, channels_first, flat_episodes, require_columns, rows_of
from birl.errors import (
    ConfigError,
    CorruptFileError,
    DataError,
    EmptyDataError,
    FileError,
    ForeignFileError,
    ShapeError,
)
from birl.files import open_binary, parse_json
from birl.files.reading import MAX_JSON_BYTES, PLAIN, MemoryBudget, bytes_left
from birl.types import Array, Tree, tree_leaves, tree_map

TYPES: Final = ("SampleBatch", "MultiAgentBatch")
_REQUIRED: Final = ("obs", "actions", "rewards")
_OPTIONAL: Final = ("new_obs", "dones", "terminateds", "truncateds", "eps_id", "agent_index", "t")


def load_rllib_json(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    *,
    policy: str | None = None,
    storage: StorageLocation = "memory",
    sampler: Sampler | None = None,
) -> ReplayBuffer:
    """Load the steps of RLlib's JSON files.

    Rows with the same ``eps_id`` (and ``agent_index``) form an episode, also across lines and files, in the order of
    ``t`` if it is there. Without ``eps_id``, an episode ends with its line at the latest. ``new_obs`` of the last row
    of an episode becomes the final observation. Other columns are left out. Numbers that float32 holds exactly become
    float32. Images become channels first.

    ``terminateds`` terminate episodes. The older ``dones`` do, too, unless ``truncateds`` is 1: RLlib's algorithms add
    no value after them. Rows after the end of an episode form another one, and so do rows after a gap in ``t``.

    RLlib packs ``obs`` and ``new_obs`` as compressed pickles by default. birl never unpickles data, and refuses them.
    Write them with ``compress_columns=[]`` (``output_compress_columns`` in an algorithm's configuration).

    Args:
        path: a file, a folder of ``*.json`` files, or a list of files.
        transition_picker: makes transitions from steps.
        trajectory_slicer: makes windows of steps.
        policy: name of the policy whose steps are read, in files of several agents; ``None`` if there is only one.
        storage: ``"memory"``, a torch device, or the path of a new folder.
        sampler: selects the steps of minibatches; `birl.dataset.Uniform` if ``None``.

    Raises:
        ForeignFileError, CorruptFileError: if a file cannot be used.
        DataError: if its columns do not fit together.
        ConfigError: if there are several policies, and none is chosen.
    """
    check("policy", policy, str, optional=True)
    batches = [batch for file in _files(path) for batch in _batches(file, policy)]
    label = str(path)
    if not batches:
        raise EmptyDataError(f"{label} has no batch of steps: give files with one or more")
    columns = _concatenate(batches, label)
    columns = {name: rows_of(column, _order(columns)) for name, column in columns.items()}
    ends = _ends(columns)
    truncated = (
        as_flags(f"{label}: truncateds", columns["truncateds"]) if "truncateds" in columns else np.zeros_like(ends)
    )
    if "terminateds" in columns:
        terminal = as_flags(f"{label}: terminateds", columns["terminateds"])
    elif "dones" in columns:
        terminal = as_flags(f"{label}: dones", columns["dones"]) & ~truncated
    else:
        raise DataError(f"{label} has neither terminateds nor dones, so the ends of episodes are unknown: add a column")
    ends |= terminal | truncated
    observations, finals = channels_first(columns["obs"]), None
    known = np.full(int(ends.sum()), "new_obs" in columns)
    if "new_obs" in columns:
        finals = rows_of(channels_first(columns["new_obs"]), ends)
    flat = flat_episodes(observations, columns["actions"], columns["rewards"], terminal, ends, finals, known, label)
    return ReplayBuffer.from_flat(flat, None, transition_picker, trajectory_slicer, storage=storage, sampler=sampler)


def _files(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    if isinstance(path, list | tuple):
        return [as_path(each, "a file") for each in path]
    place = as_path(path, "a file or folder, or a list of files")
    files = sorted(place.glob("*.json")) if os.path.isdir(place) else [place]
    if not files:
        raise FileError(f"the folder {path} has no .json file: give files of RLlib's JsonWriter")
    return files


def _batches(file: Path, policy: str | None) -> Iterator[dict[str, Tree]]:
    """Iterate over the columns of the batches of a file."""
    with open_binary(file) as (stream, name):
        budget = MemoryBudget(name, bytes_left(stream), PLAIN)
        number = 0
        while line := stream.readline(MAX_JSON_BYTES + 1):
            number += 1
            label = f"{name}, line {number}"
            if line.strip():
                batch = parse_json(line.strip(), label)
                columns = _columns(_sample_batch(batch, policy, label), label, number)
                budget.spend(sum(leaf.nbytes for tree in columns.values() for leaf in tree_leaves(tree)), label)
                yield columns


def is_rllib(batch: object) -> bool:
    """Return whether a JSON value is a batch of RLlib."""
    return isinstance(batch, dict) and batch.get("type") in TYPES


def _sample_batch(batch: object, policy: str | None, label: str) -> Mapping[str, Any]:
    """Return the batch of one policy."""
    if not isinstance(batch, dict) or not is_rllib(batch):
        raise ForeignFileError(
            f"{label} has no 'type' that is {' or '.join(TYPES)}: give a file of RLlib's JsonWriter; other JSON lines "
            "are tables, which a schema describes (birl data schema)"
        )
    if batch["type"] == "SampleBatch":
        return batch
    policies = batch.get("policy_batches")
    if not isinstance(policies, dict) or not all(isinstance(each, dict) for each in policies.values()):
        raise CorruptFileError(f"{label} has no policy_batches: use another copy")
    if policy is None and len(policies) == 1:
        return next(iter(policies.values()))
    if policy not in policies:
        raise ConfigError(f"{label} has the policies {sorted(policies)!s:.200}; policy is {policy!r:.60}: choose one")
    return policies[policy]


def _columns(batch: Mapping[str, Any], label: str, number: int) -> dict[str, Tree]:
    """Return the columns of a batch as arrays."""
    found: dict[str, Tree] = {name: _array(batch[name], f"{label}: {name}") for name in _REQUIRED if name in batch}
    missing = [name for name in _REQUIRED if name not in found]
    if missing:
        raise ShapeError(f"{label} has the columns {sorted(batch)!s:.200}, but not {', '.join(missing)}: write them")
    for name in _OPTIONAL:
        if name in batch:
            found[name] = _array(batch[name], f"{label}: {name}", texts=name == "eps_id")
    for name in ("eps_id", "agent_index", "t"):
        if name in found and np.ndim(found[name]) != 1:
            raise ShapeError(f"{label}: {name} must be one value for each step: write it so")
    found.setdefault("eps_id", np.full(len(found["rewards"]), f"line {number} of {label}"))
    named = {
        f"{name} {index}".removesuffix(" 0"): leaf
        for name in found
        for index, leaf in enumerate(tree_leaves(found[name]))
    }
    require_columns(named, list(named), label, "RLlib's layout")
    return found


def _array(value: object, label: str, *, texts: bool = False) -> Tree:
    """Convert a JSON value to an array, or a dict of arrays."""
    if isinstance(value, str):
        raise CorruptFileError(
            f"{label} is packed (a compressed pickle, which could run code and is never loaded): write the file again "
            "with compress_columns=[] (output_compress_columns=[])"
        )
    if isinstance(value, dict):
        return {str(key): _array(item, f"{label}/{key}") for key, item in value.items()}
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ShapeError(f"{label} has rows of different lengths: give one array of numbers") from error
    if texts and array.dtype.kind in "UO" and array.ndim == 1:
        return array.astype(str)
    if array.dtype.kind not in "biuf" or not array.ndim:
        raise ShapeError(f"{label} is {value!r:.60}; it must be a list of numbers for each step: write numbers")
    return array


def _concatenate(batches: Sequence[Mapping[str, Tree]], label: str) -> dict[str, Tree]:
    """Concatenate columns that all batches have. Numbers become float32 or uint8 where these hold them exactly."""
    names = [name for name in batches[0] if all(name in batch for batch in batches)]
    lost = {name for batch in batches for name in batch} - set(names)
    if lost & {"terminateds", "dones", "truncateds", "new_obs"}:
        raise DataError(f"{label}: {sorted(lost)!s:.100} are in some lines only: load the other lines separately")
    ids = [np.asarray(batch["eps_id"]) for batch in batches]
    if len({each.dtype.kind in "U" for each in ids}) > 1:
        ids = [each.astype(str) for each in ids]
    try:
        columns = {
            name: tree_map(lambda *leaves: np.concatenate(leaves), *(batch[name] for batch in batches))
            for name in names
            if name != "eps_id"
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ShapeError(
            f"{label}: the lines have columns of different shapes ({error}): load them separately"
        ) from error
    for name in ("obs", "new_obs", "actions", "rewards"):
        if name in columns:
            columns[name] = tree_map(_compact, columns[name])
    if "new_obs" in columns:  # both have one dtype, the wider one
        columns["new_obs"] = tree_map(_as_common, columns["new_obs"], columns["obs"])
        columns["obs"] = tree_map(_as_common, columns["obs"], columns["new_obs"])
    return {**columns, "eps_id": np.concatenate(ids)}


def _compact(array: Array) -> Array:
    """Return images of bytes as uint8, and floats as float32, if nothing is lost."""
    if array.dtype.kind == "f":
        narrow = array.astype(np.float32)
        return narrow if np.array_equal(narrow, array) else array
    bytes_ = array.ndim > 3 and array.size and array.min() >= 0 and array.max() <= 255
    return array.astype(np.uint8) if bytes_ else array


def _as_common(array: Array, other: Array) -> Array:
    return array.astype(np.result_type(array, other), copy=False)


def _order(columns: Mapping[str, Any]) -> Array:
    """Return the order of rows: by episode, in the order of their first rows, then by time."""
    _, first, index = np.unique(columns["eps_id"], return_index=True, return_inverse=True)
    keys = [first[index.reshape(-1)]]
    for name in ("agent_index", "t"):
        if name in columns:
            keys.append(columns[name])
    return np.lexsort(keys[::-1])


def _ends(columns: Mapping[str, Any]) -> Array:
    """Return where the episode changes, or time does not go on by one step."""
    ends = np.ones(len(columns["eps_id"]), bool)
    ends[:-1] = columns["eps_id"][1:] != columns["eps_id"][:-1]
    if "agent_index" in columns:
        ends[:-1] |= np.diff(columns["agent_index"]) != 0
    if "t" in columns:
        ends[:-1] |= np.diff(columns["t"]) != 1
    return ends
