"""Networks that most algorithms for continuous actions have."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import nn

from birl.models.q_functions import ContinuousQFunction
from birl.spaces import Spec


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
