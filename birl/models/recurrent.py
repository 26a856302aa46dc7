"""Recurrent encoders. Losses do not depend on whether an encoder is recurrent.

A sequence is unrolled step by step, so that the state can be reset wherever an episode starts. The state is one
tensor ``[B, state_size]`` (for an LSTM the output and the cell state, concatenated).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from birl.checks import check
from birl.errors import ConfigError
from birl.models.encoder_modules import VectorEncoder
from birl.models.encoders import DefaultEncoderFactory, EncoderFactory, VectorEncoderFactory, feature_size_of
from birl.models.layers import Members
from birl.types import Shape, Tree, is_shape


class RecurrentEncoder(nn.Module):
    """An embedding, a recurrent cell and, if it is action-conditioned, a layer that adds the action.

    Args:
        embedding: encoder of single observations.
        cell: ``nn.LSTMCell`` or ``nn.GRUCell``.
        joint: reads the cell's output and the action, or ``None``.

    Attributes:
        state_size: size of the state.
        feature_size: size of the features.
    """

    def __init__(
        self, embedding: nn.Module, cell: nn.LSTMCell | nn.GRUCell, joint: VectorEncoder | None = None
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.cell = cell
        self.joint = joint
        self.is_lstm = isinstance(cell, nn.LSTMCell)
        self.state_size = cell.hidden_size * (2 if self.is_lstm else 1)
        self.feature_size = cell.hidden_size if joint is None else joint.feature_size

    def embed(self, observation: Tree) -> Tensor:
        """Return the core's inputs ``[M, P]`` for observations ``[M, *shape]``."""
        return self.embedding(observation)

    def unroll(
        self,
        sequence: Tensor,
        state: Tensor,
        is_first: Tensor | None,
        following: Tensor | None,
        later: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run over a sequence.

        Args:
            sequence: embedded observations ``[T, B, P]``.
            state: start state ``[B, state_size]``.
            is_first: bool ``[T, B]``: whether the state is reset to zero before this step.
            following: embedded next observations ``[T, B, P]`` or ``None``; see `birl.types.Inputs`.
            later: int64 ``[T, B]``: number of further steps before each next observation; ``None`` for 0.

        Returns:
            Features ``[T, B, F]`` (of ``following`` if it is given) and the state after the last step of ``sequence``.
        """
        keep = None if is_first is None else (~is_first).to(state.dtype).unsqueeze(-1)
        states = []
        for t, x in enumerate(sequence.unbind(0)):
            state = self._step(x, state if keep is None else state * keep[t])
            states.append(state)
        visited = torch.stack(states)
        if later is not None:
            at = later + torch.arange(len(later), device=later.device)[:, None]
            visited = visited.gather(0, at[..., None].expand_as(visited))
        if following is not None:  # one more step from all states at once
            visited = self._step(following.flatten(0, 1), visited.flatten(0, 1)).view_as(visited)
        return visited[..., : self.cell.hidden_size], state

    def join(self, features: Tensor, action: Tensor) -> Tensor:
        """Join features ``[…, F]`` with actions ``[…, A]``, which may have further leading dimensions."""
        if self.joint is None:
            raise ConfigError("an action was given to an encoder that was made by `create`; use `create_with_action`")
        leading = torch.broadcast_shapes(features.shape[:-1], action.shape[:-1])
        features, action = features.expand(*leading, -1), action.expand(*leading, -1)
        joined: Tensor = self.joint(features.flatten(0, -2), action.flatten(0, -2))
        return joined.view(*leading, -1)

    def forward(self, observation: Tree, action: Tensor | None = None) -> Tensor:
        """Return features ``[M, F]`` of single observations ``[M, *shape]``, from the zero state."""
        x = self.embed(observation)
        features = self._step(x, x.new_zeros(x.shape[0], self.state_size))[..., : self.cell.hidden_size]
        return features if action is None else self.join(features, action)

    def _step(self, x: Tensor, state: Tensor) -> Tensor:
        if self.is_lstm:
            output, cell = state.chunk(2, -1)
            return torch.cat(self.cell(x, (output, cell)), -1)
        return cast(Tensor, self.cell(x, state))


class RecurrentMembers(Members):
    """An ensemble of recurrent encoders, each with its own part of the state."""

    def __init__(self, members: Sequence[RecurrentEncoder]) -> None:
        super().__init__(members)
        self.state_size = len(members) * members[0].state_size
        self.feature_size = members[0].feature_size

    def embed(self, observation: Tree) -> Tensor:
        """Return the cores' inputs ``[N, M, P]``; see `RecurrentEncoder.embed`."""
        return torch.stack([member.embed(observation) for member in self.members])  # type: ignore[operator]

    def unroll(
        self,
        sequence: Tensor,
        state: Tensor,
        is_first: Tensor | None,
        following: Tensor | None,
        later: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return features ``[N, T, B, F]`` and the concatenated states; see `RecurrentEncoder.unroll`."""
        results = [
            member.unroll(x, start, is_first, None if following is None else following[index], later)  # type: ignore[operator]
            for index, (member, x, start) in enumerate(
                zip(self.members, sequence, state.chunk(len(self.members), -1), strict=True)
            )
        ]
        return torch.stack([features for features, _ in results]), torch.cat([final for _, final in results], -1)

    def join(self, features: Tensor, action: Tensor) -> Tensor:
        """Join features ``[N, …, F]`` with actions; see `RecurrentEncoder.join`."""
        return torch.stack(
            [member.join(part, action) for member, part in zip(self.members, features, strict=True)]  # type: ignore[operator]
        )


Recurrent = RecurrentEncoder | RecurrentMembers
"""Encoders that have a state."""


@dataclass(frozen=True)
class _RecurrentEncoderFactory(EncoderFactory):
    hidden_size: int = 128
    hidden_units: list[int] = field(default_factory=lambda: [128])
    activation: str = "relu"
    noisy: bool | float = False

    _cell: ClassVar[type[nn.LSTMCell | nn.GRUCell]]
    _ensemble: ClassVar[type[nn.Module]] = RecurrentMembers

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        VectorEncoderFactory(self.hidden_units, self.activation, noisy=self.noisy)  # checks them
        check("hidden_size", self.hidden_size, int, low=1)

    def _encoder(self, observation_shape: Shape, action_size: int, n: int | None) -> RecurrentEncoder:
        joint = None
        if action_size:
            joint = VectorEncoder(self.hidden_size + action_size, [self.hidden_size], self.activation, noisy=self.noisy)
        factory: EncoderFactory = VectorEncoderFactory(self.hidden_units, self.activation, noisy=self.noisy)
        if not is_shape(observation_shape) or len(observation_shape) == 3:
            factory = DefaultEncoderFactory(self.activation, noisy=self.noisy)
        embedding = factory.create(observation_shape)
        return RecurrentEncoder(embedding, self._cell(feature_size_of(embedding), self.hidden_size), joint)


@dataclass(frozen=True)
class LSTMEncoderFactory(_RecurrentEncoderFactory, type="lstm"):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735).

    An action is added after the core.

    Attributes:
        hidden_size: size of the core's output; the state is twice as large.
        hidden_units: dense layers in front of the core. Images and trees have their default encoders instead.
        activation: activation of these layers and of the layer that adds an action.
        noisy: noise of the same layers; see `birl.models.VectorEncoderFactory`. The core has no noise.
    """

    _cell = nn.LSTMCell


@dataclass(frozen=True)
class GRUEncoderFactory(_RecurrentEncoderFactory, type="gru"):
    """Gated recurrent unit (Cho et al. 2014, arXiv:1406.1078).

    An action is added after the core.

    Attributes:
        hidden_size: size of the core's output and of the state.
        hidden_units: dense layers in front of the core. Images and trees have their default encoders instead.
        activation: activation of these layers and of the layer that adds an action.
        noisy: noise of the same layers; see `birl.models.VectorEncoderFactory`. The core has no noise.
    """

    _cell = nn.GRUCell
