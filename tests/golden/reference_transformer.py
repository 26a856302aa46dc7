"""Decision Transformer (2106.01345) with GPT-2's pre-norm blocks, token by token.

Parameters: ``transformer.0.w{i}``/``b{i}`` embed observations; ``transformer.0.<part>.w``/``b`` are the other layers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.golden.reference_parts import Adam, BatchOf, Parameters, features, gradients_of

NET = "transformer.0"


def norm(p: Parameters, part: str, x: Tensor) -> Tensor:
    """Layer normalisation of one token."""
    mean = x.mean()
    variance = ((x - mean) ** 2).mean()
    return (x - mean) / torch.sqrt(variance + 1e-5) * p[f"{NET}.{part}.w"] + p[f"{NET}.{part}.b"]


def linear(p: Parameters, part: str, x: Tensor) -> Tensor:
    """A linear layer of one token."""
    return x @ p[f"{NET}.{part}.w"] + p[f"{NET}.{part}.b"]


class TransformerReference:
    """Squared error of predicted actions at real steps; AdamW with a linear warm-up and gradient clipping."""

    def __init__(
        self,
        parameters: Parameters,
        *,
        rate: float,
        decay: float,
        max_norm: float,
        warmup: int,
        heads: int,
        layers: int,
    ) -> None:
        self.parameters, self.heads, self.layers, self.warmup = dict(parameters), heads, layers, warmup
        self.optimizer, self.updates = Adam(rate, decay=decay, max_norm=max_norm), 0

    def _attend(self, p: Parameters, part: str, tokens: list[Tensor], real: list[bool]) -> list[Tensor]:
        size = len(tokens[0])
        width = size // self.heads
        packed = [linear(p, f"{part}.qkv", norm(p, f"{part}.norm1", token)) for token in tokens]
        result = []
        for i in range(len(tokens)):
            outputs = []
            for head in range(self.heads):
                own = slice(head * width, (head + 1) * width)
                query = packed[i][:size][own]
                scores, values = [], []
                for j in range(i + 1):
                    if real[j] or j == i:
                        scores.append((query * packed[j][size : 2 * size][own]).sum() / math.sqrt(width))
                        values.append(packed[j][2 * size :][own])
                weights = torch.exp(torch.stack(scores))
                weights = weights / weights.sum()
                outputs.append(sum(w * v for w, v in zip(weights, values, strict=True)))
            result.append(tokens[i] + linear(p, f"{part}.attn_out", torch.cat(outputs)))  # type: ignore[arg-type]
        return result

    def predict(self, p: Parameters, batch: BatchOf, b: int) -> list[Tensor]:
        """Actions of one window."""
        tokens, real = [], []
        for t in range(batch["weight"].shape[1]):
            position = p[f"{NET}.position"][int(batch["timestep"][b, t])]
            tokens.append(linear(p, "return", batch["returns_to_go"][b, t][None]) + position)
            tokens.append(features(p, NET, batch["observation"][b, t]) + position)
            tokens.append(linear(p, "action", batch["action"][b, t]) + position)
            real += [bool(batch["weight"][b, t] > 0)] * 3
        tokens = [norm(p, "token_norm", token) for token in tokens]
        for layer in range(self.layers):
            part = f"block{layer}"
            tokens = self._attend(p, part, tokens, real)
            tokens = [
                token + linear(p, f"{part}.down", torch.relu(linear(p, f"{part}.up", norm(p, f"{part}.norm2", token))))
                for token in tokens
            ]
        return [torch.tanh(linear(p, "out", norm(p, "last_norm", token))) for token in tokens[1::3]]

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        size, length = batch["weight"].shape

        def loss(p: Parameters) -> Tensor:
            errors = []
            for b in range(size):
                predicted = self.predict(p, batch, b)
                for t in range(length):
                    if batch["weight"][b, t] > 0:
                        errors.append(((predicted[t] - batch["action"][b, t]) ** 2).mean())
            return torch.stack(errors).mean()

        gradients, value = gradients_of(loss, self.parameters, ["transformer"])
        self.updates += 1
        self.optimizer.step(self.parameters, gradients, factor=min(self.updates / self.warmup, 1.0))
        return {"loss": value}
