"""Episodes as flat arrays: the steps of all episodes in one array for each column, and the lengths of the episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from birl.dataset.arrays import ranges
from birl.dataset.episode import Episode, EpisodeBase
from birl.dataset.episodes import EpisodeList, episode_table
from birl.dataset.flags import FINAL, NO_NEXT, TERMINATED, TRUNCATED, UNKNOWN
from birl.dataset.ingest import observation_columns, row_flags, step_columns
from birl.dataset.storage import Storage
from birl.spaces.conversion import Columns
from birl.types import Array, Tree, tree_map


@dataclass(frozen=True)
class FlatEpisodes:
    """E episodes with N steps in total.

    Attributes:
        observations: tree ``[N, …]``.
        actions: ``[N, A]``.
        rewards: ``[N, 1]``.
        lengths: int ``[E]``: numbers of steps.
        flags: uint8 ``[E]``: `TERMINATED`, `TRUNCATED` or, while the episode is running, neither; and `UNKNOWN` if the
            final observation is not known.
        finals: tree ``[K, …]``: the final observations that are known; ``None`` without any.
        extra: extra arrays ``[N, …]`` by name.
        columns: see `birl.dataset.DatasetInfo`.
    """

    observations: Tree
    actions: Array
    rewards: Array
    lengths: Array
    flags: Array
    finals: Tree
    extra: dict[str, Array]
    columns: Columns = field(default_factory=dict)

    @classmethod
    def concatenate(cls, episodes: Sequence[EpisodeBase]) -> FlatEpisodes:
        """Concatenate one or more episodes, for which `have_one_form` holds."""
        extra = {name: np.concatenate([_extra(each)[name] for each in episodes]) for name in _extra(episodes[0])}
        found = [final for each in episodes if (final := _final(each)) is not None]
        return cls(
            tree_map(lambda *leaves: np.concatenate(leaves), *(each.observations for each in episodes)),
            np.concatenate([each.actions for each in episodes]),
            np.concatenate([each.rewards for each in episodes]),
            *lengths_and_flags(episodes),
            tree_map(lambda *leaves: np.stack(leaves), *found) if found else None,
            extra,
        )

    @classmethod
    def read(cls, episodes: EpisodeList, begin: int, end: int) -> FlatEpisodes:
        """Read the episodes ``begin … end - 1`` of a storage."""
        storage, (lane, start, length) = episodes.storage, episode_table(episodes.storage)
        index, position = ranges(start[begin:end], start[begin:end] + length[begin:end] + 1)
        rows = storage.rows(lane[begin:end][index], position)
        final = (storage.flags[rows] & FINAL) != 0
        lengths, flags = (values[begin:end] for values in lengths_and_flags(episodes))
        steps, after = rows[~final], rows[final][(flags & UNKNOWN) == 0]

        def take(name: str, rows: Array) -> Array:
            return storage.place.host(storage.take(name, storage.place.indices(rows)))

        names = storage.observation_names
        return cls(
            tree_map(lambda name: take(name, steps), names),
            take("action", steps),
            take("reward", steps),
            lengths,
            flags,
            tree_map(lambda name: take(name, after), names) if len(after) else None,
            {name.removeprefix("extra."): take(name, steps) for name in storage.extra_names},
        )

    @property
    def ends(self) -> Array:
        """The index of the last step of each episode ``[E]``."""
        return np.cumsum(self.lengths) - 1

    def as_one(self) -> Episode:
        """Return all steps as one episode."""
        steps = (self.observations, self.actions, self.rewards)
        return Episode(*steps, terminated=False, truncated=True, columns=self.columns)

    def split(self, episode_cls: type[Episode]) -> list[Episode]:
        """Return the single episodes, whose arrays are views."""
        stops = (self.ends + 1).tolist()
        known = np.cumsum((self.flags & UNKNOWN) == 0) - 1
        found = []
        for begin, stop, flag, number in zip([0, *stops], stops, self.flags.tolist(), known.tolist(), strict=False):
            final = None if flag & UNKNOWN else _row(self.finals, number)
            made = episode_cls.deserialize(
                {
                    "observations": _row(self.observations, slice(begin, stop)),
                    "actions": self.actions[begin:stop],
                    "rewards": self.rewards[begin:stop],
                    "terminated": bool(flag & TERMINATED),
                    "truncated": bool(flag & TRUNCATED),
                    "final_observation": final,
                    "extra": {name: column[begin:stop] for name, column in self.extra.items()} or None,
                    **({"columns": self.columns} if self.columns else {}),
                }
            )
            found.append(made)
        return found


def lengths_and_flags(episodes: Sequence[EpisodeBase]) -> tuple[Array, Array]:
    """Return the lengths and flags of episodes, as in `FlatEpisodes`."""
    if isinstance(episodes, EpisodeList):
        storage, (lane, start, length) = episodes.storage, episode_table(episodes.storage)
        last, after = (storage.flags[storage.rows(lane, start + length + offset)] for offset in (-1, 0))
        unknown = ((last & NO_NEXT) | (after & UNKNOWN)) != 0
        return length, (last & (TERMINATED | TRUNCATED)) | (unknown * np.uint8(UNKNOWN))
    flags = [
        (TERMINATED if each.terminated else TRUNCATED if getattr(each, "truncated", True) else 0)
        | (UNKNOWN if _final(each) is None else 0)
        for each in episodes
    ]
    return np.array([each.size() for each in episodes], np.int64), np.array(flags, np.uint8)


def have_one_form(episodes: Sequence[EpisodeBase]) -> bool:
    """Return whether all episodes have the same parts, names of extra arrays, shapes and dtypes."""
    if isinstance(episodes, EpisodeList) or not len(episodes):
        return True
    form = _form(episodes[0])
    return all(
        _form(each) == form and (_final(each) is None or tree_map(_leaf_form, _final(each)) == form[0])
        for each in episodes
    )


def flat_rows(storage: Storage, flat: FlatEpisodes) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """Convert episodes to the arguments of `Storage.extend`: flags, columns of their steps and of their final rows.

    Raises:
        ShapeError, NonFiniteError, ActionError: if they do not fit.
    """
    count = len(flat.rewards)
    steps = step_columns(storage, flat.observations, flat.actions, flat.rewards, flat.extra, count)
    terminal, ends = np.zeros((2, count), bool)
    terminal[flat.ends], ends[flat.ends] = (flat.flags & TERMINATED) != 0, True
    rows, unknown = row_flags(terminal, ends, known=True), (flat.flags & UNKNOWN) != 0
    after = np.flatnonzero(rows & FINAL)
    rows[after[unknown]] |= UNKNOWN
    rows[after[unknown & ((flat.flags & TERMINATED) == 0)] - 1] |= NO_NEXT
    if flat.finals is None:
        return rows, steps, {}
    finals = observation_columns(storage, flat.finals, "final_observation", int(np.count_nonzero(~unknown)))
    return rows, steps, {name: _spread(column, ~unknown) for name, column in finals.items()}


def _spread(column: Array, known: Array) -> Array:
    """Return ``column`` with zeros where ``known`` is false."""
    if known.all():
        return column
    spread = np.zeros((len(known), *column.shape[1:]), column.dtype)
    spread[known] = column
    return spread


def _form(episode: EpisodeBase) -> tuple[Tree, ...]:
    """Return the dtypes and shapes of one step."""
    columns = (episode.observations, episode.actions, episode.rewards, _extra(episode))
    return tuple(tree_map(lambda leaf: _leaf_form(leaf[0]), column) for column in columns)


def _leaf_form(leaf: Array) -> tuple[np.dtype[Any], tuple[int, ...]]:
    return leaf.dtype, leaf.shape


def _row(tree: Tree, index: int | slice) -> Tree:
    return tree_map(lambda leaf: leaf[index], tree)


def _extra(episode: EpisodeBase) -> dict[str, Array]:
    return getattr(episode, "extra", None) or {}


def _final(episode: EpisodeBase) -> Tree:
    return getattr(episode, "final_observation", None)
