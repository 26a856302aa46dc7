"""A Q-function that is quadratic in the action, so its maximum is known in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from birl.models.encoders import EncoderFactory
from birl.models.networks import LinearNetwork
from birl.models.value_distributions import MeanReturns
from birl.spaces.specs import Spec
from birl.types import Inputs


class QuadraticQFunction(LinearNetwork):
    """``Q(s, a) = V(s) - (a - mu(s))^T P(s) (a - mu(s)) / 2`` (Gu et al. 2016, arXiv:1603.00748, section 4).

    ``P = L L^T`` is positive definite: ``L`` is lower triangular with a diagonal of exponentials. ``mu`` is a tanh, so
    it is in the box of actions, and it is the only maximum of Q, with the value ``V(s)``.

    The outputs of the last layer are the value, the mean, the logarithm of the diagonal of ``L``, and the entries below
    the diagonal, row by row.

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the encoder, which does not read actions.
    """

    places: Tensor

    def __init__(self, spec: Spec, encoder_factory: EncoderFactory) -> None:
        size = spec.actions.size
        rows, columns = torch.tril_indices(size, size, -1)
        self._sizes = [1, size, size, len(rows)]
        super().__init__(spec, encoder_factory, sum(self._sizes))
        places = torch.zeros(len(rows), size, size)
        places[torch.arange(len(rows)), rows, columns] = 1.0
        self.register_buffer("places", places.flatten(1), persistent=False)

    def forward(self, inputs: Inputs, action: Tensor) -> MeanReturns:
        """Compute returns ``[1, ...]`` of actions ``[..., A]``, which may have more leading dimensions than states."""
        value, mean, log_diagonal, below = self._parts(inputs)
        away = action - mean
        below = (below @ self.places).unflatten(-1, (away.shape[-1], -1))
        projected = log_diagonal.exp() * away + (away.unsqueeze(-2) @ below).squeeze(-2)  # L^T (a - mu)
        return MeanReturns((value - 0.5 * projected.square().sum(-1)).unsqueeze(0))

    def best(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return the best actions ``mu(s)`` ``[..., A]``, and their values ``V(s)`` ``[...]``."""
        value, mean, _, _ = self._parts(inputs)
        return mean, value

    def _parts(self, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        value, mean, log_diagonal, below = self.linear(self.encode(inputs)).split(self._sizes, -1)
        return value.squeeze(-1), mean.tanh(), log_diagonal, below
