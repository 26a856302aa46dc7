"""Logging to MLflow."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from birl.errors import require
from birl.files.serializable import encode
from birl.logging.logger import EpochAdapter, LoggerAdapterFactory
from birl.logging.tensorboard_adapter import flat
from birl.types import Array, State

_MOST_METRICS = 1000  # limits of MLflow for one request
_MOST_PARAMS = 100
_LONGEST_PARAM = 500
_FORBIDDEN = re.compile(r"[^\w\-./ ]")


class MLflowAdapter(EpochAdapter):
    """Adapter that logs metrics by step and parameters to MLflow, but no models.

    The run starts with the first write. It uses a client of its own, so the active run of ``mlflow.start_run()`` is not
    changed. A resumed run continues under the same id, and repeated steps are not written twice. Characters that MLflow
    does not allow in names become ``_``.

    Args:
        run_name: name of the run.
        experiment: name of the MLflow experiment that holds the run; it is made if it does not exist.
        tracking_uri: address of the MLflow server; by default that of MLflow's settings.

    Raises:
        MissingExtraError: if ``mlflow`` is not installed.
    """

    def __init__(self, run_name: str, experiment: str = "Default", tracking_uri: str | None = None) -> None:
        super().__init__()
        mlflow = require("mlflow", "mlflow")
        self._client = mlflow.MlflowClient(tracking_uri)
        self._entities = require("mlflow.entities", "mlflow")
        self._run_name, self._experiment = run_name, experiment
        self._id: str | None = None
        self._written_until = -1  # last step with metrics of a resumed run

    @property
    def run_id(self) -> str:
        """The run's id. The first access starts the run."""
        if self._id is None:
            existing = self._client.get_experiment_by_name(self._experiment)
            made = self._client.create_experiment(self._experiment) if existing is None else existing.experiment_id
            self._id = str(self._client.create_run(made, run_name=self._run_name).info.run_id)
        return self._id

    def write_params(self, params: dict[str, Any]) -> None:
        """Write the parameters, nested ones as ``config.params.gamma``."""
        rows = [(_allowed(name), str(value)[:_LONGEST_PARAM]) for name, value in flat(encode(params))]
        written = self._client.get_run(self.run_id).data.params
        new = [self._entities.Param(name, value) for name, value in rows if name not in written]
        for begin in range(0, len(new), _MOST_PARAMS):
            self._client.log_batch(self.run_id, params=new[begin : begin + _MOST_PARAMS])

    def write_origin(self, origin: Mapping[str, Any]) -> None:
        """Write the origin as tags."""
        for name, value in origin.items():
            self._client.set_tag(self.run_id, f"origin.{name}", str(value))

    def write_image(self, epoch: int, step: int, name: str, image: Array) -> None:
        """Write an image as the file ``<name>_<step>.png``."""
        self._client.log_image(self.run_id, np.asarray(image), artifact_file=f"{_allowed(name)}_{step}.png")

    def after_write_metric(self, epoch: int, step: int) -> None:
        """Write the epoch's metrics."""
        if step <= self._written_until:
            return
        now = time.time_ns() // 1_000_000
        values = {_allowed(name): value for name, value in self._metrics.items()}
        values["epoch"] = float(epoch)  # the last metric marks a complete epoch
        rows = [self._entities.Metric(name, value, now, step) for name, value in values.items()]
        for begin in range(0, len(rows), _MOST_METRICS):
            self._client.log_batch(self.run_id, metrics=rows[begin : begin + _MOST_METRICS])

    def close(self) -> None:
        """End the run, if one was started."""
        if self._id is not None:
            self._client.set_terminated(self._id)

    def get_state(self) -> State:
        """Return the run's id."""
        return {"id": self._id}

    def set_state(self, state: State) -> None:
        """Continue the run with this id after its last step with metrics."""
        self._id = state["id"]
        if self._id is not None:
            self._client.update_run(self._id, status="RUNNING")
            history = self._client.get_metric_history(self._id, "epoch")
            self._written_until = max((metric.step for metric in history), default=-1)


class MLflowAdapterFactory(LoggerAdapterFactory):
    """Factory of `MLflowAdapter`.

    Args:
        experiment: name of the MLflow experiment that holds the runs.
        tracking_uri: address of the MLflow server; by default that of MLflow's settings.
    """

    def __init__(self, experiment: str = "Default", tracking_uri: str | None = None) -> None:
        self._experiment, self._uri = experiment, tracking_uri

    def create(self, experiment_name: str) -> MLflowAdapter:
        """Make the adapter."""
        return MLflowAdapter(experiment_name, self._experiment, self._uri)


def _allowed(name: str) -> str:
    return _FORBIDDEN.sub("_", name)
