"""Evaluation of a slate policy: all estimates that the logged probabilities allow, and one that decides.

The result is a `birl.ope.Evaluation`, in which a slate counts as an episode: `birl.ope.verdict` and reports take it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from birl.checks import check
from birl.errors import DataError
from birl.ope.diagnostics import diagnose
from birl.ope.estimators import Estimate
from birl.ope.evaluation import Evaluation, Row
from birl.ope.importance_weights import Trajectories
from birl.ope.intervals import t_interval
from birl.ope.slates import (
    Slates,
    cascade_doubly_robust,
    item_position,
    pseudoinverse,
    pseudoinverse_weight,
    reward_interaction,
    slate_importance_sampling,
)
from birl.ope.validity_limits import Finding, check_limits, tail_facts, weight_facts
from birl.types import Array


@dataclass(frozen=True)
class UserModel:
    """An assumption about how users read slates.

    Attributes:
        text: the assumption as a sentence; empty for none.
        estimators: names of the estimators that it allows, the preferred one first.
    """

    text: str
    estimators: tuple[str, ...]


USER_MODELS: Final[Mapping[str, UserModel]] = {
    "none": UserModel("", ("slate_importance_sampling",)),
    "cascade": UserModel(
        "users read slates from the top: the items below a position do not change its reward",
        ("cascade_doubly_robust", "reward_interaction"),
    ),
    "item_position": UserModel(
        "the reward of a position depends on its own item only: no item of a slate changes the reward of another",
        ("item_position",),
    ),
    "additive": UserModel(
        "the expected reward of a slate is a sum over its positions, to which each item contributes alone",
        ("pseudoinverse",),
    ),
}
"""Assumptions about users, by the names that `evaluate_slates` takes."""
_ASSUME_LESS: Final = {
    "slate_importance_sampling": (),
    "reward_interaction": ("slate_importance_sampling",),
    "cascade_doubly_robust": ("slate_importance_sampling",),
    "item_position": ("slate_importance_sampling", "reward_interaction"),
    "pseudoinverse": ("slate_importance_sampling",),
}
"""Estimators that are valid wherever an estimator is, and in more cases."""
_CONTRADICTION: Final = 0.99
"""Confidence of the test of an assumption by the estimators that assume less."""
_NEEDS: Final = {
    "slate_importance_sampling": "slate or prefix",
    "reward_interaction": "prefix",
    "cascade_doubly_robust": "prefix, and choice of the policy",
    "item_position": "position",
    "pseudoinverse": "position of slates of one length; with items also anywhere of the policy",
}


def evaluate_slates(
    slates: Slates,
    users: str = "none",
    *,
    items: int | None = None,
    confidence: float = 0.95,
    name: str = "policy",
    seed: int = 0,
) -> Evaluation:
    """Estimate what a slate policy earns, and its gain over the logs, with one estimate that decides.

    All estimates that the given probabilities allow are in the result; those that assume more than ``users`` never
    decide. The assumption is tested: if an estimate that assumes less is reliable, and differs from the one that would
    decide by more than chance (the 99 % interval of their paired difference excludes 0), the latter is refused.

    Args:
        slates: logged slates, with probabilities under both policies.
        users: what is assumed of users. ``"none"``: nothing; ``"cascade"``: they read from the top;
            ``"item_position"``: the reward of a position depends on its item only; ``"additive"``: the reward of a
            slate is a sum of such rewards.
        items: see `birl.ope.pseudoinverse`.
        confidence: confidence of the two-sided intervals, between 0 and 1.
        name: name of the policy in reports.
        seed: random seed of the parts of slates for the model of `birl.ope.cascade_doubly_robust`.

    Returns:
        An evaluation whose episodes are slates and whose steps are positions.

    Raises:
        ConfigError: if ``users`` is unknown.
        DataError: if no estimate can be made from the given probabilities.
    """
    check("users", users, str, choices=tuple(USER_MODELS))
    check("confidence", confidence, float, above=0, below=1)
    estimates, failures = _estimates(slates, items, seed)
    if not estimates:
        raise DataError(
            "no estimate can be made: probabilities of both policies must be of one kind, slate, prefix or position: "
            "give SlateProbabilities for logged and policy"
        )
    earned, rows, findings = slates.earned, dict[str, Row](), list[Finding]()
    facts: dict[str, dict[str, float | None]] = {}
    for key, (estimate, weights) in estimates.items():
        gain = estimate - earned
        facts[key] = {**_size(slates), **weights}
        family = "robust" if key == "cascade_doubly_robust" else "weights"
        found = [replace(each, family=key) for each in check_limits(facts[key]) if each.family == family]
        findings += found if key in USER_MODELS[users].estimators else []
        refused = next((each.message for each in found if each.refused), "")
        interval, around = (t_interval(each, confidence, slates.clusters) for each in (estimate, gain))
        rows[key] = Row(float(estimate.value), interval, gain, around, refused)
    allowed = USER_MODELS[users].estimators
    for key in allowed:
        if (text := _contradiction(key, rows, slates.clusters)) is not None:
            remedy = "assume less of users, or find out why clicks depend on other items"
            finding = Finding(key, True, "contradicted", np.nan, text, remedy)
            findings.append(finding)
            rows[key] = replace(rows[key], refused=finding.message)
    decides = next((key for key in allowed if key in rows and not rows[key].refused), None)
    if not rows.keys() & set(allowed):
        lacks = f"users = {users!r} needs probabilities of both policies that are not given: {_NEEDS[allowed[-1]]}"
        text, remedy = failures.get(allowed[0], lacks), "give them, or assume something else of users"
        findings.append(Finding(allowed[-1], True, "estimator", np.nan, text, "" if failures else remedy))
    if decides is not None:
        tails = tail_facts(rows[decides].gain, slates.clusters)
        facts[decides] |= tails
        findings += [replace(each, family=decides) for each in check_limits(tails) if each.family == "weights"]
    shown = decides or next((key for key in allowed if key in facts), next(iter(facts)))
    return Evaluation(
        name=name,
        against="logs",
        gamma=1.0,
        horizon=slates.item.shape[1],
        confidence=confidence,
        behaviour="logged",
        steps=int(slates.mask.sum()),
        logs=Row(float(earned.value), t_interval(earned, confidence, slates.clusters), earned, None),
        rows=rows,
        decides=decides,
        facts=facts[shown],
        findings=tuple(sorted(findings, key=lambda each: not each.refused)),
        clusters=slates.clusters,
        unit="slate",
        assumptions=tuple(filter(None, [USER_MODELS[users].text])),
    )


def _contradiction(key: str, rows: Mapping[str, Row], clusters: Array | None) -> str | None:
    """Return which estimate that assumes less contradicts an estimate, as a sentence; ``None`` if none does."""
    others = [each for each in _ASSUME_LESS[key] if each in rows and not rows[each].refused]
    if key not in rows or rows[key].refused or not others:
        return None
    for other in others:
        interval = t_interval(rows[key].gain - rows[other].gain, 1 - (1 - _CONTRADICTION) / len(others), clusters)
        if not interval.holds(0.0):
            ends = f"between {float(interval.lower):.4g} and {float(interval.upper):.4g}"
            return f"{other}, which assumes less of users, contradicts {key}: their difference is {ends}"
    return None


def _estimates(
    slates: Slates, items: int | None, seed: int
) -> tuple[dict[str, tuple[Estimate, dict[str, float | None]]], dict[str, str]]:
    """Return the estimates for which the probabilities are known, with facts of their weights, and other messages."""
    given = [
        {kind for kind in vars(each) if getattr(each, kind) is not None} for each in (slates.logged, slates.policy)
    ]
    both = given[0] & given[1]
    found, failures = dict[str, tuple[Estimate, dict[str, float | None]]](), dict[str, str]()
    if "prefix" in both or all({"slate", "prefix"} & kinds for kinds in given):
        total = slates.earned.terms
        whole = _one_step(total, slates.ratio("slate"))
        found["slate_importance_sampling"] = slate_importance_sampling(slates), whole
    if "prefix" in both:
        weights = weight_facts(diagnose(slates.trajectories()))
        found["reward_interaction"] = reward_interaction(slates), weights
        if slates.policy.choice is not None:
            found["cascade_doubly_robust"] = cascade_doubly_robust(slates, seed=seed), weights
    if "position" in both:
        ratio = slates.ratio("position")
        places = [
            _one_step(slates.reward[rows, k], ratio[rows, k]) for k, rows in enumerate(slates.mask.T) if rows.any()
        ]
        found["item_position"] = item_position(slates), _worst(places)
        try:
            signed = _signed_facts(pseudoinverse_weight(slates, items))
            found["pseudoinverse"] = pseudoinverse(slates, items), signed
        except DataError as error:  # the logs are not of its kind
            failures["pseudoinverse"] = str(error)
    return found, failures


def _one_step(reward: Array, ratio: Array) -> dict[str, float | None]:
    """Return facts of the ratios of single decisions, ``[n]``."""
    with np.errstate(divide="ignore"):
        log_ratio = np.log(ratio)[:, None]
    steps = Trajectories(reward[:, None], np.ones((len(reward), 1), bool), 1.0, log_ratio)
    return weight_facts(diagnose(steps))


def _worst(places: list[dict[str, float | None]]) -> dict[str, float | None]:
    """Return the worst fact of all positions: the smallest effective sample size, and the largest of the others."""
    pick: dict[str, Callable[[list[float]], float]] = {"ess": min}
    return {name: pick.get(name, max)([float(each[name] or 0.0) for each in places]) for name in places[0]}


def _signed_facts(weight: Array) -> dict[str, float | None]:
    """Return facts of weights that may be negative, whose effective sample size has no other meaning."""
    error = weight.std(ddof=1) / np.sqrt(len(weight)) if len(weight) > 1 else np.inf
    absolute = np.abs(weight)
    return {
        "ess": float(absolute.sum() ** 2 / max((weight**2).sum(), 1e-300)),
        "share": float(absolute.max() / max(absolute.sum(), 1e-300)),
        "mean_error": float(abs(weight.mean() - 1) / max(error, 1e-9)),
    }


def _size(slates: Slates) -> dict[str, float | None]:
    clusters = None if slates.clusters is None else float(len(np.unique(slates.clusters)))
    return {"episodes": float(len(slates.item)), "clusters": clusters}
