"""Rainbow on CartPole in plain PyTorch, as one would write it by hand: which `work.py` compares with birl.

Double Q-learning with a categorical dueling noisy network, three-step returns and replay by priority from a sum tree
(Hessel et al. 2017, arXiv:1710.02298). No part of it is birl's. ``python benchmarks/rainbow.py`` plays 20,000 steps and
prints the returns.
"""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Rainbow"]

HIDDEN, ATOMS, LIMIT, GAMMA, STEPS_AHEAD = [64, 64], 51, 100.0, 0.99, 3
CAPACITY, BATCH, START, RATE, TARGET = 100_000, 32, 300, 1e-4, 2500
ALPHA, BETA, BETA_STEPS, EPSILON = 0.5, 0.4, 100_000, 1e-6


class NoisyLinear(nn.Module):
    """Factorised Gaussian noise (Fortunato et al. 2017, arXiv:1706.10295, section 3)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound, sigma = inputs**-0.5, 0.5 * inputs**-0.5
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma))
        self.renew()

    def renew(self) -> None:
        """Draw other noise."""
        outputs, inputs = self.weight.shape
        left, right = torch.randn(inputs), torch.randn(outputs)
        self.left, self.right = (x.sign() * x.abs().sqrt() for x in (left, right))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + self.weight_sigma * torch.outer(self.right, self.left)
        return functional.linear(x, weight, self.bias + self.bias_sigma * self.right)


class Network(nn.Module):
    """Logarithms of the probabilities ``[B, actions, ATOMS]`` of returns."""

    def __init__(self, observation_size: int, n_actions: int) -> None:
        super().__init__()
        first, second = HIDDEN
        self.body = nn.Sequential(nn.Linear(observation_size, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU())
        self.value, self.advantage = (
            nn.Sequential(NoisyLinear(second, second), nn.ReLU(), NoisyLinear(second, size))
            for size in (ATOMS, n_actions * ATOMS)
        )
        self.n_actions = n_actions

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        value, advantage = self.value(x)[:, None], self.advantage(x).view(-1, self.n_actions, ATOMS)
        return (value + advantage - advantage.mean(1, keepdim=True)).log_softmax(-1)

    def renew(self) -> None:
        """Draw other noise."""
        for layer in (*self.value, *self.advantage):
            if isinstance(layer, NoisyLinear):
                layer.renew()


class SumTree:
    """A heap of sums over numpy, walked down for one minibatch at once."""

    def __init__(self, size: int) -> None:
        self.size = 1 << (size - 1).bit_length()
        self.sums = np.zeros(2 * self.size)

    def set(self, leaf: Any, value: Any) -> None:
        """Change leaves."""
        node = np.atleast_1d(leaf) + self.size
        self.sums[node] = value
        while node[0] > 1:
            node = np.unique(node // 2)
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]

    def find(self, mass: Any) -> Any:
        """The leaves at these masses."""
        node = np.ones(len(mass), np.int64)
        while node[0] < self.size:
            node = 2 * node
            right = mass >= self.sums[node]
            mass = mass - np.where(right, self.sums[node], 0.0)
            node = node + right
        return node - self.size


class Rainbow:
    """The loop."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.random = np.random.default_rng(0)
        self.env = gymnasium.make("CartPole-v1")
        self.state, _ = self.env.reset(seed=0)
        size, self.n_actions = len(self.state), int(self.env.action_space.n)  # type: ignore[attr-defined]
        self.online = Network(size, self.n_actions)
        self.target = copy.deepcopy(self.online)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=RATE)
        self.support = torch.linspace(-LIMIT, LIMIT, ATOMS)
        self.states = np.zeros((2, CAPACITY, size), np.float32)
        self.actions = np.zeros(CAPACITY, np.int64)
        self.returns, self.discounts = np.zeros((2, CAPACITY), np.float32)
        self.tree, self.greatest = SumTree(CAPACITY), 1.0
        self.window: deque[Any] = deque()
        self.stored = self.steps = self.updates = 0
        self.scores, self.score = [0.0], 0.0
        while self.steps < START:
            self.step()

    @property
    def parameters(self) -> int:
        """Number of parameters of both networks."""
        return 2 * sum(parameter.numel() for parameter in self.online.parameters())

    def step(self) -> float:
        """One step and, after the first `START`, one update."""
        if self.steps < START:
            action = int(self.random.integers(self.n_actions))
        else:
            with torch.no_grad():
                self.online.renew()
                values = self.online(torch.from_numpy(self.state)[None]).exp() @ self.support
                action = int(values.argmax())
        following, reward, terminated, truncated, _ = self.env.step(action)
        self.window.append((self.state, action, float(reward)))
        self.score += float(reward)
        if terminated or truncated:
            while self.window:
                self._store(following, terminated)
            self.state, _ = self.env.reset()
            self.scores.append(self.score)
            self.score = 0.0
        else:
            if len(self.window) == STEPS_AHEAD:
                self._store(following, False)
            self.state = following
        self.steps += 1
        if self.steps > START:
            self.update()
        return 1

    def _store(self, following: Any, terminated: bool) -> None:
        """The oldest step of the window, whose return leads to ``following``."""
        place = self.stored % CAPACITY
        self.states[0, place], self.actions[place] = self.window[0][:2]
        self.returns[place] = sum(GAMMA**k * reward for k, (_, _, reward) in enumerate(self.window))
        self.states[1, place] = following
        self.discounts[place] = 0.0 if terminated else GAMMA ** len(self.window)
        self.tree.set(place, self.greatest)
        self.window.popleft()
        self.stored += 1

    def update(self) -> None:
        """One gradient step."""
        total = self.tree.sums[1]
        rows = self.tree.find((np.arange(BATCH) + self.random.random(BATCH)) / BATCH * total)
        beta = min(1.0, BETA + (1 - BETA) * self.updates / BETA_STEPS)
        priority = self.tree.sums[rows + self.tree.size]
        weight = torch.from_numpy((priority / priority.min()) ** -beta).float()
        state, following = torch.from_numpy(self.states[:, rows])
        action = torch.from_numpy(self.actions[rows])
        reward, discount = torch.from_numpy(self.returns[rows]), torch.from_numpy(self.discounts[rows])
        each = torch.arange(BATCH)
        self.online.renew()
        self.target.renew()
        with torch.no_grad():
            best = (self.online(following).exp() @ self.support).argmax(1)
            chance = self.target(following)[each, best].exp()
            moved = (reward[:, None] + discount[:, None] * self.support).clamp(-LIMIT, LIMIT)
            place = (moved + LIMIT) / (2 * LIMIT / (ATOMS - 1))
            below, above = place.floor().long(), place.ceil().long()
            goal = torch.zeros(BATCH, ATOMS)
            goal.scatter_add_(1, below, chance * (above.float() - place + (below == above)))
            goal.scatter_add_(1, above, chance * (place - below.float()))
        loss = -(goal * self.online(state)[each, action]).sum(1)
        self.optimizer.zero_grad()
        (weight * loss).mean().backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self.optimizer.step()
        new = (loss.detach().numpy().astype(np.float64) + EPSILON) ** ALPHA
        self.tree.set(rows, new)
        self.greatest = max(self.greatest, float(new.max()))
        self.updates += 1
        if self.updates % TARGET == 0:
            self.target.load_state_dict(self.online.state_dict())


if __name__ == "__main__":
    loop = Rainbow()
    while loop.steps < 20_000:
        loop.step()
        if loop.steps % 2000 == 0:
            print(loop.steps, np.mean(loop.scores[-20:]))  # noqa: T201
