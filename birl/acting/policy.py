"""Policies: how an algorithm acts and values. An algorithm has one, as its ``acts``."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Policy:
    """How an algorithm acts and values: everything that acting needs to know about it.

    Attributes:
        greedy, sample: ``(networks, inputs) -> action`` in the policy's range.
        value: ``(networks, inputs, action) -> values``; ``None`` if the algorithm has no action-values.
        values_states: whether the values are those of states, whatever the action is.
        network: name of the network that acts.
        beside: further recurrent networks whose state is kept while acting.
        bounded: whether the policy's actions are meant to lie in ``[-1, 1]``.
        clipped: whether actions may leave that range, so that they are clipped to it before the environment sees them
            (unbounded policies: only where an action scaler gives the range a meaning).
        aims: whether it needs a return to aim at, and so acts on contexts instead of single observations.
    """

    greedy: PolicyFunction
    sample: PolicyFunction
    value: ValueFunction | None = None
    network: str = "actor"
    beside: tuple[str, ...] = ()
    values_states: bool = False
    bounded: bool = True
    clipped: bool = False
    aims: bool = False

    @property
    def explores(self) -> bool:
        """Whether sampled actions differ from greedy ones."""
        return self.greedy is not self.sample


@dataclass(frozen=True)
class StochasticActor(Policy):
    """Acts by a distribution over actions: its mode, or a sample."""

    greedy: PolicyFunction = mode_action
    sample: PolicyFunction = sampled_action


@dataclass(frozen=True)
class DeterministicActor(Policy):
    """Acts by a network whose output is the action."""

    greedy: PolicyFunction = deterministic_action
    sample: PolicyFunction = deterministic_action


@dataclass(frozen=True)
class GreedyCritic(Policy):
    """Takes the discrete action of the highest value."""

    greedy: PolicyFunction = q_action
    sample: PolicyFunction = q_action
    value: ValueFunction | None = q_action_value
    network: str = "critic"
