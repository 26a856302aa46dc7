"""What the references share: dense layers, Adam, densities. Plain formulas over dictionaries of tensors.

Nothing here or in the other ``reference_*.py`` files imports birl: they were written from the papers, with loops where
a loop is the plainest form, so that an error of the library cannot be an error of the reference as well.

Names of parameters: layer ``i`` of member ``k`` of network ``net`` has ``net.k.w{i}`` ``[in, out]`` and ``net.k.b{i}``;
the last layer is ``net.k.out.w`` and ``net.k.out.b``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

Parameters = dict[str, Tensor]
BatchOf = dict[str, Tensor]


def number(x: Tensor | float) -> float:
    """A plain number without its history."""
    return float(x.detach()) if isinstance(x, Tensor) else float(x)


def features(p: Parameters, net: str, x: Tensor) -> Tensor:
    """Hidden layers with ReLU."""
    layer = 0
    while f"{net}.w{layer}" in p:
        x = x @ p[f"{net}.w{layer}"] + p[f"{net}.b{layer}"]
        x = torch.where(x > 0, x, torch.zeros_like(x))
        layer += 1
    return x


def last_layer(p: Parameters, net: str, x: Tensor) -> Tensor:
    """The linear layer on top."""
    return x @ p[f"{net}.out.w"] + p[f"{net}.out.b"]


def mlp(p: Parameters, net: str, x: Tensor) -> Tensor:
    """A whole network."""
    return last_layer(p, net, features(p, net, x))


def gradients_of(
    loss: Callable[[Parameters], Tensor], parameters: Parameters, trained: Iterable[str]
) -> tuple[dict[str, Tensor], float]:
    """Gradients of ``loss`` with respect to the parameters of the networks ``trained``."""
    names = [name for name in parameters if name.split(".")[0] in set(trained)]
    copies = {name: value.detach().clone() for name, value in parameters.items()}
    for name in names:
        copies[name].requires_grad_(True)
    value = loss(copies)
    return dict(zip(names, torch.autograd.grad(value, [copies[n] for n in names]), strict=True)), number(value)


class Adam:
    """Kingma and Ba 2015, arXiv:1412.6980, algorithm 1; with decoupled decay it is AdamW (1711.05101, algorithm 2)."""

    def __init__(self, rate: float, eps: float = 1e-8, decay: float = 0.0, max_norm: float | None = None) -> None:
        self.rate, self.eps, self.decay, self.max_norm = rate, eps, decay, max_norm
        self.m: dict[str, Tensor] = {}
        self.v: dict[str, Tensor] = {}
        self.t = 0

    def step(self, parameters: Parameters, gradients: dict[str, Tensor], factor: float = 1.0) -> None:
        """Move the parameters that have gradients; ``factor`` scales the learning rate."""
        self.t += 1
        if self.max_norm is not None:
            norm = math.sqrt(sum(number((g * g).sum()) for g in gradients.values()))
            if norm > self.max_norm:
                gradients = {name: g * (self.max_norm / norm) for name, g in gradients.items()}
        for name, g in gradients.items():
            m = 0.9 * self.m.get(name, torch.zeros_like(g)) + 0.1 * g
            v = 0.999 * self.v.get(name, torch.zeros_like(g)) + 0.001 * g * g
            self.m[name], self.v[name] = m, v
            m_hat, v_hat = m / (1 - 0.9**self.t), v / (1 - 0.999**self.t)
            old = parameters[name]
            rate = self.rate * factor
            parameters[name] = old - rate * self.decay * old - rate * m_hat / (v_hat.sqrt() + self.eps)


def average(parameters: Parameters, source: str, target: str, tau: float) -> None:
    """``target <- (1 - tau) target + tau source``."""
    for name in list(parameters):
        if name.split(".")[0] == source:
            other = target + name[len(source) :]
            parameters[other] = (1 - tau) * parameters[other] + tau * parameters[name]


def normal_log_density(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of each dimension."""
    std = torch.exp(log_std)
    return -((x - mean) ** 2) / (2 * std**2) - torch.log(std) - 0.5 * math.log(2 * math.pi)


def squashed_sample(p: Parameters, net: str, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """SAC appendix C: ``a = tanh(mean + std * noise)`` and its log-density ``log N(u) - sum log(1 - tanh(u)^2)``."""
    out = mlp(p, net, x)
    size = out.shape[-1] // 2
    mean, log_std = out[..., :size], torch.clamp(out[..., size:], -20, 2)
    u = mean + torch.exp(log_std) * noise
    a = torch.tanh(u)
    log_density = normal_log_density(u, mean, log_std) - torch.log(1 - a**2)
    return a, log_density.sum(-1)


def members(p: Parameters, net: str) -> int:
    """Number of members of an ensemble."""
    count = 0
    while any(name.startswith(f"{net}.{count}.") for name in p):
        count += 1
    return count
