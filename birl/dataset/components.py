"""d3rlpy's path to what episodes are made of."""

from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.episode import Episode, EpisodeBase, PartialTrajectory, Signature, Transition

__all__ = ["DatasetInfo", "Episode", "EpisodeBase", "PartialTrajectory", "Signature", "Transition"]
