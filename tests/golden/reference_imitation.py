"""Behavioural cloning: squared error, likelihood of a squashed Gaussian, and cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.golden.reference_parts import Adam, BatchOf, Parameters, gradients_of, mlp, normal_log_density


class CloningReference:
    """One network, one loss.

    Args:
        parameters: ``actor.0.*``.
        kind: ``deterministic``, ``stochastic`` or ``discrete``.
        rate: learning rate.
        beta: weight of the penalty on the mean squared logit (``discrete``).
    """

    def __init__(self, parameters: Parameters, kind: str, rate: float, beta: float = 0.0) -> None:
        self.parameters, self.kind, self.beta, self.optimizer = dict(parameters), kind, beta, Adam(rate)

    def loss(self, p: Parameters, batch: BatchOf) -> Tensor:
        """Mean over the batch."""
        out, action = mlp(p, "actor.0", batch["observation"]), batch["action"]
        total, size = torch.zeros((), dtype=torch.float64), len(out)
        for b in range(size):
            if self.kind == "deterministic":
                error = ((torch.tanh(out[b]) - action[b]) ** 2).mean()
            elif self.kind == "stochastic":
                half = out.shape[1] // 2
                u = 0.5 * torch.log((1 + action[b]) / (1 - action[b]))  # atanh
                log_std = torch.clamp(out[b, half:], -20, 2)
                density = normal_log_density(u, out[b, :half], log_std) - torch.log(1 - action[b] ** 2)
                error = -density.sum()
            else:
                log_probs = out[b] - torch.log(torch.exp(out[b]).sum())
                error = -log_probs[int(action[b])] + self.beta * (out[b] ** 2).mean()
            total = total + error / size
        return total

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        gradients, value = gradients_of(lambda p: self.loss(p, batch), self.parameters, ["actor"])
        self.optimizer.step(self.parameters, gradients)
        return {"loss": value}
