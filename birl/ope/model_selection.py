"""Selection of checkpoints and hyperparameters by averaged ranks instead of the best of many estimates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from birl.checks import check
from birl.dataset.base import ReplayBufferBase
from birl.errors import ConfigError
from birl.ope.episode_columns import as_dataset
from birl.ope.evaluated_policies import EvaluatedPolicy
from birl.ope.evaluation import Evaluation
from birl.ope.learned_rows import HeldOutRows
from birl.ope.ranking import evaluate_all, lower_bound, read_logs
from birl.ope.screening import KEPT, screening_values
from birl.types import Array


@dataclass(frozen=True, eq=False)
class Choice:
    """The models of a run, in the order of training, and the chosen one.

    Attributes:
        evaluations: evaluations by name of the model.
        ranks: rank of each model among all models of all runs, from 1, averaged with its neighbours, ``[K]``.
        name: the model with the lowest averaged rank, or of several such models the one with the lowest rank of its
            own; ``None`` if all estimates of the run are refused.
    """

    evaluations: Mapping[str, Evaluation]
    ranks: Array
    name: str | None

    @property
    def rank(self) -> float:
        """Averaged rank of the chosen model; infinite if there is none."""
        return float("inf") if self.name is None else float(self.ranks[list(self.evaluations).index(self.name)])


def choose(
    runs: Mapping[str, Mapping[str, EvaluatedPolicy]],
    dataset: ReplayBufferBase,
    *,
    neighbours: int = 1,
    gamma: float = 0.99,
    horizon: int | None = None,
    behaviour: str | EvaluatedPolicy = "logged",
    seen: Collection[str] = (),
    keep: int = KEPT,
    seed: int = 0,
    reward_range: tuple[float | None, float | None] | None = None,
) -> dict[str, Choice]:
    """Choose a model of each run, and sort the runs by their chosen models. Runs may differ in hyperparameters.

    The best of many estimates often belongs to the luckiest model, not to the best one. Models are therefore ranked by
    the lower bound of their gain over the logs, and ranks are averaged over neighbours in training, which differ in
    luck, but hardly in skill. Certify the choice on other episodes.

    If there are more than ``keep`` runs, a cheap screen first selects that many by averaged ranks: see `birl.ope.rank`.
    If there are few episodes, train and choose on several splits of them, and use `mean_ranks`.

    Args:
        runs: by name of the run, its policies by name in the order of training.
        dataset: see `birl.ope.evaluate`, also for ``gamma``, ``horizon``, ``behaviour``, ``seed`` and
            ``reward_range``.
        neighbours: number of models before and after each one whose ranks are averaged with its own; 0 for none.
        seen: names of policies that learned from these episodes.
        keep: number of runs that are evaluated.

    Returns:
        Choices by name of the run, the best first, without the runs that were set aside.

    Raises:
        ConfigError: if there is no policy, or two policies have the same name.
    """
    check("neighbours", neighbours, int, low=0)
    policies = {name: policy for run in runs.values() for name, policy in run.items()}
    if not policies or not all(runs.values()):
        raise ConfigError("there is a run without policies: give one or more of each")
    if len(policies) < sum(map(len, runs.values())):
        raise ConfigError("two runs have a policy of the same name: give each its own")
    check("keep", keep, int, low=1)
    logs = read_logs(policies, dataset, gamma, horizon, behaviour, seed, reward_range)
    seen = {*seen, *HeldOutRows(as_dataset(dataset)).seen_by(policies)}
    if len(runs) > keep:
        value = screening_values(policies, logs, seed)
        unseen = [-np.inf if name in seen else estimate for name, estimate in value.items()]
        by_value = dict(zip(value, ranks(unseen), strict=True))
        best = {
            run: average_neighbours([by_value[name] for name in names], neighbours).min() for run, names in runs.items()
        }
        runs = {run: runs[run] for run in sorted(runs, key=best.__getitem__)[:keep]}
    kept = {name: policy for run in runs.values() for name, policy in run.items()}
    evaluations = evaluate_all(kept, logs, 0.95, seen)
    rank = dict(zip(evaluations, ranks([lower_bound(evaluation) for evaluation in evaluations.values()]), strict=True))
    choices = {}
    for run, names in runs.items():
        choices[run] = _choice({name: evaluations[name] for name in names}, rank, neighbours)
    return dict(sorted(choices.items(), key=lambda item: item[1].rank))


def _choice(evaluations: Mapping[str, Evaluation], rank: Mapping[str, float], neighbours: int) -> Choice:
    model_ranks = [rank[name] for name in evaluations]
    averaged = average_neighbours(model_ranks, neighbours)
    decided = [index for index, evaluation in enumerate(evaluations.values()) if evaluation.decides is not None]
    best = min(decided, key=lambda index: (averaged[index], model_ranks[index]), default=None)
    return Choice(evaluations, averaged, None if best is None else list(evaluations)[best])


def mean_ranks(splits: Sequence[Mapping[str, Choice]]) -> dict[str, float]:
    """Sort runs by their mean rank over several splits of the same episodes, the lowest first (Nie et al. 2022).

    arXiv:2210.08642. With few episodes, chance decides which settings look best on one split. Make five splits, train
    with each setting on one part of every split, and choose by the other part.

    Args:
        splits: results of `choose`, in which the names of runs are names of settings. Runs that a split set aside or
            refused share its last ranks.

    Raises:
        ConfigError: if there is no split.
    """
    if not splits:
        raise ConfigError("there are no splits: give one or more results of choose")
    names = list(dict.fromkeys(name for split in splits for name in split))
    by_split = [ranks([-split[name].rank if name in split else -np.inf for name in names]) for split in splits]
    means = dict(zip(names, np.mean(by_split, 0).tolist(), strict=True))
    return dict(sorted(means.items(), key=lambda item: item[1]))


def ranks(scores: Sequence[float]) -> Array:
    """Return ranks ``[K]``, 1 for the highest score; equal scores share their mean rank."""
    score = np.asarray(scores)
    above = (score > score[:, None]).sum(1)
    return np.asarray(above + (np.sum(score == score[:, None], 1) + 1) / 2)


def average_neighbours(values: Sequence[float], neighbours: int = 1) -> Array:
    """Return the mean of each value and its neighbours, ``[K]``, after repeating the first and the last value."""
    padded = np.pad(np.asarray(values, np.float64), neighbours, mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * neighbours + 1).mean(-1)


def turns_down(values: Sequence[float]) -> int | None:
    """Return the index of the model after which the mean value of logged states falls; ``None`` if it never falls.

    With a conservative critic, falling values are a sign of overfitting: take an earlier model (Kumar et al. 2021,
    arXiv:2109.10813, section 4). Values are averaged with their neighbours, so that one low value has no effect.

    Args:
        values: from `birl.metrics.AverageValueEstimationEvaluator`, of models in the order of training.
    """
    if len(values) < 4:
        return None
    peak = int(average_neighbours(values).argmax())
    return peak if peak < len(values) - 2 else None
