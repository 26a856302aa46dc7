"""The interfaces of an algorithm that workers train together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from birl.run.protocols import Learner, Metrics, Minibatch, Trainable
from birl.types import Loss, State

NamedTensors: TypeAlias = "dict[str, Tensor]"


class NamedStep(Protocol):
    """A step of an update that has parameters."""

    @property
    def name(self) -> str: ...


class UpdateEngine(Protocol):
    """The part of an algorithm's engine that distributed training needs.

    Attributes:
        parameters: of each step, by the step's name and their own.
        reduce: averages gradients over processes; ``None`` in a run of one process.
    """

    parameters: dict[str, NamedTensors]
    reduce: Callable[[NamedTensors], NamedTensors] | None

    @property
    def gradient_steps(self) -> Sequence[NamedStep]: ...
    def get_state(self) -> State: ...
    def set_state(self, state: State) -> None: ...


class Gradients(Protocol):
    """The gradients of a step by parameter name, and the loss with its metrics."""

    @property
    def gradients(self) -> NamedTensors: ...
    @property
    def loss(self) -> Loss: ...


class DistributedExperience(Protocol):
    """The part of `birl.algorithm.experience.Experience` that distributed training needs."""

    @property
    def gathers(self) -> bool: ...
    def check_run(self, learner: Any, source: None, count: int) -> None: ...


class DistributedLearner(Learner, Protocol):
    """A learner whose gradients can be computed and applied in different processes."""

    @property
    def experience(self) -> DistributedExperience: ...
    @property
    def returns(self) -> object | None: ...
    @property
    def trained_parameters(self) -> NamedTensors: ...
    def check_compatible(self, ways: Mapping[str, str]) -> None: ...
    def compute_gradients(self, minibatch: Minibatch) -> Mapping[str, Gradients]: ...
    def apply_remote_gradients(
        self, found: Mapping[str, tuple[NamedTensors, float, Mapping[str, float]]]
    ) -> Metrics: ...
    def get_state(self) -> State: ...
    def set_state(self, state: State) -> None: ...


class DistributedAlgorithm(Trainable, Protocol):
    """An algorithm that several processes train."""

    @property
    def learner(self) -> DistributedLearner: ...
    @property
    def engine(self) -> UpdateEngine: ...
    @property
    def nets(self) -> nn.Module: ...
    @property
    def torch_device(self) -> torch.device: ...
    @property
    def grad_step(self) -> int: ...
    def set_grad_step(self, grad_step: int) -> None: ...
