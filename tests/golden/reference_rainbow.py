"""Dueling heads (1511.06581 eq. 9) and noisy layers (1706.10295 eqs. 9-11) in DQN, Double DQN and discrete CQL.

Each pass of a network draws noise of its own, layer by layer from the input on, the value's stream before the
advantages': for each member ``eps_in`` and then ``eps_out``. IQN draws its levels before its embedding is used.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.golden.reference_parts import Parameters, number
from tests.golden.reference_value import ValueReference

Layer = tuple[str, str]  # before and after the "w" or "b" of its parameters


def squashed(x: float) -> float:
    """``f(x) = sgn(x) sqrt(|x|)``."""
    return math.copysign(math.sqrt(abs(x)), x)


class RainbowReference(ValueReference):
    """Updates of DQN, DoubleDQN and DiscreteCQL with dueling or noisy networks.

    Args:
        dueling: whether the head has two streams.
        noisy: whether all layers have noise.
        trunk: factor on the gradients that leave the streams.
        **others: see `ValueReference`.
    """

    def __init__(
        self, parameters: Parameters, *, dueling: bool, noisy: bool, trunk: float = 1.0, **others: Any
    ) -> None:
        super().__init__(parameters, **others)
        self.dueling, self.noisy, self.trunk = dueling, noisy, trunk
        self.drawn: list[Tensor] = []

    def _layers(self, prefix: str) -> list[Layer]:
        count = 0
        while f"critic.0.{prefix}w{count}" in self.parameters:
            count += 1
        return [(prefix, str(i)) for i in range(count)]

    def _last(self) -> list[Layer]:
        if not self.dueling:
            return [("out.", "")]
        streams = ("value.", "advantage.")
        return [layer for each in streams for layer in (*self._layers(each), (f"{each}out.", ""))]

    def _draw(self, layers: list[Layer]) -> dict[Layer, Tensor]:
        """A row of noise for each member, for each layer."""
        if not self.noisy:
            return {}
        noise = {}
        for layer in layers:
            inputs, outputs = self.parameters[f"critic.0.{layer[0]}w{layer[1]}"].shape
            noise[layer] = torch.randn(self.n, inputs + outputs, dtype=torch.float64)
        self.drawn += noise.values()
        return noise

    def _all(self, p: Parameters, net: str, x: Tensor) -> tuple[list[Tensor], Tensor | None]:
        noise = self._draw(self._layers(""))
        taus = self.head.draw(len(x))
        noise |= self._draw(([("embed.", "")] if taus is not None else []) + self._last())
        return [self._member(p, net, k, x, taus, noise) for k in range(self.n)], taus

    def _member(
        self, p: Parameters, net: str, k: int, x: Tensor, taus: Tensor | None, noise: dict[Layer, Tensor]
    ) -> Tensor:
        """Outputs ``[B, A, Q]``."""

        def linear(layer: Layer, x: Tensor) -> Tensor:
            weight, bias = (p[f"{net}.{k}.{layer[0]}{kind}{layer[1]}"] for kind in "wb")
            if layer in noise:
                sigma_w, sigma_b = (p[f"{net}.{k}.sigma.{layer[0]}{kind}{layer[1]}"] for kind in "wb")
                f = [squashed(number(each)) for each in noise[layer][k]]
                f_in, f_out = f[: len(weight)], f[len(weight) :]
                weight = weight + sigma_w * torch.tensor([[a * b for b in f_out] for a in f_in])  # eq. 10
                bias = bias + sigma_b * torch.tensor(f_out)  # eq. 11
            return x @ weight + bias

        def hidden(prefix: str, x: Tensor) -> Tensor:
            for layer in self._layers(prefix):
                x = linear(layer, x)
                x = torch.where(x > 0, x, torch.zeros_like(x))
            return x

        def outputs(x: Tensor) -> Tensor:
            """``[B, A * size]``"""
            if not self.dueling:
                return linear(("out.", ""), x)
            value = linear(("value.out.", ""), hidden("value.", x))
            advantage = linear(("advantage.out.", ""), hidden("advantage.", x))
            size = value.shape[-1]
            each = [advantage[:, i : i + size] for i in range(0, advantage.shape[-1], size)]  # by action
            return torch.cat([value + one - sum(each) / len(each) for one in each], -1)

        x = hidden("", x)
        if self.trunk != 1.0 and x.requires_grad:
            x.register_hook(lambda gradient: self.trunk * gradient)
        if taus is None:
            return outputs(x).reshape(len(x), -1, self.head.size)
        columns = []
        for j in range(self.head.size):
            angles = [math.pi * i * taus[:, j] for i in range(1, p[f"{net}.{k}.embed.w"].shape[0] + 1)]
            phi = linear(("embed.", ""), torch.stack([torch.cos(angle) for angle in angles], -1))
            columns.append(outputs(x * torch.where(phi > 0, phi, torch.zeros_like(phi))))
        return torch.stack(columns, -1)
