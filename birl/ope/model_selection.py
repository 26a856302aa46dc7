"""Which model of a run to take, and of which run: by ranks of several models, not by the best of many estimates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from birl.checks import check
from birl.errors import ConfigError
from birl.ope.evaluation import Evaluation
from birl.ope.ranking import evaluations, logs_of, lower_bound
from birl.ope.screening import KEPT, screened
from birl.types import Array


@dataclass(frozen=True, eq=False)
class Choice:
    """The models of a run, in the order of their training.

    Attributes:
        evaluations: by name.
        ranks: the rank of each among all models of all runs, from 1, as the mean over it and its neighbours, ``[K]``.
        name: the model with the lowest, of equal ones that with the lowest rank alone; ``None`` if none of the run can
            be judged.
    """

    evaluations: Mapping[str, Evaluation]
    ranks: Array
    name: str | None

    @property
    def rank(self) -> float:
        """That of the chosen model; infinite if there is none."""
        return float("inf") if self.name is None else float(self.ranks[list(self.evaluations).index(self.name)])


def choose(
    runs: Mapping[str, Mapping[str, Any]],
    dataset: Any,
    *,
    neighbours: int = 1,
    gamma: float = 0.99,
    horizon: int | None = None,
    behaviour: Any = "logged",
    seen: Collection[str] = (),
    keep: int = KEPT,
    seed: int = 0,
) -> dict[str, Choice]:
    """Choose a model of each run, and order the runs, which may differ in hyper-parameters, by it.

    The best of many estimates is that of the luckiest model as much as of the best one. So models are ranked by the
    lower bound of their gain over the logs, and a rank is that of a model and its neighbours in training together: luck
    differs between neighbours, skill does not much. Certify the choice on other episodes.

    Of more than ``keep`` runs a cheap screen sets the others aside, by ranks of the same kind: see `birl.ope.rank`.
    Where episodes are few, learn and choose on several splits of them, and take `mean_ranks`.

    Args:
        runs: policies by name, in the order of training, by the name of their run.
        dataset: see `birl.ope.evaluate`, as ``gamma``, ``horizon``, ``behaviour`` and ``seed``.
        neighbours: how many models before and after one share their ranks with it; 0 for none.
        seen: names of policies that have learned from these episodes.
        keep: how many runs are evaluated.

    Returns:
        By name of the run, the best one first; without those that were set aside.

    Raises:
        ConfigError: if there is no policy, or a name is given twice.
    """
    check("neighbours", neighbours, int, low=0)
    policies = {name: policy for run in runs.values() for name, policy in run.items()}
    if not policies or not all(runs.values()):
        raise ConfigError("there is a run without policies: give one or more of each")
    if len(policies) < sum(map(len, runs.values())):
        raise ConfigError("two runs have a policy of the same name: give each its own")
    check("keep", keep, int, low=1)
    logs = logs_of(policies, dataset, gamma, horizon, behaviour, seed)
    if len(runs) > keep:
        value = screened(policies, logs, seed)
        able = [-np.inf if name in seen else one for name, one in value.items()]
        by_value = dict(zip(value, ranks(able), strict=True))
        best = {run: among_neighbours([by_value[name] for name in own], neighbours).min() for run, own in runs.items()}
        runs = {run: runs[run] for run in sorted(runs, key=best.__getitem__)[:keep]}
    found = evaluations({k: p for run in runs.values() for k, p in run.items()}, logs, behaviour, 0.95, seen)
    rank = dict(zip(found, ranks([lower_bound(one) for one in found.values()]), strict=True))
    choices = {run: _choice({name: found[name] for name in own}, rank, neighbours) for run, own in runs.items()}
    return dict(sorted(choices.items(), key=lambda item: item[1].rank))


def _choice(found: Mapping[str, Evaluation], rank: Mapping[str, float], neighbours: int) -> Choice:
    own = [rank[name] for name in found]
    means = among_neighbours(own, neighbours)
    able = [place for place, one in enumerate(found.values()) if one.decides is not None]
    best = min(able, key=lambda place: (means[place], own[place]), default=None)
    return Choice(found, means, None if best is None else list(found)[best])


def mean_ranks(splits: Sequence[Mapping[str, Choice]]) -> dict[str, float]:
    """Runs by their mean rank over several splits of the same episodes, the lowest first (Nie et al. 2022).

    arXiv:2210.08642. Of few episodes one split decides by luck which settings look best: learn with each of them on the
    one part of five splits, and choose by the other.

    Args:
        splits: of `choose`; names of runs stand for settings. What a split set aside, or cannot judge, shares its last
            ranks.

    Raises:
        ConfigError: if there is no split.
    """
    if not splits:
        raise ConfigError("there are no splits: give one or more results of choose")
    names = list(dict.fromkeys(name for split in splits for name in split))
    found = [ranks([-split[name].rank if name in split else -np.inf for name in names]) for split in splits]
    means = dict(zip(names, np.mean(found, 0).tolist(), strict=True))
    return dict(sorted(means.items(), key=lambda item: item[1]))


def ranks(score: Sequence[float]) -> Array:
    """Ranks ``[K]`` from 1 for the highest; equal scores share the mean of theirs."""
    scores = np.asarray(score)
    above = (scores > scores[:, None]).sum(1)
    return np.asarray(above + (np.sum(scores == scores[:, None], 1) + 1) / 2)


def among_neighbours(values: Sequence[float], neighbours: int = 1) -> Array:
    """Mean of each value and of so many before and after it, ``[K]``; the first and the last stand for those beyond."""
    wide = np.pad(np.asarray(values, np.float64), neighbours, mode="edge")
    return np.lib.stride_tricks.sliding_window_view(wide, 2 * neighbours + 1).mean(-1)


def turns_down(values: Sequence[float]) -> int | None:
    """After which model of a run the mean value of logged states falls to its end; ``None`` if it rises to the end.

    Of a critic that is conservative this is overfitting, and the model to take lies before it (Kumar et al. 2021,
    arXiv:2109.10813, section 4). Values are taken together with their neighbours', so that one low value says nothing.

    Args:
        values: of `birl.metrics.AverageValueEstimationEvaluator`, of models in the order of training.
    """
    if len(values) < 4:
        return None
    peak = int(among_neighbours(values).argmax())
    return peak if peak < len(values) - 2 else None
