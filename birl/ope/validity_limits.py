"""The table of limits that decides which estimates are refused and which are doubtful.

A *fact* is a number about the data, the weights or a model. `check_limits` compares facts with the table and returns,
for each family of estimators, what is refused, what is doubtful and what would help. If every family is refused, the
answer is "cannot tell". Unknown facts are not checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from birl.dataset.logs.splits import MIN_EPISODES
from birl.errors import ConfigError, did_you_mean
from birl.ope.diagnostics import Diagnostics, tail_weight
from birl.ope.estimators import Estimate
from birl.ope.importance_weights import Trajectories
from birl.ope.intervals import t_interval
from birl.types import Array

FAMILIES = {
    "weights": ("importance_sampling", "weighted_importance_sampling", "per_decision", "weighted_per_decision"),
    "robust": ("doubly_robust", "weighted_doubly_robust", "magic"),
    "model": ("direct_method",),
    "kernel": ("kernel",),
    "marginal": ("double_reinforcement_learning",),
    "data": (),  # faults of the logs, whatever they are used for
}
ALL = ("weights", "robust", "model", "kernel", "marginal")
WEIGHTED = ("weights", "robust", "kernel")


@dataclass(frozen=True)
class Limit:
    """A row of the table.

    Attributes:
        fact: name of the number.
        families: the families of estimators that it limits.
        warn, refuse: the value beyond which an estimate is doubtful, and refused; ``None`` for never.
        meaning: what the number means, with ``{}`` for the number.
        remedy: what would help.
        too_low: whether small numbers are bad.
    """

    fact: str
    families: tuple[str, ...]
    warn: float | None
    refuse: float | None
    meaning: str
    remedy: str
    too_low: bool = False

    @property
    def labels(self) -> tuple[str, str, str]:
        """The meaning, and the ranges that are doubtful and refused, as texts."""
        side = "below" if self.too_low else "above"
        doubtful, refused = ("–" if end is None else f"{side} {end:g}" for end in (self.warn, self.refuse))
        return self.meaning.format("…"), doubtful, refused

    def exceeded(self, value: float, limit: float | None) -> bool:
        """Return whether ``value`` is on the wrong side of ``limit``. NaN always is."""
        if limit is None:
            return False
        return math.isnan(value) or (value < limit if self.too_low else value > limit)


class FindingData(TypedDict):
    """A `Finding` as JSON."""

    family: str
    refused: bool
    fact: str
    value: float | None
    message: str


@dataclass(frozen=True)
class Finding:
    """A fact that exceeds a limit.

    Attributes:
        family: family of estimators.
        refused: whether their estimates are refused, or only doubtful.
        fact, value: the number.
        text: what the number is, and what is allowed.
        remedy: what would help, if known.
    """

    family: str
    refused: bool
    fact: str
    value: float
    text: str
    remedy: str = ""

    @property
    def message(self) -> str:
        """The text and the remedy in a line."""
        return f"{self.text}: {self.remedy}" if self.remedy else self.text

    def as_dict(self) -> FindingData:
        """Return JSON values; a value that is not finite is ``None``."""
        value = self.value if math.isfinite(self.value) else None
        return {
            "family": self.family,
            "refused": self.refused,
            "fact": self.fact,
            "value": value,
            "message": self.message,
        }


_NEARER = "evaluate a policy nearer to the logs or a shorter horizon, or log more episodes"
_LOG_MORE = "log more episodes, or more users"
_TAIL = "the interval is too narrow on that side: log more episodes, or check betting_bound"

_ON = ("data",)
_LEAK = "drop the column if it is not known before the action"
_DATA_LIMITS = (
    Limit(
        "ends_at_limit",
        _ON,
        0.1,
        None,
        "{} of the terminated episodes have exactly the maximum length",
        "mark episodes that a time limit ends as truncated, not as terminated",
    ),
    Limit("backwards", _ON, 0, None, "{} of the steps are not later than the step before", "check the time column"),
    Limit("long_gaps", _ON, 0.01, None, "{} of the times between steps are over 10 medians", "cut episodes there"),
    Limit(
        "overlapping",
        _ON,
        0,
        None,
        "{} of the episodes begin before the last one of their cluster has ended",
        "check how rows are grouped into episodes",
    ),
    Limit(
        "repeated_steps", _ON, 0.01, None, "{} of the steps repeat the step before", "drop rows that were logged twice"
    ),
    Limit("repeated_episodes", _ON, 0.01, None, "{} of the episodes are duplicates", "drop the duplicates"),
    Limit("shared_episodes", _ON, None, 0, "{} of the episodes are also in another part", "split again, by episode"),
    Limit(
        "drift",
        _ON,
        3,
        None,
        "mean returns of the first and the last half differ by {} standard errors",
        "use newer logs: a verdict about the future needs more data",
    ),
    Limit("equal_returns", _ON, 0, None, "all {} returns are equal", "nothing can be learned from them: log more"),
    Limit(
        "reward_outliers",
        _ON,
        0.001,
        None,
        "{} of the rewards are more than 10 MAD from the median",
        "check them: clip erroneous rewards when learning (ClipRewardScaler), but keep those that matter",
    ),
    Limit(
        "reward_magnitude",
        _ON,
        2,
        None,
        "the magnitude of rewards is 10 to the power of {} or its inverse",
        "scale them when learning: StandardRewardScaler",
    ),
    Limit(
        "last_step_reward",
        _ON,
        0.99,
        None,
        "{} of all reward comes at the last steps of episodes",
        "use methods that propagate rewards over many steps, such as n-step returns, or a discount near 1",
    ),
    Limit("not_finite", _ON, None, 0, "{} numbers of observations are NaN or infinite", "correct or impute them"),
    Limit("constant_columns", _ON, 0, None, "{} columns of observations are constant", "drop them"),
    Limit("copied_columns", _ON, 0, None, "{} columns of observations are copies of others", "drop them"),
    Limit(
        "scale_ratio",
        _ON,
        1000,
        None,
        "the largest standard deviation of a column is {} times the smallest",
        "scale observations when learning: StandardObservationScaler",
    ),
    Limit(
        "part_auc",
        _ON,
        0.7,
        None,
        "a classifier distinguishes the observations of two parts with an AUC of {}",
        "the parts differ, and results may not transfer: split by episode or cluster",
    ),
    Limit("leak_reward", _ON, 0.98, None, "one column explains {} of the reward", _LEAK),
    Limit("leak_next_reward", _ON, 0.98, None, "one column explains {} of the next step's reward", _LEAK),
    Limit("leak_action", _ON, 0.98, None, "one column explains {} of the action", _LEAK),
    Limit("leak_return", _ON, 0.98, None, "one column explains {} of the future rewards", _LEAK),
    Limit(
        "leak_constant", _ON, 0.9, None, "a column that is constant within episodes explains {} of the returns", _LEAK
    ),
    Limit(
        "never_taken",
        _ON,
        0,
        None,
        "{} possible actions were never taken",
        "forbid them to the policy, or log with a minimum propensity: nothing is known about them",
    ),
    Limit("constant_actions", _ON, 0, None, "{} dimensions of actions are constant", "drop them"),
    Limit(
        "inverse_propensity",
        _ON,
        0.05,
        None,
        "the mean of 1 / propensity differs from the number of actions by a share of {}",
        "check that propensities are of the logged actions, under the policy that acted",
    ),
    Limit(
        "propensity_rows",
        _ON,
        0.05,
        None,
        "the mean ratio of a model's probabilities to the logged propensities exceeds 1 by {}",
        "check that each propensity is in the row of its action",
    ),
    Limit(
        "propensity_calibration",
        _ON,
        0.02,
        0.05,
        "logged propensities are off by {} on average",
        "check that propensities are those of the policy that acted",
    ),
    Limit(
        "propensity_excess",
        _ON,
        0.02,
        None,
        "a model of the behaviour predicts actions better than the propensities, by {} nats a step",
        "check that propensities are of the logged actions, under the policy that acted",
    ),
    Limit(
        "propensity_floor",
        _ON,
        0.001,
        None,
        "the smallest propensity is {}",
        "log with a minimum propensity: one such step can outweigh all others",
        too_low=True,
    ),
    Limit(
        "near_certain",
        _ON,
        0.5,
        None,
        "in {} of the steps one action has more than 99 % of the probability",
        "imitate, or log with a policy that tries every action: weights say little about other policies",
    ),
    Limit(
        "history",
        _ON,
        0.05,
        None,
        "the previous step explains {} of the next reward, observation or action beyond the observation",
        "stack frames or use recurrent networks, and doubt FQE: observations are not Markov",
    ),
)
LIMITS = (
    Limit("episodes", ALL, 100, MIN_EPISODES, "there are {} episodes", _LOG_MORE, too_low=True),
    Limit("clusters", ALL, 50, MIN_EPISODES, "there are {} clusters", _LOG_MORE, too_low=True),
    Limit(
        "censored",
        ALL,
        0.05,
        0.2,
        "{} of the episodes are truncated before the horizon",
        "use a shorter horizon, or mark ends without further rewards as terminations",
    ),
    Limit(
        "uneven_steps",
        ALL,
        0.05,
        None,
        "{} of the steps are shorter or longer than the time unit",
        "use gamma 1 and a horizon, or resample rows to equal times: the discount counts steps, not time",
    ),
    Limit(
        "unsupported",
        ALL,
        0.01,
        0.05,
        "{} of the policy's probability is on actions that the logs hardly contain",
        "let the logging policy try them, with a minimum propensity, or forbid them to the policy",
    ),
    Limit(
        "no_support",
        ALL,
        0.001,
        None,
        "{} of the policy's episodes contain an action that the logging policy never takes there",
        "let the logging policy try it there, with a minimum propensity, or forbid it to the policy",
    ),
    Limit(
        "seen",
        ALL,
        None,
        0,
        "policies that learned from these episodes: {}",
        "hold out episodes for the final evaluation",
    ),
    Limit("ess", ("weights", "kernel"), 50, 20, "effective episodes: {}", _NEARER, too_low=True),
    Limit("pareto_k", ("weights", "kernel"), 0.5, 0.7, "the tail of the weights has the Pareto shape {}", _NEARER),
    Limit("share", ("weights", "kernel"), 0.1, 0.15, "one episode has {} of the total weight", _NEARER),
    Limit(
        "kappa",
        ("weights", "kernel"),
        1,
        None,
        "the second moment of the weights grows by a factor of {} a step",
        "use a shorter horizon",
    ),
    Limit(
        "ess",
        ("robust",),
        50,
        6,
        "effective episodes: {}, so most of the value comes from the model",
        _NEARER,
        too_low=True,
    ),
    Limit(
        "ess_where_model_differs",
        ("robust",),
        None,
        20,
        "effective episodes: {}, and the model alone contradicts the estimate",
        _NEARER,
        too_low=True,
    ),
    Limit(
        "certain",
        (*WEIGHTED, "marginal"),
        0.5,
        0.95,
        "{} of the logged actions had the propensity 1",
        "log with a policy that tries every action, with a minimum propensity",
    ),
    Limit(
        "mean_error",
        WEIGHTED,
        3,
        4,
        "the mean weight differs from 1 by {} standard errors",
        "check that propensities are those of the policy that acted; if they are, the logs lack actions of this policy",
    ),
    Limit(
        "no_propensities",
        WEIGHTED,
        None,
        0,
        "steps have no propensity (a share of {})",
        "log them, or estimate them (behaviour='estimated', --behaviour estimated)",
    ),
    Limit(
        "calibration_error",
        WEIGHTED,
        0.02,
        0.05,
        "estimated propensities are off by {} on average",
        "log propensities, or calibrate the model",
    ),
    Limit(
        "beyond_rewards",
        ("marginal",),
        1,
        1.5,
        "the value is {} times the maximum that logged rewards allow",
        "use other estimators: observations are not Markov, or too few features express the ratios of visits",
    ),
    Limit("kernel_dimensions", ("kernel",), 1, 2, "an action has {} dimensions", "use a model or a stochastic policy"),
    Limit(
        "kernel_sweep",
        ("kernel",),
        0.5,
        1,
        "half and twice the bandwidth change the value by {} half-widths",
        "use a stochastic policy, or log more episodes",
    ),
    Limit(
        "model_differs",
        ("model",),
        None,
        0,
        "estimators with weights contradict the model ({})",
        "use those: the interval of a wrong model is narrow and wrong",
    ),
    Limit(
        "gamma_differs",
        ("robust", "model"),
        None,
        0,
        "the model's discount differs by {}",
        "fit the model with the discount of the evaluation",
    ),
    Limit(
        "bellman_residual",
        ("robust", "model"),
        0.1,
        0.5,
        "the held-out Bellman residual is {} of the standard deviation of rewards",
        "fit the model longer, or give it more history",
    ),
    Limit(
        "bootstrap_groups",
        ("model",),
        400,
        100,
        "the bootstrap resampled {} episodes or clusters",
        "log more: if values depend nonlinearly on how episodes end, 95 % intervals covered the truth in 89.5 % (100 "
        "episodes) or 95 % (400) of runs",
        too_low=True,
    ),
    Limit(
        "left_tail", ("weights", "robust"), 0.25, None, "few episodes with large losses decide (a tail of {})", _TAIL
    ),
    Limit(
        "right_tail", ("weights", "robust"), 0.25, None, "few episodes with large gains decide (a tail of {})", _TAIL
    ),
    *_DATA_LIMITS,
)
CAPPED = {"ship": "left_tail", "do_not_ship": "right_tail"}
"""Tails that turn a verdict into ``more_data``: the tail lies behind the end of the interval that decided."""
FACTS = tuple(dict.fromkeys(limit.fact for limit in LIMITS))


def check_limits(facts: Mapping[str, float | None]) -> tuple[Finding, ...]:
    """Return the facts that exceed a limit, refusals first.

    Args:
        facts: numbers by name, those of `FACTS`; ``None``, or left out, if unknown.

    Raises:
        ConfigError: if a name is unknown.
    """
    if unknown := [name for name in facts if name not in FACTS]:
        hint = did_you_mean(unknown[0], FACTS)
        raise ConfigError(f"{unknown[0]!r} is no fact; the facts are {', '.join(FACTS)}{hint}")
    findings = []
    for limit in LIMITS:
        if (value := facts.get(limit.fact)) is None:
            continue
        refused = limit.exceeded(value, limit.refuse)
        if refused or limit.exceeded(value, limit.warn):
            end = limit.refuse if refused else limit.warn
            side = "at least" if limit.too_low else "at most"
            number = f"{value:.3g}"
            if number == "1" and limit.meaning.startswith("{} of the"):
                number = "all" if value == 1 else "nearly all"
            text = f"{limit.meaning.format(number)}; {side} {end:g} is {'allowed' if refused else 'safe'}"
            findings += [
                Finding(family, refused, limit.fact, float(value), text, limit.remedy) for family in limit.families
            ]
    return tuple(sorted(findings, key=lambda each: not each.refused))


def allowed(findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """Return the names of the estimators that no finding refuses; without any, the data cannot tell."""
    refused = {each.family for each in findings if each.refused}
    return tuple(name for family, names in FAMILIES.items() if family not in refused for name in names)


def model_facts(robust: Estimate, model: Estimate, ess: float) -> dict[str, float | None]:
    """Return facts of a model and weights: whether the 99 % interval of their paired difference excludes 0.

    Args:
        robust: from `doubly_robust` with weights.
        model: from `direct_method`, of the same episodes.
        ess: effective sample size of the weights.
    """
    difference = robust - model
    rounding = 1e-3 * float(robust.terms.std()) + 1e-6 * abs(float(robust.value))  # for a model without noise
    differs = not t_interval(difference, 0.99).holds(0.0) and abs(float(difference.value)) > rounding
    return {"model_differs": float(differs), "ess_where_model_differs": ess if differs else None}


def reward_facts(marginal: Estimate, episodes: Trajectories) -> dict[str, float | None]:
    """Return how far an estimate lies beyond the values that the logged rewards allow any policy.

    Args:
        marginal: from `double_reinforcement_learning`.
        episodes: the episodes.
    """
    value, steps = float(marginal.value), episodes.discount.sum()
    reward = episodes.reward[episodes.mask]
    low, high = steps * min(reward.min(), 0.0), steps * max(reward.max(), 0.0)
    end = float(high if value > 0 else low)
    return {"beyond_rewards": value / end if end else math.inf if value else 0.0}


def tail_facts(gain: Estimate, clusters: Array | None = None) -> dict[str, float | None]:
    """Return facts of the tails of the gain that decides; see `tail_weight`."""
    tail = tail_weight(gain.terms, clusters)
    return {"left_tail": max(-tail, 0.0), "right_tail": max(tail, 0.0)}


def weight_facts(diagnostics: Diagnostics) -> dict[str, float | None]:
    """Return the facts of the diagnostics of one set of episodes."""
    names = ("ess", "share", "pareto_k", "mean_error", "kappa")
    if np.ndim(diagnostics.ess):
        raise ConfigError(
            f"the diagnostics are of {np.shape(diagnostics.ess)} repetitions; they must be of one: check each alone"
        )
    return {name: float(getattr(diagnostics, name)) for name in names}
