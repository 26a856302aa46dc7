"""Transformer actor-critic with regularisation."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from birl.algorithm import (
    ActionSpace,
    ActorCriticConfig,
    Batch,
    ContextActor,
    Gradient,
    Inputs,
    Loss,
    Polyak,
    Spec,
    TransformerAlgorithm,
    TransformerConfig,
    config,
    field,
    q_value,
    window_outputs,
)
from birl.algos import td3, td3_plus_bc
from birl.models import ActorCriticNets, ContinuousDecisionTransformer
from birl.types import tree_map


@config
class TACRConfig(TransformerConfig, ActorCriticConfig):
    """TACR (Lee and Moon 2023, AAMAS, "Transformer Actor-Critic with Regularization"): TD3+BC with a transformer.

    The policy is a decision transformer. Critics of single steps value its actions, and a penalty keeps it close to the
    data.

    Logs ``critic_loss``, ``q_value``, ``actor_loss`` and ``bc_loss`` (the squared error of the policy's actions).

    Differs from the paper: several critics of any form instead of one, smoothed target actions, and a policy that is
    given returns-to-go, as in d3rlpy, instead of rewards.

    Differs from d3rlpy: the target of a step takes the policy's action at the next step (d3rlpy: at the same one), from
    a target policy, as in the paper; the last step of a window contributes to the loss if its episode terminated there
    (d3rlpy always leaves it out, so that no target is a reward alone); critics are updated before the policy; the
    policy maximises the first critic, and the squared error of actions is averaged over dimensions, as in TD3+BC;
    target critics start as copies of the critics (d3rlpy: independently initialised).
    """

    batch_size: int = 64
    actor_learning_rate: float = 1e-4
    critic_learning_rate: float = 1e-4
    alpha: float = field(2.5, "Weight of the Q-values, divided by their mean size, in the policy's loss.", low=0)
    target_smoothing_sigma: float = field(0.2, like=td3.TD3Config)
    target_smoothing_clip: float = field(0.5, like=td3.TD3Config)


class TACRNets(ActorCriticNets):
    """Networks of TACR."""

    def __init__(self, spec: Spec, cfg: TACRConfig) -> None:
        actor = ContinuousDecisionTransformer(spec, cfg.actor_encoder_factory, **cfg.network_options)
        super().__init__(spec, cfg, actor)


def _following(x: Tensor) -> Tensor:
    """Shift ``[B, L, …]`` one step ahead; the last step is its own successor."""
    return torch.cat((x[:, 1:], x[:, -1:]), 1)


def transitions(batch: Batch) -> Batch:
    """Return the steps of windows as transitions ``[B, L]``.

    The last step has weight 0 unless its episode terminated: what comes after it is not in the window.
    """
    last = batch.weight[:, -1:] * (batch.discount[:, -1:] == 0)
    weight = torch.cat((batch.weight[:, :-1], last), 1)
    return replace(batch, next_observation=tree_map(_following, batch.observation), weight=weight)


class _AsTD3:
    """The networks in the form that TD3's losses expect; the policy's actions ``[B, L, A]`` are given."""

    def __init__(self, nets: TACRNets, action: Tensor) -> None:
        self.critic, self.critic_target = nets.critic, nets.critic_target
        self._action = action

    def actor(self, inputs: Inputs) -> Tensor:
        return self._action

    actor_target = actor


def critic_loss(nets: TACRNets, batch: Batch, cfg: TACRConfig) -> Loss:
    """TD3's loss with the target policy's action at the next step of the window.

    ``y_t = r_t + discount_t * min_j Q'_j(s_{t+1}, clip(pi'_{t+1} + clip(eps, -c, c), -1, 1))``.
    """
    with torch.no_grad():
        action = _following(window_outputs(nets.actor_target, batch))
    return td3.critic_loss(_AsTD3(nets, action), transitions(batch), cfg)  # type: ignore[arg-type]


def actor_loss(nets: TACRNets, batch: Batch, cfg: TACRConfig) -> Loss:
    """TD3+BC's loss at every real step: ``-lambda * Q_1(s_t, pi_t) + (pi_t - a_t)^2`` (arXiv:2106.06860, eq. 3)."""
    action = window_outputs(nets.actor, batch)
    return td3_plus_bc.actor_loss(_AsTD3(nets, action), batch, cfg)  # type: ignore[arg-type]


@final
class TACR(TransformerAlgorithm[TACRConfig, TACRNets]):
    """See `TACRConfig`."""

    actions = ActionSpace.CONTINUOUS
    acts = ContextActor(value=q_value)
    steps = (
        Gradient("critic", critic_loss),
        Gradient("actor", actor_loss, splits=False),
        Polyak("critic", "critic_target"),
        Polyak("actor", "actor_target"),
    )
