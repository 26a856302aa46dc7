"""V-MPO (1909.12238) with generalised advantage estimation (1506.02438)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.golden.reference_mpo import positive
from tests.golden.reference_parts import Adam, BatchOf, Parameters, gradients_of, number
from tests.golden.reference_ppo import PPOReference, network

Step = tuple[int, int]


class VMPOReference(PPOReference):
    """PPO's rollouts, advantages and log-probabilities; losses of eqs. 3 to 6, step by step."""

    def __init__(
        self,
        parameters: Parameters,
        *,
        dual_rate: float,
        epsilon: float,
        bounds: tuple[float, ...],
        initial_std: float,
        **rest: Any,
    ) -> None:
        unused = {"clip": 0.0, "value_clip": None, "entropy_coefficient": 0.0, "normalize": False, "target_kl": None}
        super().__init__(parameters, **unused, **rest)
        self.dual, self.epsilon, self.bounds, self.initial_std = Adam(dual_rate), epsilon, bounds, initial_std

    def policy_at(self, p: Parameters, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, or log-probabilities twice."""
        out = network(p, "actor.0", x)
        if self.policy == "discrete":
            log_probs = out - torch.log(torch.exp(out).sum())
            return log_probs, log_probs
        size = len(out) // 2
        return out[:size], self.initial_std * torch.exp(out[size:])

    def log_density(self, p: Parameters, x: Tensor, action: Tensor) -> Tensor:
        """Logarithm of the probability or density of one action."""
        mean, std = self.policy_at(p, x)
        if self.policy == "discrete":
            return mean[int(action)]
        return (-((action - mean) ** 2) / (2 * std**2) - torch.log(std) - 0.5 * math.log(2 * math.pi)).sum()

    def divergences(self, p: Parameters, start: Parameters, states: list[Tensor]) -> list[Tensor]:
        """Means over states: by mean and by standard deviation, or of all."""
        totals = [torch.zeros((), dtype=torch.float64) for _ in self.bounds]
        for x in states:
            old, new = self.policy_at(start, x), self.policy_at(p, x)
            if self.policy == "discrete":
                found = [(torch.exp(old[0]) * (old[0] - new[0])).sum()]
            else:
                by_mean = (new[0] - old[0]) ** 2 / (2 * old[1] ** 2)
                by_std = torch.log(new[1] / old[1]) + old[1] ** 2 / (2 * new[1] ** 2) - 0.5
                found = [by_mean.sum(), by_std.sum()]
            totals = [total + each / len(states) for total, each in zip(totals, found, strict=True)]
        return totals

    def update(self, rollout: BatchOf) -> dict[str, float]:
        """All passes."""
        start = dict(self.parameters)
        length, lanes = rollout["reward"].shape
        steps = [(t, n) for t in range(length) for n in range(lanes) if rollout["valid"][t, n]]
        advantage = self.advantages(rollout)
        goal = {s: advantage[s] + number(network(start, "value.0", rollout["observation"][s])) for s in steps}
        found: dict[str, list[float]] = {}
        for _ in range(self.epochs):
            order = torch.randperm(len(steps)).tolist()
            for first in range(0, len(order), self.batch_size):
                chosen = [steps[i] for i in order[first : first + self.batch_size]]
                for name, value in self.minibatch(rollout, chosen, advantage, goal, start).items():
                    found.setdefault(name, []).append(value)
        return {name: sum(values) / len(values) for name, values in found.items()}

    def minibatch(
        self,
        rollout: BatchOf,
        chosen: list[Step],
        advantage: dict[Step, float],
        goal: dict[Step, float],
        start: Parameters,
    ) -> dict[str, float]:
        """One update; all gradients are those before it."""
        p = self.parameters
        best = sorted(chosen, key=lambda s: -advantage[s])[: math.ceil(len(chosen) / 2)]
        eta, alpha = number(positive(p["temperature"])), positive(p["alpha"]).detach()
        mass = sum(math.exp(advantage[s] / eta) for s in best)
        states = [rollout["observation"][s] for s in chosen]

        def loss(q: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for s in best:
                log_prob = self.log_density(q, rollout["observation"][s], rollout["action"][s])
                total = total - math.exp(advantage[s] / eta) / mass * log_prob
            for own, each in zip(alpha, self.divergences(q, start, states), strict=True):
                total = total + own * each
            for s in chosen:
                error = network(q, "value.0", rollout["observation"][s])[0] - goal[s]
                total = total + self.value_coefficient * error**2 / (2 * len(chosen))
            return total

        kl = [number(each) for each in self.divergences(p, start, states)]

        def dual_loss(q: Parameters) -> Tensor:
            own = positive(q["temperature"])
            inner = sum(torch.exp(advantage[s] / own) for s in best) / len(best)
            total = own * self.epsilon + own * torch.log(inner)  # type: ignore[arg-type]
            for multiplier, bound, each in zip(positive(q["alpha"]), self.bounds, kl, strict=True):
                total = total + multiplier * (bound - each)
            return total

        gradients, value = gradients_of(loss, p, ["actor", "value"])
        dual_gradients, dual_value = gradients_of(dual_loss, p, ["temperature", "alpha"])
        self.optimizer.step(p, gradients)
        self.dual.step(p, dual_gradients)
        return {"loss": value, "dual_loss": dual_value, "temp": eta, "kl": sum(kl)}
