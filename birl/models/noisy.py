"""Noise in layers, by which networks explore (Fortunato et al. 2018, arXiv:1706.10295)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn

from birl.checks import check

Noisy = bool | float
"""Whether a layer has noise, or the amount of noise; see `sigma`."""

SIGMA_0: Final = 0.5
"""The initial noise (section 3.2)."""


def sigma(noisy: Noisy) -> float:
    """Return ``sigma_0``, the initial standard deviation of the noise times the root of the number of inputs.

    Args:
        noisy: ``False`` for 0, ``True`` for the paper's 0.5, or the number itself.
    """
    return SIGMA_0 if noisy is True else float(noisy)


def check_noisy(name: str, noisy: object) -> None:
    """Raise `ConfigError` unless ``noisy`` is a bool or a number above 0."""
    if not isinstance(noisy, bool):
        check(name, noisy, float, above=0, hint=", or True for 0.5, False for no noise")


class Random(nn.Module):
    """Base of modules that draw random numbers in every pass.

    Attributes:
        greedy: whether they draw no random numbers; see `birl.models.set_acting`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.greedy = False


class FactorisedNoise(Random):
    """Factorised Gaussian noise on the weights and biases of a linear layer (eqs. 9-11).

    ``w = mu + sigma f(eps_in) f(eps_out)`` and ``b = mu + sigma f(eps_out)`` with ``f(x) = sgn(x) sqrt(|x|)``. Each
    forward pass draws its own noise, which all rows of the batch share. The target network and Double DQN's selection
    of actions have other noise than the prediction (eqs. 12-16). Greedy acting has no noise.

    Args:
        weight: weights of the layer: ``[out, in]``, or ``[N, in, out]`` for stacked layers.
        bias: biases of the layer: ``[out]`` or ``[N, 1, out]``.
        noisy: see `sigma`.

    Attributes:
        weight, bias: the learned standard deviations, of the same shapes.
    """

    def __init__(self, weight: Tensor, bias: Tensor, noisy: Noisy = True) -> None:
        super().__init__()
        start = sigma(noisy) / math.sqrt(max(weight.shape[1], 1))
        self.weight = nn.Parameter(torch.full_like(weight, start))
        self.bias = nn.Parameter(torch.full_like(bias, start))

    def forward(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer's weights and biases, with noise."""
        if self.greedy:
            return weight, bias
        sizes = [weight.shape[1], bias.shape[-1]]
        noise = torch.randn(*weight.shape[:-2], sum(sizes), dtype=weight.dtype, device=weight.device)
        inputs, outputs = (noise.sign() * noise.abs().sqrt()).split(sizes, -1)
        if weight.dim() == 3:
            inputs, outputs = inputs.unsqueeze(-1), outputs.unsqueeze(-2)
            product = inputs * outputs
        else:
            product = outputs.unsqueeze(-1) * inputs
        return torch.addcmul(weight, self.weight, product), torch.addcmul(bias, self.bias, outputs)


def noise_of(module: nn.Module) -> list[FactorisedNoise]:
    """Return all noise in a module."""
    return [part for part in module.modules() if isinstance(part, FactorisedNoise)]


@contextmanager
def noise_on(parts: Sequence[FactorisedNoise]) -> Iterator[None]:
    """Turn noise on while networks act, until the block ends."""
    for part in parts:
        part.greedy = False
    try:
        yield
    finally:
        for part in parts:
            part.greedy = True
