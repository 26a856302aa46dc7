"""The options of training loops: their types, meanings and defaults."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict, cast

from birl.checks import Allowed, check
from birl.dataset import ReplayBufferBase
from birl.errors import ArgumentError, ConfigError, UnusedOptionWarning, argument_here, outside_birl
from birl.logging import LoggerAdapterFactory, LoggingStrategy
from birl.run.cluster import Cluster
from birl.run.hooks import Hooks
from birl.run.protocols import Callback
from birl.types import Environment


class FitOptions(TypedDict, total=False):
    """`Options` of a loop that takes the run's name and ``n_steps_per_epoch`` as separate arguments."""

    logger_adapter: LoggerAdapterFactory | None
    show_progress: bool
    save_interval: int
    keep_models: int | None
    keep_best: bool
    score: str | None
    score_direction: str | None
    stop_at: float | None
    go_on: bool
    callback: Callback | Sequence[Callback] | None
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
        n_steps_per_epoch: length of an epoch, after which evaluators run, metrics are logged and models are saved.
            Epochs end at multiples of this number and at the end of the run.
        experiment_name: name of the run; by default the algorithm's.
        with_timestamp: whether to append the time to the name. A resumed run keeps its name.
        logger_adapter: factory of the adapter that writes metrics; by default `FileAdapterFactory`.
        show_progress: whether to show a progress bar (on a terminal only).
        save_interval: number of epochs between saved models and checkpoints. Both are also written at the end.
        keep_models: number of newest models to keep; by default all. The best model is kept in addition.
        keep_best: whether the best model is saved, if there is a score.
        score: name of the metric that ranks models: an evaluator, a part ``<evaluator>_<part>`` of one that returns
            several values or, online, ``"rollout_return"``, ``"success_rate"`` or ``"evaluation"``, which is the
            default with an ``eval_env``. Each new best model is saved as ``model_best.d3``, with its step, score and
            direction in ``model_best.json``.
        score_direction: ``"maximize"`` or ``"minimize"``. By default the evaluator's attribute ``direction``, as birl's
            evaluators have one; else lower scores are better if the name contains the word ``error``, ``loss``,
            ``cost``, ``distance`` or a similar one, and higher ones otherwise. ``neg`` and ``negative`` reverse this.
        stop_at: the run ends after the first epoch whose score is this or better.
        go_on: whether to continue a run that ended early, by ``stop_at`` or by a callback, if ``checkpoint`` holds one.
            A run that has made all its steps continues if it is given a larger number of steps.
        callback: called with ``(algorithm, epoch, total_step)`` after every step; the run ends if it returns ``False``.
            It may also be a `birl.run.Hook`, which has an interval and may have a state, or a list of functions and
            hooks.
        epoch_callback: called with ``(algorithm, epoch, total_step)`` after every epoch; returning ``False`` ends the
            run.
        checkpoint: folder for the complete state of the run. If it holds a checkpoint, the run continues from there,
            with results that are bit for bit those of an uninterrupted run.
        logging_steps: number of steps after which metrics are written if ``logging_strategy`` is STEPS.
        logging_strategy: EPOCH: metrics are written at the end of each epoch, as means over it. STEPS: also at every
            multiple of ``logging_steps``, as means since they were last written; evaluators are still called once an
            epoch.
        log_gradients: whether statistics of the gradients of all parameters are written with the metrics.
    """

    n_steps_per_epoch: int


class AgentOptions(TypedDict, total=False):
    """Options of an agent in a user's own loop. Options that `OnlineOptions` also has mean the same there.

    Attributes:
        demonstrations: see `OnlineOptions`.
        update_interval: see `OnlineOptions`; ``None`` for an agent that does not learn.
        deterministic: whether the policy acts greedily if there is no explorer.
        seed: fixes the random actions of ``random_steps``; by default derived from `birl.seed`. Algorithms that learn
            from rollouts have no such steps, and do not accept it.
    """

    demonstrations: ReplayBufferBase | None
    update_interval: int | None
    n_updates: int
    update_start_step: int
    random_steps: int
    deterministic: bool
    seed: int | None


class EnvironmentOptions(NamedOptions, total=False):
    """`OnlineOptions` of a loop that takes ``n_steps_per_epoch`` and ``update_interval`` as separate arguments."""

    n_updates: int
    update_start_step: int
    random_steps: int
    overlap: bool
    eval_env: Environment | str | None
    eval_epsilon: float
    eval_n_trials: int
    eval_n_steps: int | None
    eval_statistics: bool
    eval_sample: bool
    seed: int | None
    demonstrations: ReplayBufferBase | None
    workers: int | None
    cluster: Cluster | None


class OnlineOptions(EnvironmentOptions, Options, total=False):
    """`Options` of training in environments. The first five are for off-policy algorithms only.

    Attributes:
        update_interval, n_updates: after every ``update_interval`` steps, ``n_updates`` updates are made, once the
            buffer holds a minibatch. By default one update after every step; 20 for REDQ and DroQ.
        update_start_step: number of steps before the first update.
        random_steps: number of steps with uniformly random actions at the start of the run. A resumed run does not
            repeat them.
        overlap: whether the updates for a step are made while the environments take the next step, so that a run takes
            the longer of both times instead of their sum. Actions are then selected before these updates instead of
            after them. Only for environments in other processes
            (`gymnasium.vector.AsyncVectorEnv`). The same seed still gives the same result.
        eval_env: a separate environment, or the name of one, for the metric ``evaluation``, the mean greedy return.
        eval_epsilon: probability of a random action in evaluations.
        eval_n_trials: number of episodes of an evaluation.
        eval_n_steps: number of steps of an evaluation, instead of episodes; see `birl.metrics.evaluate`.
        eval_statistics: whether ``evaluation_median``, ``_std``, ``_min``, ``_max`` and ``_episodes`` are also metrics.
        eval_sample: whether evaluations sample the policy's actions instead of taking the greedy ones.
        seed: fixes the environment's resets; by default derived from `seed_env` or `birl.seed`.
        demonstrations: dataset of an expert's steps, for algorithms that imitate them in the environment: GAIL.
        workers: number of processes that act in their own environments and compute gradients at the newest parameters;
            this process applies them (`birl.run.asynchronous`). By default none. Only for algorithms that make one
            gradient step for each rollout, such as A3C; with ACER and IMPALA, each worker replays older rollouts from
            its own buffer. Give the environment by name, unless it can be sent to other processes. With one worker, the
            same seed gives the same result.
        cluster: a `birl.Cluster` of collectors, which step their own environments.
    """

    update_interval: int


DIRECTIONS: Final = ("maximize", "minimize")
"""Directions of a score: whether higher or lower values are better."""

DEFAULTS: Final[Options] = {
    "n_steps_per_epoch": 10_000,
    "experiment_name": None,
    "with_timestamp": True,
    "logger_adapter": None,
    "show_progress": True,
    "save_interval": 1,
    "keep_models": None,
    "keep_best": True,
    "score": None,
    "score_direction": None,
    "stop_at": None,
    "go_on": False,
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
    "eval_n_steps": None,
    "eval_statistics": False,
    "eval_sample": False,
    "seed": None,
    "demonstrations": None,
    "workers": None,
    "cluster": None,
}


_ALLOWED: Final = {
    **dict.fromkeys(("n_steps_per_epoch", "logging_steps", "save_interval"), Allowed(int, low=1)),
    **dict.fromkeys(("update_interval", "n_updates", "eval_n_trials"), Allowed(int, low=1)),
    **dict.fromkeys(("update_start_step", "random_steps"), Allowed(int, low=0)),
    **dict.fromkeys(("with_timestamp", "show_progress", "log_gradients", "go_on", "keep_best"), Allowed(bool)),
    **dict.fromkeys(("overlap", "deterministic", "eval_statistics", "eval_sample"), Allowed(bool)),
    "experiment_name": Allowed(str, optional=True),
    "keep_models": Allowed(int, low=1, optional=True),
    "score": Allowed(str, optional=True),
    "score_direction": Allowed(str, choices=DIRECTIONS, optional=True),
    "stop_at": Allowed(float, optional=True),
    "eval_epsilon": Allowed(float, low=0, high=1),
    **dict.fromkeys(("eval_n_steps", "workers"), Allowed(int, low=1, optional=True)),
    "seed": Allowed(int, low=0, optional=True),
    "cluster": Allowed(Cluster, optional=True),
}


def checked_options(n_steps: object, options: Options) -> tuple[int, Options]:
    """Check ``n_steps`` and the options of a loop, and return them with the defaults.

    Raises:
        ConfigError: names the first option that is not allowed.
    """
    steps: int = check("n_steps", n_steps, int, low=1)
    full = cast(Options, _checked({**DEFAULTS, **options}))
    after = full["epoch_callback"]
    if after is not None and not callable(after):
        raise ConfigError(f"epoch_callback is {after!r:.80}; it must be a function (algo, epoch, step)")
    factory = full["logger_adapter"]
    if factory is not None and (inspect.isclass(factory) or not callable(getattr(factory, "create", None))):
        raise ConfigError(
            f"logger_adapter is {factory!r:.80}; it must make adapters, such as birl.logging.FileAdapterFactory() or "
            "TensorboardAdapterFactory()"
        )
    full["logging_strategy"] = _strategy(full["logging_strategy"])
    for text in _unused(steps, full, options):
        warnings.warn(text, UnusedOptionWarning, stacklevel=outside_birl())
    return steps, full


def _unused(n_steps: int, full: Options, given: Options) -> Iterator[str]:
    """Yield a message for each option that has no effect in a run of ``n_steps``."""
    if "logging_steps" in given and "logging_strategy" not in given:
        yield (
            f"logging_steps={given['logging_steps']!r} has no effect, because metrics are written once an epoch: "
            "give logging_strategy=birl.LoggingStrategy.STEPS, or leave it out"
        )
    if full["logging_strategy"] is LoggingStrategy.STEPS and full["logging_steps"] > n_steps:
        yield (
            f"logging_strategy=STEPS has no effect, because logging_steps={full['logging_steps']} is more than "
            f"n_steps={n_steps}: take a smaller number"
        )
    hooks = Hooks.of(full["callback"])
    for hook, every in zip(hooks.hooks, hooks.every, strict=True):
        if every > n_steps:
            yield (
                f"the hook {type(hook).__name__} is never called, because every={every} is more than "
                f"n_steps={n_steps}: take a smaller number"
            )
    if full["go_on"] and full["checkpoint"] is None:
        yield "go_on=True has no effect without checkpoint=, the folder of the run that it continues: give it, too"


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    return {name: _ALLOWED[name].check(name, value) if name in _ALLOWED else value for name, value in options.items()}


def checked_agent_options(options: AgentOptions) -> dict[str, Any]:
    """Check the options of an agent, and return them with the defaults.

    Raises:
        ConfigError: names the first option that is unknown, or not allowed.
    """
    known = {name: ONLINE_DEFAULTS.get(name) for name in AgentOptions.__annotations__} | {"deterministic": False}
    check_options("agent", options, known, common=())
    given = {name: value for name, value in options.items() if name != "update_interval" or value is not None}
    return _checked({**known, **given})


def checked_online_options(n_steps: object, options: OnlineOptions) -> tuple[int, OnlineOptions]:
    """Check ``n_steps`` and the options of a loop in environments, and return them with the defaults."""
    steps, checked = checked_options(n_steps, cast(Options, {**ONLINE_DEFAULTS, **options}))
    full = cast(OnlineOptions, checked)
    if "eval_n_trials" in options and full["eval_env"] is None:
        raise ConfigError(
            f"eval_n_trials={full['eval_n_trials']} cannot be used without eval_env=: give it, or leave "
            "eval_n_trials out"
        )
    if "eval_n_trials" in options and full["eval_n_steps"] is not None:
        raise ConfigError(
            f"eval_n_trials={full['eval_n_trials']} and eval_n_steps={full['eval_n_steps']} both set the length of "
            "evaluations: give one of them"
        )
    return steps, full


def _strategy(strategy: object) -> LoggingStrategy:
    try:
        return LoggingStrategy(strategy)
    except ValueError as error:
        raise ConfigError(
            f"logging_strategy is {strategy!r}; it must be birl.LoggingStrategy.EPOCH or birl.LoggingStrategy.STEPS"
        ) from error


_POSITIONAL: Final = ("env", "buffer", "explorer", "n_steps")
"""Arguments of `fit_online` that are not options."""


def check_options(
    loop: str, options: Iterable[str], more: Iterable[str] = (), common: Iterable[str] = tuple(DEFAULTS)
) -> None:
    """Raise `ArgumentError` for an option that is neither common to all loops nor one of the loop's own (``more``)."""
    known = [name for name in dict.fromkeys([*more, *common]) if name != "options"]
    for name in options:
        if name not in known:
            hint = argument_here(name, [*known, *(_POSITIONAL if loop == "fit_online" else ())])
            hint = "; d3rlpy's older `scorers` are `evaluators` now." if name == "scorers" else hint
            raise ArgumentError(f"{loop} has no option {name!r}{hint or '.'} Options: {', '.join(known)}")
