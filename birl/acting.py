"""Policies at work: the actor that steps beside an environment, and the module that is exported."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from birl.models import is_recurrent
from birl.types import Array, Inputs, State, Tree, tree_map

__all__ = [
    "NetworkActor",
    "PolicyFunction",
    "PolicyModule",
    "ValueFunction",
    "deterministic_action",
    "mode_action",
    "q_action",
    "q_action_value",
    "q_mean",
    "q_value",
    "sampled_action",
]


class PolicyFunction(Protocol):
    """A way to act: ``(networks, inputs) -> action`` in the policy's range."""

    def __call__(self, nets: Any, inputs: Inputs, /) -> Tensor:
        """Actions ``[..., A]`` or int64 ``[...]``."""


class ValueFunction(Protocol):
    """A way to value: ``(networks, inputs, action) -> value``."""

    def __call__(self, nets: Any, inputs: Inputs, action: Tensor, /) -> Tensor:
        """Values ``[...]``."""


# Ways to act and to value, shared by algorithms.


def mode_action(nets: Any, inputs: Inputs) -> Tensor:
    """The mode of a stochastic policy."""
    return nets.actor(inputs).mode()


def sampled_action(nets: Any, inputs: Inputs) -> Tensor:
    """A sample of a stochastic policy."""
    return nets.actor(inputs).sample()[0]


def deterministic_action(nets: Any, inputs: Inputs) -> Tensor:
    """The output of a deterministic policy."""
    return nets.actor(inputs)


def q_mean(nets: Any, inputs: Inputs) -> Tensor:
    """Q-values ``[..., A]`` of all discrete actions, averaged over the ensemble."""
    return nets.critic(inputs).mean().mean(0)


def q_action(nets: Any, inputs: Inputs) -> Tensor:
    """The discrete action of the highest Q-value."""
    return q_mean(nets, inputs).argmax(-1)


def q_action_value(nets: Any, inputs: Inputs, action: Tensor) -> Tensor:
    """Q-values ``[...]`` of discrete actions, averaged over the ensemble."""
    return q_mean(nets, inputs).gather(-1, action.unsqueeze(-1)).squeeze(-1)


def q_value(nets: Any, inputs: Inputs, action: Tensor) -> Tensor:
    """Q-values ``[...]`` of continuous actions, averaged over the ensemble."""
    return nets.critic(inputs, action).mean().mean(0)


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
        out: dict[str, Tensor] = {}
        with torch.no_grad(), algorithm.in_acting_mode():
            inputs = Inputs(algorithm.units.observation(observation), state, state_out=out if state else None)
            action = (algorithm.policy_mode if self._greedy else algorithm.policy_sample)(algorithm.nets, inputs)
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


class PolicyModule(nn.Module):
    """The greedy policy with its scalers: raw observations in, environment actions out. This is what is exported."""

    def __init__(self, algorithm: Any) -> None:
        super().__init__()
        self.nets = algorithm.nets
        self._units, self._greedy, self._clip = algorithm.units, algorithm.policy_mode, algorithm.clip_policy_action

    def forward(self, observation: Tree) -> Tensor:
        """Actions ``[B, A]``, or int64 ``[B]``, for observations ``[B, …]``."""
        scaler = self._units.observation_scaler
        x = scaler.transform(observation) if scaler is not None else tree_map(lambda leaf: leaf.float(), observation)
        action = self._greedy(self.nets, Inputs(x))
        return self._units.environment_action(self._clip(action))
