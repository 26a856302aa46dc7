"""Maximum a Posteriori Policy Optimisation for discrete actions."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from birl.algorithm import (
    ActionSpace,
    ActorCriticConfig,
    Algorithm,
    Batch,
    Gradient,
    Loss,
    PolicyConfig,
    SharedFields,
    Spec,
    StochasticActor,
    TemperatureConfig,
    Transitions,
    ValueConfig,
    config,
    field,
    q_value,
    weighted_mean,
)
from birl.algos.crr import CRRConfig
from birl.algos.mpo import TARGETS, MPOConfig, clipped
from birl.losses import shared, td_loss
from birl.models import CategoricalPolicy, DiscreteQFunction, MeanQFunctionFactory, QFunctionFactory, Returns, Scalar
from birl.models.distributions import Categorical
from birl.optimizers import AdamFactory, OptimizerFactory


@config
class DiscreteMPOConfig(PolicyConfig):
    """Maximum a Posteriori Policy Optimisation for discrete actions (Abdolmaleki et al. 2018, arXiv:1806.06920).

    As `MPO`, with sums over all actions instead of samples. The improved policy, whose probabilities are those of the
    target policy times ``exp(Q / eta)``, stays within a divergence of ``epsilon`` from the target policy. The policy is
    fitted to it, within a divergence of ``epsilon_policy``. In ``MultiDiscrete`` action spaces each choice has a
    distribution of its own, and critics branch as in `DQN`; divergences are summed over the choices.

    Logs ``critic_loss``, ``q_value``, ``actor_loss``, ``dual_loss``, ``temp`` (``eta``) and ``kl``.

    Differs from the paper: see `MPOConfig`. The bounds and the initial temperature and multiplier are those of Acme
    (Hoffman et al. 2020, arXiv:2006.00979).
    """

    actor_learning_rate: float = 1e-4
    critic_learning_rate: float = 1e-4
    actor_optim_factory: OptimizerFactory = field(clipped)
    critic_optim_factory: OptimizerFactory = field(clipped)
    dual_learning_rate: float = field(1e-2, like=MPOConfig)
    dual_optim_factory: OptimizerFactory = field(AdamFactory, like=MPOConfig)
    q_func_factory: QFunctionFactory = field(MeanQFunctionFactory, like=ValueConfig)
    n_critics: int = field(1, like=ValueConfig)
    target_update_type: str = field("hard", like=CRRConfig)
    target_update_interval: int = field(100, like=SharedFields)
    tau: float = field(0.005, like=ActorCriticConfig)
    epsilon: float = field(0.1, like=MPOConfig)
    epsilon_policy: float = field(2.5e-3, "Bound of the policy's divergence from the target policy, in nats.", above=0)
    initial_temperature: float = field(3.0, like=TemperatureConfig)
    initial_alpha: float = field(3.0, "Multiplier of the policy's divergence at the start.", above=0)


class DiscreteMPONets(nn.Module):
    """Networks of discrete MPO."""

    def __init__(self, spec: Spec, cfg: DiscreteMPOConfig) -> None:
        super().__init__()
        self.actor = CategoricalPolicy(spec, cfg.actor_encoder_factory)
        self.actor_target = deepcopy(self.actor)
        self.critic = DiscreteQFunction(spec, cfg.critic_encoder_factory, cfg.q_func_factory, cfg.n_critics)
        self.critic_target = deepcopy(self.critic)
        self.temperature = Scalar(cfg.initial_temperature, "softplus")
        self.alpha = Scalar(cfg.initial_alpha, "softplus")


def critic_loss(nets: DiscreteMPONets, batch: Batch, cfg: DiscreteMPOConfig) -> Loss:
    """``y = r + discount * sum_a' pi'(a'|s') min_j Q'_j(s', a')``; distributional critics use the mixture."""
    with torch.no_grad():
        policy = nets.actor_target(batch.next_inputs)
        target = nets.critic_target(batch.next_inputs).min().mixture(policy.probs)
        target = target.backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


@torch.no_grad()
def values(nets: DiscreteMPONets, batch: Batch) -> Tensor:
    """Return ``Q'(s, a)``, averaged over the ensemble; for several choices, the share of each in the joint value."""
    returns: Returns = nets.critic_target(batch.inputs)
    return returns.policy(1.0).logits


def improved(target: Categorical, value: Tensor, temperature: Tensor) -> Categorical:
    """Return the policy whose logits are ``log pi'(a|s) + Q'(s, a) / eta``."""
    return replace(target, logits=target.log_probs + value / temperature)


def actor_loss(nets: DiscreteMPONets, batch: Batch, cfg: DiscreteMPOConfig) -> Loss:
    """``-E_s[sum_a w(a|s) log pi(a|s)] + alpha E_s[KL(pi'(.|s) || pi(.|s))]`` (1812.02256 sections 4.1 and 4.2).

    Here ``w`` is proportional to ``pi'(a|s) exp(Q'(s, a) / eta)``; a prime marks targets.
    """
    policy, value = nets.actor(batch.inputs), values(nets, batch)
    with torch.no_grad():
        target: Categorical = nets.actor_target(batch.inputs)
        weight = improved(target, value, nets.temperature())
    kl = weighted_mean(target.kl(policy), batch.weight)
    fit = weighted_mean(weight.expectation(policy.log_probs), batch.weight)
    return Loss(nets.alpha().detach() * kl - fit, {"kl": kl}, {"values": value, "divergence": kl})


def dual_loss(nets: DiscreteMPONets, batch: Batch, cfg: DiscreteMPOConfig) -> Loss:
    """``eta epsilon + eta E_s[log sum_a pi'(a|s) exp(Q'(s, a) / eta)] + alpha (epsilon_policy - E_s[KL])``.

    Sections 4.1 and 4.2 of 1812.02256.
    """
    temperature = nets.temperature()
    with torch.no_grad():
        target: Categorical = nets.actor_target(batch.inputs)
    value = shared(batch, "values", lambda: values(nets, batch))
    kl = shared(batch, "divergence", lambda: weighted_mean(target.kl(nets.actor(batch.inputs)), batch.weight))
    mass = weighted_mean(improved(target, value, temperature).log_partition(), batch.weight)
    loss = temperature * (cfg.epsilon + mass) + nets.alpha() * (cfg.epsilon_policy - kl)
    return Loss(loss, {"temp": temperature})


@final
class DiscreteMPO(Algorithm[DiscreteMPOConfig, DiscreteMPONets]):
    """See `DiscreteMPOConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Transitions()
    acts = StochasticActor(value=q_value)
    steps = (
        Gradient("critic", critic_loss),
        Gradient("actor", actor_loss),
        Gradient("dual", dual_loss, of=("temperature", "alpha")),
        *TARGETS,
    )
