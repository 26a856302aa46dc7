"""Batch-Constrained Q-learning: considers only actions that the data's policy could have taken."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor, nn

from birl.algorithm import (
    ActionSpace,
    ActorCriticConfig,
    Algorithm,
    Batch,
    Gradient,
    ImitatorConfig,
    Inputs,
    Loss,
    Policy,
    Polyak,
    SharedFields,
    Spec,
    Transitions,
    When,
    best_of,
    config,
    field,
    q_value,
    weighted_mean,
)
from birl.algos.dqn import TARGET, DQNConfig, DQNNets
from birl.losses import td_loss, vae_loss
from birl.models import (
    ActorCriticNets,
    CategoricalPolicy,
    ResidualPolicy,
    Returns,
    VAEDecoder,
    VAEEncoder,
    eval_mode,
    random_latents,
)
from birl.models.distributions import Categorical
from birl.models.policies import categorical
from birl.types import Networks

DELAYED = When(every="update_actor_interval", after="rl_start_step")


@config
class BCQConfig(ActorCriticConfig, ImitatorConfig):
    """Batch-Constrained Q-learning for continuous actions (Fujimoto et al. 2019, arXiv:1812.02900).

    A variational auto-encoder imitates the data's actions, the policy perturbs an imitated action by at most
    ``action_flexibility``, and the best of ``n_action_samples`` such actions is taken. Targets choose it with the
    target Q-functions, the acting policy with the first Q-function. Random latents are clipped to [-0.5, 0.5].

    The greedy policy uses the same latents in all states. They are drawn when the networks are built and saved with
    them, so that ``predict`` is deterministic and exported policies give the same actions. ``sample_action`` draws new
    latents for each state, as in the paper.

    Logs ``critic_loss``, ``q_value``, ``actor_loss`` and ``vae_loss``.

    Differs from d3rlpy: the greedy policy is not random; ``update_actor_interval`` has an effect; the auto-encoder's
        reconstruction error is computed after its decoder's tanh, in [-1, 1], and the target policy starts as a copy of
        the policy.
    """

    batch_size: int = 100
    actor_learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    update_actor_interval: int = field(1, like=SharedFields)
    n_action_samples: int = field(100, "Number of imitated actions from which the best one is taken.", low=1)
    n_target_samples: int | None = field(
        None, "Number of imitated actions from which targets take the best one; `n_action_samples` if `None`.", low=1
    )
    action_flexibility: float = field(0.05, like=SharedFields)
    rl_start_step: int = field(0, "Number of updates before policy and Q-functions begin to learn.", low=0)
    beta: float = field(0.5, like=SharedFields)


class BCQNets(ActorCriticNets):
    """Networks of BCQ, and the latents ``[n_action_samples, L]`` of the greedy policy."""

    latents: Tensor

    def __init__(self, spec: Spec, cfg: BCQConfig) -> None:
        super().__init__(spec, cfg, ResidualPolicy(spec, cfg.actor_encoder_factory, cfg.action_flexibility))
        latent_size = 2 * spec.actions.size  # as in the paper
        self.vae_encoder = VAEEncoder(spec, cfg.imitator_encoder_factory, latent_size)
        self.vae_decoder = VAEDecoder(spec, cfg.imitator_encoder_factory, latent_size)
        self.register_buffer("latents", random_latents((cfg.n_action_samples, latent_size)))


def imitator_loss(nets: Networks, batch: Batch, cfg: Any) -> Loss:
    """Compute the auto-encoder's loss: `birl.losses.vae_loss` with ``beta``."""
    return vae_loss(nets.vae_encoder, nets.vae_decoder, batch, cfg.beta)


def critic_loss(nets: BCQNets, batch: Batch, cfg: BCQConfig) -> Loss:
    """Eq. 13: ``y = r + discount * max_i [lam * min_j Q'_j(s', a_i) + (1 - lam) * max_j Q'_j(s', a_i)]``.

    The ``a_i`` are imitated actions, perturbed by the target policy. With quantiles or atoms the best action is chosen
    by expected returns, and the target mixes the ensemble members' return distributions for this action.
    """
    with torch.no_grad():
        count = cfg.n_action_samples if cfg.n_target_samples is None else cfg.n_target_samples
        action = nets.actor_target(batch.next_inputs, nets.vae_decoder.sample(batch.next_inputs, count))
        best = best_of(action, nets.critic_target(batch.next_inputs, action).blend(cfg.lam).mean())
        target = nets.critic_target(batch.next_inputs, best).blend(cfg.lam).backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


def actor_loss(nets: BCQNets, batch: Batch, cfg: BCQConfig) -> Loss:
    """Eq. 12: ``-E[Q_1(s, a + xi(s, a))]`` with an imitated action ``a`` for each state."""
    action = nets.actor(batch.inputs, nets.vae_decoder.sample(batch.inputs))
    return Loss(-weighted_mean(nets.critic.first(batch.inputs, action).mean()[0], batch.weight))


def best_action(nets: BCQNets, inputs: Inputs, proposed: Tensor) -> Tensor:
    """Perturb the ``proposed`` actions ``[n, ..., A]``, and return the best by the first Q-function (eq. 11)."""
    action = nets.actor(inputs, proposed)
    return best_of(action, nets.critic(inputs, action).mean()[0])


def greedy_action(nets: BCQNets, inputs: Inputs) -> Tensor:
    """Return the best action of the fixed latents."""
    return best_action(nets, inputs, nets.vae_decoder(inputs, nets.latents.unsqueeze(1)))


def random_action(nets: BCQNets, inputs: Inputs) -> Tensor:
    """Return the best action of latents drawn for each state."""
    return best_action(nets, inputs, nets.vae_decoder.sample(inputs, len(nets.latents)))


@final
class BCQ(Algorithm[BCQConfig, BCQNets]):
    """See `BCQConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = Policy(greedy_action, random_action, q_value, stateful_networks=("critic", "vae_decoder"))
    steps = (
        Gradient("vae", imitator_loss, ("vae_encoder", "vae_decoder"), optimizer="imitator"),
        Gradient("critic", critic_loss, when=When(after="rl_start_step")),
        Gradient("actor", actor_loss, when=DELAYED),
        Polyak("critic", "critic_target", when=DELAYED),
        Polyak("actor", "actor_target", when=DELAYED),
    )


@config
class DiscreteBCQConfig(DQNConfig):
    """Batch-Constrained Q-learning for discrete actions (Fujimoto et al. 2019, arXiv:1910.01708), on Double DQN.

    An imitator learns the data's policy ``G``; an action is considered if ``G(a|s) >= action_flexibility * max G``.
    With ``action_flexibility=0`` this is Double DQN, with 1 behaviour cloning. With ``share_encoder`` the imitator is a
    linear layer on the features of the first Q-function, whose encoder then learns from both losses.

    In ``MultiDiscrete`` action spaces critics branch as in `DQN`, the imitator has a distribution for each choice, and
    the threshold holds for each choice. So an action may combine options that the data combine rarely or never; its
    value assumes that the effects of the choices add up (arXiv:2305.01738).

    Logs ``loss``, ``q_value``, ``td_loss`` and ``imitator_loss``.

    Differs from d3rlpy: an action whose probability is exactly at the threshold is considered, so that the most
    probable one always is; the penalty is on the imitator's outputs, as in the authors' code (d3rlpy: on their
    log-softmax).
    """

    action_flexibility: float = field(
        0.3,
        "Smallest probability of an action that is considered, relative to the most probable one.",
        low=0,
        high=1,
    )
    beta: float = field(0.5, "Weight of the penalty on large logits of the imitator.", low=0)
    share_encoder: bool = field(True, "Whether the imitator shares the encoder of the first Q-function.")


class ImitatorHead(nn.Module):
    """The imitator that shares the Q-function's encoder."""

    def __init__(self, feature_size: int, spec: Spec) -> None:
        super().__init__()
        self.linear = nn.Linear(feature_size, spec.actions.size)
        self.spec = spec

    def forward(self, features: Tensor, inputs: Inputs) -> Categorical:
        """Return the distribution over actions for features ``[..., feature_size]`` of ``inputs``."""
        return categorical(self.spec.actions, self.linear(features), inputs.mask if self.spec.masked else None)


class DiscreteBCQNets(DQNNets):
    """DQN's networks and the imitator."""

    def __init__(self, spec: Spec, cfg: DiscreteBCQConfig) -> None:
        super().__init__(spec, cfg)
        self.imitator: nn.Module
        if cfg.share_encoder:
            self.imitator = ImitatorHead(self.critic.feature_size, spec)
        else:
            self.imitator = CategoricalPolicy(spec, cfg.encoder_factory)
        self.action_flexibility = cfg.action_flexibility


def returns_and_imitator(nets: DiscreteBCQNets, inputs: Inputs) -> tuple[Returns, Categorical]:
    """Compute the returns of all actions, and the imitator's distribution; a shared encoder runs once."""
    if not isinstance(nets.imitator, ImitatorHead):
        return nets.critic(inputs), nets.imitator(inputs)
    features = nets.critic.encode(inputs)
    first = features if nets.critic.share_encoder else features[0]
    return nets.critic.read(features, inputs), nets.imitator(first, inputs)


def constrained_action(nets: DiscreteBCQNets, inputs: Inputs) -> Tensor:
    """Return the best options by Q-value among those with ``G(a|s) / max G(·|s)`` at or above the threshold."""
    returns, imitator = returns_and_imitator(nets, inputs)
    logits = imitator.masked_logits
    ratio = (logits - logits.amax(-1, keepdim=True)).exp()
    return returns.preferences().mean(0).masked_fill(ratio < nets.action_flexibility, -math.inf).argmax(-1)


def discrete_loss(nets: DiscreteBCQNets, batch: Batch, cfg: DiscreteBCQConfig) -> Loss:
    """Double DQN's Huber loss with the constrained action, plus the imitator's.

    The imitator's is ``-E[log G(a|s)] + beta * E[mean over actions of logits^2]``.
    """
    with torch.no_grad():
        with eval_mode(nets.critic), eval_mode(nets.imitator):
            best = constrained_action(nets, batch.next_inputs)
        target = nets.critic_target(batch.next_inputs).gather(best).min().backup(batch.reward, batch.discount)
    returns, imitator = returns_and_imitator(nets, batch.inputs)
    td = td_loss(returns.gather(batch.action), target, batch, delta=cfg.huber_threshold)
    penalty = cfg.beta * imitator.mean_square()
    imitation = weighted_mean(penalty - imitator.log_prob(batch.action), batch.weight)
    return Loss(
        td.value + imitation, {**td.metrics, "td_loss": td.value, "imitator_loss": imitation}, priority=td.priority
    )


@final
class DiscreteBCQ(Algorithm[DiscreteBCQConfig, DiscreteBCQNets]):
    """See `DiscreteBCQConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Transitions()
    acts = Policy(constrained_action, constrained_action, q_value, "critic", stateful_networks=("imitator",))
    steps = (
        Gradient("critic", discrete_loss, ("critic", "imitator"), optimizer="", metric="loss"),
        TARGET,
    )
