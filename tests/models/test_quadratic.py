"""The Q-function of NAF: a quadratic with its maximum in the box."""

from __future__ import annotations

import torch
from torch import Tensor

from birl.models import VectorEncoderFactory
from birl.models.quadratic import QuadraticQFunction
from birl.spaces import Continuous
from birl.spaces.specs import Spec
from birl.types import Inputs


def network(size: int) -> QuadraticQFunction:
    torch.manual_seed(1)
    made = QuadraticQFunction(Spec((4,), Continuous(size)), VectorEncoderFactory([16])).double()
    with torch.no_grad():
        made.linear.weight.mul_(6)  # far from a unit matrix
    return made


def test_the_matrix_is_that_of_its_outputs() -> None:
    q, x = network(3), Inputs(torch.randn(1, 4, dtype=torch.float64))

    def value(action: Tensor) -> Tensor:
        return q(x, action).mean().sum()

    matrix = -torch.autograd.functional.hessian(value, torch.zeros(1, 3, dtype=torch.float64))[0, :, 0]
    out = q.linear(q.encode(x))[0]
    lower = torch.zeros(3, 3, dtype=torch.float64)
    lower[0, 0], lower[1, 1], lower[2, 2] = out[4:7].exp()
    lower[1, 0], lower[2, 0], lower[2, 1] = out[7:]
    assert torch.allclose(matrix, lower @ lower.T)
    assert torch.allclose(torch.linalg.cholesky(matrix), lower)  # positive definite, too


def test_no_action_of_the_box_is_better_than_the_best_one() -> None:
    q, x = network(2), Inputs(3 * torch.randn(5, 4, dtype=torch.float64))
    best, value = q.best(x)
    assert best.abs().max() <= 1 and best.abs().max() > 0.9, "nothing is shown about the border of the box"
    assert torch.equal(q(x, best).mean()[0], value)
    axis = torch.linspace(-1, 1, 21, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)[:, None].expand(-1, 5, -1)
    found = q(x, grid).mean()
    assert found.shape == (1, 441, 5)
    assert (found[0] <= value).all()


def test_one_dimension_has_nothing_below_its_diagonal() -> None:
    q, x = network(1), Inputs(torch.randn(5, 4, dtype=torch.float64))
    best, value = q.best(x)
    assert q.linear.out_features == 3
    assert torch.allclose(q(x, best + 0.5).mean()[0], value - q.linear(q.encode(x))[:, 2].exp().square() / 8)
