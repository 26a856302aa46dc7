"""What hidden confounding could do: how far a value moves if something unseen drove both actions and rewards.

The marginal sensitivity model (Tan 2006, JASA 101): given what is hidden, the odds of a logged action differ from those
by what was seen by a factor of at most Gamma, so that the inverse propensity lies between ``1 + (1/b - 1) / Gamma`` and
``1 + (1/b - 1) Gamma``. As in Namkoong et al. 2020 (arXiv:2003.05623) one decision of an episode may be confounded;
which one is not known, so the worst is taken. Bounds are those of self-normalised weights, found exactly by a linear
fractional program (Zhao, Small and Bhattacharya 2019, arXiv:1711.11286). What a model says of a state is taken off
first: factors are 1 on average in each state, so that it cannot move. The truth may still move less than they say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from birl.checks import check
from birl.errors import DataError
from birl.ope.importance_weights import Trajectories
from birl.types import Array


def confounded_range(value: Array, weight: Array, chance: Array, strength: float) -> tuple[float, float]:
    """Least and greatest ``sum m w y / sum m w`` over all factors m that the sensitivity model allows.

    Args:
        value: ``y``, ``[n]``.
        weight: ``w``, at least 0, ``[n]``.
        chance: propensities ``b`` of the actions, ``[n]``; 0 for densities, 1 where nothing was chosen.
        strength: Gamma, 1 or more. With 1 both ends are the weighted mean.

    Raises:
        DataError: if no weight is above 0.
    """
    check("strength", strength, float, low=1, error=DataError)
    if not (weight > 0).any():
        raise DataError("all weights are 0: no logged episode can be one of the policy's")
    order = np.argsort(value, kind="stable")
    value, weight, chance = value[order], weight[order], chance[order]
    heavy, light = weight * (chance + (1 - chance) * strength), weight * (chance + (1 - chance) / strength)

    def means(first: Array, then: Array) -> Array:
        """Of ``first`` up to each place and ``then`` after it, for all n + 1 places."""
        sums = []
        for column in (1.0, value):
            begun = np.concatenate([[0.0], (first * column).cumsum()])
            rest = np.concatenate([(then * column)[::-1].cumsum()[::-1], [0.0]])
            sums.append(begun + rest)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(sums[0] > 0, sums[1] / sums[0], np.nan)

    return float(np.nanmin(means(heavy, light))), float(np.nanmax(means(light, heavy)))


@dataclass(frozen=True, eq=False)
class Confounded:
    """Logs in which one decision of each episode may be confounded.

    Attributes:
        of: logged episodes with ratios.
        chance: propensities of logged actions, ``[n, T]``, 1 after an episode's end.
        against: the same episodes seen from the policy that it is compared with; ``None`` for the logs, which are what
            they are whatever is hidden.
    """

    of: Trajectories
    chance: Array
    against: Trajectories | None = None

    def shift(self, strength: float) -> tuple[float, float]:
        """How far the gain can fall, at most 0, and rise, at least 0, with a Gamma of ``strength``.

        Of two policies each is moved by itself, which takes more than what can happen to both at once.
        """
        down, up = _shift(self.of, self.chance, strength)
        if self.against is None:
            return down, up
        other_down, other_up = _shift(self.against, self.chance, strength)
        return down - other_up, up - other_down

    def flips(self, lower: float, upper: float, at: float, most: float = 20.0) -> float | None:
        """The Gamma from which on an interval that leaves out ``at`` may hold it; ``None`` if not up to ``most``."""

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


def _shift(of: Trajectories, chance: Array, strength: float) -> tuple[float, float]:
    weight, log_ratio = of.relative_weight, of.log_ratio
    assert log_ratio is not None
    later, discount = np.zeros(of.mask.shape[0]), of.discount
    down = up = 0.0
    for step in reversed(range(of.mask.shape[1])):
        following = np.exp(log_ratio[:, step + 1]) if step + 1 < of.mask.shape[1] else 0.0
        later = discount[step] * of.reward[:, step] + following * later
        if not (weight[:, step] > 0).any():
            continue
        value = later if of.v is None else later - discount[step] * of.v[:, step]
        low, high = confounded_range(value, weight[:, step], chance[:, step], strength)
        plain = float((weight[:, step] * value).sum() / weight[:, step].sum())
        down, up = min(down, low - plain), max(up, high - plain)
    return down, up
