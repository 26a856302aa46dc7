"""A dataset as arrays for estimators: padded episodes, propensities of their actions, and parts for cross-fitting."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np
import torch

from birl.acting.sequence_context import StatefulTransformerWrapper
from birl.algorithm.policy_api import PolicyAPI
from birl.checks import check
from birl.dataset.base import ReplayBufferBase
from birl.dataset.episode import Episode
from birl.dataset.log_record import LogRecord, check_same_columns
from birl.errors import ConfigError, DataError, EmptyDataError, ShapeError, UnsupportedError
from birl.ope.audit.evaluated import audit
from birl.ope.change_points import count_changing_actions
from birl.ope.diagnostics import Diagnostics, calibration_error, diagnose, unsupported_mass
from birl.ope.episode_columns import as_buffer, column, first_values
from birl.ope.estimators import folds
from birl.ope.evaluated_policies import (
    EvaluatedPolicy,
    HistoryPolicy,
    LogProbability,
    check_probabilities,
    log_probability_of,
)
from birl.ope.importance_weights import Trajectories, log_ratios, padded
from birl.ope.linear_models import (
    MAX_FEATURES,
    StepFeatures,
    action_features,
    cross_fitted_action_values,
    cross_fitted_q,
    estimate_propensities,
    quadratic_features,
)
from birl.ope.marginalized_ratios import marginal_ratios
from birl.ope.pending_rewards import find_too_new
from birl.ope.plain_policies import Names, bind
from birl.ope.policies import StochasticPolicy
from birl.ope.support_bounds import RewardRange, Support, describe_region
from birl.seeding import preserve_random_state
from birl.spaces import Continuous, Discrete
from birl.spaces.conversion import order_numbered_columns, to_array
from birl.spaces.observations import merge_columns
from birl.types import MASK, Array, Tree, tree_leaves, tree_map

PARTS: Final = 3
SAME_RATIO: Final = 5e-7
"""Log-ratios nearer to 0 are 0: logs may hold float32."""
ROUNDED_RATIO: Final = 2e-4
"""The same limit if no log-ratio is larger: the policy is the logging policy, whose propensities were rounded."""
MIN_PROPENSITY: Final = 1e-3
"""Logs do not support an action with a smaller propensity."""
MIN_TAKEN: Final = 10
"""Logs do not support an action that was taken in fewer steps: neither weights nor models can tell its effect."""
MAX_MARGINAL_FEATURES: Final = 100
"""Largest number of features for ratios of visits."""
COMPARED_STEPS: Final = 2000
"""Number of steps at which policies are compared with each other."""
ACTION_SAMPLES: Final = 16
"""Number of continuous actions that are sampled at each step for the value of a policy."""
_CONSTANT: Final = 1e-9
"""Actions with a smaller standard deviation are not scaled."""
_PROPENSITY_TOLERANCE: Final = 0.02
_NEGLIGIBLE_DISCOUNT: Final = 0.01
"""With smaller discounts, rewards after a truncation do not matter."""
_TIME_TOLERANCE: Final = 0.1
"""How far the time between two steps may be from one unit."""
_BATCH: Final = 20_000
_MOST_REGIONS: Final = 5
"""Largest number of actions whose regions without support are described."""


@dataclass(frozen=True, eq=False)
class LoggedEpisodes:
    """Logged episodes, truncated at a horizon. The N steps of all episodes are stored one episode after the other.

    Attributes:
        observations: observations as a tree of arrays ``[N, ...]``.
        action: one discrete action ``[N]``, counted from 0, or other actions ``[N, A]``.
        reward: rewards, ``[n, T]``.
        mask: which steps exist, ``[n, T]``.
        gamma: discount of a step.
        reward_range: range of the rewards of a step.
        n_actions: number of discrete actions; 0 for other actions.
        start: number of the first discrete action in the data and for policies; here actions count from 0.
        log_propensity: log-propensities of the logged actions, ``[N]``; ``None`` if unknown.
        propensities: propensities of all actions, ``[N, A]``; ``None`` if unknown.
        cluster: cluster of each episode, ``[n]``; ``None`` if unknown.
        time: time of each episode's first step, ``[n]``; ``None`` if unknown.
        dates: whether times are seconds since 1970.
        facts: figures that do not depend on a policy, for `birl.ope.check_limits`, with those of the data report.
        x: features ``[N, D]``; ``None`` if there are too many.
        part: part of each episode for cross-fitting, ``[n]``.
        densities: whether propensities are densities.
        behaviour: source of the propensities: ``"logged"``, ``"estimated"`` or ``"given"``.
        extra: extra columns ``[N, …]`` that were asked for, by name.
        outcomes: other rewards ``[n, T]`` that policies are evaluated by, by name.
        names: names of columns and actions, which decision tables, classifiers and messages use.
        where: columns or actions that a fact is about, by its name.
    """

    observations: Tree
    action: Array
    reward: Array
    mask: Array
    gamma: float
    reward_range: RewardRange
    n_actions: int
    start: int
    log_propensity: Array | None
    propensities: Array | None
    cluster: Array | None
    time: Array | None
    facts: dict[str, float | None]
    x: Array | None
    part: Array
    densities: bool
    behaviour: str
    extra: Mapping[str, Array] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    outcomes: Mapping[str, Array] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)
    dates: bool = False

    @property
    def step_part(self) -> Array:
        """Part of each step's episode, ``[N]``."""
        return np.repeat(self.part, self.mask.sum(1))

    @property
    def first_steps(self) -> Array:
        """Index of the first step of each episode, ``[n]``."""
        return np.cumsum(self.mask.sum(1)) - self.mask.sum(1)

    def pad(self, steps: Array) -> Array:
        """Return a column ``[N]`` of steps as ``[n, T]``, 0 after the end of an episode."""
        out = np.zeros(self.mask.shape)
        out[self.mask] = steps
        return out

    def subset(self, episodes: Array) -> LoggedEpisodes:
        """Return some of the episodes.

        Args:
            episodes: their indices ``[k]`` in ascending order.
        """
        rows = np.repeat(np.isin(np.arange(len(self.mask)), episodes), self.mask.sum(1))

        def steps(column: Array | None) -> Array | None:
            return None if column is None else column[rows]

        return replace(
            self,
            observations=tree_map(lambda leaf: leaf[rows], self.observations),
            action=self.action[rows],
            reward=self.reward[episodes],
            mask=self.mask[episodes],
            log_propensity=steps(self.log_propensity),
            propensities=steps(self.propensities),
            cluster=None if self.cluster is None else self.cluster[episodes],
            time=None if self.time is None else self.time[episodes],
            x=steps(self.x),
            part=self.part[episodes],
            extra={name: column[rows] for name, column in self.extra.items()},
            outcomes={name: reward[episodes] for name, reward in self.outcomes.items()},
        )

    def steps(self) -> StepFeatures:
        """Return the steps in the form that linear models read.

        Raises:
            UnsupportedError: if these data have no linear model.
        """
        if self.x is None or not self.n_actions:
            raise UnsupportedError(
                "these data have no linear model, which takes one discrete action and observations with at most "
                f"{MAX_FEATURES} features: use birl.ope.FQE"
            )
        return self._step_features(self.x)

    def _step_features(self, x: Array) -> StepFeatures:
        step = np.broadcast_to(np.arange(self.mask.shape[1]), self.mask.shape)
        last = self.mask & ~np.append(self.mask[:, 1:], np.zeros((len(self.mask), 1), bool), 1)
        reward, step, last = (column[self.mask] for column in (self.reward, step, last))
        return StepFeatures(x, self.action, reward, step, last, self.gamma)

    def unsupported_mass(self, probabilities: Array, unsupported: Array | None) -> float:
        """Return the probability by which a policy exceeds the logging policy on actions that are rare in the logs.

        If the propensities of all actions are unknown, the frequencies of the actions stand for them. The total
        propensity of the actions that were never taken is then estimated by the frequency of those that were taken once
        (Good 1953, Biometrika 40:237-264). Actions that are known to have no propensity do not count:
        `birl.ope.support_bounds` bounds what they earn.

        Args:
            probabilities: the policy's `probabilities` of these steps.
            unsupported: the actions that `unsupported` finds for them.
        """
        taken = np.bincount(self.action, minlength=self.n_actions)
        rare = taken < MIN_TAKEN
        if self.propensities is not None and unsupported is not None:
            excess, steps = np.maximum(probabilities - self.propensities, 0), np.ones((len(probabilities), 1), bool)
            return float(unsupported_mass(excess[:, None], ~(rare & ~unsupported)[:, None], steps))
        mean, frequency = probabilities.mean(0), taken / len(probabilities)
        lost = np.zeros(self.n_actions) if unsupported is None else (probabilities * unsupported).mean(0)
        never = (mean - lost)[taken == 0].sum() - frequency[taken == 1].sum()
        return float(max(never, (mean - lost)[rare].sum() - frequency[rare].sum(), 0.0))

    def unsupported(self, probabilities: Array) -> Array | None:
        """Return which actions the logging policy never takes at each step, bool ``[N, A]``.

        "Never" means less than `MIN_PROPENSITY` times as often as the policy, so an action that both policies rarely
        take does not count. The propensity of the logged action alone shows only whether all others together have one.
        The result is ``None`` without propensities; see `support_known`.

        Args:
            probabilities: the policy's `probabilities` of these steps.
        """
        if self.propensities is not None:
            return self.propensities < MIN_PROPENSITY * probabilities
        if self.log_propensity is None:
            return None
        logging, steps = np.exp(self.log_propensity), np.arange(len(probabilities))
        policy = probabilities[steps, self.action]
        found = np.repeat((1 - logging < MIN_PROPENSITY * (1 - policy))[:, None], self.n_actions, 1)
        found[steps, self.action] = logging < MIN_PROPENSITY * policy
        return found & (probabilities > 0)

    @property
    def support_known(self) -> bool:
        """Whether the propensity of every action is known, so that `unsupported` misses none.

        With two actions, the propensity of the logged action determines that of the other. With more actions, it
        determines only the sum of the others.
        """
        return self.propensities is not None or (self.log_propensity is not None and self.n_actions == 2)

    def regions(self, probabilities: Array, unsupported: Array) -> tuple[str, ...]:
        """Describe where actions of a policy are not supported, those that it takes most often first."""
        table = [np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in tree_leaves(self.observations)]
        columns = np.concatenate(table, 1)
        names: Sequence[str] = self.names.columns.get("observation", ())
        if len(names) != columns.shape[1]:
            names = [f"x[{k}]" for k in range(columns.shape[1])]
        mass, found = (probabilities * unsupported).mean(0), []
        for action in np.argsort(-mass, kind="stable")[:_MOST_REGIONS]:
            if mass[action] > 0:
                where = describe_region(unsupported[:, action], columns, names)
                place = "in some states, which no single column tells from others" if where is None else where
                found.append(f"the logs never take action {self.names.actions[action]} {place}")
        return tuple(found)

    def probabilities(self, policy: EvaluatedPolicy) -> Array:
        """Return a policy's probabilities of all discrete actions at each step, ``[N, A]``."""
        policy = bind(policy, self.names)
        first = np.zeros(self.mask.shape, bool)
        first[:, 0] = True
        logged = self.observations, self.action, self.reward[self.mask], first[self.mask]
        return _probabilities(policy, *logged, self.n_actions, self.start)

    def ratios(self, policy: EvaluatedPolicy, probabilities: Array | None) -> Array | None:
        """Return the log-ratios of a policy at the logged actions, ``[n, T]``; ``None`` without propensities.

        Args:
            policy: see `view`.
            probabilities: its `probabilities`, for one discrete action.
        """
        if probabilities is None:
            if isinstance(policy, HistoryPolicy):
                raise UnsupportedError(
                    f"the actions of {type(policy).__name__} depend on earlier steps, and such policies have known "
                    "probabilities for one discrete action only, but no densities: evaluate it in an environment"
                )
            target = _in_batches(log_probability_of(policy), self.observations, self.action)
        else:
            taken = probabilities[np.arange(len(probabilities)), self.action]
            target = np.where(taken > 0, np.log(np.maximum(taken, 1e-300)), -np.inf)
        if self.log_propensity is None:
            return None
        logged = self.pad(self.log_propensity)
        ratio = log_ratios(self.pad(target), logged, self.mask, densities=self.densities)
        same = SAME_RATIO if (np.abs(ratio) >= ROUNDED_RATIO).any() else ROUNDED_RATIO
        return np.where(np.abs(ratio) < same, 0.0, ratio)

    def _action_values(self, policy: StochasticPolicy) -> tuple[Array, Array] | tuple[None, None]:
        """Return ``Q`` of the logged continuous actions and ``V`` of a policy, ``[n, T]``; ``None`` without a model.

        The expectation over the policy's actions is the mean of `ACTION_SAMPLES` samples.
        """
        if self.x is None:
            return None, None
        middle, spread = self.action.mean(0, dtype=np.float64), self.action.std(0, dtype=np.float64)
        spread = np.where(spread > _CONSTANT, spread, 1.0)
        action = (self.action - middle) / spread
        mean, squared = np.zeros(action.shape), np.zeros(action.shape)
        with preserve_random_state():
            torch.manual_seed(0)
            for _ in range(ACTION_SAMPLES):
                sample = (_in_batches(lambda x, _: policy.predict(x), self.observations) - middle) / spread
                mean, squared = mean + sample / ACTION_SAMPLES, squared + sample**2 / ACTION_SAMPLES
        x, expected = action_features(self.x, action, action**2), action_features(self.x, mean, squared)
        if x is None or expected is None:
            return None, None
        q, v = cross_fitted_action_values(self._step_features(x), expected, self.step_part)
        return self.pad(q), self.pad(v)

    def view(self, policy: EvaluatedPolicy) -> PolicyView:
        """Return importance ratios and values of a policy.

        Raises:
            ConfigError: if it has no ``action_probability``.
            UnsupportedError: if it is recurrent, or samples actions whose probability is unknown.
        """
        policy = bind(policy, self.names)
        markov = not isinstance(policy, HistoryPolicy)
        probabilities = self.probabilities(policy) if self.n_actions else None
        ratio = self.ratios(policy, probabilities)
        equal = ratio is not None and not ratio.any()  # the logging policy, whose propensities may be rounded
        found = None if probabilities is None else self.unsupported(probabilities)
        unsupported = None if equal else found
        if unsupported is not None and ratio is not None:
            taken = unsupported[np.arange(len(unsupported)), self.action]
            ratio = np.where(self.pad(taken) > 0, -np.inf, ratio)
        z = None
        if probabilities is not None and markov and self.x is not None:
            steps = self.steps()
            if steps.x.shape[1] <= MAX_MARGINAL_FEATURES:
                z = self.pad(marginal_ratios(steps, probabilities, self.step_part))
        facts: dict[str, float | None] = {}
        lost: Array | None = None
        regions: tuple[str, ...] = ()
        if probabilities is not None:
            facts["unsupported"] = self.unsupported_mass(probabilities, found)
            facts["no_support"] = 0.0 if equal else None
        if probabilities is not None and unsupported is not None:
            shares = self.pad((probabilities * unsupported).sum(-1).clip(0, 1))
            facts["no_support"] = float(1 - np.prod(1 - shares, 1).mean())
            if shares.any():
                lost, regions = shares, self.regions(probabilities, unsupported)
        compared = None if probabilities is None else probabilities[:: -(-len(probabilities) // COMPARED_STEPS)]

        def view_of(logs: LoggedEpisodes) -> PolicyView:
            q, v, v_logging, v_supported = logs._values(policy, probabilities, ratio, unsupported)
            trajectories = Trajectories(logs.reward, self.mask, self.gamma, ratio, q, v, z)
            support = None if lost is None else Support(lost, v_supported, regions)
            return PolicyView(trajectories, v_logging, facts, compared, markov, support)

        outcomes = {name: view_of(replace(self, reward=reward)) for name, reward in self.outcomes.items()}
        return replace(view_of(self), outcomes=outcomes)

    def _values(
        self, policy: EvaluatedPolicy, probabilities: Array | None, ratio: Array | None, unsupported: Array | None
    ) -> tuple[Array | None, Array | None, Array | None, Array | None]:
        """Return ``Q`` of the logged actions, ``V`` of the policy and of the logging policy, ``[n, T]``, if known.

        The last one is the part of the policy's ``V`` that belongs to supported actions.
        """
        if probabilities is not None and self.x is not None:
            q_all, value = cross_fitted_q(self.steps(), probabilities, self.step_part)
            v_logging = None if self.propensities is None else self.pad((self.propensities * q_all).sum(-1))
            v_supported = None if unsupported is None else self.pad((probabilities * ~unsupported * q_all).sum(-1))
            return self.pad(q_all[np.arange(len(q_all)), self.action]), self.pad(value), v_logging, v_supported
        if isinstance(policy, StochasticPolicy) and isinstance(policy.spec.actions, Continuous) and ratio is not None:
            return *self._action_values(policy), None, None
        return None, None, None, None


@dataclass(frozen=True, eq=False)
class PolicyView:
    """Logged episodes with the ratios and values of a policy.

    Attributes:
        trajectories: input of the estimators.
        v_logging: mean of the model's values under the logging policy, ``[n, T]``; ``None`` if unknown.
        facts: figures of the policy, for `birl.ope.check_limits`.
        action_probabilities: the policy's probabilities of all actions at up to `COMPARED_STEPS` steps, ``[k, A]``;
            ``None`` if actions are not one discrete action.
        markov: whether actions depend on the observation only, so that values are functions of it, too.
        outcomes: the same with the rewards of each of `LoggedEpisodes.outcomes`.
        support: which actions the logs do not support; ``None`` if they support all, or if it is unknown.
    """

    trajectories: Trajectories
    v_logging: Array | None
    facts: dict[str, float | None]
    action_probabilities: Array | None = None
    markov: bool = True
    support: Support | None = None
    outcomes: Mapping[str, PolicyView] = field(default_factory=dict)

    def subset(self, episodes: Array) -> PolicyView:
        """Return some of the episodes, given their indices ``[k]``; most facts remain those of all."""
        whole, support, facts = self.trajectories, self.support, self.facts

        def some(column: Array | None) -> Array | None:
            return None if column is None else column[episodes]

        trajectories = Trajectories(
            whole.reward[episodes],
            whole.mask[episodes],
            whole.gamma,
            *(some(column) for column in (whole.log_ratio, whole.q, whole.v, whole.z)),
        )
        if support is not None:
            support = Support(support.lost[episodes], some(support.v), support.regions)
            facts = {**facts, "no_support": float(1 - np.prod(1 - support.lost, 1).mean())}
        return replace(
            self,
            trajectories=trajectories,
            v_logging=some(self.v_logging),
            facts=facts,
            support=support if support is not None and support.lost.any() else None,
            outcomes={},
        )

    @cached_property
    def diagnostics(self) -> Diagnostics | None:
        """Diagnostics of the weights; ``None`` without propensities."""
        if self.trajectories.log_ratio is None:
            return None
        return diagnose(self.trajectories, None if self.support is None else self.support.lost)

    @property
    def differs(self) -> float | None:
        """Mean share of the logged steps in which the policy acts differently from the logging policy.

        The mean total variation distance ``E_b[max(0, 1 - rho)]``, from 0 to 1; ``None`` without propensities.
        """
        if self.trajectories.log_ratio is None:
            return None
        return float(-np.expm1(np.minimum(self.trajectories.log_ratio[self.trajectories.mask], 0)).mean())


def read_episodes(
    dataset: ReplayBufferBase,
    gamma: float,
    horizon: int | None,
    behaviour: str | EvaluatedPolicy = "logged",
    seed: int = 0,
    extra: Collection[str] = (),
    reward_range: tuple[float | None, float | None] | None = None,
) -> LoggedEpisodes:
    """Read the episodes of a dataset, and check them as `birl.ope.report_data` does; see `birl.ope.evaluate`.

    Copies of episodes are left out, and so are episodes that are too new; see `birl.ope.pending_rewards`. Episodes that
    begin as one customer's do are one cluster.

    Args:
        dataset, gamma, horizon, behaviour, seed, reward_range: see there.
        extra: names of extra columns to keep, if there are such.

    Raises:
        EmptyDataError: if there are fewer than 2 episodes.
        DataError: if only some steps have propensities.
    """
    check("gamma", gamma, float, low=0, high=1)
    check("horizon", horizon, int, low=1, optional=True)
    episodes = [episode for episode in dataset.episodes if len(episode.rewards)]
    if len(episodes) < 2:
        raise EmptyDataError(f"there are {len(episodes)} episodes with steps; an evaluation needs 2, and 30 to answer")
    checked = audit(as_buffer(dataset), isinstance(behaviour, str) and behaviour == "logged", seed)
    record: LogRecord | None = getattr(dataset, "logs", None)
    dates = record is not None and record.dates
    too_new = find_too_new(episodes, horizon, dates)
    counts: Array = ~checked.copy if too_new is None else ~checked.copy & ~too_new.episodes
    episodes = [episode for episode, count in zip(episodes, counts, strict=True) if count]
    limit = max(len(episode.rewards) for episode in episodes) if horizon is None else horizon
    info = dataset.dataset_info
    n_actions, start = (info.actions.size, info.actions.start) if isinstance(info.actions, Discrete) else (0, 0)
    reward, mask = padded([np.asarray(episode.rewards, np.float64).reshape(-1)[:limit] for episode in episodes])
    declared = (None, None) if record is None else (record.schema.reward.lower, record.schema.reward.upper)
    limits = RewardRange(*(declared if reward_range is None else reward_range))
    limits.check_rewards(reward, mask)
    rows = [tree_map(lambda leaf: leaf[:limit], episode.observations) for episode in episodes]
    observations = tree_map(lambda *leaves: np.concatenate(leaves), *rows)
    action = np.concatenate([episode.actions[:limit] for episode in episodes])
    action = action[:, 0].astype(np.int64) - start if n_actions else action
    cluster, time = first_values(episodes, "cluster"), first_values(episodes, "time")
    cluster = cluster if checked.cluster is None else checked.cluster[counts]
    groups = np.arange(len(episodes)) if cluster is None else cluster
    part = folds(groups, min(PARTS, len(np.unique(groups))), seed) if len(np.unique(groups)) > 1 else groups * 0
    x = quadratic_features(observations)
    facts = {**checked.facts, "episodes": float(len(episodes)), "too_new": None if too_new is None else too_new.share}
    if cluster is not None:
        facts["clusters"] = float(len(np.unique(cluster)))
    facts["censored"] = float(np.mean([_is_censored(episode, limit, gamma) for episode in episodes]))
    gaps = column(episodes, "time_gap", limit)
    if gaps is not None and gamma < 1:
        facts["uneven_steps"] = float(np.mean(np.abs(gaps - 1) > _TIME_TOLERANCE))
    step_part, names = np.repeat(part, mask.sum(1)), Names.of(dataset)
    behaviour = behaviour if isinstance(behaviour, str) else bind(behaviour, names)
    logged, propensities = _propensities(
        behaviour, episodes, limit, observations, action, n_actions, start, x, step_part
    )
    if logged is None:
        facts["no_propensities"] = 1.0
    elif n_actions:
        facts["certain"] = float(np.mean(logged > -1e-9))
    if propensities is not None and behaviour != "logged":
        facts |= _estimated_facts(propensities, action, mask.sum(1), time, cluster)
    return LoggedEpisodes(
        observations=observations,
        action=action,
        reward=reward,
        mask=mask,
        gamma=float(gamma),
        reward_range=limits,
        n_actions=n_actions,
        start=start,
        log_propensity=logged,
        propensities=propensities,
        cluster=cluster,
        time=time,
        facts=facts,
        x=x,
        part=part,
        densities=not isinstance(info.actions, Discrete),
        behaviour=behaviour if isinstance(behaviour, str) else "given",
        extra={name: kept for name in extra if (kept := column(episodes, name, limit)) is not None},
        names=names,
        where={**checked.where, **({} if too_new is None else {"too_new": too_new.text})},
        dates=dates,
    )


def _estimated_facts(
    propensities: Array, action: Array, sizes: Array, time: Array | None, cluster: Array | None
) -> dict[str, float | None]:
    """Return facts of propensities that were not logged: their calibration, and whether the logging policy changed."""
    changing = None if time is None else float(count_changing_actions(propensities, action, sizes, time, cluster))
    return {"calibration_error": calibration_error(propensities, action), "changing_actions": changing}


def _is_censored(episode: Episode, limit: int, gamma: float) -> bool:
    """Return whether rewards after the last logged step matter; estimators assume that they are 0."""
    open_ended = not episode.terminated or bool(np.any((episode.extra or {}).get("censored", False)))
    return open_ended and len(episode.rewards) < limit and gamma ** len(episode.rewards) > _NEGLIGIBLE_DISCOUNT


def check_columns(policies: Mapping[str, EvaluatedPolicy | str], dataset: ReplayBufferBase) -> None:
    """Check that a policy learned from columns like those of the dataset.

    Raises:
        ConfigError: if the columns of logs were encoded differently.
        ShapeError: if the columns of tables have other names, or another order.
    """
    for name, policy in policies.items():
        if isinstance(policy, PolicyAPI | StatefulTransformerWrapper):
            check_same_columns(policy.logs, getattr(dataset, "logs", None), name, "the dataset")
            merge_columns(policy.columns, dataset.dataset_info.columns, name, "the dataset")


def _propensities(
    behaviour: str | EvaluatedPolicy,
    episodes: Sequence[Episode],
    limit: int,
    observations: Tree,
    action: Array,
    n_actions: int,
    start: int,
    x: Array | None,
    part: Array,
) -> tuple[Array | None, Array | None]:
    """Return log-propensities of the logged actions, and propensities of all actions; ``None`` if unknown."""
    if behaviour == "logged":
        logged, every = column(episodes, "log_propensity", limit), column(episodes, "propensities", limit)
        logged = None if logged is None else logged.reshape(-1).astype(np.float64)
        every = None if every is None or not n_actions else every.astype(np.float64)
        if every is not None:
            check_probabilities(every, n_actions, "propensities", 1e-3)
        if logged is not None and every is not None:
            _check_equal(logged, every[np.arange(len(every)), action])
        return logged, every
    if not isinstance(behaviour, str):
        if not n_actions:
            return _in_batches(log_probability_of(behaviour), observations, action), None
        rewards = [np.asarray(episode.rewards, np.float64).reshape(-1)[:limit] for episode in episodes]
        first = np.concatenate([np.arange(len(each)) == 0 for each in rewards])
        logged_steps = observations, action, np.concatenate(rewards), first
        propensities = _probabilities(behaviour, *logged_steps, n_actions, start)
    elif behaviour != "estimated":
        raise ConfigError(f"behaviour is {behaviour!r:.60}; it must be 'logged', 'estimated' or a policy")
    elif not n_actions or x is None:
        raise UnsupportedError(
            "propensities can be estimated only for one discrete action and small observations: log them, or give the "
            "logging policy as behaviour="
        )
    else:
        mask = observations.get(MASK) if isinstance(observations, dict) else None
        allowed = None if mask is None else np.asarray(mask, bool)
        propensities = estimate_propensities(x, action, part, n_actions, allowed)
    taken = propensities[np.arange(len(propensities)), action]
    if (taken <= 0).any():
        step = int((taken <= 0).argmax())
        raise DataError(
            f"the behaviour policy gives the logged action of step {step} the probability 0; it must be above 0: give "
            "the policy that acted"
        )
    return np.log(taken), propensities


def _probabilities(
    policy: EvaluatedPolicy,
    observations: Tree,
    action: Array,
    reward: Array,
    is_first: Array,
    n_actions: int,
    start: int,
) -> Array:
    """Return a policy's probabilities of all discrete actions at logged steps, ``[N, A]``; see `HistoryPolicy`."""
    if isinstance(policy, HistoryPolicy):
        copies = tree_map(np.copy, observations), action + start, reward.copy(), is_first.copy()
        name = "history_log_probability(observations, actions, rewards, is_first)"
        values = order_numbered_columns(name, policy.history_log_probability(*copies), range(start, start + n_actions))
        given = to_array(name, values).astype(np.float64)
        if len(given) != len(action):
            raise ShapeError(f"{name} has the shape {given.shape}; it must be {(len(action), n_actions)}")
    else:
        name, given = "action_probability(x)", _in_batches(log_probability_of(policy, n_actions, start), observations)
    probabilities = np.exp(given)
    check_probabilities(probabilities, n_actions, name)
    return probabilities


def _in_batches(log_probability: LogProbability, x: Tree, action: Array | None = None) -> Array:
    parts = []
    for begin in range(0, len(next(tree_leaves(x))), _BATCH):
        rows = slice(begin, begin + _BATCH)
        batch = tree_map(lambda leaf, rows=rows: leaf[rows].copy(), x)  # a user's policy may write to it
        parts.append(log_probability(batch, None if action is None else action[rows].copy()))
    return np.concatenate(parts)


def _check_equal(logged: Array, taken: Array) -> None:
    """Check that two columns give the logged actions the same probability, up to rounding."""
    off = ~(np.abs(np.exp(logged) - taken) <= _PROPENSITY_TOLERANCE * taken)
    if off.any():
        row = int(off.argmax())
        raise DataError(
            f"the action of step {row} has the probability {np.exp(logged[row]):.6g} by log_propensity and "
            f"{taken[row]:.6g} by propensities; both must be equal: leave out the wrong column"
        )
