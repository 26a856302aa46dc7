"""Q-functions, policies and values over any leading dimensions; modes; compilation."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from birl.errors import ConfigError, ShapeError
from birl.files.serializable import decode, encode
from birl.models import (
    C51QFunctionFactory,
    CategoricalPolicy,
    ContinuousQFunction,
    DefaultEncoderFactory,
    DeterministicPolicy,
    DiscreteQFunction,
    EncoderFactory,
    GRUEncoderFactory,
    IQNQFunctionFactory,
    LSTMEncoderFactory,
    MeanQFunctionFactory,
    NormalPolicy,
    PixelEncoderFactory,
    QFunctionFactory,
    QRQFunctionFactory,
    Scalar,
    SquashedNormalPolicy,
    ValueFunction,
    VectorEncoderFactory,
    eval_mode,
    set_acting,
)
from birl.models.distributions import Categorical, Normal, SquashedNormal
from birl.models.heads import ImplicitQuantileHead
from birl.models.scalar import SMALLEST
from birl.spaces import Continuous, Discrete
from birl.spaces.specs import Spec
from birl.types import Inputs
from tests.tiers import slow_but

HEADS: list[QFunctionFactory] = [
    MeanQFunctionFactory(),
    QRQFunctionFactory(n_quantiles=5),
    IQNQFunctionFactory(n_quantiles=6, n_greedy_quantiles=4, embed_size=8),
    C51QFunctionFactory(n_atoms=11),
]
DISCRETE, CONTINUOUS = Spec((4,), Discrete(3)), Spec((4,), Continuous(2))
ENCODER = VectorEncoderFactory([8, 8])
LSTM, GRU = LSTMEncoderFactory(4, [6]), GRUEncoderFactory(4, [6])
every_head = pytest.mark.parametrize("head", HEADS, ids=lambda head: head.get_type())


def shared(head: QFunctionFactory) -> QFunctionFactory:
    return type(head).deserialize({"type": head.get_type(), "params": {**head.get_params(), "share_encoder": True}})


@every_head
@pytest.mark.parametrize("share_encoder", [False, True])
@pytest.mark.parametrize("leading", [(7,), (3, 7), (2, 3, 7)])
@pytest.mark.parametrize("n", [1, 3])
def test_shapes(head: QFunctionFactory, share_encoder: bool, leading: tuple[int, ...], n: int) -> None:
    head = shared(head) if share_encoder else head
    observation, reward = torch.randn(*leading, 4), torch.randn(leading)
    discrete = DiscreteQFunction(DISCRETE, ENCODER, head, n)(Inputs(observation))
    assert discrete.mean().shape == (n, *leading, 3)
    action = torch.randint(3, leading)
    assert discrete.gather(action).mean().shape == (n, *leading)
    target = discrete.min().mix(torch.full((*leading, 3), 1 / 3)).backup(reward, reward.abs(), bonus=reward)
    assert discrete.gather(action).td_loss(target).shape == (n, *leading)
    continuous = ContinuousQFunction(CONTINUOUS, ENCODER, head, n)(Inputs(observation), torch.randn(*leading, 2))
    assert continuous.mean().shape == (n, *leading)
    assert continuous.td_loss(continuous.min().backup(reward, reward.abs())).shape == (n, *leading)
    assert continuous.average().mean().shape == leading


@every_head
@pytest.mark.parametrize("share_encoder", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_the_first_member_alone(head: QFunctionFactory, share_encoder: bool, n: int) -> None:
    critic = ContinuousQFunction(CONTINUOUS, ENCODER, shared(head) if share_encoder else head, n)
    inputs, action = Inputs(torch.randn(5, 4)), torch.randn(5, 2)
    torch.manual_seed(0)
    every = critic(inputs, action).mean()
    torch.manual_seed(0)
    first = critic.first(inputs, action).mean()
    torch.testing.assert_close(first[0], every[0])
    assert len(first) == (n if share_encoder else 1)
    gradients = torch.autograd.grad(first[0].sum(), list(critic.head.parameters()))
    assert all(bool(gradient[0].any()) and not bool(gradient[1:].any()) for gradient in gradients)


@every_head
def test_leading_dimensions_do_not_change_values(head: QFunctionFactory) -> None:
    critic = DiscreteQFunction(DISCRETE, ENCODER, head, 2)
    set_acting(critic, True)
    observation = torch.randn(3, 5, 4)
    flat = critic(Inputs(observation.flatten(0, 1))).mean()
    assert torch.allclose(critic(Inputs(observation)).mean(), flat.view(2, 3, 5, 3), atol=1e-6)
    with pytest.raises(ShapeError, match="batch dimension"):
        critic(Inputs(observation[0, 0]))


@pytest.mark.parametrize("encoder", [ENCODER, LSTMEncoderFactory(6, [8])], ids=["vector", "lstm"])
def test_many_actions_for_each_state(encoder: Any) -> None:
    critic = ContinuousQFunction(CONTINUOUS, encoder, MeanQFunctionFactory(), 2)
    observation, action = torch.randn(5, 4), torch.randn(10, 5, 2)
    values = critic(Inputs(observation), action).mean()
    assert values.shape == (2, 10, 5)
    assert torch.allclose(values[:, 3], critic(Inputs(observation), action[3]).mean(), atol=1e-6)


def test_discrete_actions_are_one_hot_for_action_conditioned_encoders() -> None:
    discrete = ContinuousQFunction(DISCRETE, ENCODER, MeanQFunctionFactory(), 2)
    plain = ContinuousQFunction(Spec((4,), Continuous(3)), ENCODER, MeanQFunctionFactory(), 2)
    plain.load_state_dict(discrete.state_dict())
    inputs, action = Inputs(torch.randn(5, 4)), torch.tensor([0, 2, 1, 1, 0])
    expected = plain(inputs, nn.functional.one_hot(action, 3).float()).mean()
    assert torch.equal(discrete(inputs, action).mean(), expected)


def test_feed_forward_networks_look_at_the_following_observation() -> None:
    value = ValueFunction(CONTINUOUS, ENCODER)
    here, there = torch.randn(3, 5, 4), torch.randn(3, 5, 4)
    assert torch.equal(value(Inputs(here, following=there)), value(Inputs(there)))


def test_integer_observations_are_converted() -> None:
    value = ValueFunction(CONTINUOUS, ENCODER)
    x = torch.randint(0, 255, (5, 4), dtype=torch.uint8)
    assert torch.equal(value(Inputs(x)), value(Inputs(x.float())))


# -- the heads -----------------------------------------------------------------------------------------------


def test_iqn_by_the_papers_equation() -> None:
    head = ImplicitQuantileHead(2, feature_size=8, n_actions=3, n_quantiles=5, n_greedy_quantiles=4, embed_size=6)
    head.greedy = True
    features = torch.randn(2, 7, 8)
    returns = head(features)
    taus = [0.125, 0.375, 0.625, 0.875]
    assert torch.allclose(returns.taus, torch.tensor(taus))
    for member in range(2):
        for index, tau in enumerate(taus):
            cosines = torch.tensor([math.cos(math.pi * i * tau) for i in range(1, 7)])
            phi = torch.relu(cosines @ head.embedding.weight[member] + head.embedding.bias[member, 0])
            out = (features[member] * phi) @ head.linear.weight[member] + head.linear.bias[member, 0]
            assert torch.allclose(returns.values[member, :, :, index], out, atol=1e-5)


def test_iqn_draws_new_levels_for_each_element_and_forward_unless_it_acts() -> None:
    critic = DiscreteQFunction(DISCRETE, ENCODER, HEADS[2], 2)
    inputs = Inputs(torch.randn(7, 4))
    first, second = critic(inputs), critic(inputs)
    assert first.taus.shape == (7, 6)
    assert not torch.equal(first.taus, second.taus)
    assert len(first.taus.unique()) == 42
    set_acting(critic, True)
    assert torch.equal(critic(inputs).mean(), critic(inputs).mean())
    assert critic(inputs).taus.shape == (4,)
    set_acting(critic, False)
    assert critic(inputs).taus.shape == (7, 6)


def test_quantile_levels_are_midpoints_and_atoms_cover_the_range() -> None:
    returns = DiscreteQFunction(DISCRETE, ENCODER, HEADS[1], 1)(Inputs(torch.randn(2, 4)))
    assert torch.allclose(returns.taus, torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]))
    atoms = DiscreteQFunction(DISCRETE, ENCODER, HEADS[3], 1)(Inputs(torch.randn(2, 4))).support
    assert torch.allclose(atoms, torch.linspace(-10, 10, 11))


@every_head
def test_members_start_apart(head: QFunctionFactory) -> None:
    critic = DiscreteQFunction(DISCRETE, ENCODER, shared(head), 3)
    set_acting(critic, True)
    values = critic(Inputs(torch.randn(7, 4))).mean()
    assert not torch.allclose(values[0], values[1]) and not torch.allclose(values[1], values[2])


@every_head
def test_q_function_factories_survive_json(head: QFunctionFactory) -> None:
    assert decode(encode(shared(head))) == shared(head)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QRQFunctionFactory(n_quantiles=0), "n_quantiles is 0.*>= 1"),
        (lambda: IQNQFunctionFactory(embed_size=0), "embed_size"),
        (lambda: C51QFunctionFactory(n_atoms=1), "n_atoms is 1.*>= 2"),
        (lambda: C51QFunctionFactory(v_min=1.0, v_max=1.0), "v_min"),
        (lambda: Scalar(0.0), "initial is 0.0"),
        (lambda: Scalar(0.0, "softplus"), "initial is 0.0"),
        (lambda: Scalar(1.0, "square"), "transform"),
    ],
)
def test_wrong_settings_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


# -- policies, values, scalars -------------------------------------------------------------------------------


@pytest.mark.parametrize("leading", [(), (5,), (3, 5)])
def test_policies(leading: tuple[int, ...]) -> None:
    inputs = Inputs(torch.randn(*leading, 4))
    action = DeterministicPolicy(CONTINUOUS, ENCODER)(inputs)
    assert action.shape == (*leading, 2) and action.abs().max() < 1
    squashed = SquashedNormalPolicy(CONTINUOUS, ENCODER)(inputs)
    assert isinstance(squashed, SquashedNormal) and squashed.sample()[1].shape == leading
    normal = NormalPolicy(CONTINUOUS, ENCODER, tanh_mean=True, log_std_range=(-5.0, 2.0))(inputs)
    assert isinstance(normal, Normal) and normal.mode().abs().max() < 1
    assert torch.equal(normal.log_std, torch.zeros(2))
    categorical = CategoricalPolicy(DISCRETE, ENCODER)(inputs)
    assert isinstance(categorical, Categorical) and categorical.mode().shape == leading
    assert ValueFunction(CONTINUOUS, ENCODER)(inputs).shape == leading


class OwnEncoderFactory(EncoderFactory, type="own_of_test_networks"):
    def create(self, observation_shape: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh())


@pytest.mark.parametrize("factory", [ENCODER, DefaultEncoderFactory(), PixelEncoderFactory(feature_size=16)])
def test_orthogonal_weights(factory: Any) -> None:
    spec = Spec((1, 84, 84), Discrete(3)) if isinstance(factory, PixelEncoderFactory) else DISCRETE
    policy = CategoricalPolicy(spec, factory)
    policy.make_orthogonal(0.01)
    layers = [each for each in policy.encoder.modules() if isinstance(each, nn.Linear | nn.Conv2d)]
    assert len(layers) >= 2
    for layer, gain in [*((each, 2**0.5) for each in layers), (policy.linear, 0.01)]:
        singular = torch.linalg.svdvals(layer.weight.detach().flatten(1))
        torch.testing.assert_close(singular, torch.full_like(singular, gain), rtol=1e-4, atol=0)
        assert layer.bias is not None
        assert not layer.bias.any()


@pytest.mark.parametrize("factory", [OwnEncoderFactory(), LSTMEncoderFactory(hidden_size=8, hidden_units=[8])])
def test_encoders_of_ones_own_and_recurrent_ones_keep_their_weights(factory: Any) -> None:
    policy = CategoricalPolicy(DISCRETE, factory)
    before = deepcopy(policy.encoder.state_dict())
    policy.make_orthogonal(1.0)
    torch.testing.assert_close(policy.encoder.state_dict(), before, rtol=0, atol=0)


def test_log_std_is_clamped() -> None:
    policy = SquashedNormalPolicy(CONTINUOUS, ENCODER)
    with torch.no_grad():
        policy.linear.bias[2:] = torch.tensor([100.0, -100.0])
    assert torch.equal(policy(Inputs(torch.zeros(1, 4))).log_std, torch.tensor([[2.0, -20.0]]))
    fixed = NormalPolicy(CONTINUOUS, ENCODER, tanh_mean=False, log_std_range=(-1.0, 0.5), initial_log_std=3.0)
    assert torch.equal(fixed(Inputs(torch.zeros(1, 4))).log_std, torch.full((2,), 0.5))


def test_scalar_is_the_exponential_of_its_parameter() -> None:
    temperature = Scalar(0.2)
    value = temperature()
    assert value.shape == () and value.item() == pytest.approx(0.2)
    (gradient,) = torch.autograd.grad(value, temperature.raw)
    assert gradient.item() == pytest.approx(0.2)
    assert Scalar(-2.0, "identity")().item() == -2.0


@pytest.mark.parametrize("initial", [1e-6, 0.3, 10.0, 1000.0])
def test_softplus_scalars_begin_at_the_initial_value_and_stay_positive(initial: float) -> None:
    both = Scalar(initial, "softplus", 2)
    assert both().tolist() == pytest.approx([initial] * 2, rel=0.02)
    with torch.no_grad():
        both.raw.fill_(-200.0)
    assert both().tolist() == pytest.approx([SMALLEST] * 2)


# -- modes ---------------------------------------------------------------------------------------------------


def test_evaluating_switches_dropout_and_batch_norm_off_and_back() -> None:
    factory = DefaultEncoderFactory(use_batch_norm=True, dropout_rate=0.5)
    critic = DiscreteQFunction(DISCRETE, factory, MeanQFunctionFactory(), 2)
    inputs = Inputs(torch.randn(32, 4))
    before = {name: buffer.clone() for name, buffer in critic.named_buffers()}
    with eval_mode(critic):
        assert torch.equal(critic(inputs).mean(), critic(inputs).mean())
    assert all(torch.equal(buffer, before[name]) for name, buffer in critic.named_buffers())
    assert not torch.equal(critic(inputs).mean(), critic(inputs).mean())
    assert any(not torch.equal(buffer, before[name]) for name, buffer in critic.named_buffers())


def test_evaluating_restores_after_an_error_and_leaves_other_parts_alone() -> None:
    critic = DiscreteQFunction(DISCRETE, DefaultEncoderFactory(dropout_rate=0.5), IQNQFunctionFactory(n_quantiles=3), 1)
    with pytest.raises(ZeroDivisionError), eval_mode(critic):
        assert critic.training and critic(Inputs(torch.randn(2, 4))).taus.shape == (2, 3)
        raise ZeroDivisionError
    assert all(part.training for part in critic.modules())
    set_acting(critic, True)
    with eval_mode(critic):
        pass
    assert not any(part.training for part in critic.modules())


def test_set_acting_respects_modules_with_a_train_of_their_own() -> None:
    class Frozen(nn.Linear):
        def train(self, mode: bool = True) -> Frozen:
            return super().train(False)

    nets = nn.Sequential(Frozen(2, 2), nn.Dropout(0.5))
    set_acting(nets, False)
    assert [part.training for part in nets] == [False, True]


# -- compilation ---------------------------------------------------------------------------------------------


def compiled_equals_eager(modules: nn.Module, loss: Callable[[], Tensor]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = torch.autograd.grad(loss(), list(modules.parameters()), allow_unused=True)
    torch.manual_seed(0)
    function = torch.compile(loss, fullgraph=True, backend="aot_eager")
    compiled = torch.autograd.grad(function(), list(modules.parameters()), allow_unused=True)
    for one, other in zip(eager, compiled, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("head", "dropout_rate"),
    slow_but([(HEADS[2], None)], [*((head, None) for head in HEADS), (HEADS[0], 0.5)]),
    ids=lambda value: str(value)[:5],
)
def test_discrete_losses_are_one_graph(head: QFunctionFactory, dropout_rate: float | None) -> None:
    critic = DiscreteQFunction(DISCRETE, DefaultEncoderFactory(dropout_rate=dropout_rate), head, 2)
    target = deepcopy(critic)
    here, there = Inputs(torch.randn(5, 4)), Inputs(torch.randn(5, 4))
    action, reward = torch.randint(3, (5,)), torch.randn(5)

    def loss() -> Tensor:
        with torch.no_grad(), eval_mode(critic):
            best = critic(there).mean().mean(0).argmax(-1)
            returns = target(there).gather(best).min().backup(reward, torch.ones(5))
        return critic(here).gather(action).td_loss(returns).mean()

    if dropout_rate:  # the random numbers of compiled and eager dropout may differ: only that it is one graph
        torch._dynamo.reset()
        assert torch.isfinite(torch.compile(loss, fullgraph=True, backend="aot_eager")())
    else:
        compiled_equals_eager(critic, loss)


@pytest.mark.parametrize("head", slow_but([HEADS[1]], HEADS), ids=lambda head: head.get_type())
def test_actor_critic_losses_are_one_graph(head: QFunctionFactory) -> None:
    critic = ContinuousQFunction(CONTINUOUS, ENCODER, head, 2)
    actor, temperature = SquashedNormalPolicy(CONTINUOUS, ENCODER), Scalar(0.5)
    here, there, reward = Inputs(torch.randn(5, 4)), Inputs(torch.randn(5, 4)), torch.randn(5)

    def loss() -> Tensor:
        with torch.no_grad():
            action, log_prob = actor(there).sample()
            target = critic(there, action).min().backup(reward, torch.ones(5), -temperature() * log_prob)
        action, log_prob = actor(here).sample()
        value = critic(here, action).min().mean()
        return critic(here, action.detach()).td_loss(target).mean() + (temperature() * log_prob - value).mean()

    compiled_equals_eager(nn.ModuleList([critic, actor, temperature]), loss)


@pytest.mark.slow
@pytest.mark.parametrize("factory", [LSTM, GRU], ids=["lstm", "gru"])
def test_recurrent_losses_are_one_graph(factory: Any) -> None:
    critic = DiscreteQFunction(DISCRETE, factory, MeanQFunctionFactory(), 2)
    actor = CategoricalPolicy(DISCRETE, factory)
    is_first = torch.tensor([[False, False, False], [False, True, False]])
    here = Inputs(torch.randn(2, 3, 4), None, is_first)
    there = here._replace(following=torch.randn(2, 3, 4))
    reward = torch.randn(2, 3)

    def loss() -> Tensor:
        with torch.no_grad():
            target = critic(there).min().mix(actor(there).probs).backup(reward, torch.ones(2, 3))
        action, log_prob = actor(here).sample()
        return critic(here).gather(action).td_loss(target).mean() + log_prob.mean() + actor(here).entropy().mean()

    compiled_equals_eager(nn.ModuleList([critic, actor]), loss)
