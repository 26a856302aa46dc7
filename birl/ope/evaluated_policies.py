"""What can be evaluated: algorithms, policies of `birl.ope`, and objects with probabilities or actions of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from birl.algorithm.policy_api import PolicyAPI
from birl.errors import ActionError, ConfigError, DataError, ShapeError, UnsupportedError
from birl.models import is_recurrent
from birl.ope.decision_table import DecisionTable
from birl.ope.policies import StochasticPolicy
from birl.spaces.conversion import order_numbered_columns, to_array
from birl.types import Array, Tree, tree_leaves


@runtime_checkable
class ProbabilisticPolicy(Protocol):
    """A policy with known probabilities: an algorithm, a policy of `birl.ope`, or an object with this method."""

    def action_probability(self, x: Tree, action: Array | None = None) -> Array:
        """Return probabilities ``[B]`` of actions ``[B, ...]`` for observations ``[B, ...]``.

        Without actions, the probabilities of all discrete actions, ``[B, A]``. The columns of a table (pandas, polars,
        Arrow) whose labels are the actions are read by these labels, in any order.
        """


@runtime_checkable
class PredictingPolicy(Protocol):
    """A policy that returns its actions."""

    def predict(self, x: Tree) -> Array:
        """Return actions ``[B, A]`` in environment units, or integers ``[B]``, for observations ``[B, ...]``."""


@runtime_checkable
class HistoryPolicy(Protocol):
    """A policy whose discrete actions depend on earlier steps, such as a decision transformer with a target return."""

    def history_log_probability(self, observations: Tree, actions: Array, rewards: Array, is_first: Array) -> Array:
        """Return log-probabilities ``[N, A]`` of all actions at logged steps, one episode after the other.

        Args:
            observations: tree of arrays ``[N, ...]``.
            actions: logged actions, integers ``[N]``.
            rewards: logged rewards, ``[N]``.
            is_first: bool ``[N]``, the first steps of episodes. Probabilities may depend on the observations of a step
                and of earlier steps of its episode, and on the actions and rewards of earlier steps.
        """


PolicyFunction: TypeAlias = Callable[[Tree], object]
"""A function of observations ``[B, …]``: actions ``[B]``, or probabilities of all actions ``[B, A]``."""


@runtime_checkable
class Classifier(Protocol):
    """A classifier with scikit-learn's methods, such as a pipeline that ends in one."""

    classes_: Array

    def predict(self, X: object) -> object:  # noqa: N803
        """Return classes ``[B]``."""

    def predict_proba(self, X: object) -> object:  # noqa: N803
        """Return probabilities ``[B, C]`` in the order of ``classes_``."""


class ClassifierPolicy:
    """A classifier of actions as a policy.

    Its classes are actions, by their names or numbers in the log; actions that are none of its classes have the
    probability 0. If it was fitted on a table (``feature_names_in_``), it gets the columns of these names.

    Args:
        classifier: a fitted classifier with scikit-learn's methods.
        greedy: whether the policy takes the predicted class; otherwise it samples with ``predict_proba``.
    """

    def __init__(self, classifier: Classifier, *, greedy: bool = False) -> None:
        if not isinstance(classifier, Classifier):
            raise ConfigError(
                f"the classifier is {classifier!r:.80}; it must be fitted, and have classes_, predict and "
                "predict_proba, as scikit-learn's classifiers have: call fit first"
            )
        self.classifier, self.greedy = classifier, greedy


EvaluatedPolicy: TypeAlias = (
    ProbabilisticPolicy | PredictingPolicy | HistoryPolicy | DecisionTable | ClassifierPolicy | PolicyFunction
)
"""A policy that can be evaluated. With ``predict`` alone, its actions must be one discrete action."""

LogProbability: TypeAlias = "Callable[[Tree, Array | None], Array]"
"""Function of observations, and of actions or ``None``, that returns log-probabilities of these or of all actions."""


def check_markov(policy: object, what: str) -> None:
    """Raise `UnsupportedError` if a policy's actions depend on earlier steps.

    Args:
        policy: the policy.
        what: what needs values that are functions of one observation, such as ``"FQE"``.
    """
    if isinstance(policy, HistoryPolicy):
        raise UnsupportedError(
            f"{what} learns values of single observations, but the actions of {type(policy).__name__} depend on "
            "earlier steps of the episode, and so does its value: use birl.ope.evaluate, whose estimators weight "
            "episodes"
        )


def log_probability_of(policy: object, n_actions: int = 0, start: int = 0) -> LogProbability:
    """Return a function that returns log-probabilities, float64, of the actions of ``predict`` and of exports.

    Args:
        policy: see `birl.ope.evaluate`.
        n_actions: number of discrete actions; 0 for other actions.
        start: number of the first discrete action.
    """
    if isinstance(policy, PolicyAPI):
        acts = policy  # for the closure
        parts = [part for _, part in policy.members()] if isinstance(policy, StochasticPolicy) else [policy]
        for acting in (part.acting for part in parts):
            if is_recurrent(acting.nets):
                raise UnsupportedError(
                    f"{acting.name} is recurrent, but logs are evaluated one step at a time: evaluate a policy with "
                    "stacked frames instead (FrameStackTransitionPicker)"
                )
        return lambda x, action: acts.action_log_probability(x, action, greedy=True)
    options = range(start, start + n_actions)
    if not isinstance(policy, ProbabilisticPolicy):
        if n_actions and isinstance(policy, PredictingPolicy) and not isinstance(policy, type):
            return _log_probability_of_choices(policy, np.array(options))
        raise ConfigError(
            f"the policy is {policy!r:.80}; it must have the method action_probability(x, action=None), as algorithms "
            "and the policies of birl.ope do, or for one discrete action the method predict(x)"
        )

    def log_probability(x: Tree, action: Array | None) -> Array:
        with np.errstate(divide="ignore"):
            name, values = "action_probability(x, action)", policy.action_probability(x, action)
            given = to_array(name, order_numbered_columns(name, values, options))
            return np.asarray(np.log(given.astype(np.float64)))

    return log_probability


def _log_probability_of_choices(policy: PredictingPolicy, options: Array) -> LogProbability:
    """Return log-probabilities of a policy that has only ``predict``: 0 for the action that it selects."""

    def log_probability(x: Tree, action: Array | None) -> Array:
        name, rows = f"predict(x) of {type(policy).__name__}", len(next(tree_leaves(x)))
        chosen = to_array(name, policy.predict(x))
        if chosen.shape not in ((rows,), (rows, 1)):
            raise ShapeError(f"{name} has the shape {chosen.shape}; it must be {(rows,)}")
        chosen = chosen.reshape(rows, 1)
        if (outside := ~np.isin(chosen, options)).any():
            row = int(outside.argmax())
            raise ActionError(
                f"{name} is {chosen[row, 0]} at step {row}; it must be an integer from {options[0]} to {options[-1]}"
            )
        given = options if action is None else np.reshape(action, (rows, 1))
        same = np.where(chosen == given, 0.0, -np.inf)
        return same if action is None else same[:, 0]

    return log_probability


def check_probabilities(
    probabilities: Array, n_actions: int, name: str = "action_probability(x)", tolerance: float = 1e-4
) -> None:
    """Raise `ShapeError` or `DataError` unless each row of ``probabilities`` is a distribution of ``n_actions``."""
    if probabilities.ndim != 2 or probabilities.shape[1] != n_actions:
        raise ShapeError(f"{name} has the shape {probabilities.shape}; it must be [B, {n_actions}], for all actions")
    if not (probabilities >= 0).all():
        row, column = (int(k) for k in np.argwhere(~(probabilities >= 0))[0])
        value = probabilities[row, column]
        raise DataError(f"{name} is {value:.6g} at step {row} for action {column}; it must be from 0 to 1")
    off = ~(np.abs(probabilities.sum(-1) - 1) < tolerance)
    if off.any():
        row = int(off.argmax())
        raise DataError(f"{name} sums to {probabilities[row].sum():.6g} at step {row}; the sum must be 1")
