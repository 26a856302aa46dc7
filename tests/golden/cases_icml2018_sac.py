"""Golden of SAC in its first form (1801.01290), with its reference: plain loops over transitions."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from birl import algos
from tests.golden.case import ACTOR_FIELDS, ACTOR_RATES, ENCODER, Case, weighted_transitions
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


class FirstSACReference:
    """Algorithm 1 of 1801.01290: V, then the Q-functions, then the policy, then the target of V."""

    def __init__(self, parameters: Parameters, *, actor_rate: float, critic_rate: float, tau: float) -> None:
        self.parameters, self.tau = dict(parameters), tau
        self.actor, self.critic, self.value = Adam(actor_rate), Adam(critic_rate), Adam(critic_rate)
        self.n = members(parameters, "critic")

    def _lowest(self, p: Parameters, x: Tensor, action: Tensor) -> Tensor:
        values = [mlp(p, f"critic.{k}", torch.cat([x, action]))[0] for k in range(self.n)]
        return min(values, key=number)

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        p, size = self.parameters, len(batch["reward"])
        x, weight = batch["observation"], batch["weight"]
        a, log_density = squashed_sample(p, "actor.0", x, torch.randn(batch["action"].shape, dtype=torch.float64))
        goals = [number(self._lowest(p, x[b], a[b])) - number(log_density[b]) for b in range(size)]

        def value_loss(q: Parameters) -> Tensor:
            v = mlp(q, "value.0", x)[:, 0]
            return sum(weight[b] * (v[b] - goals[b]) ** 2 / 2 for b in range(size)) / size  # type: ignore[return-value]

        gradients, v_loss = gradients_of(value_loss, p, ["value"])
        self.value.step(p, gradients)

        following = mlp(p, "value_target.0", batch["next_observation"])
        y = [number(batch["reward"][b]) + number(batch["discount"][b]) * number(following[b, 0]) for b in range(size)]

        def critic_loss(q: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for k in range(self.n):
                values = mlp(q, f"critic.{k}", torch.cat([x, batch["action"]], -1))
                for b in range(size):
                    total = total + weight[b] * (values[b, 0] - y[b]) ** 2 / size
            return total

        gradients, q_loss = gradients_of(critic_loss, p, ["critic"])
        self.critic.step(p, gradients)
        noise = torch.randn(batch["action"].shape, dtype=torch.float64)

        def actor_loss(q: Parameters) -> Tensor:
            action, density = squashed_sample(q, "actor.0", x, noise)
            total = torch.zeros((), dtype=torch.float64)
            for b in range(size):
                total = total + weight[b] * (density[b] - self._lowest(q, x[b], action[b]))
            return total / size

        gradients, pi_loss = gradients_of(actor_loss, p, ["actor"])
        self.actor.step(p, gradients)
        average(p, "value", "value_target", self.tau)
        return {"v_loss": v_loss, "critic_loss": q_loss, "actor_loss": pi_loss}


CASES = (
    Case(
        "",
        algos.ICML2018SACConfig(**ACTOR_FIELDS, value_encoder_factory=ENCODER, tau=0.1),
        partial(FirstSACReference, **ACTOR_RATES, tau=0.1),
        weighted_transitions,
    ),
)
