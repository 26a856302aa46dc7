"""Distributional heads of Q-functions, element by element.

A network's output is brought to ``[B, A, Q]`` (discrete) or ``[B, 1, Q]`` (continuous), where ``Q`` counts quantiles
or atoms and is 1 for expectations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.golden.reference_parts import Parameters, features, last_layer, number


@dataclass
class Head:
    """Which head, and its constants."""

    kind: str  # mean, qr, iqn, c51
    size: int = 1  # quantiles or atoms
    v_min: float = 0.0
    v_max: float = 0.0

    def draw(self, count: int) -> Tensor | None:
        """IQN draws fresh levels for each forward pass (1806.06923 section 3.1); the others have none to draw."""
        return torch.rand(count, self.size, dtype=torch.float64) if self.kind == "iqn" else None

    def forward(self, p: Parameters, net: str, x: Tensor, taus: Tensor | None) -> Tensor:
        """Outputs ``[B, A, Q]``."""
        hidden = features(p, net, x)
        if self.kind != "iqn":
            out = last_layer(p, net, hidden)
            return out.reshape(len(x), -1, self.size)
        assert taus is not None
        n_cosines = p[f"{net}.embed.w"].shape[0]
        rows = []
        for b in range(len(x)):
            columns = []
            for j in range(self.size):
                cosines = torch.stack([torch.cos(math.pi * i * taus[b, j]) for i in range(1, n_cosines + 1)])
                phi = torch.relu(cosines @ p[f"{net}.embed.w"] + p[f"{net}.embed.b"])
                columns.append(last_layer(p, net, hidden[b] * phi))
            rows.append(torch.stack(columns, -1))
        return torch.stack(rows)

    def support(self) -> list[float]:
        """C51's atoms."""
        return [self.v_min + i * (self.v_max - self.v_min) / (self.size - 1) for i in range(self.size)]

    def expectation(self, z: Tensor) -> Tensor:
        """Expected return, removing the last dimension."""
        if self.kind == "c51":
            probabilities = torch.exp(z) / torch.exp(z).sum(-1, keepdim=True)
            return (probabilities * torch.tensor(self.support(), dtype=z.dtype)).sum(-1)
        return z.sum(-1) / self.size

    def probabilities(self, z: Tensor) -> Tensor:
        """C51's masses."""
        return torch.exp(z) / torch.exp(z).sum(-1, keepdim=True)

    def target(self, z: Tensor, reward: float, discount: float, bonus: float = 0.0, *, masses: bool = False) -> Tensor:
        """``r + discount * (Z + bonus)`` for one element's ``z`` ``[Q]``; C51: algorithm 1 of 1707.06887."""
        if self.kind != "c51":
            return reward + discount * (z + bonus)
        probabilities = z if masses else self.probabilities(z)
        step = (self.v_max - self.v_min) / (self.size - 1)
        result = [0.0] * self.size
        for j, atom in enumerate(self.support()):
            moved = min(max(reward + discount * (atom + bonus), self.v_min), self.v_max)
            b = (moved - self.v_min) / step
            lower, upper = math.floor(b), math.ceil(b)
            mass = number(probabilities[j])
            if lower == upper:  # the paper's form would lose this mass
                result[lower] += mass
            else:
                result[lower] += mass * (upper - b)
                result[upper] += mass * (b - lower)
        return torch.tensor(result, dtype=z.dtype)

    def loss(self, z: Tensor, y: Tensor, taus: Tensor | None, huber: bool) -> Tensor:
        """Loss of one element: prediction ``z`` ``[Q]`` against target ``y`` ``[Q]``."""
        if self.kind == "mean":
            error = y[0] - z[0]
            if not huber:
                return error**2
            return 0.5 * error**2 if abs(number(error)) <= 1 else torch.abs(error) - 0.5
        if self.kind == "c51":
            return -(y * torch.log(self.probabilities(z))).sum()
        total = torch.zeros((), dtype=z.dtype)
        for i in range(self.size):
            tau = number(taus[i]) if taus is not None else (2 * i + 1) / (2 * self.size)
            for j in range(self.size):
                u = y[j] - z[i]
                half = 0.5 * u**2 if abs(number(u)) <= 1 else torch.abs(u) - 0.5
                total = total + abs(tau - (1.0 if number(u) < 0 else 0.0)) * half / self.size  # mean over targets
        return total
