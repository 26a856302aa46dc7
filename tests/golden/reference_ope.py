"""Fitted Q evaluation (1903.08738, algorithm 3) with four heads, and the policies that it evaluates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.golden.reference_parts import (
    Adam,
    BatchOf,
    Parameters,
    average,
    gradients_of,
    members,
    mlp,
    number,
    squashed_sample,
)
from tests.golden.reference_returns import Head


@dataclass
class EvaluatedPolicy:
    """A policy with scalers of its own: environment units in, environment units out.

    Attributes:
        parameters: ``actor.0.*`` or ``critic.0.*``.
        kind: ``"deterministic"``, ``"squashed"`` (sampled), ``"greedy"`` (of Q-values) or ``"categorical"`` (all
            choices count).
        mean, std: its observations are standardised with these.
        low, high: the range of its continuous actions, which it thinks to be [-1, 1].
    """

    parameters: Parameters
    kind: str
    mean: float = 0.0
    std: float = 1.0
    low: float = -1.0
    high: float = 1.0

    def chances(self, observation: Tensor) -> list[list[float]]:
        """How probable each choice is, for each observation."""
        rows = []
        for logits in mlp(self.parameters, "actor.0", (observation - self.mean) / self.std).tolist():
            powers = [math.exp(each - max(logits)) for each in logits]
            rows.append([each / sum(powers) for each in powers])
        return rows

    def act(self, observation: Tensor) -> Tensor:
        """One action for each observation."""
        p, x = self.parameters, (observation - self.mean) / self.std
        if self.kind == "greedy":
            return torch.stack([row.argmax() for row in mlp(p, "critic.0", x)])
        if self.kind == "deterministic":
            a = torch.tanh(mlp(p, "actor.0", x))
        else:
            noise = torch.randn(len(x), p["actor.0.out.b"].shape[0] // 2, dtype=torch.float64)
            a = squashed_sample(p, "actor.0", x, noise)[0]
        return self.low + (a + 1) / 2 * (self.high - self.low)


class FQEReference:
    """Updates of FQE and DiscreteFQE.

    Args:
        parameters: ``critic.k.*`` and ``critic_target.k.*``.
        policy: what is evaluated.
        samples: actions that are drawn at each next observation.
        head: the head of the Q-functions.
        discrete: the kind of actions.
        rate: learning rate.
        interval: updates between target copies.
        gamma: discount of one step.
        observe: environment's observations to those of the Q-functions.
        condition: environment's actions to those of the Q-functions.
        reward_scale: factor of rewards.
    """

    def __init__(
        self,
        parameters: Parameters,
        policy: EvaluatedPolicy,
        *,
        samples: int,
        head: Head,
        discrete: bool,
        rate: float,
        interval: int,
        gamma: float,
        observe: Callable[[Tensor], Tensor],
        condition: Callable[[Tensor], Tensor],
        reward_scale: float,
    ) -> None:
        self.parameters, self.policy, self.samples, self.head = dict(parameters), policy, samples, head
        self.discrete, self.interval, self.gamma = discrete, interval, gamma
        self.observe, self.condition, self.reward_scale = observe, condition, reward_scale
        self.optimizer, self.updates = Adam(rate), 0
        self.n = members(parameters, "critic")

    def _z(self, p: Parameters, net: str, x: Tensor, a: Tensor, taus: Tensor | None) -> list[Tensor]:
        """Outputs ``[B, Q]`` of each member at the given actions."""
        rows = []
        for k in range(self.n):
            if self.discrete:
                out = self.head.forward(p, f"{net}.{k}", x, taus)
                rows.append(torch.stack([out[b, int(a[b])] for b in range(len(x))]))
            else:
                rows.append(self.head.forward(p, f"{net}.{k}", torch.cat([x, a], -1), taus)[:, 0])
        return rows

    def targets(self, batch: BatchOf) -> list[Tensor]:
        """``y = r + gamma**n E Q'(s', a)``: the mean over members and over drawn actions, or all by their chances."""
        x, size = self.observe(batch["next_observation"]), len(batch["reward"])
        if self.policy.kind == "categorical":
            chances = self.policy.chances(batch["next_observation"])
            actions = [torch.full((size,), choice) for choice in range(len(chances[0]))]
        else:
            actions = [self.policy.act(batch["next_observation"]) for _ in range(self.samples)]
            chances = [[1 / self.samples] * self.samples] * size
        # all members see the same levels, and discrete heads tell all actions with the same ones
        taus = self.head.draw(size if self.discrete else size * self.samples)
        outcomes: list[list[Tensor]] = [[] for _ in range(size)]
        for i, action in enumerate(actions):
            levels = taus if taus is None or self.discrete else taus[i * size : (i + 1) * size]
            for member in self._z(self.parameters, "critic_target", x, self.condition(action), levels):
                for b in range(size):
                    outcome = self.head.probabilities(member[b]) if self.head.kind == "c51" else member[b]
                    outcomes[b].append(chances[b][i] * outcome / self.n)
        result = []
        for b in range(size):
            mixed = torch.stack(outcomes[b]).sum(0)
            reward = number(batch["reward"][b]) * self.reward_scale
            discount = 0.0 if number(batch["terminal"][b]) else self.gamma ** number(batch["interval"][b])
            result.append(self.head.target(mixed, reward, discount, masses=True))
        return result

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        y = self.targets(batch)
        taus = self.head.draw(len(y))
        x, a = self.observe(batch["observation"]), self.condition(batch["action"])

        def loss(p: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for member in self._z(p, "critic", x, a, taus):
                for b, goal in enumerate(y):
                    error = self.head.loss(member[b], goal, None if taus is None else taus[b], huber=False)
                    total = total + batch["weight"][b] * error / len(y)
            return total

        gradients, value = gradients_of(loss, self.parameters, ["critic"])
        self.optimizer.step(self.parameters, gradients)
        if self.updates % self.interval == 0:
            average(self.parameters, "critic", "critic_target", 1.0)
        return {"loss": value}
