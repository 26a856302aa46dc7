"""Episodes of logged steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from birl.dataset.episode import Episode
from birl.dataset.mdp_dataset import MDPDataset
from birl.types import Tree


class EpisodeGenerator:
    """Cuts logged steps into episodes when it is called. For the arguments see `MDPDataset`."""

    def __init__(self, observations: Tree, actions: Any, rewards: Any, terminals: Any, timeouts: Any = None) -> None:
        self._dataset = MDPDataset(observations, actions, rewards, terminals, timeouts)

    def __call__(self) -> Sequence[Episode]:
        return self._dataset.episodes
