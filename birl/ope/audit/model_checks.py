"""Checks of logs that need models: propensities, behaviour, memory, coverage, and what could be shown with the logs.

Models are fitted by `birl.ope.audit.models` on the sample of a pass, and judged on episodes that they have not seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from birl.ope.audit.checks import Check, Number, histogram, to_go
from birl.ope.audit.models import (
    auc,
    class_probabilities,
    cross_fit,
    nearest_distance,
    one_hot,
    ridge_predictions,
    sample_rows,
)
from birl.ope.audit.scan import Seen
from birl.ope.diagnostics import calibration_error
from birl.ope.estimators import Estimate
from birl.ope.html_page import Table, intervals, lines
from birl.ope.intervals import t_interval, t_quantile
from birl.spaces import Continuous, Discrete
from birl.types import Array

QUALITY = "quality of trajectories, (mean - least) / (greatest - least) return (TQ)"
OBSERVED = "different observations as a share of steps"
PAIRS = "different pairs of observation and action (SACo) as a share of steps"
RANDOMNESS = "randomness of actions given the observation, as a share of the greatest"
GOOD = "share of the variance of returns above the mean"
STITCHED = "states of poor episodes near good ones (stitched)"
MOVED = "effective episodes of a policy that moves a quarter"
_EFFECTIVE = 20
"""Fewer effective episodes carry no statement about another policy."""


@dataclass(frozen=True, eq=False)
class Behaviour:
    """A model of the policy that acted, on the steps of the sample.

    Attributes:
        logged: log-propensity of the logged action, as it was logged, ``[N]``; ``None`` if it was not.
        vector: logged probabilities of all actions, ``[N, A]``, or ``None``.
        modelled: probabilities of all actions by the model, ``[N, A]``; ``None`` for quantities.
        log_model, log_marginal: log-probability (or density) of the logged action by the model, and without looking at
            the observation, ``[N]``; ``None`` if there is one episode alone, or several choices at once.
        groups: what must stay whole: clusters, or episodes, ``[N]``.
    """

    logged: Array | None
    vector: Array | None
    modelled: Array | None
    log_model: Array | None
    log_marginal: Array | None
    groups: Array

    @property
    def best(self) -> Array | None:
        """Probabilities of all actions, as logged if they were."""
        return self.modelled if self.vector is None else self.vector


def behaviour_of(seen: Seen, seed: int = 0) -> Behaviour:
    """Fit a model of the policy that acted."""
    of, extra = seen.sample, seen.sample.extra
    logged = extra["log_propensity"].reshape(-1).astype(np.float64) if "log_propensity" in extra else None
    vector = np.asarray(extra["propensities"], np.float64) if "propensities" in extra else None
    clusters = extra["cluster"].reshape(-1) if "cluster" in extra else None
    groups = of.episode if clusters is None or len(np.unique(clusters)) < 2 else clusters
    if len(np.unique(groups)) < 2 or not isinstance(seen.actions, Discrete | Continuous):
        return Behaviour(logged, vector, None, None, None, groups)
    blind, n = np.zeros((len(of.reward), 0)), np.arange(len(of.reward))
    if isinstance(seen.actions, Discrete):
        taken = of.action[:, 0]
        told = [cross_fit(x, one_hot(taken), groups, class_probabilities, seed) for x in (of.observation, blind)]
        if of.mask is not None:
            told = [_among(p, of.mask[:, : p.shape[1]]) for p in told]
        log = [np.log(np.maximum(p[n, taken], 1e-12)) for p in told]
        return Behaviour(logged, vector, told[0], log[0], log[1], groups)
    log = [_gauss(of.action, cross_fit(x, of.action, groups, ridge_predictions, seed)) for x in (of.observation, blind)]
    return Behaviour(logged, vector, None, log[0], log[1], groups)


def _among(p: Array, allowed: Array) -> Array:
    """Probabilities among the actions that were possible."""
    kept = np.maximum(p, 1e-12) * allowed
    return np.asarray(kept / np.maximum(kept.sum(1, keepdims=True), 1e-300))


def _gauss(y: Array, mean: Array) -> Array:
    """Log-density ``[N]`` of ``y`` ``[N, K]`` around predictions, with the spread of the errors."""
    std = np.maximum((y - mean).std(0), 1e-9)
    return np.asarray((-0.5 * ((y - mean) / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi)).sum(1))


def propensities(seen: Seen, of: Behaviour, loggers: Sequence[str]) -> Check:
    """Whether logged propensities can be those of the logged actions."""
    about = "Weights are products of 1 / propensity: a wrong one is wrong in every estimate that uses it."
    title = "Propensities"
    if of.logged is None:
        about += " None were logged: only a model of the behaviour can stand in."
        return Check(title, about, {"no_propensities": 1})
    facts: dict[str, float | None] = {"no_propensities": 0, "propensity_excess": _excess(of)}
    p, n = np.exp(of.logged), len(of.logged)
    tables, figures = {}, []
    if isinstance(seen.actions, Discrete):
        tried = np.ones(seen.actions.size, bool) if seen.taken is None else seen.taken > 0
        options = np.full(n, tried.sum()) if seen.sample.mask is None else (seen.sample.mask & tried).sum(1)
        drawn = p < 1 - 1e-9  # where one action is certain the others count for nothing
        ratio = 1 / (np.maximum(p, 1e-12) * options)[drawn] if drawn.any() else np.ones(1)
        error = abs(float(ratio.mean()) - 1)
        sure = error > 4 * float(ratio.std()) / math.sqrt(len(ratio))  # beyond chance
        facts |= {"inverse_propensity": error if sure else 0.0, "certain": float(1 - drawn.mean())}
        facts["propensity_rows"] = _beside_a_model(of, drawn)
        facts["propensity_floor"] = float(p.min())
        numbers = {"mean of 1 / (propensity x number of possible actions that were ever taken)": float(ratio.mean())}
        if of.vector is not None:
            taken = seen.sample.action[:, 0]
            hit = taken[:, None] == np.arange(of.vector.shape[1])
            error = calibration_error(of.vector / of.vector.sum(1, keepdims=True), taken)
            facts["propensity_calibration"] = max(0.0, error - _by_chance(of.vector.ravel()) / len(taken))
            numbers["calibration error (ECE), chance included"] = error
            numbers["Brier score"] = float(((of.vector - hit) ** 2).sum(1).mean())
            table, points = _reliability(of.vector.ravel(), hit.ravel())
            tables["Calibration of logged propensities"] = table
            figures.append(lines("Calibration of logged propensities", {"logged": points, "ideal": ([0, 1], [0, 1])},
                                 x="propensity", y="share taken"))  # fmt: skip
        table, figure = histogram("Logged propensities (sample)", p, "propensity", "steps")
    else:
        numbers = {"mean log-density": float(of.logged.mean())}
        table, figure = histogram("Logged log-densities (sample)", of.logged, "log-density", "steps")
    tables[figure.caption] = table
    figures.append(figure)
    if "logger" in seen.sample.extra:
        own = seen.sample.extra["logger"].reshape(-1)
        rows = []
        for k in np.unique(own):
            name = loggers[int(k)] if 0 <= k < len(loggers) else f"logger {k:g}"
            model = None if of.log_model is None else float(of.log_model[own == k].mean())
            rows.append([name, int((own == k).sum()), float(of.logged[own == k].mean()), model])
        heads = ["logger", "steps", "mean log-propensity", "mean by the model"]
        tables["By logger"] = Table(heads, rows)
    return Check(title, about, facts, numbers, tables, figures)


def _beside_a_model(of: Behaviour, drawn: Array) -> float | None:
    """By how much the mean of ``m(a|x) / p`` is above 1, for a model ``m`` that has not seen the episode.

    For right propensities it is at most 1, whatever the model: the sum of what it says of all actions. Those of other
    rows are not high where the model is. The lower end of its interval.
    """
    if of.log_model is None or of.logged is None or len(np.unique(of.groups[drawn])) < 2:
        return None
    ratio = np.exp(of.log_model - of.logged)[drawn]
    return max(0.0, float(t_interval(Estimate(ratio), 0.999, clusters=of.groups[drawn]).lower) - 1)


def _excess(of: Behaviour) -> float | None:
    """By how much a model, with or without observations, foretells logged actions better than their propensities.

    The lower end of its interval: of the better one, as a model of many observations may learn their noise.
    """
    models = [model for model in (of.log_model, of.log_marginal) if model is not None]
    if of.logged is None or not models:
        return None
    found = (t_interval(Estimate(model - of.logged), clusters=of.groups).lower for model in models)
    return max(0.0, *map(float, found))


def _by_chance(said: Array) -> float:
    """About how far the counts of right propensities are off in ten bins, half of it summed, and half as much again."""
    variance = np.bincount(np.minimum((said * 10).astype(int), 9), said * (1 - said), 10)
    return float(1.5 * np.sqrt(2 / np.pi * variance).sum() / 2)


def _reliability(said: Array, hit: Array) -> tuple[Table, tuple[list[float], list[float]]]:
    part = np.minimum((said * 10).astype(int), 9)
    count = np.bincount(part, minlength=10)
    there = count > 0
    x = (np.bincount(part, said, 10)[there] / count[there]).tolist()
    y = (np.bincount(part, hit, 10)[there] / count[there]).tolist()
    rows = [[a, b, int(c)] for a, b, c in zip(x, y, count[there], strict=True)]
    return Table(["mean propensity", "share taken", "steps and actions"], rows), (x, y)


def behaviour(seen: Seen, of: Behaviour) -> Check:
    """How random the behaviour was, and how well observations foretell it."""
    title = "Behaviour"
    about = "What acted almost always alike can be imitated, and can hardly be improved on with weights."
    if of.log_model is None or of.log_marginal is None:
        return Check(title, about + " There is no model: it needs two episodes, and one choice or quantities.")
    numbers: dict[str, Number] = {
        "held-out negative log-likelihood, nats": float(-of.log_model.mean()),
        "the same without the observation": float(-of.log_marginal.mean()),
    }
    if of.best is None:
        width = seen.sample.action.shape[1]
        numbers[RANDOMNESS] = float(np.exp((of.log_marginal - of.log_model).mean() / width))
        return Check(title, about, {}, numbers)
    most = of.best.max(1)
    entropy = float(-(of.best * np.log(np.maximum(of.best, 1e-12))).sum(1).mean())
    table, figure = histogram("Probability of the most probable action (sample)", most, "probability", "steps")
    numbers["entropy given the observation, nats"] = entropy
    numbers[RANDOMNESS] = entropy / math.log(of.best.shape[1]) if of.best.shape[1] > 1 else 0.0
    fact = {"near_certain": float((most > 0.99).mean())}
    return Check(title, about, fact, numbers, {figure.caption: table}, [figure])


def memory(seen: Seen, of: Behaviour, seed: int = 0) -> Check:
    """Whether the step before tells more than the observation: then that is not the whole state."""
    s, here = seen.sample, seen.sample.following
    title, about = "Markov", "Where the step before helps to foretell, observations hide a part of the state."
    before = here[:-1][np.diff(here) == 1] if len(here) > 1 else here[:0]  # t - 1, of steps with one after them
    now = before + 1
    if len(now) < 100 or len(np.unique(of.groups[now])) < 2:
        return Check(title, about + " There are too few steps in a row to ask.", {"history": None})
    discrete = isinstance(seen.actions, Discrete)
    acted = one_hot(s.action[:, 0], seen.actions.size) if discrete else s.action.astype(np.float64)
    x, groups = np.concatenate([s.observation, acted], 1), of.groups[now]
    past = np.concatenate([x[now], x[before]], 1)
    wide = sample_rows(s.observation.shape[1], seed, 32)  # columns that are foretold
    change = s.observation[now + 1][:, wide].astype(np.float64) - s.observation[now][:, wide]
    asked = {"reward": s.reward[now][:, None], "next observation": change}
    rows: list[list[object]] = []
    most = 0.0
    for name, y in asked.items():
        kept = y.std(0) > 1e-9
        if kept.any():
            y = y[:, kept] / y[:, kept].std(0)
            without, with_ = (
                ((cross_fit(z, y, groups, ridge_predictions, seed) - y) ** 2).mean(1) for z in (x[now], past)
            )
            most = max(most, _lowered(name, 1.0, without, with_, groups, rows))
    if discrete and len(np.unique(s.action[now])) > 1:
        taken, n = s.action[now, 0], np.arange(len(now))
        inputs = (s.observation[now], np.concatenate([s.observation[now], x[before]], 1))
        told = [cross_fit(z, one_hot(taken), groups, class_probabilities, seed) for z in inputs]
        without, with_ = (-np.log(np.maximum(p[n, taken], 1e-12)) for p in told)
        share = np.bincount(taken) / len(taken)
        entropy = float(-(share[share > 0] * np.log(share[share > 0])).sum())
        most = max(most, _lowered("action", entropy, without, with_, groups, rows))
    head = ["foretold", "held-out error", "with the step before", "blind", "share that the step before saves"]
    table = Table(head, rows)
    return Check(title, about, {"history": most}, {}, {"Held-out errors": table})


def _lowered(name: str, blind: float, without: Array, with_: Array, groups: Array, rows: list[list[object]]) -> float:
    """By which share of the error of a ``blind`` guess an error is lower, 0 if that may be chance; noted in ``rows``.

    Not as a share of the error itself: where the world is almost certain, that is the error of a small model. Where
    that model is worse than the blind guess, only what is better than the guess counts.
    """
    better = (without if without.mean() < blind else blind) - with_
    share = float(better.mean()) / blind
    rows.append([name, float(without.mean()), float(with_.mean()), blind, share])
    return share if t_interval(Estimate(better), clusters=groups).lower > 0 else 0.0


def coverage(seen: Seen) -> Check:
    """How much of the world the logs hold, how good they are, and whether good and poor episodes meet."""
    plain, s = seen.episodes["return"], seen.sample
    spread = float(np.ptp(plain))
    quality = float((plain.mean() - plain.min()) / spread) if spread > 0 else None
    numbers: dict[str, Number] = {
        "different observations (about)": seen.unique["observations"],
        "different pairs of observation and action (about)": seen.unique["pairs"],
        OBSERVED: seen.unique["observations"] / seen.counts["steps"],
        PAIRS: seen.unique["pairs"] / seen.counts["steps"],
        QUALITY: quality,
    }
    title = "Coverage and stitching"
    about = "TQ and SACo are those of Schweighofer et al. 2022, arXiv:2111.04714, SACo without its reference data set. "
    about += "Where hardly any observation comes again, SACo says nothing, and nothing is advised by it. "
    about += "Stitched: states of poor episodes with a neighbour in a good one, from where values can be better."
    own = plain[s.episode]
    good = np.flatnonzero((own >= np.quantile(plain, 0.75)) & (own > np.median(plain)))
    poor = np.flatnonzero(own < np.median(plain))
    good, poor = good[sample_rows(len(good), 1)], poor[sample_rows(len(poor), 2)]
    if len(np.unique(s.episode[good])) < 2 or not len(poor) or not s.observation.shape[1]:
        return Check(title, about, {}, {**numbers, STITCHED: None})
    mean, std = s.observation.mean(0, np.float64), s.observation.std(0, np.float64)
    good_z, poor_z = ((s.observation[rows] - mean) / np.where(std > 0, std, 1) for rows in (good, poor))
    among = nearest_distance(good_z, good_z, s.episode[good], s.episode[good])
    apart = nearest_distance(poor_z, good_z, s.episode[poor], s.episode[good])
    near = float(np.quantile(among, 0.9))
    numbers[STITCHED] = float((apart <= near + 1e-12).mean())
    table, figure = histogram("Distance from poor episodes to good ones (sample)", apart, "distance", "states")
    return Check(title, about, {}, numbers, {figure.caption: table}, [figure])


def improvement(seen: Seen, of: Behaviour, seed: int = 0) -> Check:
    """Whether there is something to gain within the logs."""
    plain, s = seen.episodes["return"], seen.sample
    mean, top = float(plain.mean()), float(plain.max())
    above = np.maximum(plain - mean, 0)
    numbers: dict[str, Number] = {
        "positive-sided variance of returns": float((above**2).mean()),
        GOOD: float((above**2).mean() / plain.var()) if plain.var() > 0 else None,
        "best return above the mean, in spreads": float((top - mean) / plain.std()) if plain.std() > 0 else None,
        "relative improvement to the best return": (top - mean) / abs(mean) if mean else None,
    }
    if len(np.unique(of.groups)) > 1:
        y = to_go(s.reward, s.episode)[:, None]
        error = y - cross_fit(s.observation, y, of.groups, ridge_predictions, seed)
        share = float(error.std() / y.std()) if y.std() > 0 else None
        numbers["spread of advantages over that of rewards to come"] = share
    about = "Positive-sided variance (Hong et al. 2023, arXiv:2306.13085): good episodes that weights could favour."
    return Check("Room for improvement", about, {}, numbers)


def power(seen: Seen, of: Behaviour, gamma: float) -> Check:
    """Which gains could be told from chance with so many episodes."""
    terms = seen.episodes["discounted"]
    clusters = seen.episodes.get("cluster")
    about = "The half-width of the 95 % interval for the mean discounted return, and about that for policies that move "
    about += "some probability (or shift quantities by a share of their spread) away from what acted, by weights alone."
    units = len(terms) if clusters is None else len(np.unique(clusters))
    if units < 2:
        return Check("Power", about + " One unit has no spread.", {}, {"half-width": None})
    found = t_interval(Estimate(terms), clusters=clusters)
    half, mean = float(found.upper - found.lower) / 2, float(terms.mean())
    rows: list[list[object]] = [["as logged", float(units), half]]
    ends = [("as logged", float(found.lower), mean, float(found.upper))]
    numbers: dict[str, Number] = {"discount": gamma, "half-width": half}
    for share in (0.10, 0.25, 0.50):
        name, growth = f"{share:.0%} moved", _growth(seen, of, share)
        if growth is None:
            break
        exponent = float(np.mean(np.minimum(growth * seen.episodes["length"], 700)))
        effective = units / math.exp(exponent)
        wide = half * math.exp(exponent / 2) * t_quantile(0.975, max(effective - 1, 1)) / t_quantile(0.975, units - 1)
        shown = None if effective < _EFFECTIVE else wide
        rows.append([name, effective, shown])
        if share == 0.25:
            numbers[MOVED] = effective
        if shown is not None:
            ends.append((name, mean - wide, mean, mean + wide))
    table = Table(["policy", "effective episodes or clusters", "gains under this cannot be seen in these logs"], rows)
    caption = "Mean discounted return of the logs, and intervals of policies that move"
    figure = intervals(caption, ends, x="discounted return")
    return Check("Power", about, {}, numbers, {"Half-widths": table}, [figure])


def _growth(seen: Seen, of: Behaviour, share: float) -> float | None:
    """Growth of the weights' second moment in a step, as a logarithm; ``None`` if it is not known.

    For choices the policy takes, with the probability ``share``, one of the actions drawn evenly and for all: ``E
    rho^2 = 1 + share^2 (mean_a 1 / b(a) - 1)``. For quantities it shifts a Gaussian by ``share`` of its spread.
    """
    if isinstance(seen.actions, Discrete):
        if of.vector is None and of.logged is not None:
            inverse = float(np.exp(-2 * of.logged).mean()) / seen.actions.size  # of all actions, by those taken
        elif of.best is None:
            return None
        else:
            inverse = float((1 / np.maximum(of.best, 1e-6)).mean())
        return math.log1p(share**2 * max(inverse - 1, 0.0))
    return share**2 * seen.actions.size if isinstance(seen.actions, Continuous) else None


def part_aucs(seen: Seen, others: Mapping[str, Seen], seed: int = 0) -> dict[str, float | None]:
    """How well a classifier tells observations of these steps from those of each other part, by held-out AUC."""
    found: dict[str, float | None] = {}
    own = seen.sample
    for name, other in others.items():
        theirs = other.sample
        if own.observation.shape[1] != theirs.observation.shape[1] or not own.observation.shape[1]:
            found[name] = None
            continue
        a, b = (sample_rows(len(each.reward), seed, 20_000) for each in (own, theirs))
        x = np.concatenate([own.observation[a], theirs.observation[b]])
        y = np.repeat([0, 1], [len(a), len(b)])
        groups = np.concatenate([own.episode[a], theirs.episode[b] + len(seen.episodes["length"])])
        if min(len(np.unique(own.episode[a])), len(np.unique(theirs.episode[b]))) < 4:
            found[name] = None
            continue
        found[name] = auc(cross_fit(x, one_hot(y), groups, class_probabilities, seed)[:, 1], y)
    return found
