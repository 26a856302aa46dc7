"""Learning: steps, gradients, optimisers and target networks."""

from birl.engine.engine import Engine
from birl.engine.steps import Gradient, HardCopy, Polyak, Step, TargetUpdate, Training, Update, When, check_steps
from birl.engine.update import LossModule

__all__ = [
    "Engine",
    "Gradient",
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
