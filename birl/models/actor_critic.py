"""Networks that many algorithms have: a policy beside Q-functions, and a policy beside a state-value function."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from birl.models.distributions import Distribution
from birl.models.policies import policy_of
from birl.models.q_functions import ContinuousQFunction
from birl.models.values import ValueFunction, ValueHead
from birl.spaces import Spec
from birl.types import Inputs


class ActorCriticNets(nn.Module):
    """A policy, Q-functions, and the targets of both.

    Args:
        spec: shapes of observations and actions.
        cfg: configuration with the fields of `birl.config.ActorCriticConfig`.
        actor: the policy.
    """

    def __init__(self, spec: Spec, cfg: Any, actor: nn.Module) -> None:
        super().__init__()
        self.actor, self.actor_target = actor, deepcopy(actor)
        self.critic = ContinuousQFunction(spec, cfg.critic_encoder_factory, cfg.q_func_factory, cfg.n_critics)
        self.critic_target = deepcopy(self.critic)


class PolicyAndValue(nn.Module):
    """A policy and a state-value function, each with an encoder of its own or with one for both.

    An encoder for both belongs to the policy, and the value function is a linear layer on its features. So the network
    that acts, recurrent states and exports are the same in both forms, and one gradient step of ``("actor", "value")``
    trains every parameter once. Its losses call `both`, which encodes observations once.

    Args:
        spec: shapes of observations and actions.
        cfg: configuration with ``actor_encoder_factory``, ``distribution_factory`` and ``value_encoder_factory``, which
            is ``None`` for one encoder.
    """

    def __init__(self, spec: Spec, cfg: Any) -> None:
        super().__init__()
        self.actor = policy_of(spec, cfg.actor_encoder_factory, cfg.distribution_factory)
        own = cfg.value_encoder_factory
        self.value = ValueHead(self.actor.feature_size) if own is None else ValueFunction(spec, own)

    def make_orthogonal(self) -> None:
        """Orthogonal weights; see `LinearNetwork.make_orthogonal`.

        A policy that starts near uniform explores (Andrychowicz et al. 2020, arXiv:2006.05990, section 3.2).
        """
        self.actor.make_orthogonal(0.01)
        self.value.make_orthogonal(1.0)

    def both(self, inputs: Inputs) -> tuple[Distribution, Tensor]:
        """The policy's distribution, and values ``[...]``."""
        if isinstance(self.value, ValueFunction):
            return self.actor(inputs), self.value(inputs)
        features = self.actor.encode(inputs)
        return self.actor.read(features, inputs), self.value(features)

    def values(self, inputs: Inputs) -> Tensor:
        """Values ``[...]``."""
        values: Tensor = self.value(inputs if isinstance(self.value, ValueFunction) else self.actor.encode(inputs))
        return values
