"""State-value functions, and advantages of actions."""

from __future__ import annotations

from torch import Tensor, nn

from birl.models.encoders import EncoderFactory
from birl.models.networks import LinearNetwork, Network, scale_parameters
from birl.spaces.specs import Spec
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
        """Return values ``[...]``."""
        return self.linear(self.encode(inputs)).squeeze(-1)


class AdvantageFunction(Network):
    """Advantage of an action over other actions in the same state, up to a constant for each state.

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the encoder, which reads actions, too.
    """

    def __init__(self, spec: Spec, encoder_factory: EncoderFactory) -> None:
        super().__init__(spec, encoder_factory.build(spec.encoder_shape, spec.actions), with_action=True)
        self.linear = nn.Linear(self.feature_size, 1, bias=False)  # a bias cancels in differences
        scale_parameters(self.linear, encoder_factory.output_scale)

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Return advantages ``[...]``; ``action`` may have more leading dimensions than the observation."""
        return self.linear(self.encode(inputs, action)).squeeze(-1)
