"""Noise in layers: the paper's formula, when it is drawn, and when it is off."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from birl.errors import ConfigError
from birl.models import (
    DefaultEncoderFactory,
    DeterministicPolicy,
    DiscreteQFunction,
    EncoderFactory,
    GRUEncoderFactory,
    IQNQFunctionFactory,
    LSTMEncoderFactory,
    MeanQFunctionFactory,
    PixelEncoderFactory,
    SimBaEncoderFactory,
    VectorEncoderFactory,
    set_acting,
)
from birl.models.layers import DenseLayer, EnsembleLinear
from birl.models.noisy import noise_of
from birl.spaces import Continuous, Discrete
from birl.spaces.specs import Spec
from birl.types import Inputs

SPEC = Spec((4,), Discrete(3))


def f(x: Tensor) -> Tensor:
    """``f(x) = sgn(x) sqrt(|x|)``, one number after the other."""
    return torch.tensor([math.copysign(math.sqrt(abs(float(each))), float(each)) for each in x])


@pytest.mark.parametrize("n", [None, 1, 3])
def test_weights_and_biases_by_hand(n: int | None) -> None:
    """Eqs. 9-11, with standard deviations that differ from one weight to the next."""
    layer = DenseLayer(4, 2, "none", n=n, noisy=True)
    linear: Any = layer.linear
    with torch.no_grad():
        for sigma in linear.noise.parameters():
            sigma.copy_(torch.rand_like(sigma))
    x = torch.randn(5, 4)
    torch.manual_seed(7)
    got = layer(x)
    torch.manual_seed(7)
    for k, row in enumerate(torch.randn(n or 1, 6)):
        inputs, outputs = f(row[:4]), f(row[4:])
        parts = (linear.weight, linear.noise.weight, linear.bias, linear.noise.bias)
        mu, sigma, mu_b, sigma_b = (each if n is None else each[k].mT for each in parts)  # [out, in], [out]
        weight = mu + sigma * torch.stack([a * inputs for a in outputs])
        expected = x @ weight.T + (mu_b.flatten() + sigma_b.flatten() * outputs)
        torch.testing.assert_close(got if n is None else got[k], expected)


def test_noise_begins_as_in_section_3_2() -> None:
    """``sigma_0 / sqrt(p)`` with ``p`` inputs, for biases too, and means where they would be without noise."""
    for noisy, sigma_0 in ((True, 0.5), (0.2, 0.2)):
        for n in (None, 2):
            torch.manual_seed(0)
            layer: Any = DenseLayer(16, 9, n=n, noisy=noisy)
            torch.manual_seed(0)
            plain: Any = DenseLayer(16, 9, n=n)
            for each in layer.linear.noise.parameters():
                torch.testing.assert_close(each, torch.full_like(each, sigma_0 / 4))
            assert torch.equal(layer.linear.weight, plain.linear.weight)
            assert torch.equal(layer.linear.bias, plain.linear.bias)


def test_every_pass_has_its_own_noise_and_all_rows_of_it_the_same() -> None:
    torch.manual_seed(0)
    layer = EnsembleLinear(2, 20, 20, noisy=True)
    x = torch.randn(1, 20).expand(6, 20)
    first, second = layer(x), layer(x)
    assert torch.equal(first[:, :1].expand_as(first), first)
    assert not torch.allclose(first, second)
    layer.noise.greedy = True  # type: ignore[union-attr]
    assert torch.equal(layer(x), layer(x))
    with torch.no_grad():  # without noise the members would differ by their weights only
        layer.weight[1], layer.bias[1] = layer.weight[0], layer.bias[0]
    layer.noise.greedy = False  # type: ignore[union-attr]
    one, other = layer(x)
    assert not torch.allclose(one, other), "members share their noise"


ENCODERS: dict[str, tuple[EncoderFactory, tuple[int, ...], int]] = {
    "vector": (VectorEncoderFactory([8, 8], noisy=True), (4,), 2),
    "simba": (SimBaEncoderFactory(8, 8, 1, noisy=True), (4,), 3),
    "pixel": (PixelEncoderFactory([[2, 3, 2]], 8, noisy=True), (1, 9, 9), 1),
    "default": (DefaultEncoderFactory(noisy=True), (4,), 2),
    "gru": (GRUEncoderFactory(6, [6], noisy=True), (4,), 1),
    "lstm": (LSTMEncoderFactory(6, [6], noisy=True), (4,), 1),
}


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("n", [1, 2])
def test_every_encoder_and_head(name: str, n: int) -> None:
    factory, shape, layers = ENCODERS[name]
    heads = (MeanQFunctionFactory(), IQNQFunctionFactory(n_quantiles=3, n_greedy_quantiles=3, embed_size=3, noisy=True))
    for head, more in zip(heads, (0, 2), strict=True):
        critic = DiscreteQFunction(Spec(shape, Discrete(3)), factory, head, n)
        stacked = n == 1 or name in ("vector", "simba", "default")
        assert len(noise_of(critic)) == layers * (1 if stacked else n) + more
        inputs = Inputs(torch.randn(5, *shape))
        assert not torch.equal(critic(inputs).mean(), critic(inputs).mean())
        set_acting(critic, True)
        assert torch.equal(critic(inputs).mean(), critic(inputs).mean())
        set_acting(critic, False)
        assert not torch.equal(critic(inputs).mean(), critic(inputs).mean())


def test_trees_have_noise_in_all_dense_layers() -> None:
    policy = DeterministicPolicy(Spec(((3,), (1, 9, 9)), Continuous(2)), DefaultEncoderFactory(noisy=True))
    assert len(noise_of(policy)) == 2 + 1 + 1
    dense = [part for part in policy.encoder.modules() if isinstance(part, nn.Linear)]
    assert all(hasattr(each, "noise") for each in dense)


def test_sequences_see_one_noise() -> None:
    """The steps of a pass and the observations that follow them are embedded by the same weights."""
    torch.manual_seed(0)
    critic = DiscreteQFunction(SPEC, GRUEncoderFactory(6, [6], noisy=True), MeanQFunctionFactory())
    observation = torch.randn(1, 2, 4)
    state = torch.zeros(2, 6)
    inputs = Inputs(observation, {"": state}, following=observation)
    seen: list[Tensor] = []
    encoder: Any = critic.encoder
    encoder.members[0].embedding.register_forward_hook(lambda *each: seen.append(each[2]))
    critic(inputs)
    rows = torch.cat([each.reshape(-1, 6) for each in seen])
    torch.testing.assert_close(rows[:2], rows[2:])


@pytest.mark.parametrize("wrong", [0, -1.0, math.nan, "yes", None])
def test_noise_that_is_none(wrong: Any) -> None:
    for factory in (VectorEncoderFactory, SimBaEncoderFactory, GRUEncoderFactory, MeanQFunctionFactory):
        with pytest.raises(ConfigError, match=r"noisy is .*a (finite )?float > 0, or True for 0.5"):
            factory(noisy=wrong)
