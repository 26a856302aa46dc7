"""The trials of ``birl tune``: processes of ``birl train``, Optuna's study of them, and the report at the end."""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, Protocol

import numpy as np

from birl.cli.common import (
    BEST_MODEL,
    newest_model,
    note,
    print_line,
    print_table,
)
from birl.cli.plot import Axes
from birl.cli.run_processes import GRACE_PERIOD, Process, StartProcess, end_processes, last_line
from birl.errors import BirlError, MissingExtraError, require
from birl.files import atomic_write
from birl.files.state_restore import convert_to_corrupt_error
from birl.run.run_lock import only_run

_STUDY, _JOURNAL = "birl", "study.journal"
_POLL_INTERVAL: Final = 0.5
_MOST_FAILURES: Final = 3
_LAST_EVALUATIONS: Final = 3
_STATES = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "running"}


class ActiveTrial(Protocol):
    """The part of `optuna.Trial` that a search uses."""

    number: int

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        """Suggest one of the choices."""

    def suggest_int(self, name: str, low: int, high: int, *, log: bool) -> int:
        """Suggest an integer."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        """Suggest a number."""

    def report(self, value: float, step: int) -> None:
        """Report an evaluation."""

    def should_prune(self) -> bool:
        """Return whether the trial should end."""


class TrialState(Protocol):
    """`optuna.trial.TrialState`."""

    name: str


class RecordedTrial(Protocol):
    """The part of `optuna.trial.FrozenTrial` that a report reads."""

    number: int
    state: TrialState
    value: float
    params: Mapping[str, str | int | float]
    intermediate_values: Mapping[int, float]


@dataclass(frozen=True)
class SearchRange:
    """A field of the configuration and the values that a search tries.

    Attributes:
        name: name of the field, as after ``--set``.
        text: its range as it was given.
        low, high: inclusive ends of the range.
        log: whether values are sampled on a logarithmic scale.
        whole: whether only whole numbers are sampled.
        choices: values instead of a range.
    """

    name: str
    text: str
    low: float = 0
    high: float = 0
    log: bool = False
    whole: bool = False
    choices: tuple[str, ...] = ()

    def suggest(self, trial: ActiveTrial) -> str:
        """Suggest a value in a trial, as a word for ``--set``."""
        if self.choices:
            return str(trial.suggest_categorical(self.name, self.choices))
        if self.whole:
            return str(trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log))
        return repr(trial.suggest_float(self.name, self.low, self.high, log=self.log))

    def holds(self, value: object) -> bool:
        """Return whether a value is in the range."""
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high

    def ends(self) -> list[str]:
        """Return the ends, or all choices: if the field accepts them, it accepts every value of the range."""
        return list(self.choices) or [str(int(end)) if self.whole else repr(end) for end in (self.low, self.high)]


@dataclass
class _RunningTrial:
    """A trial whose process is running.

    Attributes:
        trial: Optuna's trial.
        process: process of the run.
        reported: steps whose evaluations were reported to Optuna.
        pruned: time at which the process was asked to end, in seconds of the monotonic clock; 0 if it was not.
    """

    trial: ActiveTrial
    process: Process
    reported: set[int] = field(default_factory=set)
    pruned: float = 0


class HyperparameterSearch:
    """A search that is kept in a folder.

    Optuna's study is a file of JSON lines, ``study.journal``. Nothing in it is ever executed: Optuna reads it with
    ``json.loads``, and uses pickles only for snapshots of other storages.

    Args:
        out: the folder; one process at a time may use it.
        words: arguments of ``birl train`` that all trials share.
        ranges: fields and ranges of the search.
        metric: name of the metric that is the score.
        direction: ``"maximize"`` if higher scores are better, or ``"minimize"``.
        seed: random seed of the sampler. The values of trial n depend on it, on n, and on the trials that ended before.
        prune: whether to end trials whose evaluations are below the median of others at the same step.

    Raises:
        MissingExtraError: without Optuna.
        CorruptFileError: if the study cannot be read.
    """

    def __init__(
        self,
        out: Path,
        words: Sequence[str],
        ranges: Sequence[SearchRange],
        *,
        metric: str,
        direction: str = "maximize",
        seed: int,
        prune: bool,
    ) -> None:
        self._optuna = require("optuna", "tune")
        self._out, self._words, self._ranges = out, list(words), ranges
        self._metric, self._seed, self._lower = metric, seed, direction == "minimize"
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        pruners = self._optuna.pruners
        pruner = pruners.MedianPruner(n_startup_trials=5) if prune else pruners.NopPruner()
        file = out / _JOURNAL
        _repair(file)
        with convert_to_corrupt_error(
            file, "it cannot be read as Optuna's journal of this search", "Give another --out"
        ):
            journal = require("optuna.storages.journal", "tune")
            backend = journal.JournalFileBackend(str(file), journal.JournalFileOpenLock(str(file)))
            self._storage = self._optuna.storages.JournalStorage(backend)
            self._study = self._optuna.create_study(
                storage=self._storage, study_name=_STUDY, direction=direction, pruner=pruner, load_if_exists=True
            )
            self._check_trials()

    def _check_trials(self) -> None:
        """Raise `ValueError` if a trial has not the values that a search writes, which Optuna does not check."""
        for trial in self._study.get_trials():
            ended = trial.state.name in ("COMPLETE", "PRUNED")
            wrong = [
                search.name for search in self._ranges if ended and not search.holds(trial.params.get(search.name))
            ]
            scores = [*trial.intermediate_values.values(), *([trial.value] if trial.state.name == "COMPLETE" else [])]
            if wrong or not all(isinstance(score, float) for score in scores) or trial.state.name not in _STATES:
                raise ValueError(f"trial {trial.number} has the values {trial.params!s:.80} and scores {scores!s:.80}")

    def run(self, trials: int, jobs: int, start: StartProcess) -> None:
        """Train until there are ``trials`` trials, starting with those that an earlier process left unfinished.

        Args:
            trials: total number of trials.
            jobs: number of trials at the same time.
            start: function that starts a trial.

        Raises:
            BirlError: if the first three trials that end have failed.
        """
        unfinished = self._unfinished(trials)
        running: list[_RunningTrial] = []
        failures = 0
        try:
            while True:
                while len(running) < jobs and (unfinished or len(self._trials()) < trials):
                    running.append(self._start(unfinished.pop(0) if unfinished else None, start))
                if not running:
                    return
                ended = [run for run in running if self._has_ended(run)]
                running = [run for run in running if run not in ended]
                for run in ended:
                    failures = 0 if self._record_result(run) else failures + 1
                    success = any(trial.state.name in ("COMPLETE", "PRUNED") for trial in self._trials())
                    if failures >= _MOST_FAILURES and not success:
                        folder = self._folder(run.trial.number)
                        raise BirlError(
                            f"{failures} trials failed and none succeeded: {last_line(folder)} (see {folder}.log); "
                            "after a repair the same command continues the search"
                        )
                if not ended:
                    sleep(_POLL_INTERVAL)
        finally:
            if running:
                numbers = ", ".join(str(run.trial.number) for run in running)
                note(f"stopping trials ({numbers}), which write checkpoints; the same command continues in {self._out}")
                end_processes([run.process for run in running])

    def _trials(self) -> list[RecordedTrial]:
        found: list[RecordedTrial] = self._study.get_trials(deepcopy=False)
        return found

    def _unfinished(self, trials: int) -> list[int]:
        """Return the trials that an earlier process started and did not finish."""
        recorded = self._trials()
        unfinished = [trial.number for trial in recorded if _STATES[trial.state.name] == "running"]
        if len(recorded) > len(unfinished):
            note(f"{self._out}: {len(recorded) - len(unfinished)} of {trials} trials are finished")
        for number in unfinished:
            with only_run(self._folder(number)):  # raises if the process of a killed search is still running
                pass
        return unfinished

    def _folder(self, number: int) -> Path:
        return self._out / f"trial_{number:04d}"

    def _command(self, number: int, values: Mapping[str, str]) -> list[str]:
        """Return the command line of a trial's process."""
        return [sys.executable, "-m", "birl", *self._train_words(values), "--out", str(self._folder(number))]

    def _train_words(self, values: Mapping[str, str]) -> list[str]:
        assignments = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        return ["train", *self._words, *assignments]

    def _start(self, number: int | None, start: StartProcess) -> _RunningTrial:
        """Resume a trial with the values in the storage, or start a new trial if ``number`` is ``None``."""
        new = number is None
        if number is None:
            number = len(self._trials())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna 4 warns that constant_liar is experimental
            entropy = np.random.SeedSequence([self._seed, number]).generate_state(1)[0]
            self._study.sampler = self._optuna.samplers.TPESampler(seed=int(entropy), constant_liar=True)
        if new:
            trial = self._study.ask()
        else:
            key = self._storage.get_study_id_from_name(_STUDY), number
            trial = self._optuna.trial.Trial(self._study, self._storage.get_trial_id_from_study_id_trial_number(*key))
        values = {search.name: search.suggest(trial) for search in self._ranges}
        described = " ".join(f"{name}={_format_cell(value)}" for name, value in values.items())
        note(f"trial {number}: {described}{'' if new else ', resumed'} -> {self._folder(number)}")
        process = start(self._command(number, values), self._folder(number))
        return _RunningTrial(trial, process, set(self._trials()[number].intermediate_values))

    def _has_ended(self, running: _RunningTrial) -> bool:
        """Report new evaluations of a trial, prune it if it is poor, and return whether its process has ended."""
        ended = running.process.poll() is not None  # checked first, so that the last evaluations are read below
        for step, value in self._evaluations(running.trial.number):
            if step in running.reported or running.pruned:  # evaluations after pruning depend on chance
                continue
            running.reported.add(step)
            running.trial.report(value, step)
            if running.trial.should_prune():
                running.pruned = monotonic()
                running.process.terminate()
        if running.pruned and not ended and monotonic() > running.pruned + GRACE_PERIOD:
            running.process.kill()
        return ended

    def _record_result(self, running: _RunningTrial) -> bool:
        """Record in the study how a trial ended, and return whether it was a success."""
        number, state = running.trial.number, self._optuna.trial.TrialState
        if running.pruned:
            pruned = self._study.tell(number, state=state.PRUNED)
            note(
                f"trial {number} pruned at step {pruned.last_step}: {pruned.intermediate_values[pruned.last_step]:.5g}"
            )
            return True
        scores = [value for _, value in self._evaluations(number)]
        score = _mean_of_last(scores)
        status = running.process.returncode
        if status == 0 and math.isfinite(score):
            self._study.tell(number, score)
            note(f"trial {number} done: {score:.5g} (best {self._study.best_value:.5g})")
            return True
        self._study.tell(number, state=state.FAIL)
        reason = f" (exit status {status}): {last_line(self._folder(number))}"
        if status == 0:
            reason = f": its score is {score}" if scores else f": it has no {self._metric}, give a larger --n-steps"
        note(f"trial {number} failed{reason}")
        return False

    def _evaluations(self, number: int) -> list[tuple[int, float]]:
        """Return the steps and scores that a trial has written; a line that is still being written is left out."""
        file = self._folder(number) / f"{self._metric}.csv"
        if not file.is_file():
            return []
        *lines, _ = file.read_text(encoding="utf-8").split("\n")
        rows = [line.split(",") for line in lines if line]
        return [(int(float(step)), float(value)) for _, step, value in rows]

    def report(self) -> None:
        """Print all trials, the best first, write ``trials.csv`` and ``tune.png``, and print the best trial.

        Raises:
            BirlError: if no trial reached its end.
        """
        trials = sorted(self._trials(), key=partial(_rank, lower=self._lower))
        names = [search.name for search in self._ranges]
        rows: list[list[str | int | float]] = []
        for trial in trials:
            steps = max(trial.intermediate_values, default=0)
            values = [trial.params.get(name, "") for name in names]
            rows.append([trial.number, _score(trial), _STATES[trial.state.name], steps, *values])
        head = ["trial", "score", "state", "steps"]
        print_table([[*map(str.upper, head), *names], *([_format_cell(cell) for cell in row] for row in rows)])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([[*head, *names], *rows])
        atomic_write(self._out / "trials.csv", text.getvalue().encode())
        best = trials[0] if trials and trials[0].state.name == "COMPLETE" else None
        if best is None:
            raise BirlError(f"no trial reached its end: see {self._out}/trial_*.log")
        try:
            self._draw(trials)
        except MissingExtraError as error:
            note(f"no picture: {error}")
        folder = self._folder(best.number)
        model = folder / BEST_MODEL if (folder / BEST_MODEL).exists() else newest_model(folder)
        again = shlex.join(["birl", *self._train_words({name: str(best.params[name]) for name in names})])
        print_line(f"best: trial {best.number}, {best.value:.5g}, model {model}; again: {again}")

    def _draw(self, trials: Sequence[RecordedTrial]) -> None:
        """Draw the best score so far over the trials, and scores against each field."""
        figure = require("matplotlib.figure", "plot").Figure(layout="constrained")
        panels = len(self._ranges) + 1
        columns = min(3, panels)
        lines = -(-panels // columns)
        figure.set_size_inches(4 * columns, 3.2 * lines)
        axes = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
        done = sorted((trial for trial in trials if trial.state.name == "COMPLETE"), key=lambda each: each.number)
        best_so_far = (np.minimum if self._lower else np.maximum).accumulate([trial.value for trial in done])
        axes[0].step([trial.number for trial in done], best_so_far, where="post", color="C1", label="best so far")
        axes[0].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axes[0].set(xlabel="trial")
        for state, color, marker in (("COMPLETE", "C0", "o"), ("PRUNED", "C7", "x")):
            some = [trial for trial in trials if trial.state.name == state and math.isfinite(_score(trial))]
            if some:
                self._scatter(axes, some, {"color": color, "marker": marker, "s": 22, "label": _STATES[state]})
        for search, panel in zip(self._ranges, axes[1:], strict=False):
            _label_range(panel, search)
        for panel in axes[:panels]:
            panel.grid(alpha=0.3)
        for panel in axes[panels:]:
            panel.remove()
        for panel in axes[::columns]:
            panel.set(ylabel="score")
        axes[0].legend()
        figure.savefig(self._out / "tune.png", dpi=120)

    def _scatter(self, axes: Sequence[Axes], trials: Sequence[RecordedTrial], style: dict[str, Any]) -> None:
        """Draw the scores of trials over their numbers, and over the values of each field."""
        scores = [_score(trial) for trial in trials]
        axes[0].scatter([trial.number for trial in trials], scores, **style)
        for search, panel in zip(self._ranges, axes[1:], strict=False):
            values = [trial.params[search.name] for trial in trials]
            panel.scatter([search.choices.index(str(v)) for v in values] if search.choices else values, scores, **style)


def _label_range(panel: Axes, search: SearchRange) -> None:
    """Set label, scale and limits of the x-axis for a field."""
    panel.set(xlabel=search.name)
    if search.choices:
        panel.set_xticks(range(len(search.choices)), search.choices)
        panel.set_xlim(-0.5, len(search.choices) - 0.5)
    elif search.log:
        panel.set_xscale("log")
        panel.set_xlim(search.low / 1.2, search.high * 1.2)
    else:
        margin = 0.04 * (search.high - search.low)
        panel.set_xlim(search.low - margin, search.high + margin)


def _repair(file: Path) -> None:
    """Remove what a killed search left behind: a lock, and an incomplete last line."""
    Path(f"{file}.lock").unlink(missing_ok=True)
    if file.is_file() and not (content := file.read_bytes()).endswith(b"\n"):
        with open(file, "r+b") as stream:
            stream.truncate(content.rfind(b"\n") + 1)


def _mean_of_last(values: Sequence[float]) -> float:
    """Return the mean of the last three evaluations; NaN without any."""
    return float(np.mean(values[-_LAST_EVALUATIONS:])) if values else math.nan


def _score(trial: RecordedTrial) -> float:
    """Return the final score of a complete trial, or the score so far of another one."""
    evaluations = trial.intermediate_values
    if trial.state.name == "COMPLETE":
        return trial.value
    return _mean_of_last([evaluations[step] for step in sorted(evaluations)])


def _rank(trial: RecordedTrial, *, lower: bool) -> tuple[int, float, int]:
    """Return a sort key that puts finished trials first, by their scores, then pruned ones, then the others.

    Args:
        trial: the trial.
        lower: whether lower scores are better.
    """
    score = -_score(trial) if lower else _score(trial)
    states = ["COMPLETE", "PRUNED", "RUNNING", "WAITING", "FAIL"]
    return states.index(trial.state.name), -score if math.isfinite(score) else math.inf, trial.number


def _format_cell(value: str | int | float) -> str:
    """Format a cell of a table: numbers with four digits."""
    if isinstance(value, str):
        try:
            value = float(value) if re.search(r"\d[.e]", value) else value
        except ValueError:
            return str(value)
    return ("-" if math.isnan(value) else f"{value:.4g}") if isinstance(value, float) else str(value)
