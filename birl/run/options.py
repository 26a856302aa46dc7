"""The options of training loops: their types, meanings and defaults."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypedDict

from birl.errors import ConfigError
from birl.logging import LoggerAdapterFactory, LoggingStrategy
from birl.run.protocols import Callback, Environment


class FitOptions(TypedDict, total=False):
    """`Options` of a loop that takes the run's name and ``n_steps_per_epoch`` as separate arguments."""

    logger_adapter: LoggerAdapterFactory | None
    show_progress: bool
    save_interval: int
    callback: Callback | None
    epoch_callback: Callback | None
    checkpoint: str | Path | None
    logging_steps: int
    logging_strategy: LoggingStrategy
    log_gradients: bool


class NamedOptions(FitOptions, total=False):
    """`Options` of a loop that takes ``n_steps_per_epoch`` as a separate argument."""

    experiment_name: str | None
    with_timestamp: bool


class Options(NamedOptions, total=False):
    """Options of every training loop.

    Attributes:
        n_steps_per_epoch: steps between evaluations, logging and models; epochs end at its multiples and at the end.
        experiment_name: name of the run; by default the algorithm's.
        with_timestamp: whether the time is appended to it. A resumed run keeps its name.
        logger_adapter: makes the adapter that metrics are written to; by default `FileAdapterFactory`.
        show_progress: whether to show a progress bar (on a terminal only).
        save_interval: epochs between saved models and checkpoints. Both are also written at the end.
        callback: called with ``(algorithm, epoch, total_step)`` after every step.
        epoch_callback: called with ``(algorithm, epoch, total_step)`` after every epoch.
        checkpoint: folder that the whole state of the run is kept in. If it holds one, the run goes on from there and
            ends up bit for bit where it would have without the interruption.
        logging_steps: steps between two writings of metrics with ``logging_strategy`` STEPS.
        logging_strategy: EPOCH: metrics are written at the end of each epoch, as means over it. STEPS: also at every
            multiple of ``logging_steps``, as means since the last writing; evaluators are still called once an epoch.
        log_gradients: whether statistics of the gradients of every parameter are written with the metrics.
    """

    n_steps_per_epoch: int


class EnvironmentOptions(NamedOptions, total=False):
    """`OnlineOptions` of a loop that takes ``n_steps_per_epoch`` and ``update_interval`` as separate arguments."""

    n_updates: int
    update_start_step: int
    random_steps: int
    overlap: bool
    eval_env: Environment | None
    eval_epsilon: float
    eval_n_trials: int
    seed: int | None


class OnlineOptions(EnvironmentOptions, Options, total=False):
    """`Options` of training in environments. The first five are for off-policy algorithms only.

    Attributes:
        update_interval, n_updates: ``n_updates`` updates after every ``update_interval`` steps, once the buffer holds a
            minibatch.
        update_start_step: number of steps before the first update.
        random_steps: number of steps with uniformly random actions at the start of the run. A resumed run does not
            begin with them again.
        overlap: whether the updates that are due for a step are made while the environments make the next one. Where a
            step takes long, a run then takes the longer of both times instead of their sum. What changes: the actions
            of a step are chosen before these updates instead of after them. Only for environments in processes of their
            own (`gymnasium.vector.AsyncVectorEnv`). The same seed still gives the same result.
        eval_env: a separate environment for the metric ``evaluation``, the mean greedy return.
        eval_epsilon: share of random actions in it.
        eval_n_trials: number of its episodes.
        seed: fixes the environment's resets; by default drawn from `seed_env` or `birl.seed`.
    """

    update_interval: int


DEFAULTS: Final[Options] = {
    "n_steps_per_epoch": 10_000,
    "experiment_name": None,
    "with_timestamp": True,
    "logger_adapter": None,
    "show_progress": True,
    "save_interval": 1,
    "callback": None,
    "epoch_callback": None,
    "checkpoint": None,
    "logging_steps": 500,
    "logging_strategy": LoggingStrategy.EPOCH,
    "log_gradients": False,
}

ONLINE_DEFAULTS: Final[OnlineOptions] = {
    "update_interval": 1,
    "n_updates": 1,
    "update_start_step": 0,
    "random_steps": 0,
    "overlap": False,
    "eval_env": None,
    "eval_epsilon": 0.0,
    "eval_n_trials": 10,
    "seed": None,
}


def check_options(loop: str, options: Iterable[str], more: Iterable[str] = ()) -> None:
    """Raise `ConfigError` if one of the options is neither among `Options` nor among ``more`` of this loop."""
    known = [name for name in dict.fromkeys([*more, *DEFAULTS]) if name != "options"]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            hint = "; d3rlpy's older `scorers` are `evaluators` now." if name == "scorers" else hint
            raise ConfigError(f"{loop} has no option {name!r}{hint or '.'} Options: {', '.join(known)}")
