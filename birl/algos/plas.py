"""Policy in the latent action space: the policy's actions are latents of an auto-encoder of the data's actions."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from birl.algorithm import (
    ActionSpace,
    ActorCriticConfig,
    Algorithm,
    Batch,
    Continuous,
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
    config,
    field,
    q_value,
    weighted_mean,
)
from birl.algos.bcq import imitator_loss
from birl.losses import td_loss
from birl.models import ActorCriticNets, DeterministicPolicy, ResidualPolicy, VAEDecoder, VAEEncoder

LATENT_RANGE = 2.0
"""The policy's latents lie in ``[-LATENT_RANGE, LATENT_RANGE]``, where a standard normal has 95 % of its mass."""


WARMUP, AFTERWARDS = When(until="warmup_steps"), When(after="warmup_steps")


@config
class PLASConfig(ActorCriticConfig, ImitatorConfig):
    """Policy in the Latent Action Space (Zhou et al. 2020, arXiv:2011.07213).

    A variational auto-encoder imitates the data's actions in the first ``warmup_steps`` updates and is then frozen.
    From then on a deterministic policy learns which latent in [-2, 2] to decode, and the Q-functions learn.

    Logs ``vae_loss`` in the warm-up, ``critic_loss``, ``q_value`` and ``actor_loss`` after it.

    Differs from d3rlpy: the auto-encoder's reconstruction error is computed after its decoder's tanh, in [-1, 1];
        ``imitator_optim_factory`` makes its optimiser; and target policies start as copies.
    """

    batch_size: int = 100
    actor_learning_rate: float = 1e-4
    critic_learning_rate: float = 1e-3
    imitator_learning_rate: float = 1e-4
    warmup_steps: int = field(500_000, "Number of updates in which only the imitator learns.", low=0)
    beta: float = field(0.5, like=SharedFields)


@config
class PLASWithPerturbationConfig(PLASConfig):
    """PLAS with a perturbation that changes actions by at most ``action_flexibility`` (arXiv:2011.07213).

    Logs ``vae_loss`` in the warm-up, ``critic_loss``, ``q_value`` and ``actor_loss`` after it.

    Differs from d3rlpy: as PLAS does.
    """

    action_flexibility: float = field(0.05, like=SharedFields)


class PLASNets(ActorCriticNets):
    """Networks of PLAS. The policy's actions are latents."""

    def __init__(self, spec: Spec, cfg: PLASConfig) -> None:
        latent_size = 2 * spec.actions.size
        latents = replace(spec, actions=Continuous(latent_size))
        super().__init__(spec, cfg, DeterministicPolicy(latents, cfg.actor_encoder_factory))
        self.vae_encoder = VAEEncoder(spec, cfg.imitator_encoder_factory, latent_size)
        self.vae_decoder = VAEDecoder(spec, cfg.imitator_encoder_factory, latent_size)

    def action(self, inputs: Inputs) -> Tensor:
        """Return the policy's action ``[..., A]``: its latent, decoded."""
        return self.vae_decoder(inputs, LATENT_RANGE * self.actor(inputs))  # type: ignore[no-any-return]

    def target_action(self, inputs: Inputs) -> Tensor:
        """Return the target policy's action."""
        return self.vae_decoder(inputs, LATENT_RANGE * self.actor_target(inputs))  # type: ignore[no-any-return]


class PLASWithPerturbationNets(PLASNets):
    """Networks of PLAS, and the perturbation."""

    def __init__(self, spec: Spec, cfg: PLASWithPerturbationConfig) -> None:
        super().__init__(spec, cfg)
        self.perturbation = ResidualPolicy(spec, cfg.actor_encoder_factory, cfg.action_flexibility)
        self.perturbation_target = deepcopy(self.perturbation)

    def action(self, inputs: Inputs) -> Tensor:
        """Return the policy's action ``[..., A]``: its latent, decoded and perturbed."""
        return self.perturbation(inputs, super().action(inputs))  # type: ignore[no-any-return]

    def target_action(self, inputs: Inputs) -> Tensor:
        """Return the target policy's action."""
        return self.perturbation_target(inputs, super().target_action(inputs))  # type: ignore[no-any-return]


def critic_loss(nets: PLASNets, batch: Batch, cfg: PLASConfig) -> Loss:
    """``y = r + discount * [lam * min_j Q'_j(s', a') + (1 - lam) * max_j Q'_j(s', a')]``.

    ``a'`` is the target policy's action. With quantiles or atoms, ensemble members are compared by their expected
    returns, and their distributions are mixed.
    """
    with torch.no_grad():
        next_returns = nets.critic_target(batch.next_inputs, nets.target_action(batch.next_inputs))
        target = next_returns.blend(cfg.lam).backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


def actor_loss(nets: PLASNets, batch: Batch, cfg: PLASConfig) -> Loss:
    """``-E[Q_1(s, a)]`` with the policy's action, through the decoder."""
    value = nets.critic.first(batch.inputs, nets.action(batch.inputs)).mean()[0]
    return Loss(-weighted_mean(value, batch.weight))


def policy_action(nets: PLASNets, inputs: Inputs) -> Tensor:
    """Return the policy's action."""
    return nets.action(inputs)


@final
class PLAS(Algorithm[PLASConfig, PLASNets]):
    """See `PLASConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = Policy(policy_action, policy_action, q_value, stateful_networks=("vae_decoder",))
    steps = (
        Gradient("vae", imitator_loss, ("vae_encoder", "vae_decoder"), optimizer="imitator", when=WARMUP),
        Gradient("critic", critic_loss, when=AFTERWARDS),
        Gradient("actor", actor_loss, when=AFTERWARDS),
        Polyak("critic", "critic_target", when=AFTERWARDS),
        Polyak("actor", "actor_target", when=AFTERWARDS),
    )


@final
class PLASWithPerturbation(Algorithm[PLASWithPerturbationConfig, PLASWithPerturbationNets]):
    """See `PLASWithPerturbationConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = Transitions()
    acts = Policy(policy_action, policy_action, q_value, stateful_networks=("vae_decoder", "perturbation"))
    steps = (
        *PLAS.steps[:2],
        Gradient("actor", actor_loss, ("actor", "perturbation"), when=AFTERWARDS),
        *PLAS.steps[3:],
        Polyak("perturbation", "perturbation_target", when=AFTERWARDS),
    )
