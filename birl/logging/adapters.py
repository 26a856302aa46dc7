"""Adapters that write nothing, or to several adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from birl.logging.logger import LoggerAdapter, LoggerAdapterFactory, SavableModel, _create, holds_run, optional
from birl.types import Array, EpisodeRow, State


class NoopAdapter(LoggerAdapter):
    """Adapter that writes nothing."""


class NoopAdapterFactory(LoggerAdapterFactory):
    """Factory of `NoopAdapter`."""

    def create(self, experiment_name: str) -> NoopAdapter:
        """Make the adapter."""
        return NoopAdapter()


class CombineAdapter(LoggerAdapter):
    """Adapter that passes everything on to several adapters, in order.

    Args:
        adapters: the adapters.
    """

    def __init__(self, adapters: Sequence[LoggerAdapter]) -> None:
        self._adapters = tuple(adapters)

    @property
    def logdir(self) -> str | None:
        """The folder of the first adapter that writes into one."""
        return next((a.logdir for a in self._adapters if getattr(a, "logdir", None) is not None), None)  # type: ignore[attr-defined]

    def write_params(self, params: dict[str, Any]) -> None:
        for adapter in self._adapters:
            adapter.write_params(params)

    def write_origin(self, origin: Mapping[str, Any]) -> None:
        for adapter in self._adapters:
            optional(adapter, "write_origin")(origin)

    def before_write_metric(self, epoch: int, step: int) -> None:
        for adapter in self._adapters:
            adapter.before_write_metric(epoch, step)

    def write_metric(self, epoch: int, step: int, name: str, value: float) -> None:
        for adapter in self._adapters:
            adapter.write_metric(epoch, step, name, value)

    def write_episodes(self, origin: Mapping[str, Any], episodes: Sequence[EpisodeRow]) -> None:
        for adapter in self._adapters:
            optional(adapter, "write_episodes")(origin, episodes)

    def write_histogram(self, epoch: int, step: int, name: str, values: npt.ArrayLike) -> None:
        for adapter in self._adapters:
            optional(adapter, "write_histogram")(epoch, step, name, values)

    def write_image(self, epoch: int, step: int, name: str, image: Array) -> None:
        for adapter in self._adapters:
            optional(adapter, "write_image")(epoch, step, name, image)

    def after_write_metric(self, epoch: int, step: int) -> None:
        for adapter in self._adapters:
            adapter.after_write_metric(epoch, step)

    def write_gradient(self, epoch: int, step: int, name: str, statistics: Mapping[str, float]) -> None:
        for adapter in self._adapters:
            optional(adapter, "write_gradient")(epoch, step, name, statistics)

    def watch_model(self, epoch: int, step: int) -> None:
        for adapter in self._adapters:
            optional(adapter, "watch_model")(epoch, step)

    def save_model(self, epoch: int, algo: SavableModel) -> None:
        for adapter in self._adapters:
            adapter.save_model(epoch, algo)

    def save_best_model(self, algo: SavableModel, best: Mapping[str, Any]) -> None:
        for adapter in self._adapters:
            optional(adapter, "save_best_model")(algo, best)

    def keep_models(self, newest: int) -> None:
        for adapter in self._adapters:
            optional(adapter, "keep_models")(newest)

    def close(self) -> None:
        for adapter in self._adapters:
            adapter.close()

    def get_state(self) -> State:
        """Return the states of the adapters that have one, by position."""
        return {str(i): a.get_state() for i, a in enumerate(self._adapters) if hasattr(a, "get_state")}

    def set_state(self, state: State) -> None:
        """Restore the result of `get_state`."""
        for index, adapter in enumerate(self._adapters):
            if str(index) in state and hasattr(adapter, "set_state"):
                adapter.set_state(state[str(index)])


class CombineAdapterFactory(LoggerAdapterFactory):
    """Factory of `CombineAdapter`.

    Args:
        adapter_factories: factories of the adapters.
    """

    def __init__(self, adapter_factories: Sequence[LoggerAdapterFactory]) -> None:
        self._factories = tuple(adapter_factories)

    def create(self, algo: SavableModel | None, experiment_name: str, n_steps_per_epoch: int) -> CombineAdapter:  # type: ignore[override]
        """Make all adapters."""
        return CombineAdapter([_create(f, experiment_name, algo, n_steps_per_epoch) for f in self._factories])

    def holds_run(self, experiment_name: str) -> bool:
        """Return whether one of the factories holds a run of this name."""
        return any(holds_run(factory, experiment_name) for factory in self._factories)
