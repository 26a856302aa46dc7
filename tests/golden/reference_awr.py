"""Advantage-weighted regression (1910.00177), with the TD(lambda) returns of its section 3.2, written forwards."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.golden.reference_parts import Parameters, gradients_of, mlp, normal_log_density, number


class Momentum:
    """Gradient descent with momentum 0.9: the velocity is the decayed sum of all gradients."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.velocity: dict[str, Tensor] = {}

    def step(self, parameters: Parameters, gradients: dict[str, Tensor]) -> None:
        for name, gradient in gradients.items():
            self.velocity[name] = 0.9 * self.velocity.get(name, torch.zeros_like(gradient)) + gradient
            parameters[name] = parameters[name] - self.rate * self.velocity[name]


class AWRReference:
    """One iteration: returns of the drawn states, then minibatches for V, then minibatches for the policy.

    An episode is a dictionary: ``observation`` ``[T, F]``, ``action``, ``reward`` ``[T]``, ``terminated``, and
    ``final`` ``[F]``: the observation after the last step, ``None`` if unknown.
    """

    def __init__(
        self,
        parameters: Parameters,
        *,
        actor_rate: float,
        critic_rate: float,
        gamma: float,
        lam: float,
        beta: float,
        max_weight: float,
        size: int,
        critic_updates: int,
        actor_updates: int,
        discrete: bool,
    ) -> None:
        self.parameters = dict(parameters)
        self.actor, self.critic = Momentum(actor_rate), Momentum(critic_rate)
        self.gamma, self.lam, self.beta, self.max_weight = gamma, lam, beta, max_weight
        self.size, self.critic_updates, self.actor_updates = size, critic_updates, actor_updates
        self.discrete = discrete

    def value(self, x: Tensor) -> float:
        return number(mlp(self.parameters, "value.0", x)[0])

    def lambda_return(self, episode: dict[str, Any], t: int) -> float:
        """The mean of all n-step returns with weights ``(1 - lambda) lambda^(n - 1)``; the rest goes to the longest."""
        rewards, after = episode["reward"].tolist(), [*episode["observation"][1:]]
        if episode["terminated"]:
            after.append(None)
        elif episode["final"] is not None:
            after.append(episode["final"])
        else:
            rewards = rewards[:-1]
        longest, total, discounted = len(rewards) - t, 0.0, 0.0
        for n in range(1, longest + 1):
            discounted += self.gamma ** (n - 1) * rewards[t + n - 1]
            following = after[t + n - 1]
            bootstrap = 0.0 if following is None else self.gamma**n * self.value(following)
            share = self.lam ** (n - 1) * (1.0 if n == longest else 1 - self.lam)
            total += share * (discounted + bootstrap)
        return total

    def log_prob(self, p: Parameters, x: Tensor, action: Tensor) -> Tensor:
        out = mlp(p, "actor.0", x)
        if self.discrete:
            return out[int(action)] - torch.log(torch.exp(out).sum())
        log_std = torch.clamp(p["actor.log_std"], -5.0, 2.0)
        return normal_log_density(action, torch.tanh(out), log_std).sum()

    def minibatches(self, count: int, total: int) -> list[list[int]]:
        """EngineUpdates in new orders; steps that do not fill a minibatch wait for the next pass."""
        chosen: list[list[int]] = []
        while len(chosen) < count:
            order = torch.randperm(total).tolist()
            for first in range(0, total - self.size + 1, self.size):
                if len(chosen) < count:
                    chosen.append(order[first : first + self.size])
        return chosen

    def update(self, batch: dict[str, Any]) -> dict[str, float]:
        """``batch``: ``episodes``, ``drawn`` (pairs of an episode's number and a step) and each pair's ``weight``."""
        episodes = batch["episodes"]
        steps = [(episodes[e]["observation"][t], episodes[e]["action"][t]) for e, t in batch["drawn"]]
        returns = [self.lambda_return(episodes[e], t) for e, t in batch["drawn"]]
        counts = batch["weight"].tolist()

        critic_losses = []
        for chosen in self.minibatches(self.critic_updates, len(steps)):

            def critic_loss(p: Parameters, chosen=chosen) -> Tensor:  # type: ignore[no-untyped-def]
                errors = [counts[i] * (returns[i] - mlp(p, "value.0", steps[i][0])[0]) ** 2 for i in chosen]
                return sum(errors[1:], errors[0]) / len(chosen)

            gradients, value = gradients_of(critic_loss, self.parameters, ["value"])
            self.critic.step(self.parameters, gradients)
            critic_losses.append(value)

        advantages = [returns[i] - self.value(steps[i][0]) for i in range(len(steps))]
        weights = [min(math.exp(min(a / self.beta, 700.0)), self.max_weight) for a in advantages]
        actor_losses, used = [], []
        for chosen in self.minibatches(self.actor_updates, len(steps)):

            def actor_loss(p: Parameters, chosen=chosen) -> Tensor:  # type: ignore[no-untyped-def]
                terms = [-counts[i] * weights[i] * self.log_prob(p, *steps[i]) for i in chosen]
                return sum(terms[1:], terms[0]) / len(chosen)

            gradients, value = gradients_of(actor_loss, self.parameters, ["actor"])
            self.actor.step(self.parameters, gradients)
            actor_losses.append(value)
            used.append(sum(counts[i] * weights[i] for i in chosen) / len(chosen))
        return {
            "critic_loss": sum(critic_losses) / len(critic_losses),
            "actor_loss": sum(actor_losses) / len(actor_losses),
            "weights": sum(used) / len(used),
        }
