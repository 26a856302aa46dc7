"""Factories of encoders, which turn observations into features.

Your own encoder is a dataclass ``class Mine(EncoderFactory, type="mine")`` with ``create`` (and ``create_with_action``
for Q-functions of continuous actions). Its modules map flat batches ``[M, *observation_shape]`` to ``[M, F]``; they
need not support sequences, ensembles or seeds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from birl.checks import Allowed, check
from birl.errors import ConfigError, ShapeError, UnsupportedError
from birl.files.serializable import Serializable
from birl.models.encoder_modules import PixelEncoder, SimBaEncoder, TreeEncoder, VectorEncoder, channels_first
from birl.models.layers import Members, activation_named
from birl.models.noisy import check_noisy
from birl.spaces import Actions
from birl.types import Shape, is_shape, leaf_shapes, shape_map

SIZE = Allowed(int, low=1)


class EncoderFactory(Serializable):
    """Base of encoder factories.

    Attributes:
        output_scale: factor on the initial weights and biases of the layer that follows the encoder in policies, value
            functions and Q-functions.
    """

    output_scale: float = 1.0
    _ensemble: ClassVar[type[nn.Module]] = Members

    def create(self, observation_shape: Shape) -> nn.Module:
        """Make an encoder: ``forward(observation [M, *shape]) -> [M, F]``."""
        return self._encoder(observation_shape, 0, None)

    def create_with_action(
        self, observation_shape: Shape, action_size: int, discrete_action: bool = False
    ) -> nn.Module:
        """Make an action-conditioned encoder: ``forward(observation [M, *shape], action [M, A]) -> [M, F]``.

        Args:
            observation_shape: see `birl.spaces.specs.Spec`.
            action_size: number of action dimensions, or of discrete actions.
            discrete_action: whether the action is a one-hot vector of ``action_size``.
        """
        return self._encoder(observation_shape, action_size, None)

    def build(self, observation_shape: Shape, actions: Actions | None = None, n: int | None = None) -> nn.Module:
        """Make one encoder, or ``n`` independent ones as one module with outputs ``[N, M, F]``.

        Args:
            observation_shape: see `birl.spaces.specs.Spec`.
            actions: actions to encode together with the observation, or ``None`` for an encoder of observations alone.
            n: number of members, or ``None`` for a plain encoder.

        Raises:
            ConfigError: if a user's method returns no suitable encoder. It is tried with a small batch.
        """
        method = "create" if actions is None else "create_with_action"
        overridden = getattr(type(self), method) is not getattr(EncoderFactory, method)
        if n is not None:
            if n > 1 and not overridden and self._stacks(observation_shape):
                return self._encoder(observation_shape, actions.size if actions else 0, n)
            return self._ensemble([self.build(observation_shape, actions) for _ in range(n)])
        if actions is None:
            encoder = self.create(observation_shape)
        else:
            encoder = self.create_with_action(*self._accepted(observation_shape, actions))
        if overridden:
            _check_encoder(f"{type(self).__name__}.{method}", encoder, observation_shape, actions)
        return encoder

    def _accepted(self, observation_shape: Shape, actions: Actions) -> tuple[Any, ...]:
        """Return the arguments for ``create_with_action``: some factories for d3rlpy do not take the third."""
        arguments = (observation_shape, actions.size, actions.discrete)
        signature = inspect.signature(self.create_with_action)
        for given in (arguments, arguments[:2]):
            with contextlib.suppress(TypeError):
                signature.bind(*given)
                return given
        raise ConfigError(
            f"{type(self).__name__}.create_with_action has the arguments {signature}; it must take "
            "(observation_shape, action_size, discrete_action), the last of which may be left out"
        )

    @classmethod
    def from_shorthand(cls, value: object) -> object:
        """See `Serializable`. A list of sizes stands for a `VectorEncoderFactory` with these layers."""
        return VectorEncoderFactory(list(value)) if isinstance(value, list | tuple) else super().from_shorthand(value)

    def _encoder(self, observation_shape: Shape, action_size: int, n: int | None) -> nn.Module:
        """Make one encoder, or a stack of ``n``. ``action_size`` is 0 for encoders of the observation alone."""
        if action_size:
            raise UnsupportedError(
                f"{type(self).__name__} has no create_with_action method, which Q-functions of continuous actions "
                "need: give it one, or use another encoder for the critic"
            )
        raise UnsupportedError(f"{type(self).__name__} has no create method: give it one")

    def _stacks(self, observation_shape: Shape) -> bool:
        """Return whether several encoders can be one module with stacked weights."""
        return False


register_encoder_factory = EncoderFactory.register


@dataclass(frozen=True)
class VectorEncoderFactory(EncoderFactory, type="vector"):
    """Dense layers. Observations with more dimensions are flattened, and parts of dicts and tuples concatenated.

    Attributes:
        hidden_units: size of each layer.
        activation: see `birl.models.layers.ACTIVATIONS`.
        use_batch_norm: batch norm after each activation.
        use_layer_norm: layer norm after each activation.
        dropout_rate: dropout probability after each layer, or ``None``.
        exclude_last_activation: whether the last layer is linear.
        last_activation: activation of the last layer instead of ``activation``.
        noisy: whether all layers have learned noise, by which networks explore (arXiv:1706.10295), or the initial
            amount of noise: ``True`` is the paper's 0.5.
        output_scale: factor on the initial weights and biases of the layer that follows the encoder in a policy, a
            value function or a Q-function. Small factors start with small outputs.
    """

    hidden_units: list[int] = field(default_factory=lambda: [256, 256], hash=False)
    activation: str = "relu"
    use_batch_norm: bool = False
    use_layer_norm: bool = False
    dropout_rate: float | None = None
    exclude_last_activation: bool = False
    last_activation: str | None = None
    noisy: bool | float = False
    output_scale: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        _check_layers(self)
        check_hidden_units(self.hidden_units)

    def _stacks(self, observation_shape: Shape) -> bool:
        return not self.use_batch_norm

    def _encoder(self, observation_shape: Shape, action_size: int, n: int | None) -> nn.Module:
        return VectorEncoder(
            flat_size(observation_shape) + action_size,
            self.hidden_units,
            self.activation,
            _last_activation(self),
            n=n,
            use_batch_norm=self.use_batch_norm,
            use_layer_norm=self.use_layer_norm,
            dropout_rate=self.dropout_rate,
            noisy=self.noisy,
        )


@dataclass(frozen=True)
class PixelEncoderFactory(EncoderFactory, type="pixel"):
    """Convolutions over images ``(channels, height, width)``; the defaults are those of the Nature DQN.

    Attributes:
        filters: ``[channels, kernel size, stride]`` of each convolution.
        feature_size: size of the dense layer after the convolutions; ``None`` for no dense layer, for heads with their
            own streams.
        activation: see `birl.models.layers.ACTIVATIONS`.
        use_batch_norm: batch norm after each activation.
        dropout_rate: dropout probability after each layer, or ``None``.
        exclude_last_activation: whether the dense layer is linear.
        last_activation: activation of the dense layer instead of ``activation``.
        noisy: noise of the dense layer; see `VectorEncoderFactory`.
        output_scale: see `VectorEncoderFactory`.
    """

    filters: list[list[int]] = field(default_factory=lambda: _filters_for(84), hash=False)
    feature_size: int | None = 512
    activation: str = "relu"
    use_batch_norm: bool = False
    dropout_rate: float | None = None
    exclude_last_activation: bool = False
    last_activation: str | None = None
    noisy: bool | float = False
    output_scale: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        _check_layers(self)
        rows = self.filters if isinstance(self.filters, list | tuple) else [None]
        if not all(isinstance(row, list | tuple) and len(row) == 3 and all(map(SIZE.accepts, row)) for row in rows):
            raise ConfigError(f"filters is {self.filters!r}; each must be [channels, kernel size, stride], ints >= 1")
        check("feature_size", self.feature_size, int, low=1, optional=True)
        if self.feature_size is None and (self.noisy or self.exclude_last_activation or self.last_activation):
            raise ConfigError(
                "feature_size is None, so there is no dense layer: leave out noisy, exclude_last_activation and "
                "last_activation, which are for this layer"
            )

    def _encoder(self, observation_shape: Shape, action_size: int, n: int | None) -> nn.Module:
        _check_sizes(observation_shape)
        return PixelEncoder(
            observation_shape,
            self.filters,
            self.feature_size,
            self.activation,
            _last_activation(self),
            action_size=action_size,
            use_batch_norm=self.use_batch_norm,
            dropout_rate=self.dropout_rate,
            noisy=self.noisy,
        )


@dataclass(frozen=True)
class SimBaEncoderFactory(EncoderFactory, type="simba"):
    """SimBa (Lee et al. 2024, arXiv:2410.09754): residual blocks with layer norm, for vector observations.

    Other observations are flattened as in `VectorEncoderFactory`.

    The paper normalises observations by their running mean and standard deviation. To do so, give the algorithm
    ``observation_scaler=StandardObservationScaler()``.

    Attributes:
        feature_size: size of the residual stream and of the features.
        hidden_size: size inside the blocks.
        n_blocks: number of blocks.
        noisy: noise of the dense layers; see `VectorEncoderFactory`.
    """

    feature_size: int = 256
    hidden_size: int = 1024
    n_blocks: int = 1
    noisy: bool | float = False

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check_noisy("noisy", self.noisy)
        for name in ("feature_size", "hidden_size", "n_blocks"):
            check(name, getattr(self, name), int, low=1)

    def _stacks(self, observation_shape: Shape) -> bool:
        return True

    def _encoder(self, observation_shape: Shape, action_size: int, n: int | None) -> nn.Module:
        size = flat_size(observation_shape) + action_size
        return SimBaEncoder(size, self.feature_size, self.hidden_size, self.n_blocks, n=n, noisy=self.noisy)


@dataclass(frozen=True)
class DefaultEncoderFactory(EncoderFactory, type="default"):
    """`PixelEncoderFactory` for images ``(channels, height, width)``, `VectorEncoderFactory` for fewer dimensions.

    Images with a side below 36 pixels get smaller kernels, and fewer convolutions if three do not fit. Those with both
    sides below 8, such as MiniGrid's views, are grids of symbols and are read as vectors.

    The leaves of tuple and dict observations are concatenated and read as one vector. If one is an image, each leaf has
    its own encoder, and a dense layer of 256 units reads their features.

    Attributes:
        activation: see `birl.models.layers.ACTIVATIONS`.
        use_batch_norm: batch norm after each activation.
        dropout_rate: dropout probability after each layer, or ``None``.
        noisy: noise of the dense layers; see `VectorEncoderFactory`.
        output_scale: see `VectorEncoderFactory`.
        hidden_units: size of each layer that reads vectors.
    """

    activation: str = "relu"
    use_batch_norm: bool = False
    dropout_rate: float | None = None
    noisy: bool | float = False
    output_scale: float = field(default=1.0, kw_only=True)
    hidden_units: list[int] = field(default_factory=lambda: [256, 256], hash=False, kw_only=True)

    def __post_init__(self) -> None:
        _check_layers(self)
        check_hidden_units(self.hidden_units)

    def _stacks(self, observation_shape: Shape) -> bool:
        return self._reads_whole(observation_shape) and self._factory(observation_shape)._stacks(observation_shape)

    def _encoder(self, observation_shape: Shape, action_size: int, n: int | None) -> nn.Module:
        if self._reads_whole(observation_shape):
            return self._factory(observation_shape)._encoder(observation_shape, action_size, n)
        leaves = [self._factory(shape).create(shape) for shape in leaf_shapes(observation_shape)]
        joint = VectorEncoder(
            sum(feature_size_of(leaf) for leaf in leaves) + action_size,
            [256],
            self.activation,
            use_batch_norm=self.use_batch_norm,
            dropout_rate=self.dropout_rate,
            noisy=self.noisy,
        )
        return TreeEncoder(leaves, joint)

    @staticmethod
    def _reads_whole(shape: Shape) -> bool:
        """Return whether one encoder reads all parts of the observation."""
        return is_shape(shape) or not any(map(_is_image, leaf_shapes(shape)))

    def _factory(self, shape: Shape) -> EncoderFactory:
        options: dict[str, Any] = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        for leaf in leaf_shapes(shape):
            if len(leaf) > 3:
                frames = "; stacked images are one image of more channels, (frames * channels, height, width)"
                raise ConfigError(
                    f"observations have shape {leaf}; the default encoder takes vectors and images (channels, height, "
                    f"width): join dimensions before{frames if len(leaf) == 4 else ''}. VectorEncoderFactory() "
                    "flattens any shape"
                )
        if is_shape(shape) and _is_image(shape):
            del options["hidden_units"]
            return PixelEncoderFactory(filters=_filters_for(min(channels_first(shape)[1:])), **options)
        return VectorEncoderFactory(**options)


def _is_image(shape: tuple[int, ...]) -> bool:
    """Return whether convolutions read a leaf of this shape by default. Below 8 x 8, it is a grid of symbols.

    PPO with its defaults learns MiniGrid's views of 7 x 7 symbols faster without convolutions, as
    `benchmarks/minigrid_ppo.py` shows.
    """
    return len(shape) == 3 and max(channels_first(shape)[1:]) >= 8


def _filters_for(side: int) -> list[list[int]]:
    """Return the filters of convolutions for images whose shorter side has ``side`` pixels."""
    if side >= 36:
        return [[32, 8, 4], [64, 4, 2], [64, 3, 1]]
    if side >= 18:
        return [[32, 4, 2], [64, 4, 2], [64, 3, 1]]
    if side >= 5:
        return [[32, 3, 1], [64, 3, 2 if side >= 12 else 1]]
    return [[32, max(1, min(side, 3)), 1]]  # the constructor of layers rejects 0


def feature_size_of(encoder: nn.Module, observation_shape: Shape = (), action_size: int | None = None) -> int:
    """Return the number of features of ``encoder``: its ``feature_size``, or the size of a forward pass's result.

    Args:
        encoder: an encoder or an ensemble of encoders.
        observation_shape: see `birl.spaces.specs.Spec`; only needed if the encoder has no ``feature_size``.
        action_size: size of the action vector for action-conditioned encoders.
    """
    member = encoder.members[0] if isinstance(encoder, Members) else encoder
    size = getattr(member, "feature_size", None)
    return size if isinstance(size, int) else int(_tried(member, observation_shape, action_size).shape[-1])


def _tried(encoder: nn.Module, observation_shape: Shape, action_size: int | None) -> Tensor:
    """Return the features of a batch of two zero observations."""
    device = next((weight.device for weight in encoder.parameters()), None)
    zeros = shape_map(lambda shape: torch.zeros(2, *shape, device=device), observation_shape)
    inputs = [zeros] + ([] if action_size is None else [torch.zeros(2, action_size, device=device)])
    modes = [(module, module.training) for module in encoder.modules()]
    encoder.eval()  # batch norm must not learn from zeros
    with torch.no_grad():
        features = encoder(*inputs)
    for module, training in modes:
        module.training = training
    return features


def _check_encoder(method: str, encoder: object, observation_shape: Shape, actions: Actions | None) -> None:
    """Raise `ConfigError` if a user's ``method`` returned an encoder that does not fit."""
    if not isinstance(encoder, nn.Module):
        raise ConfigError(f"{method} returned {encoder!r:.80}; it must return a torch.nn.Module")
    if torch.get_default_device().type == "meta":  # only the tensors of a file are counted
        return
    given = f"observations {shape_map(lambda shape: (2, *shape), observation_shape)}"
    given += "" if actions is None else f" and actions {(2, actions.size)}"
    arguments = "(self, observation)" if actions is None else "(self, observation, action)"
    about = f"{method} returned a {type(encoder).__name__} that"
    try:
        with torch.random.fork_rng(devices=[]):
            features = _tried(encoder, observation_shape, None if actions is None else actions.size)
    except Exception as error:
        raise ConfigError(
            f"{about} cannot encode {given}: {type(error).__name__}: {error}. It must have forward{arguments}, for any "
            "number of rows (here 2)"
        ) from error
    dtype, made = torch.get_default_dtype(), f"a {type(features).__name__}"
    if isinstance(features, Tensor):
        made = f"{features.dtype} {tuple(features.shape)}"
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != 2 or features.dtype != dtype:
        raise ConfigError(f"{about} makes {made} of {given}; it must make {dtype} (2, F): a row of F features for each")
    size, n_features = getattr(encoder, "feature_size", None), features.shape[1]
    if isinstance(size, int) and size != n_features:
        raise ConfigError(
            f"{about} makes {made} of {given}, but its feature_size is {size}, for which it must make {(2, size)}: set "
            f"self.feature_size = {n_features}, or leave it out"
        )


def _check_sizes(shape: Shape) -> None:
    if not all(size >= 1 for leaf in leaf_shapes(shape) for size in leaf):
        raise ShapeError(f"observations have shape {shape!r}; each size must be >= 1: leave empty arrays out")


def flat_size(shape: Shape) -> int:
    """Return the number of elements of one observation."""
    _check_sizes(shape)
    return sum(map(math.prod, leaf_shapes(shape)))


def check_hidden_units(given: object) -> None:
    """Raise `ConfigError` unless these are the sizes of layers."""
    if not isinstance(given, list | tuple) or not all(map(SIZE.accepts, given)):
        raise ConfigError(f"hidden_units is {given!r}; it must be a list of ints >= 1")


def _last_activation(factory: VectorEncoderFactory | PixelEncoderFactory) -> str | None:
    return "none" if factory.exclude_last_activation else factory.last_activation


def _check_layers(factory: VectorEncoderFactory | PixelEncoderFactory | DefaultEncoderFactory) -> None:
    factory.convert_numpy_numbers()
    activation_named(factory.activation)
    last_activation = getattr(factory, "last_activation", None)
    if last_activation is not None:
        activation_named(last_activation)
    for name in ("use_batch_norm", "use_layer_norm", "exclude_last_activation"):
        check(name, getattr(factory, name, False), bool)
    check("dropout_rate", factory.dropout_rate, float, low=0, below=1, optional=True)
    check_noisy("noisy", factory.noisy)
    check("output_scale", factory.output_scale, float, low=0)
