"""Trials of ``birl tune``: processes of ``birl train``, Optuna's study of them, and what is reported in the end."""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import numpy as np

from birl.cli.common import BEST_MODEL, newest_model, note, print_table
from birl.cli.run_processes import PATIENCE, Begin, Process, end, last_line
from birl.errors import BirlError, CorruptFileError, MissingExtraError, require
from birl.files import atomic_write
from birl.run.run_lock import only_run

_STUDY, _JOURNAL = "birl", "study.journal"
_POLL: Final = 0.5
_FAILURES: Final = 3
_LAST: Final = 3
_STATES = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "running"}


@dataclass
class _Running:
    """A trial whose process runs.

    Attributes:
        trial: Optuna's.
        reported: steps whose evaluations Optuna knows.
        pruned: when it was told to end, in seconds of the monotonic clock; 0 if it was not.
    """

    trial: Any
    process: Process
    reported: set[int] = field(default_factory=set)
    pruned: float = 0


class Tuning:
    """A search, kept in a folder.

    Optuna's study is a file of JSON lines, ``study.journal``. Nothing in it is ever executed: Optuna reads it by
    ``json.loads``; pickles are only made of storages with snapshots, which files have not.

    Args:
        out: the folder; one process at a time may use it.
        words: words of ``birl train`` that all trials share.
        searches: what `birl.cli.tune.parse_search` returns.
        metric: name of the metric that is the score, higher is better.
        seed: of the sampler: proposal n is a function of it, of n, and of the trials told before.
        prune: whether trials below the median of others at the same step are ended.

    Raises:
        MissingExtraError: without Optuna.
        CorruptFileError: if the study cannot be read.
    """

    def __init__(
        self, out: Path, words: Sequence[str], searches: Sequence[Any], *, metric: str, seed: int, prune: bool
    ) -> None:
        self._optuna = require("optuna", "tune")
        self._out, self._words, self._searches = out, list(words), searches
        self._metric, self._seed = metric, seed
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        pruners = self._optuna.pruners
        pruner = pruners.MedianPruner(n_startup_trials=5) if prune else pruners.NopPruner()
        file = out / _JOURNAL
        _mend(file)
        try:
            journal = require("optuna.storages.journal", "tune")
            backend = journal.JournalFileBackend(str(file), journal.JournalFileOpenLock(str(file)))
            self._storage = self._optuna.storages.JournalStorage(backend)
            self._study = self._optuna.create_study(
                storage=self._storage, study_name=_STUDY, direction="maximize", pruner=pruner, load_if_exists=True
            )
            self._study.get_trials()
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
            raise CorruptFileError(
                f"{file} cannot be read as Optuna's journal ({error!r:.200}): give another --out"
            ) from error

    def run(self, trials: int, jobs: int, begin: Begin) -> None:
        """Train until there are so many trials, some at once; those that an earlier process left go on first.

        Args:
            trials: how many there are in the end.
            jobs: how many run at once.
            begin: begins each of them.

        Raises:
            BirlError: if the first three trials that end have failed.
        """
        there = self._study.get_trials(deepcopy=False)
        left = [each.number for each in there if not each.state.is_finished()]
        if len(there) - len(left):
            note(f"{self._out}: {len(there) - len(left)} of {trials} trials are there")
        for number in left:
            with only_run(self._folder(number)):  # or else an error: its process outlived a killed search
                pass
        running: list[_Running] = []
        failed = 0
        try:
            while True:
                while len(running) < jobs and (left or len(self._study.get_trials(deepcopy=False)) < trials):
                    running.append(self._start(left.pop(0) if left else None, begin))
                if not running:
                    return
                ended = [each for each in running if self._ended(each)]
                running = [each for each in running if each not in ended]
                for each in ended:
                    failed = 0 if self._tell(each) else failed + 1
                    if failed >= _FAILURES and not self._any_success():
                        folder = self._folder(each.trial.number)
                        raise BirlError(
                            f"{failed} trials failed and none succeeded: {last_line(folder)} (see {folder}.log); the "
                            "same command goes on when that is mended"
                        )
                if not ended:
                    sleep(_POLL)
        finally:
            if running:
                numbers = ", ".join(str(each.trial.number) for each in running)
                note(f"stopping trials ({numbers}), which write checkpoints; the same command goes on in {self._out}")
                end([each.process for each in running])

    def _folder(self, number: int) -> Path:
        return self._out / f"trial_{number:04d}"

    def _command(self, number: int, values: dict[str, str]) -> list[str]:
        """What is run as a trial."""
        return [sys.executable, "-m", "birl", *self._repeat(values), "--out", str(self._folder(number))]

    def _repeat(self, values: dict[str, str]) -> list[str]:
        found = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        return ["train", *self._words, *found]

    def _start(self, number: int | None, begin: Begin) -> _Running:
        """Begin a new trial, or go on with one, with the values that the storage has."""
        new = number is None
        if number is None:
            number = len(self._study.get_trials(deepcopy=False))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # in Optuna 4, constant_liar is called experimental
            entropy = np.random.SeedSequence([self._seed, number]).generate_state(1)[0]
            self._study.sampler = self._optuna.samplers.TPESampler(seed=int(entropy), constant_liar=True)
        if new:
            trial = self._study.ask()
        else:
            place = self._storage.get_study_id_from_name(_STUDY), number
            trial = self._optuna.trial.Trial(self._study, self._storage.get_trial_id_from_study_id_trial_number(*place))
        values = {each.name: each.suggest(trial) for each in self._searches}
        shown = " ".join(f"{name}={_short(value)}" for name, value in values.items())
        note(f"trial {number}: {shown}{'' if new else ', going on'} -> {self._folder(number)}")
        process = begin(self._command(number, values), self._folder(number))
        known = self._study.get_trials(deepcopy=False)[number].intermediate_values
        return _Running(trial, process, set(known))

    def _ended(self, running: _Running) -> bool:
        """Report new evaluations of a trial, prune it if it is bad, and say whether its process has ended."""
        over = running.process.poll() is not None  # first: what it wrote last is then read
        for step, value in self._evaluations(running.trial.number):
            if step in running.reported or running.pruned:  # what comes after depends on when the process ends
                continue
            running.reported.add(step)
            running.trial.report(value, step)
            if running.trial.should_prune():
                running.pruned = monotonic()
                running.process.terminate()
        if running.pruned and not over and monotonic() > running.pruned + PATIENCE:
            running.process.kill()
        return over

    def _tell(self, running: _Running) -> bool:
        """Tell Optuna how a trial ended; returns whether it was a success."""
        number, state = running.trial.number, self._optuna.trial.TrialState
        if running.pruned:
            told = self._study.tell(number, state=state.PRUNED)
            note(f"trial {number} pruned at step {told.last_step}: {told.intermediate_values[told.last_step]:.5g}")
            return True
        scores = [value for _, value in self._evaluations(number)]
        score = _score(scores)
        status = running.process.returncode
        if status == 0 and math.isfinite(score):
            self._study.tell(number, score)
            note(f"trial {number} done: {score:.5g} (best {self._study.best_value:.5g})")
            return True
        self._study.tell(number, state=state.FAIL)
        why = f"(exit status {status}): {last_line(self._folder(number))}"
        if status == 0:
            why = f": its score is {score}" if scores else f": it has no {self._metric}, give a larger --n-steps"
        note(f"trial {number} failed {why}".replace(" :", ":"))
        return False

    def _any_success(self) -> bool:
        return any(each.state.name in ("COMPLETE", "PRUNED") for each in self._study.get_trials(deepcopy=False))

    def _evaluations(self, number: int) -> list[tuple[int, float]]:
        """Steps and scores that a trial has written; a line that is being written is left for the next time."""
        file = self._folder(number) / f"{self._metric}.csv"
        if not file.is_file():
            return []
        *lines, _ = file.read_text(encoding="utf-8").split("\n")
        rows = [line.split(",") for line in lines if line]
        return [(int(float(step)), float(value)) for _, step, value in rows]

    def report(self) -> None:
        """Print all trials, best first, write ``trials.csv`` and ``tune.png``, and name the best.

        Raises:
            BirlError: if no trial reached its end.
        """
        trials = sorted(self._study.get_trials(deepcopy=False), key=_rank)
        names = [each.name for each in self._searches]
        rows = [[each.number, _value(each), _STATES[each.state.name], max(each.intermediate_values, default=0),
                 *(each.params.get(name, "") for name in names)] for each in trials]  # fmt: skip
        head = ["trial", "score", "state", "steps", *names]
        print_table([[word.upper() for word in head[:4]] + names, *([_short(cell) for cell in row] for row in rows)])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([head, *rows])
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
        again = shlex.join(["birl", *self._repeat({name: str(best.params[name]) for name in names})])
        print(f"best: trial {best.number}, {best.value:.5g}, model {model}; again: {again}")

    def _draw(self, trials: Sequence[Any]) -> None:
        """Draw the score so far over trials, and scores against each field."""
        figure = require("matplotlib.figure", "plot").Figure(layout="constrained")
        columns = min(3, len(self._searches) + 1)
        lines = -(-(len(self._searches) + 1) // columns)
        figure.set_size_inches(4 * columns, 3.2 * lines)
        axes = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
        marks = {"COMPLETE": ("done", "C0", "o"), "PRUNED": ("pruned", "C7", "x")}
        done = sorted((each for each in trials if each.state.name == "COMPLETE"), key=lambda each: each.number)
        so_far = np.maximum.accumulate([each.value for each in done])
        axes[0].step([each.number for each in done], so_far, where="post", color="C1", label="best so far")
        axes[0].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        for state, (label, color, marker) in marks.items():
            some = [each for each in trials if each.state.name == state and math.isfinite(_value(each))]
            if not some:
                continue
            dots: Any = {"color": color, "marker": marker, "s": 22, "label": label}
            scores = [_value(each) for each in some]
            axes[0].scatter([each.number for each in some], scores, **dots)
            for search, place in zip(self._searches, axes[1:], strict=False):
                values = [each.params[search.name] for each in some]
                places = [search.choices.index(value) for value in values] if search.choices else values
                place.scatter(places, scores, **dots)
        axes[0].set(xlabel="trial")
        for search, place in zip(self._searches, axes[1:], strict=False):
            place.set(xlabel=search.name)
            if search.choices:
                place.set_xticks(range(len(search.choices)), search.choices)
                place.set_xlim(-0.5, len(search.choices) - 0.5)
            elif search.log:
                place.set_xscale("log")
                place.set_xlim(search.low / 1.2, search.high * 1.2)
            else:
                margin = 0.04 * (search.high - search.low)
                place.set_xlim(search.low - margin, search.high + margin)
        for place in axes[: len(self._searches) + 1]:
            place.grid(alpha=0.3)
        for place in axes[len(self._searches) + 1 :]:
            place.remove()
        for place in axes[::columns]:
            place.set(ylabel="score")
        axes[0].legend()
        figure.savefig(self._out / "tune.png", dpi=120)


def _mend(file: Path) -> None:
    """Remove what a killed search has left: a lock, and a last line that was half written."""
    Path(f"{file}.lock").unlink(missing_ok=True)
    if file.is_file() and not (there := file.read_bytes()).endswith(b"\n"):
        with open(file, "r+b") as stream:
            stream.truncate(there.rfind(b"\n") + 1)


def _score(values: Sequence[float]) -> float:
    """Mean of the last three evaluations; NaN if there are none."""
    return float(np.mean(values[-_LAST:])) if values else math.nan


def _value(trial: Any) -> float:
    """Score of a trial at its end, or so far."""
    seen = trial.intermediate_values
    return trial.value if trial.state.name == "COMPLETE" else _score([seen[step] for step in sorted(seen)])


def _rank(trial: Any) -> tuple[int, float, int]:
    """Sorts trials: those that are done by their score, then the pruned ones, then the others."""
    value = _value(trial)
    states = ["COMPLETE", "PRUNED", "RUNNING", "FAIL"]
    return states.index(trial.state.name), -value if math.isfinite(value) else math.inf, trial.number


def _short(value: Any) -> str:
    """A cell of a table: numbers with four digits."""
    if isinstance(value, str):
        try:
            value = float(value) if re.search(r"\d[.e]", value) else value
        except ValueError:
            return str(value)
    return ("-" if math.isnan(value) else f"{value:.4g}") if isinstance(value, float) else str(value)
