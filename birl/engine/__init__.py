"""Learning: steps, gradients, optimisers and target networks."""

from birl.engine.engine import Engine
from birl.engine.steps import Gradient, HardCopy, Polyak, Step, TargetUpdate, When, check_steps
from birl.engine.update import Update
from birl.losses.loss import Loss

__all__ = [
    "Engine",
    "Gradient",
    "HardCopy",
    "Loss",
    "Polyak",
    "Step",
    "TargetUpdate",
    "Update",
    "When",
    "check_steps",
]
