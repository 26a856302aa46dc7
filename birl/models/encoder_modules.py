"""Modules that encode observations ``[M, *shape]`` (and actions ``[M, A]``) to features ``[M, F]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from birl.errors import ConfigError
from birl.models.layers import DenseLayer, DenseOptions, activation_named, layer_norm
from birl.models.noisy import Noisy
from birl.spaces.specs import MOST_CHANNELS, is_channels_last
from birl.types import Tree, tree_leaves


class VectorEncoder(nn.Module):
    """Dense layers over a flattened observation, concatenated with the action if one is given.

    With ``n`` members the output is ``[N, M, F]``, and every layer is one batched product.

    Args:
        in_features: size of the observation, plus the size of the action if it is action-conditioned.
        hidden_units: size of each layer.
        activation: activation of all layers but the last.
        last_activation: activation of the last layer; ``None`` for the same.
        n: number of stacked members, or ``None`` for one plain encoder.
        **options: ``use_batch_norm``, ``use_layer_norm``, ``dropout_rate`` and ``noisy`` of each `DenseLayer`.
    """

    def __init__(
        self,
        in_features: int,
        hidden_units: Sequence[int],
        activation: str = "relu",
        last_activation: str | None = None,
        *,
        n: int | None = None,
        **options: Unpack[DenseOptions],
    ) -> None:
        super().__init__()
        sizes = [in_features, *hidden_units]
        names = [activation] * len(hidden_units)
        if last_activation is not None and names:
            names[-1] = last_activation
        self.feature_size, self.n = sizes[-1], n
        self.layers = nn.ModuleList(
            DenseLayer(*sizes_and_name, n=n, **options)
            for sizes_and_name in zip(sizes[:-1], sizes[1:], names, strict=True)
        )

    def forward(self, observation: Tree, action: Tensor | None = None) -> Tensor:
        """Return features ``[M, F]``, or ``[N, M, F]`` if stacked."""
        x = joined(observation, action)
        if self.n is not None and len(self.layers) == 0:
            return x.expand(self.n, *x.shape[-2:])
        for layer in self.layers:
            x = layer(x)
        return x


class SimBaBlock(nn.Module):
    """``x + W2 relu(W1 norm(x))`` (Lee et al. 2024, arXiv:2410.09754, eq. 3).

    Args:
        features: size of ``x``.
        hidden_size: size between the two products.
        n: number of stacked members, or ``None``.
        noisy: see `birl.models.noisy.sigma`.
    """

    def __init__(self, features: int, hidden_size: int, n: int | None = None, noisy: Noisy = False) -> None:
        super().__init__()
        self.norm = layer_norm(features, n)
        self.expand = DenseLayer(features, hidden_size, "relu", n=n, noisy=noisy)
        self.contract = DenseLayer(hidden_size, features, "none", n=n, noisy=noisy)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[M, features]``, or ``[N, M, features]`` if stacked, to the same shape."""
        change: Tensor = self.contract(self.expand(self.norm(x)))
        return x + change


class SimBaEncoder(nn.Module):
    """A linear layer, residual blocks with layer norm, and a last layer norm (arXiv:2410.09754, section 4).

    Args:
        in_features: size of the observation, plus the size of the action if it is action-conditioned.
        feature_size: size of the residual stream, which is the output.
        hidden_size: size inside the blocks.
        n_blocks: number of blocks.
        n: number of stacked members, or ``None`` for one plain encoder.
        noisy: see `birl.models.noisy.sigma`.
    """

    def __init__(
        self,
        in_features: int,
        feature_size: int,
        hidden_size: int,
        n_blocks: int,
        *,
        n: int | None = None,
        noisy: Noisy = False,
    ) -> None:
        super().__init__()
        self.feature_size = feature_size
        self.embedding = DenseLayer(in_features, feature_size, "none", n=n, noisy=noisy)
        self.blocks = nn.ModuleList(SimBaBlock(feature_size, hidden_size, n, noisy) for _ in range(n_blocks))
        self.norm = layer_norm(feature_size, n)

    def forward(self, observation: Tree, action: Tensor | None = None) -> Tensor:
        """Return features ``[M, F]``, or ``[N, M, F]`` if stacked."""
        x = self.embedding(joined(observation, action))
        for block in self.blocks:
            x = block(x)
        features: Tensor = self.norm(x)
        return features


def joined(observation: Tree, action: Tensor | None) -> Tensor:
    """Concatenate all numbers of observations, and ``action`` ``[M, A]``, or ``[N, M, A]`` with one per member."""
    if not isinstance(observation, Tensor):
        observation = torch.cat([leaf.reshape(leaf.shape[0], -1) for leaf in tree_leaves(observation)], -1)
    x = observation if observation.dim() == 2 else observation.reshape(observation.shape[0], -1)
    if action is not None and action.dim() == 3:
        x = x.expand(action.shape[0], -1, -1)
    return x if action is None else torch.cat((x, action), -1)


def channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of an image as ``(channels, height, width)``."""
    last = is_channels_last(shape) and shape[2] <= MOST_CHANNELS
    return (shape[2], *shape[:2]) if last else shape


class PixelEncoder(nn.Module):
    """Convolutions and one dense layer over an image ``[C, H, W]`` (Mnih et al. 2015, doi:10.1038/nature14236).

    Images ``[H, W, C]`` with at most 4 channels are transposed first. An action is added before the dense layer.

    Args:
        observation_shape: ``(channels, height, width)``, or ``(height, width, channels)``.
        filters: ``(channels, kernel size, stride)`` of each convolution.
        feature_size: size of the dense layer; ``None`` for no dense layer.
        activation: activation of all layers but the last.
        last_activation: activation of the dense layer; ``None`` for the same.
        action_size: number of action dimensions, 0 without actions.
        use_batch_norm, dropout_rate: batch norm and dropout after every layer.
        noisy: noise of the dense layer; see `birl.models.noisy.sigma`.

    Raises:
        ConfigError: if the image is not three-dimensional, may have many channels last, or is too small for the
            filters.
    """

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        filters: Sequence[Sequence[int]],
        feature_size: int | None,
        activation: str = "relu",
        last_activation: str | None = None,
        *,
        action_size: int = 0,
        use_batch_norm: bool = False,
        dropout_rate: float | None = None,
        noisy: Noisy = False,
    ) -> None:
        super().__init__()
        if len(observation_shape) != 3:
            raise ConfigError(
                f"observation_shape is {observation_shape!r}; a pixel encoder needs (channels, height, width)"
            )
        first = channels_first(observation_shape)
        self._last = first != tuple(observation_shape)
        if is_channels_last(observation_shape) and not self._last:
            height, width, channels = observation_shape
            raise ConfigError(
                f"observations of shape {tuple(observation_shape)} look like images with their channels last; image "
                f"encoders take (channels, height, width), here {(channels, height, width)}: wrap environments in "
                "birl.envs.ChannelFirst, and give datasets np.moveaxis(observations, -1, -3). If the channels do come "
                "first, swap the last two axes, or flatten with VectorEncoderFactory"
            )
        self.activation = activation_named(activation)
        channels, height, width = first
        self.convolutions, self.after = nn.ModuleList(), nn.ModuleList()
        for out_channels, kernel, stride in filters:
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            if height < 1 or width < 1:
                raise ConfigError(
                    f"images of shape {tuple(observation_shape)} are too small for the filters {filters!r}; "
                    "use DefaultEncoderFactory, whose filters fit, smaller kernels or strides in "
                    "PixelEncoderFactory(filters=[[channels, kernel, stride], …]), or flatten with VectorEncoderFactory"
                )
            after: list[nn.Module] = [nn.BatchNorm2d(out_channels)] if use_batch_norm else []
            after += [nn.Dropout2d(dropout_rate)] if dropout_rate else []
            self.convolutions.append(nn.Conv2d(channels, out_channels, kernel, stride))
            self.after.append(nn.Sequential(*after))
            channels = out_channels
        size = channels * height * width + action_size
        self.feature_size = size if feature_size is None else feature_size
        self.dense: nn.Module = nn.Identity()
        if feature_size is not None:
            self.dense = DenseLayer(
                size,
                feature_size,
                activation if last_activation is None else last_activation,
                use_batch_norm=use_batch_norm,
                dropout_rate=dropout_rate,
                noisy=noisy,
            )

    def forward(self, observation: Tensor, action: Tensor | None = None) -> Tensor:
        """Return features ``[M, F]``."""
        x = observation.movedim(-1, -3) if self._last else observation
        for convolution, after in zip(self.convolutions, self.after, strict=True):
            x = after(self.activation(convolution(x)))
        x = x.flatten(1)
        features: Tensor = self.dense(x if action is None else torch.cat((x, action), -1))
        return features


class TreeEncoder(nn.Module):
    """One encoder for each leaf of a tuple or dict observation, and a layer over their features (and the action).

    Args:
        leaves: an encoder with a ``feature_size`` for each leaf, in the order of `tree_leaves`.
        joint: maps the concatenated features (and the action) to the final features.
    """

    def __init__(self, leaves: Sequence[nn.Module], joint: VectorEncoder) -> None:
        super().__init__()
        self.leaves = nn.ModuleList(leaves)
        self.joint = joint
        self.feature_size = joint.feature_size

    def forward(self, observation: Tree, action: Tensor | None = None) -> Tensor:
        """Return features ``[M, F]``."""
        features = [encoder(leaf) for encoder, leaf in zip(self.leaves, tree_leaves(observation), strict=True)]
        return self.joint(torch.cat(features, -1), action)
