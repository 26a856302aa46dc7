"""Causal transformers over trajectories, and the networks of decision transformers."""

from __future__ import annotations

from enum import Enum
from typing import TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from birl.errors import ConfigError
from birl.models.distributions import masked
from birl.models.encoders import EncoderFactory, feature_size_of
from birl.models.layers import Dropout, activation_named, dense, embedded
from birl.models.networks import Network
from birl.models.recurrent import Recurrent
from birl.spaces.specs import Spec
from birl.types import Inputs, Tree

_ALL = slice(None)


class PositionEncodingType(Enum):
    """How a decision transformer encodes the positions of tokens."""

    SIMPLE = "simple"
    """A learned vector for each time step, the same for its three tokens (the paper's, for continuous control)."""

    GLOBAL = "global"
    """A learned vector for the window's newest time step plus one for each token of the window."""


class CausalTransformer(nn.Module):
    """Pre-norm transformer whose tokens attend to themselves and earlier tokens only (as in GPT-2).

    Args:
        size: number of features of a token, a multiple of ``num_heads``.
        num_heads: number of attention heads.
        num_layers: number of blocks.
        layer_norm_eps: number that is added to the variance in layer norms.
        **options: options of each block: ``attn_dropout`` and ``resid_dropout``, the dropout probabilities of attention
            weights and of a block's outputs (0.1 each), and the ``activation`` between its two linear layers
            (``"relu"``; see `birl.models.layers.ACTIVATIONS`).

    Raises:
        ConfigError: if ``num_heads`` does not divide ``size``.
    """

    def __init__(
        self,
        size: int,
        num_heads: int,
        num_layers: int,
        *,
        layer_norm_eps: float = 1e-5,
        **options: Unpack[BlockOptions],
    ) -> None:
        super().__init__()
        if size % num_heads != 0:
            raise ConfigError(
                f"num_heads is {num_heads}, which does not divide the encoder's {size} features; "
                "choose another number of heads or encoder size"
            )
        self.blocks = nn.ModuleList(_Block(size, num_heads, layer_norm_eps, **options) for _ in range(num_layers))
        self.norm = nn.LayerNorm(size, layer_norm_eps)

    def forward(self, tokens: Tensor, valid: Tensor | None = None, wanted: slice = _ALL) -> Tensor:
        """Map ``[B, K, size]`` to ``[B, K, size]``, or to fewer tokens.

        Args:
            tokens: embedded tokens.
            valid: bool ``[B, K]``, false at padding, to which no other token attends; ``None`` for no padding.
            wanted: the tokens to return; the last block computes no others.
        """
        length = tokens.shape[1]
        visible = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()[None]
        if valid is not None:
            # padding attends to itself: a softmax over no tokens would be NaN
            itself = torch.eye(length, dtype=torch.bool, device=tokens.device)
            visible = visible & (valid.unsqueeze(1) | itself)  # [B, K, K]
        *others, last = self.blocks
        for block in others:
            tokens = block(tokens, visible, _ALL)
        return self.norm(last(tokens, visible, wanted))


class BlockOptions(TypedDict, total=False):
    """Optional arguments of a block of `CausalTransformer`."""

    attn_dropout: float
    resid_dropout: float
    activation: str


class _Block(nn.Module):
    def __init__(
        self,
        size: int,
        num_heads: int,
        eps: float,
        attn_dropout: float = 0.1,
        resid_dropout: float = 0.1,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attn_dropout = attn_dropout
        self.activation = activation_named(activation)
        self.attention_norm = nn.LayerNorm(size, eps)
        self.query_key_value = _Linear(size, 3 * size)
        self.attention_out = _Linear(size, size)
        self.mlp_norm = nn.LayerNorm(size, eps)
        self.mlp_in = _Linear(size, 4 * size)
        self.mlp_out = _Linear(4 * size, size)
        self.dropout = Dropout(resid_dropout)

    def forward(self, x: Tensor, visible: Tensor, wanted: slice) -> Tensor:
        x = x[:, wanted] + self.dropout(self._attend(self.attention_norm(x), visible, wanted))
        return x + self.dropout(self.mlp_out(self.activation(self.mlp_in(self.mlp_norm(x)))))

    def _attend(self, x: Tensor, visible: Tensor, wanted: slice) -> Tensor:
        size, layer = x.shape[-1], self.query_key_value
        query = self._heads(dense(x[:, wanted], layer.weight[:size], layer.bias[:size]))
        key, value = map(self._heads, dense(x, layer.weight[size:], layer.bias[size:]).split(size, -1))
        attended = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=visible[:, None, wanted],
            dropout_p=self.attn_dropout if self.training else 0.0,
        )
        result: Tensor = self.attention_out(attended.transpose(1, 2).flatten(2))
        return result

    def _heads(self, x: Tensor) -> Tensor:
        """Reshape ``[B, K, size]`` to ``[B, heads, K, size / heads]``."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class _Linear(nn.Linear):  # a separate module, so that forward hooks see its inputs
    def forward(self, x: Tensor) -> Tensor:
        return dense(x, self.weight, self.bias)


class DecisionTransformerNetwork(Network):
    """Base of decision transformers (Chen et al. 2021, arXiv:2106.01345), which map windows of trajectories to outputs.

    A step has three tokens: return-to-go, observation, action. The action is predicted at the observation's token.
    Subclasses embed actions and map the last layer's features to outputs.

    Differs from the paper's Atari code: the ``GLOBAL`` position encoding uses the newest step of the window, not the
    first one, because the first may be padding. Block positions are counted from the end for the same reason.

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the encoder of observations; its feature size is the size of all tokens.
        context_size: largest number of steps in a window.
        max_timestep: largest step number; later steps share its encoding.
        num_heads, num_layers, **options: see `CausalTransformer`.
        embed_dropout: dropout probability of the tokens.
        position_encoding_type: see `PositionEncodingType`.
        embed_activation: function of the tokens before their positions are added; see
            `birl.models.layers.ACTIVATIONS`.
    """

    def __init__(
        self,
        spec: Spec,
        encoder_factory: EncoderFactory,
        context_size: int,
        max_timestep: int,
        num_heads: int = 1,
        num_layers: int = 3,
        embed_dropout: float = 0.1,
        position_encoding_type: PositionEncodingType = PositionEncodingType.SIMPLE,
        embed_activation: str = "none",
        **options: Unpack[BlockOptions],
    ) -> None:
        encoder = encoder_factory.build(spec.encoder_shape)
        if isinstance(encoder, Recurrent):
            raise ConfigError(
                f"encoder_factory is {type(encoder_factory).__name__}; a transformer takes encoders without memory: "
                "use VectorEncoderFactory, PixelEncoderFactory or DefaultEncoderFactory"
            )
        size = feature_size_of(encoder, spec.encoder_shape)
        transformer = CausalTransformer(size, num_heads, num_layers, **options)
        super().__init__(spec, encoder)
        self.context_size = context_size
        self.max_timestep = max_timestep
        self.embed_activation = activation_named(embed_activation)
        self.return_token = nn.Linear(1, size)
        self.position_embedding = nn.Embedding(max_timestep + 1, size)
        self.block_embedding: nn.Parameter | None = None
        if position_encoding_type is PositionEncodingType.GLOBAL:
            self.block_embedding = nn.Parameter(torch.zeros(3 * context_size, size))
        self.dropout = Dropout(embed_dropout)
        self.transformer = transformer
        for part in (self.transformer, self.position_embedding):
            part.apply(_as_gpt2)  # everything else keeps torch's initial values, as in the paper's code
        self.make_layers(size, spec.actions.size)

    def forward(
        self,
        observations: Tree,
        actions: Tensor,
        returns_to_go: Tensor,
        timesteps: Tensor,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return outputs ``[B, L, action_size]``, each computed from the tokens up to its observation.

        Args:
            observations: tree of tensors ``[B, L, *shape]`` with ``L`` up to ``context_size``.
            actions: ``[B, L, action_size]``, or int64 ``[B, L]``; the last action is not used.
            returns_to_go: sums of rewards from each step to the end, ``[B, L, 1]`` or ``[B, L]``.
            timesteps: int64 ``[B, L]``: number of each step in its episode.
            mask: ``[B, L]``, 0 at padding; ``None`` for no padding.
        """
        batch_size, length = timesteps.shape
        states = self.encode(Inputs(observations))
        returns = self.return_token(returns_to_go.reshape(batch_size, length, 1))
        tokens = torch.stack((returns, states, self.embed_action(actions)), 2)  # [B, L, 3, size]
        tokens = self.embed_activation(tokens)
        steps = timesteps.clamp(0, self.max_timestep)
        if self.block_embedding is None:
            tokens = (tokens + embedded(self.position_embedding, steps).unsqueeze(2)).flatten(1, 2)
        else:
            newest = embedded(self.position_embedding, steps[:, -1:])
            tokens = tokens.flatten(1, 2) + newest + self.block_embedding[-3 * length :]
        tokens = self.dropout(self.after_positions(tokens))
        valid = None if mask is None else (mask > 0).repeat_interleave(3, 1)
        behind_observations = slice(1, None, 3)
        output = self.output(self.transformer(tokens, valid, behind_observations))
        return masked(output, Inputs(observations).mask) if self.spec.masked else output

    def make_layers(self, size: int, action_size: int) -> None:
        """Make the layers that embed actions and give the output, for tokens of ``size`` features."""
        raise NotImplementedError

    def embed_action(self, actions: Tensor) -> Tensor:
        """Return tokens ``[B, L, size]`` of actions."""
        raise NotImplementedError

    def after_positions(self, tokens: Tensor) -> Tensor:
        """Return the inputs of the first block, from tokens with positions; the same tokens by default."""
        return tokens

    def output(self, features: Tensor) -> Tensor:
        """Return the output for features ``[B, L, size]`` of the tokens of observations."""
        raise NotImplementedError


class ContinuousDecisionTransformer(DecisionTransformerNetwork):
    """A decision transformer whose outputs are actions in [-1, 1]. Tokens with positions are normalised."""

    def make_layers(self, size: int, action_size: int) -> None:
        self.action_token = nn.Linear(action_size, size)
        self.token_norm = nn.LayerNorm(size)
        self.linear = nn.Linear(size, action_size)

    def embed_action(self, actions: Tensor) -> Tensor:
        return self.action_token(actions)

    def after_positions(self, tokens: Tensor) -> Tensor:
        """Return normalised tokens."""
        return self.token_norm(tokens)

    def output(self, features: Tensor) -> Tensor:
        """Return squashed actions."""
        return self.linear(features).tanh()


class DiscreteDecisionTransformer(DecisionTransformerNetwork):
    """A decision transformer whose outputs are logits of discrete actions, as in the paper's Atari experiments."""

    def make_layers(self, size: int, action_size: int) -> None:
        self.action_embedding = nn.Embedding(action_size, size).apply(_as_gpt2)
        self.linear = nn.Linear(size, action_size, bias=False).apply(_as_gpt2)

    def embed_action(self, actions: Tensor) -> Tensor:
        return embedded(self.action_embedding, actions)

    def output(self, features: Tensor) -> Tensor:
        """Return logits."""
        return self.linear(features)


def _as_gpt2(module: nn.Module) -> None:
    """Initialise a layer as GPT-2 does: normal weights with standard deviation 0.02, biases 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
