"""Cheap screening of many policies: the first of two stages (Tang and Wiens 2021, arXiv:2107.11003).

The screen fits one model to some episodes and makes no intervals. It only selects the policies that `birl.ope.rank`
then evaluates on all episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from birl.errors import DataError
from birl.ope.episode_arrays import LoggedEpisodes
from birl.ope.estimators import weighted_per_decision
from birl.ope.evaluated_policies import EvaluatedPolicy, HistoryPolicy
from birl.ope.importance_weights import Trajectories
from birl.ope.linear_models import weighted_fitted_q
from birl.ope.validity_limits import check_limits
from birl.types import Array

KEPT: Final = 8
"""Number of policies that pass the screen."""
MAX_EPISODES: Final = 1000
"""Number of episodes that the screen uses."""


def screening_values(policies: Mapping[str, EvaluatedPolicy], logs: LoggedEpisodes, seed: int = 0) -> dict[str, float]:
    """Return a cheap estimate of the value of each policy, by name.

    The estimate is the mean value of first states by a linear model, fitted once on up to 1,000 episodes. For
    continuous actions, large observations and policies that depend on earlier steps, which have no model, it is the
    weighted mean of returns. It is minus infinity for policies far from the data and for policies whose weights are all
    0.

    Args:
        policies: policies by name, see `birl.ope.evaluate`.
        logs: result of `birl.ope.episode_arrays.read_episodes`.
        seed: random seed of the sample of episodes.
    """
    if len(logs.mask) > MAX_EPISODES:
        logs = logs.subset(np.sort(np.random.default_rng(seed).permutation(len(logs.mask))[:MAX_EPISODES]))
    return {name: _value(policy, logs) for name, policy in policies.items()}


def _value(policy: EvaluatedPolicy, logs: LoggedEpisodes) -> float:
    probabilities = logs.probabilities(policy) if logs.n_actions else None
    if probabilities is None or logs.x is None or isinstance(policy, HistoryPolicy):
        return _weighted_value(logs, logs.ratios(policy, probabilities))
    unsupported = logs.unsupported(probabilities)
    never = 0.0 if unsupported is None else float((probabilities * unsupported).sum(-1).mean())
    share = never + logs.unsupported_mass(probabilities, unsupported)
    if any(finding.refused for finding in check_limits({"unsupported": share})):
        return -np.inf
    first = logs.first_steps
    q = weighted_fitted_q(logs.steps(), probabilities, np.ones((1, len(probabilities))))[0, first]
    return float((probabilities[first] * q).sum(-1).mean())


def _weighted_value(logs: LoggedEpisodes, ratio: Array | None) -> float:
    if ratio is None:
        return -np.inf
    try:
        return float(weighted_per_decision(Trajectories(logs.reward, logs.mask, logs.gamma, ratio)).value)
    except DataError:  # all weights are 0
        return -np.inf
