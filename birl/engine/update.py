"""The loop over the steps of an update, with eager and with compiled gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from birl.engine.compiler import Graphs
from birl.engine.steps import Gradients, LossFunction, Step, UpdateResult, check_loss, parameter_gradients
from birl.engine.train_state import TrainState
from birl.errors import ConfigError
from birl.types import Batch, Loss


def stacked(updates: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stack the metrics of several updates: each ``[k]``, for the ``k`` updates that report it."""
    collected: dict[str, list[Tensor]] = {}
    for metrics in updates:
        for name, value in metrics.items():
            collected.setdefault(name, []).append(value)
    return {name: torch.stack(values).float() for name, values in collected.items()}


def gradient_statistics(gradients: Iterable[Tensor]) -> Tensor:
    """Return `GRADIENT_STATISTICS` of each gradient: float32 ``[n, 4]``, on the device."""
    rows = [torch.stack([g.amin(), g.amax(), g.mean(), g.std(correction=0)]) for g in gradients]
    return torch.stack(rows).to(torch.float32)


_CHECKED: Final = 10
"""Number of losses after which the minibatch is compared: a module that writes to its inputs does so from the start."""


class LossModule(nn.Module):
    """A loss as a module's ``forward``, whose tensors `torch.func.functional_call` can replace: ``nets.<name>``."""

    def __init__(self, loss: LossFunction, nets: nn.Module, config: object) -> None:
        super().__init__()
        self.nets = nets
        self.function, self._config = loss, config

    def forward(self, batch: Batch) -> Loss:
        """Return the loss."""
        return self.function(self.nets, batch, self._config)


class Eager:
    """Makes updates step by step, without compiling.

    Args:
        trained: the networks and optimisers that it updates.
        apply_gradients: updates the parameters of a step; by default the step's optimiser.

    Attributes:
        compiled: whether updates are compiled.
    """

    compiled = False

    def __init__(self, trained: TrainState, apply_gradients: Callable[[str, Gradients], None] | None = None) -> None:
        self._trained, self.nets, self.config = trained, trained.nets, trained.config
        self._apply_gradients = trained.apply if apply_gradients is None else apply_gradients
        self._metrics: dict[str, Tensor] = {}
        self._priority: Tensor | None = None
        self._statistics: dict[str, Tensor] = {}
        self._unchecked = _CHECKED

    def update(self, batch: Batch, due: Sequence[Step]) -> UpdateResult:
        """Make one update with the steps that are due."""
        self._metrics, self._priority, self._statistics = {}, None, {}
        for step in due:  # each step reads the values that earlier steps share
            batch = step(self, batch)
        return UpdateResult(self._metrics, self._priority, self._statistics)

    def gradients(self, loss: LossFunction, of: tuple[str, ...], batch: Batch) -> tuple[Gradients, Loss]:
        """See `Update.gradients`."""
        leaves: list[Tensor] = []
        if self._unchecked and not torch.compiler.is_compiling():
            self._unchecked, leaves = self._unchecked - 1, batch.leaves
        versions = [leaf._version for leaf in leaves]  # how often each tensor was changed in place
        found = check_loss(loss, loss(self.nets, batch, self.config))
        if [leaf._version for leaf in leaves] != versions:
            raise ConfigError(
                "a network or loss changed its minibatch in place, so that the next one would read other data: in the "
                "forward of your own modules, make new tensors, such as x = x / 255 instead of x /= 255"
            )
        detached = found.detached(self._trained.prioritised)
        return parameter_gradients(loss, found.value, self._trained.learning(of)), detached

    def reduce(self, gradients: Gradients) -> Gradients:
        """See `Update.reduce`."""
        return gradients if self._trained.reduce is None else self._trained.reduce(gradients)

    def apply(self, name: str, gradients: Gradients) -> None:
        """See `Update.apply`."""
        if self._trained.watch is not None:
            parameters = self._trained.parameters[name]
            self._statistics[name] = gradient_statistics(
                gradients[key] if key in gradients else torch.zeros_like(each) for key, each in parameters.items()
            )
        self._apply_gradients(name, gradients)

    def assign(self, parameters: Mapping[str, Tensor]) -> None:
        """See `Update.assign`."""
        with torch.no_grad():  # not as a decorator, which the compiler cannot trace
            for name, value in parameters.items():
                self.nets.get_parameter(name).copy_(value)

    def report(self, metrics: Mapping[str, Tensor], priority: Tensor | None = None) -> None:
        """See `Update.report`."""
        self._metrics.update(metrics)
        if priority is not None and self._trained.prioritised:
            self._priority = priority


class CompiledGradients(Eager):
    """Makes updates step by step, with compiled losses and gradients."""

    compiled = True

    def __init__(self, trained: TrainState) -> None:
        super().__init__(trained)
        self._graphs = Graphs()

    def gradients(self, loss: LossFunction, of: tuple[str, ...], batch: Batch) -> tuple[Gradients, Loss]:
        eager = Eager(self._trained)

        def function(batch: Batch) -> tuple[Gradients, Loss]:
            return eager.gradients(loss, of, batch)

        key = (loss, of, tuple(self._trained.learning(of)), self.nets.training, self._trained.prioritised)
        graph = self._graphs.of(key, lambda: function, batch.signature)
        found: tuple[Gradients, Loss] = graph(batch)
        return found
