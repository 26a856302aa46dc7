"""The dual step of maximum-entropy reinforcement learning."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from birl.losses.sharing import shared
from birl.models import Scalar
from birl.types import Batch, Loss, weighted_mean


class TemperatureFields(Protocol):
    """Field of a configuration that the temperature's loss reads; see `birl.config.TemperatureConfig`."""

    @property
    def log_temperature_loss(self) -> bool: ...


class SoftNets(Protocol):
    """Networks with a policy and a learned temperature."""

    @property
    def actor(self) -> nn.Module: ...
    @property
    def temperature(self) -> Scalar: ...
    @property
    def target_entropy(self) -> float: ...


def temperature_loss(nets: SoftNets, batch: Batch, cfg: TemperatureFields) -> Loss:
    """``J(alpha) = E[alpha * (entropy - target)]`` (arXiv:1812.05905, eq. 18; arXiv:1910.07207, eq. 11).

    The entropy belongs to the policy in the actor's loss, which SAC estimates by ``-log pi(a|s)`` of the sampled
    actions. Alpha falls while the entropy exceeds its target. With ``cfg.log_temperature_loss`` the loss is
    ``E[log(alpha) * (entropy - target)]``: the learned parameter is the logarithm, so its gradient does not depend on
    alpha.
    """
    temperature = nets.temperature()
    multiplier = nets.temperature.raw if cfg.log_temperature_loss else temperature
    entropy = shared(batch, "policy_entropy", lambda: nets.actor(batch.inputs).entropy()).detach()
    return Loss(multiplier * weighted_mean(entropy - nets.target_entropy, batch.weight), {"temp": temperature})
