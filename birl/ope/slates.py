"""Slates and rankings: estimates from logs of K items that were shown together, each with a reward of its own.

The number of slates is astronomical, so weights of whole slates are rarely useful. Other estimators assume how users
read a slate, and need only weights of parts of it:

==========================  ============================================================================================
`slate_importance_sampling`  nothing: any item may influence the reward of any position
`reward_interaction`         a reward depends on the items at its position and above (cascade)
`cascade_doubly_robust`      the same, with a model that reduces the variance
`item_position`              a reward depends on the item at its position only
`pseudoinverse`              the reward of a slate is a sum over positions, of any function of the item there
==========================  ============================================================================================

If its assumption is wrong, an estimate is biased, and its interval does not show it. The stronger the assumption, the
narrower the interval. A slate is also an episode whose steps are the positions: `Slates.trajectories` returns it as
such, for all other functions of `birl.ope`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from typing import Final

import numpy as np

from birl.checks import check
from birl.errors import ActionError, DataError, EmptyDataError, NonFiniteError, ShapeError
from birl.ope.estimators import Estimate, doubly_robust, folds, per_decision
from birl.ope.importance_weights import Trajectories, step_log_ratios
from birl.types import Array

_ROUNDING: Final = 1e-6
_MAX_SUBSETS: Final = 5000
"""Most sets of items above a position for which probabilities of positions are computed."""
_PARTS: Final = 3
_KINDS: Final = {
    "slate": "of the whole slate, [n]",
    "prefix": "of the items from the top to a position, [n, K]",
    "position": "of an item at its position, [n, K]",
    "anywhere": "of an item at any position, [n, K]",
}
_PARTS_OF: Final = (("slate", "prefix"), ("slate", "position"), ("prefix", "position"), ("position", "anywhere"))
"""Pairs of a probability and another one that is at least as large."""


@dataclass(frozen=True, eq=False)
class SlateProbabilities:
    """Probabilities of the **logged** slates under a policy. Give those that are known; estimators name what they need.

    Attributes:
        slate: probability of the whole slate, ``[n]`` (OBP: ``pscore``).
        prefix: probability of the logged items from the top to each position, in this order, ``[n, K]`` (OBP:
            ``pscore_cascade``): the product of the probabilities of each item, given the items above.
        position: probability that the logged item is at its position, whatever else is shown, ``[n, K]`` (OBP:
            ``pscore_item_position``; Open Bandit: ``propensity_score``).
        anywhere: probability that the logged item is shown at any position, ``[n, K]``.
        choice: probability of **every** item at each position, given the logged items above, ``[n, K, A]``.
    """

    slate: Array | None = None
    prefix: Array | None = None
    position: Array | None = None
    anywhere: Array | None = None
    choice: Array | None = None

    @classmethod
    def ranking(cls, ranked: Array, item: Array, mask: Array) -> SlateProbabilities:
        """Return the probabilities under a policy that shows one ranking for certain, which are 1 or 0.

        Args:
            ranked: the items that the policy shows, ``[n, K]``, or ``[K]`` for all slates.
            item, mask: see `Slates`.

        Raises:
            ShapeError, ActionError: if the shape is another, or the ranking has an item twice.
        """
        item, mask = np.asarray(item), np.asarray(mask, bool)
        ranked = np.asarray(ranked)
        if ranked.shape not in (item.shape, item.shape[1:]):
            raise ShapeError(f"ranked has the shape {ranked.shape}; it must be {item.shape}, or {item.shape[1:]}")
        ranked = np.broadcast_to(ranked, item.shape)
        check_items(ranked, mask, "the ranking of slate")
        same = (ranked == item) | ~mask
        prefix = same.cumprod(-1, dtype=np.float64)
        anywhere = ((item[:, :, None] == ranked[:, None, :]) & mask[:, None, :]).any(-1).astype(np.float64)
        return cls(prefix[:, -1], prefix, same.astype(np.float64), anywhere)

    @classmethod
    def plackett_luce(cls, scores: Array, item: Array, mask: Array, *, choice: bool = True) -> SlateProbabilities:
        """Return the probabilities under sampling without replacement, from the top, by the softmax of scores.

        Args:
            scores: score of each item ``0 … A - 1``, ``[n, A]``, or ``[A]`` for all slates. Equal scores make a
                uniformly random ranking.
            item, mask: see `Slates`.
            choice: whether to return ``choice``, whose ``n K A`` numbers may need much memory.

        Returns:
            All probabilities; ``position`` and ``anywhere`` only if there are at most 5,000 sets of items above the
            last position, as for 3 of 100 items.

        Raises:
            ShapeError, NonFiniteError: if scores do not fit.
        """
        item, mask, scores = np.asarray(item), np.asarray(mask, bool), np.asarray(scores, np.float64)
        scores = np.broadcast_to(scores, (len(item), scores.shape[-1])) if scores.ndim == 1 else scores
        size = scores.shape[-1]
        if scores.ndim != 2 or len(scores) != len(item):
            raise ShapeError(f"scores has the shape {scores.shape}; it must be [n, A] or [A], with n = {len(item)}")
        if not np.isfinite(scores).all():
            raise NonFiniteError("scores contain NaN or infinity; they must be finite: leave such items out")
        if (mask & ((item < 0) | (item >= size))).any():
            raise ActionError(f"an item is outside 0 to {size - 1}, the items with scores: give a score for each item")
        count = item.shape[1]
        shown = np.where(mask, item, 0)
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        left, step, every = weight.copy(), np.ones(item.shape), np.zeros((*item.shape, size) if choice else 0)
        for place in range(count):
            chance = left / np.maximum(left.sum(-1, keepdims=True), np.finfo(np.float64).tiny)
            rows = np.flatnonzero(mask[:, place])
            step[rows, place] = chance[rows, shown[rows, place]]
            left[rows, shown[rows, place]] = 0.0  # it cannot be chosen again
            if choice:
                every[:, place] = chance
        prefix = step.cumprod(-1)
        position = anywhere = None
        if sum(comb(size, place) for place in range(count)) <= _MAX_SUBSETS:
            by_place = _by_position(weight, count)
            position = np.where(mask, np.take_along_axis(by_place, shown[..., None], -1)[..., 0], 1.0)
            if mask.all():
                anywhere = np.take_along_axis(by_place.sum(1), shown, -1)
        return cls(prefix[:, -1], prefix, position, anywhere, every if choice else None)


@dataclass(frozen=True, eq=False)
class Slates:
    """Logged slates of up to K positions, with probabilities under the logging policy and an evaluated policy.

    Attributes:
        item: items from the top, integers ``[n, K]``. No slate has an item twice.
        reward: reward at each position, such as 1 for a click, ``[n, K]``. The value of a policy is the mean **sum** of
            a slate's rewards; multiply them by weights of positions for metrics such as DCG.
        mask: which positions a slate has, ``[n, K]``: the first ones, without holes.
        logged: probabilities under the logging policy, above 0.
        policy: probabilities under the evaluated policy.
        clusters: cluster of each slate, such as its user, ``[n]``; ``None`` if slates are independent.

    Raises:
        ActionError: if a slate has an item twice.
        DataError: if probabilities contradict each other, such as a whole slate that is likelier than its first item.
        ShapeError: if shapes do not fit, such as probabilities of slates that are given as those of positions.
        NonFiniteError, EmptyDataError: for NaN, or without slates.
    """

    item: Array
    reward: Array
    mask: Array
    logged: SlateProbabilities
    policy: SlateProbabilities
    clusters: Array | None = None

    def __post_init__(self) -> None:
        item, mask, reward = np.asarray(self.item), np.asarray(self.mask, bool), np.asarray(self.reward, np.float64)
        if item.ndim != 2 or item.size == 0 or item.dtype.kind not in "iu":
            raise EmptyDataError(
                f"item has the shape {item.shape} and dtype {item.dtype}; it must be integers [n, K], n and K >= 1"
            )
        for name, value in {"reward": reward, "mask": mask}.items():
            if value.shape != item.shape:
                raise ShapeError(f"{name} has the shape {value.shape}; it must be {item.shape}, like item")
        if self.clusters is not None and np.shape(self.clusters) != item.shape[:1]:
            raise ShapeError(f"clusters has the shape {np.shape(self.clusters)}; it must be {item.shape[:1]}")
        check_items(item, mask, "slate")
        Trajectories(reward, mask, 1.0)  # holes, slates without an item, NaN
        object.__setattr__(self, "item", item)
        object.__setattr__(self, "mask", mask)
        object.__setattr__(self, "reward", np.where(mask, reward, 0.0))
        for name in ("logged", "policy"):
            given = getattr(self, name)
            object.__setattr__(self, name, _checked(name, given, item, mask))

    @property
    def earned(self) -> Estimate:
        """What the logs earned: the mean sum of a slate's rewards."""
        return Estimate(self.reward.sum(-1))

    def under(self, policy: SlateProbabilities) -> Slates:
        """Return the same slates with another evaluated policy."""
        return replace(self, policy=policy)

    def ratio(self, kind: str) -> Array:
        """Return ratios of the policy's and the logging policy's probabilities, ``[n]`` or ``[n, K]``.

        Args:
            kind: ``"slate"``, ``"prefix"``, ``"position"`` or ``"anywhere"``. A slate has the probability of its whole
                prefix.

        Raises:
            DataError: if the probabilities of one of the policies are unknown.
        """
        values = [self.probability(name, kind) for name in ("policy", "logged")]
        return np.asarray(values[0] / values[1])

    def probability(self, name: str, kind: str) -> Array:
        """Return probabilities; see `ratio`.

        Args:
            name: ``"logged"`` or ``"policy"``.
            kind: see `ratio`.
        """
        given: SlateProbabilities = getattr(self, name)
        value: Array | None = getattr(given, kind)
        if value is None and kind == "slate" and given.prefix is not None:
            value = given.prefix[:, -1]
        if value is None:
            raise DataError(
                f"{name} has no {kind}, the probability {_KINDS[kind]}, which this estimator needs: give it to "
                "SlateProbabilities, or use another estimator"
            )
        return value

    def trajectories(self, q: Array | None = None, v: Array | None = None) -> Trajectories:
        """Return slates as episodes whose steps are the positions, for all functions of `birl.ope`; needs ``prefix``.

        Args:
            q, v: values of the logged item, and of the policy, at each position given the items above, ``[n, K]``.
        """
        with np.errstate(divide="ignore"):
            log_weight = np.log(self.ratio("prefix"))
        return Trajectories(self.reward, self.mask, 1.0, step_log_ratios(log_weight), q, v)


def slate_importance_sampling(slates: Slates) -> Estimate:
    """Return the mean of ``w sum_k r_k`` with the ratio w of whole slates; it assumes nothing about users.

    Its variance grows exponentially with the number of positions. Needs ``slate`` or ``prefix``.
    """
    return Estimate(slates.ratio("slate") * slates.reward.sum(-1))


def item_position(slates: Slates) -> Estimate:
    """Return the mean of ``sum_k rho_k r_k``, with the ratio ``rho_k`` of the item at position k.

    Li et al. 2018, arXiv:1804.10488 (the item-position click model; "independent IPS" in OBP). It assumes that the
    reward of a position depends on the context, the position and its item only: no item draws attention from another.
    Needs ``position``.
    """
    return Estimate((np.where(slates.mask, slates.ratio("position"), 0.0) * slates.reward).sum(-1))


def reward_interaction(slates: Slates) -> Estimate:
    """Return the mean of ``sum_k w_k r_k``, with the ratio ``w_k`` of the items from the top to position k.

    Reward-interaction IPS (McInerney et al. 2020, arXiv:2007.12986). It assumes that users read from the top: the
    reward of a position depends on its item and the items above, never on the items below. It is
    `birl.ope.per_decision` with positions as steps. Its self-normalised form is
    ``birl.ope.weighted_per_decision(slates.trajectories())``. Needs ``prefix``.
    """
    return per_decision(slates.trajectories())


def cascade_doubly_robust(slates: Slates, values: Array | None = None, seed: int = 0) -> Estimate:
    """Return the mean of ``sum_k [w_k (r_k - Q_k) + w_{k-1} V_k]``, with a model of the rewards from a position on.

    Kiyohara et al. 2022, arXiv:2202.01562. The assumption is that of `reward_interaction`, and the variance is smaller.
    A wrong model widens the interval and does not bias the estimate. Needs ``prefix``, and ``choice`` of the policy.

    Args:
        slates: logged slates.
        values: ``Q_k`` of every item at each position, given the logged items above, ``[n, K, A]``: the expected sum of
            the rewards from this position on. No slate may be valued by a model that was fitted on it. By default the
            mean for each item and position, fitted on other slates.
        seed: random seed of the parts of slates for the default model.
    """
    choice = slates.policy.choice
    if choice is None:
        raise DataError(
            "policy has no choice, the probability of every item at each position, which this estimator needs: give it "
            "to SlateProbabilities, or use reward_interaction"
        )
    values = item_values(slates, choice, seed) if values is None else np.asarray(values, np.float64)
    if values.shape != choice.shape:
        raise ShapeError(f"values has the shape {values.shape}; it must be [n, K, A], as choice has: {choice.shape}")
    taken = np.where(slates.mask, slates.item, 0)[..., None]
    q = np.take_along_axis(values, taken, -1)[..., 0]
    return doubly_robust(slates.trajectories(q, (choice * values).sum(-1)))


def pseudoinverse(slates: Slates, items: int | None = None) -> Estimate:
    """Return the mean of ``g sum_k r_k``, with a weight g that needs no ratios of whole slates.

    Swaminathan et al. 2017, arXiv:1605.04812. It assumes that the expected reward of a slate is a sum over positions of
    any function of context, position and item, as for `item_position`, but needs only one reward of the whole slate.
    For a logging policy that chooses the items of positions independently of each other, ``g = 1 + sum_k (rho_k - 1)``.
    With A items that are ranked uniformly at random, g follows from the pseudoinverse of the probabilities of pairs:
    ``g = sum_k [(A - 1) p_k - (K - 1) / K + s_k / A]``, with the policy's probabilities ``p_k`` of the item at its
    position and ``P_k`` of the item anywhere, and ``s_k = A ((A - 1) P_k - K + 1) / (A - K)``, or 1 if A = K.

    Args:
        slates: logged slates, all with K items. Needs ``position``; with ``items`` also ``anywhere`` of the policy.
        items: the number A of items, if the logging policy ranks A items uniformly at random; ``None`` if it chooses
            the items of positions independently, from different sets.
    """
    return Estimate(pseudoinverse_weight(slates, items) * slates.reward.sum(-1))


def pseudoinverse_weight(slates: Slates, items: int | None = None) -> Array:
    """Return the weight g of each slate, ``[n]``, with mean 1; it may be negative. See `pseudoinverse`."""
    if not slates.mask.all():
        raise DataError("slates have different lengths; this estimator needs equal ones: use item_position instead")
    count = slates.item.shape[1]
    if items is None:
        item, places = np.unique(np.concatenate([np.unique(each) for each in slates.item.T]), return_counts=True)
        if (places > 1).any():
            raise DataError(
                f"item {item[places > 1][0]} is logged at several positions, but never twice in a slate, so the items "
                "of positions are not chosen independently: give items, their number, if they are ranked uniformly at "
                "random, or use another estimator"
            )
        return np.asarray(1 + (slates.ratio("position") - 1).sum(-1))
    check("items", items, int, low=max(2, count), error=DataError)
    logged = slates.probability("logged", "position")
    if (wrong := np.abs(logged * items - 1) > 1e-3).any():
        row, place = (int(index) for index in np.argwhere(wrong)[0])
        raise DataError(
            f"the logged probability at position {place} of slate {row} is {logged[row, place]:.6g}; if {items} items "
            f"are ranked uniformly it is {1 / items:.6g}: correct items, or leave it out"
        )
    at, anywhere = slates.probability("policy", "position"), slates.probability("policy", "anywhere")
    shared = 1.0 if items == count else items * ((items - 1) * anywhere - count + 1) / (items - count)
    return np.asarray(((items - 1) * at - (count - 1) / count + shared / items).sum(-1))


def item_values(slates: Slates, choice: Array, seed: int = 0) -> Array:
    """Return ``Q_k`` of every item at each position by means of other slates, ``[n, K, A]``.

    From the last position to the first, ``Q_k(a)`` is the mean of ``r_k + V_{k+1}`` over slates with item a at position
    k, shrunk towards the mean of the position, and ``V_{k+1}`` the mean of ``Q_{k+1}`` under the policy.

    Args:
        slates: logged slates.
        choice: see `SlateProbabilities`.
        seed: random seed of the parts of slates.
    """
    (n, count), size = slates.item.shape, choice.shape[-1]
    groups = np.arange(n) if slates.clusters is None else slates.clusters
    part = folds(groups, min(_PARTS, len(np.unique(groups))), seed)
    values = np.zeros(choice.shape)
    after = np.zeros((part.max() + 1, n))  # V_{k+1} of every slate, by the model of each part
    for place in reversed(range(count)):
        exists = slates.mask[:, place]
        item = np.where(exists, slates.item[:, place], 0)
        for number, row in enumerate(after):
            others = exists & (part != number)
            target = slates.reward[others, place] + row[others]
            mean = target.mean() if others.any() else 0.0
            seen = np.bincount(item[others], minlength=size)
            total = np.bincount(item[others], target, size)
            q = (total + mean) / (seen + 1)
            row[:] = np.where(exists, choice[:, place] @ q, 0.0)
            values[part == number, place] = q
    return np.where(slates.mask[..., None], values, 0.0)


def check_items(item: Array, mask: Array, label: str) -> None:
    """Raise `ActionError` if a slate has an item twice."""
    for place in range(1, item.shape[1]):
        again = (item[:, :place] == item[:, place, None]) & mask[:, :place] & mask[:, place, None]
        if again.any():
            row, other = (int(index) for index in np.argwhere(again)[0])
            raise ActionError(
                f"{label} {row} has the item {item[row, place]} at the positions {other} and {place}, counted from 0; "
                "each item must be there once: repair the log, or number items differently if positions choose from "
                "sets of their own"
            )


def _checked(name: str, given: SlateProbabilities, item: Array, mask: Array) -> SlateProbabilities:
    """Return probabilities as float64, 1 where no position exists; raise for those that cannot be."""
    values: dict[str, Array] = {}
    for kind, meaning in _KINDS.items():
        if (raw := getattr(given, kind)) is None:
            continue
        value, shape = np.asarray(raw, np.float64), item.shape[:1] if kind == "slate" else item.shape
        if value.shape != shape:
            remedy = (
                "give those of positions as prefix or position" if kind == "slate" else "give those of slates as slate"
            )
            raise ShapeError(
                f"{name}.{kind} has the shape {value.shape}; it is the probability {meaning}, and must be {shape}: "
                f"{remedy}"
            )
        exists = mask if value.ndim == 2 else np.ones(shape, bool)
        wrong = exists & ~((value >= 0) & (value <= 1 + _ROUNDING) & ((value > 0) | (name == "policy")))
        if wrong.any():
            place = tuple(int(index) for index in np.argwhere(wrong)[0])
            allowed = "from 0 to 1" if name == "policy" else "above 0 and at most 1"
            raise DataError(f"{name}.{kind} is {value[place]:.6g} at {place}; it must be {allowed}: check the log")
        values[kind] = np.where(exists, value, 1.0)
    if (prefix := values.get("prefix")) is not None:
        _check_parts(name, "prefix", prefix[:, 1:] * mask[:, 1:], "the prefix above", prefix[:, :-1])
        values["prefix"] = np.minimum.accumulate(prefix, -1)
    for whole, part in _PARTS_OF:
        if whole in values and part in values:
            value = values[whole] if values[whole].ndim == 2 else values[whole][:, None]
            _check_parts(name, whole, value, part, values[part])
    if name == "logged" and {"slate", "position"} <= values.keys() and item.shape[1] > 1:
        same = np.isclose(values["position"], values["slate"][:, None], rtol=1e-6, atol=0).all()
        if same and (values["slate"] < 1).any():
            raise DataError(
                "logged.position equals logged.slate everywhere: these are probabilities of slates, not of positions; "
                "give them as slate only"
            )
    choice = None if given.choice is None else np.asarray(given.choice, np.float64)
    shape = (0, 0, 0) if choice is None or choice.ndim != 3 else choice.shape
    if choice is not None and (shape[:2] != item.shape or shape[2] <= item[mask].max()):
        raise ShapeError(
            f"{name}.choice has the shape {choice.shape}; it must be {(*item.shape, 'A')}, with A above every item"
        )
    return SlateProbabilities(**values, choice=choice)


def _check_parts(name: str, whole: str, value: Array, part: str, bound: Array) -> None:
    """Raise `DataError` if a whole is likelier than its part, as where columns are mixed up."""
    value = np.broadcast_to(value, bound.shape)
    above = value > bound * (1 + 1e-4) + 1e-15
    if above.any():
        row, place = (int(index) for index in np.argwhere(above)[0])
        raise DataError(
            f"{name}.{whole} is {value[row, place]:.6g} in slate {row}, but {part} is {bound[row, place]:.6g}; it must "
            "be at most that: probabilities of slates, prefixes and positions are mixed up"
        )


def _by_position(weight: Array, count: int) -> Array:
    """Return the probability of every item at every position under Plackett-Luce, ``[n, K, A]``.

    It sums over the sets of items above a position; the probability of a set is the sum over its last item.
    """
    n, size = weight.shape
    total, probability = weight.sum(-1), {frozenset[int](): np.ones(n)}
    result = np.zeros((n, count, size))
    for place in range(count):
        following: dict[frozenset[int], Array] = {}
        for above in combinations(range(size), place):
            rest = weight.copy()
            rest[:, above] = 0.0
            part = rest * (probability[frozenset(above)] / np.maximum(rest.sum(-1), 1e-300 * total))[:, None]
            result[:, place] += part
            for item in set(range(size)).difference(above) if place < count - 1 else ():
                key = frozenset((*above, item))
                following[key] = following.get(key, 0.0) + part[:, item]
        probability = following
    return result
