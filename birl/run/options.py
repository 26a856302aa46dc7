"""The options of training loops: their types, meanings and defaults."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict, cast

from birl.checks import Allowed, check
from birl.errors import ConfigError
from birl.logging import LoggerAdapterFactory, LoggingStrategy
from birl.run.cluster import Cluster
from birl.run.hooks import Hooks
from birl.run.protocols import Callback, Environment


class FitOptions(TypedDict, total=False):
    """`Options` of a loop that takes the run's name and ``n_steps_per_epoch`` as separate arguments."""

    logger_adapter: LoggerAdapterFactory | None
    show_progress: bool
    save_interval: int
    keep_models: int | None
    score: str | None
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
        n_steps_per_epoch: steps between evaluations, logging and models; epochs end at its multiples and at the end.
        experiment_name: name of the run; by default the algorithm's.
        with_timestamp: whether the time is appended to it. A resumed run keeps its name.
        logger_adapter: makes the adapter that metrics are written to; by default `FileAdapterFactory`.
        show_progress: whether to show a progress bar (on a terminal only).
        save_interval: epochs between saved models and checkpoints. Both are also written at the end.
        keep_models: number of models kept, the newest ones; by default all. The best one is kept beside them.
        score: name of the metric that says how good a model is, higher is better: of an evaluator, or online
            ``"rollout_return"`` or ``"evaluation"``, which is the default where there is an ``eval_env``. At each new
            best the model is saved as ``model_best.d3``, with its step and score in ``model_best.json``.
        stop_at: score that ends the run as soon as it is reached at the end of an epoch.
        go_on: whether to go on with a run that ended early, by ``stop_at`` or by a callback, where ``checkpoint`` holds
            one. A run that made all its steps goes on with a larger number of steps.
        callback: called with ``(algorithm, epoch, total_step)`` after every step. The run ends if it returns ``False``.
            Also a `birl.run.Hook`, which may have a rhythm and a state, or a list of functions and hooks.
        epoch_callback: called with ``(algorithm, epoch, total_step)`` after every epoch. ``False`` ends the run, too.
        checkpoint: folder that the whole state of the run is kept in. If it holds one, the run goes on from there and
            ends up bit for bit where it would have without the interruption.
        logging_steps: steps between two writings of metrics with ``logging_strategy`` STEPS.
        logging_strategy: EPOCH: metrics are written at the end of each epoch, as means over it. STEPS: also at every
            multiple of ``logging_steps``, as means since the last writing; evaluators are still called once an epoch.
        log_gradients: whether statistics of the gradients of every parameter are written with the metrics.
    """

    n_steps_per_epoch: int


class AgentOptions(TypedDict, total=False):
    """Options of an agent in one's own loop; ``n_updates`` and the others of `OnlineOptions` mean the same here.

    Attributes:
        demonstrations: as there.
        update_interval: as there, or ``None`` for an agent that does not learn.
        deterministic: whether the policy acts greedily where there is no explorer.
        seed: fixes the random actions of ``random_steps``; by default drawn from `birl.seed`. Algorithms that learn
            from rollouts, which make none, refuse it.
    """

    demonstrations: Any
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
    eval_env: Environment | None
    eval_epsilon: float
    eval_n_trials: int
    eval_n_steps: int | None
    eval_statistics: bool
    seed: int | None
    demonstrations: Any
    workers: int | None
    cluster: Cluster | None


class OnlineOptions(EnvironmentOptions, Options, total=False):
    """`Options` of training in environments. The first five are for off-policy algorithms only.

    Attributes:
        update_interval, n_updates: ``n_updates`` updates after every ``update_interval`` steps, once the buffer holds a
            minibatch. By default one after every step, and as many as they are made for with REDQ and DroQ: 20.
        update_start_step: number of steps before the first update.
        random_steps: number of steps with uniformly random actions at the start of the run. A resumed run does not
            begin with them again.
        overlap: whether the updates that are due for a step are made while the environments make the next one. Where a
            step takes long, a run then takes the longer of both times instead of their sum. What changes: the actions
            of a step are chosen before these updates instead of after them. Only for environments in processes of their
            own (`gymnasium.vector.AsyncVectorEnv`). The same seed still gives the same result.
        eval_env: a separate environment, or the name of one, for the metric ``evaluation``, the mean greedy return.
        eval_epsilon: share of random actions in it.
        eval_n_trials: number of its episodes.
        eval_n_steps: number of its steps, instead of episodes; see `birl.metrics.evaluate`.
        eval_statistics: whether ``evaluation_median``, ``_std``, ``_min``, ``_max`` and ``_episodes`` are metrics, too.
        seed: fixes the environment's resets; by default drawn from `seed_env` or `birl.seed`.
        demonstrations: dataset of an expert's steps, for algorithms that imitate them in the environment: GAIL.
        workers: number of processes that act in environments of their own and find gradients on the newest parameters,
            which this process moves by them (`birl.run.asynchronous`); by default none. Only for algorithms that learn
            from rollouts, with one gradient of each, such as A3C; ACER and IMPALA replay older ones in each worker from
            a buffer of its own. The environment is given by its name, or is one that
            can be sent to other processes. With one worker the same seed gives the same result.
        cluster: `birl.Cluster`: collectors that make the steps, each in environments of its own.
    """

    update_interval: int


DEFAULTS: Final[Options] = {
    "n_steps_per_epoch": 10_000,
    "experiment_name": None,
    "with_timestamp": True,
    "logger_adapter": None,
    "show_progress": True,
    "save_interval": 1,
    "keep_models": None,
    "score": None,
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
    "seed": None,
    "demonstrations": None,
    "workers": None,
    "cluster": None,
}


_ALLOWED: Final = {
    **dict.fromkeys(("n_steps_per_epoch", "logging_steps", "save_interval"), Allowed(int, low=1)),
    **dict.fromkeys(("update_interval", "n_updates", "eval_n_trials"), Allowed(int, low=1)),
    **dict.fromkeys(("update_start_step", "random_steps"), Allowed(int, low=0)),
    **dict.fromkeys(("with_timestamp", "show_progress", "log_gradients", "go_on"), Allowed(bool)),
    **dict.fromkeys(("overlap", "deterministic", "eval_statistics"), Allowed(bool)),
    "experiment_name": Allowed(str, optional=True),
    "keep_models": Allowed(int, low=1, optional=True),
    "score": Allowed(str, optional=True),
    "stop_at": Allowed(float, optional=True),
    "eval_epsilon": Allowed(float, low=0, high=1),
    **dict.fromkeys(("eval_n_steps", "workers"), Allowed(int, low=1, optional=True)),
    "seed": Allowed(int, low=0, optional=True),
    "cluster": Allowed(Cluster, optional=True),
}


def checked_options(n_steps: Any, options: Options) -> tuple[int, Options]:
    """``n_steps``, and the options with their defaults, once they are checked. For the start of a loop.

    Raises:
        ConfigError: naming the first that cannot be.
    """
    n_steps = check("n_steps", n_steps, int, low=1)
    given = cast(Options, _checked({**DEFAULTS, **options}))
    Hooks.of(given["callback"])
    after: Any = given["epoch_callback"]
    if after is not None and not callable(after):
        raise ConfigError(f"epoch_callback is {after!r:.80}; it must be a function (algo, epoch, step)")
    factory = given["logger_adapter"]
    if factory is not None and (inspect.isclass(factory) or not callable(getattr(factory, "create", None))):
        raise ConfigError(
            f"logger_adapter is {factory!r:.80}; it must make adapters, such as birl.logging.FileAdapterFactory() or "
            "TensorboardAdapterFactory()"
        )
    given["logging_strategy"] = _strategy(given["logging_strategy"])
    return n_steps, given


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    return {name: _ALLOWED[name].check(name, value) if name in _ALLOWED else value for name, value in given.items()}


def checked_agent_options(options: AgentOptions) -> dict[str, Any]:
    """The options of an agent with their defaults, once they are checked.

    Raises:
        ConfigError: naming the first that is unknown, or that cannot be.
    """
    known = {name: ONLINE_DEFAULTS.get(name) for name in AgentOptions.__annotations__} | {"deterministic": False}
    check_options("agent", options, known, common=())
    chosen = {name: value for name, value in options.items() if name != "update_interval" or value is not None}
    return _checked({**known, **chosen})


def checked_online_options(n_steps: Any, options: OnlineOptions) -> tuple[int, OnlineOptions]:
    """The same for the loops in environments."""
    n_steps, given = checked_options(n_steps, cast(Options, {**ONLINE_DEFAULTS, **options}))
    return n_steps, cast(OnlineOptions, given)


def _strategy(strategy: Any) -> LoggingStrategy:
    try:
        return LoggingStrategy(strategy)
    except ValueError as error:
        raise ConfigError(
            f"logging_strategy is {strategy!r}; it must be birl.LoggingStrategy.EPOCH or birl.LoggingStrategy.STEPS"
        ) from error


def check_options(
    loop: str, options: Iterable[str], more: Iterable[str] = (), common: Iterable[str] = tuple(DEFAULTS)
) -> None:
    """Raise `ConfigError` if one of the options is neither among the common ones nor among ``more`` of this loop."""
    known = [name for name in dict.fromkeys([*more, *common]) if name != "options"]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            hint = "; d3rlpy's older `scorers` are `evaluators` now." if name == "scorers" else hint
            raise ConfigError(f"{loop} has no option {name!r}{hint or '.'} Options: {', '.join(known)}")
