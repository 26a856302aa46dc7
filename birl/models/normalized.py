"""The dense encoders of DroQ and CrossQ, which normalise in other places than `VectorEncoder`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from birl.checks import check
from birl.models.encoder_modules import joined
from birl.models.encoders import EncoderFactory, check_hidden_units, flat_size
from birl.models.layers import DenseLayer, layer_norm
from birl.models.noisy import Random
from birl.types import Shape, Tree


class DropoutNorm(Random):
    """Dropout, layer norm and ReLU, in this order (Hiraoka et al. 2021, arXiv:2110.02034, section 3).

    Dropout is active whenever the network learns, also in target networks.

    Args:
        features: size of the last dimension.
        n: number of stacked members, or ``None``.
        dropout_rate: probability of zeroing a feature.
    """

    def __init__(self, features: int, n: int | None, dropout_rate: float) -> None:
        super().__init__()
        self.norm = layer_norm(features, n)
        self.dropout_rate = dropout_rate

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[M, features]``, or ``[N, M, features]`` if stacked, to the same shape."""
        x = x if self.greedy else F.dropout(x, self.dropout_rate)
        return torch.relu(self.norm(x))


class BatchRenorm(nn.Module):
    """Batch renormalisation (Ioffe 2017, arXiv:1702.03275, algorithm 1), as CrossQ uses it (arXiv:1902.05605).

    In training, features are normalised by the batch's mean and standard deviation, corrected within limits towards the
    running statistics: ``x = (x - mean) / std * r + d``. The first ``warmup`` batches are normalised without correction
    (``r = 1, d = 0``: batch normalisation). Outside training, the running statistics normalise features.

    Args:
        features: size of the last dimension.
        n: number of stacked members, or ``None``.
        momentum: weight of the batch in each update of the running statistics.
        warmup: number of batches before the correction.
        eps: number that is added to variances.
        r_max, d_max: limits of the correction.
    """

    running_mean: Tensor
    running_var: Tensor
    batches: Tensor

    def __init__(
        self,
        features: int,
        n: int | None = None,
        momentum: float = 0.01,
        warmup: int = 100_000,
        eps: float = 1e-3,
        r_max: float = 3.0,
        d_max: float = 5.0,
    ) -> None:
        super().__init__()
        shape = (features,) if n is None else (n, 1, features)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.momentum, self.warmup, self.eps, self.r_max, self.d_max = momentum, warmup, eps, r_max, d_max

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[M, features]``, or ``[N, M, features]`` if stacked, over ``M``."""
        running_std = (self.running_var + self.eps).sqrt()
        if not self.training:
            return (x - self.running_mean) / running_std * self.weight + self.bias
        mean, var = x.mean(-2, keepdim=True), x.var(-2, correction=0, keepdim=True)
        std = (var + self.eps).sqrt()
        with torch.no_grad():
            warm = self.batches >= self.warmup
            r = torch.where(warm, (std / running_std).clamp(1 / self.r_max, self.r_max), 1.0)
            d = torch.where(warm, ((mean - self.running_mean) / running_std).clamp(-self.d_max, self.d_max), 0.0)
            for running, statistic in ((self.running_mean, mean), (self.running_var, var)):
                running.mul_(1 - self.momentum).add_(statistic.view_as(running), alpha=self.momentum)
            self.batches.add_(1)
        return ((x - mean) / std * r + d) * self.weight + self.bias


class NormalizedEncoder(nn.Module):
    """A sequence of layers over a flattened observation, concatenated with the action if one is given.

    Args:
        layers: the layers; each maps ``[M, size]``, or ``[N, M, size]`` if stacked.
        feature_size: output size of the last layer.
        n: number of stacked members, or ``None``.
    """

    def __init__(self, layers: Sequence[nn.Module], feature_size: int, n: int | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.feature_size, self.n = feature_size, n

    def forward(self, observation: Tree, action: Tensor | None = None) -> Tensor:
        """Return features ``[M, F]``, or ``[N, M, F]`` if stacked."""
        x = joined(observation, action)
        x = x if self.n is None else x.expand(self.n, *x.shape[-2:])
        for layer in self.layers:
            x = layer(x)
        return x


@dataclass(frozen=True)
class DroQEncoderFactory(EncoderFactory, type="droq"):
    """Dense layers, each followed by dropout, layer norm and ReLU (Hiraoka et al. 2021, arXiv:2110.02034).

    Dropout is off only while acting. Observations are flattened as in `VectorEncoderFactory`.

    Attributes:
        hidden_units: size of each layer.
        dropout_rate: dropout probability.
    """

    hidden_units: list[int] = field(default_factory=lambda: [256, 256])
    dropout_rate: float = 0.01

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check_hidden_units(self.hidden_units)
        check("dropout_rate", self.dropout_rate, float, low=0, below=1)

    def _stacks(self, observation_shape: Shape) -> bool:
        return True

    def _encoder(self, observation_shape: Shape, action_size: int, n: int | None) -> nn.Module:
        sizes = [flat_size(observation_shape) + action_size, *self.hidden_units]
        layers: list[nn.Module] = []
        for size, following in pairwise(sizes):
            layers += [DenseLayer(size, following, "none", n=n), DropoutNorm(following, n, self.dropout_rate)]
        return NormalizedEncoder(layers, sizes[-1], n)


@dataclass(frozen=True)
class BatchRenormEncoderFactory(EncoderFactory, type="batch_renorm"):
    """Batch renormalisation of the inputs, and after each dense layer with ReLU (Bhatt et al. 2019, arXiv:1902.05605).

    Observations are flattened as in `VectorEncoderFactory`.

    Attributes:
        hidden_units: size of each layer.
        momentum: weight of a batch in each update of the running statistics.
        warmup: number of batches before the running statistics affect learning.
    """

    hidden_units: list[int] = field(default_factory=lambda: [256, 256])
    momentum: float = 0.01
    warmup: int = 100_000

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check_hidden_units(self.hidden_units)
        check("momentum", self.momentum, float, above=0, high=1)
        check("warmup", self.warmup, int, low=0)

    def _stacks(self, observation_shape: Shape) -> bool:
        return True

    def _encoder(self, observation_shape: Shape, action_size: int, n: int | None) -> nn.Module:
        sizes = [flat_size(observation_shape) + action_size, *self.hidden_units]
        layers: list[nn.Module] = [BatchRenorm(sizes[0], n, self.momentum, self.warmup)]
        for size, following in pairwise(sizes):
            layers += [DenseLayer(size, following, n=n), BatchRenorm(following, n, self.momentum, self.warmup)]
        return NormalizedEncoder(layers, sizes[-1], n)
