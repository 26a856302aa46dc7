"""Advantage-Weighted Regression, for continuous and for discrete actions."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    Inputs,
    Iterations,
    Loss,
    PolicyConfig,
    Regression,
    SharedFields,
    Spec,
    StochasticActor,
    Tails,
    config,
    field,
    weighted_mean,
)
from birl.errors import ConfigError
from birl.losses import backward_recursion, shared
from birl.models import (
    DefaultEncoderFactory,
    EncoderFactory,
    NormalFactory,
    ValueFunction,
    policy_of,
)
from birl.optimizers import OptimizerFactory, SGDFactory

_POLICY = NormalFactory(tanh_mean=True, log_std_range=(-5.0, 2.0))


def _momentum() -> OptimizerFactory:
    return SGDFactory(momentum=0.9)


@config
class AWRConfig(PolicyConfig):
    """Advantage-Weighted Regression (Peng et al. 2019, arXiv:1910.00177): two regressions in each iteration.

    A step of ``fit`` is one iteration. ``batch_size`` states are drawn, and their TD(lambda) returns are computed from
    the rest of their episodes. Then the state-value function is fitted to the returns in ``n_critic_updates``
    minibatches of ``batch_size_per_update`` states, and the policy to the weighted actions in ``n_actor_updates``
    minibatches. ``fit_online`` runs one iteration every ``update_interval`` steps. The paper uses about 2048, with a
    buffer of the newest 50,000 steps.

    The policy is a Gaussian with a bounded mean and a learned, state-independent standard deviation. Encoders must be
    feed-forward.

    Logs ``critic_loss``, ``actor_loss`` and ``weights`` (their mean), averaged over the minibatches.

    Differs from d3rlpy (versions before 2): advantages use the value function after its regression, as in algorithm 1,
    and are not standardised, so that ``beta`` is in units of returns; each pass over the states is shuffled again, and
    the number of minibatches is exactly the configured one; the optimiser factories set the momentum.
    """

    batch_size: int = field(2048, "Number of states whose returns one iteration learns from.", low=1)
    actor_learning_rate: float = 5e-5
    critic_learning_rate: float = 1e-4
    actor_optim_factory: OptimizerFactory = field(_momentum)
    critic_optim_factory: OptimizerFactory = field(_momentum)
    critic_encoder_factory: EncoderFactory = field(
        DefaultEncoderFactory, "Encoder of the state-value function, which is AWR's only critic."
    )
    batch_size_per_update: int = field(
        256, "Number of states in each minibatch of an iteration, at most `batch_size`.", low=1
    )
    n_actor_updates: int = field(1000, "Number of the policy's minibatches in an iteration.", low=1)
    n_critic_updates: int = field(200, "Number of the state-value function's minibatches in an iteration.", low=1)
    lam: float = field(0.95, "Lambda of the TD(lambda) returns: 0 for one step, 1 for whole episodes.", low=0, high=1)
    beta: float = field(0.05, "Temperature of the advantage weights, in units of the return.", above=0)
    max_weight: float = field(20.0, like=SharedFields)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size_per_update > self.batch_size:
            raise ConfigError(
                f"{type(self).__name__}.batch_size_per_update is {self.batch_size_per_update}; it must be at most the "
                f"batch_size of {self.batch_size} states that minibatches are made of: lower it, or raise batch_size"
            )


@config
class DiscreteAWRConfig(AWRConfig):
    """Advantage-Weighted Regression (Peng et al. 2019, arXiv:1910.00177) for discrete actions.

    As AWR, with a categorical policy, which has a distribution for each choice in ``MultiDiscrete`` action spaces.

    Logs ``critic_loss``, ``actor_loss`` and ``weights`` (their mean), averaged over the minibatches.
    """


class AWRNets(nn.Module):
    """The policy and the state-value function."""

    def __init__(self, spec: Spec, cfg: AWRConfig) -> None:
        super().__init__()
        self.actor = policy_of(spec, cfg.actor_encoder_factory, _POLICY)
        self.value = ValueFunction(spec, cfg.critic_encoder_factory)


def lambda_returns(value: Tensor, reward: Tensor, discount: Tensor, step: Tensor, lam: float, longest: int) -> Tensor:
    """Compute TD(lambda) returns of consecutive rows: ``R_t = r_t + discount_t ((1 - lam) V_{t+1} + lam R_{t+1})``.

    A closing row after each episode holds the state after its last step, where ``R = V``.

    Args:
        value: ``[R]``, of each row's state.
        reward: ``[R]``.
        discount: ``[R]``: ``gamma * (1 - terminated)``.
        step: ``[R]``: 1 for steps, 0 for closing rows.
        lam: ``lambda`` in ``[0, 1]``.
        longest: number of steps in the longest episode.

    Returns:
        Returns ``[R]``.
    """
    next_value = F.pad(value[1:], (0, 1))
    known = torch.where(step > 0, reward + discount * (1 - lam) * next_value, value)
    decay = discount * lam * step
    return backward_recursion(known.unsqueeze(-1), decay.unsqueeze(-1), longest + 1).squeeze(-1)


def value_loss(nets: AWRNets, batch: Batch, cfg: AWRConfig) -> Loss:
    """Algorithm 1, line 5: squared distance to the returns."""
    return Loss(weighted_mean((batch.extra["return"] - nets.value(batch.inputs)).square(), batch.weight))


def advantage(nets: AWRNets, batch: Batch) -> Tensor:
    """Return ``R - V(s)`` ``[B]`` with the current value function, which is constant while the policy learns."""
    return shared(batch, "advantage", lambda: batch.extra["return"] - nets.value(batch.inputs))


def actor_loss(nets: AWRNets, batch: Batch, cfg: AWRConfig) -> Loss:
    """Algorithm 1, line 6: log-likelihood weighted with ``exp((R - V(s)) / beta)``, at most ``max_weight``."""
    weight = (advantage(nets, batch) / cfg.beta).exp().clamp(max=cfg.max_weight)
    log_prob = nets.actor(batch.inputs).log_prob(batch.action)
    return Loss(-weighted_mean(weight * log_prob, batch.weight), {"weights": weighted_mean(weight, batch.weight)})


def state_value(nets: AWRNets, inputs: Inputs, action: Tensor) -> Tensor:
    """Return ``V(s)`` ``[B]``, which does not depend on the action."""
    return nets.value(inputs)


def iteration_returns(nets: AWRNets, tails: Tails, cfg: AWRConfig) -> Tensor:
    """Compute TD(lambda) returns ``[R]`` under the current value function."""
    values = torch.cat([nets.value(inputs) for inputs in tails.observations])
    return lambda_returns(values, tails.reward, tails.discount, tails.step, cfg.lam, tails.longest)


def with_advantage(nets: AWRNets, batch: Batch) -> Batch:
    """Compute the advantage with the value function after its regression, as in algorithm 1."""
    return replace(batch, extra={**batch.extra, "advantage": advantage(nets, batch)})


@final
class AWR(Algorithm[AWRConfig, AWRNets]):
    """See `AWRConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Iterations(
        iteration_returns,
        (Regression("critic", "n_critic_updates"), Regression("actor", "n_actor_updates", with_advantage)),
    )
    acts = StochasticActor(value=state_value, values_states=True, clipped=True)
    steps = (Gradient("critic", value_loss, of=("value",)), Gradient("actor", actor_loss))


@final
class DiscreteAWR(Algorithm[DiscreteAWRConfig, AWRNets]):
    """See `DiscreteAWRConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = AWR.learns_from
    acts = StochasticActor(value=state_value, values_states=True)
    steps = AWR.steps
