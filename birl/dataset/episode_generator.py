"""d3rlpy's generator of episodes from logged steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy.typing as npt

from birl.dataset.episode import Episode
from birl.dataset.mdp_dataset import MDPDataset
from birl.types import Tree


class EpisodeGenerator:
    """Callable that returns logged steps as episodes. For the arguments see `MDPDataset`."""

    def __init__(
        self,
        observations: Tree,
        actions: npt.ArrayLike,
        rewards: npt.ArrayLike,
        terminals: npt.ArrayLike,
        timeouts: npt.ArrayLike | None = None,
    ) -> None:
        self._dataset = MDPDataset(observations, actions, rewards, terminals, timeouts)

    def __call__(self) -> Sequence[Episode]:
        return self._dataset.episodes
