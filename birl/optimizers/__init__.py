"""Optimiser steps as tensor functions, and checks of saved moments. Hands on the factories of `birl.models`."""

from __future__ import annotations

from birl.models import (
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
