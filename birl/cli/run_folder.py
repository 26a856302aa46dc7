"""Run folders of the command line: settings, metrics, models and checkpoints."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import gymnasium

from birl.cli.common import BEST_MODEL, newest_model, note
from birl.cli.curves import RETURNS
from birl.cli.online import EnvironmentSettings
from birl.errors import BirlError, ConfigError, FileError, ForeignFileError, ResumeError, WriteError
from birl.files import atomic_write
from birl.logging import CombineAdapter, FileAdapter, LoggerAdapter, LoggerAdapterFactory
from birl.logging.logger import EpochAdapter
from birl.run.checkpoint import checkpoint_path, differences
from birl.run.run_lock import only_run

_SETTINGS, _PLANNED = "run.json", "planned_steps"
_BIRL_FILES: Final = (
    "*.csv",
    "metrics.jsonl",
    "params.json",
    "origin.json",
    "model_*.d3",
    "model_best.json",
    "checkpoint.d3c",
)


def settings_of(path: Path) -> dict[str, Any]:
    """Return the settings of the run of a run folder or a model file; empty if it belongs to no run."""
    folder = path if path.is_dir() else path.parent
    for place in (folder, folder.parent) if folder.name.startswith("seed_") else (folder,):
        if (place / _SETTINGS).is_file():
            return read_settings(place / _SETTINGS)
    return {}


def environment_of(path: Path, env_id: str | None, **options: Any) -> tuple[str, gymnasium.Env[Any, Any]]:
    """Make the environment that a model plays in, with frames stacked as in training.

    Args:
        path: model file or run folder.
        env_id: Gymnasium id or ``module:factory``; ``None`` for the environment of the run.
        **options: options of the environment.

    Returns:
        Name and environment.

    Raises:
        ConfigError: if there is none, or if its ``module:factory`` is named by a file and not by the command.
    """
    settings = settings_of(path)
    name = settings.get("env_id") if env_id is None else env_id
    if not isinstance(name, str):
        raise ConfigError(f"{path} has no environment: give --env-id, a Gymnasium id or module:factory")
    if env_id is None and ":" in name:
        raise ConfigError(
            f"the run's environment is {name!r:.80}, a module, which birl imports only if the command names it: give "
            f"--env-id {name!s:.80}"
        )
    stack = settings.get("frame_stack", 1)
    environment = EnvironmentSettings(name, stack if isinstance(stack, int) else 1, atari=bool(settings.get("atari")))
    return name, environment.make(**options)


def target_of(path: Path, target_return: float | None) -> float | None:
    """Return the target return of a sequence model: the given one, or the one of its run."""
    target = settings_of(path).get("target_return") if target_return is None else target_return
    return target if isinstance(target, int | float) else None


def read_settings(
    file: Path, count: str = "n_steps", owner: str = "run", remedy: str = "give another --out, or --fresh"
) -> dict[str, Any]:
    """Read the settings of a run or a search.

    Args:
        file: file of JSON.
        count: name of a setting that must be a whole number.
        owner: name of the owner of the settings in error messages.
        remedy: advice in error messages.

    Raises:
        ForeignFileError: if the file holds something else.
    """
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(settings, dict) or not isinstance(settings.get(count), int):
            raise ValueError(f"it holds no settings of a {owner}")
        return settings
    except (ValueError, RecursionError) as error:
        raise ForeignFileError(f"{file} cannot be read ({error}): {remedy}") from error


class RunFolder(LoggerAdapterFactory):
    """Settings, metrics, models and checkpoint of one run, or of the runs of several seeds.

    Args:
        path: the folder. Only files that birl writes are ever removed from it.
        seeds: several seeds, whose metrics and models are in subfolders ``seed_<seed>``; ``None`` for one run.
    """

    def __init__(self, path: Path, seeds: Sequence[int] | None = None) -> None:
        self.path, self._seeds = path, seeds

    def planned_steps(self, n_steps: int, *, extend: bool) -> int:
        """Return the number of steps that the run was started with, which its schedules follow.

        Args:
            n_steps: number of steps that is given now.
            extend: whether it may be larger than before.

        Raises:
            ConfigError: if there is no run to extend, or if it would become shorter.
        """
        file = self.path / _SETTINGS
        exists = file.is_file() and bool(self._files())
        if extend and not exists:
            raise ConfigError(f"--extend: {self.path} holds no run; leave it out to start one, or give the run's --out")
        saved = read_settings(file) if exists else {}
        before = saved.get("n_steps", n_steps)
        if extend and n_steps < before:
            raise ConfigError(f"--extend: the run in {self.path} has --n-steps {before}; give a larger number")
        return int(saved.get(_PLANNED, before)) if extend or before == n_steps else n_steps

    @contextlib.contextmanager
    def undone_if_refused(self) -> Iterator[None]:
        """Return a context that removes what it has written if it refuses a new run, before the run has any files."""
        there, known = self.path.exists(), (self.path / _SETTINGS).exists()
        try:
            yield
        except BirlError:
            if self.path.is_dir() and not known and not self._files():
                for file in ((self.path / _SETTINGS), *self.path.glob(".run.*")):
                    file.unlink(missing_ok=True)
                if not there:
                    with contextlib.suppress(OSError):
                        self.path.rmdir()
            raise

    def prepare(self, settings: dict[str, Any], planned: int, *, fresh: bool, extend: bool = False) -> bool:
        """Make the folder ready for a run with these settings.

        Args:
            settings: JSON values.
            planned: result of `planned_steps`.
            fresh: whether an existing run is removed first.
            extend: whether the number of steps and the score at which the run stops may change.

        Returns:
            Whether an earlier run is resumed.

        Raises:
            ResumeError: if the folder holds a run with other settings.
            ForeignFileError: if the folder holds something else.
            WriteError: if the folder cannot be made or written.
        """
        try:
            return self._prepare(settings, planned, fresh, extend)
        except FileError:
            raise
        except OSError as error:
            raise WriteError(
                f"the folder {self.path} cannot be made or written ({error.strerror or error}): give another --out"
            ) from error

    def _prepare(self, settings: dict[str, Any], planned: int, fresh: bool, extend: bool) -> bool:
        file = self.path / _SETTINGS
        if self.path.exists() and not self.path.is_dir():
            raise FileError(f"{self.path} is a file: give another --out")
        entries = self.path.iterdir() if self.path.exists() else ()
        if not file.exists() and any(not entry.name.startswith(".run.") for entry in entries):
            raise ForeignFileError(f"{self.path} has files but no run of `birl train`: give another --out")
        self.path.mkdir(parents=True, exist_ok=True)
        with only_run(self.path):
            return self._write_settings(file, settings, planned, fresh, extend)

    def _write_settings(self, file: Path, settings: dict[str, Any], planned: int, fresh: bool, extend: bool) -> bool:
        if file.exists() and self._files() and not fresh:
            saved = read_settings(file)
            saved.pop(_PLANNED, None)
            if extend:
                saved |= {name: settings.get(name) for name in ("n_steps", "stop_at") if name in {**saved, **settings}}
                settings = {"stop_at": None, **settings} if "stop_at" in saved else settings
            different = differences(saved, json.loads(json.dumps(settings)))
            # another algorithm has other fields and defaults, which say nothing further
            different = [line for line in different if line.startswith("algorithm.type ")] or different
            changes = "; ".join(different).replace("algorithm.params.", "")
            if different:
                longer = settings["n_steps"] > saved["n_steps"]
                raise ResumeError(
                    f"{self.path} holds a run with other settings: {changes}. Give the same settings to resume it"
                    f"{', --extend to make it longer' if longer else ''}, another --out, or --fresh to remove that run "
                    "and start again"
                )
        resumed = checkpoint_path(self.path).exists() and not fresh
        if not resumed:  # metrics before the first checkpoint will be logged again
            for old in self._files():
                old.unlink()
        if planned != settings["n_steps"]:
            settings = {**settings, _PLANNED: planned}
        atomic_write(file, json.dumps(settings, indent=2).encode())
        return resumed

    def _files(self) -> list[Path]:
        """Return the files of the run except its settings. Without such files, nothing can be lost."""
        folders = ("",) if self._seeds is None else ("", "seed_*/")
        return [file for folder in folders for pattern in _BIRL_FILES for file in self.path.glob(folder + pattern)]

    def results(self) -> list[str]:
        """Return a line of text for each run, with its newest and its best model."""
        folders = [self.path] if self._seeds is None else [self.path / f"seed_{seed}" for seed in self._seeds]
        return [_result(folder) for folder in folders]

    def create(self, experiment_name: str) -> LoggerAdapter:
        """Make an adapter that writes into this folder and prints each epoch.

        With several seeds, the run of a seed is called ``<name>/seed_<seed>`` (see `birl.fit_many`).
        """
        if self._seeds is None:
            return CombineAdapter([FileAdapter(self.path), _EpochPrinter()])
        name = Path(experiment_name).name
        return CombineAdapter([FileAdapter(self.path / name), _EpochPrinter(name)])


def _result(folder: Path) -> str:
    newest, best = newest_model(folder), folder / "model_best.json"
    line = "" if newest is None else f"done: {newest.stem.removeprefix('model_')} steps, model {newest}"
    if best.is_file():
        score = json.loads(best.read_text(encoding="utf-8"))
        line += f"; the best, with {score['metric']} {score['score']:.5g} at step {score['step']}: {BEST_MODEL}"
    return line


class _EpochPrinter(EpochAdapter):
    """Adapter that prints a line for each epoch.

    Args:
        run: name of the run, if there are several runs.
    """

    def __init__(self, run: str = "") -> None:
        super().__init__()
        self._run = run

    def write_gradient(self, epoch: int, step: int, name: str, statistics: Mapping[str, float]) -> None:
        """Print nothing, because gradients would fill the screen."""

    def after_write_metric(self, epoch: int, step: int) -> None:
        names = sorted((name for name in self._metrics if not name.startswith("time_")), key=_column_order)
        values = [f"{name}={self._metrics[name]:.5g}" for name in names]
        note("  ".join([*([self._run] if self._run else []), f"epoch {epoch}", f"step {step}", *values]))


def _column_order(name: str) -> tuple[bool, str]:
    """Return the sort key of a metric: returns first, then by name."""
    return name not in RETURNS, name
