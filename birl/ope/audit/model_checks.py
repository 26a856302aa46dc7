"""Checks of logs that need models: propensities, behaviour, Markov property, coverage, and power.

The models of `birl.ope.audit.models` are fitted on the sample of a scan and evaluated on held-out episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from birl.ope.audit.balance import unexplained_correlation
from birl.ope.audit.checks import Check, Number, histogram, logger_name, returns_to_go
from birl.ope.audit.models import (
    auc,
    class_probabilities,
    cross_fit,
    nearest_distance,
    one_hot,
    ridge_predictions,
    sample_rows,
)
from birl.ope.audit.scan import LogStatistics
from birl.ope.diagnostics import calibration_error
from birl.ope.estimators import Estimate
from birl.ope.html_page import Figure, Table, intervals, lines
from birl.ope.intervals import t_interval, t_quantile
from birl.spaces import Continuous, Discrete
from birl.types import Array

QUALITY = "trajectory quality (TQ), (mean - minimum) / (maximum - minimum) return"
OBSERVED = "distinct observations as a share of steps"
PAIRS = "distinct pairs of observation and action (SACo) as a share of steps"
RANDOMNESS = "randomness of actions given the observation, as a share of the maximum"
GOOD = "share of the variance of returns above the mean"
STITCHED = "states of poor episodes near good ones (stitching)"
MOVED = "effective episodes of a policy that moves a quarter of the probability"
_MIN_EFFECTIVE = 20
"""With fewer effective episodes, logs say nothing about another policy."""


@dataclass(frozen=True, eq=False)
class Behaviour:
    """Propensities of the steps of the sample, as logged and by a model of the logging policy.

    Attributes:
        logged: logged log-propensities of the logged actions, ``[N]``; ``None`` if they were not logged.
        logged_all: logged propensities of all actions, ``[N, A]``; ``None`` if they were not logged.
        modelled_all: probabilities of all actions by the model, ``[N, A]``; ``None`` for continuous actions.
        log_model: log-probabilities (or densities) of the logged actions by the model, ``[N]``.
        log_marginal: the same by a model without observations. Both are ``None`` with a single episode or composite
            actions.
        groups: cluster or episode of each step, the unit of cross-fitting, ``[N]``.
    """

    logged: Array | None
    logged_all: Array | None
    modelled_all: Array | None
    log_model: Array | None
    log_marginal: Array | None
    groups: Array

    @property
    def propensities(self) -> Array | None:
        """Propensities of all actions: the logged ones, or those of the model."""
        return self.modelled_all if self.logged_all is None else self.logged_all


def fit_behaviour(logs: LogStatistics, seed: int = 0) -> Behaviour:
    """Fit a model of the logging policy."""
    sample, extra = logs.sample, logs.sample.extra
    logged = extra["log_propensity"].reshape(-1).astype(np.float64) if "log_propensity" in extra else None
    logged_all = None
    if "propensities" in extra and isinstance(logs.actions, Discrete):
        logged_all = np.asarray(extra["propensities"], np.float64).reshape(len(sample.reward), -1)
    clusters = None if logs.clusters is None else logs.clusters[sample.episode]
    groups = sample.episode if clusters is None or len(np.unique(clusters)) < 2 else clusters
    if len(np.unique(groups)) < 2 or not isinstance(logs.actions, Discrete | Continuous):
        return Behaviour(logged, logged_all, None, None, None, groups)
    inputs = sample.observation, np.zeros((len(sample.reward), 0))
    if isinstance(logs.actions, Discrete):
        taken, n = sample.action[:, 0], np.arange(len(sample.reward))
        fits = [cross_fit(x, one_hot(taken), groups, class_probabilities, seed) for x in inputs]
        if sample.mask is not None:
            fits = [_restrict(p, sample.mask[:, : p.shape[1]]) for p in fits]
        log = [np.log(np.maximum(p[n, taken], 1e-12)) for p in fits]
        return Behaviour(logged, logged_all, fits[0], log[0], log[1], groups)
    log = [
        _gaussian_log_density(sample.action, cross_fit(x, sample.action, groups, ridge_predictions, seed))
        for x in inputs
    ]
    return Behaviour(logged, logged_all, None, log[0], log[1], groups)


def _restrict(p: Array, allowed: Array) -> Array:
    """Restrict probabilities to the actions that were possible."""
    restricted = np.maximum(p, 1e-12) * allowed
    return np.asarray(restricted / np.maximum(restricted.sum(1, keepdims=True), 1e-300))


def _gaussian_log_density(y: Array, mean: Array) -> Array:
    """Return the log-density ``[N]`` of ``y`` ``[N, K]`` around predictions, with the spread of their errors."""
    std = np.maximum((y - mean).std(0), 1e-9)
    return np.asarray((-0.5 * ((y - mean) / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi)).sum(1))


def check_propensities(logs: LogStatistics, behaviour: Behaviour, loggers: Sequence[str]) -> Check:
    """Check whether logged propensities can be those of the logged actions."""
    title, about = "Propensities", "Weights contain 1 / propensity, so an error affects every estimate with weights."
    if behaviour.logged is None:
        about += " None were logged: only a model of the behaviour can replace them."
        return Check(title, about, {"no_propensities": 1})
    facts: dict[str, float | None] = {"no_propensities": 0, "propensity_excess": _model_advantage(behaviour)}
    where: dict[str, str] = {}
    every = _known_propensities(logs, behaviour)
    if every is not None:
        taken = logs.sample.action[:, 0]
        unexplained = unexplained_correlation(logs.sample.observation, taken, every, behaviour.groups)
        facts["unexplained_actions"] = float(unexplained.max(initial=0))
        where["unexplained_actions"] = f"column {logs.names[int(unexplained.argmax())]}" if len(unexplained) else ""
    tables: dict[str, Table] = {}
    figures: list[Figure] = []
    if isinstance(logs.actions, Discrete):
        numbers = _discrete_propensities(logs, logs.actions, behaviour, every, facts, tables, figures)
        values, caption, x = np.exp(behaviour.logged), "Logged propensities (sample)", "propensity"
    else:
        numbers = {"mean log-density": float(behaviour.logged.mean())}
        values, caption, x = behaviour.logged, "Logged log-densities (sample)", "log-density"
    table, figure = histogram(caption, values, x, "steps")
    tables[caption] = table
    figures.append(figure)
    if "logger" in logs.sample.extra:
        logger = logs.sample.extra["logger"].reshape(-1)
        rows = []
        for k in np.unique(logger):
            chosen = logger == k
            model = None if behaviour.log_model is None else float(behaviour.log_model[chosen].mean())
            rows.append([logger_name(k, loggers), int(chosen.sum()), float(behaviour.logged[chosen].mean()), model])
        tables["By logger"] = Table(["logger", "steps", "mean log-propensity", "mean by the model"], rows)
    return Check(title, about, facts, numbers, tables, figures, where)


def _known_propensities(logs: LogStatistics, behaviour: Behaviour) -> Array | None:
    """Return propensities of all actions ``[N, A]``, which those of the logged ones determine if there are two."""
    if behaviour.logged_all is not None or behaviour.logged is None:
        return behaviour.logged_all
    if not isinstance(logs.actions, Discrete) or logs.actions.size != 2:
        return None
    p, hit = np.exp(behaviour.logged), one_hot(logs.sample.action[:, 0], 2)
    return np.where(hit > 0, p[:, None], 1 - p[:, None])


def _discrete_propensities(
    logs: LogStatistics,
    actions: Discrete,
    behaviour: Behaviour,
    known: Array | None,
    facts: dict[str, float | None],
    tables: dict[str, Table],
    figures: list[Figure],
) -> dict[str, Number]:
    """Add facts, tables and figures of discrete propensities, of which all are ``known`` or not; return numbers."""
    p = np.exp(behaviour.logged if behaviour.logged is not None else np.zeros(0))
    n = len(p)
    tried = np.ones(actions.size, bool) if logs.taken is None else logs.taken > 0
    options = np.full(n, tried.sum()) if logs.sample.mask is None else (logs.sample.mask & tried).sum(1)
    random = p < 1 - 1e-9  # other actions do not count where one is certain
    ratio = 1 / (np.maximum(p, 1e-12) * options)[random] if random.any() else np.ones(1)
    error, variance = abs(float(ratio.mean()) - 1), float(ratio.var())
    every_action = behaviour.modelled_all if known is None else known
    if every_action is not None and random.any():  # rare actions, which may not occur, count in the variance
        inverse = (1 / np.maximum(every_action, 1e-6) * (every_action > 0)).sum(1)[random] / options[random] ** 2
        variance = max(variance, float(inverse.mean()) - 1)
    significant = error > 4 * math.sqrt(variance / len(ratio))
    facts |= {
        "inverse_propensity": error if significant else 0.0,
        "certain": float(1 - random.mean()),
        "propensity_rows": _model_ratio_excess(behaviour, random),
        "propensity_floor": float(p.min()),
    }
    numbers: dict[str, Number] = {
        "mean of 1 / (propensity x number of possible actions that were ever taken)": float(ratio.mean())
    }
    if behaviour.logged_all is not None:
        every, taken = behaviour.logged_all, logs.sample.action[:, 0]
        hit = taken[:, None] == np.arange(every.shape[1])
        error = calibration_error(every / every.sum(1, keepdims=True), taken)
        facts["propensity_calibration"] = max(0.0, error - _expected_calibration_error(every.ravel()) / len(taken))
        numbers["calibration error (ECE), including sampling error"] = error
        numbers["Brier score"] = float(((every - hit) ** 2).sum(1).mean())
        caption = "Calibration of logged propensities"
        tables[caption], points = _reliability(every.ravel(), hit.ravel())
        ideal = [0.0, 1.0], [0.0, 1.0]
        figures.append(lines(caption, {"logged": points, "ideal": ideal}, x="propensity", y="share taken"))
    return numbers


def _model_ratio_excess(behaviour: Behaviour, random: Array) -> float | None:
    """Return by how much the mean of ``m(a|x) / p`` exceeds 1; ``m`` is a model that was not fitted on the episode.

    If the propensities are right, the expectation is at most 1 for any model: the sum of its probabilities over all
    actions. It is larger if propensities are in wrong rows, because some are then small where the model's probabilities
    are large. The result is the lower end of the interval of the excess.
    """
    if behaviour.log_model is None or behaviour.logged is None or len(np.unique(behaviour.groups[random])) < 2:
        return None
    ratio = np.exp(behaviour.log_model - behaviour.logged)[random]
    return max(0.0, float(t_interval(Estimate(ratio), 0.999, clusters=behaviour.groups[random]).lower) - 1)


def _model_advantage(behaviour: Behaviour) -> float | None:
    """Return the advantage in log-likelihood of a model over logged propensities.

    The result is the lower end of the interval of the better of two models, with and without observations, because a
    model of many observations may learn their noise.
    """
    models = [model for model in (behaviour.log_model, behaviour.log_marginal) if model is not None]
    if behaviour.logged is None or not models:
        return None
    differences = (Estimate(model - behaviour.logged) for model in models)
    lower = (t_interval(each, 0.999, clusters=behaviour.groups).lower for each in differences)
    return max(0.0, *map(float, lower))


def _expected_calibration_error(p: Array) -> float:
    """Return 1.5 times the expected calibration error of right propensities in ten bins, times the number of steps."""
    variance = np.bincount(np.minimum((p * 10).astype(int), 9), p * (1 - p), 10)
    return float(1.5 * np.sqrt(2 / np.pi * variance).sum() / 2)


def _reliability(p: Array, hit: Array) -> tuple[Table, tuple[list[float], list[float]]]:
    index = np.minimum((p * 10).astype(int), 9)
    count = np.bincount(index, minlength=10)
    used = count > 0
    x = (np.bincount(index, p, 10)[used] / count[used]).tolist()
    y = (np.bincount(index, hit, 10)[used] / count[used]).tolist()
    rows = [[a, b, int(c)] for a, b, c in zip(x, y, count[used], strict=True)]
    return Table(["mean propensity", "share taken", "steps and actions"], rows), (x, y)


def check_behaviour(logs: LogStatistics, behaviour: Behaviour) -> Check:
    """Check how random the logging policy was, and how well observations predict it."""
    title = "Behaviour"
    about = "A nearly deterministic logging policy can be imitated, but weights can hardly evaluate another policy."
    if behaviour.log_model is None or behaviour.log_marginal is None:
        return Check(title, about + " There is no model: it needs two episodes, and discrete or continuous actions.")
    numbers: dict[str, Number] = {
        "held-out negative log-likelihood, nats": float(-behaviour.log_model.mean()),
        "held-out negative log-likelihood without observations, nats": float(-behaviour.log_marginal.mean()),
    }
    p = behaviour.propensities
    if p is None:
        width = logs.sample.action.shape[1]
        numbers[RANDOMNESS] = float(np.exp((behaviour.log_marginal - behaviour.log_model).mean() / width))
        return Check(title, about, {}, numbers)
    largest = p.max(1)
    entropy = float(-(p * np.log(np.maximum(p, 1e-12))).sum(1).mean())
    table, figure = histogram("Probability of the most probable action (sample)", largest, "probability", "steps")
    numbers["entropy given the observation, nats"] = entropy
    numbers[RANDOMNESS] = entropy / math.log(p.shape[1]) if p.shape[1] > 1 else 0.0
    fact = {"near_certain": float((largest > 0.99).mean())}
    return Check(title, about, fact, numbers, {figure.caption: table}, [figure])


def check_markov(logs: LogStatistics, behaviour: Behaviour, seed: int = 0) -> Check:
    """Check whether the previous step improves predictions, so that observations are not the whole state."""
    sample, followed = logs.sample, logs.sample.followed
    title, about = "Markov", "If the previous step improves predictions, observations hide a part of the state."
    before = followed[:-1][np.diff(followed) == 1] if len(followed) > 1 else followed[:0]  # steps with two after them
    now = before + 1
    if len(now) < 100 or len(np.unique(behaviour.groups[now])) < 2:
        return Check(title, about + " There are too few consecutive steps to check.", {"history": None})
    discrete = isinstance(logs.actions, Discrete)
    action = one_hot(sample.action[:, 0], logs.actions.size) if discrete else sample.action.astype(np.float64)
    x, groups = np.concatenate([sample.observation, action], 1), behaviour.groups[now]
    past = np.concatenate([x[now], x[before]], 1)
    columns = sample_rows(sample.observation.shape[1], seed, 32)
    change = sample.observation[now + 1][:, columns].astype(np.float64) - sample.observation[now][:, columns]
    rows: list[list[object]] = []
    history = 0.0
    for name, y in {"reward": sample.reward[now][:, None], "next observation": change}.items():
        varied = y.std(0) > 1e-9
        if varied.any():
            y = y[:, varied] / y[:, varied].std(0)
            predicted = [cross_fit(z, y, groups, ridge_predictions, seed) for z in (x[now], past)]
            without, with_ = (((prediction - y) ** 2).mean(1) for prediction in predicted)
            history = max(history, _reduction(name, 1.0, without, with_, groups, rows))
    if discrete and len(np.unique(sample.action[now])) > 1:
        taken, n = sample.action[now, 0], np.arange(len(now))
        inputs = (sample.observation[now], np.concatenate([sample.observation[now], x[before]], 1))
        fits = [cross_fit(z, one_hot(taken), groups, class_probabilities, seed) for z in inputs]
        without, with_ = (-np.log(np.maximum(p[n, taken], 1e-12)) for p in fits)
        share = np.bincount(taken) / len(taken)
        entropy = float(-(share[share > 0] * np.log(share[share > 0])).sum())
        history = max(history, _reduction("action", entropy, without, with_, groups, rows))
    head = ["target", "held-out error", "with the previous step", "error of a constant"]
    table = Table([*head, "reduction by the previous step, as a share"], rows)
    return Check(title, about, {"history": history}, {}, {"Held-out errors": table})


def _reduction(
    name: str, constant: float, without: Array, with_: Array, groups: Array, rows: list[list[object]]
) -> float:
    """Return by how much the previous step reduces an error, relative to the error of a ``constant`` prediction.

    The result is 0 if the reduction is not significant. It is not a share of the error without the previous step: where
    dynamics are almost deterministic, that error shows mostly the limits of a small model. If it is larger than the
    error of the constant, only the improvement over the constant counts. The function adds a row to ``rows``.
    """
    saved = (without if without.mean() < constant else constant) - with_
    share = float(saved.mean()) / constant
    rows.append([name, float(without.mean()), float(with_.mean()), constant, share])
    return share if t_interval(Estimate(saved), clusters=groups).lower > 0 else 0.0


def check_coverage(logs: LogStatistics) -> Check:
    """Check coverage of states, quality of episodes, and whether poor episodes visit the same states as good ones."""
    returns, sample = logs.episodes["return"], logs.sample
    width = float(np.ptp(returns))
    numbers: dict[str, Number] = {
        "distinct observations (about)": logs.unique["observations"],
        "distinct pairs of observation and action (about)": logs.unique["pairs"],
        OBSERVED: logs.unique["observations"] / logs.counts["steps"],
        PAIRS: logs.unique["pairs"] / logs.counts["steps"],
        QUALITY: float((returns.mean() - returns.min()) / width) if width > 0 else None,
    }
    title = "Coverage and stitching"
    about = "TQ and SACo are those of Schweighofer et al. 2022, arXiv:2111.04714, SACo without its reference data set. "
    about += (
        "SACo is meaningless, and not used for advice, if observations hardly repeat. Stitching: share of states in "
    )
    about += "poor episodes with a neighbour in a good one, where values can improve."
    episode_returns = returns[sample.episode]
    good = np.flatnonzero((episode_returns >= np.quantile(returns, 0.75)) & (episode_returns > np.median(returns)))
    poor = np.flatnonzero(episode_returns < np.median(returns))
    good, poor = good[sample_rows(len(good), 1)], poor[sample_rows(len(poor), 2)]
    if len(np.unique(sample.episode[good])) < 2 or not len(poor) or not sample.observation.shape[1]:
        return Check(title, about, {}, {**numbers, STITCHED: None})
    mean, std = sample.observation.mean(0, np.float64), sample.observation.std(0, np.float64)
    good_z, poor_z = ((sample.observation[rows] - mean) / np.where(std > 0, std, 1) for rows in (good, poor))
    within = nearest_distance(good_z, good_z, sample.episode[good], sample.episode[good])
    between = nearest_distance(poor_z, good_z, sample.episode[poor], sample.episode[good])
    near = float(np.quantile(within, 0.9))
    numbers[STITCHED] = float((between <= near + 1e-12).mean())
    table, figure = histogram("Distance from poor episodes to good ones (sample)", between, "distance", "states")
    return Check(title, about, {}, numbers, {figure.caption: table}, [figure])


def check_improvement(logs: LogStatistics, behaviour: Behaviour, seed: int = 0) -> Check:
    """Check how much room for improvement the logs leave."""
    returns, sample = logs.episodes["return"], logs.sample
    mean, best, std = float(returns.mean()), float(returns.max()), float(returns.std())
    above = np.maximum(returns - mean, 0)
    numbers: dict[str, Number] = {
        "positive-sided variance of returns": float((above**2).mean()),
        GOOD: float((above**2).mean() / returns.var()) if returns.var() > 0 else None,
        "best return above the mean, in standard deviations": (best - mean) / std if std > 0 else None,
        "relative improvement to the best return": (best - mean) / abs(mean) if mean else None,
    }
    if len(np.unique(behaviour.groups)) > 1:
        y = returns_to_go(sample.reward, sample.episode)[:, None]
        error = y - cross_fit(sample.observation, y, behaviour.groups, ridge_predictions, seed)
        share = float(error.std() / y.std()) if y.std() > 0 else None
        numbers["standard deviation of advantages as a share of that of future rewards"] = share
    about = "Positive-sided variance (Hong et al. 2023, arXiv:2306.13085) is large if some episodes are much better."
    return Check("Room for improvement", about, {}, numbers)


def check_power(logs: LogStatistics, behaviour: Behaviour, gamma: float) -> Check:
    """Check which gains the logs can distinguish from chance."""
    terms = logs.episodes["discounted"]
    clusters = logs.clusters
    about = (
        "The half-width of the 95 % interval of the mean discounted return, and its approximation with weights alone "
    )
    about += "for policies that differ from the logging policy: they move some of its probability, or shift continuous "
    about += "actions by a share of their standard deviation."
    units = len(terms) if clusters is None else len(np.unique(clusters))
    if units < 2:
        return Check("Power", about + " A single unit has no variance.", {}, {"half-width": None})
    interval = t_interval(Estimate(terms), clusters=clusters)
    half, mean = float(interval.upper - interval.lower) / 2, float(terms.mean())
    rows: list[list[object]] = [["as logged", float(units), half]]
    ends = [("as logged", float(interval.lower), mean, float(interval.upper))]
    numbers: dict[str, Number] = {"discount": gamma, "half-width": half}
    for share in (0.10, 0.25, 0.50):
        name, growth = f"{share:.0%} moved", _second_moment_growth(logs, behaviour, share)
        if growth is None:
            break
        exponent = float(np.mean(np.minimum(growth * logs.episodes["length"], 700)))
        effective = units / math.exp(exponent)
        wide = half * math.exp(exponent / 2) * t_quantile(0.975, max(effective - 1, 1)) / t_quantile(0.975, units - 1)
        enough = effective >= _MIN_EFFECTIVE
        rows.append([name, effective, wide if enough else None])
        if share == 0.25:
            numbers[MOVED] = effective
        if enough:
            ends.append((name, mean - wide, mean, mean + wide))
    table = Table(["policy", "effective episodes or clusters", "smallest gain that these logs can show"], rows)
    caption = "Mean discounted return of the logs, and intervals of policies that move probability"
    figure = intervals(caption, ends, x="discounted return")
    return Check("Power", about, {}, numbers, {"Half-widths": table}, [figure])


def _second_moment_growth(logs: LogStatistics, behaviour: Behaviour, share: float) -> float | None:
    """Return the logarithm of the growth of the weights' second moment in a step; ``None`` if unknown.

    A policy with discrete actions takes one action with the probability ``share``, which is drawn uniformly once for
    all steps: ``E rho^2 = 1 + share^2 (mean_a 1 / b(a) - 1)``. A policy with continuous actions shifts a Gaussian by
    ``share`` of its standard deviation.
    """
    if isinstance(logs.actions, Discrete):
        if behaviour.logged_all is None and behaviour.logged is not None:
            inverse = float(np.exp(-2 * behaviour.logged).mean()) / logs.actions.size  # mean over all actions
        elif behaviour.propensities is None:
            return None
        else:
            inverse = float((1 / np.maximum(behaviour.propensities, 1e-6)).mean())
        return math.log1p(share**2 * max(inverse - 1, 0.0))
    return share**2 * logs.actions.size if isinstance(logs.actions, Continuous) else None


def part_aucs(logs: LogStatistics, others: Mapping[str, LogStatistics], seed: int = 0) -> dict[str, float | None]:
    """Return the held-out AUC of a classifier between observations of these logs and of each other part."""
    aucs: dict[str, float | None] = {}
    sample = logs.sample
    for name, other in others.items():
        theirs = other.sample
        if sample.observation.shape[1] != theirs.observation.shape[1] or not sample.observation.shape[1]:
            aucs[name] = None
            continue
        a, b = (sample_rows(len(part.reward), seed, 20_000) for part in (sample, theirs))
        x = np.concatenate([sample.observation[a], theirs.observation[b]])
        y = np.repeat([0, 1], [len(a), len(b)])
        groups = np.concatenate([sample.episode[a], theirs.episode[b] + len(logs.episodes["length"])])
        if min(len(np.unique(sample.episode[a])), len(np.unique(theirs.episode[b]))) < 4:
            aucs[name] = None
            continue
        aucs[name] = auc(cross_fit(x, one_hot(y), groups, class_probabilities, seed)[:, 1], y)
    return aucs
