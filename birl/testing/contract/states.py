"""Helpers that copy and compare parameters and states."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the tensors of a module, by name."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def changed_names(before: dict[str, Tensor], module: nn.Module) -> list[str]:
    """Return the names of the tensors that have changed."""
    return [name for name, tensor in module.state_dict().items() if not same(before[name], tensor)]


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether shape, dtype and every number are equal."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def differences(a: object, b: object, path: str = "") -> list[str]:
    """Return the paths at which two states differ."""
    if isinstance(a, dict):
        if not isinstance(b, dict) or a.keys() != b.keys():
            return [f"{path}: other keys"]
        return [line for key in a for line in differences(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, Tensor | np.ndarray):
        return [] if same(torch.as_tensor(a), torch.as_tensor(b)) else [path]
    return [] if a == b else [f"{path}: {a!r} and {b!r}"]


def torch_generators() -> list[Tensor]:
    """Return the states of torch's global generators, the only ones from which losses may draw."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


def set_torch_generators(states: list[Tensor]) -> None:
    """Inverse of `torch_generators`."""
    torch.set_rng_state(states[0])
    for number, state in enumerate(states[1:]):
        torch.cuda.set_rng_state(state, number)
