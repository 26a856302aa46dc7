"""HDF5 files in d3rlpy's layout, both ways.

Layout 2.1 is flat: ``columns``, ``num_episodes``, ``version``, and for episode i ``observations_{i}`` (or
``observations_{i}_{j}`` for the leaves of a tree), ``actions_{i}``, ``rewards_{i}``, ``terminated_{i}``. What d3rlpy
leaves out is added under names that it does not read: ``truncated_{i}``, ``final_observation_{i}`` (or ``_{i}_{j}``),
``extra_{i}_{k}`` and ``birl`` (JSON: structure of observations, action space and size, names of extra columns). Behind
the end of the HDF5 part, where its readers do not look, stands a digest of all bytes. It is checked before the file is
given to the HDF5 library, which can loop for ever on damaged files. Files that d3rlpy wrote have no such guard.

Version 1 is ``observations, actions, rewards, terminals`` and perhaps ``episode_terminals`` and ``discrete_action``,
over all steps.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from io import TextIOBase
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from birl.dataset.episode import DatasetInfo, Episode
from birl.dataset.validation import detect_action_space
from birl.errors import BirlError, ConfigError, CorruptFileError, FileError, ForeignFileError, WriteError
from birl.files import atomic_write
from birl.types import ActionSpace, Array, Tree, tree_leaves, tree_map

_COLUMNS = ["observations", "actions", "rewards", "terminated"]
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_TRAILER = b"birl-sha256:"
_DIGEST_SIZE = hashlib.sha256().digest_size
_MAXIMUM_RATIO = 1100  # deflate shrinks to 1/1032 at best: a file that claims more is damaged

Target = str | os.PathLike[str] | BinaryIO
Loaded = tuple[list[Episode], ActionSpace | None, int | None]


def _build(template: Any, leaves: list[Array]) -> Tree:
    if isinstance(template, dict):
        return {key: _build(item, leaves) for key, item in template.items()}
    if isinstance(template, list):
        return tuple(_build(item, leaves) for item in template)
    return leaves[template]


def _leaf_names(name: str, episode: int, template: Any, count: int) -> list[str]:
    if isinstance(template, int):
        return [f"{name}_{episode}"]
    return [f"{name}_{episode}_{leaf}" for leaf in range(count)]


def dump(episodes: Sequence[Episode], f: Target, info: DatasetInfo | None = None) -> None:
    """Write episodes.

    Args:
        episodes: episodes.
        f: path, or a file opened with ``"w+b"``. A path is replaced only when all is written.
        info: action space and size to note down.

    Raises:
        ConfigError: if ``f`` is no file.
        WriteError: if the file cannot be written.
    """
    if not isinstance(f, str | os.PathLike) and not hasattr(f, "write"):
        raise ConfigError(
            f"f is {f!r:.80}; it must be a path or a file opened with open(path, 'w+b'): the order is dump(episodes, f)"
        )
    if isinstance(f, str | os.PathLike):
        try:
            with tempfile.TemporaryFile(dir=Path(f).absolute().parent) as temporary:
                dump(episodes, temporary, info)  # type: ignore[arg-type]
                temporary.seek(0)
                atomic_write(f, lambda target: shutil.copyfileobj(temporary, target))
        except WriteError:
            raise
        except OSError as error:
            raise WriteError(
                f"{os.fspath(f)} could not be written ({error}): free some space or choose another folder"
            ) from error
        return
    import h5py

    try:
        with h5py.File(f, "w") as file:
            _write(file, episodes, info)
        digest = _digest(f, f.seek(0, os.SEEK_END))
        f.seek(0, os.SEEK_END)
        f.write(_TRAILER + digest)
        f.flush()
    except (OSError, ValueError, AttributeError) as error:
        raise WriteError(
            f"the file could not be written ({error}): open it with open(path, 'w+b'), or give the path"
        ) from error


def _digest(file: BinaryIO, size: int) -> bytes:
    """SHA-256 of the first ``size`` bytes."""
    file.seek(0)
    digest = hashlib.sha256()
    while size and (chunk := file.read(min(size, 1 << 20))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.digest()


def _write(file: Any, episodes: Sequence[Episode], info: DatasetInfo | None) -> None:
    file.create_dataset("columns", data=[name.encode() for name in _COLUMNS])
    file.create_dataset("num_episodes", data=len(episodes))
    file.create_dataset("version", data=b"2.1")
    first = episodes[0] if len(episodes) else None
    numbers = itertools.count()  # the structure of an observation: a number for each leaf
    template: Any = 0 if first is None else tree_map(lambda _: next(numbers), first.observations)
    extra_names = sorted({name for episode in episodes for name in getattr(episode, "extra", None) or {}})
    meta = {
        "version": 1,
        "observation": template,
        "extra": extra_names,
        "action_space": None if info is None else info.action_space.value,
        "action_size": None if info is None else info.action_size,
    }
    file.create_dataset("birl", data=json.dumps(meta))

    def put(name: str, value: Any) -> None:
        file.create_dataset(name, data=np.asarray(value))

    for index, episode in enumerate(episodes):
        final, extra = getattr(episode, "final_observation", None), getattr(episode, "extra", None) or {}
        leaves = list(tree_leaves(episode.observations))
        for name, leaf in zip(_leaf_names("observations", index, template, len(leaves)), leaves, strict=True):
            put(name, leaf)
        put(f"actions_{index}", episode.actions)
        put(f"rewards_{index}", episode.rewards)
        put(f"terminated_{index}", bool(episode.terminated))
        put(f"truncated_{index}", bool(getattr(episode, "truncated", not episode.terminated)))
        if final is not None:
            names = _leaf_names("final_observation", index, template, len(leaves))
            for name, leaf in zip(names, tree_leaves(final), strict=True):
                put(name, leaf)
        for number, name in enumerate(extra_names):
            if name in extra:
                put(f"extra_{index}_{number}", extra[name])


def load(f: Target, episode_cls: type[Episode] = Episode, action_space: ActionSpace | None = None) -> Loaded:
    """Read episodes that birl or d3rlpy (versions 1 and 2) wrote, with action space and size if they are noted down.

    Args:
        f: path, or a file opened for binary reading.
        episode_cls: what to make of each episode.
        action_space: kind of actions, to overrule what the file says.

    Raises:
        ConfigError: if ``f`` is no file, or ``episode_cls`` no class of episodes.
        ActionError: if it is of version 1 and does not tell the kind of its actions.
        ForeignFileError: if it is another kind of file.
        CorruptFileError: if it is truncated or damaged.
    """
    check_readable(f, "load(f, episode_cls)")
    if not isinstance(episode_cls, type) or not hasattr(episode_cls, "deserialize"):
        raise ConfigError(
            f"episode_cls is {episode_cls!r:.80}; it must be a class such as birl.dataset.Episode: the order is "
            "load(f, episode_cls)"
        )
    with _opened(f) as (file, size, name, guarded):
        return _Reader(file, size, name, episode_cls, action_space).read(guarded)


def check_readable(f: Any, call: str) -> None:
    """Raise `ConfigError` unless ``f`` is a path or a binary file; ``call`` tells the order of the arguments."""
    if isinstance(f, str | os.PathLike):
        return
    if isinstance(f, type | TextIOBase) or not (hasattr(f, "read") and hasattr(f, "seek")):
        raise ConfigError(
            f"f is {f!r:.80}; it must be a path or a file opened with open(path, 'rb'): the order is {call}"
        )


def read_arrays(f: Target, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Array]:
    """Read named arrays of numbers from an HDF5 file of any origin.

    Args:
        f: path, or a file opened for binary reading.
        required: names that must be there.
        optional: names that are left out if they are not.

    Raises:
        ForeignFileError: if it is another kind of file, or a required array is missing.
        CorruptFileError: if it is truncated or damaged.
    """
    with _opened(f) as (file, size, name, _):
        missing = [key for key in required if key not in file]
        if missing:
            raise ForeignFileError(
                f"{name} holds {sorted(file)!s:.300}, but not {', '.join(missing)}: give a file with these arrays"
            )
        return {key: _checked_array(file, key, size, name) for key in (*required, *optional) if key in file}


@contextlib.contextmanager
def _opened(f: Target) -> Iterator[tuple[Any, int, str, bool]]:
    """An HDF5 file with its size, its name for messages, and whether a digest guards it. Raises typed errors."""
    import h5py

    name = os.fspath(f) if isinstance(f, str | os.PathLike) else getattr(f, "name", "the file")
    try:
        with open(f, "rb") if isinstance(f, str | os.PathLike) else contextlib.nullcontext(f) as stream:
            stream.seek(0)
            begin = stream.read(len(_SIGNATURE))
            size = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            if begin != _SIGNATURE:
                raise ForeignFileError(f"{name} is not an HDF5 file: give one that dump(…) of birl or d3rlpy wrote")
            guarded = _check_digest(stream, size, str(name))
            try:
                with h5py.File(stream, "r") as file:
                    yield file, size, str(name), guarded
            except BirlError:
                raise
            except Exception as error:  # a damaged HDF5 file can raise nearly anything
                raise CorruptFileError(
                    f"{name} is truncated or damaged ({type(error).__name__}: {error!s:.200}): restore it from a copy"
                ) from error
    except OSError as error:
        if isinstance(error, BirlError):
            raise
        raise FileError(f"{name} cannot be read ({error}): check the path") from error


def _check_digest(stream: BinaryIO, size: int, name: str) -> bool:
    """Check the digest after the HDF5 part, if present. Returns whether it is."""
    body = size - len(_TRAILER) - _DIGEST_SIZE
    stream.seek(max(body, 0))
    trailer = stream.read()
    guarded = trailer.startswith(_TRAILER)
    if guarded and _digest(stream, body) != trailer[len(_TRAILER) :]:
        raise CorruptFileError(f"{name} was altered: its digest does not agree. Restore it from a copy")
    stream.seek(0)
    return guarded


def _checked_array(file: Any, name: str, size: int, path: str) -> Array:
    """One dataset of a file of ``size`` bytes, read only if the file can really hold as much as its header claims."""
    import h5py

    dataset = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
        raise CorruptFileError(f"{path}: {name:.80} is no array of this file itself: store the array itself")
    if dataset.dtype.kind not in "biuf":
        raise CorruptFileError(f"{path}: {name} holds {dataset.dtype}, not numbers: restore it from a copy")
    stored = size if dataset.chunks is None else dataset.id.get_storage_size() * _MAXIMUM_RATIO
    if dataset.size * dataset.dtype.itemsize > stored:
        raise CorruptFileError(f"{path}: {name} claims shape {dataset.shape}, more than the file holds")
    return np.asarray(dataset[()])


class _Reader:
    """Reads one open file."""

    def __init__(
        self, file: Any, size: int, name: str, episode_cls: type[Episode], action_space: ActionSpace | None
    ) -> None:
        self.file, self.size, self.name = file, size, name
        self.episode_cls, self.action_space = episode_cls, action_space

    def read(self, guarded: bool) -> Loaded:
        if "birl" in self.file and not guarded:
            raise CorruptFileError(f"{self.name} is truncated: its digest is missing. Restore it from a copy")
        if not guarded:
            self._check_links()
        if "num_episodes" in self.file:
            return self._version_2()
        if all(name in self.file for name in ("observations", "actions", "rewards", "terminals")):
            return self._version_1()
        raise ForeignFileError(f"{self.name} holds no episodes in d3rlpy's layout: give a file that dump(…) wrote")

    def _check_links(self) -> None:
        """A link could lead out of the file, or round in circles. Neither birl nor d3rlpy writes one."""
        import h5py

        for name in self.file:
            if not isinstance(self.file.get(name, getlink=True), h5py.HardLink):
                raise CorruptFileError(f"{self.name}: {name:.80} is a link; it must be an array: store it itself")

    def _flag(self, name: str) -> bool:
        value = self._array(name)
        if value.size != 1 or not np.isin(value, (0, 1)).all():
            raise CorruptFileError(f"{self.name}: {name} is {value!r:.80}; it must be 0 or 1: restore it from a copy")
        return bool(value.reshape(-1)[0])

    def _count(self) -> int:
        value, name = self._array("num_episodes"), re.compile(r"actions_\d+")
        present = sum(1 for member in self.file if name.fullmatch(member))
        if value.size != 1 or value.dtype.kind not in "iu" or int(value.reshape(-1)[0]) != present:
            raise CorruptFileError(
                f"{self.name}: num_episodes is {value!r:.80}, but {present} episodes are there: restore it from a copy"
            )
        return present

    def _array(self, name: str) -> Array:
        return _checked_array(self.file, name, self.size, self.name)

    def _text(self, name: str) -> str:
        value = self.file[name][()]
        return value.decode() if isinstance(value, bytes) else str(value)

    def _version_1(self) -> Loaded:
        observations, terminals = self._array("observations"), self._array("terminals").reshape(-1) != 0
        actions, rewards = self._array("actions"), self._array("rewards").reshape(-1, 1)
        ends = terminals.copy()
        if "episode_terminals" in self.file:
            ends |= self._array("episode_terminals").reshape(-1) != 0
        if not len(ends) == len(observations) == len(actions) == len(rewards):
            raise CorruptFileError(f"{self.name}: arrays have different lengths: restore it from a copy")
        stops = np.flatnonzero(ends) + 1
        if not len(stops) or stops[-1] != len(ends):
            stops = np.append(stops, len(ends))
        starts = [0, *stops[:-1].tolist()]
        space = self.action_space
        if space is None and "discrete_action" in self.file:
            space = ActionSpace.DISCRETE if self._array("discrete_action") else ActionSpace.CONTINUOUS
        elif space is None:
            space = detect_action_space(actions)
        episodes = [
            self._episode(observations[a:b], actions[a:b], rewards[a:b], bool(terminals[b - 1]))
            for a, b in zip(starts, stops.tolist(), strict=True)
            if b > a
        ]
        return episodes, space, None

    def _episode(self, observations: Tree, actions: Array, rewards: Array, terminated: bool, **options: Any) -> Episode:
        options.setdefault("truncated", not terminated)
        if issubclass(self.episode_cls, Episode):
            return self.episode_cls(observations, actions, rewards, terminated, **options)
        data = {"observations": observations, "actions": actions, "rewards": rewards, "terminated": terminated}
        return self.episode_cls.deserialize(data | options)

    def _version_2(self) -> Loaded:
        version = self._text("version") if "version" in self.file else "2.0"
        if not version.startswith("2."):
            raise ForeignFileError(
                f"{self.name} has layout version {version!r:.20}, known are 1 and 2: install a newer birl"
            )
        meta: dict[str, Any] = {"observation": None, "extra": [], "action_space": None, "action_size": None}
        if "birl" in self.file:
            meta |= json.loads(self._text("birl"))
            if meta["version"] != 1:
                raise ForeignFileError(f"{self.name} was written by a newer birl: install that")
        count = self._count()
        episodes = [self._read_episode(index, meta) for index in range(count)]
        space = None if meta["action_space"] is None else ActionSpace(meta["action_space"])
        if self.action_space not in (None, space):
            return episodes, self.action_space, None
        return episodes, space, meta["action_size"]

    def _tree(self, name: str, index: int, template: Any) -> Tree:
        if template is None and f"{name}_{index}" not in self.file:  # d3rlpy's tuples
            template = list(range(self._count_leaves(name, index)))
        if template is None or isinstance(template, int):
            return self._array(f"{name}_{index}")
        count = len(list(_flat(template)))
        return _build(template, [self._array(f"{name}_{index}_{leaf}") for leaf in range(count)])

    def _count_leaves(self, name: str, index: int) -> int:
        count = 0
        while f"{name}_{index}_{count}" in self.file:
            count += 1
        return count

    def _read_episode(self, index: int, meta: dict[str, Any]) -> Episode:
        observations = self._tree("observations", index, meta["observation"])
        actions, rewards = self._array(f"actions_{index}"), self._array(f"rewards_{index}")
        terminated = self._flag(f"terminated_{index}")
        options: dict[str, Any] = {}
        if f"truncated_{index}" in self.file:
            options["truncated"] = self._flag(f"truncated_{index}")
        if f"final_observation_{index}" in self.file or f"final_observation_{index}_0" in self.file:
            options["final_observation"] = self._tree("final_observation", index, meta["observation"])
        extra = {
            name: self._array(f"extra_{index}_{number}")
            for number, name in enumerate(meta["extra"])
            if f"extra_{index}_{number}" in self.file
        }
        if extra:
            options["extra"] = extra
        return self._episode(observations, actions, rewards, terminated, **options)


def _flat(template: Any) -> Iterator[int]:
    if isinstance(template, dict):
        template = list(template.values())
    if not isinstance(template, list):
        yield template
        return
    for item in template:
        yield from _flat(item)
