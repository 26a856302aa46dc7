"""Calls with unknown or missing arguments name similar ones."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from run.test_offline import data

import birl
from birl.checks import named_arguments
from birl.errors import ArgumentError, ConfigError

QUIET: Any = {"logger_adapter": birl.logging.NoopAdapterFactory(), "show_progress": False}


def dqn() -> Any:
    return birl.algos.DQNConfig(batch_size=4).create()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dqn().fit(data(), n_stpes=3), "fit got no argument 'n_steps', and has none called 'n_stpes'; did you"),
        (lambda: dqn().fit(data(), steps=3), "none called 'steps'; did you mean 'n_steps'"),
        (lambda: dqn().fit(data()), "fit got no argument 'n_steps': give it. Its arguments: dataset, n_steps, n_steps"),
        (lambda: dqn().fit(), "fit got no argument 'dataset'"),
        (lambda: dqn().fit(data(), 3, evaluator={}), "fit has no option 'evaluator'; did you mean 'evaluators'"),
        (lambda: dqn().fit_online("CartPole-v1", n_step=3), "fit_online has no option 'n_step'"),
        (lambda: dqn().fit_online(), "fit_online got no argument 'env'"),
        (lambda: dqn().collect("CartPole-v1", n_stpes=3), "collect has no argument 'n_stpes'; did you mean 'n_steps'"),
        (lambda: birl.Cluster(colectors=2), "Cluster has no argument 'colectors'; did you mean 'collectors'"),
        (lambda: birl.algos.DQNConfig().create(devise="cpu"), "create has no argument 'devise'; did you mean 'device'"),
        (lambda: birl.algos.LinearDecayEpsilonGreedy(start_epsilom=1), "no argument 'start_epsilom'; did you mean"),
        (lambda: birl.algos.ConstantEpsilonGreedy(), "ConstantEpsilonGreedy got no argument 'epsilon': give it"),
        (lambda: birl.algos.NormalNoise(stdev=1), "NormalNoise has no argument 'stdev'; did you mean 'std'"),
        (lambda: birl.fit_many(birl.algos.DQNConfig(), data(), n_stepss=2), "none called 'n_stepss'; did you mean"),
        (lambda: birl.metrics.EnvironmentEvaluator("CartPole-v1", trials=2), "did you mean 'n_trials'"),
        (lambda: birl.metrics.evaluate(dqn(), "CartPole-v1", episodes=2), "here that is 'n_episodes'"),
        (
            lambda: dqn().fit(data(), n_epochs=3),
            "none called 'n_epochs'; here that is 'n_steps' (a number of updates).",
        ),
        (lambda: birl.load_learnable(path="x"), "load_learnable got no argument 'fname', and has none called 'path'"),
        (lambda: birl.algos.DQN.fit(data(), n_steps=3), "fit is called on a class: make an object first"),
        (lambda: birl.algos.DQNConfig.create(), "create is called on a class: make an object first"),
        (lambda: dqn().fit(data(), 3, 1, "x", True, 5), "fit cannot be called like this"),
        (lambda: birl.algos.DecisionTransformerConfig().create().fit(data(), n_stpes=3), "did you mean 'n_steps'"),
    ],
)
def test_mistyped_arguments(call: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert message in str(caught.value)
    if "option" not in message:
        assert isinstance(caught.value, TypeError) and isinstance(caught.value, ArgumentError)


def test_other_errors_are_passed_on() -> None:
    @named_arguments
    def add(left: int, right: int) -> int:
        return left + right

    with pytest.raises(TypeError, match="unsupported operand"):
        add(1, "2")  # type: ignore[arg-type]
    assert add(1, right=2) == 3
    assert list(inspect.signature(add).parameters) == ["left", "right"]


def test_unknown_options_of_loops_are_type_errors_too() -> None:
    with pytest.raises(TypeError, match="fit has no option 'evaluator'"):
        dqn().fit(data(), 3, evaluator={}, **QUIET)
