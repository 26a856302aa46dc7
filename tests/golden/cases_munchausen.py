"""Goldens of Munchausen DQN (2007.14430), with its reference: plain loops over transitions and actions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from birl import algos
from tests.golden.case import HEADS, VALUE_FIELDS, Case, weighted_transitions, with_head
from tests.golden.reference_parts import Adam, BatchOf, Parameters, average, gradients_of, members, number
from tests.golden.reference_returns import Head

NUMBERS = {"temperature": 0.4, "scale": 0.8, "lowest": -0.45}


class MunchausenReference:
    """Updates of Munchausen DQN.

    Args:
        parameters: ``critic.k.*`` and ``critic_target.k.*``.
        head: the head of the Q-functions.
        temperature, scale, lowest: ``tau``, ``alpha`` and ``l_0`` of the paper.
    """

    def __init__(self, parameters: Parameters, head: Head, temperature: float, scale: float, lowest: float) -> None:
        self.parameters, self.head = dict(parameters), head
        self.temperature, self.scale, self.lowest = temperature, scale, lowest
        self.optimizer, self.updates = Adam(1e-2, eps=1e-2 / 32), 0
        self.n = members(parameters, "critic")
        self.clipped = self.unclipped = 0

    def _all(self, p: Parameters, net: str, x: Tensor) -> tuple[list[Tensor], Tensor | None]:
        taus = self.head.draw(len(x))
        return [self.head.forward(p, f"{net}.{k}", x, taus) for k in range(self.n)], taus

    def _log_policy(self, z: list[Tensor], b: int) -> list[float]:
        """``log softmax(q / tau)`` of one state, action by action; ``q`` is the mean of the ensemble."""
        q = [
            number(sum(self.head.expectation(each[b, a : a + 1]).sum() for each in z) / self.n)
            for a in range(z[0].shape[1])
        ]
        highest = max(q)
        total = sum(math.exp((value - highest) / self.temperature) for value in q)
        return [(value - highest) / self.temperature - math.log(total) for value in q]

    def targets(self, batch: BatchOf) -> list[Tensor]:
        """Target of each transition, ``[Q]``."""
        head, result = self.head, []
        following, _ = self._all(self.parameters, "critic_target", batch["next_observation"])
        present, _ = self._all(self.parameters, "critic_target", batch["observation"])
        for b in range(len(batch["reward"])):
            log_policy = self.temperature * self._log_policy(present, b)[int(batch["action"][b])]
            self.clipped, self.unclipped = (
                self.clipped + (log_policy < self.lowest),
                self.unclipped + (log_policy > self.lowest),
            )
            reward = number(batch["reward"][b]) + self.scale * min(max(log_policy, self.lowest), 0.0)
            next_log_policy = self._log_policy(following, b)
            bonus, rows = 0.0, [torch.zeros(head.size, dtype=torch.float64) for _ in range(self.n)]
            for a, logarithm in enumerate(next_log_policy):
                bonus -= self.temperature * math.exp(logarithm) * logarithm
                for k in range(self.n):
                    row = following[k][b, a]
                    row = head.probabilities(row) if head.kind == "c51" else row
                    rows[k] = rows[k] + math.exp(logarithm) * row
            atoms = head.support() if head.kind == "c51" else [1 / head.size] * head.size
            values = [sum(number(x) * atom for x, atom in zip(row, atoms, strict=True)) for row in rows]
            worst = rows[values.index(min(values))]
            result.append(head.target(worst, reward, number(batch["discount"][b]), bonus, masses=True))
        return result

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        y, head = self.targets(batch), self.head
        state = torch.get_rng_state()

        def loss(p: Parameters) -> Tensor:
            torch.set_rng_state(state)
            z, taus = self._all(p, "critic", batch["observation"])
            total = torch.zeros((), dtype=torch.float64)
            for k in range(self.n):
                for b in range(len(y)):
                    levels = None if taus is None else taus[b]
                    error = head.loss(z[k][b, int(batch["action"][b])], y[b], levels, huber=True)
                    total = total + batch["weight"][b] * error / len(y)
            return total

        gradients, value = gradients_of(loss, self.parameters, ["critic"])
        self.optimizer.step(self.parameters, gradients)
        if self.updates % 2 == 0:
            average(self.parameters, "critic", "critic_target", 1.0)
        return {"loss": value}


def _munchausen(head: str) -> Case:
    fields = {**VALUE_FIELDS, "n_critics": 2, "target_update_interval": 2} | {
        "entropy_temperature": NUMBERS["temperature"],
        "munchausen_scaling_term": NUMBERS["scale"],
        "clipping_value": NUMBERS["lowest"],
    }

    def check(reference: MunchausenReference) -> None:
        assert min(reference.clipped, reference.unclipped) >= 3, "nothing is shown about the clipping"

    parts = with_head(head, algos.MunchausenDQNConfig, fields, MunchausenReference, NUMBERS)
    return Case(head, **parts, inputs=weighted_transitions, check=check)


CASES = tuple(_munchausen(head) for head in HEADS)
