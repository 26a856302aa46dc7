"""Retention: how many steps a replay buffer keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from birl.checks import check
from birl.dataset.episode import Episode
from birl.dataset.episodes import EpisodeList
from birl.dataset.storage import Storage


@runtime_checkable
class BufferProtocol(Protocol):
    """Decides how many steps are kept, and gives access to the kept episodes.

    The steps themselves lie in the storage of the replay buffer that the buffer is given to.
    """

    @property
    def limit(self) -> int | None:
        """Largest number of steps, ``None`` for no limit."""

    @property
    def episodes(self) -> Sequence[Episode]:
        """Episodes, oldest first."""

    @property
    def transition_count(self) -> int:
        """Number of transitions."""

    def bind(self, storage: Storage) -> None:
        """Show this storage from now on."""


class InfiniteBuffer(BufferProtocol):
    """Keeps everything."""

    _limit: int | None = None
    _storage: Storage | None = None

    @property
    def limit(self) -> int | None:
        """Largest number of steps, ``None`` for no limit."""
        return self._limit

    @property
    def episodes(self) -> Sequence[Episode]:
        """Episodes, oldest first."""
        return [] if self._storage is None else EpisodeList(self._storage)

    @property
    def transition_count(self) -> int:
        """Number of transitions."""
        return 0 if self._storage is None else self._storage.transition_count

    def __len__(self) -> int:
        return self.transition_count

    def bind(self, storage: Storage) -> None:
        """Show this storage from now on."""
        self._storage = storage


class FIFOBuffer(InfiniteBuffer):
    """Keeps the newest ``limit`` steps and frees the oldest, in the middle of an episode if need be.

    Args:
        limit: largest number of steps over all parallel environments, at least 1.
    """

    def __init__(self, limit: int) -> None:
        given: Any = limit  # 1e6 is often written
        whole = int(given) if isinstance(given, float) and given.is_integer() else given
        self._limit = check("limit", whole, int, low=1)
