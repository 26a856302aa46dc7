"""Learned rewards."""

from __future__ import annotations

from torch import Tensor

from birl.models.encoders import EncoderFactory
from birl.models.networks import LinearNetwork
from birl.spaces.specs import Spec
from birl.types import Inputs


class RewardFunction(LinearNetwork):
    """A number for an action in a state, or for a state alone: a reward, or the logit of a discriminator.

    Args:
        spec: shapes of observations and actions; discrete actions are read as one-hot vectors.
        encoder_factory: makes the encoder, action-conditioned if it reads actions.
        with_action: whether it reads actions.
    """

    def __init__(self, spec: Spec, encoder_factory: EncoderFactory, *, with_action: bool = True) -> None:
        super().__init__(spec, encoder_factory, 1, with_action=with_action)
        self._with_action = with_action

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Return numbers ``[...]`` for actions ``[..., *spec.actions.shape]``."""
        return self.linear(self.encode(inputs, action if self._with_action else None)).squeeze(-1)
