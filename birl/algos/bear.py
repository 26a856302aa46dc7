"""Bootstrapping error accumulation reduction: a policy that stays within the support of the data's actions."""

from __future__ import annotations

from copy import deepcopy
from typing import final

import torch
from torch import Tensor

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    ImitatorConfig,
    Inputs,
    Loss,
    Policy,
    Polyak,
    Spec,
    Transitions,
    When,
    actor_distribution,
    best_of,
    config,
    field,
    q_value,
    rate,
    sampled_action,
    weighted_mean,
)
from birl.algos import sac
from birl.algos.sac import SACConfig, SACNets
from birl.losses import shared, td_loss, temperature_loss, vae_loss
from birl.models import Scalar, VAEDecoder, VAEEncoder
from birl.models.distributions import Normal
from birl.optimizers import AdamFactory, OptimizerFactory

LOG_ALPHA_RANGE = (-5.0, 10.0)
"""The logarithm of the multiplier is clipped to this range, as in the authors' code."""

WARMUP, AFTERWARDS = When(until="warmup_steps"), When(after="warmup_steps")


@config
class BEARConfig(SACConfig, ImitatorConfig):
    """Bootstrapping Error Accumulation Reduction (Kumar et al. 2019, arXiv:1906.00949), on SAC.

    A variational auto-encoder imitates the data's actions. The policy maximises the lowest Q-value under the constraint
    that the maximum mean discrepancy (MMD) between its actions and imitated ones stays below ``alpha_threshold``. The
    multiplier ``alpha`` of this constraint is learned, with its logarithm clipped to [-5, 10]. In the first
    ``warmup_steps`` updates the policy only minimises the MMD. Targets take the best of ``n_target_samples`` actions,
    as in BCQ.

    The MMD compares actions before their tanh. Its kernels are those of the authors' code,
    ``exp(-d / (2 * mmd_sigma))`` with the distance ``d`` summed over dimensions, absolute (``"laplacian"``) or squared
    (``"gaussian"``); other libraries often define the gaussian kernel with the square of ``mmd_sigma``.

    The greedy policy takes the best of ``n_action_samples`` actions by the first Q-function. Their noise is the same in
    all states; it is drawn when the networks are built and saved with them, so that ``predict`` is deterministic and
    exported policies give the same actions. ``sample_action`` takes one sample of the policy.

    Logs ``imitator_loss``, ``critic_loss``, ``q_value`` and ``actor_loss`` (the total). After the warm-up it also logs
    ``mmd_loss`` (the part of ``actor_loss`` weighted with ``alpha``), ``alpha``, ``alpha_loss``, ``temp_loss`` and
    ``temp``.

    Differs from the paper: SAC's entropy bonus, with a learned temperature, as in d3rlpy.

    Differs from d3rlpy: targets sample from a target policy, as in the paper; the greedy policy is not random; imitated
        actions are compared before their tanh, and their reconstruction error is computed after it; the policy's
        optimiser is reset after the warm-up.
    """

    actor_learning_rate: float = 1e-4
    imitator_learning_rate: float = 3e-4
    temp_learning_rate: float = 1e-4
    alpha_learning_rate: float = rate(1e-3, "the multiplier of the discrepancy")
    alpha_optim_factory: OptimizerFactory = field(AdamFactory, "Optimiser of the multiplier of the discrepancy.")
    initial_alpha: float = field(1.0, "Multiplier of the discrepancy at the start.", above=0)
    alpha_threshold: float = field(0.05, "Discrepancy from the imitator at which the multiplier stays constant.")
    n_action_samples: int = field(
        100, "Number of the policy's actions from which the greedy policy takes the best one.", low=1
    )
    n_target_samples: int = field(
        10, "Number of the target policy's actions from which targets take the best one.", low=1
    )
    n_mmd_action_samples: int = field(
        4, "Number of actions of policy and imitator whose discrepancy is measured.", low=1
    )
    mmd_kernel: str = field("laplacian", "Kernel of the discrepancy.", choices=("laplacian", "gaussian"))
    mmd_sigma: float = field(20.0, "Half of the distance at which the kernel is 1/e.", above=0)
    vae_kl_weight: float = field(0.5, "Weight of the divergence in the loss of BEAR's imitator.", low=0)
    warmup_steps: int = field(40_000, "Number of updates in which the policy only approaches the imitator.", low=0)


class BEARNets(SACNets):
    """Networks of SAC, a target policy, the imitator, the multiplier, and the noise ``[n, A]`` of the greedy policy."""

    noise: Tensor

    def __init__(self, spec: Spec, cfg: BEARConfig) -> None:
        super().__init__(spec, cfg)
        self.actor_target = deepcopy(self.actor)
        self.vae_encoder = VAEEncoder(spec, cfg.imitator_encoder_factory, 2 * spec.actions.size)
        self.vae_decoder = VAEDecoder(spec, cfg.imitator_encoder_factory, 2 * spec.actions.size)
        self.alpha = Scalar(cfg.initial_alpha)
        self.register_buffer("noise", torch.randn(cfg.n_action_samples, spec.actions.size))

    def multiplier(self) -> Tensor:
        """Return ``alpha``, clipped."""
        return self.alpha.raw.clamp(*LOG_ALPHA_RANGE).exp()


def mmd(x: Tensor, y: Tensor, kernel: str, sigma: float) -> Tensor:
    """Return the maximum mean discrepancy of two samples (arXiv:1906.00949), ``sqrt(MMD^2 + 1e-6)``.

    ``MMD^2 = mean k(x_i, x_j) - 2 mean k(x_i, y_j) + mean k(y_i, y_j)`` over all pairs, equal ones included.

    Args:
        x: ``[n, ..., A]``.
        y: ``[m, ..., A]``.
        kernel: ``"laplacian"``, ``exp(-|x - y|_1 / (2 sigma))``, or ``"gaussian"``, ``exp(-|x - y|_2^2 / (2 sigma))``.
        sigma: width, above 0.

    Returns:
        ``[...]``.
    """

    def average(a: Tensor, b: Tensor) -> Tensor:
        difference = a.unsqueeze(1) - b.unsqueeze(0)
        distance = difference.abs() if kernel == "laplacian" else difference.square()
        return (-distance.sum(-1) / (2.0 * sigma)).exp().mean((0, 1))

    square = average(x, x) - 2.0 * average(x, y) + average(y, y)
    return (square + 1e-6).sqrt()


def imitator_loss(nets: BEARNets, batch: Batch, cfg: BEARConfig) -> Loss:
    """Compute the auto-encoder's loss: `birl.losses.vae_loss` with ``vae_kl_weight``."""
    return vae_loss(nets.vae_encoder, nets.vae_decoder, batch, cfg.vae_kl_weight)


def critic_loss(nets: BEARNets, batch: Batch, cfg: BEARConfig) -> Loss:
    """Algorithm 1: ``y = r + discount * (max_i [lam * min_j Q'_j(s', a_i) + (1 - lam) * max_j Q'_j(s', a_i)] + b)``.

    The ``a_i`` are actions of the target policy, and ``b`` is SAC's bonus, ``-temperature * log pi'(a_i|s')`` of the
    best one. With quantiles or atoms the best action is chosen by expected returns, and the target mixes the ensemble
    members' return distributions for this action.
    """
    with torch.no_grad():
        action, log_prob = nets.actor_target(batch.next_inputs).sample(cfg.n_target_samples)
        value = nets.critic_target(batch.next_inputs, action).blend(cfg.lam).mean()
        best, bonus = best_of(action, value), -nets.temperature() * best_of(log_prob.unsqueeze(-1), value).squeeze(-1)
        target = nets.critic_target(batch.next_inputs, best).blend(cfg.lam).backup(batch.reward, batch.discount, bonus)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


def mmd_gap(nets: BEARNets, batch: Batch, cfg: BEARConfig) -> Tensor:
    """Compute ``E[MMD(imitator, policy)] - alpha_threshold`` from actions before their tanh."""
    imitated = nets.vae_decoder.sample(batch.inputs, cfg.n_mmd_action_samples, squash=False)
    policy = nets.actor(batch.inputs)
    own, _ = Normal(policy.mean, policy.log_std).sample(cfg.n_mmd_action_samples)
    distance = mmd(imitated, own, cfg.mmd_kernel, cfg.mmd_sigma)
    return weighted_mean(distance, batch.weight) - cfg.alpha_threshold


def warmup_loss(nets: BEARNets, batch: Batch, cfg: BEARConfig) -> Loss:
    """``alpha * (E[MMD] - alpha_threshold)``: the policy first approaches the data."""
    return Loss(nets.multiplier().detach() * mmd_gap(nets, batch, cfg))


def actor_loss(nets: BEARNets, batch: Batch, cfg: BEARConfig) -> Loss:
    """SAC's loss plus ``alpha * (E[MMD] - alpha_threshold)`` (algorithm 1)."""
    climb = sac.actor_loss(nets, batch, cfg)
    gap, alpha = mmd_gap(nets, batch, cfg), nets.multiplier().detach()
    metrics = {"mmd_loss": alpha * gap, "alpha": alpha}
    return Loss(climb.value + alpha * gap, metrics, share={**climb.share, "mmd_gap": gap})


def alpha_loss(nets: BEARNets, batch: Batch, cfg: BEARConfig) -> Loss:
    """Dual ascent on ``log alpha`` by the gap that the policy's loss computed.

    The logarithm is clipped to its range. Outside the range it has a gradient only if the gradient leads back.
    """
    gap = shared(batch, "mmd_gap", lambda: mmd_gap(nets, batch, cfg))
    low, high = LOG_ALPHA_RANGE
    log = nets.alpha.raw
    leads_back = ((log <= high) | (gap < 0)) & ((log >= low) | (gap > 0))
    clipped = log + (log.clamp(low, high) - log).detach()
    return Loss(-clipped.exp() * gap * leads_back)


def greedy_action(nets: BEARNets, inputs: Inputs) -> Tensor:
    """Return the action with the highest value by the first Q-function, among those with the fixed noise."""
    policy = nets.actor(inputs)
    action = (policy.mean + policy.log_std.exp() * nets.noise.unsqueeze(1)).tanh()
    return best_of(action, nets.critic(inputs, action).mean()[0])


@final
class BEAR(Algorithm[BEARConfig, BEARNets]):
    """See `BEARConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = Policy(
        greedy_action, sampled_action, q_value, stateful_networks=("critic",), distribution=actor_distribution
    )
    steps = (
        Gradient("imitator", imitator_loss, ("vae_encoder", "vae_decoder")),
        Gradient("critic", critic_loss),
        Gradient("warmup", warmup_loss, ("actor",), optimizer="actor", metric="actor_loss", when=WARMUP),
        Gradient("actor", actor_loss, when=AFTERWARDS),
        Gradient("alpha", alpha_loss, when=AFTERWARDS),
        Gradient("temperature", temperature_loss, optimizer="temp", metric="temp_loss", when=AFTERWARDS),
        Polyak("critic", "critic_target"),
        Polyak("actor", "actor_target"),
    )
