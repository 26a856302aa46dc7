"""Losses that no log shows, and bounds of the gain that hold whatever the tails are.

An interval is about outcomes like those in the logs. If none of n independent episodes has an outcome, its probability
may still be ``1 - alpha^(1/n)``, about 3.7 / n at 97.5 % (the rule of three; Hanley and Lippman-Hand 1983, "If nothing
goes wrong, is everything all right?", JAMA 249). Weighted episodes count as the effective number of episodes of the
policy. How much a rare loss costs is not in the logs: the user knows what is possible, or the range of rewards says it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from birl.errors import DataError
from birl.ope.estimators import Estimate, cluster_sums
from birl.ope.importance_weights import Trajectories
from birl.ope.intervals import betting_bound, hcope_bound
from birl.types import Array

BOUNDS = {"betting": betting_bound, "bernstein": hcope_bound}
"""Lower bounds of means of terms with a known minimum; see `birl.ope.intervals`."""


def unseen_share(episodes: float, confidence: float) -> float:
    """Return the largest probability of an outcome that none of some episodes has, with a one-sided confidence.

    Args:
        episodes: number of independent episodes, or effective number; 0 gives 1.
        confidence: between 0 and 1.
    """
    return 1.0 if episodes <= 0 else float(-np.expm1(np.log1p(-confidence) / episodes))


@dataclass(frozen=True)
class UnseenLosses:
    """What the logs show of the losses of a policy.

    Attributes:
        episodes: effective number of the policy's episodes.
        lowest: lowest discounted return of an episode that the policy may generate.
        possible: lowest discounted return that the range of rewards allows; ``None`` if it is unknown.
    """

    episodes: float
    lowest: float
    possible: float | None

    def share(self, confidence: float) -> float:
        """Return the share of the policy's episodes whose outcomes may be missing from the logs.

        Args:
            confidence: two-sided confidence of the interval of the gain, of which one side matters.
        """
        return unseen_share(self.episodes, (1 + confidence) / 2)

    def turning_loss(self, margin: float, confidence: float) -> float:
        """Return how far below the lowest logged return unseen outcomes must lie to cost ``margin``."""
        return margin / self.share(confidence)

    def worst(self, worst_case: float | None) -> float | None:
        """Return the lowest return that is possible: the user's, or else that of the range of rewards.

        Raises:
            DataError: if the user's is above a logged return.
        """
        if worst_case is None:
            return self.possible
        if worst_case > self.lowest + 1e-9 * max(1.0, abs(self.lowest)):
            raise DataError(
                f"worst_case is {worst_case:g}, but the logs have an episode of the policy with the return "
                f"{self.lowest:g}; it must be the lowest return that is possible: give that number or a lower one"
            )
        return worst_case


def unseen_losses(trajectories: Trajectories, effective: float, lowest_reward: float | None) -> UnseenLosses:
    """Return what the logs show of the losses of a policy.

    Args:
        trajectories: logged episodes with ratios.
        effective: effective number of episodes, or of clusters.
        lowest_reward: lowest possible discounted return from the first step on; ``None`` if it is unknown.
    """
    returns = (trajectories.discount * trajectories.reward).sum(-1)
    weight = trajectories.log_weight[..., -1]
    possible = np.isfinite(weight)  # episodes that the policy may generate
    lowest = float(returns[possible].min()) if possible.any() else float(returns.min())
    return UnseenLosses(effective, lowest, lowest_reward)


@dataclass(frozen=True, eq=False)
class BoundedGain:
    """The gain over the logs as means of terms with known minima, for bounds that hold for any tails.

    ``sum_t gamma^t (w_t - 1) (r_t - low)`` has the mean of the gain, because ``w_t`` has the mean 1, and is at least
    ``-sum_t gamma^t (high - low)``; ``sum_t gamma^t (w_t - 1) (high - r_t)`` has the mean of the negative gain and the
    same minimum. Where the logs do not support an action, ``w_t`` has a smaller mean, which makes the first mean
    smaller and the second one larger: as if everything from there on had the lowest and the highest reward.

    Attributes:
        above, below: the two terms of each episode, ``[n]``.
        least: minimum of both.
    """

    above: Array
    below: Array
    least: float

    def interval(self, bound: str, confidence: float, clusters: Array | None = None) -> tuple[float, float]:
        """Return the two bounds.

        Args:
            bound: ``"betting"`` or ``"bernstein"``.
            confidence: confidence of both together.
            clusters: the cluster of each episode, ``[n]``; clusters count as a whole.
        """
        lower = BOUNDS[bound]
        one_sided = (1 + confidence) / 2
        ends = []
        for terms in (self.above, self.below):
            least = self.least
            if clusters is not None:
                sizes = cluster_sums(np.ones(len(terms)), clusters)
                scale = len(sizes) / len(terms)
                terms, least = cluster_sums(terms, clusters) * scale, least * float(sizes.max()) * scale
            ends.append(float(lower(Estimate(terms), one_sided, least)))
        return ends[0], -ends[1]


def bounded_gain(trajectories: Trajectories, lower: float, upper: float) -> BoundedGain:
    """Return a gain over the logs for rewards of a known range.

    Args:
        trajectories: logged episodes with the policy's ratios.
        lower, upper: lowest and highest reward of a step.
    """
    mask, reward = trajectories.mask, trajectories.reward
    if not mask.all():  # after the end of an episode, rewards are 0
        lower, upper = min(lower, 0.0), max(upper, 0.0)
    change = trajectories.discount * (trajectories.weight - 1)
    return BoundedGain(
        (change * (reward - lower)).sum(-1),
        (change * (upper - reward)).sum(-1),
        -(upper - lower) * float(trajectories.discount.sum()),
    )
