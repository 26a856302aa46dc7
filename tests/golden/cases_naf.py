"""Golden of NAF (1603.00748), with its reference: matrices element by element."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from birl import algos
from tests.golden.case import VALUE_FIELDS, Case, weighted_transitions
from tests.golden.reference_parts import Adam, BatchOf, Parameters, average, gradients_of, mlp, number


class NAFReference:
    """Algorithm 1 of 1603.00748, without imagined rollouts.

    Outputs of a network: V, the mean before its tanh, the logarithms of L's diagonal, and L's rows below it.
    """

    def __init__(self, parameters: Parameters, *, tau: float) -> None:
        self.parameters, self.tau, self.optimizer = dict(parameters), tau, Adam(1e-2)

    @staticmethod
    def _q(out: Tensor, action: Tensor) -> Tensor:
        n = len(action)
        value, mean = out[0], torch.tanh(out[1 : 1 + n])
        lower = [[torch.zeros((), dtype=torch.float64) for _ in range(n)] for _ in range(n)]
        place = 1 + 2 * n
        for i in range(n):
            lower[i][i] = torch.exp(out[1 + n + i])
            for j in range(i):
                lower[i][j] = out[place]
                place += 1
        assert place == len(out)
        advantage = torch.zeros((), dtype=torch.float64)
        for i in range(n):
            for j in range(n):
                p = sum(lower[i][k] * lower[j][k] for k in range(n))  # P = L L^T
                advantage = advantage - (action[i] - mean[i]) * p * (action[j] - mean[j]) / 2
        return value + advantage

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        p, size = self.parameters, len(batch["reward"])
        following = mlp(p, "critic_target.0", batch["next_observation"])
        y = [number(batch["reward"][b]) + number(batch["discount"][b]) * number(following[b, 0]) for b in range(size)]

        def loss(q: Parameters) -> Tensor:
            out = mlp(q, "critic.0", batch["observation"])
            total = torch.zeros((), dtype=torch.float64)
            for b in range(size):
                total = total + batch["weight"][b] * (y[b] - self._q(out[b], batch["action"][b])) ** 2
            return total / size

        gradients, value = gradients_of(loss, p, ["critic"])
        self.optimizer.step(p, gradients)
        average(p, "critic", "critic_target", self.tau)
        return {"loss": value}


CASES = (Case("", algos.NAFConfig(**VALUE_FIELDS, tau=0.1), partial(NAFReference, tau=0.1), weighted_transitions),)
