"""Steps of other programs' files as episodes: what the loaders of their formats have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from birl.dataset.flags import TERMINATED, TRUNCATED, UNKNOWN
from birl.dataset.flat_episodes import FlatEpisodes
from birl.dataset.validation import as_column
from birl.envs.wrappers import to_channel_first
from birl.errors import ConfigError, DataError, EmptyDataError, ShapeError
from birl.files.npz import read_npz
from birl.spaces.conversion import to_array
from birl.spaces.specs import is_channels_last
from birl.types import Array, Tree, tree_leaves, tree_map

Arrays: TypeAlias = Mapping[str, npt.ArrayLike]
Source: TypeAlias = "str | os.PathLike[str] | Arrays"

_COLUMNS: Final = ("actions", "rewards", "lengths", "flags")


def as_path(path: object, what: str) -> Path:
    """Return a path.

    Args:
        path: the path.
        what: what is there, for the message.

    Raises:
        ConfigError: if it is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{path!r:.80} is not a path: give the path of {what}")
    return Path(path)


def read_sources(source: Source | Sequence[Source]) -> Iterator[tuple[dict[str, Array], str]]:
    """Iterate over the arrays of ``.npz`` files, or of dicts of arrays, with a name for messages.

    Raises:
        ConfigError: if it is neither.
    """
    if not isinstance(source, Mapping | str | os.PathLike) and not isinstance(source, Sequence):
        raise ConfigError(
            f"{source!r:.80} is no data: give the path of an .npz file, a dict of arrays, or a list of them"
        )
    for each in [source] if isinstance(source, str | os.PathLike | Mapping) else source:
        if isinstance(each, Mapping):
            yield {str(name): to_array(str(name), array) for name, array in each.items()}, "the arrays"
        else:
            yield read_npz(each), str(each)


def require_columns(arrays: Mapping[str, Array], names: Sequence[str], label: str, what: str) -> None:
    """Raise `ShapeError` unless all arrays are there and have one row for each step.

    Args:
        arrays: arrays by name.
        names: names of the required arrays.
        label: the source, for messages.
        what: name of the format.
    """
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ShapeError(
            f"{label} has the arrays {sorted(arrays)!s:.300}, but not {', '.join(missing)}, which {what} needs: give "
            "other data, or another format"
        )
    count = len(arrays[names[0]]) if arrays[names[0]].ndim else -1
    for name in names:
        if arrays[name].shape[:1] != (count,):
            raise ShapeError(
                f"{label}: {name} has the shape {arrays[name].shape}, {names[0]} {arrays[names[0]].shape}: give one "
                "row for each step"
            )


def nested(arrays: Mapping[str, Array], name: str, label: str, keys: Sequence[str] | None = None) -> Tree:
    """Return the array ``name``, or a dict of the arrays ``name/<part>``, with images as channels first.

    Args:
        arrays: arrays by name.
        name: name of the array.
        label: the source, for messages.
        keys: names of the parts to return; ``None`` for all.

    Raises:
        ShapeError: if there is none.
    """
    parts = {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")}
    if name in arrays and keys is None:
        return channels_first(arrays[name])
    if not parts:
        raise ShapeError(
            f"{label} has the arrays {sorted(arrays)!s:.300}, but not {name} or {name}/<part>: give other data, or "
            "another format"
        )
    return channels_first(choose(parts, keys, label))


def choose(parts: Mapping[str, Array], keys: Sequence[str] | None, label: str) -> Tree:
    """Return the chosen parts of observations as a dict; a single part as an array.

    Raises:
        ConfigError: if a part is missing.
    """
    missing = [] if keys is None else [key for key in keys if key not in parts]
    if missing or not parts or (keys is not None and not keys):
        raise ConfigError(f"{label} has the observations {sorted(parts)!s:.300}, not {missing}: choose among them")
    chosen = {key: parts[key] for key in (parts if keys is None else keys)}
    return next(iter(chosen.values())) if len(chosen) == 1 else chosen


def channels_first(tree: Tree) -> Tree:
    """Convert uint8 images ``[N, H, W, C]`` to ``[N, C, H, W]``, as `birl.datasets.get_minari` does."""

    def convert(array: Array) -> Array:
        image = array.dtype == np.uint8 and array.ndim == 4 and is_channels_last(array.shape[1:])
        return to_channel_first(array, 3) if image else array

    return tree_map(convert, tree)


def rows_of(tree: Tree, rows: Array | slice) -> Tree:
    """Return rows of every leaf."""
    return tree_map(lambda leaf: leaf[rows], tree)


def flat_episodes(
    observations: Tree,
    actions: Array,
    rewards: Array,
    terminal: Array,
    ends: Array,
    finals: Tree,
    known: Array,
    label: str,
) -> FlatEpisodes:
    """Return steps as episodes.

    Args:
        observations: tree ``[N, …]``.
        actions, rewards: ``[N, …]`` and ``[N]``.
        terminal, ends: bool ``[N]``: whether the environment ended the episode with a step, and whether a step is the
            last of its episode for any reason. The last step always is.
        finals: tree ``[K, …]``: final observations of the K episodes where they are known.
        known: bool ``[E]``.
        label: the source, for messages.

    Raises:
        EmptyDataError: if there is no step.
    """
    if not len(rewards):
        raise EmptyDataError(f"{label} has no step: give data with one or more")
    last = np.flatnonzero(ends)
    flags = np.where(terminal[last], TERMINATED, TRUNCATED) | np.where(known, 0, UNKNOWN)
    return FlatEpisodes(
        observations,
        actions[:, None] if actions.ndim == 1 else actions,
        as_column("rewards", rewards),
        np.diff(last, prepend=-1),
        flags.astype(np.uint8),
        finals if known.any() else None,
        {},
    )


def join(parts: Sequence[FlatEpisodes], label: str) -> FlatEpisodes:
    """Concatenate the episodes of several files.

    Raises:
        EmptyDataError: if there is none.
        DataError: if their observations have different parts, or arrays different shapes.
    """
    if not parts:
        raise EmptyDataError(f"{label} has no episode: give data with one or more")
    if len(parts) == 1:
        return parts[0]
    forms = [[(leaf.shape[1:], leaf.dtype) for leaf in tree_leaves(each.observations)] for each in parts]
    if any(
        form != forms[0] or each.actions.shape[1:] != parts[0].actions.shape[1:]
        for form, each in zip(forms, parts, strict=True)
    ):
        raise DataError(
            f"{label}: the observations or actions of the files have different shapes or dtypes: load them separately"
        )
    finals = [each.finals for each in parts if each.finals is not None]
    columns = (np.concatenate([getattr(each, name) for each in parts]) for name in _COLUMNS)
    observations = tree_map(lambda *leaves: np.concatenate(leaves), *(each.observations for each in parts))
    actions, rewards, lengths, flags = columns
    last = tree_map(lambda *leaves: np.concatenate(leaves), *finals) if finals else None
    return FlatEpisodes(observations, actions, rewards, lengths, flags, last, {})
