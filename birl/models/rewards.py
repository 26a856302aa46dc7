"""Learned rewards."""

from __future__ import annotations

from torch import Tensor

from birl.models.encoders import EncoderFactory
from birl.models.networks import LinearNetwork
from birl.spaces import Spec
from birl.types import Inputs


class RewardFunction(LinearNetwork):
    """A number for an action in a state: a reward, or the logit of a discriminator.

    Args:
        spec: shapes of observations and actions; discrete actions are read as one-hot vectors.
        encoder_factory: makes the action-conditioned encoder.
    """

    def __init__(self, spec: Spec, encoder_factory: EncoderFactory) -> None:
        super().__init__(spec, encoder_factory, 1, with_action=True)

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Numbers ``[...]`` of actions ``[..., *spec.actions.shape]``."""
        return self.linear(self.encode(inputs, action)).squeeze(-1)
