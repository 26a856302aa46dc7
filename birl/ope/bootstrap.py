"""Bootstrap intervals of fitted Q evaluation: the evaluation is repeated on episodes sampled with replacement.

The spread of a model's values over first states ignores the error of the model, which is most of the error. The
bootstrap includes it: each replicate weights episodes by the number of times that they, or their clusters, were
sampled, both in the regression and in the mean over first states (Hao et al. 2021, arXiv:2102.03607). Estimates from
the same samples can be compared in pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from birl.checks import check
from birl.dataset.base import ReplayBufferBase
from birl.dataset.episodes import episode_table
from birl.dataset.storage import Storage
from birl.errors import EmptyDataError, ShapeError
from birl.ope.episode_arrays import LoggedEpisodes, read_episodes
from birl.ope.evaluated_policies import EvaluatedPolicy, check_markov
from birl.ope.intervals import Interval, bootstrap_interval
from birl.ope.linear_models import StepFeatures, weighted_fitted_q
from birl.types import Array

_MAX_NUMBERS: Final = 20_000_000
"""Largest number of values that the models of several replicates hold at once."""


@dataclass(frozen=True, eq=False)
class BootstrapEstimate:
    """An estimate and its bootstrap replicates.

    Attributes:
        value: the estimate from all episodes, ``[...]``.
        replicates: the estimates from resampled episodes, ``[..., B]``.
        groups: number of episodes, or of clusters, that were resampled; 0 if unknown.
    """

    value: Array
    replicates: Array
    groups: int = 0

    def __sub__(self, other: BootstrapEstimate) -> BootstrapEstimate:
        """Return the paired difference of two estimates from the same samples: the gain.

        Raises:
            ShapeError: if the numbers of replicates differ.
        """
        if self.replicates.shape != other.replicates.shape:
            raise ShapeError(
                f"the replicates have the shapes {self.replicates.shape} and {other.replicates.shape}; both must be "
                "estimates from the same samples: use one count and one seed"
            )
        groups = min(self.groups, other.groups)
        return BootstrapEstimate(self.value - other.value, self.replicates - other.replicates, groups)

    def facts(self) -> dict[str, float | None]:
        """Return facts for `birl.ope.check_limits`: with few episodes, intervals cover the truth too seldom."""
        return {"bootstrap_groups": float(self.groups) if self.groups else None}

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return the bootstrap interval; see `birl.ope.bootstrap_interval`."""
        return bootstrap_interval(self.value, self.replicates, confidence)


def bootstrap_counts(groups: Array, count: int, seed: int = 0) -> Array:
    """Return how often each episode occurs in each of ``count`` bootstrap samples, float64 ``[count, n]``.

    Args:
        groups: the group of each episode, ``[n]``: ``range(n)``, or clusters, which are sampled as a whole.
        count: number of samples.
        seed: random seed; the same seed gives the same samples.

    Raises:
        EmptyDataError: if there are fewer than 2 groups.
    """
    check("count", count, int, low=1)
    names, index = np.unique(np.asarray(groups), return_inverse=True)
    if len(names) < 2:
        raise EmptyDataError(f"there are {len(names)} groups of episodes; the bootstrap needs 2 or more: log more")
    uniform = np.full(len(names), 1 / len(names))
    return np.asarray(np.random.default_rng(seed).multinomial(len(names), uniform, count)[:, index], np.float64)


def bootstrap_mean(value: Array, counts: Array) -> BootstrapEstimate:
    """Return a mean over episodes and its replicates.

    Args:
        value: value of each episode, ``[n]``; or ``[1 + B, n]``, first by the model of all episodes, then by the model
            of each sample.
        counts: how often each episode occurs in each sample, ``[B, n]``; see `bootstrap_counts`.
    """
    value = np.broadcast_to(value, (1 + len(counts), counts.shape[1]))
    groups = len(np.unique(counts, axis=1).T)  # episodes of a cluster have equal counts
    return BootstrapEstimate(np.asarray(value[0].mean()), (counts * value[1:]).sum(-1) / counts.sum(-1), groups)


def bootstrap_linear_fqe(
    policy: EvaluatedPolicy,
    dataset: ReplayBufferBase,
    *,
    gamma: float = 0.99,
    horizon: int | None = None,
    count: int = 100,
    seed: int = 0,
) -> BootstrapEstimate:
    """Bootstrap fitted Q evaluation with a linear model; for one discrete action.

    The model is the one of `birl.ope.evaluate`, but fitted on all episodes. The interval includes the sampling error of
    the model, but not the error of its linear form, so it never decides alone.

    Args:
        policy, dataset: see `birl.ope.evaluate`. Episodes of one ``cluster`` are sampled together.
        gamma, horizon: discount and number of steps, see there.
        count: number of replicates, 20 or more.
        seed: random seed of the samples.

    Raises:
        UnsupportedError: if the data have no such model, or the policy depends on earlier steps.
    """
    check("count", count, int, low=20)
    check_markov(policy, "bootstrap_linear_fqe")
    logs = read_episodes(dataset, gamma, horizon)
    steps, counts = logs.steps(), _counts(logs, count, seed)
    return bootstrap_mean(_first_values(steps, logs.probabilities(policy), logs.mask.sum(1), counts), counts)


def bootstrap_returns(
    dataset: ReplayBufferBase, *, gamma: float = 0.99, horizon: int | None = None, count: int = 100, seed: int = 0
) -> BootstrapEstimate:
    """Bootstrap the mean return of the logs, the baseline of a gain.

    The samples are those of `bootstrap_linear_fqe` and `bootstrap_fqe` with the same ``count`` and ``seed``.
    """
    logs = read_episodes(dataset, gamma, horizon)
    returns = (logs.reward * gamma ** np.arange(logs.mask.shape[1])).sum(-1)
    return bootstrap_mean(returns, _counts(logs, count, seed))


def _first_values(steps: StepFeatures, target: Array, length: Array, counts: Array) -> Array:
    """Return ``V(s_0)`` of every episode by the model of all episodes and of each sample, ``[1 + B, n]``."""
    first = np.cumsum(length) - length
    weight = np.repeat(np.concatenate([np.ones((1, len(length))), counts]), length, axis=1)
    size = max(_MAX_NUMBERS // target.size, 1)
    values = []
    for begin in range(0, len(weight), size):
        q = weighted_fitted_q(steps, target, weight[begin : begin + size])[:, first]
        values.append((target[first] * q).sum(-1))
    return np.concatenate(values)


def episode_counts(storage: Storage, count: int) -> Array:
    """Return how often each episode of a storage occurs in each of ``count`` bootstrap samples, ``[count, E]``.

    Episodes with the same value of the extra column ``cluster`` are sampled together.
    """
    lane, start, _ = episode_table(storage)
    groups = np.arange(len(lane))
    if "extra.cluster" in storage.leaves:
        groups = storage.place.host(storage.take("extra.cluster", storage.rows(lane, start))).ravel()
    return bootstrap_counts(groups, count)


def _counts(logs: LoggedEpisodes, count: int, seed: int) -> Array:
    groups = np.arange(len(logs.mask)) if logs.cluster is None else logs.cluster
    return bootstrap_counts(groups, count, seed)
