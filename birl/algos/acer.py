"""Actor-critic with experience replay, for discrete and for continuous actions."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, final

import torch
from torch import Tensor

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    AlgorithmConfig,
    Batch,
    Gradient,
    Inputs,
    Loss,
    NetworkConfig,
    PolicyConfig,
    Polyak,
    Replays,
    Spec,
    StochasticActor,
    config,
    field,
    weighted_mean,
)
from birl.algos.a3c import A3CConfig
from birl.algos.ppo import PPOConfig
from birl.errors import ConfigError
from birl.losses import last_steps, old_policy, retrace
from birl.models import (
    AdvantageFunction,
    CategoricalPolicy,
    DefaultEncoderFactory,
    DiscreteQFunction,
    DistributionFactory,
    EncoderFactory,
    MeanQFunctionFactory,
    NormalFactory,
    PolicyAndCritics,
    PolicyAndValue,
    VectorEncoderFactory,
    is_recurrent,
)
from birl.models.distributions import Categorical, Distribution
from birl.optimizers import OptimizerFactory, RMSpropFactory


def _rmsprop() -> OptimizerFactory:
    return RMSpropFactory(alpha=0.99, eps=4e-3, centered=False, eps_inside_root=True, clip_grad_norm=40.0)


@config
class ReplayedPolicyConfig(AlgorithmConfig):
    """Fields of actor-critics that learn from their newest rollouts and from replayed ones."""

    batch_size: int = field(
        16, "Number of sequences, of `rollout_length` steps, in an update from the replay buffer.", low=1
    )
    learning_rate: float = field(7e-4, like=NetworkConfig)
    optim_factory: OptimizerFactory = field(_rmsprop, like=NetworkConfig)
    actor_encoder_factory: EncoderFactory = field(DefaultEncoderFactory, like=PolicyConfig)
    rollout_length: int = field(20, like=PPOConfig)
    replay_ratio: float = field(
        4.0, "Mean number of updates from the replay buffer after each rollout; 0 for none, and no buffer.", low=0
    )
    replay_start: int = field(10_000, "Number of stored steps from which older ones are replayed.", low=0)
    value_coefficient: float = field(0.5, like=PPOConfig)
    entropy_coefficient: float = field(0.001, like=PPOConfig)


@config
class DiscreteACERConfig(ReplayedPolicyConfig):
    """Actor-critic with experience replay (Wang et al. 2017, arXiv:1611.01224, algorithm 2).

    Each rollout has ``rollout_length`` steps from each environment. It is followed by one update from the rollout and
    then by updates from replayed sequences; their number is drawn from a Poisson distribution. The replay buffer stores
    each step with the policy that chose its action. With ``fit_online(env, workers=16)`` each of 16 processes has a
    buffer of its own, as in the paper; without ``workers`` all environments share one.

    Differs from the paper: losses are means over steps, not sums; the trust region is computed in the logits, not in
        the probabilities; by default the policy and the Q-function have separate networks. For the paper's single
        network with two heads, pass ``critic_encoder_factory=None``.

    Logs ``loss``, ``policy_loss``, ``value_loss``, ``entropy`` and ``average_kl``.
    """

    critic_encoder_factory: EncoderFactory | None = field(
        DefaultEncoderFactory,
        "Encoder of the Q-function. If `None`, it reads the features of the policy's, which then learns from both.",
    )
    truncation: float = field(
        10.0, "Largest importance weight; the policy's own actions correct for the truncation.", above=0
    )
    trust_region: float = field(
        1.0, "Largest divergence, in nats and to first order, from the average policy (delta of the paper).", above=0
    )
    tau: float = field(
        0.01, "Share of the newest policy in each update of the average policy (1 - alpha of the paper).", low=0, high=1
    )
    end_with_episode: bool = field(False, like=A3CConfig)


class DiscreteACERNets(PolicyAndCritics):
    """The policy, its slowly moving average, and the Q-function."""

    def __init__(self, spec: Spec, cfg: DiscreteACERConfig) -> None:
        own = cfg.critic_encoder_factory
        super().__init__(spec, CategoricalPolicy(spec, cfg.actor_encoder_factory), one_encoder=own is None)
        self.critic = DiscreteQFunction(self.critic_spec, own or VectorEncoderFactory([]), MeanQFunctionFactory())
        self.actor_average = deepcopy(self.actor)


def action_value(nets: DiscreteACERNets, inputs: Inputs, action: Tensor) -> Tensor:
    """Return Q-values ``[...]`` of actions."""
    return nets.critic(nets.critic_inputs(inputs), action).mean()[0]


def trusted_gradient(
    policy: Any, average: Any, objective: Callable[[Any], Tensor], delta: float, fixed: bool = False
) -> Tensor:
    """Project an objective's gradient so that the policy stays near the average policy (eqs. 11-12).

    Args:
        policy, average: distributions over the same actions.
        objective: ``distribution -> [...]``, to be maximised; ``distribution`` is of the same kind as ``policy``.
        delta: bound on the change of the divergence ``KL(average || policy)``.
        fixed: whether the second half of the parameters, a standard deviation, is fixed and left out of the gradient.

    Returns:
        ``z`` ``[..., P]``, without a history: ``(policy.parameters() * z).sum(-1)`` has it as its gradient.
    """
    given = policy.parameters().detach()
    learned, rest = given.chunk(2, -1) if fixed else (given, given[..., :0])

    def gradient(function: Callable[[Any], Tensor]) -> Tensor:
        phi = learned.clone().requires_grad_()  # a new leaf for each: a compiled update cannot share a graph
        own = policy.with_parameters(torch.cat((phi, rest), -1))
        return torch.autograd.grad(function(own).sum(), phi)[0]

    g, k = gradient(objective), gradient(average.kl)
    excess = ((k * g).sum(-1, keepdim=True) - delta).clamp(min=0)
    z = g - excess / k.square().sum(-1, keepdim=True).clamp(min=torch.finfo(k.dtype).tiny) * k
    return torch.cat((z, torch.zeros_like(rest)), -1)


def discrete_loss(nets: DiscreteACERNets, batch: Batch, cfg: DiscreteACERConfig) -> Loss:
    """Algorithm 2: the policy by eqs. 9, 11 and 12, the Q-function by eqs. 5 and 6."""
    policy, read = nets.policy_and_inputs(batch.inputs)
    q = nets.critic(read).mean()[0]
    taken = q.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        old, average = old_policy(policy, batch), nets.actor_average(batch.inputs)
        value = policy.expectation(q)
        next_policy, next_read = nets.policy_and_inputs(batch.next_inputs)
        next_value = next_policy.expectation(nets.critic(next_read).mean()[0])
        ratio = (policy.log_prob(batch.action) - old.log_prob(batch.action)).exp()
        ended = last_steps(batch.weight, batch.is_first)
        target = retrace(batch.reward, taken, next_value, batch.discount, ended, ratio.clamp(max=1))
        advantage = ratio.clamp(max=cfg.truncation) * (target - value)
        # [1 - c / rho]_+ pi = [pi - c mu]_+, the weight of each action in the second term of eq. 9
        correction = (policy.probs - cfg.truncation * old.probs).clamp(min=0) * (q - value.unsqueeze(-1))

    def objective(own: Categorical) -> Tensor:
        return advantage * own.log_prob(batch.action) + (correction * own.log_probs).sum(-1)

    z = trusted_gradient(policy, average, objective, cfg.trust_region)
    return _total(batch, cfg, policy, average, z, weighted_mean((target - taken).square(), batch.weight))


def _total(
    batch: Batch, cfg: ReplayedPolicyConfig, policy: Distribution, average: Distribution, z: Tensor, value_loss: Tensor
) -> Loss:
    """Add up the loss. The entropy bonus is outside the trust region."""
    policy_loss = -weighted_mean((policy.parameters() * z).sum(-1), batch.weight)
    entropy = weighted_mean(policy.entropy(), batch.weight)
    with torch.no_grad():
        divergence = weighted_mean(average.kl(policy), batch.weight)
    return Loss(
        policy_loss + cfg.value_coefficient * value_loss - cfg.entropy_coefficient * entropy,
        {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "average_kl": divergence},
    )


@final
class DiscreteACER(Algorithm[DiscreteACERConfig, DiscreteACERNets]):
    """See `DiscreteACERConfig`."""

    actions = ActionSpace.DISCRETE
    learns_from = Replays()
    acts = StochasticActor(value=action_value, stateful_networks=("critic",))
    steps = (
        Gradient("policy", discrete_loss, of=("actor", "critic"), optimizer="", metric="loss"),
        Polyak("actor", "actor_average"),
    )


@config
class ACERConfig(DiscreteACERConfig):
    """Actor-critic with experience replay for continuous actions (Wang et al. 2017, arXiv:1611.01224, algorithm 3).

    As `DiscreteACERConfig`, with a stochastic dueling network: ``Q(s, a) = V(s) + A(s, a) - mean A(s, u)`` over
    ``n_samples`` actions ``u`` of the policy. Actions come from a Gaussian, by default with a fixed standard deviation,
    and are clipped to the environment's bounds.

    Differs from the paper: losses are means over steps, not sums; each rollout is used for an update before older ones
        are replayed, whereas the paper's experiments with continuous actions only replay; by default the policy, the
        values and the advantages have separate networks. With ``value_encoder_factory=None`` they are heads on one
        encoder.

    Logs ``loss``, ``policy_loss``, ``value_loss``, ``entropy`` and ``average_kl``.
    """

    critic_encoder_factory: EncoderFactory = field(
        DefaultEncoderFactory, "Encoder of the advantages, which reads states, or features of states, and actions."
    )
    value_encoder_factory: EncoderFactory | None = field(
        DefaultEncoderFactory,
        "Encoder of the state values. If `None`, they and the advantages read the features of the policy's encoder, "
        "which then learns from all losses.",
    )
    distribution_factory: DistributionFactory = field(
        lambda: NormalFactory(std="fixed", initial_std=0.3), like=PPOConfig
    )
    truncation: float = 5.0
    tau: float = 0.005
    n_samples: int = field(
        5, "Number of actions whose mean advantage is subtracted from the advantage of an action.", low=1
    )


class ACERNets(PolicyAndValue):
    """The policy, its slowly moving average, and the parts of a stochastic dueling network: values and advantages."""

    def __init__(self, spec: Spec, cfg: ACERConfig) -> None:
        super().__init__(spec, cfg)
        self.advantage = AdvantageFunction(self.critic_spec, cfg.critic_encoder_factory)
        if self.one_encoder and is_recurrent(self.advantage):
            raise ConfigError(
                f"critic_encoder_factory is {cfg.critic_encoder_factory!r:.80}, but with value_encoder_factory=None it "
                "reads the features of the policy's encoder, which remembers for both: give a feed-forward encoder"
            )
        self.actor_average = deepcopy(self.actor)


def loss(nets: ACERNets, batch: Batch, cfg: ACERConfig) -> Loss:
    """Algorithm 3: the policy by eqs. 15 and 16, the critic by eqs. 5, 13 and 14."""
    policy, read = nets.policy_and_inputs(batch.inputs)
    value = nets.value(read)
    with torch.no_grad():
        old, average = old_policy(policy, batch), nets.actor_average(batch.inputs)
        other = policy.sample()[0]  # a'
        sampled = policy.sample(cfg.n_samples)[0]  # u
    actions = torch.cat((torch.stack((batch.action, other)), sampled))
    advantages = nets.advantage(read, actions)
    taken, of_other = value + advantages[:2] - advantages[2:].mean(0)  # eq. 13
    with torch.no_grad():
        ratio = (policy.log_prob(batch.action) - old.log_prob(batch.action)).exp()
        other_ratio = (policy.log_prob(other) - old.log_prob(other)).exp()
        traces = ratio.pow(1 / batch.action.shape[-1]).clamp(max=1)
        ended = last_steps(batch.weight, batch.is_first)
        steps = batch.reward, taken, nets.values(batch.next_inputs), batch.discount, ended
        target, opc = retrace(*steps, traces), retrace(*steps, 1.0)
        value_target = ratio.clamp(max=1) * (target - taken) + value  # eq. 14
        advantage = ratio.clamp(max=cfg.truncation) * (opc - value)
        correction = (1 - cfg.truncation / other_ratio).clamp(min=0) * (of_other - value)

    def objective(own: Distribution) -> Tensor:
        return advantage * own.log_prob(batch.action) + correction * own.log_prob(other)

    fixed = getattr(cfg.distribution_factory, "std", "") == "fixed"
    z = trusted_gradient(policy, average, objective, cfg.trust_region, fixed)
    error = (target - taken).square() + (value_target - value).square()
    return _total(batch, cfg, policy, average, z, weighted_mean(error, batch.weight))


@final
class ACER(Algorithm[ACERConfig, ACERNets]):
    """See `ACERConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Replays()
    acts = StochasticActor(stateful_networks=("value", "advantage"), bounded=False, clipped=True)
    steps = (
        Gradient("policy", loss, of=("actor", "value", "advantage"), optimizer="", metric="loss"),
        Polyak("actor", "actor_average"),
    )
