"""The DQN replay datasets of Atari games (Agarwal et al. 2020, arXiv:1907.04543), under d4rl-atari's names.

An epoch is a million steps: ``observation.gz``, ``action.gz``, ``reward.gz`` and ``terminal.gz``, each a gzipped
``.npy`` array. Frames are uint8 ``[84, 84]``; uncompressed they take 7 GB per epoch. They are read in one pass, which
needs memory for one episode in addition to the stored ones.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import gymnasium
import numpy as np

from birl.checks import check
from birl.dataset import (
    Episode,
    FrameStackTrajectorySlicer,
    FrameStackTransitionPicker,
    ReplayBuffer,
    Sampler,
    Signature,
)
from birl.dataset.replay_buffer import StorageLocation
from birl.dataset.validation import as_flags
from birl.datasets.folders import Where, environment_or_none, find, store_episodes
from birl.envs.atari import AtariPreprocessing, game_name, make_atari
from birl.envs.wrappers import ChannelFirst, FrameStack
from birl.errors import ConfigError, CorruptFileError, FileError
from birl.seeding import new_generator
from birl.spaces import actions_from_space
from birl.types import ActionSpace, Array

PATTERN: Final = re.compile(r"([a-z][a-z0-9-]*?)-(mixed|medium|expert|epoch-[1-9]\d?)-v([0-4])")
"""Names of d4rl-atari's datasets: game, kind and version."""

GAMES: Final = (
    *("adventure", "air-raid", "alien", "amidar", "assault", "asterix", "asteroids", "atlantis", "bank-heist"),
    *("battle-zone", "beam-rider", "berzerk", "bowling", "boxing", "breakout", "carnival", "centipede"),
    *("chopper-command", "crazy-climber", "defender", "demon-attack", "double-dunk", "elevator-action", "enduro"),
    *("fishing-derby", "freeway", "frostbite", "gopher", "gravitar", "hero", "ice-hockey", "jamesbond"),
    *("journey-escape", "kangaroo", "krull", "kung-fu-master", "montezuma-revenge", "ms-pacman", "name-this-game"),
    *("phoenix", "pitfall", "pong", "pooyan", "private-eye", "qbert", "riverraid", "road-runner", "robotank"),
    *("seaquest", "skiing", "solaris", "space-invaders", "star-gunner", "tennis", "time-pilot", "tutankham"),
    *("up-n-down", "venture", "video-pinball", "wizard-of-wor", "yars-revenge", "zaxxon"),
)
"""Games with logged data."""

_EPOCHS: Final = {"mixed": 1, "medium": 10, "expert": 50}
_COLUMNS: Final = ("observation", "action", "reward", "terminal")
_ROWS: Final = 4096
_BLOCK: Final = 2**26  # most bytes that are read at once


def get_atari(
    env_name: str,
    num_stack: int | None = None,
    sticky_action: bool = True,
    pre_stack: bool = False,
    render_mode: str | None = None,
    *,
    path: Where = None,
    storage: StorageLocation = "memory",
    sampler: Sampler | None = None,
) -> tuple[ReplayBuffer, gymnasium.Env[Any, Any] | None]:
    """Read one epoch of a game. Nothing is downloaded: if a file is missing, the error names it.

    Args:
        env_name: ``"<game>-mixed-v0"`` (the first epoch), ``-medium-`` (the tenth), ``-expert-`` (the fiftieth) or
            ``-epoch-<n>-``. Versions 0 … 4 are the runs 1 … 5.
        num_stack: number of frames to stack, in the dataset and in the environment. Frames are stored once.
        sticky_action: see `birl.envs.make_atari`.
        pre_stack: without effect, kept for d3rlpy code; samples are the same.
        render_mode: render mode of the environment.
        path: folder with ``<Game>/<run>/<epoch>/observation.gz`` and the other files (d4rl-atari's layout), or
            ``<Game>/<run>/replay_logs/$store$_observation_ckpt.<epoch>.gz`` (the original layout); ``None`` for
            ``BIRL_DATA_DIR`` (else ``~/.birl/datasets``) and ``~/.d4rl/datasets``.
        storage: ``"memory"``, a torch device, or the path of a new folder for data larger than memory.
        sampler: selects the steps of minibatches; `birl.dataset.Uniform` if ``None``.

    Returns:
        The dataset, and its environment (``None``, with a warning, without the extra ``atari``).

    Raises:
        ConfigError: if the name is not a name of d4rl-atari.
        FileError: if a file is missing; the message says what to download and where to put it.
        CorruptFileError: if a file is damaged.
    """
    found = PATTERN.fullmatch(check("env_name", env_name, str))
    if found is None:
        raise ConfigError(
            f"{env_name!r} is not an Atari dataset: give '<game>-mixed-v0', or medium, expert or epoch-<n> in place of "
            "mixed"
        )
    game, kind, version = found.groups()
    epoch = _EPOCHS.get(kind) or int(kind.removeprefix("epoch-"))
    epochs = [_Epoch(game, int(version), epoch, path)]
    return _load(game, epochs, None, num_stack, sticky_action, render_mode, storage, sampler)


def get_atari_transitions(
    game_name: str,
    fraction: float = 0.01,
    index: int = 0,
    num_stack: int | None = None,
    sticky_action: bool = True,
    pre_stack: bool = False,
    render_mode: str | None = None,
    *,
    epochs: Sequence[int] = range(1, 51),
    path: Where = None,
    storage: StorageLocation = "memory",
    sampler: Sampler | None = None,
) -> tuple[ReplayBuffer, gymnasium.Env[Any, Any] | None]:
    """Sample a share of the steps of each epoch of a game: whole episodes, the last one cut to fit.

    Args:
        game_name: such as ``"breakout"``.
        fraction: share of each epoch, in (0, 1].
        index: version, 0 … 4, as in `get_atari`.
        num_stack, sticky_action, pre_stack, render_mode, path, storage, sampler: see `get_atari`.
        epochs: numbers of the epochs, 1 … 50.

    Returns:
        The dataset, and its environment (``None``, with a warning, without the extra ``atari``).

    Raises:
        ConfigError, FileError, CorruptFileError: as `get_atari`.
    """
    check("fraction", fraction, float, above=0, high=1)
    files = [_Epoch(game_name, index, epoch, path) for epoch in epochs]
    if not files:
        raise ConfigError("epochs is empty: give at least one of 1 … 50")
    return _load(game_name, files, fraction, num_stack, sticky_action, render_mode, storage, sampler)


def _load(
    game: str,
    epochs: Sequence[_Epoch],
    fraction: float | None,
    num_stack: int | None,
    sticky_action: bool,
    render_mode: str | None,
    storage: StorageLocation,
    sampler: Sampler | None,
) -> tuple[ReplayBuffer, gymnasium.Env[Any, Any] | None]:
    def make() -> gymnasium.Env[Any, Any]:
        env = AtariPreprocessing(make_atari(game, sticky_action=sticky_action, render_mode=render_mode))
        return FrameStack(env, num_stack) if num_stack else ChannelFirst(env)

    env = environment_or_none(repr(game), make)
    if env is None:
        action_size = 1 + max(int(epoch.column("action").max()) for epoch in epochs)
    else:
        action_size = actions_from_space(env.action_space).size
    generator = new_generator()
    dataset = store_episodes(
        (episode for epoch in epochs for episode in epoch.episodes(fraction, generator)),
        sum(epoch.rows(fraction) for epoch in epochs),
        transition_picker=FrameStackTransitionPicker(num_stack) if num_stack else None,
        trajectory_slicer=FrameStackTrajectorySlicer(num_stack) if num_stack else None,
        action_signature=Signature([np.dtype(np.int64)], [(1,)]),
        action_space=ActionSpace.DISCRETE,
        action_size=action_size,
        storage=storage,
        sampler=sampler,
    )
    assert dataset is not None
    return dataset, env


class _Epoch:
    """The files of one epoch."""

    def __init__(self, game: str, version: int, epoch: int, path: Where) -> None:
        folder = f"{game_name(game)}/{version + 1}"
        original = f"$store$_observation_ckpt.{epoch}.gz"
        self.path = find(
            f"epoch {epoch} of the Atari game {game!r}",
            [f"{folder}/{epoch}/observation.gz", f"{folder}/replay_logs/{original}"],
            path,
            f"gs://atari-replay-datasets/dqn/{folder}/replay_logs/{original} (with gsutil), and the files with action, "
            "reward and terminal in place of observation,",
        )

        for column in _COLUMNS:
            if not self._file(column).exists():
                raise FileError(f"{self._file(column)} is missing next to {self.path}: download it as well")

    def _file(self, column: str) -> Path:
        return self.path.with_name(self.path.name.replace("observation", column))

    def rows(self, fraction: float | None) -> int:
        """Return a sufficient number of rows for the steps of this epoch."""
        terminals = self.column("terminal")
        ends = int(np.count_nonzero(terminals)) + 1
        return ends + (len(terminals) if fraction is None else int(fraction * len(terminals)) + 1)

    def column(self, name: str) -> Array:
        """Read actions, rewards or terminals ``[N]``."""
        with _Rows(self._file(name)) as rows:
            if len(rows.shape) != 1:
                raise CorruptFileError(f"{rows.path} has shape {rows.shape}, expected is (N,): give the original file")
            return rows.take(rows.shape[0])

    def episodes(self, fraction: float | None, generator: np.random.Generator) -> Iterator[Episode]:
        """Yield all episodes, or some with ``fraction`` of the steps; steps after the last end form an episode."""
        actions, rewards, terminals = (self.column(name) for name in _COLUMNS[1:])
        terminals = as_flags("terminals", terminals)
        with _Rows(self.path) as frames:
            count = len(terminals)
            if not len(actions) == len(rewards) == count == frames.shape[0] or not count or len(frames.shape) != 3:
                raise CorruptFileError(
                    f"{self.path} has shape {frames.shape}, and there are {len(actions)} actions, {len(rewards)} "
                    f"rewards and {count} terminals; expected are (N, height, width) and N each: download them again"
                )
            ends = np.flatnonzero(terminals) + 1
            stops = np.unique(np.append(ends, count))
            starts = np.concatenate([[0], stops[:-1]])
            lengths = stops - starts
            if fraction is not None:
                lengths = _share(lengths, max(int(fraction * count), 1), generator)
            for begin, stop, length in zip(starts.tolist(), stops.tolist(), lengths.tolist(), strict=True):
                whole = begin + length == stop
                if length:
                    kept = frames.take(length)[:, None]
                    following = None if whole else frames.take(1)
                    frames.skip(stop - begin - length - (not whole))
                    rows = slice(begin, begin + length)
                    ended = whole and bool(terminals[stop - 1])
                    yield Episode(
                        kept, actions[rows], rewards[rows], ended, truncated=not ended, final_observation=following
                    )
                else:
                    frames.skip(stop - begin)


def _share(lengths: Array, wanted: int, generator: np.random.Generator) -> Array:
    """Return the number of kept steps of each episode: all of random ones, and a part of the last one."""
    order = generator.permutation(len(lengths))
    before = np.cumsum(lengths[order]) - lengths[order]
    kept = np.zeros_like(lengths)
    kept[order] = np.clip(wanted - before, 0, lengths[order])
    return kept


class _Rows:
    """Sequential reader of the rows of a gzipped ``.npy`` array of numbers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = gzip.open(path, "rb")  # noqa: SIM115 (closed by __exit__)
        try:
            version = np.lib.format.read_magic(self._file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            self.shape, by_columns, self._dtype = read(self._file)
        except (OSError, EOFError, ValueError, TypeError, zlib.error) as error:
            self._file.close()
            raise self._damaged(str(error)) from error
        self._size = self._dtype.itemsize * math.prod(self.shape[1:])
        fits = self._dtype.kind in "biuf" and self.shape and all(type(n) is int and n >= 0 for n in self.shape)
        if not fits or (by_columns and len(self.shape) > 1) or self._size > _BLOCK:
            self._file.close()
            raise self._damaged(f"it holds {self._dtype} of shape {self.shape!s:.80}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _damaged(self, why: str) -> CorruptFileError:
        return CorruptFileError(f"{self.path} is damaged or not a gzipped .npy array ({why}): download it again")

    def _chunks(self, count: int) -> Iterator[bytes]:
        """Yield the next ``count`` rows, with memory for a part of them only."""
        while count:
            rows = min(count, _ROWS, _BLOCK // max(self._size, 1))
            try:
                chunk = self._file.read(rows * self._size)
            except (OSError, EOFError, zlib.error) as error:
                raise self._damaged(str(error)) from error
            if len(chunk) != rows * self._size:
                raise self._damaged(f"{count} rows of {self.shape[0]} are missing")
            yield chunk
            count -= rows

    def take(self, count: int) -> Array:
        """Read the next ``count`` rows."""
        return np.frombuffer(b"".join(self._chunks(count)), self._dtype).reshape(count, *self.shape[1:])

    def skip(self, count: int) -> None:
        """Skip ``count`` rows."""
        for _ in self._chunks(count):
            pass
