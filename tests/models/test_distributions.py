"""Distributions against torch.distributions and numerical derivatives."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from birl.models.distributions import ATANH_LIMIT, Categorical, Normal, SquashedNormal


def parameters() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 3, generator=generator), torch.randn(5, 3, generator=generator) * 0.5


def test_normal_agrees_with_torch() -> None:
    mean, log_std = parameters()
    ours, theirs = Normal(mean, log_std), torch.distributions.Normal(mean, log_std.exp())
    action, log_prob = ours.sample()
    assert torch.allclose(log_prob, theirs.log_prob(action).sum(-1), atol=1e-5)
    assert torch.allclose(ours.log_prob(action), log_prob, atol=1e-5)
    assert torch.allclose(ours.entropy(), theirs.entropy().sum(-1), atol=1e-5)
    other = Normal(mean.flip(0), log_std.flip(0))
    expected = torch.distributions.kl_divergence(
        theirs, torch.distributions.Normal(other.mean, other.log_std.exp())
    ).sum(-1)
    assert torch.allclose(ours.kl(other), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(ours.mode(), mean)


def test_a_shared_log_std_counts_for_every_element() -> None:
    mean, log_std = parameters()
    shared, repeated = Normal(mean, log_std[0]), Normal(mean, log_std[:1].expand(5, 3))
    action = mean + 1.0
    assert torch.allclose(shared.log_prob(action), repeated.log_prob(action))
    assert torch.allclose(shared.entropy(), repeated.entropy())
    assert shared.sample(7)[1].shape == (7, 5)


def test_squashed_normal_agrees_with_torch() -> None:
    mean, log_std = parameters()
    ours = SquashedNormal(mean, log_std)
    theirs = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()), torch.distributions.TanhTransform()
    )
    action, log_prob = ours.sample(100)
    moderate = action.abs().amax(-1) < 0.99  # beyond, atanh of a float32 has few digits
    assert moderate.sum() > 100
    assert torch.allclose(log_prob[moderate], theirs.log_prob(action).sum(-1)[moderate], atol=1e-3)
    assert torch.allclose(log_prob[moderate], ours.log_prob(action)[moderate], atol=1e-3)
    assert torch.equal(ours.mode(), mean.tanh())


def test_squashed_normal_jacobian_is_the_derivative_of_tanh() -> None:
    raw = torch.linspace(-9.0, 9.0, 37, dtype=torch.float64).unsqueeze(-1)
    step = 1e-5
    numerical = ((raw + step).tanh() - (raw - step).tanh()) / (2 * step)
    narrow = SquashedNormal(raw, torch.zeros_like(raw))
    log_jacobian = -narrow.log_prob(raw.tanh()) - 0.5 * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
    inside = raw.tanh().abs().squeeze(-1) < ATANH_LIMIT
    assert inside.sum() > 20
    assert torch.allclose(-log_jacobian[inside], -numerical.log().squeeze(-1)[inside], atol=1e-3)


def test_squashed_density_integrates_to_one() -> None:
    action = torch.linspace(-0.99999, 0.99999, 200_001, dtype=torch.float64)
    density = SquashedNormal(torch.tensor([0.3]).double(), torch.tensor([-0.5]).double()).log_prob(action.unsqueeze(-1))
    assert abs(torch.trapezoid(density.exp(), action).item() - 1.0) < 1e-3


def test_saturated_samples_and_clamped_actions_stay_finite() -> None:
    far = SquashedNormal(torch.full((1, 2), 40.0, requires_grad=True), torch.full((1, 2), 2.0))
    action, log_prob = far.sample()
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all() and torch.isfinite(far.mean.grad).all()  # type: ignore[arg-type]
    assert (action.abs() <= 1).all()
    edge = SquashedNormal(torch.zeros(1, 1), torch.zeros(1, 1))
    assert torch.equal(edge.log_prob(torch.ones(1, 1)), edge.log_prob(torch.full((1, 1), ATANH_LIMIT)))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("mean", [0.0, 3.0, 8.0, 10.0, 15.0, 100.0])
def test_the_density_of_saturated_actions_is_that_of_their_interval(mean: float, sign: float) -> None:
    edge = torch.tensor(math.atanh(ATANH_LIMIT), dtype=torch.float64)
    share = torch.distributions.Normal(edge, 0.3).cdf(torch.tensor(mean, dtype=torch.float64))
    given = torch.tensor([[sign], [sign * ATANH_LIMIT], [sign * (1 - 5e-7)]])
    own = SquashedNormal(torch.tensor([[sign * mean]], requires_grad=True), torch.tensor([math.log(0.3)]))
    log_prob = own.log_prob(given)
    assert torch.isfinite(log_prob).all() and torch.isfinite(torch.autograd.grad(log_prob.sum(), own.mean)[0]).all()
    if share > 1e-3:
        assert torch.allclose(log_prob.double(), (share / (1 - ATANH_LIMIT)).log(), atol=1e-2)
    if 3.0 <= mean <= 8.0:  # few, or most of the samples are saturated
        torch.manual_seed(0)
        wide = SquashedNormal(torch.full((10_000, 1), sign * mean), torch.tensor([math.log(0.3)]))
        action, sampled = wide.sample()
        assert abs(wide.log_prob(action).mean() - sampled.mean()) < 0.7


def test_ratios_of_saturated_policies_are_those_of_their_tails() -> None:
    action = torch.ones(1, 1)
    old, new = (SquashedNormal(torch.full((1, 1), mean), torch.zeros(1)) for mean in (12.0, 20.0))
    assert abs(old.log_prob(action) - new.log_prob(action)) < 1e-5  # both are saturated nearly always
    rare = SquashedNormal(torch.full((1, 1), 6.0), torch.zeros(1))
    tail = 1 - torch.distributions.Normal(6.0, 1.0).cdf(torch.tensor(math.atanh(ATANH_LIMIT)))
    assert torch.allclose((rare.log_prob(action) - new.log_prob(action)).exp(), tail, rtol=1e-3)


def test_samples_are_reparametrised() -> None:
    for kind in (Normal, SquashedNormal):
        mean = torch.zeros(2, 3, requires_grad=True)
        action, _ = kind(mean, torch.zeros(2, 3)).sample()
        (gradient,) = torch.autograd.grad(action.sum(), mean)
        assert (gradient > 0).all()


def test_normal_samples_have_the_right_moments() -> None:
    torch.manual_seed(0)
    action, _ = Normal(torch.tensor([2.0, -1.0]), torch.tensor([0.0, -1.0])).sample(20_000)
    assert torch.allclose(action.mean(0), torch.tensor([2.0, -1.0]), atol=0.05)
    assert torch.allclose(action.std(0), torch.tensor([0.0, -1.0]).exp(), atol=0.05)


def test_categorical_agrees_with_torch() -> None:
    logits = parameters()[0] * 3
    ours, theirs = Categorical(logits), torch.distributions.Categorical(logits=logits)
    action, log_prob = ours.sample()
    assert action.dtype == torch.int64 and action.shape == (5,)
    assert torch.allclose(log_prob, theirs.log_prob(action), atol=1e-6)
    assert torch.allclose(ours.entropy(), theirs.entropy(), atol=1e-6)
    assert torch.allclose(ours.probs, theirs.probs, atol=1e-6)
    other = torch.distributions.Categorical(logits=logits.flip(0))
    assert torch.allclose(
        ours.kl(Categorical(logits.flip(0))), torch.distributions.kl_divergence(theirs, other), atol=1e-5
    )
    assert torch.equal(ours.mode(), logits.argmax(-1))
    many, log_probs = ours.sample(4)
    assert many.shape == (4, 5)
    assert torch.allclose(log_probs, theirs.log_prob(many), atol=1e-6)


def test_categorical_samples_have_the_right_frequencies() -> None:
    torch.manual_seed(0)
    probs = torch.tensor([0.1, 0.2, 0.7])
    action, _ = Categorical(probs.log() + 5.0).sample(50_000)
    assert torch.allclose(torch.bincount(action, minlength=3) / 50_000, probs, atol=0.01)
