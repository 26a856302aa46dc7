"""Logging to Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from birl.checks import named_arguments
from birl.errors import require
from birl.files.serializable import encode
from birl.logging.logger import EpochAdapter, LoggerAdapterFactory, SavableModel
from birl.types import Array, State


class WanDBAdapter(EpochAdapter):
    """Adapter that logs metrics by step and parameters as the config to Weights & Biases, but no models.

    The run starts with the first write. A resumed run continues under the same id; Weights & Biases ignores steps that
    it already has.

    Differs from d3rlpy, whose adapter always logs gradients: here they are logged with ``log_gradients=True``, as
    ``gradients/<parameter>.<statistic>``.

    Args:
        algo: ignored.
        experiment_name: name of the run.
        n_steps_per_epoch: ignored.
        project: project of the run; by default that of the settings of Weights & Biases.

    Raises:
        MissingExtraError: if ``wandb`` is not installed.
    """

    def __init__(
        self, algo: SavableModel | None, experiment_name: str, n_steps_per_epoch: int, project: str | None = None
    ) -> None:
        super().__init__()
        self._wandb = require("wandb", "wandb")
        self._name, self._project = experiment_name, project
        self._run: Any = None
        self._id: str | None = None  # id of a run to continue

    @property
    def run(self) -> Any:
        """The run of the library ``wandb``, which starts on first use."""
        if self._run is None:
            resume = {} if self._id is None else {"id": self._id, "resume": "allow"}
            self._run = self._wandb.init(project=self._project, name=self._name, **resume)
        return self._run

    def write_params(self, params: dict[str, Any]) -> None:
        """Write the run's config."""
        self.run.config.update(encode(params), allow_val_change=True)

    def write_gradient(self, epoch: int, step: int, name: str, statistics: Mapping[str, float]) -> None:
        """Collect statistics of a gradient."""
        self._metrics |= {f"gradients/{name}.{key}": float(value) for key, value in statistics.items()}

    def write_origin(self, origin: Mapping[str, Any]) -> None:
        """Write the origin into the run's config."""
        self.run.config.update({"origin": dict(origin)}, allow_val_change=True)

    def write_histogram(self, epoch: int, step: int, name: str, values: npt.ArrayLike) -> None:
        """Send a histogram."""
        self.run.log({name: self._wandb.Histogram(np.ravel(values))}, step=step)

    def write_image(self, epoch: int, step: int, name: str, image: Array) -> None:
        """Send an image."""
        self.run.log({name: self._wandb.Image(image)}, step=step)

    def after_write_metric(self, epoch: int, step: int) -> None:
        """Send the epoch's metrics."""
        self.run.log({"epoch": epoch, **self._metrics}, step=step)

    def close(self) -> None:
        """Finish the run, if one was started."""
        if self._run is not None:
            self._run.finish()

    def get_state(self) -> State:
        """Return the run's id."""
        return {"id": self._id if self._run is None else str(self._run.id)}

    def set_state(self, state: State) -> None:
        """Continue the run with the id in the state."""
        self.close()
        self._run, self._id = None, state["id"]


class WanDBAdapterFactory(LoggerAdapterFactory):
    """Factory of `WanDBAdapter`.

    Args:
        project: project of the runs; by default that of the settings of Weights & Biases.
    """

    @named_arguments
    def __init__(self, project: str | None = None) -> None:
        self._project = project

    def create(self, algo: SavableModel | None, experiment_name: str, n_steps_per_epoch: int) -> WanDBAdapter:  # type: ignore[override]
        """Make the adapter."""
        return WanDBAdapter(algo, experiment_name, n_steps_per_epoch, self._project)
