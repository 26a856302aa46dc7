"""Updates: gradient steps, optimisers and targets; eager, compiled, or of many seeds at once."""

from birl.engine.engine import Engine
from birl.engine.steps import (
    Gradient,
    Gradients,
    HardCopy,
    Polyak,
    Step,
    TargetUpdate,
    Training,
    Update,
    When,
    check_steps,
)
from birl.engine.update import LossModule

__all__ = [
    "Engine",
    "Gradient",
    "Gradients",
    "HardCopy",
    "LossModule",
    "Polyak",
    "Step",
    "TargetUpdate",
    "Training",
    "Update",
    "When",
    "check_steps",
]
