"""What every distribution over actions does, against torch.distributions, large samples and itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributions as td
from torch import Tensor

from birl.models.distributions import Beta, Categorical, Distribution, Joint, Normal, SquashedNormal
from birl.spaces import Composite, Continuous, Discrete

DOUBLE = {"dtype": torch.float64}
ACTIONS = Composite((Continuous(2), Discrete(4)))
ALLOWED = torch.tensor([[True, False, True, True], [True, True, True, True], [False, False, True, True]])


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **DOUBLE)


def scale(seed: int, *shape: int) -> Tensor:
    return 0.3 * draw(seed + 100, *shape)


@dataclass(frozen=True)
class Kind:
    """Makes distributions ``[3]`` of different parameters by seed, and torch's, whose terms are summed."""

    name: str
    make: Callable[[int], Any]
    theirs: Callable[[Any], list[Any]]


def _torch_beta(own: Beta) -> list[Any]:
    return [td.TransformedDistribution(td.Beta(own.alpha, own.beta), td.AffineTransform(-1.0, 2.0))]


def _torch_squashed(own: SquashedNormal) -> list[Any]:
    return [td.TransformedDistribution(td.Normal(own.mean, own.log_std.exp()), td.TanhTransform())]


def _joint(seed: int) -> Joint:
    return Joint((Normal(draw(seed, 3, 2), scale(seed, 2)), Categorical(draw(seed + 1, 3, 4))), ACTIONS)


KINDS = (
    Kind("diagonal", lambda s: Normal(draw(s, 3, 2), scale(s, 3, 2)), lambda d: [td.Normal(d.mean, d.log_std.exp())]),
    Kind("own", lambda s: Normal(draw(s, 3, 2), scale(s, 2)), lambda d: [td.Normal(d.mean, d.log_std.exp())]),
    Kind("spherical", lambda s: Normal(draw(s, 3, 2), scale(s, 1)), lambda d: [td.Normal(d.mean, d.log_std.exp())]),
    Kind("squashed", lambda s: SquashedNormal(draw(s, 3, 2), scale(s, 3, 2)), _torch_squashed),
    Kind("beta", lambda s: Beta(1.0 + draw(s, 3, 2).exp(), 1.0 + scale(s, 3, 2).exp()), _torch_beta),
    Kind("categorical", lambda s: Categorical(draw(s, 3, 4)), lambda d: [td.Categorical(logits=d.logits)]),
    Kind("masked", lambda s: Categorical(draw(s, 3, 4), ALLOWED), lambda d: [td.Categorical(logits=d.masked_logits)]),
    Kind("several", lambda s: Categorical(draw(s, 3, 2, 4), None, True), lambda d: [td.Categorical(logits=d.logits)]),
    Kind("joint", _joint, lambda d: [td.Normal(d.parts[0].mean, d.parts[0].log_std.exp()), d.parts[1]]),
)
each = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def total(kind: Kind, own: Any, values: Callable[[Any], Tensor]) -> Tensor:
    """The sum over the last dimension of torch's terms, if there is one."""
    (theirs,) = kind.theirs(own)
    found = values(theirs)
    return found.sum(-1) if found.dim() > 1 else found


@each
def test_samples_and_log_probabilities_agree(kind: Kind) -> None:
    torch.manual_seed(0)
    own: Distribution = kind.make(0)
    action, log_prob = own.sample()
    many, log_probs = own.sample(5)
    assert log_prob.shape == (3,) and log_probs.shape == (5, 3) and many.shape == (5, *action.shape)
    torch.testing.assert_close(own.log_prob(action), log_prob)
    torch.testing.assert_close(own.log_prob(many), log_probs)
    if kind.name != "joint":
        torch.testing.assert_close(log_prob, total(kind, own, lambda d: d.log_prob(action)))


@each
def test_entropy_and_divergence_agree_with_large_samples(kind: Kind) -> None:
    """Within five standard errors of the mean of so many samples."""
    torch.manual_seed(1)
    own, other, n = kind.make(0), kind.make(7), 40_000
    action, log_prob = own.sample(n)
    surprise, difference = -log_prob, log_prob - other.log_prob(action)
    errors = surprise.std(0) / n**0.5, difference.std(0) / n**0.5
    if kind.name != "squashed":  # whose entropy is an estimate
        assert ((surprise.mean(0) - own.entropy()).abs() < 5 * errors[0] + 1e-9).all()
    assert ((difference.mean(0) - own.kl(other)).abs() < 5 * errors[1]).all()
    assert (own.kl(other) > 5 * errors[1]).all(), "too near to tell"


@each
def test_closed_forms_agree_with_torch(kind: Kind) -> None:
    own, other = kind.make(0), kind.make(7)
    if kind.name == "joint":
        parts = zip(own.parts, other.parts, strict=True)
        torch.testing.assert_close(own.kl(other), sum(a.kl(b) for a, b in parts))
        torch.testing.assert_close(own.entropy(), sum(a.entropy() for a in own.parts))
        return
    ours, theirs = kind.theirs(own)[0], kind.theirs(other)[0]
    divergence = td.kl_divergence(ours, theirs)
    torch.testing.assert_close(own.kl(other), divergence.sum(-1) if divergence.dim() > 1 else divergence)
    if isinstance(ours, td.TransformedDistribution):  # torch knows no entropy of these
        if kind.name == "beta":
            expected = td.Beta(own.alpha, own.beta).entropy() + torch.tensor(2.0, **DOUBLE).log()
            torch.testing.assert_close(own.entropy(), expected.sum(-1))
        return
    torch.testing.assert_close(own.entropy(), total(kind, own, lambda d: d.entropy()))


@each
def test_nothing_lies_between_a_distribution_and_itself(kind: Kind) -> None:
    """PyTorchRL's divergence of two Gaussians, both of standard deviation 1/2, is 255."""
    torch.testing.assert_close(kind.make(3).kl(kind.make(3)), torch.zeros(3, **DOUBLE))


@each
def test_parameters_lead_back(kind: Kind) -> None:
    own, other = kind.make(0), kind.make(7)
    column = own.parameters()
    assert column.shape[0] == 3 and column.dim() == 2
    back = other.with_parameters(column)
    assert type(back) is type(own)
    torch.testing.assert_close(own.kl(back), torch.zeros(3, **DOUBLE))
    action, log_prob = own.sample(6)
    torch.testing.assert_close(back.log_prob(action), log_prob)
    torch.testing.assert_close(own.kl(other), own.kl(own.with_parameters(other.parameters())))
    wide = own.with_parameters(torch.stack([column] * 4))  # of other leading dimensions
    assert wide.log_prob(action[:4]).shape == (4, 3)


@each
def test_parameters_are_differentiable_twice(kind: Kind) -> None:
    """ACER takes gradients of divergences by parameters, TRPO products with their curvature."""
    column = kind.make(0).parameters().detach().requires_grad_()
    own, old = kind.make(0).with_parameters(column), kind.make(0)
    (gradient,) = torch.autograd.grad(old.kl(own).sum(), column, create_graph=True)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))
    direction = torch.linspace(-1.0, 2.0, column.numel(), **DOUBLE).view_as(column)
    (product,) = torch.autograd.grad((gradient * direction).sum(), column)
    second = (old.kl(own.with_parameters(column + 1e-4 * direction)).sum() * 2 / 1e-8).item()
    assert (product * direction).sum().item() == pytest.approx(second, rel=1e-2) and second > 0


def test_actions_that_are_not_allowed_stay_so_with_other_parameters() -> None:
    own = Categorical(draw(0, 3, 4), ALLOWED)
    back = own.with_parameters(draw(1, 3, 4))
    assert torch.equal(back.probs == 0, ~ALLOWED)


def test_a_partition_sums_over_what_is_allowed_in_each_choice() -> None:
    logits, allowed = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.0, 7.0]]), torch.tensor([[True, False, True]] * 2)
    found = Categorical(logits, allowed, several=True).log_partition()
    by_hand = math.log(math.exp(1.0) + math.exp(3.0)) + math.log(math.exp(0.5) + math.exp(7.0))
    assert found.item() == pytest.approx(by_hand)


def test_decoupled_divergences_are_those_of_one_change_each() -> None:
    old, new = Normal(draw(0, 3, 2), scale(0, 3, 2)), Normal(draw(1, 3, 2), scale(1, 2))
    of_mean, of_std = old.decoupled_kl(new)
    assert of_mean.shape == of_std.shape == (3, 2)
    torch.testing.assert_close(of_mean.sum(-1), old.kl(Normal(new.mean, old.log_std)))
    torch.testing.assert_close(of_std.sum(-1), old.kl(Normal(old.mean, new.log_std)))


def test_beta_peaks_and_bounds() -> None:
    own = Beta(torch.tensor([3.0, 1.0, 1.0, 2.0]), torch.tensor([2.0, 1.0, 2.0, 1.0]))
    assert own.mode().tolist() == pytest.approx([1 / 3, 0.0, -1.0, 1.0])
    grid = torch.linspace(-0.999, 0.999, 1999).unsqueeze(-1)
    one = Beta(torch.tensor([3.0]), torch.tensor([2.0]))
    assert grid[one.log_prob(grid).argmax(), 0].item() == pytest.approx(1 / 3, abs=1e-3)
    assert torch.trapezoid(one.log_prob(grid).exp(), grid[:, 0]).item() == pytest.approx(1.0, abs=1e-3)
    steep = Beta(torch.tensor([1e4, 1.0]), torch.tensor([1.0, 1e4]))
    action, log_prob = steep.sample(1000)
    assert action.abs().max() <= 1 and torch.isfinite(log_prob).all()
    assert torch.isfinite(steep.log_prob(torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))).all()


@pytest.mark.parametrize("size", [10.0, 1e4, 1e7])
def test_narrow_peaks_lose_no_digits(size: float) -> None:
    """In 32 bits the entropy at 1e6 was wrong by more than 1."""
    alpha, beta = torch.tensor([size, 2 * size]), torch.tensor([3 * size, size])
    own, other = Beta(alpha, beta), Beta(1.01 * alpha, beta)
    expected = Beta(alpha.double(), beta.double()), Beta((1.01 * alpha).double(), beta.double())
    exact = [td.Beta(each.alpha, each.beta) for each in expected]
    action = own.mode()
    density = exact[0].log_prob((action.double() + 1) / 2).sum(-1) - 2 * math.log(2)
    entropy = exact[0].entropy().sum(-1) + 2 * math.log(2)
    for found, true in (
        (own.log_prob(action), density),
        (own.entropy(), entropy),
        (own.kl(other), td.kl_divergence(*exact).sum(-1)),
    ):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), true, rtol=1e-5, atol=1e-5)


def test_beta_samples_are_reparametrised() -> None:
    """The mean is ``2 alpha / (alpha + beta) - 1``, so its derivatives are known."""
    torch.manual_seed(0)
    alpha, beta = torch.tensor([1.5], requires_grad=True), torch.tensor([4.0], requires_grad=True)
    action, _ = Beta(alpha, beta).sample(100_000)
    by_alpha, by_beta = torch.autograd.grad(action.mean(), (alpha, beta))
    assert by_alpha.item() == pytest.approx(2 * 4.0 / 5.5**2, rel=0.02)
    assert by_beta.item() == pytest.approx(-2 * 1.5 / 5.5**2, rel=0.02)


@pytest.mark.parametrize("name", ["beta", "squashed", "joint"])
def test_one_graph(name: str) -> None:
    kind = next(kind for kind in KINDS if kind.name == name)
    own = kind.make(0)

    def everything(column: Tensor) -> tuple[Tensor, ...]:
        other = own.with_parameters(column)
        action, log_prob = other.sample()
        return log_prob - other.log_prob(action), own.kl(other), other.entropy(), other.mode()

    column = kind.make(1).parameters()
    found = torch.compile(everything, fullgraph=True, backend="eager")(column)
    torch.testing.assert_close(found[1], everything(column)[1])
