"""The frame of every training loop: epochs, logging, models, progress, checkpoints, signals.

A loop makes a `Session`, and a function that makes a step and calls `Session.tick`::

    yield from session.epochs(step)
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from birl._version import __version__
from birl.errors import ConfigError, CorruptFileError, ResumeError, StalledError
from birl.files.state_restore import compare, damage_as_typed_errors, put_back
from birl.logging import BirlLogger, FileAdapterFactory, LoggerAdapterFactory, LoggingStrategy
from birl.logging.averages import GradientStatistics
from birl.logging.logger import LOG
from birl.run.checkpoint import (
    check_checkpoint_folder,
    checkpoint_path,
    load_checkpoint,
    preserve_random_state,
    restore_parts,
    save_checkpoint,
)
from birl.run.fingerprint import ACTIONS
from birl.run.hooks import Hooks
from birl.run.options import Options
from birl.run.progress import Progress
from birl.run.protocols import Evaluator, Stateful, Trainable
from birl.run.run_lock import only_run
from birl.run.signals import Abandoned, Interrupt
from birl.types import State

CHECK_INTERVAL = 100
"""Steps between two readings of the metrics on the device, when parameters and moments are checked as well."""


class Session:
    """One run of one loop.

    Args:
        algorithm: built.
        name: name of the run if ``experiment_name`` does not say otherwise.
        n_steps: total number of steps, those before a resume included.
        parts: further objects whose state a checkpoint holds, by name.
        settings: JSON values that a resumed run must share, by name. See `birl.run.fingerprint`.
        evaluators: called with ``(algorithm, dataset)`` after each epoch; the results are metrics.
        dataset: what evaluators look at.
        given: all of `Options`, checked; others are left alone.

    Attributes:
        step: steps made so far.
        averages: metrics of the current epoch.
        time: `BirlLogger.measure_time`.
    """

    def __init__(
        self,
        algorithm: Trainable,
        name: str,
        n_steps: int,
        parts: Mapping[str, Stateful],
        settings: dict[str, Any],
        evaluators: Mapping[str, Evaluator] | None,
        dataset: Any,
        given: Options,
    ) -> None:
        n_steps_per_epoch, by_steps = given["n_steps_per_epoch"], given["logging_strategy"] is LoggingStrategy.STEPS
        self._logging_steps = given["logging_steps"] if by_steps else None
        self._algorithm, self._n_steps, self._epoch_length = algorithm, n_steps, n_steps_per_epoch
        self._evaluators, self._dataset = evaluators or {}, dataset
        self._score, self._stop_at = self._checked_score(given["score"], settings["loop"]), given["stop_at"]
        if self._stop_at is not None and self._score is None:
            raise ConfigError(f"stop_at={self._stop_at} needs a score: give eval_env=, or score=, the name of a metric")
        self._best: State | None = None  # metric, score, step
        self._ended = ""  # why the run ended before its last step
        self._stalled: StalledError | None = None  # raised when everything is saved
        with_state: Any = {f"evaluator {k}": v for k, v in self._evaluators.items() if isinstance(v, Stateful)}
        self._hooks = Hooks.of(given["callback"])
        self._parts: dict[str, Stateful] = {"learner": algorithm, **parts, **with_state, **self._hooks.parts()}
        actions = algorithm.describe().get("action_size")  # many seeds have none
        settings = {**settings, "n_steps_per_epoch": n_steps_per_epoch, ACTIONS: actions}
        if self._logging_steps is not None:
            settings["logging_steps"] = self._logging_steps
        self._settings = {k: v.item() if isinstance(v, np.generic) else v for k, v in settings.items()}  # JSON values
        self._gradients = GradientStatistics() if given["log_gradients"] else None
        if self._gradients is not None:
            self._parts["gradients"] = self._gradients
        self._save_interval, self._checkpoint = given["save_interval"], given["checkpoint"]
        self._keep_models = given["keep_models"]
        self._epoch_callback = given["epoch_callback"]
        self.step = 0
        self._closed = 0  # the step at which the last finished epoch ended
        self._interrupt = Interrupt()

        self._held = contextlib.ExitStack()  # locks of folders
        try:
            self._begin(given, given["experiment_name"] or name)
        except BaseException:
            self._held.close()
            raise

    def _begin(self, given: Options, experiment_name: str) -> None:
        """Open the run's folders, and go on from its checkpoint if there is one."""
        compiled, with_timestamp = self._algorithm.learner.compiled, given["with_timestamp"]
        state = self._resumed(self._settings)
        if state is not None:
            experiment_name, with_timestamp = self._header(state, experiment_name, given["go_on"]), False
        factory = given["logger_adapter"] or FileAdapterFactory()
        self._logger = self._open_logger(factory, experiment_name, with_timestamp)
        self.averages, self.time = self._logger.averages, self._logger.measure_time
        if state is not None:
            self._set_state(state)
            if self.step and self.left and state["session"].get("compiled", compiled) != compiled:
                words = ("not compiled so far, and", "") if compiled else ("compiled so far, and", "not ")
                self.warn_inexact(f"its updates were {words[0]} are {words[1]}from now on")
        self._described = self._algorithm.describe()
        self._logger.add_params(self._described)
        if state is None:
            self._logger.add_origin(origin())
        self._hooks.start(self._logger.adapter)
        first = "the first update compiles" if compiled else ""
        finished = self._done and self._closed == self.step
        self._progress = Progress(self._n_steps, self.step, given["show_progress"] and not finished, first)
        if finished:
            self._say_finished()
        else:
            self._say_where(state is not None, above_bar=given["with_timestamp"])  # who names the folder knows it
        if state is None:
            self._write_checkpoint()  # a run that dies in its first epoch begins again with the same random numbers

    def _resumed(self, settings: dict[str, Any]) -> State | None:
        """The state to go on from, once no other run can write there."""
        if self._checkpoint is None:
            return None
        check_checkpoint_folder(self._checkpoint)
        self._held.enter_context(only_run(self._checkpoint))
        return load_checkpoint(self._checkpoint, settings)

    def _open_logger(self, factory: LoggerAdapterFactory, name: str, with_timestamp: bool) -> BirlLogger:
        """The logger, once no other run can write where it does."""
        while True:
            logger = BirlLogger(
                factory, name, with_timestamp, algo=self._algorithm, n_steps_per_epoch=self._epoch_length
            )
            place = getattr(logger.adapter, "logdir", None)
            if place is None or (self._checkpoint is not None and _same(place, self._checkpoint)):
                return logger
            try:
                self._held.enter_context(only_run(place))
                return logger
            except ResumeError:
                if not with_timestamp:  # else the other run began in the same second: this one gets another time
                    raise

    # -- where the run is ------------------------------------------------------------------------------------------

    @property
    def _done(self) -> bool:
        return bool(self._ended) or self.step == self._n_steps

    @property
    def _epoch_end(self) -> int:
        if self._ended:
            return self.step
        return min(self._n_steps, (self._closed // self._epoch_length + 1) * self._epoch_length)

    @property
    def epoch(self) -> int:
        """Number of the present epoch, from 1. Epochs end at multiples of their length, whatever ``n_steps`` is."""
        return max(self.step - 1, 0) // self._epoch_length + 1

    @property
    def left(self) -> int:
        """Steps left in the run."""
        return self._n_steps - self.step

    # -- the steps -------------------------------------------------------------------------------------------------

    def epochs(self, step: Callable[[], None]) -> Iterator[tuple[int, dict[str, float]]]:
        """Make the steps of the run, and close it, however it ends.

        Args:
            step: makes a step, or several, at most `steps_until_check`, and calls `tick`.

        Yields:
            Number of each epoch (from 1) and its metrics.
        """
        if self._gradients is not None:
            self._algorithm.watch_gradients(self._gradients.add)
        try:
            while not (self._done and self._closed == self.step):
                with self._interrupt.held_back():
                    while self.step < self._epoch_end:
                        self._make(step)
                    result = self._end_epoch()
                yield result
            if self._stalled is not None:
                raise self._stalled
        finally:
            if self._gradients is not None:
                self._algorithm.watch_gradients(None)
            self._progress.close()
            self._logger.close()
            self._held.close()

    def _make(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Abandoned:  # it waited for collectors: the resumed run makes it again
            self._obey()

    def check_signals(self) -> None:
        """Leave the step, and end the run with a checkpoint, if a signal came.

        Call it while a step waits for others, where a checkpoint holds all that the step has done so far.
        """
        self._interrupt.check()

    @property
    def steps_until_check(self) -> int:
        """Steps that can be made in one go: up to the next callback, reading of the metrics, or end of an epoch."""
        logging = [] if self._logging_steps is None else [self._logging_steps]
        intervals = [CHECK_INTERVAL, *logging, *self._hooks.every]
        return min(self._epoch_end - self.step, *(interval - self.step % interval for interval in intervals))

    def update(self, drawn: Any) -> None:
        """Let the algorithm learn from a draw or a rollout."""
        with self.time("algorithm_update"):
            metrics = self._algorithm.learner.learn(drawn)
        self.averages.add(metrics)

    def tick(self, steps: int = 1) -> None:
        """Finish a step, or several, at most `steps_until_check`: count, read metrics now and then, obey signals."""
        self.step += steps
        self._progress.advance(steps)
        if self.step % CHECK_INTERVAL == 0:
            self._read_averages()
            if self._progress.due:
                self._progress.show(self.epoch, self.averages.means())
        if self._logging_steps is not None and self.step % self._logging_steps == 0 and self.step < self._epoch_end:
            self._read_averages()
            self._write(self.averages.means())  # at the end of the epoch, `_end_epoch` writes
        if any(map(requests_stop, self._hooks.call(self._algorithm, self.epoch, self.step))):
            self._ended = "the callback returned False"
        self._obey()

    def _read_averages(self) -> None:
        try:
            self.averages.check(self.step)
        except StalledError as error:
            self._stalled, self._ended = error, str(error)
        self._algorithm.learner.check_finite()

    def _end_epoch(self) -> tuple[int, dict[str, float]]:
        """Evaluate, log, save; returns the number of the epoch and its metrics."""
        epoch = self.epoch
        self._read_averages()
        metrics = self.averages.means()
        remembering: Any = [each for each in self._evaluators.values() if isinstance(each, Stateful)]
        before = [copy.deepcopy(each.get_state()) for each in remembering]
        try:
            with preserve_random_state(), self._interrupt.abandonable():
                for name, evaluator in self._evaluators.items():
                    metrics |= evaluate_with(name, evaluator, self._algorithm, self._dataset)
        except Abandoned:  # the resumed run evaluates again
            for each, state in zip(remembering, before, strict=True):
                each.set_state(state)
            self._obey()
        self._write(metrics)
        self._tell_retuned()
        self._progress.show(epoch, metrics)
        self._closed = self.step
        self._judge(metrics)
        if self._epoch_callback is not None and requests_stop(self._epoch_callback(self._algorithm, epoch, self.step)):
            self._ended = self._ended or "the epoch callback returned False"
        if epoch % self._save_interval == 0 or self._done:
            self._logger.save_model(self.step, self._algorithm, self._keep_models)
            self._write_checkpoint()
        if self._ended:
            self._say(f"the run ended after {self.step} steps: {self._ended}")
        self._obey()
        return epoch, metrics

    def _tell_retuned(self) -> None:
        """Write the parameters again if some were retuned."""
        described = self._algorithm.describe()
        if described.get("retuned") != self._described.get("retuned"):
            self._described = described
            self._logger.add_params(described)

    def _judge(self, metrics: dict[str, float]) -> None:
        """Keep the best model, and end the run if it is good enough."""
        score = float(metrics.get(self._score or "", math.nan))
        if math.isnan(score):
            return
        if self._best is None or score > self._best["score"]:
            self._best = {"metric": self._score, "score": score, "step": self.step}
            self._logger.save_best_model(self._algorithm, self._best)
        if self._stop_at is not None and score >= self._stop_at:
            self._ended = self._ended or f"{self._score} reached {score:.6g} (stop_at={self._stop_at:.6g})"

    def _write(self, metrics: dict[str, float]) -> None:
        gradients = None if self._gradients is None else self._gradients.take()
        self._logger.write(self.epoch, self.step, metrics, gradients)
        self.averages.clear()

    def _obey(self) -> None:
        if self._interrupt.signal is not None:
            self._write_checkpoint()
            self._interrupt.stop()

    def _checked_score(self, score: str | None, loop: str) -> str | None:
        known = [*self._evaluators, *([] if loop == "offline" else ["rollout_return"])]
        if score is None and loop != "offline":
            return next(iter(self._evaluators), None)
        if score is not None and score not in known:
            raise ConfigError(
                f"score is {score!r:.80}; it must be the name of a metric that says how good a model is: "
                + (f"one of {', '.join(map(repr, known))}" if known else "give an evaluator, evaluators={name: …}")
            )
        return score

    def _say(self, words: str) -> None:
        LOG.info("%s", words)
        self._progress.say(words)

    def warn_inexact(self, why: str) -> None:
        """Warn that going on with the run gives other numbers than making it in one go."""
        warnings.warn(
            f"the run in {self._checkpoint} goes on from step {self.step}, but not bit for bit as if it had been "
            f"started with n_steps={self._n_steps}: {why}",
            RuntimeWarning,
            stacklevel=2,
        )

    def _say_where(self, resumed: bool, above_bar: bool) -> None:
        """Say where the run is kept."""
        places = [getattr(self._logger.adapter, "logdir", None), self._checkpoint]
        kept = " and ".join(dict.fromkeys(str(Path(place)) for place in places if place is not None))
        if kept:
            words = f"the run is kept in {kept}" + (f"; it goes on from step {self.step}" if resumed else "")
            (self._say if above_bar else LOG.info)(words)

    def _say_finished(self) -> None:
        """Say that there is nothing left to do, even where nothing else is shown."""
        why = f"ended after {self.step} steps: {self._ended:.200}" if self._ended else f"made all its {self.step} steps"
        advice = "go_on=True goes on with it" if self._ended else "a larger n_steps goes on with it"
        LOG.warning("nothing to do: the run in %s has %s; %s", self._checkpoint, why, advice)

    # -- state -----------------------------------------------------------------------------------------------------

    def _write_checkpoint(self) -> None:
        if self._checkpoint is None:
            return
        self.averages.check(self.step, flush=False)
        state = {
            "session": {
                "step": self.step,
                "closed": self._closed,
                "best": self._best,
                "ended": self._ended,
                "compiled": self._algorithm.learner.compiled,
                "averages": self.averages.get_state(),
                "experiment_name": self._logger.experiment_name,
                "logger": self._logger.get_state(),
            },
            "parts": {name: part.get_state() for name, part in self._parts.items()},
        }
        save_checkpoint(self._checkpoint, self._settings, state)

    def _header(self, state: State, experiment_name: str, go_on: bool) -> str:
        """Take the counters of a checkpoint; returns the run's name."""
        label = checkpoint_path(self._checkpoint)  # type: ignore[arg-type]
        own = {"step": 0, "closed": 0, "ended": "", "averages": {}, "experiment_name": "", "logger": {}}
        with damage_as_typed_errors(label):
            session = state["session"]
            compare({name: session[name] for name in own}, own, "session", label)
            best, name = session["best"], str(session["experiment_name"])
            step, closed = int(session["step"]), int(session["closed"])
            outside = name != experiment_name and (PurePath(name).is_absolute() or ".." in PurePath(name).parts)
            if not 0 <= closed <= step or outside or not name:
                raise CorruptFileError(
                    f"{label} has made {step} steps, {closed} of them in whole epochs, as {name!r:.80}: use a copy"
                )
            best = best if best is not None and best["metric"] == self._score else None
            if best is not None:
                compare(best, {"metric": "", "score": 0.0, "step": 0}, "best", label)
                best = {key: best[key] for key in ("metric", "score", "step")}
        if step > self._n_steps:
            raise ResumeError(
                f"the run in {self._checkpoint} has made {step} steps already, more than n_steps="
                f"{self._n_steps}: ask for at least as many, or use another folder to start anew"
            )
        self.step, self._closed, self._best = step, closed, best
        self._ended = "" if go_on else str(session["ended"] or "")
        return name

    def _set_state(self, state: State) -> None:
        """Continue from a checkpoint, or raise an error and leave every part as it was."""
        own: dict[str, Stateful] = {"averages": self.averages, "logger": self._logger}
        label = checkpoint_path(self._checkpoint)  # type: ignore[arg-type]
        with restore_parts(self._parts, state, label):
            put_back(own, state["session"], label, free="")  # last, because it changes files


def evaluate_with(name: str, evaluator: Evaluator, algorithm: Any, dataset: Any) -> dict[str, float]:
    """The metrics of an evaluator: one number, or several by name, of which ``mean`` is the one called ``name``.

    An error of it, or of its environment, stays what it is, with a note that says where it was.
    """
    try:
        found = evaluator(algorithm, dataset)
    except Exception as error:
        error.add_note(f"This was in the evaluator {name!r}, not in the steps or updates of training.")
        raise
    if not isinstance(found, Mapping):
        return {name: float(found)}
    return {name if key == "mean" else f"{name}_{key}": float(value) for key, value in found.items()}


def origin() -> dict[str, Any]:
    """The command that started this process, birl's version, and the commit of the working folder, if it has one.

    ``-dirty`` after the commit says that files differed from it. Environment variables are nowhere: they hold secrets.
    """
    return {"command": shlex.join(sys.argv), "birl": __version__, "commit": _commit(os.getcwd())}


@functools.cache
def _commit(folder: str) -> str | None:
    words = ["git", "-C", folder, "--no-optional-locks", "describe", "--always", "--dirty"]
    words += ["--abbrev=40", "--exclude=*"]  # the whole commit, and no tags
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=10)
        return found.stdout.strip() or None
    return None


def _same(one: Any, other: Any) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def requests_stop(answer: Any) -> bool:
    """Whether a callback returned ``False``: Python's or numpy's, as comparisons give it."""
    return isinstance(answer, bool | np.bool_) and not answer


class SamplerPart(NamedTuple):
    """The random generators of a dataset or reader, as a part of a checkpoint."""

    source: Any

    def get_state(self) -> State:
        """State without the contents."""
        return self.source.get_state(contents=False)  # type: ignore[no-any-return]

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        self.source.set_state(state)
