"""Learning-rate schedules."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from birl.checks import check
from birl.errors import ConfigError
from birl.files.named import Serializable


class LRSchedulerFactory(Serializable):
    """Base of learning-rate schedules. The engine steps a schedule once after every optimiser step."""

    @abstractmethod
    def create(self, optimizer: Optimizer) -> LRScheduler:
        """The schedule of ``optimizer``."""


@dataclass(frozen=True)
class WarmupSchedulerFactory(LRSchedulerFactory, type="warmup"):
    """Learning rate that rises linearly over the first updates and then stays.

    Attributes:
        warmup_steps: number of updates until the full learning rate; 0 for none.
    """

    warmup_steps: int

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check("warmup_steps", self.warmup_steps, int, low=0)

    def create(self, optimizer: Optimizer) -> LRScheduler:
        steps = max(self.warmup_steps, 1)
        return LambdaLR(optimizer, lambda step: min((step + 1) / steps, 1.0))


@dataclass(frozen=True)
class WarmupCosineSchedulerFactory(LRSchedulerFactory, type="warmup_cosine"):
    """Learning rate that rises linearly, falls along half a cosine and stays at its minimum.

    Update ``u``, counted from 1, has the share ``u / warmup_steps`` of the learning rate while that is below 1, and
    ``max(lowest, (1 + cos(pi * p)) / 2)`` with ``p = (u - warmup_steps) / (final_steps - warmup_steps)`` from then on.

    Attributes:
        warmup_steps: number of updates until the full learning rate; may have a fraction. 0 for none.
        final_steps: number of updates at which the cosine ends, more than ``warmup_steps``.
        lowest: smallest share of the learning rate after the warm-up, in [0, 1].
    """

    warmup_steps: float
    final_steps: float
    lowest: float = 0.1

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        for name in ("warmup_steps", "final_steps", "lowest"):
            check(name, getattr(self, name), float, low=0)
        if self.final_steps <= self.warmup_steps or self.lowest > 1:
            raise ConfigError(
                f"warmup_steps is {self.warmup_steps!r}, final_steps {self.final_steps!r} and lowest {self.lowest!r}; "
                "final_steps must be larger than warmup_steps, and lowest at most 1"
            )

    def create(self, optimizer: Optimizer) -> LRScheduler:
        return LambdaLR(optimizer, lambda step: self._share(step + 1))

    def _share(self, update: int) -> float:
        if update < self.warmup_steps:
            return update / self.warmup_steps
        progress = min((update - self.warmup_steps) / (self.final_steps - self.warmup_steps), 1.0)
        return max(self.lowest, 0.5 * (1.0 + math.cos(math.pi * progress)))


@dataclass(frozen=True)
class CosineAnnealingLRFactory(LRSchedulerFactory, type="cosine_annealing"):
    """Learning rate that falls along half a cosine (Loshchilov and Hutter 2016, arXiv:1608.03983).

    Attributes:
        T_max: number of updates until the lowest learning rate.
        eta_min: lowest learning rate.
        last_epoch: -1 to start at the beginning.
    """

    T_max: int
    eta_min: float = 0.0
    last_epoch: int = -1

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check("T_max", self.T_max, int, low=1)

    def create(self, optimizer: Optimizer) -> LRScheduler:
        return CosineAnnealingLR(optimizer, self.T_max, self.eta_min, self.last_epoch)
