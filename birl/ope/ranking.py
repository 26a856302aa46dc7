"""Which of several policies to try: ranks with the ranges that logs leave open."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from birl.checks import check
from birl.errors import ConfigError
from birl.ope.episode_arrays import Logged, check_columns, read
from birl.ope.evaluation import DECIDERS, Evaluation, judged
from birl.ope.intervals import t_interval
from birl.ope.screening import KEPT, screened


@dataclass(frozen=True, eq=False)
class Ranking:
    """Policies, the one first whose gain has the greatest lower bound; those that cannot be judged last.

    Attributes:
        evaluations: by name, in this order.
        ranges: the best and the worst rank that each may have, from 1.
        advice: which to try, in a sentence.
        set_aside: the values of those that a screen left out, by name, the highest first.
        differences: of each two that were evaluated, by their names, in what share of the steps they choose
            differently; empty of quantities.
    """

    evaluations: Mapping[str, Evaluation]
    ranges: Mapping[str, tuple[int, int]]
    advice: str
    set_aside: Mapping[str, float] = field(default_factory=dict)
    differences: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def rank(
    policies: Mapping[str, Any],
    dataset: Any,
    *,
    gamma: float = 0.99,
    horizon: int | None = None,
    behaviour: Any = "logged",
    confidence: float = 0.95,
    seen: Collection[str] = (),
    keep: int = KEPT,
    seed: int = 0,
) -> Ranking:
    """Rank policies by the lower bound of their gain over the logs, with the ranks that each may have.

    A policy is told from another if the interval of their paired difference leaves out 0, all pairs together with this
    confidence (Bonferroni); its best rank is behind all that are better, its worst before all that are worse.

    Of more than ``keep`` policies a cheap screen (one linear model of up to 1,000 episodes for each) chooses those that
    are evaluated; ranges are among these, and as wide as if all had been (Tang and Wiens 2021, arXiv:2107.11003).

    What is chosen by these episodes looks better on them than it is: certify it on others.

    Args:
        policies: by name, see `birl.ope.evaluate`.
        dataset: see there, as ``gamma``, ``horizon``, ``behaviour``, ``confidence`` and ``seed``.
        seen: names of policies that have learned from these episodes.
        keep: how many policies are evaluated.

    Raises:
        ConfigError: if there is no policy.
    """
    check("keep", keep, int, low=1)
    logs = logs_of(policies, dataset, gamma, horizon, behaviour, seed)
    aside: dict[str, float] = {}
    if len(policies) > keep:
        value = screened(policies, logs, seed)
        by_value = sorted(policies, key=lambda name: (name in seen, -value[name]))  # what was seen cannot be judged
        aside = {name: value[name] for name in by_value[keep:]}
    kept = {name: policy for name, policy in policies.items() if name not in aside}
    found = evaluations(kept, logs, behaviour, confidence, seen)
    order = sorted(found, key=lambda name: -lower_bound(found[name]))
    ranges = _ranges(found, confidence, len(policies))
    found, ranges = {name: found[name] for name in order}, {name: ranges[name] for name in order}
    return Ranking(found, ranges, _advice(found, ranges), aside, _differences(found))


def logs_of(
    policies: Mapping[str, Any], dataset: Any, gamma: float, horizon: int | None, behaviour: Any, seed: int
) -> Logged:
    """The logs by which policies are ranked; see `rank`."""
    if not policies:
        raise ConfigError("there are no policies to rank: give one or more")
    check_columns(policies, dataset)
    return read(dataset, gamma, horizon, behaviour, seed)


def evaluations(
    policies: Mapping[str, Any], logs: Logged, behaviour: Any, confidence: float, seen: Collection[str]
) -> dict[str, Evaluation]:
    """Evaluations of policies by name, over what the logs earned; see `rank`."""
    check("confidence", confidence, float, above=0, below=1)
    how = behaviour if isinstance(behaviour, str) else "given"
    return {
        name: judged(name, logs, logs.seen_from(policy), None, how, confidence, name in seen)
        for name, policy in policies.items()
    }


def lower_bound(of: Evaluation) -> float:
    """Of the gain, by the estimator that decides; minus infinity if none does."""
    row = of.gain
    return -np.inf if row is None or row.gain_interval is None else float(row.gain_interval.lower)


def _ranges(found: Mapping[str, Evaluation], confidence: float, given: int) -> dict[str, tuple[int, int]]:
    """Ranges among those that were evaluated, by a confidence that all that were given share."""
    count = len(found)
    sure = 1 - (1 - confidence) / max(given * (given - 1) // 2, 1)
    better, worse = dict.fromkeys(found, 0), dict.fromkeys(found, 0)
    names = list(found)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            apart = _apart(found[name], found[other], sure)
            first, last = (name, other) if apart > 0 else (other, name)
            better[last] += apart != 0
            worse[first] += apart != 0
    return {name: (1 + better[name], count - worse[name]) for name in names}


def _apart(one: Evaluation, other: Evaluation, confidence: float) -> int:
    """1 if the first policy is better, -1 if the second is, 0 if they are not told apart."""
    both = [key for key in DECIDERS if all(key in each.rows and not each.rows[key].refused for each in (one, other))]
    if not both:
        return 0
    interval = t_interval(one.rows[both[0]].gain - other.rows[both[0]].gain, confidence, one.clusters)
    return int(interval.lower > 0) - int(interval.upper < 0)


def _differences(found: Mapping[str, Evaluation]) -> dict[str, dict[str, float]]:
    """Mean distances in total variation of each two policies."""
    known = {name: one.chances for name, one in found.items() if one.chances is not None}
    return {
        name: {other: float(np.abs(own - its).sum(-1).mean() / 2) for other, its in known.items()}
        for name, own in known.items()
    }


def _advice(found: Mapping[str, Evaluation], ranges: Mapping[str, tuple[int, int]]) -> str:
    judgeable = [name for name in found if found[name].decides is not None]
    if not judgeable:
        return "None can be judged by these logs: look at what is refused, and log what is asked for there."
    first = [name for name in judgeable if ranges[name][0] == 1]
    above = [name for name in first if lower_bound(found[name]) > 0]
    if len(judgeable) == 1 < len(found):
        said = f"{first[0]} is the only one that can be judged{': certify it' if above else ''}."
    elif len(first) == len(found) > 1:
        said = f"None stands out: these logs do not tell the {len(found)} policies apart."
    elif len(first) == 1:
        said = f"{first[0]} stands out among those that can be judged{': certify it' if above else ''}."
    else:
        said = f"{len(first)} may be the best, {', '.join(first)}: certify these, or the one that is cheapest to run."
    none = "" if above else " None of these is surely better than the logs."
    return said + none
