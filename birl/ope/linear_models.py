"""Linear models of logged steps: action values of a policy, propensities, and what a step depends on.

The regressions use NumPy, because neither SciPy nor scikit-learn is a dependency, and because the ridge regression is
fitted for many sets of weights at once. There are two feature maps: `quadratic_features` keeps estimates of values
stable, and `random_features` finds dependences of any shape.

Models are cross-fitted: fitted on some parts of the episodes, they predict another part, so no model predicts a step
that it was fitted on. If the linear model is wrong, `birl.ope.doubly_robust` loses precision, not validity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from birl.types import MASK, Array, Tree, tree_leaves

MAX_FEATURES: Final = 400
"""Largest number of features of a model; larger observations have no model."""
_RIDGE: Final = 1e-4
_MAX_ITERATIONS: Final = 200
_PROJECTED, _RANDOM, _MAX_CROSSED = 64, 64, 12
"""Sizes of random features: columns after projection, random features, and most columns with cross products."""


def quadratic_features(observations: Tree) -> Array | None:
    """Return 1, standardised columns and their squares, float64 ``[N, D]``; ``None`` beyond `MAX_FEATURES`.

    Args:
        observations: tree of arrays ``[N, ...]``; a mask of allowed actions is left out.
    """
    unmasked = {k: v for k, v in observations.items() if k != MASK} if isinstance(observations, dict) else observations
    leaves = list(tree_leaves(unmasked))
    if sum(leaf[0].size for leaf in leaves) > MAX_FEATURES:
        return None
    x = np.concatenate([np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in leaves], -1)
    std = x.std(0)
    x = (x - x.mean(0))[:, std > 1e-9] / std[std > 1e-9]
    squared = x[:, [len(np.unique(column[:100])) > 2 for column in x.T]]  # the square of a flag adds nothing
    x = np.concatenate([np.ones((len(x), 1)), x, squared**2], -1)
    return x if x.shape[1] <= MAX_FEATURES else None


def random_features(x: Array, train: Array, seed: int = 0) -> Array:
    """Return 1, columns standardised by the rows ``train``, their products and random features, ``[N, F]``.

    Random features are those of Rahimi and Recht 2008, NeurIPS. More than 64 columns are projected at random; more than
    12 have no products.

    Args:
        x: ``[N, D]``.
        train: indices of the rows that the model is fitted on.
        seed: random seed of the projection and the random features.
    """
    rng = np.random.default_rng(seed)
    mean, std = x[train].mean(0, dtype=np.float64), x[train].std(0, dtype=np.float64)
    z = np.clip((x - mean) / np.where(std > 1e-9, std, 1.0), -5, 5)
    if z.shape[1] > _PROJECTED:
        z = z @ rng.normal(size=(z.shape[1], _PROJECTED)) / np.sqrt(z.shape[1])
    directions = rng.normal(size=(z.shape[1], _RANDOM)) * 1.5 / np.sqrt(max(z.shape[1], 1))
    a, b = np.triu_indices(z.shape[1] if z.shape[1] <= _MAX_CROSSED else 0)
    nonlinear = np.tanh(z @ directions + rng.normal(size=_RANDOM))
    return np.concatenate([np.ones((len(z), 1)), z, z[:, a] * z[:, b], nonlinear], 1)


@dataclass(frozen=True, eq=False)
class StepFeatures:
    """Logged steps in the form that models read, one episode after the other.

    Attributes:
        x: features ``[N, D]``.
        action: actions ``[N]``.
        reward: rewards ``[N]``.
        step: index of the step in its episode, ``[N]``.
        last: whether the step ends its episode, ``[N]``.
        gamma: discount.
    """

    x: Array
    action: Array
    reward: Array
    step: Array
    last: Array
    gamma: float


def cross_fitted_q(steps: StepFeatures, target: Array, part: Array) -> tuple[Array, Array]:
    """Cross-fitted Q evaluation: the model of all other parts values a step. See `weighted_fitted_q`.

    Args:
        steps: logged steps.
        target: the policy's probabilities ``[N, A]``.
        part: the part of each step's episode, ``[N]``.

    Returns:
        ``Q(s, .)`` ``[N, A]`` and ``V(s)`` ``[N]``.
    """
    names, index = np.unique(part, return_inverse=True)
    weight = (index != np.arange(len(names))[:, None]).astype(np.float64)
    q = weighted_fitted_q(steps, target, weight)[index, np.arange(len(index))]
    return q, (target * q).sum(-1)


def weighted_fitted_q(steps: StepFeatures, target: Array, weight: Array) -> Array:
    """Linear fitted Q evaluation for each row of weights: ``Q_k(s, a) = E[r + gamma V_{k-1}(s')]``.

    Le et al. 2019, arXiv:1903.08738, algorithm 3, with a ridge regression for each action and k, the number of steps to
    go. Step t has ``H - t`` steps to go in logs of at most H steps an episode. Values are clipped to what the rewards
    allow, so the iteration cannot diverge.

    Args:
        steps: logged steps.
        target: the policy's probabilities ``[N, A]``.
        weight: weight of each step in each of B regressions, at least 0, ``[B, N]``.

    Returns:
        ``Q(s, .)`` ``[B, N, A]``.
    """
    horizon, n_actions, batch = int(steps.step.max()) + 1, target.shape[1], len(weight)
    q = np.zeros((batch, *target.shape))
    low, high = min(steps.reward.min(), 0.0), max(steps.reward.max(), 0.0)
    value, scale = np.zeros((batch, len(steps.x))), 0.0
    rows = [np.flatnonzero(steps.action == a) for a in range(n_actions)]
    for k in range(1, horizon + 1):
        if k <= 2:  # with more than one step to go, steps at the horizon have no logged successor
            counted = weight * ((k == 1) | (steps.step < horizon - 1))
            solvers = [ridge_solver(steps.x[r], w := counted[:, r], (_RIDGE * (w.sum(-1) + 1))[:, None]) for r in rows]
        next_value = np.where(steps.last, 0.0, np.append(value[:, 1:], np.zeros((batch, 1)), 1))
        goal, scale = steps.reward + steps.gamma * next_value, 1.0 + steps.gamma * scale
        coefficients = np.stack([solve(goal[:, r]) for solve, r in zip(solvers, rows, strict=True)], -1)  # [B, D, A]
        q_all = np.clip(steps.x @ coefficients, low * scale, high * scale)
        new = (target * q_all).sum(-1)
        converged = np.abs(new - value).max() <= 1e-9 * max(1.0, np.abs(new).max())
        value = new
        now = steps.step <= horizon - k if converged else steps.step == horizon - k
        q[:, now] = q_all[:, now]
        if converged:
            break
    return q


def action_features(x: Array, action: Array, squared: Array) -> Array | None:
    """Return features of observations and continuous actions, ``[N, F]``; ``None`` beyond `MAX_FEATURES`.

    They are linear in ``action`` and ``squared``, so their means under a policy follow from the means of these.

    Args:
        x: features of the observations ``[N, D]``; the first one is 1.
        action, squared: standardised actions and their squares ``[N, A]``, or means of both.
    """
    if x.shape[1] * (1 + action.shape[1]) + action.shape[1] > MAX_FEATURES:
        return None
    crossed = (x[:, :, None] * action[:, None]).reshape(len(x), -1)
    return np.concatenate([x, squared, crossed], 1)


def cross_fitted_action_values(steps: StepFeatures, expected: Array, part: Array) -> tuple[Array, Array]:
    """Cross-fitted Q evaluation with one linear model of all actions; see `weighted_fitted_q`.

    Only the targets of the regressions are clipped: the values must stay linear, so that ``V`` is the expectation of
    ``Q`` also where both are wrong. `birl.ope.doubly_robust` has no bias then.

    Args:
        steps: logged steps, with `action_features` of the logged actions.
        expected: means of the same features under the policy, ``[N, F]``.
        part: the part of each step's episode, ``[N]``.

    Returns:
        ``Q(s, a)`` of the logged actions and ``V(s)``, ``[N]``.
    """
    names, index = np.unique(part, return_inverse=True)
    own = index == np.arange(len(names))[:, None]
    horizon, q, v = int(steps.step.max()) + 1, np.zeros(len(steps.x)), np.zeros(len(steps.x))
    low, high, scale = min(steps.reward.min(), 0.0), max(steps.reward.max(), 0.0), 0.0
    value = np.zeros(own.shape)
    for k in range(1, horizon + 1):
        if k <= 2:  # with more than one step to go, steps at the horizon have no logged successor
            counted = ~own * ((k == 1) | (steps.step < horizon - 1))
            solve = ridge_solver(steps.x, counted, (_RIDGE * (counted.sum(-1) + 1))[:, None])
        next_value = np.where(steps.last, 0.0, np.append(value[:, 1:], np.zeros((len(own), 1)), 1))
        coefficients, scale = solve(steps.reward + steps.gamma * next_value), 1.0 + steps.gamma * scale  # [B, F]
        new = np.clip(coefficients @ expected.T, low * scale, high * scale)
        converged = np.abs(new - value).max() <= 1e-9 * max(1.0, np.abs(new).max())
        value = new
        now = steps.step <= horizon - k if converged else steps.step == horizon - k
        q[now] = (steps.x[now] * coefficients[index[now]]).sum(-1)
        v[now] = (expected[now] * coefficients[index[now]]).sum(-1)
        if converged:
            break
    return q, v


def ridge_solver(x: Array, weight: Array, penalty: Array) -> Callable[[Array], Array]:
    """Return a function that solves weighted ridge regressions: targets ``[B, N]`` to coefficients ``[B, D]``.

    Args:
        x: features ``[N, D]``.
        weight: weight of each row, ``[B, N]``, or ``[1, N]`` for all regressions.
        penalty: penalty of each squared coefficient, ``[B or 1, D or 1]``.
    """
    gram = np.stack([x.T @ (w[:, None] * x) for w in weight])
    inverse = np.linalg.inv(gram + penalty[..., None] * np.eye(x.shape[1]))

    def solve(goal: Array) -> Array:
        return np.asarray((inverse @ ((weight * goal) @ x)[..., None])[..., 0])

    return solve


def logistic_regression(x: Array, taken: Array, excluded: Array | None = None) -> Array:
    """Fit a multinomial logistic regression with a ridge penalty of 1; return its coefficients ``[D, A]``.

    The optimiser makes accelerated gradient steps with a bound on the curvature, ``X'X / 2`` for each action (Boehning
    1992, Annals of the Institute of Statistical Mathematics 44). The penalty pulls towards the frequencies of the
    actions.

    Args:
        x: features ``[N, D]``; the first one is 1.
        taken: one-hot actions ``[N, A]``.
        excluded: actions that were not possible, bool ``[N, A]``.
    """
    frequency = (taken.sum(0) + 0.5) / (len(taken) + 0.5 * taken.shape[1])
    prior = np.zeros((x.shape[1], taken.shape[1]))
    prior[0] = np.log(frequency)
    inverse = np.linalg.inv(0.5 * x.T @ x + np.eye(x.shape[1]))
    weights = ahead = prior
    for k in range(_MAX_ITERATIONS):
        gradient = x.T @ (taken - softmax(x @ ahead, excluded)) - (ahead - prior)
        new = ahead + inverse @ gradient
        converged = np.abs(new - weights).max() < 1e-5
        weights, ahead = new, new + k / (k + 3) * (new - weights)
        if converged:
            break
    return weights


def softmax(logits: Array, excluded: Array | None = None) -> Array:
    """Return probabilities ``[N, A]``; those of ``excluded`` actions are 0."""
    logits = logits if excluded is None else np.where(excluded, -np.inf, logits)
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(odds / odds.sum(-1, keepdims=True))


def estimate_propensities(x: Array, action: Array, part: Array, n_actions: int, allowed: Array | None = None) -> Array:
    """Estimate probabilities of all actions by cross-fitted logistic regression, ``[N, A]`` (Hanna et al. 2019).

    arXiv:1806.01347. Check `birl.ope.calibration_error` before you compute weights from them.

    Args:
        x: features ``[N, D]``; the first one is 1.
        action: logged actions ``[N]``.
        part: the part of each step's episode, ``[N]``.
        n_actions: number of actions.
        allowed: which actions were possible, bool ``[N, A]``.
    """
    estimated = np.zeros((len(x), n_actions))
    excluded = np.zeros(estimated.shape, bool) if allowed is None else ~allowed
    taken = (action[:, None] == np.arange(n_actions)).astype(np.float64)
    for name in np.unique(part):
        test, train = part == name, part != name
        coefficients = logistic_regression(x[train], taken[train], excluded[train])
        estimated[test] = softmax(x[test] @ coefficients, excluded[test])
    return estimated
