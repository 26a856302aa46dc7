"""Reading and writing of HDF5 files in d3rlpy's layout.

Layout 2.1 is flat: ``columns``, ``num_episodes``, ``version``, and for episode i ``observations_{i}`` (or
``observations_{i}_{j}`` for the leaves of a tree), ``actions_{i}``, ``rewards_{i}``, ``terminated_{i}``. Additional
data have names that d3rlpy does not read: ``truncated_{i}``, ``final_observation_{i}`` (or ``_{i}_{j}``),
``extra_{i}_{k}`` and ``birl`` (JSON: structure of observations, action space and size, names of extra columns). A
digest of all bytes follows the HDF5 part, where HDF5 readers ignore it. It is checked before the HDF5 library opens the
file, because the library can loop forever on damaged files. Files that d3rlpy wrote have no digest.

Layout 1 has the steps of all episodes in one array for each column: ``observations, actions, rewards, terminals`` and
perhaps ``episode_terminals`` and ``discrete_action``. birl writes it for more than `MAX_SINGLE` episodes, because each
episode of layout 2.1 takes about 2 kB and 0.3 ms to write. d3rlpy reads it with ``load_v1``, which ignores the
additional data: ``episode_flags`` (see `birl.dataset.flat_episodes`), ``final_observations``, ``extra_{k}`` and
``birl``. The leaves of a tree are ``observations_{j}`` and ``final_observations_{j}``, which d3rlpy does not read.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import TextIOBase
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from birl.checks import check
from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.episode import Episode, Spaces
from birl.dataset.episodes import EpisodeList
from birl.dataset.flags import TERMINATED, TRUNCATED, UNKNOWN
from birl.dataset.flat_episodes import FlatEpisodes, have_one_form, lengths_and_flags
from birl.dataset.validation import detect_action_space
from birl.errors import ConfigError, CorruptFileError, ForeignFileError, ShapeError, WriteError
from birl.files import open_binary, parse_json
from birl.files.atomic import write_binary
from birl.files.reading import MAX_JSON_BYTES, PACKED, MemoryBudget, PathOrFile
from birl.files.state_restore import convert_to_corrupt_error
from birl.spaces import parse_actions
from birl.spaces.observations import (
    choices_to_json,
    columns_from_json,
    infer_observations,
    observations_from_json,
    widen_observations,
)
from birl.types import ActionSize, ActionSpace, Array, Tree, tree_leaves, tree_map, tree_of_json

if TYPE_CHECKING:
    import h5py

_COLUMNS = ["observations", "actions", "rewards", "terminated"]
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_TRAILER = b"birl-sha256:"
_DIGEST_SIZE = hashlib.sha256().digest_size
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}  # h5py provides the last one
_DEFLATE, _LZF, _MOST_DEFLATED = 1, 32000, 1032  # deflate shrinks to 1/1032 at best
_HEAP = 16  # bytes of the header of a heap of texts, of the header of each text in it, and of a reference to one
_CHUNK = 1024  # bytes that HDF5 takes for each chunk of an array that it reads, stored or not
_EPISODE = 1024  # bytes of the objects of an episode, without its arrays

_BLOCK = 2**24  # bytes that are copied at a time

Layout: TypeAlias = Literal["episodes", "flat"]
Loaded = tuple[list[Episode], ActionSpace | None, int | None]

MAX_SINGLE: Final = 10_000
"""Largest number of episodes that `dump` writes one by one unless asked."""


class Contents(NamedTuple):
    """The contents of a file.

    Attributes:
        episodes: single episodes, or all as flat arrays.
        space, size: action space and size; ``None`` if they are not stored.
        observations: spec of the observations; ``None`` if it is not stored.
    """

    episodes: list[Episode] | FlatEpisodes
    space: ActionSpace | None
    size: int | None
    observations: Tree


def _names(name: str, episode: int, template: Tree) -> Tree:
    """Return the names of an episode's arrays; ``template`` has a number for each leaf, or is 0 for an array."""
    if isinstance(template, int):
        return f"{name}_{episode}"
    return tree_map(lambda leaf: f"{name}_{episode}_{leaf}", template)


def dump(
    episodes: Sequence[Episode], f: PathOrFile, info: DatasetInfo | None = None, *, layout: Layout | None = None
) -> None:
    """Write episodes.

    Args:
        episodes: episodes.
        f: path, or a file opened with ``"w+b"``. An existing file is replaced only after all is written.
        info: specs of observations and actions to store; ``None`` for those of the episodes, if they know them.
        layout: ``"episodes"`` for arrays of each episode, d3rlpy's layout 2.1; ``"flat"`` for arrays of all steps,
            d3rlpy's layout 1, which takes a fraction of the time and space if episodes are short; ``None`` for
            ``"flat"`` with more than 10,000 episodes of the same shapes and dtypes, else ``"episodes"``. `load` reads
            both, d3rlpy the second one with ``load_v1``.

    Raises:
        ConfigError: if ``f`` is not a path or file.
        ShapeError: if the observations of the episodes have different parts, or flat ones different shapes or dtypes.
        WriteError: if the file cannot be written.
    """
    check("layout", layout, str, choices=("episodes", "flat"), optional=True)
    whole = info is None and isinstance(episodes, Sequence) and len(episodes) > 0
    if whole and getattr(episodes[0], "spaces", None) is not None:
        info = DatasetInfo.from_episodes(episodes)
    write_binary(f, lambda file: _write(file, episodes, info, layout), "w+b", "; the order is dump(episodes, f)")


def _digest(file: BinaryIO, size: int) -> bytes:
    """Return the SHA-256 digest of the first ``size`` bytes."""
    file.seek(0)
    digest = hashlib.sha256()
    while size and (chunk := file.read(min(size, 1 << 20))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.digest()


def _write(f: BinaryIO, episodes: Sequence[Episode], info: DatasetInfo | None, layout: Layout | None) -> None:
    import h5py

    if not (f.readable() and f.seekable()):
        raise WriteError(
            "f is a pipe or device; it must be a regular file, not one which cannot be read back: give a path"
        )
    many = len(episodes) > MAX_SINGLE if layout is None else layout == "flat" and len(episodes) > 0
    flat = many and have_one_form(episodes)
    if layout == "flat" and many and not flat:
        raise ShapeError(
            "the episodes have different parts, extra arrays, shapes or dtypes; in layout='flat' all must have the "
            "same: leave layout out"
        )
    with h5py.File(f, "w") as file:
        (_write_flat if flat else _write_episodes)(file, episodes, info)
    digest = _digest(f, f.seek(0, os.SEEK_END))
    f.seek(0, os.SEEK_END)
    f.write(_TRAILER + digest)
    f.flush()


def _write_episodes(file: h5py.File, episodes: Sequence[Episode], info: DatasetInfo | None) -> None:
    file.create_dataset("columns", data=[name.encode() for name in _COLUMNS])
    file.create_dataset("num_episodes", data=len(episodes))
    file.create_dataset("version", data=b"2.1")
    template = _template(episodes[0].observations) if len(episodes) else 0
    structure = _structure(template)
    extra_names = sorted({name for episode in episodes for name in getattr(episode, "extra", None) or {}})
    file.create_dataset("birl", data=_meta(template, extra_names, info))
    put = _make_put(file)
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


def _make_put(file: h5py.File) -> Callable[[npt.ArrayLike, str], None]:
    """Return a function that writes an array. Files have many, which h5py's high-level objects make twice as slow."""
    import h5py

    kinds: dict[tuple[np.dtype[Any], tuple[int, ...]], tuple[Any, Any]] = {}

    def put(value: npt.ArrayLike, name: str) -> None:
        array = np.asarray(value, order="C")
        kind = kinds.get((array.dtype, array.shape))
        if kind is None:
            space = h5py.h5s.create_simple(array.shape) if array.shape else h5py.h5s.create(h5py.h5s.SCALAR)
            kind = kinds[array.dtype, array.shape] = (h5py.h5t.py_create(array.dtype, logical=True), space)
        made = h5py.h5d.create(file.id, name.encode(), *kind)
        if array.size:
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, array)

    return put


def _write_flat(file: h5py.File, episodes: Sequence[Episode], info: DatasetInfo | None) -> None:
    """Write one or more episodes of the same form as flat arrays, a block of episodes at a time."""
    first = FlatEpisodes.concatenate(episodes[:1])
    template = _template(first.observations)
    lengths, flags = lengths_and_flags(episodes)
    steps, known = int(lengths.sum()), int(np.count_nonzero((flags & UNKNOWN) == 0))
    ends = np.cumsum(lengths) - 1
    terminals = np.zeros(steps, bool)
    terminals[ends] = (flags & TERMINATED) != 0
    file.create_dataset("version", data=b"1.0")
    file.create_dataset("birl", data=_meta(template, list(first.extra), info))
    if info is not None:
        file.create_dataset("discrete_action", data=info.action_space is ActionSpace.DISCRETE)
    file.create_dataset("terminals", data=terminals)
    file.create_dataset("episode_terminals", data=np.isin(np.arange(steps), ends, assume_unique=True))
    file.create_dataset("episode_flags", data=flags)
    made: dict[str, h5py.Dataset] = {}
    written = dict.fromkeys(("steps", "finals"), 0)
    width = sum(leaf[:1].nbytes for leaf in _flat_columns(first, template)["steps"].values())
    block = np.cumsum(lengths) * width // _BLOCK
    stops = [*(np.flatnonzero(np.diff(block)) + 1).tolist(), len(episodes)]
    for begin, stop in zip([0, *stops], stops, strict=False):
        if isinstance(episodes, EpisodeList):
            part = FlatEpisodes.read(episodes, begin, stop)
        else:
            part = FlatEpisodes.concatenate(episodes[begin:stop])
        for group, columns in _flat_columns(part, template).items():
            at = written[group]
            for name, column in columns.items():
                if name not in made:
                    shape = (steps if group == "steps" else known, *column.shape[1:])
                    made[name] = file.create_dataset(name, shape, column.dtype)
                made[name][at : at + len(column)] = column
                written[group] = at + len(column)


def _flat_columns(flat: FlatEpisodes, template: Tree) -> dict[str, dict[str, Array]]:
    """Return the arrays of all steps and of final observations by their names in a file."""
    names = list(tree_leaves(_flat_names("observations", template)))
    steps = dict(zip(names, tree_leaves(flat.observations), strict=True))
    steps |= {"actions": flat.actions, "rewards": flat.rewards}
    steps |= {f"extra_{number}": column for number, column in enumerate(flat.extra.values())}
    finals = [] if flat.finals is None else list(tree_leaves(flat.finals))
    return {"steps": steps, "finals": {f"final_{name}": leaf for name, leaf in zip(names, finals, strict=False)}}


def _flat_names(name: str, template: Tree) -> Tree:
    """Return the names of the arrays of all episodes; for ``template`` see `_names`."""
    return name if isinstance(template, int) else tree_map(lambda leaf: f"{name}_{leaf}", template)


def _template(observation: Tree) -> Tree:
    """Return the structure of an observation, with a number for each leaf."""
    numbers = itertools.count()
    return tree_map(lambda _: next(numbers), observation)


def _meta(template: Tree, extra_names: Sequence[str], info: DatasetInfo | None) -> str:
    meta = {
        "version": 1,
        "observation": template,
        "extra": extra_names,
        "action_space": None if info is None else info.action_space.value,
        "action_size": None if info is None else info.action_size,
        "choices": None if info is None else choices_to_json(info.observations),
    }
    return json.dumps(meta if info is None or not info.columns else {**meta, "columns": info.columns})


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
    episodes, space, size, observations = read_episodes(f, episode_cls, action_space)
    if isinstance(episodes, FlatEpisodes):
        episodes = _with_spaces(episodes.split(episode_cls), space, size, observations)
    return episodes, space, size


def read_episodes(f: PathOrFile, episode_cls: type[Episode], action_space: ActionSpace | None) -> Contents:
    """Return the contents of a file; see `load`."""
    check_readable(f, "load(f, episode_cls)")
    if not isinstance(episode_cls, type) or not hasattr(episode_cls, "deserialize"):
        raise ConfigError(
            f"episode_cls is {episode_cls!r:.80}; it must be a class such as birl.dataset.Episode: the order is "
            "load(f, episode_cls)"
        )
    with open_hdf5(f) as file:
        found, space, size, choices = file.episodes(action_space)
        observations = None
        if isinstance(found, FlatEpisodes):
            if choices is not None:
                observations = observations_from_json(
                    tree_map(lambda leaf: leaf.shape[1:], found.observations), choices
                )
            elif found.finals is not None:  # the largest category may be in a final observation
                observations = widen_observations(*map(infer_observations, (found.observations, found.finals)))
            whole = episode_cls is Episode
            made = found if whole else _with_spaces(found.split(episode_cls), space, size, observations)
            return Contents(made, space, size, observations)
        if found and choices is not None:
            shape = tree_map(lambda leaf: leaf.shape[1:], found[0]["observations"])
            observations = observations_from_json(shape, choices)
        single = [episode_cls.deserialize(episode) for episode in found]
        return Contents(_with_spaces(single, space, size, observations), space, size, observations)


def _with_spaces(
    episodes: list[Episode], space: ActionSpace | None, size: ActionSize, observations: Tree
) -> list[Episode]:
    """Set the spaces of episodes, if the file has all of them."""
    if space is not None and size is not None and observations is not None:
        spaces = Spaces(observations, parse_actions(size, space))
        for episode in episodes:
            episode.spaces = spaces
    return episodes


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
    with open_hdf5(f) as file:
        missing = [key for key in required if key not in file]
        if missing:
            raise ForeignFileError(
                f"{file.name} holds {sorted(file.h5)!s:.300}, but not {', '.join(missing)}: give a file that has them"
            )
        return {key: file.array(key) for key in (*required, *optional) if key in file}


Serialized: TypeAlias = tuple[list[dict[str, Any]] | FlatEpisodes, ActionSpace | None, Any, Any]


@contextlib.contextmanager
def open_hdf5(f: PathOrFile) -> Iterator[HDF5File]:
    """Open an HDF5 file. All errors are typed."""
    import h5py

    with open_binary(f) as (stream, name):
        stream.seek(0)
        if stream.read(len(_SIGNATURE)) != _SIGNATURE:
            raise ForeignFileError(f"{name} is not an HDF5 file: give one that dump(…) of birl or d3rlpy wrote")
        size = stream.seek(0, os.SEEK_END)
        guarded = _check_digest(stream, size, name)
        with convert_to_corrupt_error(name, "it cannot be read as HDF5"), h5py.File(stream, "r") as file:
            yield HDF5File(file, stream, MemoryBudget(name, size, PACKED), name, guarded)


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
class HDF5File:
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
        """Return whether an object exists; ``name`` is a path. Rejects links, which could lead out or in circles."""
        import h5py

        group: Any = self.h5.id
        *parents, last = name.split("/")
        for part in (*parents, last):
            links = group.links if isinstance(group, h5py.h5g.GroupID) else None
            if links is None or not links.exists(part.encode()):
                return False
            if links.get_info(part.encode()).type != h5py.h5l.TYPE_HARD:
                raise CorruptFileError(
                    f"{self.name}: {name:.80} is a link, no array of this file: store the array itself"
                )
            if part is not last:
                group = h5py.h5o.open(group, part.encode())
        return True

    def members(self, name: str) -> list[str]:
        """Return the names in a group, ``""`` for the whole file; none if there is no such group."""
        import h5py

        group = h5py.h5o.open(self.h5.id, name.encode() or b"/") if not name or name in self else None
        return [each.decode() for each in group] if isinstance(group, h5py.h5g.GroupID) else []

    def check_objects(self) -> None:
        """Check all objects before another library reads the file: no links, and all bytes of arrays in the file."""
        import h5py

        waiting, seen = [""], set()
        while waiting:
            parent = waiting.pop()
            group = h5py.h5o.open(self.h5.id, parent.encode() or b"/")
            for each in group:
                name = f"{parent}/{each.decode()}".removeprefix("/")
                found = h5py.h5o.open(self.h5.id, name.encode()) if name in self else None
                if isinstance(found, h5py.h5d.DatasetID):
                    self._dataset(name)
                elif isinstance(found, h5py.h5g.GroupID):
                    if (place := h5py.h5o.get_info(found).addr) in seen:  # perhaps in itself, without end
                        raise CorruptFileError(
                            f"{self.name}: {name:.80} is a second name of a group: store the group itself"
                        )
                    seen.add(place)
                    waiting.append(name)

    def texts(self, name: str) -> list[str]:
        """Read an array of texts of fixed length ``[N]``."""
        import h5py

        dataset = self._dataset(name)
        if dataset.dtype.kind != "S" or len(dataset.shape) != 1:
            raise CorruptFileError(f"{self.name}: {name:.80} holds {dataset.dtype}, no texts of fixed length")
        read = np.zeros(dataset.shape, dataset.dtype)
        if read.size:
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, read)
        return [each.decode() for each in read.tolist()]

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
        pieces = zip(dataset.shape, chunk, strict=True) if chunk else ()
        self.budget.spend(largest * itemsize + _CHUNK * math.prod(-(-length // each) for length, each in pieces), name)
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
        """Return the episodes (single ones for `Episode.deserialize`), action space and size. See `load`."""
        if "birl" in self and not self.guarded:
            raise CorruptFileError(f"{self.name} is truncated: its digest is missing. Restore it from a copy")
        if "num_episodes" in self:
            return self._single(action_space)
        if all(name in self for name in ("actions", "rewards", "terminals")):
            return self._flat(action_space)
        raise ForeignFileError(
            f"{self.name} holds no episodes in d3rlpy's layout: give a file that dump(…) wrote. "
            "birl.datasets.load_robomimic reads Robomimic's layout, get_d4rl D4RL's"
        )

    def _meta(self) -> dict[str, Any]:
        """Return birl's own data; defaults for a file of d3rlpy."""
        meta: dict[str, Any] = {"observation": None, "extra": [], "action_space": None, "action_size": None}
        if "birl" in self:
            meta |= parse_json(self._text("birl").encode(), self.name)
            if meta["version"] != 1:
                raise ForeignFileError(f"{self.name} was written by a newer birl: install that")
        size = meta["action_size"]
        meta["action_space"] = None if meta["action_space"] is None else ActionSpace(meta["action_space"])
        try:
            if size is not None:
                parse_actions(size, meta["action_space"])
            meta["columns"] = columns_from_json(meta.get("columns"))
        except ConfigError as error:
            raise CorruptFileError(f"{self.name}: {error!s:.200}: use another copy") from error
        if not isinstance(meta["extra"], list):
            raise CorruptFileError(f"{self.name} has extra columns {meta['extra']!r:.60}: use another copy")
        return meta

    def _flat(self, space: ActionSpace | None) -> Serialized:
        meta = self._meta()
        template = 0 if meta["observation"] is None else tree_of_json(meta["observation"])
        observations = tree_map(self.array, _flat_names("observations", template))
        terminals, actions, rewards = (
            self.array("terminals").reshape(-1) != 0,
            self.array("actions"),
            self.array("rewards"),
        )
        ends = terminals.copy()
        if "episode_terminals" in self:
            ends |= self.array("episode_terminals").reshape(-1) != 0
        extra = {name: self.array(f"extra_{number}") for number, name in enumerate(meta["extra"])}
        for column in (ends, *tree_leaves(observations), actions, rewards, *extra.values()):
            if column.shape[:1] != terminals.shape:
                raise CorruptFileError(f"{self.name}: arrays have different lengths: restore it from a copy")
        if not len(ends):
            return [], space, None, None
        ends[-1] = True
        stops = np.flatnonzero(ends) + 1
        self.budget.spend(len(stops) * _EPISODE, f"{len(stops)} episodes")
        flags, finals = self._flags(terminals[stops - 1], template)
        if "birl" not in self:
            rewards = rewards.reshape(-1, 1)
            if space is None and "discrete_action" in self:
                space = ActionSpace.DISCRETE if self.array("discrete_action") else ActionSpace.CONTINUOUS
            elif space is None:
                space = detect_action_space(actions)
        lengths = np.diff(stops, prepend=0)
        flat = FlatEpisodes(observations, actions, rewards, lengths, flags, finals, extra, meta["columns"])
        return flat, *self._spec(meta, space)

    def _flags(self, terminated: Array, template: Tree) -> tuple[Array, Tree]:
        """Return the flags of episodes in flat arrays, and their final observations."""
        if "episode_flags" not in self:
            return np.where(terminated, TERMINATED, TRUNCATED).astype(np.uint8) | UNKNOWN, None
        flags = self.array("episode_flags")
        if flags.shape != terminated.shape or ((flags & TERMINATED != 0) != terminated).any():
            raise CorruptFileError(f"{self.name}: episode_flags are not those of the terminals: restore it from a copy")
        known = int(np.count_nonzero((flags & UNKNOWN) == 0))
        if not known:
            return flags, None
        finals = tree_map(self.array, _flat_names("final_observations", template))
        if any(leaf.shape[:1] != (known,) for leaf in tree_leaves(finals)):
            raise CorruptFileError(f"{self.name}: not each final observation is there: restore it from a copy")
        return flags, finals

    def _spec(self, meta: dict[str, Any], space: ActionSpace | None) -> tuple[ActionSpace | None, Any, Any]:
        """Return the action space, action size and observation spec; ``space`` replaces the one in the file."""
        if space not in (None, meta["action_space"]):
            return space, None, meta.get("choices")
        return meta["action_space"], meta["action_size"], meta.get("choices")

    def _single(self, action_space: ActionSpace | None) -> Serialized:
        version = self._text("version") if "version" in self else "2.0"
        if not version.startswith("2."):
            raise ForeignFileError(
                f"{self.name} has layout version {version!r:.20}, known are 1 and 2: install a newer birl"
            )
        meta = self._meta()
        template = tree_of_json(meta["observation"])
        if template is None:  # a file of d3rlpy
            template = tuple(itertools.takewhile(lambda leaf: f"observations_0_{leaf}" in self, itertools.count())) or 0
        count = self._count()
        self.budget.spend(count * (_EPISODE + len(meta["extra"])), f"{count} episodes")
        episodes = [self._episode(index, template, meta["extra"]) for index in range(count)]
        for episode in episodes if meta["columns"] else ():
            episode["columns"] = meta["columns"]
        return episodes, *self._spec(meta, action_space)

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
