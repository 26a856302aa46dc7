"""Base classes of networks, which have an encoder and take inputs with any leading dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from birl.models.encoder_modules import PixelEncoder, VectorEncoder
from birl.models.encoders import EncoderFactory, feature_size_of
from birl.models.noisy import Random, noise_of
from birl.models.normalized import BatchRenorm
from birl.models.recurrent import Recurrent
from birl.spaces.specs import Spec
from birl.types import Inputs, Tree, shape_map, tree_leaves, tree_map


class Network(nn.Module):
    """Base of networks: an encoder that reads `Inputs`.

    Attributes:
        encoder: reads flat batches only: ``[M, *shape]`` and, if it is action-conditioned, actions ``[M, A]``.
        feature_size: size of the last dimension of the result of `encode`.
        state_size: size of the recurrent state, 0 without recurrence.
        state_key: name under which the state is looked up in `Inputs.state`; the engine sets it.
    """

    def __init__(self, spec: Spec, encoder: nn.Module, *, with_action: bool = False) -> None:
        super().__init__()
        self.spec = spec
        self.encoder = encoder
        self.state_key = ""
        self.feature_size = feature_size_of(encoder, spec.encoder_shape, spec.actions.size if with_action else None)
        self.state_size: int = getattr(encoder, "state_size", 0)
        self._ranks = shape_map(len, spec.encoder_shape)
        self._noisy = bool(noise_of(encoder))

    def encode(self, inputs: Inputs, action: Tensor | None = None) -> Tensor:
        """Return features ``[..., F]``, or ``[N, ..., F]`` with an ensemble encoder.

        Args:
            inputs: observations with any leading dimensions; for recurrent encoders ``[T, B, …]`` or ``[B, …]``.
            action: ``[..., *spec.actions.shape]``. It may have more leading dimensions than the observation, which is
                then repeated, for several actions per state.
        """
        if action is not None:
            action = self.spec.actions.as_input(action)
        if isinstance(self.encoder, Recurrent):
            return self._unroll(self.encoder, inputs, action)
        observation = self.spec.encoder_observation(
            inputs.observation if inputs.following is None else inputs.following
        )
        leading = self._leading(observation)
        # the numbers of dimensions are compared first: torch.export would make a comparison of sizes a constraint
        if action is not None and (action.dim() - 1 != len(leading) or action.shape[:-1] != leading):
            leading = torch.broadcast_shapes(leading, action.shape[:-1])
            observation = tree_map(lambda x, rank: _expand(x, rank, leading), observation, self._ranks)
            action = _expand(action, 1, leading)
        flat = self._flatten(observation)
        features: Tensor = self.encoder(flat) if action is None else self.encoder(flat, action.flatten(0, -2))
        return features if len(leading) == 1 else _unflatten(features, leading)

    def _unroll(self, encoder: Recurrent, inputs: Inputs, action: Tensor | None) -> Tensor:
        observation = self.spec.encoder_observation(inputs.observation)
        leading = self._leading(observation)
        state = self._start_state(inputs, leading[-1])
        is_first = inputs.is_first
        if len(leading) == 1 and is_first is not None:
            is_first = is_first.unsqueeze(0)
        shape = leading if len(leading) == 2 else torch.Size((1, *leading))
        flat = self._flatten(observation)
        following: Tensor | None
        after = None if inputs.following is None else self._flatten(self.spec.encoder_observation(inputs.following))
        if after is not None and self._noisy:  # in one pass, so that both have the same noise
            both = tree_map(lambda *x: torch.cat(x), flat, after)
            sequence, following = (_unflatten(each, shape) for each in encoder.embed(both).chunk(2, -2))
        else:
            sequence = _unflatten(encoder.embed(flat), shape)
            following = None if after is None else _unflatten(encoder.embed(after), shape)
        features, final = encoder.unroll(sequence, state, is_first, following, inputs.later)
        if inputs.state_out is not None:
            inputs.state_out[self.state_key] = final
        if len(leading) == 1:
            features = features.squeeze(-3)
        return features if action is None else encoder.join(features, action)

    def _start_state(self, inputs: Inputs, batch_size: int) -> Tensor:
        states = inputs.state or {}
        state = states.get(self.state_key)
        if state is None:
            state = states.get(self.state_key.removesuffix("_target"))
        if state is None:
            leaf = next(tree_leaves(inputs.observation))
            dtype = leaf.dtype if leaf.is_floating_point() else torch.float32
            return torch.zeros(batch_size, self.state_size, dtype=dtype, device=leaf.device)
        return state

    def _leading(self, observation: Tree) -> torch.Size:
        leaf, rank = next(tree_leaves(observation)), next(tree_leaves(self._ranks))
        return leaf.shape[: leaf.dim() - rank]

    def _flatten(self, observation: Tree) -> Tree:
        return tree_map(_flatten, observation, self._ranks)


class LinearNetwork(Network):
    """An encoder and a linear layer.

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the encoder.
        size: number of outputs, ``spec.actions.size`` by default.
        with_action: whether the encoder also reads actions.
    """

    def __init__(
        self, spec: Spec, encoder_factory: EncoderFactory, size: int | None = None, *, with_action: bool = False
    ) -> None:
        encoder = encoder_factory.build(spec.encoder_shape, spec.actions if with_action else None)
        super().__init__(spec, encoder, with_action=with_action)
        self.linear = nn.Linear(self.feature_size, spec.actions.size if size is None else size)
        self._output_scale = encoder_factory.output_scale
        scale_parameters(self.linear, self._output_scale)

    def make_orthogonal(self, gain: float) -> None:
        """Initialise weights orthogonally and biases with 0, as for PPO (arXiv:2005.12729, section 3).

        Encoders of the user keep their initial weights. So do recurrent networks, which learned memories more slowly
        with orthogonal weights; only their last layer is multiplied by ``gain``.

        Args:
            gain: scale of the last layer's weights, multiplied by the encoder factory's ``output_scale``. The scale of
                the encoder's weights is sqrt(2).
        """
        if is_recurrent(self):
            with torch.no_grad():
                self.linear.weight.mul_(gain)
                self.linear.bias.zero_()
            return
        library = [part for part in self.encoder.modules() if isinstance(part, VectorEncoder | PixelEncoder)]
        scales: dict[nn.Module, float] = {layer: 2**0.5 for part in library for layer in part.modules()}
        for layer, scale in {**scales, self.linear: gain * self._output_scale}.items():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                nn.init.orthogonal_(layer.weight, scale)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)


@torch.no_grad()
def scale_parameters(layer: nn.Module, scale: float) -> None:
    """Multiply the parameters of a layer by a factor."""
    if scale != 1.0:
        for parameter in layer.parameters(recurse=False):
            parameter.mul_(scale)


def is_recurrent(module: nn.Module) -> bool:
    """Return whether ``module`` contains a recurrent encoder."""
    return any(isinstance(part, Recurrent) for part in module.modules())


def set_acting(module: nn.Module, acting: bool) -> None:
    """Switch between acting (no dropout, no noise, running batch statistics, fixed quantile levels) and training."""
    for part in module.modules():
        if type(part).train is nn.Module.train:
            vars(part)["training"] = not acting  # does the same as train() in a quarter of the time
        else:
            part.train(not acting)
        if isinstance(part, Random):
            part.greedy = acting


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Turn dropout off and use running statistics in batch norm, until the block ends.

    Nothing happens if ``module`` has neither, so compiled losses stay in one graph.
    """
    parts = [part for part in module.modules() if isinstance(part, _MODE_DEPENDENT) and part.training]
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part in parts:
            part.training = True


_MOVED_BY_BATCHES = (nn.modules.batchnorm._NormBase, BatchRenorm)
_MODE_DEPENDENT = (nn.modules.dropout._DropoutNd, *_MOVED_BY_BATCHES)


def batch_statistics(nets: nn.Module) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """Return the layers with running statistics of minibatches, such as batch norm, and the parameters next to them.

    These are the parameters of the layer, or, if it has none, those of the smallest module around it that has some.
    """
    found: list[tuple[nn.Module, list[nn.Parameter]]] = []

    def look(module: nn.Module, around: list[nn.Parameter]) -> None:
        around = list(module.parameters()) or around
        if isinstance(module, _MOVED_BY_BATCHES):
            found.append((module, around))
        for child in module.children():
            look(child, around)

    if normalises_by_batch(nets):
        look(nets, [])
    return found


def normalises_by_batch(nets: nn.Module) -> bool:
    """Return whether a layer has running statistics of minibatches, such as batch norm."""
    return any(isinstance(module, _MOVED_BY_BATCHES) for module in nets.modules())


def _flatten(x: Tensor, rank: int) -> Tensor:
    x = x if x.is_floating_point() else x.float()
    return x if x.dim() == rank + 1 else x.reshape(-1, *x.shape[x.dim() - rank :])


def _expand(x: Tensor, rank: int, leading: torch.Size) -> Tensor:
    return x.expand(*leading, *x.shape[x.dim() - rank :])


def _unflatten(features: Tensor, leading: torch.Size) -> Tensor:
    return features.view(*features.shape[:-2], *leading, features.shape[-1])
