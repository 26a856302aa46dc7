"""The actor that steps beside environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from birl.models import is_recurrent
from birl.types import Array, Inputs, State, Tree


class NetworkActor:
    """Acts in ``n`` environments at once, and remembers recurrent states between steps.

    Args:
        algorithm: gives networks, units and the ways to act.
        greedy: whether to take the mode instead of a sample.
        n: number of environments.

    Attributes:
        extra: what a buffer must keep of the last step: ``state.<network>`` before the step (recurrent networks), and
            ``policy_action`` where the environment's action is not the policy's own.
    """

    def __init__(self, algorithm: Any, greedy: bool, n: int) -> None:
        self._algorithm, self._greedy, self.n = algorithm, greedy, n
        self.extra: dict[str, Array] = {}
        nets = algorithm.nets
        names = (algorithm.acting, *algorithm.remembering)
        networks = {name: nets.get_submodule(name) for name in names if name}
        recurrent = {name: network for name, network in networks.items() if is_recurrent(network)}
        self._state = {name: torch.zeros(n, network.state_size) for name, network in recurrent.items()}
        self._beside = [name for name in recurrent if name != algorithm.acting]

    def __call__(self, observation: Tree, is_first: Array, reward: Array) -> Array:
        """Actions in environment units for observations ``[n, …]``.

        Args:
            observation: tree of arrays ``[n, …]``.
            is_first: bool ``[n]``: an episode begins here, its past is forgotten.
            reward: ``[n]`` of the previous step; unused by these policies.
        """
        algorithm = self._algorithm
        self.extra = {}
        state = None
        if self._state:
            keep = torch.from_numpy(1.0 - np.asarray(is_first, dtype=np.float32)).unsqueeze(-1)
            self._state = {name: value * keep for name, value in self._state.items()}
            self.extra = {f"state.{name}": value.numpy().copy() for name, value in self._state.items()}
            state = {name: value.to(algorithm.torch_device) for name, value in self._state.items()}
        function = algorithm.policy_mode if self._greedy else algorithm.policy_sample
        flat = algorithm.flat_policy(function)
        if flat is not None:
            action = flat(algorithm.units, observation)
            if algorithm.keeps_policy_action:
                self.extra["policy_action"] = action.cpu().numpy()
            return algorithm.to_environment(action)
        out: dict[str, Tensor] = {}
        with torch.no_grad(), algorithm.in_acting_mode():
            inputs = Inputs(algorithm.units.observation(observation), state, state_out=out if state else None)
            action = function(algorithm.nets, inputs)
            for name in self._beside:
                algorithm.nets.get_submodule(name).encode(inputs)
            self._state.update({name: value.cpu() for name, value in out.items()})
            if algorithm.keeps_policy_action:
                self.extra["policy_action"] = action.cpu().numpy()
            return algorithm.to_environment(action)

    def get_state(self) -> State:
        """Recurrent states."""
        return {name: value.clone() for name, value in self._state.items()}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        self._state = {name: torch.as_tensor(value).clone() for name, value in state.items()}
