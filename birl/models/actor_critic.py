"""Networks of many algorithms: a policy with Q-functions, or a policy with other critics."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Protocol

from torch import Tensor, nn

from birl.models.distribution_factories import DistributionFactory
from birl.models.distributions import Distribution
from birl.models.encoders import EncoderFactory, VectorEncoderFactory
from birl.models.policies import StochasticPolicy, policy_of
from birl.models.q_functions import ContinuousQFunction, QFunctionFactory
from birl.models.values import ValueFunction
from birl.spaces.specs import Spec
from birl.types import Inputs


class CriticFields(Protocol):
    """Fields of a configuration that Q-functions are built from; see `birl.config.ActorCriticConfig`."""

    @property
    def critic_encoder_factory(self) -> EncoderFactory: ...
    @property
    def q_func_factory(self) -> QFunctionFactory: ...
    @property
    def n_critics(self) -> int: ...


class SoftFields(CriticFields, Protocol):
    """Fields of a configuration with a learned temperature; see `birl.config.TemperatureConfig`."""

    @property
    def actor_encoder_factory(self) -> EncoderFactory: ...
    @property
    def initial_temperature(self) -> float: ...
    @property
    def target_entropy(self) -> float | None: ...


class PolicyFields(Protocol):
    """Fields of a configuration that a policy with a value function is built from."""

    @property
    def actor_encoder_factory(self) -> EncoderFactory: ...
    @property
    def value_encoder_factory(self) -> EncoderFactory | None: ...
    @property
    def distribution_factory(self) -> DistributionFactory: ...


class ActorCriticNets(nn.Module):
    """A policy, Q-functions, and the targets of both.

    Args:
        spec: shapes of observations and actions.
        cfg: configuration with the fields of `birl.config.ActorCriticConfig`.
        actor: the policy.
    """

    def __init__(self, spec: Spec, cfg: CriticFields, actor: nn.Module) -> None:
        super().__init__()
        self.actor, self.actor_target = actor, deepcopy(actor)
        self.critic = ContinuousQFunction(spec, cfg.critic_encoder_factory, cfg.q_func_factory, cfg.n_critics)
        self.critic_target = deepcopy(self.critic)


class PolicyAndCritics(nn.Module):
    """A policy and critics, which read observations or the features of the policy's encoder.

    A shared encoder belongs to the policy. The network that acts, recurrent states and exports are therefore the same
    in both forms, and a gradient step of all networks trains every parameter once. Losses call `policy_and_inputs`,
    which encodes observations once.

    Args:
        spec: shapes of observations and actions.
        actor: the policy.
        one_encoder: whether the critics, built for `critic_spec`, read the policy's features.
    """

    def __init__(self, spec: Spec, actor: StochasticPolicy, *, one_encoder: bool) -> None:
        super().__init__()
        self.actor, self.one_encoder = actor, one_encoder
        self.critic_spec = Spec((actor.feature_size,), spec.actions) if one_encoder else spec

    def policy_and_inputs(self, inputs: Inputs) -> tuple[Any, Inputs]:
        """Return the policy's distribution, and the inputs of the critics."""
        if not self.one_encoder:
            return self.actor(inputs), inputs
        features = self.actor.encode(inputs)
        return self.actor.read(features, inputs), Inputs(features)

    def critic_inputs(self, inputs: Inputs) -> Inputs:
        """Return the inputs of the critics."""
        return Inputs(self.actor.encode(inputs)) if self.one_encoder else inputs


class PolicyAndValue(PolicyAndCritics):
    """A policy and a state-value function, with separate encoders or a shared one.

    With a shared encoder the value function is a linear layer on its features.

    Args:
        spec: shapes of observations and actions.
        cfg: configuration with ``actor_encoder_factory``, ``distribution_factory`` and ``value_encoder_factory``, which
            is ``None`` for a shared encoder.
    """

    def __init__(self, spec: Spec, cfg: PolicyFields) -> None:
        own = cfg.value_encoder_factory
        actor = policy_of(spec, cfg.actor_encoder_factory, cfg.distribution_factory)
        super().__init__(spec, actor, one_encoder=own is None)
        self.value = ValueFunction(self.critic_spec, own or VectorEncoderFactory([]))

    def make_orthogonal(self) -> None:
        """Initialise weights orthogonally; see `LinearNetwork.make_orthogonal`.

        A policy that starts close to uniform explores (Andrychowicz et al. 2020, arXiv:2006.05990, section 3.2).
        """
        self.actor.make_orthogonal(0.01)
        self.value.make_orthogonal(1.0)

    def both(self, inputs: Inputs) -> tuple[Distribution, Tensor]:
        """Return the policy's distribution, and values ``[...]``."""
        policy, read = self.policy_and_inputs(inputs)
        return policy, self.value(read)

    def values(self, inputs: Inputs) -> Tensor:
        """Return values ``[...]``."""
        values: Tensor = self.value(self.critic_inputs(inputs))
        return values
