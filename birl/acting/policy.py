"""Policies: how an algorithm acts and estimates values. The attribute ``acts`` of an algorithm is a `Policy`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from torch import Tensor

from birl.models.distributions import Distribution
from birl.types import Inputs, Networks

NetsT = TypeVar("NetsT", contravariant=True)


class PolicyFunction(Protocol[NetsT]):
    """Function that selects actions in the policy's range: ``(networks, inputs) -> action``."""

    def __call__(self, nets: NetsT, inputs: Inputs, /) -> Tensor:
        """Return actions ``[..., A]`` or int64 ``[...]``."""


class DistributionFunction(Protocol[NetsT]):
    """Function that returns the distribution of actions, in the policy's range and before clipping."""

    def __call__(self, nets: NetsT, inputs: Inputs, /) -> Distribution | Tensor:
        """Return a distribution over actions ``[...]``; a deterministic policy returns the actions themselves."""


class ValueFunction(Protocol[NetsT]):
    """Function that estimates values: ``(networks, inputs, action) -> value``."""

    def __call__(self, nets: NetsT, inputs: Inputs, action: Tensor, /) -> Tensor:
        """Return values ``[...]``."""


def actor_distribution(nets: Networks, inputs: Inputs) -> Distribution:
    """Return the distribution of a stochastic policy."""
    return nets.actor(inputs)  # type: ignore[no-any-return]


def mode_action(nets: Networks, inputs: Inputs) -> Tensor:
    """Return the mode of a stochastic policy."""
    return nets.actor(inputs).mode()


def sampled_action(nets: Networks, inputs: Inputs) -> Tensor:
    """Return a sample of a stochastic policy."""
    return nets.actor(inputs).sample()[0]


def deterministic_action(nets: Networks, inputs: Inputs) -> Tensor:
    """Return the output of a deterministic policy."""
    return nets.actor(inputs)


def q_action(nets: Networks, inputs: Inputs) -> Tensor:
    """Return the discrete action with the highest Q-value."""
    return nets.critic(inputs).best()


def q_scores(nets: Networks, inputs: Inputs) -> Tensor:
    """Return Q-values ``[..., A]`` of all discrete actions, very low for forbidden ones; see `Returns.scores`."""
    return nets.critic(inputs).scores().mean(0)


def q_value(nets: Networks, inputs: Inputs, action: Tensor) -> Tensor:
    """Return Q-values ``[...]`` of actions, averaged over the ensemble."""
    return nets.critic(inputs, action).mean().mean(0)


def best_of(action: Tensor, value: Tensor) -> Tensor:
    """Return for each state the action ``[..., A]`` of ``[n, ..., A]`` with the highest ``value`` ``[n, ...]``."""
    index = value.argmax(0, keepdim=True).unsqueeze(-1)
    return action.gather(0, index.expand(1, *action.shape[1:])).squeeze(0)


@dataclass(frozen=True)
class Policy:
    """How an algorithm acts and estimates values.

    Attributes:
        greedy, sample: ``(networks, inputs) -> action`` in the policy's range.
        value: ``(networks, inputs, action) -> values``; ``None`` if the algorithm has no action-values.
        values_states: whether the values are state values, which ignore the action.
        scores: ``(networks, inputs) -> scores`` ``[..., A]`` of all discrete actions, or ``[..., D, A]`` for
            multi-discrete ones. The greedy action has the highest score. ``None`` if the policy does not select
            actions by their values.
        distribution: the distribution of sampled actions; ``None`` if actions are not sampled, or if its density is
            not known.
        network: name of the network that acts.
        stateful_networks: further recurrent networks whose state is kept while acting.
        bounded: whether the policy's range is ``[-1, 1]``.
        clipped: whether actions may leave ``[-1, 1]`` and are clipped to it before they reach the environment (for
            unbounded policies, only if there is an action scaler).
        aims: whether it is conditioned on a target return and acts on a context of past steps, as decision
            transformers do.
    """

    greedy: PolicyFunction[Any]
    sample: PolicyFunction[Any]
    value: ValueFunction[Any] | None = None
    network: str = "actor"
    stateful_networks: tuple[str, ...] = ()
    values_states: bool = False
    scores: PolicyFunction[Any] | None = None
    bounded: bool = True
    clipped: bool = False
    aims: bool = False
    distribution: DistributionFunction[Any] | None = None

    @property
    def explores(self) -> bool:
        """Whether sampled actions differ from greedy ones."""
        return self.greedy is not self.sample


StochasticActor: Final = partial(Policy, greedy=mode_action, sample=sampled_action, distribution=actor_distribution)
"""A policy whose greedy action is the mode of a distribution over actions, from which it also samples."""

DeterministicActor: Final = partial(Policy, greedy=deterministic_action, sample=deterministic_action)
"""A policy whose action is the output of a network."""

GreedyCritic: Final = partial(
    Policy, greedy=q_action, sample=q_action, value=q_value, scores=q_scores, network="critic"
)
"""A policy that takes the discrete action with the highest Q-value."""
