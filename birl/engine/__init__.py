"""Learning: steps, gradients, optimisers and target networks."""

from birl.engine.engine import Engine
from birl.engine.steps import Gradient, Gradients, HardCopy, Polyak, Step, TargetUpdate, Update, When, check_steps

__all__ = [
    "Engine",
    "Gradient",
    "Gradients",
    "HardCopy",
    "Polyak",
    "Step",
    "TargetUpdate",
    "Update",
    "When",
    "check_steps",
]
