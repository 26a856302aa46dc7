"""State-value functions."""

from __future__ import annotations

from torch import Tensor, nn

from birl.models.encoders import EncoderFactory
from birl.models.networks import Network
from birl.types import Inputs, Spec


class ValueFunction(Network):
    """Expected return of a state.

    Args:
        spec: what it is built for.
        encoder_factory: makes the encoder.
    """

    def __init__(self, spec: Spec, encoder_factory: EncoderFactory) -> None:
        super().__init__(spec, encoder_factory.create(spec.observation_shape))
        self.linear = nn.Linear(self.feature_size, 1)

    def forward(self, inputs: Inputs) -> Tensor:
        """Values ``[...]``."""
        return self.linear(self.encode(inputs)).squeeze(-1)
