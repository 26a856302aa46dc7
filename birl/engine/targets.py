"""Updates of target networks. Parameters and buffers both follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn


class TargetUpdate(Protocol):
    """A target update: which network follows which, how, how often and from when on."""

    @property
    def target(self) -> str:
        """Name of the network that follows."""

    @property
    def every(self) -> int | str:
        """Number of updates between moves, or the config field that says it."""

    @property
    def after(self) -> int | str:
        """Number of updates before the first move, or the config field that says it."""

    def apply(self, nets: nn.Module, config: Any) -> None:
        """Move the target network."""


def _copy_buffers(source: nn.Module, target: nn.Module) -> None:
    for old, new in zip(target.buffers(), source.buffers(), strict=True):
        old.copy_(new)


@dataclass(frozen=True)
class Polyak:
    """``target <- (1 - tau) * target + tau * source`` (Lillicrap et al. 2015, arXiv:1509.02971, algorithm 1)."""

    source: str
    target: str
    tau: str = "tau"
    every: int | str = 1
    after: int | str = 0

    @torch.no_grad()
    def apply(self, nets: nn.Module, config: Any) -> None:
        """Move the target network."""
        source, target = nets.get_submodule(self.source), nets.get_submodule(self.target)
        torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), getattr(config, self.tau))
        _copy_buffers(source, target)


@dataclass(frozen=True)
class HardCopy:
    """``target <- source`` in every ``every``-th update (Mnih et al. 2015, doi:10.1038/nature14236)."""

    source: str
    target: str
    every: int | str = "target_update_interval"
    after: int | str = 0

    @torch.no_grad()
    def apply(self, nets: nn.Module, config: Any) -> None:
        """Move the target network."""
        source, target = nets.get_submodule(self.source), nets.get_submodule(self.target)
        torch._foreach_copy_(list(target.parameters()), list(source.parameters()))
        _copy_buffers(source, target)
