"""d3rlpy's path to what episodes are made of."""

from birl.dataset.episode import DatasetInfo, Episode, EpisodeBase, PartialTrajectory, Signature, Transition

__all__ = ["DatasetInfo", "Episode", "EpisodeBase", "PartialTrajectory", "Signature", "Transition"]
