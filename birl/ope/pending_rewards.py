"""Episodes that are too new to be evaluated, because their rewards were not final when the log ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from birl.dataset.episode import Episode
from birl.errors import DataError, EmptyDataError
from birl.ope.episode_columns import column, first_values
from birl.text import format_time
from birl.types import Array

PENDING = "reward_pending"
"""Extra column that is 1 in steps whose reward was not final when the log ended."""


@dataclass(frozen=True)
class TooNew:
    """The episodes that are left out.

    Attributes:
        episodes: whether an episode is too new, bool ``[n]``.
        text: how many there are, and from when on.
    """

    episodes: Array
    text: str

    @property
    def share(self) -> float:
        """Share of the episodes."""
        return float(self.episodes.mean())


def find_too_new(episodes: Sequence[Episode], horizon: int | None, dates: bool) -> TooNew | None:
    """Return the episodes that began when, or after, the first one began whose rewards were not all final.

    Leaving out only the episodes with pending rewards would be wrong: rewards that become known early may be larger
    than others, as with buyers who decide at once, and long episodes are pending more often than short ones. So whether
    an episode counts depends only on its beginning.

    Args:
        episodes: episodes with the extra columns ``reward_pending`` and ``time``.
        horizon: number of steps that count; ``None`` for all.
        dates: whether times are seconds since 1970.

    Returns:
        The episodes; ``None`` if no reward is pending.

    Raises:
        DataError: if rewards are pending and there are no times.
        EmptyDataError: if fewer than 2 episodes are left.
    """
    pending = column(episodes, PENDING, horizon)
    if pending is None or not pending.any():
        return None
    sizes = [min(len(each.rewards), len(each.rewards) if horizon is None else horizon) for each in episodes]
    of_episode = np.zeros(len(episodes), bool)
    np.logical_or.at(of_episode, np.repeat(np.arange(len(episodes)), sizes), pending.reshape(-1) != 0)
    begin = first_values(episodes, "time")
    if begin is None:
        raise DataError(
            f"{of_episode.sum()} episodes have pending rewards (extra column {PENDING}), but the extra column time is "
            "missing, so it is unknown which episodes are older: give it"
        )
    since = float(begin[of_episode].min())
    too_new = begin >= since
    text = f"{too_new.sum():,} of {len(episodes):,}, which began at {format_time(since, dates)} or later"
    if len(episodes) - too_new.sum() < 2:
        raise EmptyDataError(
            f"{text}, have rewards that were not final when the log ended; an evaluation needs 2 older episodes, and "
            "30 to answer: check reward.delay, reward.known_at and log_end in the schema, or wait"
        )
    return TooNew(too_new, text)
