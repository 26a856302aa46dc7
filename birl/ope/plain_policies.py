"""Policies that people have: functions, classifiers and decision tables, as policies that logs evaluate.

They speak of columns and actions by the names of the log. `as_policy` gives them those of a dataset.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from birl.dataset.base import ReplayBufferBase
from birl.errors import ActionError, ConfigError, ShapeError, require
from birl.ope.decision_table import DecisionTable, as_text
from birl.ope.evaluated_policies import (
    Classifier,
    ClassifierPolicy,
    EvaluatedPolicy,
    HistoryPolicy,
    PolicyFunction,
    PredictingPolicy,
    ProbabilisticPolicy,
)
from birl.ope.named_columns import ObservationColumns
from birl.spaces import Discrete
from birl.spaces.conversion import Columns, column_names, order_columns, to_array
from birl.types import Array, Tree, tree_leaves


@dataclass(frozen=True)
class Names:
    """The names of a dataset.

    Attributes:
        columns: names of the elements of observations.
        actions: names of discrete actions in order, as texts.
        start: number of the first action.
    """

    columns: Columns = field(default_factory=dict)
    actions: tuple[str, ...] = ()
    start: int = 0

    @classmethod
    def of(cls, dataset: ReplayBufferBase) -> Names:
        """Return the names of a dataset: those of its table, if it was imported, and numbers otherwise."""
        info, record = dataset.dataset_info, getattr(dataset, "logs", None)
        if not isinstance(info.actions, Discrete):
            return cls(info.columns, (), 0)
        numbers = range(info.actions.start, info.actions.start + info.actions.size)
        values = () if record is None else record.schema.action.values
        return cls(info.columns, tuple(map(as_text, values or numbers)), info.actions.start)


class BoundPolicy:
    """A plain policy with the names of a dataset: see `birl.ope.as_policy`.

    Args:
        policy: the policy.
        names: names of the dataset.
    """

    def __init__(self, policy: EvaluatedPolicy, names: Names) -> None:
        self.policy, self.names = policy, names
        if not names.actions:
            raise ConfigError(
                f"{_describe(policy)} selects one discrete action, but these data have others: give an object with "
                "action_probability(x, action)"
            )

    def action_probability(self, x: Tree, action: Array | None = None) -> Array:
        """Return probabilities ``[B]`` of actions, or ``[B, A]`` of all; see `ProbabilisticPolicy`."""
        if isinstance(self.policy, DecisionTable):
            every = self.policy.probabilities(ObservationColumns(self.names.columns, x), x, self.names.actions)
        elif isinstance(self.policy, ClassifierPolicy):
            every = _classify(self.policy, x, self.names)
        else:
            assert callable(self.policy)
            every = _call(self.policy, x, self.names)
        if action is None:
            return every
        chosen = np.reshape(action, -1).astype(np.int64) - self.names.start
        return np.asarray(every[np.arange(len(every)), chosen])


def as_policy(policy: EvaluatedPolicy, dataset: ReplayBufferBase) -> EvaluatedPolicy:
    """Return a policy with ``action_probability`` for the observations and actions of a dataset.

    `birl.ope.evaluate` and `birl.ope.rank` call this function; fitted Q evaluation takes its result.

    Args:
        policy: a `DecisionTable`; a classifier with scikit-learn's methods, whose predictions are the actions, or a
            `ClassifierPolicy`; a function of observations ``[B, …]`` that returns actions ``[B]``, by their names or
            numbers, or probabilities ``[B, A]``. All other policies are returned unchanged.
        dataset: the data.
    """
    return bind(policy, Names.of(dataset))


def bind(policy: EvaluatedPolicy, names: Names) -> EvaluatedPolicy:
    """Return a policy for data with these names; see `as_policy`."""
    if isinstance(policy, DecisionTable | ClassifierPolicy):
        return BoundPolicy(policy, names)
    if isinstance(policy, type | HistoryPolicy | ProbabilisticPolicy):
        return policy
    if isinstance(policy, Classifier):
        return BoundPolicy(ClassifierPolicy(policy, greedy=True), names)
    if not isinstance(policy, PredictingPolicy) and callable(policy):
        return BoundPolicy(policy, names)
    return policy


def _describe(policy: EvaluatedPolicy) -> str:
    if isinstance(policy, DecisionTable):
        return policy.name
    if isinstance(policy, ClassifierPolicy):
        return type(policy.classifier).__name__
    return getattr(policy, "__name__", type(policy).__name__)


def _classify(policy: ClassifierPolicy, x: Tree, names: Names) -> Array:
    name, classifier = _describe(policy), policy.classifier
    table = _features(classifier, x, names, name)
    classes = np.asarray(classifier.classes_)
    if classes.ndim != 1:
        raise ConfigError(f"classes_ of {name} has the shape {classes.shape}; it must be [C], for one discrete action")
    index = _action_indices(classes.tolist(), names, f"classes_ of {name}")
    rows = len(next(tree_leaves(x)))
    if policy.greedy:
        return _one_hot(classifier.predict(table), rows, names, f"predict of {name}")
    given = to_array(f"predict_proba of {name}", classifier.predict_proba(table)).astype(np.float64)
    if given.shape != (rows, len(classes)):
        raise ShapeError(
            f"predict_proba of {name} has the shape {given.shape}; it must be {(rows, len(classes))}, a column "
            "for each of classes_"
        )
    every = np.zeros((rows, len(names.actions)))
    every[:, index] = given
    return every


def _features(classifier: Classifier, x: Tree, names: Names, name: str) -> object:
    """Return the input of a classifier: a table with the columns that it was fitted on, or the observations."""
    wanted = getattr(classifier, "feature_names_in_", None)
    if wanted is None:
        count = getattr(classifier, "n_features_in_", None)
        if isinstance(x, np.ndarray) and count is not None and x.shape[1:] != (count,):
            raise ShapeError(
                f"{name} was fitted on {count} columns, but observations have the shape {x.shape[1:]}: fit it on the "
                "observations, or on a table with the columns of the log"
            )
        return x
    reader = ObservationColumns(names.columns, x)
    columns: dict[str, Array] = {}
    for each in map(str, np.asarray(wanted).tolist()):
        found = reader.read(each, x, f"feature_names_in_ of {name}")
        columns[each] = found.values
        if found.labels:
            known = ~np.isnan(found.values)
            columns[each] = np.full(len(known), None, object)
            columns[each][known] = np.array(found.labels, object)[found.values[known].astype(int)]
    labelled = any(column.dtype == object for column in columns.values())
    if labelled or importlib.util.find_spec("pandas") is not None:  # scikit-learn warns of arrays without names
        return require("pandas", "logs").DataFrame(columns)
    return np.stack([*columns.values()], -1)


def _call(function: PolicyFunction, x: Tree, names: Names) -> Array:
    name, rows = f"the result of {_describe(function)}(x)", len(next(tree_leaves(x)))
    given = function(x)
    if len(column_names(given)) > 1:
        given = order_columns(name, given, names.actions)
    found = np.asarray(given) if _holds_text(given) else to_array(name, given)
    if found.ndim == 2 and found.shape[1] == len(names.actions) > 1:
        return found.astype(np.float64)
    return _one_hot(found, rows, names, name)


def _holds_text(value: object) -> bool:
    return np.asarray(value).dtype.kind in "OU"


def _one_hot(actions: object, rows: int, names: Names, name: str) -> Array:
    """Return probabilities of chosen actions, given by their names or numbers."""
    found = np.asarray(actions) if _holds_text(actions) else to_array(name, actions)
    if found.shape not in ((rows,), (rows, 1)):
        raise ShapeError(
            f"{name} has the shape {found.shape}; it must be {(rows,)}, an action for each observation, or "
            f"{(rows, len(names.actions))}, the probabilities of all actions"
        )
    distinct, index = np.unique(found.reshape(-1), return_inverse=True)
    chosen = np.array(_action_indices(distinct.tolist(), names, name))[index]
    return np.asarray(np.eye(len(names.actions))[chosen])


def _action_indices(actions: Sequence[object], names: Names, where: str) -> list[int]:
    """Return the indices of actions, given by their names, or all by their numbers.

    Raises:
        ActionError: if one is no action.
    """
    texts = [as_text(each) for each in actions]
    numbers = [str(names.start + index) for index in range(len(names.actions))]
    for known in (names.actions, numbers):
        if all(text in known for text in texts):
            return [list(known).index(text) for text in texts]
    unknown = next(text for text in texts if text not in names.actions)
    raise ActionError(
        f"{where}: {unknown!r:.60} is no action; the actions of the data are {', '.join(names.actions)!s:.200}: give "
        "one of them"
    )
