"""Optimisers and learning-rate schedules."""

from __future__ import annotations

from birl.optimizers.factories import (
    AdamFactory,
    AdamWFactory,
    GPTAdamWFactory,
    OptimizerFactory,
    RMSpropFactory,
    SGDFactory,
    register_optimizer_factory,
)
from birl.optimizers.schedules import (
    CosineAnnealingLRFactory,
    LRSchedulerFactory,
    WarmupCosineSchedulerFactory,
    WarmupSchedulerFactory,
)

__all__ = [
    "AdamFactory",
    "AdamWFactory",
    "CosineAnnealingLRFactory",
    "GPTAdamWFactory",
    "LRSchedulerFactory",
    "OptimizerFactory",
    "RMSpropFactory",
    "SGDFactory",
    "WarmupCosineSchedulerFactory",
    "WarmupSchedulerFactory",
    "register_optimizer_factory",
]
