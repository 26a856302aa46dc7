"""Layers that are not torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from birl.models.layers import Dropout, embedded, one_hot_product

N = 2**18


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_zeroes_its_share_and_keeps_the_mean(rate: float) -> None:
    torch.manual_seed(0)
    y = Dropout(rate)(torch.full((N,), 3.0))
    zero = (y == 0).to(torch.float64)
    deviation = (rate * (1 - rate) / N) ** 0.5
    assert abs(float(zero.mean()) - rate) < 5 * deviation
    assert torch.allclose(y[y != 0], torch.tensor(3.0 / (1 - rate)), rtol=1e-3)
    assert torch.equal(y.unique(), torch.tensor([0.0, float(y.max())]))
    # four neighbours come from one random number, and are independent all the same
    for distance in (1, 2, 3, 4):
        both = (zero[distance:] * zero[:-distance]).mean()
        assert abs(float(both) - rate**2) < 5 * (rate**2 * (1 - rate**2) / N) ** 0.5 + 2 * rate * deviation


def test_dropout_at_the_ends() -> None:
    x = torch.arange(1.0, 6.0)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(1.0)(x), torch.zeros(5))
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert Dropout(0.5)(torch.zeros(0, 3)).shape == (0, 3)


def test_dropout_is_that_of_the_seed_and_gradients_pass_where_numbers_do() -> None:
    layer, x = Dropout(0.3), torch.randn(5, 7, requires_grad=True)
    torch.manual_seed(1)
    y = layer(x)
    (gradient,) = torch.autograd.grad(y.sum(), [x])
    assert torch.equal(gradient == 0, y == 0)
    torch.manual_seed(1)
    assert torch.equal(layer(x), y)
    assert not torch.equal(layer(x), y)


def test_dropout_compiles_to_the_same_numbers() -> None:
    layer, x = Dropout(0.3), torch.randn(50, 7)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)
    y = layer(x)
    torch.manual_seed(1)
    assert torch.equal(compiled(x), y)
    assert not layer.state_dict()


def test_a_one_hot_product_is_a_lookup() -> None:
    """In compiled updates it replaces embeddings."""
    embedding, index = nn.Embedding(7, 3), torch.tensor([[0, 6, 2], [2, 2, 5]])
    gradient = torch.randn(2, 3, 3)
    assert torch.equal(one_hot_product(embedding.weight, index), embedding(index))
    (expected,) = torch.autograd.grad(embedding(index), embedding.weight, gradient)
    (found,) = torch.autograd.grad(one_hot_product(embedding.weight, index), embedding.weight, gradient)
    torch.testing.assert_close(found, expected)
    assert torch.equal(embedded(embedding, index), embedding(index))
