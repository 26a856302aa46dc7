"""The part of the data report that concerns an evaluation: facts of the logs, copies, and clusters of episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from birl.dataset.replay_buffer import ReplayBuffer
from birl.ope.audit.checks import (
    check_actions,
    check_ends,
    check_independence,
    check_leakage,
    check_observations,
    check_order,
    check_returns,
)
from birl.ope.audit.model_checks import check_propensities, fit_behaviour
from birl.ope.audit.scan import scan
from birl.types import Array

_OWN = ("episodes", "clusters", "censored", "no_propensities", "certain")
"""Facts that an evaluation computes itself, for its horizon and its propensities."""
_LEARNING = ("constant_columns", "copied_columns", "scale_ratio", "part_auc", "constant_actions", "propensity_floor")
"""Facts that concern learning, or that an evaluation measures in another way."""


@dataclass(frozen=True, eq=False)
class LogAudit:
    """What an evaluation must know about its logs.

    Attributes:
        copy: whether an episode is a copy of an earlier one, bool ``[E]``.
        cluster: cluster of each episode, ``[E]``; ``None`` if none is known.
        facts: facts for `birl.ope.check_limits`, as in `birl.ope.report_data`.
        where: columns or actions that a fact is about, by its name.
    """

    copy: Array
    cluster: Array | None
    facts: Mapping[str, float | None]
    where: Mapping[str, str]


def audit(dataset: ReplayBuffer, logged: bool, seed: int = 0) -> LogAudit:
    """Run the checks of `birl.ope.report_data` that concern evaluations; again only after a write.

    Args:
        dataset: the episodes.
        logged: whether the logged propensities are used, and therefore checked.
        seed: random seed of the sample and the models.
    """
    return dataset.storage.cached(f"audit {logged} {seed}", lambda: _audit(dataset, logged, seed))


def _audit(dataset: ReplayBuffer, logged: bool, seed: int) -> LogAudit:
    names = None if dataset.logs is None else dataset.logs.numbers
    logs = scan(dataset, gamma=1.0, names=names, seed=seed)
    checks = [check_ends(logs), check_order(logs, {}), check_independence(logs), check_returns(logs, 1.0, ())]
    checks += [check_observations(logs, {}), check_leakage(logs), check_actions(logs, ())]
    if logged and "log_propensity" in logs.sample.extra:
        checks.append(check_propensities(logs, fit_behaviour(logs, seed), ()))
    left_out = {*_OWN, *_LEARNING}
    facts = {name: value for check in checks for name, value in check.facts.items() if name not in left_out}
    where = {name: text for check in checks for name, text in check.where.items() if text}
    return LogAudit(logs.dependence.copy, logs.clusters, facts, where)
