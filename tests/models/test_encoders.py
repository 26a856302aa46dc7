"""Encoders and their factories: shapes, ensembles, user encoders, JSON, errors."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from birl.algos import DecisionTransformerConfig, DQNConfig, SACConfig
from birl.errors import ConfigError, ShapeError, UnsupportedError
from birl.files.serializable import decode, encode
from birl.models import (
    BatchRenormEncoderFactory,
    ContinuousQFunction,
    DefaultEncoderFactory,
    DiscreteQFunction,
    DroQEncoderFactory,
    EncoderFactory,
    GRUEncoderFactory,
    LSTMEncoderFactory,
    MeanQFunctionFactory,
    PixelEncoderFactory,
    QRQFunctionFactory,
    SimBaEncoderFactory,
    VectorEncoderFactory,
    register_encoder_factory,
)
from birl.models.encoder_modules import VectorEncoder
from birl.models.layers import EnsembleLinear, Members
from birl.spaces import Continuous, Discrete
from birl.spaces.specs import Spec
from birl.types import Inputs

SMALL_FILTERS = [[4, 3, 2], [8, 2, 1]]


class UserEncoder(nn.Module):
    def __init__(self, size: int, features: int) -> None:
        super().__init__()
        self.fc = nn.Linear(size, features)
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x: Tensor, action: Tensor | None = None) -> Tensor:
        assert x.dim() == 2 and (action is None or action.dim() == 2)
        return torch.relu(self.norm(self.fc(x if action is None else torch.cat([x, action], dim=1))))


@dataclasses.dataclass()
class UserEncoderFactory(EncoderFactory):
    features: int

    def create(self, observation_shape: Any) -> nn.Module:
        return UserEncoder(observation_shape[0], self.features)

    def create_with_action(self, observation_shape: Any, action_size: int, discrete_action: bool = False) -> nn.Module:
        return UserEncoder(observation_shape[0] + action_size, self.features)

    @staticmethod
    def get_type() -> str:
        return "test_user"


class OldEncoderFactory(EncoderFactory):
    """As for d3rlpy, which says nothing of discrete actions."""

    def create_with_action(self, observation_shape: Any, action_size: int) -> nn.Module:  # type: ignore[override]
        return UserEncoder(observation_shape[0] + action_size, 4)

    @staticmethod
    def get_type() -> str:
        return "test_old"


class NewEncoderFactory(OldEncoderFactory):
    """As d3rlpy's documentation has it."""

    def create_with_action(self, observation_shape: Any, action_size: int, discrete_action: bool) -> nn.Module:  # type: ignore[override]
        assert discrete_action is False
        return super().create_with_action(observation_shape, action_size)

    @staticmethod
    def get_type() -> str:
        return "test_new"


class OddEncoderFactory(EncoderFactory):
    def create_with_action(self, observation_shape: Any) -> nn.Module:  # type: ignore[override]
        return UserEncoder(observation_shape[0], 4)

    @staticmethod
    def get_type() -> str:
        return "test_odd"


class BareEncoderFactory(EncoderFactory):
    def create(self, observation_shape: Any) -> nn.Module:
        return nn.Linear(observation_shape[0], 7)

    @staticmethod
    def get_type() -> str:
        return "test_bare"


@pytest.mark.parametrize("factory", [OldEncoderFactory(), NewEncoderFactory()], ids=["two", "three"])
@pytest.mark.parametrize("share", [False, True])
def test_encoders_written_for_d3rlpy(share: bool, factory: EncoderFactory) -> None:
    spec = Spec((3,), Continuous(2))
    critic = ContinuousQFunction(spec, factory, MeanQFunctionFactory(share_encoder=share), 2)
    value = critic(Inputs(torch.randn(5, 3)), torch.randn(5, 2)).mean()
    assert value.shape == (2, 5)


def test_an_encoder_with_other_arguments_gets_them_in_the_message() -> None:
    with pytest.raises(ConfigError, match=r"OddEncoderFactory.create_with_action has the arguments \(obs"):
        ContinuousQFunction(Spec((3,), Continuous(2)), OddEncoderFactory(), MeanQFunctionFactory(), 1)


def test_default_vector_encoder_is_d3rlpys() -> None:
    encoder = VectorEncoderFactory().create((17,))
    assert [tuple(p.shape) for p in encoder.parameters()] == [(256, 17), (256,), (256, 256), (256,)]
    x = torch.randn(3, 17)
    h = x
    for weight, bias in zip(*[iter(encoder.parameters())] * 2, strict=True):
        h = torch.relu(h @ weight.T + bias)
    assert torch.allclose(encoder(x), h, atol=1e-6)


def test_default_pixel_encoder_is_the_nature_dqn() -> None:
    encoder = DefaultEncoderFactory().create((4, 84, 84))
    shapes = [tuple(p.shape) for p in encoder.parameters() if p.dim() > 1]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136)]
    assert encoder(torch.rand(2, 4, 84, 84)).shape == (2, 512)


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("width", [None, 1, 3, 60])
def test_default_encoder_fits_images_of_every_size(channels: int, width: int | None) -> None:
    for side in range(1, 50):
        shape = (channels, side, width or side)
        encoder = DefaultEncoderFactory().create(shape)
        convolves = any(isinstance(module, torch.nn.Conv2d) for module in encoder.modules())
        assert convolves == (max(shape[1:]) >= 8)  # smaller ones are grids of symbols
        assert encoder(torch.rand(2, *shape)).shape == (2, 512 if convolves else 256)


def test_default_encoder_concatenates_the_leaves_unless_one_is_an_image() -> None:
    """MiniGrid's view and direction are one vector, so several Q-functions can be stacked."""
    grid = {"direction": (4,), "image": (7, 7, 3)}
    encoder = DefaultEncoderFactory().create(grid)
    assert [tuple(p.shape) for p in encoder.parameters() if p.dim() > 1] == [(256, 151), (256, 256)]
    assert DefaultEncoderFactory()._stacks(grid)
    image = {"direction": (4,), "image": (3, 12, 12)}
    shapes = [tuple(p.shape) for p in DefaultEncoderFactory().create(image).parameters() if p.dim() > 1]
    assert shapes == [(256, 4), (256, 256), (32, 3, 3, 3), (64, 32, 3, 3), (512, 1024), (256, 768)]
    assert not DefaultEncoderFactory()._stacks(image)
    with pytest.raises(ConfigError, match=r"\(2, 3, 4, 5\)"):
        DefaultEncoderFactory().create({"frames": (2, 3, 4, 5), "direction": (4,)})


@pytest.mark.parametrize("shape", [(96, 96, 3), (8, 8, 3), (10, 10, 1), (21, 16, 4)])
def test_images_with_few_channels_last_are_turned(shape: Any) -> None:
    first = (shape[2], *shape[:2])
    for factory in (DefaultEncoderFactory(), PixelEncoderFactory([[8, 3, 1]])):
        encoder, other = factory.create(shape), factory.create(first)
        other.load_state_dict(encoder.state_dict())
        x = torch.rand(2, *shape)
        assert torch.allclose(encoder(x), other(x.movedim(-1, -3)), atol=1e-6)


@pytest.mark.parametrize("shape", [(84, 84, 12), (16, 16, 8), (60, 80, 6), (48, 64, 9), (96, 72, 12), (210, 160, 12)])
@pytest.mark.parametrize("factory", [DefaultEncoderFactory(), PixelEncoderFactory(), PixelEncoderFactory([[8, 3, 1]])])
def test_many_channels_last_are_refused_with_the_way_out(shape: Any, factory: EncoderFactory) -> None:
    first = re.escape(str((shape[2], *shape[:2])))
    with pytest.raises(ConfigError, match=rf"channels last.*here {first}.*ChannelFirst.*moveaxis"):
        factory.create(shape)


@pytest.mark.parametrize(
    "shape", [(3, 7, 8), (4, 9, 2), (8, 8, 8), (64, 10, 9), (10, 10, 10), (64, 20, 18), (12, 84, 96)]
)
def test_shapes_that_can_be_channels_first_are(shape: Any) -> None:
    assert DefaultEncoderFactory().create(shape)(torch.rand(2, *shape)).shape == (2, 512)


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (VectorEncoderFactory([8], exclude_last_activation=True), lambda x: x),
        (VectorEncoderFactory([8], last_activation="tanh"), torch.tanh),
        (VectorEncoderFactory([8], activation="swish"), lambda x: x * x.sigmoid()),
        (VectorEncoderFactory([8], activation="gelu"), nn.functional.gelu),
        (VectorEncoderFactory([8], use_layer_norm=True), lambda x: nn.functional.layer_norm(x.relu(), (8,))),
    ],
)
def test_last_layer_options(factory: VectorEncoderFactory, expected: Callable[[Tensor], Tensor]) -> None:
    encoder = factory.create((3,))
    x = torch.randn(5, 3)
    weight, bias = list(encoder.parameters())[:2]
    assert torch.allclose(encoder(x), expected(x @ weight.T + bias), atol=1e-5)


@pytest.mark.parametrize("with_action", [False, True])
@pytest.mark.parametrize("use_layer_norm", [False, True])
def test_stacked_ensemble_equals_a_loop_with_the_same_weights(use_layer_norm: bool, with_action: bool) -> None:
    factory = VectorEncoderFactory([6, 5], "tanh", use_layer_norm=use_layer_norm, last_activation="relu")
    stacked = factory.build((4,), Continuous(2) if with_action else None, 3)
    members = [factory.create_with_action((4,), 2) if with_action else factory.create((4,)) for _ in range(3)]
    with torch.no_grad():
        for parameter in stacked.parameters():
            parameter.add_(torch.randn_like(parameter))  # scale and shift of the layer norm too
        for index, member in enumerate(members):
            for own, parameter in zip(member.parameters(), stacked.parameters(), strict=True):
                value = parameter[index]
                own.copy_(value.T if own.dim() == 2 else value.reshape(own.shape))
    inputs = [torch.randn(7, 4)] + ([torch.randn(7, 2)] if with_action else [])
    assert isinstance(stacked, VectorEncoder)
    assert torch.allclose(stacked(*inputs), Members(members)(*inputs), atol=1e-5)


def test_members_start_apart_and_like_separate_linear_layers() -> None:
    torch.manual_seed(0)
    layer = EnsembleLinear(4, 64, 64)
    bound = 1 / math.sqrt(64)
    assert len({round(member.sum().item(), 4) for member in layer.weight}) == 4
    single = nn.Linear(64, 64)
    for values, reference in ((layer.weight, single.weight), (layer.bias, single.bias)):
        assert values.abs().max() <= bound and values.abs().max() > 0.97 * bound
        assert values.abs().max().item() == pytest.approx(reference.abs().max().item(), rel=0.05)
        assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("out", [1, 5])
def test_ensemble_linear_takes_shared_and_separate_inputs_with_any_leading_dimensions(n: int, out: int) -> None:
    layer = EnsembleLinear(n, 4, out)
    x = torch.randn(n, 2, 3, 4)
    expected = torch.einsum("n...i,nio->n...o", x, layer.weight) + layer.bias.unsqueeze(1)
    assert torch.allclose(layer(x), expected, atol=1e-6)
    shared = torch.einsum("mi,nio->nmo", x[0, 0], layer.weight) + layer.bias
    assert torch.allclose(layer(x[0, 0]), shared, atol=1e-6)
    assert torch.allclose(layer(x[:1, 0]), shared, atol=1e-6)


@pytest.mark.parametrize("out", [1, 2])
@pytest.mark.parametrize(
    "x", [torch.ones(3, 5, 1), torch.ones(16), torch.ones(3, 5, 16).double(), torch.ones(2, 5, 16), torch.ones(5, 15)]
)
def test_ensemble_linear_refuses_inputs_that_do_not_fit(x: Tensor, out: int) -> None:
    with pytest.raises(RuntimeError):
        EnsembleLinear(3, 16, out)(x)


@pytest.mark.parametrize(
    "factory",
    [
        VectorEncoderFactory([8], use_batch_norm=True, dropout_rate=0.1),
        VectorEncoderFactory([8]),
        DefaultEncoderFactory(),
        UserEncoderFactory(9),
        LSTMEncoderFactory(5, [6]),
        GRUEncoderFactory(5, [6]),
    ],
    ids=lambda factory: type(factory).__name__,
)
@pytest.mark.parametrize("n", [1, 2])
def test_ensembles_of_all_encoders(factory: EncoderFactory, n: int) -> None:
    critic = ContinuousQFunction(Spec((4,), Continuous(2)), factory, MeanQFunctionFactory(), n)
    values = critic(Inputs(torch.randn(6, 4)), torch.randn(6, 2)).mean()
    assert values.shape == (n, 6)
    if n == 2:
        assert not torch.allclose(values[0], values[1])
    discrete = DiscreteQFunction(Spec((4,), Discrete(3)), factory, QRQFunctionFactory(n_quantiles=5), n)
    assert discrete(Inputs(torch.randn(6, 4))).mean().shape == (n, 6, 3)


def test_user_encoder_without_feature_size_keeps_its_batch_statistics() -> None:
    critic = DiscreteQFunction(Spec((4,), Discrete(3)), UserEncoderFactory(9), MeanQFunctionFactory(), 2)
    assert critic.feature_size == 9
    assert all(not buffer.any() for name, buffer in critic.named_buffers() if name.endswith("running_mean"))
    assert all(part.training for part in critic.modules())


def test_user_factory_without_a_dataclass_and_without_an_action_encoder() -> None:
    factory = BareEncoderFactory()
    assert isinstance(decode(encode(factory)), BareEncoderFactory)
    assert DiscreteQFunction(Spec((4,), Discrete(3)), factory, MeanQFunctionFactory(), 1).feature_size == 7
    with pytest.raises(UnsupportedError, match="create_with_action"):
        ContinuousQFunction(Spec((4,), Continuous(3)), factory, MeanQFunctionFactory(), 1)


class ForwardEncoder(UserEncoder):
    """Applies the given function to observation (and action)."""

    def __init__(self, size: int, feature_size: int | None, forward: Callable[..., Any]) -> None:
        super().__init__(size, 4)
        self.function = forward
        if feature_size is not None:
            self.feature_size = feature_size

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(super().forward, *inputs)


@dataclasses.dataclass()
class ForwardEncoderFactory(EncoderFactory, type="test_forward"):
    function: Any
    feature_size: int | None = None

    def create(self, observation_shape: Any) -> Any:
        return self._made(observation_shape[0])

    def create_with_action(self, observation_shape: Any, action_size: int) -> Any:  # type: ignore[override]
        return self._made(observation_shape[0] + action_size)

    def _made(self, size: int) -> Any:
        return None if self.function is None else ForwardEncoder(size, self.feature_size, self.function)


FAULTS: list[tuple[ForwardEncoderFactory, str]] = [
    (ForwardEncoderFactory(None), "None; it must return a torch.nn.Module"),
    (
        ForwardEncoderFactory(lambda own, *x: own(*x), feature_size=9),
        r"a ForwardEncoder that makes torch.float32 \(2, 4\) of .*but its feature_size is 9, for which it must "
        r"make \(2, 9\): set self.feature_size = 4",
    ),
    (ForwardEncoderFactory(lambda own, *x: own(*x).flatten(), 4), r"makes torch.float32 \(8,\).*it must .* \(2, F\)"),
    (ForwardEncoderFactory(lambda own, *x: own(*x)[0]), r"makes torch.float32 \(4,\) of"),
    (ForwardEncoderFactory(lambda own, *x: own(*x).mean(0, keepdim=True)), r"\(1, 4\) of"),
    (ForwardEncoderFactory(lambda own, *x: own(*x).double()), r"makes torch.float64 \(2, 4\).*must make torch.float32"),
    (ForwardEncoderFactory(lambda own, *x: (own(*x), None)), "makes a tuple of"),
    (ForwardEncoderFactory(lambda own, x: own(x[:, :1])), r"cannot encode .*Error: .*It must have forward\(self, obs"),
]


@pytest.mark.parametrize(("factory", "message"), FAULTS, ids=range(len(FAULTS)))
@pytest.mark.parametrize(
    ("config", "given", "actions"),
    [
        (SACConfig, "critic_encoder_factory", Continuous(2)),
        (SACConfig, "actor_encoder_factory", Continuous(2)),
        (DQNConfig, "encoder_factory", Discrete(3)),
        (DecisionTransformerConfig, "encoder_factory", Continuous(2)),
    ],
)
def test_an_own_encoder_that_does_not_fit_is_refused_when_it_is_built(
    config: Any, given: str, actions: Any, factory: ForwardEncoderFactory, message: str
) -> None:
    method = "create_with_action" if given.startswith("critic") else "create"
    with pytest.raises(ConfigError, match=rf"^ForwardEncoderFactory.{method} returned .*{message}"):
        config(**{given: factory}).create().create_impl((3,), actions.size)


def test_an_own_encoder_that_takes_no_action_is_refused_with_what_it_gets() -> None:
    factory = ForwardEncoderFactory(lambda own, x: own(x))
    words = r"_with_action returned .* observations \(2, 3\) and actions \(2, 2\): TypeError.*\(self, observation, act"
    with pytest.raises(ConfigError, match=words):
        ContinuousQFunction(Spec((3,), Continuous(2)), factory, MeanQFunctionFactory(), 2)
    DiscreteQFunction(Spec((3,), Discrete(2)), factory, MeanQFunctionFactory(), 2)


def test_trying_an_own_encoder_changes_neither_random_numbers_nor_its_state() -> None:
    calls = []

    def noisy(own: Any, x: Tensor) -> Tensor:
        calls.append(len(x))
        return own(x) + torch.randn(len(x), 4)  # type: ignore[no-any-return]

    factory = ForwardEncoderFactory(noisy, 4)
    torch.manual_seed(0)
    critic = DiscreteQFunction(Spec((3,), Discrete(2)), factory, MeanQFunctionFactory(), 2)
    after = torch.rand(1)
    torch.manual_seed(0)
    for _ in range(2):
        factory.create((3,))
    MeanQFunctionFactory().create_head(2, 4, 2)
    assert torch.equal(after, torch.rand(1))
    assert calls == [2, 2] and all(part.training for part in critic.modules())
    assert not any(buffer.any() for name, buffer in critic.named_buffers() if not name.endswith("running_var"))


def test_encoders_of_birl_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VectorEncoder, "forward", None)
    for n in (None, 1, 2):
        VectorEncoderFactory([8]).build((3,), Continuous(2), n)


def test_a_class_of_birls_with_an_own_method_is_used_in_ensembles_too() -> None:
    class Own(VectorEncoderFactory, type="test_own_vector"):
        def create(self, observation_shape: Any) -> nn.Module:
            return UserEncoder(observation_shape[0], 5)

    critic = DiscreteQFunction(Spec((4,), Discrete(3)), Own(), MeanQFunctionFactory(), 2)
    assert isinstance(critic.encoder, Members) and critic.feature_size == 5
    assert isinstance(Own([8]).build((4,), Continuous(2), 2), VectorEncoder)


@pytest.mark.parametrize(
    "factory",
    [
        VectorEncoderFactory([3, 4], "tanh", dropout_rate=0.5, last_activation="gelu"),
        PixelEncoderFactory(SMALL_FILTERS, 32, use_batch_norm=True),
        DefaultEncoderFactory("silu", dropout_rate=0.25),
        LSTMEncoderFactory(16, [8, 8]),
        GRUEncoderFactory(16, []),
        UserEncoderFactory(3),
    ],
    ids=lambda factory: type(factory).__name__,
)
def test_factories_survive_json(factory: EncoderFactory) -> None:
    assert decode(encode(factory)) == factory
    assert EncoderFactory.deserialize(factory.serialize()) == factory


def test_a_class_gives_its_name_as_a_keyword() -> None:
    @dataclasses.dataclass(frozen=True)
    class Own(EncoderFactory, type="test_own_encoder"):
        size: int = 1

    assert Own.get_type() == Own(2).get_type() == "test_own_encoder"
    assert decode(encode(Own(2))) == EncoderFactory.deserialize(Own(2).serialize()) == Own(2)


def test_registering_is_allowed_and_checked() -> None:
    register_encoder_factory(UserEncoderFactory)
    with pytest.raises(ConfigError, match="EncoderFactory"):
        register_encoder_factory(dict)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [tuple, dict])
def test_trees_of_observations(kind: type) -> None:
    vector, pixels = torch.randn(3, 2, 4), torch.randint(0, 255, (3, 2, 1, 36, 36), dtype=torch.uint8)
    shape: Any = ((4,), (1, 36, 36)) if kind is tuple else {"a": (4,), "b": (1, 36, 36)}
    observation: Any = (vector, pixels) if kind is tuple else {"a": vector, "b": pixels}
    critic = ContinuousQFunction(Spec(shape, Continuous(2)), DefaultEncoderFactory(), MeanQFunctionFactory(), 2)
    action = torch.randn(3, 2, 2)
    values = critic(Inputs(observation), action).mean()
    assert values.shape == (2, 3, 2)
    moved = critic(Inputs(observation), action + 1.0).mean()
    assert not torch.allclose(values, moved)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VectorEncoderFactory(activation="rleu"), "rleu.*relu"),
        (lambda: VectorEncoderFactory([0]), "hidden_units.*>= 1"),
        (lambda: VectorEncoderFactory(dropout_rate=1.0), "dropout_rate is 1.0"),
        (lambda: VectorEncoderFactory(last_activation="?"), "activation"),
        (lambda: PixelEncoderFactory([[1, 2]]), "filters"),
        (lambda: PixelEncoderFactory(feature_size=0), "feature_size"),
        (lambda: PixelEncoderFactory().create((1, 10, 10)), "too small"),
        (lambda: PixelEncoderFactory().create((4,)), "channels, height, width"),
        (lambda: DefaultEncoderFactory().create((4, 84, 84, 3)), r"\(4, 84, 84, 3\).*frames \* channels.*Vector"),
        (lambda: DefaultEncoderFactory().build((2, 3, 4, 5, 6), Continuous(2), 2), r"join dimensions before\. Vector"),
        (lambda: LSTMEncoderFactory(0), "hidden_size"),
    ],
)
def test_wrong_settings_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_other_ranks_are_flattened() -> None:
    assert DefaultEncoderFactory().create((3, 5))(torch.randn(2, 3, 5)).shape == (2, 256)
    assert DefaultEncoderFactory().create(())(torch.randn(2)).shape == (2, 256)
    assert VectorEncoderFactory().create((2, 3, 4, 5))(torch.randn(2, 2, 3, 4, 5)).shape == (2, 256)


def _simba_by_hand(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    def normed(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / scale * parameters[f"{name}.weight"] + parameters[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ parameters[f"{name}.linear.weight"].T + parameters[f"{name}.linear.bias"]

    x = linear(x, "embedding")
    for block in ("blocks.0", "blocks.1"):
        x = x + linear(linear(normed(x, f"{block}.norm"), f"{block}.expand").clamp(min=0), f"{block}.contract")
    return normed(x, "norm")


@pytest.mark.parametrize("with_action", [False, True])
def test_simba_is_the_papers_and_stacks(with_action: bool) -> None:
    factory = SimBaEncoderFactory(feature_size=6, hidden_size=10, n_blocks=2)
    encoder = factory.create_with_action((3,), 2) if with_action else factory.create((3,))
    stacked = factory.build((3,), Continuous(2) if with_action else None, 3)
    for name, parameter in stacked.named_parameters():  # the second member becomes the single encoder
        own = encoder.get_parameter(name)
        with torch.no_grad():
            own.normal_()
            parameter[1] = own.T if own.dim() == 2 else own
    x, action = torch.randn(5, 3), [torch.randn(5, 2)] if with_action else []
    expected = _simba_by_hand(dict(encoder.named_parameters()), torch.cat([x, *action], -1))
    torch.testing.assert_close(encoder(x, *action), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(stacked(x, *action)[1], expected, atol=1e-5, rtol=1e-5)
    assert stacked(x, *action).shape == (3, 5, 6) and encoder.feature_size == 6
    assert decode(encode(factory)) == factory


def test_simba_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="n_blocks is 0; it must be an int >= 1"):
        SimBaEncoderFactory(n_blocks=0)


FLAT = (
    VectorEncoderFactory([6, 5]),
    SimBaEncoderFactory(feature_size=6, hidden_size=10),
    DroQEncoderFactory([6, 5], dropout_rate=0.0),
    BatchRenormEncoderFactory([6, 5]),
)


@pytest.mark.parametrize("factory", FLAT, ids=lambda each: type(each).__name__)
def test_parts_of_observations_are_put_side_by_side(factory: EncoderFactory) -> None:
    """What reads a flat vector reads dicts and tuples like the vector of all of their numbers."""
    parts: Any = {"goal": torch.randn(4, 2), "rest": (torch.randn(4, 1), torch.randn(4, 3, 2))}
    row = torch.cat([parts["goal"], parts["rest"][0], parts["rest"][1].flatten(1)], -1)
    shape: Any = {"goal": (2,), "rest": ((1,), (3, 2))}
    action = torch.randn(4, 2)
    for n, given in ((None, []), (3, []), (None, [action]), (3, [action])):
        torch.manual_seed(0)
        actions = Continuous(2) if given else None
        of_parts = factory.build(shape, actions, n)
        torch.manual_seed(0)
        of_rows = factory.build((9,), actions, n)
        features = of_parts(parts, *given)
        torch.testing.assert_close(features, of_rows(row, *given), rtol=0, atol=0)
        assert features.shape == ((4, of_parts.feature_size) if n is None else (3, 4, of_parts.feature_size))
    with pytest.raises(ShapeError, match="each size must be >= 1"):
        factory.create({"goal": (2,), "rest": (0,)})
