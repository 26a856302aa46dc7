"""The whole of learning: phases, gradients, optimisers and target updates."""

from birl.engine.engine import Engine
from birl.engine.phase import Phase
from birl.engine.targets import HardCopy, Polyak, TargetUpdate
from birl.losses.loss import Loss

__all__ = ["Engine", "HardCopy", "Loss", "Phase", "Polyak", "TargetUpdate"]
