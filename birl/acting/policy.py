"""Ways to act and to value, shared by algorithms."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from birl.types import Inputs


class PolicyFunction(Protocol):
    """A way to act: ``(networks, inputs) -> action`` in the policy's range."""

    def __call__(self, nets: Any, inputs: Inputs, /) -> Tensor:
        """Actions ``[..., A]`` or int64 ``[...]``."""


class ValueFunction(Protocol):
    """A way to value: ``(networks, inputs, action) -> value``."""

    def __call__(self, nets: Any, inputs: Inputs, action: Tensor, /) -> Tensor:
        """Values ``[...]``."""


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


def best_of(action: Tensor, value: Tensor) -> Tensor:
    """Of several actions ``[n, ..., A]`` for each state the one ``[..., A]`` of the highest ``value`` ``[n, ...]``."""
    index = value.argmax(0, keepdim=True).unsqueeze(-1)
    return action.gather(0, index.expand(1, *action.shape[1:])).squeeze(0)
