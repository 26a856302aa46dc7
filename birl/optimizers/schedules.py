"""Schedules of learning rates, and of other numbers that change during training."""

from __future__ import annotations

import bisect
import math
from abc import abstractmethod
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from birl.checks import check
from birl.errors import ConfigError
from birl.files.serializable import Serializable


class LRSchedulerFactory(Serializable):
    """Base of learning-rate schedules. The engine steps a schedule once after every optimiser step."""

    @abstractmethod
    def create(self, optimizer: Optimizer) -> LRScheduler:
        """Create the schedule of ``optimizer``."""


class ShareSchedulerFactory(LRSchedulerFactory):
    """Base of schedules that multiply a number, such as a learning rate or PPO's clip range, by a factor per update."""

    @abstractmethod
    def share(self, step: int) -> float:
        """Return the factor in the update after ``step`` updates."""

    def create(self, optimizer: Optimizer) -> LRScheduler:
        return LambdaLR(optimizer, lambda step: self.share(step))


def advance(schedule: LRScheduler, optimizer: Optimizer, steps: int) -> None:
    """Advance a new schedule by ``steps`` optimiser steps."""
    optimizer._opt_called = True  # type: ignore[attr-defined]  # otherwise it warns that no step was made
    if isinstance(schedule, LambdaLR) and steps:  # a function of the step; other schedules need the previous rate
        schedule.last_epoch, steps = steps - 1, 1
    for _ in range(steps):
        schedule.step()


@dataclass(frozen=True)
class LinearSchedulerFactory(ShareSchedulerFactory, type="linear"):
    """A factor that changes linearly and then stays at ``end``: ``start + (end - start) * step / duration``.

    Attributes:
        duration: number of updates until ``end``.
        end: final factor, >= 0.
        start: initial factor, >= 0.
    """

    duration: int
    end: float = 0.0
    start: float = 1.0

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check("duration", self.duration, int, low=1)
        for name in ("end", "start"):
            check(name, getattr(self, name), float, low=0)

    def share(self, step: int) -> float:
        return self.start + (self.end - self.start) * min(step / self.duration, 1.0)


@dataclass(frozen=True)
class ExponentialSchedulerFactory(ShareSchedulerFactory, type="exponential"):
    """A factor that decays exponentially: ``max(decay**step, lowest)``.

    Attributes:
        decay: decay per update, in (0, 1].
        lowest: smallest factor, in [0, 1].
    """

    decay: float
    lowest: float = 0.0

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check("decay", self.decay, float, above=0, high=1)
        check("lowest", self.lowest, float, low=0, high=1)

    def share(self, step: int) -> float:
        return max(self.decay**step, self.lowest)


@dataclass(frozen=True)
class StepwiseSchedulerFactory(ShareSchedulerFactory, type="stepwise"):
    """A factor that is multiplied by another one after certain updates, and constant in between.

    Attributes:
        milestones: increasing numbers of updates after which the factor is multiplied.
        factor: the multiplier, >= 0.
    """

    milestones: tuple[int, ...]
    factor: float = 0.1

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        given = self.milestones
        if not isinstance(given, list | tuple) or not given or list(given) != sorted(set(given)):
            raise ConfigError(f"milestones is {given!r:.80}; it must be rising numbers of updates, like (1000, 2000)")
        for each in given:
            check("milestones", each, int, low=1)
        object.__setattr__(self, "milestones", tuple(given))  # a list when it comes from a file
        check("factor", self.factor, float, low=0)

    def share(self, step: int) -> float:
        return float(self.factor ** bisect.bisect_right(self.milestones, step))


@dataclass(frozen=True)
class WarmupSchedulerFactory(ShareSchedulerFactory, type="warmup"):
    """Learning rate that rises linearly over the first updates and then stays.

    Attributes:
        warmup_steps: number of updates until the full learning rate; 0 for none.
    """

    warmup_steps: int

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check("warmup_steps", self.warmup_steps, int, low=0)

    def share(self, step: int) -> float:
        return min((step + 1) / max(self.warmup_steps, 1), 1.0)


@dataclass(frozen=True)
class WarmupCosineSchedulerFactory(ShareSchedulerFactory, type="warmup_cosine"):
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

    def share(self, step: int) -> float:
        update = step + 1
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
