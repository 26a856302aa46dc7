"""A policy with its networks and units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from birl.acting.flat_policy import FlatPolicy
from birl.acting.policy import Policy, PolicyFunction
from birl.errors import ActionError, ConfigError, CorruptFileError, NonFiniteError, ShapeError, UnsupportedError
from birl.files.state_restore import check_array
from birl.models.distributions import NEVER
from birl.models.noisy import noise_of, noise_on
from birl.preprocessing.units import Units, copy_array
from birl.spaces import all_finite, first_not_finite, read_action_mask
from birl.spaces.conversion import Columns, to_array, to_arrays
from birl.spaces.observations import (
    check_action_mask,
    check_observations,
    match_parts,
    merge_columns,
    order_actions,
    order_tables,
)
from birl.spaces.specs import Spec
from birl.types import (
    MASK,
    ActionSpace,
    Array,
    Inputs,
    State,
    Tree,
    is_shape,
    leaf_shapes,
    parts_like,
    shape_map,
    tree_leaves,
    tree_map,
)

_FLOATS: Final = (np.dtype(np.float32), np.dtype(np.float64))


class BuiltPolicy:
    """Selects actions and estimates values with given networks, in the environment's units.

    Args:
        name: name of the algorithm, for messages.
        policy: the policy.
        nets: the networks.
        spec: shapes that the networks were built for.
        units: converts to and from the units of the networks.
        columns: names of the columns of the tables that it learned from; see `birl.dataset.DatasetInfo`. Policies of
            the same networks share them.
        set_mode: called with ``True`` before networks act: no dropout, running statistics, fixed quantile fractions.

    Attributes:
        clips: whether actions are clipped to ``[-1, 1]`` before they are scaled.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        nets: nn.Module,
        spec: Spec,
        units: Units,
        columns: dict[str, tuple[str, ...]],
        set_mode: Callable[[bool], None],
    ) -> None:
        self.name, self.policy, self.nets, self.spec, self.units = name, policy, nets, spec, units
        self.columns, self.set_mode = columns, set_mode
        # an unbounded policy acts in the environment's own units, unless a scaler maps [-1, 1] to them
        ranged = policy.bounded or units.action_scaler is not None
        self.clips = policy.clipped and ranged
        self._flat: dict[PolicyFunction[Any], FlatPolicy | None] = {}
        network = nets._modules.get(policy.network)
        self._noise = [] if network is None else noise_of(network)

    def add_columns(self, columns: Columns, what: str) -> None:
        """Take the names of the columns of further data, called ``what``.

        Raises:
            ShapeError: if they differ from the names that are known.
        """
        merge_columns(self.columns, columns := self.spec.fitting_columns(columns), f"this {self.name}", what)
        self.columns.update(columns)

    def weights(self) -> State:
        """Return a copy of everything that training changes and actions depend on: networks and a running scaler."""
        tensors, scaler = self._own_tensors(), self.units.observation_scaler
        moving = {} if scaler is None or not scaler.running else scaler.get_state()
        nets = {name: np.array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}
        return {"nets": nets, "observation_scaler": moving}

    def set_weights(self, weights: State) -> None:
        """Act with the `weights` of another policy of the same networks. They are copied in place.

        Raises:
            CorruptFileError: if the weights belong to other networks.
        """
        tensors, given, scaler = self._own_tensors(), weights["nets"], self.units.observation_scaler
        if tensors.keys() != given.keys():
            raise CorruptFileError(
                f"the weights are {', '.join(given)!s:.100}, but the networks that act have "
                f"{', '.join(tensors)!s:.100}: use a copy of the checkpoint"
            )
        for name, tensor in tensors.items():
            like = np.empty((), str(tensor.dtype).removeprefix("torch.")).dtype
            check_array(given[name], tuple(tensor.shape), like, name)
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(torch.tensor(given[name]))
        if weights["observation_scaler"]:
            scaler.set_state(weights["observation_scaler"])  # type: ignore[union-attr]

    def _own_tensors(self) -> dict[str, Tensor]:
        """Return parameters and buffers of the networks that act, and buffers of their parent module."""
        names = [name for name in (self.policy.network, *self.policy.stateful_networks) if name]
        states = {name: self.nets.get_submodule(name).state_dict() for name in names}
        networks = {f"{name}.{key}": tensor for name, state in states.items() for key, tensor in state.items()}
        return {**networks, **dict(self.nets.named_buffers(recurse=False))}

    @property
    def noisy(self) -> bool:
        """Whether the network that acts explores by noise in its layers."""
        return bool(self._noise)

    @property
    def explores(self) -> bool:
        """Whether sampled actions differ from greedy ones, by a distribution or by noise in layers."""
        return self.policy.explores or self.noisy

    def function(self, greedy: bool) -> PolicyFunction[Any]:
        """Return the policy's greedy or sampling function."""
        return self.policy.greedy if greedy else self.policy.sample

    def sampling(self) -> BuiltPolicy:
        """Return a policy whose greedy actions are samples of this policy."""
        policy = replace(self.policy, greedy=self.policy.sample)
        return BuiltPolicy(self.name, policy, self.nets, self.spec, self.units, self.columns, self.set_mode)

    @property
    def scores(self) -> PolicyFunction[Any]:
        """The scores by which the policy selects discrete actions; see `Policy`.

        Raises:
            UnsupportedError: if the policy has no scores.
        """
        if self.policy.scores is None:
            raise UnsupportedError(
                f"{self.name} does not select actions by the values of all actions: use another explorer than "
                "Boltzmann, or an algorithm that does, such as DQN"
            )
        return self.policy.scores

    def flat(self, function: PolicyFunction[Any]) -> FlatPolicy | None:
        """Return the fast form of one of the policy's functions, or ``None`` if it has none; see `FlatPolicy`."""
        flat = self._flat.get(function)
        if flat is None and function in self._flat:
            return None
        if flat is None or flat.nets is not self.nets or not flat.current:
            flat = self._flat[function] = FlatPolicy.of(self.nets, self.policy.network, function)
        return flat

    def environment_tensor(self, action: Tensor) -> Tensor:
        """Return the policy's actions in environment units, clipped to the policy's range if they may leave it."""
        return self.units.environment_action(self.spec.actions.clamp(action) if self.clips else action)

    def to_environment(self, action: Tensor) -> Array:
        """Return the policy's actions as a new array in environment units.

        Raises:
            NonFiniteError: if an action is NaN or infinite.
        """
        tensor = self.environment_tensor(action)
        array = np.array(tensor.numpy() if tensor.device.type == "cpu" else tensor.cpu().numpy())
        if array.dtype.kind == "f" and not all_finite(array):
            self._refuse(array)
        return array

    def _refuse(self, action: Array) -> NoReturn:
        """Raise `NonFiniteError` for actions that are not finite, with the cause."""
        broken = [name for name, tensor in self._own_tensors().items() if not bool(tensor.isfinite().all())]
        if broken:
            cause = f"its {broken[0]!r} holds NaN or infinity, because training diverged"
            remedy = (
                "continue from an earlier model with a lower learning rate, clipped gradients "
                "(birl.optimizers.AdamFactory(clip_grad_norm=1.0)) or scaled rewards"
            )
        else:
            cause = "although all its parameters are finite, so that numbers overflow within its networks"
            remedy = "scale the observations, for example with birl.preprocessing.StandardObservationScaler()"
        row = action[int(np.flatnonzero(~np.isfinite(action).reshape(len(action), -1).all(1))[0])]
        raise NonFiniteError(f"the policy of {self.name} returned the action {row.tolist()!s:.100}: {cause}: {remedy}")

    def act(
        self, x: Tree, function: PolicyFunction[Any], state: State | None = None, *, noise: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Call a function of the policy for observations ``[B, *shape]``, in the fast form if it has one.

        Args:
            x: observations in environment units.
            function: returns greedy actions, samples or scores.
            state: recurrent states ``[B, state_size]`` by network name; ``None`` for zeros.
            noise: whether noisy layers draw noise, once for the whole call, as for exploring actions.

        Returns:
            Actions in the policy's range, or scores, and the new states.
        """
        flat, after = None if state else self.flat(function), dict[str, Tensor]()  # the fast form keeps no states
        if flat is not None:
            return flat(self.units, x), after
        self.set_mode(True)
        with torch.no_grad(), noise_on(self._noise if noise else ()):
            inputs = Inputs(self.observed(x), state, state_out=after if state else None)
            action = function(self.nets, inputs)
            for name in state or ():
                if name not in after:  # other stateful networks read the same steps
                    self.nets.get_submodule(name).encode(inputs)  # type: ignore[operator]
        return action, after

    def observed(self, x: Tree) -> Tree:
        """Return observations in the networks' units, in new memory: a user's scaler or encoder may write to it."""
        return self.units.observation(tree_map(copy_array, x))

    def predict(self, x: Tree, greedy: bool) -> Array:
        """Return actions ``[B, A]`` in environment units, or integers ``[B]``, for observations ``[B, *shape]``."""
        return self.to_environment(self.act(self.checked(x, chooses=True), self.function(greedy), noise=not greedy)[0])

    def action_values(self, x: Tree) -> Array:
        """Return the values ``[B, A]`` of all discrete actions for observations ``[B, *shape]``; see `as_values`."""
        return as_values(self.act(self.checked(x), self.scores)[0])

    def value(self, x: Tree, action: Array | None) -> Array:
        """Return the values ``[B]`` of actions ``[B, A]`` in environment units, or of integers ``[B]`` or ``[B, 1]``.

        ``action`` may be ``None`` if the policy has state values only.

        Raises:
            UnsupportedError: if the policy has no action-values.
            ConfigError, ShapeError, ActionError: if actions are missing or do not fit; the message names them.
        """
        function, actions = self.policy.value, self.spec.actions
        if function is None:
            raise UnsupportedError(f"{self.name} has no action-values")
        x = self.checked(x)
        rows = len(next(tree_leaves(x)))
        expected = (rows, *actions.shape)
        if action is None and not self.policy.values_states:
            raise ConfigError(
                f"action is None, but {self.name} values an observation with an action: give actions {expected}, such "
                "as predict(x)"
            )
        action = np.zeros(expected) if action is None and self.policy.values_states else action
        action = self._stored(action, rows)
        self.set_mode(True)
        with torch.no_grad():
            inputs = Inputs(self.observed(x))
            return function(self.nets, inputs, self.units.action(action)).cpu().numpy()

    def log_probability(self, x: Tree, action: Array | None, greedy: bool) -> Array:
        """See `PolicyAPI.action_log_probability`.

        Raises:
            UnsupportedError: if no probability is known.
            ConfigError, ShapeError, ActionError: if actions are missing or do not fit; the message names them.
        """
        function, actions = self.function(greedy), self.spec.actions
        x = self.checked(x, chooses=True)
        rows = len(next(tree_leaves(x)))
        if action is None and actions.kind is not ActionSpace.DISCRETE:
            raise ConfigError(
                f"action is None, but the actions are {actions}, which cannot be enumerated: give actions "
                f"{(rows, *actions.shape)}, such as sample_action(x)"
            )
        if action is None:
            every = torch.arange(actions.size, device=self.units.device).unsqueeze(-1).expand(-1, rows)
        else:
            every = self.units.action(self._stored(action, rows))
        if function is self.policy.sample and self.policy.distribution is not None:
            self._check_probability(not greedy)
            self.set_mode(True)
            with torch.no_grad():
                drawn = self.policy.distribution(self.nets, Inputs(self.observed(x)))
                if not isinstance(drawn, Tensor):
                    precise, slope = drawn.with_parameters(drawn.parameters().double()), self.log_slope(every)
                    return self._each(precise.log_probability(every, slope, self.clips), action)
        elif function is self.policy.sample and self.policy.explores:
            raise UnsupportedError(
                f"the samples of {self.name} have no density in closed form: evaluate its greedy actions (FQE), or "
                "wrap it, birl.ope.Gaussian(algo, std)"
            )
        self._check_probability(not greedy)
        if not actions.discrete:
            raise UnsupportedError(
                f"{self.name} takes one action for each observation, which has no density: wrap it, birl.ope.Gaussian("
                "algo, std), or evaluate it by a method that needs no probabilities (FQE)"
            )
        same = every == self.act(x, function)[0]
        same = same.all(-1) if actions.shape else same
        return self._each(torch.where(same, 0.0, -np.inf).double(), action)

    def log_slope(self, action: Tensor) -> Tensor:
        """Return `Units.log_slope`, which must be finite.

        Raises:
            UnsupportedError: if the action scaler maps a dimension to a single value.
        """
        slope = self.units.log_slope(action)
        if bool(slope.isinf().any()):
            raise UnsupportedError(
                f"the action scaler of {self.name} maps a dimension of actions to a single value, which has no "
                "density: leave this dimension out of the actions"
            )
        return slope

    def _check_probability(self, noise: bool) -> None:
        if noise and self.noisy:
            raise UnsupportedError(
                f"{self.name} explores by noise in its layers, so the probabilities of its samples are unknown: give "
                "greedy=True, or wrap it, such as birl.ope.EpsilonGreedy(algo, 0.1)"
            )
        if self.policy.aims:
            raise UnsupportedError(
                f"{self.name} acts on contexts with a return to aim at, so an observation alone gives no probability: "
                "for an evaluation on logs, give algo.as_stateful_wrapper(target_return)"
            )

    @staticmethod
    def _each(log_probability: Tensor, action: Array | None) -> Array:
        """Return log-probabilities as an array: ``[B]`` of actions, or ``[A, B]`` of all actions as ``[B, A]``."""
        array: Array = (log_probability.t() if action is None else log_probability).cpu().numpy()
        return array

    def _stored(self, given: object, rows: int) -> Array:
        """Return actions in the form in which data store them ``[B, *leaf.shape]``, as a new array.

        Raises:
            ShapeError, ActionError: if they do not fit, or are not finite in float32.
        """
        given = order_actions("actions", given, self.columns)
        actions, action = self.spec.actions, to_array("actions", given).copy()
        expected, stored = (rows, *actions.shape), (rows, *actions.storage_spec.shape)
        if action.shape not in (expected, stored):
            found = f"{action.dtype} of shape {action.shape}"
            raise ShapeError(f"actions are {found}; they must be numbers of shape {expected}")
        if actions.kind is not ActionSpace.CONTINUOUS and actions.first_outside(action) is not None:
            raise ActionError(
                f"actions from {action.min()} to {action.max()} were given; they must be {actions.valid_range}"
            )
        if (row := first_not_finite(action)) is not None:
            raise ActionError(f"the action of row {row} is {action[row]}: actions must be finite in float32")
        return action.reshape(stored)

    def checked(self, x: Tree, chooses: bool = False) -> Tree:
        """Validate observations ``[B, *shape]``, and return them in the form that `Units` takes.

        Args:
            x: the observations.
            chooses: whether actions are selected for them, so that masks must allow at least one action.

        Raises:
            ShapeError: if shapes or types do not fit.
            NonFiniteError: if a value is not finite in float32.
        """
        shape = self.spec.data_shape
        if type(x) is np.ndarray and x.shape[1:] == shape and x.dtype in _FLOATS and all_finite(x):
            return x  # the usual case
        x = parts_like(x, shape)
        if isinstance(x, list):
            with_info = any(isinstance(row, tuple) and any(isinstance(part, dict) for part in row) for row in x)
            x = tuple(x) if with_info else to_array("observations", x)
        if isinstance(x, tuple) and is_shape(shape):
            raise ShapeError(
                f"a tuple was given, but observations are single arrays {('batch', *shape)}: env.reset() returns "
                "(observation, info); give observation[None]"
            )
        x = order_tables("observations", match_parts(self.spec.observations, x), self.columns)
        x = to_arrays("observations", x)
        leaves, shapes = list(tree_leaves(x)), list(leaf_shapes(shape))
        got = [np.shape(leaf) for leaf in leaves] or [()]
        if len(got) != len(shapes) or any(tuple(g[1:]) != tuple(s) for g, s in zip(got, shapes, strict=True)):
            single = len(got) == len(shapes) and all(len(g) == len(s) for g, s in zip(got, shapes, strict=True))
            hint = f". A single observation needs a batch dimension: {_batched(x)}" if single else ": give these"
            raise ShapeError(
                f"observations of shape {tree_map(np.shape, x)} were given; {self.name} takes "
                f"{shape_map(lambda part: ('batch', *part), shape)}{hint}"
            )
        for leaf in leaves:
            if leaf.dtype.kind == "f" and not all_finite(leaf):
                raise NonFiniteError(
                    "an observation holds NaN or infinity, or a number outside the range of float32, in which networks "
                    "compute: no action can be chosen for it. Repair or scale it"
                )
        check_observations(self.spec.observations, x)
        if self.spec.masked:
            check_action_mask(x, ShapeError, f"the observations' {MASK!r}")
            if chooses:
                read_action_mask(self.spec.actions, x, "the observation", ShapeError)
        return x


def _batched(x: Tree) -> str:
    """Return code that makes a batch of a single observation ``x``."""
    if isinstance(x, dict | tuple) and any(
        isinstance(part, dict | tuple) for part in (x.values() if isinstance(x, dict) else x)
    ):
        return "birl.types.tree_map(lambda part: np.asarray(part)[None], x)"
    if isinstance(x, dict):
        return "{name: np.asarray(part)[None] for name, part in x.items()}"
    return "tuple(np.asarray(part)[None] for part in x)" if isinstance(x, tuple) else "x[None]"


def as_values(scores: Tensor) -> Array:
    """Convert scores to values: minus infinity for actions that are not allowed, and for options that do not exist."""
    values: Array = scores.cpu().numpy()
    return np.where(values > NEVER / 2, values, -np.inf).astype(values.dtype)
