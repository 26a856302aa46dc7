"""d3rlpy's names for the base of all algorithms, of all configurations, and for reading a saved algorithm."""

from birl import load_learnable  # which imports all algorithms: a saved model may be any of theirs
from birl.algorithm import Algorithm as LearnableBase
from birl.config import AlgorithmConfig as LearnableConfig

__all__ = ["LearnableBase", "LearnableConfig", "load_learnable"]
