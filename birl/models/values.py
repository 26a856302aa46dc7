"""State-value functions."""

from __future__ import annotations

from torch import Tensor

from birl.models.encoders import EncoderFactory
from birl.models.networks import LinearNetwork
from birl.spaces import Spec
from birl.types import Inputs


class ValueFunction(LinearNetwork):
    """Expected return of a state.

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the encoder.
    """

    def __init__(self, spec: Spec, encoder_factory: EncoderFactory) -> None:
        super().__init__(spec, encoder_factory, 1)

    def forward(self, inputs: Inputs) -> Tensor:
        """Values ``[...]``."""
        return self.linear(self.encode(inputs)).squeeze(-1)
