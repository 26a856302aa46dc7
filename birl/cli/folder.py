"""The folder of a run started from the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from birl.cli.common import newest_model, note
from birl.errors import FileError, ForeignFileError, ResumeError, WriteError
from birl.files import atomic_write
from birl.logging import CombineAdapter, FileAdapter, LoggerAdapter, LoggerAdapterFactory
from birl.logging.logger import EpochAdapter
from birl.run.checkpoint import checkpoint_path, differences

_SETTINGS = "run.json"
_OURS = ("*.csv", "metrics.jsonl", "params.json", "model_*.d3", "model_best.json", "checkpoint.d3c")


class RunFolder(LoggerAdapterFactory):
    """Settings, metrics, models and checkpoint of one run, or of the runs of several seeds.

    Args:
        path: the folder. Only files that birl writes are ever removed from it.
        seeds: with several seeds, metrics and models of each are in ``seed_<seed>`` below it.
    """

    def __init__(self, path: Path, seeds: Sequence[int] | None = None) -> None:
        self.path, self._seeds = path, seeds

    def prepare(self, settings: dict[str, Any], *, fresh: bool) -> bool:
        """Make the folder ready for a run with these settings.

        Args:
            settings: JSON values.
            fresh: whether an existing run is removed first.

        Returns:
            Whether an earlier run is resumed.

        Raises:
            ResumeError: if the folder holds a run with other settings.
            ForeignFileError: if it holds something else.
            WriteError: if it cannot be made or written.
        """
        try:
            return self._prepare(settings, fresh)
        except FileError:
            raise
        except OSError as error:
            raise WriteError(
                f"the folder {self.path} cannot be made or written ({error.strerror or error}): give another --out"
            ) from error

    def _prepare(self, settings: dict[str, Any], fresh: bool) -> bool:
        file = self.path / _SETTINGS
        if self.path.exists() and not self.path.is_dir():
            raise FileError(f"{self.path} is a file: give another --out")
        if not file.exists() and self.path.exists() and any(self.path.iterdir()):
            raise ForeignFileError(f"{self.path} has files but no run of `birl train`: give another --out")
        if file.exists() and self._files() and not fresh:
            different = differences(self._settings(file), json.loads(json.dumps(settings)))
            words = "; ".join(different).replace("algorithm.params.", "")
            if different:
                raise ResumeError(
                    f"{self.path} holds a run with other settings: {words}. Give the same settings to go on, "
                    "another --out, or --fresh to remove that run and start over"
                )
        going_on = checkpoint_path(self.path).exists() and not fresh
        if not going_on:  # everything before the first checkpoint is logged again
            for old in self._files():
                old.unlink()
        self.path.mkdir(parents=True, exist_ok=True)
        atomic_write(file, json.dumps(settings, indent=2).encode())
        return going_on

    def _settings(self, file: Path) -> Any:
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ForeignFileError(f"{file} cannot be read ({error}): give another --out, or --fresh") from error

    def _files(self) -> list[Path]:
        """Files of the run except its settings. If there are none, nothing can be lost."""
        places = ("",) if self._seeds is None else ("", "seed_*/")
        return [file for place in places for pattern in _OURS for file in self.path.glob(place + pattern)]

    def newest_models(self) -> list[Path | None]:
        """The model with the most steps, of each run."""
        folders = [self.path] if self._seeds is None else [self.path / f"seed_{seed}" for seed in self._seeds]
        return [newest_model(folder) for folder in folders]

    def create(self, experiment_name: str) -> LoggerAdapter:
        """Make the adapter that writes into this folder and prints each epoch.

        The run of one seed of several is called ``<name>/seed_<seed>`` (see `birl.fit_many`).
        """
        if self._seeds is None:
            return CombineAdapter([FileAdapter(self.path), _Lines()])
        name = Path(experiment_name).name
        return CombineAdapter([FileAdapter(self.path / name), _Lines(name)])


class _Lines(EpochAdapter):
    """One line for each epoch.

    Args:
        run: name of the run, if there are several.
    """

    def __init__(self, run: str = "") -> None:
        super().__init__()
        self._run = run

    def write_gradient(self, epoch: int, step: int, name: str, statistics: Mapping[str, float]) -> None:
        """Print nothing: gradients would fill the screen."""

    def after_write_metric(self, epoch: int, step: int) -> None:
        words = [f"{name}={value:.5g}" for name, value in self._metrics.items() if not name.startswith("time_")]
        note("  ".join([*([self._run] if self._run else []), f"epoch {epoch}", f"step {step}", *words]))
