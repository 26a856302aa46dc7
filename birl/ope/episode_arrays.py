"""A dataset as estimators read it: padded episodes, the propensities of their actions, and parts to fit models on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from birl.acting.built_policy import BuiltPolicy
from birl.algorithm.policy_api import PolicyAPI
from birl.checks import check
from birl.dataset.log_record import check_same_columns
from birl.errors import ConfigError, DataError, EmptyDataError, ShapeError, UnsupportedError
from birl.models import is_recurrent
from birl.ope.diagnostics import calibration_error, unsupported_mass
from birl.ope.estimators import folds
from birl.ope.importance_weights import Trajectories, log_ratios, padded
from birl.ope.linear_models import MAX_FEATURES, StepFeatures, cross_fitted_q, estimate_propensities, quadratic_features
from birl.ope.marginalized_ratios import marginal_ratios
from birl.types import MASK, ActionSpace, Array, Tree, tree_leaves, tree_map

PARTS: Final = 3
SAME: Final = 5e-7
ROUNDED: Final = 2e-4  # where no ratio is further from 1, the policy is the logger, whose propensities were rounded
_APART: Final = 0.02
"""Logarithms of ratios that are nearer to 0 are 0: logs may hold float32."""
SUPPORTED: Final = 1e-3
"""The least propensity of an action that logs hold."""
TAKEN: Final = 10
"""How often logs must have an action to hold it: of fewer steps neither weights nor models know what it leads to."""
MARGINAL: Final = 100
"""Features that ratios of visits may have."""
COMPARED: Final = 2000
"""Steps at which policies are compared with each other."""
_SPENT: Final = 0.01
"""Discounts below this leave nothing of what comes after a cut."""
_UNEVEN: Final = 0.1
"""How far the time to the next step may be from one unit."""
_AT_ONCE: Final = 20_000


@runtime_checkable
class TellsProbabilities(Protocol):
    """A policy that can be evaluated: an algorithm, a policy of `birl.ope`, or an object of one's own."""

    def action_probability(self, x: Any, action: Any = None) -> Any:
        """Of actions ``[B, ...]`` for observations ``[B, ...]``: ``[B]``; of every choice ``[B, A]`` if ``None``."""


@dataclass(frozen=True, eq=False)
class Logged:
    """Logged episodes, cut at a horizon. N are the steps of all, one episode after the other.

    Attributes:
        observations: tree of arrays ``[N, ...]``.
        action: ``[N]`` of one choice, else ``[N, A]``.
        reward: ``[n, T]``.
        mask: which steps happened, ``[n, T]``.
        gamma: discount of a step.
        choices: number of actions; 0 if they are no choice of one.
        log_propensity: of the logged actions, ``[N]``; ``None`` if nothing is known of them.
        propensities: of every action, ``[N, A]``, if known.
        cluster: of each episode, ``[n]``, if known.
        time: of each episode's first step, ``[n]``, if known.
        facts: figures that do not depend on a policy, for `birl.ope.judge`.
        x: features ``[N, D]``, if there are not too many.
        part: of each episode, ``[n]``.
        densities: whether propensities are densities.
    """

    observations: Tree
    action: Array
    reward: Array
    mask: Array
    gamma: float
    choices: int
    log_propensity: Array | None
    propensities: Array | None
    cluster: Array | None
    time: Array | None
    facts: dict[str, float | None]
    x: Array | None
    part: Array
    densities: bool

    def pad(self, steps: Array) -> Array:
        """Of steps ``[N]`` the array ``[n, T]``, 0 after episodes' ends."""
        out = np.zeros(self.mask.shape)
        out[self.mask] = steps
        return out

    def of_episodes(self, chosen: Array) -> Logged:
        """Some of the episodes, ``[k]`` of their numbers in ascending order."""
        rows = np.repeat(np.isin(np.arange(len(self.mask)), chosen), self.mask.sum(1))

        def steps(column: Array | None) -> Array | None:
            return None if column is None else column[rows]

        return replace(
            self,
            observations=tree_map(lambda leaf: leaf[rows], self.observations),
            action=self.action[rows],
            reward=self.reward[chosen],
            mask=self.mask[chosen],
            log_propensity=steps(self.log_propensity),
            propensities=steps(self.propensities),
            cluster=None if self.cluster is None else self.cluster[chosen],
            time=None if self.time is None else self.time[chosen],
            x=steps(self.x),
            part=self.part[chosen],
        )

    def steps(self) -> StepFeatures:
        """The steps as linear models read them.

        Raises:
            UnsupportedError: if there is no such model.
        """
        if self.x is None or not self.choices:
            raise UnsupportedError(
                f"linear models are of one choice an observation of at most {MAX_FEATURES} features: use birl.ope.FQE"
            )
        step = np.broadcast_to(np.arange(self.mask.shape[1]), self.mask.shape)
        last = self.mask & ~np.append(self.mask[:, 1:], np.zeros((len(self.mask), 1), bool), 1)
        reward, at, ends = (column[self.mask] for column in (self.reward, step, last))
        return StepFeatures(self.x, self.action, reward, at, ends, self.gamma)

    def unsupported(self, every: Array) -> float:
        """Share of a policy's probability that is beyond that of the logger, on choices that the logs hardly hold.

        Where the logger's is not known, it is their share of the steps; of those that were never taken together, that
        of those taken once (Good 1953, Biometrika 40:237-264). Propensities of the logged actions alone tell of the
        others, too, where they leave them hardly anything.

        Args:
            every: its `probabilities` of these steps.
        """
        taken = np.bincount(self.action, minlength=self.choices)
        rare = taken < TAKEN
        if self.propensities is not None:
            rare = rare | (self.propensities <= SUPPORTED)
            beyond, steps = np.maximum(every - self.propensities, 0), np.ones((len(every), 1), bool)
            return float(unsupported_mass(beyond[:, None], ~rare[:, None], steps))
        mean, share = every.mean(0), taken / len(every)
        never = mean[taken == 0].sum() - share[taken == 1].sum()
        left_over = 0.0
        if (known := self._known_chances(every)) is not None:
            policy, logger = known
            left_over = float((np.maximum(policy - logger, 0) * (logger <= SUPPORTED)).sum(-1).mean())
        return float(max(never, mean[rare].sum() - share[rare].sum(), left_over, 0.0))

    def no_support(self, every: Array) -> float | None:
        """Share of a policy's episodes with an action that the logger never takes there; ``None`` without propensities.

        "Never" means less than `SUPPORTED` times as often as the policy, so that an action that both hardly ever take
        does not count. States are those that the logger visited. See `support_known`.

        Args:
            every: its `probabilities` of these steps.
        """
        if (known := self._known_chances(every)) is None:
            return None
        policy, logger = known
        lost = (policy * (logger < SUPPORTED * policy)).sum(-1).clip(0, 1)
        return float(1 - np.prod(1 - self.pad(lost), 1).mean())

    @property
    def support_known(self) -> bool:
        """Whether the logger's probability of every action is known, so that `no_support` misses none.

        With two actions, the propensity of the logged one gives that of the other. With more, it gives the sum of the
        others, which is 0 only where the logger takes none of them.
        """
        return self.propensities is not None or (self.log_propensity is not None and self.choices == 2)

    def _known_chances(self, every: Array) -> tuple[Array, Array] | None:
        """The policy's and the logger's probabilities, ``[N, K]``: of every action, or of the logged one and the rest.

        ``None`` if the logger's are not known.
        """
        if self.propensities is not None:
            return every, self.propensities
        if self.log_propensity is None:
            return None
        policy, logger = every[np.arange(len(every)), self.action], np.exp(self.log_propensity)
        return np.stack([policy, 1 - policy], -1), np.stack([logger, 1 - logger], -1)

    def probabilities(self, policy: Any) -> Array:
        """Of all choices at each step, ``[N, A]``."""
        every = np.exp(_in_parts(log_probability_of(policy), self.observations))
        _check_vector(every, self.choices)
        return every

    def ratios(self, policy: Any, every: Array | None) -> Array | None:
        """Logarithms of the ratios of a policy's logged actions, ``[n, T]``; ``None`` without propensities.

        Args:
            policy: see `seen_from`.
            every: its `probabilities`, where actions are one choice.
        """
        if every is None:
            target = _in_parts(log_probability_of(policy), self.observations, self.action)
        else:
            taken = every[np.arange(len(every)), self.action]
            target = np.where(taken > 0, np.log(np.maximum(taken, 1e-300)), -np.inf)
        if self.log_propensity is None:
            return None
        logged = self.pad(self.log_propensity)
        ratio = log_ratios(self.pad(target), logged, self.mask, densities=self.densities)
        same = SAME if (np.abs(ratio) >= ROUNDED).any() else ROUNDED
        return np.where(np.abs(ratio) < same, 0.0, ratio)

    def seen_from(self, policy: Any) -> View:
        """Ratios and values of a policy.

        Raises:
            ConfigError: if it tells no probabilities.
            UnsupportedError: if it has a memory, or draws in a way that has no probabilities.
        """
        every = self.probabilities(policy) if self.choices else None
        ratio = self.ratios(policy, every)
        q = v = z = v_logged = None
        if every is not None and self.x is not None:
            steps, part = self.steps(), np.repeat(self.part, self.mask.sum(1))
            all_q, value = cross_fitted_q(steps, every, part)
            z = None if steps.x.shape[1] > MARGINAL else self.pad(marginal_ratios(steps, every, part))
            q, v = self.pad(all_q[np.arange(len(all_q)), self.action]), self.pad(value)
            if self.propensities is not None:
                v_logged = self.pad((self.propensities * all_q).sum(-1))
        of = Trajectories(self.reward, self.mask, self.gamma, ratio, q, v, z)
        facts: dict[str, float | None] = {}
        if every is not None:
            facts["unsupported"] = self.unsupported(every)
            alike = ratio is not None and not ratio.any()  # it is the logger, whose propensities may have been rounded
            facts["no_support"] = 0.0 if alike else self.no_support(every)
        some = None if every is None else every[:: -(-len(every) // COMPARED)]
        return View(of, v_logged, facts, some)


@dataclass(frozen=True, eq=False)
class View:
    """Logs, seen from a policy.

    Attributes:
        of: what estimators take.
        v_logged: mean of the model's values under the policy that logged, ``[n, T]``, if that is known.
        facts: figures of the policy.
        chances: its probabilities of all choices at up to `COMPARED` steps, ``[k, A]``; ``None`` of quantities.
    """

    of: Trajectories
    v_logged: Array | None
    facts: dict[str, float | None]
    chances: Array | None = None

    @property
    def differs(self) -> float | None:
        """In what share of the logged steps the policy does something else than the one that logged.

        The mean distance in total variation ``E_b[max(0, 1 - rho)]``, from 0 to 1; ``None`` without propensities.
        """
        if self.of.log_ratio is None:
            return None
        return float(-np.expm1(np.minimum(self.of.log_ratio[self.of.mask], 0)).mean())


def read(dataset: Any, gamma: float, horizon: int | None, behaviour: Any = "logged", seed: int = 0) -> Logged:
    """Read a dataset; see `birl.ope.evaluate`.

    Raises:
        EmptyDataError: if there is no episode.
        DataError: if propensities are not known for all steps.
    """
    check("gamma", gamma, float, low=0, high=1)
    check("horizon", horizon, int, low=1, optional=True)
    episodes = [each for each in dataset.episodes if len(each.rewards)]
    if len(episodes) < 2:
        raise EmptyDataError(f"there are {len(episodes)} episodes with steps; an evaluation needs 2, and 30 to answer")
    cut = max(len(each.rewards) for each in episodes) if horizon is None else horizon
    info = dataset.dataset_info
    choices = int(info.action_size) if info.action_space is ActionSpace.DISCRETE else 0
    reward, mask = padded([np.asarray(each.rewards, np.float64).reshape(-1)[:cut] for each in episodes])
    rows = [tree_map(lambda leaf: leaf[:cut], each.observations) for each in episodes]
    observations = tree_map(lambda *leaves: np.concatenate(leaves), *rows)
    action = np.concatenate([each.actions[:cut] for each in episodes])
    action = action[:, 0].astype(np.int64) if choices else action
    cluster, time = _firsts(episodes, "cluster"), _firsts(episodes, "time")
    groups = np.arange(len(episodes)) if cluster is None else cluster
    part = folds(groups, min(PARTS, len(np.unique(groups))), seed) if len(np.unique(groups)) > 1 else groups * 0
    x = quadratic_features(observations)
    facts: dict[str, float | None] = {"episodes": float(len(episodes))}
    if cluster is not None:
        facts["clusters"] = float(len(np.unique(cluster)))
    # After an end rewards count as none, which is so after terminations alone.
    marked = (not each.terminated or np.any((each.extra or {}).get("censored", False)) for each in episodes)
    short = (len(each.rewards) < cut and gamma ** len(each.rewards) > _SPENT for each in episodes)
    facts["censored"] = float(np.mean([a and b for a, b in zip(marked, short, strict=True)]))
    gaps = _column(episodes, "time_gap", cut)
    if gaps is not None and gamma < 1:
        facts["uneven_steps"] = float(np.mean(np.abs(gaps - 1) > _UNEVEN))
    steps = np.repeat(part, mask.sum(1))
    logged, vector = _propensities(behaviour, episodes, cut, observations, action, choices, x, steps)
    if logged is None:
        facts["no_propensities"] = 1.0
    elif choices:
        facts["certain"] = float(np.mean(logged > -1e-9))
    if vector is not None and not _is(behaviour, "logged"):
        facts["calibration_error"] = calibration_error(vector, action)
    densities = info.action_space is not ActionSpace.DISCRETE
    arrays = (observations, action, reward, mask, float(gamma), choices, logged, vector, cluster, time, facts, x)
    return Logged(*arrays, part, densities)


def check_columns(policies: Mapping[str, Any], dataset: Any) -> None:
    """Raise `ConfigError` if a policy has learned from logs whose columns became other numbers than the dataset's."""
    for name, policy in policies.items():
        if isinstance(policy, PolicyAPI):
            check_same_columns(policy.logs, getattr(dataset, "logs", None), name, "the dataset")


def log_probability_of(policy: Any) -> Callable[..., Array]:
    """Log-probabilities of what a policy's `predict` does, which is what is exported, float64."""
    if isinstance(policy, PolicyAPI):
        member: Any
        for _, member in getattr(policy, "members", lambda: [(1.0, policy)])():
            acting: BuiltPolicy = member.acting
            if is_recurrent(acting.nets):
                raise UnsupportedError(
                    f"{acting.name} is recurrent, and logs are read one step at a time: evaluate a policy that sees "
                    "frames instead (FrameStackTransitionPicker)"
                )
        return lambda x, action=None: policy.action_log_probability(x, action, greedy=True)
    if not isinstance(policy, TellsProbabilities):
        raise ConfigError(
            f"the policy is {policy!r:.80}; it must have action_probability(x, action=None), as algorithms and the "
            "policies of birl.ope have it"
        )

    def tells(x: Tree, action: Array | None = None) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.asarray(policy.action_probability(x, action), np.float64)))

    return tells


def _propensities(
    behaviour: Any,
    episodes: list[Any],
    cut: int,
    observations: Tree,
    action: Array,
    choices: int,
    x: Array | None,
    part: Array,
) -> tuple[Array | None, Array | None]:
    """Log-propensities of the logged actions and the propensities of all, as far as known."""
    if isinstance(behaviour, str) and behaviour not in ("logged", "estimated"):
        raise ConfigError(f"behaviour is {behaviour!r:.60}; it must be 'logged', 'estimated' or a policy")
    if _is(behaviour, "logged"):
        logged, vector = _column(episodes, "log_propensity", cut), _column(episodes, "propensities", cut)
        logged = None if logged is None else logged.reshape(-1).astype(np.float64)
        vector = None if vector is None or not choices else vector.astype(np.float64)
        if vector is not None:
            _check_vector(vector, choices, "propensities", 1e-3)
        if logged is not None and vector is not None:
            _check_equal(logged, vector[np.arange(len(vector)), action])
        return logged, vector
    if not _is(behaviour, "estimated"):
        tells = log_probability_of(behaviour)
        if not choices:
            return _in_parts(tells, observations, action), None
        vector = np.exp(_in_parts(tells, observations))
        _check_vector(vector, choices)
    elif not choices or x is None:
        raise UnsupportedError(
            "propensities are estimated for one choice an observation of not too many numbers only: log them, or give "
            "behaviour= the policy that acted"
        )
    else:
        mask = observations.get(MASK) if isinstance(observations, dict) else None
        vector = estimate_propensities(x, action, part, choices, None if mask is None else np.asarray(mask, bool))
    taken = vector[np.arange(len(vector)), action]
    if (taken <= 0).any():
        step = int((taken <= 0).argmax())
        raise DataError(f"the behaviour policy never takes the logged action of step {step}: it did not act there")
    return np.log(taken), vector


def _is(behaviour: Any, name: str) -> bool:
    return isinstance(behaviour, str) and behaviour == name


def _column(episodes: list[Any], name: str, cut: int | None) -> Array | None:
    """An extra column of all steps; ``None`` if no episode has it."""
    having = [name in (each.extra or {}) for each in episodes]
    if not any(having):
        return None
    if not all(having):
        raise DataError(f"episode {having.index(False)} has no {name}, others have: log it for all, or for none")
    return np.concatenate([np.asarray(each.extra[name])[:cut] for each in episodes])


def _firsts(episodes: list[Any], name: str) -> Array | None:
    if _column(episodes, name, None) is None:
        return None
    return np.array([np.asarray(each.extra[name]).reshape(-1)[0] for each in episodes])


def _in_parts(tells: Callable[..., Array], x: Tree, action: Array | None = None) -> Array:
    found = []
    for begin in range(0, len(next(tree_leaves(x))), _AT_ONCE):
        own = slice(begin, begin + _AT_ONCE)
        rows = tree_map(lambda leaf, own=own: leaf[own], x)
        found.append(tells(rows) if action is None else tells(rows, action[own]))
    return np.concatenate(found)


def _check_vector(vector: Array, choices: int, name: str = "action_probability(x)", most: float = 1e-4) -> None:
    if vector.ndim != 2 or vector.shape[1] != choices:
        raise ShapeError(f"{name} has the shape {vector.shape}; it must be [B, {choices}]: every action")
    if not (vector >= 0).all():
        row, place = (int(k) for k in np.argwhere(~(vector >= 0))[0])
        raise DataError(f"{name} is {vector[row, place]:.6g} at step {row} for action {place}; it must be 0 to 1")
    off = ~(np.abs(vector.sum(-1) - 1) < most)
    if off.any():
        row = int(off.argmax())
        raise DataError(f"{name} sums to {vector[row].sum():.6g} at step {row}; it must be 1")


def _check_equal(logged: Array, taken: Array) -> None:
    """Two columns say how probable logged actions were: both must say the same, up to what rounding leaves."""
    off = ~(np.abs(np.exp(logged) - taken) <= _APART * taken)
    if off.any():
        row = int(off.argmax())
        raise DataError(
            f"log_propensity says that the action of step {row} had the probability {np.exp(logged[row]):.6g}, and "
            f"propensities say {taken[row]:.6g}: one of them is wrong; leave it out"
        )
