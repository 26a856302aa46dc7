"""d3rlpy's names of the base classes, and `load_learnable`."""

from typing import TypeAlias

import birl.algos  # a saved model may be of any of these algorithms
import birl.ope.fqe  # noqa: F401
from birl.algorithm import Algorithm as LearnableBase
from birl.algorithm import load_learnable
from birl.config import AlgorithmConfig as LearnableConfig

DeviceArg: TypeAlias = bool | int | str | None

__all__ = ["DeviceArg", "LearnableBase", "LearnableConfig", "load_learnable"]
