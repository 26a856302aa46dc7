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
    """Chooses actions in the policy's range: ``(networks, inputs) -> action``."""

    def __call__(self, nets: NetsT, inputs: Inputs, /) -> Tensor:
        """Actions ``[..., A]`` or int64 ``[...]``."""


class DistributionFunction(Protocol[NetsT]):
    """Returns the distribution of actions, in the policy's range and before clipping: ``(networks, inputs)``."""

    def __call__(self, nets: NetsT, inputs: Inputs, /) -> Distribution | Tensor:
        """A distribution over actions ``[...]``; the actions themselves if the policy is deterministic."""


class ValueFunction(Protocol[NetsT]):
    """Estimates values: ``(networks, inputs, action) -> value``."""

    def __call__(self, nets: NetsT, inputs: Inputs, action: Tensor, /) -> Tensor:
        """Values ``[...]``."""


def actor_distribution(nets: Networks, inputs: Inputs) -> Distribution:
    """The distribution of a stochastic policy."""
    return nets.actor(inputs)  # type: ignore[no-any-return]


def mode_action(nets: Networks, inputs: Inputs) -> Tensor:
    """The mode of a stochastic policy."""
    return nets.actor(inputs).mode()


def sampled_action(nets: Networks, inputs: Inputs) -> Tensor:
    """A sample of a stochastic policy."""
    return nets.actor(inputs).sample()[0]


def deterministic_action(nets: Networks, inputs: Inputs) -> Tensor:
    """The output of a deterministic policy."""
    return nets.actor(inputs)


def q_action(nets: Networks, inputs: Inputs) -> Tensor:
    """The discrete action with the highest Q-value."""
    return nets.critic(inputs).best()


def q_scores(nets: Networks, inputs: Inputs) -> Tensor:
    """Q-values ``[..., A]`` of all discrete actions, very low where they are not allowed; see `Returns.scores`."""
    return nets.critic(inputs).scores().mean(0)


def q_value(nets: Networks, inputs: Inputs, action: Tensor) -> Tensor:
    """Q-values ``[...]`` of actions, averaged over the ensemble."""
    return nets.critic(inputs, action).mean().mean(0)


def best_of(action: Tensor, value: Tensor) -> Tensor:
    """For each state, the action ``[..., A]`` with the highest ``value`` ``[n, ...]`` among ``[n, ..., A]``."""
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
            multi-discrete ones. The greedy action has the highest score. ``None`` if the policy does not choose by
            action-values.
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
