"""The dual step of maximum-entropy reinforcement learning."""

from __future__ import annotations

from typing import Any

from birl.losses.sharing import shared
from birl.types import Batch, Loss, weighted_mean


def temperature_loss(nets: Any, batch: Batch, cfg: Any) -> Loss:
    """``J(alpha) = E[alpha * (entropy - target)]`` (arXiv:1812.05905, eq. 18; arXiv:1910.07207, eq. 11).

    The entropy is that of the policy that the actor's loss saw; SAC's is estimated by ``-log pi(a|s)`` of the sampled
    actions. Alpha falls while the entropy exceeds its target. With ``cfg.log_temperature_loss`` it is
    ``E[log(alpha) * (entropy - target)]``: the logarithm is what is learned, so its gradient does not depend on alpha.
    """
    temperature = nets.temperature()
    multiplier = nets.temperature.raw if cfg.log_temperature_loss else temperature
    entropy = shared(batch, "policy_entropy", lambda: nets.actor(batch.inputs).entropy()).detach()
    return Loss(multiplier * weighted_mean(entropy - nets.target_entropy, batch.weight), {"temp": temperature})
