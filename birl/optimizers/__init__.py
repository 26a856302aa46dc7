"""Optimiser and learning-rate schedule factories, under d3rlpy's newer import path."""

from __future__ import annotations

from birl.optimizers.factories import (
    AdamFactory,
    AdamWFactory,
    CosineAnnealingLRFactory,
    GPTAdamWFactory,
    LRSchedulerFactory,
    OptimizerFactory,
    RMSpropFactory,
    SGDFactory,
    WarmupCosineSchedulerFactory,
    WarmupSchedulerFactory,
    register_optimizer_factory,
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
