"""When an estimate is refused: one table of limits, the only place of them.

A *fact* is a number about the data, the weights or a model. `judge` compares facts with the table and says of each
family of estimators what is refused and what is doubtful, and what would help. Where no family is left, the answer is
"cannot tell". A fact that is not known is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from birl.dataset.logs.splits import LEAST_EPISODES
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
    "data": (),  # what is wrong with logs, whatever is made of them
}
ALL = ("weights", "robust", "model", "kernel", "marginal")
WEIGHTED = ("weights", "robust", "kernel")


@dataclass(frozen=True)
class Limit:
    """A row of the table.

    Attributes:
        fact: the number's name.
        families: which estimators it is about.
        warn, refuse: from where on it is doubtful, and too bad; ``None`` for never.
        too_low: whether small numbers are the bad ones.
        meaning: what the number says; ``{}`` stands for it.
        remedy: what would help.
    """

    fact: str
    families: tuple[str, ...]
    warn: float | None
    refuse: float | None
    meaning: str
    remedy: str
    too_low: bool = False

    @property
    def said(self) -> tuple[str, str, str]:
        """For people: what it means to be past a limit, where it is doubtful, and where it is refused."""
        side = "below" if self.too_low else "above"
        doubtful, refused = ("–" if end is None else f"{side} {end:g}" for end in (self.warn, self.refuse))
        return self.meaning.format("…"), doubtful, refused

    def passed(self, value: float, end: float | None) -> bool:
        """Whether ``value`` is on the wrong side of ``end``. NaN always is."""
        if end is None:
            return False
        return math.isnan(value) or (value < end if self.too_low else value > end)


@dataclass(frozen=True)
class Finding:
    """What the table says of a fact.

    Attributes:
        family: of which estimators.
        refused: refused, or only doubtful.
        fact, value: the number.
        says: what it is, and what is allowed.
        remedy: what would help, if anything is known.
    """

    family: str
    refused: bool
    fact: str
    value: float
    says: str
    remedy: str = ""

    @property
    def message(self) -> str:
        """All of it, in a line."""
        return f"{self.says}: {self.remedy}" if self.remedy else self.says

    def as_dict(self) -> dict[str, Any]:
        """As values of JSON; a value that is not known or not finite is ``None``."""
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
_TAIL = "an interval of so few is too narrow on that side: log more episodes, or look at betting_bound"

_ON = ("data",)
_LEAK = "is it known before the action is chosen? Leave it out if not"
_DATA_LIMITS = (
    Limit(
        "ends_at_limit",
        _ON,
        0.1,
        None,
        "{} of the terminated episodes end exactly at the greatest length",
        "mark ends by a time limit as truncated, not as terminated",
    ),
    Limit("backwards", _ON, 0, None, "{} of the steps are not later than the step before", "look at the time column"),
    Limit("long_gaps", _ON, 0.01, None, "{} of the times between steps are over 10 medians", "cut episodes there"),
    Limit(
        "overlapping",
        _ON,
        0,
        None,
        "{} of the episodes begin before the last one of their cluster has ended",
        "look at how rows became episodes",
    ),
    Limit("repeated_steps", _ON, 0.01, None, "{} of the steps repeat the step before", "drop rows logged twice"),
    Limit("repeated_episodes", _ON, 0.01, None, "{} of the episodes are there twice", "drop those logged twice"),
    Limit("shared_episodes", _ON, None, 0, "{} of the episodes are in another part, too", "split again, by episode"),
    Limit(
        "drift",
        _ON,
        3,
        None,
        "returns of the first and the last half differ by {} standard errors",
        "take newer logs: a verdict about tomorrow needs more data",
    ),
    Limit("equal_returns", _ON, 0, None, "all {} returns are equal", "nothing can be learned from them: log more"),
    Limit(
        "reward_outliers",
        _ON,
        0.001,
        None,
        "{} of the rewards are over 10 MAD from the median",
        "look at them: clip errors when learning (ClipRewardScaler), but not what matters most",
    ),
    Limit(
        "reward_magnitude",
        _ON,
        2,
        None,
        "rewards are of the size 10 to the power of {} or its inverse",
        "scale them when learning: StandardRewardScaler",
    ),
    Limit(
        "last_step_reward",
        _ON,
        0.99,
        None,
        "{} of all reward is at last steps",
        "methods that pass rewards back over many steps, n-step returns or a discount near 1",
    ),
    Limit("not_finite", _ON, None, 0, "{} numbers of observations are NaN or infinite", "repair or fill them"),
    Limit("constant_columns", _ON, 0, None, "{} columns of observations never change", "leave them out"),
    Limit("copied_columns", _ON, 0, None, "{} columns of observations are copies of others", "leave them out"),
    Limit(
        "scale_ratio",
        _ON,
        1000,
        None,
        "the widest column spreads {} times as far as the narrowest",
        "scale observations when learning: StandardObservationScaler",
    ),
    Limit(
        "part_auc",
        _ON,
        0.7,
        None,
        "a classifier tells observations of two parts apart with an AUC of {}",
        "the parts differ: what holds in one may not hold in the other; split by episode or cluster",
    ),
    Limit("leak_reward", _ON, 0.98, None, "one column explains {} of the reward", _LEAK),
    Limit("leak_next_reward", _ON, 0.98, None, "one column explains {} of the next step's reward", _LEAK),
    Limit("leak_action", _ON, 0.98, None, "one column explains {} of the action", _LEAK),
    Limit("leak_return", _ON, 0.98, None, "one column explains {} of the rewards still to come", _LEAK),
    Limit("leak_constant", _ON, 0.9, None, "a column that is constant in episodes explains {} of returns", _LEAK),
    Limit(
        "never_taken",
        _ON,
        0,
        None,
        "{} possible actions were never taken",
        "nothing is known of them: forbid them to the policy, or log with a floor",
    ),
    Limit("constant_actions", _ON, 0, None, "{} dimensions of actions never change", "leave them out"),
    Limit(
        "inverse_propensity",
        _ON,
        0.05,
        None,
        "the mean of 1 / propensity misses the number of actions by {}",
        "look at the propensities: are they those of the logged actions, by the policy that acted?",
    ),
    Limit(
        "propensity_rows",
        _ON,
        0.05,
        None,
        "a model's probabilities of the logged actions are {} higher than the propensities, on average of their ratios",
        "look at the propensities: does each stand in the row of its action?",
    ),
    Limit(
        "propensity_calibration",
        _ON,
        0.02,
        0.05,
        "logged propensities are off by {} on average",
        "look at the propensities: are they those of the policy that acted?",
    ),
    Limit(
        "propensity_excess",
        _ON,
        0.02,
        None,
        "a model of the behaviour foretells actions better, by {} nats a step",
        "look at the propensities: are they those of the logged actions, by the policy that acted?",
    ),
    Limit(
        "propensity_floor",
        _ON,
        0.001,
        None,
        "the smallest propensity is {}",
        "log with a floor: one such step can outweigh all others",
        too_low=True,
    ),
    Limit(
        "near_certain",
        _ON,
        0.5,
        None,
        "in {} of the steps one action has over 99 % of the probability",
        "weights say little of other policies: imitate, or log with a policy that tries every action",
    ),
    Limit(
        "history",
        _ON,
        0.05,
        None,
        "the step before explains {} of what happens next beyond the observation",
        "observations are not the whole state: stack frames or take recurrent networks, and doubt FQE",
    ),
)
LIMITS = (
    Limit("episodes", ALL, 100, LEAST_EPISODES, "there are {} episodes", _LOG_MORE, too_low=True),
    Limit("clusters", ALL, 50, LEAST_EPISODES, "there are {} clusters", _LOG_MORE, too_low=True),
    Limit(
        "censored",
        ALL,
        0.05,
        0.2,
        "{} of the episodes are cut off early, not terminated",
        "take a shorter horizon, or mark ends after which nothing more is earned as terminations",
    ),
    Limit(
        "uneven_steps",
        ALL,
        0.05,
        None,
        "{} of the steps are shorter or longer than the unit of time",
        "the discount counts steps, not time: take gamma 1 and a horizon, or make rows of equal times",
    ),
    Limit(
        "unsupported",
        ALL,
        0.01,
        0.05,
        "{} of the policy's probability is on actions that the logs hardly hold",
        "let the logging policy try them, with a floor, or forbid them to the policy",
    ),
    Limit(
        "no_support",
        ALL,
        0.001,
        None,
        "{} of the policy's episodes have an action that the logging policy never takes there",
        "let the logging policy try it there, with a floor, or forbid it to the policy",
    ),
    Limit(
        "seen",
        ALL,
        None,
        0,
        "policies that have seen these episodes: {}",
        "hold out episodes for the last evaluation",
    ),
    Limit("ess", ("weights", "kernel"), 50, 20, "effective episodes: {}", _NEARER, too_low=True),
    Limit("pareto_k", ("weights", "kernel"), 0.5, 0.7, "the weights' tail has the shape {}", _NEARER),
    Limit("share", ("weights", "kernel"), 0.1, 0.15, "one episode has {} of all weight", _NEARER),
    Limit("kappa", ("weights", "kernel"), 1, None, "the weights' spread grows by {} a step", "take a shorter horizon"),
    Limit(
        "ess",
        ("robust",),
        50,
        6,
        "effective episodes: {}, so that most of the value is the model's",
        _NEARER,
        too_low=True,
    ),
    Limit(
        "ess_where_model_differs",
        ("robust",),
        None,
        20,
        "effective episodes: {}, and the model says otherwise",
        _NEARER,
        too_low=True,
    ),
    Limit(
        "certain",
        (*WEIGHTED, "marginal"),
        0.5,
        0.95,
        "{} of the logged actions had the propensity 1",
        "log with a policy that tries every action, with a floor",
    ),
    Limit(
        "mean_error",
        WEIGHTED,
        3,
        4,
        "the mean weight misses 1 by {} standard errors",
        "look at the propensities: are they those of the policy that acted? If so, the logs lack what this one does",
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
        "the value is {} times the most that logged rewards could add up to",
        "trust other estimators: observations are not the whole state, or too few to express ratios of visits by",
    ),
    Limit("kernel_dimensions", ("kernel",), 1, 2, "an action has {} dimensions", "take a model or a stochastic policy"),
    Limit(
        "kernel_sweep",
        ("kernel",),
        0.5,
        1,
        "half and twice the bandwidth move the value by {} half-widths",
        "take a stochastic policy, or log more episodes",
    ),
    Limit(
        "model_differs",
        ("model",),
        None,
        0,
        "estimators with weights say otherwise ({})",
        "trust those: a wrong model is narrow and wrong",
    ),
    Limit(
        "gamma_differs",
        ("robust", "model"),
        None,
        0,
        "the model's discount differs by {}",
        "fit the model with the discount of the question",
    ),
    Limit(
        "bellman_residual",
        ("robust", "model"),
        0.1,
        0.5,
        "the held-out Bellman residual is {} of the rewards' spread",
        "fit the model longer, or give it more history",
    ),
    Limit(
        "refitted_groups",
        ("model",),
        400,
        100,
        "models were refitted on draws of {} episodes or clusters",
        "log more: where values bend with how episodes end, such intervals held the truth in 89.5 % (of 100 episodes) "
        "and in 95 % (of 400)",
        too_low=True,
    ),
    Limit(
        "left_tail", ("weights", "robust"), 0.25, None, "few episodes with great losses decide (a tail of {})", _TAIL
    ),
    Limit(
        "right_tail", ("weights", "robust"), 0.25, None, "few episodes with great gains decide (a tail of {})", _TAIL
    ),
    *_DATA_LIMITS,
)
CAPPED = {"ship": "left_tail", "do_not_ship": "right_tail"}
"""Tails that leave of a verdict no more than ``more_data``: the tail is behind the end that decided."""
FACTS = tuple(dict.fromkeys(limit.fact for limit in LIMITS))


def judge(facts: Mapping[str, float | None]) -> tuple[Finding, ...]:
    """What the table of limits says of ``facts``, refusals first.

    Args:
        facts: numbers by name, those of `FACTS`; ``None``, or left out, if not known.

    Raises:
        ConfigError: if a name is unknown.
    """
    if unknown := [name for name in facts if name not in FACTS]:
        hint = did_you_mean(unknown[0], FACTS)
        raise ConfigError(f"{unknown[0]!r} is no fact; the facts are {', '.join(FACTS)}{hint}")
    found = []
    for limit in LIMITS:
        if (value := facts.get(limit.fact)) is None:
            continue
        refused = limit.passed(value, limit.refuse)
        if refused or limit.passed(value, limit.warn):
            end = limit.refuse if refused else limit.warn
            side = "at least" if limit.too_low else "at most"
            told = f"{value:.3g}"
            if told == "1" and limit.meaning.startswith("{} of the"):
                told = "all" if value == 1 else "nearly all"
            says = f"{limit.meaning.format(told)}; {side} {end:g} {'is allowed' if refused else 'is safe'}"
            own = (refused, limit.fact, float(value), says, limit.remedy)
            found += [Finding(family, *own) for family in limit.families]
    return tuple(sorted(found, key=lambda one: not one.refused))


def allowed(findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """Names of the estimators that no finding refuses; empty means that the data cannot tell."""
    refused = {one.family for one in findings if one.refused}
    return tuple(name for family, names in FAMILIES.items() if family not in refused for name in names)


def model_facts(robust: Estimate, model: Estimate, ess: float) -> dict[str, float | None]:
    """The facts of a model beside weights: whether the joint 99 % interval of their difference leaves out 0.

    Args:
        robust: of `doubly_robust` with weights.
        model: of `direct_method`, of the same episodes.
        ess: the effective sample size of the weights.
    """
    apart = robust - model
    rounding = 1e-3 * float(robust.terms.std()) + 1e-6 * abs(float(robust.value))  # of a model without chance
    differs = not t_interval(apart, 0.99).holds(0.0) and abs(float(apart.value)) > rounding
    return {"model_differs": float(differs), "ess_where_model_differs": ess if differs else None}


def reward_facts(marginal: Estimate, of: Trajectories) -> dict[str, float | None]:
    """How much further from 0 an estimate lies than rewards as they were logged could take any policy.

    Args:
        marginal: of `double_reinforcement_learning`.
        of: the episodes.
    """
    value, steps = float(marginal.value), of.discount.sum()
    low, high = steps * min(of.reward[of.mask].min(), 0.0), steps * max(of.reward[of.mask].max(), 0.0)
    end = float(high if value > 0 else low)
    return {"beyond_rewards": value / end if end else math.inf if value else 0.0}


def tail_facts(gain: Estimate, clusters: Array | None = None) -> dict[str, float | None]:
    """The facts of the tails of a gain that decides; see `tail_weight`."""
    tail = tail_weight(gain.terms, clusters)
    return {"left_tail": max(-tail, 0.0), "right_tail": max(tail, 0.0)}


def weight_facts(found: Diagnostics) -> dict[str, float | None]:
    """The facts that diagnostics of one set of episodes hold."""
    names = ("ess", "share", "pareto_k", "mean_error", "kappa")
    if np.ndim(found.ess):
        raise ConfigError(f"the diagnostics are of {np.shape(found.ess)} repetitions; judge each alone")
    return {name: float(getattr(found, name)) for name in names}
