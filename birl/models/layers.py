"""Layers: dense layers, single or stacked for a whole ensemble, and dropout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from birl.errors import ConfigError
from birl.models import matmul
from birl.models.noisy import FactorisedNoise, Noisy

Activation = Callable[[Tensor], Tensor]


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "celu": F.celu,
    "elu": F.elu,
    "gelu": F.gelu,
    "hardtanh": F.hardtanh,
    "leaky_relu": F.leaky_relu,
    "mish": F.mish,
    "none": _identity,
    "relu": torch.relu,
    "relu6": F.relu6,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "swish": F.silu,
    "tanh": torch.tanh,
}
"""Activation functions by their names in ``torch.nn.functional``, with its default arguments."""


def activation_named(name: str) -> Activation:
    """Return the activation function called ``name``.

    Raises:
        ConfigError: if there is no such function.
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        near = [known for known in ACTIVATIONS if known.replace("_", "") == str(name).lower().replace("_", "")]
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(f"activation is {name!r:.80}{hint}; it must be one of {', '.join(map(repr, ACTIVATIONS))}")
    return ACTIVATIONS[name]


class EnsembleLinear(nn.Module):
    """``n`` linear layers as one batched product.

    Each member is initialised like an ``nn.Linear``: weights and biases uniform in ``±1 / sqrt(in_features)``.

    Args:
        n: number of members.
        in_features: size of the last dimension of the input.
        out_features: size of the last dimension of the output.
        noisy: see `birl.models.noisy.sigma`. Each member has its own noise.
    """

    def __init__(self, n: int, in_features: int, out_features: int, noisy: Noisy = False) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(max(in_features, 1))
        self.weight = nn.Parameter(torch.empty(n, in_features, out_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(n, 1, out_features).uniform_(-bound, bound))
        self.noise = FactorisedNoise(self.weight, self.bias, noisy) if noisy else None

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return weights ``[N, in, out]`` and biases ``[N, 1, out]`` for one pass, with noise drawn for it."""
        weight, bias = self.weight, self.bias
        return (weight, bias) if self.noise is None else self.noise(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[M, in]`` (the same for all members) or ``[N or 1, …, in]`` to ``[N, …, out]``."""
        if x.dim() > 3:
            y = self.forward(x.flatten(1, -2))
            return y.view(y.shape[0], *x.shape[1:-1], y.shape[-1])
        weight, bias = self.tensors()
        n = weight.shape[0]
        if matmul.applies(x, weight):
            return matmul.linear(x if x.dim() == 3 else x.unsqueeze(0), weight, bias)
        if n == 1:  # a plain product is faster than a batched one
            x = x.squeeze(0) if x.dim() == 3 else x
            return torch.addmm(bias.squeeze(0), x, weight.squeeze(0)).unsqueeze(0)
        if self._has_one_column(x):
            return (x * weight.mT).sum(-1, keepdim=True) + bias
        if x.device.type == "cuda":  # baddbmm would start with a copy there, and compilers fuse the sum
            return torch.bmm(x.expand(n, -1, -1), weight) + bias
        return torch.baddbmm(bias, x.expand(n, -1, -1), weight)

    def _has_one_column(self, x: Tensor) -> bool:
        """Return whether the weights are columns, for which a batched product is slower (on a CPU several times).

        Inputs of the wrong shape are left to the product, which rejects them: a multiplication would broadcast them.
        """
        if self.weight.shape[-1] != 1:
            return False
        return x.dim() > 1 and x.shape[-1] == self.weight.shape[1] and x.dtype == self.weight.dtype


class NoisyLinear(nn.Linear):
    """A linear layer with noise; see `birl.models.noisy.FactorisedNoise`.

    Args:
        in_features: size of the last dimension of the input.
        out_features: size of the last dimension of the output.
        noisy: see `birl.models.noisy.sigma`.
    """

    def __init__(self, in_features: int, out_features: int, noisy: Noisy = True) -> None:
        super().__init__(in_features, out_features)
        self.noise = FactorisedNoise(self.weight, self.bias, noisy)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[…, in_features]`` to ``[…, out_features]``."""
        return dense(x, *self.noise(self.weight, self.bias))


class EnsembleLayerNorm(nn.Module):
    """Layer normalisation of the last dimension with scale and shift for each member."""

    def __init__(self, n: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n, 1, features))
        self.bias = nn.Parameter(torch.zeros(n, 1, features))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[N, M, features]``."""
        return torch.addcmul(self.bias, F.layer_norm(x, x.shape[-1:]), self.weight)


def layer_norm(features: int, n: int | None) -> nn.Module:
    """Return a layer normalisation for ``n`` stacked members, or for one."""
    return nn.LayerNorm(features) if n is None else EnsembleLayerNorm(n, features)


class DenseOptions(TypedDict, total=False):
    """Arguments of `DenseLayer` that all layers of an encoder share."""

    use_batch_norm: bool
    use_layer_norm: bool
    dropout_rate: float | None
    noisy: Noisy


class DenseLayer(nn.Module):
    """Linear, activation, batch norm, layer norm and dropout, in this order; all but the first are optional.

    Args:
        in_features: input size.
        out_features: output size.
        activation: name in `ACTIVATIONS`.
        n: number of stacked members, or ``None`` for a single layer.
        use_batch_norm: whether to normalise over the batch (single layers only).
        use_layer_norm: whether to normalise over features.
        dropout_rate: probability of zeroing a feature.
        noisy: see `birl.models.noisy.sigma`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        activation: str = "relu",
        *,
        n: int | None = None,
        use_batch_norm: bool = False,
        use_layer_norm: bool = False,
        dropout_rate: float | None = None,
        noisy: Noisy = False,
    ) -> None:
        super().__init__()
        self.activation = activation_named(activation)
        sizes = (in_features, out_features)
        self.linear: nn.Linear | EnsembleLinear
        if n is None:
            self.linear = NoisyLinear(*sizes, noisy) if noisy else nn.Linear(*sizes)
        else:
            self.linear = EnsembleLinear(n, *sizes, noisy)
        self.after = nn.ModuleList([nn.BatchNorm1d(out_features)] if use_batch_norm else [])
        self.after.extend([layer_norm(out_features, n)] if use_layer_norm else [])
        self.after.extend([nn.Dropout(dropout_rate)] if dropout_rate else [])

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[…, in_features]`` to ``[…, out_features]``."""
        linear = self.linear
        x = self.activation(dense(x, linear.weight, linear.bias) if type(linear) is nn.Linear else linear(x))
        for module in self.after:
            x = module(x)
        return x


def dense(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute ``x [..., in] @ weight.T + bias`` with ``weight [out, in]``, by the faster of MKL and oneDNN."""
    if not matmul.applies(x, weight, flat=True):
        return F.linear(x, weight, bias)
    y = matmul.linear(x.reshape(1, -1, x.shape[-1]), weight.t().unsqueeze(0), bias.view(1, 1, -1))
    return y.view(*x.shape[:-1], -1)


def embedded(embedding: nn.Embedding, index: Tensor) -> Tensor:
    """Look up the rows ``[..., size]`` of an embedding for an int64 index ``[...]``, with a gradient that repeats.

    Compiled for a GPU or for several threads, the gradient of a lookup adds the rows of equal indices in any order, so
    runs would not repeat bit for bit. Compiled updates therefore multiply with one-hot vectors.
    """
    if torch.is_grad_enabled() and (torch.compiler.is_compiling() or get_proxy_mode() is not None):
        return one_hot_product(embedding.weight, index)
    result: Tensor = embedding(index)
    return result


def one_hot_product(weight: Tensor, index: Tensor) -> Tensor:
    """Return the rows ``[..., size]`` of ``weight`` ``[n, size]`` at ``index`` ``[...]`` as a matrix product."""
    one_hot = index.unsqueeze(-1) == torch.arange(weight.shape[0], device=index.device)
    return one_hot.to(weight.dtype) @ weight


class Dropout(nn.Module):
    """Zeroes elements with probability ``rate`` in training, and scales the others to keep the mean.

    It works like ``nn.Dropout``. On the CPU, where drawing random numbers is slow, four elements share one number of 64
    bits, so ``rate`` is rounded to a multiple of 1 / 65536.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout to a tensor of any shape."""
        if not self.training or self.rate == 0.0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.rate)
        kept = round((1.0 - self.rate) * 2**16)
        count = x.numel()
        bits = torch.randint(-(2**63), 2**63 - 1, ((count + 3) // 4,)).view(torch.int16)
        noise = (bits[:count].view(x.shape) < kept - 2**15).to(x.dtype)
        return x * noise.mul_(2**16 / max(kept, 1))


class Members(nn.Module):
    """An ensemble as a loop, for encoders that cannot be stacked."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return outputs of all members ``[N, M, F]``."""
        outputs = [member(*inputs) for member in self.members]
        return outputs[0].unsqueeze(0) if len(outputs) == 1 else torch.stack(outputs)
