"""d3rlpy's import path of episodes and their parts."""

from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.episode import Episode, EpisodeBase, PartialTrajectory, Signature, Transition

__all__ = ["DatasetInfo", "Episode", "EpisodeBase", "PartialTrajectory", "Signature", "Transition"]
