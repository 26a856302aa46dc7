"""Checks of logs: each is a function of the statistics of one scan.

A check has facts, which `birl.ope.validity_limits` compares with limits, further numbers, tables and figures. Facts
that the data cannot give, such as those of unlogged propensities, are ``None``.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from birl.ope.audit.models import explained_variance, sample_rows
from birl.ope.audit.scan import LogStatistics
from birl.ope.html_page import Figure, Table, bars, lines
from birl.spaces import Discrete
from birl.types import Array

Number: TypeAlias = float | int | str | None
_MIN_LIMIT, _MIN_AT_LIMIT = 20, 10  # a time limit is suspected if it has so many steps and ends so many episodes
_MIN_DISTINCT = 0.3  # with a smaller share of distinct observations, repeated steps and episodes are normal
_FIRST_DATE = 1e8  # larger times are seconds since 1970
_BINS = 30


@dataclass(frozen=True, eq=False)
class Check:
    """A question about the logs, and the answer.

    Attributes:
        title: name of the check.
        about: purpose of the check.
        facts: numbers with limits, by the names of `birl.ope.FACTS`.
        numbers: further numbers, by their meanings.
        tables: tables by their captions.
        figures: figures of these tables.
        where: the columns or actions that a fact is about, by its name.
    """

    title: str
    about: str
    facts: Mapping[str, float | None] = field(default_factory=dict)
    numbers: Mapping[str, Number] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Sequence[Figure] = ()
    where: Mapping[str, str] = field(default_factory=dict)


def check_size(logs: LogStatistics) -> Check:
    """Count episodes, steps and clusters, and show the lengths of episodes."""
    length = logs.episodes["length"]
    clusters = len(np.unique(logs.episodes["cluster"])) if "cluster" in logs.episodes else None
    numbers: dict[str, Number] = {"steps": logs.counts["steps"], "columns of an observation": logs.width}
    numbers["actions"] = str(logs.actions)
    table, figure = histogram("Lengths of episodes", length.astype(float), "steps", "episodes")
    return Check(
        "Size and lengths", "With fewer than 30 episodes, or clusters of episodes, a mean has no valid interval.",
        {"episodes": len(length), "clusters": clusters}, numbers,
        {"Quantiles of the length": _quantiles(length), figure.caption: table}, [figure],
    )  # fmt: skip


def check_ends(logs: LogStatistics) -> Check:
    """Check how episodes end, and whether terminations include a time limit."""
    episodes, length = logs.episodes, logs.episodes["length"]
    terminated = length[episodes["terminated"]]
    at_limit, longest = None, length.max()
    if len(terminated) and longest >= _MIN_LIMIT:
        reached = terminated == longest
        at_limit = float(reached.mean()) if reached.sum() >= _MIN_AT_LIMIT else 0.0
    cut = ~episodes["terminated"].astype(bool) & (length < length.max())
    censored = float(np.mean(cut | (episodes["censored"] != 0 if "censored" in episodes else False)))
    numbers = {"terminated": int(episodes["terminated"].sum()), "truncated": int(episodes["truncated"].sum())}
    numbers["running"] = len(length) - sum(numbers.values())
    about = "Rewards are 0 after a termination and unknown after a truncation. A time limit that is marked as a "
    about += "termination biases all learned values."
    if longest < _MIN_LIMIT:
        about += f" Episodes of fewer than {_MIN_LIMIT} steps are not checked for a time limit."
    return Check("Ends", about, {"ends_at_limit": at_limit, "censored": censored}, numbers)


def check_order(logs: LogStatistics, others: Mapping[str, LogStatistics]) -> Check:
    """Check times, duplicates, and episodes that are in several parts."""
    episodes, steps = logs.episodes, logs.counts["steps"]
    varied = logs.unique["observations"] >= _MIN_DISTINCT * steps
    following = max(steps - len(episodes["length"]), 1)
    shared = {
        name: float(np.isin(episodes["digest"], other.episodes["digest"]).mean()) for name, other in others.items()
    }
    facts = {
        "backwards": logs.counts["backwards"] / following if logs.gaps is not None else None,
        "long_gaps": logs.share_of_gaps_over(10),
        "overlapping": _overlapping(episodes),
        "repeated_steps": logs.counts["repeated"] / following if varied else None,
        "shared_episodes": max(shared.values(), default=None) if varied else None,
    }
    table = Table(["part", "share of these episodes in it"], [[*row] for row in shared.items()])
    about = "Duplicate rows, clocks that go back and merged episodes look like dynamics to an algorithm."
    return Check("Order", about, facts, {}, {"Other parts": table} if shared else {})


def check_independence(logs: LogStatistics) -> Check:
    """Check whether episodes are copies of others, or depend on each other."""
    found, cluster = logs.dependence, logs.episodes.get("cluster")
    facts = {
        "repeated_episodes": float(found.copy.mean()),
        "similar_episodes": found.agreement,
        "several_ids": 0.0,
    }
    where = {}
    if found.customer is not None and (clusters := logs.clusters) is not None:
        joined = np.unique(clusters, return_inverse=True)[1]
        ids = np.arange(len(joined)) if cluster is None else np.unique(cluster, return_inverse=True)[1]
        owned = np.bincount(np.unique(np.stack([joined, ids]), axis=1)[0])  # ids of each customer
        facts["several_ids"] = float((owned[joined] > 1).mean())
        where["several_ids"] = "columns " + _column_names(logs, np.array(found.columns))
    about = "Copies, and episodes of one customer, say less than as many independent ones. Actions are random, so two "
    about += "independent episodes take the same action only as often as propensities allow."
    return Check("Independence", about, facts, {}, {}, (), where)


def _overlapping(episodes: Mapping[str, Array]) -> float | None:
    """Return the share of episodes that begin before the previous one of their cluster has ended."""
    if "cluster" not in episodes or "begins" not in episodes:
        return None
    order = np.lexsort((episodes["begins"], episodes["cluster"]))
    same = episodes["cluster"][order][1:] == episodes["cluster"][order][:-1]
    return float((same & (episodes["begins"][order][1:] < episodes["ends"][order][:-1])).sum() / len(order))


def _time_order(logs: LogStatistics) -> Array:
    """Return the indices of the episodes in the order of their start times, or as they are stored."""
    begins = logs.episodes.get("begins")
    return np.arange(len(logs.episodes["length"])) if begins is None else np.argsort(begins, kind="stable")


def check_returns(logs: LogStatistics, gamma: float, loggers: Sequence[str]) -> Check:
    """Show the distribution of returns, by logging policy and over time."""
    episodes, returns = logs.episodes, logs.episodes["return"]
    ordered, half = returns[_time_order(logs)], len(returns) // 2
    table, figure = histogram("Returns of episodes", returns, "return", "episodes")
    tables = {
        "Quantiles of the return": _quantiles(returns),
        f"Quantiles of the discounted return (discount {gamma:g})": _quantiles(episodes["discounted"]),
        figure.caption: table,
    }
    drift = None
    if half >= 2:
        first, last = ordered[:half], ordered[half:]
        error = math.sqrt(first.var(ddof=1) / len(first) + last.var(ddof=1) / len(last))
        change = abs(float(last.mean() - first.mean()))
        drift = change / error if error > 1e-12 * max(1.0, abs(first.mean())) else (math.inf if change > 1e-9 else 0.0)
        halves = [["first", len(first), float(first.mean())], ["last", len(last), float(last.mean())]]
        tables["Halves in time"] = Table(["half", "episodes", "mean return"], halves)
    if "logger" in episodes:
        rows = []
        for k in np.unique(episodes["logger"]):
            group = returns[episodes["logger"] == k]
            rows.append([logger_name(k, loggers), len(group), float(group.mean()), float(group.std())])
        tables["By logger"] = Table(["logger", "episodes", "mean return", "standard deviation"], rows)
    figures = [figure]
    labels, mean, count = _by_time(logs)
    if len(labels) > 1:
        rows = [[*row] for row in zip(labels, count, mean, strict=True)]
        tables["Mean return over time"] = Table(["when", "episodes", "mean return"], rows)
        series = {"mean return": (range(len(mean)), mean)}
        figures.append(lines("Mean return over time", series, x="time", y="return", ticks=labels))
    equal = int(len(returns) > 1 and float(np.ptp(returns)) <= 1e-9 * max(1.0, float(abs(returns).max())))
    facts = {"drift": drift, "equal_returns": len(returns) * equal}
    about = "If returns drift, the logs describe the past, and a verdict about the future needs more data."
    return Check("Returns", about, facts, {}, tables, figures)


def logger_name(number: float, loggers: Sequence[str]) -> str:
    """Return the name of a logging policy, or its number."""
    return loggers[int(number)] if 0 <= number < len(loggers) else f"logger {number:g}"


def _by_time(logs: LogStatistics) -> tuple[list[str], list[float], list[int]]:
    """Return mean returns and numbers of episodes by month if times are dates, otherwise by tenths of the episodes."""
    returns, begins = logs.episodes["return"], logs.episodes.get("begins")
    order = _time_order(logs)
    if begins is not None and begins.min() > _FIRST_DATE:
        months = np.array([_month(moment) for moment in begins[order]])
        names, index = np.unique(months, return_inverse=True)
        labels = [str(name) for name in names]
    else:
        index = np.arange(len(returns)) * 10 // max(len(returns), 10)
        labels = [f"tenth {k + 1}" for k in range(int(index[-1]) + 1)]
    count = np.bincount(index)
    means = np.bincount(index, returns[order]) / count
    return labels, [float(mean) for mean in means], [int(number) for number in count]


def _month(moment: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(float(moment), datetime.UTC).strftime("%Y-%m")
    except (OverflowError, OSError, ValueError):
        return "out of range"


def check_rewards(logs: LogStatistics) -> Check:
    """Check the scale, sparsity and outliers of rewards, and whether all rewards come at the end."""
    reward, statistics = logs.sample.reward, logs.reward
    median = float(np.median(reward))
    mad = float(np.median(np.abs(reward - median)))
    magnitude = math.sqrt(statistics["mean"] ** 2 + statistics["std"] ** 2)
    long_enough = logs.episodes["length"].mean() >= 5
    facts = {
        "reward_outliers": float((np.abs(reward - median) > 10 * mad).mean()) if mad > 0 else None,
        "reward_magnitude": abs(math.log10(magnitude)) if magnitude > 0 else None,
        "last_step_reward": statistics["last"] if long_enough and magnitude > 0 else None,
    }
    numbers = {
        "mean": statistics["mean"], "standard deviation": statistics["std"], "minimum": statistics["low"],
        "maximum": statistics["high"], "median": median,
        "share of zeros": logs.counts["zero_rewards"] / logs.counts["steps"],
    }  # fmt: skip
    table, figure = histogram("Rewards of steps (sample)", reward, "reward", "steps")
    about = "Outliers and magnitudes far from 1 make learning slow or unstable. Scalers are advised, never applied."
    return Check("Rewards", about, facts, numbers, {figure.caption: table}, [figure])


def check_observations(logs: LogStatistics, aucs: Mapping[str, float | None]) -> Check:
    """Check for columns without information, and for parts that differ."""
    columns, x = logs.columns, logs.sample.observation
    std = columns["std"]
    constant = np.flatnonzero(
        (std <= 1e-7 * np.maximum(abs(columns["mean"]), 1e-30)) & (columns["low"] == columns["high"])
    )
    copies = _copies(x, np.setdiff1d(np.arange(x.shape[1]), constant))
    varied = std[np.setdiff1d(np.arange(len(logs.names)), constant)]
    known_aucs = [auc for auc in aucs.values() if auc is not None]
    facts = {
        "not_finite": int(columns["not_finite"].sum()),
        "constant_columns": len(constant),
        "copied_columns": len(copies),
        "scale_ratio": float(varied.max() / varied.min()) if len(varied) else None,
        "part_auc": max(known_aucs, default=None),
    }
    where = {
        "constant_columns": _column_names(logs, constant),
        "not_finite": _column_names(logs, np.flatnonzero(columns["not_finite"])),
        "copied_columns": "; ".join(f"{logs.names[b]} of {logs.names[a]}" for a, b in copies[:5]),
    }
    low, high = (np.where(np.isfinite(columns[end]), columns[end], np.nan) for end in ("low", "high"))
    rows = [
        [name, float(columns["mean"][k]), float(std[k]), float(low[k]), float(high[k]), int(columns["not_finite"][k])]
        for k, name in enumerate(logs.names)
    ]
    head = ["column", "mean", "standard deviation", "minimum", "maximum", "not finite"]
    tables = {"Columns": Table(head, rows)}
    if aucs:
        tables["Classifier between parts"] = Table(["part", "AUC"], [[*row] for row in aucs.items()])
    numbers = {"columns checked": len(logs.names)} if len(logs.names) < logs.width else {}
    about = "Constant and duplicate columns cost time and carry no information."
    return Check("Observations", about, facts, numbers, tables, (), where)


def _copies(x: Array, columns: Array) -> list[tuple[int, int]]:
    """Return pairs of equal columns, the first column first."""
    first: dict[bytes, int] = {}
    pairs = []
    for k in columns:
        original = first.setdefault(np.ascontiguousarray(x[:, k]).tobytes(), int(k))
        if original != k:
            pairs.append((original, int(k)))
    return pairs


def _column_names(logs: LogStatistics, columns: Array) -> str:
    names = ", ".join(logs.names[k][:60] for k in columns[:5])
    return names + f" and {len(columns) - 5} more" * (len(columns) > 5)


def check_leakage(logs: LogStatistics) -> Check:
    """Check for columns that reveal values which are known only later."""
    sample = logs.sample
    x, followed = sample.observation, sample.followed
    rows = sample_rows(len(x), limit=20_000)
    begins = np.flatnonzero(sample.step == 0)
    constant = np.ones(x.shape[1], bool)
    if len(followed):
        constant = (x[followed] == x[followed + 1]).all(0)
    future = returns_to_go(sample.reward, sample.episode)
    length = logs.episodes["length"]
    complete = np.bincount(sample.episode, minlength=len(length)) == length  # truncated episodes have no return
    complete_rows = rows[complete[sample.episode[rows]]]
    next_ = followed[sample_rows(len(followed), limit=20_000)] if len(followed) else followed
    none = np.zeros(x.shape[1])
    explained = {
        "leak_reward": explained_variance(x[rows], sample.reward[rows]),
        "leak_next_reward": explained_variance(x[next_], sample.reward[next_ + 1]) if len(next_) else none,
        "leak_action": _explained_actions(logs, rows),
        "leak_return": explained_variance(x[complete_rows], future[complete_rows]) if len(complete_rows) else none,
        "leak_constant": constant
        * explained_variance(x[begins], logs.episodes["return"][sample.episode[begins]], bins=8),
    }
    if (length == 1).all():  # the reward is also the return
        explained["leak_return"] = explained["leak_constant"] = none
    largest = {name: float(values.max()) for name, values in explained.items() if len(values)}
    facts: dict[str, float | None] = {name: largest.get(name) for name in explained}
    where = {
        name: f"column {logs.names[int(values.argmax())][:80]}" for name, values in explained.items() if len(values)
    }
    head = ["column", "reward", "next reward", "action", "future rewards", "return, if constant in episodes"]
    top = np.argsort(-np.max([*explained.values()], axis=0), kind="stable")[:20] if x.shape[1] else ()
    table = Table(head, [[logs.names[k], *(float(values[k]) for values in explained.values())] for k in top])
    about = "A column that almost equals the target was often written after the action, and is missing when the policy "
    about += "is served. Numbers are shares of the variance that one column alone explains."
    return Check("Leakage", about, facts, {}, {"Columns that explain most": table}, (), where)


def _explained_actions(logs: LogStatistics, rows: Array) -> Array:
    action, x = logs.sample.action[rows], logs.sample.observation[rows]
    if isinstance(logs.actions, Discrete):
        frequent = np.argsort(-np.bincount(action[:, 0]))[:10]
        return explained_variance(x, action == frequent)
    return explained_variance(x, action)


def returns_to_go(reward: Array, episode: Array) -> Array:
    """Return the sum of rewards from each step of the sample to the end of its episode."""
    total = reward.cumsum()
    ends = np.append(np.flatnonzero(np.diff(episode)), len(reward) - 1)
    return np.asarray(total[ends][np.searchsorted(ends, np.arange(len(reward)))] - total + reward)


def check_actions(logs: LogStatistics, names: Sequence[str]) -> Check:
    """Check which actions were tried.

    Args:
        logs: statistics of the logs.
        names: names of the actions, which are used if their number fits.
    """
    about = "The effect of an action is unknown if it was never or always taken."
    if logs.taken is not None and isinstance(logs.actions, Discrete):
        possible = np.ones(len(logs.taken), bool) if logs.possible is None else logs.possible > 0
        never = np.flatnonzero(possible & (logs.taken == 0))
        share = logs.taken / logs.taken.sum()
        entropy = float(-(share[share > 0] * np.log(share[share > 0])).sum())
        numbers = [str(k + logs.actions.start) for k in range(len(share))]
        labels = names if len(names) == len(numbers) else numbers
        rows = [
            [name, int(count), None if logs.possible is None else int(logs.possible[k])]
            for k, (name, count) in enumerate(zip(labels, logs.taken, strict=True))
        ]
        return Check(
            "Actions", about, {"never_taken": len(never)},
            {"entropy of all actions, nats": entropy, "actions taken": int((logs.taken > 0).sum())},
            {"How often actions were taken": Table(["action", "taken", "possible"], rows)},
            [bars("How often actions were taken", labels, logs.taken, x="action", y="steps")],
            {"never_taken": "actions " + ", ".join(labels[k] for k in never[:10])},
        )  # fmt: skip
    action = logs.sample.action.astype(np.float64)
    low, high = action.min(0), action.max(0)
    middle = np.quantile(action, [0.05, 0.95], axis=0)
    used = (middle[1] - middle[0]) / np.where(high > low, high - low, 1)
    numbers = [str(k) for k in range(len(low))]
    labels = names if len(names) == len(numbers) else numbers
    dimensions = zip(labels, low, high, action.std(0), used, strict=True)
    cells = [[name, *(float(value) for value in values)] for name, *values in dimensions]
    head = ["dimension", "minimum", "maximum", "standard deviation", "share of the range with 90 % of actions"]
    table, figure = histogram(f"Actions (sample), dimension {labels[0]}", action[:, 0], "action", "steps")
    fact = {"constant_actions": int((low == high).sum())}
    return Check("Actions", about, fact, {}, {"Dimensions": Table(head, cells), figure.caption: table}, [figure])


def histogram(caption: str, values: Array, x: str, y: str) -> tuple[Table, Figure]:
    """Return a table and a figure of at most 30 bins with a round width."""
    unique = np.unique(values)
    if len(unique) <= _BINS:
        count = np.bincount(np.searchsorted(unique, values))
        labels = [f"{float(value):.4g}" for value in unique]
    else:
        low, high = float(values.min()), float(values.max())
        least = high / (_BINS - 1) - low / (_BINS - 1)
        size = 10.0 ** math.floor(math.log10(least))
        step = next(size * part for part in (1, 2, 5, 10) if size * part >= least)
        begin = math.floor(low / step) * step
        count = np.bincount(np.clip((values - begin) / step, 0, _BINS - 1).astype(int))
        labels = [f"{begin + (k + 0.5) * step:.4g}" for k in range(len(count))]
    rows = [[name, int(number)] for name, number in zip(labels, count, strict=True)]
    return Table([x, y], rows), bars(caption, labels, count, x=x, y=y)


def _quantiles(values: Array) -> Table:
    shares = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    quantiles = [float(value) for value in np.quantile(values.astype(np.float64), shares)]
    head = ["minimum", "10 %", "25 %", "median", "75 %", "90 %", "maximum", "mean"]
    return Table(head, [[*quantiles, float(values.mean())]])
