"""Evaluators in loops, and the one of online training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from birl.envs import as_environment
from birl.errors import ConfigError
from birl.metrics import EnvironmentEvaluator, EnvironmentStatistics
from birl.run.options import OnlineOptions
from birl.run.protocols import Environment, Evaluator


def checked_environments(env: Environment, options: OnlineOptions) -> Environment:
    """The training environment; ``eval_env`` is replaced in the options. Those that are given by name are made.

    Raises:
        ConfigError: if both are one: evaluating there would interrupt the running episode.
        EnvironmentMismatchError: if one is no environment.
    """
    env = as_environment(env)
    if options["eval_env"] is not None:
        options["eval_env"] = as_environment(options["eval_env"], "eval_env")
        if options["eval_env"].unwrapped is env.unwrapped:
            raise ConfigError("eval_env is the training environment; it must be one of its own: make a second one")
    return env


def online_evaluators(options: OnlineOptions) -> dict[str, Evaluator]:
    """The evaluator of online training, if there is an environment for it."""
    env = options["eval_env"]
    if env is None:
        idle = [name for name in ("eval_n_steps", "eval_statistics", "eval_epsilon") if options[name]]  # type: ignore[literal-required]
        if idle:
            raise ConfigError(f"{', '.join(idle)}: for evaluations in eval_env=, which is not given: give it, too")
        return {}
    kind = EnvironmentStatistics if options["eval_statistics"] else EnvironmentEvaluator
    return {"evaluation": kind(env, options["eval_n_trials"], options["eval_epsilon"], n_steps=options["eval_n_steps"])}


def measured(name: str, evaluator: Evaluator, algorithm: Any, dataset: Any) -> dict[str, float]:
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
