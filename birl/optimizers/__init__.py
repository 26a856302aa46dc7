"""Optimisers and learning-rate schedules."""

from __future__ import annotations

from birl.errors import explain_missing_names
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
    ExponentialSchedulerFactory,
    LinearSchedulerFactory,
    LRSchedulerFactory,
    ShareSchedulerFactory,
    StepwiseSchedulerFactory,
    WarmupCosineSchedulerFactory,
    WarmupSchedulerFactory,
)

__all__ = [
    "AdamFactory",
    "AdamWFactory",
    "CosineAnnealingLRFactory",
    "ExponentialSchedulerFactory",
    "GPTAdamWFactory",
    "LRSchedulerFactory",
    "LinearSchedulerFactory",
    "OptimizerFactory",
    "RMSpropFactory",
    "SGDFactory",
    "ShareSchedulerFactory",
    "StepwiseSchedulerFactory",
    "WarmupCosineSchedulerFactory",
    "WarmupSchedulerFactory",
    "register_optimizer_factory",
]

explain_missing_names(__name__, __all__)
