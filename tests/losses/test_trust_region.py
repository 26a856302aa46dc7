"""Natural gradients and line searches against explicit matrices, and what they promise on random problems."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from birl.losses.trust_region import conjugate_gradients, fisher_product, flat, line_search, natural_step, unflat
from birl.models.distributions import Beta, Categorical, Normal

MAX_KL = 0.01


class Counted:
    """Products of a matrix, counted."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.count = matrix, 0

    def __call__(self, vector: Tensor) -> Tensor:
        self.count += 1
        return self.matrix @ vector


def positive(seed: int, size: int) -> Tensor:
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T / size + 0.1 * torch.eye(size, dtype=torch.float64)


def test_flat_and_back() -> None:
    tensors = [torch.arange(6.0).view(2, 3), torch.tensor(7.0), torch.arange(2.0)]
    vector = flat(tensors)
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 7, 0, 1]
    assert all(torch.equal(a, b) for a, b in zip(unflat(vector, tensors), tensors, strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_conjugate_gradients_solve_with_one_product_a_step(seed: int) -> None:
    matrix, right = positive(seed, 12), torch.linspace(-1, 2, 12, dtype=torch.float64)
    product = Counted(matrix)
    x, image = conjugate_gradients(product, right, 12, tolerance=1e-24)
    assert product.count == 12
    torch.testing.assert_close(x, torch.linalg.solve(matrix, right))
    torch.testing.assert_close(image, matrix @ x)


def test_steps_after_convergence_change_nothing() -> None:
    matrix, right = positive(0, 4), torch.ones(4, dtype=torch.float64)
    enough, more = (conjugate_gradients(Counted(matrix), right, n)[0] for n in (5, 60))
    assert torch.equal(enough, more)
    zero, image = conjugate_gradients(Counted(matrix.float()), torch.zeros(4), 10)
    assert not zero.any() and not image.any()


def test_a_natural_step_is_as_long_as_the_bound() -> None:
    matrix, gradient = positive(1, 6), torch.linspace(-1, 1, 6, dtype=torch.float64)
    step = natural_step(gradient, Counted(matrix), MAX_KL, 20)
    assert (0.5 * step @ matrix @ step).item() == pytest.approx(MAX_KL)
    direction = torch.linalg.solve(matrix, gradient)
    torch.testing.assert_close(step / step.norm(), direction / direction.norm())
    assert not natural_step(torch.zeros(6, dtype=torch.float64), Counted(matrix), MAX_KL, 20).any()
    assert not natural_step(gradient, Counted(matrix), 0.0, 20).any()


class Problem:
    """A policy, a batch of it and random advantages."""

    def __init__(self, seed: int, kind: str) -> None:
        torch.manual_seed(seed)
        outputs = {"categorical": 3, "normal": 2, "beta": 4}[kind]
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))
        self.kind, self.own = kind, nn.Parameter(torch.zeros(2))
        self.x, self.advantage = torch.randn(32, 3), torch.randn(32)
        self.start = [*self.net.parameters(), *([self.own] if kind == "normal" else [])]
        self.names = [name for name, _ in self.net.named_parameters()]
        with torch.no_grad():
            old = self.policy(self.start)
            self.action, self.log_prob = old.sample()
            self.column = old.parameters()

    def policy(self, parameters: Any) -> Any:
        own = dict(zip(self.names, parameters, strict=False))
        out = functional_call(self.net, own, (self.x,))
        if self.kind == "categorical":
            return Categorical(out)
        return Normal(out, parameters[-1]) if self.kind == "normal" else Beta(*(1 + out.exp()).chunk(2, -1))

    def evaluate(self, parameters: Any) -> tuple[Tensor, Tensor]:
        new = self.policy(parameters)
        ratio = (new.log_prob(self.action) - self.log_prob).exp()
        return (ratio * self.advantage).mean(), new.with_parameters(self.column).kl(new).mean()

    def step(self, scale: float = 1.0) -> tuple[Tensor, Tensor, Any]:
        """Gradient, step and product."""
        surrogate, divergence = self.evaluate(self.start)
        gradient = flat(torch.autograd.grad(surrogate, self.start, retain_graph=True))
        product = fisher_product(divergence, self.start, 0.1)
        return gradient, scale * natural_step(gradient, product, MAX_KL, 10), product


@pytest.mark.parametrize("kind", ["categorical", "normal", "beta"])
def test_fisher_products_are_those_of_the_matrix(kind: str) -> None:
    problem = Problem(0, kind)
    for parameter in problem.start:
        parameter.data = parameter.data.double()
    problem.x = problem.x.double()
    problem.column = problem.policy(problem.start).parameters().detach()

    def divergence(vector: Tensor) -> Tensor:
        new = problem.policy(unflat(vector, problem.start))
        return new.with_parameters(problem.column).kl(new).mean()

    at = flat(problem.start).detach()
    matrix = torch.autograd.functional.hessian(divergence, at)
    seen: list[Tensor] = []

    def halve(vector: Tensor) -> Tensor:  # stands for a mean over processes
        seen.append(vector)
        return vector / 2

    own = problem.policy(problem.start)
    distance = own.with_parameters(problem.column).kl(own).mean()
    vector = torch.linspace(-1, 1, len(at), dtype=torch.float64)
    found = fisher_product(distance, problem.start, 0.1)(vector)
    torch.testing.assert_close(found, matrix @ vector + 0.1 * vector)
    found = fisher_product(distance, problem.start, 0.1, halve)(vector)
    torch.testing.assert_close(found, matrix @ vector / 2 + 0.1 * vector)
    assert len(seen) == 1


@pytest.mark.parametrize("kind", ["categorical", "normal", "beta"])
def test_accepted_steps_keep_the_bound_and_gain(kind: str) -> None:
    accepted = 0
    for seed in range(15):
        problem = Problem(seed, kind)
        _, step, _ = problem.step(scale=(1.0, 8.0, 1e6)[seed % 3])
        found = line_search(problem.evaluate, problem.start, step, MAX_KL)
        base, _ = problem.evaluate(problem.start)
        surrogate, divergence = problem.evaluate(found.parameters)
        if found.accepted:
            accepted += 1
            assert divergence <= MAX_KL and surrogate > base
            assert torch.equal(divergence, found.divergence) and torch.equal(surrogate - base, found.gain)
            expected = flat(problem.start) + found.share * step
            torch.testing.assert_close(flat(found.parameters), expected, rtol=0, atol=0)
        else:
            assert all(torch.equal(a, b) for a, b in zip(found.parameters, problem.start, strict=True))
            assert found.share == 0 and found.gain == 0 and found.divergence == 0
    assert accepted >= 8


@pytest.mark.parametrize("how", ["against the gradient", "nan", "no bound", "infinite"])
def test_a_failed_search_restores_bit_for_bit(how: str) -> None:
    problem = Problem(0, "normal")
    _, step, _ = problem.step()
    step = {"against the gradient": -step, "nan": step * torch.nan, "no bound": step, "infinite": step / 0}[how]
    found = line_search(problem.evaluate, problem.start, step, 0.0 if how == "no bound" else MAX_KL)
    assert not found.accepted
    for own, before in zip(found.parameters, problem.start, strict=True):
        assert torch.equal(own, before) and not own.requires_grad


def test_the_first_acceptable_length_is_taken() -> None:
    """A parabola with its top at 1. 8, 4, 2, 1 ... are tried; 2 has the value of the start, so it is no gain."""
    seen = []

    def evaluate(parameters: list[Tensor]) -> tuple[Tensor, Tensor]:
        (x,) = parameters
        seen.append(x.item())
        return -(x[0] - 1.0).square(), x[0].abs() / 10

    start, step = [torch.zeros(1)], torch.full((1,), 8.0)
    found = line_search(evaluate, start, step, 1.0, n_steps=6)
    assert seen == [0.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25]
    assert found.parameters[0].tolist() == [1.0] and found.share == 0.125 and found.gain == 1.0
    assert line_search(evaluate, start, step, 0.05, n_steps=6).parameters[0].tolist() == [0.5]
