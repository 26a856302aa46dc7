"""Checks of the independence of logged episodes: copies, near-copies, and customers under several ids.

An interval over episodes is too narrow if episodes are copies of each other. Discrete contexts repeat legitimately, so
equal contents alone prove nothing. What proves a dependence is the randomness of the actions: two independent episodes
with the same first observation take the same action with a probability that the logged propensities give. For
different observations too, ``sum_a b_i(a) b_j(a) <= (sum_a b_i(a)^2 + sum_a b_j(a)^2) / 2``, which is the expectation
of the mean of the two logged propensities, whatever the logging policy. So more pairs with the same action than
propensities allow contradict independence, for pairs of episodes that are selected by their observations only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from birl.dataset.row_sketch import CHANCE, exceeds_chance
from birl.types import Array

_MULTIPLES: Final = range(2, 11)
_SAME_CONTENT: Final = 0.99  # of the pairs of copies with the same first observation and action
_CHANCE_IF_UNIQUE: Final = 1e-2
_MIN_DISTINCT: Final = 30
_MAX_SHARE_OF_GROUPS: Final = 0.95
_LARGEST_GROUP: Final = 20  # mean number of episodes of a customer
_FULL_GRID: Final = 0.1
_DISTANCES: Final = 10**9  # numbers that the search for nearest neighbours may multiply
_CHUNK: Final = 2**22


@dataclass(frozen=True, eq=False)
class FirstSteps:
    """First steps of E episodes, and digests of their whole contents.

    Attributes:
        content: digest of the observations, actions and rewards of each episode, uint64 ``[E]``.
        observation: some columns of the first observations, float32 ``[E, D]``.
        state: hash of the first observation, uint64 ``[E]``.
        action: hash of the first action, uint64 ``[E]``.
        propensity: logged probability of the first action, ``[E]``; ``None`` if it is unknown.
        whole: logged probability of all actions of the episode, ``[E]``; ``None`` if it is unknown.
        cluster: cluster of each episode, ``[E]``; ``None`` if it is unknown.
    """

    content: Array
    observation: Array
    state: Array
    action: Array
    propensity: Array | None
    whole: Array | None
    cluster: Array | None


@dataclass(frozen=True, eq=False)
class Dependence:
    """What connects episodes.

    Attributes:
        copy: whether an episode is a copy of an earlier one, bool ``[E]``.
        agreement: by how much the share of pairs of similar episodes with the same action exceeds the share that
            propensities allow; 0 if chance explains it, ``None`` if propensities are unknown.
        customer: groups of episodes whose first observations share the values of several continuous columns, as one
            customer under several ids does, integers ``[E]``; ``None`` if there are none.
        columns: indices of these columns.
    """

    copy: Array
    agreement: float | None
    customer: Array | None
    columns: tuple[int, ...] = ()


def find_dependence(first: FirstSteps, seed: int = 0) -> Dependence:
    """Find copies, near-copies and customers with several ids.

    Args:
        first: first steps of the episodes.
        seed: random seed of the pairs that are compared.
    """
    rng = np.random.default_rng(seed)
    copy, excess = _copies(first, rng)
    distinct = np.flatnonzero(~copy)
    if first.propensity is not None:
        near = _near_pairs(first, distinct, rng)
        for pairs in (near, near[: len(near) // 4]):
            excess = max(excess, _excess(first.action, first.propensity, pairs))
    customer, columns = _customers(first.observation, distinct)
    return Dependence(copy, None if first.propensity is None else excess, customer, columns)


def _copies(first: FirstSteps, rng: np.random.Generator) -> tuple[Array, float]:
    """Return which episodes are copies of earlier ones, and the excess of equal actions that copies do not explain."""
    _, index, count = np.unique(first.content, return_inverse=True, return_counts=True)
    order = np.argsort(index, kind="stable")
    rank = np.empty(len(index), np.int64)
    rank[order] = np.arange(len(index)) - np.repeat(count.cumsum() - count, count)
    if (multiple := _logged_times(count)) > 1:
        return rank % multiple != 0, 0.0
    none = np.zeros(len(index), bool)
    if first.propensity is None or first.whole is None:
        _, states = np.unique(first.state, return_counts=True)
        continuous = len(states) == len(count) and len(count) >= max(_MIN_DISTINCT, 0.3 * len(index))
        return (rank > 0 if continuous else none), 0.0
    pairs = _equal_pairs(first, rng)
    unique = len(np.unique(first.state)) == len(count)  # so episodes begin alike only if they are equal
    if _excess(first.content, first.whole, pairs, _CHANCE_IF_UNIQUE if unique else CHANCE):
        one, two = pairs.T
        same = first.action[one] == first.action[two]
        if (first.content[one] == first.content[two])[same].mean() >= _SAME_CONTENT:
            return rank > 0, 0.0
    pairs = _of_different_clusters(first, pairs)
    excess = (_excess(key, p, pairs) for key, p in ((first.content, first.whole), (first.action, first.propensity)))
    return none, max(excess)


def _logged_times(count: Array) -> int:
    """Return how many times each episode was logged, from the number of episodes with each content.

    If independent episodes have a content with a small probability, their number is nearly Poisson, and even with a
    probability of at most 1/2 if there is one: ``(1 - exp(-m)) / 2``. Larger divisors are less probable.
    """
    for multiple in reversed(_MULTIPLES):
        if exceeds_chance(float((count % multiple == 0).sum()), len(count), 0.5):
            return multiple
    return 1


def _equal_pairs(first: FirstSteps, rng: np.random.Generator) -> Array:
    """Return disjoint pairs of episodes ``[P, 2]`` with the same first observation."""
    order = np.lexsort((rng.random(len(first.state)), first.state))
    state = first.state[order]
    begins = np.flatnonzero(np.append(True, state[1:] != state[:-1]))
    rank = np.arange(len(state)) - np.repeat(begins, np.diff(np.append(begins, len(state))))
    here = np.flatnonzero((rank[:-1] % 2 == 0) & (state[1:] == state[:-1]))
    return np.stack([order[here], order[here + 1]], 1)


def _of_different_clusters(first: FirstSteps, pairs: Array) -> Array:
    if first.cluster is None:
        return pairs
    return pairs[first.cluster[pairs[:, 0]] != first.cluster[pairs[:, 1]]]


def _near_pairs(first: FirstSteps, among: Array, rng: np.random.Generator) -> Array:
    """Return disjoint pairs of episodes ``[P, 2]`` with near, but different first observations, the nearest first."""
    x = first.observation[among].astype(np.float32)
    std = x.std(0, dtype=np.float64)
    x = x[:, std > 1e-9]
    if not x.shape[1] or len(x) < 4:
        return np.zeros((0, 2), np.int64)
    x = ((x - x.mean(0, dtype=np.float64)) / std[std > 1e-9]).astype(np.float32)
    anchors = rng.permutation(len(x))[: max(200, _DISTANCES // x.size)]
    square, state = (x**2).sum(1), first.state[among]
    cluster = None if first.cluster is None else first.cluster[among]
    nearest, distance = [], []
    for begin in range(0, len(anchors), max(1, _CHUNK // len(x))):
        rows = anchors[begin : begin + max(1, _CHUNK // len(x))]
        gap = square[rows, None] + square - 2 * x[rows] @ x.T
        gap[state[rows, None] == state] = np.inf
        if cluster is not None:
            gap[cluster[rows, None] == cluster] = np.inf
        nearest.append(gap.argmin(1))
        distance.append(gap.min(1))
    pairs, gaps = np.stack([anchors, np.concatenate(nearest)], 1), np.concatenate(distance)
    pairs = pairs[np.argsort(gaps, kind="stable")][: int(np.isfinite(gaps).sum())]
    _, begins = np.unique(pairs, return_index=True)
    new = np.zeros(pairs.size, bool)
    new[begins] = True
    return np.asarray(among[pairs[new.reshape(pairs.shape).all(1)]])


def _excess(key: Array, probability: Array, pairs: Array, chance: float = CHANCE) -> float:
    """Return the excess of pairs with the same key over its mean probability; 0 if chance explains it."""
    if not len(pairs):
        return 0.0
    same, allowed = key[pairs[:, 0]] == key[pairs[:, 1]], float(probability[pairs].mean())
    return float(same.mean() - allowed) if exceeds_chance(float(same.sum()), len(pairs), allowed, chance) else 0.0


def _customers(observation: Array, among: Array) -> tuple[Array | None, tuple[int, ...]]:
    """Return groups of episodes that share several continuous values, and the columns of these values.

    A continuous value that occurs again belongs to the same customer (or product, or place) if other columns repeat
    with it. Whole numbers, categories and other values on a grid repeat by chance, and a few contexts are the whole
    world, not a sample of customers.
    """
    x = observation[among]
    if len(x) < 2 * _MIN_DISTINCT:
        return None, ()
    found: list[tuple[int, int, Array]] = []
    for k in range(x.shape[1]):
        values, index = np.unique(x[:, k], return_inverse=True)
        if _MIN_DISTINCT <= len(values) <= _MAX_SHARE_OF_GROUPS * len(x) and not _on_grid(values):
            found.append((len(values), k, index))
    found.sort(key=lambda each: -each[0])
    for groups, column, index in found:
        same = [column]
        for others, other, other_index in found:
            joint = len(np.unique(index.astype(np.int64) * others + other_index))
            if other != column and joint <= 1.02 * min(groups, others):
                same.append(other)
        if len(same) > 1 and len(x) <= _LARGEST_GROUP * groups:
            everyone = np.unique(observation[:, column], return_inverse=True)[1]
            return everyone, tuple(sorted(same))
    return None, ()


def _on_grid(values: Array) -> bool:
    """Return whether sorted distinct values are nearly evenly spaced, as whole numbers are."""
    gap, width = float(np.diff(values).min()), float(values[-1] - values[0])
    return gap * (len(values) - 1) >= _FULL_GRID * width


def join_clusters(cluster: Array | None, customer: Array) -> Array:
    """Return clusters that hold all episodes of a customer, and of a logged cluster, ``[E]``.

    Logged clusters are returned unchanged if nearly all of them would become one, as for clusters that are days.
    """
    if cluster is None:
        return customer
    _, logged = np.unique(cluster, return_inverse=True)
    label = logged.astype(np.int64)
    while True:
        before = label
        for groups in (customer, logged):
            least = np.full(int(groups.max()) + 1, len(label), np.int64)
            np.minimum.at(least, groups, label)
            label = least[groups]
        if (label == before).all():
            break
    count = len(np.unique(label))
    enough = count >= max(_MIN_DISTINCT, min(len(np.unique(customer)), int(logged.max()) + 1) // 2)
    return label if enough else cluster
