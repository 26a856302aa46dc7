"""The last layers of heads: a linear layer, or the two streams of a dueling network."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from birl.models.layers import DenseLayer, EnsembleLinear
from birl.models.noisy import Noisy


@dataclass(frozen=True)
class LastLayers:
    """Options of the layers that map features to the rows of a head.

    Attributes:
        streams: sizes of the hidden layers of each stream of a dueling network; ``None`` for one linear layer.
        trunk_gradient: see `DuelingStreams`.
        branching: see `DuelingStreams`.
        noisy: noise of all layers; see `birl.models.noisy.sigma`.
    """

    streams: Sequence[int] | None = None
    trunk_gradient: float | None = None
    branching: bool = False
    noisy: Noisy = False

    def build(self, n: int, in_features: int, n_actions: int | None, size: int = 1) -> EnsembleLinear | DuelingStreams:
        """Return layers that map ``[N or 1, …, in_features]`` to ``[N, …, n_actions * size]``.

        Args:
            n: number of members.
            in_features: number of features.
            n_actions: number of discrete actions, or ``None``.
            size: number of outputs for each action.
        """
        if self.streams is None or n_actions is None:
            return EnsembleLinear(n, in_features, (n_actions or 1) * size, self.noisy)
        return DuelingStreams(n, in_features, n_actions, size, self)


class DuelingStreams(nn.Module):
    """A stream for the value of the state and one for the advantages of actions (Wang et al. 2016, arXiv:1511.06581).

    ``Q = V + A - mean A`` (eq. 9) is computed separately for each output of an action, such as a quantile or the logit
    of an atom.

    Args:
        n: number of members.
        in_features: number of features.
        n_actions: number of actions.
        size: number of outputs for each action.
        options: the sizes of hidden layers; ``trunk_gradient``, a factor on the gradients that flow from the streams to
            the encoder (section 4.2: 1 / sqrt 2). With ``branching``, the output is the advantages followed by the
            value, which `birl.models.branches.BranchReturns` combines for each branch.
    """

    def __init__(self, n: int, in_features: int, n_actions: int, size: int, options: LastLayers) -> None:
        super().__init__()
        self.size, self.branching, self.trunk_gradient = size, options.branching, options.trunk_gradient

        def stream(outputs: int) -> nn.Sequential:
            sizes = [in_features, *(options.streams or ())]
            hidden = [DenseLayer(*pair, n=n, noisy=options.noisy) for pair in itertools.pairwise(sizes)]
            return nn.Sequential(*hidden, EnsembleLinear(n, sizes[-1], outputs * size, options.noisy))

        self.value = stream(1)
        self.advantage = stream(n_actions - 1 if self.branching else n_actions)

    def forward(self, features: Tensor) -> Tensor:
        """Map ``[N or 1, …, in_features]`` to ``[N, …, n_actions * size]``."""
        if self.trunk_gradient is not None:  # the same numbers with a scaled gradient
            features = features.detach() + self.trunk_gradient * (features - features.detach())
        value = self.value(features).unsqueeze(-2)
        advantage = self.advantage(features).unflatten(-1, (-1, self.size))
        if self.branching:
            return torch.cat((advantage, value), -2).flatten(-2)
        return (value + advantage - advantage.mean(-2, keepdim=True)).flatten(-2)
