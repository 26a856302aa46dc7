"""Retention: how many steps a replay buffer keeps."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from birl.checks import check
from birl.dataset.episode import Episode
from birl.dataset.episodes import EpisodeList, episode_at, locate
from birl.dataset.flags import NO_TRANSITION
from birl.dataset.storage import Storage


class BufferProtocol:
    """Decides how many steps are kept, and gives access to the kept episodes.

    Attributes:
        limit: largest number of steps, ``None`` for no limit.
        whole: whether episodes are dropped as a whole.
        storage: holds the steps; that of the replay buffer which this is given to.
    """

    limit: int | None = None
    whole: bool = False
    storage: Storage | None = None

    @property
    def episodes(self) -> Sequence[Episode]:
        """Episodes, oldest first."""
        return [] if self.storage is None else EpisodeList(self.storage)

    @property
    def transition_count(self) -> int:
        """Number of transitions."""
        return 0 if self.storage is None else self.storage.transition_count

    def __len__(self) -> int:
        return self.transition_count

    def __getitem__(self, index: int) -> tuple[Episode, int]:
        """The episode of a transition, and the transition's step in it; oldest first."""
        position, count = operator.index(index), len(self)
        if self.storage is None or not -count <= position < count:
            raise IndexError(f"transition {index} of {count}")
        rows = self.storage.rows(*self.storage.live())
        rows = rows[(self.storage.flags[rows] & NO_TRANSITION) == 0]
        episode, step = locate(self.storage, rows[position : position + 1 or None])
        return episode_at(self.storage, int(episode[0])), int(step[0])


class InfiniteBuffer(BufferProtocol):
    """Keeps everything."""


class FIFOBuffer(BufferProtocol):
    """Keeps the newest ``limit`` steps and frees the oldest, in the middle of an episode if need be.

    Args:
        limit: largest number of steps over all parallel environments, at least 1.
    """

    def __init__(self, limit: int) -> None:
        given: Any = limit  # 1e6 is often written
        whole = int(given) if isinstance(given, float) and given.is_integer() else given
        self._limit = check("limit", whole, int, low=1)

    @property
    def limit(self) -> int:  # type: ignore[override]
        """Largest number of steps; fixed, as the arrays are made for it."""
        return self._limit


class EpisodicFIFOBuffer(FIFOBuffer):
    """Keeps the newest whole episodes that have no more than ``limit`` steps together, and frees the oldest as a whole.

    The episode that is running counts. One that is longer than all room there is loses its oldest steps.

    Args:
        limit: largest number of steps over all parallel environments, at least 1.
    """

    whole = True


def retention_of(storage: Storage) -> BufferProtocol:
    """The retention of a storage that was opened."""
    if storage.limit is None:
        return InfiniteBuffer()
    return EpisodicFIFOBuffer(storage.limit) if storage.whole else FIFOBuffer(storage.limit)
