"""Small models of logged steps, linear in features: action-values of a policy, and how probable actions were.

Each is fitted on some parts of the episodes and read on another, so that no step is judged by a model that saw it. They
are as good as their features: a linear model that is wrong costs `birl.ope.doubly_robust` precision, not validity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from birl.types import MASK, Array, Tree, tree_leaves

WIDEST: Final = 400
"""Features that a model may have; observations of more numbers have no model."""
_RIDGE: Final = 1e-4
_STEPS: Final = 500


def features(observations: Tree) -> Array | None:
    """1, standardised numbers and their squares, float64 ``[N, D]``; ``None`` if they are more than `WIDEST`.

    Args:
        observations: tree of arrays ``[N, ...]``; a mask of allowed actions is left out.
    """
    own = {k: v for k, v in observations.items() if k != MASK} if isinstance(observations, dict) else observations
    leaves = list(tree_leaves(own))
    if sum(leaf[0].size for leaf in leaves) > WIDEST:
        return None
    x = np.concatenate([np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in leaves], -1)
    spread = x.std(0)
    x = (x - x.mean(0))[:, spread > 1e-9] / spread[spread > 1e-9]
    curved = x[:, [len(np.unique(column[:100])) > 2 for column in x.T]]  # the square of a flag says nothing new
    x = np.concatenate([np.ones((len(x), 1)), x, curved**2], -1)
    return x if x.shape[1] <= WIDEST else None


@dataclass(frozen=True, eq=False)
class Steps:
    """Logged steps as models read them, episode after episode.

    Attributes:
        x: features ``[N, D]``.
        action: ``[N]``.
        reward: ``[N]``.
        step: which step of its episode each is, ``[N]``.
        last: whether an episode ends with it, ``[N]``.
        gamma: discount.
    """

    x: Array
    action: Array
    reward: Array
    step: Array
    last: Array
    gamma: float


def fitted_q(of: Steps, target: Array, part: Array) -> tuple[Array, Array]:
    """Fitted Q evaluation, cross-fitted: a step is valued by the model of all parts but its own. See `weighted_q`.

    Args:
        of: logged steps.
        target: the policy's probabilities ``[N, A]``.
        part: the part of each step's episode, ``[N]``.

    Returns:
        ``Q(s, .)`` ``[N, A]`` and ``V(s)`` ``[N]``.
    """
    names, own = np.unique(part, return_inverse=True)
    q = weighted_q(of, target, (own != np.arange(len(names))[:, None]).astype(np.float64))[own, np.arange(len(own))]
    return q, (target * q).sum(-1)


def weighted_q(of: Steps, target: Array, weight: Array) -> Array:
    """Fitted Q evaluation, linear, once for each row of weights: ``Q_k(s, a) = E[r + gamma V_{k-1}(s')]``.

    Le et al. 2019, arXiv:1903.08738, algorithm 3, with ridge regressions for each action and k steps to go. A step t of
    a log of up to H steps has ``H - t`` to go. Values are kept within what rewards allow, so that nothing diverges.

    Args:
        of: logged steps.
        target: the policy's probabilities ``[N, A]``.
        weight: how much a step counts in each of B regressions, at least 0, ``[B, N]``.

    Returns:
        ``Q(s, .)`` ``[B, N, A]``.
    """
    horizon, count, size = int(of.step.max()) + 1, target.shape[1], len(weight)
    q = np.zeros((size, *target.shape))
    low, high = min(of.reward.min(), 0.0), max(of.reward.max(), 0.0)
    value, most = np.zeros((size, len(of.x))), 0.0
    rows = [np.flatnonzero(of.action == a) for a in range(count)]
    for k in range(1, horizon + 1):
        if k <= 2:  # with more than one step to go, those at the horizon do not show what follows
            counts = weight * ((k == 1) | (of.step < horizon - 1))
            fits = [_solver(of.x[r], counts[:, r]) for r in rows]
        after = np.where(of.last, 0.0, np.append(value[:, 1:], np.zeros((size, 1)), 1))
        goal, most = of.reward + of.gamma * after, 1.0 + of.gamma * most
        coefficients = np.stack([fit(goal[:, r]) for fit, r in zip(fits, rows, strict=True)], -1)  # [B, D, A]
        every = np.clip(of.x @ coefficients, low * most, high * most)
        new = (target * every).sum(-1)
        settled = np.abs(new - value).max() <= 1e-9 * max(1.0, np.abs(new).max())
        value = new
        now = of.step <= horizon - k if settled else of.step == horizon - k
        q[:, now] = every[:, now]
        if settled:
            break
    return q


def _solver(x: Array, weight: Array) -> Callable[[Array], Array]:
    """Ridge regressions ``[B, N] -> [B, D]`` of rows that count ``weight`` ``[B, N]``."""
    gram = np.stack([x.T @ (own[:, None] * x) for own in weight])
    gram += (_RIDGE * (weight.sum(-1) + 1))[:, None, None] * np.eye(x.shape[1])
    inverse = np.linalg.inv(gram)

    def solve(goal: Array) -> Array:
        return np.asarray((inverse @ ((weight * goal) @ x)[..., None])[..., 0])

    return solve


def estimated_propensities(x: Array, action: Array, part: Array, count: int, allowed: Array | None = None) -> Array:
    """How probable actions were, by cross-fitted multinomial logistic regression, ``[N, A]`` (Hanna et al. 2019).

    arXiv:1806.01347. Look at `birl.ope.calibration_error` before weights are made of them.

    Args:
        x: features ``[N, D]``.
        action: logged actions ``[N]``.
        part: the part of each step's episode, ``[N]``.
        count: number of actions.
        allowed: which actions were possible, bool ``[N, A]``.
    """
    found = np.zeros((len(x), count))
    closed = np.zeros(found.shape, bool) if allowed is None else ~allowed
    taken = (action[:, None] == np.arange(count)).astype(np.float64)
    for own in np.unique(part):
        new, seen = part == own, part != own
        found[new] = _softmax(x[new] @ _logistic(x[seen], taken[seen], closed[seen]), closed[new])
    return found


def _logistic(x: Array, taken: Array, closed: Array) -> Array:
    """Coefficients ``[D, A]`` with a ridge of 1, by steps that a bound of the curvature makes safe.

    Boehning 1992, Annals of the Institute of Statistical Mathematics 44: ``X'X / 2`` for each action.
    """
    weight = np.zeros((x.shape[1], taken.shape[1]))
    step = np.linalg.inv(0.5 * x.T @ x + np.eye(x.shape[1]))
    for _ in range(_STEPS):
        change = step @ (x.T @ (taken - _softmax(x @ weight, closed)) - weight)
        weight += change
        if np.abs(change).max() < 1e-4:
            break
    return weight


def _softmax(logits: Array, closed: Array) -> Array:
    logits = np.where(closed, -np.inf, logits)
    chance = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(chance / chance.sum(-1, keepdims=True))
