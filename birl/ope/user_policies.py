"""Policies that users write themselves, such as the rules in force, as targets of fitted Q evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

import numpy as np
import torch
from torch import Tensor

from birl.acting.built_policy import BuiltPolicy
from birl.errors import ActionError, ConfigError, ShapeError, UnsupportedError
from birl.ope.evaluated_policies import (
    EvaluatedPolicy,
    PredictingPolicy,
    ProbabilisticPolicy,
    check_probabilities,
    log_probability_of,
)
from birl.ope.policies import StatelessActor
from birl.spaces import Continuous, Discrete, read_action_mask
from birl.spaces.conversion import order_numbered_columns, to_array
from birl.spaces.observations import order_actions
from birl.spaces.specs import Spec
from birl.types import Array, ArrayOrTensor, State, Tree, tree_leaves, tree_map

_OBJECT: Final = "object"


class AbsentPolicy:
    """Stands for the policy of a saved evaluation, because files do not contain objects of users.

    Args:
        name: module and class of the policy.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def predict(self, x: Tree) -> NoReturn:
        """Raise `UnsupportedError`."""
        raise UnsupportedError(
            f"the evaluated policy is an object of the class {self.name!r:.200}, which files do not contain: make a "
            "new evaluation of such an object with the same config, call build_with_dataset(dataset), and then "
            "set_state(loaded.get_state())"
        )


def check_user_policy(policy: object, name: str, *, discrete: bool) -> None:
    """Raise `ConfigError` if an object has no method that an evaluation can call.

    Args:
        policy: the object.
        name: name of the evaluation, for messages.
        discrete: whether probabilities without samples may be enough.
    """
    fits = isinstance(policy, PredictingPolicy) or (discrete and isinstance(policy, ProbabilisticPolicy))
    if isinstance(policy, type) or not fits:
        given = f"the class {policy.__name__}" if isinstance(policy, type) else type(policy).__name__
        methods = "predict(x) or action_probability(x, action=None)" if discrete else "predict(x)"
        raise ConfigError(
            f"{name} evaluates the policy of an algorithm that acts on observations, or of an object with the method "
            f"{methods}, not {given}"
        )


class UserPolicy:
    """A user's object as the policy of an evaluation. See `birl.algorithm.learner.EvaluationTarget`.

    It gets observations as the dataset stores them, in new memory, and its actions are checked. Discrete actions have
    the probabilities that ``action_probability`` returns; without this method, and for all other actions, ``predict``
    selects them.

    Args:
        policy: the object.
        spec: observations and actions of the data.

    Attributes:
        columns: names of the columns of the data; tables of actions are read by name.
    """

    recurrent: ClassVar[bool] = False

    def __init__(self, policy: EvaluatedPolicy, spec: Spec) -> None:
        self.policy, self._spec = policy, spec
        self.name, self.columns = type(policy).__name__, dict[str, tuple[str, ...]]()
        check_user_policy(policy, "an evaluation", discrete=isinstance(spec.actions, Discrete))

    def policies(self) -> list[tuple[float, BuiltPolicy]]:
        """Return an empty list: it has no networks."""
        return []

    def describe(self) -> dict[str, Any]:
        """Return its class, which is all that is known of it."""
        kind = type(self.policy)
        name = self.policy.name if isinstance(self.policy, AbsentPolicy) else f"{kind.__module__}.{kind.__qualname__}"
        return {_OBJECT: name}

    def policy_state(self) -> State:
        """Return a state without networks."""
        return {"grad_step": 0}

    def predict(self, x: Tree) -> Array:
        """Return the actions of the object, or draw them from its probabilities with torch's generator.

        Raises:
            ShapeError, ActionError: if they do not fit.
        """
        actions, rows = self._spec.actions, len(next(tree_leaves(x)))
        if isinstance(actions, Discrete) and not isinstance(self.policy, PredictingPolicy):
            drawn = torch.multinomial(torch.from_numpy(self.probabilities(x)), 1)[:, 0].numpy()
            return np.asarray(drawn + actions.start)
        assert isinstance(self.policy, PredictingPolicy)
        name = f"predict(x) of {self.name}"
        given = to_array(name, order_actions(name, self.policy.predict(tree_map(np.array, x)), self.columns))
        if given.shape not in ((rows, *actions.shape), (rows, *actions.storage_spec.shape)):
            raise ShapeError(f"{name} has the shape {given.shape}; it must be {(rows, *actions.shape)}")
        given = given.reshape(rows, *actions.shape)
        if (index := actions.first_outside(given)) is not None:
            raise ActionError(f"{name} is {given[index]} for row {index}; it must be {actions.valid_range}")
        allowed = read_action_mask(actions, x, "the observation", ActionError)
        if allowed is None or isinstance(actions, Continuous):
            return given
        if (index := actions.first_masked(given, allowed)) is not None:
            raise ActionError(
                f"{name} is {given[index]} for row {index}, whose mask {allowed[index].astype(int).tolist()!s:.80} "
                "forbids it: read the mask in the observation"
            )
        return given

    def probabilities(self, x: Tree) -> Array:
        """Return the probabilities of all discrete actions, ``[B, A]``.

        Raises:
            ShapeError, DataError, ActionError: if they do not fit.
        """
        assert isinstance(self.policy, ProbabilisticPolicy)
        name, actions = f"action_probability(x) of {self.name}", self._spec.actions
        assert isinstance(actions, Discrete)
        values = self.policy.action_probability(tree_map(np.array, x), None)
        options = range(actions.start, actions.start + actions.size)
        given = to_array(name, order_numbered_columns(name, values, options)).astype(np.float64)
        check_probabilities(given, actions.size, name)
        allowed = read_action_mask(actions, x, "the observation", ActionError)
        if allowed is not None and (given * ~allowed).any():
            row, action = (int(k) for k in np.argwhere(given * ~allowed)[0])
            raise ActionError(
                f"{name} is {given[row, action]:.6g} for row {row} and action {action}; it must be 0, because "
                "the mask of the row forbids the action"
            )
        return given

    def choices(self, x: Tree, alive: Array, count: int) -> Array:
        """Return probabilities ``[..., A]`` of one discrete action, or else actions ``[K, ..., *shape]``.

        Args:
            x: observations ``[..., *shape]``.
            alive: bool ``[...]``: the observations that an action follows. The object gets no others, as the
                observation after the end of an episode may be none that it knows.
            count: number of samples K of a policy without probabilities; 0 for one.
        """
        actions, rows = self._spec.actions, alive.reshape(-1)
        observed = tree_map(lambda leaf: _on_host(leaf).reshape(-1, *leaf.shape[alive.ndim :])[rows], x)
        if isinstance(actions, Discrete) and isinstance(self.policy, ProbabilisticPolicy):
            share = np.full((*alive.shape, actions.size), 1 / actions.size, np.float32)
            if rows.any():
                share[alive] = self.probabilities(observed)
            return share
        chosen = np.zeros((max(count, 1), *alive.shape, *actions.shape), actions.storage_spec.dtype)
        if isinstance(actions, Discrete):
            chosen += actions.start
        if rows.any():
            for sample in chosen:
                sample[alive] = self.predict(observed)
        if not isinstance(actions, Discrete):
            return chosen
        options = np.arange(actions.start, actions.start + actions.size)
        return np.asarray((chosen[..., None] == options).mean(0, dtype=np.float32))

    def action_log_probability(self, x: Tree, action: Array | None = None) -> Array:
        """See `Algorithm.action_log_probability`."""
        actions = self._spec.actions
        options = (actions.size, actions.start) if isinstance(actions, Discrete) else ()
        return log_probability_of(self.policy, *options)(x, action)

    def actor(self) -> StatelessActor:
        """Return an actor for environments."""
        return StatelessActor(self)

    def save_policy(self, fname: str | Path) -> NoReturn:
        """Raise `UnsupportedError`: only networks can be exported."""
        raise UnsupportedError(
            f"{self.name} is an object without networks, which cannot be exported to {str(fname)!r:.200}"
        )

    @staticmethod
    def absent(data: dict[str, Any]) -> AbsentPolicy | None:
        """Return the substitute of a policy from the result of `describe`; ``None`` for other descriptions."""
        return AbsentPolicy(str(data[_OBJECT])) if _OBJECT in data else None


def _on_host(leaf: ArrayOrTensor) -> Array:
    return leaf.cpu().numpy() if isinstance(leaf, Tensor) else np.asarray(leaf)
