"""The interfaces of an algorithm that workers train together, and the data that describe it and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from birl.errors import CorruptFileError
from birl.files.state_restore import check_array
from birl.run.protocols import Learner, Metrics, Minibatch, Trainable
from birl.spaces import Actions
from birl.types import Array, Loss, State, Tree

NamedTensors: TypeAlias = "dict[str, Tensor]"


class NamedStep(Protocol):
    """A step of an update that has parameters."""

    @property
    def name(self) -> str: ...


class UpdateEngine(Protocol):
    """The part of an algorithm's engine that distributed training needs.

    Attributes:
        parameters: parameters of each step, by the names of step and parameter.
        reduce: function that averages gradients over processes; ``None`` in a run of one process.
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


class AlgorithmSpec(NamedTuple):
    """Specification of an algorithm, from which a worker makes its own.

    Attributes:
        kind: class of the algorithm.
        config: its configuration, without compilation.
        observations, actions: inputs and outputs of its networks.
        device: device of its networks; ``None`` for the default.
    """

    kind: type[Any]
    config: Any
    observations: Tree
    actions: Actions
    device: str | None = None

    @classmethod
    def of(cls, algorithm: Trainable, device: str | None = None) -> AlgorithmSpec:
        """Return the specification of a built algorithm."""
        config: Any = algorithm.config
        config = replace(config, compile_graph=False)
        return cls(type(algorithm), config, algorithm.spec.observations, algorithm.spec.actions, device)

    def build(self) -> Any:
        """Make the algorithm, with new networks."""
        algorithm = self.kind(self.config) if self.device is None else self.kind(self.config, self.device)
        algorithm.create_impl(self.observations, self.actions)
        return algorithm


class StepGradients(NamedTuple):
    """The gradients of a step of an update, in a form that is sent to another process.

    Attributes:
        gradients: gradients by parameter name.
        loss: value of the loss.
        metrics: metrics of the loss.
    """

    gradients: dict[str, Array]
    loss: float
    metrics: dict[str, float]

    @classmethod
    def of(cls, computed: Gradients) -> StepGradients:
        """Convert computed gradients."""
        gradients = {name: value.cpu().numpy() for name, value in computed.gradients.items()}
        metrics = {name: value.item() for name, value in computed.loss.metrics.items()}
        return cls(gradients, computed.loss.value.item(), metrics)

    @classmethod
    def load(cls, saved: State, step: str, parameters: NamedTensors) -> StepGradients:
        """Return the gradients in a checkpoint, checked against the parameters of their step.

        Raises:
            CorruptFileError: if they do not fit.
        """
        if not saved["gradients"].keys() <= parameters.keys():
            raise CorruptFileError(f"the checkpoint has gradients of other parameters than {step:.40}'s: use a copy")
        gradients = {
            name: check_array(saved["gradients"][name], tuple(value.shape), np.dtype(np.float32), name)
            for name, value in parameters.items()
            if name in saved["gradients"]
        }
        metrics = {str(name): float(value) for name, value in saved["metrics"].items()}
        return cls(gradients, float(saved["loss"]), metrics)

    def as_tensors(self) -> tuple[NamedTensors, float, dict[str, float]]:
        """Return the argument of `DistributedLearner.apply_remote_gradients` for this step."""
        # Ray's arrays are read-only
        gradients = {name: torch.from_numpy(np.require(x, requirements="W")) for name, x in self.gradients.items()}
        return gradients, self.loss, self.metrics


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
