"""What users ask of an algorithm that learns, update by update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from birl.algorithm import building
from birl.algorithm.learner import Experience, Learner
from birl.algorithm.reconfiguration import check_alone
from birl.engine.gradient_exchange import Found
from birl.logging.logger import LOG


class Learns:
    """Base of what learns.

    Attributes:
        learns_from: what it learns from.
    """

    learns_from: ClassVar[Experience]

    @property
    def learner(self) -> Learner:
        """The networks with everything that moves them."""
        raise NotImplementedError

    def sample_minibatch(self, dataset: Any) -> Any:
        """Draw the kind of minibatch that this algorithm learns from."""
        building.check_source("sample_minibatch", dataset, or_reader=True)
        return self.learner.sample(dataset)

    def update(self, batch: Any) -> dict[str, Tensor]:
        """Learn from a minibatch (or a `Batch`, or a rollout, if it learns from those).

        Usually this is one update: every step that is due.

        Returns:
            Losses and metrics as scalar tensors on the device; ``float(value)`` waits for the device.
        """
        if not self.learns_from.loops:
            self.learns_from.check_loop(type(self).__name__, "fit")
        return self.learner.update(batch)

    def compute_gradients(self, batch: Any) -> dict[str, Found]:
        """What the next `update` from a minibatch would move by, all of it at the present parameters.

        No parameter, optimiser, target or count changes; the losses draw their random numbers. `update` is not the same
        where an algorithm has several gradient steps: there, each sees what the one before has moved.

        Args:
            batch: as for `update`.

        Returns:
            By the name of each gradient step that is due, temperatures and dual variables included: ``gradients`` by
            parameter name, and ``loss`` with its metrics.

        Raises:
            UnsupportedError: if it learns by several updates, by steps that are not gradient steps, or if its networks
                move buffers while they learn.
        """
        if not self.learns_from.loops:
            self.learns_from.check_loop(type(self).__name__, "fit")
        return self.learner.compute_gradients(batch)

    def apply_gradients(self, found: Mapping[str, Found]) -> dict[str, Tensor]:
        """One update by what `compute_gradients` found, here or in another process: optimisers, then targets.

        Args:
            found: by name of the gradient step. Gradients are clipped here; average them before, if they are several.

        Returns:
            The losses and metrics that came with the gradients.

        Raises:
            ConfigError: if they are not those of the steps that are due. Nothing has changed then.
        """
        return self.learner.apply_gradients(found)

    def watch_gradients(self, watch: Callable[[str, Sequence[str], Tensor], None] | None) -> None:
        """Call ``watch(step, parameter names, statistics [n, 4])`` after every update, or (``None``) no longer.

        The statistics are the minimum, maximum, mean and standard deviation of each parameter's gradient, on the
        device; after ``k`` updates at once they are ``[k, n, 4]``.
        """
        self.learner.engine.watch = watch

    def retune(self, **fields: Any) -> None:
        """Change fields of the configuration of a built algorithm, also during a run (from a callback).

        Learning rates, ``tau``, ``gamma``, intervals, clip ranges, coefficients and all else that changes neither
        networks nor which steps an update has. Parameters, moments and counters go on, and a schedule where it would be
        if it had begun with the new value. Compiled updates are made anew, unless only learning rates change.
        Checkpoints hold what was retuned, ``params.json`` tells it, and model files have the new values.

        Args:
            **fields: new values by name, as in the configuration.

        Raises:
            ConfigError: if a field is unknown, a value is not allowed, or it cannot change. Nothing has changed then.
            UnsupportedError: while several seeds, workers or processes learn together.
        """
        learner = self.learner
        check_alone(learner)
        change = learner.tuning.change_to(fields)
        building.check_picker(learner, change.config)
        if change.fields:
            learner.retune(change)
            count = learner.engine.grad_step
            learner.tuning.note(change, count)
            LOG.info("after %d updates: %s", count, ", ".join(f"{k}={v!r:.60}" for k, v in fields.items()))
