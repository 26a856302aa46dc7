"""Retention policies, which decide how many steps a replay buffer keeps."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from birl.checks import check, named_arguments
from birl.dataset.episode import Episode
from birl.dataset.episodes import EpisodeList, episode_at, locate
from birl.dataset.flags import NO_TRANSITION
from birl.dataset.storage import Storage


class BufferProtocol:
    """Retention policy, which decides how many steps are kept and gives access to the kept episodes.

    Attributes:
        limit: largest number of steps, ``None`` for no limit.
        whole: whether episodes are evicted as a whole.
        storage: the storage of the replay buffer; ``None`` without one.
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
        """Return the episode of a transition and the index of its step; transitions are ordered from the oldest on."""
        position, count = operator.index(index), len(self)
        if self.storage is None or not -count <= position < count:
            raise IndexError(f"transition {index} of {count}")
        rows = self.storage.rows(*self.storage.live())
        rows = rows[(self.storage.flags[rows] & NO_TRANSITION) == 0]
        episode, step = locate(self.storage, rows[position : position + 1 or None])
        return episode_at(self.storage, int(episode[0])), int(step[0])


class InfiniteBuffer(BufferProtocol):
    """Retention of all steps."""


class FIFOBuffer(BufferProtocol):
    """Retention of the newest ``limit`` steps; the oldest ones are evicted, also from the middle of an episode.

    Args:
        limit: largest number of steps over all parallel environments, at least 1.
    """

    @named_arguments
    def __init__(self, limit: int) -> None:
        given: object = limit  # users often write 1e6
        number = int(given) if isinstance(given, float) and given.is_integer() else given
        self._limit = check("limit", number, int, low=1)

    @property
    def limit(self) -> int:  # type: ignore[override]
        """Largest number of steps. It cannot change, because it determines the size of the arrays."""
        return self._limit


class EpisodicFIFOBuffer(FIFOBuffer):
    """Retention of the newest episodes with at most ``limit`` steps in total; the oldest ones are evicted as a whole.

    The running episode counts. An episode longer than ``limit`` loses its oldest steps.

    Args:
        limit: largest number of steps over all parallel environments, at least 1.
    """

    whole = True


def buffer_of(storage: Storage) -> BufferProtocol:
    """Return the retention of an opened storage."""
    if storage.limit is None:
        return InfiniteBuffer()
    return EpisodicFIFOBuffer(storage.limit) if storage.whole else FIFOBuffer(storage.limit)
