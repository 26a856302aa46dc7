"""The actor of environment loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from birl.acting.built_policy import BuiltPolicy, as_values
from birl.models import is_recurrent
from birl.spaces.observations import order_tables
from birl.types import Array, State, Tree


class NetworkActor:
    """Acts in ``n`` environments at once and keeps recurrent states between steps.

    Args:
        policy: the policy with its networks and units.
        greedy: whether to take greedy actions instead of samples.
        n: number of environments.
        stores: columns that the algorithm needs in addition to the steps; see `Experience.stores`.
        values: whether it keeps the values of all actions.

    Attributes:
        values: values ``[n, A]`` of all discrete actions in the last step, if ``values`` was true; see `as_values`.
        extra: columns to store with the last step: ``state.<network>`` before the step (recurrent networks), and
            ``policy_action``, the action before it is scaled or clipped, if it is in ``stores``.
        noisy: whether the policy explores by noise in its layers. Greedy actions have no such noise.
    """

    def __init__(
        self, policy: BuiltPolicy, greedy: bool, n: int, stores: Sequence[str] = (), values: bool = False
    ) -> None:
        self._policy, self.n, self.noisy = policy, n, policy.noisy
        self._noise = not greedy
        self._function = policy.scores if values else policy.function(greedy)
        self.values: Array | None = None
        self._keeps_values = values
        self._keeps_action = "policy_action" in stores
        self.extra: dict[str, Array] = {}
        acting = policy.policy
        names = [name for name in (acting.network, *acting.stateful_networks) if name]
        networks: dict[str, Any] = {name: policy.nets.get_submodule(name) for name in names}
        recurrent = {name: network for name, network in networks.items() if is_recurrent(network)}
        self._state = {name: torch.zeros(n, network.state_size) for name, network in recurrent.items()}

    def __call__(self, observation: Tree, is_first: Array, reward: Array) -> Array:
        """Return actions in environment units for observations ``[n, …]``.

        Args:
            observation: tree of arrays ``[n, …]``.
            is_first: bool ``[n]``: whether an episode begins here, which resets recurrent states.
            reward: rewards ``[n]`` of the previous step, which these policies do not use.
        """
        policy, state = self._policy, None
        self.extra = {}
        observation = order_tables("observation", observation, policy.columns)
        if self._state:
            keep = torch.from_numpy(1.0 - np.asarray(is_first, dtype=np.float32)).unsqueeze(-1)
            self._state = {name: value * keep for name, value in self._state.items()}
            self.extra = {f"state.{name}": value.numpy().copy() for name, value in self._state.items()}
            state = {name: value.to(policy.units.device) for name, value in self._state.items()}
        action, after = policy.act(observation, self._function, state, noise=self._noise)
        if self._keeps_values:
            self.values, action = as_values(action), action.argmax(-1)
        self._state.update({name: value.cpu() for name, value in after.items()})
        if self._keeps_action:
            self.extra["policy_action"] = action.cpu().numpy()
        return policy.to_environment(action)

    def get_state(self) -> State:
        """Return the recurrent states."""
        return {name: value.clone() for name, value in self._state.items()}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        self._state = {name: torch.as_tensor(value).clone() for name, value in state.items()}
