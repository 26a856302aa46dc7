"""Updates between two processes: one computes gradients, the other one moves the parameters by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from birl.engine.steps import Gradient, Gradients, LossFunction, Step, TargetUpdate, UpdateResult
from birl.engine.train_state import TrainState
from birl.engine.update import Eager
from birl.errors import ConfigError, UnsupportedError
from birl.types import Batch, Loss


class ComputedGradients(NamedTuple):
    """What a gradient step of an update found, without having moved anything.

    Attributes:
        gradients: by parameter name.
        loss: with its metrics, detached.
    """

    gradients: Gradients
    loss: Loss

    def to(self, device: torch.device) -> ComputedGradients:
        """The same on a device."""
        own, metrics = ({k: x.to(device) for k, x in each.items()} for each in (self.gradients, self.loss.metrics))
        return ComputedGradients(own, Loss(self.loss.value.to(device), metrics))


class Finding(Eager):
    """Computes the gradients of an update, and leaves parameters and targets where they are."""

    def __init__(self, trained: TrainState) -> None:
        super().__init__(trained)
        self.found: list[dict[str, ComputedGradients]] = []
        self._last: list[ComputedGradients] = []

    def update(self, batch: Batch, due: Sequence[Step]) -> UpdateResult:
        """The gradient steps of one update."""
        self._last, steps = [], [step for step in due if isinstance(step, Gradient)]
        result = super().update(batch, steps)
        self.found.append({step.name: each for step, each in zip(steps, self._last, strict=True)})
        return result

    def reduce(self, gradients: Gradients) -> Gradients:
        """Nothing: the process that moves the parameters reduces."""
        return gradients

    def apply(self, name: str, gradients: Gradients) -> None:
        """Nothing: the process that moves the parameters applies."""

    def gradients(self, loss: LossFunction, of: tuple[str, ...], batch: Batch) -> tuple[Gradients, Loss]:
        """See `Update.gradients`."""
        gradients, value = super().gradients(loss, of, batch)
        self._last.append(ComputedGradients(gradients, replace(value, share={}, priority=None)))  # both are used here
        return gradients, value

    def only(self, name: str) -> dict[str, ComputedGradients]:
        """What was found, in the one update that there may be between two states of the parameters.

        Raises:
            UnsupportedError: if there were several.
        """
        if len(self.found) != 1:
            raise UnsupportedError(
                f"{name} made {len(self.found)} updates of one rollout, each of which needs the parameters that the "
                "one before has moved; gradients are found for one update at a time: let it make one pass with one "
                "minibatch (PPO: n_epochs=1, and batch_size at least the steps of a rollout), or use A3C"
            )
        return self.found[0]


class Moving(Eager):
    """Makes updates with gradients that are given, usually from another process."""

    def __init__(self, trained: TrainState, found: Mapping[str, ComputedGradients]) -> None:
        super().__init__(trained)
        self._found = dict(found)

    def update(self, batch: Batch, due: Sequence[Step]) -> UpdateResult:
        """One update with the steps that are due."""
        names = [step.name for step in due if isinstance(step, Gradient)]
        if names != list(self._found):
            raise ConfigError(
                f"gradients of the steps {', '.join(self._found) or 'none'} were given, and the next update makes "
                f"{', '.join(names) or 'none'}: find them after as many updates as they are applied after"
            )
        for name, found in self._found.items():
            own = self._trained.parameters[name]
            if {k: x.shape for k, x in found.gradients.items()} != {k: x.shape for k, x in own.items()}:
                raise ConfigError(
                    f"the gradients of the step {name!r} are not those of its parameters: find them with the same "
                    "configuration and shapes"
                )
        self._left = iter(self._found.values())
        return super().update(batch, due)

    def gradients(self, loss: LossFunction, of: tuple[str, ...], batch: Batch) -> tuple[Gradients, Loss]:
        """See `Update.gradients`."""
        return next(self._left)


def step_features(trained: TrainState, name: str) -> dict[str, str]:
    """The features of `birl.incompatible` that the steps of the algorithm called ``name`` have."""
    gradient_steps = [step.name for step in trained.gradient_steps]
    others = [step.name for step in trained.steps if not isinstance(step, Gradient | TargetUpdate)]
    whole = [step.name for step in trained.trainings if not step.splits]
    found = {}
    if others:
        found["other steps"] = f"an update of {name} with steps that are not gradient steps ({', '.join(others)})"
    if len(gradient_steps) > 1:
        found["several gradient steps"] = f"an update of {name} with several steps ({', '.join(gradient_steps)})"
    if whole:
        found["loss of whole minibatches"] = f"the loss of {name}'s step {', '.join(whole)}"
    return found
