"""The evaluator of online training."""

from __future__ import annotations

from birl.checks import check
from birl.errors import ConfigError
from birl.metrics import EnvironmentEvaluator
from birl.run.options import OnlineOptions
from birl.run.protocols import Environment, Evaluator


def online_evaluators(env: Environment, options: OnlineOptions) -> dict[str, Evaluator]:
    """The evaluator of online training, if there is an environment for it.

    Raises:
        ConfigError: if it is the training environment: evaluating there would interrupt the running episode.
    """
    eval_env = options["eval_env"]
    if eval_env is None:
        return {}
    if eval_env.unwrapped is env.unwrapped:
        raise ConfigError("eval_env is the training environment; it must be one of its own: make a second one")
    check("eval_n_trials", options["eval_n_trials"], int, low=1)
    return {"evaluation": EnvironmentEvaluator(eval_env, options["eval_n_trials"], options["eval_epsilon"])}
