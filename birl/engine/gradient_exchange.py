"""Updates in two halves: gradients are computed in one process and applied in another."""

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
    """The gradients that a gradient step of an update computed, without applying them.

    Attributes:
        gradients: the gradients by parameter name.
        loss: the detached loss with its metrics.
    """

    gradients: Gradients
    loss: Loss

    def to(self, device: torch.device) -> ComputedGradients:
        """Return a copy on a device."""
        own, metrics = ({k: x.to(device) for k, x in each.items()} for each in (self.gradients, self.loss.metrics))
        return ComputedGradients(own, Loss(self.loss.value.to(device), metrics))


class GradientComputation(Eager):
    """Computes the gradients of an update and leaves parameters and targets unchanged."""

    def __init__(self, trained: TrainState) -> None:
        super().__init__(trained)
        self.computed: list[dict[str, ComputedGradients]] = []
        self._last: list[ComputedGradients] = []

    def update(self, batch: Batch, due: Sequence[Step]) -> UpdateResult:
        """Compute the gradients of one update, without its other steps."""
        self._last, steps = [], [step for step in due if isinstance(step, Gradient)]
        result = super().update(batch, steps)
        self.computed.append({step.name: each for step, each in zip(steps, self._last, strict=True)})
        return result

    def reduce(self, gradients: Gradients) -> Gradients:
        """Return the gradients: the process that applies them reduces them."""
        return gradients

    def apply(self, name: str, gradients: Gradients) -> None:
        """Do nothing: another process applies the gradients."""

    def gradients(self, loss: LossFunction, of: tuple[str, ...], batch: Batch) -> tuple[Gradients, Loss]:
        """See `Update.gradients`."""
        gradients, value = super().gradients(loss, of, batch)
        # only this process uses shared values and priorities
        self._last.append(ComputedGradients(gradients, replace(value, share={}, priority=None)))
        return gradients, value

    def result(self, name: str) -> dict[str, ComputedGradients]:
        """Return the gradients of the only update, by step. Further updates would need parameters that have changed.

        Args:
            name: name of the algorithm.

        Raises:
            UnsupportedError: if there was more than one update.
        """
        if len(self.computed) != 1:
            raise UnsupportedError(
                f"{name} made {len(self.computed)} updates of one rollout, and each needs the parameters "
                "after the one before; gradients are computed for one update at a time: let it make one pass with one "
                "minibatch (PPO: n_epochs=1, and batch_size at least the steps of a rollout), or use A3C"
            )
        return self.computed[0]


class GradientApplication(Eager):
    """Makes updates with computed gradients, usually from another process."""

    def __init__(self, trained: TrainState, computed: Mapping[str, ComputedGradients]) -> None:
        super().__init__(trained)
        self._given = dict(computed)

    def update(self, batch: Batch, due: Sequence[Step]) -> UpdateResult:
        """Make one update with the steps that are due."""
        names = [step.name for step in due if isinstance(step, Gradient)]
        if names != list(self._given):
            raise ConfigError(
                f"gradients of the steps {', '.join(self._given) or 'none'} were given, and the next update makes "
                f"{', '.join(names) or 'none'}: compute and apply "
                "them after the same number of updates"
            )
        for name, computed in self._given.items():
            (step,) = (each for each in due if each.name == name)
            own = {k: x.shape for k, x in self._trained.learning(step.networks).items()}
            given = {k: x.shape for k, x in computed.gradients.items()}
            if not given.items() <= own.items() or bool(given) != bool(own):
                raise ConfigError(
                    f"the gradients of the step {name!r} are not those of its parameters: compute them with "
                    "the same configuration and shapes"
                )
        self._left = iter(self._given.values())
        return super().update(batch, due)

    def gradients(self, loss: LossFunction, of: tuple[str, ...], batch: Batch) -> tuple[Gradients, Loss]:
        """See `Update.gradients`."""
        return next(self._left)


def step_features(trained: TrainState, name: str) -> dict[str, str]:
    """Return the features of `birl.incompatible` that the steps of the algorithm called ``name`` have."""
    gradient_steps = [step.name for step in trained.gradient_steps]
    others = [step.name for step in trained.steps if not isinstance(step, Gradient | TargetUpdate)]
    whole = [step.name for step in trained.trainings if not step.splits]
    features = {}
    if others:
        features["other steps"] = f"an update of {name} with steps that are not gradient steps ({', '.join(others)})"
    if len(gradient_steps) > 1:
        features["several gradient steps"] = f"an update of {name} with several steps ({', '.join(gradient_steps)})"
    if whole:
        features["loss of whole minibatches"] = f"the loss of {name}'s step {', '.join(whole)}"
    return features
