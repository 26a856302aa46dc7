"""The interface of logger adapters, and the logger of a run.

Loggers write only the values that are passed to them: no environment variables, no command line, no host name.
"""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, Protocol, SupportsFloat

import numpy.typing as npt

from birl.logging.averages import Averages, Timer
from birl.types import Array, EpisodeRow, State

LOG = logging.getLogger("birl")


class LoggingStrategy(Enum):
    """Times at which metrics are written: the end of each epoch, or every ``logging_steps`` steps as well."""

    STEPS = "steps"
    EPOCH = "epoch"


class SavableModel(Protocol):
    """A model that can be saved."""

    def save(self, fname: str) -> None:
        """Write the model to a file."""


class LoggerAdapter:
    """Adapter that writes the metrics, parameters and models of one run. Methods that are not overridden do nothing.

    Subclass it, or implement the same methods. A class that does not inherit from it may omit ``write_origin``,
    ``write_episodes``, ``write_histogram``, ``write_image``, ``save_best_model``, ``keep_models``, ``watch_model``
    (which adapters for older versions of d3rlpy do not have) and ``write_gradient`` (gradient statistics are then
    written as metrics).
    ``get_state() -> dict`` and ``set_state(dict)`` are optional: when a run is resumed from a checkpoint, ``set_state``
    receives the result of ``get_state`` at the time of the checkpoint, and should drop everything that was written
    later.
    """

    def write_params(self, params: dict[str, Any]) -> None:
        """Write shapes and hyper-parameters, once at the start."""

    def write_origin(self, origin: Mapping[str, Any]) -> None:
        """Write the origin of a run, once at its start: ``command``, ``birl`` (the version) and ``commit``."""

    def before_write_metric(self, epoch: int, step: int) -> None:
        """Prepare for the metrics of an epoch, which follow."""

    def write_metric(self, epoch: int, step: int, name: str, value: float) -> None:
        """Write one metric."""

    def write_gradient(self, epoch: int, step: int, name: str, statistics: Mapping[str, float]) -> None:
        """Write statistics of a parameter's gradient, by default as metrics ``<name>_grad_<statistic>``.

        It is called between `before_write_metric` and `after_write_metric` if a run has ``log_gradients=True``.

        Args:
            epoch, step: epoch and step, as for metrics.
            name: name of the parameter, such as ``critic.q.weight``.
            statistics: ``min``, ``max``, ``mean`` and ``std`` over the elements of the gradient and the updates since
                the last writing.
        """
        for key, value in statistics.items():
            self.write_metric(epoch, step, f"{name}_grad_{key}", value)

    def write_episodes(self, origin: Mapping[str, Any], episodes: Sequence[EpisodeRow]) -> None:
        """Write training episodes that have ended, if the adapter can.

        Args:
            origin: ``t_start``, the start of the run in seconds since 1970, and ``env_id``, the environment's name.
            episodes: the ``step`` at which each ended, its undiscounted return, its length, ``info["is_success"]`` at
                its end (NaN if there is none), and the seconds since the start of the run.
        """

    def write_histogram(self, epoch: int, step: int, name: str, values: npt.ArrayLike) -> None:
        """Write the distribution of numbers of any shape, if the adapter can. For hooks."""

    def write_image(self, epoch: int, step: int, name: str, image: Array) -> None:
        """Write an image, uint8 ``[H, W]`` or ``[H, W, 3]``, if the adapter can. For hooks."""

    def after_write_metric(self, epoch: int, step: int) -> None:
        """Complete the metrics of an epoch."""

    def watch_model(self, epoch: int, step: int) -> None:
        """Log a model's parameters, after `after_write_metric`."""

    def save_model(self, epoch: int, algo: SavableModel) -> None:
        """Save a model.

        Args:
            epoch: total step; the name of the argument is d3rlpy's.
            algo: model to save.
        """

    def save_best_model(self, algo: SavableModel, best: Mapping[str, Any]) -> None:
        """Save the best model so far, which replaces the previous one.

        Args:
            algo: model to save.
            best: name of the ``metric``, ``score`` and ``step``.
        """

    def keep_models(self, newest: int) -> None:
        """Remove the models that `save_model` saved in this run, except the ``newest`` ones."""

    def close(self) -> None:
        """Close the adapter at the end of the run, also after an error."""


class EpochAdapter(LoggerAdapter):
    """Adapter that collects the metrics of an epoch, which a subclass writes in `after_write_metric`."""

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}

    def before_write_metric(self, epoch: int, step: int) -> None:
        """Start the metrics of an epoch."""
        self._metrics = {}

    def write_metric(self, epoch: int, step: int, name: str, value: float) -> None:
        """Collect a metric; it is written with the others of its epoch."""
        self._metrics[name] = float(value)


class LoggerAdapterFactory(Protocol):
    """Factory that makes the adapter at the start of a run.

    The newer form of d3rlpy, ``create(algo, experiment_name, n_steps_per_epoch)``, is also accepted. A method
    ``holds_run(experiment_name) -> bool`` is optional: if it returns True, a new run gets another name, so that it does
    not overwrite the one that is there.
    """

    def create(self, experiment_name: str) -> LoggerAdapter:
        """Make the adapter of the run ``experiment_name``."""


class BirlLogger:
    """Logger that collects metrics and passes their means to an adapter.

    Args:
        adapter_factory: makes the adapter.
        experiment_name: name of the run.
        with_timestamp: whether to append the time to the name.
        new_run: whether to append a number to the name if there is a run of this name already.
        algo, n_steps_per_epoch: arguments for factories of d3rlpy's newer form.

    Attributes:
        experiment_name: name of the run, with its timestamp if it has one.
        adapter: adapter that the factory made.
        averages: means of the metrics since they were last written.
    """

    def __init__(
        self,
        adapter_factory: LoggerAdapterFactory,
        experiment_name: str,
        with_timestamp: bool = True,
        new_run: bool = False,
        *,
        algo: SavableModel | None = None,
        n_steps_per_epoch: int = 1,
    ) -> None:
        if with_timestamp:
            experiment_name += datetime.now().strftime("_%Y%m%d%H%M%S")
        if new_run:
            experiment_name = _unused_name(adapter_factory, experiment_name)
        self.experiment_name = experiment_name
        self.adapter = _create(adapter_factory, experiment_name, algo, n_steps_per_epoch)
        self.averages = Averages()

    def add_params(self, params: dict[str, Any]) -> None:
        """Write shapes and hyper-parameters."""
        self.adapter.write_params(params)

    def add_origin(self, origin: Mapping[str, Any]) -> None:
        """Write the origin of the run. See `LoggerAdapter.write_origin`."""
        optional(self.adapter, "write_origin")(origin)

    def add_metric(self, name: str, value: SupportsFloat) -> None:
        """Add a value to the mean of ``name`` that the next `commit` writes."""
        self.averages.add({name: float(value)})

    def measure_time(self, name: str, steps: int = 1) -> Timer:
        """Return a context that adds its duration, in seconds, to the metric ``time_<name>``.

        Args:
            name: name of the metric without its prefix.
            steps: number of steps to divide the duration by.
        """
        return Timer(self.averages, f"time_{name}", steps)

    def commit(self, epoch: int, step: int) -> dict[str, float]:
        """Write the means since the last commit, and return them."""
        metrics = self.averages.means()
        self.averages.clear()
        self.write(epoch, step, metrics)
        return metrics

    def write(
        self,
        epoch: int,
        step: int,
        metrics: Mapping[str, float],
        gradients: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """Write means of metrics, and statistics of gradients by parameter."""
        self.adapter.before_write_metric(epoch, step)
        for name, value in metrics.items():
            self.adapter.write_metric(epoch, step, name, value)
        for name, statistics in (gradients or {}).items():
            optional(self.adapter, "write_gradient")(epoch, step, name, statistics)
        self.adapter.after_write_metric(epoch, step)
        optional(self.adapter, "watch_model")(epoch, step)
        LOG.info("%s: epoch=%d step=%d %s", self.experiment_name, epoch, step, metrics)

    def save_model(self, step: int, algo: SavableModel, keep: int | None = None) -> None:
        """Save a model with the number of steps in its name, and remove all but the newest ``keep``."""
        self.adapter.save_model(step, algo)
        if keep is not None:
            optional(self.adapter, "keep_models")(keep)

    def save_best_model(self, algo: SavableModel, best: Mapping[str, Any]) -> None:
        """Save the best model so far. See `LoggerAdapter.save_best_model`."""
        optional(self.adapter, "save_best_model")(algo, best)

    def close(self) -> None:
        """Close the adapter."""
        self.adapter.close()

    def get_state(self) -> State:
        """Return the adapter's state, if it has one (file lengths, for instance)."""
        get = getattr(self.adapter, "get_state", None)
        return {} if get is None else get()

    def set_state(self, state: State) -> None:
        """Drop everything that was written after `get_state`."""
        put = getattr(self.adapter, "set_state", None)
        if put is not None and state:
            put(state)


def optional(adapter: object, method: str) -> Callable[..., None]:
    """Return a method of an adapter, or the method of `LoggerAdapter` if the adapter does not have it."""
    return getattr(adapter, method, partial(getattr(LoggerAdapter, method), adapter))  # type: ignore[no-any-return]


def holds_run(factory: LoggerAdapterFactory, experiment_name: str) -> bool:
    """Return whether a factory's adapters have written a run of this name, as far as it knows."""
    ask: Callable[[str], bool] | None = getattr(factory, "holds_run", None)
    return ask is not None and ask(experiment_name)


def _unused_name(factory: LoggerAdapterFactory, name: str) -> str:
    """Return the name of a new run: ``name``, or the first of ``<name>_2``, ``<name>_3``, … that no run has."""
    if not holds_run(factory, name):
        return name
    unused = next(each for i in itertools.count(2) if not holds_run(factory, each := f"{name}_{i}"))
    LOG.warning("there is a run %s already; this new run is called %s", name, unused)
    return unused


def _create(
    factory: LoggerAdapterFactory, experiment_name: str, algo: SavableModel | None, n_steps_per_epoch: int
) -> LoggerAdapter:
    if "algo" in inspect.signature(factory.create).parameters:
        create: Callable[..., LoggerAdapter] = factory.create
        return create(algo, experiment_name, n_steps_per_epoch)
    return factory.create(experiment_name)
