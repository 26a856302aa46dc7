"""Small worlds whose values are known, logged many times: [R, n, T] arrays of R data sets of n episodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from birl.ope import Trajectories

Array = np.ndarray


class Fixed:
    """A policy that takes actions with the same probabilities everywhere."""

    def __init__(self, *chance: float) -> None:
        self.chance = np.array(chance)

    def action_probability(self, x: Any, action: Any = None) -> Any:
        every = np.tile(self.chance, (len(x), 1))
        return every if action is None else every[np.arange(len(every)), np.asarray(action).reshape(-1)]


def treat(chance: float) -> Fixed:
    """A policy that takes the second of two actions with the same probability everywhere."""
    return Fixed(1 - chance, chance)


@dataclass(frozen=True)
class World:
    """A finite Markov decision process with a last step. Rewards are normal around their means."""

    start: Array  # [S]
    move: Array  # [S, A, S]; what is missing to 1 ends the episode
    reward: Array  # [S, A]
    noise: float
    horizon: int
    gamma: float

    def values(self, policy: Array) -> tuple[Array, Array]:
        """``Q [T, S, A]`` and ``V [T, S]`` by going backwards."""
        return solve(self.move, self.reward, policy, self.horizon, self.gamma)

    def truth(self, policy: Array) -> float:
        return float(self.start @ self.values(policy)[1][0])


def solve(move: Array, reward: Array, policy: Array, horizon: int, gamma: float) -> tuple[Array, Array]:
    """Any leading dimensions; ``Q [..., T, S, A]``, ``V [..., T, S]``."""
    value = np.zeros(move.shape[:-2])
    qs, vs = [], []
    for _ in range(horizon):
        q = reward + gamma * (move @ value[..., None, :, None])[..., 0]
        value = (policy * q).sum(-1)
        qs.append(q)
        vs.append(value)
    return np.stack(qs[::-1], -3), np.stack(vs[::-1], -2)


def world(seed: int, horizon: int, ends: float = 0.0, shift: float = 0.0, noise: float = 0.5) -> World:
    gamma, rng = 0.95, np.random.default_rng(seed)
    move = rng.dirichlet(np.ones(5), (5, 3)) * (1 - ends * rng.uniform(0.5, 1.5, (5, 3)))[..., None]
    return World(rng.dirichlet(np.ones(5)), move, rng.uniform(0, 2, (5, 3)) + shift, noise, horizon, gamma)


def policies(seed: int, distance: float, temperature: float = 0.5) -> tuple[Array, Array]:
    """A logging policy and one to evaluate, at a ``distance`` in logits, ``[S, A]``."""
    rng = np.random.default_rng(seed)
    logits = temperature * rng.normal(size=(5, 3))
    both = np.exp([logits, logits + distance * rng.normal(size=(5, 3))])
    return tuple(both / both.sum(-1, keepdims=True))


@dataclass(frozen=True)
class Logs:
    state: Array
    action: Array
    reward: Array
    mask: Array
    goes_to: Array  # S at the end


def _draw(rng: np.random.Generator, probability: Array) -> Array:
    """Indices, one more than there are probabilities for what is missing to 1."""
    at = rng.random(probability.shape[:-1])
    out = np.zeros(at.shape, np.int64)
    total = np.zeros(at.shape)
    for k in range(probability.shape[-1]):
        total = total + probability[..., k]
        out += at > total
    return out


def log(of: World, policy: Array, repetitions: int, n: int, seed: int) -> Logs:
    rng = np.random.default_rng(seed)
    here = _draw(rng, np.broadcast_to(of.start * (1 + 1e-12), (repetitions, n, 5)))
    alive = np.ones(here.shape, bool)
    rows = []
    moves = np.concatenate([of.move, np.zeros((1, 3, 5))])
    chances, pays = np.concatenate([policy, policy[:1]]) * (1 + 1e-12), np.concatenate([of.reward, of.reward[:1]])
    ends = of.move.sum(-1).min() < 1 - 1e-9
    for t in range(of.horizon):
        action = _draw(rng, chances[here])
        reward = np.where(alive, pays[here, action] + of.noise * rng.normal(size=here.shape), 0.0)
        to = _draw(rng, moves[here, action] * (1 if ends else 1 + 1e-12))
        to = np.full_like(to, 5) if t == of.horizon - 1 else np.where(alive, to, 5)
        rows.append((here, action, reward, alive, to))
        alive, here = alive & (to < 5), to
    return Logs(*(np.stack(column, -1) for column in zip(*rows, strict=True)))


def counts(of: Logs, world: World) -> tuple[Array, Array]:
    """Of each episode and each ``(s, a)``, ``[R, n, 15, ...]``: how often it led to s' (5: an end); rewards, visits."""
    size = of.mask.shape[0] * of.mask.shape[1]
    pair = np.arange(size).reshape(*of.mask.shape[:2], 1) * 15 + np.minimum(of.state, 4) * 3 + of.action
    last = np.arange(of.mask.shape[-1]) == world.horizon - 1
    moved = np.bincount((pair * 6 + of.goes_to)[of.mask & ~last], minlength=size * 90)
    paid = np.bincount(pair[of.mask], of.reward[of.mask], size * 15)
    seen = np.bincount(pair[of.mask], minlength=size * 15)
    shape = of.mask.shape[:2]
    rewards = np.stack([paid, seen], -1).reshape(*shape, 15, 2)
    return moved.reshape(*shape, 15, 6).astype(np.float64), rewards


def fit(moved: Array, paid: Array, policy: Array, world: World) -> tuple[Array, Array]:
    """Fitted Q evaluation on one-hot states, by counting: ``Q [..., T, S, A]``, ``V [..., T, S]``."""
    move = moved[..., :5] / np.maximum(moved.sum(-1, keepdims=True), 1)
    reward = paid[..., 0] / np.maximum(paid[..., 1], 1)
    shape = moved.shape[:-2]
    return solve(move.reshape(*shape, 5, 3, 5), reward.reshape(*shape, 5, 3), policy, world.horizon, world.gamma)


def trajectories(of: Logs, world: World, logger: Array, policy: Array, parts: int = 2) -> Trajectories:
    """Seen from ``policy``, with a model of each part of the episodes that was fitted on the others."""
    moved, paid = counts(of, world)
    part = np.arange(of.mask.shape[1]) % parts
    others = (part[None, :] != np.arange(parts)[:, None]).astype(np.float64)  # [parts, n]
    moved = (others @ moved.reshape(*moved.shape[:2], -1)).reshape(len(moved), parts, 15, 6)
    paid = (others @ paid.reshape(*paid.shape[:2], -1)).reshape(len(paid), parts, 15, 2)
    q, v = fit(moved, paid, policy, world)
    at = (np.arange(len(of.mask))[:, None, None], part[None, :, None], np.arange(world.horizon))
    state = np.minimum(of.state, 4)
    ratio = np.log(policy / logger)[state, of.action]
    return Trajectories(of.reward, of.mask, world.gamma, ratio, q[(*at, state, of.action)], v[(*at, state)])


def too_few(hits: int, n: int, p: float) -> bool:
    """Whether a binomial test rejects that hits have the probability ``p`` or more, at 1e-3."""
    terms = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
        for k in range(hits + 1)
    ]
    return math.fsum(map(math.exp, terms)) < 1e-3


def covers(hits: Array, low: float = 0.93, high: float = 0.97) -> bool:
    """Whether no binomial test rejects at 1e-3 that the coverage is between ``low`` and ``high``."""
    n, count = hits.size, int(hits.sum())
    return not too_few(count, n, low) and not too_few(n - count, n, 1 - high)
