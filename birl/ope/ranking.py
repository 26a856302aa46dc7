"""Ranking of several policies, with the range of ranks that the logs allow for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from birl.checks import check
from birl.dataset.base import ReplayBufferBase
from birl.errors import ConfigError
from birl.ope.episode_arrays import LoggedEpisodes, check_columns, read_episodes
from birl.ope.episode_columns import as_dataset
from birl.ope.evaluated_policies import EvaluatedPolicy
from birl.ope.evaluation import DECIDERS, Evaluation, evaluate_view
from birl.ope.intervals import t_interval
from birl.ope.learned_rows import HeldOutRows
from birl.ope.screening import KEPT, screening_values


@dataclass(frozen=True, eq=False)
class Ranking:
    """Policies in the order of the lower bounds of their gains, the highest first; refused policies are last.

    Attributes:
        evaluations: evaluations by name, in this order.
        ranges: the best and the worst rank that each policy may have, from 1.
        advice: a sentence that says which policies to try.
        set_aside: values of the policies that the screen left out, by name, the highest first.
        differences: for each pair of evaluated policies, by names, the share of the steps in which they choose
            differently; empty for continuous actions.
    """

    evaluations: Mapping[str, Evaluation]
    ranges: Mapping[str, tuple[int, int]]
    advice: str
    set_aside: Mapping[str, float] = field(default_factory=dict)
    differences: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def rank(
    policies: Mapping[str, EvaluatedPolicy],
    dataset: ReplayBufferBase,
    *,
    gamma: float = 0.99,
    horizon: int | None = None,
    behaviour: str | EvaluatedPolicy = "logged",
    confidence: float = 0.95,
    seen: Collection[str] = (),
    keep: int = KEPT,
    seed: int = 0,
    reward_range: tuple[float | None, float | None] | None = None,
) -> Ranking:
    """Rank policies by the lower bound of their gain over the logs, with the range of ranks of each.

    Two policies differ if the interval of their paired difference excludes 0, with the given confidence for all pairs
    together (Bonferroni). The range of a policy's ranks begins after all significantly better policies and ends before
    all significantly worse ones.

    If there are more than ``keep`` policies, a cheap screen (one linear model of up to 1,000 episodes for each) selects
    those that are evaluated. Ranks are among these policies only, but the confidence of each comparison is corrected
    for all policies, including those that were left out (Tang and Wiens 2021, arXiv:2107.11003).

    The estimate of a policy that these episodes selected is too optimistic: certify it on other episodes.

    Args:
        policies: policies by name, see `birl.ope.evaluate`.
        dataset: see there, also for ``gamma``, ``horizon``, ``behaviour``, ``confidence``, ``seed`` and
            ``reward_range``.
        seen: names of policies that learned from these episodes.
        keep: number of policies that are evaluated.

    Raises:
        ConfigError: if there is no policy.
    """
    check("keep", keep, int, low=1)
    logs = read_logs(policies, dataset, gamma, horizon, behaviour, seed, reward_range)
    seen = {*seen, *HeldOutRows(as_dataset(dataset)).seen_by(policies)}
    set_aside: dict[str, float] = {}
    if len(policies) > keep:
        value = screening_values(policies, logs, seed)
        by_value = sorted(policies, key=lambda name: (name in seen, -value[name]))  # estimates of seen ones are refused
        set_aside = {name: value[name] for name in by_value[keep:]}
    kept = {name: policy for name, policy in policies.items() if name not in set_aside}
    evaluations = evaluate_all(kept, logs, confidence, seen)
    ranges = _ranges(evaluations, confidence, len(policies))
    order = sorted(evaluations, key=lambda name: -lower_bound(evaluations[name]))
    evaluations, ranges = {name: evaluations[name] for name in order}, {name: ranges[name] for name in order}
    return Ranking(evaluations, ranges, _advice(evaluations, ranges), set_aside, _differences(evaluations))


def read_logs(
    policies: Mapping[str, EvaluatedPolicy],
    dataset: ReplayBufferBase,
    gamma: float,
    horizon: int | None,
    behaviour: str | EvaluatedPolicy,
    seed: int,
    reward_range: tuple[float | None, float | None] | None,
) -> LoggedEpisodes:
    """Read the logs that rank policies; see `rank`."""
    if not policies:
        raise ConfigError("there are no policies to rank: give one or more")
    dataset = as_dataset(dataset)
    check_columns(policies, dataset)
    return read_episodes(dataset, gamma, horizon, behaviour, seed, reward_range=reward_range)


def evaluate_all(
    policies: Mapping[str, EvaluatedPolicy],
    logs: LoggedEpisodes,
    confidence: float,
    seen: Collection[str],
) -> dict[str, Evaluation]:
    """Evaluate policies by name against the logs; see `rank`."""
    check("confidence", confidence, float, above=0, below=1)
    return {
        name: evaluate_view(name, logs, logs.view(policy), None, confidence, name in seen)
        for name, policy in policies.items()
    }


def lower_bound(evaluation: Evaluation) -> float:
    """Return the lower bound of the gain by the estimator that decides; minus infinity if none does."""
    ends = evaluation.gain_range()
    return -np.inf if ends is None else ends[0]


def _ranges(evaluations: Mapping[str, Evaluation], confidence: float, n_policies: int) -> dict[str, tuple[int, int]]:
    """Return the ranges of ranks of the evaluated policies; the confidence covers all pairs of ``n_policies``."""
    count = len(evaluations)
    pair_confidence = 1 - (1 - confidence) / max(n_policies * (n_policies - 1) // 2, 1)
    better, worse = dict.fromkeys(evaluations, 0), dict.fromkeys(evaluations, 0)
    names = list(evaluations)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            sign = _compare(evaluations[name], evaluations[other], pair_confidence)
            first, last = (name, other) if sign > 0 else (other, name)
            better[last] += sign != 0
            worse[first] += sign != 0
    return {name: (1 + better[name], count - worse[name]) for name in names}


def _compare(one: Evaluation, other: Evaluation, confidence: float) -> int:
    """Return 1 if the first policy is better, -1 if the second is, 0 if the difference is not significant."""
    both = [key for key in DECIDERS if all(key in rows and not rows[key].refused for rows in (one.rows, other.rows))]
    if not both:
        return 0
    interval = t_interval(one.rows[both[0]].gain - other.rows[both[0]].gain, confidence, one.clusters)
    return int(interval.lower > 0) - int(interval.upper < 0)


def _differences(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, float]]:
    """Return the mean total variation distance of each pair of policies."""
    all_probabilities = {name: evaluation.action_probabilities for name, evaluation in evaluations.items()}
    probabilities = {name: value for name, value in all_probabilities.items() if value is not None}
    return {
        name: {other: float(np.abs(one - two).sum(-1).mean() / 2) for other, two in probabilities.items()}
        for name, one in probabilities.items()
    }


def _advice(evaluations: Mapping[str, Evaluation], ranges: Mapping[str, tuple[int, int]]) -> str:
    decided = [name for name in evaluations if evaluations[name].decides is not None]
    if not decided:
        return "These logs cannot rank any of the policies: read why they are refused, and log what is missing."
    first = [name for name in decided if ranges[name][0] == 1]
    above = [name for name in first if lower_bound(evaluations[name]) > 0]
    if len(decided) == 1 < len(evaluations):
        text = f"Only {first[0]} has a valid estimate{': certify it' if above else ''}."
    elif len(first) == len(evaluations) > 1:
        text = f"No policy stands out: the differences between the {len(evaluations)} policies are not significant."
    elif len(first) == 1:
        text = f"{first[0]} is the best of those with valid estimates{': certify it' if above else ''}."
    else:
        text = f"{len(first)} may be the best, {', '.join(first)}: certify these, or the one that is cheapest to run."
    return text + ("" if above else " None of these is significantly better than the logs.")
