"""The first of two stages: of many policies those that deserve a whole evaluation (Tang and Wiens 2021).

arXiv:2107.11003. A screen is cheap and alike for all: one model of some episodes, no intervals. It only sets aside; who
is better than whom is said by `birl.ope.rank`, on all episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from birl.errors import DataError
from birl.ope.episode_arrays import Logged
from birl.ope.estimators import weighted_per_decision
from birl.ope.importance_weights import Trajectories
from birl.ope.linear_models import weighted_fitted_q
from birl.ope.validity_limits import judge
from birl.types import Array

KEPT: Final = 8
"""How many policies are evaluated as a whole."""
READ: Final = 1000
"""Episodes that the screen reads."""


def screened(policies: Mapping[str, Any], logs: Logged, seed: int = 0) -> dict[str, float]:
    """A value of each policy, by name, by which those to set aside are chosen.

    It is that of first states by a linear model, fitted once on up to 1,000 episodes; where there is none, of
    quantities and of large observations, the weighted mean of rewards. A policy too far from the data, or without any
    weight on these episodes, has minus infinity.

    Args:
        policies: by name, see `birl.ope.evaluate`.
        logs: see `birl.ope.episode_arrays.read`.
        seed: of the episodes that are drawn.
    """
    if len(logs.mask) > READ:
        logs = logs.of_episodes(np.sort(np.random.default_rng(seed).permutation(len(logs.mask))[:READ]))
    return {name: _value(policy, logs) for name, policy in policies.items()}


def _value(policy: Any, logs: Logged) -> float:
    every = logs.probabilities(policy) if logs.choices else None
    if every is None or logs.x is None:
        return _weighted(logs, logs.ratios(policy, every))
    if any(one.refused for one in judge({"unsupported": logs.unsupported(every)})):
        return -np.inf
    first = np.append(0, np.cumsum(logs.mask.sum(1))[:-1])
    q = weighted_fitted_q(logs.steps(), every, np.ones((1, len(every))))[0, first]
    return float((every[first] * q).sum(-1).mean())


def _weighted(logs: Logged, ratio: Array | None) -> float:
    if ratio is None:
        return -np.inf
    try:
        return float(weighted_per_decision(Trajectories(logs.reward, logs.mask, logs.gamma, ratio)).value)
    except DataError:  # no weight at all
        return -np.inf
