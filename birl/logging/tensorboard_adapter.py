"""Logging to TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from birl.checks import named_arguments
from birl.errors import require
from birl.logging.logger import LoggerAdapter, LoggerAdapterFactory
from birl.types import Array, State


class TensorboardAdapter(LoggerAdapter):
    """Adapter that writes metrics as scalars ``metrics/<name>`` by step, and parameters as text, but no models.

    Differs from d3rlpy, which counts epochs on the horizontal axis: steps stay comparable between runs.

    Args:
        root_dir: folder of all TensorBoard runs; this one is written to ``<root_dir>/runs/<experiment_name>``.
        experiment_name: name of the run.

    Raises:
        MissingExtraError: if TensorBoard is not installed.
    """

    def __init__(self, root_dir: str | os.PathLike[str], experiment_name: str) -> None:
        require("tensorboard", "tensorboard")
        writer = require("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._step = 0
        self._make = lambda **options: writer(Path(root_dir) / "runs" / experiment_name, **options)
        self._writer = self._make()

    def write_params(self, params: dict[str, Any]) -> None:
        """Write the parameters as a table."""
        rows = [f"|{name}|{value}|" for name, value in flat(params)]
        self._writer.add_text("params", "\n".join(["|name|value|", "|-|-|", *rows]))

    def write_metric(self, epoch: int, step: int, name: str, value: float) -> None:
        """Write a scalar."""
        self._step = step
        self._writer.add_scalar(f"metrics/{name}", value, step)

    def write_gradient(self, epoch: int, step: int, name: str, statistics: Mapping[str, float]) -> None:
        """Write the scalars ``gradients/<name>/<statistic>``."""
        for key, value in statistics.items():
            self._writer.add_scalar(f"gradients/{name}/{key}", value, step)

    def write_origin(self, origin: Mapping[str, Any]) -> None:
        """Write the origin as text."""
        self._writer.add_text("origin", "\n\n".join(f"{name}: {value}" for name, value in origin.items()))

    def write_histogram(self, epoch: int, step: int, name: str, values: npt.ArrayLike) -> None:
        """Write a histogram."""
        self._writer.add_histogram(name, np.ravel(values), step)

    def write_image(self, epoch: int, step: int, name: str, image: Array) -> None:
        """Write an image."""
        self._writer.add_image(name, image, step, dataformats="HW" if np.ndim(image) == 2 else "HWC")

    def after_write_metric(self, epoch: int, step: int) -> None:
        """Make the epoch visible."""
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def get_state(self) -> State:
        """Return the last step that was written."""
        return {"step": self._step}

    def set_state(self, state: State) -> None:
        """Drop everything after the step in the state."""
        self._writer.close()
        self._writer = self._make(purge_step=state["step"] + 1)


class TensorboardAdapterFactory(LoggerAdapterFactory):
    """Factory of `TensorboardAdapter`.

    Args:
        root_dir: folder of all TensorBoard runs.
    """

    @named_arguments
    def __init__(self, root_dir: str | os.PathLike[str] = "tensorboard_logs") -> None:
        self._root = root_dir

    def create(self, experiment_name: str) -> TensorboardAdapter:
        """Make the adapter."""
        return TensorboardAdapter(self._root, experiment_name)

    def holds_run(self, experiment_name: str) -> bool:
        """Return whether there are events of a run of this name."""
        return any((Path(self._root) / "runs" / experiment_name).glob("events.out.tfevents.*"))


def flat(value: object, prefix: str = "") -> list[tuple[str, Any]]:
    """Flatten nested parameters to pairs of a dotted name and a value."""
    if isinstance(value, dict):
        return [row for key, item in value.items() for row in flat(item, f"{prefix}.{key}" if prefix else str(key))]
    return [(prefix, value)]
