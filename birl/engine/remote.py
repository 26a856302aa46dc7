"""Updates between two processes: one computes gradients, the other one moves the parameters by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from birl.engine.steps import Gradient, Gradients, LossFunction, Step, TargetUpdate
from birl.engine.trained import Trained
from birl.engine.update import Eager
from birl.errors import UnsupportedError
from birl.types import Batch, Loss


class Found(NamedTuple):
    """What the gradient step of an update found, without having moved anything.

    Attributes:
        gradients: by parameter name.
        loss: with its metrics, detached.
    """

    gradients: Gradients
    loss: Loss


class Finding(Eager):
    """Computes the gradients of an update, and leaves parameters and targets where they are."""

    def __init__(self, trained: Trained) -> None:
        super().__init__(trained)
        self.found: list[Found] = []

    def update(self, batch: Batch, due: Sequence[Step]) -> dict[str, Tensor]:
        """The gradient steps of one update. Returns the metrics."""
        return super().update(batch, [step for step in due if isinstance(step, Gradient)])

    def reduce(self, gradients: Gradients) -> Gradients:
        """Nothing: the process that moves the parameters reduces."""
        return gradients

    def apply(self, name: str, gradients: Gradients) -> None:
        """Nothing: the process that moves the parameters applies."""

    def gradients(self, loss: LossFunction, of: tuple[str, ...], batch: Batch) -> tuple[Gradients, Loss]:
        """See `Update.gradients`."""
        gradients, value = super().gradients(loss, of, batch)
        self.found.append(Found(gradients, value))
        return gradients, value

    def only(self, name: str) -> Found:
        """What was found, in the one update that there may be between two states of the parameters.

        Raises:
            UnsupportedError: if there were several.
        """
        if len(self.found) != 1:
            raise UnsupportedError(
                f"{name} made {len(self.found)} updates of one rollout, each of which needs the parameters that the "
                "one before has moved; a worker finds one gradient at a time: let it make one pass with one minibatch "
                "(PPO: n_epochs=1, and batch_size at least the steps of a rollout), or use A3C"
            )
        return self.found[0]


class Moving(Eager):
    """Makes updates whose batch is what another process `Found`: parameters, optimisers and targets move here."""

    def gradients(self, loss: LossFunction, of: tuple[str, ...], batch: Any) -> tuple[Gradients, Loss]:
        """See `Update.gradients`."""
        return batch


def check_apart(trained: Trained, name: str) -> None:
    """Raise `UnsupportedError` if gradients of the algorithm called ``name`` cannot be found in other processes."""
    others = [step.name for step in trained.steps if not isinstance(step, Gradient | TargetUpdate)]
    if others or len(trained.gradient_steps) != 1:
        names = ", ".join([step.name for step in trained.gradient_steps] + others)
        raise UnsupportedError(
            f"an update of {name} has several steps, or one that is no gradient step ({names}), each of which needs "
            "the parameters that the one before has moved; a worker finds one gradient at a time: use A3C"
        )
