"""What is asked of logs: each check is a function of what a pass has seen.

A check has facts, which `birl.ope.validity_limits` judges, numbers and tables to read, and figures of these. What
cannot be asked of the data, as propensities that were not logged, is ``None``.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from birl.ope.audit.models import explained_variance, sample_rows
from birl.ope.audit.scan import Seen
from birl.ope.html_page import Figure, Table, bars, lines
from birl.spaces import Discrete
from birl.types import Array

Number: TypeAlias = float | int | str | None
_LONG, _OFTEN = 20, 10  # a time limit is suspected from so many steps on, and so many episodes of this length
_VARIED = 0.3  # where fewer of the observations are different, equal steps and episodes are no surprise
_DATES = 1e8  # times from here on are seconds since 1970
_BINS = 30


@dataclass(frozen=True, eq=False)
class Check:
    """What was asked, and what was found.

    Attributes:
        title: its name.
        about: what it is for.
        facts: numbers that are judged, by the names of `birl.ope.FACTS`.
        numbers: others to read, by what they are.
        tables: by what they show.
        figures: of these.
        where: for facts, which column it is about.
    """

    title: str
    about: str
    facts: Mapping[str, float | None] = field(default_factory=dict)
    numbers: Mapping[str, Number] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Sequence[Figure] = ()
    where: Mapping[str, str] = field(default_factory=dict)


def size(seen: Seen) -> Check:
    """Episodes, steps, clusters, and how long episodes are."""
    length = seen.episodes["length"]
    clusters = len(np.unique(seen.episodes["cluster"])) if "cluster" in seen.episodes else None
    numbers: dict[str, Number] = {"steps": seen.counts["steps"], "numbers of an observation": seen.width}
    numbers["actions"] = str(seen.actions)
    table, figure = histogram("Lengths of episodes", length.astype(float), "steps", "episodes")
    return Check(
        "Size and lengths", "Below 30 episodes, or clusters of these, no mean can be stated with an interval.",
        {"episodes": len(length), "clusters": clusters}, numbers,
        {"Quantiles of the length": _quantiles(length), figure.caption: table}, [figure],
    )  # fmt: skip


def ends(seen: Seen) -> Check:
    """How episodes end, and whether a time limit is among the terminations."""
    of, length = seen.episodes, seen.episodes["length"]
    ended = length[of["terminated"]]
    at_limit, longest = None, length.max()
    if len(ended) and longest >= _LONG:
        at_limit = float((ended == longest).mean()) if (ended == longest).sum() >= _OFTEN else 0.0
    cut = ~of["terminated"].astype(bool) & (length < length.max())
    censored = float(np.mean(cut | (of["censored"] != 0 if "censored" in of else False)))
    numbers = {"terminated": int(of["terminated"].sum()), "truncated": int(of["truncated"].sum())}
    numbers["running"] = len(length) - sum(numbers.values())
    about = "After a termination nothing is earned, after a cut something unknown: a limit that is marked as an end of "
    about += "the task changes every value that is learned."
    about += "" if longest >= _LONG else f" Such a limit is not looked for in episodes of less than {_LONG} steps."
    return Check(
        "Ends", about,
        {"ends_at_limit": at_limit, "censored": censored}, numbers,
    )  # fmt: skip


def order(seen: Seen, others: Mapping[str, Seen]) -> Check:
    """Times, duplicates, and episodes that are in several parts."""
    of, steps = seen.episodes, seen.counts["steps"]
    varied = seen.unique["observations"] >= _VARIED * steps
    following = max(steps - len(of["length"]), 1)
    _, first = np.unique(of["digest"], return_index=True)
    shared = {name: float(np.isin(of["digest"], other.episodes["digest"]).mean()) for name, other in others.items()}
    facts = {
        "backwards": seen.counts["backwards"] / following if seen.gaps is not None else None,
        "long_gaps": seen.has_gap_over(10),
        "overlapping": _overlapping(of),
        "repeated_steps": seen.counts["repeated"] / following if varied else None,
        "repeated_episodes": 1 - len(first) / len(of["digest"]) if varied else None,
        "shared_episodes": max(shared.values(), default=None) if varied else None,
    }
    table = Table(["part", "share of these episodes in it"], [[*each] for each in shared.items()])
    about = "Rows logged twice, clocks that go back and episodes glued together look like dynamics to an algorithm."
    return Check("Order", about, facts, {}, {"Other parts": table} if shared else {})


def _overlapping(of: Mapping[str, Array]) -> float | None:
    """Share of episodes that begin before the one before them in their cluster has ended."""
    if "cluster" not in of or "begins" not in of:
        return None
    by = np.lexsort((of["begins"], of["cluster"]))
    same = of["cluster"][by][1:] == of["cluster"][by][:-1]
    return float((same & (of["begins"][by][1:] < of["ends"][by][:-1])).sum() / len(by))


def in_time(seen: Seen) -> Array:
    """The episodes in the order of their begins, or as they are stored."""
    begins = seen.episodes.get("begins")
    return np.arange(len(seen.episodes["length"])) if begins is None else np.argsort(begins, kind="stable")


def returns(seen: Seen, gamma: float, loggers: Sequence[str]) -> Check:
    """How returns lie, by logger and in time."""
    of, plain = seen.episodes, seen.episodes["return"]
    ordered, half = plain[in_time(seen)], len(plain) // 2
    table, figure = histogram("Returns of episodes", plain, "return", "episodes")
    tables = {
        "Quantiles of the return": _quantiles(plain),
        f"Quantiles of the return, discounted by {gamma:g} a step": _quantiles(of["discounted"]),
        figure.caption: table,
    }
    drift = None
    if half >= 2:
        first, last = ordered[:half], ordered[half:]
        spread = math.sqrt(first.var(ddof=1) / len(first) + last.var(ddof=1) / len(last))
        apart = abs(float(last.mean() - first.mean()))
        drift = apart / spread if spread > 1e-12 * max(1.0, abs(first.mean())) else (math.inf if apart > 1e-9 else 0.0)
        halves = [["first", len(first), float(first.mean())], ["last", len(last), float(last.mean())]]
        tables["Halves in time"] = Table(["half", "episodes", "mean return"], halves)
    if "logger" in of:
        names = np.unique(of["logger"])
        label = [loggers[int(k)] if 0 <= k < len(loggers) else f"logger {k:g}" for k in names]
        own = [plain[of["logger"] == k] for k in names]
        rows = [[name, len(part), float(part.mean()), float(part.std())] for name, part in zip(label, own, strict=True)]
        tables["By logger"] = Table(["logger", "episodes", "mean return", "spread"], rows)
    figures = [figure]
    label, mean, count = _by_time(seen)
    if len(label) > 1:
        rows = [[*row] for row in zip(label, count, mean, strict=True)]
        tables["Mean return in time"] = Table(["when", "episodes", "mean return"], rows)
        of_time = {"mean return": (range(len(mean)), mean)}
        figures.append(lines("Mean return in time", of_time, x="time", y="return", ticks=label))
    equal = int(len(plain) > 1 and float(np.ptp(plain)) <= 1e-9 * max(1.0, float(abs(plain).max())))
    facts = {"drift": drift, "equal_returns": len(plain) * equal}
    about = "Where returns drift the logs tell of the past, and a verdict for tomorrow needs more data."
    return Check("Returns", about, facts, {}, tables, figures)


def _by_time(seen: Seen) -> tuple[list[str], list[float], list[int]]:
    """Mean return and number of episodes by month, if times are dates, else by tenths of the episodes in time."""
    plain, begins = seen.episodes["return"], seen.episodes.get("begins")
    order = in_time(seen)
    if begins is not None and begins.min() > _DATES:
        months = np.array([_month(moment) for moment in begins[order]])
        names, place = np.unique(months, return_inverse=True)
        label = [str(name) for name in names]
    else:
        place = np.arange(len(plain)) * 10 // max(len(plain), 10)
        label = [f"tenth {k + 1}" for k in range(int(place[-1]) + 1)]
    count = np.bincount(place)
    return label, [float(v) for v in np.bincount(place, plain[order]) / count], [int(v) for v in count]


def _month(moment: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(float(moment), datetime.UTC).strftime("%Y-%m")
    except (OverflowError, OSError, ValueError):
        return "out of range"


def rewards(seen: Seen) -> Check:
    """Scale, sparsity, outliers, and whether all comes at the end."""
    reward, told = seen.sample.reward, seen.reward
    median = float(np.median(reward))
    mad = float(np.median(np.abs(reward - median)))
    size_of = math.sqrt(told["mean"] ** 2 + told["std"] ** 2)
    facts = {
        "reward_outliers": float((np.abs(reward - median) > 10 * mad).mean()) if mad > 0 else None,
        "reward_magnitude": abs(math.log10(size_of)) if size_of > 0 else None,
        "last_step_reward": told["last"] if seen.episodes["length"].mean() >= 5 and size_of > 0 else None,
    }
    numbers = {
        "mean": told["mean"], "spread": told["std"], "least": told["low"], "greatest": told["high"], "median": median,
        "share of zeros": seen.counts["zero_rewards"] / seen.counts["steps"],
    }  # fmt: skip
    table, figure = histogram("Rewards of steps (sample)", reward, "reward", "steps")
    about = "Outliers and scales far from 1 make learning slow or unstable; scalers are advised, never applied."
    return Check("Rewards", about, facts, numbers, {figure.caption: table}, [figure])


def observations(seen: Seen, aucs: Mapping[str, float | None]) -> Check:
    """Columns that say nothing, and parts that differ."""
    of, x = seen.columns, seen.sample.observation
    constant = np.flatnonzero((of["std"] <= 1e-7 * np.maximum(abs(of["mean"]), 1e-30)) & (of["low"] == of["high"]))
    copies = _copies(x, np.setdiff1d(np.arange(x.shape[1]), constant))
    spread = of["std"][np.setdiff1d(np.arange(len(seen.names)), constant)]
    bad = np.flatnonzero(of["not_finite"])
    told = [auc for auc in aucs.values() if auc is not None]
    facts = {
        "not_finite": int(of["not_finite"].sum()),
        "constant_columns": len(constant),
        "copied_columns": len(copies),
        "scale_ratio": float(spread.max() / spread.min()) if len(spread) else None,
        "part_auc": max(told, default=None),
    }
    where = {"constant_columns": _names(seen, constant), "not_finite": _names(seen, bad)}
    where["copied_columns"] = "; ".join(f"{seen.names[b]} of {seen.names[a]}" for a, b in copies[:5])
    low, high = (np.where(np.isfinite(of[end]), of[end], np.nan) for end in ("low", "high"))
    rows = [
        [name, float(of["mean"][k]), float(of["std"][k]), float(low[k]), float(high[k]), int(of["not_finite"][k])]
        for k, name in enumerate(seen.names)
    ]
    tables = {"Columns": Table(["column", "mean", "spread", "least", "greatest", "not finite"], rows)}
    if aucs:
        tables["Told apart from other parts"] = Table(["part", "AUC"], [[*each] for each in aucs.items()])
    numbers = {"columns looked at": len(seen.names)} if len(seen.names) < seen.width else {}
    about = "What never changes or is there twice costs and says nothing."
    return Check("Observations", about, facts, numbers, tables, (), where)


def _copies(x: Array, columns: Array) -> list[tuple[int, int]]:
    """Pairs of columns with the same numbers, the first of them first."""
    first: dict[bytes, int] = {}
    found = []
    for k in columns:
        own = first.setdefault(np.ascontiguousarray(x[:, k]).tobytes(), int(k))
        if own != k:
            found.append((own, int(k)))
    return found


def _names(seen: Seen, places: Array) -> str:
    shown = ", ".join(seen.names[k][:60] for k in places[:5])
    return shown + f" and {len(places) - 5} more" * (len(places) > 5)


def leakage(seen: Seen) -> Check:
    """Columns that tell what is only known later."""
    of = seen.sample
    x, here = of.observation, of.following
    chosen = sample_rows(len(x), limit=20_000)
    begins = np.flatnonzero(of.step == 0)
    inside = np.ones(x.shape[1], bool)
    if len(here):
        inside = (x[here] == x[here + 1]).all(0)
    later = to_go(of.reward, of.episode)
    length = seen.episodes["length"]
    whole = np.bincount(of.episode, minlength=len(length)) == length  # the first steps of a long one tell no return
    own = chosen[whole[of.episode[chosen]]]
    next_ = here[sample_rows(len(here), limit=20_000)] if len(here) else here
    found = {
        "leak_reward": explained_variance(x[chosen], of.reward[chosen]),
        "leak_next_reward": explained_variance(x[next_], of.reward[next_ + 1]) if len(next_) else np.zeros(x.shape[1]),
        "leak_action": _of_actions(seen, chosen),
        "leak_return": explained_variance(x[own], later[own]) if len(own) else np.zeros(x.shape[1]),
        "leak_constant": explained_variance(x[begins], seen.episodes["return"][of.episode[begins]], bins=8) * inside,
    }
    varied = {name: float(values.max()) for name, values in found.items() if len(values)}
    facts: dict[str, float | None] = {name: varied.get(name) for name in found}
    where = {name: f"column {seen.names[int(values.argmax())][:80]}" for name, values in found.items() if len(values)}
    words = ("reward", "next reward", "action", "rewards to come", "return, constant in episodes")
    top = np.argsort(-np.max([*found.values()], axis=0), kind="stable")[:20] if x.shape[1] else ()
    rows = [[seen.names[k], *(float(values[k]) for values in found.values())] for k in top]
    about = "A column that almost equals what is to be learned was often written after the action, and is missing when "
    return Check(
        "Leakage", about + "the policy is served. Shares of variance that one column alone explains.",
        facts, {}, {"Columns that explain most": Table(["column", *words], rows)}, (), where,
    )  # fmt: skip


def _of_actions(seen: Seen, chosen: Array) -> Array:
    action, x = seen.sample.action[chosen], seen.sample.observation[chosen]
    if isinstance(seen.actions, Discrete):
        common = np.argsort(-np.bincount(action[:, 0]))[:10]
        return explained_variance(x, action == common)
    return explained_variance(x, action)


def to_go(reward: Array, episode: Array) -> Array:
    """Sum of the rewards from each step of the sample to its episode's end."""
    total = reward.cumsum()
    ends = np.append(np.flatnonzero(np.diff(episode)), len(reward) - 1)
    return np.asarray(total[ends][np.searchsorted(ends, np.arange(len(reward)))] - total + reward)


def _called(names: Sequence[str], numbers: Sequence[str]) -> Sequence[str]:
    """Names, or numbers where these are not as many."""
    return names if len(names) == len(numbers) else numbers


def action_coverage(seen: Seen, names: Sequence[str]) -> Check:
    """What was tried. Actions are called by their ``names`` if these are as many."""
    about = "Of an action that was never tried, nothing can be learned; and of one that always was, nothing compared."
    if seen.taken is not None and isinstance(seen.actions, Discrete):
        could = np.ones(len(seen.taken), bool) if seen.possible is None else seen.possible > 0
        never = np.flatnonzero(could & (seen.taken == 0))
        share = seen.taken / seen.taken.sum()
        entropy = float(-(share[share > 0] * np.log(share[share > 0])).sum())
        numbers = [str(k + seen.actions.start) for k in range(len(share))]
        label = _called(names, numbers)
        rows = [
            [name, int(count), None if seen.possible is None else int(seen.possible[k])]
            for k, (name, count) in enumerate(zip(label, seen.taken, strict=True))
        ]
        return Check(
            "Actions", about, {"never_taken": len(never)},
            {"entropy of all actions, nats": entropy, "actions taken": int((seen.taken > 0).sum())},
            {"How often actions were taken": Table(["action", "taken", "possible"], rows)},
            [bars("How often actions were taken", label, seen.taken, x="action", y="steps")],
            {"never_taken": "actions " + ", ".join(label[k] for k in never[:10])},
        )  # fmt: skip
    action = seen.sample.action.astype(np.float64)
    low, high = action.min(0), action.max(0)
    middle = np.quantile(action, [0.05, 0.95], axis=0)
    used = (middle[1] - middle[0]) / np.where(high > low, high - low, 1)
    spread = action.std(0)
    label = _called(names, [str(k) for k in range(len(low))])
    told = [[name, *map(float, of)] for name, *of in zip(label, low, high, spread, used, strict=True)]
    heads = ["dimension", "least", "greatest", "spread", "share of the range that holds 90 %"]
    table, figure = histogram(f"Actions (sample), dimension {label[0]}", action[:, 0], "action", "steps")
    fact = {"constant_actions": int((low == high).sum())}
    return Check("Actions", about, fact, {}, {"Dimensions": Table(heads, told), figure.caption: table}, [figure])


def histogram(caption: str, values: Array, x: str, y: str) -> tuple[Table, Figure]:
    """At most 30 bins, as wide as a round number; the table has what the figure shows."""
    different = np.unique(values)
    if len(different) <= _BINS:
        count = np.bincount(np.searchsorted(different, values))
        label = [f"{float(value):.4g}" for value in different]
    else:
        low, high = float(values.min()), float(values.max())
        least = high / (_BINS - 1) - low / (_BINS - 1)
        size = 10.0 ** math.floor(math.log10(least))
        step = next(size * part for part in (1, 2, 5, 10) if size * part >= least)
        begin = math.floor(low / step) * step
        count = np.bincount(np.clip((values - begin) / step, 0, _BINS - 1).astype(int))
        label = [f"{begin + (k + 0.5) * step:.4g}" for k in range(len(count))]
    rows = [[name, int(number)] for name, number in zip(label, count, strict=True)]
    return Table([x, y], rows), bars(caption, label, count, x=x, y=y)


def _quantiles(values: Array) -> Table:
    shares = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    told = [float(value) for value in np.quantile(values.astype(np.float64), shares)]
    head = ["least", "10 %", "25 %", "median", "75 %", "90 %", "greatest", "mean"]
    return Table(head, [[*told, float(values.mean())]])
