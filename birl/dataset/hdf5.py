"""Reading and writing of HDF5 files in d3rlpy's layout.

Layout 2.1 is flat: ``columns``, ``num_episodes``, ``version``, and for episode i ``observations_{i}`` (or
``observations_{i}_{j}`` for the leaves of a tree), ``actions_{i}``, ``rewards_{i}``, ``terminated_{i}``. Additional
data have names that d3rlpy does not read: ``truncated_{i}``, ``final_observation_{i}`` (or ``_{i}_{j}``),
``extra_{i}_{k}`` and ``birl`` (JSON: structure of observations, action space and size, names of extra columns). A
digest of all bytes follows the HDF5 part, where HDF5 readers ignore it. It is checked before the HDF5 library opens the
file, because the library can loop forever on damaged files. Files that d3rlpy wrote have no digest.

Version 1 has ``observations, actions, rewards, terminals`` and perhaps ``episode_terminals`` and ``discrete_action``,
over all steps.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import TextIOBase
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.episode import Episode
from birl.dataset.validation import detect_action_space
from birl.errors import ConfigError, CorruptFileError, ForeignFileError, ShapeError, WriteError
from birl.files import open_binary, parse_json
from birl.files.atomic import write_binary
from birl.files.reading import MAX_JSON_BYTES, PACKED, MemoryBudget, PathOrFile
from birl.files.state_restore import convert_to_corrupt_error
from birl.spaces import parse_actions
from birl.spaces.observations import choices_to_json, observations_from_json
from birl.types import ActionSpace, Array, Tree, tree_leaves, tree_map, tree_of_json

if TYPE_CHECKING:
    import h5py

_COLUMNS = ["observations", "actions", "rewards", "terminated"]
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_TRAILER = b"birl-sha256:"
_DIGEST_SIZE = hashlib.sha256().digest_size
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}  # h5py provides the last one
_DEFLATE, _LZF, _MOST_DEFLATED = 1, 32000, 1032  # deflate shrinks to 1/1032 at best
_HEAP = 16  # bytes of the header of a heap of texts, of the header of each text in it, and of a reference to one
_EPISODE = 1024  # bytes of the objects of an episode, without its arrays

Loaded = tuple[list[Episode], ActionSpace | None, int | None]
Serialized = tuple[list[dict[str, Any]], ActionSpace | None, int | None, Any]


def _names(name: str, episode: int, template: Tree) -> Tree:
    """Return the names of an episode's arrays; ``template`` has a number for each leaf, or is 0 for an array."""
    if isinstance(template, int):
        return f"{name}_{episode}"
    return tree_map(lambda leaf: f"{name}_{episode}_{leaf}", template)


def dump(episodes: Sequence[Episode], f: PathOrFile, info: DatasetInfo | None = None) -> None:
    """Write episodes.

    Args:
        episodes: episodes.
        f: path, or a file opened with ``"w+b"``. An existing file is replaced only after all is written.
        info: specs of observations and actions to store.

    Raises:
        ConfigError: if ``f`` is not a path or file.
        ShapeError: if the observations of the episodes have different parts.
        WriteError: if the file cannot be written.
    """
    write_binary(f, lambda file: _write(file, episodes, info), "w+b", "; the order is dump(episodes, f)")


def _digest(file: BinaryIO, size: int) -> bytes:
    """Return the SHA-256 digest of the first ``size`` bytes."""
    file.seek(0)
    digest = hashlib.sha256()
    while size and (chunk := file.read(min(size, 1 << 20))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.digest()


def _write(f: BinaryIO, episodes: Sequence[Episode], info: DatasetInfo | None) -> None:
    import h5py

    if not (f.readable() and f.seekable()):
        raise WriteError(
            "f is a pipe or device; it must be a regular file, not one which cannot be read back: give a path"
        )
    with h5py.File(f, "w") as file:
        _write_episodes(file, episodes, info)
    digest = _digest(f, f.seek(0, os.SEEK_END))
    f.seek(0, os.SEEK_END)
    f.write(_TRAILER + digest)
    f.flush()


def _write_episodes(file: h5py.File, episodes: Sequence[Episode], info: DatasetInfo | None) -> None:
    def put(value: npt.ArrayLike, name: str) -> None:
        file.create_dataset(name, data=np.asarray(value))

    file.create_dataset("columns", data=[name.encode() for name in _COLUMNS])
    file.create_dataset("num_episodes", data=len(episodes))
    file.create_dataset("version", data=b"2.1")
    numbers = itertools.count()  # the structure of an observation: a number for each leaf
    template: Tree = tree_map(lambda _: next(numbers), episodes[0].observations) if len(episodes) else 0
    structure = _structure(template)
    extra_names = sorted({name for episode in episodes for name in getattr(episode, "extra", None) or {}})
    meta = {
        "version": 1,
        "observation": template,
        "extra": extra_names,
        "action_space": None if info is None else info.action_space.value,
        "action_size": None if info is None else info.action_size,
        "choices": None if info is None else choices_to_json(info.observations),
    }
    file.create_dataset("birl", data=json.dumps(meta))
    for index, episode in enumerate(episodes):
        final, extra = getattr(episode, "final_observation", None), getattr(episode, "extra", None) or {}
        for observation in (episode.observations, final):
            if observation is not None and _structure(observation) != structure:
                raise ShapeError(
                    f"episode {index} has other parts of observations than episode 0: dump it to a separate file"
                )
        tree_map(put, episode.observations, _names("observations", index, template))
        put(episode.actions, f"actions_{index}")
        put(episode.rewards, f"rewards_{index}")
        put(bool(episode.terminated), f"terminated_{index}")
        put(bool(getattr(episode, "truncated", not episode.terminated)), f"truncated_{index}")
        if final is not None:
            tree_map(put, final, _names("final_observation", index, template))
        for number, name in enumerate(extra_names):
            if name in extra:
                put(extra[name], f"extra_{index}_{number}")


def _structure(tree: Tree) -> Tree:
    return tree_map(lambda _: None, tree)


def load(f: PathOrFile, episode_cls: type[Episode] = Episode, action_space: ActionSpace | None = None) -> Loaded:
    """Read episodes that birl or d3rlpy (versions 1 and 2) wrote, with action space and size if they are stored.

    Args:
        f: path, or a file opened for binary reading.
        episode_cls: class of the episodes.
        action_space: kind of the actions; replaces the one in the file.

    Raises:
        ConfigError: if ``f`` is not a path or file, or ``episode_cls`` is not a class of episodes.
        ActionError: if a file of version 1 does not determine the kind of its actions.
        ForeignFileError: if the file is of another kind.
        CorruptFileError: if the file is truncated or damaged.
    """
    return read_episodes(f, episode_cls, action_space)[:3]


def read_episodes(f: PathOrFile, episode_cls: type[Episode], action_space: ActionSpace | None) -> tuple[Any, ...]:
    """Return the results of `load`, and the spec of the observations; ``None`` if it is not stored."""
    check_readable(f, "load(f, episode_cls)")
    if not isinstance(episode_cls, type) or not hasattr(episode_cls, "deserialize"):
        raise ConfigError(
            f"episode_cls is {episode_cls!r:.80}; it must be a class such as birl.dataset.Episode: the order is "
            "load(f, episode_cls)"
        )
    with _opened(f) as file:
        episodes, space, size, choices = file.episodes(action_space)
        observations = None
        if episodes and choices is not None:
            shape = tree_map(lambda leaf: leaf.shape[1:], episodes[0]["observations"])
            observations = observations_from_json(shape, choices)
        return [episode_cls.deserialize(episode) for episode in episodes], space, size, observations


def check_readable(f: object, call: str) -> None:
    """Raise `ConfigError` unless ``f`` is a path or a binary file; ``call`` shows the order of the arguments."""
    if isinstance(f, str | os.PathLike):
        return
    if isinstance(f, type | TextIOBase) or not (hasattr(f, "read") and hasattr(f, "seek")):
        raise ConfigError(
            f"f is {f!r:.80}; it must be a path or a file opened with open(path, 'rb'): the order is {call}"
        )


def read_arrays(f: PathOrFile, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Array]:
    """Read named arrays of numbers from an HDF5 file of any origin.

    Args:
        f: path, or a file opened for binary reading.
        required: names of arrays that the file must have.
        optional: names of arrays that it may have.

    Raises:
        ForeignFileError: if the file is of another kind, or a required array is missing.
        CorruptFileError: if the file is truncated or damaged.
    """
    with _opened(f) as file:
        missing = [key for key in required if key not in file]
        if missing:
            raise ForeignFileError(
                f"{file.name} holds {sorted(file.h5)!s:.300}, but not {', '.join(missing)}: give a file that has them"
            )
        return {key: file.array(key) for key in (*required, *optional) if key in file}


@contextlib.contextmanager
def _opened(f: PathOrFile) -> Iterator[_File]:
    """Open an HDF5 file. All errors are typed."""
    import h5py

    with open_binary(f) as (stream, name):
        stream.seek(0)
        if stream.read(len(_SIGNATURE)) != _SIGNATURE:
            raise ForeignFileError(f"{name} is not an HDF5 file: give one that dump(…) of birl or d3rlpy wrote")
        size = stream.seek(0, os.SEEK_END)
        guarded = _check_digest(stream, size, name)
        with convert_to_corrupt_error(name, "it cannot be read as HDF5"), h5py.File(stream, "r") as file:
            yield _File(file, stream, MemoryBudget(name, size, PACKED), name, guarded)


def _check_digest(stream: BinaryIO, size: int, name: str) -> bool:
    """Check the digest after the HDF5 part, if there is one. Returns whether there is."""
    body = size - len(_TRAILER) - _DIGEST_SIZE
    stream.seek(max(body, 0))
    trailer = stream.read()
    guarded = trailer.startswith(_TRAILER)
    if guarded and _digest(stream, body) != trailer[len(_TRAILER) :]:
        raise CorruptFileError(f"{name} was altered: its digest does not agree. Restore it from a copy")
    stream.seek(0)
    return guarded


@dataclass(frozen=True)
class _File:
    """An open file.

    Attributes:
        h5: the file as h5py's object.
        stream: the file as a stream.
        budget: memory that its arrays may take.
        name: its name for error messages.
        guarded: whether it has a digest.
    """

    h5: h5py.File
    stream: BinaryIO
    budget: MemoryBudget
    name: str
    guarded: bool

    def __contains__(self, name: str) -> bool:
        """Return whether an object exists. Rejects links, which could lead out of the file or in circles."""
        import h5py

        links = self.h5.id.links
        if not links.exists(name.encode()):
            return False
        if links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
            raise CorruptFileError(f"{self.name}: {name:.80} is a link, no array of this file: store the array itself")
        return True

    def _dataset(self, name: str) -> h5py.h5d.DatasetID:
        """Open a dataset by h5py's low-level interface. All data are read from datasets that this method returns.

        It checks that the bytes are in this file, that only HDF5 and h5py decode them, and that they are within the
        budget. It does not read the content. Files have a few datasets per episode, and h5py's high-level objects for
        them would take most of the time.
        """
        import h5py

        dataset: Any = h5py.h5o.open(self.h5.id, name.encode()) if name in self else None
        made = dataset.get_create_plist() if isinstance(dataset, h5py.h5d.DatasetID) else None
        layout = None if made is None else made.get_layout()
        empty = made is not None and dataset.get_space().get_simple_extent_type() == h5py.h5s.NULL
        if made is None or made.get_external_count() or layout == h5py.h5d.VIRTUAL or empty:
            raise CorruptFileError(f"{self.name}: {name:.80} is no array of this file itself: store the array itself")
        filters = [made.get_filter(index)[0] for index in range(made.get_nfilters())]
        if not _FILTERS.keys() >= set(filters) or sum(each in (_DEFLATE, _LZF) for each in filters) > 1:
            raise CorruptFileError(
                f"{self.name}: {name:.80} is stored with the filters {filters!s:.80}; allowed are "
                f"{', '.join(_FILTERS.values())}, one compression at most: write it again without others"
            )
        chunk, itemsize = made.get_chunk() if layout == h5py.h5d.CHUNKED else (), dataset.dtype.itemsize
        largest = max(math.prod(dataset.shape), math.prod(chunk))  # HDF5 decodes a chunk as a whole
        self.budget.spend(largest * itemsize, name)
        stored = dataset.get_storage_size()
        if stored > self.budget.size:  # HDF5 would allocate that before it reads
            raise CorruptFileError(
                f"{self.name}: {name:.80} claims {stored} bytes of a file of {self.budget.size}: restore it from a copy"
            )
        if _DEFLATE in filters and stored * _MOST_DEFLATED > self.budget.left:
            self._check_chunks(dataset, name, math.prod(chunk) * itemsize, 1 << filters.index(_DEFLATE))
        return dataset

    def _check_chunks(self, dataset: h5py.h5d.DatasetID, name: str, size: int, skipped: int) -> None:
        """Check that no chunk decompresses to more than its size, which HDF5 would allocate before it compares.

        Args:
            dataset: dataset compressed with deflate.
            name: its name.
            size: bytes of a chunk.
            skipped: bit in the filter mask of chunks that are not compressed.
        """
        large: list[Any] = []
        dataset.chunk_iter(
            lambda chunk: (
                large.append(chunk.chunk_offset)
                if chunk.size * _MOST_DEFLATED > self.budget.left and not chunk.filter_mask & skipped
                else None
            )
        )
        for offset in large:
            reader = zlib.decompressobj()
            reader.decompress(dataset.read_direct_chunk(offset)[1], size)
            if reader.decompress(reader.unconsumed_tail, 1):
                raise CorruptFileError(f"{self.name}: {name:.80} holds more than its shape: use another copy")

    def array(self, name: str) -> Array:
        """Read an array of numbers."""
        import h5py

        dataset = self._dataset(name)
        dtype = dataset.dtype
        if dtype.kind not in "biuf":
            raise CorruptFileError(f"{self.name}: {name} holds {dtype}, not numbers: restore it from a copy")
        read = np.zeros(dataset.shape, dtype)
        if read.size:
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, read)
        return read

    def _text(self, name: str) -> str:
        import h5py

        dataset = h5py.Dataset(self._dataset(name))
        if dataset.shape != () or dataset.dtype.itemsize > MAX_JSON_BYTES:
            raise CorruptFileError(f"{self.name}: {name} has shape {dataset.shape}; it must be one text")
        return self._variable_text(dataset) if dataset.dtype.kind == "O" else str(dataset.asstr()[()])

    def _variable_text(self, dataset: h5py.Dataset) -> str:
        """Read a text of variable length.

        The HDF5 library would allocate any length that the file claims, and can loop forever in the heap of texts. The
        heap has a signature, a size, and objects with a number, a size, and content padded to a multiple of 8 bytes.
        """
        import h5py

        self.stream.seek(dataset.id.get_offset())
        length, heap, wanted = struct.unpack("<IQI", self.stream.read(_HEAP))
        known = h5py.check_string_dtype(dataset.dtype) is not None and dataset.id.get_storage_size() == _HEAP
        if not known or length > MAX_JSON_BYTES:
            raise CorruptFileError(f"{self.name}: {dataset.name!r:.80} is no text of {length} bytes: use another copy")
        self.stream.seek(heap + _HEAP)
        for _ in range(1 << 16):  # numbers have 16 bits
            number, size = struct.unpack("<H6xQ", self.stream.read(_HEAP))
            if number == wanted and size == length:
                return self.stream.read(length).decode()
            self.stream.seek(math.ceil(size / 8) * 8, os.SEEK_CUR)
        raise CorruptFileError(f"{self.name}: the text of {dataset.name!r:.80} is missing: use another copy")

    def _flag(self, name: str) -> bool:
        value = self.array(name).reshape(-1)
        if len(value) != 1 or value[0] not in (0, 1):
            raise CorruptFileError(f"{self.name}: {name} is {value!r:.80}; it must be 0 or 1: restore it from a copy")
        return bool(value[0])

    def _count(self) -> int:
        value, name = self.array("num_episodes"), re.compile(r"actions_\d+")
        present = sum(1 for member in self.h5 if name.fullmatch(member))
        if value.size != 1 or value.dtype.kind not in "iu" or (value != present).any():
            raise CorruptFileError(
                f"{self.name}: num_episodes is {value!r:.80}, but {present} episodes are there: restore it from a copy"
            )
        return present

    def episodes(self, action_space: ActionSpace | None) -> Serialized:
        """Return the episodes for `Episode.deserialize`, with action space and size. See `load`."""
        if "birl" in self and not self.guarded:
            raise CorruptFileError(f"{self.name} is truncated: its digest is missing. Restore it from a copy")
        if "num_episodes" in self:
            return self._version_2(action_space)
        if all(name in self for name in ("observations", "actions", "rewards", "terminals")):
            return self._version_1(action_space)
        raise ForeignFileError(f"{self.name} holds no episodes in d3rlpy's layout: give a file that dump(…) wrote")

    def _version_1(self, space: ActionSpace | None) -> Serialized:
        observations, terminals = self.array("observations"), self.array("terminals").reshape(-1) != 0
        actions, rewards = self.array("actions"), self.array("rewards").reshape(-1, 1)
        ends = terminals.copy()
        if "episode_terminals" in self:
            ends |= self.array("episode_terminals").reshape(-1) != 0
        if not len(ends) == len(observations) == len(actions) == len(rewards):
            raise CorruptFileError(f"{self.name}: arrays have different lengths: restore it from a copy")
        if space is None and "discrete_action" in self:
            space = ActionSpace.DISCRETE if self.array("discrete_action") else ActionSpace.CONTINUOUS
        elif space is None:
            space = detect_action_space(actions)
        stops = np.flatnonzero(ends[:-1]) + 1
        self.budget.spend(len(stops) * _EPISODE, f"{len(stops)} episodes")
        columns = (np.split(column, stops) for column in (observations, actions, rewards, terminals))
        episodes = [
            {"observations": o, "actions": a, "rewards": r, "terminated": bool(t[-1]), "truncated": not t[-1]}
            for o, a, r, t in zip(*columns, strict=True)
            if len(t)
        ]
        return episodes, space, None, None

    def _version_2(self, action_space: ActionSpace | None) -> Serialized:
        version = self._text("version") if "version" in self else "2.0"
        if not version.startswith("2."):
            raise ForeignFileError(
                f"{self.name} has layout version {version!r:.20}, known are 1 and 2: install a newer birl"
            )
        meta: dict[str, Any] = {"observation": None, "extra": [], "action_space": None, "action_size": None}
        if "birl" in self:
            meta |= parse_json(self._text("birl").encode(), self.name)
            if meta["version"] != 1:
                raise ForeignFileError(f"{self.name} was written by a newer birl: install that")
        size = meta["action_size"]
        space = None if meta["action_space"] is None else ActionSpace(meta["action_space"])
        try:
            if size is not None:
                parse_actions(size, space)
        except ConfigError as error:
            raise CorruptFileError(f"{self.name}: {error!s:.200}: use another copy") from error
        if not isinstance(meta["extra"], list):
            raise CorruptFileError(f"{self.name} has extra columns {meta['extra']!r:.60}: use another copy")
        template = tree_of_json(meta["observation"])
        if template is None:  # a file of d3rlpy
            template = tuple(itertools.takewhile(lambda leaf: f"observations_0_{leaf}" in self, itertools.count())) or 0
        count = self._count()
        self.budget.spend(count * (_EPISODE + len(meta["extra"])), f"{count} episodes")
        episodes = [self._episode(index, template, meta["extra"]) for index in range(count)]
        if action_space not in (None, space):
            return episodes, action_space, None, meta.get("choices")
        return episodes, space, meta["action_size"], meta.get("choices")

    def _episode(self, index: int, template: Tree, extra_names: Sequence[str]) -> dict[str, Any]:
        observations, final = (_names(name, index, template) for name in ("observations", "final_observation"))
        extra = {name: f"extra_{index}_{number}" for number, name in enumerate(extra_names)}
        terminated, truncated = self._flag(f"terminated_{index}"), f"truncated_{index}"
        return {
            "observations": tree_map(self.array, observations),
            "actions": self.array(f"actions_{index}"),
            "rewards": self.array(f"rewards_{index}"),
            "terminated": terminated,
            "truncated": self._flag(truncated) if truncated in self else not terminated,
            "final_observation": tree_map(self.array, final) if next(tree_leaves(final)) in self else None,
            "extra": {name: self.array(place) for name, place in extra.items() if place in self} or None,
        }
