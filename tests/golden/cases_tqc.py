"""Goldens of TQC (2005.04269), with its reference: the mixture as a sorted list of numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from birl import algos
from tests.golden.case import ACTOR_FIELDS, ACTOR_RATES, Case, transitions, with_head
from tests.golden.reference_actor_critic import MeanOfCriticsReference
from tests.golden.reference_parts import BatchOf, Parameters, gradients_of, number, squashed_sample


class TQCReference(MeanOfCriticsReference):
    """Algorithm 1 of 2005.04269, with the mean over predicted quantiles and over critics."""

    def __init__(self, parameters: Parameters, *, dropped: int, **rest: Any) -> None:
        super().__init__(parameters, **rest)
        self.dropped = dropped

    def critic_step(self, batch: BatchOf) -> float:
        """Quantile regression on what is left of the mixture."""
        p, head, size = self.parameters, self.head, len(batch["reward"])
        following = batch["next_observation"]
        noise = torch.randn(batch["action"].shape, dtype=torch.float64)
        action, log_density = squashed_sample(p, "actor.0", following, noise)
        z, _ = self._values(p, "critic_target", following, action)
        alpha = math.exp(number(p["temperature"]))
        y = []
        for b in range(size):
            mixture = sorted(number(value) for member in z for value in member[b])
            kept = mixture[: self.n * (head.size - self.dropped)]
            reward, discount = number(batch["reward"][b]), number(batch["discount"][b])
            y.append([reward + discount * (value - alpha * number(log_density[b])) for value in kept])

        def loss(q: Parameters) -> Tensor:
            predicted, taus = self._values(q, "critic", batch["observation"], batch["action"])
            total = torch.zeros((), dtype=torch.float64)
            for member in predicted:
                for b in range(size):
                    for i in range(head.size):
                        tau = (2 * i + 1) / (2 * head.size) if taus is None else number(taus[b, i])
                        for goal in y[b]:
                            u = goal - member[b, i]
                            huber = 0.5 * u**2 if abs(number(u)) <= 1 else torch.abs(u) - 0.5
                            share = batch["weight"][b] / (len(y[b]) * head.size * size * self.n)
                            total = total + share * abs(tau - (1.0 if number(u) < 0 else 0.0)) * huber
            return total

        gradients, value = gradients_of(loss, p, ["critic"])
        self.critic.step(p, gradients)
        return value


def _tqc(head: str, logarithm: bool) -> Case:
    fields = {**ACTOR_FIELDS, "temp_learning_rate": 3e-2, "initial_temperature": 0.4, "tau": 0.1}
    fields |= {"n_critics": 3, "n_dropped_quantiles": 1, **({} if logarithm else {"log_temperature_loss": False})}
    numbers = {**ACTOR_RATES, "temp_rate": 3e-2, "tau": 0.1, "dropped": 1, "logarithm": logarithm}
    return Case(head, **with_head(head, algos.TQCConfig, fields, TQCReference, numbers), inputs=transitions)


CASES = (_tqc("qr", logarithm=True), _tqc("iqn", logarithm=False))
