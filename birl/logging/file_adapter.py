"""A run folder: CSV files, one JSON-lines file, the configuration and the models."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from birl.checks import named_arguments
from birl.errors import CorruptFileError, WriteError
from birl.files import atomic_write
from birl.files.serializable import encode
from birl.logging.logger import LOG, EpochAdapter, LoggerAdapterFactory, SavableModel
from birl.types import EPISODES, GRADIENT_STATISTICS, EpisodeRow, State

MAX_NAME: Final = 200
"""Largest number of characters in the name of a metric, which names a file."""

_PARAMS = "params.json"
_LINES = "metrics.jsonl"
_GRADIENTS = "gradients"


class FileAdapter(EpochAdapter):
    """Adapter that writes a run folder.

    ``params.json``
        shapes and hyper-parameters
    ``origin.json``
        the command that started the run, birl's version, and the commit of its working folder
    ``<metric>.csv``
        ``epoch,step,value`` without a header, one line per epoch
    ``<parameter>_grad.csv``
        ``epoch,step,min,max,mean,std`` with a header: statistics of a gradient, if the run has ``log_gradients=True``
    ``metrics.jsonl``
        ``{"epoch": …, "step": …, "<metric>": value, …}``, one line per epoch; a value that is not finite is ``null``.
        Statistics of gradients are in ``"gradients": {"<parameter>": {"min": …, …}, …}``
    ``time_monitor.csv``
        training episodes in the form of Stable-Baselines3's ``Monitor``: a comment, ``#{"t_start": …, "env_id": …}``,
        and the columns ``r`` (return), ``l`` (length) and ``t`` (seconds since the start), ``step``, at which the
        episode ended, and ``is_success``, empty if the environment does not report it. As in all files whose names
        begin with ``time_``, values differ if a run is repeated
    ``model_<step>.d3``
        models
    ``model_best.d3``, ``model_best.json``
        the best model, if the run has a score, and ``{"metric": …, "score": …, "step": …,
        "direction": …}``

    Args:
        logdir: the folder; it is created if it does not exist.
    """

    def __init__(self, logdir: str | os.PathLike[str]) -> None:
        super().__init__()
        self._folder = Path(logdir)
        self._gradients: dict[str, dict[str, float]] = {}
        self._models: list[int] = []  # steps of the models written in this run, oldest first
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WriteError(
                f"the run folder {self._folder} cannot be made ({error.strerror}): give another root_dir="
            ) from error
        self._names = self._written_after(0)

    @property
    def logdir(self) -> str:
        """The run folder."""
        return str(self._folder)

    def write_params(self, params: dict[str, Any]) -> None:
        """Write ``params.json``."""
        atomic_write(self._folder / _PARAMS, json.dumps(encode(params), indent=2).encode())

    def write_origin(self, origin: Mapping[str, Any]) -> None:
        """Write ``origin.json``."""
        atomic_write(self._folder / "origin.json", json.dumps(dict(origin), indent=2).encode())

    def before_write_metric(self, epoch: int, step: int) -> None:
        """Start the metrics of an epoch."""
        super().before_write_metric(epoch, step)
        self._gradients = {}

    def write_gradient(self, epoch: int, step: int, name: str, statistics: Mapping[str, float]) -> None:
        """Collect statistics of a gradient; they are written with the metrics of their epoch."""
        self._gradients[name] = {key: float(statistics[key]) for key in GRADIENT_STATISTICS}

    def after_write_metric(self, epoch: int, step: int) -> None:
        """Write the epoch's metrics."""
        line: dict[str, Any] = {"epoch": epoch, "step": step, **_json_numbers(self._metrics)}
        if self._gradients:
            line[_GRADIENTS] = {name: _json_numbers(statistics) for name, statistics in self._gradients.items()}
        self._names |= _logged(line)
        # This line is written first: if the process dies afterwards, it names the CSV files that may exist.
        self._append(_LINES, json.dumps(line))
        for name, value in self._metrics.items():
            self._append(_csv(name), f"{epoch},{step},{value}")
        for name, statistics in self._gradients.items():
            file = _csv(f"{name}_grad")
            if not (self._folder / file).exists():
                self._append(file, ",".join(["epoch", "step", *GRADIENT_STATISTICS]))
            self._append(file, ",".join(map(str, [epoch, step, *statistics.values()])))

    def write_episodes(self, origin: Mapping[str, Any], episodes: Sequence[EpisodeRow]) -> None:
        """Append to ``time_monitor.csv``."""
        lines = [
            f"{value},{length},{seconds:.6f},{step},{'' if math.isnan(success) else success}"
            for step, value, length, success, seconds in episodes
        ]
        if not (self._folder / EPISODES).exists():
            lines = [f"#{json.dumps(dict(origin))}", "r,l,t,step,is_success", *lines]
        self._append(EPISODES, "\n".join(lines))

    def _append(self, name: str, line: str) -> None:
        try:
            with open(self._folder / name, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            path = self._folder / name
            raise WriteError(
                f"{path} cannot be written ({error.strerror}): free some space, or give another root_dir="
            ) from error

    def save_model(self, epoch: int, algo: SavableModel) -> None:
        """Write ``model_<step>.d3``."""
        path = self._model(epoch)
        algo.save(str(path))
        self._models = [*(step for step in self._models if step != epoch), epoch]
        LOG.info("model saved to %s", path)

    def save_best_model(self, algo: SavableModel, best: Mapping[str, Any]) -> None:
        """Write ``model_best.d3`` and ``model_best.json``."""
        algo.save(str(self._model("best")))
        atomic_write(self._folder / "model_best.json", json.dumps(dict(best)).encode())

    def keep_models(self, newest: int) -> None:
        """Remove ``model_<step>.d3``, except the newest ones. Files from before the run stay."""
        for step in self._models[:-newest]:
            self._model(step).unlink(missing_ok=True)
        self._models = self._models[-newest:]

    def _model(self, step: int | str) -> Path:
        return self._folder / f"model_{step}.d3"

    def get_state(self) -> State:
        """Return the lengths of the files that grow, and the steps of the models."""
        files = [_LINES, EPISODES, *map(_csv, sorted(self._names))]
        lengths = {n: (self._folder / n).stat().st_size for n in files if (self._folder / n).exists()}
        return {"bytes": lengths, "models": list(self._models)}

    def set_state(self, state: State) -> None:
        """Truncate the files that grow to their previous lengths, and remove those that did not exist."""
        lengths: dict[str, int] = state["bytes"]
        models = list(state["models"])
        logs = {_LINES, *(name for name in lengths if name == _csv(name.removesuffix(".csv")))}
        numbers = (*lengths.values(), *models)
        if lengths.keys() - logs or any(type(number) is not int or number < 0 for number in numbers):
            raise CorruptFileError(
                f"the checkpoint has logs {lengths!s:.200} and models {models!s:.80}, which no run writes: use a copy"
            )
        self._models = models
        later = {_csv(name) for name in self._written_after(lengths.get(_LINES, 0))}
        for name in sorted({_LINES, EPISODES, *lengths} | later):
            path = self._folder / name
            if not path.exists():
                continue
            if name not in lengths:
                path.unlink()
            elif path.stat().st_size > lengths[name]:
                os.truncate(path, lengths[name])
        self._names = {name.removesuffix(".csv") for name in lengths if name not in (_LINES, EPISODES)}

    def _written_after(self, offset: int) -> set[str]:
        """Return the names of the metrics in the lines after ``offset``.

        Lines that no run writes, such as one that was cut by a crash, have no CSV files.
        """
        path, names = self._folder / _LINES, set[str]()
        if path.exists():
            for line in path.read_bytes()[offset:].splitlines():
                try:
                    values = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(values, dict):
                    names |= {name for name in _logged(values) if name.isprintable() and len(name) <= MAX_NAME}
        return names


class FileAdapterFactory(LoggerAdapterFactory):
    """Factory of a `FileAdapter` for the folder ``<root_dir>/<experiment_name>``.

    Args:
        root_dir: folder of all runs.
    """

    @named_arguments
    def __init__(self, root_dir: str | os.PathLike[str] = "birl_logs") -> None:
        self._root = Path(root_dir)

    def create(self, experiment_name: str) -> FileAdapter:
        """Make the folder and the adapter."""
        return FileAdapter(self._root / experiment_name)

    def holds_run(self, experiment_name: str) -> bool:
        """Return whether the folder holds the metrics or the models of a run."""
        folder = self._root / experiment_name
        return (folder / _LINES).exists() or ((folder / _PARAMS).exists() and any(folder.glob("model_*.d3")))


def _logged(line: dict[str, Any]) -> set[str]:
    """Return the names of the CSV files of a line, without their suffix."""
    names, gradients = line.keys() - {"epoch", "step"}, line.get(_GRADIENTS)
    return names - {_GRADIENTS} | {f"{name}_grad" for name in gradients} if isinstance(gradients, dict) else names


def _json_numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _csv(name: str) -> str:
    return name.replace("/", "_").replace(os.sep, "_") + ".csv"
