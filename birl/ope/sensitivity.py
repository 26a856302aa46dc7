"""Sensitivity to hidden confounding: how far a value can change if a hidden variable drives both actions and rewards.

In the marginal sensitivity model (Tan 2006, JASA 101), hidden variables change the odds of a logged action by a factor
of at most Gamma, so the inverse propensity lies between ``1 + (1/b - 1) / Gamma`` and ``1 + (1/b - 1) Gamma``. One
decision of each episode may be confounded, as in Namkoong et al. 2020 (arXiv:2003.05623). It is unknown which one, so
the bounds are those of the step with the largest change. Self-normalised weights have exact bounds, by a linear
fractional program (Zhao, Small and Bhattacharya 2019, arXiv:1711.11286). The model's value of a state is subtracted
first, because it cannot change: the factors are 1 on average in each state. The true change may be smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from birl.checks import check
from birl.errors import DataError
from birl.ope.importance_weights import Trajectories
from birl.types import Array


def confounded_range(value: Array, weight: Array, propensity: Array, strength: float) -> tuple[float, float]:
    """Return the smallest and largest ``sum m w y / sum m w`` over all factors m that the sensitivity model allows.

    Args:
        value: values ``y``, ``[n]``.
        weight: weights ``w``, at least 0, ``[n]``.
        propensity: propensities ``b`` of the actions, ``[n]``; 0 for densities, 1 where no action was taken.
        strength: Gamma, 1 or more. With 1, both ends are the weighted mean.

    Raises:
        DataError: if no weight is above 0.
    """
    check("strength", strength, float, low=1, error=DataError)
    if not (weight > 0).any():
        raise DataError("all weights are 0; one at least must be above 0: evaluate a policy nearer to the logs")
    order = np.argsort(value, kind="stable")
    value, weight, propensity = value[order], weight[order], propensity[order]
    heavy = weight * (propensity + (1 - propensity) * strength)
    light = weight * (propensity + (1 - propensity) / strength)

    def means(first: Array, then: Array) -> Array:
        """Return means with the weights ``first`` up to an index and ``then`` after it, for all n + 1 indices."""
        sums = []
        for column in (1.0, value):
            before = np.concatenate([[0.0], (first * column).cumsum()])
            after = np.concatenate([(then * column)[::-1].cumsum()[::-1], [0.0]])
            sums.append(before + after)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(sums[0] > 0, sums[1] / sums[0], np.nan)

    return float(np.nanmin(means(heavy, light))), float(np.nanmax(means(light, heavy)))


@dataclass(frozen=True, eq=False)
class Confounded:
    """Logs in which one decision of each episode may be confounded.

    Attributes:
        episodes: logged episodes with ratios.
        propensity: propensities of logged actions, ``[n, T]``, 1 after the end of an episode.
        against: the same episodes with the ratios of the policy to compare with; ``None`` for the logs, whose value
            does not depend on hidden variables.
    """

    episodes: Trajectories
    propensity: Array
    against: Trajectories | None = None

    def shift(self, strength: float) -> tuple[float, float]:
        """Return by how much the gain can fall (at most 0) and rise (at least 0) with a Gamma of ``strength``.

        The values of two policies may shift independently, which bounds the shift of their difference.
        """
        down, up = _shift(self.episodes, self.propensity, strength)
        if self.against is None:
            return down, up
        other_down, other_up = _shift(self.against, self.propensity, strength)
        return down - other_up, up - other_down

    def flips(self, lower: float, upper: float, at: float, most: float = 20.0) -> float | None:
        """Return the smallest Gamma at which an interval may contain ``at``; ``None`` if it is above ``most``."""

        def flipped(strength: float) -> bool:
            down, up = self.shift(strength)
            return lower + down <= at if lower > at else upper + up >= at

        if lower <= at <= upper:
            return 1.0
        if not flipped(most):
            return None
        low, high = 0.0, float(np.log(most))
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (low, middle) if flipped(float(np.exp(middle))) else (middle, high)
        return float(np.exp(high))


def _shift(episodes: Trajectories, propensity: Array, strength: float) -> tuple[float, float]:
    """Return the largest fall and rise of a policy's value over the steps that may be confounded."""
    weight, log_ratio = episodes.relative_weight, episodes.log_ratio
    assert log_ratio is not None
    later, discount = np.zeros(episodes.mask.shape[0]), episodes.discount
    down = up = 0.0
    for step in reversed(range(episodes.mask.shape[1])):
        following = np.exp(log_ratio[:, step + 1]) if step + 1 < episodes.mask.shape[1] else 0.0
        later = discount[step] * episodes.reward[:, step] + following * later
        if not (weight[:, step] > 0).any():
            continue
        value = later if episodes.v is None else later - discount[step] * episodes.v[:, step]
        low, high = confounded_range(value, weight[:, step], propensity[:, step], strength)
        plain = float((weight[:, step] * value).sum() / weight[:, step].sum())
        down, up = min(down, low - plain), max(up, high - plain)
    return down, up
