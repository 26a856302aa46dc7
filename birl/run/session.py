"""The parts that all training loops share: epochs, logging, models, progress, checkpoints, signals.

A loop creates a `Session`, and passes it a function that makes a step and calls `Session.tick`::

    yield from session.epochs(step)
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import math
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from birl._version import __version__
from birl.dataset import ReplayBufferBase
from birl.envs import EndedEpisode
from birl.errors import (
    ConfigError,
    CorruptFileError,
    EvaluationWarning,
    ResumeError,
    StalledError,
    outside_birl,
)
from birl.files.serializable import encode
from birl.files.state_restore import compare_states, convert_to_corrupt_error, restore_states
from birl.files.strict_json import parse_json
from birl.logging import BirlLogger, FileAdapterFactory, LoggerAdapterFactory, LoggingStrategy
from birl.logging.averages import GradientStatistics
from birl.logging.logger import LOG, optional
from birl.run.checkpoint import (
    check_checkpoint_folder,
    checkpoint_path,
    load_checkpoint,
    restore_parts,
    save_checkpoint,
)
from birl.run.evaluators import TRAINING_SCORES, Score, check_names, check_new_names, evaluate_with
from birl.run.fingerprint import ACTIONS
from birl.run.hooks import Hooks, Run, with_run
from birl.run.options import Options
from birl.run.progress import Clock, Progress
from birl.run.protocols import Evaluator, Minibatch, ReplaySource, Stateful, Trainable
from birl.run.run_lock import only_run
from birl.run.signals import Abandoned, Interrupt
from birl.seeding import preserve_random_state
from birl.types import EpisodeRow, State

CHECK_INTERVAL = 100
"""Number of steps after which metrics are read from the device, and parameters and moments are checked."""


class Session:
    """One run of one loop.

    Args:
        algorithm: algorithm whose networks are built.
        name: name of the run if there is no ``experiment_name``.
        n_steps: total number of steps, including those before a resume.
        parts: other objects whose state a checkpoint holds, by name.
        settings: JSON values that a resumed run must share, by name. See `birl.run.fingerprint`.
        evaluators: called with ``(algorithm, dataset)`` after each epoch; the results are metrics.
        dataset: dataset for the evaluators.
        options: checked options, including all of `Options`; others are ignored.

    Attributes:
        run: what callbacks and evaluators know of the run.
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
        dataset: ReplayBufferBase | None,
        options: Options,
    ) -> None:
        n_steps_per_epoch, by_steps = options["n_steps_per_epoch"], options["logging_strategy"] is LoggingStrategy.STEPS
        self._logging_steps = options["logging_steps"] if by_steps else None
        self._algorithm, self._n_steps, self._epoch_length = algorithm, n_steps, n_steps_per_epoch
        self._evaluators, self._dataset = evaluators or {}, dataset
        check_names(self._evaluators)
        self._score, self._stop_at = self._find_score(options["score"], settings["loop"]), options["stop_at"]
        if self._stop_at is not None and self._score is None:
            raise ConfigError(f"stop_at={self._stop_at} needs a score: give eval_env=, or score=, the name of a metric")
        default = "maximize" if self._score is None else self._score.default_direction(self._evaluators)
        self._direction = options["score_direction"] or default
        if options["score_direction"] is not None and self._score is None:
            raise ConfigError(
                f"score_direction={self._direction!r} needs a score: give eval_env=, or score=, the name of a metric"
            )
        self._keep_best = options["keep_best"]
        self._warned_of_successes = False
        self._end_reason = ""  # why the run ended before its last step
        self._stalled: StalledError | None = None  # raised after everything is saved
        with_state: Any = {f"evaluator {k}": v for k, v in self._evaluators.items() if isinstance(v, Stateful)}
        self.run, self._hooks = Run(n_steps, n_steps_per_epoch), Hooks.of(options["callback"])
        self._pending: list[EpisodeRow] = []  # rows of episodes that are not written yet
        self._clock = Clock()
        self._parts: dict[str, Stateful] = {"learner": algorithm, **parts, **with_state, **self._hooks.parts()}
        actions = algorithm.describe().get("action_size")  # a population of seeds has none
        settings = {**settings, "n_steps_per_epoch": n_steps_per_epoch, ACTIONS: actions}
        if self._logging_steps is not None:
            settings["logging_steps"] = self._logging_steps
        self._settings = {k: v.item() if isinstance(v, np.generic) else v for k, v in settings.items()}  # JSON values
        self._gradients = GradientStatistics() if options["log_gradients"] else None
        if self._gradients is not None:
            self._parts["gradients"] = self._gradients
        self._save_interval, self._checkpoint = options["save_interval"], options["checkpoint"]
        self._keep_models = options["keep_models"]
        after = options["epoch_callback"]
        self._epoch_callback = None if after is None else with_run(after, 3)
        self._epoch_start = 0  # the step at which the last epoch ended
        self._interrupt = Interrupt()

        self._locks = contextlib.ExitStack()  # locks of folders
        try:
            self._start(options, options["experiment_name"] or name)
        except BaseException:
            self._locks.close()
            raise

    def _start(self, options: Options, experiment_name: str) -> None:
        """Open the run's folders, and continue from its checkpoint if there is one."""
        compiled, with_timestamp = self._algorithm.learner.compiled, options["with_timestamp"]
        state = self._load_checkpoint(self._settings)
        if state is not None:
            experiment_name, with_timestamp = self._set_counters(state, experiment_name, options["go_on"]), False
        factory = options["logger_adapter"] or FileAdapterFactory()
        self._logger = self._open_logger(factory, experiment_name, with_timestamp, new=state is None)
        self.averages, self.time = self._logger.averages, self._logger.measure_time
        self.run.adapter = self._logger.adapter
        if state is not None:
            self._set_state(state)
            if self.step and self.left and state["session"].get("compiled", compiled) != compiled:
                before, after = ("not compiled", "compiled") if compiled else ("compiled", "not compiled")
                self.warn_inexact(f"its updates were {before} so far, and are {after} from now on")
            self._description = parse_json(state["session"]["description"].encode(), str(self._checkpoint))
        else:
            self._description = self._describe()
        self._logger.add_params(self._description)
        if state is None:
            self._logger.add_origin(origin())
        self._hooks.start(self._logger.adapter)
        first = "the first update compiles" if compiled else ""
        finished = self._done and self._epoch_start == self.step
        self._progress = Progress(self._n_steps, self.step, options["show_progress"] and not finished, first)
        if finished:
            self._report_finished()
        else:  # a user who names the folder knows where it is
            self._report_folders(state is not None, above_bar=options["with_timestamp"])
        if state is None:
            self._write_checkpoint()  # so that a run that dies in its first epoch restarts with the same random numbers

    def _load_checkpoint(self, settings: dict[str, Any]) -> State | None:
        """Lock the folder of the checkpoint, and read the state to continue from."""
        if self._checkpoint is None:
            return None
        check_checkpoint_folder(self._checkpoint)
        self._locks.enter_context(only_run(self._checkpoint))
        return load_checkpoint(self._checkpoint, settings)

    def _open_logger(self, factory: LoggerAdapterFactory, name: str, with_timestamp: bool, new: bool) -> BirlLogger:
        """Make the logger, and lock its folder."""
        while True:
            logger = BirlLogger(
                factory, name, with_timestamp, new, algo=self._algorithm, n_steps_per_epoch=self._epoch_length
            )
            folder = getattr(logger.adapter, "logdir", None)
            if folder is None or (self._checkpoint is not None and _same_path(folder, self._checkpoint)):
                return logger
            try:
                self._locks.enter_context(only_run(folder))
                return logger
            except ResumeError:
                if not with_timestamp:  # else another run started in the same second: try another time
                    raise

    # -- progress of the run ---------------------------------------------------------------------------------------

    @property
    def _done(self) -> bool:
        return bool(self._end_reason) or self.step == self._n_steps

    @property
    def _epoch_end(self) -> int:
        if self._end_reason:
            return self.step
        return min(self._n_steps, (self._epoch_start // self._epoch_length + 1) * self._epoch_length)

    @property
    def step(self) -> int:
        """Number of steps made so far."""
        return self.run.step

    @property
    def epoch(self) -> int:
        """Number of the current epoch; see `birl.run.Run`."""
        return self.run.epoch

    @property
    def left(self) -> int:
        """Number of steps left in the run."""
        return self._n_steps - self.step

    # -- the steps -------------------------------------------------------------------------------------------------

    def epochs(self, step: Callable[[], None]) -> Iterator[tuple[int, dict[str, float]]]:
        """Make the steps of the run, and close it when it ends or fails.

        Args:
            step: makes a step, or at most `steps_until_check` steps, and calls `tick`.

        Yields:
            Number of each epoch (from 1) and its metrics.
        """
        if self._gradients is not None:
            self._algorithm.watch_gradients(self._gradients.add)
        try:
            while not (self._done and self._epoch_start == self.step):
                with self._interrupt.delayed():
                    while self.step < self._epoch_end:
                        try:
                            step()
                        except Abandoned:  # the step waited for other processes: the resumed run repeats it
                            self._act_on_signal()
                        except (KeyboardInterrupt, SystemExit) as error:
                            self._explain_exit(error)
                            raise
                    result = self._end_epoch()
                yield result
            if self._stalled is not None:
                raise self._stalled
        finally:
            if self._gradients is not None:
                self._algorithm.watch_gradients(None)
            self._progress.close()
            self._logger.close()
            self._locks.close()

    def check_signals(self) -> None:
        """If a signal was received, leave the step and end the run with a checkpoint.

        Call it in steps that wait for other processes, when a checkpoint would hold everything that the step has done
        so far.
        """
        self._interrupt.check()

    @property
    def steps_until_check(self) -> int:
        """Number of steps until the next callback, check of the metrics, or end of an epoch."""
        logging = [] if self._logging_steps is None else [self._logging_steps]
        intervals = [CHECK_INTERVAL, *logging, *self._hooks.every]
        return min(self._epoch_end - self.step, *(interval - self.step % interval for interval in intervals))

    def add_episodes(self, episodes: Sequence[EndedEpisode]) -> None:
        """Add training episodes that ended in the step that is being made."""
        if not episodes:
            return
        self.run.add_episodes(episodes)
        for episode in episodes:
            self.averages.add(episode.metrics())
            self._pending.append((self.step + 1, *episode, self._clock.elapsed))

    def update(self, minibatch: Minibatch) -> None:
        """Make an update with a minibatch or a rollout."""
        with self.time("algorithm_update"):
            metrics = self._algorithm.learner.update(minibatch)
        self.averages.add(metrics)

    def tick(self, steps: int = 1) -> None:
        """Finish at most `steps_until_check` steps: count them, call callbacks, log metrics, and act on signals."""
        self.run.step = step = self.run.step + steps
        self._progress.advance(steps)
        if step % CHECK_INTERVAL == 0:
            self._read_averages()
            if self._progress.due:
                self._progress.show(self.epoch, self.averages.means())
        if self._logging_steps is not None and step % self._logging_steps == 0 and step < self._epoch_end:
            self._read_averages()
            self._write(self.averages.means())  # at the end of the epoch, `_end_epoch` writes
        if self._hooks.hooks:
            self._stop_if_requested("callback", lambda: self._hooks.call(self._algorithm, self.run))
        self._end_reason = self._end_reason or self.run.stop_reason
        self._act_on_signal()

    def _read_averages(self) -> None:
        try:
            self.averages.check(self.step)
        except StalledError as error:
            self._stalled, self._end_reason = error, str(error)
        self._algorithm.learner.check_finite()

    def _end_epoch(self) -> tuple[int, dict[str, float]]:
        """Evaluate, log and save. Return the number of the epoch and its metrics."""
        epoch = self.epoch
        self._read_averages()
        rates = getattr(self._algorithm.learner, "learning_rates", None)  # learners of several seeds have none
        clock = self._clock.metrics(self.step, self.left)
        metrics = {**({} if rates is None else rates()), **self.averages.means(), **clock}
        self._warn_of_missing_successes()
        self._evaluate(metrics)
        self.run.metrics = dict(metrics)
        self._write(metrics)
        self._write_retuned_params()
        self._progress.show(epoch, metrics)
        self._epoch_start = self.step
        self._update_best(metrics)
        if (callback := self._epoch_callback) is not None:
            self._stop_if_requested("epoch callback", lambda: [callback(self._algorithm, epoch, self.step, self.run)])
        self._end_reason = self._end_reason or self.run.stop_reason
        if epoch % self._save_interval == 0 or self._done:
            self._save()
        if self._end_reason:
            self.report(f"the run ended after {self.step} steps: {self._end_reason}")
        self._act_on_signal()
        self.run.start_epoch()
        return epoch, metrics

    def _warn_of_missing_successes(self) -> None:
        """Warn, once, if only some of the training episodes of an epoch report whether they succeeded."""
        successes = self.run.episode_successes
        reported = len(successes) - sum(map(math.isnan, successes))
        if 0 < reported < len(successes) and not self._warned_of_successes:
            self._warned_of_successes = True
            warnings.warn(
                f"{reported} of {len(successes)} training episodes of epoch {self.epoch} ended with "
                "info['is_success'], the others without; success_rate is the share of these episodes alone: report "
                "True or False at the end of every episode",
                EvaluationWarning,
                stacklevel=outside_birl(),
            )

    def _save(self) -> None:
        self._logger.save_model(self.step, self._algorithm, self._keep_models)
        self._write_checkpoint()

    def _stop_if_requested(self, name: str, call: Callable[[], Iterable[object]]) -> None:
        """Call users' functions, and end the run if one returns False. If one fails, model and checkpoint are saved."""
        try:
            if any(map(requests_stop, call())):
                self.run.stop(f"the {name} returned False")
        except (Exception, KeyboardInterrupt, SystemExit):
            if self._interrupt.signal is None:  # not a second Ctrl-C, which acts at once
                self._save()
            raise

    def _explain_exit(self, error: BaseException) -> None:
        """Log that a step ended the program by itself: Ctrl-C and SIGTERM raise nothing while a step is made."""
        if self._interrupt.signal is not None:
            return
        resume = "" if self._checkpoint is None else "; the run can be resumed from its last checkpoint"
        LOG.warning(
            "step %d ended with %s, which no signal to birl caused: the environment, or other code of the program, "
            "raised it%s", self.step + 1, type(error).__name__, resume,
        )  # fmt: skip

    def _evaluate(self, metrics: dict[str, float]) -> None:
        """Call the evaluators, and add their results to the metrics of the epoch.

        If an evaluator fails, the metrics so far and the model are written. The checkpoint is that of a run that has
        not evaluated yet, so the resumed run repeats the evaluation.
        """
        stateful = [evaluator for evaluator in self._evaluators.values() if isinstance(evaluator, Stateful)]
        states = [copy.deepcopy(evaluator.get_state()) for evaluator in stateful]
        failed: BaseException | None = None
        try:
            with preserve_random_state(), self._interrupt.abandonable():
                for name, evaluator in self._evaluators.items():
                    self.run.metrics = dict(metrics)  # a copy: what an evaluator changes there is its own
                    results = evaluate_with(name, evaluator, self._algorithm, self._dataset, self.run)
                    check_new_names(name, results, metrics)
                    metrics |= results
                    if self._score is not None:
                        self._score.check_found(name, results)
            return
        except Abandoned:  # the resumed run repeats the evaluation
            pass
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            failed = error
        for evaluator, state in zip(stateful, states, strict=True):
            evaluator.set_state(state)
        if failed is not None:
            self._save()
            self._write(metrics)
            raise failed
        self._act_on_signal()

    def _describe(self) -> dict[str, Any]:
        """Return the algorithm's parameters in JSON form."""
        return {name: encode(value) for name, value in self._algorithm.describe().items()}

    def _write_retuned_params(self) -> None:
        """Write the parameters again if fields were retuned. Running scalers stay as they were at the start."""
        description = self._describe()
        if description.get("retuned") != self._description.get("retuned"):
            retuned = {name for change in description["retuned"].values() for name in change["fields"]}
            now, before = description["config"]["params"], self._description["config"]["params"]
            description["config"]["params"] = {name: (now if name in retuned else before)[name] for name in before}
            self._description = description
            self._logger.add_params(description)

    def _update_best(self, metrics: dict[str, float]) -> None:
        """Save the model if it is the best one, and end the run if it reaches ``stop_at``."""
        score = math.nan if self._score is None else float(metrics.get(self._score.metric, math.nan))
        if self._score is None or not math.isfinite(score):
            return
        sign, run = -1.0 if self._direction == "minimize" else 1.0, self.run
        run.scores[self.step] = score
        if run.best is None or sign * score > sign * run.best["score"]:
            run.best = {"metric": self._score.metric, "score": score, "step": self.step, "direction": self._direction}
            if self._keep_best:
                self._logger.save_best_model(self._algorithm, run.best)
        if self._stop_at is not None and sign * score >= sign * self._stop_at:
            reached = f"{self._score.metric} reached {score:.6g} (stop_at={self._stop_at:.6g})"
            self._end_reason = self._end_reason or reached

    def _write(self, metrics: dict[str, float]) -> None:
        gradients = None if self._gradients is None else self._gradients.pop()
        self._write_episodes()
        self._logger.write(self.epoch, self.step, metrics, gradients)
        self.averages.clear()

    def _write_episodes(self) -> None:
        if self._pending:
            optional(self._logger.adapter, "write_episodes")(self._clock.origin(self._settings), self._pending)
            self._pending = []

    def _act_on_signal(self) -> None:
        if self._interrupt.signal is not None:
            self._write_checkpoint()
            self._interrupt.stop()

    def _find_score(self, score: str | None, loop: str) -> Score | None:
        name = next(iter(self._evaluators), None) if score is None and loop != "offline" else score
        others = () if loop == "offline" else TRAINING_SCORES
        return None if name is None else Score.find(name, self._evaluators, others)

    def report(self, text: str) -> None:
        """Log a line, and show it above the progress bar."""
        LOG.info("%s", text)
        self._progress.write(text)

    def warn_inexact(self, why: str) -> None:
        """Warn that the resumed run will differ from an uninterrupted one."""
        warnings.warn(
            f"the run in {self._checkpoint} continues from step {self.step}, but not bit for bit as if it had been "
            f"started with n_steps={self._n_steps}: {why}",
            RuntimeWarning,
            stacklevel=2,
        )

    def _report_folders(self, resumed: bool, above_bar: bool) -> None:
        """Report the folders of the run."""
        folders = [getattr(self._logger.adapter, "logdir", None), self._checkpoint]
        names = " and ".join(dict.fromkeys(str(Path(folder)) for folder in folders if folder is not None))
        if names:
            text = f"the run is in {names}" + (f"; it continues from step {self.step}" if resumed else "")
            (self.report if above_bar else LOG.info)(text)

    def _report_finished(self) -> None:
        """Warn that the run has no steps left."""
        why = (
            f"ended after {self.step} steps: {self._end_reason:.200}"
            if self._end_reason
            else f"made all its {self.step} steps"
        )
        advice = "go_on=True continues it" if self._end_reason else "a larger n_steps continues it"
        LOG.warning("nothing to do: the run in %s has %s; %s", self._checkpoint, why, advice)

    # -- state -----------------------------------------------------------------------------------------------------

    def _write_checkpoint(self) -> None:
        if self._checkpoint is None:
            return
        self.averages.check(self.step, flush=False)
        self._write_episodes()
        state = {
            "session": {
                "step": self.step,
                "closed": self._epoch_start,
                "best": None if self.run.best is None else dict(self.run.best),
                "run": self.run.get_state(),
                "clock": self._clock.get_state(),
                "ended": self._end_reason,
                "compiled": self._algorithm.learner.compiled,
                "description": json.dumps(self._description),  # running scalers have moved since it was made
                "averages": self.averages.get_state(),
                "experiment_name": self._logger.experiment_name,
                "logger": self._logger.get_state(),
            },
            "parts": {name: part.get_state() for name, part in self._parts.items()},
        }
        save_checkpoint(self._checkpoint, self._settings, state)

    def _set_counters(self, state: State, experiment_name: str, go_on: bool) -> str:
        """Restore the counters of a checkpoint, and return the run's name."""
        label = checkpoint_path(self._checkpoint)  # type: ignore[arg-type]
        like = {
            "step": 0,
            "closed": 0,
            "ended": "",
            "description": "",
            "averages": {},
            "experiment_name": "",
            "logger": {},
            "run": {},
            "clock": {},
        }
        with convert_to_corrupt_error(label):
            session = state["session"]
            compare_states({name: session[name] for name in like}, like, "session", label, complete=True)
            best, name = session["best"], str(session["experiment_name"])
            step, closed = int(session["step"]), int(session["closed"])
            outside = name != experiment_name and (PurePath(name).is_absolute() or ".." in PurePath(name).parts)
            if not 0 <= closed <= step or outside or not name:
                raise CorruptFileError(
                    f"{label} has made {step} steps, {closed} of them in whole epochs, as {name!r:.80}: use a copy"
                )
            if best is not None:
                kinds = {"metric": "", "score": 0.0, "step": 0, "direction": ""}
                compare_states(best, kinds, "best", label, complete=True)
                same = self._score is not None and best["metric"] == self._score.metric
                best = {key: best[key] for key in ("metric", "score", "step", "direction")} if same else None
        if best is not None and best["direction"] != self._direction:
            raise ResumeError(
                f"score_direction is {self._direction!r}, but the run in {self._checkpoint} has ranked its models by "
                f"{best['metric']!r} with {best['direction']!r}: give score_direction={best['direction']!r} to "
                "continue it, or another folder (or remove this one) to start from scratch"
            )
        if step > self._n_steps:
            raise ResumeError(
                f"the run in {self._checkpoint} has made {step} steps already, more than n_steps="
                f"{self._n_steps}: give at least as many, or another folder to start from scratch"
            )
        self.run.step, self._epoch_start, self.run.best = step, closed, best
        self._end_reason = "" if go_on else str(session["ended"] or "")
        return name

    def _set_state(self, state: State) -> None:
        """Restore all parts from a checkpoint, or raise an error and restore none."""
        parts: dict[str, Stateful] = {"averages": self.averages, "run": self.run, "clock": self._clock}
        parts["logger"] = self._logger  # last, because it changes files
        label = checkpoint_path(self._checkpoint)  # type: ignore[arg-type]
        with restore_parts(self._parts, state, label):
            restore_states(parts, state["session"], label, user_prefixes="")
        if self._epoch_start == self.step:
            self.run.start_epoch()
        if self.run.best is None:
            self.run.scores = {}  # of another metric


def origin() -> dict[str, Any]:
    """Return the command that started this process, birl's version, and the commit of the working folder, if any.

    The suffix ``-dirty`` means that files differ from the commit. Environment variables, which may hold secrets, are
    never included.
    """
    return {"command": shlex.join(sys.argv), "birl": __version__, "commit": _commit(os.getcwd())}


@functools.cache
def _commit(folder: str) -> str | None:
    command = ["git", "-C", folder, "--no-optional-locks", "describe", "--always", "--dirty"]
    command += ["--abbrev=40", "--exclude=*"]  # the full commit, and no tags
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return result.stdout.strip() or None
    return None


def _same_path(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def requests_stop(result: object) -> bool:
    """Return whether a callback returned ``False`` as a boolean of Python, NumPy or PyTorch.

    Raises:
        ConfigError: if it returned text or several booleans, which look like a decision, or a generator or coroutine,
            which has not run. Other values mean nothing.
    """
    if result is None:
        return False
    if isinstance(result, Coroutine | Generator | AsyncGenerator):
        raise ConfigError(
            f"a callback returned {result!r:.80}, which has not run; it must return False to end the run, or True or "
            "None to go on: call plain functions in it, without async or yield"
        )
    several = False
    if isinstance(result, Tensor | np.ndarray) and result.dtype in (torch.bool, np.dtype(bool)):
        if result.ndim == 0:
            return not result
        several = True
    if several or isinstance(result, str):
        raise ConfigError(
            f"a callback returned {result!r:.80}; it must return False to end the run, or True or None to go on: "
            "return bool(…), or nothing"
        )
    return isinstance(result, bool | np.bool_) and not result


class SamplerPart(NamedTuple):
    """The random generators of a source of minibatches, as a part of a checkpoint."""

    source: ReplaySource

    def get_state(self) -> State:
        """Return the state without the contents."""
        return self.source.get_state(contents=False)

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        self.source.set_state(state)
