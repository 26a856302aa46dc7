"""The interface of an algorithm, for the modules that `birl.algorithm.algorithm` imports."""

from __future__ import annotations

from typing import Protocol

from birl.acting.policy import Policy
from birl.algorithm.learner import Definition, Experience
from birl.config import AlgorithmConfig
from birl.run.workers.protocols import DistributedAlgorithm


class OnlineAlgorithm(DistributedAlgorithm, Protocol):
    """An algorithm that acts in environments. See `birl.algorithm.Algorithm`."""

    enable_ddp: bool

    @property
    def config(self) -> AlgorithmConfig: ...
    @property
    def built(self) -> bool: ...
    @property
    def acts(self) -> Policy: ...
    @property
    def learns_from(self) -> Experience: ...
    @classmethod
    def definition(cls) -> Definition: ...
