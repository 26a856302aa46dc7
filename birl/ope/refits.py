"""How sure fitted Q evaluation is: the same evaluation, fitted anew on episodes drawn with replacement.

The spread of a model's values over first states knows nothing of the model's own error, which is most of it. Refits do:
each counts whole episodes (or whole clusters) as often as they were drawn, in the regression and among first states
(Hao et al. 2021, arXiv:2102.03607). All that is evaluated by the same draws can be compared in pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from birl.checks import check
from birl.dataset.episodes import episode_table
from birl.dataset.storage import Storage
from birl.errors import ConfigError, EmptyDataError, ShapeError
from birl.ope.episode_arrays import Logged, read
from birl.ope.intervals import Interval, refit_interval
from birl.ope.linear_models import StepFeatures, weighted_fitted_q
from birl.types import Array

_AT_ONCE: Final = 20_000_000
"""Numbers that models of several refits hold together."""


@dataclass(frozen=True, eq=False)
class Refits:
    """An estimate, and what it would have been with other episodes.

    Attributes:
        value: the estimate from all episodes, ``[...]``.
        members: from each set of drawn episodes, ``[..., B]``.
        groups: number of episodes, or of clusters, that were drawn from; 0 if it is not known.
    """

    value: Array
    members: Array
    groups: int = 0

    def __sub__(self, other: Refits) -> Refits:
        """The paired difference of two evaluations by the same draws: the gain.

        Raises:
            ShapeError: if they are of different numbers of draws.
        """
        if self.members.shape != other.members.shape:
            raise ShapeError(
                f"there are refits of the shapes {self.members.shape} and {other.members.shape}: not the same draws"
            )
        return Refits(self.value - other.value, self.members - other.members, min(self.groups, other.groups))

    def facts(self) -> dict[str, float | None]:
        """For `birl.ope.judge`: of few episodes the interval holds the truth less often than it says."""
        return {"refitted_groups": float(self.groups) if self.groups else None}

    def interval(self, confidence: float = 0.95) -> Interval:
        """See `birl.ope.refit_interval`."""
        return refit_interval(self.value, self.members, confidence)


def resamples(groups: Array, count: int, seed: int = 0) -> Array:
    """How often each episode counts in each of ``count`` draws with replacement, float64 ``[count, n]``.

    Args:
        groups: the group of each episode, ``[n]``: ``range(n)``, or clusters, which are drawn as a whole.
        count: number of draws.
        seed: of the draws; the same seed gives the same ones.

    Raises:
        EmptyDataError: if there are fewer than 2 groups.
    """
    check("count", count, int, low=1)
    names, of = np.unique(np.asarray(groups), return_inverse=True)
    if len(names) < 2:
        raise EmptyDataError(f"there are {len(names)} groups of episodes; draws with replacement need 2 or more")
    chances = np.full(len(names), 1 / len(names))
    return np.asarray(np.random.default_rng(seed).multinomial(len(names), chances, count)[:, of], np.float64)


def weighted_refits(value: Array, times: Array) -> Refits:
    """Refits of a mean: of one number for each episode, or of each draw's own numbers.

    Args:
        value: ``[n]``; or ``[1 + B, n]``, by the model of all episodes and by that of each draw.
        times: how often each episode counts, ``[B, n]``, of `resamples`.
    """
    value = np.broadcast_to(value, (1 + len(times), times.shape[1]))
    groups = len(np.unique(times, axis=1).T)  # episodes of a cluster are drawn equally often
    return Refits(np.asarray(value[0].mean()), (times * value[1:]).sum(-1) / times.sum(-1), groups)


def linear_refits(
    policy: Any, dataset: Any, *, gamma: float = 0.99, horizon: int | None = None, count: int = 100, seed: int = 0
) -> Refits:
    """Fitted Q evaluation by a linear model, and its refits on drawn episodes; of one choice an observation.

    The model is that of `birl.ope.evaluate`, here fitted on all episodes. Its interval knows the model's error by
    chance, not what a linear model cannot express: it never decides alone.

    Args:
        policy, dataset: see `birl.ope.evaluate`. Episodes of one ``cluster`` are drawn together.
        gamma, horizon: the question, see there.
        count: number of refits, 20 or more.
        seed: of the draws.

    Raises:
        UnsupportedError: if there is no such model.
    """
    check("count", count, int, low=20)
    logs = read(dataset, gamma, horizon)
    steps, times = logs.steps(), _times(logs, count, seed)
    return weighted_refits(_first_values(steps, logs.probabilities(policy), logs.mask.sum(1), times), times)


def return_refits(
    dataset: Any, *, gamma: float = 0.99, horizon: int | None = None, count: int = 100, seed: int = 0
) -> Refits:
    """What the logs earned, for the same draws as those of `linear_refits` and `fqe_refits`: the baseline of a gain."""
    logs = read(dataset, gamma, horizon)
    returns = (logs.reward * gamma ** np.arange(logs.mask.shape[1])).sum(-1)
    return weighted_refits(returns, _times(logs, count, seed))


def fqe_refits(evaluation: Any, dataset: Any) -> Refits:
    """The estimate of an `FQE` whose ``resample_episodes`` is true: each of its members is a refit.

    The estimate is the mean over members. Their spread has the chance of networks and minibatches in it, too, so the
    interval is rather wide than narrow.

    Args:
        evaluation: that was fitted on ``dataset``.
        dataset: the same, unchanged.

    Raises:
        ConfigError: if its members were all fitted on the same episodes.
    """
    config = evaluation.config
    if not getattr(config, "resample_episodes", False):
        raise ConfigError(
            "the members of this evaluation are fitted on the same episodes, and differ by chance alone: evaluate with "
            "resample_episodes=True and n_critics of 20 or more"
        )
    (storage,) = dataset.reader.storages
    times = episode_times(storage, config.n_critics)
    first, episodes = [], []
    for batch in dataset.reader.all_transitions(initial=True):
        first.append(evaluation.member_values(batch.observations).astype(np.float64))
        episodes.append(batch.extra["episode"])
    values, own = np.concatenate(first, 1), times[:, np.concatenate(episodes)]
    return weighted_refits(np.concatenate([values.mean(0, keepdims=True), values]), own)


def _first_values(steps: StepFeatures, target: Array, length: Array, times: Array) -> Array:
    """``V(s_0)`` of every episode by the model of all of them and by those of the draws, ``[1 + B, n]``."""
    first = np.cumsum(length) - length
    weight = np.repeat(np.concatenate([np.ones((1, len(length))), times]), length, axis=1)
    size = max(_AT_ONCE // target.size, 1)
    found = []
    for begin in range(0, len(weight), size):
        q = weighted_fitted_q(steps, target, weight[begin : begin + size])[:, first]
        found.append((target[first] * q).sum(-1))
    return np.concatenate(found)


def episode_times(storage: Storage, count: int) -> Array:
    """How often each of ``count`` draws counts each episode of a storage, ``[count, E]``.

    Episodes of one value of the extra column ``cluster`` are drawn together.
    """
    lane, start, _ = episode_table(storage)
    groups = np.arange(len(lane))
    if "extra.cluster" in storage.leaves:
        groups = storage.place.host(storage.take("extra.cluster", storage.rows(lane, start))).ravel()
    return resamples(groups, count)


def _times(logs: Logged, count: int, seed: int) -> Array:
    groups = np.arange(len(logs.mask)) if logs.cluster is None else logs.cluster
    return resamples(groups, count, seed)
